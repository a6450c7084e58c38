package tabletserver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
)

// gather is for how long more changes are waited for where it matters which rows have changed.
const gather = 5 * time.Millisecond

// ReadChanges implements rpc.Data.
func (s *Server) ReadChanges(ctx context.Context, at rpc.Target, req *rpc.ChangesRead, w changes.Writer) error {
	t, err := s.lookup(ctx, at)
	if err != nil {
		return err
	}
	if req.Until != 0 && req.From.ChunkEnd == 0 && req.From.Through >= req.Until {
		t.askWatermarks()
		return nil
	}
	rows := req.Rows
	if req.Untold {
		// As it is now: a client's call does not become a view's when the stream is disabled.
		rows = t.table.Schema().ChangeStream() == nil
	}
	leave := s.promises.join(t.Tablet, req.Every)
	defer leave()
	r := changesReader{s: s, t: t, req: req, rows: rows, w: w, at: req.From}
	timer := time.NewTimer(req.Every)
	defer timer.Stop()
	for {
		ready, asked := t.ChangesReady(), t.watermarksAsked()
		done, more, err := r.read(ctx)
		if err != nil || done {
			return err
		}
		if more {
			continue
		}
		select {
		case <-ready:
			if rows {
				// A view does not wait for each change. Its writers would for this processor.
				select {
				case <-time.After(gather):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		case <-timer.C:
			if err := w.Watermark(r.at); err != nil {
				return err
			}
			timer.Reset(req.Every)
		case <-asked:
			done, more, err := r.read(ctx)
			if err != nil || done {
				return err
			}
			if !more {
				if err := w.Watermark(r.at); err != nil {
					return err
				}
				timer.Reset(req.Every)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return rpc.ErrNotServing
		}
	}
}

// watermarksAsked returns a channel that is closed when askWatermarks is called.
func (t *served) watermarksAsked() <-chan struct{} {
	c := make(chan struct{})
	for {
		if p := t.askedNow.Load(); p != nil {
			return *p
		}
		if t.askedNow.CompareAndSwap(nil, &c) {
			return c
		}
	}
}

// askWatermarks has all readers of the tablet's changes told up to where there is nothing.
func (t *served) askWatermarks() {
	if p := t.askedNow.Load(); p != nil && t.askedNow.CompareAndSwap(p, nil) {
		close(*p)
	}
}

// A changesReader is a call of ReadChanges.
type changesReader struct {
	s   *Server
	t   *served
	req *rpc.ChangesRead
	// rows says that a view reads.
	rows bool
	w    changes.Writer
	at   changes.Position
}

// read gives what there is until w is full, and has it passed on. done says that
// everything up to Until was given, more that there is more at once.
func (r *changesReader) read(ctx context.Context) (done, more bool, err error) {
	if err := r.s.alive(); err != nil {
		return false, false, errors.Join(rpc.ErrNotServing, err)
	}
	sch, until := r.t.table.Schema(), r.req.Until
	if sch.Stream == nil || sch.Stream.Life != r.req.Life {
		return false, false, fault.New(fault.FailedPrecondition, "Change streams are not enabled on table %s, or were since enabled anew", sch.Name)
	}
	taken, full, past := false, false, false
	changed := r.t.ReadChanges
	if r.rows {
		changed = r.t.ReadChangedRows
	}
	next, _, err := changed(ctx, r.at, r.req.Within, func(rec *changes.Record) (bool, error) {
		if until != 0 {
			// A chunk is read up to until only: what is behind has not been read then.
			rec.ChunkEnd = min(rec.ChunkEnd, until)
			if rec.Stamp > until {
				past = rec.ChunkEnd == 0
				return !past, nil
			}
		}
		taken = true
		var err error
		full, err = r.w.Record(rec, rec.After())
		return !full, err
	})
	r.at = next
	if taken {
		if ferr := r.w.Flush(); ferr != nil {
			return false, false, ferr
		}
	}
	if err != nil {
		return false, false, notServing(err)
	}
	done = until != 0 && (past || next.ChunkEnd == 0 && next.Through >= until)
	return done, full, nil
}

// promises keeps the promises of a server to readers of changes: that no later change has a
// stamp up to some number. The number is in the commit log, durable, before it is promised.
// Whoever takes over from the server replays it, and starts above.
type promises struct {
	mu      sync.Mutex
	readers map[*tablet.Tablet][]time.Duration
	wake    chan struct{}
	clock   *stamp.Clock
	last    cell.Seq // in the log
	renew   bool     // it is to be appended again, so that what is before can be trimmed
}

func (p *promises) init(clock *stamp.Clock) {
	p.readers, p.wake, p.clock = map[*tablet.Tablet][]time.Duration{}, make(chan struct{}, 1), clock
}

// found notes a promise that is in the log already.
func (p *promises) found(w cell.Seq) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = max(p.last, w)
}

// join notes a reader that wants to know every so often up to where there will be no
// later change.
func (p *promises) join(t *tablet.Tablet, every time.Duration) (leave func()) {
	p.mu.Lock()
	p.readers[t] = append(p.readers[t], every)
	p.mu.Unlock()
	p.signal()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		list := p.readers[t]
		for i, d := range list {
			if d == every {
				list[i] = list[len(list)-1]
				list = list[:len(list)-1]
				break
			}
		}
		if p.readers[t] = list; len(list) == 0 {
			delete(p.readers, t)
		}
	}
}

func (p *promises) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// interval returns how often to promise; 0 if there is no reader.
func (p *promises) interval(most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.readers) == 0 {
		return 0
	}
	for _, list := range p.readers {
		for _, d := range list {
			most = min(most, d/2)
		}
	}
	return max(most, time.Millisecond)
}

// tablets returns those with readers.
func (p *promises) tablets() []*tablet.Tablet {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*tablet.Tablet, 0, len(p.readers))
	for t := range p.readers {
		out = append(out, t)
	}
	return out
}

// next returns the number to promise, 0 for none. Without a reader it is the last one again,
// if that is to be renewed.
func (p *promises) next(now time.Time) cell.Seq {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, _ := p.clock.Read(now)
	w := stamp.At(t)
	switch {
	case len(p.readers) > 0 && w > p.last:
		p.last = w
	case !p.renew:
		return 0
	}
	p.renew = false
	return p.last
}

// promiseLoop makes promises for as long as there are readers.
func (s *Server) promiseLoop() {
	last := time.Now().Add(-time.Hour)
	for {
		var due <-chan time.Time
		if d := s.promises.interval(s.o.ClockEvery); d > 0 {
			due = time.After(max(0, d-time.Since(last)))
		}
		select {
		case <-s.promises.wake:
			if !s.users.clock.outdated() {
				continue // how often may have changed
			}
			s.promises.mu.Lock()
			s.promises.renew = true
			s.promises.mu.Unlock()
		case <-due:
		case <-s.ctx.Done():
			return
		}
		last = time.Now()
		if err := s.promiseNow(s.ctx); err != nil && s.ctx.Err() == nil {
			s.o.Log.Warn("could not write a clock record; watermarks of change streams wait", "error", err)
		}
	}
}

// promiseNow appends a clock record and, when it is durable, has the tablets with readers
// take no stamp up to it.
func (s *Server) promiseNow(ctx context.Context) error {
	w := s.promises.next(s.o.Now())
	if w == 0 {
		return nil
	}
	if err := s.users.clock.append(ctx, w); err != nil {
		return err
	}
	for _, t := range s.promises.tablets() {
		t.Promise(w)
	}
	return nil
}

// Changes is what a server keeps of changes at one moment.
type Changes struct {
	Tables []tablet.TableKept
	// Max is the most that is kept for clients, 0 if that is not bounded. Dropped counts the
	// bytes that went for it before their retention ended.
	Max, Dropped int64
	// ClockAhead is by how much the clock was set forward, if commit times do not follow it.
	ClockAhead time.Duration
}

// Changes returns what the server keeps of changes. It visits every tablet.
func (s *Server) Changes() Changes {
	c := Changes{Tables: tablet.KeptBy(s.tabletsOf(s.users)), Max: s.o.ChangeStreamMax, Dropped: s.droppedChanges.Load()}
	_, c.ClockAhead = s.clock.Read(s.o.Now())
	return c
}

// boundEvery is how often change files are counted.
const boundEvery = 5 * time.Second

// boundChanges keeps the change files of the server's tablets below ChangeStreamMax.
func (s *Server) boundChanges() {
	tick := time.NewTicker(boundEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		s.boundChangesNow(s.ctx)
	}
}

func (s *Server) boundChangesNow(ctx context.Context) {
	tablets := slices.DeleteFunc(s.tabletsOf(s.users), func(t *tablet.Tablet) bool { return !t.StreamsToClients() })
	for _, d := range tablet.DropOldChanges(ctx, tablets, s.o.ChangeStreamMax) {
		if d.Err != nil {
			if ctx.Err() == nil {
				s.o.Log.Error("could not drop changes, of which there are more than change-stream-max", "tablet", d.Tablet.Name(), "error", d.Err)
			}
			continue
		}
		s.droppedChanges.Add(d.Bytes)
		s.o.Log.Error("dropped changes before their retention ended, as there are more than change-stream-max: readers that are behind must begin anew",
			"tablet", d.Tablet.Name(), "files", d.Files, "bytes", d.Bytes, "until", d.Until, "max", s.o.ChangeStreamMax)
	}
}

// ClockTablet is the tablet of clock records in a commit log. No tablet has this id. The
// sequence number of one says up to where there is no later change than those before it.
const ClockTablet = 0

// clockRecord is the content of a clock record: its number says everything.
type clockRecord struct{}

// Records implements commitlog.Records.
func (clockRecord) Records() int { return 1 }

// AppendRecord implements commitlog.Records.
func (clockRecord) AppendRecord(dst []byte, _ int) ([]byte, int) { return dst, 1 }

// renewBytes is how much of a log is kept for its newest clock record, and for nothing else,
// before that is appended again.
const renewBytes = 1 << 20

// A clockedLog is a commit log that keeps its newest clock record.
type clockedLog struct {
	ownLog
	at    atomic.Pointer[commitlog.Pos] // of the newest that is durable
	stale atomic.Bool                   // it holds up trimming
	wake  func()
}

// append adds a clock record and waits until it is durable. If that fails, the next Trim asks
// for it again.
func (c *clockedLog) append(ctx context.Context, w cell.Seq) error {
	defer c.stale.Store(false)
	if err := c.allow(ctx, w); err != nil {
		return err
	}
	room, err := c.Reserve(ctx, 0)
	if err != nil {
		return err
	}
	pos := c.Append(room, ClockTablet, uint64(w), clockRecord{}, nil)
	if err := c.Wait(ctx, pos); err != nil {
		return err
	}
	c.at.Store(&pos)
	return nil
}

// found notes the newest clock record of a log that is gone on with.
func (c *clockedLog) found(pos commitlog.Pos) { c.at.Store(&pos) }

// outdated tells whether a clock record is to come in the place of the newest one.
func (c *clockedLog) outdated() bool { return c.stale.Load() }

// Trim implements commitlog.Writer.
func (c *clockedLog) Trim(before commitlog.Pos) error {
	at := c.at.Load()
	if at == nil || !at.Less(before) {
		return c.ownLog.Trim(before)
	}
	err := c.ownLog.Trim(*at)
	if at.Segment < before.Segment && c.Bytes() > renewBytes && !c.stale.Swap(true) {
		c.wake()
	}
	return err
}
