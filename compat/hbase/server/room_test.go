package server

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/row"
)

// wide writes a row of cells, through the store.
func (f *fixture) wide(t *model.Table, key string, cells, bytes int) {
	f.t.Helper()
	e := &row.Entry{Key: []byte(key)}
	for i := range cells {
		e.Mutations = append(e.Mutations, row.Mutation{Op: row.SetCell, Family: "f", Qualifier: fmt.Appendf(nil, "q%05d", i), Timestamp: 5000, Value: make([]byte, bytes)})
	}
	if err := f.store.MutateRow(f.t.Context(), t.Resource, e); err != nil {
		f.t.Fatal(err)
	}
}

// whole fails unless all of a budget is given back.
func whole(t *testing.T, what string, memory *budget.Budget) {
	t.Helper()
	for end := time.Now().Add(time.Minute); memory.Used() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %d bytes were not given back", what, memory.Used())
		}
	}
}

// class calls a method and returns the exception's class, "" if there is none.
func (c *rawClient) class(method string, req, resp proto.Message) string {
	c.t.Helper()
	c.send(method, req, nil)
	h, _ := c.receive(resp)
	return h.GetException().GetExceptionClassName()
}

// TestLargeRows: what large rows take is of the budget, and a row that would need
// more than all of it is refused before it is in memory.
func TestLargeRows(t *testing.T) {
	memory := budget.New(8 << 20)
	f := newFixture(t, Options{Memory: memory})
	table := f.table("t", oneFamily, nil)
	region := f.regions(table)[0].Specifier()
	f.wide(table, "large", 32, 1<<20)
	f.wide(table, "many", 90_000, 0)
	for i := range 16 {
		f.wide(table, fmt.Sprintf("middle%02d", i), 16, 64<<10)
	}
	c := f.dial("ClientService", nil)
	get := func(key string) *pb.Get { return &pb.Get{Row: []byte(key)} }
	for what, call := range map[string]func(){
		"get": func() { c.fail("Get", &pb.GetRequest{Region: region, Get: get("large")}, nil, wire.DoNotRetryIO) },
		"scan": func() {
			c.fail("Scan", &pb.ScanRequest{Region: region, Scan: &pb.Scan{StartRow: []byte("large"), BatchSize: proto.Uint32(1)}, NumberOfRows: proto.Uint32(1)}, nil, wire.DoNotRetryIO)
		},
		"condition": func() {
			m, block := mutation(pb.MutationProto_PUT, "P q=v")
			m.Row = []byte("large")
			pass := filterMessage(t, &pb.ColumnPrefixFilter{Prefix: []byte("q")})
			c.fail("Mutate", &pb.MutateRequest{Region: region, Mutation: m, Condition: &pb.Condition{Row: m.Row, Filter: pass}}, block, wire.DoNotRetryIO)
		},
	} {
		// The least of some, as the store works in the background.
		least := uint64(math.MaxUint64)
		for range 4 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			call()
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		if least > 24<<20 {
			t.Errorf("%s: %d bytes were allocated", what, least)
		}
		whole(t, what, memory)
	}
	c.fail("Get", &pb.GetRequest{Region: region, Get: get("many")}, nil, wire.DoNotRetryIO)
	var r pb.GetResponse
	if block := c.call("Get", &pb.GetRequest{Region: region, Get: get("middle00")}, &r, nil); len(block) < 1<<20 || r.GetResult().GetAssociatedCellCount() != 16 {
		t.Errorf("%d bytes, %v", len(block), r.GetResult())
	}
	whole(t, "a row for which there is room", memory)
	// Others have what it needs.
	if !memory.Try(7 << 20) {
		t.Fatal("no room")
	}
	c.fail("Get", &pb.GetRequest{Region: region, Get: get("middle00")}, nil, wire.CallQueueTooBig)
	memory.Release(7 << 20)
	whole(t, "gets", memory)

	// A Multi returns those for which there is room, and puts others off.
	keys := []string{"large"}
	for i := range 16 {
		keys = append(keys, fmt.Sprintf("middle%02d", i))
	}
	for calls := 0; len(keys) > 0; calls++ {
		ra := &pb.RegionAction{Region: region}
		for i, k := range keys {
			ra.Action = append(ra.Action, &pb.Action{Index: proto.Uint32(uint32(i)), Get: get(k)})
		}
		var r pb.MultiResponse
		c.call("Multi", &pb.MultiRequest{RegionAction: []*pb.RegionAction{ra}}, &r, nil)
		var left []string
		for i, x := range r.GetRegionActionResult()[0].GetResultOrException() {
			switch name := x.GetException().GetName(); {
			case keys[i] == "large" && name == wire.DoNotRetryIO.Name:
			case name == wire.CallQueueTooBig.Name || name == retryAtOnce.Name:
				left = append(left, keys[i])
			case x.GetException() != nil || x.GetResult().GetAssociatedCellCount() != 16:
				t.Errorf("%s: %v", keys[i], x)
			}
		}
		if keys = left; calls > 16 {
			t.Fatalf("after %d calls %q are left", calls, keys)
		}
	}
	whole(t, "multi", memory)
}

// TestHeldRows: rests of rows that scanners hold between calls are of the budget, half
// of it at most, until they are sent or the scanner ends.
func TestHeldRows(t *testing.T) {
	memory := budget.New(8 << 20)
	f := newFixture(t, Options{Memory: memory})
	table := f.table("t", oneFamily, nil)
	region := f.regions(table)[0].Specifier()
	f.wide(table, "r", 16, 64<<10)
	c := f.dial("ClientService", nil)
	open := func() []uint64 {
		t.Helper()
		var ids []uint64
		for range 20 {
			var r pb.ScanResponse
			switch class := c.class("Scan", &pb.ScanRequest{Region: region, Scan: &pb.Scan{BatchSize: proto.Uint32(1)}, NumberOfRows: proto.Uint32(1)}, &r); class {
			case "":
				ids = append(ids, r.GetScannerId())
			case wire.CallQueueTooBig.Name:
			default:
				t.Fatal(class)
			}
		}
		if used := memory.Used(); len(ids) != 4 || used < 3<<20 || used > 5<<20 {
			t.Errorf("%d scanners hold %d bytes", len(ids), used)
		}
		return ids
	}
	for _, id := range open() {
		c.call("Scan", &pb.ScanRequest{ScannerId: proto.Uint64(id), CloseScanner: proto.Bool(true)}, nil, nil)
	}
	whole(t, "closed", memory)

	for _, id := range open() {
		results := 1
		for more := true; more; {
			var r pb.ScanResponse
			block := c.call("Scan", &pb.ScanRequest{ScannerId: proto.Uint64(id), NumberOfRows: proto.Uint32(4)}, &r, nil)
			if results += len(r.GetCellsPerResult()); len(block) > 5*64<<10 {
				t.Errorf("%d bytes", len(block))
			}
			more = r.GetMoreResultsInRegion()
		}
		if results != 16 {
			t.Errorf("%d results", results)
		}
	}
	whole(t, "sent", memory)

	open()
	_ = c.nc.Close()
	c = f.dial("ClientService", nil)
	f.server.scanners.expire(time.Now().Add(time.Hour))
	whole(t, "expired", memory)

	ids := open()
	if err := f.store.DeleteTable(t.Context(), table.Resource); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		for end := time.Now().Add(time.Minute); ; {
			class := c.class("Scan", &pb.ScanRequest{ScannerId: proto.Uint64(id), NumberOfRows: proto.Uint32(0)}, nil)
			if class != "" {
				break
			}
			if time.Now().After(end) {
				t.Fatal("a scanner of a table that is gone goes on")
			}
		}
	}
	whole(t, "failed", memory)
}
