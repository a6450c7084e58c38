package gateway

import (
	"context"
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"golang.org/x/net/http2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// Compressed answers that their clients do not read have memory of the budget while they wait,
// and never count as requests.
func TestMemoryOfCompressedAnswers(t *testing.T) {
	const size, streams = 1 << 20, 12
	random := make([]byte, size)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	for name, value := range map[string][]byte{"text": []byte(base64.StdEncoding.EncodeToString(random[:size*3/4])), "bytes": random} {
		t.Run(name, func(t *testing.T) {
			memory := budget.New(8 * size)
			f := newFixture(t, Options{Memory: memory, RequestMemory: size / 2})
			if err := f.stub.Backend.MutateRow(t.Context(), testTable, &row.Entry{Key: []byte("k"), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf", Value: value}}}); err != nil {
				t.Fatal(err)
			}
			conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var answers atomic.Int64 // that are made, or wait
			f.stub.readRows = func(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
				answers.Add(1)
				stats, err := f.stub.Backend.ReadRows(ctx, req, w)
				if err != nil {
					answers.Add(-1)
				}
				return stats, err
			}
			for range streams {
				if _, err := bigtablepb.NewBigtableClient(conn).ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: testTable}, grpc.UseCompressor("gzip")); err != nil {
					t.Fatal(err)
				}
			}
			// All have been refused or wait when nothing more is taken or given back.
			until := time.Now().Add(30 * time.Second)
			for still, used := 0, int64(0); still < 20; time.Sleep(50 * time.Millisecond) {
				now := memory.Used()
				served := answers.Load()
				if still++; now != used || served < 4 || served > 10 || now < served*size*3/4 {
					still = 0
				}
				if used = now; time.Now().After(until) {
					t.Fatalf("%d answers of %d bytes and more wait, which have %d of the budget", served, size*3/4, used)
				}
			}
			if _, err := f.raw.MutateRow(t.Context(), &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("l"), Mutations: setCell(nil)}); err != nil {
				t.Errorf("a write meanwhile: %v", err)
			}
			cancel()
			for until = time.Now().Add(time.Minute); memory.Used() != 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(until) {
					t.Fatalf("%d bytes are not given back", memory.Used())
				}
			}
		})
	}
}

// Large requests wait for their memory, compressed or not; one that can never
// have it is refused with the limit, a scan that has none with a time to retry.
func TestMemoryOfLargeRequests(t *testing.T) {
	const size = 1 << 20
	memory := budget.New(messageCost * 2 * (size + 64<<10)) // of two requests
	f := newFixture(t, Options{Memory: memory})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	at, most := 0, 0
	f.stub.mutateRow = func(context.Context, string, *row.Entry) error {
		mu.Lock()
		at++
		most = max(most, at)
		mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		mu.Lock()
		at--
		mu.Unlock()
		return nil
	}
	mutate := func(n int, o ...grpc.CallOption) error {
		_, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(make([]byte, n))}, o...)
		return err
	}
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			if err := mutate(size); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most > 2 {
		t.Errorf("%d large requests at a time have memory for two", most)
	}
	if err := mutate(size, grpc.UseCompressor("gzip")); err != nil {
		t.Errorf("compressed: %v", err)
	}
	if err := mutate(3 * size); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "see --memory") {
		t.Errorf("too large: %v", err)
	}
	if err := mutate(3*size, grpc.UseCompressor("gzip")); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "see --memory") {
		t.Errorf("too large, compressed: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); memory.Used() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are used by nobody", memory.Used())
		}
	}
	memory.Try(memory.Limit())
	defer memory.Release(memory.Limit())
	_, err := readAll(ctx, f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable})
	if status.Code(err) != codes.ResourceExhausted || detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("a scan without memory: %v", err)
	}
	if err := mutate(100); err != nil {
		t.Errorf("a small request: %v", err)
	}
	if err := received(ctx, budget.Busy()); status.Code(err) != codes.ResourceExhausted || detail[*errdetails.RetryInfo](err) == nil {
		t.Errorf("a wait that ended: %v", err)
	}
	late, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	_, err = f.raw.MutateRow(late, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(make([]byte, size))})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a large request that waits: %v", err)
	}
}

// A client that has announced a message and does not send it loses its memory to those that
// want it, whatever the method and however it was announced.
func TestSilentClient(t *testing.T) {
	const size = 2 << 20
	announce := func(method string) func(*testing.T, *fixture) {
		return func(t *testing.T, f *fixture) {
			halfSent{method: method, streams: 1, announce: size}.begin(t, f.addr)
		}
	}
	for name, begin := range map[string]func(*testing.T, *fixture){
		"unary":         announce(bigtablepb.Bigtable_MutateRow_FullMethodName),
		"streaming":     announce(bigtablepb.Bigtable_ReadRows_FullMethodName),
		"bidirectional": announce("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
		"compressed": func(t *testing.T, f *fixture) {
			s, err := f.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, bigtablepb.Bigtable_MutateRow_FullMethodName, grpc.UseCompressor("gzip"))
			if err == nil { // all of the message, but not the end of the stream
				err = s.SendMsg(&bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(make([]byte, size-1000))})
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			memory := budget.New(messageCost * size)
			f := newFixture(t, Options{Memory: memory, Reflection: true})
			begin(t, f)
			until(t, "has memory", func() bool { return memory.Used() >= messageCost*(size-2000) })
			until(t, "scan", func() bool {
				_, err := readAll(t.Context(), f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable})
				if err != nil && status.Code(err) != codes.ResourceExhausted {
					t.Fatal(err)
				}
				return err == nil
			})
			until(t, "all is given back", func() bool { return memory.Used() == 0 })
		})
	}
}

// until waits until what becomes true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// A client that sends slowly keeps its memory, also while others want it.
func TestSlowClient(t *testing.T) {
	const size, part = 1 << 20, 16 << 10
	memory := budget.New(messageCost * size)
	f := newFixture(t, Options{Memory: memory})
	stop := make(chan struct{})
	var refused sync.WaitGroup
	refused.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				_, _ = readAll(t.Context(), f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable})
			}
		}
	})
	defer refused.Wait()
	defer close(stop)
	conn := halfSent{streams: 1, announce: size, part: part}.begin(t, f.addr)
	fr := http2.NewFramer(conn, conn)
	for range 8 { // at a rate that takes half a minute
		time.Sleep(500 * time.Millisecond)
		if err := fr.WriteData(1, false, make([]byte, part)); err != nil {
			t.Fatal(err)
		}
	}
	if !memory.Short() || memory.Used() != messageCost*size {
		t.Errorf("%d bytes are used, of %d; memory is short: %v", memory.Used(), memory.Limit(), memory.Short())
	}
}

// How long a stream may pause that has memory which others want.
func TestHolder(t *testing.T) {
	const timeout = 300 * time.Second
	sent := int64(0)
	now := time.Now()
	h := &holder{size: 300 << 10, received: func() int64 { return sent }, due: now.Add(shortage)}
	after := func(d time.Duration, more int64, wanted, late bool) {
		t.Helper()
		now, sent = now.Add(d), sent+more
		if got := h.late(now, timeout, wanted); got != late {
			t.Errorf("late: %v, with %d bytes received", got, sent)
		}
	}
	for range 60 { // nobody wants the memory
		after(time.Second, 0, false, false)
	}
	for range 60 { // 1 KiB a second is just in time
		after(time.Second, 1<<10, true, false)
	}
	after(900*time.Millisecond, 0, true, false)
	after(200*time.Millisecond, 0, true, true)
	after(time.Second, 16<<10, true, false) // a large frame puts it off by silence at most
	after(silence, 0, true, false)
	after(time.Millisecond, 0, true, true)
	after(time.Second, 0, false, false)
	after(900*time.Millisecond, 1, true, false) // a byte a second is too little
	after(900*time.Millisecond, 1, true, true)
}

// Methods that need no credentials have no memory of the budget.
func TestMemoryWithoutCredentials(t *testing.T) {
	memory := budget.New(6 << 20)
	f := newFixture(t, Options{Memory: memory})
	hc := grpc_health_v1.NewHealthClient(f.conn)
	for _, o := range [][]grpc.CallOption{nil, {grpc.UseCompressor("gzip")}} {
		_, err := hc.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", 1<<20)}, o...)
		if status.Code(err) != codes.ResourceExhausted || memory.Used() > 0 {
			t.Errorf("%v; %d bytes are used", err, memory.Used())
		}
	}
}
