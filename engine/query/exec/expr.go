package exec

import (
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// An evaluator computes an expression for rows of a batch.
type evaluator interface {
	// eval returns a vector with the values of the rows of sel, all rows if it is nil.
	// Other rows of it are undefined. Nothing is computed, and no error returned, for rows
	// that are not in sel. The vector is valid until the next eval of the same evaluator,
	// and not to be changed.
	eval(b *types.Batch, sel []int32) (*types.Vector, error)
}

// count returns how many rows sel has.
func count(b *types.Batch, sel []int32) int {
	if sel != nil {
		return len(sel)
	}
	return b.Len
}

// first returns the first row of sel, which is not empty.
func first(sel []int32) int {
	if sel != nil {
		return int(sel[0])
	}
	return 0
}

// compile returns the evaluator of e.
func compile(e algebra.Expr, s *scope) (evaluator, error) {
	if s.x.depth++; s.x.depth > maxDepth {
		return nil, fault.New(fault.Exhausted, "the query is nested too deeply")
	}
	defer func() { s.x.depth-- }()
	switch e := e.(type) {
	case *algebra.Literal:
		return constant{types.NewConst(e.T, e.Value)}, nil
	case *algebra.Param:
		return constant{types.NewConst(e.T, s.x.Params.Values[e.Name])}, nil
	case *algebra.ViewParameters:
		return constant{types.NewConst(e.T, viewParameters(e.T, s.x.Params.View))}, nil
	case *algebra.ColumnRef:
		return s.resolve(e.Column)
	case *algebra.Call:
		return compileCall(e, s)
	case *algebra.Cast:
		return compileCast(e, s)
	case *algebra.GetField:
		x, err := compile(e.X, s)
		return &getField{x: x, index: e.Index, out: types.Vector{Type: e.T}}, err
	case *algebra.GetProtoField:
		return compileProtoField(e, s)
	case *algebra.MakeStruct:
		return compileList(e.Fields, e.T, s)
	case *algebra.MakeArray:
		return compileList(e.Elems, e.T, s)
	case *algebra.Subquery:
		return compileSubquery(e, s)
	case *algebra.Let:
		return compileLet(e, s)
	}
	return nil, fault.New(fault.Internal, "no evaluator for %T", e)
}

func compileAll(list []algebra.Expr, s *scope) ([]evaluator, error) {
	out := make([]evaluator, len(list))
	for i, e := range list {
		if e == nil {
			continue
		}
		v, err := compile(e, s)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// oneRowBatch is what constant expressions are evaluated over.
var oneRowBatch = &types.Batch{Len: 1}

// evalOnce returns the value of an expression that refers to no column of a batch.
func evalOnce(e evaluator) (types.Value, error) {
	v, err := e.eval(oneRowBatch, nil)
	if err != nil {
		return types.Null, err
	}
	return v.Value(0), nil
}

// constant is a literal, a parameter, or a value of the row around.
type constant struct{ v *types.Vector }

func (c constant) eval(*types.Batch, []int32) (*types.Vector, error) { return c.v, nil }

// slotRef is a column of the batch.
type slotRef int

func (s slotRef) eval(b *types.Batch, _ []int32) (*types.Vector, error) {
	if v := b.Cols[s]; v != nil {
		return v, nil
	}
	return nil, fault.New(fault.Internal, "column %d of a batch was not asked for", int(s))
}

// viewParameters returns the MAP<STRING, STRING> of VIEW_PARAMETERS().
func viewParameters(t *types.Type, params map[string]types.Value) types.Value {
	list := make([]types.Value, 0, 2*len(params))
	for k, v := range params {
		list = append(list, types.NewString(k), v)
	}
	return types.NewList(types.SortMap(t.Key, list))
}

// getField is a field of a STRUCT.
type getField struct {
	x     evaluator
	index int
	out   types.Vector
}

func (g *getField) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	v, err := g.x.eval(b, sel)
	if err != nil {
		return nil, err
	}
	return mapRows(&g.out, b, sel, v, func(x types.Value) (types.Value, error) {
		if !x.Valid || g.index >= len(x.List) {
			return types.Null, nil
		}
		return x.List[g.index], nil
	})
}

// mapRows sets out to f of the values of v.
func mapRows(out *types.Vector, b *types.Batch, sel []int32, v *types.Vector, f func(types.Value) (types.Value, error)) (*types.Vector, error) {
	if v.Const {
		out.Resize(1)
		out.Const = true
		if count(b, sel) == 0 {
			return out, nil
		}
		x, err := f(v.Value(0))
		if err != nil {
			return nil, err
		}
		out.Set(0, x)
		return out, nil
	}
	out.Resize(b.Len)
	if sel == nil {
		for i := range b.Len {
			x, err := f(v.Value(i))
			if err != nil {
				return nil, err
			}
			out.Set(i, x)
		}
		return out, nil
	}
	for _, i := range sel {
		x, err := f(v.Value(int(i)))
		if err != nil {
			return nil, err
		}
		out.Set(int(i), x)
	}
	return out, nil
}

// makeList is a STRUCT or an ARRAY of its parts.
type makeList struct {
	parts []evaluator
	vecs  []*types.Vector
	out   types.Vector
}

func compileList(parts []algebra.Expr, t *types.Type, s *scope) (evaluator, error) {
	list, err := compileAll(parts, s)
	return &makeList{parts: list, vecs: make([]*types.Vector, len(list)), out: types.Vector{Type: t}}, err
}

func (m *makeList) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	fixed := true
	for i, p := range m.parts {
		v, err := p.eval(b, sel)
		if err != nil {
			return nil, err
		}
		m.vecs[i] = v
		fixed = fixed && v.Const
	}
	n := len(m.parts)
	if fixed {
		m.out.Resize(1)
		m.out.Const = true
		list := make([]types.Value, n)
		for i, v := range m.vecs {
			list[i] = v.Value(0)
		}
		m.out.Lists[0] = list
		return &m.out, nil
	}
	m.out.Resize(b.Len)
	rows := count(b, sel)
	// One piece of memory for the lists of all rows. It is a new one each time, since an
	// aggregate or a consumer of the batch may hold on to a list.
	room := make([]types.Value, n*rows)
	for k := range rows {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		list := room[k*n : k*n+n : k*n+n]
		for j, v := range m.vecs {
			list[j] = v.Value(i)
		}
		m.out.Lists[i] = list
	}
	return &m.out, nil
}

// letVar is a variable of a Let: the vector of the present evaluation.
type letVar struct {
	e evaluator
	v *types.Vector
}

func (l *letVar) eval(*types.Batch, []int32) (*types.Vector, error) { return l.v, nil }

type let struct {
	vars []*letVar
	body evaluator
}

func compileLet(e *algebra.Let, s *scope) (evaluator, error) {
	inner := &scope{x: s.x, slots: s.slots, outer: s.outer, lets: make(map[algebra.ColumnID]*letVar, len(s.lets)+len(e.Vars))}
	for id, v := range s.lets {
		inner.lets[id] = v
	}
	out := &let{}
	for _, c := range e.Vars {
		x, err := compile(c.Expr, inner)
		if err != nil {
			return nil, err
		}
		v := &letVar{e: x}
		inner.lets[c.ID] = v
		out.vars = append(out.vars, v)
	}
	var err error
	out.body, err = compile(e.Body, inner)
	return out, err
}

func (l *let) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	for _, v := range l.vars {
		x, err := v.e.eval(b, sel)
		if err != nil {
			return nil, err
		}
		v.v = x
	}
	return l.body.eval(b, sel)
}
