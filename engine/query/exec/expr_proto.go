package exec

import (
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// protoField is a field of a PROTO, or whether it is there.
type protoField struct {
	x     evaluator
	field *types.ProtoField
	has   bool
	grown share
	call  functions.Call
	out   types.Vector
}

func compileProtoField(e *algebra.GetProtoField, s *scope) (evaluator, error) {
	x, err := compile(e.X, s)
	p := &protoField{x: x, field: e.Field, has: e.Has, out: types.Vector{Type: e.T}, grown: share{account: &s.x.account, name: "a field of a PROTO"}}
	p.call = functions.Call{Ctx: s.x.ctx, Types: []*types.Type{e.X.Type()}, Result: e.T, Now: s.x.now, Grow: p.grown.need}
	return p, err
}

func (p *protoField) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	p.grown.free() // what the last batch took
	v, err := p.x.eval(b, sel)
	if err != nil {
		return nil, err
	}
	return mapRows(&p.out, b, sel, v, p.get)
}

func (p *protoField) get(x types.Value) (types.Value, error) {
	if !x.Valid {
		return types.Null, nil
	}
	return functions.ProtoFieldValue(&p.call, x.Str, p.field, p.has)
}
