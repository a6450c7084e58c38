package exec

import (
	"cmp"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// call is a call of a scalar function.
type call struct {
	sig     *functions.Signature
	call    functions.Call
	args    []evaluator // nil for lambdas, and for arguments that were left out
	lambdas []*lambda
	vecs    []*types.Vector
	vals    []types.Value // the arguments of one row
	vary    []int         // arguments that are no constants in this batch
	out     *types.Vector
	grown   share
	safe    bool
	// fixed says that equal arguments give equal results.
	fixed bool
}

func compileCall(e *algebra.Call, s *scope) (evaluator, error) {
	if err := s.x.charge(); err != nil {
		return nil, err
	}
	if e.Function.Kind == functions.Lazy {
		return compileLazy(e, s)
	}
	if e.Signature.Eval == nil && e.Signature.Kernel == nil {
		return nil, fault.New(fault.Unimplemented, "function %s is not supported", e.Function.Name)
	}
	args := e.Args
	for len(args) > 0 && args[len(args)-1] == nil {
		args = args[:len(args)-1]
	}
	c := &call{sig: e.Signature, safe: e.Safe, fixed: !e.Function.Volatile, out: &types.Vector{Type: e.T},
		args: make([]evaluator, len(args)), vecs: make([]*types.Vector, len(args)), vals: make([]types.Value, len(args)),
		grown: share{account: &s.x.account, name: cmp.Or(e.Function.SQL, e.Function.Name)}}
	c.call = functions.Call{Ctx: s.x.ctx, Types: make([]*types.Type, len(args)), Result: e.T, Now: s.x.now, Grow: c.grown.need}
	for i, a := range args {
		if a == nil {
			continue
		}
		c.call.Types[i] = a.Type()
		if l, ok := a.(*algebra.Lambda); ok {
			if c.call.Lambdas == nil {
				c.call.Lambdas = make([]func([]types.Value) (types.Value, error), len(args))
			}
			compiled, err := compileLambda(l, s)
			if err != nil {
				return nil, err
			}
			c.call.Lambdas[i] = compiled.apply
			c.lambdas = append(c.lambdas, compiled)
			continue
		}
		x, err := compile(a, s)
		if err != nil {
			return nil, err
		}
		c.args[i] = x
	}
	return c, nil
}

func (c *call) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	rows := count(b, sel)
	if rows == 0 {
		c.out.Resize(b.Len)
		return c.out, nil
	}
	c.grown.free()
	fixed := c.fixed
	c.vary = c.vary[:0]
	for i, a := range c.args {
		if a == nil {
			continue
		}
		v, err := a.eval(b, sel)
		if err != nil {
			return nil, err
		}
		c.vecs[i] = v
		if !v.Const {
			fixed = false
			c.vary = append(c.vary, i)
		} else {
			c.vals[i] = v.Value(0)
		}
	}
	for _, l := range c.lambdas {
		if err := l.frame.load(b, sel); err != nil {
			return nil, err
		}
		for _, captured := range l.frame.captured {
			fixed = fixed && captured.now.Const
		}
	}
	if fixed {
		// One row stands for all.
		c.out.Resize(1)
		for _, l := range c.lambdas {
			l.frame.row(first(sel))
		}
		x, err := c.one()
		if err != nil {
			return nil, err
		}
		c.out.Const = true
		c.out.Set(0, x)
		return c.out, nil
	}
	c.out.Resize(b.Len)
	if c.sig.Kernel != nil && !c.safe && c.lambdas == nil {
		if err := c.sig.Kernel(&c.call, c.vecs, c.out, sel, b.Len); err == nil || c.sig.Eval == nil {
			return c.out, err
		}
		c.out.Resize(b.Len)
	}
	if sel == nil {
		for i := range b.Len {
			if err := c.row(i); err != nil {
				return nil, err
			}
		}
		return c.out, nil
	}
	for _, i := range sel {
		if err := c.row(int(i)); err != nil {
			return nil, err
		}
	}
	return c.out, nil
}

// row computes row i.
func (c *call) row(i int) error {
	// A function may take a millisecond: see often enough whether somebody still waits.
	if i%64 == 63 {
		if err := c.call.Ctx.Err(); err != nil {
			return err
		}
	}
	for _, k := range c.vary {
		c.vals[k] = c.vecs[k].Value(i)
	}
	for _, l := range c.lambdas {
		l.frame.row(i)
	}
	x, err := c.one()
	if err != nil {
		return err
	}
	c.out.Set(i, x)
	return nil
}

// one computes the function of vals.
func (c *call) one() (types.Value, error) {
	if !c.sig.Nulls {
		for i := range c.vals {
			if !c.vals[i].Valid && c.args[i] != nil {
				return types.Null, nil
			}
		}
	}
	if c.sig.Eval == nil {
		return c.oneByKernel()
	}
	x, err := c.sig.Eval(&c.call, c.vals)
	if err != nil && c.safe && isRowError(err) {
		return types.Null, nil
	}
	return x, err
}

// oneByKernel computes the function of vals where there is no Eval.
func (c *call) oneByKernel() (types.Value, error) {
	vecs := make([]*types.Vector, len(c.vals))
	for i, v := range c.vals {
		if c.args[i] != nil {
			vecs[i] = types.NewConst(c.call.Types[i], v)
		}
	}
	out := types.NewVector(c.out.Type, 1)
	if err := c.sig.Kernel(&c.call, vecs, out, nil, 1); err != nil {
		if c.safe && isRowError(err) {
			return types.Null, nil
		}
		return types.Null, err
	}
	return out.Value(0), nil
}

// compileConditions returns the evaluators of conditions whose results are looked at one
// after the other. Calls among them share one vector: a condition of thousands of parts
// takes no more memory than one of two.
func compileConditions(list []algebra.Expr, s *scope) ([]evaluator, error) {
	out := make([]evaluator, len(list))
	var shared *types.Vector
	for i, e := range list {
		v, err := compile(e, s)
		if err != nil {
			return nil, err
		}
		out[i] = v
		c, ok := v.(*call)
		switch {
		case !ok || c.out.Type.Kind != types.Bool:
		case shared == nil:
			shared = c.out
		default:
			c.out = shared
			s.x.refund()
		}
	}
	return out, nil
}

// isRowError tells whether err is one of a value, which SAFE. and IFERROR hide.
func isRowError(err error) bool { return fault.KindOf(err) == fault.OutOfRange }

// lambda is a lambda that is an argument of a call. It is evaluated for one row of the
// batch at a time.
type lambda struct {
	frame  *frame
	params []*types.Vector
	body   evaluator
}

func compileLambda(e *algebra.Lambda, s *scope) (*lambda, error) {
	l := &lambda{frame: newFrame(s)}
	for _, p := range e.Params {
		l.params = append(l.params, l.frame.define(p))
	}
	var err error
	l.body, err = compile(e.Body, newScope(s.x, nil, l.frame))
	return l, err
}

func (l *lambda) apply(args []types.Value) (types.Value, error) {
	for i, p := range l.params {
		if i < len(args) {
			p.Set(0, args[i])
		}
	}
	return evalOnce(l.body)
}
