package changecheck

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/wire"
)

func at(n int) *timestamppb.Timestamp { return timestamppb.New(time.Unix(int64(n), 0)) }

type chunk = bigtablepb.ReadChangeStreamResponse_MutationChunk

func setCell(value string, info ...int32) *chunk {
	c := &chunk{Mutation: &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "f", TimestampMicros: 1000, Value: []byte(value)}}}}
	if len(info) > 0 {
		c.ChunkInfo = &bigtablepb.ReadChangeStreamResponse_MutationChunk_ChunkInfo{ChunkedValueSize: info[0], ChunkedValueOffset: info[1], LastChunk: info[2] == 1}
		if info[1] > 0 {
			c.Mutation.GetSetCell().FamilyName, c.Mutation.GetSetCell().TimestampMicros = "", 0
		}
	}
	return c
}

func change(change func(*bigtablepb.ReadChangeStreamResponse_DataChange), chunks ...*chunk) *bigtablepb.ReadChangeStreamResponse {
	d := &bigtablepb.ReadChangeStreamResponse_DataChange{Type: bigtablepb.ReadChangeStreamResponse_DataChange_USER, SourceClusterId: "c", RowKey: []byte("row"),
		CommitTimestamp: at(10), Chunks: chunks, Done: true, Token: "token", EstimatedLowWatermark: at(5)}
	if change != nil {
		change(d)
	}
	return &bigtablepb.ReadChangeStreamResponse{StreamRecord: &bigtablepb.ReadChangeStreamResponse_DataChange_{DataChange: d}}
}

func beat(n int) *bigtablepb.ReadChangeStreamResponse {
	return &bigtablepb.ReadChangeStreamResponse{StreamRecord: &bigtablepb.ReadChangeStreamResponse_Heartbeat_{Heartbeat: &bigtablepb.ReadChangeStreamResponse_Heartbeat{
		ContinuationToken: &bigtablepb.StreamContinuationToken{Partition: wire.StreamPartition(row.All), Token: "t"}, EstimatedLowWatermark: at(n)}}}
}

func closing(code int32, tokens, parts []row.Range) *bigtablepb.ReadChangeStreamResponse {
	c := &bigtablepb.ReadChangeStreamResponse_CloseStream{Status: &statuspb.Status{Code: code}}
	for _, r := range tokens {
		c.ContinuationTokens = append(c.ContinuationTokens, &bigtablepb.StreamContinuationToken{Partition: wire.StreamPartition(r), Token: "t"})
	}
	for _, r := range parts {
		c.NewPartitions = append(c.NewPartitions, wire.StreamPartition(r))
	}
	return &bigtablepb.ReadChangeStreamResponse{StreamRecord: &bigtablepb.ReadChangeStreamResponse_CloseStream_{CloseStream: c}}
}

type data = bigtablepb.ReadChangeStreamResponse_DataChange

func more(d *data)      { d.Done, d.Token, d.EstimatedLowWatermark = false, "", nil }
func continued(d *data) { goesOn(d); d.Done, d.Token, d.EstimatedLowWatermark = true, "token", at(5) }
func goesOn(d *data) {
	*d = data{Type: bigtablepb.ReadChangeStreamResponse_DataChange_CONTINUATION, Chunks: d.Chunks}
}

// Each mistake that a server can make is seen.
func TestMistakes(t *testing.T) {
	left, right := row.Range{End: []byte("m")}, row.Range{Start: []byte("m")}
	remove := &chunk{Mutation: &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromRow_{DeleteFromRow: new(bigtablepb.Mutation_DeleteFromRow)}}}
	column := &chunk{Mutation: &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromColumn_{DeleteFromColumn: &bigtablepb.Mutation_DeleteFromColumn{FamilyName: "f"}}}}
	commit := func(n int) func(*data) { return func(d *data) { d.CommitTimestamp = at(n) } }
	list := func(m ...*bigtablepb.ReadChangeStreamResponse) []*bigtablepb.ReadChangeStreamResponse { return m }
	for _, c := range []struct {
		name string
		want string // in the error of the last message; empty: all are good
		msgs []*bigtablepb.ReadChangeStreamResponse
	}{
		{"good", "", list(beat(1), change(nil, setCell("v")), beat(5), change(commit(11), setCell("v")), closing(0, nil, nil))},
		{"good parts", "", list(change(more, setCell("x"), setCell("ab", 3, 0, 0)), change(continued, setCell("c", 3, 2, 1), setCell("y")))},
		{"good close", "", list(closing(11, []row.Range{left, right}, []row.Range{left, right}))},
		{"repeated", "came twice", list(change(nil, setCell("v")), change(nil, setCell("v")))},
		{"out of order", "after", list(change(commit(20), setCell("v")), change(commit(19), setCell("v")))},
		{"watermark overtaken", "after watermark", list(beat(10), change(nil, setCell("v")))},
		{"watermark goes back", "watermark", list(beat(10), beat(9))},
		{"no chunks", "without chunks", list(change(nil))},
		{"no cluster", "without a cluster", list(change(func(d *data) { d.SourceClusterId = "" }, setCell("v")))},
		{"collected with cluster", "with a cluster", list(change(func(d *data) { d.Type = bigtablepb.ReadChangeStreamResponse_DataChange_GARBAGE_COLLECTION }, setCell("v")))},
		{"begins as continuation", "begins with", list(change(continued, setCell("v")))},
		{"no key", "without row key", list(change(func(d *data) { d.RowKey = nil }, setCell("v")))},
		{"no token", "without a token", list(change(func(d *data) { d.Token = "" }, setCell("v")))},
		{"no watermark", "without a watermark", list(change(func(d *data) { d.EstimatedLowWatermark = nil }, setCell("v")))},
		{"token too early", "before the end", list(change(func(d *data) { d.Done = false }, setCell("v")))},
		{"no continuation", "more than chunks", list(change(more, setCell("v")), change(nil, setCell("v")))},
		{"heartbeat within", "within a record", list(change(more, setCell("v")), beat(1))},
		{"close within", "within a record", list(change(more, setCell("v")), closing(0, nil, nil))},
		{"DeleteFromRow", "unknown mod type", list(change(nil, remove))},
		{"no range", "without a time range", list(change(nil, column))},
		{"part is not last", "not the last", list(change(more, setCell("ab", 3, 0, 0), setCell("x")))},
		{"part is not first", "does not go on", list(change(more, setCell("ab", 3, 0, 0)), change(continued, column, setCell("c", 3, 2, 1)))},
		{"wrong offset", "offset", list(change(more, setCell("ab", 3, 0, 0)), change(continued, setCell("c", 3, 1, 1)))},
		{"other size", "the size of a value", list(change(more, setCell("ab", 3, 0, 0)), change(continued, setCell("c", 4, 2, 1)))},
		{"too short", "ends after", list(change(more, setCell("ab", 4, 0, 0)), change(continued, setCell("c", 4, 2, 1)))},
		{"no end", "no end", list(change(more, setCell("ab", 3, 0, 0)), change(func(d *data) { goesOn(d) }, setCell("c", 3, 2, 0)))},
		{"done within a value", "done within", list(change(nil, setCell("ab", 3, 0, 0)))},
		{"after the close", "after CloseStream", list(closing(0, nil, nil), beat(1))},
		{"OK with tokens", "status OK", list(closing(0, []row.Range{row.All}, nil))},
		{"no tokens", "0 tokens", list(closing(11, nil, nil))},
		{"another status", "status", list(closing(14, []row.Range{row.All}, nil))},
		{"fewer partitions", "2 tokens and 1", list(closing(11, []row.Range{left, right}, []row.Range{row.All}))},
		{"gap", "begins at", list(closing(11, []row.Range{right}, []row.Range{right}))},
		{"cut off", "end at", list(closing(11, []row.Range{left}, []row.Range{left}))},
		{"token outside", "its new partition", list(closing(11, []row.Range{left, right}, []row.Range{right, left}))},
		{"empty", "empty message", list(new(bigtablepb.ReadChangeStreamResponse))},
	} {
		s := New().Stream(row.All, time.Time{})
		var err error
		for i, m := range c.msgs {
			if err != nil {
				t.Errorf("%s: message %d: %v", c.name, i-1, err)
			}
			_, err = s.Take(m)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := New().Stream(left, time.Time{}).Take(change(nil, setCell("v"))); err == nil {
		t.Error("a row of another partition was taken")
	}
}

func TestMissing(t *testing.T) {
	c := New()
	s := c.Stream(row.All, time.Time{})
	for i := range 2 {
		if _, err := s.Take(change(func(d *data) { d.CommitTimestamp = at(10 + i) }, setCell("v"))); err != nil {
			t.Fatal(err)
		}
	}
	v, w := []*bigtablepb.Mutation{setCell("v").Mutation}, []*bigtablepb.Mutation{setCell("w").Mutation}
	for _, want := range []map[string][][]*bigtablepb.Mutation{
		{}, {"row": {v}}, {"row": {v, v, v}}, {"row": {v, w}}, {"row": {v, v}, "other": {v}}, {"row": {v, append(v[:1:1], v...)}},
	} {
		if c.Missing(want) == nil {
			t.Errorf("nothing is missing of %v", want)
		}
	}
	if err := c.Missing(map[string][][]*bigtablepb.Mutation{"row": {v, v}}); err != nil {
		t.Error(err)
	}
	cells, err := c.Apply()
	if err != nil || len(cells) != 1 || cells[Cell{"row", "f", "", 1000}] != "v" {
		t.Errorf("%v, %v", cells, err)
	}
}
