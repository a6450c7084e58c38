package analyze

import (
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
)

// deferErrors marks the aggregates of sel that stand in a branch of a conditional
// function, which may not be taken: their errors wait until they are asked for.
func (a *analyzer) deferErrors(sel *selection, exprs ...algebra.Expr) {
	marked := false
	for _, e := range exprs {
		conditional(e, false, func(r *algebra.ColumnRef) {
			for i := range sel.aggs {
				if c := &sel.aggs[i]; c.ID == r.ID && !c.Deferred && mayFail(c) {
					c.Deferred, c.Type, marked = true, functions.DeferredType(c.Type), true
				}
			}
		})
	}
	if marked && sel.deferred == nil {
		sel.deferred = functions.Lookup("$deferred")
	}
}

// mayFail tells whether an aggregate may have an error.
func mayFail(c *algebra.AggregateCall) bool {
	switch c.Function.Name {
	case "$count_star", "COUNT", "MIN", "MAX", "ANY_VALUE":
	default:
		return true
	}
	for _, e := range c.Args {
		switch e.(type) {
		case *algebra.ColumnRef, *algebra.Literal, nil:
		default:
			return true
		}
	}
	return c.Where != nil || c.HavingMax != nil || c.HavingMin != nil || c.Inner != nil
}

// conditional calls f for the columns in e that are not always evaluated, or whose
// errors are caught. inside says that this holds for all of e.
func conditional(e algebra.Expr, inside bool, f func(*algebra.ColumnRef)) {
	algebra.Walk(e, func(x algebra.Expr) bool {
		switch x := x.(type) {
		case *algebra.ColumnRef:
			if inside {
				f(x)
			}
		case *algebra.Call:
			always := alwaysEvaluated(x)
			if inside || always < 0 {
				return true
			}
			for i, arg := range x.Args {
				conditional(arg, i >= always, f)
			}
			return false
		}
		return true
	})
}

// alwaysEvaluated returns how many arguments of a call are evaluated whatever the
// others are, -1 for all.
func alwaysEvaluated(c *algebra.Call) int {
	if c.Function.Kind != functions.Lazy {
		return -1
	}
	switch c.Function.Name {
	case "IF", "$case_no_value", "COALESCE", "IFNULL":
		return 1
	case "$case_with_value":
		return 2
	case "IFERROR", "ISERROR", "NULLIFERROR":
		return 0
	}
	return -1
}
