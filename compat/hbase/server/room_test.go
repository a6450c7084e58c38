package server

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"strings"
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

// allocated returns how many bytes f allocates, the least of some times, as the store
// works in the background.
func allocated(f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 4 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

// TestLargeFilters: what a filter is decoded to is of the budget before it is decoded,
// and one that would need more than all of it is refused.
func TestLargeFilters(t *testing.T) {
	memory := budget.New(8 << 20)
	f := newFixture(t, Options{Memory: memory})
	region := f.rows("t", nil, 1).region
	c := f.dial("ClientService", nil)
	list := func(n int, of *pb.Filter) *pb.Filter {
		l := &pb.FilterList{Operator: pb.FilterList_MUST_PASS_ONE.Enum()}
		for range n {
			l.Filters = append(l.Filters, of)
		}
		return filterMessage(t, l)
	}
	value := func(name string, comparator proto.Message) *pb.Comparator {
		return &pb.Comparator{Name: proto.String("org.apache.hadoop.hbase.filter." + name), SerializedComparator: encode(t, comparator)}
	}
	regex := func(pattern string) *pb.Comparator {
		return value("RegexStringComparator", &pb.RegexStringComparator{Pattern: &pattern, PatternFlags: proto.Int32(0), Charset: proto.String("UTF-8")})
	}
	rows := func(c *pb.Comparator) *pb.Filter {
		return filterMessage(t, &pb.RowFilter{CompareFilter: &pb.CompareFilter{CompareOp: pb.CompareType_EQUAL.Enum(), Comparator: c}})
	}
	prefix := filterMessage(t, &pb.PrefixFilter{Prefix: []byte("r")})
	deep := filterMessage(t, &pb.PrefixFilter{Prefix: bytes.Repeat([]byte("r"), 256<<10)})
	for range 40 {
		deep = list(1, deep)
	}
	large := map[string]*pb.Filter{
		"empty ranges": {Name: proto.String("org.apache.hadoop.hbase.filter.MultiRowRangeFilter"), SerializedFilter: bytes.Repeat([]byte{0x0a, 0}, 1<<20)},
		"timestamps":   {Name: proto.String("org.apache.hadoop.hbase.filter.TimestampsFilter"), SerializedFilter: append([]byte{0x0a, 0x80, 0x80, 0x40}, make([]byte, 1<<20)...)},
		"nested lists": deep,
		"a long list":  list(20_000, prefix),
		"repetitions":  rows(regex(strings.Repeat("a{0,1000}", 1000))),
		"classes":      rows(regex(strings.Repeat(`\p{Lu}`, 2000))),
	}
	m, block := mutation(pb.MutationProto_PUT, "P q=v")
	for what, large := range large {
		if n := allocated(func() {
			c.fail("Get", &pb.GetRequest{Region: region, Get: &pb.Get{Row: m.Row, Filter: large}}, nil, wire.DoNotRetryIO)
		}); n > 24<<20 {
			t.Errorf("%s: %d bytes were allocated", what, n)
		}
		whole(t, what, memory)
	}
	conditions := map[string]*pb.Condition{
		"filter":     {Row: m.Row, Filter: large["repetitions"]},
		"comparator": {Row: m.Row, Family: []byte("f"), Qualifier: []byte("q"), CompareType: pb.CompareType_EQUAL.Enum(), Comparator: regex(strings.Repeat("a{0,1000}", 1000))},
	}
	for what, condition := range conditions {
		if n := allocated(func() {
			c.fail("Mutate", &pb.MutateRequest{Region: region, Mutation: m, Condition: condition}, block, wire.DoNotRetryIO)
		}); n > 24<<20 {
			t.Errorf("a condition's %s: %d bytes were allocated", what, n)
		}
		whole(t, what, memory)
	}

	// Those of honest callers are served, if others leave room.
	ranges := &pb.MultiRowRangeFilter{}
	for i := range 5000 {
		ranges.RowRangeList = append(ranges.RowRangeList, &pb.RowRange{StartRow: fmt.Appendf(nil, "q%05d", i), StartRowInclusive: proto.Bool(true),
			StopRow: fmt.Appendf(nil, "q%05da", i), StopRowInclusive: proto.Bool(false)})
	}
	for what, fit := range map[string]*pb.Filter{
		"ranges":   filterMessage(t, ranges),
		"a list":   list(2000, prefix),
		"patterns": list(200, rows(regex(`^user-[0-9a-f]{8}-\d{1,3}$`))),
	} {
		get := &pb.GetRequest{Region: region, Get: &pb.Get{Row: m.Row, Filter: fit}}
		c.call("Get", get, nil, nil)
		whole(t, what, memory)
		if !memory.Try(7 << 20) {
			t.Fatal("no room")
		}
		c.fail("Get", get, nil, wire.CallQueueTooBig)
		memory.Release(7 << 20)
		whole(t, what, memory)
	}
	for what, condition := range map[string]*pb.Condition{
		"filter":     {Row: m.Row, Filter: list(2000, prefix)},
		"comparator": {Row: m.Row, Family: []byte("f"), Qualifier: []byte("q"), CompareType: pb.CompareType_EQUAL.Enum(), Comparator: regex(strings.Repeat("a{1000}", 5))},
	} {
		c.call("Mutate", &pb.MutateRequest{Region: region, Mutation: m, Condition: condition}, nil, block)
		whole(t, what, memory)
		c.call("Multi", &pb.MultiRequest{RegionAction: []*pb.RegionAction{{Region: region, Atomic: proto.Bool(true), Condition: condition,
			Action: []*pb.Action{{Index: proto.Uint32(0), Mutation: m}}}}}, nil, block)
		whole(t, "a Multi's "+what, memory)
	}
}

// TestKeptScanners: what scanners keep of their requests, of filters and of computed
// tables is of the budget, half of it at most, until they end.
func TestKeptScanners(t *testing.T) {
	memory := budget.New(8 << 20)
	f := newFixture(t, Options{Memory: memory})
	var splits []string
	for i := range 100 {
		splits = append(splits, fmt.Sprintf("s%03d", i))
	}
	table := f.table("t", oneFamily, nil, splits...)
	region := f.regions(table)[0].Specifier()
	f.wide(table, "r0", 1, 1)
	f.wide(table, "r1", 1, 1)
	c := f.dial("ClientService", nil)
	ranges := &pb.MultiRowRangeFilter{}
	for i := range 2000 {
		ranges.RowRangeList = append(ranges.RowRangeList, &pb.RowRange{StartRow: fmt.Appendf(nil, "r0%04d", i), StartRowInclusive: proto.Bool(true), StopRow: fmt.Appendf(nil, "r0%04da", i)})
	}
	for what, open := range map[string]struct {
		req  *pb.ScanRequest
		each int64 // bytes, at least
	}{
		"attribute": {&pb.ScanRequest{Region: region, Scan: &pb.Scan{Attribute: []*pb.NameBytesPair{{Name: proto.String("a"), Value: make([]byte, 1<<20)}}}}, 1<<20 - scannerBytes},
		"filter":    {&pb.ScanRequest{Region: region, Scan: &pb.Scan{Filter: filterMessage(t, ranges)}}, 500 << 10},
		"meta":      {&pb.ScanRequest{Region: model.MetaRegion.Specifier(), Scan: &pb.Scan{}}, 50 << 10},
		"small":     {&pb.ScanRequest{Region: region, Scan: &pb.Scan{Filter: filterMessage(t, &pb.PrefixFilter{Prefix: []byte("r")})}}, 0},
	} {
		open.req.NumberOfRows = proto.Uint32(1)
		if what == "filter" {
			open.req.NumberOfRows = proto.Uint32(0)
		}
		for _, end := range []string{"closed", "expired"} {
			var ids []uint64
			for range 20 {
				var r pb.ScanResponse
				switch class := c.class("Scan", open.req, &r); class {
				case "":
					ids = append(ids, r.GetScannerId())
				case wire.CallQueueTooBig.Name:
				default:
					t.Fatalf("%s: %s", what, class)
				}
			}
			used := memory.Used()
			for until := time.Now().Add(time.Minute); used > 4<<20 && time.Now().Before(until); used = memory.Used() {
				time.Sleep(time.Millisecond) // the last request's are given back
			}
			most := int64(4 << 20)
			if open.each == 0 {
				most = 0
			}
			if n := int64(len(ids)); n == 0 || n < 20 && n != most/(used/n) || used < n*open.each || used > most {
				t.Errorf("%s: %d scanners have %d bytes", what, n, used)
			}
			for _, id := range ids {
				c.call("Scan", &pb.ScanRequest{ScannerId: proto.Uint64(id), NumberOfRows: proto.Uint32(0), CloseScanner: proto.Bool(end == "closed")}, nil, nil)
			}
			f.server.scanners.expire(time.Now().Add(time.Hour))
			whole(t, what+" "+end, memory)
			if used := f.server.scanners.held.Used(); used != 0 {
				t.Errorf("%s: %d bytes are still held", what, used)
			}
		}
	}
	if n := f.server.o.MaxScanners; n != 1024 {
		t.Errorf("%d scanners have room", n)
	}
}

// TestIdleConnections: connections that call nothing take little memory, and there are no
// more than the budget has room for.
func TestIdleConnections(t *testing.T) {
	f := newFixture(t, Options{Memory: budget.New(8 << 20)})
	if n := f.server.o.MaxConnections; n != 512 {
		t.Errorf("%d connections have room", n)
	}
	const idle = 300
	request := &pb.GetClusterIdRequest{}
	f.dial("ClientMetaService", nil).call("GetClusterId", request, nil, nil)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var clients []*rawClient
	for range idle {
		c := f.dial("ClientMetaService", nil)
		c.call("GetClusterId", request, nil, nil)
		clients = append(clients, c)
	}
	if n := int64(heap()-before) / idle; n > 50<<10 {
		t.Errorf("a connection takes %d bytes", n)
	}
	// What is large, or many, goes on in larger buffers.
	c := clients[0]
	for _, n := range []int{10, 10_000, 100_000, 10} {
		m := new(pb.GetClusterIdRequest)
		m.ProtoReflect().SetUnknown(append([]byte{0x7a, byte(n | 0x80), byte(n>>7 | 0x80), byte(n >> 14)}, make([]byte, n)...))
		c.call("GetClusterId", m, nil, nil)
	}
	c = clients[1]
	var all []byte
	for i := range 500 {
		all = append(all, frame(uint32(i), "GetClusterId", request, nil)...)
	}
	c.write(all)
	for range 500 {
		var r pb.GetClusterIdResponse
		if h, _ := c.receive(&r); h.Exception != nil || r.GetClusterId() == "" {
			t.Fatal(h)
		}
	}
}
