package tablet

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/memtable"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// newMem returns an empty memtable for what comes behind last. It records if the
// table has a stream.
func (t *Tablet) newMem(last cell.Seq) *mem {
	s := t.schema().Stream
	if s == nil {
		return &mem{Memtable: memtable.New()}
	}
	return &mem{Memtable: memtable.NewRecording(), life: s.Life, since: last}
}

// sinceOf returns a stamp below those of all changes that come after a stream was
// enabled, if that is not in a future that no clock should be in.
func (t *Tablet) sinceOf(s *schema.Stream, last cell.Seq) cell.Seq {
	_, since := s.ForClients()
	if since.Sub(t.env.Now()) > time.Hour {
		return last
	}
	return max(last, stamp.At(since)-stamp.Stride)
}

// recordLocked sees to it that the memtable records if the table has a stream, and does
// not if it has none. The caller holds the write lock, and the tablet is not closed.
func (t *Tablet) recordLocked() {
	s := t.schema().Stream
	if s == nil && t.write.mem.life == 0 {
		return
	}
	if s != nil && s.Life == t.write.mem.life {
		if s.Enabled != t.write.mem.enabled {
			t.write.mem.enabled = s.Enabled
			t.write.seq = t.sinceOf(s, t.write.seq)
		}
		return
	}
	if s != nil {
		// What comes is behind the moment at which the stream was enabled.
		t.write.seq = t.sinceOf(s, t.write.seq)
	}
	if !t.write.mem.Empty() {
		t.rotateLocked()
		return
	}
	m := t.newMem(t.write.seq)
	t.write.mem = m
	t.install(func(old *version) *version {
		v := newVersion(t.env, old.row, append([]*mem{m}, old.mems[1:]...))
		v.state = old.state // it has the same files
		return v
	})
}

// streamOf returns what the row r of the tablet says of the stream that its table has
// now; nil if it has none, or none that a memtable knows of.
func (t *Tablet) streamOf(r *metadata.Row) *metadata.StreamState {
	s := t.schema().Stream
	if s == nil {
		return nil
	}
	if r.Stream != nil && r.Stream.Life == s.Life {
		return r.Stream.Clone()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.version == nil {
		return nil
	}
	for _, m := range slices.Backward(t.mu.version.mems) {
		if m.life == s.Life {
			return &metadata.StreamState{Life: s.Life, Since: m.since, Whole: true}
		}
	}
	return nil
}

// instantLocked returns a stamp of its own for what is about to be in files. No reader of
// changes comes to it before passLocked is called. The caller holds the change lock and
// the write lock.
func (t *Tablet) instantLocked() cell.Seq {
	t.write.seq = t.env.next(t.write.seq)
	t.write.gate = t.write.seq
	return t.write.seq
}

// passLocked says that the changes of instantLocked's stamp are in files, or nowhere. Only a
// stamp that is in the row is told to readers: another owner of the tablet starts above.
func (t *Tablet) passLocked() {
	if t.visible.Load() >= uint64(t.write.logged) && t.visible.Load() < uint64(t.write.gate) && t.Row().MaxSeq >= t.write.gate {
		t.visible.Store(uint64(t.write.gate))
	}
	t.write.gate = 0
	t.wake()
}

// streamNowLocked is streamOf the tablet as it is. The caller holds the change lock and the
// write lock, and the tablet is not closed.
func (t *Tablet) streamNowLocked() *metadata.StreamState {
	t.recordLocked()
	return t.streamOf(t.Row())
}

// keep makes next say what is kept of the changes, with files of a life that were
// written. Nothing is older than the retention.
func (t *Tablet) keep(next *metadata.Row, life uint64, files ...*changes.Ref) {
	if next.Stream = t.streamOf(next); next.Stream == nil {
		return
	}
	for _, f := range files {
		if f != nil && life == next.Stream.Life {
			next.Stream.Add(*f)
		}
	}
	next.Stream.Forget(t.expired())
}

// expired returns the stamp up to which changes are kept no longer.
func (t *Tablet) expired() cell.Seq {
	s := t.schema().Stream
	if s == nil || s.Retention <= 0 {
		return 0
	}
	now := t.env.now()
	return stamp.At(now.Add(-s.Retention)) - stamp.Stride
}

// TrimStream lets go of changes that are kept no longer, if there are any: those older
// than the retention, and all if the table has no stream any more. It puts change files into
// an index object, if the METADATA row names too many.
func (t *Tablet) TrimStream(ctx context.Context) error {
	s, r := t.schema().Stream, t.Row()
	if r.Stream == nil {
		return nil
	}
	if s != nil && s.Life == r.Stream.Life && !t.trims(r.Stream) && len(r.Stream.Files) <= t.env.Options.ChangeFiles {
		return nil
	}
	t.change.Lock()
	defer t.change.Unlock()
	v := t.pin()
	if v == nil {
		return t.gone()
	}
	defer v.release()
	next := v.row.Clone()
	t.keep(next, 0)
	x, err := t.indexChanges(ctx, next, t.env.Options.ChangeFiles)
	if err != nil {
		t.env.Log.Warn("index change files", "tablet", t.Name(), "error", err)
	}
	err = t.change1(ctx, next)
	x.ended(err)
	return err
}

// trims tells whether there is something to let go of: a file at least, if only about one of
// an index object.
func (t *Tablet) trims(s *metadata.StreamState) bool {
	rest := s.Clone()
	rest.Forget(t.expired())
	var was, is Kept
	was.add(s)
	is.add(rest)
	return is.Files < was.Files || len(rest.Lineage) < len(s.Lineage)
}

// A recordWalk makes records of what a memtable has in the order of commit.
type recordWalk struct {
	it  *memtable.CommitIterator
	at  bool // it is at the first operation of the next record
	rec changes.Record
	err error
	buf []byte // what rec's keys and qualifiers are in
	// times is where the ranges of a marker are parsed.
	times []cell.TimeRange
	// rows says that it matters which rows have changed only: rec has no Changes.
	rows bool
}

func newRecordWalk(m *memtable.Memtable, after, through cell.Seq) *recordWalk {
	w := &recordWalk{it: m.Commits(after, through)}
	w.at = w.it.Next()
	return w
}

// next moves to the next record that changes something; false at the end, or after an
// error. rec is valid until the next call.
func (w *recordWalk) next() bool {
	for w.at && w.err == nil {
		any := false
		if w.rows {
			any, w.err = w.readRow()
		} else if w.err = w.read(); len(w.rec.Changes) > 0 {
			any = true
		}
		if any && w.err == nil {
			return true
		}
	}
	return false
}

// readRow reads one record without its changes. any tells whether there are some.
func (w *recordWalk) readRow() (any bool, err error) {
	e := w.it.Entry()
	n := cell.RowPrefixLen(e.Key)
	w.rec.Stamp, w.rec.Changes = e.Seq, w.rec.Changes[:0]
	if w.buf, err = cell.RowOf(w.buf[:0], e.Key[:n]); err != nil {
		return false, fault.New(fault.Corruption, "change with sequence number %d: %w", e.Seq, err)
	}
	w.rec.Key = w.buf
	for first := true; first || !w.it.Begins(); first = false {
		// A marker of the row has no suffix, all others begin with their family.
		if s := e.Key[n:]; len(s) < 2 || cell.FamilyID(binary.BigEndian.Uint16(s)) < cell.FirstSystemFamily {
			any = true
		}
		if w.at = w.it.Next(); !w.at {
			break
		}
	}
	return any, nil
}

// read reads one record.
func (w *recordWalk) read() (err error) {
	e := w.it.Entry()
	bad := func(err error) error {
		return fault.New(fault.Corruption, "change with sequence number %d: %w", e.Seq, err)
	}
	prefix := e.Key[:cell.RowPrefixLen(e.Key)]
	w.rec.Stamp, w.rec.Changes = e.Seq, w.rec.Changes[:0]
	if w.buf, err = cell.RowOf(w.buf[:0], prefix); err != nil {
		return bad(err)
	}
	w.rec.Key = w.buf
	skip := false // the result of the operation before, not an operation
	for first := true; first || !w.it.Begins(); first = false {
		if err := w.operation(e, len(prefix), &skip); err != nil {
			return bad(err)
		}
		if w.at = w.it.Next(); !w.at {
			break
		}
	}
	return nil
}

func (w *recordWalk) operation(e *cell.Entry, prefix int, skip *bool) error {
	if *skip && e.Kind != cell.Recorded {
		*skip = false
		return nil
	}
	s, err := cell.ParseSuffix(e.Key[prefix:])
	if err != nil || s.Family >= cell.FirstSystemFamily {
		return err
	}
	c := changes.Change{Family: s.Family, Timestamp: s.Timestamp}
	if s.Shape >= cell.ColumnMarker {
		// What earlier changes refer to stays when buf grows.
		at := len(w.buf)
		if s.Plain {
			c.Qualifier = s.Column[:len(s.Column)-2]
		} else {
			w.buf = cell.Qualifier(w.buf, s.Column)
			c.Qualifier = w.buf[at:len(w.buf):len(w.buf)]
		}
	}
	marker := e.Value
	if e.Kind == cell.Recorded {
		if len(e.Value) == 0 {
			return errors.New("an operation of the record without a kind")
		}
		c.Op, c.Value, *skip = changes.Op(e.Value[0]), e.Value[1:], true
		marker = c.Value
	}
	switch {
	case e.Kind == cell.Recorded && c.Op == untold:
		return nil
	case e.Kind == cell.Recorded && c.Op != changes.DeleteColumn:
	case s.Shape == cell.Cell:
		c.Op, c.Value = changes.SetCell, e.Content()
	case s.Shape == cell.RowMarker:
		c.Op = changes.DeleteRow
	case s.Shape == cell.FamilyMarker:
		// If it has not covered all that was there, its columns have come before it.
		c.Op = changes.DeleteFamily
	case s.Shape == cell.ColumnMarker:
		if w.times, _, err = cell.ParseMarker(w.times[:0], marker); err != nil {
			return err
		}
		c.Op, c.Timestamp, c.Value = changes.DeleteColumn, 0, nil
		for _, r := range w.times {
			c.Times = openBounds(r)
			w.rec.Changes = append(w.rec.Changes, c)
		}
		return nil
	}
	w.rec.Changes = append(w.rec.Changes, c)
	return nil
}

// openBounds returns r with bounds that are open as 0.
func openBounds(r cell.TimeRange) cell.TimeRange {
	if r.Start == math.MinInt64 {
		r.Start = 0
	}
	if r.End == math.MaxInt64 {
		r.End = 0
	}
	return r
}

// ChangesReady returns a channel that is closed when ReadChanges may have more to give
// than it had when ChangesReady was called, or ends otherwise.
func (t *Tablet) ChangesReady() <-chan struct{} {
	c := make(chan struct{})
	for {
		if p := t.ready.Load(); p != nil {
			return *p
		}
		if t.ready.CompareAndSwap(nil, &c) {
			return c
		}
	}
}

// wake wakes those that wait for changes.
func (t *Tablet) wake() {
	if p := t.ready.Load(); p != nil && t.ready.CompareAndSwap(p, nil) {
		close(*p)
	}
}

// Promise sees to it that no later change has a stamp up to w, and tells whether the
// promise is one to readers at once: whether everything before is durable. If it is,
// ReadChanges comes up to w. The caller has w in the commit log, durable, so that
// another owner of the tablet promises the same.
func (t *Tablet) Promise(w cell.Seq) bool {
	t.write.Lock()
	defer t.write.Unlock()
	if t.write.closed {
		return false
	}
	// Stamps have all their place above, whatever w is.
	w = min(w, stamp.Most-stamp.Stride)
	if !t.started.Load() {
		t.write.seq = max(t.write.seq, w)
		return false
	}
	t.recordLocked() // a stream that begins does so below w, where its readers are
	durable := t.visible.Load() >= uint64(t.write.logged)
	t.write.seq = max(t.write.seq, w)
	if durable && t.visible.Load() < uint64(w) {
		t.visible.Store(uint64(w))
		t.wake()
	}
	return durable
}

// Lineage returns the event by which the partition rows of the stream ended after a
// reader had come to a stamp, nil if it has not, or if that was forgotten.
func (t *Tablet) Lineage(rows row.Range, after cell.Seq) *metadata.Event {
	if s := t.Row().Stream; s != nil {
		return s.Ended(rows, after)
	}
	return nil
}

// ReadChanges gives to the changes of rows in within that are behind from, of those that
// are durable, until to returns false or an error. It returns the position behind the
// last that it gave, and the stamp up to which everything was given if to took all
// there is. A record is valid during the call. Nothing is held when it returns.
//
// It is FailedPrecondition if clients have no stream of the table, changes.Expired if from is
// before what is kept for them, and changes.Begins if it is before their stream.
func (t *Tablet) ReadChanges(ctx context.Context, from changes.Position, within row.Range, to func(*changes.Record) (more bool, err error)) (next changes.Position, end cell.Seq, err error) {
	return t.readChanges(ctx, from, within, false, to)
}

// ReadChangedRows is ReadChanges for a caller to which it matters which rows have changed, and
// when: records may lack their Changes. That costs less in memory. The stream may be Hidden.
func (t *Tablet) ReadChangedRows(ctx context.Context, from changes.Position, within row.Range, to func(*changes.Record) (more bool, err error)) (next changes.Position, end cell.Seq, err error) {
	return t.readChanges(ctx, from, within, true, to)
}

func (t *Tablet) readChanges(ctx context.Context, from changes.Position, within row.Range, rows bool, to func(*changes.Record) (more bool, err error)) (next changes.Position, end cell.Seq, err error) {
	s := t.schema().Stream
	if s == nil || s.Hidden && !rows {
		return from, 0, fault.New(fault.FailedPrecondition, "Change streams are not enabled on table %s", t.schema().Name)
	}
	t.write.Lock()
	if t.write.closed {
		t.write.Unlock()
		return from, 0, t.gone()
	}
	t.recordLocked()
	// The limit first: what a later version has up to it is all there is.
	limit := cell.Seq(t.visible.Load())
	if gate := t.write.gate; gate != 0 {
		limit = min(limit, gate-1)
	}
	t.write.Unlock()
	v := t.pin()
	if v == nil {
		return from, 0, t.gone()
	}
	defer v.release()
	state := t.streamOf(v.row)
	if state == nil || state.Life != s.Life {
		return from, 0, fault.New(fault.Unavailable, "the change stream of table %s is being changed", t.schema().Name)
	}
	if !rows && from.Through < state.Since && state.Whole {
		return from, 0, changes.Begins(t.schema().Name, state.Since)
	}
	// A reader of what clients have written reads on: what was lost has no record.
	if from.Through < state.Since || rows && from.Through < state.Lost {
		return from, 0, changes.Expired(t.schema().Name, max(state.Since, state.Lost))
	}
	if within = within.Intersect(t.bounds); within.Empty() {
		return from, limit, nil
	}
	if !rows {
		all := to
		to = func(rec *changes.Record) (bool, error) {
			if len(rec.Changes) == 0 {
				// It was written when the tablet did not know yet that clients have a stream, and
				// so was the rest of its chunk, in which records are in the order of rows.
				return false, changes.Begins(t.schema().Name, max(rec.Stamp, rec.ChunkEnd))
			}
			return all(rec)
		}
	}
	r := changeReader{t: t, v: v, state: state, within: within, rows: rows, to: to, at: from}
	err = r.read(ctx, limit)
	r.at.Born = from.Born
	if err != nil {
		return r.at, 0, t.readError(err)
	}
	return r.at, limit, nil
}

// A changeReader is a call of ReadChanges.
type changeReader struct {
	t      *Tablet
	v      *version
	state  *metadata.StreamState
	within row.Range
	rows   bool // records need no Changes
	to     func(*changes.Record) (bool, error)
	at     changes.Position
	done   bool // to wants no more
}

func (r *changeReader) read(ctx context.Context, limit cell.Seq) error {
	if r.at.ChunkEnd != 0 {
		// The chunk has been flushed, or files would not have given a place in it.
		if err := r.files(ctx, r.at.ChunkEnd); err != nil || r.done {
			return err
		}
	}
	for !r.done && r.at.Through < limit {
		if err := ctx.Err(); err != nil {
			return err
		}
		// What is in files and what is in memory take turns: a file of what was
		// collected is of one instant, and may be of one within a memtable.
		m := r.nextRecord()
		file, err := r.nextFile(ctx)
		if err != nil {
			return err
		}
		end := limit
		if file < m {
			if m <= limit {
				end = m - 1
			}
			err = r.files(ctx, end)
		} else {
			if file <= limit {
				end = file - 1
			}
			err = r.memory(end)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nextFile returns the first stamp of a file that is not read to its end.
func (r *changeReader) nextFile(ctx context.Context) (cell.Seq, error) {
	next := cell.MaxSeq
	first := func(files []changes.Ref) {
		for i := range files {
			if f := &files[i]; f.Hi > r.at.Through {
				next = min(next, max(f.Lo, r.at.Through+1))
				return
			}
		}
	}
	first(r.state.Files)
	for i := range r.state.Indexes {
		switch x := &r.state.Indexes[i]; {
		case x.Hi <= r.at.Through:
		case x.Lo > r.at.Through:
			return min(next, x.Lo), nil
		default:
			files, err := r.t.env.changeFiles(ctx, x)
			if err != nil {
				return 0, r.expired(err, x.Hi)
			}
			first(files)
		}
	}
	return next, nil
}

// nextRecord returns the stamp of the next record in memory.
func (r *changeReader) nextRecord() cell.Seq {
	for _, m := range slices.Backward(r.v.mems) {
		if m.life != r.state.Life {
			continue
		}
		if it := m.Commits(max(r.at.Through, m.since), cell.MaxSeq); it.Next() {
			return it.Entry().Seq
		}
	}
	return cell.MaxSeq
}

// files reads files up to a stamp, or to an earlier one if there are many.
func (r *changeReader) files(ctx context.Context, end cell.Seq) (err error) {
	refs, end, err := r.window(ctx, end)
	if err != nil {
		return err
	}
	sources := make([]changes.Source, len(refs))
	for i := range refs {
		f := &refs[i]
		sources[i] = f.Source(func(ctx context.Context) (*changes.File, error) {
			o, err := r.t.env.Objects.Open(ctx, f.Object)
			if errors.Is(err, fault.NotFound) {
				return nil, r.expired(missingChanges("change file", f.Object, f.Lo, f.Hi), f.Hi)
			}
			if err != nil {
				return nil, err
			}
			return changes.Open(ctx, o, f.Object)
		})
	}
	r.at, err = changes.Iterate(ctx, sources, r.at, end, r.within, func(rec *changes.Record) (bool, error) {
		more, err := r.to(rec)
		r.done = r.done || !more
		return more, err
	})
	if fault.KindOf(err) == fault.Corruption {
		err = r.damaged(ctx, err, refs)
	}
	return err
}

// missingChanges returns the error of a change file, or an index object, that is not there.
func missingChanges(what, object string, lo, hi cell.Seq) error {
	return fault.New(fault.Corruption, "%s %s, of %v to %v, is missing", what, object, stamp.Time(lo), stamp.Time(hi))
}

// memory reads what is in memory up to a stamp.
func (r *changeReader) memory(end cell.Seq) error {
	for _, m := range slices.Backward(r.v.mems) {
		if m.life != r.state.Life {
			continue
		}
		w := newRecordWalk(m.Memtable, max(r.at.Through, m.since), end)
		w.rows = r.rows
		for w.next() {
			if r.within.Contains(w.rec.Key) {
				more, err := r.to(&w.rec)
				if err != nil {
					return err
				}
				if r.at = w.rec.After(); !more {
					r.done = true
					return nil
				}
			}
		}
		if w.err != nil {
			return w.err
		}
	}
	r.at = changes.Position{Through: max(r.at.Through, end)}
	return nil
}
