package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
)

// A rowClient changes and reads one region.
type rowClient struct {
	*rawClient
	region *pb.RegionSpecifier
}

// mutation returns a change of row r; cells are "type qualifier@ts=value" of
// the family f, without the timestamp for LATEST.
func mutation(kind pb.MutationProto_MutationType, cells ...string) (*pb.MutationProto, []byte) {
	var block []byte
	for _, s := range cells {
		typ := map[byte]byte{'P': wire.TypePut, 'D': wire.TypeDelete, 'C': wire.TypeDeleteColumn, 'F': wire.TypeDeleteFamily, 'V': wire.TypeDeleteFamilyVersion}[s[0]]
		key, value, _ := strings.Cut(s[2:], "=")
		q, at, timed := strings.Cut(key, "@")
		ts := model.Latest
		if timed {
			_, _ = fmt.Sscan(at, &ts)
		}
		block = wire.AppendCell(block, []byte("r"), "f", []byte(q), ts, typ, []byte(value))
	}
	return &pb.MutationProto{Row: []byte("r"), MutateType: kind.Enum(), AssociatedCellCount: proto.Int32(int32(len(cells)))}, block
}

func (c *rowClient) do(kind pb.MutationProto_MutationType, cells ...string) string {
	c.t.Helper()
	m, block := mutation(kind, cells...)
	var r pb.MutateResponse
	out := c.call("Mutate", &pb.MutateRequest{Region: c.region, Mutation: m}, &r, block)
	return cellsText(c.t, out, false)
}

func (c *rowClient) put(cells ...string)    { c.t.Helper(); c.do(pb.MutationProto_PUT, cells...) }
func (c *rowClient) delete(cells ...string) { c.t.Helper(); c.do(pb.MutationProto_DELETE, cells...) }

func cellsText(t testing.TB, block []byte, times bool) string {
	t.Helper()
	var out []string
	var c wire.Cell
	for cells := wire.NewCells(block); cells.Len() > 0; {
		if err := cells.Next(&c); err != nil {
			t.Fatal(err)
		}
		v := string(c.Value)
		if len(c.Value) == 8 {
			v = fmt.Sprint(binary.BigEndian.Uint64(c.Value))
		}
		if times {
			v = fmt.Sprintf("%d=%s", c.Timestamp, v)
		}
		out = append(out, fmt.Sprintf("%s@%s", c.Qualifier, v))
	}
	return strings.Join(out, " ")
}

func (c *rowClient) want(versions uint32, want string) {
	c.t.Helper()
	out := c.call("Get", &pb.GetRequest{Region: c.region, Get: &pb.Get{Row: []byte("r"), MaxVersions: proto.Uint32(versions)}}, nil, nil)
	if got := cellsText(c.t, out, true); got != want {
		c.t.Errorf("got %q, want %q", got, want)
	}
}

func (f *fixture) rows(name string, attributes map[string]string, versions int32) *rowClient {
	t := f.table(name, map[string]model.Family{"f": {Versions: versions, TTL: model.Forever}}, attributes)
	return &rowClient{f.dial("ClientService", nil), f.regions(t)[0].Specifier()}
}

// TestDeletes: the kinds of deletion, each of which also covers what is put
// later at its times, unless the table was told otherwise.
func TestDeletes(t *testing.T) {
	f := newFixture(t, Options{})
	for name, later := range map[string]bool{"hbase": true, "bigtable": false} {
		t.Run(name, func(t *testing.T) {
			attr := map[string]string{}
			if !later {
				attr[model.AttrDeletes] = model.DeletesLikeBigtable
			}
			c := f.rows(name, attr, 9)
			c.t = t
			again := func(cells, with, without string) {
				t.Helper()
				c.put(cells)
				if later {
					c.want(9, with)
				} else {
					c.want(9, without)
				}
			}
			c.put("P a@1=1", "P a@2=2", "P a@3=3", "P b@2=b")
			c.delete("D a@2")
			c.want(9, "a@3=3 a@1=1 b@2=b")
			again("P a@2=x", "a@3=3 a@1=1 b@2=b", "a@3=3 a@2=x a@1=1 b@2=b")
			c.delete("D a")
			want := "a@1=1 b@2=b"
			if !later {
				want = "a@2=x a@1=1 b@2=b"
			}
			c.want(9, want)
			c.delete("C a@2")
			c.want(9, "b@2=b")
			again("P a@1=y", "b@2=b", "a@1=y b@2=b")
			c.put("P a@4=4", "P b@4=4")
			c.delete("V @4")
			c.put("P a@9=9", "P b@8=8")
			c.delete("F @8")
			c.want(9, "a@9=9")
			again("P b@7=z", "a@9=9", "a@9=9 b@7=z")
			m := &pb.MutationProto{Row: []byte("r"), MutateType: pb.MutationProto_DELETE.Enum()}
			c.call("Mutate", &pb.MutateRequest{Region: c.region, Mutation: m}, nil, nil)
			c.want(9, "")
		})
	}
}

// TestBothAPIs: one table, written and read through both.
func TestBothAPIs(t *testing.T) {
	f := newFixture(t, Options{})
	c := f.rows("t", nil, 3)
	ctx := context.Background()
	name := f.catalog.Mapping().Resource(model.ParseName("t"))
	bigtable := func() (out string) {
		t.Helper()
		if _, err := f.store.UpdateRow(ctx, name, []byte("r"), nil, nil, func(cells []row.Cell) ([]row.Mutation, error) {
			out = ""
			for _, c := range cells {
				out += fmt.Sprintf("%s:%s@%d=%s ", c.Family, c.Qualifier, c.Timestamp, c.Value)
			}
			return nil, nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	mutate := func(m row.Mutation) {
		t.Helper()
		if err := f.store.MutateRow(ctx, name, &row.Entry{Key: []byte("r"), Mutations: []row.Mutation{m}}); err != nil {
			t.Fatal(err)
		}
	}
	c.put("P a@5=hbase")
	mutate(row.Mutation{Op: row.SetCell, Family: "f", Qualifier: []byte("a"), Timestamp: 6000, Value: []byte("other")})
	c.want(9, "a@6=other a@5=hbase")
	if got := bigtable(); got != "f:a@6000=other f:a@5000=hbase " {
		t.Errorf("got %q", got)
	}
	mutate(row.Mutation{Op: row.DeleteColumn, Family: "f", Qualifier: []byte("a"), Times: cell.TimeRange{Start: 6000, End: 7000}})
	c.want(9, "a@5=hbase")
	mutate(row.Mutation{Op: row.SetCell, Family: "f", Qualifier: []byte("a"), Timestamp: 6000, Value: []byte("again")})
	c.want(9, "a@6=again a@5=hbase")
	c.delete("C a@5")
	if got := bigtable(); got != "f:a@6000=again " {
		t.Errorf("got %q", got)
	}
	// HBase enforces versions when it reads.
	c.put("P v@1=1", "P v@2=2", "P v@3=3", "P v@4=4")
	c.want(9, "a@6=again v@4=4 v@3=3 v@2=2")
}

// TestRawTimestamps: a table may keep what its clients use timestamps for.
func TestRawTimestamps(t *testing.T) {
	f := newFixture(t, Options{})
	c := f.rows("t", map[string]string{model.AttrTimestampUnit: model.TimestampUnitRaw}, 9)
	c.put("P a@9223372036854775805=x", "P a@9223372036854775804=y")
	c.want(9, "a@9223372036854775805=x a@9223372036854775804=y")
}

// TestCellTTL: a cell that was given an end takes what it replaced with it.
func TestCellTTL(t *testing.T) {
	f := newFixture(t, Options{})
	c := f.rows("t", nil, 1)
	c.put("P a@1=old", "P b@1=b")
	m, block := mutation(pb.MutationProto_PUT, "P a=new")
	m.Attribute = []*pb.NameBytesPair{{Name: proto.String("_ttl"), Value: binary.BigEndian.AppendUint64(nil, 300)}}
	begin := time.Now()
	c.call("Mutate", &pb.MutateRequest{Region: c.region, Mutation: m}, nil, block)
	read := func() string {
		return cellsText(t, c.call("Get", &pb.GetRequest{Region: c.region, Get: &pb.Get{Row: []byte("r")}}, nil, nil), false)
	}
	if got := read(); got != "a@new b@b" && time.Since(begin) < 300*time.Millisecond {
		t.Errorf("got %q", got)
	}
	time.Sleep(400 * time.Millisecond)
	if got := read(); got != "b@b" {
		t.Errorf("later: got %q", got)
	}
}

func TestIncrements(t *testing.T) {
	f := newFixture(t, Options{})
	c := f.rows("t", nil, 9)
	five := "P n=" + string(binary.BigEndian.AppendUint64(nil, 5))
	for i := range 3 {
		if got, want := c.do(pb.MutationProto_INCREMENT, five), fmt.Sprintf("n@%d", 5*(i+1)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	// Each has a timestamp of its own.
	if n := len(strings.Fields(cellsText(t, c.call("Get", &pb.GetRequest{Region: c.region, Get: &pb.Get{Row: []byte("r"), MaxVersions: proto.Uint32(9)}}, nil, nil), true))); n != 3 {
		t.Errorf("%d versions", n)
	}
	c.put("P s@1=text")
	m, block := mutation(pb.MutationProto_INCREMENT, "P s="+five[4:])
	c.fail("Mutate", &pb.MutateRequest{Region: c.region, Mutation: m}, block, wire.DoNotRetryIO)
	if got := c.do(pb.MutationProto_APPEND, "P s=!", "P x=y"); got != "s@text! x@y" {
		t.Errorf("got %q", got)
	}
	// Sent twice with a nonce, done once.
	m, block = mutation(pb.MutationProto_INCREMENT, five)
	m.Nonce = proto.Uint64(7)
	for range 2 {
		if got := cellsText(t, c.call("Mutate", &pb.MutateRequest{Region: c.region, Mutation: m, NonceGroup: proto.Uint64(1)}, nil, block), false); got != "n@20" {
			t.Errorf("with a nonce: got %q", got)
		}
	}
}

func comparator(value string) *pb.Comparator {
	b, err := proto.Marshal(&pb.BinaryComparator{Comparable: &pb.ByteArrayComparable{Value: []byte(value)}})
	if err != nil {
		panic(err)
	}
	return &pb.Comparator{Name: proto.String("org.apache.hadoop.hbase.filter.BinaryComparator"), SerializedComparator: b}
}

func TestConditions(t *testing.T) {
	f := newFixture(t, Options{})
	c := f.rows("t", nil, 1)
	c.put("P a@1=m", "P e@1=")
	for _, tc := range []struct {
		q, value string
		op       pb.CompareType
		want     bool
	}{
		// The comparator's relation to the cell counts: "a" is less than "m".
		{"a", "a", pb.CompareType_LESS, true}, {"a", "z", pb.CompareType_LESS, false}, {"a", "m", pb.CompareType_LESS_OR_EQUAL, true},
		{"a", "m", pb.CompareType_EQUAL, true}, {"a", "n", pb.CompareType_EQUAL, false}, {"a", "n", pb.CompareType_NOT_EQUAL, true},
		{"a", "n", pb.CompareType_GREATER, true}, {"a", "m", pb.CompareType_GREATER_OR_EQUAL, true}, {"a", "a", pb.CompareType_GREATER, false},
		{"x", "m", pb.CompareType_NOT_EQUAL, false}, {"x", "", pb.CompareType_EQUAL, true}, {"x", "", pb.CompareType_NOT_EQUAL, false},
		{"a", "", pb.CompareType_EQUAL, false}, {"a", "", pb.CompareType_NOT_EQUAL, true}, {"e", "", pb.CompareType_EQUAL, true},
	} {
		m, block := mutation(pb.MutationProto_PUT, "P done@1=x")
		var r pb.MutateResponse
		c.call("Mutate", &pb.MutateRequest{Region: c.region, Mutation: m, Condition: &pb.Condition{Row: []byte("r"), Family: []byte("f"), Qualifier: []byte(tc.q),
			CompareType: tc.op.Enum(), Comparator: comparator(tc.value)}}, &r, block)
		if r.GetProcessed() != tc.want {
			t.Errorf("%q %v %s: %v", tc.value, tc.op, tc.q, r.GetProcessed())
		}
	}
	// A filter, and several mutations at once.
	pb1, err := proto.Marshal(&pb.ColumnPrefixFilter{Prefix: []byte("a")})
	if err != nil {
		t.Fatal(err)
	}
	cond := &pb.Condition{Row: []byte("r"), Filter: &pb.Filter{Name: proto.String("org.apache.hadoop.hbase.filter.ColumnPrefixFilter"), SerializedFilter: pb1}}
	put, b1 := mutation(pb.MutationProto_PUT, "P p@7=new")
	del, b2 := mutation(pb.MutationProto_DELETE, "C a")
	inc, b3 := mutation(pb.MutationProto_INCREMENT, "P n="+string(binary.BigEndian.AppendUint64(nil, 3)))
	multi := &pb.MultiRequest{RegionAction: []*pb.RegionAction{{Region: c.region, Atomic: proto.Bool(true), Condition: cond, Action: []*pb.Action{
		{Index: proto.Uint32(0), Mutation: put}, {Index: proto.Uint32(1), Mutation: del}, {Index: proto.Uint32(2), Mutation: inc}}}}}
	block := append(append(b1, b2...), b3...)
	for _, want := range []bool{true, false} {
		var r pb.MultiResponse
		out := c.call("Multi", multi, &r, block)
		res := r.GetRegionActionResult()
		if len(res) != 1 || res[0].GetProcessed() != want || r.GetProcessed() != want || len(res[0].GetResultOrException()) != 3 {
			t.Errorf("%v", &r)
		}
		if want && cellsText(t, out, false) != "n@3" {
			t.Errorf("new cells %q", cellsText(t, out, false))
		}
	}
}

// TestMulti: the actions of a Multi fail one by one, and their cells come in
// the order of their results.
func TestMulti(t *testing.T) {
	f := newFixture(t, Options{})
	table := f.table("t", oneFamily, nil, "m")
	regions := f.regions(table)
	c := f.dial("ClientService", nil)
	put := func(i uint32, key, family string, block *[]byte) *pb.Action {
		*block = wire.AppendCell(*block, []byte(key), family, []byte("q"), 5, wire.TypePut, []byte(key))
		return &pb.Action{Index: proto.Uint32(i), Mutation: &pb.MutationProto{Row: []byte(key), MutateType: pb.MutationProto_PUT.Enum(), AssociatedCellCount: proto.Int32(1)}}
	}
	get := func(i uint32, key string) *pb.Action {
		return &pb.Action{Index: proto.Uint32(i), Get: &pb.Get{Row: []byte(key)}}
	}
	var block []byte
	gone := &pb.RegionSpecifier{Type: pb.RegionSpecifier_REGION_NAME.Enum(), Value: []byte("gone")}
	req := &pb.MultiRequest{RegionAction: []*pb.RegionAction{
		{Region: regions[0].Specifier(), Action: []*pb.Action{put(1, "a", "f", &block), put(2, "b", "nope", &block), put(3, "z", "f", &block), put(4, "c", "f", &block)}},
		{Region: gone, Action: []*pb.Action{put(1, "x", "f", &block)}},
		{Region: regions[1].Specifier(), Action: []*pb.Action{put(9, "n", "f", &block)}},
	}}
	var r pb.MultiResponse
	c.call("Multi", req, &r, block)
	var got []string
	for _, res := range r.GetRegionActionResult() {
		if e := res.GetException(); e != nil {
			got = append(got, e.GetName())
		}
		for _, x := range res.GetResultOrException() {
			got = append(got, fmt.Sprint(x.GetIndex(), x.GetException().GetName()))
		}
	}
	want := []string{"1", "2" + wire.NoSuchFamily.Name, "3" + wire.WrongRegion.Name, "4", wire.NotServingRegion.Name, "9"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	r.Reset()
	out := c.call("Multi", &pb.MultiRequest{RegionAction: []*pb.RegionAction{
		{Region: regions[1].Specifier(), Action: []*pb.Action{get(1, "n"), get(2, "nothing")}},
		{Region: regions[0].Specifier(), Action: []*pb.Action{get(1, "c"), get(2, "a")}},
	}}, &r, nil)
	if got := cellsText(t, out, false); got != "q@n q@c q@a" {
		t.Errorf("got %q", got)
	}
	if n := r.GetRegionActionResult()[0].GetResultOrException()[1].GetResult().GetAssociatedCellCount(); n != 0 {
		t.Errorf("%d cells of nothing", n)
	}
}

// BenchmarkPut and BenchmarkGet pipeline calls on one connection.
func BenchmarkPut(b *testing.B) { benchmark(b, "Mutate") }

// BenchmarkGet reads what BenchmarkPut writes.
func BenchmarkGet(b *testing.B) { benchmark(b, "Get") }

func benchmark(b *testing.B, method string) {
	f := newFixture(b, Options{})
	region := f.regions(f.table("t", oneFamily, nil))[0].Specifier()
	c := f.dial("ClientService", nil)
	value := make([]byte, 100)
	request := func(id uint32) []byte {
		key := fmt.Appendf(nil, "r%05d", id%10_000)
		if method == "Get" {
			return frame(id, method, &pb.GetRequest{Region: region, Get: &pb.Get{Row: key}}, nil)
		}
		return frame(id, method, &pb.MutateRequest{Region: region, Mutation: &pb.MutationProto{Row: key, MutateType: pb.MutationProto_PUT.Enum(),
			AssociatedCellCount: proto.Int32(1)}}, wire.AppendCell(nil, key, "f", []byte("q"), 1, wire.TypePut, value))
	}
	_ = c.nc.SetDeadline(time.Now().Add(time.Hour))
	const window = 64
	slots := make(chan struct{}, window)
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		for i := range b.N {
			slots <- struct{}{}
			if _, err := c.nc.Write(request(uint32(i))); err != nil {
				return
			}
		}
	}()
	for range b.N {
		if h, _ := c.receive(nil); h.Exception != nil {
			b.Fatal(h.Exception)
		}
		<-slots
	}
}

// TestMultiGets: the gets of a Multi answer as they would alone, in the order
// they came in, whatever rows, kinds and regions they are of.
func TestMultiGets(t *testing.T) {
	f := newFixture(t, Options{})
	rules := oneFamily["f"]
	rules.Versions = 3
	table := f.table("t", map[string]model.Family{"f": rules, "g": oneFamily["f"]}, nil, "m")
	regions := f.regions(table)
	c := f.dial("ClientService", nil)
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([]string, 40)
	for i := range keys {
		keys[i] = fmt.Sprintf("%c%02d", 'a'+rng.IntN(26), i)
		if i%5 == 0 {
			continue // there is no such row
		}
		for v := range 1 + rng.IntN(4) {
			for _, family := range []string{"f", "g"} {
				var block []byte
				block = wire.AppendCell(block, []byte(keys[i]), family, fmt.Appendf(nil, "q%d", v%2), int64(v+1), wire.TypePut, fmt.Appendf(nil, "%s=%d", keys[i], v))
				region := regions[0]
				if keys[i] >= "m" {
					region = regions[1]
				}
				c.call("Mutate", &pb.MutateRequest{Region: region.Specifier(), Mutation: &pb.MutationProto{Row: []byte(keys[i]),
					MutateType: pb.MutationProto_PUT.Enum(), AssociatedCellCount: proto.Int32(1)}}, nil, block)
			}
		}
	}
	kinds := []func(*pb.Get){
		func(*pb.Get) {},
		func(g *pb.Get) { g.MaxVersions = proto.Uint32(3) },
		func(g *pb.Get) { g.ExistenceOnly = proto.Bool(true) },
		func(g *pb.Get) { g.Column = []*pb.Column{{Family: []byte("g")}} },
		func(g *pb.Get) { g.Column = []*pb.Column{{Family: []byte("f"), Qualifier: [][]byte{[]byte("q1")}}} },
		func(g *pb.Get) { g.TimeRange = &pb.TimeRange{From: proto.Uint64(2), To: proto.Uint64(3)} },
		func(g *pb.Get) { g.StoreLimit = proto.Uint32(1) },
		func(g *pb.Get) { g.Column = []*pb.Column{{Family: []byte("nope")}} },
		func(g *pb.Get) { g.TimeRange = &pb.TimeRange{From: proto.Uint64(3), To: proto.Uint64(2)} },
		func(g *pb.Get) { g.MaxVersions = proto.Uint32(0) },
		func(g *pb.Get) { g.ClosestRowBefore = proto.Bool(true) },
	}
	for range 50 {
		req := &pb.MultiRequest{}
		var want []string
		for _, region := range regions {
			ra := &pb.RegionAction{Region: region.Specifier()}
			for range rng.IntN(60) {
				// Some are of the wrong region.
				g := &pb.Get{Row: []byte(keys[rng.IntN(len(keys))])}
				if rng.IntN(3) > 0 {
					kinds[rng.IntN(len(kinds))](g)
				}
				ra.Action = append(ra.Action, &pb.Action{Index: proto.Uint32(uint32(len(ra.Action) + 1)), Get: g})
				var r pb.GetResponse
				id := c.send("Get", &pb.GetRequest{Region: ra.Region, Get: g}, nil)
				h, out := c.receive(&r)
				if h.GetCallId() != id {
					t.Fatal("another call's response")
				}
				want = append(want, fmt.Sprint(h.GetException().GetExceptionClassName(), r.GetResult(), cellsText(t, out, true)))
			}
			req.RegionAction = append(req.RegionAction, ra)
		}
		var r pb.MultiResponse
		cells := wire.NewCells(c.call("Multi", req, &r, nil))
		var got []string
		for _, res := range r.GetRegionActionResult() {
			for _, x := range res.GetResultOrException() {
				n := int(x.GetResult().GetAssociatedCellCount())
				var own []byte
				for range n {
					var cell wire.Cell
					if err := cells.Next(&cell); err != nil {
						t.Fatal(err)
					}
					own = wire.AppendCell(own, cell.Row, cell.Family, cell.Qualifier, cell.Timestamp, cell.Type, cell.Value)
				}
				got = append(got, fmt.Sprint(x.GetException().GetName(), x.GetResult(), cellsText(t, own, true)))
			}
		}
		if cells.Len() > 0 {
			t.Fatalf("%d bytes are no action's", cells.Len())
		}
		if !slices.Equal(got, want) {
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("%d: got %s, want %s", i, got[i], want[i])
				}
			}
			t.FailNow()
		}
	}
}

// TestMultiTooMuch: what is over the size of a response is to be asked for again.
func TestMultiTooMuch(t *testing.T) {
	f := newFixture(t, Options{})
	region := f.regions(f.table("t", oneFamily, nil))[0].Specifier()
	c := f.dial("ClientService", nil)
	const rows, size = 40, 64 << 20 / 20
	ra := &pb.RegionAction{Region: region}
	for i := range rows {
		key := fmt.Appendf(nil, "r%02d", i)
		c.call("Mutate", &pb.MutateRequest{Region: region, Mutation: &pb.MutationProto{Row: key, MutateType: pb.MutationProto_PUT.Enum(),
			AssociatedCellCount: proto.Int32(1)}}, nil, wire.AppendCell(nil, key, "f", []byte("q"), 1, wire.TypePut, make([]byte, size)))
		ra.Action = append(ra.Action, &pb.Action{Index: proto.Uint32(uint32(i + 1)), Get: &pb.Get{Row: key}})
	}
	var r pb.MultiResponse
	out := c.call("Multi", &pb.MultiRequest{RegionAction: []*pb.RegionAction{ra}}, &r, nil)
	with, later := 0, 0
	for _, x := range r.GetRegionActionResult()[0].GetResultOrException() {
		switch {
		case x.GetException().GetName() == retryAtOnce.Name:
			later++
		case x.GetResult().GetAssociatedCellCount() == 1:
			with++
		}
	}
	if with+later != rows || with < 20 || later == 0 || len(out) < with*size || len(out) > 64<<20+(parallel+1)*size {
		t.Errorf("%d rows in %d bytes, %d for later", with, len(out), later)
	}
}
