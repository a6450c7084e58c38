package server

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/budget"
)

// encoded returns a message whose encoding is b.
func encoded(b []byte) proto.Message {
	m := new(pb.GetClusterIdRequest)
	m.ProtoReflect().SetUnknown(b)
	return m
}

// TestManyParts: a request of many parts takes what they do in memory, and not only what
// its bytes do.
func TestManyParts(t *testing.T) {
	memory := budget.New(8 << 20)
	f := newFixture(t, Options{Memory: memory})
	region := f.rows("t", nil, 1).region
	c := f.dial("ClientService", nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c.fail("Multi", encoded(bytes.Repeat([]byte{0x0a, 0}, 1<<20)), nil, wire.RequestTooBig)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 24<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
	whole(t, "a request that is refused", memory)

	multi := encode(t, gets(region, 2000))
	c.call("Multi", encoded(multi), nil, nil)
	whole(t, "a request", memory)
	if !memory.Try(15 << 19) {
		t.Fatal("no room")
	}
	c.fail("Multi", encoded(multi), nil, wire.CallQueueTooBig)
	c.call("Multi", gets(region, 300), nil, nil)
	memory.Release(15 << 19)
	whole(t, "a request beside others", memory)

	// Nor are attributes of requests beyond bounds.
	h := &pb.RequestHeader{CallId: proto.Uint32(1), MethodName: proto.String("Multi")}
	for range 20_000 {
		h.Attribute = append(h.Attribute, &pb.NameBytesPair{Name: proto.String("")})
	}
	b := encode(t, h)
	c.write(append(append(lengthOf(len(b)+3), byte(len(b)|0x80), byte(len(b)>>7|0x80), byte(len(b)>>14)), b...))
	if h, _ := c.receive(nil); h.GetException().GetExceptionClassName() != wire.FatalConnection.Name {
		t.Errorf("%v", h)
	}
}

func lengthOf(n int) []byte { return []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)} }

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func gets(region *pb.RegionSpecifier, n int) *pb.MultiRequest {
	ra := &pb.RegionAction{Region: region}
	for i := range n {
		ra.Action = append(ra.Action, &pb.Action{Index: proto.Uint32(uint32(i)), Get: &pb.Get{Row: fmt.Appendf(nil, "r%09d", i)}})
	}
	return &pb.MultiRequest{RegionAction: []*pb.RegionAction{ra}}
}

// FuzzShape: whatever bytes there are, a message that they decode to is counted.
func FuzzShape(f *testing.F) {
	f.Add(encode(f, gets(&pb.RegionSpecifier{Type: pb.RegionSpecifier_REGION_NAME.Enum(), Value: []byte("t")}, 3)))
	f.Add([]byte{0x0a, 0, 0x0a, 0x80})
	s := shapeOf(new(pb.MultiRequest))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := s.size(b)
		var m pb.MultiRequest
		if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(b, &m); err != nil {
			return
		}
		want := int64(0)
		for _, ra := range m.GetRegionAction() {
			want += messageBytes
			for _, a := range ra.GetAction() {
				want += messageBytes + int64(len(a.GetGet().GetRow())+len(a.GetMutation().GetRow()))
			}
		}
		if n < want {
			t.Errorf("%d bytes, at least %d", n, want)
		}
	})
}

// BenchmarkShape compares what it costs to count a Multi of 100 gets with decoding it.
func BenchmarkShape(b *testing.B) {
	in := encode(b, gets(&pb.RegionSpecifier{Type: pb.RegionSpecifier_REGION_NAME.Enum(), Value: []byte("t,,1.x.")}, 100))
	s := shapeOf(new(pb.MultiRequest))
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			_ = s.size(in)
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if err := proto.Unmarshal(in, new(pb.MultiRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
