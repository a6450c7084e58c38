package analyze

import (
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// A selection is what is known of the SELECT that is being analyzed.
type selection struct {
	// from is the scope of WHERE and of aggregates' arguments; post, which knows the
	// aliases of the select list too, that of HAVING, QUALIFY and ORDER BY.
	from, post *scope
	// low and high bound the numbers of the columns that FROM makes: low <= id < high.
	low, high algebra.ColumnID
	aggs      []algebra.AggregateCall
	calls     []algebra.WindowCall
	windows   []syntax.NamedWindow
	keys      []algebra.Computed
	groupings []groupingCall
	// deferred is $deferred if there are aggregates whose errors are deferred.
	deferred *functions.Function
	// grouped is set if there are groups: of GROUP BY, or because there is an aggregate.
	grouped bool
}

// A groupingCall is GROUPING(x), whose key is found when all keys are known.
type groupingCall struct {
	col algebra.Column
	x   algebra.Expr
	pos syntax.Pos
}

// aggregateCall analyzes the call of an aggregate without OVER.
func (a *analyzer) aggregateCall(e *syntax.Call, f *functions.Function, args []syntax.Argument, safe bool, v *env) algebra.Expr {
	switch {
	case v.inAggregate:
		a.fail(e.At(), "Aggregations of aggregations are not allowed")
	case v.sel == nil:
		a.resolve(f, a.arguments(f, args, v), e.At())
		a.fail(e.At(), "Aggregate function %s not allowed in %s", display(f), v.clause)
	}
	inner := *v
	inner.inAggregate, inner.inWindow, inner.noWindow, inner.aggregateAt = true, false, true, e.At()
	call := a.aggregate(e, f, args, safe, &inner)
	sel := v.sel
	sel.grouped = true
	for i := range sel.aggs {
		if sameAggregate(&sel.aggs[i], &call) {
			return &algebra.ColumnRef{Column: sel.aggs[i].Column}
		}
	}
	sel.aggs = append(sel.aggs, call)
	return &algebra.ColumnRef{Column: call.Column}
}

// aggregate analyzes what stands in the parentheses of an aggregate. v is where its
// arguments stand.
func (a *analyzer) aggregate(e *syntax.Call, f *functions.Function, args []syntax.Argument, safe bool, v *env) algebra.AggregateCall {
	if e.Distinct && f.NoDistinct {
		if e.Star {
			a.fail(e.At(), "COUNT(*) cannot be used with DISTINCT")
		}
		a.fail(e.At(), "DISTINCT is not allowed for function %s", display(f))
	}
	if e.Nulls != "" && !f.Nulls {
		a.fail(e.At(), "IGNORE NULLS and RESPECT NULLS are not allowed for %s function %s", kindNoun(f), strings.ToLower(display(f)))
	}
	if len(e.OrderBy) > 0 && !f.Ordered {
		a.fail(a.keyword("ORDER", e.OrderBy[0].Expr.At()), "%s does not support ORDER BY in arguments", functionNoun(f))
	}
	if e.Limit != nil && !f.Limited {
		a.fail(a.keyword("LIMIT", e.Limit.At()), "%s does not support LIMIT in arguments", functionNoun(f))
	}
	call := algebra.AggregateCall{Function: f, Distinct: e.Distinct, Safe: safe}
	rows := v
	var multi *levels
	if e.GroupBy != nil {
		multi = a.multiLevel(e, v)
		v = multi.env
	}
	list := a.arguments(f, args, v)
	var t *types.Type
	call.Signature, call.Args, t = a.resolve(f, list, e.At())
	if f.Volatile {
		a.st.Volatile = true
	}
	call.IgnoreNulls = e.Nulls == "IGNORE" || e.Nulls == "" && f.IgnoreNulls && f.Nulls
	if e.Distinct {
		if len(call.Args) == 0 {
			a.fail(e.At(), "DISTINCT function call with no arguments not possible")
		}
		for i, x := range call.Args {
			if x != nil && !x.Type().SupportsGrouping() {
				a.fail(list[min(i, len(list)-1)].pos, "Aggregate functions with DISTINCT cannot be used with arguments of type %s", x.Type().Kind)
			}
		}
	}
	if e.Where != nil {
		w := *rows
		w.clause = "WHERE clause"
		call.Where = a.condition(e.Where, &w, "WHERE")
	}
	if e.Having != nil {
		x := a.expr(e.Having.X, v)
		if t := x.Type(); !t.SupportsOrder() || t.Kind == types.Array {
			a.fail(e.Having.At(), "HAVING modifier does not support expressions of type %s", x.Type())
		}
		if e.Having.Max {
			call.HavingMax = x
		} else {
			call.HavingMin = x
		}
	}
	for i := range e.OrderBy {
		o := &e.OrderBy[i]
		x := a.expr(o.Expr, v)
		if l, ok := x.(*algebra.Literal); ok && f.Kind == functions.Aggregate {
			if l.T.Kind == types.Int64 && l.Value.Valid {
				a.fail(a.keyword("ORDER", e.OrderBy[0].Expr.At()), "Aggregate functions do not allow ORDER BY by index in arguments")
			}
			a.fail(o.Expr.At(), "Cannot ORDER BY literal values")
		}
		if e.Distinct {
			found := false
			for _, arg := range call.Args {
				found = found || arg != nil && (same(arg, x) || sameUncast(arg, x))
			}
			if !found {
				a.fail(o.Expr.At(), "An aggregate function that has both DISTINCT and ORDER BY arguments can only ORDER BY expressions that are arguments to the function")
			}
		}
		call.OrderBy = append(call.OrderBy, a.sortKey(o, x))
	}
	if e.Limit != nil {
		call.Limit = a.limit(e.Limit, "LIMIT")
	}
	call.Column = a.column(strings.ToLower(strings.TrimPrefix(f.Name, "$")), t)
	switch {
	case multi != nil:
		if e.GroupHaving != nil {
			h := *v
			h.clause = "HAVING clause"
			call.Having = a.condition(e.GroupHaving, &h, "HAVING")
		}
		where := call.Where
		call.Where = nil
		call = rewriteAggregate(call, a.toGroups(multi.sel, "Function argument"))
		call.Where = where
		call.Inner = &algebra.Aggregate{Keys: multi.sel.keys, Aggs: multi.sel.aggs}
	case e.GroupHaving != nil:
		a.fail(e.GroupHaving.At(), "HAVING within an aggregate needs GROUP BY")
	}
	return call
}

func sameUncast(arg, x algebra.Expr) bool {
	c, ok := arg.(*algebra.Cast)
	return ok && same(c.X, x)
}

func kindNoun(f *functions.Function) string {
	switch f.Kind {
	case functions.Aggregate:
		return "aggregate"
	case functions.Window:
		return "analytic"
	}
	return "scalar"
}

func functionNoun(f *functions.Function) string {
	switch f.Kind {
	case functions.Window:
		return "Analytic function " + display(f)
	case functions.Aggregate:
		return "Aggregate function " + display(f)
	}
	return "Function " + display(f)
}

// condition analyzes e, a BOOL that clause demands.
func (a *analyzer) condition(e syntax.Expr, v *env, clause string) algebra.Expr {
	x := a.expr(e, v)
	if _, ok := a.convertible(x, types.BoolType); !ok {
		a.fail(at(e), "%s clause should return type BOOL, but returns %s", clause, x.Type())
	}
	return a.coerce(x, types.BoolType, at(e))
}

// sortKey returns a key of an order whose expression is x.
func (a *analyzer) sortKey(o *syntax.OrderItem, x algebra.Expr) algebra.SortKey {
	if o.Collate != nil {
		a.fail(o.Collate.At(), "COLLATE is not supported")
	}
	if !x.Type().SupportsOrder() {
		a.fail(at(o.Expr), "ORDER BY does not support expressions of type %s", x.Type())
	}
	k := algebra.SortKey{Expr: x, Descending: o.Descending, NullsLast: o.Descending}
	switch o.Nulls {
	case syntax.NullsFirst:
		k.NullsLast = false
	case syntax.NullsLast:
		k.NullsLast = true
	}
	return k
}

// limit analyzes the number of a LIMIT or an OFFSET, which is constant.
func (a *analyzer) limit(e syntax.Expr, what string) algebra.Expr {
	x := a.expr(e, &env{clause: what})
	constant := true
	algebra.Walk(x, func(x algebra.Expr) bool {
		switch x.(type) {
		case *algebra.ColumnRef, *algebra.Subquery:
			constant = false
		}
		return constant
	})
	if !constant {
		a.fail(at(e), "%s expects an integer literal or parameter", what)
	}
	if _, ok := a.convertible(x, types.Int64Type); !ok {
		a.fail(at(e), "LIMIT ... OFFSET ... expects INT64, got %s", x.Type())
	}
	return a.fold(a.coerce(x, types.Int64Type, at(e)))
}

// levels is a multi-level aggregation, AGG(x GROUP BY k): its argument stands in the
// groups of the group.
type levels struct {
	sel *selection
	env *env
}

// multiLevel begins the analysis of AGG(x GROUP BY k).
func (a *analyzer) multiLevel(e *syntax.Call, v *env) *levels {
	sel := &selection{from: v.scope, low: 1, high: a.next, grouped: true}
	if v.sel != nil {
		sel.low, sel.high = v.sel.low, v.sel.high
	}
	outer := *v
	outer.sel, outer.clause = nil, "GROUP BY inside an aggregate"
	for i := range e.GroupBy.Items {
		item := &e.GroupBy.Items[i]
		if item.Kind != syntax.GroupExpr || e.GroupBy.All {
			a.fail(item.At(), "GROUP BY inside aggregate functions supports only expressions")
		}
		x := a.expr(item.Expr, &outer)
		a.groupable(x, item.Expr.At())
		name := aliasOf(item.Expr)
		if item.Alias != nil {
			name = item.Alias.Name
		}
		sel.keys = append(sel.keys, algebra.Computed{Column: a.column(name, x.Type()), Expr: x})
	}
	inner := *v
	inner.sel, inner.inAggregate = sel, false
	return &levels{sel: sel, env: &inner}
}
