package data

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// A sink is a stream that decodes what is sent, or fails.
type sink struct {
	grpc.ServerStream
	fail bool
	got  map[int64]codes.Code
	msgs int
}

func (s *sink) Context() context.Context { return context.Background() }

func (s *sink) SendMsg(m any) error {
	if s.fail {
		return io.ErrClosedPipe
	}
	b := m.(wire.Encoder).TakeWire()
	p := new(bigtablepb.MutateRowsResponse)
	if err := proto.Unmarshal(b.Materialize(), p); err != nil {
		return err
	}
	s.msgs++
	for _, e := range p.Entries {
		if _, ok := s.got[e.Index]; ok || e.Status == nil {
			return errors.New("an entry without status, or twice")
		}
		s.got[e.Index] = codes.Code(e.Status.Code)
	}
	return nil
}

func testResults(n int, fail bool) (*results, *sink) {
	s := &sink{fail: fail, got: map[int64]codes.Code{}}
	return newResults(context.Background(), &Service{opt: Options{Log: slog.New(slog.DiscardHandler)}}, n, s), s
}

// A backend that forgets an entry or reports one twice does not leave the
// client guessing.
func TestResultsOfABadBackend(t *testing.T) {
	r, s := testResults(3, false)
	r.done(2, nil)
	r.done(2, fault.New(fault.Unavailable, "again"))
	r.done(0, fault.New(fault.NotFound, "no"))
	if err := r.close(nil); err != nil {
		t.Fatal(err)
	}
	if s.got[0] != codes.NotFound || s.got[1] != codes.Internal || s.got[2] != codes.OK || len(s.got) != 3 {
		t.Errorf("got %v", s.got)
	}
}

func TestResultsBesideAnError(t *testing.T) {
	r, s := testResults(3, false)
	r.done(1, nil)
	if err := r.close(context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if len(s.got) != 1 || s.got[1] != codes.OK {
		t.Errorf("got %v", s.got)
	}
}

func TestResultsOfAManyEntryBatch(t *testing.T) {
	const n = 10*resultEntries + 7
	r, s := testResults(n, false)
	for i := range n {
		r.done(i, nil)
	}
	if err := r.close(nil); err != nil {
		t.Fatal(err)
	}
	if len(s.got) != n || s.msgs < 10 {
		t.Errorf("%d entries in %d messages", len(s.got), s.msgs)
	}
	r, _ = testResults(n, true)
	for i := range n {
		r.done(i, nil)
	}
	if err := r.close(nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
	// Nobody closes the results when a backend panics; stop does.
	r, _ = testResults(n, false)
	for i := range 2 * resultEntries {
		r.done(i, nil)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
