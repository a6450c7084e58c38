package data

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

func (s *Service) mutateRows(req *wire.MutateRowsRequest, stream grpc.ServerStream) error {
	ctx := stream.Context()
	t, err := s.open(ctx, req.Table, req.View, "", req.Profile, write)
	if err != nil {
		return err
	}
	if err := req.Check(); err != nil {
		return err
	}
	res := newResults(ctx, s, len(req.Entries), stream)
	defer res.stop() //nolint:errcheck // only of use when the backend panics
	entries, places := t.split(req.Entries, res.done)
	done := res.done
	if places != nil {
		done = func(i int, err error) { res.done(places[i], err) }
	}
	if len(entries) > 0 {
		err = s.backend.MutateRows(ctx, t.table, entries, done)
	}
	return res.close(err)
}

const (
	// A message of results is sent when it has resultEntries entries, or at least
	// resultFew that take resultBytes.
	resultEntries = 1000
	resultFew     = 100
	resultBytes   = 256 << 10
)

// results collects the outcome of each entry of a MutateRows and streams them
// while others are still to come. The backend may call done with locks held, so
// done never waits for the client: a goroutine sends.
type results struct {
	ctx    context.Context
	s      *Service
	stream grpc.ServerStream

	reported []bool
	missing  int
	buf      []byte // entries of the next message
	inBuf    int

	out  chan wire.Encoded // nil until the first message is full
	sent chan error
}

func newResults(ctx context.Context, s *Service, n int, stream grpc.ServerStream) *results {
	return &results{ctx: ctx, s: s, stream: stream, reported: make([]bool, n), missing: n,
		buf: make([]byte, 0, min(8*n, resultBytes))}
}

// done is what the backend reports entry i to.
func (r *results) done(i int, err error) {
	if r.reported[i] {
		return
	}
	r.reported[i] = true
	r.missing--
	r.append(i, err)
	if r.missing > 0 && (r.inBuf >= resultEntries || r.inBuf >= resultFew && len(r.buf) >= resultBytes) {
		r.push()
	}
}

// append encodes an Entry{index, status}. The status is always there, empty if
// the entry was applied: clients take none for a failure.
func (r *results) append(i int, err error) {
	var status []byte
	if err != nil {
		st := wire.StatusProto(r.ctx, r.s.opt.Log, err)
		var merr error
		if status, merr = proto.Marshal(st); merr != nil {
			status = protowire.AppendVarint([]byte{1<<3 | 0}, uint64(codes.Internal))
		}
	}
	n := 1 + protowire.SizeBytes(len(status))
	if i > 0 {
		n += 1 + protowire.SizeVarint(uint64(i))
	}
	r.buf = append(r.buf, 1<<3|2)
	r.buf = protowire.AppendVarint(r.buf, uint64(n))
	if i > 0 {
		r.buf = append(r.buf, 1<<3|0)
		r.buf = protowire.AppendVarint(r.buf, uint64(i))
	}
	r.buf = append(r.buf, 2<<3|2)
	r.buf = protowire.AppendBytes(r.buf, status)
	r.inBuf++
}

// push hands the message to the sender. There is room in the channel for every
// message that can come, so it does not block.
func (r *results) push() {
	if r.out == nil {
		r.out = make(chan wire.Encoded, len(r.reported)/resultFew+2)
		r.sent = make(chan error, 1)
		go send(r.stream, r.out, r.sent)
	}
	r.out <- slices.Clone(r.buf)
	r.buf, r.inBuf = r.buf[:0], 0
}

// send sends what comes out of the channel until it is closed. After an error
// it only empties it.
func send(stream grpc.ServerStream, out <-chan wire.Encoded, sent chan<- error) {
	var err error
	for m := range out {
		if err == nil {
			err = stream.SendMsg(m)
		}
	}
	sent <- err
}

// stop waits until everything pushed is sent, and returns why that failed.
func (r *results) stop() error {
	if r.out == nil {
		return nil
	}
	close(r.out)
	r.out = nil
	return <-r.sent
}

// close ends the stream after the backend has returned err.
func (r *results) close(err error) error {
	if err == nil {
		for i, ok := range r.reported {
			if !ok { // a bug of the backend, told rather than hidden
				r.append(i, fault.New(fault.Internal, "the backend reported no outcome of entry %d", i))
			}
		}
	}
	if serr := r.stop(); serr != nil && err == nil {
		err = serr
	}
	if len(r.buf) > 0 {
		// Also beside an error: what was applied is not worth sending again.
		wire.LastMessage(r.stream.Context())
		if serr := r.stream.SendMsg(wire.Encoded(r.buf)); serr != nil && err == nil {
			err = serr
		}
	}
	return err
}
