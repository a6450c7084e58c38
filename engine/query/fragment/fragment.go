package fragment

import (
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// Encoding is the number of the form in which a server returns what it makes of a
// fragment: see scan.EncodedWriter.
const Encoding = 2

// A Fragment is a part of a query over one Scan.
type Fragment struct {
	Scan *algebra.Scan
	// Rel is what is made of the Scan's rows: Filter, Project and Keep, and on top perhaps
	// an Aggregate, or a Limit of a Sort.
	Rel algebra.Rel
	// Now is the statement's time, in microseconds.
	Now int64
}

// Of returns the fragment that r is, nil if it is none.
func Of(r algebra.Rel) *Fragment {
	f := &Fragment{Rel: r}
	if a, ok := r.(*algebra.Aggregate); ok {
		if a.Sets != nil || len(a.Grouping) > 0 {
			return nil
		}
		for i := range a.Aggs {
			if !partial(&a.Aggs[i]) {
				return nil
			}
		}
		r = a.Input
	}
	if s := f.Sort(); s != nil {
		r = s.Input
	}
	for {
		switch in := r.(type) {
		case *algebra.Filter:
			r = in.Input
		case *algebra.Project:
			r = in.Input
		case *algebra.Keep:
			r = in.Input
		case *algebra.Scan:
			if in.Table.Schema == nil {
				return nil
			}
			f.Scan = in
			return f
		default:
			return nil
		}
	}
}

// partial tells whether states of an aggregate, each of some rows, can be merged in any
// order.
func partial(c *algebra.AggregateCall) bool {
	return c.Function.Kind == functions.Aggregate && !c.Function.Ordered && !c.Function.Volatile && c.Inner == nil && c.Having == nil &&
		len(c.OrderBy) == 0 && c.Limit == nil && c.HavingMax == nil && c.HavingMin == nil
}

// IsAggregate tells whether the fragment gives partial states.
func (f *Fragment) IsAggregate() bool {
	_, ok := f.Rel.(*algebra.Aggregate)
	return ok
}

// Sort returns the order of which the fragment gives the first rows; nil if it gives
// others.
func (f *Fragment) Sort() *algebra.Sort {
	if l, ok := f.Rel.(*algebra.Limit); ok && l.Count != nil {
		s, _ := l.Input.(*algebra.Sort)
		return s
	}
	return nil
}

// Reduces tells whether less comes of the fragment than there are rows.
func (f *Fragment) Reduces() bool {
	for r := f.Rel; ; {
		switch in := r.(type) {
		case *algebra.Project:
			r = in.Input
		case *algebra.Keep:
			r = in.Input
		case *algebra.Scan:
			return false
		default:
			return true
		}
	}
}

// ResultTypes returns the types of the columns that the fragment gives: those of Rel, or
// of the keys and then BYTES for the state of each aggregate.
func (f *Fragment) ResultTypes() []*types.Type {
	var out []*types.Type
	if a, ok := f.Rel.(*algebra.Aggregate); ok {
		for _, k := range a.Keys {
			out = append(out, k.Type)
		}
		for range a.Aggs {
			out = append(out, types.BytesType)
		}
		return out
	}
	for _, c := range f.Rel.Columns() {
		out = append(out, c.Type)
	}
	return out
}
