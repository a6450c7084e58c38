package feed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// flushBytes and flushEvery are how much is gathered for the sink, and how long.
	flushBytes = 1 << 20
	flushEvery = 100 * time.Millisecond
	// saveEvery is how often the position is kept while nothing changes.
	saveEvery = 10 * time.Second
	heartbeat = 5 * time.Second
	// lastWrite is how long a sink may take when the feed was asked to end.
	lastWrite = 5 * time.Second
)

// A Feed reads the change stream of a table.
type Feed struct {
	Client  bigtablepb.BigtableClient
	Table   string
	Profile string
	// Start is where to begin without a position; End, unless it is zero, where to end.
	Start, End time.Time
	Sink       Sink
	// Warn is told what is tried again.
	Warn func(error)

	mu    sync.Mutex
	at    *Position
	lines []byte
	moved bool // at is not what the sink was given last
	saved time.Time
	wg    sync.WaitGroup
	fail  context.CancelCauseFunc
	sink  context.Context // of writes: it ends lastWrite after that of the feed
}

// Run reads from at, nil for Start, until End, until ctx is done, or until an error
// that trying again does not help.
func (f *Feed) Run(ctx context.Context, at *Position) error {
	outer := ctx
	ctx, f.fail = context.WithCancelCause(ctx)
	defer f.fail(nil)
	sink, cancel := context.WithCancel(context.WithoutCancel(outer))
	defer cancel()
	defer context.AfterFunc(outer, func() { time.AfterFunc(lastWrite, cancel) })()
	f.sink = sink
	if f.at = at; at == nil {
		f.at = &Position{Table: f.Table}
		if err := f.initial(ctx); err != nil {
			return err
		}
	}
	// Where it begins is kept before anything is written.
	f.mu.Lock()
	err := f.flush(true)
	if err == nil {
		f.begin(ctx)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { f.wg.Wait(); close(done) }()
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-tick.C:
		case <-done:
			open = false
		}
		f.mu.Lock()
		err := f.flush(!open)
		f.mu.Unlock()
		if err != nil {
			f.fail(err)
			<-done
			if outer.Err() != nil {
				err = fmt.Errorf("it was asked to end, and what it had read last was not taken: %w", err)
			}
			return err
		}
	}
	if outer.Err() != nil {
		return nil // it was asked to end
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return nil
}

// initial asks for the partitions to begin with.
func (f *Feed) initial(ctx context.Context) error {
	s, err := f.Client.GenerateInitialChangeStreamPartitions(ctx, &bigtablepb.GenerateInitialChangeStreamPartitionsRequest{TableName: f.Table, AppProfileId: f.Profile})
	if err != nil {
		return err
	}
	for {
		resp, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r := resp.GetPartition().GetRowRange()
		p := f.at.child(r.GetStartKeyClosed(), r.GetEndKeyOpen())
		p.From, f.moved = f.Start, true
	}
}

// begin reads what is ready. mu is held.
func (f *Feed) begin(ctx context.Context) {
	for _, p := range f.at.Partitions {
		if !p.reading && p.ready() {
			p.reading = true
			f.wg.Go(func() { f.follow(ctx, p) })
		}
	}
}

// flush gives the sink what there is; all says that it is the last time. mu is held,
// so readers wait for a slow sink.
func (f *Feed) flush(all bool) error {
	if len(f.lines) == 0 && (!f.moved || !all && time.Since(f.saved) < saveEvery) {
		return nil
	}
	if err := f.Sink.Write(f.sink, f.lines, f.at); err != nil {
		return err
	}
	if cap(f.lines) > 4*flushBytes {
		f.lines = nil
	}
	f.lines, f.moved, f.saved = f.lines[:0], false, time.Now()
	return nil
}

// follow reads a partition until it ends.
func (f *Feed) follow(ctx context.Context, p *Partition) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		got, err := f.read(ctx, p)
		if ctx.Err() != nil || err == nil {
			return
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.ResourceExhausted:
		default:
			if !errors.Is(err, io.EOF) {
				f.fail(err)
				return
			}
		}
		if got {
			wait = 50 * time.Millisecond
		}
		if !errors.Is(err, io.EOF) {
			f.Warn(err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func streamPartition(start, end []byte) *bigtablepb.StreamPartition {
	return &bigtablepb.StreamPartition{RowRange: &bigtablepb.RowRange{
		StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: start}, EndKey: &bigtablepb.RowRange_EndKeyOpen{EndKeyOpen: end}}}
}

// read reads a partition from where it is. It returns nil when the partition has
// ended, and says whether there was anything.
func (f *Feed) read(run context.Context, p *Partition) (got bool, err error) {
	ctx, cancel := context.WithCancel(run)
	defer cancel()
	req := &bigtablepb.ReadChangeStreamRequest{TableName: f.Table, AppProfileId: f.Profile, Partition: streamPartition(p.Start, p.End), HeartbeatDuration: durationpb.New(heartbeat)}
	if !f.End.IsZero() {
		req.EndTime = timestamppb.New(f.End)
	}
	f.mu.Lock()
	if len(p.Tokens) == 0 {
		req.StartFrom = &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(p.From)}
	} else {
		tokens := new(bigtablepb.StreamContinuationTokens)
		for _, t := range p.Tokens {
			tokens.Tokens = append(tokens.Tokens, &bigtablepb.StreamContinuationToken{Partition: streamPartition(t.Start, t.End), Token: t.Token})
		}
		req.StartFrom = &bigtablepb.ReadChangeStreamRequest_ContinuationTokens{ContinuationTokens: tokens}
	}
	f.mu.Unlock()
	stream, err := f.Client.ReadChangeStream(ctx, req)
	if err != nil {
		return false, err
	}
	m := merger{line: Line{Table: f.Table}}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return got, err
		}
		got = true
		switch r := resp.GetStreamRecord().(type) {
		case *bigtablepb.ReadChangeStreamResponse_DataChange_:
			done, err := m.add(r.DataChange)
			if err != nil {
				return got, err
			}
			if !done {
				continue
			}
			if err := f.record(ctx, p, &m.line, r.DataChange.GetToken()); err != nil {
				return got, err
			}
		case *bigtablepb.ReadChangeStreamResponse_Heartbeat_:
			f.mu.Lock()
			f.reached(p, r.Heartbeat.GetContinuationToken().GetToken())
			f.mu.Unlock()
		case *bigtablepb.ReadChangeStreamResponse_CloseStream_:
			return true, f.closed(run, p, r.CloseStream) // what follows outlives this stream
		}
	}
}

// reached notes how far p was read. mu is held.
func (f *Feed) reached(p *Partition, token string) {
	p.Tokens, p.From = []Token{{p.Start, p.End, token}}, time.Time{}
	f.moved = true
}

// record adds a line.
func (f *Feed) record(ctx context.Context, p *Partition, l *Line, token string) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err() // nothing is taken any more
	}
	f.lines = append(append(f.lines, b...), '\n')
	f.reached(p, token)
	if len(f.lines) >= flushBytes {
		if err := f.flush(false); err != nil {
			f.fail(err)
			return err
		}
	}
	return nil
}

// closed goes on with what a close says.
func (f *Feed) closed(ctx context.Context, p *Partition, c *bigtablepb.ReadChangeStreamResponse_CloseStream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	tokens, parts := c.GetContinuationTokens(), c.GetNewPartitions()
	switch {
	case len(tokens) == 0 && codes.Code(c.GetStatus().GetCode()) != codes.OK:
		return status.ErrorProto(c.GetStatus())
	case len(parts) != 0 && len(parts) != len(tokens):
		return errors.New("a close has other numbers of tokens and partitions")
	}
	if len(tokens) == 0 {
		// What is read up to the end goes on from there in a later run.
		p.Tokens, p.From, f.moved = nil, f.End.Add(time.Microsecond), true
		return nil
	}
	f.at.remove(p)
	f.moved = true
	for i, t := range tokens {
		in := t.GetPartition().GetRowRange()
		n := in
		if len(parts) > 0 {
			n = parts[i].GetRowRange()
		}
		child := f.at.child(n.GetStartKeyClosed(), n.GetEndKeyOpen())
		child.Tokens = append(child.Tokens, Token{bytes.Clone(in.GetStartKeyClosed()), bytes.Clone(in.GetEndKeyOpen()), t.GetToken()})
	}
	f.begin(ctx)
	return nil
}
