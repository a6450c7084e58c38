package exec

import (
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// cast converts x to another type.
type cast struct {
	x            evaluator
	from, to     *types.Type
	format, zone evaluator // nil if they were not written
	safe         bool
	kernel       func(c *functions.Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error
	call         functions.Call
	args         [1]*types.Vector
	out          types.Vector
	grown        share
}

func compileCast(e *algebra.Cast, s *scope) (evaluator, error) {
	c := &cast{from: e.X.Type(), to: e.T, safe: e.Safe, out: types.Vector{Type: e.T}, grown: share{account: &s.x.account, name: "CAST"}}
	c.call = functions.Call{Ctx: s.x.ctx, Types: []*types.Type{c.from}, Result: c.to, Now: s.x.now, Grow: c.grown.need}
	var err error
	if c.x, err = compile(e.X, s); err != nil {
		return nil, err
	}
	if e.Format != nil {
		if c.format, err = compile(e.Format, s); err != nil {
			return nil, err
		}
	}
	if e.Zone != nil {
		if c.zone, err = compile(e.Zone, s); err != nil {
			return nil, err
		}
	}
	if c.format == nil && c.zone == nil && !c.safe {
		c.kernel = functions.CastKernel(c.from, c.to)
	}
	return c, nil
}

func (c *cast) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	if count(b, sel) == 0 {
		c.out.Resize(b.Len)
		return &c.out, nil
	}
	c.grown.free()
	v, err := c.x.eval(b, sel)
	if err != nil {
		return nil, err
	}
	if c.kernel != nil && !v.Const {
		c.args[0] = v
		c.out.Resize(b.Len)
		if err := c.kernel(&c.call, c.args[:], &c.out, sel, b.Len); err == nil {
			return &c.out, nil
		}
	}
	if c.format == nil && c.zone == nil {
		return mapRows(&c.out, b, sel, v, func(x types.Value) (types.Value, error) { return c.one(x, nil, nil) })
	}
	var format, zone *types.Vector
	if c.format != nil {
		if format, err = c.format.eval(b, sel); err != nil {
			return nil, err
		}
	}
	if c.zone != nil {
		if zone, err = c.zone.eval(b, sel); err != nil {
			return nil, err
		}
	}
	c.out.Resize(b.Len)
	for k := range count(b, sel) {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		var f, z *types.Value
		if format != nil {
			x := format.Value(i)
			f = &x
		}
		if zone != nil {
			x := zone.Value(i)
			z = &x
		}
		x, err := c.one(v.Value(i), f, z)
		if err != nil {
			return nil, err
		}
		c.out.Set(i, x)
	}
	return &c.out, nil
}

func (c *cast) one(x types.Value, format, zone *types.Value) (types.Value, error) {
	x, err := functions.CastValue(&c.call, c.from, c.to, x, format, zone)
	if err != nil && c.safe && isRowError(err) {
		return types.Null, nil
	}
	return x, err
}
