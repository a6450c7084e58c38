package streamcheck

import (
	"hash/crc32"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

type none struct{ grpc.ClientStream }

// Each rule is seen to be broken.
func TestChecker(t *testing.T) {
	col := &bigtablepb.ColumnMetadata{Type: &bigtablepb.Type{Kind: &bigtablepb.Type_Int64Type{Int64Type: &bigtablepb.Type_Int64{}}}}
	rows := func(vs ...*bigtablepb.Value) []byte {
		b, err := proto.Marshal(&bigtablepb.ProtoRows{Values: vs})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := &bigtablepb.Value{Kind: &bigtablepb.Value_IntValue{IntValue: 1}}
	sum := func(b []byte) *uint32 { return proto.Uint32(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))) }
	data := func(b []byte) *bigtablepb.PartialResultSet_ProtoRowsBatch {
		return &bigtablepb.PartialResultSet_ProtoRowsBatch{ProtoRowsBatch: &bigtablepb.ProtoRowsBatch{BatchData: b}}
	}
	good := rows(one, one)
	token := []byte("t")
	wrong := rows(&bigtablepb.Value{Kind: &bigtablepb.Value_BoolValue{}}, one)
	for _, tc := range []struct {
		name, want string
		sets       []*bigtablepb.PartialResultSet
	}{
		{"a good one", "", []*bigtablepb.PartialResultSet{
			{Reset_: true, PartialRows: data(good[:2])}, {PartialRows: data(good[2:]), BatchChecksum: sum(good)}, {ResumeToken: token}}},
		{"an empty one", "", []*bigtablepb.PartialResultSet{{Reset_: true, ResumeToken: token}}},
		{"no reset", "reset is false", []*bigtablepb.PartialResultSet{{PartialRows: data(good), BatchChecksum: sum(good), ResumeToken: token}}},
		{"reset twice", "reset is true", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good), BatchChecksum: sum(good)}, {Reset_: true, ResumeToken: token}}},
		{"estimated size", "estimated_batch_size", []*bigtablepb.PartialResultSet{{Reset_: true, EstimatedBatchSize: 9, ResumeToken: token}}},
		{"empty token", "length 0", []*bigtablepb.PartialResultSet{{Reset_: true, ResumeToken: []byte{}}}},
		{"token in a batch", "within a batch", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good), ResumeToken: token}}},
		{"no token", "without a token", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good), BatchChecksum: sum(good)}}},
		{"cut off", "incomplete", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good[:2])}}},
		{"early token", "behind the end", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good), BatchChecksum: sum(good), ResumeToken: token}, {ResumeToken: token}}},
		{"bad sum", "checksum", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good), BatchChecksum: proto.Uint32(1), ResumeToken: token}}},
		{"sum of 0", "checksum of 0", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good), BatchChecksum: proto.Uint32(0), ResumeToken: token}}},
		{"sum alone", "without data", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good)}, {BatchChecksum: sum(good), ResumeToken: token}}},
		{"half a row", "over the end", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(rows(one)), BatchChecksum: sum(rows(one)), ResumeToken: token}}},
		{"wrong kind", "BoolValue", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(wrong), BatchChecksum: sum(wrong), ResumeToken: token}}},
		{"empty message", "an empty message", []*bigtablepb.PartialResultSet{{Reset_: true, PartialRows: data(good), BatchChecksum: sum(good)}, {}, {ResumeToken: token}}},
		{"nothing", "without a result", nil},
	} {
		c := New()
		s := &stream{ClientStream: none{}, c: c, req: &bigtablepb.ExecuteQueryRequest{PreparedQuery: []byte("q")},
			schema: &bigtablepb.ProtoSchema{Columns: []*bigtablepb.ColumnMetadata{col, col}}}
		for _, p := range tc.sets {
			s.messages++
			s.message(&bigtablepb.ExecuteQueryResponse{Response: &bigtablepb.ExecuteQueryResponse_Results{Results: p}})
		}
		s.end()
		got := strings.Join(c.Violations(), "\n")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
