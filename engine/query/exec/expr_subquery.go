package exec

import (
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// subquery is the value of a query. One that does not depend on the row around it runs
// once; of others the results are remembered by what they depend on.
type subquery struct {
	x     *execution
	kind  algebra.SubqueryKind
	op    Operator
	slot  int
	frame *frame // of the query
	out   types.Vector

	// once is the value of a query that depends on nothing, as of generation.
	once       types.Value
	done       bool
	generation int
	memo       map[string]types.Value
	memoBytes  int64
	misses     int
	share      *share
	buf        []byte
}

// maxMemo is how many bytes a subquery remembers, about, and memoTries after how many
// misses in a row of hits it gives up.
const (
	maxMemo   = 1 << 20
	memoTries = 4096
)

func compileSubquery(e *algebra.Subquery, s *scope) (evaluator, error) {
	q := &subquery{x: s.x, kind: e.Kind, frame: newFrame(s), out: types.Vector{Type: e.T}, share: s.x.share("a subquery")}
	var inner *scope
	var err error
	if q.op, inner, err = s.x.build(e.Query, q.frame); err != nil {
		return nil, err
	}
	if e.Kind != algebra.ExistsQuery {
		slot, ok := inner.slots.of(e.Column)
		if !ok {
			return nil, fault.New(fault.Internal, "a subquery has no column %d", e.Column)
		}
		q.slot = slot
	}
	switch e.Kind {
	case algebra.InQuery, algebra.AnyQuery, algebra.AllQuery:
		return newComparedQuery(q, e, s)
	}
	return q, nil
}

// fixed tells whether the query depends on nothing around it.
func (q *subquery) fixed() bool { return len(q.frame.captured) == 0 }

func (q *subquery) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	n := count(b, sel)
	if n == 0 {
		q.out.Resize(b.Len)
		return &q.out, nil
	}
	if q.fixed() {
		if !q.done || q.generation != q.x.generation {
			v, err := q.run()
			if err != nil {
				return nil, err
			}
			q.once, q.done, q.generation = v, true, q.x.generation
		}
		q.out.Resize(1)
		q.out.Const = true
		q.out.Set(0, q.once)
		return &q.out, nil
	}
	if err := q.frame.load(b, sel); err != nil {
		return nil, err
	}
	q.out.Resize(b.Len)
	for k := range n {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		q.frame.row(i)
		v, err := q.remembered()
		if err != nil {
			return nil, err
		}
		q.out.Set(i, v)
	}
	return &q.out, nil
}

// remembered returns the query's value for the present row.
func (q *subquery) remembered() (types.Value, error) {
	if q.misses > memoTries {
		return q.run()
	}
	if q.generation != q.x.generation {
		q.memo, q.memoBytes, q.generation = nil, 0, q.x.generation
	}
	q.buf = q.frame.key(q.buf[:0])
	if v, ok := q.memo[string(q.buf)]; ok {
		q.misses = max(0, q.misses-2)
		return v, nil
	}
	q.misses++
	v, err := q.run()
	if err != nil {
		return v, err
	}
	if q.memoBytes > maxMemo {
		q.memo, q.memoBytes = nil, 0
	}
	if q.memo == nil {
		q.memo = map[string]types.Value{}
	}
	q.memo[string(q.buf)] = v
	q.memoBytes += int64(len(q.buf)+len(v.Str)) + listBytes(v.List) + 128
	return v, nil
}

// run runs the query for the present row.
func (q *subquery) run() (v types.Value, err error) {
	q.share.free()
	defer func() {
		if e := q.op.Close(); err == nil {
			err = e
		}
	}()
	if err := q.op.Open(q.x.ctx); err != nil {
		return types.Null, err
	}
	var list []types.Value
	some := false
	for {
		b, err := q.op.Next(q.x.ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return types.Null, err
		}
		switch q.kind {
		case algebra.ExistsQuery:
			return types.NewBool(true), nil
		case algebra.ScalarQuery:
			if some || b.Rows() > 1 {
				return types.Null, functions.Errorf("More than one element")
			}
			some = true
			v = valueOf(b, q.slot, rowOf(b, 0)).Clone()
		default:
			if err := q.share.need(int64(b.Rows())*valueBytes + vectorBytes(b.Cols[q.slot], b.Sel, b.Len)); err != nil {
				return types.Null, err
			}
			for k := range b.Rows() {
				list = append(list, valueOf(b, q.slot, rowOf(b, k)).Clone())
			}
		}
	}
	switch q.kind {
	case algebra.ExistsQuery:
		return types.NewBool(false), nil
	case algebra.ScalarQuery:
		return v, nil
	}
	return types.NewList(list), nil
}

// valueOf returns a value of a batch, whose column may be missing.
func valueOf(b *types.Batch, slot, i int) types.Value {
	if b.Cols[slot] == nil {
		return types.Null
	}
	return b.Cols[slot].Value(i)
}

// comparedQuery is X IN (…), X op ANY (…) and X op ALL (…).
type comparedQuery struct {
	*subquery
	left    evaluator     // X
	x       *types.Vector // X of the present row, where the comparison reads it
	column  *types.Vector // the value of the query, likewise
	compare evaluator
	around  *frame // of the comparison
	// hashed is set if the comparison is = of scalar values of one type.
	hashed bool
	elem   *types.Type

	// The values of a query that depends on nothing: as a list, or as a set.
	list   []types.Value
	set    *byteTable
	nulls  bool
	loaded bool
}

func newComparedQuery(q *subquery, e *algebra.Subquery, s *scope) (evaluator, error) {
	c := &comparedQuery{subquery: q, around: newFrame(s)}
	var err error
	if c.left, err = compile(e.X, s); err != nil {
		return nil, err
	}
	// X is computed once for each row, not once for each value that it is compared with.
	place := algebra.Column{ID: -1, Name: "x", Type: e.X.Type()}
	compare := e.Compare
	if call, ok := compare.(*algebra.Call); ok {
		direct := *call
		direct.Args = make([]algebra.Expr, len(call.Args))
		for i, a := range call.Args {
			direct.Args[i] = replace(a, e.X, &algebra.ColumnRef{Column: place})
		}
		compare = &direct
	}
	c.x = c.around.define(place)
	for _, col := range e.Query.Columns() {
		if col.ID == e.Column {
			c.elem = col.Type
			c.column = c.around.define(col)
		}
	}
	if c.compare, err = compile(compare, newScope(s.x, nil, c.around)); err != nil {
		return nil, err
	}
	if a, b, nullSafe, ok := equality(compare); ok && !nullSafe && q.kind == algebra.InQuery {
		l, isLeft := a.(*algebra.ColumnRef)
		r, isRight := b.(*algebra.ColumnRef)
		c.hashed = isLeft && isRight && l.ID == place.ID && r.ID == e.Column
	}
	return c, nil
}

// replace returns e, or its operand if e is a cast, with x replaced.
func replace(e, x, by algebra.Expr) algebra.Expr {
	if e == x {
		return by
	}
	if c, ok := e.(*algebra.Cast); ok && c.X == x {
		out := *c
		out.X = by
		return &out
	}
	return e
}

func (c *comparedQuery) eval(b *types.Batch, sel []int32) (*types.Vector, error) {
	n := count(b, sel)
	c.out.Resize(b.Len)
	if n == 0 {
		return &c.out, nil
	}
	left, err := c.left.eval(b, sel)
	if err != nil {
		return nil, err
	}
	if err := c.frame.load(b, sel); err != nil {
		return nil, err
	}
	if err := c.around.load(b, sel); err != nil {
		return nil, err
	}
	if c.fixed() && (!c.loaded || c.generation != c.subquery.x.generation) {
		c.generation = c.subquery.x.generation
		if err := c.load(); err != nil {
			return nil, err
		}
	}
	for k := range n {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		v, err := c.one(i, left.Value(i))
		if err != nil {
			return nil, err
		}
		c.out.Set(i, v)
	}
	return &c.out, nil
}

// load reads all values of a query that depends on nothing.
func (c *comparedQuery) load() error {
	v, err := c.run()
	if err != nil {
		return err
	}
	c.loaded = true
	if !c.hashed {
		c.list = v.List
		return nil
	}
	c.set, c.nulls = newByteTable(), false
	for _, e := range v.List {
		if !e.Valid {
			c.nulls = true
			continue
		}
		c.set.find(types.AppendKey(c.buf[:0], c.elem, e))
	}
	c.share.free()
	return c.share.need(c.set.bytes())
}

// one returns the result for row i, whose X is x.
func (c *comparedQuery) one(i int, x types.Value) (types.Value, error) {
	if c.fixed() && c.set != nil {
		switch {
		case !x.Valid:
			if len(c.set.keys) == 0 && !c.nulls {
				return types.NewBool(false), nil
			}
			return types.Null, nil
		case x.Float == x.Float:
			c.buf = types.AppendKey(c.buf[:0], c.elem, x)
			if c.set.lookup(c.buf) >= 0 {
				return types.NewBool(true), nil
			}
		}
		if c.nulls {
			return types.Null, nil
		}
		return types.NewBool(false), nil
	}
	list := c.list
	if !c.fixed() {
		c.frame.row(i)
		v, err := c.remembered()
		if err != nil {
			return types.Null, err
		}
		list = v.List
	}
	c.around.row(i)
	c.x.Set(0, x)
	// ALL is TRUE and the others FALSE until a value says otherwise.
	decides := c.kind != algebra.AllQuery
	result := types.NewBool(!decides)
	for _, e := range list {
		c.column.Set(0, e)
		v, err := evalOnce(c.compare)
		if err != nil {
			return types.Null, err
		}
		switch {
		case !v.Valid:
			result = types.Null
		case v.Bool() == decides:
			return types.NewBool(decides), nil
		}
	}
	return result, nil
}
