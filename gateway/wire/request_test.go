package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/type/date"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

func sameFault(a, b *fault.Error) error {
	if (a == nil) != (b == nil) || a != nil && (a.Kind != b.Kind || a.Msg != b.Msg || a.Field != b.Field) {
		return fmt.Errorf("refusals differ: %+v and %+v", a, b)
	}
	return nil
}

func sameEntry(a, b *row.Entry) error {
	if !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Token.Token, b.Token.Token) || !a.Token.Start.Equal(b.Token.Start) {
		return fmt.Errorf("entries differ: %+v and %+v", a, b)
	}
	if len(a.Mutations) != len(b.Mutations) {
		return fmt.Errorf("%d and %d mutations", len(a.Mutations), len(b.Mutations))
	}
	for i := range a.Mutations {
		x, y := &a.Mutations[i], &b.Mutations[i]
		if x.Op != y.Op || x.Family != y.Family || !bytes.Equal(x.Qualifier, y.Qualifier) || x.Timestamp != y.Timestamp ||
			x.Truncate != y.Truncate || x.Times != y.Times || !bytes.Equal(x.Value, y.Value) ||
			x.Input.Kind != y.Input.Kind || x.Input.Int != y.Input.Int || !bytes.Equal(x.Input.Bytes, y.Input.Bytes) ||
			math.Float64bits(x.Input.Float) != math.Float64bits(y.Input.Float) {
			return fmt.Errorf("mutation %d differs: %+v and %+v", i, x, y)
		}
	}
	return nil
}

// sameVerdict compares whether b is a message at all. The decoder does not look
// into a Value's type and arrays, which it refuses whatever is in them.
func sameVerdict(b []byte, generated, ours error) (ok bool, err error) {
	if (generated == nil) == (ours == nil) || ours == nil && structured(b, 0) {
		return generated == nil, nil
	}
	return false, fmt.Errorf("generated code: %v, decoder: %v", generated, ours)
}

// structured tells whether a message a few levels down has field 4 or 7.
func structured(b []byte, depth int) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return false
		}
		if typ == protowire.BytesType {
			_, _, tn := protowire.ConsumeTag(b)
			v, _ := protowire.ConsumeBytes(b[tn:])
			if depth >= 3 && (num == 4 || num == 7) || depth < 5 && structured(v, depth+1) {
				return true
			}
		}
		b = b[n:]
	}
	return false
}

// compareRow holds the decoder of MutateRow against the generated code.
func compareRow(b []byte, r *MutateRowRequest) error {
	p := new(bigtablepb.MutateRowRequest)
	perr := proto.Unmarshal(b, p)
	err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.DefaultBufferPool(), nil)
	defer r.Release()
	if ok, err := sameVerdict(b, perr, err); !ok {
		return err
	}
	t, e, refused := mutateRowOf(p)
	t.size = len(b)
	if t != r.Target {
		return fmt.Errorf("targets differ: %+v and %+v", t, r.Target)
	}
	if err := sameFault(refused, r.invalid); err != nil || refused != nil {
		return err
	}
	return sameEntry(&e, &r.Entry)
}

func compareRows(b []byte, r *MutateRowsRequest) error {
	p := new(bigtablepb.MutateRowsRequest)
	perr := proto.Unmarshal(b, p)
	err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.DefaultBufferPool(), nil)
	defer r.Release()
	if ok, err := sameVerdict(b, perr, err); !ok {
		return err
	}
	t, es, refused := mutateRowsOf(p)
	t.size = len(b)
	if t != r.Target {
		return fmt.Errorf("targets differ: %+v and %+v", t, r.Target)
	}
	if err := sameFault(refused, r.invalid); err != nil || refused != nil {
		return err
	}
	if len(es) != len(r.Entries) {
		return fmt.Errorf("%d and %d entries", len(es), len(r.Entries))
	}
	for i := range es {
		if err := sameEntry(&es[i], &r.Entries[i]); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	return nil
}

func sameError(a, b error) error {
	var x, y *fault.Error
	errors.As(a, &x)
	errors.As(b, &y)
	return sameFault(x, y)
}

func compareCheckAndMutate(b []byte) error {
	p, r := new(bigtablepb.CheckAndMutateRowRequest), new(CheckAndMutateRowRequest)
	perr := proto.Unmarshal(b, p)
	err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.DefaultBufferPool(), nil)
	if ok, err := sameVerdict(b, perr, err); !ok {
		return err
	}
	want := camOf(p)
	want.size = len(b)
	if want.Target != r.Target {
		return fmt.Errorf("targets differ: %+v and %+v", want.Target, r.Target)
	}
	if err := sameError(want.err, r.err); err != nil || want.err != nil {
		return err
	}
	if !reflect.DeepEqual(want.Predicate, r.Predicate) {
		return fmt.Errorf("predicates differ: %+v and %+v", want.Predicate, r.Predicate)
	}
	if err := sameEntry(&row.Entry{Key: want.Key, Mutations: want.Then}, &row.Entry{Key: r.Key, Mutations: r.Then}); err != nil {
		return err
	}
	return sameEntry(&row.Entry{Mutations: want.Otherwise}, &row.Entry{Mutations: r.Otherwise})
}

func compareReadModifyWrite(b []byte) error {
	p, r := new(bigtablepb.ReadModifyWriteRowRequest), new(ReadModifyWriteRowRequest)
	perr := proto.Unmarshal(b, p)
	err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.DefaultBufferPool(), nil)
	if ok, err := sameVerdict(nil, perr, err); !ok {
		return err
	}
	want := rmwOf(p)
	want.size = len(b)
	if want.Target != r.Target {
		return fmt.Errorf("targets differ: %+v and %+v", want.Target, r.Target)
	}
	if err := sameError(want.err, r.err); err != nil || want.err != nil {
		return err
	}
	if !bytes.Equal(want.Key, r.Key) || fmt.Sprintf("%+v", want.Rules) != fmt.Sprintf("%+v", r.Rules) {
		return fmt.Errorf("rules differ: %+v and %+v", want.Rules, r.Rules)
	}
	return nil
}

func compareRead(b []byte) error {
	p, r := new(bigtablepb.ReadRowsRequest), new(ReadRowsRequest)
	perr := proto.Unmarshal(b, p)
	err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.DefaultBufferPool(), nil)
	if ok, err := sameVerdict(nil, perr, err); !ok {
		return err
	}
	want := readOf(p)
	want.size = len(b)
	if want.Target != r.Target || want.Materialized != r.Materialized || want.Limit != r.Limit || want.Reversed != r.Reversed || want.FullStats != r.FullStats {
		return fmt.Errorf("requests differ: %+v and %+v", want, r)
	}
	if err := sameError(want.err, r.err); err != nil || want.err != nil {
		return err
	}
	if !reflect.DeepEqual(want.Filter, r.Filter) {
		return fmt.Errorf("filters differ: %+v and %+v", want.Filter, r.Filter)
	}
	if fmt.Sprintf("%q", want.Ranges) != fmt.Sprintf("%q", r.Ranges) {
		return fmt.Errorf("ranges differ: %q and %q", want.Ranges, r.Ranges)
	}
	return nil
}

func marshal(p proto.Message) []byte {
	b, err := proto.Marshal(p)
	if err != nil {
		panic(err)
	}
	return b
}

// seeds are one good message of each of the other kinds.
func seeds() (cam, rmw, read []byte) {
	f := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Interleave_{Interleave: &bigtablepb.RowFilter_Interleave{Filters: []*bigtablepb.RowFilter{
		{Filter: &bigtablepb.RowFilter_CellsPerColumnLimitFilter{CellsPerColumnLimitFilter: 2}},
		{Filter: &bigtablepb.RowFilter_ValueRangeFilter{ValueRangeFilter: &bigtablepb.ValueRange{StartValue: &bigtablepb.ValueRange_StartValueOpen{StartValueOpen: []byte("a")}}}},
	}}}}
	cam = marshal(&bigtablepb.CheckAndMutateRowRequest{TableName: testTable, AppProfileId: "p", RowKey: []byte("row"), PredicateFilter: f,
		TrueMutations: []*bigtablepb.Mutation{set("cf", "q", 1000, "v"), add(raw("q"), at(0), integer(1))}, FalseMutations: []*bigtablepb.Mutation{deleteRow()}})
	rmw = marshal(&bigtablepb.ReadModifyWriteRowRequest{TableName: testTable, RowKey: []byte("row"), Rules: []*bigtablepb.ReadModifyWriteRule{
		{FamilyName: "cf", ColumnQualifier: []byte("q"), Rule: &bigtablepb.ReadModifyWriteRule_AppendValue{AppendValue: []byte("x")}},
		{FamilyName: "cf", ColumnQualifier: []byte("q"), Rule: &bigtablepb.ReadModifyWriteRule_IncrementAmount{IncrementAmount: -1}}}})
	read = marshal(&bigtablepb.ReadRowsRequest{TableName: testTable, AppProfileId: "p", RowsLimit: 5, Reversed: true, Filter: f,
		RequestStatsView: bigtablepb.ReadRowsRequest_REQUEST_STATS_FULL,
		Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("b"), []byte("a")}, RowRanges: []*bigtablepb.RowRange{
			{StartKey: open("c"), EndKey: endClosed("d")}, {StartKey: closed("e"), EndKey: endOpen("f")}, {}}}})
	return cam, rmw, read
}

func fuzzCompare(f *testing.F, seed []byte, compare func([]byte) error) {
	f.Add(seed)
	f.Add(append(bytes.Clone(seed), seed...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := compare(b); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzCheckAndMutateRow(f *testing.F) {
	cam, _, _ := seeds()
	fuzzCompare(f, cam, compareCheckAndMutate)
}

func FuzzReadModifyWriteRow(f *testing.F) {
	_, rmw, _ := seeds()
	fuzzCompare(f, rmw, compareReadModifyWrite)
}

func FuzzReadRows(f *testing.F) {
	_, _, read := seeds()
	fuzzCompare(f, read, compareRead)
}

func set(family, qualifier string, ts int64, value string) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
		FamilyName: family, ColumnQualifier: []byte(qualifier), TimestampMicros: ts, Value: []byte(value)}}}
}

func raw(s string) *bigtablepb.Value {
	return &bigtablepb.Value{Kind: &bigtablepb.Value_RawValue{RawValue: []byte(s)}}
}

func at(ts int64) *bigtablepb.Value {
	return &bigtablepb.Value{Kind: &bigtablepb.Value_RawTimestampMicros{RawTimestampMicros: ts}}
}

func integer(n int64) *bigtablepb.Value {
	return &bigtablepb.Value{Kind: &bigtablepb.Value_IntValue{IntValue: n}}
}

func add(q, ts, in *bigtablepb.Value) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_AddToCell_{AddToCell: &bigtablepb.Mutation_AddToCell{
		FamilyName: "agg", ColumnQualifier: q, Timestamp: ts, Input: in}}}
}

func merge(in *bigtablepb.Value) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_MergeToCell_{MergeToCell: &bigtablepb.Mutation_MergeToCell{
		FamilyName: "agg", ColumnQualifier: raw("q"), Timestamp: at(0), Input: in}}}
}

func deleteColumn(family string, start, end int64) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromColumn_{DeleteFromColumn: &bigtablepb.Mutation_DeleteFromColumn{
		FamilyName: family, ColumnQualifier: []byte("q"),
		TimeRange: &bigtablepb.TimestampRange{StartTimestampMicros: start, EndTimestampMicros: end}}}}
}

func deleteFamily(family string) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromFamily_{DeleteFromFamily: &bigtablepb.Mutation_DeleteFromFamily{FamilyName: family}}}
}

func deleteRow() *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromRow_{DeleteFromRow: &bigtablepb.Mutation_DeleteFromRow{}}}
}

func originated(m *bigtablepb.Mutation, o bigtablepb.Mutation_TimestampOrigin) *bigtablepb.Mutation {
	m.TimestampOrigin = o
	return m
}

const testTable = "projects/p/instances/inst-1/tables/t"

var idem = &bigtablepb.Idempotency{Token: []byte("12345678"), StartTime: timestamppb.New(time.Unix(1700000000, 5))}

// samples are mutations of every shape, good and bad.
func samples() []*bigtablepb.Mutation {
	return []*bigtablepb.Mutation{
		set("cf", "q", 1000, "value"), set("cf", "", -1, ""), set("", "q", 0, "v"), set("cf", "q", -2, "v"),
		originated(set("cf", "q", 1234, "v"), bigtablepb.Mutation_CLIENT_AUTO_GENERATED),
		originated(set("cf", "q", 1234, "v"), 77),
		deleteColumn("cf", 0, 0), deleteColumn("cf", 10, 20), deleteColumn("cf", 20, 10), deleteColumn("cf", 20, 20), deleteColumn("", 0, 0),
		deleteFamily("cf"), deleteFamily(""), deleteRow(), {},
		add(raw("q"), at(1000), integer(7)), add(nil, at(1000), integer(7)), add(raw("q"), nil, integer(7)), add(raw("q"), at(-1), integer(7)),
		add(raw("q"), at(0), nil), add(integer(1), at(0), integer(1)),
		add(raw("q"), at(0), &bigtablepb.Value{Kind: &bigtablepb.Value_FloatValue{FloatValue: math.NaN()}}),
		add(raw("q"), at(0), &bigtablepb.Value{Kind: &bigtablepb.Value_FloatValue{FloatValue: 1.5}}),
		add(raw("q"), at(0), &bigtablepb.Value{Kind: &bigtablepb.Value_BoolValue{BoolValue: true}}),
		add(raw("q"), at(0), &bigtablepb.Value{Kind: &bigtablepb.Value_StringValue{StringValue: "x"}}),
		add(raw("q"), at(0), &bigtablepb.Value{Kind: &bigtablepb.Value_TimestampValue{TimestampValue: timestamppb.New(time.Unix(5, 7000))}}),
		add(raw("q"), at(0), &bigtablepb.Value{Kind: &bigtablepb.Value_DateValue{DateValue: &date.Date{Year: 2026, Month: 2, Day: 29}}}),
		add(raw("q"), at(0), &bigtablepb.Value{Kind: &bigtablepb.Value_DateValue{DateValue: &date.Date{Year: 2024, Month: 2, Day: 29}}}),
		add(raw("q"), at(0), &bigtablepb.Value{Kind: &bigtablepb.Value_ArrayValue{ArrayValue: &bigtablepb.ArrayValue{}}}),
		add(raw("q"), at(0), &bigtablepb.Value{Type: &bigtablepb.Type{}, Kind: &bigtablepb.Value_IntValue{IntValue: 1}}),
		merge(raw("12345678")), merge(integer(1)), merge(nil), merge(&bigtablepb.Value{}),
	}
}

func seedRow(m ...*bigtablepb.Mutation) []byte {
	b, err := proto.Marshal(&bigtablepb.MutateRowRequest{TableName: testTable, AppProfileId: "p", RowKey: []byte("row"), Mutations: m, Idempotency: idem})
	if err != nil {
		panic(err)
	}
	return b
}

func seedRows(entries ...[]*bigtablepb.Mutation) []byte {
	p := &bigtablepb.MutateRowsRequest{TableName: testTable, AuthorizedViewName: "v"}
	for i, m := range entries {
		p.Entries = append(p.Entries, &bigtablepb.MutateRowsRequest_Entry{RowKey: fmt.Appendf(nil, "row%d", i), Mutations: m, Idempotency: idem})
	}
	b, err := proto.Marshal(p)
	if err != nil {
		panic(err)
	}
	return b
}

func TestDecodeSamples(t *testing.T) {
	one, many := new(MutateRowRequest), new(MutateRowsRequest)
	for i, m := range samples() {
		for _, b := range [][]byte{seedRow(m), seedRow(set("cf", "a", 0, "x"), m, deleteRow()), seedRow()} {
			if err := compareRow(b, one); err != nil {
				t.Errorf("sample %d: %v", i, err)
			}
		}
		b := seedRows([]*bigtablepb.Mutation{set("cf", "a", 0, "x")}, []*bigtablepb.Mutation{deleteRow(), m}, nil)
		if err := compareRows(b, many); err != nil {
			t.Errorf("sample %d: %v", i, err)
		}
		if err := compareRows(seedRows([]*bigtablepb.Mutation{m}), many); err != nil {
			t.Errorf("sample %d: %v", i, err)
		}
	}
}

func FuzzMutateRow(f *testing.F) {
	for _, m := range samples() {
		f.Add(seedRow(m, deleteRow()))
	}
	f.Add(append(seedRow(set("cf", "q", 1, "v")), seedRow(deleteRow())...)) // a message concatenated is a message merged
	req := new(MutateRowRequest)
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := compareRow(b, req); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzMutateRows(f *testing.F) {
	for _, m := range samples() {
		f.Add(seedRows([]*bigtablepb.Mutation{set("cf", "a", 0, "x")}, []*bigtablepb.Mutation{m}))
	}
	req := new(MutateRowsRequest)
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := compareRows(b, req); err != nil {
			t.Fatal(err)
		}
	})
}

// Encoded messages are cut up and put together again, so that fields come
// twice, out of order and with a type that is not theirs.
func TestDecodeShuffled(t *testing.T) {
	one, many := new(MutateRowRequest), new(MutateRowsRequest)
	all := samples()
	cam, rmw, read := seeds()
	mutate := func(rt *rapid.T, b []byte, depth int) []byte { return shuffle(rt, b, depth) }
	rapid.Check(t, func(rt *rapid.T) {
		var ms []*bigtablepb.Mutation
		for range rapid.IntRange(0, 3).Draw(rt, "n") {
			ms = append(ms, rapid.SampledFrom(all).Draw(rt, "m"))
		}
		if err := compareRow(mutate(rt, seedRow(ms...), 0), one); err != nil {
			rt.Fatal(err)
		}
		if err := compareRows(mutate(rt, seedRows(ms, ms), 0), many); err != nil {
			rt.Fatal(err)
		}
		if err := compareCheckAndMutate(mutate(rt, cam, 0)); err != nil {
			rt.Fatal(err)
		}
		if err := compareReadModifyWrite(mutate(rt, rmw, 0)); err != nil {
			rt.Fatal(err)
		}
		if err := compareRead(mutate(rt, read, 0)); err != nil {
			rt.Fatal(err)
		}
	})
}

func shuffle(rt *rapid.T, b []byte, depth int) []byte {
	var fields [][]byte
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return b
		}
		_ = num
		f := b[:n]
		if typ == protowire.BytesType && depth < 4 && rapid.IntRange(0, 2).Draw(rt, "into") == 0 {
			_, _, tn := protowire.ConsumeTag(f)
			v, _ := protowire.ConsumeBytes(f[tn:])
			f = protowire.AppendBytes(bytes.Clone(f[:tn]), shuffle(rt, v, depth+1))
		}
		switch rapid.IntRange(0, 19).Draw(rt, "do") {
		case 0: // twice
			fields = append(fields, f, f)
		case 1: // gone
		case 2: // another number
			_, _, tn := protowire.ConsumeTag(f)
			fields = append(fields, append(protowire.AppendTag(nil, protowire.Number(rapid.IntRange(1, 9).Draw(rt, "num")), typ), f[tn:]...))
		case 3: // an unknown group before it
			g := protowire.AppendTag(nil, 3, protowire.StartGroupType)
			g = protowire.AppendTag(append(g, f...), 3, protowire.EndGroupType)
			fields = append(fields, g, f)
		case 4: // a fixed field of a known number
			fields = append(fields, protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), 1), f)
		default:
			fields = append(fields, f)
		}
		b = b[n:]
	}
	if len(fields) > 1 && rapid.Bool().Draw(rt, "swap") {
		i, j := rapid.IntRange(0, len(fields)-1).Draw(rt, "i"), rapid.IntRange(0, len(fields)-1).Draw(rt, "j")
		fields[i], fields[j] = fields[j], fields[i]
	}
	return bytes.Join(fields, nil)
}

// decodeRow decodes and checks one request.
func decodeRow(p *bigtablepb.MutateRowRequest) error {
	b, err := proto.Marshal(p)
	if err != nil {
		return err
	}
	r := new(MutateRowRequest)
	if err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.DefaultBufferPool(), nil); err != nil {
		return err
	}
	return r.Check()
}

func TestRefusals(t *testing.T) {
	many := make([]*bigtablepb.Mutation, schema.MaxMutations+1)
	for i := range many {
		many[i] = deleteRow()
	}
	for _, c := range []struct {
		name, field, text string
		p                 *bigtablepb.MutateRowRequest
	}{
		{"no key", "row_key", "Row keys must be non-empty", &bigtablepb.MutateRowRequest{Mutations: many[:1]}},
		{"long key", "row_key", "4096", &bigtablepb.MutateRowRequest{RowKey: make([]byte, 4097), Mutations: many[:1]}},
		{"no mutations", "mutations", "No mutations provided", &bigtablepb.MutateRowRequest{RowKey: []byte("r")}},
		{"too many", "mutations", "Too many mutations: 100001 provided; limit 100000", &bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: many}},
		{"timestamp", "mutations[1].set_cell.timestamp_micros",
			"Error in field 'mutations' : Error in element #1 : Error in field 'set_cell' : Error in field 'timestamp_micros' : Timestamps must be >= -1, but got -62135596800000000",
			&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: []*bigtablepb.Mutation{deleteRow(), set("f", "q", -62135596800000000, "")}}},
		{"qualifier", "mutations[0].set_cell.column_qualifier", "16384",
			&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: []*bigtablepb.Mutation{set("f", strings.Repeat("q", 16385), 0, "")}}},
		{"range", "mutations[0].delete_from_column.time_range.end_timestamp_micros", "inverted or invalid timestamp range [5, 5]",
			&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: []*bigtablepb.Mutation{deleteColumn("f", 5, 5)}}},
		{"unset", "mutations[0]", "No mutation is set",
			&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: []*bigtablepb.Mutation{{}}}},
		{"token", "idempotency.token", "at least 8 bytes",
			&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: many[:1], Idempotency: &bigtablepb.Idempotency{Token: []byte("short")}}},
		{"merge of an integer", "mutations[0].merge_to_cell.input", "state",
			&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: []*bigtablepb.Mutation{merge(integer(1))}}},
		{"nothing to merge", "mutations[0].merge_to_cell.input", "The state to merge must be given",
			&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: []*bigtablepb.Mutation{merge(nil)}}},
	} {
		err := decodeRow(c.p)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Invalid || f.Field != c.field || !strings.Contains(f.Msg, c.text) {
			t.Errorf("%s: got %+v", c.name, err)
		}
	}
	if err := decodeRow(&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: many[:schema.MaxMutations]}); err != nil {
		t.Errorf("the largest allowed number: %v", err)
	}
}

// Large values too: one byte over, and the limit itself.
func TestValueLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("allocates 200 MiB")
	}
	v := strings.Repeat("x", schema.MaxValue+1)
	p := &bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: []*bigtablepb.Mutation{set("f", "q", 0, v)}}
	if err := decodeRow(p); fault.KindOf(err) != fault.Invalid {
		t.Errorf("got %v", err)
	}
	p.Mutations[0].GetSetCell().Value = p.Mutations[0].GetSetCell().Value[:schema.MaxValue]
	if err := decodeRow(p); err != nil {
		t.Error(err)
	}
}

// What a request holds aliases the buffer, which it frees once.
func TestReleaseFreesTheBuffer(t *testing.T) {
	pool := &countingPool{}
	p := seedRow(set("cf", "q", 0, strings.Repeat("v", 5000)))
	buf := pool.Get(len(p))
	copy(*buf, p)
	data := mem.BufferSlice{mem.NewBuffer(buf, pool)}
	r := new(MutateRowRequest)
	if err := r.DecodeWire(data, pool, nil); err != nil {
		t.Fatal(err)
	}
	data.Free()
	if pool.out != 1 {
		t.Fatalf("%d buffers out while the request is in use", pool.out)
	}
	if err := r.DecodeWire(data, pool, nil); err == nil {
		t.Fatal("a second message was accepted")
	}
	if string(r.Entry.Mutations[0].Value[:2]) != "vv" {
		t.Fatal("the value is gone")
	}
	r.Release()
	if pool.out != 0 {
		t.Fatalf("%d buffers out", pool.out)
	}
	// A message in pieces is put together once.
	data = mem.BufferSlice{mem.SliceBuffer(p[:100]), mem.SliceBuffer(p[100:])}
	if err := r.DecodeWire(data, pool, nil); err != nil {
		t.Fatal(err)
	}
	if pool.out != 1 || r.Table != testTable {
		t.Fatalf("%d buffers out, table %q", pool.out, r.Table)
	}
	r.Release()
	if pool.out != 0 {
		t.Fatalf("%d buffers out", pool.out)
	}
}

type countingPool struct{ out int }

func (p *countingPool) Get(n int) *[]byte { p.out++; b := make([]byte, n); return &b }
func (p *countingPool) Put(*[]byte)       { p.out-- }

func BenchmarkDecodeMutateRow1KB(b *testing.B) {
	msg := seedRow(set("cf", "field0", 1700000000000000, strings.Repeat("v", 1000)))
	data := mem.BufferSlice{mem.SliceBuffer(msg)}
	pool := mem.DefaultBufferPool()
	r := new(MutateRowRequest)
	b.ReportAllocs()
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		if err := r.DecodeWire(data, pool, nil); err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}

func BenchmarkGeneratedMutateRow1KB(b *testing.B) {
	msg := seedRow(set("cf", "field0", 1700000000000000, strings.Repeat("v", 1000)))
	b.ReportAllocs()
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		p := new(bigtablepb.MutateRowRequest)
		if err := proto.Unmarshal(msg, p); err != nil {
			b.Fatal(err)
		}
		if _, _, err := mutateRowOf(p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeMutateRows100x100B(b *testing.B) {
	var entries [][]*bigtablepb.Mutation
	for range 100 {
		entries = append(entries, []*bigtablepb.Mutation{set("cf", "field0", 1700000000000000, strings.Repeat("v", 100))})
	}
	msg := seedRows(entries...)
	data := mem.BufferSlice{mem.SliceBuffer(msg)}
	pool := mem.DefaultBufferPool()
	r := new(MutateRowsRequest)
	b.ReportAllocs()
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		if err := r.DecodeWire(data, pool, nil); err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}
