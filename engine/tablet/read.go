package tablet

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/merge"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/rowcache"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// A Query is what a read wants of every row, prepared for one schema. It is
// read-only once made; tablets of the table share it.
type Query struct {
	reversed bool
	program  *filter.Program
	families []family // by id
	// inOrder says that family ids ascend with family names, so that cells come
	// out of the tablet in the order in which they are returned.
	inOrder bool
	times   *cell.TimeRange
	// rows holds all rows that can have output.
	rows row.Range
	// none says that there is no output at all.
	none bool
	// ends says that what is wanted is filter.Ends.
	ends bool
	// first and last are the least and the largest id of the families that are
	// wanted.
	first, last cell.FamilyID
	// lo is the escaped form of the first qualifier that matters, or nil.
	lo []byte
	// oneColumn says that lo is the only qualifier that matters, of one family.
	oneColumn bool
	// runs are those that may hold cells of the families that are wanted.
	runs choice
}

// Queries keeps the queries of one table that are asked for most. The zero value is
// ready, and safe for concurrent use.
type Queries struct {
	everything atomic.Pointer[everything]
	kept       atomic.Pointer[keptQueries]
}

// keptQueries are those for filters that are kept, under one schema. They do not
// change.
type keptQueries struct {
	of *schema.Table
	by map[keptFilter]*Query
}

type keptFilter struct {
	filter   *filter.Node
	reversed bool
}

// maxKeptQueries bounds the queries that are kept. One takes some 1 KiB.
const maxKeptQueries = 64

// everything is the query for all cells under one schema.
type everything struct {
	of    *schema.Table
	query *Query
}

// For is NewQuery, but makes the query for everything, in ascending order, and those
// of filters that are kept, once per schema: to make one costs some 2 µs, half of what
// it costs to read a row.
func (c *Queries) For(s *schema.Table, f *filter.Node, reversed bool) (*Query, error) {
	switch {
	case f != nil && f.Kept:
		return c.keep(s, keptFilter{f, reversed})
	case f != nil || reversed:
		return NewQuery(s, f, reversed)
	}
	if e := c.everything.Load(); e != nil && e.of == s {
		return e.query, nil
	}
	q, err := NewQuery(s, nil, false)
	if err == nil {
		c.everything.Store(&everything{of: s, query: q})
	}
	return q, err
}

// keep is For of a filter that is kept.
func (c *Queries) keep(s *schema.Table, f keptFilter) (*Query, error) {
	was := c.kept.Load()
	if was != nil && was.of == s {
		if q := was.by[f]; q != nil {
			return q, nil
		}
	}
	q, err := NewQuery(s, f.filter, f.reversed)
	if err != nil {
		return nil, err
	}
	now := &keptQueries{of: s, by: map[keptFilter]*Query{f: q}}
	if was != nil && was.of == s && len(was.by) < maxKeptQueries {
		maps.Copy(now.by, was.by)
	}
	c.kept.CompareAndSwap(was, now) // the query is made again if others came between
	return q, nil
}

type family struct {
	name string
	want bool // known, and not excluded by the filter as a whole
}

// NewQuery prepares a filter, which has been validated. It is NotFound if the
// filter names a family that the table does not have (api-contract X19), and
// FailedPrecondition if the schema is not sound (schema.Table.CheckSound).
func NewQuery(s *schema.Table, f *filter.Node, reversed bool) (*Query, error) {
	if err := s.CheckSound(); err != nil {
		return nil, err
	}
	ends := f != nil && f.Op == filter.Ends
	if ends {
		f = nil
	}
	for _, name := range f.LiteralFamilies() {
		if _, ok := s.Families[name]; !ok {
			return nil, schema.NoFamily(name, "Error while reading table '%s' : Requested column family not found: %s", s.Name, name)
		}
	}
	rest, only, err := splitFamilies(f)
	if err != nil {
		return nil, err
	}
	p, err := filter.Compile(rest)
	if err != nil {
		return nil, err
	}
	q := &Query{reversed: reversed, program: p, families: make([]family, s.NextFamily), inOrder: true, ends: ends}
	h := p.Hints()
	for name, f := range s.Families {
		q.families[f.ID] = family{name, (only == nil || only(name)) && (h.Families == nil || h.Families(name))}
	}
	q.runs = choose(s, func(f schema.Family) bool { return q.families[f.ID].want })
	last := ""
	for id, f := range q.families {
		if f.name == "" || !f.want {
			continue
		}
		if f.name < last {
			q.inOrder = false
		}
		if last == "" {
			q.first = cell.FamilyID(id)
		}
		last, q.last = f.name, cell.FamilyID(id)
	}
	if h.Times != cell.AllTime {
		q.times = &h.Times
	}
	if len(h.Qualifiers.Start) > 0 {
		q.lo = cell.AppendColumn(nil, 0, h.Qualifiers.Start)[2:]
		q.oneColumn = h.Qualifiers.IsSingle() && q.first == q.last
	}
	q.rows, q.none = h.Rows, h.None
	return q, nil
}

// splitFamilies takes from a filter that begins with a pattern of families that pattern. Which
// families match is found out once then, and not for each cell.
func splitFamilies(f *filter.Node) (rest *filter.Node, only func(family string) bool, err error) {
	first := f
	switch {
	case f == nil:
		return f, nil, nil
	case f.Op == filter.Chain:
		first = f.Children[0]
	}
	if first == nil || first.Op != filter.FamilyRegex {
		return f, nil, nil
	}
	p, err := filter.Compile(first)
	if err != nil {
		return nil, nil, err
	}
	only = p.Hints().Families
	switch {
	case f == first:
		return nil, only, nil
	case len(f.Children) == 2:
		return f.Children[1], only, nil
	}
	return &filter.Node{Op: filter.Chain, Children: f.Children[1:]}, only, nil
}

// A reader is the state of one read of a pinned version. Readers are pooled.
type reader struct {
	ctx     context.Context
	version *version
	query   *Query
	rows    int   // read so far
	full    bool  // the writer is to be flushed
	left    int64 // of the limit; 0 if there is none
	many    bool  // the row cache is left alone: see manyRows
	// near is how many rows were found by steps since the last seek: 0 if the next one is
	// sought. far is how many are still to be sought one by one, and apart what far was last
	// set to. See seekOf.
	near, far, apart int
	// rowBytes is the length of a row, 0 if it is not known.
	rowBytes int64

	it      merge.Iterator
	sources []cell.Iterator // memtables first, then runs
	mems    int             // how many are memtables
	choice  choice          // of runs
	part    uint64          // what choice takes: see rowcache.Key
	runs    []runIterator
	res     merge.Resolver
	// it merges hot in place of sources as long as it is in a row that cached has
	// of all runs.
	hot    []cell.Iterator
	cached rowcache.Iterator
	inHot  bool
	// blocks are those that were read since they were counted last, the rest all of them.
	blocks                  sstable.BlockStats
	blockBytes, cachedBytes int64
	// before is what had to come from storage for the request before this read; -1 if
	// nobody has asked yet.
	before int64
	bloom  sstable.BloomStats

	rowKey []byte
	qual   []byte
	limit  []byte // scratch for seeks
	cell   row.Cell
	pipe   *filter.Pipeline
	out    emitter
	others int64 // of out.bytes, before others have their turn
	// passAll says that the filter lets everything through: there is no pipe.
	passAll bool
	behind  bool // it is at the first entry of the next row
	buffer  rowBuffer
}

var readers = sync.Pool{New: func() any { return new(reader) }}

// newReader returns a reader of v, which it takes over, as far as it is in the
// runs of c. overlay, if not nil, is newer than everything in v.
func newReader(ctx context.Context, v *version, seq cell.Seq, q *Query, c choice, overlay cell.Iterator) *reader {
	r := readers.Get().(*reader)
	r.ctx, r.version, r.query = ctx, v, q
	r.rows, r.full, r.left, r.rowBytes, r.before = 0, false, 0, 0, -1
	r.many, r.passAll, r.behind, r.others = false, false, false, letOthersBytes
	r.near, r.far, r.apart = 0, 0, 0
	r.res.Ranges, r.res.Time = v.rangeDel, 0
	r.sources = r.sources[:0]
	if overlay != nil {
		r.sources = append(r.sources, overlay)
	}
	for _, m := range v.mems {
		if !m.Empty() {
			r.sources = append(r.sources, m.Iterator(seq))
		}
	}
	r.mems = len(r.sources)
	if cap(r.runs) < len(v.runs) {
		r.runs = make([]runIterator, len(v.runs))
	}
	r.runs = r.runs[:len(v.runs)]
	r.blocks, r.blockBytes, r.cachedBytes, r.bloom = sstable.BlockStats{}, 0, 0, sstable.BloomStats{}
	opts := sstable.IterOptions{MaxSeq: seq, Blocks: &r.blocks, Bloom: &r.bloom}
	if q != nil {
		opts.Times, opts.OneColumn = q.times, q.oneColumn
	}
	r.choice, r.part = c, 0
	for i := range v.runs {
		if !c.takes(&v.runs[i]) {
			continue
		}
		r.part |= 1 << i
		r.runs[i].reset(ctx, v.runs[i].files, opts)
		r.sources = append(r.sources, &r.runs[i])
	}
	if len(r.sources) == r.mems+len(v.runs) {
		r.part = 0
	}
	r.it.Reset(r.sources)
	return r
}

func (r *reader) close() error {
	r.useAll()
	err := r.it.Close()
	r.countBlocks()
	r.version.reads.bloom(&r.bloom)
	if n := len(r.sources) - r.mems; n > 0 {
		request.From(r.ctx).AddRead(n, r.blockBytes, r.cachedBytes)
	}
	r.version.release()
	if r.pipe != nil {
		r.pipe.Release()
	}
	r.version, r.query, r.ctx, r.pipe = nil, nil, nil, nil
	r.out = emitter{}
	r.cell = row.Cell{}
	clear(r.sources)
	clear(r.runs)
	clear(r.hot)
	r.choice = choice{}
	r.cached.Reset(nil)
	r.res.Ranges = merge.Ranges{}
	r.res.Reset()
	r.buffer.shrink()
	readers.Put(r)
	return err
}

// countBlocks adds the blocks read so far to the table's. How long a read is for
// the block cache is counted from here.
func (r *reader) countBlocks() {
	r.version.reads.blocks(&r.blocks)
	r.blockBytes += int64(r.blocks.BlockBytes)
	r.cachedBytes += int64(r.blocks.BlockBytesInCache)
	r.blocks = sstable.BlockStats{}
}

// setPipeline makes pipe run the query's program.
func (r *reader) setPipeline() {
	if r.passAll = r.query.program.IsPassAll() && r.query.inOrder; !r.passAll {
		r.pipe = r.query.program.Pipeline(&r.out, rand.Float64)
		r.pipe.HoldBy(r.version.env.Cache)
	}
}

// emitter passes cells on to the writer, beginning the row at its first cell.
type emitter struct {
	w     scan.Writer
	key   []byte
	cells int64
	bytes int64 // of all cells' values, this row's and earlier ones'
}

// Cell implements filter.Output.
func (o *emitter) Cell(c *row.Cell) {
	if o.cells == 0 {
		o.w.StartRow(o.key)
	}
	o.cells++
	o.bytes += int64(len(c.Value))
	o.w.Cell(c)
}

// maxKey sorts behind every key. Rows of HBase may be longer than others.
var maxKey = bytes.Repeat([]byte{0xFF}, schema.MaxHBaseRowKey+64)

// Read gives rows of the tablet that are in ranges (sorted and disjoint) to w.
// It ends when the ranges are exhausted, w is full, or limit rows (if positive)
// have been returned. It returns what is left of the ranges, which it may
// change; parts outside the tablet are not its business and count as read. When
// full is true the caller flushes w before it reads on, here or elsewhere.
func (t *Tablet) Read(ctx context.Context, q *Query, ranges []row.Range, limit int64, w scan.Writer, stats *scan.Stats) (rest []row.Range, full bool, err error) {
	return t.read(ctx, false, q, ranges, limit, w, stats)
}

// ReadLatest is Read of every change that was applied, durable or not, for a caller that has
// seen to it that nobody else changes these rows.
func (t *Tablet) ReadLatest(ctx context.Context, q *Query, ranges []row.Range, w scan.Writer, stats *scan.Stats) (rest []row.Range, full bool, err error) {
	return t.read(ctx, true, q, ranges, 0, w, stats)
}

func (t *Tablet) read(ctx context.Context, latest bool, q *Query, ranges []row.Range, limit int64, w scan.Writer, stats *scan.Stats) (rest []row.Range, full bool, err error) {
	if q.none {
		return nil, false, nil
	}
	v := t.pin()
	if v == nil {
		return ranges, false, t.gone()
	}
	if q.ends && !v.ends() {
		v.release()
		return nil, false, nil
	}
	// The version first, the sequence number second: see the package comment.
	seq := cell.Seq(t.visible.Load())
	if latest {
		seq = cell.MaxSeq
	}
	r := newReader(ctx, v, seq, q, q.runs, nil)
	seen := stats.RowsSeen
	defer func() {
		t.load.read(stats.RowsSeen-seen, r.out.bytes, r.rowKey)
		t.closeReader(r, &err)
	}()
	r.out.w = w
	r.setPipeline()
	r.left, r.many = limit, len(ranges) >= manyRows
	if limit > 0 {
		r.rowBytes = t.load.rowBytes()
	}
	for len(ranges) > 0 {
		i := 0
		if q.reversed {
			i = len(ranges) - 1
		}
		part := ranges[i].Intersect(t.bounds).Intersect(q.rows)
		done := true
		switch {
		case part.Empty():
		case q.reversed:
			part, done, err = r.backward(part, stats)
		default:
			part, done, err = r.forward(part, stats)
		}
		if err != nil {
			return ranges, false, err
		}
		switch {
		case !done:
			ranges[i] = part
		case q.reversed:
			ranges = ranges[:i]
		default:
			ranges = ranges[1:]
		}
		if limit > 0 && r.left == 0 {
			return nil, r.full, nil
		}
		if r.full {
			return ranges, true, nil
		}
	}
	return nil, false, nil
}

// forward reads rows in ascending order. It returns what is left of the range
// when the writer is full; done tells that nothing is, or nothing is wanted.
func (r *reader) forward(rows row.Range, stats *scan.Stats) (row.Range, bool, error) {
	r.countBlocks()
	single := rows.IsSingle()
	var end []byte
	r.limit = cell.AppendRow(r.limit[:0], rows.Start)
	var ok bool
	if single {
		n := len(r.limit)
		if r.query.lo != nil || r.query.first > 0 {
			r.limit = append(cell.AppendFamily(r.limit, r.query.first), r.query.lo...)
		}
		if r.many {
			ok = r.seekOf(r.limit[:n], r.limit)
		} else {
			ok = r.seekRow(r.limit[:n], r.limit)
		}
	} else {
		r.useAll()
		if len(rows.End) > 0 {
			end = cell.AppendRow(nil, rows.End)
		}
		r.expect(end)
		ok = r.it.SeekGE(r.limit)
	}
	for ; ok; ok = r.leaveRow() {
		if end != nil && bytes.Compare(r.it.Entry().Key, end) >= 0 {
			break
		}
		stop, err := r.row(stats)
		switch {
		case err != nil || stop:
			return rows, true, err
		case r.full:
			rows.Start = row.Successor(r.rowKey)
			return rows, rows.Empty(), nil
		case single:
			return rows, true, nil
		}
	}
	return rows, true, r.it.Error()
}

// expectUnknown is how much a read goes on for that has gone on for a while, and whose
// writer does not say how much it takes.
const expectUnknown = 128 << 10

// expect tells the runs what will probably be read of them of rows before end: what the
// writer takes, or the rows of the limit if they are as those that were read lately.
func (r *reader) expect(end []byte) {
	if r.before < 0 {
		r.before = request.From(r.ctx).BytesFromStorage()
	}
	before := r.before + r.blockBytes - r.cachedBytes
	want := int64(scan.Space(r.out.w))
	if want == 0 && before > 0 {
		want = expectUnknown
	}
	if r.left > 0 && r.rowBytes > 0 {
		want = min(want, r.left*r.rowBytes)
	}
	runs := r.version.runs
	var all int64
	for i := range runs {
		if r.runs[i].ctx != nil {
			all += runs[i].bytes
		}
	}
	for i := range runs {
		if u := &r.runs[i]; u.ctx != nil && all > 0 {
			u.opts.Before = uint64(before)
			u.expected = sstable.Ahead{Bytes: int64(float64(want) * float64(runs[i].bytes) / float64(all)), End: end}
			u.opts.Ahead = &u.expected
		}
	}
}

// backward is forward in descending order: it steps to the last row before
// the one it has read, and reads that forwards.
func (r *reader) backward(rows row.Range, stats *scan.Stats) (row.Range, bool, error) {
	r.countBlocks()
	r.useAll()
	start := cell.AppendRow(nil, rows.Start)
	upper := maxKey
	if len(rows.End) > 0 {
		upper = cell.AppendRow(nil, rows.End)
	}
	for r.it.SeekLT(upper) {
		key := r.it.Entry().Key
		k := cell.EscapedLen(key)
		if k < 0 {
			return rows, true, fault.New(fault.Corruption, "key %x has no row", key)
		}
		upper = append([]byte(nil), key[:k]...)
		if bytes.Compare(upper, start) < 0 {
			return rows, true, nil
		}
		if !r.it.SeekRow(upper) {
			if err := r.it.Error(); err != nil {
				return rows, true, err
			}
			continue // all of it is beyond the visible sequence number
		}
		stop, err := r.row(stats)
		switch {
		case err != nil || stop:
			return rows, true, err
		case r.full:
			rows.End = slices.Clone(r.rowKey)
			return rows, len(rows.End) == 0 || rows.Empty(), nil
		}
	}
	return rows, true, r.it.Error()
}

// checkCells is after how many entries of a row the reader looks whether the caller
// still wants them. It looks at the begin of each row, too.
const checkCells = 1024

// yieldRows is after how many rows without an output the reader gives up what
// it has pinned, and the writer hears how far it has come.
const yieldRows = 8192

// letOthers and letOthersBytes are after how many rows, and bytes of a row's
// values, the reader lets other goroutines run. The runtime would let it run for
// 10 ms, so of 2,000 scans on two processors all could pass before a read of one
// row had its turn.
const letOthers, letOthersBytes = 128, 512 << 10

// row reads the row that the iterator is at. It leaves the iterator somewhere
// in or behind the row. stop tells that no more rows are wanted; r.full that
// the writer must be flushed before the next row.
func (r *reader) row(stats *scan.Stats) (stop bool, err error) {
	if r.rows++; r.rows%letOthers == 0 {
		runtime.Gosched()
	}
	if err := r.ctx.Err(); err != nil {
		return true, err
	}
	if err := r.res.StartRow(r.it.Entry()); err != nil {
		return true, err
	}
	if r.rowKey, err = r.res.Row(); err != nil {
		return true, err
	}
	r.out.key, r.out.cells = r.rowKey, 0
	r.behind = false
	if r.passAll || r.pipe.StartRow(r.rowKey) {
		seen, err := r.cells()
		if err != nil {
			return true, err
		}
		if !r.passAll {
			if err := r.pipe.EndRow(); err != nil {
				return true, err
			}
		}
		if seen > 0 {
			stats.RowsSeen++
			stats.CellsSeen += seen
		}
	}
	if r.out.cells > 0 {
		if r.full, err = r.out.w.EndRow(); err != nil {
			return true, err
		}
		stats.RowsReturned++
		stats.CellsReturned += r.out.cells
		if r.left > 0 {
			if r.left--; r.left == 0 {
				return true, nil
			}
		}
	}
	if r.full || r.rows%yieldRows == 0 {
		r.out.w.Scanned(r.rowKey)
		r.full = true
	}
	return false, nil
}

// cells feeds the live cells of the row to the filter, in the order of family
// names, skipping what it says does not matter.
func (r *reader) cells() (seen int64, err error) {
	q := r.query
	var s cell.Suffix
	for n := 1; ; n++ {
		if n%checkCells == 0 { // a row may have millions, all of them deleted
			if err := r.ctx.Err(); err != nil {
				return seen, err
			}
		}
		if r.out.bytes >= r.others {
			r.others = r.out.bytes + letOthersBytes
			runtime.Gosched()
		}
		e := r.it.Entry()
		verdict, err := r.res.JudgeInRow(e, &s)
		if err != nil {
			return seen, err
		}
		skip := filter.NextCell
		switch {
		case s.Shape == cell.RowMarker:
		case s.Family >= cell.FirstSystemFamily:
			skip = filter.NextRow
		case int(s.Family) >= len(q.families) || !q.families[s.Family].want:
			skip = filter.NextFamily
		case q.lo != nil && s.Shape > cell.FamilyMarker && bytes.Compare(s.Column, q.lo) < 0:
			r.limit = append(append(r.limit[:0], r.res.Prefix()...), byte(s.Family>>8), byte(s.Family))
			r.limit = append(r.limit, q.lo...)
			if !r.seekForward(r.limit) || !r.res.InRow(r.it.Entry().Key) {
				return seen, r.finish()
			}
			continue
		case verdict == merge.Live:
			seen++
			if q.ends {
				if _, ok := e.Until(); !ok {
					break
				}
			}
			r.cell.Family = q.families[s.Family].name
			r.cell.Timestamp = s.Timestamp
			if r.cell.Value = e.Content(); q.ends {
				r.cell.Value = e.Value[:len(e.Value)-len(r.cell.Value)]
			}
			if s.Plain {
				r.cell.Qualifier = s.Column[:len(s.Column)-2]
			} else {
				r.qual = cell.Qualifier(r.qual[:0], s.Column)
				r.cell.Qualifier = r.qual
			}
			switch {
			case !q.inOrder:
				if err := r.buffer.add(&r.cell, r.version.env.Cache); err != nil {
					return seen, err
				}
			case r.passAll:
				r.out.Cell(&r.cell)
			default:
				skip = r.pipe.Cell(&r.cell)
			}
		}
		if skip == filter.NextFamily && s.Family >= q.last {
			skip = filter.NextRow
		}
		var ok bool
		switch skip {
		case filter.NextCell:
			// Of a cell that is overwritten all the time a memtable has thousands.
			if s.Shape == cell.Cell && r.res.Repeats() >= nearby {
				r.limit = append(append(r.limit[:0], e.Key...), 0)
				ok = r.it.Forward(r.limit)
			} else {
				ok = r.it.Next()
			}
		case filter.NextColumn:
			r.limit = append(append(r.limit[:0], r.res.Prefix()...), byte(s.Family>>8), byte(s.Family))
			r.limit = append(r.limit, r.res.Column()...)
			r.limit[len(r.limit)-1]++ // the terminator 00 01 becomes 00 02
			ok = r.seekForward(r.limit)
		case filter.NextFamily:
			r.limit = cell.AppendFamily(append(r.limit[:0], r.res.Prefix()...), s.Family+1)
			ok = r.seekForward(r.limit)
		default:
			return seen, r.finish()
		}
		switch {
		case !ok:
			return seen, r.finish()
		case !r.res.InRow(r.it.Entry().Key):
			r.behind = true
			if q.inOrder {
				return seen, nil
			}
			return seen, r.finish()
		}
	}
}

// finish gives the filter what had to wait for the order of families.
func (r *reader) finish() error {
	if err := r.it.Error(); err != nil {
		return err
	}
	if r.query.inOrder {
		return nil
	}
	r.buffer.drain(r.pipe)
	return nil
}

// nearby is how many entries it is cheaper to step over than to seek past.
const nearby = 8

// seekForward moves to the first entry at or after key, which is ahead.
func (r *reader) seekForward(key []byte) bool {
	for range nearby {
		if !r.it.Next() {
			return false
		}
		if bytes.Compare(r.it.Entry().Key, key) >= 0 {
			return true
		}
	}
	return r.it.Forward(key)
}

// leaveRow moves to the first entry of the next row.
func (r *reader) leaveRow() bool {
	if r.behind {
		return true
	}
	if !r.it.Valid() {
		return false
	}
	if !r.res.InRow(r.it.Entry().Key) {
		return true
	}
	r.limit = append(r.limit[:0], r.res.Prefix()...)
	r.limit[len(r.limit)-1]++
	return r.seekForward(r.limit)
}

// A rowBuffer holds the cells of a row while they are put in the order of
// family names. What does not fit into its own arena is held against the block
// cache, in parts of largePart or of one value.
type rowBuffer struct {
	cells []row.Cell
	arena []byte
	own   []byte // arena's memory while the row is small
	// held are the bytes of large parts.
	held     int64
	releases []func()
}

const (
	ownArena  = 256 << 10
	largePart = 1 << 20
	cellBytes = int(unsafe.Sizeof(row.Cell{}))
	ownCells  = ownArena / cellBytes
)

// hold has n bytes more be held for the row.
func (b *rowBuffer) hold(n int, cache *sstable.Cache) error {
	release, err := cache.Hold(int64(n), b.held+int64(n))
	if err == nil {
		b.held, b.releases = b.held+int64(n), append(b.releases, release)
	}
	return err
}

// copy returns a copy of p. cache is that of the SSTables.
func (b *rowBuffer) copy(p []byte, cache *sstable.Cache) ([]byte, error) {
	if len(p) > cap(b.arena)-len(b.arena) {
		n := max(2*cap(b.arena), len(p), 4096)
		if n <= ownArena && b.held == 0 {
			b.arena = make([]byte, 0, n)
			b.own = b.arena
		} else {
			n = max(largePart, len(p))
			if err := b.hold(n, cache); err != nil {
				return nil, err
			}
			b.arena = make([]byte, 0, n)
		}
	}
	n := len(b.arena)
	b.arena = append(b.arena, p...)
	return b.arena[n:len(b.arena):len(b.arena)], nil
}

func (b *rowBuffer) add(c *row.Cell, cache *sstable.Cache) (err error) {
	k := *c
	if k.Qualifier, err = b.copy(c.Qualifier, cache); err != nil {
		return err
	}
	if k.Value, err = b.copy(c.Value, cache); err != nil {
		return err
	}
	if n := len(b.cells); n == cap(b.cells) && n >= ownCells {
		if err := b.hold(2*n*cellBytes, cache); err != nil {
			return err
		}
		b.cells = append(make([]row.Cell, 0, 2*n), b.cells...)
	}
	b.cells = append(b.cells, k)
	return nil
}

func (b *rowBuffer) drain(p *filter.Pipeline) {
	sort.SliceStable(b.cells, func(i, j int) bool { return b.cells[i].Family < b.cells[j].Family })
	for i := range b.cells {
		p.Cell(&b.cells[i])
	}
	b.reset()
}

// reset drops the row.
func (b *rowBuffer) reset() {
	clear(b.cells) // large values
	b.cells, b.arena = b.cells[:0], b.own[:0]
	for _, release := range b.releases {
		release()
	}
	b.held, b.releases = 0, nil
}

// shrink ends the read.
func (b *rowBuffer) shrink() {
	if b.reset(); cap(b.cells) > 2*ownCells {
		b.cells = nil
	}
}

// closeReader closes r at the end of a read that ends with err.
func (t *Tablet) closeReader(r *reader, err *error) {
	if cerr := r.close(); *err == nil {
		*err = cerr
	}
	*err = t.readError(*err)
}

// readError notes corruption; it returns err.
func (t *Tablet) readError(err error) error {
	if fault.KindOf(err) == fault.Corruption {
		t.env.Stats.Corruptions.Add(1)
		t.env.damage(t, err)
		t.env.Log.Error("corruption", "tablet", t.Name(), "error", err)
	}
	return err
}
