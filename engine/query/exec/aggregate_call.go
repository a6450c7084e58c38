package exec

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// aggCall evaluates what an aggregate takes of a row.
type aggCall struct {
	call  *algebra.AggregateCall
	where evaluator
	// exprs are what goes into the state: the arguments, then the keys of ORDER BY, then
	// that of HAVING MAX or MIN. Over groups of the group they are the input's columns.
	exprs []evaluator
	types []*types.Type
	// newState makes states for this call.
	newState func() aggState
	// The rows of a batch that count: vecs at sel; pos are their places among the rows of
	// the batch's selection, nil if all count.
	vecs     []*types.Vector
	sel, pos []int32
	selRoom  []int32
	posRoom  []int32
	groups   []int32
	bad      []badRow
}

// badRow is a row whose arguments cannot be computed, of a deferred call: its place
// among the rows of the batch's selection, and why.
type badRow struct {
	pos     int32
	message string
}

func compileAggCall(x *execution, c *algebra.AggregateCall, input []algebra.Column, s *scope, share *share) (*aggCall, error) {
	a := &aggCall{call: c}
	var err error
	if c.Where != nil {
		if a.where, err = compile(c.Where, s); err != nil {
			return nil, err
		}
	}
	if c.Inner != nil {
		for i, col := range input {
			a.exprs = append(a.exprs, slotRef(i))
			a.types = append(a.types, col.Type)
		}
		a.vecs = make([]*types.Vector, len(a.exprs))
		inner, err := newInnerState(x, c, input, s, share)
		if err != nil {
			return nil, err
		}
		a.newState = func() aggState { return inner.clone() }
		a.deferErrors()
		return a, nil
	}
	exprs := slices.Clone(c.Args)
	for len(exprs) > 0 && exprs[len(exprs)-1] == nil {
		exprs = exprs[:len(exprs)-1]
	}
	n := len(exprs)
	for _, k := range c.OrderBy {
		exprs = append(exprs, k.Expr)
	}
	having := c.HavingMax
	if having == nil {
		having = c.HavingMin
	}
	if having != nil {
		exprs = append(exprs, having)
	}
	for _, e := range exprs {
		a.types = append(a.types, e.Type())
	}
	if a.exprs, err = compileAll(exprs, s); err != nil {
		return nil, err
	}
	a.vecs = make([]*types.Vector, len(exprs))
	limit := int64(-1)
	if c.Limit != nil {
		e, err := compile(c.Limit, newScope(x, nil, s.outer))
		if err != nil {
			return nil, err
		}
		if limit, _, err = limits(e, nil); err != nil {
			return nil, err
		}
	}
	switch {
	case len(c.OrderBy) > 0 || having != nil || c.Limit != nil:
		a.newState = func() aggState { return newOrderedState(x, c, n, a.types, limit, share) }
	case c.Distinct:
		a.newState = func() aggState { return newDistinctState(x, newPlainState(x, c, share), a.types, share) }
	default:
		a.newState = func() aggState { return newPlainState(x, c, share) }
	}
	a.deferErrors()
	return a, nil
}

// deferErrors makes states of a deferred call keep errors.
func (a *aggCall) deferErrors() {
	if below := a.newState; a.call.Deferred {
		a.newState = func() aggState { return newDeferredState(below(), resultType(a.call)) }
	}
}

// load evaluates the call for the rows of b.
func (a *aggCall) load(b *types.Batch) error {
	a.bad = a.bad[:0]
	err := a.loadRows(b, b.Sel, nil)
	if err != nil && a.call.Deferred && isRowError(err) {
		return a.loadGood(b)
	}
	return err
}

// loadGood evaluates the call for the rows of b for which that is possible, and notes the
// others.
func (a *aggCall) loadGood(b *types.Batch) error {
	good, pos := []int32{}, []int32{}
	for k := range b.Rows() {
		i, p := int32(rowOf(b, k)), int32(k)
		err := a.loadRows(b, []int32{i}, []int32{p})
		switch {
		case err == nil:
			good, pos = append(good, i), append(pos, p)
		case isRowError(err):
			a.bad = append(a.bad, badRow{p, err.Error()})
		default:
			return err
		}
	}
	return a.loadRows(b, good, pos)
}

// loadRows evaluates the call for the rows of sel; pos are their places among the rows
// of the batch's selection, nil if these are sel.
func (a *aggCall) loadRows(b *types.Batch, sel, pos []int32) error {
	a.sel, a.pos = sel, pos
	if a.where != nil {
		v, err := a.where.eval(b, a.sel)
		if err != nil {
			return err
		}
		a.restrict(b.Len, func(i int) bool { return isTrue(v, i) })
	}
	if count(b, a.sel) == 0 {
		return nil
	}
	for i, e := range a.exprs {
		v, err := e.eval(b, a.sel)
		if err != nil {
			return err
		}
		a.vecs[i] = v
	}
	if a.call.IgnoreNulls && a.call.Inner == nil && len(a.vecs) > 0 {
		if v := a.vecs[0]; v.Null != nil {
			a.restrict(b.Len, func(i int) bool { return !v.IsNull(i) })
		}
	}
	return nil
}

// restrict keeps the rows for which f holds.
func (a *aggCall) restrict(n int, f func(i int) bool) {
	if a.sel != nil {
		n = len(a.sel)
	}
	sel, pos := a.selRoom[:0], a.posRoom[:0]
	for k := range n {
		i := int32(k)
		if a.sel != nil {
			i = a.sel[k]
		}
		if !f(int(i)) {
			continue
		}
		p := int32(k)
		if a.pos != nil {
			p = a.pos[k]
		}
		// What is written lies at or before what is still to be read.
		sel, pos = append(sel, i), append(pos, p)
	}
	a.selRoom, a.posRoom = sel, pos
	a.sel, a.pos = sel, pos
	if sel == nil {
		a.sel, a.pos = []int32{}, []int32{}
	}
}

// add gives the rows that were loaded to the states of one grouping.
func (a *aggCall) add(state aggState, groups []int32, b *types.Batch) error {
	for _, r := range a.bad {
		group := 0
		if groups != nil {
			group = int(groups[r.pos])
		}
		state.(*deferredState).fail(group, r.message)
	}
	if count(b, a.sel) == 0 {
		return nil
	}
	if groups != nil && a.pos != nil {
		a.groups = a.groups[:0]
		for _, p := range a.pos {
			a.groups = append(a.groups, groups[p])
		}
		groups = a.groups
	}
	return state.add(groups, a.vecs, a.sel, b.Len)
}

// orderedState keeps the rows of each group, and aggregates them at the end: HAVING,
// DISTINCT, ORDER BY, LIMIT, in this order.
type orderedState struct {
	keptRows
	call  *algebra.AggregateCall
	args  int // how many of the columns are arguments
	limit int64
	new   func() functions.Accumulator
	room  []int32
	// taken is, of a call whose LIMIT counts the rows as they come, how many rows each group
	// has: further ones are not kept.
	taken          []int64
	sel, groupRoom []int32
}

// firstCome tells whether the rows that count are the first ones.
func (s *orderedState) firstCome() bool {
	return s.limit >= 0 && len(s.call.OrderBy) == 0 && !s.call.Distinct && s.call.HavingMax == nil && s.call.HavingMin == nil
}

func newOrderedState(x *execution, c *algebra.AggregateCall, args int, ts []*types.Type, limit int64, share *share) *orderedState {
	fc := &functions.Call{Ctx: x.ctx, Result: resultType(c), Now: x.now, Types: ts[:args:args], Grow: share.need, IgnoreNulls: c.IgnoreNulls}
	return &orderedState{keptRows: keptRows{rows: rows{types: ts}}, call: c, args: args, limit: limit,
		new: func() functions.Accumulator { return c.Signature.New(fc) }}
}

func (s *orderedState) add(groups []int32, args []*types.Vector, sel []int32, n int) error {
	if !s.firstCome() {
		s.keptRows.add(groups, args, sel, n)
		return nil
	}
	if k := len(s.last) - len(s.taken); k > 0 {
		s.taken = append(s.taken, make([]int64, k)...)
	}
	rows := n
	if sel != nil {
		rows = len(sel)
	}
	kept, of := s.sel[:0], s.groupRoom[:0]
rows:
	for k := range rows {
		i, g := int32(k), int32(0)
		if sel != nil {
			i = sel[k]
		}
		if groups != nil {
			g = groups[k]
		}
		if s.taken[g] >= s.limit {
			continue
		}
		if s.call.Function.IgnoreNulls {
			for _, v := range args {
				if v != nil && v.IsNull(int(i)) {
					continue rows
				}
			}
		}
		s.taken[g]++
		kept, of = append(kept, i), append(of, g)
	}
	s.sel, s.groupRoom = kept, of
	if len(kept) > 0 {
		s.keptRows.add(of, args, kept, n)
	}
	return nil
}

func (s *orderedState) merge(group int, state []byte) error {
	return s.batches(state, func(b *types.Batch) error {
		groups := make([]int32, b.Len)
		for i := range groups {
			groups[i] = int32(group)
		}
		return s.add(groups, b.Cols, nil, b.Len)
	})
}

func (s *orderedState) results(first int, out *types.Vector, n int) error {
	out.Resize(n)
	for k := range n {
		v, err := s.result(first + k)
		if err != nil {
			if !s.call.Safe || !isRowError(err) {
				return err
			}
			v = types.Null
		}
		out.Set(k, v)
	}
	return nil
}

func (s *orderedState) result(group int) (types.Value, error) {
	ids := s.of(group, &s.room)
	if s.call.HavingMax != nil || s.call.HavingMin != nil {
		ids = s.extreme(ids)
	}
	if s.call.Distinct {
		seen := newByteTable()
		var buf []byte
		ids = slices.DeleteFunc(ids, func(id int32) bool {
			buf = buf[:0]
			for c := range s.args {
				buf = types.AppendKey(buf, s.rows.types[c], s.rows.value(int(id), c))
			}
			_, fresh := seen.find(buf)
			return !fresh
		})
	}
	if len(s.call.OrderBy) > 0 {
		ids = s.sort(ids)
	}
	if s.limit >= 0 && int64(len(ids)) > s.limit && !s.call.Function.IgnoreNulls {
		ids = ids[:s.limit]
	}
	acc := s.new()
	vals := make([]types.Value, s.args)
	left := s.limit
	skip := ignoredNulls(s.call)
	for _, id := range ids {
		null := false
		for c := range vals {
			vals[c] = s.rows.value(int(id), c)
			null = null || skip[c] && !vals[c].Valid
		}
		if null {
			continue
		}
		if left == 0 {
			break
		}
		left--
		if err := acc.Add(vals); err != nil {
			return types.Null, err
		}
	}
	return acc.Result()
}

// extreme returns the rows with the largest or smallest value of HAVING. There are
// none if all are NULL, or one is NaN: it is the largest and the smallest, as for MAX and
// MIN, and equal to nothing.
func (s *orderedState) extreme(ids []int32) []int32 {
	col := len(s.rows.types) - 1
	t := s.rows.types[col]
	sign := 1
	if s.call.HavingMax == nil {
		sign = -1
	}
	var best types.Value
	for _, id := range ids {
		v := s.rows.value(int(id), col)
		if v.Float != v.Float {
			return ids[:0]
		}
		if v.Valid && (!best.Valid || sign*types.Compare(t, v, best) > 0) {
			best = v
		}
	}
	return slices.DeleteFunc(ids, func(id int32) bool {
		v := s.rows.value(int(id), col)
		return !v.Valid || types.Compare(t, v, best) != 0
	})
}

func (s *orderedState) sort(ids []int32) []int32 {
	entries := make([]sortEntry, len(ids))
	var arena byteArena
	var buf []byte
	for i, id := range ids {
		buf = buf[:0]
		for k, key := range s.call.OrderBy {
			c := s.args + k
			buf = appendSortKey(buf, s.rows.types[c], s.rows.value(int(id), c), key.Descending, key.NullsLast)
		}
		entries[i] = newEntry(arena.copy(buf), id)
	}
	slices.SortFunc(entries, compareEntries)
	for i, e := range entries {
		ids[i] = e.row
	}
	return ids
}

// innerState aggregates over the groups of a group: it keeps the rows of each group,
// and at the end groups them again.
type innerState struct {
	keptRows
	x     *execution
	given *givenRows
	op    Operator // the inner aggregation of given
	call  *aggCall // over its groups
	room  []int32
}

func newInnerState(x *execution, c *algebra.AggregateCall, input []algebra.Column, s *scope, share *share) (*innerState, error) {
	given := &givenRows{cols: input}
	inner := *c.Inner
	inner.Input = given
	op, innerScope, err := x.build(&inner, s.outer)
	if err != nil {
		return nil, err
	}
	over := *c
	over.Inner, over.Where, over.Having = nil, c.Having, nil
	over.Deferred, over.Column.Type = false, resultType(c)
	call, err := compileAggCall(x, &over, nil, innerScope, share)
	return &innerState{keptRows: keptRows{rows: rows{types: columnTypes(input)}}, x: x, given: given, op: op, call: call}, err
}

// clone returns one without rows.
func (s *innerState) clone() *innerState {
	out := *s
	out.keptRows = keptRows{rows: rows{types: s.rows.types}}
	return &out
}

func (s *innerState) add(groups []int32, args []*types.Vector, sel []int32, n int) error {
	s.keptRows.add(groups, args, sel, n)
	return nil
}

func (s *innerState) merge(group int, state []byte) error {
	return s.batches(state, func(b *types.Batch) error {
		groups := make([]int32, b.Len)
		for i := range groups {
			groups[i] = int32(group)
		}
		return s.add(groups, b.Cols, nil, b.Len)
	})
}

func (s *innerState) results(first int, out *types.Vector, n int) error {
	out.Resize(n)
	one := types.NewVector(out.Type, 1)
	for k := range n {
		s.given.rows, s.given.ids = &s.rows, s.of(first+k, &s.room)
		state := s.call.newState()
		state.resize(1)
		err := s.op.Open(s.x.ctx)
		for err == nil {
			var b *types.Batch
			if b, err = s.op.Next(s.x.ctx); err != nil {
				break
			}
			if err = s.call.load(b); err == nil {
				err = s.call.add(state, nil, b)
			}
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if err := state.results(0, one, 1); err != nil {
			return err
		}
		out.Set(k, one.Value(0).Clone())
	}
	return s.op.Close()
}

// givenRows is a relation of rows that are in memory.
type givenRows struct {
	cols []algebra.Column
	rows *rows
	ids  []int32
}

// Columns implements algebra.Rel.
func (g *givenRows) Columns() []algebra.Column { return g.cols }

// givenOp gives the rows of a givenRows.
type givenOp struct {
	rel *givenRows
	at  int
	out types.Batch
}

func (g *givenRows) operator() Operator {
	return &givenOp{rel: g, out: types.Batch{Cols: newVectors(columnTypes(g.cols))}}
}

func (g *givenOp) Open(context.Context) error { g.at = 0; return nil }
func (g *givenOp) Close() error               { return nil }
func (g *givenOp) Next(context.Context) (*types.Batch, error) {
	ids := g.rel.ids[g.at:]
	if len(ids) == 0 {
		return nil, io.EOF
	}
	ids = ids[:min(len(ids), types.BatchRows)]
	g.at += len(ids)
	g.out.Len = len(ids)
	for c, v := range g.out.Cols {
		g.rel.rows.gather(v, c, ids)
	}
	return &g.out, nil
}
