package bench

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Change streams are read by a follower: all partitions of a table, those that come
// of splits and merges too. Its messages are parsed by hand, as those of reads.

const (
	methodPartitions = "/google.bigtable.v2.Bigtable/GenerateInitialChangeStreamPartitions"
	methodChanges    = "/google.bigtable.v2.Bigtable/ReadChangeStream"
)

// deliveryLimit is when a change counts as lost that was acknowledged.
const deliveryLimit = 30 * time.Second

// fiveColumns are rows of five cells of a tenth of a value each.
func fiveColumns(o *Options) *dataset {
	return &dataset{rows: o.Rows, columns: 5, valueSize: max(minValue, o.ValueBytes/10)}
}

// A follower reads the changes of a table from when the table was made.
type follower struct {
	conn *grpc.ClientConn
	d    *dataset
	from time.Time
	// row is told of each row that was written: its number and the version. It is
	// called by the goroutine of a partition.
	row func(n, version uint64) error

	ctx  context.Context
	fail context.CancelCauseFunc
	wg   sync.WaitGroup

	bytes   atomic.Uint64 // of messages
	mu      sync.Mutex
	joining []*partition // whose parents have not all ended
}

// follow begins to read. The follower ends with close, or with an error, which is then
// the cause of its context.
func follow(ctx context.Context, conn *grpc.ClientConn, d *dataset, from time.Time, row func(n, version uint64) error) (*follower, error) {
	f := &follower{conn: conn, d: d, from: from, row: row}
	f.ctx, f.fail = context.WithCancelCause(ctx)
	w := newWorker(conn, 0, 0)
	w.req = appendBytes(nil, 1, []byte(d.name))
	err := w.stream(f.ctx, methodPartitions, func(b []byte) error {
		var resp btpb.GenerateInitialChangeStreamPartitionsResponse
		if err := proto.Unmarshal(b, &resp); err != nil {
			return errMessage
		}
		f.start(&partition{StreamPartition: resp.GetPartition()})
		return nil
	})
	if err != nil {
		f.close()
		return nil, fmt.Errorf("partitions of %s: %w", d.name, err)
	}
	return f, nil
}

// close ends all reading.
func (f *follower) close() {
	f.fail(context.Canceled)
	f.wg.Wait()
}

// A partition is read by one stream.
type partition struct {
	*btpb.StreamPartition
	tokens []*btpb.StreamContinuationToken

	// of the message that is being read
	key     []byte
	value   []byte // of a cell that comes in pieces
	version uint64 // of the row's cells
	cells   int
	closed  *btpb.ReadChangeStreamResponse_CloseStream
}

func (f *follower) start(p *partition) {
	f.wg.Go(func() {
		if err := f.read(p); err != nil {
			f.fail(err)
		}
	})
}

// read reads p until it ends, and starts what follows it.
func (f *follower) read(p *partition) error {
	req := &btpb.ReadChangeStreamRequest{TableName: f.d.name, Partition: p.StreamPartition, HeartbeatDuration: durationpb.New(5 * time.Second)}
	if p.tokens == nil {
		req.StartFrom = &btpb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(f.from)}
	} else {
		req.StartFrom = &btpb.ReadChangeStreamRequest_ContinuationTokens{ContinuationTokens: &btpb.StreamContinuationTokens{Tokens: p.tokens}}
	}
	b, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	w := newWorker(f.conn, 0, 0)
	w.req = b
	err = w.stream(f.ctx, methodChanges, func(b []byte) error { return f.message(p, b) })
	if err != nil {
		return fmt.Errorf("changes of %s: %w", f.d.name, err)
	}
	if c := p.closed; codes.Code(c.GetStatus().GetCode()) != codes.OutOfRange || len(c.GetNewPartitions()) != len(c.GetContinuationTokens()) {
		return wrong("a change stream of %s ended with %v", f.d.name, p.closed)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, next := range p.closed.GetNewPartitions() {
		if child := f.goOn(next, p.closed.GetContinuationTokens()[i]); child != nil {
			f.start(child)
		}
	}
	return nil
}

// goOn gathers the tokens for the partition next, and returns it when they cover it. mu
// is held.
func (f *follower) goOn(next *btpb.StreamPartition, token *btpb.StreamContinuationToken) *partition {
	i := slices.IndexFunc(f.joining, func(p *partition) bool { return proto.Equal(p.StreamPartition, next) })
	if i < 0 {
		i = len(f.joining)
		f.joining = append(f.joining, &partition{StreamPartition: next})
	}
	p := f.joining[i]
	p.tokens = append(p.tokens, token)
	slices.SortFunc(p.tokens, func(a, b *btpb.StreamContinuationToken) int {
		return bytes.Compare(startOf(a), startOf(b))
	})
	at := p.GetRowRange().GetStartKeyClosed()
	for _, t := range p.tokens {
		if !bytes.Equal(startOf(t), at) {
			return nil
		}
		at = t.GetPartition().GetRowRange().GetEndKeyOpen()
	}
	if !bytes.Equal(at, p.GetRowRange().GetEndKeyOpen()) {
		return nil
	}
	f.joining = slices.Delete(f.joining, i, i+1)
	return p
}

func startOf(t *btpb.StreamContinuationToken) []byte {
	return t.GetPartition().GetRowRange().GetStartKeyClosed()
}

// message takes a ReadChangeStreamResponse.
func (f *follower) message(p *partition, b []byte) error {
	f.bytes.Add(uint64(len(b)))
	return eachField(b, func(field protowire.Number, v []byte, _ uint64) error {
		switch field {
		case 1:
			return f.change(p, v)
		case 3:
			p.closed = new(btpb.ReadChangeStreamResponse_CloseStream)
			return proto.Unmarshal(v, p.closed)
		}
		return nil
	})
}

// eachField gives the fields of a message to a function, until it fails.
func eachField(b []byte, do func(field protowire.Number, v []byte, x uint64) error) error {
	for len(b) > 0 {
		field, v, x, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		if err := do(field, v, x); err != nil {
			return err
		}
	}
	return nil
}

// change takes a DataChange. What garbage collection removes is passed over.
func (f *follower) change(p *partition, b []byte) error {
	var done, collected bool
	err := eachField(b, func(field protowire.Number, v []byte, x uint64) error {
		switch field {
		case 1:
			switch btpb.ReadChangeStreamResponse_DataChange_Type(x) {
			case btpb.ReadChangeStreamResponse_DataChange_GARBAGE_COLLECTION:
				collected = true
			case btpb.ReadChangeStreamResponse_DataChange_USER:
				p.key, p.cells, p.version = p.key[:0], 0, 0
			}
		case 3:
			if !collected {
				p.key = append(p.key[:0], v...)
			}
		case 6:
			if !collected {
				return f.chunk(p, v)
			}
		case 8:
			done = x != 0
		}
		return nil
	})
	if err != nil || collected || !done || len(p.key) == 0 {
		return err
	}
	n, ok := f.d.number(p.key)
	if !ok || p.cells != f.d.columns {
		return wrong("a change of row %q with %d cells", p.key, p.cells)
	}
	err = f.row(n, p.version)
	p.key = p.key[:0] // a record of garbage collection that goes on is not this row's
	return err
}

// chunk takes a MutationChunk: a cell, or a piece of one.
func (f *follower) chunk(p *partition, b []byte) error {
	whole, last := true, false
	var cell, value []byte
	err := eachField(b, func(field protowire.Number, v []byte, _ uint64) error {
		switch field {
		case 1: // ChunkInfo
			whole = false
			return eachField(v, func(field protowire.Number, _ []byte, x uint64) error {
				if field == 3 {
					last = x != 0
				}
				return nil
			})
		case 2: // Mutation
			field, set, _, _, err := next(v)
			if err != nil || field != 1 {
				return wrong("a change of row %q that sets no cell", p.key)
			}
			cell = set
		}
		return nil
	})
	if err != nil || len(p.key) == 0 {
		return err
	}
	if err := eachField(cell, func(field protowire.Number, v []byte, _ uint64) error {
		if field == 4 {
			value = v
		}
		return nil
	}); err != nil {
		return err
	}
	if !whole {
		p.value = append(p.value, value...)
		if !last {
			return nil
		}
		value = p.value
		p.value = p.value[:0]
	}
	version, err := checkValue(value, hashKey(p.key, p.cells), f.d.valueSize)
	if err != nil || p.cells > 0 && version != p.version {
		return wrong("a change of row %q, cell %d: version %d: %v", p.key, p.cells, version, err)
	}
	p.version = version
	p.cells++
	return nil
}

// A delivery waits for the rows of one request.
type delivery struct {
	left atomic.Int64
	done chan struct{}
}

// Deliveries are what workers wait for, by version.
type deliveries struct {
	*follower
	waiting sync.Map // version to *delivery
}

func followWrites(ctx context.Context, conn *grpc.ClientConn, d *dataset, from time.Time) (*deliveries, error) {
	s := new(deliveries)
	f, err := follow(ctx, conn, d, from, s.delivered)
	if err != nil {
		return nil, err
	}
	s.follower = f
	return s, nil
}

// delivered takes a row's version off what is waited for.
func (s *deliveries) delivered(_, version uint64) error {
	v, ok := s.waiting.LoadAndDelete(version)
	if !ok {
		return wrong("version %d was delivered twice, or never written", version)
	}
	if w, _ := v.(*delivery); w.left.Add(-1) == 0 {
		close(w.done)
	}
	return nil
}

// expect returns what ends when versions first to end-1 have been delivered.
func (s *deliveries) expect(first, end uint64) *delivery {
	w := &delivery{done: make(chan struct{})}
	w.left.Store(int64(end - first))
	for v := first; v < end; v++ {
		s.waiting.Store(v, w)
	}
	return w
}

// wait waits for w, which was written with the result err.
func (s *deliveries) wait(ctx context.Context, w *delivery, err error) error {
	if err != nil {
		return err // and it may yet be delivered
	}
	limit := time.NewTimer(deliveryLimit)
	defer limit.Stop()
	select {
	case <-w.done:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-limit.C:
		return wrong("a change that was acknowledged was not delivered within %v", deliveryLimit)
	}
}

// followedWrite writes a row, and waits until its change was delivered.
func followedWrite(ctx context.Context, w *worker, s *state) error {
	d := s.d
	v := d.version.Add(1) - 1
	n := w.rng.Uint64N(d.rows)
	await := s.deliveries.expect(v, v+1)
	w.key = d.appendKey(w.key[:0], n)
	w.sets = append(w.sets[:0], d.setOf(w.key, 0, v))
	err := w.mutate(ctx, d)
	if err == nil {
		d.ack(n, 0, v)
	}
	return s.deliveries.wait(ctx, await, err)
}

// followedBatch writes a batch of rows, and waits until all their changes were
// delivered.
func followedBatch(ctx context.Context, w *worker, s *state) error {
	d, batch := s.d, uint64(s.o.Batch)
	first := s.next.Add(batch) - batch
	version := d.version.Add(batch) - batch
	await := s.deliveries.expect(version, version+batch)
	err := w.writeBatch(ctx, d, first, first+batch, func(n uint64) uint64 { return version + n - first })
	if err == nil {
		w.rows += batch
	}
	return s.deliveries.wait(ctx, await, err)
}

// catchUp reads the changes that loaded the table, from the first on.
func catchUp(ctx context.Context, w *worker, s *state) error {
	seen := make([]atomic.Bool, s.d.rows)
	var left atomic.Int64
	left.Store(int64(s.d.loaded))
	done := make(chan struct{})
	f, err := follow(ctx, w.conn, s.d, s.begun, func(n, version uint64) error {
		if version != 0 || seen[n].Swap(true) {
			return wrong("version %d of row %q was delivered twice, or never written", version, s.d.appendKey(nil, n))
		}
		if left.Add(-1) == 0 {
			close(done)
		}
		return nil
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
	case <-f.ctx.Done():
		err = context.Cause(f.ctx)
	}
	f.close()
	w.rows += s.d.loaded
	w.streamTraffic.add(traffic{calls: 1, messages: 1, recvdBytes: f.bytes.Load()})
	return err
}
