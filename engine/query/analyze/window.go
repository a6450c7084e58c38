package analyze

import (
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// windowCall analyzes a call with OVER.
func (a *analyzer) windowCall(e *syntax.Call, f *functions.Function, args []syntax.Argument, safe bool, v *env) algebra.Expr {
	switch {
	case v.inAggregate:
		a.fail(v.aggregateAt, "Analytic functions cannot be arguments to aggregate functions")
	case v.sel == nil || v.noWindow || v.inWindow:
		a.resolve(f, a.arguments(f, args, v), e.At())
		a.fail(e.At(), "Analytic function not allowed in %s", v.clause)
	case e.GroupBy != nil:
		a.fail(e.At(), "Analytic functions do not support GROUP BY in arguments")
	}
	switch {
	case len(e.OrderBy) > 0:
		a.fail(e.OrderBy[0].At(), "ORDER BY in arguments is not supported on analytic functions")
	case e.Limit != nil:
		a.fail(e.Limit.At(), "LIMIT in arguments is not supported on analytic functions")
	case e.Having != nil:
		a.fail(e.Having.At(), "HAVING modifier is not supported on analytic functions")
	}
	inner := *v
	inner.inWindow = true
	inner.clause = "an argument to an analytic function"
	call := algebra.WindowCall{AggregateCall: a.aggregate(e, f, args, safe, &inner)}
	w := a.namedWindow(e.Over, v.sel, 0)
	if f.Kind == functions.Window && e.Distinct {
		a.fail(e.At(), "Analytic function %s does not support DISTINCT", display(f))
	}
	if e.Distinct && len(w.OrderBy) > 0 {
		a.fail(a.keyword("ORDER", w.OrderBy[0].Expr.At()), "Window ORDER BY is not allowed if DISTINCT is specified")
	}
	if f.NeedsOrder && len(w.OrderBy) == 0 {
		a.fail(e.Over.At(), "Window ORDER BY is required for analytic function %s", strings.ToLower(display(f)))
	}
	if f.NoOrder && len(w.OrderBy) > 0 {
		a.fail(a.keyword("ORDER", w.OrderBy[0].Expr.At()), "Window ORDER BY is not allowed for analytic function %s", strings.ToLower(display(f)))
	}
	if f.NoFrame && w.Frame != nil {
		a.fail(w.Frame.At(), "Window framing clause is not allowed for analytic function %s", strings.ToLower(display(f)))
	}
	for _, p := range w.PartitionBy {
		inner.clause = "PARTITION BY"
		x := a.expr(p, &inner)
		if !x.Type().SupportsGrouping() {
			a.fail(at(p), "Partitioning by expressions of type %s is not allowed", x.Type().Kind)
		}
		if f := floatIn(x.Type()); f == x.Type() {
			a.fail(at(p), "Partitioning by expressions of type %s is not allowed", f)
		} else if f != nil {
			a.fail(at(p), "Partitioning by expressions of type %s containing %s is not allowed", x.Type().Kind, f)
		}
		call.PartitionBy = append(call.PartitionBy, x)
	}
	for i := range w.OrderBy {
		inner.clause = "Window ORDER BY"
		o := &w.OrderBy[i]
		x := a.expr(o.Expr, &inner)
		if t := x.Type(); !t.SupportsOrder() {
			kind := t.Kind.String()
			if t.Kind == types.Array {
				kind += " containing " + t.Elem.Kind.String()
			}
			a.fail(at(o.Expr), "Ordering by expressions of type %s is not allowed", kind)
		}
		call.Order = append(call.Order, a.sortKey(o, x))
	}
	call.Frame = a.frame(w, &call, &inner)
	v.sel.calls = append(v.sel.calls, call)
	return &algebra.ColumnRef{Column: call.Column}
}

// namedWindow returns w with what the window that it names has.
func (a *analyzer) namedWindow(w *syntax.Window, sel *selection, depth int) *syntax.Window {
	if w.Name == nil {
		return w
	}
	if depth > maxDepth {
		a.fail(w.At(), "Window names refer to each other too deeply")
	}
	for i := range sel.windows {
		n := &sel.windows[i]
		if !strings.EqualFold(n.Name.Name, w.Name.Name) {
			continue
		}
		base := *n.Window
		if base.Name != nil {
			// A window refers to those before it only.
			before := *sel
			before.windows = sel.windows[:i]
			base = *a.namedWindow(n.Window, &before, depth+1)
		}
		out := *w
		out.Name = nil
		if len(w.PartitionBy) > 0 {
			a.fail(w.Name.At(), "If a window has a PARTITION BY, it cannot reference a named window")
		}
		out.PartitionBy = base.PartitionBy
		if len(base.OrderBy) > 0 {
			if len(w.OrderBy) > 0 {
				a.fail(a.keyword("ORDER", w.OrderBy[0].Expr.At()), "If a window inherits an ORDER BY from its referenced window, it cannot have an inline ORDER BY")
			}
			out.OrderBy = base.OrderBy
		}
		if out.Frame == nil {
			out.Frame = base.Frame
		}
		return &out
	}
	a.fail(w.Name.At(), "Unrecognized window alias %s", w.Name.Name)
	return nil
}

// frame returns the frame of a window, with the default resolved.
func (a *analyzer) frame(w *syntax.Window, call *algebra.WindowCall, v *env) algebra.Frame {
	for i := range v.sel.windows {
		for j := range i {
			if n := v.sel.windows[i].Name; strings.EqualFold(n.Name, v.sel.windows[j].Name.Name) {
				a.fail(n.At(), "Duplicate window alias %s", n.Name)
			}
		}
	}
	f := w.Frame
	if f == nil {
		if len(w.OrderBy) == 0 {
			return algebra.Frame{Rows: true, Start: algebra.Bound{Kind: algebra.UnboundedPreceding}, End: algebra.Bound{Kind: algebra.UnboundedFollowing}}
		}
		return algebra.Frame{Start: algebra.Bound{Kind: algebra.UnboundedPreceding}, End: algebra.Bound{Kind: algebra.CurrentRow}}
	}
	if !f.Rows && len(call.Order) == 0 && (f.Start.Kind != syntax.UnboundedPreceding || f.End.Kind != syntax.UnboundedFollowing) {
		a.fail(f.At(), "A RANGE-based window without ORDER BY includes all rows in the window frame so only RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING syntax is supported")
	}
	out := algebra.Frame{Rows: f.Rows, Start: a.bound(&f.Start, f, w, call, v), End: a.bound(&f.End, f, w, call, v)}
	switch {
	case out.Start.Kind == algebra.UnboundedFollowing:
		a.fail(f.Start.At(), "Starting window framing expression cannot be UNBOUNDED FOLLOWING")
	case out.End.Kind == algebra.UnboundedPreceding:
		a.fail(f.End.At(), "Ending window framing expression cannot be UNBOUNDED PRECEDING")
	case out.Start.Kind > out.End.Kind:
		a.fail(f.End.At(), "Starting window framing expression cannot be %s when the ending window framing expression is %s", boundText(out.Start.Kind), boundText(out.End.Kind))
	}
	return out
}

func boundText(k algebra.BoundKind) string {
	return [...]string{"UNBOUNDED PRECEDING", "OFFSET PRECEDING", "CURRENT ROW", "OFFSET FOLLOWING", "UNBOUNDED FOLLOWING"}[k]
}

func (a *analyzer) bound(b *syntax.FrameBound, f *syntax.Frame, w *syntax.Window, call *algebra.WindowCall, v *env) algebra.Bound {
	out := algebra.Bound{Kind: algebra.BoundKind(b.Kind)}
	if b.Offset == nil {
		return out
	}
	t := types.Int64Type
	x := a.expr(b.Offset, &env{scope: v.scope, clause: "window frame"})
	if !f.Rows {
		if len(call.Order) != 1 {
			a.fail(a.keyword("ORDER", w.OrderBy[0].Expr.At()), "A RANGE-based window with OFFSET PRECEDING or OFFSET FOLLOWING boundaries must have exactly one ORDER BY key")
		}
		t = call.Order[0].Expr.Type()
		if !t.IsNumeric() {
			a.fail(b.At(), "ORDER BY key must be numeric in a RANGE-based window with OFFSET PRECEDING or FOLLOWING boundaries, but has type %s", t)
		}
	}
	constant := true
	algebra.Walk(x, func(x algebra.Expr) bool {
		if _, ok := x.(*algebra.ColumnRef); ok {
			constant = false
		}
		return constant
	})
	if !constant {
		a.fail(at(b.Offset), "Window framing expression must be a literal or parameter")
	}
	if _, ok := a.convertible(x, t); !ok {
		if f.Rows {
			a.fail(at(b.Offset), "Window framing expression for ROWS can only be of integer type, but has type %s", x.Type())
		}
		a.fail(at(b.Offset), "Window framing expression has type %s that cannot coerce to the type of the ORDER BY expression, which is %s", x.Type(), t)
	}
	out.Offset = a.fold(a.coerce(x, t, at(b.Offset)))
	if l, ok := out.Offset.(*algebra.Literal); ok {
		if !l.Value.Valid {
			a.fail(at(b.Offset), "Window framing expression cannot be NULL")
		}
		if l.Value.Int < 0 || l.Value.Float < 0 {
			a.fail(at(b.Offset), "Window framing expression cannot evaluate to a negative value")
		}
	}
	return out
}

// floatIn returns a type of floating point numbers that t is or has in it, or nil.
func floatIn(t *types.Type) *types.Type {
	switch {
	case t.IsFloat():
		return t
	case t.Kind == types.Array:
		return floatIn(t.Elem)
	case t.Kind == types.Struct:
		for _, f := range t.Fields {
			if found := floatIn(f.Type); found != nil {
				return found
			}
		}
	}
	return nil
}
