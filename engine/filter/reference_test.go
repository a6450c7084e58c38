package filter

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"rsc.io/binaryregexp"

	"github.com/trestledb/trestle/engine/row"
)

// reference evaluates n over all cells of a row, list by list, as the API
// defines each filter. draw stands for the random number of every RowSample.
type reference struct {
	key  []byte
	draw float64
	sunk []row.Cell
}

// traced is a cell with the index that it had in the input of each Interleave
// around the filter that is being applied.
type traced struct {
	row.Cell
	from []int
}

// evaluate returns the output row: that of the root and of all Sinks.
func evaluate(n *Node, key []byte, cells []row.Cell, draw float64) []row.Cell {
	r := &reference{key: key, draw: draw}
	var in []traced
	for _, c := range cells {
		in = append(in, traced{Cell: c})
	}
	for _, c := range r.apply(n, in) {
		r.sunk = append(r.sunk, c.Cell)
	}
	return sorted(r.sunk)
}

func sorted(cells []row.Cell) []row.Cell {
	slices.SortStableFunc(cells, func(a, b row.Cell) int { return compare(&a, &b) })
	return cells
}

func (r *reference) apply(n *Node, in []traced) []traced {
	in = slices.Clone(in)
	if n == nil {
		return in
	}
	keep := func(f func(c *row.Cell) bool) []traced {
		return slices.DeleteFunc(in, func(c traced) bool { return !f(&c.Cell) })
	}
	switch n.Op {
	case PassAll:
		return in
	case BlockAll:
		return nil
	case Chain:
		for _, c := range n.Children {
			in = r.apply(c, in)
		}
		return in
	case Interleave:
		// The API leaves the order of copies open. The pipeline's is: by input
		// cell, then by child; the other way round if a Condition is inside.
		depth := 0
		if len(in) > 0 {
			depth = len(in[0].from)
		}
		for i := range in {
			in[i].from = append(slices.Clip(in[i].from), i)
		}
		var out []traced
		for _, c := range n.Children {
			out = append(out, r.apply(c, in)...)
		}
		late := strings.Contains(n.String(), opNames[Condition])
		slices.SortStableFunc(out, func(a, b traced) int {
			c := compare(&a.Cell, &b.Cell)
			if c == 0 && !late {
				return cmp.Compare(a.from[depth], b.from[depth])
			}
			return c
		})
		for i := range out {
			out[i].from = out[i].from[:depth]
		}
		return out
	case Condition:
		branch := n.Children[2]
		if len(r.apply(n.Children[0], in)) > 0 {
			branch = n.Children[1]
		}
		if branch == nil {
			return nil
		}
		return r.apply(branch, in)
	case Sink:
		for _, c := range in {
			r.sunk = append(r.sunk, c.Cell)
		}
		return nil
	case RowKeyRegex:
		return keep(func(*row.Cell) bool { return fullMatch(n.Pattern, r.key) })
	case RowSample:
		return keep(func(*row.Cell) bool { return r.draw < n.P })
	case FamilyRegex:
		return keep(func(c *row.Cell) bool { return fullMatch(n.Pattern, []byte(c.Family)) })
	case QualifierRegex:
		return keep(func(c *row.Cell) bool { return fullMatch(n.Pattern, c.Qualifier) })
	case ColumnRange:
		return keep(func(c *row.Cell) bool {
			return c.Family == n.Family && inRange(c.Qualifier, n.Start, n.End)
		})
	case TimestampRange:
		return keep(func(c *row.Cell) bool { return n.Times.Contains(c.Timestamp) })
	case ValueRegex:
		return keep(func(c *row.Cell) bool { return fullMatch(n.Pattern, c.Value) })
	case ValueRange:
		return keep(func(c *row.Cell) bool { return inRange(c.Value, n.Start, n.End) })
	case ValueBitmask:
		return keep(func(c *row.Cell) bool {
			if len(c.Value) != len(n.Pattern) {
				return false
			}
			for i := range c.Value {
				if c.Value[i]&n.Pattern[i] != n.Pattern[i] {
					return false
				}
			}
			return true
		})
	case CellsPerRowOffset:
		return in[min(len(in), int(n.N)):]
	case CellsPerRowLimit:
		return in[:min(len(in), int(n.N))]
	case CellsPerColumnLimit:
		seen := map[string]int{}
		return keep(func(c *row.Cell) bool {
			column := fmt.Sprintf("%s:%s", c.Family, c.Qualifier)
			seen[column]++
			return seen[column] <= int(n.N)
		})
	case StripValue:
		for i := range in {
			in[i].Value = nil
		}
		return in
	case ApplyLabel:
		for i := range in {
			in[i].Labels = append(slices.Clone(in[i].Labels), n.Label)
		}
		return in
	}
	panic(fmt.Sprint("unknown filter ", n.Op))
}

func inRange(s []byte, start, end Bound) bool {
	if start.Set {
		if c := bytes.Compare(s, start.Key); c < 0 || c == 0 && start.Open {
			return false
		}
	}
	if end.Set {
		if c := bytes.Compare(s, end.Key); c > 0 || c == 0 && end.Open {
			return false
		}
	}
	return true
}

// fullMatch asks binaryregexp itself. It cannot escape a byte above 127 inside
// \Q…\E, hence patterns given here have none there.
func fullMatch(pattern, s []byte) bool {
	var b bytes.Buffer
	for _, c := range pattern {
		if c > 127 {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	binaryregexp.MustCompile(b.String()) // balanced by itself
	return binaryregexp.MustCompile(`\A(?:` + b.String() + `)\z`).Match(s)
}
