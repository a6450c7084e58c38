package commitlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/mutex"
	"github.com/trestledb/trestle/engine/objectstore"
)

// SegmentOptions are those of a log in its segment-object form. The zero value
// is for a store that answers within a millisecond or two.
type SegmentOptions struct {
	// CommitInterval is the least time from one put to the next, unless a segment is full.
	// Set it where the price of a store's requests asks for larger groups. Zero puts a
	// group soon after the one before is stored. It waits until the callers acknowledged
	// by that one have appended again, or for about as long as a put takes (see
	// gatherLocked).
	CommitInterval time.Duration
	// InFlight bounds the puts that are under way. Records are acknowledged in
	// their order in any case. Without a CommitInterval a put waits for the one
	// before, unless that takes much longer than puts do (see waitLocked). Zero
	// means 4.
	InFlight int
	// SegmentBytes is how much a segment holds before the next is begun; one
	// record may make it larger. Zero means 4 MiB.
	SegmentBytes int64
	// PendingBytes bounds what is appended and not yet stored; above it Reserve
	// waits. Zero means 32 MiB.
	PendingBytes int64
	// Observe, if set, is called after every group commit, in their order.
	Observe func(Commit)
	Log     *slog.Logger // component; nil discards
}

// WithDefaults returns o with zero values replaced.
func (o SegmentOptions) WithDefaults() SegmentOptions {
	if o.InFlight == 0 {
		o.InFlight = 4
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 4 << 20
	}
	if o.PendingBytes == 0 {
		o.PendingBytes = 32 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Validate returns everything that is wrong with o, with fault.Invalid.
func (o SegmentOptions) Validate() error {
	var errs []error
	if o.CommitInterval < 0 || o.CommitInterval > time.Minute {
		errs = append(errs, fault.InvalidField("commit_interval", "commit interval %v is not between 0 and 1 minute", o.CommitInterval))
	}
	if o.InFlight < 0 || o.InFlight > 64 {
		errs = append(errs, fault.InvalidField("in_flight", "%d puts in flight are not between 0 and 64", o.InFlight))
	}
	if o.SegmentBytes < 0 || o.SegmentBytes > 1<<30 {
		errs = append(errs, fault.InvalidField("segment_bytes", "segment size %d is not between 0 and 1 GiB", o.SegmentBytes))
	}
	if o.PendingBytes < 0 || o.PendingBytes > 1<<30 {
		errs = append(errs, fault.InvalidField("pending_bytes", "pending bytes %d are not between 0 and 1 GiB", o.PendingBytes))
	}
	return errors.Join(errs...)
}

const (
	// A put that failed is made again after retryFirst, then twice that and so
	// on up to retryMost.
	retryFirst = 10 * time.Millisecond
	retryMost  = time.Second
	// See gatherLocked: it waits if puts take minGatherPut, or if there are
	// minGatherRecords, and then gatherPerRecord for each record but at most maxGather.
	minGatherPut     = 250 * time.Microsecond
	minGatherRecords = 4
	gatherPerRecord  = 60 * time.Microsecond
	maxGather        = time.Millisecond
	// closeGrace is how long Close goes on trying to store what was appended.
	closeGrace = 10 * time.Second
)

// putTimeout is how long one attempt to put n bytes may take: what a slow
// store needs, and a connection that hangs exceeds.
func putTimeout(n int) time.Duration {
	return 10*time.Second + time.Duration(n)*time.Microsecond
}

// A SegmentWriter appends to a log in its segment-object form. Make one with
// CreateSegments.
type SegmentWriter struct {
	store objectstore.Store
	seq   objectstore.Sequence // of the log's objects
	id    ID
	opts  SegmentOptions
	nonce uint64

	ctx      context.Context // of puts and deletions
	cancel   context.CancelFunc
	acked    atomic.Uint64      // segments up to this index are acknowledged
	wake     chan struct{}      // to the flusher: look again
	puts     chan *segmentGroup // to the goroutines that put
	stopped  sync.WaitGroup
	trimming mutex.Mutex // serializes Trim

	mu struct {
		writerState[segmentGroup]
		full error // why the last put failed, if for lack of room

		// Groups in the order of their indexes, which have no gap: those of
		// flying are being put, the last of queue is open for appends.
		flying []*segmentGroup
		queue  []*segmentGroup
		next   uint64 // index of the next group

		kept  []keptSegment // acknowledged and not trimmed, by index
		bytes int64         // in kept

		// What waitLocked goes by. Of the last acknowledgement: when it was, and how many
		// records there were then, acknowledged by it or waiting.
		lastAckAt       time.Time
		lastSentAt      time.Time // when the last group was sent
		expectedRecords int
		typicalPut      time.Duration // running estimate of how long a put takes
	}
}

var _ Writer = (*SegmentWriter)(nil)

// A segmentGroup becomes one segment. Once it flies, only its put changes it.
type segmentGroup struct {
	builder
	index uint64
	sinks sinkList
	done  *outcome

	// mu of the writer guards these.
	landed bool   // the object is in the store
	bytes  int64  // its size
	acked  uint64 // as in its header
	took   time.Duration
	clean  bool  // at the first attempt: nothing else can be reading the buffer
	failed error // why it never will be in the store
}

type keptSegment struct {
	index uint64
	bytes int64
	acked uint64 // as in its header
}

// CreateSegments begins the log id in store. It fails with fault.AlreadyExists
// if there is anything of a log of that ID: an ID is for one writer, ever.
func CreateSegments(ctx context.Context, store objectstore.Store, id ID, opts SegmentOptions) (*SegmentWriter, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if id == 0 {
		return nil, fault.New(fault.Invalid, "a log of segment objects must have an ID")
	}
	found, err := store.List(ctx, id.String()+"/", "", 1)
	if err != nil {
		return nil, fmt.Errorf("create commit log %v: %w", id, err)
	}
	if len(found) > 0 {
		return nil, fault.New(fault.AlreadyExists, "commit log %v exists already: it has %s", id, found[0].Name)
	}
	w := &SegmentWriter{
		store: store, seq: objectstore.NewSequence(store, id.String(), 1), id: id, opts: opts.WithDefaults(), nonce: newIncarnation(),
		wake: make(chan struct{}, 1),
	}
	w.mu.failed = make(chan struct{})
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.mu.next = 1
	// As many as fly at most, so that sending does not block. The goroutines that put
	// stay, with stacks that have grown.
	w.puts = make(chan *segmentGroup, w.opts.InFlight)
	w.stopped.Go(w.flush)
	for range w.opts.InFlight {
		w.stopped.Go(func() {
			for g := range w.puts {
				w.put(g)
			}
		})
	}
	return w, nil
}

// ID returns the log's ID.
func (w *SegmentWriter) ID() ID { return w.id }

// Full returns why records are refused at the moment if the store has no room for
// them, else nil.
func (w *SegmentWriter) Full() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.full
}

// Reserve implements Writer. A full store shows once a put has met it, and
// until one succeeds.
func (w *SegmentWriter) Reserve(ctx context.Context, n int) (Reservation, error) {
	if n < 0 || n > MaxRecordBytes {
		return 0, fault.New(fault.Invalid, "log record of %d bytes exceeds %d", n, MaxRecordBytes)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if err := w.mu.stoppedLocked(); err != nil {
			return 0, err
		}
		if w.mu.full != nil {
			return 0, w.mu.full
		}
		if w.mu.pending < w.opts.PendingBytes {
			return Reservation(n), nil
		}
		if err := w.mu.awaitChangeLocked(ctx); err != nil {
			return 0, err
		}
	}
}

// Release implements Writer.
func (w *SegmentWriter) Release(Reservation) {}

// Append implements Writer. All records of the call go into one segment: cluster/views relies
// on that, as FileWriter.Append says.
func (w *SegmentWriter) Append(r Reservation, tablet, firstSeq uint64, recs Records, sink Sink) Pos {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.stoppedLocked() != nil {
		return Pos{Log: w.id, Segment: math.MaxUint64}
	}
	g := w.openLocked()
	if g == nil {
		g = w.mu.takeLocked()
		g.done = newOutcome()
		g.index = w.mu.next
		w.mu.next++
		w.mu.queue = append(w.mu.queue, g)
		if len(w.mu.queue) == 1 {
			signal(w.wake)
		}
	}
	ordinal, size, next := g.add(tablet, firstSeq, int(r), recs)
	w.mu.pending += int64(size)
	if int64(g.size()) >= w.opts.SegmentBytes || len(g.recs) == w.mu.expectedRecords && len(w.mu.flying) == 0 {
		signal(w.wake) // need not wait for its time
	}
	if sink != nil {
		g.sinks.add(sink, lastBefore(next, firstSeq))
	}
	return Pos{Log: w.id, Segment: g.index, Offset: ordinal}
}

// openLocked returns the group that takes the next record, or nil.
func (w *SegmentWriter) openLocked() *segmentGroup {
	if n := len(w.mu.queue); n > 0 && int64(w.mu.queue[n-1].size()) < w.opts.SegmentBytes {
		return w.mu.queue[n-1]
	}
	return nil
}

// recycleLocked keeps the buffers of a group for another. Those of a put that
// was made again stay alone: the first attempt may still be on its way.
func (w *SegmentWriter) recycleLocked(g *segmentGroup) {
	if !g.clean || max(cap(g.buf), cap(g.out)) > keepBufferBytes || len(w.mu.free) >= keepBuffers {
		return
	}
	clear(g.sinks)
	g.reset()
	w.mu.free = append(w.mu.free, &segmentGroup{builder: g.builder, sinks: g.sinks[:0]})
}

// Wait implements Writer.
func (w *SegmentWriter) Wait(ctx context.Context, pos Pos) error {
	if w.isAcked(pos) {
		return nil
	}
	o, err := w.outcomeOf(pos)
	if o == nil {
		return err
	}
	return o.wait(ctx)
}

// WaitSynced implements Writer. A store keeps what it has acknowledged.
func (w *SegmentWriter) WaitSynced(context.Context) error { return nil }

// isAcked reports whether pos is of an acknowledged record, or was replayed.
func (w *SegmentWriter) isAcked(pos Pos) bool {
	return pos.Log < w.id || pos.Log == w.id && pos.Segment <= w.acked.Load()
}

// outcomeOf returns the outcome of the group that holds pos, or the answer.
func (w *SegmentWriter) outcomeOf(pos Pos) (*outcome, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isAcked(pos) {
		return nil, nil
	}
	for _, groups := range [][]*segmentGroup{w.mu.flying, w.mu.queue} {
		if len(groups) > 0 && pos.Log == w.id && pos.Segment-groups[0].index < uint64(len(groups)) {
			return groups[pos.Segment-groups[0].index].done, nil
		}
	}
	return nil, w.mu.unknownLocked(pos)
}

// Failed implements Writer.
func (w *SegmentWriter) Failed() <-chan struct{} { return w.mu.failed }

// Err implements Writer.
func (w *SegmentWriter) Err() error { return w.mu.failure() }

// End implements Writer. It may be used as a redo point: every later record
// has it or a later position. Records before it need not be durable yet.
func (w *SegmentWriter) End() Pos {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g := w.openLocked(); g != nil {
		return Pos{Log: w.id, Segment: g.index, Offset: uint32(len(g.recs))}
	}
	return Pos{Log: w.id, Segment: w.mu.next}
}

// Durable returns the position after the last acknowledged record.
func (w *SegmentWriter) Durable() Pos { return Pos{Log: w.id, Segment: w.acked.Load() + 1} }

// Bytes implements Writer.
func (w *SegmentWriter) Bytes() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.bytes + w.mu.pending
}

// BytesFrom returns how much of Bytes is in the segment of pos and later ones.
func (w *SegmentWriter) BytesFrom(pos Pos) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.mu.pending
	for _, k := range slices.Backward(w.mu.kept) {
		if k.index < pos.Segment {
			break
		}
		n += k.bytes
	}
	return n
}

// Close implements Writer. It gives up what the store does not take within some
// seconds.
func (w *SegmentWriter) Close() error {
	if !w.mu.beginClose() {
		return nil
	}
	signal(w.wake)
	giveUp := time.AfterFunc(closeGrace, w.cancel)
	w.stopped.Wait()
	giveUp.Stop()
	w.cancel()
	return errors.Join(w.Err(), w.seq.Close())
}

// flush is the flusher: it sends groups on their way and acknowledges them in
// their order.
func (w *SegmentWriter) flush() {
	defer close(w.puts)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		w.acknowledge()
		// Callers that were just acknowledged, or wait for a processor, may have something
		// to append: a put costs more than anything else here.
		runtime.Gosched()
		w.mu.Lock()
		for _, g := range w.mu.flying {
			if g.failed != nil {
				w.failLocked(g.failed)
				w.mu.Unlock()
				return
			}
		}
		done := w.mu.closing && len(w.mu.queue)+len(w.mu.flying) == 0
		wait := time.Duration(math.MaxInt64)
		if len(w.mu.queue) > 0 && len(w.mu.flying) < w.opts.InFlight {
			g := w.mu.queue[0]
			wait = w.waitLocked(g)
			if wait <= 0 || int64(g.size()) >= w.opts.SegmentBytes || w.mu.closing {
				w.sendLocked(g)
				w.mu.Unlock()
				continue
			}
		}
		w.mu.Unlock()
		if done {
			return
		}
		timer.Reset(wait)
		select {
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// waitLocked returns how much longer a group should gather records before it is
// put.
//
// A CommitInterval says so alone. Without one there is one put at a time, since groups are
// to be large. But the next group does not wait for a put that has taken more than twice
// typicalPut. A record in that next group still waits for the slow put's end, and then not
// for a put of its own after it.
func (w *SegmentWriter) waitLocked(g *segmentGroup) time.Duration {
	switch {
	case w.opts.CommitInterval > 0:
		return time.Until(w.mu.lastSentAt.Add(w.opts.CommitInterval))
	case len(w.mu.flying) == 0:
		return w.gatherLocked(g)
	case w.mu.typicalPut == 0:
		return math.MaxInt64
	}
	return time.Until(w.mu.lastSentAt.Add(2 * w.mu.typicalPut))
}

// gatherLocked is waitLocked when no put is under way. It waits until the group has n =
// expectedRecords records, those that the last acknowledgement set free or left waiting.
// It waits no longer after that acknowledgement than
//
//	max(typicalPut, min(n*gatherPerRecord, maxGather))
//
// For example, take 16 callers that write again once acknowledged. Without the wait they
// fall into two halves, one in the put under way, the other waiting for it. With it all 16
// are in every put, which halves the puts, and none waits for more than two puts. Callers
// that do not come back delay the others by one put, once.
//
// A put may take less time than callers take to come back (typicalPut < minGatherPut).
// Then waiting saves processor time, and pays from minGatherRecords on. With fewer there
// is no wait: timers of an idle process are late by up to a millisecond.
func (w *SegmentWriter) gatherLocked(g *segmentGroup) time.Duration {
	n := w.mu.expectedRecords
	if len(g.recs) >= n || w.mu.typicalPut < minGatherPut && n < minGatherRecords {
		return 0
	}
	return time.Until(w.mu.lastAckAt.Add(max(w.mu.typicalPut, min(time.Duration(n)*gatherPerRecord, maxGather))))
}

// ackedLocked notes for gatherLocked that n records were acknowledged whose put
// took so long.
func (w *SegmentWriter) ackedLocked(n int, took time.Duration) {
	w.mu.lastAckAt, w.mu.expectedRecords = time.Now(), n
	for _, groups := range [][]*segmentGroup{w.mu.flying, w.mu.queue} {
		for _, g := range groups {
			w.mu.expectedRecords += len(g.recs)
		}
	}
	if w.mu.typicalPut == 0 {
		w.mu.typicalPut = took
	}
	// One put that took a second is not what they take.
	step := w.mu.typicalPut/8 + 1
	w.mu.typicalPut += min(max(took-w.mu.typicalPut, -step), step)
}

// sendLocked closes the first group of the queue to appends and puts it.
func (w *SegmentWriter) sendLocked(g *segmentGroup) {
	n := copy(w.mu.queue, w.mu.queue[1:])
	w.mu.queue[n] = nil
	w.mu.queue = w.mu.queue[:n]
	w.mu.flying = append(w.mu.flying, g)
	w.mu.lastSentAt = time.Now()
	g.acked = w.acked.Load()
	w.puts <- g
}

// put stores the segment of a group. A put with an unknown outcome is made
// again, of the same bytes under the same name, until it is known.
func (w *SegmentWriter) put(g *segmentGroup) {
	start := time.Now()
	h := objectHeader{kind: kindSegment, log: w.id, index: g.index, nonce: w.nonce, acked: g.acked}
	data := g.build(h)
	name := objectName(w.id, g.index)
	delay := retryFirst
	for attempt := 1; ; attempt++ {
		err := w.attempt(name, g.index, data)
		if err == nil {
			w.mu.Lock()
			g.landed, g.clean, g.bytes, g.took = true, attempt == 1, int64(len(data)), time.Since(start)
			if w.mu.full != nil {
				w.mu.full = nil
				w.mu.changedLocked()
			}
			w.mu.Unlock()
			signal(w.wake)
			if attempt > 1 {
				w.opts.Log.LogAttrs(w.ctx, slog.LevelInfo, "commit log segment stored after all",
					slog.String("object", name), slog.Int("attempts", attempt), slog.Duration("elapsed", time.Since(start)))
			}
			return
		}
		if errors.Is(err, fault.Fenced) || w.ctx.Err() != nil {
			w.mu.Lock()
			g.failed = err
			w.mu.Unlock()
			signal(w.wake)
			return
		}
		if attempt == 1 {
			w.opts.Log.LogAttrs(w.ctx, slog.LevelWarn, "commit log segment not stored, will try again",
				slog.String("object", name), slog.Any("error", err))
		}
		if errors.Is(err, fault.Exhausted) {
			e := fault.New(fault.Exhausted, "no room for the commit log: %w", err)
			e.RetryAfter = time.Second
			w.mu.Lock()
			w.mu.full = e
			w.mu.changedLocked()
			w.mu.Unlock()
		}
		select {
		case <-time.After(delay):
		case <-w.ctx.Done():
		}
		delay = min(2*delay, retryMost)
	}
}

// attempt puts an object once. It returns nil if the object is there, as ours,
// and fault.Fenced if one is that is not.
func (w *SegmentWriter) attempt(name string, index uint64, data []byte) error {
	ctx, cancel := context.WithTimeout(w.ctx, putTimeout(len(data)))
	defer cancel()
	err := w.seq.PutIfAbsent(ctx, index, data)
	if !errors.Is(err, fault.AlreadyExists) {
		return err
	}
	found, err := w.store.Get(ctx, name)
	if err != nil {
		return err
	}
	if bytes.Equal(found, data) {
		return nil // an earlier attempt, or the store's own, whose outcome got lost
	}
	h, err := parseObjectHeader(found, w.id, index)
	switch {
	case err != nil:
		// It is not ours, whatever wrote it, and nothing of ours can come here.
		return fault.New(fault.Fenced, "commit log %v: index %d is taken: %w", w.id, index, err)
	case h.kind == kindFence:
		return fault.New(fault.Fenced, "commit log %v is sealed at index %d: another server has taken over", w.id, index)
	}
	return fault.New(fault.Fenced, "commit log %v: index %d is taken by another writer of the same log", w.id, index)
}

// acknowledge wakes the callers that wait for stored groups, up to the first group that is
// not stored. A group behind a gap may be cut off by a fence in it.
func (w *SegmentWriter) acknowledge() {
	for {
		w.mu.Lock()
		if len(w.mu.flying) == 0 || !w.mu.flying[0].landed {
			w.mu.Unlock()
			return
		}
		g := w.mu.flying[0]
		var waiting int
		if len(w.mu.queue) > 0 {
			waiting = len(w.mu.queue[0].recs)
		}
		w.mu.Unlock()
		for _, s := range g.sinks {
			s.sink.Durable(s.seq)
		}
		w.acked.Store(g.index)
		close(g.done.done)
		if w.opts.Observe != nil {
			w.opts.Observe(Commit{Records: len(g.recs), Bytes: int(g.bytes), Write: g.took})
		}
		w.mu.Lock()
		n := copy(w.mu.flying, w.mu.flying[1:])
		w.mu.flying[n] = nil
		w.mu.flying = w.mu.flying[:n]
		w.mu.kept = append(w.mu.kept, keptSegment{g.index, g.bytes, g.acked})
		w.mu.bytes += g.bytes
		w.mu.pending -= int64(g.size())
		records := len(g.recs)
		took := g.took
		w.recycleLocked(g)
		w.ackedLocked(records, took)
		w.mu.changedLocked()
		w.mu.Unlock()
		if waiting < records {
			runtime.Gosched() // let those just woken into the next group, as FileWriter does
		}
	}
}

// failLocked ends the writer. Called by the flusher alone, so that nothing is
// acknowledged after it.
func (w *SegmentWriter) failLocked(cause error) {
	kind, reason := fault.Unavailable, "COMMIT_LOG_FAILED"
	if errors.Is(cause, fault.Fenced) {
		kind, reason = fault.Fenced, "COMMIT_LOG_FENCED"
	}
	var unacked []*outcome
	for _, g := range append(w.mu.flying, w.mu.queue...) {
		unacked = append(unacked, g.done)
	}
	w.mu.flying, w.mu.queue = nil, nil
	w.mu.failLocked(kind, reason, cause, unacked)
	w.cancel() // the other puts
}

// Trim implements Writer. It keeps the newest acknowledged segment, and what that does not
// prove to have been acknowledged. So a reader of the log can tell what was trimmed from
// what is not stored yet.
func (w *SegmentWriter) Trim(before Pos) error {
	w.trimming.Lock()
	defer w.trimming.Unlock()
	w.mu.Lock()
	if err := w.mu.err; err != nil {
		w.mu.Unlock()
		return err // a server that was taken over may not trim
	}
	own, limit := 0, uint64(0)
	if n := len(w.mu.kept); n > 0 && before.Log >= w.id {
		limit = w.mu.kept[n-1].acked + 1
		if before.Log == w.id {
			limit = min(limit, before.Segment)
		}
		for w.mu.kept[own].index < limit {
			own++
		}
	}
	w.mu.Unlock()
	// A replay of this log begins after these.
	if err := w.seq.Trim(w.ctx, limit); err != nil {
		return fmt.Errorf("trim commit log: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.mu.kept[:own] {
		w.mu.bytes -= k.bytes
	}
	w.mu.kept = append(w.mu.kept[:0], w.mu.kept[own:]...)
	return nil
}
