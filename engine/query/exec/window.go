package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// newWindow returns the operator of r: a stage for each different window, and at the
// end the columns in order.
func newWindow(x *execution, r *algebra.Window, outer *frame) (Operator, error) {
	in, _, err := x.build(r.Input, outer)
	if err != nil {
		return nil, err
	}
	cols := r.Input.Columns()
	cols = cols[:len(cols):len(cols)]
	var order []string
	stages := map[string][]*algebra.WindowCall{}
	for i := range r.Calls {
		c := &r.Calls[i]
		name := windowName(c)
		if stages[name] == nil {
			order = append(order, name)
		}
		stages[name] = append(stages[name], c)
	}
	for _, name := range order {
		stage, err := newWindowStage(x, r, in, cols, stages[name], outer)
		if err != nil {
			return nil, err
		}
		in = stage
		for _, c := range stages[name] {
			cols = append(cols, c.Column)
		}
	}
	slots, err := newScope(x, cols, outer).find(r.Columns())
	return &keep{Operator: in, slots: slots, out: types.Batch{Cols: make([]*types.Vector, len(slots))}}, err
}

// windowName is the same for calls whose rows are divided and ordered alike.
func windowName(c *algebra.WindowCall) string {
	var b strings.Builder
	name := func(e algebra.Expr) {
		if col, ok := e.(*algebra.ColumnRef); ok {
			fmt.Fprintf(&b, "#%d ", col.ID)
		} else {
			fmt.Fprintf(&b, "%p ", e)
		}
	}
	for _, e := range c.PartitionBy {
		name(e)
	}
	b.WriteString("by ")
	for _, k := range c.Order {
		name(k.Expr)
		fmt.Fprint(&b, k.Descending, k.NullsLast, " ")
	}
	return b.String()
}

// windowStage computes calls over one division and order of the rows. It sorts the rows,
// and then looks at one partition after the other. One that does not fit into memory
// is streamed, if the calls allow that.
type windowStage struct {
	x       *execution
	in      Operator
	divide  *sortKeys
	order   *sortKeys
	calls   []*windowCall
	sorter  *sorter
	share   *share // of a partition
	stats   *algebra.Stats
	inputs  int
	sorted  bool
	pending *types.Batch // of the sorter: its rows from at on are of the next partition
	at      int
	ended   bool

	// The partition in work.
	rows  *rows
	own   rows
	ids   []int32
	given int
	out   types.Batch
	// streaming is set if the partition does not fit into memory; keeping are its rows.
	streaming *windowStream
	keeping   *spool
}

func newWindowStage(x *execution, r *algebra.Window, in Operator, cols []algebra.Column, calls []*algebra.WindowCall, outer *frame) (Operator, error) {
	s := newScope(x, cols, outer)
	stats := x.statsOf(r)
	w := &windowStage{x: x, in: in, stats: stats, share: x.share("OVER"), inputs: len(cols)}
	var err error
	var divide []algebra.SortKey
	for _, e := range calls[0].PartitionBy {
		divide = append(divide, algebra.SortKey{Expr: e})
	}
	if w.divide, err = compileSortKeys(divide, s); err != nil {
		return nil, err
	}
	if w.order, err = compileSortKeys(calls[0].Order, s); err != nil {
		return nil, err
	}
	ts := append(columnTypes(cols), types.BytesType, types.BytesType)
	w.sorter = newSorter(x, stats, "OVER", ts)
	w.own.types = ts
	w.out.Cols = newVectors(ts[:len(cols)])
	for _, c := range calls {
		call, err := compileWindowCall(x, c, s, w.share)
		if err != nil {
			return nil, err
		}
		w.calls = append(w.calls, call)
		w.out.Cols = append(w.out.Cols, &types.Vector{Type: c.Column.Type})
	}
	return w, nil
}

func (w *windowStage) Open(ctx context.Context) error {
	w.reset()
	for _, c := range w.calls {
		if err := c.bounds(); err != nil {
			return err
		}
	}
	return w.in.Open(ctx)
}

func (w *windowStage) reset() {
	w.sorter.reset()
	w.own.reset()
	w.sorted, w.pending, w.at, w.ended, w.rows, w.ids, w.given = false, nil, 0, false, nil, nil, 0
	w.free()
	if w.keeping != nil {
		w.keeping.close()
	}
	w.streaming, w.keeping = nil, nil
}

// free gives back the memory of the partition in work, and of the calls over it.
func (w *windowStage) free() {
	w.share.free()
	for _, c := range w.calls {
		c.taken = 0
	}
}

func (w *windowStage) Close() error {
	w.reset()
	return w.in.Close()
}

// sort reads the input.
func (w *windowStage) sort(ctx context.Context) error {
	var out types.Batch
	part, order := &types.Vector{Type: types.BytesType}, &types.Vector{Type: types.BytesType}
	var buf []byte
	var ends []int
	for {
		b, err := w.in.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := w.divide.load(b, b.Sel); err != nil {
			return err
		}
		if err := w.order.load(b, b.Sel); err != nil {
			return err
		}
		part.Resize(b.Len)
		order.Resize(b.Len)
		// The keys of all rows lie in one string.
		buf, ends = buf[:0], ends[:0]
		for k := range b.Rows() {
			i := rowOf(b, k)
			buf = w.divide.append(buf, i)
			ends = append(ends, len(buf))
			buf = w.order.append(buf, i)
			ends = append(ends, len(buf))
		}
		all := string(buf)
		start := 0
		for k := range b.Rows() {
			i := rowOf(b, k)
			part.Strs[i], order.Strs[i] = all[start:ends[2*k]], all[ends[2*k]:ends[2*k+1]]
			start = ends[2*k+1]
		}
		out = types.Batch{Len: b.Len, Sel: b.Sel, Cols: append(append(out.Cols[:0], b.Cols...), part, order)}
		err = w.sorter.add(&out, func(i int) []byte {
			buf = append(append(buf[:0], part.Strs[i]...), order.Strs[i]...)
			return buf
		})
		if err != nil {
			return err
		}
	}
	w.sorted = true
	w.stats.MemoryPeak = max(w.stats.MemoryPeak, w.sorter.share.peak)
	return w.sorter.finish()
}

func (w *windowStage) Next(ctx context.Context) (*types.Batch, error) {
	if !w.sorted {
		if err := w.sort(ctx); err != nil {
			return nil, err
		}
	}
	for w.given == len(w.ids) {
		if w.streaming != nil {
			b, err := w.streaming.next()
			if !errors.Is(err, io.EOF) {
				return b, err
			}
			w.streaming.close()
			w.streaming = nil
		}
		if err := w.partition(); err != nil {
			return nil, err
		}
		if w.streaming != nil {
			continue
		}
		if err := w.compute(ctx); err != nil {
			return nil, err
		}
		w.stats.MemoryPeak = max(w.stats.MemoryPeak, w.share.peak+w.sorter.share.held)
	}
	n := min(types.BatchRows, len(w.ids)-w.given)
	ids := w.ids[w.given : w.given+n]
	for c := range w.inputs {
		w.rows.gather(w.out.Cols[c], c, ids)
	}
	for k, c := range w.calls {
		v := w.out.Cols[w.inputs+k]
		v.Resize(n)
		for i := range n {
			v.Set(i, c.results[w.given+i])
		}
	}
	w.given += n
	w.out.Len = n
	return &w.out, nil
}

// compute sets the results of the calls for the partition in work. If they do not fit
// into memory, the partition is streamed.
func (w *windowStage) compute(ctx context.Context) error {
	for _, c := range w.calls {
		err := c.compute(ctx, w)
		if err == nil {
			continue
		}
		if !tooLarge(err) || !w.streams() {
			return err
		}
		for _, c := range w.calls {
			c.forget()
		}
		rows, ids := w.rows, w.ids
		w.given = len(ids)
		return w.stream(func() batchSource { return &idSource{rows: rows, ids: ids} }, nil)
	}
	return nil
}

// partition makes the next partition the one in work; io.EOF if there is none.
func (w *windowStage) partition() error {
	w.ids, w.given = w.ids[:0], 0
	w.free()
	if w.sorter.merge == nil {
		return w.partitionInMemory()
	}
	w.own.reset()
	w.rows = &w.own
	key, some := "", false
	var kept *spool // of a partition that does not fit into memory
	for {
		if w.pending == nil {
			if w.ended {
				break
			}
			b, err := w.sorter.next()
			if errors.Is(err, io.EOF) {
				w.ended = true
				break
			}
			if err != nil {
				return err
			}
			w.pending, w.at = b, 0
		}
		keys := w.pending.Cols[w.inputs].Strs
		if !some {
			key, some = strings.Clone(keys[w.at]), true
		}
		end := w.at
		for end < w.pending.Len && keys[end] == key {
			end++
		}
		if end == w.at {
			break
		}
		sel := make([]int32, end-w.at)
		for i := range sel {
			sel[i] = int32(w.at + i)
		}
		if kept == nil {
			if err := w.share.need(batchBytes(w.pending.Cols, sel, w.pending.Len)); err == nil {
				w.own.append(w.pending.Cols, sel, w.pending.Len)
			} else if !w.streams() {
				return err
			} else if kept, err = w.keepPartition(); err != nil {
				return err
			}
		}
		if kept != nil {
			if err := kept.append(&types.Batch{Len: w.pending.Len, Sel: sel, Cols: w.pending.Cols}); err != nil {
				return err
			}
		}
		if w.at = end; w.at < w.pending.Len {
			break
		}
		w.pending = nil
	}
	if kept != nil {
		if err := kept.finish(); err != nil {
			return err
		}
		return w.stream(func() batchSource { return kept.reader() }, kept)
	}
	if !some {
		return io.EOF
	}
	for i := range w.own.n {
		w.ids = append(w.ids, int32(i))
	}
	return nil
}

// keepPartition moves the rows of the partition in work to a spool.
func (w *windowStage) keepPartition() (*spool, error) {
	kept := newSpool(w.x, w.x.share("OVER"), w.stats, w.sorter.types)
	w.keeping = kept
	for _, b := range w.own.chunks {
		if err := kept.append(b); err != nil {
			return nil, err
		}
	}
	w.own.reset()
	w.share.free()
	return kept, nil
}

// partitionInMemory is partition of rows that are still where the sorter took them.
func (w *windowStage) partitionInMemory() error {
	s := w.sorter
	if s.at == len(s.entries) {
		return io.EOF
	}
	w.rows = &s.rows
	start := s.at
	key := w.rows.value(int(s.entries[start].row), w.inputs).Str
	for s.at < len(s.entries) && w.rows.value(int(s.entries[s.at].row), w.inputs).Str == key {
		w.ids = append(w.ids, s.entries[s.at].row)
		s.at++
	}
	return nil
}

// orderKey returns the key of the order of row i of the partition.
func (w *windowStage) orderKey(i int) string { return w.rows.value(int(w.ids[i]), w.inputs+1).Str }
