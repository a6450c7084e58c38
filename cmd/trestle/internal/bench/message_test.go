package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func unmarshal[M proto.Message](t *testing.T, b []byte, m M) M {
	t.Helper()
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		t.Fatalf("unknown fields in %v", m)
	}
	return m
}

func equal(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func setCell(qualifier string, micros int64, value []byte) *btpb.Mutation {
	return &btpb.Mutation{Mutation: &btpb.Mutation_SetCell_{SetCell: &btpb.Mutation_SetCell{
		FamilyName: family, ColumnQualifier: []byte(qualifier), TimestampMicros: micros, Value: value}}}
}

func TestRequests(t *testing.T) {
	long := bytes.Repeat([]byte("q"), 300)
	sets := []set{
		{qualifier: []byte("q1"), micros: 5000, column: 7, version: 4, size: 1000},
		{qualifier: long, micros: 1 << 40, column: 8, version: 9, size: 16},
	}
	muts := []*btpb.Mutation{
		setCell("q1", 5000, appendValue(nil, 7, 4, 1000)),
		setCell(string(long), 1<<40, appendValue(nil, 8, 9, 16)),
	}
	key := []byte("row")
	equal(t, unmarshal(t, appendMutateRow(nil, "tbl", key, sets), new(btpb.MutateRowRequest)),
		&btpb.MutateRowRequest{TableName: "tbl", RowKey: key, Mutations: muts})

	bulk := appendBytes(nil, 1, []byte("tbl"))
	bulk = appendEntry(bulk, key, sets)
	bulk = appendEntry(bulk, long, sets[:1])
	equal(t, unmarshal(t, bulk, new(btpb.MutateRowsRequest)), &btpb.MutateRowsRequest{TableName: "tbl", Entries: []*btpb.MutateRowsRequest_Entry{
		{RowKey: key, Mutations: muts}, {RowKey: long, Mutations: muts[:1]}}})

	latest := &btpb.RowFilter{Filter: &btpb.RowFilter_CellsPerColumnLimitFilter{CellsPerColumnLimitFilter: 1}}
	column := &btpb.RowFilter{Filter: &btpb.RowFilter_ColumnQualifierRegexFilter{ColumnQualifierRegexFilter: []byte("q1")}}
	one := &btpb.RowSet{RowKeys: [][]byte{key}}
	rng := &btpb.RowRange{StartKey: &btpb.RowRange_StartKeyClosed{StartKeyClosed: key}}
	bounded := proto.Clone(rng).(*btpb.RowRange)
	bounded.EndKey = &btpb.RowRange_EndKeyOpen{EndKeyOpen: long}
	for _, c := range []struct {
		r    read
		want *btpb.ReadRowsRequest
	}{
		{read{key: key}, &btpb.ReadRowsRequest{Rows: one}},
		{read{key: key, latest: true}, &btpb.ReadRowsRequest{Rows: one, Filter: latest}},
		{read{key: key, qualifier: []byte("q1")}, &btpb.ReadRowsRequest{Rows: one, Filter: column}},
		{read{key: key, qualifier: []byte("q1"), latest: true}, &btpb.ReadRowsRequest{Rows: one,
			Filter: &btpb.RowFilter{Filter: &btpb.RowFilter_Chain_{Chain: &btpb.RowFilter_Chain{Filters: []*btpb.RowFilter{column, latest}}}}}},
		{read{start: key, limit: 300}, &btpb.ReadRowsRequest{Rows: &btpb.RowSet{RowRanges: []*btpb.RowRange{rng}}, RowsLimit: 300}},
		{read{start: key, end: long}, &btpb.ReadRowsRequest{Rows: &btpb.RowSet{RowRanges: []*btpb.RowRange{bounded}}}},
	} {
		c.want.TableName = "tbl"
		equal(t, unmarshal(t, c.r.append(nil, "tbl"), new(btpb.ReadRowsRequest)), c.want)
	}

	equal(t, unmarshal(t, appendIncrement(nil, "tbl", key, long, 300), new(btpb.ReadModifyWriteRowRequest)),
		&btpb.ReadModifyWriteRowRequest{TableName: "tbl", RowKey: key, Rules: []*btpb.ReadModifyWriteRule{
			{FamilyName: family, ColumnQualifier: long, Rule: &btpb.ReadModifyWriteRule_IncrementAmount{IncrementAmount: 300}}}})
	equal(t, unmarshal(t, appendCheck(nil, "tbl", key, &sets[0]), new(btpb.CheckAndMutateRowRequest)),
		&btpb.CheckAndMutateRowRequest{TableName: "tbl", RowKey: key, PredicateFilter: latest, TrueMutations: muts[:1], FalseMutations: muts[:1]})
}

// A row may come in many chunks and messages, and a value in many chunks.
func TestRowReader(t *testing.T) {
	fam, q := wrapperspb.String(family), func(s string) *wrapperspb.BytesValue { return wrapperspb.Bytes([]byte(s)) }
	commit := &btpb.ReadRowsResponse_CellChunk_CommitRow{CommitRow: true}
	messages := []*btpb.ReadRowsResponse{
		{LastScannedRowKey: []byte("a")},
		{Chunks: []*btpb.ReadRowsResponse_CellChunk{
			{RowKey: []byte("r1"), FamilyName: fam, Qualifier: q("x"), TimestampMicros: 9, Value: []byte("v9")},
			{TimestampMicros: 8, Value: []byte("v8")},
			{Qualifier: q(""), Value: []byte("sp"), ValueSize: 5},
		}},
		{Chunks: []*btpb.ReadRowsResponse_CellChunk{
			{Value: []byte("l"), ValueSize: 5},
			{Value: []byte("it"), RowStatus: commit},
			{RowKey: []byte("r2"), FamilyName: fam, Qualifier: q("y"), TimestampMicros: 7, RowStatus: commit},
		}},
	}
	var got []string
	r := rowReader{emit: func(c *cell) error {
		got = append(got, fmt.Sprintf("%s/%s@%d=%s,%v", c.row, c.qualifier, c.micros, c.value, c.last))
		return nil
	}}
	r.reset()
	for i, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.message(b); err != nil {
			t.Fatal(err)
		}
		if wantOpen := i == 1; (r.end() != nil) != wantOpen {
			t.Errorf("after message %d: end says %v", i, r.end())
		}
	}
	// The timestamp 0 is not written on the wire.
	want := []string{"r1/x@9=v9,false", "r1/x@8=v8,false", "r1/@0=split,true", "r2/y@7=,true"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for _, bad := range []*btpb.ReadRowsResponse_CellChunk{
		{Value: []byte("no row")},
		{RowKey: []byte("r"), RowStatus: &btpb.ReadRowsResponse_CellChunk_ResetRow{ResetRow: true}},
	} {
		r.reset()
		b, _ := proto.Marshal(&btpb.ReadRowsResponse{Chunks: []*btpb.ReadRowsResponse_CellChunk{bad}})
		if err := r.message(b); !errors.Is(err, errMessage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestResponses(t *testing.T) {
	b, _ := proto.Marshal(&btpb.MutateRowsResponse{Entries: []*btpb.MutateRowsResponse_Entry{
		{Index: 0, Status: &status.Status{}}, {Index: 300, Status: &status.Status{Code: int32(codes.NotFound), Message: "m"}}, {Index: 2}}})
	var got []string
	if err := eachEntry(b, func(i int, c codes.Code) { got = append(got, fmt.Sprint(i, c)) }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"0 OK", "300 NotFound", "2 OK"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	b, _ = proto.Marshal(&btpb.ReadModifyWriteRowResponse{Row: &btpb.Row{Key: []byte("k"), Families: []*btpb.Family{{Name: "f", Columns: []*btpb.Column{
		{Qualifier: []byte("q"), Cells: []*btpb.Cell{{TimestampMicros: 1, Value: binary.BigEndian.AppendUint64(nil, 42)}}}}}}}})
	if n, err := counter(b); n != 42 || err != nil {
		t.Errorf("counter %d, %v", n, err)
	}
}

func FuzzResponses(f *testing.F) {
	b, _ := proto.Marshal(&btpb.ReadRowsResponse{Chunks: []*btpb.ReadRowsResponse_CellChunk{{RowKey: []byte("r1"), FamilyName: wrapperspb.String("f"), Qualifier: wrapperspb.Bytes([]byte("q")), TimestampMicros: 9, Value: []byte("v9"), ValueSize: 3}}})
	f.Add(b)
	b, _ = proto.Marshal(&btpb.MutateRowsResponse{Entries: []*btpb.MutateRowsResponse_Entry{{Index: 300, Status: &status.Status{Code: 5, Message: "m"}}}})
	f.Add(b)
	f.Add([]byte{0x0d, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := (&dataset{rows: 10, valueSize: 16}).init()
		k := check{d: d, column: -1}
		k.begin()
		r := rowReader{emit: k.cell}
		_ = r.message(b)
		_ = eachEntry(b, func(int, codes.Code) {})
		_, _ = counter(b)
		_, _, _ = echoAnswer(b[:min(len(b), 7)])
	})
}
