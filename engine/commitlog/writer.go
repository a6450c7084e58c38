package commitlog

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/stamp"
)

// reserveOverhead is what a record may need beside its payload: its own
// header, and that of a frame if it begins one.
const reserveOverhead = recordHeaderLen + frameHeaderLen

// A group takes no more records once it holds groupBytes, so that under a
// flood of them its buffer can be kept for another group. Of those
// keepBuffers are kept, none larger than keepBufferBytes.
const (
	groupBytes      = 4 << 20
	keepBufferBytes = 2 * groupBytes
	keepBuffers     = 8
)

// lost is the position of a record that was never written.
var lost = unpack(1<<64 - 1)

// A FileWriter appends to a FileLog.
type FileWriter struct {
	log  *FileLog
	opts Options
	dir  vfs.File

	incarnation uint64
	acked       atomic.Uint64 // packed Pos: records before it are acknowledged
	synced      atomic.Uint64 // packed Pos: records before it survive a power cut
	wake        chan struct{} // to the flusher: there is a group, or the end
	wakeSpare   chan struct{} // to the preparer: there is a wish, or the end
	stopped     sync.WaitGroup
	trimming    sync.Mutex // serializes Trim
	out         output     // of the flusher alone

	mu struct {
		writerState[group]

		// Space. At any time reserved <= max(cur.room(), spare.room()):
		// whatever the order of the appends, those that do not fit into cur
		// together fit into spare.
		cur      *segment // takes appends; nil before the first
		spare    *segment // allocated, to follow cur; may be nil
		reserved uint64
		want     uint64 // room a Reserve waits for in the spare
		spareErr error  // why the last attempt to allocate failed; nil while one is due
		trimmed  bool   // and there is room since
		next     uint64 // number of the next segment to allocate
		older    []retained
		// unused are the numbers of trimmed segments whose files are to be used again. The
		// goroutine that takes one off the list has the file for itself.
		unused []uint64

		// Groups, oldest first. The last of queue is open for appends.
		queue    []*group
		flushing *group // being written
		idle     bool   // the flusher waits for wake
		// syncs is closed by the next sync, which is due at once; nil if no caller waits.
		syncs chan struct{}
	}
}

// segment is a segment file of this writer.
type segment struct {
	number uint64
	file   vfs.File
	size   int64  // allocated
	limit  uint32 // where records must end; the mark of Close still fits
	tail   uint32 // where the next append goes
	full   bool   // Rotate was asked for

	// resizing is held while the file grows, shrinks or closes.
	resizing sync.Mutex
}

// close closes the file, shrunk to size unless that is negative.
func (s *segment) close(size int64) {
	s.resizing.Lock()
	defer s.resizing.Unlock()
	if size >= 0 {
		truncate(s.file, size)
	}
	_ = s.file.Close() // what matters is synced
}

func (s *segment) room() uint64 {
	if s == nil || s.full {
		return 0
	}
	return uint64(s.limit - s.tail)
}

// retained is a segment that is no longer written.
type retained struct {
	number uint64
	bytes  int64
	whole  bool // the file is as large as segments are, and can be used again
}

// A group is what one write and one fdatasync make durable.
type group struct {
	seg     *segment
	base    uint32 // offset of buf[0] in the segment
	frame   int    // index of the frame header in buf
	records uint32
	buf     []byte
	sinks   sinkList
	done    *outcome
}

func (g *group) end() uint32 { return g.base + uint32(len(g.buf)) }

type sinkSeq struct {
	sink Sink
	seq  uint64
}

// output is where the flusher writes.
type output struct {
	seg      *segment
	written  uint32 // end of the last write
	synced   uint32 // end of what was synced
	lastSync time.Time
	timer    *time.Timer // for the background sync
}

func newWriter(l *FileLog) (*FileWriter, error) {
	dir, err := l.fs.OpenDir(l.dir)
	if err != nil {
		return nil, ioError(err)
	}
	w := &FileWriter{
		log:         l,
		opts:        l.opts,
		dir:         dir,
		incarnation: newIncarnation(),
		wake:        make(chan struct{}, 1),
		wakeSpare:   make(chan struct{}, 1),
	}
	w.mu.failed = make(chan struct{})
	w.acked.Store(l.end.pack())
	w.synced.Store(l.end.pack())
	w.mu.next = 1
	ends := map[uint64]uint32{l.end.Segment: l.end.Offset}
	for _, f := range l.chain {
		ends[f.header.prev.Segment] = f.header.prev.Offset
	}
	for _, f := range l.files {
		w.mu.next = max(w.mu.next, f.number+1)
		w.mu.older = append(w.mu.older, retained{f.number, int64(ends[f.number]), f.size == l.opts.SegmentBytes && !(l.unused && f.number == l.end.Segment)})
	}
	w.mu.unused = l.free
	if l.spare != 0 {
		w.mu.next = l.spare
	}
	// The first attempt is made here. So an error that is not a full disk, such as a
	// directory that cannot be written, is an error of the start.
	if err := w.createSpare(); err != nil && fault.KindOf(err) != fault.Exhausted {
		dir.Close()
		return nil, err
	}
	w.stopped.Add(2)
	go w.flush()
	go w.prepare()
	return w, nil
}

// Reserve implements Writer. It waits also while a segment is being allocated;
// what was reserved fits into what is allocated.
func (w *FileWriter) Reserve(ctx context.Context, n int) (Reservation, error) {
	if n < 0 || n > MaxRecordBytes {
		return 0, fault.New(fault.Invalid, "log record of %d bytes exceeds %d", n, MaxRecordBytes)
	}
	r := uint64(n) + reserveOverhead
	w.mu.Lock()
	for {
		if err := w.mu.stoppedLocked(); err != nil {
			w.mu.Unlock()
			return 0, err
		}
		if w.mu.pending < w.opts.PendingBytes {
			ok, err := w.roomLocked(w.mu.reserved + r)
			if ok {
				w.mu.reserved += r
			}
			if ok || err != nil {
				w.mu.Unlock()
				return Reservation(r), err
			}
		}
		if err := w.mu.awaitChangeLocked(ctx); err != nil {
			w.mu.Unlock()
			return 0, err
		}
	}
}

// roomLocked reports whether total bytes of reservations fit. If not, it asks
// for a spare that takes them, or returns why there can be none.
func (w *FileWriter) roomLocked(total uint64) (bool, error) {
	if total <= max(w.mu.cur.room(), w.mu.spare.room()) {
		return true, nil
	}
	if total > maxSegmentBytes-segmentHeaderLen-frameHeaderLen {
		return false, fault.New(fault.Exhausted, "%d bytes of log records in flight", total)
	}
	if w.mu.spareErr != nil {
		return false, w.mu.spareErr
	}
	w.mu.want = max(w.mu.want, total)
	signal(w.wakeSpare)
	return false, nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Release implements Writer.
func (w *FileWriter) Release(r Reservation) {
	w.mu.Lock()
	w.mu.reserved -= uint64(r)
	w.mu.Unlock()
}

// Append implements Writer. All records of the call go into one group, which becomes one
// frame: cluster/views relies on that, as a tablet's contributions and its outbox must not
// be torn apart.
func (w *FileWriter) Append(r Reservation, tablet, firstSeq uint64, recs Records, sink Sink) Pos {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.reserved -= uint64(r)
	if w.mu.stoppedLocked() != nil {
		return lost
	}
	g := w.openGroupLocked(uint64(r))
	start := len(g.buf)
	buf := slices.Grow(g.buf, int(r)) // at once, not by halves while encoding
	next := firstSeq
	for i := range recs.Records() {
		var n int
		buf, n = encodeRecord(buf, tablet, next, recs, i)
		g.records++
		next = after(next, n)
	}
	size := len(buf) - start
	if size < recordHeaderLen || uint64(size)+frameHeaderLen > uint64(r) {
		// Going on could run into a full disk after a change is visible.
		panic(fmt.Sprintf("commitlog: records of %d bytes in a reservation of %d", size, uint64(r)))
	}
	g.buf = buf
	g.seg.tail = g.end()
	w.mu.pending += int64(size)
	if sink != nil {
		g.sinks.add(sink, lastBefore(next, firstSeq))
	}
	if w.mu.idle {
		w.mu.idle = false
		signal(w.wake)
	}
	return Pos{Segment: g.seg.number, Offset: g.base + uint32(start)}
}

// encodeRecord appends the header and the payload of record i, and returns how
// many sequence numbers it takes.
func encodeRecord(dst []byte, tablet, firstSeq uint64, recs Records, i int) ([]byte, int) {
	var header [recordHeaderLen]byte
	start := len(dst)
	dst, n := recs.AppendRecord(append(dst, header[:]...), i)
	putRecordHeader(dst[start:], uint32(len(dst)-start-recordHeaderLen), uint32(n), tablet, firstSeq)
	return dst, n
}

// after returns the sequence number that follows n operations from first on.
func after(first uint64, n int) uint64 {
	return first + uint64(n)*uint64(stamp.Step(cell.Seq(first)))
}

// lastBefore returns the last sequence number of records from first on that next
// follows; first if they have none.
func lastBefore(next, first uint64) uint64 {
	if next == first {
		return first
	}
	return next - uint64(stamp.Step(cell.Seq(first)))
}

// A sinkList is the sinks of a group, with what becomes durable for each.
type sinkList []sinkSeq

// add notes the last sequence number of a sink. Tablets interleave, so a few
// entries back are worth a look; a sink noted twice is told twice.
func (l *sinkList) add(sink Sink, seq uint64) {
	for i := len(*l) - 1; i >= max(0, len(*l)-8); i-- {
		if (*l)[i].sink == sink {
			(*l)[i].seq = max((*l)[i].seq, seq)
			return
		}
	}
	*l = append(*l, sinkSeq{sink, seq})
}

// openGroupLocked returns the group that takes a record of up to r bytes. It goes on to
// the spare segment if the current one has no room.
func (w *FileWriter) openGroupLocked(r uint64) *group {
	if n := len(w.mu.queue); n > 0 && r <= w.mu.cur.room() {
		if g := w.mu.queue[n-1]; g.seg == w.mu.cur && len(g.buf) < groupBytes {
			return g
		}
	}
	g := w.mu.takeLocked()
	g.done = newOutcome()
	if r > w.mu.cur.room() {
		prev := w.log.end
		if cur := w.mu.cur; cur != nil {
			prev = Pos{Segment: cur.number, Offset: cur.tail}
			w.mu.older = append(w.mu.older, retained{cur.number, int64(cur.tail), w.whole(cur, cur.tail)})
		}
		if r > w.mu.spare.room() {
			panic("commitlog: Append without a reservation")
		}
		w.mu.cur, w.mu.spare = w.mu.spare, nil
		signal(w.wakeSpare)
		g.buf = segmentHeader{incarnation: w.incarnation, segment: w.mu.cur.number, prev: prev}.append(g.buf)
	} else {
		g.base = w.mu.cur.tail
	}
	g.seg = w.mu.cur
	g.frame = len(g.buf)
	var header [frameHeaderLen]byte
	g.buf = append(g.buf, header[:]...)
	w.mu.queue = append(w.mu.queue, g)
	return g
}

// recycleLocked keeps the buffers of a group for another.
func (w *FileWriter) recycleLocked(g *group) {
	if cap(g.buf) > keepBufferBytes || len(w.mu.free) >= keepBuffers {
		return
	}
	clear(g.sinks)
	*g = group{buf: g.buf[:0], sinks: g.sinks[:0]}
	w.mu.free = append(w.mu.free, g)
}

// Wait implements Writer. Durable is what Options.Durability has it mean.
func (w *FileWriter) Wait(ctx context.Context, pos Pos) error {
	if pos.pack() < w.acked.Load() {
		return nil
	}
	o, err := w.outcomeOf(pos)
	if o == nil {
		return err
	}
	return o.wait(ctx)
}

// WaitSynced implements Writer.
func (w *FileWriter) WaitSynced(ctx context.Context) error {
	if w.opts.Durability == Sync {
		return nil
	}
	for end := w.acked.Load(); w.synced.Load() < end; {
		w.mu.Lock()
		if w.mu.syncs == nil {
			w.mu.syncs = make(chan struct{})
		}
		synced := w.mu.syncs
		w.mu.Unlock()
		signal(w.wake)
		select {
		case <-synced:
		case <-w.Failed():
			return w.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// outcomeOf returns the outcome of the group that holds pos, or the answer.
func (w *FileWriter) outcomeOf(pos Pos) (*outcome, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pos.pack() < w.acked.Load() {
		return nil, nil
	}
	holds := func(g *group) bool {
		return pos.Less(Pos{Segment: g.seg.number, Offset: g.end()})
	}
	if g := w.mu.flushing; g != nil && holds(g) {
		return g.done, nil
	}
	for _, g := range w.mu.queue {
		if holds(g) {
			return g.done, nil
		}
	}
	return nil, w.mu.unknownLocked(pos)
}

// Failed implements Writer.
func (w *FileWriter) Failed() <-chan struct{} { return w.mu.failed }

// Err implements Writer.
func (w *FileWriter) Err() error { return w.mu.failure() }

// Full returns why there is no room for records beyond the segment that is being
// written, else nil.
func (w *FileWriter) Full() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if fault.KindOf(w.mu.spareErr) != fault.Exhausted {
		return nil
	}
	return w.mu.spareErr
}

// End implements Writer.
func (w *FileWriter) End() Pos {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.cur == nil {
		return w.log.end
	}
	return Pos{Segment: w.mu.cur.number, Offset: w.mu.cur.tail}
}

// Bytes implements Writer.
func (w *FileWriter) Bytes() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var sum int64
	for _, s := range w.mu.older {
		sum += s.bytes
	}
	if w.mu.cur != nil {
		sum += int64(w.mu.cur.tail)
	}
	return sum
}

// Rotate makes the next record begin a new segment, so that Trim can soon
// remove the current one. It does nothing if the current one is empty, waits
// as Reserve does, and fails as Reserve does.
func (w *FileWriter) Rotate(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if err := w.mu.stoppedLocked(); err != nil {
			return err
		}
		cur := w.mu.cur
		if cur == nil || cur.full {
			return nil
		}
		// What is reserved must fit into the spare alone from now on.
		if w.mu.spare != nil && w.mu.reserved <= w.mu.spare.room() {
			cur.full = true
			return nil
		}
		if w.mu.spareErr != nil {
			return w.mu.spareErr
		}
		w.mu.want = max(w.mu.want, w.mu.reserved)
		signal(w.wakeSpare)
		if err := w.mu.awaitChangeLocked(ctx); err != nil {
			return err
		}
	}
}

// Trim implements Writer. The segment that holds the newest synced record
// stays, so that the end of the log can always be told. Up to keepFree files are
// kept to be used again, unless the disk is so full that others need the room.
func (w *FileWriter) Trim(before Pos) error {
	w.trimming.Lock()
	defer w.trimming.Unlock()
	if err := w.trim(before); err != nil {
		return fmt.Errorf("trim commit log: %w", ioError(err))
	}
	return nil
}

func (w *FileWriter) trim(before Pos) error {
	keep := min(before.Segment, unpack(w.synced.Load()).Segment)
	w.mu.Lock()
	room := keepFree - len(w.mu.unused)
	some := room < keepFree || len(w.mu.older) > 0 && w.mu.older[0].number < keep
	w.mu.Unlock()
	if !some {
		return nil
	}
	if w.log.checkFree(w.opts.SegmentBytes) != nil {
		room = 0
		if err := w.dropUnused(); err != nil {
			return err
		}
	}
	var freed []uint64
	removed := false
	for {
		w.mu.Lock()
		var s retained
		if len(w.mu.older) > 0 {
			s = w.mu.older[0]
		}
		w.mu.Unlock()
		if s.number == 0 || s.number >= keep {
			break
		}
		var err error
		if s.whole && len(freed) < room {
			if err = w.log.fs.Rename(w.log.path(s.number), w.log.freePath(s.number)); err == nil {
				freed = append(freed, s.number)
			}
		} else {
			err = w.log.fs.Remove(w.log.path(s.number))
		}
		if err != nil && !isNotExist(err) {
			return err
		}
		w.mu.Lock()
		w.mu.older = w.mu.older[1:]
		w.mu.Unlock()
		removed = true
	}
	if !removed {
		return nil
	}
	// Oldest first and synced, a crash leaves a hole at most in what is not
	// needed. A file is used again only after that: a crash must not show what
	// comes to be in it under its old name.
	if err := w.dir.Sync(); err != nil {
		return err
	}
	w.mu.Lock()
	w.mu.unused = append(w.mu.unused, freed...)
	if w.mu.spareErr != nil {
		w.mu.spareErr, w.mu.trimmed = nil, true
	}
	w.mu.Unlock()
	signal(w.wakeSpare)
	return nil
}

// Close implements Writer. It leaves the mark of a clean end.
func (w *FileWriter) Close() error {
	if !w.mu.beginClose() {
		return nil
	}
	signal(w.wake)
	signal(w.wakeSpare)
	w.stopped.Wait()

	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.mu.spare; s != nil {
		s.close(-1)
		_ = w.log.fs.Remove(w.log.path(s.number)) // if it stays, the next Start uses or removes it
		w.mu.spare = nil
	}
	w.dir.Close()
	return w.mu.err
}

// flush is the flusher: it writes one group at a time, while the next gathers.
func (w *FileWriter) flush() {
	defer w.stopped.Done()
	// Beside the start, as it takes 40 ms or longer, and before the next segment is begun:
	// a later start shrinks only the last one.
	w.log.shrinkTail()
	w.out.timer = time.NewTimer(time.Hour)
	defer w.out.timer.Stop()
	for {
		g := w.nextGroup()
		if g == nil {
			break
		}
		if err := w.commit(g); err != nil {
			w.fail(err)
			break
		}
	}
	if w.out.seg == nil {
		return
	}
	size := int64(-1)
	if w.Err() == nil {
		if err := w.mark(); err != nil {
			w.fail(err)
		} else {
			size = int64(w.out.written)
		}
	}
	w.out.seg.close(size)
}

// nextGroup waits for a group and closes it to appends. It returns nil when
// there will be no more, or the background sync failed.
func (w *FileWriter) nextGroup() *group {
	for {
		w.mu.Lock()
		if g := w.mu.flushing; g != nil {
			w.mu.pending -= int64(len(g.buf) - g.frame - frameHeaderLen)
			w.mu.flushing = nil
			w.recycleLocked(g)
			w.mu.changedLocked()
		}
		if len(w.mu.queue) > 0 {
			g := w.mu.queue[0]
			n := copy(w.mu.queue, w.mu.queue[1:])
			w.mu.queue[n] = nil
			w.mu.queue = w.mu.queue[:n]
			w.mu.flushing = g
			w.mu.Unlock()
			return g
		}
		if w.mu.closing {
			w.mu.Unlock()
			return nil
		}
		w.mu.idle = true
		wanted := w.mu.syncs != nil
		w.mu.Unlock()
		switch {
		case wanted:
			if err := w.sync(); err != nil {
				w.fail(err)
				return nil
			}
			continue
		case w.out.written == w.out.synced:
			<-w.wake
			continue
		}
		w.out.timer.Reset(time.Until(w.out.lastSync.Add(w.opts.SyncInterval)))
		select {
		case <-w.wake:
		case <-w.out.timer.C:
			if err := w.sync(); err != nil {
				w.fail(err)
				return nil
			}
		}
	}
}

// commit writes a group, makes it durable and wakes its waiters.
func (w *FileWriter) commit(g *group) error {
	if g.seg != w.out.seg {
		if err := w.finishSegment(); err != nil {
			return err
		}
		w.out = output{seg: g.seg, lastSync: w.out.lastSync, timer: w.out.timer}
	}
	putFrameHeader(g.buf[g.frame:], w.incarnation, g.seg.number, g.base+uint32(g.frame), w.out.synced, g.records)
	end := Pos{Segment: g.seg.number, Offset: g.end()}
	c := Commit{Records: int(g.records), Bytes: len(g.buf)}
	start := time.Now()
	if err := w.write(g.buf); err != nil {
		return err
	}
	c.Write = time.Since(start)
	if w.opts.Durability == Sync || start.Sub(w.out.lastSync) >= w.opts.SyncInterval {
		if err := w.sync(); err != nil {
			return err
		}
		c.Sync = time.Since(start) - c.Write
	}
	for _, s := range g.sinks {
		s.sink.Durable(s.seq)
	}
	w.acked.Store(end.pack())
	close(g.done.done)
	w.yield(g.records)
	if w.opts.Observe != nil {
		w.opts.Observe(c)
	}
	return nil
}

// yield lets the callers that were just woken append again before the next group is
// closed, if that group is small next to theirs. Otherwise callers fall into two halves
// that take turns, and each commit carries one half: 6.8 records per commit instead of 15
// with 16 callers.
func (w *FileWriter) yield(woken uint32) {
	w.mu.Lock()
	var waiting uint32
	if len(w.mu.queue) > 0 {
		waiting = w.mu.queue[0].records
	}
	w.mu.Unlock()
	if waiting < woken {
		runtime.Gosched()
	}
}

func (w *FileWriter) write(b []byte) error {
	n, err := w.out.seg.file.WriteAt(b, int64(w.out.written))
	if err == nil && n != len(b) {
		err = fmt.Errorf("short write: %d of %d bytes", n, len(b))
	}
	if err != nil {
		return fmt.Errorf("write %s at offset %d: %w", segmentName(w.out.seg.number), w.out.written, err)
	}
	w.out.written += uint32(n)
	return nil
}

func (w *FileWriter) sync() error {
	if err := w.out.seg.file.SyncData(); err != nil {
		return fmt.Errorf("sync %s: %w", segmentName(w.out.seg.number), err)
	}
	w.out.synced, w.out.lastSync = w.out.written, time.Now()
	w.synced.Store(Pos{Segment: w.out.seg.number, Offset: w.out.synced}.pack())
	if w.opts.Durability != Sync {
		w.mu.Lock()
		if w.mu.syncs != nil {
			close(w.mu.syncs)
			w.mu.syncs = nil
		}
		w.mu.Unlock()
	}
	return nil
}

// finishSegment syncs the segment that is left for the next: the header of the
// next is a promise that this one is whole.
func (w *FileWriter) finishSegment() error {
	s := w.out.seg
	if s == nil {
		return nil
	}
	if w.out.written != w.out.synced {
		if err := w.sync(); err != nil {
			return err
		}
	}
	size := int64(w.out.written)
	if w.whole(s, w.out.written) {
		size = -1
	}
	s.close(size)
	w.out.seg = nil
	return nil
}

// whole tells whether the file of a segment that ends at end is left as it is,
// to be used again. One that is mostly empty, because a large record did not fit
// or Rotate was asked for, gives its blocks back instead.
func (w *FileWriter) whole(s *segment, end uint32) bool {
	return s.size == w.opts.SegmentBytes && int64(end) >= s.size/2
}

// mark ends the last segment with an empty frame, by which the next Open can
// tell damage in the last group from a torn write.
func (w *FileWriter) mark() error {
	if w.out.written != w.out.synced {
		if err := w.sync(); err != nil {
			return err
		}
	}
	b := make([]byte, frameHeaderLen)
	putFrameHeader(b, w.incarnation, w.out.seg.number, w.out.written, w.out.synced, 0)
	if err := w.write(b); err != nil {
		return err
	}
	return w.sync()
}

// fail ends the writer. Called by the flusher alone.
func (w *FileWriter) fail(cause error) {
	w.mu.Lock()
	var unacked []*outcome
	if g := w.mu.flushing; g != nil {
		unacked = append(unacked, g.done)
	}
	for _, g := range w.mu.queue {
		unacked = append(unacked, g.done)
	}
	w.mu.queue, w.mu.flushing = nil, nil
	w.mu.failLocked(fault.Unavailable, "COMMIT_LOG_FAILED", cause, unacked)
	w.mu.Unlock()
	signal(w.wakeSpare)
}
