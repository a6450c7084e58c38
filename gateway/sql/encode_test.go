package sql

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/streamcheck"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

func randomType(r *rand.Rand, depth int) *types.Type {
	scalars := []*types.Type{types.BoolType, types.Int64Type, types.Float32Type, types.Float64Type, types.StringType, types.BytesType, types.DateType, types.TimestampType}
	n := len(scalars)
	if depth > 0 {
		n += 3
	}
	switch i := r.IntN(n); i - len(scalars) {
	case 0:
		return types.ArrayOf(randomType(r, depth-1))
	case 1:
		return types.MapOf(types.BytesType, randomType(r, depth-1))
	case 2:
		return types.StructOf(types.Field{Name: "a", Type: randomType(r, depth-1)}, types.Field{Type: randomType(r, depth-1)})
	default:
		return scalars[i]
	}
}

func randomValue(r *rand.Rand, t *types.Type) types.Value {
	if r.IntN(5) == 0 {
		return types.Null
	}
	text := func() string {
		b := make([]byte, r.IntN(200))
		for i := range b {
			b[i] = byte('a' + r.IntN(26))
		}
		return string(b)
	}
	switch t.Kind {
	case types.Bool:
		return types.NewBool(r.IntN(2) == 0)
	case types.Float32:
		return types.NewFloat(float64(float32(r.NormFloat64())))
	case types.Float64:
		return types.NewFloat(r.NormFloat64())
	case types.String, types.Bytes:
		return types.NewString(text())
	case types.Date:
		return types.NewInt(minDay + r.Int64N(maxDay-minDay+1))
	case types.Timestamp:
		return types.NewInt(minMicros + r.Int64N(maxMicros-minMicros))
	case types.Array, types.Map, types.Struct:
		var list []types.Value
		for i := range r.IntN(4) * 2 {
			switch {
			case t.Kind == types.Struct && i >= len(t.Fields):
			case t.Kind == types.Struct:
				list = append(list, randomValue(r, t.Fields[i].Type))
			case t.Kind == types.Map && i%2 == 0:
				list = append(list, randomValue(r, t.Key))
			default:
				list = append(list, randomValue(r, t.Elem))
			}
		}
		for i := len(list); t.Kind == types.Struct && i < len(t.Fields); i++ {
			list = append(list, types.Null)
		}
		return types.NewList(list)
	}
	return types.NewInt(int64(r.Uint64()) >> r.IntN(64))
}

// What is encoded by hand is what the generated code reads, and of the type that
// the metadata says; generated code would not write it any shorter.
func TestRandomRows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		typ := randomType(r, 3)
		v := randomValue(r, typ)
		vec := types.NewVector(typ, 3)
		vec.Set(1, v)
		b := appendRow(nil, []*types.Vector{vec, types.NewConst(typ, v)}, 1)
		rows := new(bigtablepb.ProtoRows)
		if err := proto.Unmarshal(b, rows); err != nil || len(rows.GetValues()) != 2 {
			t.Fatalf("%v: %v", typ, err)
		}
		if n := proto.Size(rows); n != len(b) {
			t.Fatalf("%v: %d bytes, generated code takes %d", typ, len(b), n)
		}
		for _, pb := range rows.GetValues() {
			if why := streamcheck.Mismatch(pb, typeProto(typ)); why != "" {
				t.Fatalf("%v: %s", typ, why)
			}
		}
		// Parameters are what comes out, where a type can be one's.
		if declared, err := paramType(typeProto(typ)); err == nil {
			back, err := value(rows.GetValues()[0], declared)
			if err != nil || types.Compare(typ, back, v) != 0 || back.Valid != v.Valid {
				t.Fatalf("%v: %v becomes %v, %v", typ, v, back, err)
			}
		}
	}
}

func TestCivil(t *testing.T) {
	for day := int64(minDay); day <= maxDay; day += 13 {
		y, m, d := civil(day)
		if want := time.Unix(day*86400, 0).UTC(); int(y) != want.Year() || int(m) != int(want.Month()) || int(d) != want.Day() {
			t.Fatalf("day %d is %d-%d-%d, want %v", day, y, m, d, want)
		}
	}
}

// A batch whose checksum would be 0 gets another.
func TestChecksumOfZero(t *testing.T) {
	var sent []byte
	w, err := newWriter(nil, func(b mem.BufferSlice) error { sent = append(sent, b.Materialize()...); return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	// The last four bytes of a value make the checksum 0: searched for, as each of
	// them changes it in a way of its own.
	row := appendText([]byte{tagValue}, tagBytes, "some text....")
	n := len(row) - 4
	// The register before the last four bytes, which must equal them.
	crc := crc32.Checksum(row[:n], castagnoli)
	binary.LittleEndian.PutUint32(row[n:], invert(^crc))
	if got := crc32.Checksum(row, castagnoli); got != 0 {
		t.Fatalf("checksum %08x", got)
	}
	if err := w.keep(append(w.room(1), row...)); err != nil {
		t.Fatal(err)
	}
	sum, err := w.checksum()
	if err != nil || sum == 0 {
		t.Fatal(sum, err)
	}
	if err := w.flush(sum, []byte("token")); err != nil {
		t.Fatal(err)
	}
	m := new(bigtablepb.ExecuteQueryResponse)
	if err := proto.Unmarshal(sent, m); err != nil {
		t.Fatal(err)
	}
	batch := m.GetResults().GetProtoRowsBatch().GetBatchData()
	rows := new(bigtablepb.ProtoRows)
	if err := proto.Unmarshal(batch, rows); err != nil || len(rows.GetValues()) != 1 || crc32.Checksum(batch, castagnoli) != m.GetResults().GetBatchChecksum() {
		t.Error(err, rows, m)
	}
}

// invert returns the four bytes, first the lowest, that take a CRC's register to all
// ones, whose complement is 0.
func invert(register uint32) uint32 {
	// Backwards through the table: what register comes before, for each of four bytes.
	table := crc32.MakeTable(crc32.Castagnoli)
	want := uint32(0xffffffff)
	var index [4]byte
	for i := 3; i >= 0; i-- {
		for j := range 256 {
			if table[j]>>24 == want>>24 {
				index[i] = byte(j)
				want = (want ^ table[j]) << 8
				break
			}
		}
	}
	var out uint32
	for i := range 4 {
		b := byte(register) ^ index[i]
		out |= uint32(b) << (8 * i)
		register = table[index[i]] ^ register>>8
	}
	return out
}

func BenchmarkAppendRow(b *testing.B) {
	key, num := types.NewVector(types.BytesType, 1024), types.NewVector(types.Int64Type, 1024)
	for i := range 1024 {
		key.Strs[i], num.Ints[i] = "user00001234", int64(i*i)
	}
	cols := []*types.Vector{key, num}
	buf := make([]byte, 0, 1<<16)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%1024 == 0 {
			crc32.Checksum(buf, castagnoli)
			buf = buf[:0]
		}
		buf = appendRow(buf, cols, i%1024)
	}
}

func TestColumnNames(t *testing.T) {
	var columns []algebra.OutputColumn
	for _, n := range []string{"", "a", "f1_", "", "a", ""} {
		columns = append(columns, algebra.OutputColumn{Name: n, Type: types.Int64Type})
	}
	var got []string
	for _, c := range metadataOf(columns).GetProtoSchema().GetColumns() {
		got = append(got, c.GetName())
	}
	if strings.Join(got, " ") != "f0_ a f1_ f2_ a f3_" {
		t.Error(got)
	}
}

// Texts of all lengths around those where a length takes another byte.
func TestTextValueLengths(t *testing.T) {
	for _, n := range []int{0, 1, 100, 123, 124, 125, 126, 127, 128, 129, 130, 1000, 16377, 16378, 16379, 16380, 16381, 16382, 16383, 16384, 16385, 100_000} {
		text := strings.Repeat("x", n)
		rows := new(bigtablepb.ProtoRows)
		if err := proto.Unmarshal(appendTextValue(nil, tagString, text), rows); err != nil {
			t.Fatal(n, err)
		}
		if len(rows.Values) != 1 || rows.Values[0].GetStringValue() != text {
			t.Errorf("a text of %d bytes becomes %d values, of %d bytes", n, len(rows.Values), len(rows.Values[0].GetStringValue()))
		}
		if got, want := appendTextValue(nil, tagBytes, text), appendText([]byte{tagValue}, tagBytes, text); string(got) != string(want) {
			t.Errorf("%d bytes are not encoded in the shortest way", n)
		}
	}
}
