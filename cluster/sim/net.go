package sim

import (
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

type dialer struct {
	c    *Cluster
	node string
	p    *process
}

// Dial implements rpc.Dialer.
func (d dialer) Dial(addr string) rpc.TabletServer {
	return &link{d.c, d.c.net(d.p, d.node, addr), d.node, addr}
}

// A link is one node's way to a tablet server.
type link struct {
	c        *Cluster
	net      func(context.Context) error
	from, to string
}

var _ rpc.TabletServer = (*link)(nil)

// call asks the server, unless the question or the answer is lost.
func (l *link) call(ctx context.Context, changes bool, do func(rpc.TabletServer) error) error {
	if err := l.net(ctx); err != nil {
		return fault.New(fault.Unavailable, "call of %s: %w", l.to, err)
	}
	s := l.c.Server(l.to)
	if s == nil {
		return fault.New(fault.Unavailable, "%s cannot be reached", l.to)
	}
	err := do(s)
	if lost := l.c.o.Net(ctx, l.to, l.from); lost != nil || l.c.Server(l.to) != s {
		if lost == nil {
			lost = errors.New("it has ended")
		}
		if changes {
			return errors.Join(rpc.ErrUnknown, lost)
		}
		return fault.New(fault.Unavailable, "call of %s: %w", l.to, lost)
	}
	return err
}

func (l *link) ReadRows(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) (rest []row.Range, stats scan.Stats, err error) {
	// Rows travel when they are complete, and are the caller's business no more
	// if the answer is lost.
	rest = req.Ranges
	held := &buffer{to: w}
	err = l.call(ctx, false, func(s rpc.TabletServer) error {
		var err error
		rest, stats, err = s.ReadRows(ctx, at, req, held)
		return err
	})
	if err != nil {
		return req.Ranges, scan.Stats{}, err
	}
	return rest, stats, held.send(ctx)
}

func (l *link) MutateRow(ctx context.Context, at rpc.Target, e *row.Entry) error {
	return l.call(ctx, true, func(s rpc.TabletServer) error { return s.MutateRow(ctx, at, e) })
}

func (l *link) MutateRows(ctx context.Context, at rpc.Target, entries []row.Entry) (errs []error, err error) {
	err = l.call(ctx, true, func(s rpc.TabletServer) error {
		var err error
		errs, err = s.MutateRows(ctx, at, entries)
		return err
	})
	return errs, err
}

func (l *link) CheckAndMutateRow(ctx context.Context, at rpc.Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (matched bool, err error) {
	err = l.call(ctx, true, func(s rpc.TabletServer) error {
		var err error
		matched, err = s.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
		return err
	})
	return matched, err
}

func (l *link) ReadModifyWriteRow(ctx context.Context, at rpc.Target, key []byte, rules []row.Rule) (cells []row.Cell, err error) {
	err = l.call(ctx, true, func(s rpc.TabletServer) error {
		var err error
		cells, err = s.ReadModifyWriteRow(ctx, at, key, rules)
		return err
	})
	return cells, err
}

func (l *link) DropRange(ctx context.Context, at rpc.Target, r row.Range) error {
	return l.call(ctx, true, func(s rpc.TabletServer) error { return s.DropRange(ctx, at, r) })
}

func (l *link) Load(ctx context.Context, keys []rpc.TabletKey) error {
	return l.call(ctx, false, func(s rpc.TabletServer) error { return s.Load(ctx, keys) })
}

func (l *link) Unload(ctx context.Context, tablets []metadata.TabletID) error {
	return l.call(ctx, false, func(s rpc.TabletServer) error { return s.Unload(ctx, tablets) })
}

func (l *link) Split(ctx context.Context, tablet metadata.TabletID, at []byte) error {
	return l.call(ctx, false, func(s rpc.TabletServer) error { return s.Split(ctx, tablet, at) })
}

func (l *link) Merge(ctx context.Context, left, right metadata.TabletID) error {
	return l.call(ctx, false, func(s rpc.TabletServer) error { return s.Merge(ctx, left, right) })
}

func (l *link) Flush(ctx context.Context, tablets []metadata.TabletID) error {
	return l.call(ctx, false, func(s rpc.TabletServer) error { return s.Flush(ctx, tablets) })
}

func (l *link) Compact(ctx context.Context, tablets []metadata.TabletID) error {
	return l.call(ctx, false, func(s rpc.TabletServer) error { return s.Compact(ctx, tablets) })
}

func (l *link) Pause(ctx context.Context, number uint64, tablets []metadata.TabletID, hold time.Duration) error {
	return l.call(ctx, false, func(s rpc.TabletServer) error { return s.Pause(ctx, number, tablets, hold) })
}

func (l *link) Cut(ctx context.Context, number uint64) (rows []*metadata.Row, err error) {
	err = l.call(ctx, false, func(s rpc.TabletServer) error {
		var err error
		rows, err = s.Cut(ctx, number)
		return err
	})
	return rows, err
}

func (l *link) Resume(ctx context.Context, number uint64) error {
	return l.call(ctx, false, func(s rpc.TabletServer) error { return s.Resume(ctx, number) })
}

func (l *link) InUse(ctx context.Context, objects []string) (used []string, err error) {
	err = l.call(ctx, false, func(s rpc.TabletServer) error {
		var err error
		used, err = s.InUse(ctx, objects)
		return err
	})
	return used, err
}

func (l *link) Status(ctx context.Context) (st *rpc.Status, err error) {
	err = l.call(ctx, false, func(s rpc.TabletServer) error {
		var err error
		st, err = s.Status(ctx)
		return err
	})
	return st, err
}

// A buffer keeps what a read returns until it is certain to arrive.
type buffer struct {
	to    scan.Writer
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

func (b *buffer) send(ctx context.Context) error {
	for _, r := range b.rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !r.done {
			b.to.Scanned(r.key)
			continue
		}
		b.to.StartRow(r.key)
		for i := range r.cells {
			b.to.Cell(&r.cells[i])
		}
		full, err := b.to.EndRow()
		if err == nil && full {
			err = b.to.Flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A faultyStore is a store at the other end of a network. A change whose answer
// is lost was made.
type faultyStore struct {
	objectstore.Store
	fault func(ctx context.Context) error
}

func (s *faultyStore) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if err := s.fault(ctx); err != nil {
		return fault.New(fault.Unavailable, "store: %w", err)
	}
	err := s.Store.PutIfAbsent(ctx, name, data)
	if lost := s.fault(ctx); lost != nil {
		return fault.New(fault.Unavailable, "store: %w", lost)
	}
	return err
}

func (s *faultyStore) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if err := s.fault(ctx); err != nil {
		return nil, fault.New(fault.Unavailable, "store: %w", err)
	}
	return s.Store.Create(ctx, name)
}

func (s *faultyStore) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	if err := s.fault(ctx); err != nil {
		return nil, fault.New(fault.Unavailable, "store: %w", err)
	}
	return s.Store.Open(ctx, name)
}

func (s *faultyStore) Get(ctx context.Context, name string) ([]byte, error) {
	if err := s.fault(ctx); err != nil {
		return nil, fault.New(fault.Unavailable, "store: %w", err)
	}
	return s.Store.Get(ctx, name)
}
