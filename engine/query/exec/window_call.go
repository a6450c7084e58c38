package exec

import (
	"context"
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// windowCall is one call of a stage. It is the functions.Partition of its function.
type windowCall struct {
	x     *execution
	call  *algebra.WindowCall
	agg   *aggCall
	key   evaluator // the one key of the order, for a RANGE with an offset
	start evaluator
	end   evaluator
	share *share
	fc    functions.Call

	startOffset, endOffset types.Value

	n       int
	args    rows
	skip    []bool // arguments that must not be NULL
	counts  []bool // rows that count, nil for all
	peer    []int32
	peerEnd []int32
	keys    []types.Value
	results []types.Value
	taken   int64
}

func compileWindowCall(x *execution, c *algebra.WindowCall, s *scope, share *share) (*windowCall, error) {
	plain := c.AggregateCall
	plain.Distinct = false
	plain.IgnoreNulls = false
	w := &windowCall{x: x, call: c, share: share}
	var err error
	if c.Signature.Window != nil {
		exprs := slices.Clone(c.Args)
		for len(exprs) > 0 && exprs[len(exprs)-1] == nil {
			exprs = exprs[:len(exprs)-1]
		}
		w.agg = &aggCall{call: &plain, vecs: make([]*types.Vector, len(exprs))}
		for _, e := range exprs {
			w.agg.types = append(w.agg.types, e.Type())
		}
		if w.agg.exprs, err = compileAll(exprs, s); err != nil {
			return nil, err
		}
	} else if w.agg, err = compileAggCall(x, &plain, nil, s, share); err != nil {
		return nil, err
	}
	if c.Where != nil && w.agg.where == nil {
		if w.agg.where, err = compile(c.Where, s); err != nil {
			return nil, err
		}
	}
	w.args.types = w.agg.types
	w.skip = ignoredNulls(&c.AggregateCall)
	w.fc = functions.Call{Ctx: x.ctx, Result: c.Column.Type, Now: x.now, Types: w.agg.types, Grow: share.need, IgnoreNulls: c.IgnoreNulls}
	fixed := newScope(x, nil, s.outer)
	for _, b := range []struct {
		bound algebra.Bound
		to    *evaluator
	}{{c.Frame.Start, &w.start}, {c.Frame.End, &w.end}} {
		if b.bound.Offset == nil {
			continue
		}
		if *b.to, err = compile(b.bound.Offset, fixed); err != nil {
			return nil, err
		}
		if !c.Frame.Rows {
			if w.key, err = compile(c.Order[0].Expr, s); err != nil {
				return nil, err
			}
		}
	}
	return w, nil
}

// bounds computes the offsets of the frame.
func (c *windowCall) bounds() error {
	for _, b := range []struct {
		e  evaluator
		to *types.Value
	}{{c.start, &c.startOffset}, {c.end, &c.endOffset}} {
		if b.e == nil {
			continue
		}
		v, err := evalOnce(b.e)
		if err != nil {
			return err
		}
		if !v.Valid {
			return functions.Errorf("Window framing expression cannot be NULL")
		}
		if v.Int < 0 || v.Float < 0 || v.Float != v.Float {
			return functions.Errorf("Window framing expression cannot evaluate to a negative value")
		}
		*b.to = v
	}
	return nil
}

// compute sets results for the partition in work.
func (c *windowCall) compute(ctx context.Context, w *windowStage) error {
	c.share.grow(-c.taken)
	c.taken = 0
	c.n = len(w.ids)
	c.args.reset()
	c.keys = c.keys[:0]
	c.counts = nil
	where := c.agg.where
	if where != nil {
		c.counts = make([]bool, c.n)
	}
	in := types.Batch{Cols: newVectors(w.sorter.types[:w.inputs])}
	for from := 0; from < c.n; from += types.BatchRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		ids := w.ids[from:min(c.n, from+types.BatchRows)]
		in.Len = len(ids)
		for i, v := range in.Cols {
			w.rows.gather(v, i, ids)
		}
		var sel []int32
		if where != nil {
			v, err := where.eval(&in, nil)
			if err != nil {
				return err
			}
			for i := range ids {
				if c.counts[from+i] = isTrue(v, i); c.counts[from+i] {
					sel = append(sel, int32(i))
				}
			}
		}
		for i, e := range c.agg.exprs {
			c.agg.vecs[i] = types.NewConst(c.agg.types[i], types.Null)
			if e == nil || where != nil && len(sel) == 0 {
				continue
			}
			v, err := e.eval(&in, sel)
			if err != nil {
				return err
			}
			c.agg.vecs[i] = v
		}
		size := batchBytes(c.agg.vecs, sel, len(ids)) + int64(len(ids))*valueBytes
		if err := c.hold(size); err != nil {
			return err
		}
		c.args.append(c.agg.vecs, nil, len(ids))
		if c.key != nil {
			v, err := c.key.eval(&in, nil)
			if err != nil {
				return err
			}
			for i := range ids {
				c.keys = append(c.keys, v.Value(i))
			}
		}
	}
	c.findPeers(w)
	c.results = append(c.results[:0], make([]types.Value, c.n)...)
	if c.call.Signature.Window != nil {
		return c.safe(c.call.Signature.Window(&c.fc, c, c.results))
	}
	return c.aggregate(ctx)
}

// hold takes n more bytes of the share; fewer than 0 are given back.
func (c *windowCall) hold(n int64) error {
	err := c.share.need(n)
	if err == nil {
		c.taken += n
	}
	return err
}

// A stateShare is the memory of the accumulator of a call.
type stateShare struct {
	call  *windowCall
	held  int64 // at the last count
	since int64 // bytes of arguments that came since then
}

// added counts the accumulator, to which vals were added, once what came could have
// doubled it.
func (s *stateShare) added(acc functions.Accumulator, vals []types.Value) error {
	s.since += listBytes(vals)
	if s.since <= s.held+leastShare {
		return nil
	}
	s.since = 0
	size := int64(acc.Size())
	err := s.call.hold(size - s.held)
	if err == nil {
		s.held = size
	}
	return err
}

// free is called when there is another accumulator.
func (s *stateShare) free() {
	_ = s.call.hold(-s.held) // to give back does not fail
	s.held, s.since = 0, 0
}

// resultBytes is what v takes beside its Value.
func resultBytes(v types.Value) int64 { return int64(len(v.Str)) + listBytes(v.List) }

// forget frees what compute took.
func (c *windowCall) forget() {
	c.args.reset()
	c.results, c.keys = nil, nil
	c.share.grow(-c.taken)
	c.taken = 0
}

func (c *windowCall) safe(err error) error {
	if err != nil && c.call.Safe && isRowError(err) {
		clear(c.results)
		return nil
	}
	return err
}

func (c *windowCall) findPeers(w *windowStage) {
	c.peer, c.peerEnd = c.peer[:0], c.peerEnd[:0]
	if len(c.call.Order) == 0 {
		return
	}
	for i := range c.n {
		if i == 0 || w.orderKey(i) != w.orderKey(i-1) {
			c.peer = append(c.peer, int32(i))
		} else {
			c.peer = append(c.peer, c.peer[i-1])
		}
	}
	c.peerEnd = append(c.peerEnd, make([]int32, c.n)...)
	for i := c.n - 1; i >= 0; i-- {
		if i == c.n-1 || c.peer[i+1] == int32(i+1) {
			c.peerEnd[i] = int32(i + 1)
		} else {
			c.peerEnd[i] = c.peerEnd[i+1]
		}
	}
}

// Rows implements functions.Partition.
func (c *windowCall) Rows() int { return c.n }

// Arg implements functions.Partition.
func (c *windowCall) Arg(row, arg int) types.Value {
	if arg >= len(c.args.types) {
		return types.Null
	}
	return c.args.value(row, arg)
}

// Peers implements functions.Partition.
func (c *windowCall) Peers(row int) (start, end int) {
	if len(c.peer) == 0 {
		return 0, c.n
	}
	return int(c.peer[row]), int(c.peerEnd[row])
}

// Frame implements functions.Partition.
func (c *windowCall) Frame(row int) (start, end int) {
	f := &c.call.Frame
	if f.Rows {
		return c.rowsBound(row, f.Start.Kind, c.startOffset, 0), c.rowsBound(row, f.End.Kind, c.endOffset, 1)
	}
	first, last := c.Peers(row)
	switch f.Start.Kind {
	case algebra.UnboundedPreceding:
		start = 0
	case algebra.CurrentRow:
		start = first
	default:
		start = c.rangeBound(row, f.Start.Kind, c.startOffset, false)
	}
	switch f.End.Kind {
	case algebra.UnboundedFollowing:
		end = c.n
	case algebra.CurrentRow:
		end = last
	default:
		end = c.rangeBound(row, f.End.Kind, c.endOffset, true)
	}
	return start, end
}

// rowsBound returns a bound of ROWS; after is 1 for the end.
func (c *windowCall) rowsBound(row int, k algebra.BoundKind, offset types.Value, after int) int {
	switch k {
	case algebra.UnboundedPreceding:
		return 0
	case algebra.UnboundedFollowing:
		return c.n
	case algebra.Preceding:
		if offset.Int > int64(row) {
			return 0
		}
		return max(0, row-int(offset.Int)+after)
	case algebra.Following:
		if offset.Int > int64(c.n) {
			return c.n
		}
		return min(c.n, row+int(offset.Int)+after)
	}
	return row + after
}

// rangeBound returns a bound of RANGE with an offset from the key of row.
func (c *windowCall) rangeBound(row int, k algebra.BoundKind, offset types.Value, end bool) int {
	t := c.call.Order[0].Expr.Type()
	key := c.keys[row]
	first, last := c.Peers(row)
	if !key.Valid || key.Float != key.Float {
		// NULL and NaN are at a distance from nothing but themselves.
		if end {
			return last
		}
		return first
	}
	down := (k == algebra.Preceding) != c.call.Order[0].Descending
	limit, ok := moved(t, key, offset, down)
	// before tells whether row i lies before the frame's start, or before or in it.
	descending := c.call.Order[0].Descending
	before := func(i int) bool {
		v := c.keys[i]
		if !v.Valid {
			return !c.call.Order[0].NullsLast
		}
		if v.Float != v.Float {
			// NaN sorts as the smallest number.
			return !descending
		}
		if !ok {
			return k == algebra.Following // all values are on this side of what does not exist
		}
		cmp := types.Compare(t, v, limit)
		if descending {
			cmp = -cmp
		}
		return cmp < 0 || end && cmp == 0
	}
	low, high := 0, c.n
	for low < high {
		if mid := (low + high) / 2; before(mid) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// moved returns key less offset, or more; false if the type does not go so far.
func moved(t *types.Type, key, offset types.Value, down bool) (types.Value, bool) {
	if t.IsFloat() {
		if down {
			offset.Float = -offset.Float
		}
		sum := key.Float + offset.Float
		if sum != sum {
			// ∞ - ∞: an infinity is at any distance from itself.
			sum = key.Float
		}
		return types.NewFloat(sum), true
	}
	if down {
		out := key.Int - offset.Int
		return types.NewInt(out), out <= key.Int
	}
	out := key.Int + offset.Int
	return types.NewInt(out), out >= key.Int
}

// aggregate computes an aggregate function over the frame of each row. A frame that
// only grows is added to, one that slides is added to and taken from if the function
// can do that, and others are computed anew.
func (c *windowCall) aggregate(ctx context.Context) error {
	var acc functions.Accumulator
	var seen *byteTable // of DISTINCT
	start, end := 0, 0
	var last types.Value
	known := false
	work := int64(0)
	state := stateShare{call: c}
	defer state.free()
	// Frames of a safe call that begin at badFrom and reach badTo have an error: NULL.
	badFrom, badTo := -1, 0
	fresh := func() {
		state.free()
		if c.call.Frame.Start.Kind == algebra.UnboundedPreceding || c.call.Distinct {
			acc = c.call.Signature.New(&c.fc)
		} else {
			acc = functions.NewSliding(c.call.Signature, &c.fc)
		}
		seen = nil
		if c.call.Distinct {
			seen = newByteTable()
		}
		known = false
	}
	fresh()
	vals := make([]types.Value, len(c.args.types))
	var buf []byte
	for row := range c.n {
		from, to := c.Frame(row)
		if to < from {
			from, to = 0, 0
		}
		if from == badFrom && to >= badTo {
			continue
		}
		switch remover, ok := acc.(functions.Remover); {
		case from == start && to >= end:
		case ok && seen == nil && from >= start && to >= end && from-start < to-from:
			for ; start < min(from, end); start++ {
				if c.take(start, vals) {
					if err := remover.Remove(vals); err != nil {
						return err
					}
					known = false
				}
			}
			if start < from {
				start, end = from, from
			}
		default:
			fresh()
			start, end = from, from
		}
		var err error
		for ; end < to && err == nil; end++ {
			if work++; work >= 4096 {
				work = 0
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			if !c.take(end, vals) {
				continue
			}
			if seen != nil {
				buf = buf[:0]
				for i, v := range vals {
					buf = types.AppendKey(buf, c.args.types[i], v)
				}
				if _, first := seen.find(buf); !first {
					continue
				}
			}
			err = acc.Add(vals)
			known = false
			if err == nil {
				err = state.added(acc, vals)
			}
		}
		if err == nil && !known {
			last, err = acc.Result()
			size := resultBytes(last)
			work += size >> 8
			if err == nil {
				err = c.hold(size)
			}
			if err == nil {
				last = last.Clone()
			}
			known = true
			if err != nil && c.call.Safe && isRowError(err) {
				last, err = types.Null, nil
			}
		}
		if err != nil {
			if !c.call.Safe || !isRowError(err) {
				return err
			}
			// Rows from here on add up to the same error.
			badFrom, badTo = from, end
			fresh()
			start, end, last = 0, 0, types.Null
		}
		c.results[row] = last
	}
	return nil
}

// take sets vals to the arguments of a row, and tells whether the row counts.
func (c *windowCall) take(row int, vals []types.Value) bool {
	if c.counts != nil && !c.counts[row] {
		return false
	}
	for i := range vals {
		vals[i] = c.args.value(row, i)
		if !vals[i].Valid && (i < len(c.skip) && c.skip[i] || i == 0 && c.call.IgnoreNulls) {
			return false
		}
	}
	return true
}
