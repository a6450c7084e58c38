package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/trestletest"
)

// changeOf is a message about row n, whose cells have the versions.
func changeOf(d *dataset, n uint64, size int, versions ...uint64) *btpb.ReadChangeStreamResponse {
	key := d.appendKey(nil, n)
	c := &btpb.ReadChangeStreamResponse_DataChange{Type: btpb.ReadChangeStreamResponse_DataChange_USER, RowKey: key, Done: true}
	for column, v := range versions {
		c.Chunks = append(c.Chunks, &btpb.ReadChangeStreamResponse_MutationChunk{Mutation: &btpb.Mutation{Mutation: &btpb.Mutation_SetCell_{SetCell: &btpb.Mutation_SetCell{
			FamilyName: family, ColumnQualifier: d.qualifiers[column], TimestampMicros: micros(v), Value: appendValue(nil, hashKey(key, column), v, size)}}}})
	}
	return &btpb.ReadChangeStreamResponse{StreamRecord: &btpb.ReadChangeStreamResponse_DataChange_{DataChange: c}}
}

// What is lost, doubled or torn in a change stream is found out; what is only cut into
// messages and pieces, and what garbage collection says, is not.
func TestWrongChangesAreFound(t *testing.T) {
	const lost = "lost"
	d := (&dataset{rows: 10, columns: 2, valueSize: 40}).init()
	whole := changeOf(d, 3, 40, 7, 7)
	pieces := func() []*btpb.ReadChangeStreamResponse {
		a, _ := proto.Clone(whole).(*btpb.ReadChangeStreamResponse)
		b, _ := proto.Clone(whole).(*btpb.ReadChangeStreamResponse)
		ca, cb := a.GetDataChange(), b.GetDataChange()
		ca.Done, ca.Chunks = false, ca.Chunks[:1]
		cb.Type, cb.RowKey = btpb.ReadChangeStreamResponse_DataChange_CONTINUATION, nil
		sa, sb := ca.Chunks[0].GetMutation().GetSetCell(), cb.Chunks[0].GetMutation().GetSetCell()
		ca.Chunks[0].ChunkInfo = &btpb.ReadChangeStreamResponse_MutationChunk_ChunkInfo{ChunkedValueSize: 40}
		cb.Chunks[0].ChunkInfo = &btpb.ReadChangeStreamResponse_MutationChunk_ChunkInfo{ChunkedValueSize: 40, ChunkedValueOffset: 25, LastChunk: true}
		sa.Value, sb.Value = sa.GetValue()[:25], sb.GetValue()[25:]
		return []*btpb.ReadChangeStreamResponse{a, b}
	}
	collected := changeOf(d, 3, 40, 1, 1)
	collected.GetDataChange().Type = btpb.ReadChangeStreamResponse_DataChange_GARBAGE_COLLECTION
	for _, c := range []struct {
		name, want string
		messages   []*btpb.ReadChangeStreamResponse
	}{
		{"as written", "", []*btpb.ReadChangeStreamResponse{whole}},
		{"in pieces", "", pieces()},
		{"beside garbage collection", "", []*btpb.ReadChangeStreamResponse{collected, whole, collected}},
		{"a row that was never written", "with 2 cells", []*btpb.ReadChangeStreamResponse{changeOf((&dataset{rows: 99, columns: 2, valueSize: 40}).init(), 50, 40, 7, 7)}},
		{"a cell is missing", "with 1 cells", []*btpb.ReadChangeStreamResponse{changeOf(d, 3, 40, 7)}},
		{"cells of two versions", "cell 1", []*btpb.ReadChangeStreamResponse{changeOf(d, 3, 40, 7, 8)}},
		{"a short value", "cell 0", []*btpb.ReadChangeStreamResponse{changeOf(d, 3, 39, 7, 7)}},
		{"twice", "delivered twice", []*btpb.ReadChangeStreamResponse{whole, whole}},
		{"a version that was never written", "never written", []*btpb.ReadChangeStreamResponse{changeOf(d, 3, 40, 9, 9)}},
		{"the first piece is missing", lost, pieces()[1:]},
		{"a mutation that sets no cell", "sets no cell", []*btpb.ReadChangeStreamResponse{{StreamRecord: &btpb.ReadChangeStreamResponse_DataChange_{DataChange: &btpb.ReadChangeStreamResponse_DataChange{
			Type: btpb.ReadChangeStreamResponse_DataChange_USER, RowKey: d.appendKey(nil, 3), Done: true,
			Chunks: []*btpb.ReadChangeStreamResponse_MutationChunk{{Mutation: &btpb.Mutation{Mutation: &btpb.Mutation_DeleteFromRow_{DeleteFromRow: new(btpb.Mutation_DeleteFromRow)}}}}}}}}},
	} {
		s := new(deliveries)
		f := &follower{d: d, row: s.delivered}
		await := s.expect(7, 8)
		p := new(partition)
		var err error
		for _, m := range c.messages {
			b, merr := proto.Marshal(m)
			if merr != nil {
				t.Fatal(merr)
			}
			err = errors.Join(err, f.message(p, b))
		}
		select {
		case <-await.done:
			if c.want == lost {
				t.Errorf("%s: was delivered", c.name)
			}
		default:
			if c.want == "" {
				t.Errorf("%s: was not delivered", c.name)
			}
		}
		if got := (c.want == "" || c.want == lost) && err == nil || c.want != "" && errors.Is(err, errWrong) && strings.Contains(err.Error(), c.want); !got {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Deliveries go on over splits and merges, and tables with and without a stream are
// compared on one server.
func TestFollowedSplits(t *testing.T) {
	s, err := trestletest.NewServer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	o := small(s.Addr, "change-stream").WithDefaults()
	o.Splits = 4
	d := empty(&o).init()
	d.changes = true
	tg, err := openTarget(&o, labelA, s.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tg.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begun := time.Now()
	if err := tg.create(ctx, "split", d); err != nil {
		t.Fatal(err)
	}
	st := &state{d: d, o: &o}
	if st.deliveries, err = followWrites(ctx, tg.conns[0], d, begun); err != nil {
		t.Fatal(err)
	}
	defer st.close()
	w := newWorker(tg.conns[0], 1, 1)
	for range 100 {
		if err := followedWrite(ctx, w, st); err != nil {
			t.Fatal(err)
		}
	}
	st.close()
	if err := tg.drop(ctx, d.name); err != nil {
		t.Fatal(err)
	}
	if _, err := btapb.NewBigtableTableAdminClient(tg.conns[0]).GetTable(ctx, &btapb.GetTableRequest{Name: d.name}); err == nil {
		t.Error("the table is still there")
	}

	o = small(s.Addr, "random-write")
	o.Against, o.ChangeStream, o.Slices = s.Addr, true, 2
	rep, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := rep.Err(); err != nil || len(rep.Ratios) != 1 {
		t.Errorf("%v, %+v", err, rep.Ratios)
	}
}

// Tokens of a merge's parents are gathered until they cover the child.
func TestJoinedPartitions(t *testing.T) {
	at := func(start, end string) *btpb.StreamPartition {
		return &btpb.StreamPartition{RowRange: &btpb.RowRange{StartKey: &btpb.RowRange_StartKeyClosed{StartKeyClosed: []byte(start)}, EndKey: &btpb.RowRange_EndKeyOpen{EndKeyOpen: []byte(end)}}}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("over")) // so that no partition is read
	f := &follower{ctx: ctx, fail: cancel}
	child := at("a", "z")
	for _, p := range []*btpb.StreamPartition{at("f", "m"), at("a", "f")} {
		if f.goOn(child, &btpb.StreamContinuationToken{Partition: p}) != nil {
			t.Fatal("begun too early")
		}
	}
	p := f.goOn(child, &btpb.StreamContinuationToken{Partition: at("m", "z")})
	if p == nil || len(p.tokens) != 3 || len(f.joining) != 0 {
		t.Errorf("%v, %d are waiting", p, len(f.joining))
	}
}
