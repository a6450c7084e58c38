package exec

import (
	"bytes"
	"context"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	cellfilter "github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// tableScan reads a stored table. Goroutines of its own read rows into batches,
// ahead of what is taken, except for a single row.
type tableScan struct {
	x     *execution
	scan  *algebra.Scan
	exprs map[algebra.Expr]evaluator // constants that say what is read, but literals and parameters
	stats *algebra.Stats
	// fragment returns what the server of a tablet may do with rows; nil if there is
	// nothing.
	fragment func() []byte
	// position is set if the keys of the rows that were given out are asked for.
	position bool
	// within bounds what is read: see Isolate. Nil does not.
	within []row.Range
	// tell is the longest that a batch waits for rows, 0 for ever: see Isolate.
	tell time.Duration
	// after is the key behind which a run goes on that was resumed.
	after   []byte
	resumed bool

	open   bool
	ctx    context.Context
	cancel context.CancelFunc // of goroutines that read; nil if there are none
	stop   func() bool        // keeps the end of ctx from stopping the queue
	read   *plan.Read
	layout *scanLayout
	queue  *scanQueue
	wait   sync.WaitGroup
	share  *share
	last   *scanBatch // what the consumer has
	done   bool
	// What is kept from one run to the next: the sink of single rows, and the layout and
	// some batches of others.
	one   *scanSink
	kept  *scanLayout
	spare []*scanBatch
	// plain and filtered are what the last probe has found, and believed is how many reads
	// went by it.
	plain, filtered bool
	believed        int
	// again says that it has run before: for each row of others, perhaps, which is not worth
	// the seeks of parts of tablets.
	again bool

	mu     sync.Mutex
	shares []*share
	seen   scan.Stats
}

func newScan(x *execution, r *algebra.Scan, outer *frame) (Operator, error) {
	t := &tableScan{x: x, scan: r, stats: x.statsOf(r), share: x.share("Scan")}
	var s *scope
	for _, e := range plan.Constants(r) {
		switch e.(type) {
		case *algebra.Literal, *algebra.Param:
			continue
		}
		if s == nil {
			s, t.exprs = newScope(x, nil, outer), map[algebra.Expr]evaluator{}
		}
		v, err := compile(e, s)
		if err != nil {
			return nil, err
		}
		t.exprs[e] = v
	}
	return t, nil
}

// keepOne is the most memory that a scan of single rows keeps while nothing runs, in
// bytes. Another scan keeps keepBatches with as much as keepBatch for each.
const (
	keepOne     = 16 << 10
	keepBatches = 2
	keepBatch   = 256 << 10
)

// keep keeps memory for the next run of the same operator. No goroutine reads any more.
func (t *tableScan) keep() {
	if t.one != nil {
		if t.one.ctx = nil; t.one.err != nil || t.one.b.held() > keepOne {
			t.one = nil
		}
	}
	if t.queue == nil || !t.position {
		return
	}
	t.kept = t.layout
	all := append(append(t.queue.free, t.queue.ready...), t.queue.left...)
	if t.last != nil {
		all = append(all, t.last)
	}
	for _, b := range all {
		if len(t.spare) < keepBatches && b.piece == nil && b.vecs != nil && b.held() <= keepBatch && !slices.Contains(t.spare, b) {
			t.layout.reset(b)
			b.charged = 0
			t.spare = append(t.spare, b)
		}
	}
}

// constant returns the value of an expression that says what is read.
func (t *tableScan) constant(e algebra.Expr) (types.Value, error) {
	switch e := e.(type) {
	case *algebra.Literal:
		return e.Value, nil
	case *algebra.Param:
		return t.x.Params.Values[e.Name], nil
	}
	return evalOnce(t.exprs[e])
}

// Open implements Operator.
func (t *tableScan) Open(ctx context.Context) error {
	if err := t.Close(); err != nil {
		return err
	}
	read, err := plan.Bind(t.scan, t.constant)
	if err != nil {
		return err
	}
	if t.scan.Table.Definer != "" && t.x.As != nil {
		if ctx, err = t.x.As(ctx, t.scan.Table.Definer); err != nil {
			return err
		}
	}
	if t.resumed {
		read.Ranges = beyond(read.Ranges, t.after, read.Reversed)
		if read.Limit > 0 {
			// The rows that a LIMIT still wants are counted by its operator.
			read.Limit = 0
		}
	}
	if t.within != nil {
		read.Ranges = plan.Intersect(read.Ranges, t.within)
	}
	t.ctx, t.open = ctx, true
	t.read, t.done = read, len(read.Ranges) == 0
	return nil
}

// batchRows returns how many rows a batch has: fewer if there are many columns, so that
// the vectors of one take about a megabyte at most.
func (t *tableScan) batchRows() int {
	n := types.BatchRows
	if cols := len(t.scan.Uses); cols > 40 {
		n = max(64, n*40/cols)
	}
	if t.read.Limit > 0 {
		n = int(min(int64(n), t.read.Limit))
	}
	return n
}

// start begins to read.
func (t *tableScan) start() error {
	rows := t.batchRows()
	unpack := t.scan.History != nil && t.scan.History.Unpack
	if len(t.read.Ranges) == 1 && t.read.Ranges[0].IsSingle() && !unpack {
		return t.readOne()
	}
	t.queue = newScanQueue()
	if t.kept != nil && t.kept.rows == rows {
		t.layout, t.queue.free, t.spare = t.kept, t.spare, nil
	} else {
		t.layout, t.spare = newScanLayout(t.scan, rows), nil
		t.layout.position = t.position
	}
	parts, err := t.parts()
	if err != nil {
		return err
	}
	t.ctx, t.cancel = context.WithCancel(t.ctx)
	t.stop = context.AfterFunc(t.ctx, t.queue.stop)
	readers := min(len(parts), max(1, t.x.Parallel))
	t.queue.running = readers
	var next atomic.Int64
	for range readers {
		t.wait.Go(func() {
			sh := t.x.share("Scan")
			w := newScanSink(t.ctx, t.layout, t.queue, sh)
			w.fragment, w.tell, w.told = t.fragment, t.tell, time.Now()
			t.mu.Lock()
			t.shares = append(t.shares, sh)
			t.mu.Unlock()
			t.queue.end(t.readParts(parts, &next, w), w.b)
		})
	}
	return nil
}

// readParts reads parts, of which other goroutines take some, until none is left.
func (t *tableScan) readParts(parts [][]row.Range, next *atomic.Int64, w *scanSink) (err error) {
	defer func() {
		if p := recover(); p != nil { // the query fails, not the process
			err = fault.New(fault.Internal, "panic in a scan: %v\n%s", p, debug.Stack())
		}
	}()
	for {
		i := int(next.Add(1)) - 1
		if i >= len(parts) {
			return w.end()
		}
		if err := t.readPart(parts[i], w); err != nil {
			return err
		}
	}
}

// probeRows is how many rows are read before it is decided how the others are.
// plainCells is how many cells of a row that are not needed cost less than a filter
// that drops them. believeReads is how often the same operator goes by one probe.
const (
	probeRows    = 64
	plainCells   = 3
	believeReads = 50
)

// believe tells whether to go by the last probe, which was of other rows: not for ever.
func (t *tableScan) believe() bool {
	if t.believed++; t.believed > believeReads {
		t.plain, t.filtered = false, false
	}
	return t.believed <= believeReads
}

// readPart reads ranges into w. A filter costs some 100 ns for a row, which is as
// much as to read a cell. So it is left out of tables with narrow rows.
func (t *tableScan) readPart(ranges []row.Range, w *scanSink) error {
	f, limit := t.read.Filter, t.read.Limit
	maybe := t.read.Plain && (limit == 0 || limit > probeRows) && len(ranges) < probeRows
	switch {
	case maybe && t.plain && t.believe():
		f = nil
	case maybe && t.filtered && t.believe():
	case maybe:
		w.probing, w.used = true, 0
		st, err := t.readRows(ranges, nil, probeRows, w)
		w.probing = false
		if err != nil || st.RowsReturned < probeRows {
			return err
		}
		plain := st.CellsReturned-w.used <= plainCells*st.RowsReturned
		if plain {
			f = nil
		}
		if t.position { // one goroutine reads
			t.plain, t.filtered, t.believed = plain, !plain, 0
		}
		if limit > 0 {
			limit -= st.RowsReturned
		}
		ranges = beyond(ranges, w.key, t.read.Reversed)
		if len(ranges) == 0 {
			return nil
		}
	}
	_, err := t.readRows(ranges, f, limit, w)
	return err
}

// beyond returns what of ranges comes after key.
func beyond(ranges []row.Range, key []byte, reversed bool) []row.Range {
	left := row.Range{Start: row.Successor(key)}
	if reversed {
		if len(key) == 0 {
			return nil
		}
		left = row.Range{End: bytes.Clone(key)}
	}
	var out []row.Range
	for _, r := range ranges {
		if r = r.Intersect(left); !r.Empty() {
			out = append(out, r)
		}
	}
	return out
}

func (t *tableScan) readRows(ranges []row.Range, f *cellfilter.Node, limit int64, w scan.Writer) (scan.Stats, error) {
	st, err := t.x.Source.ReadRows(t.ctx, &scan.Request{Table: t.scan.Table.FullName, Ranges: ranges, Limit: limit, Reversed: t.read.Reversed, Filter: f}, w)
	t.mu.Lock()
	t.seen.RowsSeen += st.RowsSeen
	t.seen.CellsSeen += st.CellsSeen
	t.mu.Unlock()
	return st, err
}

// readOne reads a single row, in the goroutine of the caller. That a row is there
// that has none of the columns is asked for only if it matters.
func (t *tableScan) readOne() error {
	w := t.one
	if w == nil {
		t.layout = newScanLayout(t.scan, 1)
		t.layout.position = t.position
		w = newScanSink(t.ctx, t.layout, nil, t.share)
		if t.position { // it is opened once a run, so that no value outlives it
			t.one = w
		}
	} else {
		w.again(t.ctx)
	}
	f := t.read.Filter
	if t.read.Partial {
		f = t.read.Present
	}
	_, err := t.readRows(t.read.Ranges, f, 1, w)
	if err == nil && w.n == 0 && t.read.Partial {
		_, err = t.readRows(t.read.Ranges, t.read.Filter, 1, w)
	}
	if err != nil {
		return err
	}
	t.done = true
	if w.n > 0 {
		w.b.batch.Len = w.n
		w.finish(w.b)
		t.last = w.b
	}
	return nil
}

// parts returns the ranges that are read, cut into those of one tablet each, or of a part
// of one, if several may be read at a time.
func (t *tableScan) parts() ([][]row.Range, error) {
	all := t.read.Ranges
	whole := [][]row.Range{all}
	if t.position || t.x.Parallel < 2 || !t.read.Unordered || t.read.Limit > 0 || !slices.ContainsFunc(all, func(r row.Range) bool { return !r.IsSingle() }) {
		return whole, nil
	}
	known, err := t.x.Pool.tablets.of(t.ctx, t.x.Source, t.scan.Table.FullName, t.x.Parallel)
	if err != nil {
		return nil, err
	}
	ends := known.parts
	if t.again {
		ends = known.tablets
	}
	t.again = true
	return cutRanges(all, ends), nil
}

// tabletEnds remembers where tables are cut into tablets, and large tablets into parts if
// there are few. What has changed since then costs time only: any cut is right.
type tabletEnds struct {
	mu   sync.Mutex
	list map[string]knownEnds
}

type knownEnds struct {
	tablets [][]byte // ascending, without the last
	parts   [][]byte // the same, and those of parts of tablets
	at      time.Time
}

// endsFor is how long the ends of a table's tablets are used, and maxKnownEnds of how many
// tables they are kept.
const (
	endsFor      = 5 * time.Second
	maxKnownEnds = 1000
)

// of returns the ends of the tablets of a table. If there are fewer tablets than are read at a
// time, there are those of parts: else one query of a table of one tablet would leave all
// processors but one idle.
func (t *tabletEnds) of(ctx context.Context, s Source, table string, parallel int) (knownEnds, error) {
	t.mu.Lock()
	k, ok := t.list[table]
	t.mu.Unlock()
	if ok && time.Since(k.at) < endsFor {
		return k, nil
	}
	k = knownEnds{at: time.Now()}
	var size int64
	err := s.SampleRowKeys(ctx, table, row.All, func(s scan.Sample) error {
		size = s.Offset
		if n := len(k.tablets); len(s.Key) > 0 && (n == 0 || bytes.Compare(s.Key, k.tablets[n-1]) > 0) {
			k.tablets = append(k.tablets, bytes.Clone(s.Key))
		}
		return nil
	})
	k.parts = k.tablets
	if err == nil && len(k.tablets)+1 < parallel && size >= scan.MinCutBytes {
		var cuts [][]byte
		cuts, err = s.TabletCuts(ctx, table, row.All)
		k.parts = slices.Concat(k.tablets, cuts)
		slices.SortFunc(k.parts, bytes.Compare)
		k.parts = slices.CompactFunc(k.parts, bytes.Equal)
	}
	if err != nil {
		return k, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list == nil || len(t.list) >= maxKnownEnds {
		t.list = map[string]knownEnds{}
	}
	t.list[table] = k
	return k, nil
}

// cutRanges divides ranges by ends. Both ascend.
func cutRanges(all []row.Range, ends [][]byte) [][]row.Range {
	var out [][]row.Range
	start := []byte(nil)
	for i := 0; i <= len(ends); i++ {
		tablet := row.Range{Start: start}
		if i < len(ends) {
			tablet.End = ends[i]
			start = ends[i]
		}
		for len(all) > 0 && len(all[0].End) > 0 && bytes.Compare(all[0].End, tablet.Start) <= 0 {
			all = all[1:]
		}
		var part []row.Range
		for _, r := range all {
			if len(tablet.End) > 0 && bytes.Compare(r.Start, tablet.End) >= 0 {
				break
			}
			if r = r.Intersect(tablet); !r.Empty() {
				part = append(part, r)
			}
		}
		if len(part) > 0 {
			out = append(out, part)
		}
	}
	return out
}

// Next implements Operator.
func (t *tableScan) Next(ctx context.Context) (*types.Batch, error) {
	b, err := t.next()
	if err != nil {
		return nil, err
	}
	return &b.batch, nil
}

// next returns the next rows, or what a tablet's server has made of some.
func (t *tableScan) next() (*scanBatch, error) {
	if t.done {
		return nil, io.EOF
	}
	if t.queue == nil {
		if err := t.start(); err != nil {
			t.done = true
			return nil, err
		}
		if t.queue == nil {
			if t.last == nil {
				return nil, io.EOF
			}
			return t.last, nil
		}
	}
	b, err := t.queue.get(t.ctx, t.last)
	t.last = b
	if err != nil {
		t.done = true
		return nil, err
	}
	return b, nil
}

// lastKey returns the key through which all rows were given out, if position was set.
func (t *tableScan) lastKey() []byte {
	switch {
	case t.last == nil:
		return nil
	case t.queue == nil:
		return t.read.Ranges[0].Start
	}
	return t.last.key
}

// Close implements Operator.
func (t *tableScan) Close() error {
	if t.cancel != nil {
		t.stop()
		t.cancel()
		t.queue.stop()
		t.wait.Wait()
		t.cancel = nil
	}
	if t.open {
		t.open = false
		for _, s := range t.shares {
			t.share.peak = max(t.share.peak, s.peak)
			s.free()
		}
		t.share.free()
		t.stats.RowsSeen += t.seen.RowsSeen
		t.stats.CellsSeen += t.seen.CellsSeen
		t.stats.MemoryPeak = max(t.stats.MemoryPeak, t.share.peak)
	}
	t.keep()
	t.ctx, t.read = nil, nil
	t.shares, t.queue, t.last, t.layout, t.seen, t.done = nil, nil, nil, nil, scan.Stats{}, true
	return nil
}

// Constant returns the value of an expression that refers to no columns.
func Constant(ctx context.Context, c Config, e algebra.Expr) (types.Value, error) {
	x, cancel := newExecution(ctx, c)
	defer cancel(context.Canceled)
	v, err := compile(e, newScope(x, nil, nil))
	if err != nil {
		return types.Null, err
	}
	return evalOnce(v)
}
