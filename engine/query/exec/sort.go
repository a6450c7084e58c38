package exec

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// sorter collects rows and gives them back in the order of keys that are compared
// byte by byte. Rows with equal keys stay in order. It spills sorted runs when there is
// no memory left, and merges them.
type sorter struct {
	x       *execution
	share   *share
	stats   *algebra.Stats
	types   []*types.Type // of the rows, without the key
	rows    rows
	entries []sortEntry
	arena   byteArena
	runs    []*spill
	// flying is the run that is being written beside.
	flying *flyingRun
	// generations has of each run how often its rows were merged.
	generations []int
	// top is how many rows are wanted, negative for all. bound is the key of the last of
	// them once there are so many: rows that are not before it are not kept.
	top   int64
	bound []byte
	// Of giving back:
	at    int
	out   types.Batch
	ids   []int32
	merge *merger
}

// sortEntry is a row to be sorted. The first byte of its key, which tells NULL from
// values, and the eight that follow decide most comparisons without a look at other
// memory: all of one INT64.
type sortEntry struct {
	prefix uint64
	key    []byte
	row    int32
	flag   uint8
}

func newEntry(key []byte, row int32) sortEntry {
	e := sortEntry{key: key, row: row}
	switch {
	case len(key) > 8:
		e.flag, e.prefix = key[0], binary.BigEndian.Uint64(key[1:])
	case len(key) > 0:
		var b [8]byte
		copy(b[:], key[1:])
		e.flag, e.prefix = key[0], binary.BigEndian.Uint64(b[:])
	}
	return e
}

func compareEntries(a, b sortEntry) int {
	switch {
	case a.flag != b.flag:
		return int(a.flag) - int(b.flag)
	case a.prefix < b.prefix:
		return -1
	case a.prefix > b.prefix:
		return 1
	}
	if len(a.key) > 9 || len(b.key) > 9 {
		if c := bytes.Compare(a.key, b.key); c != 0 {
			return c
		}
	}
	return int(a.row) - int(b.row)
}

// byteArena hands out memory for many small byte strings.
type byteArena struct {
	free  []byte
	block int
	bytes int64
}

func (a *byteArena) copy(s []byte) []byte {
	if len(s) > len(a.free) {
		a.block = min(max(2*a.block, 256), 64<<10)
		n := max(a.block, len(s))
		a.free = make([]byte, n)
		a.bytes += int64(n)
	}
	out := a.free[:len(s):len(s)]
	copy(out, s)
	a.free = a.free[len(s):]
	return out
}

func (a *byteArena) reset() { *a = byteArena{} }

const entryBytes = 48

// maxRuns is how many runs are merged at a time, and minRuns that of a small budget.
const minRuns, maxRuns = 4, 32

// mergeBytes is what a run takes while it is merged: a frame as it is read, and as it is
// decoded.
const mergeBytes = 3 * frameTarget

func newSorter(x *execution, stats *algebra.Stats, name string, ts []*types.Type) *sorter {
	return &sorter{x: x, share: x.share(name), stats: stats, types: ts, rows: rows{types: ts}, top: -1,
		out: types.Batch{Cols: newVectors(ts)}}
}

// flyingRun is a run that a goroutine writes.
type flyingRun struct {
	done    chan struct{}
	err     error // once done is closed
	abandon atomic.Bool
	bytes   int64 // of the share, until it is written
}

// reset forgets all rows and gives back all memory.
func (s *sorter) reset() {
	if f := s.flying; f != nil {
		f.abandon.Store(true)
		<-f.done
		s.flying = nil
	}
	s.dropRows()
	for _, r := range s.runs {
		r.close()
	}
	s.runs, s.generations, s.merge, s.bound, s.at = nil, nil, nil, nil, 0
	s.share.free()
}

func (s *sorter) dropRows() {
	s.rows.reset()
	s.entries = nil
	s.arena.reset()
}

// add takes the rows of a batch; key returns the key of row i in memory that it uses
// again.
func (s *sorter) add(b *types.Batch, key func(i int) []byte) error {
	n := b.Rows()
	size := batchBytes(b.Cols, b.Sel, b.Len) + int64(n)*(entryBytes+32)
	if err := s.room(size); err != nil {
		return err
	}
	sel, base := b.Sel, s.rows.n
	if s.bound != nil {
		sel = nil
	}
	before := s.arena.bytes
	s.ids = s.ids[:0]
	for k := range n {
		i := k
		if b.Sel != nil {
			i = int(b.Sel[k])
		}
		kb := key(i)
		if s.bound != nil && bytes.Compare(kb, s.bound) >= 0 {
			continue
		}
		s.entries = append(s.entries, newEntry(s.arena.copy(kb), int32(base+len(s.ids))))
		s.ids = append(s.ids, int32(i))
	}
	if s.bound != nil {
		// Most rows are behind the bound.
		if sel = s.ids; len(sel) == 0 {
			s.share.grow(-size)
			return nil
		}
		s.share.grow(min(0, batchBytes(b.Cols, sel, b.Len)+int64(len(sel))*(entryBytes+32)-size))
	}
	s.rows.append(b.Cols, sel, b.Len)
	if grown := s.arena.bytes - before - int64(n)*32; grown > 0 && !s.share.grow(grown) {
		if err := s.spillRun(); err != nil {
			return err
		}
	}
	if s.flying == nil && s.top < 0 && s.share.held >= s.x.Pool.limits.Query/2 {
		s.startRun()
	}
	if s.top >= 0 && int64(len(s.entries)) >= 2*s.top+types.BatchRows {
		return s.prune()
	}
	if s.rows.n > 1<<30 {
		return s.spillRun()
	}
	return nil
}

func (s *sorter) sort() { slices.SortFunc(s.entries, compareEntries) }

// prune drops all rows but the first top.
func (s *sorter) prune() error {
	s.sort()
	if int64(len(s.entries)) <= s.top {
		return nil
	}
	best := s.entries[:s.top]
	if s.top == 0 {
		s.dropRows()
		s.share.free()
		s.bound = []byte{}
		return nil
	}
	s.bound = bytes.Clone(best[len(best)-1].key)
	// The rows are copied in order, so that a row's number tells again which of equals
	// came first.
	old := s.rows
	s.rows = rows{types: s.types}
	s.entries = make([]sortEntry, 0, 2*s.top+2*types.BatchRows)
	s.arena.reset()
	for from := 0; from < len(best); from += types.BatchRows {
		part := best[from:min(len(best), from+types.BatchRows)]
		ids := make([]int32, len(part))
		for k, e := range part {
			ids[k] = e.row
			s.entries = append(s.entries, newEntry(s.arena.copy(e.key), int32(from+k)))
		}
		cols := newVectors(s.types)
		for c := range cols {
			old.gather(cols[c], c, ids)
		}
		s.rows.append(cols, nil, len(part))
	}
	s.share.set(s.rows.bytes + s.arena.bytes + entryBytes*int64(cap(s.entries)))
	return nil
}

// room takes size bytes, and spills for them if it has to.
func (s *sorter) room(size int64) error {
	if s.share.grow(size) {
		return nil
	}
	if s.flying != nil {
		if err := s.awaitRun(); err != nil || s.share.grow(size) {
			return err
		}
	}
	if err := s.spillRun(); err != nil {
		return err
	}
	return s.share.need(size)
}

// spillRun sorts what is in memory and writes it to a file.
func (s *sorter) spillRun() error {
	if err := s.awaitRun(); err != nil {
		return err
	}
	s.startRun()
	return s.awaitRun()
}

// startRun has a goroutine sort what is in memory and write it to a file, while rows are
// added. awaitRun must follow.
func (s *sorter) startRun() {
	if len(s.entries) == 0 {
		return
	}
	f := &flyingRun{done: make(chan struct{}), bytes: s.share.held}
	run, entries, kept := s.newRun(), s.entries, s.rows
	s.rows, s.entries = rows{types: s.types}, nil
	s.arena.reset()
	s.flying = f
	go func() {
		defer close(f.done)
		f.err = s.writeRun(f, run, entries, kept)
	}()
}

// writeRun sorts rows and writes them to a run. It changes nothing else.
func (s *sorter) writeRun(f *flyingRun, run *spill, entries []sortEntry, from rows) error {
	slices.SortFunc(entries, compareEntries)
	if s.top >= 0 && int64(len(entries)) > s.top {
		entries = entries[:s.top]
	}
	cols := append(newVectors(s.types), &types.Vector{Type: types.BytesType})
	var ids []int32
	for at := 0; at < len(entries); at += types.BatchRows {
		if err := s.x.ctx.Err(); err != nil {
			return err
		}
		if f.abandon.Load() {
			return context.Canceled
		}
		part := entries[at:min(len(entries), at+types.BatchRows)]
		ids = ids[:0]
		keys := cols[len(s.types)]
		keys.Resize(len(part))
		for k, e := range part {
			ids = append(ids, e.row)
			keys.Strs[k] = unsafe.String(unsafe.SliceData(e.key), len(e.key)) // the arena does not change
		}
		for c := range s.types {
			from.gather(cols[c], c, ids)
		}
		if err := run.append(cols, nil, len(part)); err != nil {
			return err
		}
	}
	return run.finish()
}

// awaitRun waits until the run that is being written is there, and gives its memory back.
func (s *sorter) awaitRun() error {
	f := s.flying
	if f == nil {
		return nil
	}
	<-f.done
	s.flying = nil
	s.share.grow(-f.bytes)
	if f.err != nil {
		return f.err
	}
	// Runs of one generation are merged when there are many, so that no row is written
	// more often than there are generations.
	s.generations = append(s.generations, 0)
	for {
		n := len(s.generations)
		last, k := s.generations[n-1], 0
		for k < n && s.generations[n-1-k] == last {
			k++
		}
		if k < s.fanIn() {
			return nil
		}
		if err := s.mergeRuns(k); err != nil {
			return err
		}
		s.generations = append(s.generations[:n-k], last+1)
	}
}

// fanIn is how many runs are merged at a time.
func (s *sorter) fanIn() int {
	return int(min(max(s.x.Pool.limits.Query/4/mergeBytes, minRuns), maxRuns))
}

func (s *sorter) newRun() *spill {
	ts := append(slices.Clip(slices.Clone(s.types)), types.BytesType)
	run := s.x.newSpill(s.share.name, s.stats, ts)
	s.runs = append(s.runs, run)
	return run
}

// mergeRuns makes one run of the last k.
func (s *sorter) mergeRuns(k int) error {
	old := slices.Clone(s.runs[len(s.runs)-k:])
	held := s.share.held
	m, err := newMerger(s, old)
	if err != nil {
		return err
	}
	run := s.newRun()
	for {
		if err := s.x.ctx.Err(); err != nil {
			return err
		}
		b, err := m.next(types.BatchRows)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := run.append(b.Cols, nil, b.Len); err != nil {
			return err
		}
	}
	s.runs = append(s.runs[:len(s.runs)-1-k], run)
	for _, r := range old {
		r.close()
	}
	s.share.grow(held - s.share.held)
	return run.finish()
}

// finish ends the adding of rows.
func (s *sorter) finish() error {
	s.at = 0
	if err := s.awaitRun(); err != nil {
		return err
	}
	if len(s.runs) == 0 {
		s.sort()
		if s.top >= 0 && int64(len(s.entries)) > s.top {
			s.entries = s.entries[:s.top]
		}
		return nil
	}
	if err := s.spillRun(); err != nil {
		return err
	}
	if k := len(s.runs) - s.fanIn(); k > 0 {
		if err := s.mergeRuns(k + 1); err != nil {
			return err
		}
	}
	var err error
	s.merge, err = newMerger(s, s.runs)
	return err
}

// next returns the next rows in order, or io.EOF.
func (s *sorter) next() (*types.Batch, error) {
	if s.merge != nil {
		b, err := s.merge.next(types.BatchRows)
		if err != nil {
			return nil, err
		}
		s.out.Len = b.Len
		copy(s.out.Cols, b.Cols)
		return &s.out, nil
	}
	if s.at >= len(s.entries) {
		return nil, io.EOF
	}
	part := s.entries[s.at:min(len(s.entries), s.at+types.BatchRows)]
	s.at += len(part)
	s.ids = s.ids[:0]
	for _, e := range part {
		s.ids = append(s.ids, e.row)
	}
	s.out.Len = len(part)
	for c := range s.types {
		s.rows.gather(s.out.Cols[c], c, s.ids)
	}
	return &s.out, nil
}

// merger merges sorted runs.
type merger struct {
	key  int // the column of the key
	runs []mergeRun
	out  types.Batch
}

// mergeRun is what is left of one run: rows of batch from at on.
type mergeRun struct {
	reader *spillReader
	batch  *types.Batch
	at     int
	number int // the order of runs
}

func newMerger(s *sorter, runs []*spill) (*merger, error) {
	m := &merger{key: len(s.types)}
	m.out.Cols = append(newVectors(s.types), &types.Vector{Type: types.BytesType})
	for i, r := range runs {
		// Without this much the sort cannot end. It is a quarter of the budget at most.
		s.share.force(mergeBytes)
		run := mergeRun{reader: r.reader(), number: i}
		b, err := run.reader.next()
		if errors.Is(err, io.EOF) {
			continue
		}
		if err != nil {
			return nil, err
		}
		run.batch = b
		m.runs = append(m.runs, run)
	}
	heap.Init(m)
	return m, nil
}

func (m *merger) Len() int { return len(m.runs) }
func (m *merger) Less(i, j int) bool {
	a, b := &m.runs[i], &m.runs[j]
	x, y := a.batch.Cols[m.key].Strs[a.at], b.batch.Cols[m.key].Strs[b.at]
	if x != y {
		return x < y
	}
	return a.number < b.number
}
func (m *merger) Swap(i, j int) { m.runs[i], m.runs[j] = m.runs[j], m.runs[i] }
func (m *merger) Push(any)      {}
func (m *merger) Pop() any {
	m.runs = m.runs[:len(m.runs)-1]
	return nil
}

// next returns up to n rows with their keys.
func (m *merger) next(n int) (*types.Batch, error) {
	if len(m.runs) == 0 {
		return nil, io.EOF
	}
	for _, v := range m.out.Cols {
		v.Resize(n)
	}
	k := 0
	for k < n && len(m.runs) > 0 {
		r := &m.runs[0]
		for c, v := range m.out.Cols {
			v.Set(k, r.batch.Cols[c].Value(r.at))
		}
		k++
		r.at++
		if r.at == r.batch.Len {
			b, err := r.reader.next()
			if errors.Is(err, io.EOF) {
				heap.Pop(m)
				continue
			}
			if err != nil {
				return nil, err
			}
			r.batch, r.at = b, 0
		}
		heap.Fix(m, 0)
	}
	m.out.Len = k
	return &m.out, nil
}

// sortKeys makes keys of rows that sort as bytes.
type sortKeys struct {
	keys  []algebra.SortKey
	exprs []evaluator
	vecs  []*types.Vector
	buf   []byte
}

func compileSortKeys(keys []algebra.SortKey, s *scope) (*sortKeys, error) {
	k := &sortKeys{keys: keys, exprs: make([]evaluator, len(keys)), vecs: make([]*types.Vector, len(keys))}
	for i, key := range keys {
		var err error
		if k.exprs[i], err = compile(key.Expr, s); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// load computes the keys of the rows of b.
func (k *sortKeys) load(b *types.Batch, sel []int32) error {
	for i, e := range k.exprs {
		v, err := e.eval(b, sel)
		if err != nil {
			return err
		}
		k.vecs[i] = v
	}
	return nil
}

// append appends the key of row i to dst.
func (k *sortKeys) append(dst []byte, i int) []byte {
	for n, v := range k.vecs {
		dst = appendSortKey(dst, v.Type, v.Value(i), k.keys[n].Descending, k.keys[n].NullsLast)
	}
	return dst
}

// row returns the key of row i in memory that is used again.
func (k *sortKeys) row(i int) []byte {
	k.buf = k.append(k.buf[:0], i)
	return k.buf
}

// appendSortKey appends bytes of v that sort as an ORDER BY does.
func appendSortKey(dst []byte, t *types.Type, v types.Value, descending, nullsLast bool) []byte {
	start := len(dst)
	dst = types.AppendKey(dst, t, v)
	if descending {
		for i := start; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	switch {
	case v.Valid:
		dst[start] = 1
	case nullsLast:
		dst[start] = 2
	default:
		dst[start] = 0
	}
	return dst
}

// sortOp is ORDER BY.
type sortOp struct {
	in            Operator
	keys          *sortKeys
	sorter        *sorter
	count, offset evaluator
	// slots are the columns of the input that are kept, in cols; nil keeps all.
	slots []int
	kept  types.Batch
	done  bool
	stats *algebra.Stats
}

// newSort returns the operator of r. If count is set, no more rows than count and offset
// are wanted. If keep is set, these columns are wanted, and others only to sort by.
func newSort(x *execution, r *algebra.Sort, outer *frame, count, offset evaluator, keep []algebra.Column) (Operator, error) {
	in, s, err := x.build(r.Input, outer)
	if err != nil {
		return nil, err
	}
	keys, err := compileSortKeys(r.Keys, s)
	if err != nil {
		return nil, err
	}
	op := &sortOp{in: in, keys: keys, count: count, offset: offset, stats: x.statsOf(r)}
	if keep == nil {
		keep = r.Columns()
	} else {
		if op.slots, err = s.find(keep); err != nil {
			return nil, err
		}
		op.kept.Cols = make([]*types.Vector, len(keep))
	}
	op.sorter = newSorter(x, op.stats, "ORDER BY", columnTypes(keep))
	return op, nil
}

func (s *sortOp) Open(ctx context.Context) error {
	s.sorter.reset()
	s.done = false
	s.sorter.top = -1
	if s.count != nil {
		n, skip, err := limits(s.count, s.offset)
		if err != nil {
			return err
		}
		if n += skip; n >= 0 && n <= 1<<20 {
			s.sorter.top = n
		}
	}
	return s.in.Open(ctx)
}

func (s *sortOp) Next(ctx context.Context) (*types.Batch, error) {
	if !s.done {
		for {
			b, err := s.in.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			if err := s.keys.load(b, b.Sel); err != nil {
				return nil, err
			}
			if s.slots != nil {
				s.kept.Len, s.kept.Sel = b.Len, b.Sel
				for i, slot := range s.slots {
					s.kept.Cols[i] = b.Cols[slot]
				}
				b = &s.kept
			}
			if err := s.sorter.add(b, s.keys.row); err != nil {
				return nil, err
			}
		}
		s.stats.MemoryPeak = max(s.stats.MemoryPeak, s.sorter.share.peak)
		if err := s.sorter.finish(); err != nil {
			return nil, err
		}
		s.done = true
	}
	return s.sorter.next()
}

func (s *sortOp) Close() error {
	s.sorter.reset()
	return s.in.Close()
}
