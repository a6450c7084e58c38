package gateway

import (
	"bytes"
	"context"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/row"
)

// A rawMessage is a client's codec for a message of these bytes and an answer that it does not read.
type rawMessage struct{}

func (rawMessage) Name() string { return "proto" }
func (rawMessage) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawMessage) Unmarshal(mem.BufferSlice, any) error { return nil }

func field(num protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
}

// heap tells the most bytes of objects, beyond those of now, until the returned function is called.
func heap() func() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtime.GC()
	metrics.Read(s)
	before, most := s[0].Value.Uint64(), uint64(0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			metrics.Read(s)
			most = max(most, s[0].Value.Uint64())
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	})
	return func() int64 {
		close(stop)
		wg.Wait()
		return int64(most) - int64(before)
	}
}

// A request that takes many times its bytes, once it is decoded, has memory for that, or is refused.
func TestMemoryOfDecodedRequests(t *testing.T) {
	memory := budget.New(48 << 20)
	f := newFixture(t, Options{Memory: memory})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f.stub.mutateRow = func(context.Context, string, *row.Entry) error { return nil }
	var keys []byte
	for i := range 4<<20/5 - 20 {
		keys = append(keys, field(1, []byte{byte(i >> 16), byte(i >> 8), byte(i)})...)
	}
	table := field(1, []byte(testTable))
	for _, c := range []struct {
		name, method string
		message      []byte
	}{
		{"initial splits", adminpb.BigtableTableAdmin_CreateTable_FullMethodName, bytes.Repeat(field(4, nil), 4<<20)},
		{"row ranges", bigtablepb.Bigtable_ReadRows_FullMethodName, append(table, field(2, bytes.Repeat(field(2, nil), 2<<20-50))...)},
		{"row keys", bigtablepb.Bigtable_ReadRows_FullMethodName, append(table, field(2, keys)...)},
		{"mutations of a row", bigtablepb.Bigtable_MutateRow_FullMethodName, append(append(table, field(2, []byte("k"))...), bytes.Repeat(field(3, field(4, nil)), 100_001)...)},
		{"mutations of rows", bigtablepb.Bigtable_MutateRows_FullMethodName, append(table, bytes.Repeat(field(2, append(field(1, []byte("k")), field(2, field(4, nil))...)), 1_000_000)...)},
	} {
		peak := heap()
		err := f.conn.Invoke(ctx, c.method, c.message, new(bytes.Buffer), grpc.ForceCodecV2(rawMessage{}))
		most := peak()
		if most > 64<<20 {
			t.Errorf("%s: %d bytes of message take %d of memory", c.name, len(c.message), most)
		}
		if code := status.Code(err); code != codes.ResourceExhausted && code != codes.InvalidArgument {
			t.Errorf("%s: %v", c.name, err)
		}
		eventually(t, "all memory is given back", func() bool { return memory.Used() == 0 })
	}
}
