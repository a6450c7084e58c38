package master

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/sim"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestClusterRegions: regions of a cluster are split, merged, flushed, compacted
// and moved by HBase's clients.
func TestClusterRegions(t *testing.T) {
	c, err := sim.New(sim.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.StartMaster("master-1")
	for i := range 2 {
		if _, err := c.StartServer(t.Context(), fmt.Sprintf("server-%d", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := c.Client(t.Context(), "front")
	if err != nil {
		t.Fatal(err)
	}
	me := model.Server{Host: "h1", Port: 1, StartCode: 1}
	cat, err := model.Open(t.Context(), b, model.Mapping{Project: "p", Instance: "main"}, me)
	if err != nil {
		t.Fatal(err)
	}
	cat.Spread(b.Owners)
	cat.SetPlaces([]model.Place{{Server: me, Tablets: "server-1"}, {Server: model.Server{Host: "h2", Port: 1, StartCode: 1}, Tablets: "server-2"},
		{Server: model.Server{Host: "gateway", Port: 1, StartCode: 1}}})
	f := &fixture{t: t, c: &server.Call{Client: &server.Client{User: "me"}}}
	f.Master = New(cat, Options{Tablets: b, Backups: b})
	defer f.Master.Close()
	f.create(tableSchema("t", fam("f")), "h", "p")
	ctx := t.Context()
	resource := cat.Mapping().Resource(model.ParseName("t"))
	for i := range 300 {
		err := b.MutateRow(ctx, resource, &row.Entry{Key: fmt.Appendf(nil, "%c%03d", 'a'+i%26, i), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: make([]byte, 200)}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func() []*model.Region {
		t.Helper()
		table, err := f.table(ctx, model.ParseName("t"))
		if err != nil {
			t.Fatal(err)
		}
		l, err := cat.Regions(ctx, table)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = f.splitRegion(ctx, f.c, &pb.SplitTableRegionRequest{RegionInfo: list()[0].Info(), SplitRow: []byte("d")})
	must(err)
	if l := list(); len(l) != 4 || string(l[1].Start) != "d" {
		t.Errorf("regions after a split: %v", l)
	}
	_, err = f.splitRegion(ctx, f.c, &pb.SplitTableRegionRequest{RegionInfo: list()[3].Info()})
	f.wants("split a small one in the middle", err, wire.DoNotRetryIO)
	to := func(host string) *pb.ServerName { return &pb.ServerName{HostName: &host, Port: proto.Uint32(1)} }
	// Neighbours on two servers are merged.
	for i, host := range []string{"h1", "h2"} {
		_, err := f.moveRegion(ctx, f.c, &pb.MoveRegionRequest{Region: list()[i].Specifier(), DestServerName: to(host)})
		must(err)
		if at := cat.At(list()[i]); at.Host != host {
			t.Errorf("region %d is at %v, want %s", i, at, host)
		}
	}
	_, err = f.mergeTableRegions(ctx, f.c, &pb.MergeTableRegionsRequest{Region: []*pb.RegionSpecifier{list()[0].Specifier(), list()[1].Specifier()}})
	must(err)
	if l := list(); len(l) != 3 || string(l[0].End) != "h" {
		t.Errorf("regions after a merge: %v", l)
	}
	// Without a destination it goes to any other server.
	before := cat.At(list()[0])
	_, err = f.moveRegion(ctx, f.c, &pb.MoveRegionRequest{Region: list()[0].Specifier()})
	must(err)
	if at := cat.At(list()[0]); at == before || at.Host == "gateway" {
		t.Errorf("the region is at %v after it was moved away from %v", at, before)
	}
	_, err = f.moveRegion(ctx, f.c, &pb.MoveRegionRequest{Region: list()[0].Specifier(), DestServerName: to("gateway")})
	f.wants("move to a gateway", err, wire.DoNotRetryIO)
	_, err = f.moveRegion(ctx, f.c, &pb.MoveRegionRequest{Region: list()[0].Specifier(), DestServerName: to("nowhere")})
	f.wants("move to nowhere", err, wire.DoNotRetryIO)

	r := list()[0]
	flushed, err := f.flushRegion(ctx, f.c, &pb.FlushRegionRequest{Region: r.Specifier()})
	if err != nil || !flushed.GetFlushed() {
		t.Errorf("flush: %v, %v", flushed, err)
	}
	now := func() tablet.Info {
		t.Helper()
		infos, err := b.Tablets(ctx, resource)
		must(err)
		return infos[0]
	}
	if i := now(); i.MemtableBytes != 0 || i.Files == 0 {
		t.Errorf("after a flush: %+v", i)
	}
	put(t, b, resource)
	if i := now(); i.MemtableBytes == 0 {
		t.Errorf("after a change: %+v", i)
	}
	_, err = f.compactRegion(ctx, f.c, &pb.CompactRegionRequest{Region: r.Specifier(), Major: proto.Bool(true)})
	must(err)
	for end := time.Now().Add(30 * time.Second); now().Runs != 1 || now().MemtableBytes != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after a compaction: %+v", now())
		}
	}
}

func put(t *testing.T, b *client.Client, table string) {
	t.Helper()
	err := b.MutateRow(context.Background(), table, &row.Entry{Key: []byte("a"), Mutations: []row.Mutation{
		{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 2000, Value: []byte("v")}}})
	if err != nil {
		t.Fatal(err)
	}
}
