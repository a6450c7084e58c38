package materialize

import (
	"context"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/analyze"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
)

// A Catalog is one that knows the materialized views of tables.
type Catalog interface {
	algebra.Catalog
	// Views returns the materialized views of a table that the caller may read. Table
	// knows them by the last part of their names.
	Views(ctx context.Context, t *algebra.Table) ([]*schema.View, error)
}

// Use notes in st, an analyzed query, which materialized views can answer a part of it.
// If st.UseViews is set they do: what is then read of a view is as old as the view, and
// lacks rows that could not be evaluated.
//
// A view of groups answers a GROUP BY of the same keys, aggregates among its own, and
// the conditions of the view; other conditions may be on keys. An index answers if it
// has all columns that are wanted, the source's key among those of its own, and if
// there is a condition on the first of them. As a view leaves out rows whose key would
// have a NULL, a key must not be NULL, or conditions must say so.
func Use(ctx context.Context, cat Catalog, st *algebra.Statement) error {
	if st.Query == nil || !st.UseViews && st.Explain == algebra.NoExplain {
		return nil
	}
	for _, t := range slices.Clone(st.Tables) {
		if t.Schema == nil || t.Schema.View != nil || len(t.Schema.Views) == 0 {
			continue
		}
		defs, err := cat.Views(ctx, t)
		if err != nil {
			return err
		}
		for _, d := range defs {
			v, err := Compile(ctx, cat, d.Query)
			if err != nil || v.Definition.SourceID != d.SourceID || v.input.scan == nil || v.input.scan.History != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				continue // it is broken, or can answer nothing but itself
			}
			if err := use(ctx, cat, st, v, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// use lets one view answer what it can.
func use(ctx context.Context, cat Catalog, st *algebra.Statement, v *View, d *schema.View) error {
	u := &user{v: v, name: d.Name[strings.LastIndexByte(d.Name, '/')+1:]}
	rel, tables, next, err := analyze.View(ctx, cat, u.name, st.NextColumn)
	switch k := fault.KindOf(err); {
	case k == fault.NotFound || k == fault.PermissionDenied || k == fault.Invalid:
		return nil
	case err != nil:
		return err
	}
	u.rel = rel
	for _, c := range rel.Columns() {
		u.cols = append(u.cols, &algebra.ColumnRef{Column: c})
	}
	if len(u.cols) != len(v.keys)+len(v.values) {
		return nil
	}
	var out algebra.Rel
	if v.Definition.Index {
		out = u.index(st)
	} else {
		out = plan.ReplaceRel(st.Query, func(r algebra.Rel) algebra.Rel {
			if a, ok := r.(*algebra.Aggregate); ok && !u.used {
				return u.groups(a)
			}
			return nil
		})
	}
	if !u.used {
		return nil
	}
	st.Views = append(st.Views, u.name)
	if st.UseViews {
		st.Query, st.NextColumn = out, next
		st.Tables = append(st.Tables, tables...)
	}
	return nil
}

// An input is the rows that a query is made of: those of a table for which conditions
// hold.
type input struct {
	scan  *algebra.Scan
	conds []algebra.Expr
	made  map[algebra.ColumnID]algebra.Expr
}

// inputOf takes r apart. The scan is nil if there is anything else.
func inputOf(r algebra.Rel) input {
	in := input{made: map[algebra.ColumnID]algebra.Expr{}}
	for {
		switch t := r.(type) {
		case *algebra.Scan:
			in.scan = t
			for i := range in.conds {
				in.conds[i] = in.expand(in.conds[i])
			}
			return in
		case *algebra.Filter:
			in.conds = conjuncts(in.conds, t.Cond)
			r = t.Input
		case *algebra.Project:
			for _, c := range t.Computed {
				in.made[c.ID] = c.Expr
			}
			r = t.Input
		case *algebra.Keep:
			r = t.Input
		default:
			return in
		}
	}
}

// expand returns e over the columns of the scan.
func (in *input) expand(e algebra.Expr) algebra.Expr {
	return analyze.Rewrite(e, func(e algebra.Expr) algebra.Expr {
		if r, ok := e.(*algebra.ColumnRef); ok && in.made[r.ID] != nil {
			return in.expand(in.made[r.ID])
		}
		return nil
	})
}

func conjuncts(dst []algebra.Expr, e algebra.Expr) []algebra.Expr {
	if c, ok := e.(*algebra.Call); ok && c.Function.Name == "$and" {
		for _, a := range c.Args {
			dst = conjuncts(dst, a)
		}
		return dst
	}
	return append(dst, e)
}

// A user is one attempt to answer by a view. cols are the columns of rel, those of the
// view's key first.
type user struct {
	v    *View
	name string
	rel  algebra.Rel
	cols []*algebra.ColumnRef
	used bool
}

// sameScan tells whether s reads what the view's query does.
func (u *user) sameScan(s *algebra.Scan) bool {
	t := u.v.input.scan.Table
	return s != nil && s.Table.Schema != nil && s.Table.Schema.ID == t.Schema.ID && s.Table.FullName == t.FullName && s.History == nil
}

// moved returns what makes of an expression over the columns of one scan one over those
// of another of the same table. A column that the other does not have becomes one that
// nothing has.
func moved(from, to *algebra.Scan) func(algebra.Expr) algebra.Expr {
	cols := map[algebra.ColumnID]algebra.Column{}
	for _, f := range from.Uses {
		c := f.Column
		c.ID = -c.ID
		for _, t := range to.Uses {
			if t.Index == f.Index {
				c = t.Column
			}
		}
		cols[f.ID] = c
	}
	return func(e algebra.Expr) algebra.Expr {
		return analyze.Rewrite(e, func(e algebra.Expr) algebra.Expr {
			if r, ok := e.(*algebra.ColumnRef); ok {
				if c, ok := cols[r.ID]; ok {
					return &algebra.ColumnRef{Column: c}
				}
			}
			return nil
		})
	}
}

// without returns the conditions that are not among others, and whether all of those
// are there.
func without(conds, others []algebra.Expr) (rest []algebra.Expr, ok bool) {
	found := 0
	for _, o := range others {
		if slices.ContainsFunc(conds, func(c algebra.Expr) bool { return analyze.Same(c, o) }) {
			found++
		}
	}
	for _, c := range conds {
		if !slices.ContainsFunc(others, func(o algebra.Expr) bool { return analyze.Same(c, o) }) {
			rest = append(rest, c)
		}
	}
	return rest, found == len(others)
}

// strict are functions that are TRUE of no NULL. A condition of one of ranges, on the
// first column of a key, leaves a range of an index.
var strict = map[string]bool{"$equal": true, "$less": true, "$less_or_equal": true, "$greater": true, "$greater_or_equal": true,
	"$like": true, "$between": true, "$in": true, "STARTS_WITH": true, "$not_equal": false}

// restricts tells whether a condition that is TRUE says that e is not NULL, and whether
// it leaves a range of its values.
func restricts(cond, e algebra.Expr) (notNull, ranged bool) {
	c, ok := cond.(*algebra.Call)
	if !ok || len(c.Args) == 0 {
		return false, false
	}
	if c.Function.Name == "$not" {
		in, ok := c.Args[0].(*algebra.Call)
		return ok && in.Function.Name == "$is_null" && analyze.Same(in.Args[0], e), false
	}
	ranged, ok = strict[c.Function.Name]
	if !ok {
		return false, false
	}
	both := len(c.Args) == 2 && c.Function.Name != "$in" && c.Function.Name != "$like" && c.Function.Name != "STARTS_WITH"
	if analyze.Same(c.Args[0], e) || both && analyze.Same(c.Args[1], e) {
		return true, ranged
	}
	return false, false
}

// neverNull tells whether e cannot be NULL in rows for which conds hold.
func neverNull(s *algebra.Scan, e algebra.Expr, conds []algebra.Expr) bool {
	switch e := e.(type) {
	case *algebra.Literal:
		return e.Value.Valid
	case *algebra.ColumnRef:
		if k := kindIn(s, e.ID); k == algebra.RowKeyColumn || k == algebra.KeyColumn {
			return true
		}
	case *algebra.Cast:
		if !e.Safe && e.Format == nil && neverNull(s, e.X, nil) {
			return true
		}
	}
	return slices.ContainsFunc(conds, func(c algebra.Expr) bool { ok, _ := restricts(c, e); return ok })
}

func kindIn(s *algebra.Scan, id algebra.ColumnID) algebra.ColumnKind {
	for _, u := range s.Uses {
		if u.ID == id && u.Index >= 0 {
			return s.Table.Columns[u.Index].Kind
		}
	}
	return algebra.PlainColumn
}

// groups returns what gives the groups of a by the view, or nil.
func (u *user) groups(a *algebra.Aggregate) algebra.Rel {
	in := inputOf(a.Input)
	if !u.sameScan(in.scan) || a.Sets != nil || len(a.Grouping) > 0 || len(a.Keys) != len(u.v.keys) {
		return nil
	}
	move := moved(in.scan, u.v.input.scan)
	over := func(e algebra.Expr) algebra.Expr { return move(in.expand(e)) }
	var conds []algebra.Expr
	for _, c := range in.conds {
		conds = append(conds, move(c))
	}
	rest, ok := without(conds, u.v.input.conds)
	if !ok {
		return nil
	}
	p := &algebra.Project{}
	var cols []algebra.Column
	give := func(c algebra.Column, from *algebra.ColumnRef) bool {
		cols = append(cols, c)
		p.Computed = append(p.Computed, algebra.Computed{Column: c, Expr: from})
		return c.Type.Equal(from.Type())
	}
	taken := map[int]bool{}
	for _, k := range a.Keys {
		i := slices.IndexFunc(u.v.keys, func(e algebra.Expr) bool { return analyze.Same(e, over(k.Expr)) })
		if i < 0 || taken[i] || !neverNull(u.v.input.scan, u.v.keys[i], conds) || !give(k.Column, u.cols[i]) {
			return nil
		}
		taken[i] = true
	}
	for _, g := range a.Aggs {
		i := slices.IndexFunc(u.v.aggs, func(o algebra.AggregateCall) bool { return sameCall(&g, &o, over) })
		if i < 0 || !give(g.Column, u.cols[len(u.v.keys)+i]) {
			return nil
		}
	}
	p.Input = u.rel
	if len(rest) > 0 {
		// What is left must be about keys.
		own := map[algebra.ColumnID]bool{}
		for _, c := range u.cols {
			own[c.ID] = true
		}
		for i, c := range rest {
			rest[i] = analyze.Rewrite(c, func(e algebra.Expr) algebra.Expr {
				for j, k := range u.v.keys {
					if analyze.Same(e, k) {
						return u.cols[j]
					}
				}
				return nil
			})
			ok := true
			algebra.Walk(rest[i], func(e algebra.Expr) bool {
				switch e := e.(type) {
				case *algebra.ColumnRef:
					ok = ok && own[e.ID]
				case *algebra.Subquery, *algebra.Lambda:
					ok = false
				}
				return ok
			})
			if !ok {
				return nil
			}
		}
		p.Input = &algebra.Filter{Input: u.rel, Cond: conjunction(rest)}
	}
	u.used = true
	return &algebra.Keep{Input: p, Cols: cols}
}

func conjunction(list []algebra.Expr) algebra.Expr {
	if len(list) == 1 {
		return list[0]
	}
	f := functions.Lookup("$and")
	return &algebra.Call{Function: f, Signature: f.Signatures[0], Args: list, T: types.BoolType}
}

// sameCall tells whether an aggregate of a query is that of a view.
func sameCall(q, v *algebra.AggregateCall, over func(algebra.Expr) algebra.Expr) bool {
	if q.Function != v.Function || q.Signature != v.Signature || q.Distinct || q.Where != nil || q.HavingMax != nil || q.HavingMin != nil ||
		len(q.OrderBy) > 0 || q.Limit != nil || q.Safe || q.Deferred || q.Inner != nil || q.IgnoreNulls != v.IgnoreNulls || len(q.Args) != len(v.Args) {
		return false
	}
	for i := range q.Args {
		if (q.Args[i] == nil) != (v.Args[i] == nil) || q.Args[i] != nil && !analyze.Same(over(q.Args[i]), v.Args[i]) {
			return false
		}
	}
	return true
}

// index returns the query of st with a scan of the source replaced, or nil.
func (u *user) index(st *algebra.Statement) algebra.Rel {
	var out algebra.Rel
	plan.ReplaceRel(st.Query, func(r algebra.Rel) algebra.Rel {
		if f, ok := r.(*algebra.Filter); ok && out == nil {
			if in := inputOf(f); len(in.made) == 0 && u.sameScan(in.scan) && len(in.scan.Uses) > 0 {
				out = u.indexed(st, in)
			}
		}
		return nil
	})
	u.used = out != nil
	return out
}

// indexed returns the query of st with the scan of in replaced, or nil.
func (u *user) indexed(st *algebra.Statement, in input) algebra.Rel {
	move := moved(u.v.input.scan, in.scan)
	var exprs []algebra.Expr
	for _, e := range slices.Concat(u.v.keys, u.v.values) {
		exprs = append(exprs, move(e))
	}
	keys := exprs[:len(u.v.keys)]
	var conds []algebra.Expr
	for _, c := range u.v.input.conds {
		conds = append(conds, move(c))
	}
	if _, ok := without(in.conds, conds); !ok {
		return nil
	}
	unique, ranged := false, false
	for i, k := range u.v.keys {
		// A column that the query does not use, such as the row key, is known to the view only.
		if !neverNull(u.v.input.scan, k, nil) && !neverNull(in.scan, keys[i], in.conds) {
			return nil
		}
		if r, ok := k.(*algebra.ColumnRef); ok && kindIn(u.v.input.scan, r.ID) == algebra.RowKeyColumn {
			unique = true
		}
	}
	for _, c := range in.conds {
		_, r := restricts(c, keys[0])
		ranged = ranged || r
	}
	if !unique || !ranged {
		return nil
	}
	out := plan.RewriteRel(st.Query, func(e algebra.Expr) algebra.Expr {
		for _, c := range conds {
			if analyze.Same(e, c) {
				return &algebra.Literal{T: types.BoolType, Value: types.NewBool(true)}
			}
		}
		if _, ok := e.(*algebra.ColumnRef); ok {
			return nil
		}
		for i, x := range exprs {
			if analyze.Same(e, x) && e.Type().Equal(u.cols[i].Type()) {
				return u.cols[i]
			}
		}
		return nil
	})
	// Columns of the scan that the view has as they are keep their numbers.
	p := &algebra.Project{Input: u.rel}
	cols := u.rel.Columns()
	missing := map[algebra.ColumnID]bool{}
	for _, s := range in.scan.Uses {
		i := slices.IndexFunc(exprs, func(e algebra.Expr) bool {
			r, ok := e.(*algebra.ColumnRef)
			return ok && r.ID == s.ID
		})
		if i < 0 || !s.Type.Equal(u.cols[i].Type()) {
			missing[s.ID] = true
			continue
		}
		p.Computed = append(p.Computed, algebra.Computed{Column: s.Column, Expr: u.cols[i]})
		cols = append(slices.Clip(cols), s.Column)
	}
	ok := true
	plan.RewriteRel(out, func(e algebra.Expr) algebra.Expr {
		if r, is := e.(*algebra.ColumnRef); is && missing[r.ID] {
			ok = false
		}
		return nil
	})
	for _, c := range st.Columns {
		ok = ok && !missing[c.Column]
	}
	first := in.scan.Uses[0].ID
	out = plan.ReplaceRel(out, func(r algebra.Rel) algebra.Rel {
		switch r := r.(type) {
		case *algebra.Scan:
			if len(r.Uses) > 0 && r.Uses[0].ID == first {
				return &algebra.Keep{Input: p, Cols: cols}
			}
		case *algebra.Keep:
			for _, c := range r.Cols {
				ok = ok && !missing[c.ID]
			}
		case *algebra.Filter, *algebra.Project, *algebra.Sort, *algebra.Limit, *algebra.Aggregate:
		default:
			ok = false // others may name columns in ways of their own
		}
		return nil
	})
	if !ok {
		return nil
	}
	return out
}
