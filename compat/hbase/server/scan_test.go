package server

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/row"
)

// fill writes rows r00, r01, … with cells a, b and c, through the store.
func (f *fixture) fill(t *model.Table, rows int) {
	f.t.Helper()
	for i := range rows {
		e := &row.Entry{Key: fmt.Appendf(nil, "r%02d", i)}
		for _, q := range []string{"a", "b", "c"} {
			e.Mutations = append(e.Mutations, row.Mutation{Op: row.SetCell, Family: "f", Qualifier: []byte(q), Timestamp: 5000, Value: []byte("v")})
		}
		if err := f.store.MutateRow(context.Background(), t.Resource, e); err != nil {
			f.t.Fatal(err)
		}
	}
}

// text returns the results of a response: their rows and qualifiers, with "+"
// behind what is not the end of its row.
func text(t *testing.T, r *pb.ScanResponse, block []byte) string {
	t.Helper()
	if len(r.GetCellsPerResult()) != len(r.GetPartialFlagPerResult()) {
		t.Fatalf("%d results and %d flags", len(r.GetCellsPerResult()), len(r.GetPartialFlagPerResult()))
	}
	cells := wire.NewCells(block)
	var out []string
	for i, n := range r.GetCellsPerResult() {
		s := ""
		var c wire.Cell
		for range n {
			if err := cells.Next(&c); err != nil {
				t.Fatal(err)
			}
			s += string(c.Qualifier)
		}
		if s = string(c.Row) + ":" + s; r.GetPartialFlagPerResult()[i] {
			s += "+"
		}
		out = append(out, s)
	}
	if cells.Len() > 0 {
		t.Fatal("cells without a result")
	}
	return strings.Join(out, " ")
}

// filterMessage returns the filter of a class's own message.
func filterMessage(t *testing.T, m proto.Message) *pb.Filter {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &pb.Filter{Name: proto.String("org.apache.hadoop.hbase.filter." + string(m.ProtoReflect().Descriptor().Name())), SerializedFilter: b}
}

func TestScanContract(t *testing.T) {
	f := newFixture(t, Options{})
	table := f.table("t", map[string]model.Family{"f": {Versions: 1, TTL: model.Forever}}, nil, "r05")
	f.fill(table, 8)
	regions := f.regions(table)
	c := f.dial("ClientService", nil)
	type step struct {
		req            *pb.ScanRequest
		want           string
		inRegion, more bool
	}
	open := func(s *pb.Scan, r *pb.ScanRequest) *pb.ScanRequest {
		r.Region, r.Scan = regions[0].Specifier(), s
		return r
	}
	rows := func(n uint32) *pb.ScanRequest { return &pb.ScanRequest{NumberOfRows: proto.Uint32(n)} }
	seq := func(n uint32, s uint64) *pb.ScanRequest {
		return &pb.ScanRequest{NumberOfRows: proto.Uint32(n), NextCallSeq: proto.Uint64(s)}
	}
	only := []*pb.Column{{Family: []byte("f"), Qualifier: [][]byte{[]byte("b")}}}
	partials := func(r *pb.ScanRequest) *pb.ScanRequest {
		r.ClientHandlesPartials = proto.Bool(true)
		return r
	}
	for name, steps := range map[string][]step{
		"rows by number": {
			{open(&pb.Scan{Column: only}, rows(2)), "r00:b r01:b", true, true},
			{seq(2, 0), "r02:b r03:b", true, true},
			{seq(2, 1), "r04:b", false, true},
			{seq(2, 2), "", false, false}, // closed by itself: an empty response
		},
		"none at first": {
			{open(&pb.Scan{Column: only}, rows(0)), "", true, true},
			{seq(1, 0), "r00:b", true, true},
			{&pb.ScanRequest{Renew: proto.Bool(true), NextCallSeq: proto.Uint64(1)}, "", false, false},
			{seq(1, 2), "r01:b", true, true},
		},
		"limit": {
			{open(&pb.Scan{Column: only}, &pb.ScanRequest{NumberOfRows: proto.Uint32(2), LimitOfRows: proto.Uint32(3)}), "r00:b r01:b", true, true},
			{seq(2, 0), "r02:b", false, false},
		},
		"bounds": {
			{open(&pb.Scan{Column: only, StartRow: []byte("r01"), StopRow: []byte("r03"), IncludeStartRow: proto.Bool(false), IncludeStopRow: proto.Bool(true)}, rows(9)), "r02:b r03:b", false, true},
		},
		"reversed": {
			{open(&pb.Scan{Column: only, Reversed: proto.Bool(true), StartRow: []byte("r03"), StopRow: []byte("r00")}, rows(2)), "r03:b r02:b", true, true},
			{seq(2, 0), "r01:b", false, true},
		},
		"reversed from the end of the region": {
			{open(&pb.Scan{Column: only, Reversed: proto.Bool(true)}, rows(1)), "r04:b", true, true},
		},
		"one row, as old clients ask": {
			{open(&pb.Scan{StartRow: []byte("r01"), StopRow: []byte("r01")}, rows(9)), "r01:abc", false, true},
		},
		"batch": {
			{open(&pb.Scan{BatchSize: proto.Uint32(2)}, rows(3)), "r00:ab+ r00:c r01:ab+", true, true},
			{seq(1, 0), "r01:c", true, true},
			{seq(1, 1), "r02:ab+", true, true},
		},
		// The response that ends the region's last row says so.
		"batch at the end of a region": {
			{open(&pb.Scan{BatchSize: proto.Uint32(2), StartRow: []byte("r03"), IncludeStartRow: proto.Bool(true)}, rows(1)), "r03:ab+", true, true},
			{seq(1, 0), "r03:c", true, true},
			{seq(1, 1), "r04:ab+", true, true},
			{seq(1, 2), "r04:c", false, true},
		},
		"batch at the end of a region, several pieces at once": {
			{open(&pb.Scan{BatchSize: proto.Uint32(2), StartRow: []byte("r03"), IncludeStartRow: proto.Bool(true)}, rows(2)), "r03:ab+ r03:c", true, true},
			{seq(2, 0), "r04:ab+ r04:c", false, true},
		},
		"batch at the end of a region, reversed": {
			{open(&pb.Scan{BatchSize: proto.Uint32(2), Reversed: proto.Bool(true), StartRow: []byte("r01"), IncludeStartRow: proto.Bool(true)}, rows(1)), "r01:ab+", true, true},
			{seq(1, 0), "r01:c", true, true},
			{seq(2, 1), "r00:ab+ r00:c", false, true},
		},
		"store limit and offset": {
			{open(&pb.Scan{StoreLimit: proto.Uint32(1), StoreOffset: proto.Uint32(1)}, rows(2)), "r00:b r01:b", true, true},
		},
		"partial rows": {
			{open(&pb.Scan{MaxResultSize: proto.Uint64(1)}, partials(rows(9))), "r00:a+", true, true},
			{partials(seq(9, 0)), "r00:b+", true, true},
			{partials(seq(9, 1)), "r00:c", true, true},
			{partials(seq(9, 2)), "r01:a+", true, true},
		},
		"whole rows": {
			{open(&pb.Scan{MaxResultSize: proto.Uint64(1)}, rows(9)), "r00:abc", true, true},
			{seq(9, 0), "r01:abc", true, true},
		},
		"closed by the client": {
			{open(&pb.Scan{Column: only}, &pb.ScanRequest{NumberOfRows: proto.Uint32(1), CloseScanner: proto.Bool(true)}), "r00:b", true, true},
			{&pb.ScanRequest{CloseScanner: proto.Bool(true)}, "", false, false},
		},
		// The filter is done: HBase goes on in the next region, with a filter that
		// begins anew, unless there was nothing in this response.
		"filter that is done": {
			{open(&pb.Scan{Column: only, Filter: filterMessage(t, &pb.PageFilter{PageSize: proto.Int64(2)})}, rows(9)), "r00:b r01:b", false, true},
		},
		"filter that is done without a row": {
			{open(&pb.Scan{Column: only, Filter: filterMessage(t, &pb.PageFilter{PageSize: proto.Int64(0)})}, rows(9)), "", false, false},
		},
		"times": {
			{open(&pb.Scan{TimeRange: &pb.TimeRange{From: proto.Uint64(6)}}, rows(9)), "", false, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var id uint64
			for i, s := range steps {
				if i > 0 {
					s.req.ScannerId = proto.Uint64(id)
				}
				var r pb.ScanResponse
				block := c.call("Scan", s.req, &r, nil)
				if i == 0 {
					if id = r.GetScannerId(); id == 0 || r.GetTtl() == 0 || r.GetMvccReadPoint() == 0 {
						t.Errorf("opened: %v", &r)
					}
				}
				if r.GetScannerId() != id {
					t.Errorf("step %d is of scanner %d and not %d", i, r.GetScannerId(), id)
				}
				if got := text(t, &r, block); got != s.want || r.GetMoreResultsInRegion() != s.inRegion || r.GetMoreResults() != s.more {
					t.Fatalf("step %d: got %q, in region %v, more %v; want %q, %v, %v", i, got, r.GetMoreResultsInRegion(), r.GetMoreResults(), s.want, s.inRegion, s.more)
				}
			}
		})
	}
	openOne := func() uint64 {
		var r pb.ScanResponse
		c.call("Scan", open(&pb.Scan{}, rows(1)), &r, nil)
		return r.GetScannerId()
	}
	// A call that was sent twice, or lost.
	id := openOne()
	next := func(id, s uint64) *pb.ScanRequest {
		r := seq(1, s)
		r.ScannerId = proto.Uint64(id)
		return r
	}
	c.call("Scan", next(id, 0), nil, nil)
	c.fail("Scan", next(id, 0), nil, wire.OutOfOrderScanner)
	c.fail("Scan", next(id, 5), nil, wire.OutOfOrderScanner)
	// Without a codec the cells are in the message.
	var r pb.ScanResponse
	f.dial("ClientService", func(h *pb.ConnectionHeader) { h.CellBlockCodecClass = nil }).call("Scan", open(&pb.Scan{Column: only}, rows(2)), &r, nil)
	if len(r.GetResults()) != 2 || !bytes.Equal(r.GetResults()[1].GetCell()[0].GetRow(), []byte("r01")) || len(r.GetCellsPerResult()) != 0 {
		t.Errorf("without a codec: %v", &r)
	}
	// What cannot be shown is refused, not left out.
	c.fail("Scan", open(&pb.Scan{Attribute: []*pb.NameBytesPair{{Name: proto.String("_raw_"), Value: []byte{0xFF}}}}, rows(1)), nil, wire.DoNotRetryIO)
	c.call("Scan", open(&pb.Scan{Attribute: []*pb.NameBytesPair{{Name: proto.String("_raw_"), Value: []byte{0}}}}, rows(1)), nil, nil)
	// Another user's scanner.
	other := f.dial("ClientService", func(h *pb.ConnectionHeader) { h.UserInfo.EffectiveUser = proto.String("eve") })
	other.fail("Scan", next(id, 1), nil, wire.AccessDenied)
	// A region that is split under a scanner is still read to its end, once.
	id = openOne()
	if err := f.store.SplitAt(context.Background(), table.Resource, []byte("r02")); err != nil {
		t.Fatal(err)
	}
	if got := f.regions(table); len(got) != 3 {
		t.Fatalf("%d regions", len(got))
	}
	all := seq(9, 0)
	all.ScannerId = proto.Uint64(id)
	r.Reset()
	if got := text(t, &r, c.call("Scan", all, &r, nil)); got != "r01:abc r02:abc r03:abc r04:abc" || r.GetMoreResultsInRegion() {
		t.Errorf("after a split: %q", got)
	}
	c.fail("Scan", open(&pb.Scan{}, rows(1)), nil, wire.NotServingRegion)
}

// TestScanLeases: a scanner that no call uses for the time of its lease is gone.
func TestScanLeases(t *testing.T) {
	const lease = 200 * time.Millisecond
	f := newFixture(t, Options{ScannerLease: lease})
	region := f.regions(f.table("t", oneFamily, nil))[0].Specifier()
	c := f.dial("ClientService", nil)
	var r pb.ScanResponse
	c.call("Scan", &pb.ScanRequest{Region: region, Scan: &pb.Scan{}, NumberOfRows: proto.Uint32(0)}, &r, nil)
	if r.GetTtl() != uint32(lease.Milliseconds()) {
		t.Errorf("a lease of %d ms", r.GetTtl())
	}
	// A call that comes before the scanner is gone renews the lease.
	for seq, pause := uint64(0), 2*lease; ; seq, pause = seq+1, 2*pause {
		time.Sleep(pause)
		c.send("Scan", &pb.ScanRequest{ScannerId: r.ScannerId, Renew: proto.Bool(true), NextCallSeq: proto.Uint64(seq)}, nil)
		h, _ := c.receive(nil)
		if e := h.GetException(); e.GetExceptionClassName() == wire.UnknownScanner.Name && e.GetDoNotRetry() == wire.UnknownScanner.DoNotRetry {
			return
		} else if e != nil || pause > 10*time.Second {
			t.Fatalf("after %v: %v", pause, h)
		}
	}
}
