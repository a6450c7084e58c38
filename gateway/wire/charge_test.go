package wire

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
)

// in returns the encoded field num of a message.
func in(num protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), slices.Concat(parts...))
}

// nested returns a message in itself, n deep.
func nested(num protowire.Number, n int) []byte {
	var lengths []int
	for size := 0; len(lengths) < n; {
		lengths = append(lengths, size)
		size = protowire.SizeTag(num) + protowire.SizeBytes(size)
	}
	var b []byte
	for _, l := range slices.Backward(lengths) {
		b = protowire.AppendVarint(protowire.AppendTag(b, num, protowire.BytesType), uint64(l))
	}
	return b
}

type hostile struct {
	v any
	b []byte
}

// hostiles returns requests that take many times their bytes once they are decoded.
func hostiles() map[string]hostile {
	const n = 100_000
	many := func(b []byte) []byte { return bytes.Repeat(b, n) }
	var keys, families, params []byte
	for i := range n {
		key := []byte{byte(i >> 16), byte(i>>8) & 0x7f, byte(i) & 0x7f}
		keys = append(keys, in(1, key)...)
		families = append(families, in(3, in(1, key), in(2))...)
		params = append(params, in(7, in(1, fmt.Append(nil, i)), in(2, in(3)))...)
	}
	deletion, key := in(4), in(2, []byte("k"))
	return map[string]hostile{
		"splits":    {new(adminpb.CreateTableRequest), many(in(4))},
		"families":  {new(adminpb.CreateTableRequest), in(3, families)},
		"members":   {new(iampb.SetIamPolicyRequest), in(2, in(4, many(in(2))))},
		"unknown":   {new(iampb.SetIamPolicyRequest), many([]byte{98, 0})},
		"filters":   {new(bigtablepb.ReadRowsRequest), in(3, in(1, many(in(1))))},
		"depth":     {new(bigtablepb.RowFilter), nested(1, 20_000)}, // chains: refused 10,000 deep
		"params":    {new(ExecuteQueryRequest), params},
		"tokens":    {new(ReadChangeStreamRequest), in(6, many(in(1)))},
		"ranges":    {new(ReadRowsRequest), in(2, many(in(2)))},
		"keys":      {new(ReadRowsRequest), in(2, keys)},
		"mutations": {new(MutateRowRequest), append(key, many(in(3, deletion))...)},
		"entries":   {new(MutateRowsRequest), many(in(2, in(1, []byte("k")), in(2, deletion)))},
		"branches":  {new(CheckAndMutateRowRequest), append(key, many(append(in(4, deletion), in(5, deletion)...))...)},
		"rules":     {new(ReadModifyWriteRowRequest), append(key, many(in(3, in(1, []byte("f")), in(3)))...)},
		"session":   {new(SessionRequest), in(3, in(4, in(2, in(1, []byte("k")), many(in(2, deletion)))))},
	}
}

// decode decodes h and returns why it is refused.
func (h *hostile) decode(memory *budget.Budget) (kept *Kept, err error) {
	kept, err = NewCodec(mem.NopBufferPool{}, memory).Decode(mem.BufferSlice{mem.SliceBuffer(h.b)}, h.v)
	if c, ok := h.v.(interface{ Check() error }); ok && err == nil {
		err = c.Check()
	}
	return kept, err
}

func (h *hostile) release(kept *Kept) {
	kept.Release()
	if r, ok := h.v.(interface{ Release() }); ok {
		r.Release()
	}
}

// What a request is decoded to is charged before it is there, and until it is released.
func TestDecodedRequestsAreCharged(t *testing.T) {
	for name, h := range hostiles() {
		little := budget.New(1 << 20)
		kept, err := h.decode(little)
		if kind := fault.KindOf(err); kind != fault.Exhausted {
			t.Errorf("%s: without memory: %v", name, err)
		}
		if h.release(kept); little.Used() != 0 {
			t.Errorf("%s: %d bytes are used by nothing", name, little.Used())
		}
		ample := budget.New(1 << 40)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		kept, err = h.decode(ample)
		runtime.ReadMemStats(&after)
		if name != "depth" && err != nil && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		took, charged := int64(after.TotalAlloc-before.TotalAlloc), ample.Used()+freeBytes+coveredCost*int64(len(h.b))
		if took > 4*charged { // arrays that were too small are garbage
			t.Errorf("%s: %d bytes of message take %d, of %d", name, len(h.b), took, charged)
		}
		if h.release(kept); ample.Used() != 0 {
			t.Errorf("%s: %d bytes are used by nothing", name, ample.Used())
		}
	}
}

// A request that may never have its memory is refused for good, another with a time to retry.
func TestRefusalsForMemory(t *testing.T) {
	h := hostiles()["splits"]
	for _, c := range []struct {
		limit, used int64
		retry       bool
	}{{1 << 20, 0, false}, {100 << 20, 99 << 20, true}} {
		memory := budget.New(c.limit)
		memory.Try(c.used)
		kept, err := h.decode(memory)
		f, ok := err.(*fault.Error)
		if !ok || f.Kind != fault.Exhausted || (f.RetryAfter > 0) != c.retry {
			t.Errorf("%d of %d bytes used: %#v", c.used, c.limit, err)
		}
		kept.Release()
	}
}

// Small requests need no memory of the budget.
func TestSmallRequestsAreFree(t *testing.T) {
	none := budget.New(0)
	var entries [][]*bigtablepb.Mutation
	for range 50 {
		entries = append(entries, []*bigtablepb.Mutation{set("cf", "q", 1000, "v")})
	}
	b, err := proto.Marshal(&adminpb.CreateTableRequest{Parent: "projects/p/instances/i", TableId: "t",
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"a": {}, "b": {}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []hostile{{new(MutateRowsRequest), seedRows(entries...)}, {new(adminpb.CreateTableRequest), b}} {
		kept, err := h.decode(none)
		if err != nil {
			t.Errorf("%T: %v", h.v, err)
		}
		h.release(kept)
	}
}

// Nothing that a caller can send has a larger struct, or numbers of a byte each.
func TestMessageBytes(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(d protoreflect.MessageDescriptor) {
		if seen[d.FullName()] {
			return
		}
		seen[d.FullName()] = true
		if !d.IsMapEntry() {
			m, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
			if err != nil {
				t.Fatal(err)
			}
			if n := reflect.TypeOf(m.Zero().Interface()).Elem().Size(); n+24 > messageBytes {
				t.Errorf("%s takes %d bytes and a pointer", d.FullName(), n)
			}
		}
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			if f.IsPacked() {
				t.Errorf("%s is packed", f.FullName())
			}
			if f.Message() != nil {
				visit(f.Message())
			}
		}
	}
	for _, f := range []protoreflect.FileDescriptor{adminpb.File_google_bigtable_admin_v2_bigtable_table_admin_proto, adminpb.File_google_bigtable_admin_v2_bigtable_instance_admin_proto,
		bigtablepb.File_google_bigtable_v2_bigtable_proto, longrunningpb.File_google_longrunning_operations_proto} {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				visit(methods.Get(j).Input())
			}
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d messages", len(seen))
	}
}
