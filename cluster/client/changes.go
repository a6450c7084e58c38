package client

import (
	"bytes"
	"context"
	"math"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
)

// StreamPartitions implements backend.ChangeStreamer: they are the ranges of the tablets.
func (c *Client) StreamPartitions(ctx context.Context, table string) ([]row.Range, error) {
	t, err := c.o.Schemas.Named(ctx, table)
	if err != nil {
		return nil, err
	}
	if sch := t.Schema(); sch.ChangeStream() == nil {
		return nil, fault.New(fault.FailedPrecondition, "Change streams are not enabled on table %s", sch.Name)
	}
	var ranges []row.Range
	err = c.retryNotServing(ctx, func() error {
		rows, err := c.overlapping(ctx, t, row.Range{})
		if err != nil {
			return err
		}
		ranges = rangesOf(rows)
		return nil
	})
	return ranges, err
}

// overlapping returns the METADATA rows of the tablets that have rows of within, ascending.
// ErrNotServing while tablets are split or merged.
func (c *Client) overlapping(ctx context.Context, t *catalog.Table, within row.Range) ([]*metadata.Row, error) {
	var out []*metadata.Row
	for key := within.Start; ; {
		r, err := c.rowAt(ctx, t.Schema().ID, key)
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && !bytes.Equal(out[n-1].End, r.Start) {
			return nil, rpc.ErrNotServing // they were changed meanwhile
		}
		out = append(out, r)
		if key = r.End; len(key) == 0 || len(within.End) > 0 && bytes.Compare(key, within.End) >= 0 {
			return out, nil
		}
	}
}

func rangesOf(rows []*metadata.Row) []row.Range {
	out := make([]row.Range, len(rows))
	for i, r := range rows {
		out[i] = row.Range{Start: r.Start, End: r.End}
	}
	return out
}

// ReadChanges implements backend.ChangeStreamer. A tablet that is moved or taken over is read
// on at its new place; meanwhile the last watermark is told again. When the partition has
// ended, in a split or merge, the Close names the children of that event, also if they have
// been split or merged since: so all parents of one child name the same.
func (c *Client) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	t, err := c.o.Schemas.Named(ctx, req.Table)
	if err != nil {
		return nil, err
	}
	if req.Every <= 0 {
		return nil, fault.New(fault.Internal, "a read of changes does not say how often to tell watermarks")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &changesCall{Writer: w, cancel: cancel, c: c, t: t, req: req, partition: req.Within, born: req.From.Born, at: req.From}
	if req.Partition != nil {
		r.partition = *req.Partition
	}
	r.watch()
	defer r.end()
	for attempt := 0; ; attempt++ {
		before := r.at
		closed, done, err := r.tablet(ctx)
		switch {
		case done:
			return closed, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !isRetryable(err):
			return nil, err
		}
		if r.at.Through != before.Through || r.at.ChunkEnd != before.ChunkEnd {
			attempt = 0
		}
		if err := c.backoff(ctx, attempt); err != nil {
			return nil, err
		}
	}
}

// A changesCall is a call of ReadChanges. It notes how far that has come.
type changesCall struct {
	changes.Writer
	c   *Client
	t   *catalog.Table
	req *changes.Request
	// partition is what a Close ends.
	partition row.Range

	// born is Position.Born. asked says that it was looked up, if it is 0.
	born  cell.Seq
	asked bool

	at  changes.Position
	row []byte // what at.Row is in

	// mu is held during calls of the Writer.
	mu  sync.Mutex
	err error // of the Writer
	// unflushed says that the Writer has something that it was not told to pass on.
	unflushed bool
	// told is when the Writer was last told something, and silence calls remind when that is
	// too long ago. over says that the Writer is not to be called any more.
	told    time.Time
	silence *time.Timer
	over    bool
	cancel  context.CancelCauseFunc
}

// watch begins to call remind.
func (r *changesCall) watch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = time.Now()
	r.silence = time.AfterFunc(math.MaxInt64, r.remind) // remind uses it
	r.silence.Reset(r.patience())
}

// patience is how long the Writer is told nothing: a little longer than a server takes to tell
// a newer watermark.
func (r *changesCall) patience() time.Duration { return r.req.Every + r.req.Every/8 }

// remind tells the last watermark again while no server tells any: while the tablet is moved,
// taken over, split or merged.
func (r *changesCall) remind() {
	if !r.mu.TryLock() {
		// The Writer is being told something, for which it may take long: a restore writes it back.
		r.silence.Reset(r.req.Every / 8)
		return
	}
	defer r.mu.Unlock()
	if r.over || r.err != nil {
		return
	}
	next := r.patience()
	if silent := time.Since(r.told); silent < next {
		next -= silent
	} else {
		if r.unflushed {
			r.err = r.flushLocked()
		}
		if r.err == nil {
			r.err = r.Writer.Watermark(r.at)
		}
		if r.err != nil {
			r.cancel(r.err)
			return
		}
		r.told, next = time.Now(), r.req.Every
	}
	r.silence.Reset(next)
}

// end waits until remind does not call the Writer, and will not.
func (r *changesCall) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.silence.Stop()
}

// Record implements changes.Writer.
func (r *changesCall) Record(rec *changes.Record, at changes.Position) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false, r.err
	}
	at.Born = r.born
	full, err := r.Writer.Record(rec, at)
	if r.err = err; err != nil {
		return full, err
	}
	r.unflushed = true
	r.note(at)
	return full, nil
}

func (r *changesCall) note(at changes.Position) {
	r.row = append(r.row[:0], at.Row...)
	if r.at = at; at.Row != nil {
		r.at.Row = r.row
	}
}

// Flush implements changes.Writer.
func (r *changesCall) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = r.flushLocked()
	}
	return r.err
}

func (r *changesCall) flushLocked() error {
	r.unflushed = false
	err := r.Writer.Flush()
	r.told = time.Now()
	return err
}

// Watermark implements changes.Writer. What a server that has the tablet no more tells late
// is no news.
func (r *changesCall) Watermark(at changes.Position) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	if at.Through < r.at.Through {
		at = r.at
	}
	at.Born = r.born
	r.note(at)
	r.err = r.Writer.Watermark(r.at)
	r.told = time.Now()
	return r.err
}

// tablet reads from the tablet that has all of the partition, as long as there is one. done
// says that the call is over, with closed or err.
func (r *changesCall) tablet(ctx context.Context) (closed *changes.Close, done bool, err error) {
	within, sch := r.req.Within, r.t.Schema()
	if sch.Stream != nil && sch.Stream.Life > r.req.Life || sch.Stream == nil && sch.DeleteTime.IsZero() {
		return nil, true, fault.New(fault.FailedPrecondition, "Change streams are not enabled on table %s, or were since enabled anew", sch.Name)
	}
	l, err := r.c.locate(ctx, sch.ID, within.Start)
	if err != nil {
		return nil, false, err
	}
	if !contains(l.rows, r.partition) {
		closed, err = r.close(ctx)
		if err == nil && closed == nil {
			// It has not ended: a split that was undone, or one known from before a merge.
			r.c.locationsOf(sch.ID).removeOverlapping(r.partition)
			err = rpc.ErrNotServing
		}
		return closed, err == nil, err
	}
	if same(l.rows, r.partition) && r.born == 0 && !r.asked {
		w, err := r.c.rowAt(ctx, sch.ID, within.Start)
		if err != nil {
			return nil, false, err
		}
		if r.asked = true; same(row.Range{Start: w.Start, End: w.End}, r.partition) {
			r.born = max(1, newestEvent(w))
		}
	}
	// A tablet that has more than the partition may be what it was merged into.
	if !same(l.rows, r.partition) {
		closed, err = r.close(ctx)
		if err != nil || closed != nil {
			return closed, err == nil, err
		}
	}
	read := rpc.ChangesRead{Life: r.req.Life, Within: within, From: r.at, Until: r.req.Until, Every: r.req.Every, Rows: r.req.Rows}
	read.From.Row = bytes.Clone(read.From.Row)
	err = r.c.o.Dialer.Dial(l.addr).ReadChanges(ctx, rpc.Target{Tablet: l.tablet, Schema: sch.Version}, &read, r)
	if err := r.flushTaken(); err != nil {
		return nil, true, err
	}
	if err == nil {
		return nil, true, nil
	}
	r.c.forgetOnError(err, sch.ID, l)
	return nil, false, err
}

// flushTaken passes on what the Writer took, and returns its error.
func (r *changesCall) flushTaken() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil && r.unflushed {
		r.err = r.flushLocked()
	}
	return r.err
}

// close returns how the partition has ended, nil if it has not: one tablet has all of it,
// and it was never a tablet itself that others have taken the place of.
func (r *changesCall) close(ctx context.Context) (*changes.Close, error) {
	within := r.partition
	rows, err := r.c.overlapping(ctx, r.t, within)
	if err != nil {
		return nil, err
	}
	for _, w := range rows {
		if same(row.Range{Start: w.Start, End: w.End}, within) {
			r.c.locationsOf(w.Table).removeOverlapping(within)
			return nil, nil
		}
	}
	at := r.at
	at.Row = bytes.Clone(at.Row)
	for _, w := range rows {
		if w.Stream == nil || w.Stream.Life != r.req.Life {
			continue
		}
		if e := r.ended(w.Stream); e != nil {
			at.Born = e.Stamp
			return &changes.Close{At: at, Partitions: clip(e.Children, within)}, nil
		}
	}
	if len(rows) == 1 {
		return nil, nil
	}
	// It was no tablet, or too long ago.
	for _, w := range rows {
		at.Born = max(at.Born, newestEvent(w))
	}
	return &changes.Close{At: at, Partitions: rangesOf(rows)}, nil
}

// ended returns the event that ended the partition, nil if there is none.
func (r *changesCall) ended(s *metadata.StreamState) *metadata.Event {
	if r.born == 0 {
		return s.Ended(r.partition, r.at.Through)
	}
	return s.Ended(r.partition, r.born+1)
}

// newestEvent returns the stamp of the split or merge that made a tablet, 0 if there was
// none.
func newestEvent(r *metadata.Row) (newest cell.Seq) {
	if r.Stream != nil {
		for i := range r.Stream.Lineage {
			newest = max(newest, r.Stream.Lineage[i].Stamp)
		}
	}
	return newest
}

// clip returns those of ranges that have something of within.
func clip(ranges []row.Range, within row.Range) []row.Range {
	var out []row.Range
	for _, r := range ranges {
		if !r.Intersect(within).Empty() {
			out = append(out, r)
		}
	}
	return out
}

func same(a, b row.Range) bool { return bytes.Equal(a.Start, b.Start) && bytes.Equal(a.End, b.End) }

func contains(a, b row.Range) bool {
	return bytes.Compare(a.Start, b.Start) <= 0 && (len(a.End) == 0 || len(b.End) > 0 && bytes.Compare(b.End, a.End) <= 0)
}
