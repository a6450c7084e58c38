package filter

import (
	"bytes"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
)

// Hints say which cells cannot reach the output nor change what does, so that
// a reader need not fetch them. Each field holds by itself: what is outside of
// any of them may be left out. Feeding it all the same does no harm.
type Hints struct {
	// Rows holds the keys of all rows that can have output.
	Rows row.Range
	// Families is nil if cells of every family matter.
	Families func(name string) bool
	// Qualifiers holds every qualifier that matters, of whatever family.
	Qualifiers row.Range
	// Times holds every timestamp that matters.
	Times cell.TimeRange
	// None tells that nothing matters: there is no output.
	None bool
}

func anything() Hints { return Hints{Times: cell.AllTime} }

// and returns what is in both.
func (h Hints) and(g Hints) Hints {
	h.None = h.None || g.None
	h.Rows = h.Rows.Intersect(g.Rows)
	h.Qualifiers = h.Qualifiers.Intersect(g.Qualifiers)
	h.Times.Start = max(h.Times.Start, g.Times.Start)
	h.Times.End = min(h.Times.End, g.Times.End)
	if h.Rows.Empty() || h.Qualifiers.Empty() || h.Times.Start > h.Times.End ||
		h.Times.Start == h.Times.End && !h.Times.Contains(h.Times.Start) {
		h.None = true
	}
	switch f, g := h.Families, g.Families; {
	case f == nil:
		h.Families = g
	case g != nil:
		h.Families = func(name string) bool { return f(name) && g(name) }
	}
	return h
}

// or returns bounds of what is in either.
func (h Hints) or(g Hints) Hints {
	if h.None {
		return g
	}
	if g.None {
		return h
	}
	h.Rows = hull(h.Rows, g.Rows)
	h.Qualifiers = hull(h.Qualifiers, g.Qualifiers)
	h.Times.Start = min(h.Times.Start, g.Times.Start)
	h.Times.End = max(h.Times.End, g.Times.End)
	if f, g := h.Families, g.Families; f == nil || g == nil {
		h.Families = nil
	} else {
		h.Families = func(name string) bool { return f(name) || g(name) }
	}
	return h
}

func hull(r, s row.Range) row.Range {
	if bytes.Compare(s.Start, r.Start) < 0 {
		r.Start = s.Start
	}
	if len(s.End) == 0 || len(r.End) > 0 && bytes.Compare(s.End, r.End) > 0 {
		r.End = s.End
	}
	return r
}

// hints returns what n needs of its input.
func (n *node) hints() Hints {
	h := anything()
	if n == nil {
		return h
	}
	switch n.Op {
	case BlockAll:
		h.None = true

	case RowKeyRegex:
		h.Rows = n.pattern.bounds()

	case FamilyRegex:
		h.Families = func(s string) bool {
			return newMachine(n.pattern, dfaMinMemory, &effort{left: MaxRowEffort}).match([]byte(s))
		}

	case QualifierRegex:
		h.Qualifiers = n.pattern.bounds()

	case ColumnRange:
		name := n.Family
		h.Families = func(s string) bool { return s == name }
		if n.Start.Set {
			h.Qualifiers.Start = n.Start.Key
			if n.Start.Open {
				h.Qualifiers.Start = row.Successor(n.Start.Key)
			}
		}
		if n.End.Set {
			h.Qualifiers.End = n.End.Key
			if !n.End.Open {
				h.Qualifiers.End = row.Successor(n.End.Key)
			} else if len(n.End.Key) == 0 {
				h.None = true
			}
		}
		h = h.and(anything()) // notices an empty range

	case TimestampRange:
		h.Times = n.Times
		h = h.and(anything())

	case Chain:
		// What a later filter drops can be left out at the start, unless an
		// earlier one counts it.
		at := stateless
		for _, k := range n.children {
			g := k.hints()
			switch {
			case n.sink && at == rowState:
				// A Sink may have sent to the output what g would drop.
				return h
			case at == rowState:
				// Rows and None speak of the whole row.
				g.Families, g.Qualifiers, g.Times = nil, row.All, cell.AllTime
			case at == columnState:
				g.Times = cell.AllTime
			}
			h = h.and(g)
			if k != nil {
				at = max(at, k.state)
			}
		}

	case Interleave:
		h = Hints{None: true}
		for _, k := range n.children {
			h = h.or(k.hints())
		}

	case Condition:
		pred, then, otherwise := n.children[0].hints(), n.branch(1), n.branch(2)
		if then.None && otherwise.None {
			return then
		}
		h = then.or(otherwise)
		// The predicate picks the branch, but adds no row to what they let out.
		rows := h.Rows
		h = h.or(pred)
		h.Rows = rows

	case Columns:
		h.None = true
		for _, ranges := range n.Columns {
			for _, r := range ranges {
				if h.None {
					h.None, h.Qualifiers = false, r
				}
				h.Qualifiers = hull(h.Qualifiers, r)
			}
		}
		h.Families = func(s string) bool { return len(n.Columns[s]) > 0 }
		h = h.and(n.children[0].hints())
	}
	return h
}

// branch returns the hints of a branch of a Condition.
func (n *node) branch(i int) Hints {
	if n.Node.Children[i] == nil {
		return Hints{None: true}
	}
	return n.children[i].hints()
}

// bounds returns a range that holds every string that p matches.
func (p *pattern) bounds() row.Range {
	if p.tail == tailNone {
		return row.Single(p.prefix)
	}
	return row.Prefix(p.prefix)
}
