package gateway

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/row"
)

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
