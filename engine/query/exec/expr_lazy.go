package exec

import (
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// compileLazy returns the evaluator of a function that evaluates some of its arguments
// for some rows only.
func compileLazy(e *algebra.Call, s *scope) (evaluator, error) {
	if e.Function.Name == "$and" || e.Function.Name == "$or" {
		return compileLogic(e, s)
	}
	args, err := compileAll(e.Args, s)
	if err != nil {
		return nil, err
	}
	n := len(args)
	want := func(ok bool, ev evaluator) (evaluator, error) {
		if !ok {
			return nil, fault.New(fault.Internal, "%s with %d arguments", e.Function.Name, n)
		}
		return ev, nil
	}
	l := lazy{out: types.Vector{Type: e.T}}
	switch e.Function.Name {
	case "IF":
		return want(n == 3, &caseOf{lazy: l, conds: args[:1], results: args[1:]})
	case "$case_no_value":
		c := &caseOf{lazy: l}
		for i := 0; i+1 < n; i += 2 {
			c.conds, c.results = append(c.conds, args[i]), append(c.results, args[i+1])
		}
		if n%2 == 1 {
			c.results = append(c.results, args[n-1])
		}
		return want(n > 1, c)
	case "$case_with_value":
		c := &caseOf{lazy: l}
		if n < 3 {
			return want(false, nil)
		}
		operand := &once{x: args[0]}
		c.operand = operand
		for i := 1; i+1 < n; i += 2 {
			eq := &equals{a: operand, b: args[i], t: e.Args[0].Type(), out: types.Vector{Type: types.BoolType}}
			c.conds, c.results = append(c.conds, eq), append(c.results, args[i+1])
		}
		if n%2 == 0 {
			c.results = append(c.results, args[n-1])
		}
		return c, nil
	case "COALESCE", "IFNULL":
		return want(n > 0, &coalesce{lazy: l, args: args})
	case "NULLIF":
		if n != 2 {
			return want(false, nil)
		}
		x := &once{x: args[0]}
		return &nullIf{lazy: l, x: x, eq: &equals{a: x, b: args[1], t: e.Args[0].Type(), out: types.Vector{Type: types.BoolType}}}, nil
	case "IFERROR":
		return want(n == 2, &onError{lazy: l, x: args[0], other: args[min(1, n-1)]})
	case "NULLIFERROR":
		return want(n == 1, &onError{lazy: l, x: args[0]})
	case "ISERROR":
		return want(n == 1, &onError{lazy: l, x: args[0], test: true})
	}
	return nil, fault.New(fault.Internal, "no evaluator for %s", e.Function.Name)
}

// compileLogic returns the evaluator of AND or OR. Those of the same kind in it become
// one.
func compileLogic(e *algebra.Call, s *scope) (evaluator, error) {
	out := &logic{lazy: lazy{out: types.Vector{Type: e.T}}}
	if e.Function.Name == "$or" {
		out.decides = 1
	}
	args, err := compileConditions(operands(e, e.Function, nil), s)
	if err != nil {
		return nil, err
	}
	if out.args = args; len(args) == 0 {
		return nil, fault.New(fault.Internal, "%s without arguments", e.Function.Name)
	}
	return out, nil
}

// operands appends the operands of a chain of calls of f.
func operands(e algebra.Expr, f *functions.Function, to []algebra.Expr) []algebra.Expr {
	if c, ok := e.(*algebra.Call); ok && c.Function == f {
		for _, a := range c.Args {
			to = operands(a, f, to)
		}
		return to
	}
	return append(to, e)
}

// lazy is what these evaluators have in common.
type lazy struct {
	out types.Vector
	// rest and some are selections: rows that are still open, and those of one branch.
	rest, some []int32
}

// all returns sel, or the selection of all rows of b, in memory of l.
func (l *lazy) all(b *types.Batch, sel []int32) []int32 {
	l.rest = l.rest[:0]
	if sel != nil {
		l.rest = append(l.rest, sel...)
		return l.rest
	}
	for i := range b.Len {
		l.rest = append(l.rest, int32(i))
	}
	return l.rest
}

// copyRows sets the rows sel of out to those of v, of the same type.
func copyRows(out, v *types.Vector, sel []int32) {
	if v.Const {
		x := v.Value(0)
		for _, i := range sel {
			out.Set(int(i), x)
		}
		return
	}
	switch v.Type.Kind {
	case types.Float32, types.Float64:
		for _, i := range sel {
			out.Floats[i] = v.Floats[i]
		}
	case types.String, types.Bytes, types.Proto:
		for _, i := range sel {
			out.Strs[i] = v.Strs[i]
		}
	case types.Array, types.Struct, types.Map:
		for _, i := range sel {
			out.Lists[i] = v.Lists[i]
		}
	default:
		for _, i := range sel {
			out.Ints[i] = v.Ints[i]
		}
	}
	if v.Null != nil {
		for _, i := range sel {
			if v.Null[i] {
				out.SetNull(int(i))
			}
		}
	}
}

// logic is AND and OR: decides is the value of an argument that settles the result.
type logic struct {
	lazy
	args    []evaluator
	decides int64
}

func (l *logic) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	l.out.Resize(b.Len)
	rest := l.all(b, sel)
	for _, i := range rest {
		l.out.Ints[i] = 1 - l.decides
	}
	for _, a := range l.args {
		if len(rest) == 0 {
			break
		}
		v, err := a.eval(b, rest)
		if err != nil {
			return nil, err
		}
		next := rest[:0]
		for _, i := range rest {
			k := v.At(int(i))
			switch {
			case v.Null != nil && v.Null[k]:
				l.out.SetNull(int(i))
				next = append(next, i)
			case v.Ints[k] == l.decides:
				l.out.Ints[i] = l.decides
				if l.out.Null != nil {
					l.out.Null[i] = false
				}
			default:
				next = append(next, i)
			}
		}
		rest = next
	}
	return &l.out, nil
}

// caseOf is CASE and IF: the result of the first condition that is TRUE, the last
// result, which may be missing, if none is.
type caseOf struct {
	lazy
	operand        *once // of CASE x WHEN
	conds, results []evaluator
}

func (c *caseOf) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	if c.operand != nil {
		if err := c.operand.compute(b, sel); err != nil {
			return nil, err
		}
	}
	rest := c.all(b, sel)
	filled := false
	for k, cond := range c.conds {
		if len(rest) == 0 {
			break
		}
		v, err := cond.eval(b, rest)
		if err != nil {
			return nil, err
		}
		c.some = c.some[:0]
		next := rest[:0]
		for _, i := range rest {
			if isTrue(v, int(i)) {
				c.some = append(c.some, i)
			} else {
				next = append(next, i)
			}
		}
		rest = next
		if len(c.some) == 0 {
			continue
		}
		r, err := c.results[k].eval(b, c.some)
		if err != nil {
			return nil, err
		}
		if len(rest) == 0 && !filled {
			return r, nil
		}
		if !filled {
			filled = true
			c.out.Resize(b.Len)
		}
		copyRows(&c.out, r, c.some)
	}
	if len(rest) > 0 && len(c.results) > len(c.conds) {
		r, err := c.results[len(c.conds)].eval(b, rest)
		if err != nil || !filled {
			return r, err
		}
		copyRows(&c.out, r, rest)
		return &c.out, nil
	}
	if !filled {
		c.out.Resize(b.Len)
	}
	for _, i := range rest {
		c.out.SetNull(int(i))
	}
	return &c.out, nil
}

// isTrue tells whether row i of a BOOL vector is TRUE.
func isTrue(v *types.Vector, i int) bool {
	i = v.At(i)
	return v.Ints[i] != 0 && (v.Null == nil || !v.Null[i])
}

// once is an argument that several parts of an expression read.
type once struct {
	x evaluator
	v *types.Vector
}

func (o *once) compute(b *types.Batch, sel []int32) (err error) {
	o.v, err = o.x.eval(b, sel)
	return err
}

func (o *once) eval(*types.Batch, []int32) (*types.Vector, error) { return o.v, nil }

// equals is a = b of two values of one type, NULL if it cannot be told.
type equals struct {
	a, b evaluator
	t    *types.Type
	out  types.Vector
}

func (e *equals) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	x, err := e.a.eval(b, sel)
	if err != nil {
		return nil, err
	}
	y, err := e.b.eval(b, sel)
	if err != nil {
		return nil, err
	}
	e.out.Resize(b.Len)
	for k := range count(b, sel) {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		e.out.Set(i, equal(e.t, x.Value(i), y.Value(i)))
	}
	return &e.out, nil
}

// equal is the operator = of two values of type t: NULL if it depends on a NULL.
func equal(t *types.Type, a, b types.Value) types.Value {
	if !a.Valid || !b.Valid {
		return types.Null
	}
	switch t.Kind {
	case types.Float32, types.Float64:
		return types.NewBool(a.Float == b.Float)
	case types.Array, types.Struct:
		if len(a.List) != len(b.List) {
			return types.NewBool(false)
		}
		unknown := false
		for i := range a.List {
			u := t.Elem
			if t.Kind == types.Struct {
				u = t.Fields[i].Type
			}
			r := equal(u, a.List[i], b.List[i])
			if !r.Valid {
				unknown = true
			} else if !r.Bool() {
				return r
			}
		}
		if unknown {
			return types.Null
		}
		return types.NewBool(true)
	}
	return types.NewBool(types.Compare(t, a, b) == 0)
}

// coalesce is the first argument that is not NULL.
type coalesce struct {
	lazy
	args []evaluator
}

func (c *coalesce) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	rest := c.all(b, sel)
	filled := false
	for k, a := range c.args {
		if len(rest) == 0 {
			break
		}
		v, err := a.eval(b, rest)
		if err != nil {
			return nil, err
		}
		if !filled && (v.Null == nil || k == len(c.args)-1) {
			return v, nil
		}
		c.some = c.some[:0]
		next := rest[:0]
		for _, i := range rest {
			if v.IsNull(int(i)) {
				next = append(next, i)
			} else {
				c.some = append(c.some, i)
			}
		}
		rest = next
		if len(rest) == 0 && !filled {
			return v, nil
		}
		if len(c.some) > 0 {
			if !filled {
				filled = true
				c.out.Resize(b.Len)
			}
			copyRows(&c.out, v, c.some)
		}
	}
	if !filled {
		c.out.Resize(b.Len)
	}
	for _, i := range rest {
		c.out.SetNull(int(i))
	}
	return &c.out, nil
}

// nullIf is x, or NULL where eq is TRUE.
type nullIf struct {
	lazy
	x  *once
	eq *equals
}

func (n *nullIf) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	if err := n.x.compute(b, sel); err != nil {
		return nil, err
	}
	v, err := n.eq.eval(b, sel)
	if err != nil {
		return nil, err
	}
	n.out.Resize(b.Len)
	rest := n.all(b, sel)
	copyRows(&n.out, n.x.v, rest)
	for _, i := range rest {
		if isTrue(v, int(i)) {
			n.out.SetNull(int(i))
		}
	}
	return &n.out, nil
}

// onError is x, and where it has an error the value of other, NULL if there is none.
// With test it is whether x has an error.
type onError struct {
	lazy
	x, other evaluator
	test     bool
}

func (o *onError) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	if count(b, sel) == 0 {
		o.out.Resize(b.Len)
		return &o.out, nil
	}
	v, err := o.x.eval(b, sel)
	switch {
	case err == nil && !o.test:
		return v, nil
	case err != nil && !isRowError(err):
		return nil, err
	}
	o.out.Resize(b.Len)
	rest := o.all(b, sel)
	if err == nil {
		for _, i := range rest {
			o.out.Ints[i] = 0
		}
		return &o.out, nil
	}
	// Some row has an error: try each alone.
	for k := range rest {
		one := rest[k : k+1 : k+1]
		v, err := o.x.eval(b, one)
		if err != nil && !isRowError(err) {
			return nil, err
		}
		switch {
		case o.test:
			o.out.Ints[one[0]] = 0
			if err != nil {
				o.out.Ints[one[0]] = 1
			}
		case err == nil:
			o.keep(v, int(one[0]))
		case o.other == nil:
			o.out.SetNull(int(one[0]))
		default:
			if v, err = o.other.eval(b, one); err != nil {
				return nil, err
			}
			o.keep(v, int(one[0]))
		}
	}
	return &o.out, nil
}

// keep makes the value of row i in v that of out. A list may lie in memory that is used
// again for the next row, which is evaluated by itself.
func (o *onError) keep(v *types.Vector, i int) {
	x := v.Value(i)
	if x.List != nil {
		x = x.Clone()
	}
	o.out.Set(i, x)
}
