package analyze

import (
	"context"
	"errors"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// foldMemory is how much the value of a constant may take beyond a few KiB: more is
// computed when the query runs, under its budget.
const foldMemory = 64 << 10

var errTooLarge = errors.New("too large to compute before the query runs")

// fold returns e with constants computed: calls of functions whose result is always the
// same. What fails stays as it is, and fails when it is evaluated.
func (a *analyzer) fold(e algebra.Expr) algebra.Expr {
	if e == nil {
		return nil
	}
	e, constant := a.foldParts(e)
	if constant {
		return a.compute(e)
	}
	return e
}

// foldRel returns r with the constants in it computed.
func (a *analyzer) foldRel(r algebra.Rel) algebra.Rel { return rewriteRel(r, a.fold) }

// foldParts folds what is in e. If e is constant as a whole, it is returned as it is.
func (a *analyzer) foldParts(e algebra.Expr) (_ algebra.Expr, constant bool) {
	switch e := e.(type) {
	case *algebra.Literal:
		return e, true
	case *algebra.Subquery:
		out := *e
		out.Query, out.X, out.Compare = a.foldRel(e.Query), a.fold(e.X), a.fold(e.Compare)
		return &out, false
	}
	constant = foldable(e)
	var room [8]bool
	parts := room[:0] // which of the parts are constant, but no literals
	some := false
	e = mapParts(e, func(x algebra.Expr) algebra.Expr {
		y, c := a.foldParts(x)
		constant = constant && c
		_, literal := y.(*algebra.Literal)
		some = some || c && !literal
		parts = append(parts, c && !literal)
		return y
	})
	if constant || !some {
		return e, constant
	}
	i := 0
	e = mapParts(e, func(x algebra.Expr) algebra.Expr {
		i++
		if parts[i-1] {
			return a.compute(x)
		}
		return x
	})
	return e, false
}

// compute returns the literal that e, which is constant, is, or e if it fails.
func (a *analyzer) compute(e algebra.Expr) algebra.Expr {
	if _, ok := e.(*algebra.Literal); ok {
		return e
	}
	f := &folder{ctx: a.ctx}
	v, err := f.eval(e)
	if err != nil {
		return e
	}
	return &algebra.Literal{Value: v, T: e.Type()}
}

// foldable tells whether e is constant if the expressions in it are.
func foldable(e algebra.Expr) bool {
	switch e := e.(type) {
	case *algebra.Call:
		f := e.Function
		return f.Kind == functions.Scalar && !f.Volatile && !f.Stable && e.Signature.Eval != nil
	case *algebra.Cast, *algebra.MakeArray, *algebra.MakeStruct, *algebra.GetField:
		return true
	}
	return false
}

// A folder computes one constant.
type folder struct {
	ctx  context.Context
	used int64
}

func (f *folder) grow(n int64) error {
	if f.used += n; f.used > foldMemory {
		return errTooLarge
	}
	return nil
}

func (f *folder) eval(e algebra.Expr) (types.Value, error) {
	switch e := e.(type) {
	case nil:
		return types.Null, nil
	case *algebra.Literal:
		return e.Value, nil
	case *algebra.MakeArray:
		return f.list(e.Elems)
	case *algebra.MakeStruct:
		return f.list(e.Fields)
	case *algebra.GetField:
		x, err := f.eval(e.X)
		if err != nil || !x.Valid {
			return types.Null, err
		}
		return x.List[e.Index], nil
	case *algebra.Cast:
		return f.cast(e)
	case *algebra.Call:
		return f.call(e)
	}
	return types.Null, errTooLarge
}

func (f *folder) list(list []algebra.Expr) (types.Value, error) {
	out := make([]types.Value, len(list))
	for i, e := range list {
		v, err := f.eval(e)
		if err != nil {
			return types.Null, err
		}
		out[i] = v
	}
	return types.NewList(out), nil
}

func (f *folder) cast(e *algebra.Cast) (types.Value, error) {
	x, err := f.eval(e.X)
	if err != nil {
		return types.Null, err
	}
	var extra [2]*types.Value
	for i, o := range [...]algebra.Expr{e.Format, e.Zone} {
		if o != nil {
			v, err := f.eval(o)
			if err != nil {
				return types.Null, err
			}
			extra[i] = &v
		}
	}
	v, err := functions.CastValue(&functions.Call{Ctx: f.ctx, Grow: f.grow}, e.X.Type(), e.T, x, extra[0], extra[1])
	if err != nil && e.Safe && !errors.Is(err, errTooLarge) {
		return types.Null, nil
	}
	return v, err
}

func (f *folder) call(e *algebra.Call) (types.Value, error) {
	args := make([]types.Value, len(e.Args))
	typ := make([]*types.Type, len(e.Args)) // nil for what was left out
	null := false
	for i, x := range e.Args {
		if x == nil {
			continue
		}
		v, err := f.eval(x)
		if err != nil {
			return types.Null, err
		}
		args[i], typ[i] = v, x.Type()
		null = null || !v.Valid
	}
	if null && !e.Signature.Nulls {
		return types.Null, nil
	}
	v, err := e.Signature.Eval(&functions.Call{Ctx: f.ctx, Types: typ, Result: e.T, Grow: f.grow}, args)
	if err != nil {
		if e.Safe && !errors.Is(err, errTooLarge) {
			return types.Null, nil
		}
		return types.Null, err
	}
	// The functions may hand out memory of their state or of their arguments.
	return v.Clone(), nil
}
