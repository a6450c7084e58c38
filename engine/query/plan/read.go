package plan

import (
	"maps"
	"math"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
)

// Eval returns the value of an expression that is constant while a Scan runs.
type Eval func(algebra.Expr) (types.Value, error)

// A Read is what a Scan asks of its table.
type Read struct {
	// Ranges are sorted and disjoint. None means that no row can matter.
	Ranges []row.Range
	filters
	// Limit is the number of rows that are enough, 0 for all.
	Limit     int64
	Reversed  bool
	Unordered bool
}

// filters are those of a Read. They are not changed once they are made.
type filters struct {
	// Filter leaves the cells that matter, and of rows without any one with MarkerLabel.
	Filter *filter.Node
	// Present, if Partial is set, is a cheaper filter that leaves no cell of rows of the
	// latter kind.
	Present *filter.Node
	Partial bool
	// Plain says that the reader may as well have all cells, as cells that do not matter lie
	// with those that do.
	Plain bool
}

// MarkerLabel is the label of cells that only tell that their row is there: no
// column is made of them.
const MarkerLabel = "row"

// Bind returns the read of a Scan of a stored table.
func Bind(s *algebra.Scan, eval Eval) (*Read, error) {
	r := &Read{}
	a := s.Access
	if a == nil {
		a = &algebra.Access{}
	}
	r.Reversed, r.Unordered = a.Reversed, a.Unordered
	if a.Keys != nil {
		var err error
		if r.Ranges, err = ranges(s.Table.Key, a.Keys, eval); err != nil {
			return nil, err
		}
	} else {
		r.Ranges = []row.Range{row.All}
	}
	if a.Limit != nil {
		n, err := limit(a, eval)
		if err != nil {
			return nil, err
		}
		if r.Limit = n; n == 0 {
			r.Ranges = nil
		}
	}
	times, versions, err := history(s.History, eval)
	if err != nil {
		return nil, err
	}
	if times.Start >= times.End && times.End != math.MaxInt64 || versions < 0 {
		r.Ranges = nil
	}
	switch p, ok := a.Prepared.(*filters); {
	case len(r.Ranges) == 0:
	case ok:
		r.filters = *p
	default:
		r.filters = cells(s, a.Present, times, versions)
	}
	return r, nil
}

// prepareFilters keeps the filters of the Scans below r that are the same in each
// execution.
func prepareFilters(r algebra.Rel) {
	if s, ok := r.(*algebra.Scan); ok && s.Access != nil && s.History == nil {
		f := cells(s, s.Access.Present, cell.AllTime, 1)
		for _, n := range []*filter.Node{f.Filter, f.Present} {
			if n != nil {
				n.Kept = true
			}
		}
		s.Access.Prepared = &f
	}
	eachRel(r, prepareFilters)
}

// limit returns the number of rows that LIMIT and OFFSET of a need.
func limit(a *algebra.Access, eval Eval) (int64, error) {
	var sum int64
	for _, e := range []algebra.Expr{a.Limit, a.Offset} {
		if e == nil {
			continue
		}
		v, err := eval(e)
		if err != nil {
			return 0, err
		}
		if !v.Valid || v.Int < 0 || sum+v.Int < sum {
			return math.MaxInt64, nil // the Limit above says what is wrong
		}
		if e == a.Limit && v.Int == 0 {
			return 0, nil
		}
		sum += v.Int
	}
	return sum, nil
}

// history returns the timestamps that h asks for, and how many versions of a column:
// 0 for all, -1 for none.
func history(h *algebra.History, eval Eval) (cell.TimeRange, int64, error) {
	t := cell.AllTime
	if h == nil {
		return t, 1, nil
	}
	versions := int64(0)
	if !h.WithHistory {
		versions = 1
	}
	bounds := []struct {
		e     algebra.Expr
		name  string
		start bool // it is a lower bound
		next  bool // the bound is the timestamp behind it
	}{
		{h.After, "after", true, true}, {h.AfterOrEqual, "after_or_equal", true, false},
		{h.Before, "before", false, false}, {h.BeforeOrEqual, "before_or_equal", false, true}, {h.AsOf, "as_of", false, true},
	}
	for _, b := range bounds {
		if b.e == nil {
			continue
		}
		v, err := eval(b.e)
		if err != nil {
			return t, 0, err
		}
		if !v.Valid {
			return t, 0, fault.New(fault.Invalid, "The argument %s must not be NULL", b.name)
		}
		at := v.Int
		if b.next {
			at++
		}
		if b.start {
			t.Start = max(t.Start, at)
		} else {
			t.End = min(t.End, at)
		}
	}
	if h.LatestN != nil {
		v, err := eval(h.LatestN)
		if err != nil {
			return t, 0, err
		}
		if !v.Valid || v.Int < 1 {
			return t, 0, fault.New(fault.Invalid, "The argument latest_n must be at least 1")
		}
		versions = min(v.Int, math.MaxInt32)
	}
	return t, versions, nil
}

// cells returns the filters that leave the cells that s needs.
func cells(s *algebra.Scan, present bool, times cell.TimeRange, versions int64) (r filters) {
	columns := map[string][]row.Range{}
	unpack := s.History != nil && s.History.Unpack
	values := false // whether values are wanted
	for i := range s.Uses {
		u := &s.Uses[i]
		if u.Index < 0 {
			continue
		}
		c := &s.Table.Columns[u.Index]
		if c.Kind != algebra.FamilyColumn || u.Qualifier == nil && u.Existence {
			continue // a map is never NULL
		}
		q := row.All
		if u.Qualifier != nil {
			q = row.Single([]byte(*u.Qualifier))
		}
		columns[c.Family] = append(columns[c.Family], q)
		values = values || !u.Existence && !u.WriteTime
	}
	for f := range columns {
		columns[f] = row.Union(columns[f])
	}
	var base, newest []*filter.Node
	if times != cell.AllTime {
		base = append(base, &filter.Node{Op: filter.TimestampRange, Times: times})
	}
	if versions > 0 {
		newest = append(newest, &filter.Node{Op: filter.CellsPerColumnLimit, N: int32(versions)})
	}
	strip := &filter.Node{Op: filter.StripValue}
	var marker []*filter.Node
	if unpack {
		// Every timestamp makes a row, whatever cell has it.
		marker = append(slices.Clone(newest), strip)
	} else {
		marker = append(marker, &filter.Node{Op: filter.CellsPerRowLimit, N: 1}, strip)
	}
	if len(columns) == 0 {
		r.Filter = chain(append(base, marker...)...)
		return r
	}
	r.Plain = times == cell.AllTime && !unpack && len(s.Table.Schema.AllGroups()) == 1 &&
		(versions == 1 || s.History != nil && s.History.WithHistory && versions == 0)
	wanted := []*filter.Node{{Op: filter.Columns, Columns: columns, Children: []*filter.Node{nil}}}
	if everything(s, columns) {
		wanted, present = nil, true
	}
	wanted = append(wanted, newest...)
	if !values {
		wanted = append(wanted, strip)
	}
	r.Present = chain(append(slices.Clip(base), wanted...)...)
	if present {
		r.Filter = r.Present
		return r
	}
	r.Partial = !unpack
	marker = append(marker, &filter.Node{Op: filter.ApplyLabel, Label: MarkerLabel})
	both := &filter.Node{Op: filter.Interleave, Children: []*filter.Node{chain(marker...), chain(wanted...)}}
	r.Filter = chain(append(base, both)...)
	return r
}

// everything tells whether columns are all of the table.
func everything(s *algebra.Scan, columns map[string][]row.Range) bool {
	for name := range maps.Keys(s.Table.Schema.Families) {
		r := columns[name]
		if len(r) != 1 || len(r[0].Start) > 0 || len(r[0].End) > 0 {
			return false
		}
	}
	return true
}

func chain(list ...*filter.Node) *filter.Node {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return &filter.Node{Op: filter.Chain, Children: list}
}

// Constants returns the expressions that Bind evaluates for s.
func Constants(s *algebra.Scan) []algebra.Expr {
	var out []algebra.Expr
	add := func(list ...algebra.Expr) {
		for _, e := range list {
			if e != nil {
				out = append(out, e)
			}
		}
	}
	if h := s.History; h != nil {
		add(h.After, h.AfterOrEqual, h.Before, h.BeforeOrEqual, h.LatestN, h.AsOf)
	}
	if a := s.Access; a != nil {
		add(a.Limit, a.Offset)
		var walk func(c *algebra.KeyCondition)
		walk = func(c *algebra.KeyCondition) {
			if c == nil {
				return
			}
			add(c.Values...)
			for _, k := range c.Of {
				walk(k)
			}
		}
		walk(a.Keys)
	}
	return out
}
