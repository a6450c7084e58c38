package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/conformance/changecheck"
	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/wire"
)

// model is the store below the server.
func (f *fixture) model() *model.Backend { return f.stub.ChangeStreamer.(*model.Backend) }

// enable enables the change stream of the table.
func (f *fixture) enable() {
	f.t.Helper()
	f.setStream(&schema.Stream{Retention: 24 * time.Hour})
}

// setStream sets the change stream of the table, one of a new life.
func (f *fixture) setStream(s *schema.Stream) {
	f.t.Helper()
	_, err := f.stub.UpdateTable(context.Background(), testTable, func(t *schema.Table) error {
		if t.Stream = s; s != nil {
			s.Life = t.Version + 1
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func streamRequest(rows row.Range) *bigtablepb.ReadChangeStreamRequest {
	return &bigtablepb.ReadChangeStreamRequest{TableName: testTable, Partition: wire.StreamPartition(rows), HeartbeatDuration: durationpb.New(100 * time.Millisecond)}
}

func startAt(req *bigtablepb.ReadChangeStreamRequest, t time.Time) *bigtablepb.ReadChangeStreamRequest {
	req.StartFrom = &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(t)}
	return req
}

func goOn(req *bigtablepb.ReadChangeStreamRequest, tokens ...*bigtablepb.StreamContinuationToken) *bigtablepb.ReadChangeStreamRequest {
	req.StartFrom = &bigtablepb.ReadChangeStreamRequest_ContinuationTokens{ContinuationTokens: &bigtablepb.StreamContinuationTokens{Tokens: tokens}}
	return req
}

func tokenOf(rows row.Range, token string) *bigtablepb.StreamContinuationToken {
	return &bigtablepb.StreamContinuationToken{Partition: wire.StreamPartition(rows), Token: token}
}

// streamUntil reads a stream until done says so, or it ends.
func (f *fixture) streamUntil(s *changecheck.Stream, req *bigtablepb.ReadChangeStreamRequest, done func(changecheck.Event) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := f.raw.ReadChangeStream(ctx, req)
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if n := proto.Size(resp); n > 1<<20 {
			return fmt.Errorf("a message of %d bytes", n)
		}
		e, err := s.Take(resp)
		if err != nil {
			return err
		}
		if done != nil && done(e) {
			return nil
		}
	}
}

// read reads everything that has been committed.
func (f *fixture) changes(c *changecheck.Checker, req *bigtablepb.ReadChangeStreamRequest) {
	f.t.Helper()
	if req.EndTime == nil {
		req.EndTime = timestamppb.New(time.Now())
	}
	closed := false
	rows, err := wire.RowRange(req.GetPartition().GetRowRange())
	if err != nil {
		f.t.Fatal(err)
	}
	err = f.streamUntil(c.Stream(rows, time.Time{}), req, func(e changecheck.Event) bool {
		closed = e.Close != nil && e.Close.GetStatus().GetCode() == 0
		return false
	})
	if err != nil || !closed {
		f.t.Fatalf("closed %v, %v", closed, err)
	}
}

// Every kind of write comes as the contract says.
func TestChangesOfEveryKind(t *testing.T) {
	f := newFixture(t, Options{Cluster: "one"})
	f.enable()
	tbl, ctx := f.table(), context.Background()
	begin := time.Now().Add(-time.Millisecond)
	apply := func(key string, build func(*bigtable.Mutation)) {
		t.Helper()
		m := bigtable.NewMutation()
		build(m)
		if err := tbl.Apply(ctx, key, m); err != nil {
			t.Fatal(err)
		}
	}
	apply("a", func(m *bigtable.Mutation) { m.Set("cf", "q", 1000, []byte("v")); m.Set("cf2", "", 2000, nil) })
	apply("b", func(m *bigtable.Mutation) { m.Set("cf", "q", bigtable.ServerTime, []byte("v")) })
	apply("c", func(m *bigtable.Mutation) { m.DeleteCellsInColumn("cf", "q") })
	apply("d", func(m *bigtable.Mutation) { m.DeleteTimestampRange("cf", "q", 1000, 5000) })
	apply("e", func(m *bigtable.Mutation) { m.DeleteCellsInFamily("cf2") })
	apply("f", func(m *bigtable.Mutation) { m.DeleteRow() })
	apply("g", func(m *bigtable.Mutation) { m.AddIntToCell("agg", "q", 1000, 0); m.AddIntToCell("agg", "q", 1000, -5) })
	apply("h", func(m *bigtable.Mutation) { m.MergeBytesToCell("agg", "q", 1000, []byte{0, 0, 0, 0, 0, 0, 0, 9}) })
	rmw := bigtable.NewReadModifyWrite()
	rmw.Increment("cf", "n", 5)
	rmw.AppendValue("cf", "s", []byte("xy"))
	if _, err := tbl.ApplyReadModifyWrite(ctx, "i", rmw); err != nil {
		t.Fatal(err)
	}
	yes, no := bigtable.NewMutation(), bigtable.NewMutation()
	yes.Set("cf", "yes", 1000, nil)
	no.Set("cf", "no", 1000, nil)
	for _, key := range []string{"a", "j"} {
		if err := tbl.Apply(ctx, key, bigtable.NewCondMutation(bigtable.PassAllFilter(), yes, no)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tbl.Apply(ctx, "k", bigtable.NewCondMutation(bigtable.PassAllFilter(), yes, nil)); err != nil {
		t.Fatal(err)
	}
	apply("l1", func(m *bigtable.Mutation) { m.Set("cf", "q", 1000, nil) })
	if err := f.stub.DropRowRange(ctx, testTable, []byte("l")); err != nil {
		t.Fatal(err)
	}
	apply("m", func(m *bigtable.Mutation) { m.Set("cf", "q", 7000, []byte("old")) })
	if err := f.model().Collect(ctx, testTable, []byte("m"), "cf", []byte("q"), 7000); err != nil {
		t.Fatal(err)
	}

	// Each tablet by itself.
	c := changecheck.New()
	f.changes(c, startAt(streamRequest(row.Range{End: []byte("m")}), begin))
	f.changes(c, startAt(streamRequest(row.Range{Start: []byte("m")}), begin))
	all := `delete_from_family:{family_name:"agg"} delete_from_family:{family_name:"cf"} delete_from_family:{family_name:"cf2"}`
	for key, want := range map[string]string{
		"a":  `set_cell:{family_name:"cf" column_qualifier:"q" timestamp_micros:1000 value:"v"} set_cell:{family_name:"cf2" timestamp_micros:2000} | set_cell:{family_name:"cf" column_qualifier:"yes" timestamp_micros:1000}`,
		"b":  `set_cell:{family_name:"cf" column_qualifier:"q" timestamp_micros:NOW value:"v"}`,
		"c":  `delete_from_column:{family_name:"cf" column_qualifier:"q" time_range:{}}`,
		"d":  `delete_from_column:{family_name:"cf" column_qualifier:"q" time_range:{start_timestamp_micros:1000 end_timestamp_micros:5000}}`,
		"e":  `delete_from_family:{family_name:"cf2"}`,
		"f":  all,
		"g":  `add_to_cell:{family_name:"agg" column_qualifier:{raw_value:"q"} timestamp:{raw_timestamp_micros:1000} input:{int_value:0}} add_to_cell:{family_name:"agg" column_qualifier:{raw_value:"q"} timestamp:{raw_timestamp_micros:1000} input:{int_value:-5}}`,
		"h":  `merge_to_cell:{family_name:"agg" column_qualifier:{raw_value:"q"} timestamp:{raw_timestamp_micros:1000} input:{raw_value:"\x00\x00\x00\x00\x00\x00\x00\t"}}`,
		"i":  `set_cell:{family_name:"cf" column_qualifier:"n" timestamp_micros:NOW value:"\x00\x00\x00\x00\x00\x00\x00\x05"} set_cell:{family_name:"cf" column_qualifier:"s" timestamp_micros:NOW value:"xy"}`,
		"j":  `set_cell:{family_name:"cf" column_qualifier:"no" timestamp_micros:1000}`,
		"k":  ``,
		"l1": `set_cell:{family_name:"cf" column_qualifier:"q" timestamp_micros:1000} | ` + all,
		"m":  `set_cell:{family_name:"cf" column_qualifier:"q" timestamp_micros:7000 value:"old"} | GC delete_from_column:{family_name:"cf" column_qualifier:"q" time_range:{start_timestamp_micros:7000 end_timestamp_micros:8000}}`,
	} {
		var got []string
		for _, r := range c.Row(key) {
			var muts []string
			if r.Collected {
				muts = append(muts, "GC")
			} else if r.Cluster != "default" {
				t.Errorf("row %q: cluster %q", key, r.Cluster)
			}
			for _, m := range r.Mutations {
				if s := m.GetSetCell(); s.GetTimestampMicros() > 1e6 {
					if d := time.Since(time.UnixMicro(s.TimestampMicros)); d < 0 || d > time.Minute || s.TimestampMicros%1000 != 0 {
						t.Errorf("row %q: timestamp %d", key, s.TimestampMicros)
					}
				}
				muts = append(muts, strings.Join(strings.Fields(fmt.Sprint(m)), " "))
			}
			if r.Commit.Before(begin) || time.Since(r.Commit) < 0 {
				t.Errorf("row %q: commit %v", key, r.Commit)
			}
			got = append(got, strings.Join(muts, " "))
		}
		text := strings.Join(got, " | ")
		if !strings.Contains(want, "NOW") && text != want {
			t.Errorf("row %q:\ngot  %s\nwant %s", key, text, want)
		}
		if head, _, _ := strings.Cut(want, "NOW"); !strings.HasPrefix(text, head) {
			t.Errorf("row %q:\ngot  %s\nwant %s", key, text, want)
		}
	}
	if c.Records() != 15 {
		t.Errorf("%d records", c.Records())
	}
}

// Values and records of all sizes come in messages that clients take.
func TestLargeChanges(t *testing.T) {
	f := newFixture(t, Options{})
	f.enable()
	begin := time.Now().Add(-time.Millisecond)
	want := map[string][][]*bigtablepb.Mutation{}
	rnd := rand.New(rand.NewPCG(3, 4))
	value := func(n int) []byte {
		b := make([]byte, n)
		for i := 0; i < n; i += 997 {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	const m = 1 << 20
	for i, sizes := range [][]int{
		{0}, {1}, {m - 128<<10}, {m - 128<<10 + 1}, {m}, {m + 1}, {2 * (m - 128<<10)}, {5 * m, 5 * m}, {1, 3 * m, 1, 1}, {500_000, 500_000, 500_000}, {100_000, 3*m - 5, 900_000, 10},
		{90 * m},
	} {
		key := fmt.Sprintf("row%02d", i)
		var muts []*bigtablepb.Mutation
		for j, n := range sizes {
			muts = append(muts, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
				FamilyName: "cf", ColumnQualifier: fmt.Appendf(nil, "q%d", j), TimestampMicros: 1000, Value: value(n)}}})
		}
		want[key] = [][]*bigtablepb.Mutation{muts}
	}
	// Many small ones in one record, and columns of the largest names.
	var many []*bigtablepb.Mutation
	for i := range 30_000 {
		many = append(many, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
			FamilyName: "cf", ColumnQualifier: fmt.Appendf(nil, "%0*d", 1+i%200, i), TimestampMicros: int64(i) * 1000, Value: value(i % 50)}}})
	}
	want["many"] = [][]*bigtablepb.Mutation{many}
	want[strings.Repeat("k", 4096)] = [][]*bigtablepb.Mutation{{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
		FamilyName: "cf", ColumnQualifier: bytes.Repeat([]byte("q"), 16<<10), TimestampMicros: 1000, Value: value(3 * m)}}}}}
	for key, writes := range want {
		if _, err := f.raw.MutateRow(context.Background(), &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte(key), Mutations: writes[0]}); err != nil {
			t.Fatal(err)
		}
	}
	c := changecheck.New()
	// Each operation takes a microsecond: what follows a record of 30,000 is that far ahead.
	end := timestamppb.New(time.Now().Add(100 * time.Millisecond))
	for _, rows := range []row.Range{{End: []byte("m")}, {Start: []byte("m")}} {
		req := startAt(streamRequest(rows), begin)
		req.EndTime = end
		f.changes(c, req)
	}
	if err := c.Missing(want); err != nil {
		t.Error(shortErr(err))
	}
	if n, lag := f.server.data.Streams(); n != 0 || lag != 0 {
		t.Errorf("%d streams are open, %v behind", n, lag)
	}
}

func shortErr(err error) string { s := err.Error(); return s[:min(len(s), 500)] }

// A reader that is cut off after any record goes on with its token: nothing is lost,
// nothing comes twice, also while tablets are split and merged.
func TestChangesExactlyOnce(t *testing.T) {
	for window := 1500 * time.Millisecond; !changesExactlyOnce(t, window) && !t.Failed(); window *= 2 {
		if window > time.Minute {
			t.Fatal("too little happened")
		}
	}
}

// changesExactlyOnce reports whether enough happened within a span of time.
func changesExactlyOnce(t *testing.T, window time.Duration) bool {
	f := newFixture(t, Options{})
	f.enable()
	begin := time.Now().Add(-time.Millisecond).Truncate(time.Microsecond)
	ctx := context.Background()
	var mu sync.Mutex
	want := map[string][][]*bigtablepb.Mutation{}
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 9))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("%c%d%d", 'a'+rnd.IntN(26), rnd.IntN(10), w)
				muts := []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
					FamilyName: "cf", ColumnQualifier: []byte("q"), TimestampMicros: int64(i+1) * 1000, Value: fmt.Appendf(nil, "%d", i)}}}}
				if _, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte(key), Mutations: muts}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				want[key] = append(want[key], muts)
				mu.Unlock()
				time.Sleep(time.Millisecond)
			}
		})
	}
	writers.Go(func() { // splits and merges
		rnd := rand.New(rand.NewPCG(5, 9))
		for {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
			}
			key := []byte{byte('a' + rnd.IntN(26))}
			if err := f.model().Split(ctx, testTable, key); err != nil {
				t.Error(err)
			}
			if rnd.IntN(2) == 0 {
				_ = f.model().Merge(ctx, testTable, []byte{byte('a' + rnd.IntN(26))}) // no tablets may meet there
			}
		}
	})
	c := changecheck.New()
	end := time.Now().Add(window)
	p := newPipeline(f, c, end)
	p.open(row.Range{End: []byte("m")}, startAt(streamRequest(row.Range{End: []byte("m")}), begin), begin)
	p.open(row.Range{Start: []byte("m")}, startAt(streamRequest(row.Range{Start: []byte("m")}), begin), begin)
	time.Sleep(time.Until(end))
	close(stop)
	writers.Wait()
	p.wait()
	// What was written after the end is read by nobody.
	mu.Lock()
	defer mu.Unlock()
	f.changes(c, startAt(streamRequest(row.All), end.Truncate(time.Microsecond).Add(time.Microsecond)))
	if err := c.Missing(want); err != nil {
		t.Error(shortErr(err))
	}
	t.Logf("%d records, %d streams, %d closed", c.Records(), p.streams, p.closed)
	return c.Records() >= 100 && p.closed >= 10
}

// After a merge the parents' tokens may be of different times: each part is read on
// from its own, and the tokens of the merged stream say so until all are level.
func TestChangesAfterMerge(t *testing.T) {
	f := newFixture(t, Options{})
	f.enable()
	ctx := context.Background()
	begin := time.Now().Add(-time.Millisecond).Truncate(time.Microsecond)
	want := map[string][][]*bigtablepb.Mutation{}
	write := func(n int) {
		t.Helper()
		for i := range n {
			for _, key := range []string{"a", "b", "p", "q", "z"} {
				muts := []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
					FamilyName: "cf", ColumnQualifier: []byte("q"), TimestampMicros: int64(i) * 1000}}}}
				if _, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte(key), Mutations: muts}); err != nil {
					t.Fatal(err)
				}
				want[key] = append(want[key], muts)
			}
		}
	}
	c := changecheck.New()
	// some reads a number of records, and returns the last token.
	some := func(rows row.Range, req *bigtablepb.ReadChangeStreamRequest, watermark time.Time, n int) (string, time.Time) {
		t.Helper()
		token := ""
		s := c.Stream(rows, watermark)
		if err := f.streamUntil(s, req, func(e changecheck.Event) bool {
			if e.Close != nil {
				t.Fatalf("closed: %v", e.Close)
			}
			if e.Record != nil {
				token = e.Record.Token
				n--
			}
			return n == 0
		}); err != nil {
			t.Fatal(err)
		}
		return token, s.Watermark()
	}
	write(10)
	left, right := row.Range{End: []byte("m")}, row.Range{Start: []byte("m")}
	l, low := some(left, startAt(streamRequest(left), begin), time.Time{}, 3)
	r, _ := some(right, startAt(streamRequest(right), begin), time.Time{}, 17)
	write(10)
	if err := f.model().Merge(ctx, testTable, []byte("m")); err != nil {
		t.Fatal(err)
	}
	write(5)
	req := goOn(streamRequest(row.All), tokenOf(right, r), tokenOf(left, l))
	token, watermark := "", low
	for i := 0; c.Records() < 5*25; i++ {
		if token, watermark = some(row.All, req, watermark.Add(-time.Microsecond), 1+i%3); token == "" {
			t.Fatal("no token")
		}
		req = goOn(streamRequest(row.All), tokenOf(row.All, token))
	}
	if err := c.Missing(want); err != nil {
		t.Error(shortErr(err))
	}
	// A layout that changes while the parts are behind each other closes all of them.
	c = changecheck.New()
	if err := f.model().Split(ctx, testTable, []byte("c")); err != nil {
		t.Fatal(err)
	}
	p := newPipeline(f, c, time.Now())
	p.open(row.All, goOn(streamRequest(row.All), tokenOf(right, r), tokenOf(left, l)), low)
	p.wait()
	if c.Records() != 5*25-20 || p.closed != 1 {
		t.Errorf("%d records, %d closed", c.Records(), p.closed)
	}
}

// A pipeline reads all partitions as Beam's connector does: one begins when the tokens
// that were collected for it cover it.
type pipeline struct {
	f   *fixture
	c   *changecheck.Checker
	end time.Time
	wg  sync.WaitGroup

	mu      sync.Mutex
	waiting map[string][]waitingToken
	streams int
	closed  int
}

type waitingToken struct {
	rows      row.Range
	token     *bigtablepb.StreamContinuationToken
	watermark time.Time
}

func newPipeline(f *fixture, c *changecheck.Checker, end time.Time) *pipeline {
	return &pipeline{f: f, c: c, end: end, waiting: map[string][]waitingToken{}}
}

func (p *pipeline) wait() {
	p.f.t.Helper()
	p.wg.Wait()
	for name, w := range p.waiting {
		p.f.t.Errorf("partition %s waits with %d tokens", name, len(w))
	}
}

// open reads a partition until it is closed, cut off now and then.
func (p *pipeline) open(rows row.Range, req *bigtablepb.ReadChangeStreamRequest, watermark time.Time) {
	p.wg.Go(func() {
		rnd := rand.New(rand.NewPCG(uint64(len(rows.Start)), uint64(len(rows.End))))
		for {
			p.mu.Lock()
			p.streams++
			p.mu.Unlock()
			req.EndTime = timestamppb.New(p.end)
			s := p.c.Stream(rows, watermark.Add(-time.Microsecond))
			token, n := "", rnd.IntN(40)
			var closed *bigtablepb.ReadChangeStreamResponse_CloseStream
			err := p.f.streamUntil(s, req, func(e changecheck.Event) bool {
				switch {
				case e.Record != nil:
					token = e.Record.Token
				case e.Heartbeat != nil:
					token = e.Heartbeat.ContinuationToken.Token
				default:
					closed = e.Close
				}
				n--
				return closed != nil || n < 0 && token != ""
			})
			if err != nil {
				p.f.t.Errorf("[%q, %q): %v", rows.Start, rows.End, err)
				return
			}
			if w := s.Watermark(); w.After(watermark) {
				watermark = w
			}
			if closed != nil {
				p.split(closed, watermark)
				return
			}
			req = goOn(streamRequest(rows), tokenOf(rows, token))
		}
	})
}

func (p *pipeline) split(c *bigtablepb.ReadChangeStreamResponse_CloseStream, watermark time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.GetStatus().GetCode() == 0 {
		return
	}
	p.closed++
	for i, n := range c.NewPartitions {
		child, err := wire.RowRange(n.RowRange)
		if err != nil {
			p.f.t.Error(err)
			return
		}
		in, err := wire.RowRange(c.ContinuationTokens[i].Partition.RowRange)
		if err != nil {
			p.f.t.Error(err)
			return
		}
		name := fmt.Sprintf("[%q, %q)", child.Start, child.End)
		all := append(p.waiting[name], waitingToken{in, c.ContinuationTokens[i], watermark})
		var ranges []row.Range
		var tokens []*bigtablepb.StreamContinuationToken
		low := watermark
		for _, w := range all {
			ranges, tokens = append(ranges, w.rows), append(tokens, w.token)
			if w.watermark.Before(low) {
				low = w.watermark
			}
		}
		if u := row.Union(ranges); len(u) == 1 && bytes.Equal(u[0].Start, child.Start) && bytes.Equal(u[0].End, child.End) {
			delete(p.waiting, name)
			p.open(child, goOn(streamRequest(child), tokens...), low)
		} else {
			p.waiting[name] = all
		}
	}
}

func TestGenerateInitialChangeStreamPartitions(t *testing.T) {
	f := newFixture(t, Options{})
	f.enable()
	stream, err := f.raw.GenerateInitialChangeStreamPartitions(context.Background(), &bigtablepb.GenerateInitialChangeStreamPartitionsRequest{TableName: testTable})
	if err != nil {
		t.Fatal(err)
	}
	got, err := recvAll(stream.Recv)
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	for i, want := range []row.Range{{End: []byte("m")}, {Start: []byte("m")}} {
		r := got[i].GetPartition().GetRowRange()
		if _, ok := r.GetStartKey().(*bigtablepb.RowRange_StartKeyClosed); !ok || !bytes.Equal(r.GetStartKeyClosed(), want.Start) {
			t.Errorf("partition %d: %v", i, r)
		}
		if _, ok := r.GetEndKey().(*bigtablepb.RowRange_EndKeyOpen); !ok || !bytes.Equal(r.GetEndKeyOpen(), want.End) {
			t.Errorf("partition %d: %v", i, r)
		}
	}
}

// Each input that must be refused is, with the field to blame.
func TestChangeStreamRefusals(t *testing.T) {
	f := newFixture(t, Options{MaxChangeStreams: 5})
	call := func(req *bigtablepb.ReadChangeStreamRequest) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stream, err := f.raw.ReadChangeStream(ctx, req)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	check := func(name string, err error, code codes.Code, text string) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
			t.Errorf("%s: %v, want %v with %q", name, err, code, text)
		}
	}
	whole := func() *bigtablepb.ReadChangeStreamRequest { return streamRequest(row.All) }
	check("off", call(whole()), codes.FailedPrecondition, "Change streams are not enabled on table "+testTable)
	parts, err := f.raw.GenerateInitialChangeStreamPartitions(context.Background(), &bigtablepb.GenerateInitialChangeStreamPartitionsRequest{TableName: testTable})
	if err == nil {
		_, err = parts.Recv()
	}
	check("partitions off", err, codes.FailedPrecondition, "Change streams are not enabled on table "+testTable)
	f.enable()
	since := time.Now()

	// A token of each half, to make bad ones of.
	left, right := row.Range{End: []byte("m")}, row.Range{Start: []byte("m")}
	token := func(rows row.Range) string {
		t.Helper()
		var out string
		if err := f.streamUntil(changecheck.New().Stream(rows, time.Time{}), streamRequest(rows), func(e changecheck.Event) bool {
			out = e.Heartbeat.GetContinuationToken().GetToken()
			return true
		}); err != nil || out == "" {
			t.Fatalf("token %q, %v", out, err)
		}
		return out
	}
	l, r := token(left), token(right)
	flipped := func(s string, i int) string {
		b, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		b[i%len(b)] ^= 1
		return base64.RawURLEncoding.EncodeToString(b)
	}
	mid := row.Range{Start: []byte("f"), End: []byte("m")}
	for _, c := range []struct {
		name string
		req  *bigtablepb.ReadChangeStreamRequest
		code codes.Code
		text string
	}{
		{"empty partition", streamRequest(row.Range{Start: []byte("a"), End: []byte("a")}), codes.InvalidArgument, "'partition'"},
		{"partition backwards", streamRequest(row.Range{Start: []byte("b"), End: []byte("a")}), codes.InvalidArgument, "'partition'"},
		{"future", startAt(whole(), since.Add(time.Minute)), codes.InvalidArgument, "'start_time'"},
		{"too old", startAt(whole(), since.Add(-25*time.Hour)), codes.OutOfRange, "the earliest that the stream still has"},
		{"end before start", &bigtablepb.ReadChangeStreamRequest{TableName: testTable, StartFrom: startAt(whole(), since).StartFrom, EndTime: timestamppb.New(since.Add(-time.Second))}, codes.InvalidArgument, "'end_time'"},
		{"bad time", &bigtablepb.ReadChangeStreamRequest{TableName: testTable, EndTime: &timestamppb.Timestamp{Nanos: -1}}, codes.InvalidArgument, "'end_time'"},
		{"negative heartbeat", &bigtablepb.ReadChangeStreamRequest{TableName: testTable, HeartbeatDuration: durationpb.New(-1)}, codes.InvalidArgument, "'heartbeat_duration'"},
		{"no tokens", goOn(whole()), codes.InvalidArgument, "'continuation_tokens'"},
		{"gap at the end", goOn(whole(), tokenOf(left, l)), codes.InvalidArgument, "element #0 : No token is of the rows from \"m\""},
		{"gap at the start", goOn(whole(), tokenOf(right, r)), codes.InvalidArgument, "element #0 : No token is of the rows from \"\" to \"m\""},
		{"overlap", goOn(whole(), tokenOf(left, l), tokenOf(right, r), tokenOf(left, l)), codes.InvalidArgument, "overlaps"},
		{"twice the end", goOn(whole(), tokenOf(left, l), tokenOf(right, r), tokenOf(right, r)), codes.InvalidArgument, "overlaps"},
		{"too wide", goOn(streamRequest(mid), tokenOf(left, l)), codes.InvalidArgument, "reaches beyond"},
		{"too wide at the end", goOn(streamRequest(row.Range{End: []byte("f")}), tokenOf(left, l)), codes.InvalidArgument, "reaches beyond"},
		{"outside", goOn(streamRequest(left), tokenOf(left, l), tokenOf(right, r)), codes.InvalidArgument, "element #1"},
		{"of another partition", goOn(streamRequest(right), tokenOf(right, l)), codes.InvalidArgument, "element #0 : Not a token of this partition"},
		{"no base64", goOn(streamRequest(left), tokenOf(left, "?!")), codes.InvalidArgument, "element #0 : Not a token"},
		{"empty", goOn(streamRequest(left), tokenOf(left, "")), codes.InvalidArgument, "element #0 : Not a token"},
		{"cut", goOn(streamRequest(left), tokenOf(left, l[:len(l)-2])), codes.InvalidArgument, "element #0 : Not a token"},
		{"second is bad", goOn(whole(), tokenOf(left, l), tokenOf(right, l)), codes.InvalidArgument, "element #1 : Not a token"},
		{"unknown table", &bigtablepb.ReadChangeStreamRequest{TableName: testTable + "x"}, codes.NotFound, "Table not found"},
	} {
		check(c.name, call(c.req), c.code, c.text)
	}
	for i := range len(l) * 3 / 4 {
		check(fmt.Sprint("bit ", i), call(goOn(streamRequest(left), tokenOf(left, flipped(l, i)))), codes.InvalidArgument, "Not a token")
	}
	// A start in the near future is waited for.
	if err := call(startAt(whole(), time.Now().Add(300*time.Millisecond))); err != nil {
		t.Error(err)
	}
	if err := call(goOn(whole(), tokenOf(right, r), tokenOf(left, l))); err != nil {
		t.Error(err)
	}

	// As many as there may be.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 5 {
		s, err := f.raw.ReadChangeStream(ctx, streamRequest(left))
		if err == nil {
			_, err = s.Header()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check("one too many", call(whole()), codes.ResourceExhausted, "--max-change-streams")
	cancel()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err = call(whole()); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the others were gone: %v", err)
		}
	}

	// Another life of the stream, and a stream that ends while it is read.
	live, err := f.raw.ReadChangeStream(context.Background(), streamRequest(left))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := live.Recv(); err != nil {
		t.Fatal(err)
	}
	f.setStream(nil)
	_, err = recvAll(live.Recv)
	check("disabled while read", err, codes.FailedPrecondition, "Change streams are not enabled")
	f.enable()
	check("another life", call(goOn(streamRequest(left), tokenOf(left, l))), codes.InvalidArgument, "element #0 : The token is of an earlier change stream")

	// The same of a table with a view, for which changes go on being kept.
	alter := func(change func(*schema.Table)) {
		t.Helper()
		if _, err := f.stub.UpdateTable(context.Background(), testTable, func(t *schema.Table) error { change(t); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	alter(func(t *schema.Table) { t.Views = []schema.ViewOf{{Name: "a-view"}} })
	l = token(left)
	if live, err = f.raw.ReadChangeStream(context.Background(), streamRequest(left)); err != nil {
		t.Fatal(err)
	}
	if _, err := live.Recv(); err != nil {
		t.Fatal(err)
	}
	alter((*schema.Table).DisableStream)
	_, err = recvAll(live.Recv)
	check("disabled while read, with a view", err, codes.FailedPrecondition, "Change streams are not enabled")
	check("off, with a view", call(whole()), codes.FailedPrecondition, "Change streams are not enabled on table "+testTable)
	enabled := time.Now().Add(time.Hour) // the model's clock is the test's
	alter(func(t *schema.Table) { t.EnableStream(24*time.Hour, enabled) })
	check("another life, with a view", call(goOn(streamRequest(left), tokenOf(left, l))), codes.InvalidArgument, "element #0 : The token is of an earlier change stream")
	check("before it was enabled, with a view", call(startAt(whole(), since)), codes.OutOfRange, "the earliest that the stream still has")
}

// TestStreamOfAStoreAhead: where commit times are ahead of the gateway's clock, a client who has
// a stream enabled, and reads it from now on, gets what is written later, and no error.
func TestStreamOfAStoreAhead(t *testing.T) {
	f := newFixture(t, Options{})
	tbl, ctx := f.table(), context.Background()
	set := func(key string) {
		t.Helper()
		m := bigtable.NewMutation()
		m.Set("cf", "q", 1000, []byte("v"))
		if err := tbl.Apply(ctx, key, m); err != nil {
			t.Fatal(err)
		}
	}
	f.enable() // the model counts where there is a stream
	f.ahead.Store(int64(time.Minute))
	set("before")
	f.setStream(nil)
	f.ahead.Store(0)
	f.enable()
	begin := time.Now()
	set("after")
	for _, req := range []*bigtablepb.ReadChangeStreamRequest{streamRequest(row.All), startAt(streamRequest(row.All), begin)} {
		var keys []string
		err := f.streamUntil(changecheck.New().Stream(row.All, time.Time{}), req, func(e changecheck.Event) bool {
			if e.Record != nil {
				keys = append(keys, string(e.Record.Key))
			}
			return len(keys) > 0
		})
		if err != nil || !slices.Equal(keys, []string{"after"}) {
			t.Errorf("%q, %v", keys, err)
		}
	}
	// What the retention has taken was there for clients.
	f.ahead.Store(int64(48 * time.Hour))
	if err := f.streamUntil(changecheck.New().Stream(row.All, time.Time{}), startAt(streamRequest(row.All), begin), nil); status.Code(err) != codes.OutOfRange {
		t.Errorf("after the retention: %v", err)
	}
}

// Heartbeats come, and their watermark follows the clock.
func TestChangeStreamHeartbeats(t *testing.T) {
	f := newFixture(t, Options{})
	f.enable()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req := streamRequest(row.All)
	req.HeartbeatDuration = durationpb.New(200 * time.Millisecond)
	// The whole table is two tablets: what to read instead is said at once.
	s, err := f.raw.ReadChangeStream(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := recvAll(s.Recv)
	if err != nil || len(got) != 1 || len(got[0].GetCloseStream().GetNewPartitions()) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	rows := row.Range{Start: []byte("m")}
	req.Partition = wire.StreamPartition(rows)
	last := time.Now()
	if s, err = f.raw.ReadChangeStream(ctx, req); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		h := resp.GetHeartbeat()
		if h == nil {
			t.Fatal(resp)
		}
		at := h.EstimatedLowWatermark.AsTime()
		if now := time.Now(); !at.After(last) || at.After(now) {
			t.Errorf("at %v the watermark is %v, and was %v", now, at, last)
		}
		last = at
	}
	// A client that goes away, and a server that does.
	cancel()
	if _, err := recvAll(s.Recv); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	if s, err = f.raw.ReadChangeStream(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Header(); err != nil {
		t.Fatal(err)
	}
	f.server.data.Drain()
	if _, err := recvAll(s.Recv); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if s, err = f.raw.ReadChangeStream(context.Background(), req); err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// The stream, applied to an empty table, is the table; end_time is exact.
func TestChangesAreTheTable(t *testing.T) {
	f := newFixture(t, Options{})
	f.enable()
	tbl, ctx := f.table(), context.Background()
	begin := time.Now().Add(-time.Millisecond)
	rnd := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		m := bigtable.NewMutation()
		for range 1 + rnd.IntN(3) {
			fam, q := []string{"cf", "cf2"}[rnd.IntN(2)], fmt.Sprint("q", rnd.IntN(3))
			switch rnd.IntN(8) {
			case 0:
				m.DeleteRow()
			case 1:
				m.DeleteCellsInFamily(fam)
			case 2:
				m.DeleteCellsInColumn(fam, q)
			case 3:
				m.DeleteTimestampRange(fam, q, bigtable.Timestamp(rnd.IntN(5)*1000), bigtable.Timestamp(5000+rnd.IntN(5)*1000))
			case 4:
				m.AddIntToCell("agg", q, 1000, int64(rnd.IntN(9)))
			default:
				m.Set(fam, q, bigtable.Timestamp(rnd.IntN(10)*1000), fmt.Appendf(nil, "%d", rnd.IntN(1000)))
			}
		}
		if err := tbl.Apply(ctx, fmt.Sprintf("%c", 'a'+rnd.IntN(26)), m); err != nil {
			t.Fatal(err)
		}
	}
	c := changecheck.New()
	f.changes(c, startAt(streamRequest(row.Range{End: []byte("m")}), begin))
	f.changes(c, startAt(streamRequest(row.Range{Start: []byte("m")}), begin))
	got, err := c.Apply()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = tbl.ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		for fam, items := range r {
			for _, it := range items {
				n++
				k := changecheck.Cell{Key: r.Key(), Family: fam, Qualifier: strings.TrimPrefix(it.Column, fam+":"), Timestamp: int64(it.Timestamp)}
				if v, ok := got[k]; !ok || v != string(it.Value) {
					t.Errorf("%v is %q, not %q", k, v, it.Value)
				}
			}
		}
		return true
	})
	if err != nil || n != len(got) || n == 0 {
		t.Errorf("%d cells, of %d, %v", n, len(got), err)
	}
}

// A profile that routes to several clusters, or of Data Boost, reads no changes.
func TestChangeStreamProfiles(t *testing.T) {
	f := newFixture(t, Options{}, strict)
	ctx := context.Background()
	admin := adminpb.NewBigtableInstanceAdminClient(f.conn)
	if _, err := admin.CreateInstance(ctx, &adminpb.CreateInstanceRequest{Parent: "projects/p", InstanceId: "inst-1", Instance: &adminpb.Instance{DisplayName: "inst one"},
		Clusters: map[string]*adminpb.Cluster{"cluster-1": {Location: "projects/p/locations/local-a", ServeNodes: 1}, "cluster-2": {Location: "projects/p/locations/local-b", ServeNodes: 1}}}); err != nil {
		t.Fatal(err)
	}
	single := func() *adminpb.AppProfile {
		return &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{ClusterId: "cluster-2"}}}
	}
	boost := single()
	boost.Isolation = &adminpb.AppProfile_DataBoostIsolationReadOnly_{DataBoostIsolationReadOnly: &adminpb.AppProfile_DataBoostIsolationReadOnly{}}
	for id, p := range map[string]*adminpb.AppProfile{"single": single(), "boost": boost} {
		if _, err := admin.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: id, AppProfile: p, IgnoreWarnings: true}); err != nil {
			t.Fatal(err)
		}
	}
	f.enable()
	call := func(profile string) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		req := streamRequest(row.Range{Start: []byte("m")})
		req.AppProfileId = profile
		s, err := f.raw.ReadChangeStream(ctx, req)
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	if err := call("single"); err != nil {
		t.Error(err)
	}
	if err := call(""); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "App profile default routes to several clusters") {
		t.Error(err)
	}
	if err := call("boost"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "App profile boost is of Data Boost") {
		t.Error(err)
	}
	if err := call("none"); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}
