package tablet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math/bits"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/merge"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/sstable"
)

// A changeFile is a change file that is being written: begun by its first record.
type changeFile struct {
	env  *Env
	life uint64
	w    *changes.FileWriter
	id   uint64
	// rows says that its readers are views: records lack their Changes.
	rows bool
	// stored says that the object is there, and begun that it may be.
	stored, begun bool
}

func (f *changeFile) name() string { return changes.FileName(f.id) }

func (f *changeFile) add(ctx context.Context, r *changes.Record) error {
	if f.w == nil {
		f.id = f.env.NewID()
		f.env.begin(f.name())
		f.begun = true
		object, err := f.env.Objects.Create(ctx, f.name())
		if err != nil {
			return fmt.Errorf("create change file %s: %w", f.name(), err)
		}
		f.w = changes.NewFileWriter(object)
	}
	if err := f.w.Add(r); err != nil {
		return fmt.Errorf("change file %s: %w", f.name(), err)
	}
	return nil
}

// finish stores the file and returns what names it; nil if it has no record.
func (f *changeFile) finish() (*changes.Ref, error) {
	if f == nil || f.w == nil {
		return nil, nil
	}
	w := f.w
	info, err := w.Finish()
	f.w = nil
	if err != nil {
		return nil, fmt.Errorf("change file %s: %w", f.name(), err)
	}
	f.stored = true
	return &changes.Ref{Object: f.name(), ID: f.id, Lo: info.Lo, Hi: info.Hi, Rows: w.Rows(), Records: info.Records, Bytes: info.Bytes}, nil
}

// abort gives the file up.
func (f *changeFile) abort() {
	if f == nil {
		return
	}
	if f.w != nil {
		f.w.Abort()
		f.w = nil
	}
	if f.stored {
		f.env.Remove(f.name())
		f.stored = false
	}
	f.decided()
}

// decided says that the row names the file, or never will.
func (f *changeFile) decided() {
	if f != nil && f.begun {
		f.env.decided([]string{f.name()})
		f.begun = false
	}
}

// named says what the row names now: the file, or never.
func (f *changeFile) named(names map[string]bool) {
	if f != nil && f.begun && !names[f.name()] {
		f.abort()
	}
	f.decided()
}

// record writes the changes that m has recorded.
func (f *changeFile) record(ctx context.Context, m *mem) error {
	walk := newRecordWalk(m.Memtable, m.since, cell.MaxSeq)
	walk.rows = f.rows
	for n := 1; walk.next(); n++ {
		if err := f.add(ctx, &walk.rec); err != nil {
			return err
		}
		if n%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return walk.err
}

// newChangeFile returns a file of the changes of a stream; nil if the table has none, or
// has one of another life than life, if that is not 0.
func (t *Tablet) newChangeFile(life uint64) *changeFile {
	s := t.schema().Stream
	if s == nil || life != 0 && s.Life != life {
		return nil
	}
	return &changeFile{env: t.env, life: s.Life, rows: s.Hidden}
}

// someStamp is that of records whose stamp is in what names their file.
const someStamp cell.Seq = 1

// A collection is what garbage collection removes, to be told to readers of changes: in parts,
// so that to leave a cell out costs no more when there are many.
type collection struct {
	*changeFile // the part that is being written
	grain       int64
	prefix      []byte // of the row of rec
	rec         changes.Record
	any         bool // rec is of a row
	seed        maphash.Seed
	cells       hashes // of the keys that were collected
	n           int    // of those in the part that is being written
	first       []byte // its first row
	parts       []collectedPart
	// suspects counts those of the parts. With all they have none: all cells are suspected.
	suspects int
	all      bool
	// out are hashes of suspects that the parts do not have, or not any more: some of them.
	out map[uint64]struct{}
	// after is the largest stamp that the inputs have. What was written since has been looked
	// through up to looked.
	after, looked cell.Seq
	// inspections counts those of the parts, and rewrites those that wrote one anew.
	inspections, rewrites int
}

// A collectedPart is a part of a collection. Parts ascend by row, and none shares one.
type collectedPart struct {
	*changeFile
	ref         *changes.Ref
	first, last []byte // rows
	// suspects are hashes of keys that may have been collected, and were written since. rows are
	// their rows, or the first of more than mostRows.
	suspects []uint64
	rows     map[string]struct{}
}

// partCells is about how many cells each of the first parts has: what is written anew for one of
// them that was written since. Later ones have more, so that there are mostParts at most: a row
// names each, and a reader of one message opens each. Tests change partCells.
var partCells = 1 << 18

const (
	mostParts = 16
	mostRows  = 32      // where a part is read by rows; with more, all of it is
	mostOut   = 1 << 16 // bounds collection.out
)

// hashedCells bounds the memory of a collection: 8 MiB for cells and for suspects each, twice
// that while they grow. Tests change it.
var hashedCells = 1 << 20

// hashes is a set of hashes. One of more than hashedCells may seem to have others too: of ten
// times as many, 7 of 100.
type hashes struct {
	some []uint64 // sorted by finish
	bits []uint64 // in place of some: two bits for each hash
}

func (h *hashes) add(x uint64) {
	if h.bits == nil && len(h.some) < hashedCells {
		h.some = append(h.some, x)
		return
	}
	if h.bits == nil {
		h.bits = make([]uint64, hashedCells)
		for _, x := range h.some {
			h.set(x)
		}
		h.some = nil
	}
	h.set(x)
}

// places returns which bits stand for a hash.
func (h *hashes) places(x uint64) (a, b uint64) {
	n := 64 * uint64(len(h.bits))
	return x % n, bits.RotateLeft64(x, 32) % n
}

func (h *hashes) set(x uint64) {
	a, b := h.places(x)
	h.bits[a/64] |= 1 << (a % 64)
	h.bits[b/64] |= 1 << (b % 64)
}

// finish says that no more are added.
func (h *hashes) finish() { slices.Sort(h.some) }

// has tells whether a hash may be there. It comes after finish.
func (h *hashes) has(x uint64) bool {
	if h.bits == nil {
		_, ok := slices.BinarySearch(h.some, x)
		return ok
	}
	a, b := h.places(x)
	return h.bits[a/64]&(1<<(a%64)) != 0 && h.bits[b/64]&(1<<(b%64)) != 0
}

// newCollection returns a collection; nil if the table has no stream.
func (t *Tablet) newCollection() *collection {
	f := t.newChangeFile(0)
	if f == nil {
		return nil
	}
	return &collection{changeFile: f, seed: maphash.MakeSeed(), out: map[uint64]struct{}{}, grain: max(1, t.schema().Granularity), rec: changes.Record{Stamp: someStamp, Collected: true}}
}

// take notes a cell that was collected. Cells come in the order of their keys.
func (c *collection) take(ctx context.Context, e *cell.Entry) error {
	n, _ := e.RowPart()
	if n < 0 {
		return fault.New(fault.Corruption, "malformed key %x", e.Key)
	}
	if !bytes.Equal(c.prefix, e.Key[:n]) {
		if err := c.row(ctx); err != nil {
			return err
		}
		if c.full() {
			if err := c.cut(); err != nil {
				return err
			}
		}
		c.prefix = append(c.prefix[:0], e.Key[:n]...)
	}
	if c.any = true; c.rows {
		return nil
	}
	s, err := cell.ParseSuffix(e.Key[n:])
	if err != nil {
		return fault.New(fault.Corruption, "%w", err)
	}
	c.cells.add(maphash.Bytes(c.seed, e.Key))
	c.n++
	c.rec.Changes = append(c.rec.Changes, changes.Change{Op: changes.DeleteColumn, Family: s.Family, Qualifier: cell.Qualifier(nil, s.Column),
		Times: cell.TimeRange{Start: s.Timestamp, End: s.Timestamp + c.grain}})
	return nil
}

// full tells whether the part ends before the next row.
func (c *collection) full() bool {
	n := len(c.parts)
	return n < mostParts-1 && c.n >= partCells<<max(0, n-mostParts/2+1)
}

// row writes the row that take was at.
func (c *collection) row(ctx context.Context) (err error) {
	if !c.any {
		return nil
	}
	c.any = false
	if c.rec.Key, err = cell.RowOf(c.rec.Key[:0], c.prefix); err != nil {
		return fault.New(fault.Corruption, "%w", err)
	}
	if c.first == nil {
		c.first = append([]byte{}, c.rec.Key...)
	}
	err = c.add(ctx, &c.rec)
	clear(c.rec.Changes)
	c.rec.Changes = c.rec.Changes[:0]
	return err
}

// cut ends the part, after its last row.
func (c *collection) cut() error {
	ref, err := c.changeFile.finish()
	if ref == nil || err != nil {
		return err
	}
	c.parts = append(c.parts, collectedPart{changeFile: c.changeFile, ref: ref, first: c.first, last: bytes.Clone(c.rec.Key)})
	c.changeFile = &changeFile{env: c.env, life: c.life, rows: c.rows}
	c.n, c.first = 0, nil
	return nil
}

// finish ends the last part. What was collected is of cells with stamps up to after.
func (c *collection) finish(ctx context.Context, after cell.Seq) error {
	if c == nil {
		return nil
	}
	if err := c.row(ctx); err != nil {
		return err
	}
	c.cells.finish()
	c.after, c.looked = after, after
	return c.cut()
}

// abort gives up all parts.
func (c *collection) abort() {
	if c == nil {
		return
	}
	for i := range c.parts {
		c.parts[i].abort()
	}
	c.changeFile.abort()
}

// suspect notes that a cell of a row was written, if it may have been collected.
func (c *collection) suspect(row, key []byte) {
	h := maphash.Bytes(c.seed, key)
	if c.all || !c.cells.has(h) {
		return
	}
	if _, out := c.out[h]; out {
		return
	}
	i, _ := slices.BinarySearchFunc(c.parts, row, func(p collectedPart, row []byte) int { return bytes.Compare(p.last, row) })
	if i == len(c.parts) || bytes.Compare(c.parts[i].first, row) > 0 {
		return
	}
	p := &c.parts[i]
	p.suspects = append(p.suspects, h)
	if len(p.rows) <= mostRows {
		if p.rows == nil {
			p.rows = map[string]struct{}{}
		}
		p.rows[string(row)] = struct{}{}
	}
	if c.suspects++; c.suspects >= hashedCells {
		c.suspects = 0
		for i := range c.parts {
			c.parts[i].sort()
			c.suspects += len(c.parts[i].suspects)
		}
		if c.suspects > hashedCells/2 {
			c.suspectAll()
		}
	}
}

// suspectAll suspects all that was collected.
func (c *collection) suspectAll() {
	c.acquit()
	c.all = true
}

// acquit suspects nothing any more.
func (c *collection) acquit() {
	c.suspects, c.all = 0, false
	for i := range c.parts {
		c.parts[i].suspects, c.parts[i].rows = nil, nil
	}
}

// sort sorts the suspects, and leaves each once.
func (p *collectedPart) sort() {
	slices.Sort(p.suspects)
	p.suspects = slices.Compact(p.suspects)
}

// ranges are where the suspects of a part are, sorted.
func (p *collectedPart) ranges(all bool) []row.Range {
	if all || len(p.rows) > mostRows {
		return []row.Range{row.All}
	}
	var out []row.Range
	for _, key := range slices.Sorted(maps.Keys(p.rows)) {
		out = append(out, row.Single([]byte(key)))
	}
	return out
}

// suspectsAny tells whether a cell that was collected may have been written since.
func (c *collection) suspectsAny() bool { return c.all || c.suspects > 0 }

// lookThrough suspects the cells that were collected and written since it has looked, with a
// stamp up to through, and returns how many records it has read. Such a cell is there, so it must
// not be told to be gone: a record of the collection has a stamp behind that of the write. To
// views a record says to look at the row.
func (c *collection) lookThrough(ctx context.Context, t *Tablet, through cell.Seq) (n int, err error) {
	if c.rows {
		return 0, nil
	}
	from := c.looked
	c.looked = through
	v := t.pin()
	if v == nil {
		return 0, t.gone()
	}
	defer v.release()
	state := t.streamOf(v.row)
	if c.all || state == nil || state.Life != c.life {
		return 0, nil
	}
	if state.Since > from {
		c.suspectAll() // or so: what was written is not kept any more
		return 0, nil
	}
	var key []byte
	r := changeReader{t: t, v: v, state: state, within: t.bounds, at: changes.Position{Through: from}}
	r.to = func(rec *changes.Record) (bool, error) {
		n++
		switch {
		case rec.Collected:
			return true, nil
		case len(rec.Changes) == 0:
			c.suspectAll() // what was written is not known
			return false, nil
		}
		key = cell.AppendRow(key[:0], rec.Key)
		prefix := len(key)
		for i := range rec.Changes {
			d := &rec.Changes[i]
			switch d.Op {
			case changes.SetCell, changes.AddToCell, changes.MergeToCell:
				key = cell.AppendCell(key[:prefix], d.Family, d.Qualifier, d.Timestamp)
				c.suspect(rec.Key, key)
			}
		}
		return !c.all, nil
	}
	err = r.read(ctx, through)
	if fault.KindOf(err) == fault.Corruption {
		// It is known from SSTables. A change file that is damaged must not keep the tablet from
		// flushing.
		c.suspectAll()
		err = nil
	}
	return n, err
}

// settle looks through what was written meanwhile, until that is little, and inspects what is
// suspected, until nothing is. It inspects once at least, so that what is suspected when it
// returns was written since; not more often unless it is patient. lock and unlock are those of
// the write lock.
func (c *collection) settle(ctx context.Context, t *Tablet, lock, unlock func()) error {
	for {
		var last commitlog.Pos
		for range catchUps {
			lock()
			end := t.write.seq
			last = t.write.last
			unlock()
			n, err := c.lookThrough(ctx, t, end)
			if err != nil {
				return err
			}
			if n < fewRows {
				break
			}
		}
		if !c.suspectsAny() {
			return nil
		}
		if err := c.inspect(ctx, t, last); err != nil || !c.patient() {
			return err
		}
	}
}

// patient tells whether readers go on rather than wait for what is suspected to be inspected.
func (c *collection) patient() bool {
	return c.rewrites < mostRewrites && c.inspections < mostInspections
}

// inspect leaves out the suspects that were written, the last of them at a place in the log: a
// crash must not take such a write. Later writes are suspected anew. It costs a look at the rows
// of suspects, a seek for each that was collected, and a write of the parts that have one.
func (c *collection) inspect(ctx context.Context, t *Tablet, last commitlog.Pos) (err error) {
	if err := t.Wait(ctx, last); err != nil {
		return err
	}
	v := t.pin()
	if v == nil {
		return t.gone()
	}
	defer v.release()
	var sources []cell.Iterator
	for _, m := range v.mems {
		sources = append(sources, m.Iterator(c.looked))
	}
	for i := range v.runs {
		if slices.ContainsFunc(v.runs[i].files, func(f file) bool { return f.ref.MaxSeq > c.after }) {
			u := new(runIterator)
			u.reset(ctx, v.runs[i].files, sstable.IterOptions{})
			sources = append(sources, u)
		}
	}
	it := merge.New(sources)
	defer func() { err = errors.Join(err, it.Close()) }()
	rewritten := false
	for i := range c.parts {
		p := &c.parts[i]
		p.sort()
		stays := make([]bool, len(p.suspects))
		written := func(key []byte) bool {
			n, ok := slices.BinarySearch(p.suspects, maphash.Bytes(c.seed, key))
			if !ok && !c.all {
				return false
			}
			if it.SeekGE(key) {
				// The newest of its key.
				if e := it.Entry(); bytes.Equal(e.Key, key) && e.Seq > c.after && (e.Kind == cell.Set || e.Kind == cell.SetUntil) {
					return true
				}
			}
			if ok {
				stays[n] = true
			}
			return false
		}
		if within := p.ranges(c.all); len(within) > 0 {
			var any bool
			any, err = p.leaveOut(ctx, within, written)
			rewritten = rewritten || any
		}
		if err = errors.Join(err, it.Error()); err != nil {
			return fmt.Errorf("leave out what was written again: %w", err)
		}
		for n, h := range p.suspects {
			if !stays[n] && len(c.out) < mostOut {
				c.out[h] = struct{}{}
			}
		}
	}
	c.parts = slices.DeleteFunc(c.parts, func(p collectedPart) bool { return p.ref == nil })
	c.acquit()
	c.inspections++
	if rewritten {
		c.rewrites++
	}
	return nil
}

// leaveOut writes the part anew without its cells in within that are written, if there are any;
// ref is nil if nothing is left.
func (p *collectedPart) leaveOut(ctx context.Context, within []row.Range, written func(key []byte) bool) (rewritten bool, err error) {
	o, err := p.env.Objects.Open(ctx, p.ref.Object)
	if err != nil {
		return false, err
	}
	f, err := changes.Open(ctx, o, p.ref.Object)
	if err != nil {
		return false, err
	}
	defer f.Close()
	source := p.ref.Source(func(context.Context) (*changes.File, error) { return f.Shared(), nil })
	var key []byte
	each := func(within row.Range, to func(*changes.Record) (bool, error)) error {
		_, err := changes.Iterate(ctx, []changes.Source{source}, changes.Position{}, cell.MaxSeq, within, to)
		return err
	}
	is := func(r *changes.Record) func(d changes.Change) bool {
		key = cell.AppendRow(key[:0], r.Key)
		prefix := len(key)
		return func(d changes.Change) bool {
			key = cell.AppendCell(key[:prefix], d.Family, d.Qualifier, d.Times.Start)
			return written(key)
		}
	}
	for i := 0; i < len(within) && !rewritten && err == nil; i++ {
		err = each(within[i], func(r *changes.Record) (bool, error) {
			rewritten = slices.ContainsFunc(r.Changes, is(r))
			return !rewritten, nil
		})
	}
	if !rewritten || err != nil {
		return false, err
	}
	rest := &changeFile{env: p.env, life: p.life}
	err = each(row.All, func(r *changes.Record) (bool, error) {
		if r.Changes = slices.DeleteFunc(r.Changes, is(r)); len(r.Changes) == 0 {
			return true, nil
		}
		return true, rest.add(ctx, r)
	})
	var ref *changes.Ref
	if err == nil {
		ref, err = rest.finish()
	}
	if err != nil {
		rest.abort()
		return false, err
	}
	p.abort()
	p.changeFile, p.ref = rest, ref
	return true, nil
}

// place gives a stamp to what a file has.
func place(f *changes.Ref, at cell.Seq) { f.Lo, f.Hi, f.At = at, at, at }

// A dropList is the rows that a DropRange deletes, as changes. A row may be in several files:
// changes.Iterate gives it once.
type dropList struct {
	t      *Tablet
	within row.Range
	life   uint64
	// Rows that were changed up to a stamp are in files.
	upTo  cell.Seq
	files []*changeFile
	refs  []*changes.Ref // of those with rows
}

// list writes the rows of within that are there: of a table without a stream none. The caller
// holds no lock. Rows that come later are added by catchUp.
func (t *Tablet) list(ctx context.Context, within row.Range) (_ *dropList, err error) {
	l := &dropList{t: t, within: within}
	if t.schema().Stream == nil {
		return l, nil
	}
	t.write.Lock()
	if t.write.closed {
		t.write.Unlock()
		return nil, t.gone()
	}
	t.recordLocked()
	l.life = t.write.mem.life
	last := t.write.last
	t.write.Unlock()
	if l.life == 0 {
		return l, nil
	}
	if err := t.Wait(ctx, last); err != nil {
		return nil, err
	}
	l.upTo = cell.Seq(t.visible.Load())
	defer func() {
		if err != nil {
			l.abort()
		}
	}()
	q, err := NewQuery(t.schema(), &filter.Node{Op: filter.CellsPerRowLimit, N: 1}, false)
	if err != nil {
		return nil, err
	}
	w := &rowLister{ctx: ctx, f: l.file()}
	var stats scan.Stats
	for rest := []row.Range{within}; len(rest) > 0; {
		if rest, _, err = t.Read(ctx, q, rest, 0, w, &stats); err != nil {
			return nil, err
		}
	}
	if err := l.finish(w.f); err != nil {
		return nil, err
	}
	for range catchUps {
		end := t.lastGiven()
		n, err := l.catchUp(ctx, end)
		if err != nil || n < fewRows {
			return l, err
		}
	}
	return l, nil
}

const (
	// catchUps is how often rows that were changed since are added before flushes wait for
	// it, unless there were fewer than fewRows.
	catchUps, fewRows = 4, 1000
	// listBatch bounds the rows of a catchUp that are in memory at a time.
	listBatch = 100_000
)

// lastGiven returns the newest sequence number.
func (t *Tablet) lastGiven() cell.Seq {
	t.write.Lock()
	defer t.write.Unlock()
	return t.write.seq
}

// file begins a file of the list.
func (l *dropList) file() *changeFile {
	f := &changeFile{env: l.t.env, life: l.life}
	l.files = append(l.files, f)
	return f
}

func (l *dropList) finish(f *changeFile) error {
	ref, err := f.finish()
	if ref != nil {
		l.refs = append(l.refs, ref)
	}
	return err
}

// catchUp adds the rows that were changed up to a stamp, after those that the list has, and
// tells how many. The caller holds the write lock, or has seen the stamp with it held.
// Nothing is read of files if the caller has held the change lock since an earlier catchUp.
func (l *dropList) catchUp(ctx context.Context, end cell.Seq) (n int, err error) {
	if l.life == 0 {
		return 0, nil
	}
	v := l.t.pin()
	if v == nil {
		return 0, l.t.gone()
	}
	defer v.release()
	state := l.t.streamOf(v.row)
	if state == nil || state.Life != l.life {
		return 0, nil // the stream has been disabled
	}
	keys := map[string]struct{}{}
	r := changeReader{t: l.t, v: v, state: state, within: l.within, at: changes.Position{Through: l.upTo}}
	r.to = func(rec *changes.Record) (bool, error) {
		if !rec.Collected {
			keys[string(rec.Key)] = struct{}{}
		}
		return len(keys) < listBatch, nil
	}
	for more := true; more; {
		r.done = false
		if err := r.read(ctx, end); err != nil {
			return n, err
		}
		more = r.done
		n += len(keys)
		f := l.file()
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if err := f.add(ctx, &changes.Record{Stamp: someStamp, Key: []byte(key), Changes: []changes.Change{{Op: changes.DeleteRow}}}); err != nil {
				return n, err
			}
		}
		if err := l.finish(f); err != nil {
			return n, err
		}
		clear(keys)
	}
	l.upTo = max(l.upTo, end)
	return n, nil
}

// place gives the list a stamp and returns its files.
func (l *dropList) place(at cell.Seq) []*changes.Ref {
	for _, f := range l.refs {
		place(f, at)
	}
	return l.refs
}

func (l *dropList) abort() {
	for _, f := range l.files {
		f.abort()
	}
}

func (l *dropList) decided() {
	for _, f := range l.files {
		f.decided()
	}
}

// A rowLister writes the keys of rows as their deletions.
type rowLister struct {
	ctx context.Context
	f   *changeFile
	key []byte
	any bool
}

// StartRow implements scan.Writer.
func (w *rowLister) StartRow(key []byte) { w.key, w.any = append(w.key[:0], key...), false }

// Cell implements scan.Writer.
func (w *rowLister) Cell(*row.Cell) { w.any = true }

// EndRow implements scan.Writer.
func (w *rowLister) EndRow() (bool, error) {
	if !w.any {
		return false, nil
	}
	return false, w.f.add(w.ctx, &changes.Record{Stamp: someStamp, Key: w.key, Changes: []changes.Change{{Op: changes.DeleteRow}}})
}

// Scanned implements scan.Writer.
func (w *rowLister) Scanned([]byte) {}

// Flush implements scan.Writer.
func (w *rowLister) Flush() error { return nil }
