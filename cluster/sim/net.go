package sim

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// Lock and Store are the names of the lock service and of the store in messages.
const (
	Lock  = "lock"
	Store = "store"
)

// Attend is the kind of the messages by which a master attends to a server.
const Attend = "Attend"

// A Message is a question that one node asks another, or the answer.
type Message struct {
	From, To string
	// Kind is what is asked for: the name of a method, or memory.Heartbeat.
	Kind string
	// Answer says that it is the answer to what To has asked.
	Answer bool
	// Changes says that what is asked for changes something; Twice that it may
	// arrive more than once.
	Changes, Twice bool
}

// A Net says what becomes of a message. It returns when the message arrives, or
// an error if it is lost: ErrRefused if its sender is certain of that. ctx ends
// with the cluster, not with the patience of the caller.
type Net func(ctx context.Context, m Message) error

// ErrRefused says that a message was not sent.
var ErrRefused = errors.New("the other node cannot be reached")

var errEnded = errors.New("the process has ended")

// A lostError says that there is no answer.
type lostError struct{ error }

func (e lostError) Unwrap() error { return e.error }

func isLost(err error) bool {
	var l lostError
	return errors.As(err, &l)
}

// A node is a process as the network knows it. When it has ended it sends nothing more,
// and its effects are not seen; what it has sent arrives.
type node struct {
	name  string
	clock *Clock
	ended atomic.Bool
}

// exchange carries a question of n, which do answers, and the answer back. The
// question goes on its way even if n gives up meanwhile.
func exchange[T any](ctx context.Context, c *Cluster, n *node, m Message, do func(context.Context) (T, error)) (out T, err error) {
	type answer struct {
		v    T
		err  error
		lost error
	}
	if n.ended.Load() {
		return out, lostError{errEnded}
	}
	if c.o.direct {
		return do(ctx)
	}
	if err := ctx.Err(); err != nil {
		return out, lostError{err}
	}
	var left time.Duration // counted from when the question arrives
	end, limited := ctx.Deadline()
	if limited {
		left = time.Until(end)
	}
	once := func() (a answer) {
		if err := c.o.Net(c.life, m); err != nil {
			return answer{lost: err}
		}
		if ctx.Err() != nil && !m.Changes {
			return answer{lost: ctx.Err()}
		}
		at, cancel := context.WithoutCancel(ctx), context.CancelFunc(nil)
		if limited {
			at, cancel = context.WithTimeout(at, left)
		} else {
			at, cancel = context.WithCancel(at)
		}
		defer cancel()
		if ctx.Err() == nil {
			defer context.AfterFunc(ctx, cancel)()
		}
		a.v, a.err = do(at)
		back := m
		back.From, back.To, back.Answer = m.To, m.From, true
		a.lost = c.o.Net(c.life, back)
		return a
	}
	got := make(chan answer, 2)
	c.carry(func() { got <- once() })
	if (m.Twice || c.o.twiceAll) && c.o.Twice != nil && c.o.Twice(m) {
		c.carry(func() { got <- once() })
	}
	select {
	case a := <-got:
		switch {
		case n.ended.Load():
			return out, lostError{errEnded}
		case a.lost != nil:
			return out, lostError{a.lost}
		}
		return a.v, a.err
	case <-ctx.Done():
		return out, lostError{context.Cause(ctx)}
	}
}

// carry has a message carried by a goroutine that has done that before, if there is one. A
// new one copies its stack until that is large enough.
func (c *Cluster) carry(message func()) {
	c.late.Add(1)
	select {
	case c.idle <- message:
	default:
		go c.carrier(message)
	}
}

func (c *Cluster) carrier(message func()) {
	for {
		message()
		c.late.Done()
		select {
		case message = <-c.idle:
		case <-c.life.Done():
			return
		}
	}
}

// lockOf is the lock service as a node sees it.
func (c *Cluster) lockOf(n *node) lock.Service {
	return c.lock.Client(func(ctx context.Context, kind string, do func()) error {
		_, err := exchange(ctx, c, n, Message{From: n.name, To: Lock, Kind: kind, Changes: kind != "Get" && kind != "List" && kind != "Watch"},
			func(context.Context) (struct{}, error) {
				do()
				return struct{}{}, nil
			})
		return err
	}, n.clock)
}

type dialer struct {
	c *Cluster
	n *node
}

// Dial implements rpc.Dialer.
func (d dialer) Dial(addr string) rpc.TabletServer { return &link{d.c, d.n, addr} }

// A link is one node's way to a tablet server.
type link struct {
	c  *Cluster
	n  *node
	to string
}

var _ rpc.TabletServer = (*link)(nil)

// What a call does.
type nature int

const (
	reads  nature = iota
	alters        // and its answer matters
	hints         // may be lost, come late, and come twice
)

func call[T any](ctx context.Context, l *link, kind string, is nature, do func(context.Context, rpc.TabletServer) (T, error)) (T, error) {
	out, err := exchange(ctx, l.c, l.n, Message{From: l.n.name, To: l.to, Kind: kind, Changes: is != reads, Twice: is == hints}, func(ctx context.Context) (out T, err error) {
		s, seen := l.c.Server(l.to), l.c.served(l.to)
		if s == nil || seen == nil {
			return out, lostError{ErrRefused}
		}
		out, err = do(ctx, stream.Inline(seen))
		if l.c.Server(l.to) != s {
			return out, lostError{errEnded} // before it answered
		}
		return out, err
	})
	switch {
	case !isLost(err):
		return out, err
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case is == alters && !errors.Is(err, ErrRefused):
		return out, errors.Join(rpc.ErrUnknown, err)
	}
	return out, fault.New(fault.Unavailable, "call of %s: %w", l.to, err)
}

// tell is call for what has no answer but an error.
func tell(ctx context.Context, l *link, kind string, is nature, do func(context.Context, rpc.TabletServer) error) error {
	_, err := call(ctx, l, kind, is, func(ctx context.Context, s rpc.TabletServer) (struct{}, error) { return struct{}{}, do(ctx, s) })
	return err
}

type readAnswer struct {
	rest  []row.Range
	stats scan.Stats
	rows  *buffer
}

func (l *link) ReadRows(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
	// Rows travel when they are complete, and are the caller's business no more
	// if the answer is lost.
	a, err := call(ctx, l, "ReadRows", reads, func(ctx context.Context, s rpc.TabletServer) (a readAnswer, err error) {
		a.rows = new(buffer)
		a.rest, a.stats, err = s.ReadRows(ctx, at, req, a.rows)
		return a, err
	})
	if err != nil {
		return req.Ranges, scan.Stats{}, err
	}
	return a.rest, a.stats, a.rows.send(ctx, w)
}

func (l *link) MutateRow(ctx context.Context, at rpc.Target, e *row.Entry) error {
	return tell(ctx, l, "MutateRow", alters, func(ctx context.Context, s rpc.TabletServer) error { return s.MutateRow(ctx, at, e) })
}

func (l *link) MutateRows(ctx context.Context, at rpc.Target, entries []row.Entry) ([]error, error) {
	return call(ctx, l, "MutateRows", alters, func(ctx context.Context, s rpc.TabletServer) ([]error, error) { return s.MutateRows(ctx, at, entries) })
}

func (l *link) CheckAndMutateRow(ctx context.Context, at rpc.Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	return call(ctx, l, "CheckAndMutateRow", alters, func(ctx context.Context, s rpc.TabletServer) (bool, error) {
		return s.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
	})
}

func (l *link) ReadModifyWriteRow(ctx context.Context, at rpc.Target, key []byte, rules []row.Rule) ([]row.Cell, error) {
	return call(ctx, l, "ReadModifyWriteRow", alters, func(ctx context.Context, s rpc.TabletServer) ([]row.Cell, error) {
		return s.ReadModifyWriteRow(ctx, at, key, rules)
	})
}

type updateAnswer struct {
	cells  []row.Cell
	became rpc.UpdateOutcome
}

func (l *link) UpdateRow(ctx context.Context, at rpc.Target, key, token []byte, read *filter.Node, seen []byte, muts []row.Mutation) ([]row.Cell, rpc.UpdateOutcome, error) {
	is := alters
	if len(seen) == 0 {
		is = reads
	}
	a, err := call(ctx, l, "UpdateRow", is, func(ctx context.Context, s rpc.TabletServer) (a updateAnswer, err error) {
		a.cells, a.became, err = s.UpdateRow(ctx, at, key, token, read, seen, muts)
		return a, err
	})
	return a.cells, a.became, err
}

func (l *link) ApplyView(ctx context.Context, at rpc.Target, rows []rpc.ViewRow) error {
	return tell(ctx, l, "ApplyView", alters, func(ctx context.Context, s rpc.TabletServer) error { return s.ApplyView(ctx, at, rows) })
}

func (l *link) DropRange(ctx context.Context, at rpc.Target, r row.Range) error {
	return tell(ctx, l, "DropRange", alters, func(ctx context.Context, s rpc.TabletServer) error { return s.DropRange(ctx, at, r) })
}

// errMessage ends a read of changes where a message is full.
var errMessage = errors.New("a message of changes")

// A changesMessage keeps what comes up to the first Flush or Watermark.
type changesMessage struct {
	recs []changes.Record
	mark *changes.Position
}

func (m *changesMessage) Record(r *changes.Record, _ changes.Position) (bool, error) {
	c := *r
	c.Key, c.Changes = bytes.Clone(r.Key), slices.Clone(r.Changes)
	for i := range c.Changes {
		c.Changes[i].Qualifier, c.Changes[i].Value = bytes.Clone(c.Changes[i].Qualifier), bytes.Clone(c.Changes[i].Value)
	}
	m.recs = append(m.recs, c)
	return len(m.recs) == 16, nil
}

func (m *changesMessage) Flush() error { return errMessage }

func (m *changesMessage) Watermark(at changes.Position) error {
	at.Row = bytes.Clone(at.Row)
	m.mark = &at
	return errMessage
}

// ReadChanges asks again after each message: nothing but messages may be lost.
func (l *link) ReadChanges(ctx context.Context, at rpc.Target, req *rpc.ChangesRead, w changes.Writer) error {
	read := *req
	for {
		ended := false
		m, err := call(ctx, l, "ReadChanges", reads, func(ctx context.Context, s rpc.TabletServer) (*changesMessage, error) {
			m := new(changesMessage)
			err := s.ReadChanges(ctx, at, &read, m)
			if errors.Is(err, errMessage) {
				return m, nil
			}
			ended = err == nil
			return m, err
		})
		if err != nil {
			return err
		}
		for i := range m.recs {
			after := m.recs[i].After()
			if _, err := w.Record(&m.recs[i], after); err != nil {
				return err
			}
			read.From = after
		}
		if len(m.recs) > 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		if m.mark != nil {
			if err := w.Watermark(*m.mark); err != nil {
				return err
			}
			read.From = *m.mark
		}
		if ended {
			return nil
		}
	}
}

func (l *link) Load(ctx context.Context, keys []rpc.TabletKey) error {
	return tell(ctx, l, "Load", hints, func(ctx context.Context, s rpc.TabletServer) error { return s.Load(ctx, keys) })
}

func (l *link) Unload(ctx context.Context, tablets []metadata.TabletID) error {
	return tell(ctx, l, "Unload", hints, func(ctx context.Context, s rpc.TabletServer) error { return s.Unload(ctx, tablets) })
}

func (l *link) Split(ctx context.Context, tablet metadata.TabletID, at []byte) error {
	return tell(ctx, l, "Split", hints, func(ctx context.Context, s rpc.TabletServer) error { return s.Split(ctx, tablet, at) })
}

func (l *link) Merge(ctx context.Context, left, right metadata.TabletID) error {
	return tell(ctx, l, "Merge", hints, func(ctx context.Context, s rpc.TabletServer) error { return s.Merge(ctx, left, right) })
}

func (l *link) Flush(ctx context.Context, tablets []metadata.TabletID) error {
	return tell(ctx, l, "Flush", hints, func(ctx context.Context, s rpc.TabletServer) error { return s.Flush(ctx, tablets) })
}

func (l *link) Compact(ctx context.Context, tablets []metadata.TabletID) error {
	return tell(ctx, l, "Compact", hints, func(ctx context.Context, s rpc.TabletServer) error { return s.Compact(ctx, tablets) })
}

func (l *link) Pause(ctx context.Context, number uint64, tablets []metadata.TabletID, hold time.Duration) error {
	return tell(ctx, l, "Pause", hints, func(ctx context.Context, s rpc.TabletServer) error { return s.Pause(ctx, number, tablets, hold) })
}

func (l *link) Cut(ctx context.Context, number uint64) ([]*metadata.Row, error) {
	return call(ctx, l, "Cut", alters, func(ctx context.Context, s rpc.TabletServer) ([]*metadata.Row, error) { return s.Cut(ctx, number) })
}

func (l *link) Resume(ctx context.Context, number uint64) error {
	return tell(ctx, l, "Resume", hints, func(ctx context.Context, s rpc.TabletServer) error { return s.Resume(ctx, number) })
}

func (l *link) Needed(ctx context.Context, objects []string) ([]string, error) {
	return call(ctx, l, "Needed", reads, func(ctx context.Context, s rpc.TabletServer) ([]string, error) { return s.Needed(ctx, objects) })
}

func (l *link) Attend(ctx context.Context, incarnation uint64, epoch int64, echo time.Duration) (time.Duration, error) {
	return call(ctx, l, Attend, hints, func(ctx context.Context, s rpc.TabletServer) (time.Duration, error) {
		return s.Attend(ctx, incarnation, epoch, echo)
	})
}

func (l *link) Status(ctx context.Context) (*rpc.Status, error) {
	return call(ctx, l, "Status", reads, func(ctx context.Context, s rpc.TabletServer) (*rpc.Status, error) { return s.Status(ctx) })
}

func (l *link) Describe(ctx context.Context, table uint64, groups bool) ([]rpc.TabletDetail, error) {
	return call(ctx, l, "Describe", reads, func(ctx context.Context, s rpc.TabletServer) ([]rpc.TabletDetail, error) {
		return s.Describe(ctx, table, groups)
	})
}

func (l *link) Sum(ctx context.Context, table uint64) (*rpc.TabletSum, error) {
	return call(ctx, l, "Sum", reads, func(ctx context.Context, s rpc.TabletServer) (*rpc.TabletSum, error) { return s.Sum(ctx, table) })
}

func (l *link) SplitKey(ctx context.Context, tablet metadata.TabletID) (key []byte, ok bool, err error) {
	key, err = call(ctx, l, "SplitKey", reads, func(ctx context.Context, s rpc.TabletServer) (key []byte, err error) {
		key, ok, err = s.SplitKey(ctx, tablet)
		return key, err
	})
	return key, ok && err == nil, err
}

func (l *link) Cuts(ctx context.Context, tablet metadata.TabletID) ([][]byte, error) {
	return call(ctx, l, "Cuts", reads, func(ctx context.Context, s rpc.TabletServer) ([][]byte, error) { return s.Cuts(ctx, tablet) })
}

func (l *link) Verify(ctx context.Context, tablet metadata.TabletID) ([]rpc.Verified, error) {
	return call(ctx, l, "Verify", reads, func(ctx context.Context, s rpc.TabletServer) ([]rpc.Verified, error) { return s.Verify(ctx, tablet) })
}

func (l *link) Ask(ctx context.Context, what string, question []byte) ([]byte, error) {
	return call(ctx, l, "Ask", reads, func(ctx context.Context, s rpc.TabletServer) ([]byte, error) { return s.Ask(ctx, what, question) })
}

func (l *link) DropDamaged(ctx context.Context, tablet metadata.TabletID, object string) (*rpc.Loss, error) {
	return call(ctx, l, "DropDamaged", alters, func(ctx context.Context, s rpc.TabletServer) (*rpc.Loss, error) {
		return s.DropDamaged(ctx, tablet, object)
	})
}

// A buffer keeps what a read returns until it is certain to arrive.
type buffer struct {
	rows  []bufferedRow
	bytes int
}

type bufferedRow struct {
	key   []byte
	cells []row.Cell
	done  bool // a row; else only how far the read has come
}

// bufferBytes is how much a read returns at a time.
const bufferBytes = 1 << 20

func (b *buffer) StartRow(key []byte) {
	b.rows = append(b.rows, bufferedRow{key: append([]byte(nil), key...)})
}

func (b *buffer) Cell(c *row.Cell) {
	r := &b.rows[len(b.rows)-1]
	r.cells = append(r.cells, c.Clone())
	b.bytes += len(c.Value) + len(c.Qualifier)
}

func (b *buffer) EndRow() (bool, error) {
	b.rows[len(b.rows)-1].done = true
	return b.bytes > bufferBytes, nil
}

func (b *buffer) Scanned(key []byte) {
	b.rows = append(b.rows, bufferedRow{key: append([]byte(nil), key...)})
}

func (b *buffer) Flush() error { return nil }

func (b *buffer) send(ctx context.Context, to scan.Writer) error {
	for _, r := range b.rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !r.done {
			to.Scanned(r.key)
			continue
		}
		to.StartRow(r.key)
		for i := range r.cells {
			to.Cell(&r.cells[i])
		}
		full, err := to.EndRow()
		if err == nil && full {
			err = to.Flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
