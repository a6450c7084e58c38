package plan

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// A reach says how much of a relation is taken, and how.
type reach struct {
	// limit and offset bound the rows that are taken; a nil limit is all.
	limit, offset algebra.Expr
	// unordered says that the order of the rows does not matter.
	unordered bool
	// reversed asks for the rows of a table in descending order of keys.
	reversed bool
}

var anyOrder = reach{unordered: true}

// access works out how the tables below r are read.
func (p *planner) access(r algebra.Rel, c reach) algebra.Rel {
	r = mapRel(r, p.accessQueries, func(in algebra.Rel) algebra.Rel { return in })
	all := reach{unordered: c.unordered}
	switch r := r.(type) {
	case *algebra.Scan:
		return accessScan(r, nil, c)
	case *algebra.Filter:
		if s, ok := r.Input.(*algebra.Scan); ok && s.Table.Schema != nil {
			return accessScan(s, conjuncts(nil, r.Cond), c)
		}
		c.limit, c.offset = nil, nil
		return &algebra.Filter{Input: p.access(r.Input, c), Cond: r.Cond}
	case *algebra.Project:
		return &algebra.Project{Input: p.access(r.Input, c), Computed: r.Computed}
	case *algebra.Keep:
		return &algebra.Keep{Input: p.access(r.Input, c), Cols: r.Cols}
	case *algebra.Limit:
		in := all
		in.reversed = c.reversed
		if c.limit == nil {
			in.limit, in.offset = r.Count, r.Offset
		}
		return &algebra.Limit{Input: p.access(r.Input, in), Count: r.Count, Offset: r.Offset}
	case *algebra.Sort:
		if sorted, reversed := keyOrder(r); sorted {
			c.unordered, c.reversed = false, reversed
			return p.access(r.Input, c)
		}
		return &algebra.Sort{Input: p.access(r.Input, anyOrder), Keys: r.Keys}
	case *algebra.Aggregate:
		out := *r
		out.Input = p.access(r.Input, reach{unordered: !orderMatters(r)})
		p.accessAggregate(&out)
		return &out
	case *algebra.Join:
		out := *r
		out.Left, out.Right = p.access(r.Left, anyOrder), p.access(r.Right, anyOrder)
		if r.Kind == algebra.InnerJoin && !r.Lateral && weight(out.Left) < weight(out.Right) {
			// The right side is the one that is held in memory.
			out.Left, out.Right = out.Right, out.Left
		}
		return &out
	case *algebra.Window:
		return &algebra.Window{Input: p.access(r.Input, anyOrder), Calls: r.Calls}
	case *algebra.SetOperation:
		out := *r
		out.Inputs = slices.Clone(r.Inputs)
		in := anyOrder
		if r.Op == algebra.Union && r.All {
			in = c
			in.reversed = false
		}
		for i := range out.Inputs {
			out.Inputs[i] = p.access(r.Inputs[i], in)
		}
		return &out
	case *algebra.With:
		out := &algebra.With{Defs: slices.Clone(r.Defs), Body: p.access(r.Body, c)}
		for i := range out.Defs {
			out.Defs[i].Rel = p.access(out.Defs[i].Rel, reach{})
		}
		return out
	}
	return mapRel(r, func(e algebra.Expr) algebra.Expr { return e }, func(in algebra.Rel) algebra.Rel { return p.access(in, all) })
}

// weight guesses how many rows r has: the more the larger.
func weight(r algebra.Rel) int {
	switch r := r.(type) {
	case *algebra.OneRow, *algebra.Limit:
		return 0
	case *algebra.Aggregate:
		if len(r.Keys) == 0 {
			return 0
		}
		return max(0, weight(r.Input)-1)
	case *algebra.Scan:
		if r.Table.Schema == nil {
			return 1
		}
		switch k := r.Access.Keys; {
		case r.Access.Limit != nil:
			return 0
		case k == nil:
			return 4
		case k.Op == algebra.KeyEqual || k.Op == algebra.KeyIn:
			return 0
		}
		return 3
	}
	most := 0
	for _, in := range inputs(r) {
		most = max(most, weight(in))
	}
	return most
}

// accessQueries does the same for the subqueries in e.
func (p *planner) accessQueries(e algebra.Expr) algebra.Expr {
	return rewrite(e, func(e algebra.Expr) algebra.Expr {
		s, ok := e.(*algebra.Subquery)
		if !ok {
			return nil
		}
		out := *s
		out.X, out.Compare = p.accessQueries(s.X), p.accessQueries(s.Compare)
		c := reach{unordered: s.Kind != algebra.ArrayQuery}
		if s.Kind == algebra.ExistsQuery {
			c.limit = &algebra.Literal{T: types.Int64Type, Value: types.NewInt(1)}
		}
		out.Query = p.access(s.Query, c)
		return &out
	}, nil)
}

// scanUnder returns the Scan of a stored table whose rows, each once and in its order,
// are those of r; nil if there is none.
func scanUnder(r algebra.Rel, filters bool) *algebra.Scan {
	for {
		switch in := r.(type) {
		case *algebra.Project:
			r = in.Input
		case *algebra.Keep:
			r = in.Input
		case *algebra.Filter:
			if !filters {
				return nil
			}
			r = in.Input
		case *algebra.Scan:
			if in.Table.Schema == nil {
				return nil
			}
			return in
		default:
			return nil
		}
	}
}

// isRowKey tells whether e is the row key of s.
func isRowKey(s *algebra.Scan, e algebra.Expr) bool {
	c, ok := e.(*algebra.ColumnRef)
	if !ok {
		return false
	}
	i := slices.IndexFunc(s.Uses, func(u algebra.ScanColumn) bool { return u.ID == c.ID })
	return i >= 0 && s.Uses[i].Index >= 0 && s.Table.Columns[s.Uses[i].Index].Kind == algebra.RowKeyColumn
}

// keyOrder tells whether r sorts rows as the table has them, or in the opposite order.
func keyOrder(r *algebra.Sort) (ok, reversed bool) {
	s := scanUnder(r.Input, true)
	if s == nil || len(r.Keys) == 0 {
		return false, false
	}
	reversed = r.Keys[0].Descending
	whole := 1 // how many of the keys tell a row from all others
	if !isRowKey(s, r.Keys[0].Expr) {
		if s.Table.Key == nil {
			return false, false
		}
		whole = len(s.Table.Key.Fields)
		for i, k := range r.Keys[:min(whole, len(r.Keys))] {
			field, _, is := keyField(s, k.Expr)
			if !is || field != i || k.Descending != reversed || !inKeyOrder(s.Table.Key, field) {
				return false, false
			}
		}
	}
	// Rows with one key there are only where it is unpacked.
	if len(r.Keys) > whole && s.History != nil && s.History.Unpack {
		return false, false
	}
	return true, reversed
}

// inKeyOrder tells whether keys with the same fields before a field sort as its values
// do. Those with a delimiter do so only if no value has a byte before that.
func inKeyOrder(k *algebra.KeySchema, field int) bool {
	switch k.Fields[field].Encoding {
	case algebra.RawBytes, algebra.UTF8, algebra.OrderedInt:
		return k.Encoding != algebra.Delimited
	}
	return false
}

// orderMatters tells whether the result of r depends on the order of its input, for
// functions that make a list. No order is promised, yet users expect that of keys.
func orderMatters(r *algebra.Aggregate) bool {
	return slices.ContainsFunc(r.Aggs, func(c algebra.AggregateCall) bool { return c.Function.Ordered && len(c.OrderBy) == 0 })
}

// accessAggregate finds what an aggregation without keys does not need: rows in which no
// argument has a value, or all but the first or last.
func (p *planner) accessAggregate(r *algebra.Aggregate) {
	if len(r.Keys) > 0 || r.Sets != nil || len(r.Aggs) == 0 {
		return
	}
	s := scanUnder(r.Input, false)
	if s == nil {
		return
	}
	cells := cellsOf(s)
	present, first, last := len(cells) > 0, true, true
	for i := range r.Aggs {
		c := &r.Aggs[i]
		plain := len(c.Args) == 1 && c.Where == nil && c.HavingMax == nil && c.HavingMin == nil && c.Inner == nil
		present = present && plain && c.Function.IgnoreNulls && nullWhen(c.Args[0], cells)
		key := plain && isRowKey(s, c.Args[0])
		first, last = first && key && c.Function.Name == "MIN", last && key && c.Function.Name == "MAX"
	}
	if present {
		s.Access.Present = true
	}
	if (first || last) && s.Access.Limit == nil {
		s.Access.Limit = &algebra.Literal{T: types.Int64Type, Value: types.NewInt(1)}
		s.Access.Reversed = last
	}
}

// cellsOf returns the columns of s that are NULL in rows without their cells.
func cellsOf(s *algebra.Scan) columnSet {
	cells := columnSet{}
	for _, u := range s.Uses {
		if u.Qualifier != nil {
			cells[u.ID] = true
		}
	}
	return cells
}

// accessScan returns the rows of s for which conds are TRUE.
func accessScan(s *algebra.Scan, conds []algebra.Expr, c reach) algebra.Rel {
	if s.Table.Schema == nil {
		return filterRows(s, conds)
	}
	out := *s
	out.Access = &algebra.Access{Unordered: c.unordered, Reversed: c.reversed}
	local := columnsOf(s)
	var keys []*algebra.KeyCondition
	var rest []algebra.Expr
	cells := cellsOf(s)
	for _, e := range conds {
		k := keyCondition(s, e, local)
		if k != nil {
			keys = append(keys, k)
		}
		if k == nil || !k.Exact {
			rest = append(rest, e)
			out.Access.Present = out.Access.Present || len(cells) > 0 && notTrueWhen(e, cells)
		}
	}
	switch {
	case len(keys) == 1:
		out.Access.Keys = keys[0]
	case len(keys) > 1:
		out.Access.Keys = &algebra.KeyCondition{Op: algebra.KeyAnd, Of: keys, Exact: len(rest) == 0}
	}
	if slices.ContainsFunc(rest, func(e algebra.Expr) bool { return notTrueWhen(e, columnSet{}) }) {
		out.Access.Keys = &algebra.KeyCondition{Op: algebra.KeyOr} // never
	}
	if len(rest) == 0 && (s.History == nil || !s.History.Unpack) {
		out.Access.Limit, out.Access.Offset = c.limit, c.offset
		out.Access.Unordered = c.unordered && c.limit == nil
	}
	return filterRows(&out, rest)
}

// keyField returns which part of the row key e is. exact is false if more than the key
// is needed to know what e is.
func keyField(s *algebra.Scan, e algebra.Expr) (field int, exact, ok bool) {
	if c, ok := e.(*algebra.Cast); ok && c.Format == nil && c.Zone == nil && c.T.Kind == types.String && c.X.Type().Kind == types.Bytes {
		// The same bytes, or an error.
		field, _, ok := keyField(s, c.X)
		return field, false, ok && field == algebra.RowKey
	}
	c, isColumn := e.(*algebra.ColumnRef)
	if !isColumn {
		return 0, false, false
	}
	i := slices.IndexFunc(s.Uses, func(u algebra.ScanColumn) bool { return u.ID == c.ID })
	if i < 0 || s.Uses[i].Index < 0 {
		return 0, false, false
	}
	switch col := &s.Table.Columns[s.Uses[i].Index]; col.Kind {
	case algebra.RowKeyColumn:
		return algebra.RowKey, true, true
	case algebra.KeyColumn:
		return col.Field, false, s.Table.Key != nil
	}
	return 0, false, false
}

// certain tells whether e has a value, or is NULL, without doubt.
func certain(e algebra.Expr) bool {
	switch e.(type) {
	case *algebra.Literal, *algebra.Param, *algebra.ColumnRef:
		return true
	}
	return false
}

var keyOps = map[string]algebra.KeyOp{
	"$equal": algebra.KeyEqual, "$less": algebra.KeyLess, "$less_or_equal": algebra.KeyLessOrEqual,
	"$greater": algebra.KeyGreater, "$greater_or_equal": algebra.KeyGreaterOrEqual,
}

// turned are the operations with their sides exchanged.
var turned = map[algebra.KeyOp]algebra.KeyOp{
	algebra.KeyEqual: algebra.KeyEqual, algebra.KeyLess: algebra.KeyGreater, algebra.KeyLessOrEqual: algebra.KeyGreaterOrEqual,
	algebra.KeyGreater: algebra.KeyLess, algebra.KeyGreaterOrEqual: algebra.KeyLessOrEqual,
}

// keyCondition returns what e says of the keys of s, nil if it says nothing.
func keyCondition(s *algebra.Scan, e algebra.Expr, local columnSet) *algebra.KeyCondition {
	c, ok := e.(*algebra.Call)
	if !ok || c.Safe {
		return nil
	}
	simple := func(op algebra.KeyOp, x algebra.Expr, values ...algebra.Expr) *algebra.KeyCondition {
		field, exact, ok := keyField(s, x)
		if !ok {
			return nil
		}
		for _, v := range values {
			if !fixed(v, local) {
				return nil
			}
			exact = exact && certain(v)
		}
		return &algebra.KeyCondition{Op: op, Field: field, Values: values, Exact: exact}
	}
	name := c.Function.Name
	if op, ok := keyOps[name]; ok {
		if k := simple(op, c.Args[0], c.Args[1]); k != nil {
			return k
		}
		return simple(turned[op], c.Args[1], c.Args[0])
	}
	switch name {
	case "$between":
		lo, hi := simple(algebra.KeyGreaterOrEqual, c.Args[0], c.Args[1]), simple(algebra.KeyLessOrEqual, c.Args[0], c.Args[2])
		if lo == nil || hi == nil {
			return nil
		}
		return &algebra.KeyCondition{Op: algebra.KeyAnd, Of: []*algebra.KeyCondition{lo, hi}, Exact: lo.Exact && hi.Exact}
	case "$in":
		return simple(algebra.KeyIn, c.Args[0], c.Args[1:]...)
	case "$in_array":
		k := simple(algebra.KeyIn, c.Args[0], c.Args[1])
		if k != nil {
			k.Array = true
		}
		return k
	case "STARTS_WITH":
		return simple(algebra.KeyPrefix, c.Args[0], c.Args[1])
	case "REGEXP_CONTAINS":
		k := simple(algebra.KeyRegexp, c.Args[0], c.Args[1])
		if k != nil {
			k.Exact = false
		}
		return k
	case "$like":
		return likeCondition(simple(algebra.KeyLike, c.Args[0], c.Args[1]))
	case "$and", "$or":
		return joinConditions(s, c, local)
	}
	return nil
}

// likeCondition makes an exact condition of a pattern that is a literal with nothing
// but a % at its end.
func likeCondition(k *algebra.KeyCondition) *algebra.KeyCondition {
	if k == nil {
		return nil
	}
	exact := k.Exact
	k.Exact = false
	l, ok := k.Values[0].(*algebra.Literal)
	if !ok || !l.Value.Valid {
		return k
	}
	prefix, rest := LikePrefix(l.Value.Str)
	switch rest {
	case "":
		k.Op = algebra.KeyEqual
	case "%":
		k.Op = algebra.KeyPrefix
	default:
		return k
	}
	k.Values, k.Exact = []algebra.Expr{&algebra.Literal{T: l.T, Value: types.NewString(prefix)}}, exact
	return k
}

func joinConditions(s *algebra.Scan, c *algebra.Call, local columnSet) *algebra.KeyCondition {
	or := c.Function.Name == "$or"
	out := &algebra.KeyCondition{Op: algebra.KeyAnd, Exact: true}
	if or {
		out.Op = algebra.KeyOr
	}
	for _, a := range c.Args {
		k := keyCondition(s, a, local)
		if k == nil {
			if or {
				return nil
			}
			out.Exact = false
			continue
		}
		out.Exact = out.Exact && k.Exact
		out.Of = append(out.Of, k)
	}
	if len(out.Of) == 0 {
		return nil
	}
	// Equalities about one field are one condition, so that it can be one of several
	// about a structured key.
	field := out.Of[0].Field
	if !or || slices.ContainsFunc(out.Of, func(k *algebra.KeyCondition) bool {
		return k.Op != algebra.KeyEqual && (k.Op != algebra.KeyIn || k.Array) || k.Field != field
	}) {
		return out
	}
	in := &algebra.KeyCondition{Op: algebra.KeyIn, Field: field, Exact: out.Exact}
	for _, k := range out.Of {
		in.Values = append(in.Values, k.Values...)
	}
	return in
}
