package wire

import (
	"fmt"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// queryRequests are messages that the quick decoder reads, and such that it leaves to the
// generated code.
func queryRequests() []*bigtablepb.ExecuteQueryRequest {
	bytesOf := func(s string) *bigtablepb.Value {
		return &bigtablepb.Value{Kind: &bigtablepb.Value_BytesValue{BytesValue: []byte(s)}}
	}
	list := []*bigtablepb.ExecuteQueryRequest{
		{},
		{InstanceName: "projects/p/instances/i", PreparedQuery: []byte("plan")},
		{InstanceName: "projects/p/instances/i", AppProfileId: "a", PreparedQuery: []byte("plan"), ResumeToken: []byte("token"),
			Params: map[string]*bigtablepb.Value{"k": bytesOf("key"), "empty": bytesOf(""),
				"n": {Kind: &bigtablepb.Value_IntValue{IntValue: -5}}, "s": {Kind: &bigtablepb.Value_StringValue{StringValue: "täxt"}}}},
		{PreparedQuery: []byte("plan"), Params: map[string]*bigtablepb.Value{"null": {}, "f": {Kind: &bigtablepb.Value_FloatValue{FloatValue: 1.5}},
			"typed": {Type: &bigtablepb.Type{Kind: &bigtablepb.Type_BytesType{}}, Kind: &bigtablepb.Value_BytesValue{BytesValue: []byte("x")}}}},
		{InstanceName: "projects/p/instances/i", Params: map[string]*bigtablepb.Value{"": bytesOf("x")}},
	}
	// The fields that the API has deprecated, by their names.
	m := list[len(list)-1].ProtoReflect()
	m.Set(m.Descriptor().Fields().ByName("query"), protoreflect.ValueOfString("SELECT 1"))
	m.Set(m.Descriptor().Fields().ByName("proto_format"), protoreflect.ValueOfMessage(new(bigtablepb.ProtoFormat).ProtoReflect()))
	many := &bigtablepb.ExecuteQueryRequest{PreparedQuery: []byte("plan"), Params: map[string]*bigtablepb.Value{}}
	for i := range 2 * quickParams {
		many.Params[fmt.Sprint("p", i)] = bytesOf(fmt.Sprint(i))
	}
	return append(list, many)
}

// One decoder reads all messages one after the other, so that nothing of one may be left
// for the next.
func TestExecuteQueryRequest(t *testing.T) {
	r := new(ExecuteQueryRequest)
	list := queryRequests()
	for i := range 3 * len(list) {
		want := list[i%len(list)]
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.NopBufferPool{}, nil); err != nil {
			t.Fatalf("%v: %v", want, err)
		}
		if !proto.Equal(want, &r.ExecuteQueryRequest) || r.WireLen() != len(b) {
			t.Errorf("got %v, want %v", &r.ExecuteQueryRequest, want)
		}
		r.Release()
	}
}

// The decoder accepts what the generated code accepts, and reads the same.
func FuzzExecuteQueryRequest(f *testing.F) {
	for _, m := range queryRequests() {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want := new(bigtablepb.ExecuteQueryRequest)
		wantErr := proto.Unmarshal(b, want)
		r := new(ExecuteQueryRequest)
		err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.NopBufferPool{}, nil)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, the generated code says %v", err, wantErr)
		}
		if err == nil && !proto.Equal(want, &r.ExecuteQueryRequest) {
			t.Fatalf("got %v, want %v", &r.ExecuteQueryRequest, want)
		}
		r.Release()
	})
}
