package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/row"
)

// BenchmarkMultiGet asks for 100 of 200,000 rows at a time, as gohbase does. A
// fourth of them are in a memtable.
func BenchmarkMultiGet(b *testing.B) {
	f := newFixture(b, Options{})
	t := f.table("t", oneFamily, nil)
	value := make([]byte, 100)
	const rows, batch = 200_000, 100
	key := func(i int) []byte { return fmt.Appendf(nil, "r%09d", i*618_033_989%1_000_000_007) }
	entries := make([]row.Entry, 0, 1000)
	for i := range rows {
		entries = append(entries, row.Entry{Key: key(i), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: value}}})
		if len(entries) == cap(entries) {
			if err := f.store.MutateRows(context.Background(), t.Resource, entries, func(_ int, err error) {
				if err != nil {
					b.Error(err)
				}
			}); err != nil {
				b.Fatal(err)
			}
			entries = entries[:0]
		}
		if i == rows*3/4 {
			if err := f.store.TabletServer().FlushAll(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	}
	region := f.regions(t)[0].Specifier()
	var frames [][]byte
	for id := range 200 {
		ra := &pb.RegionAction{Region: region}
		for i := range batch {
			ra.Action = append(ra.Action, &pb.Action{Index: proto.Uint32(uint32(i) + 1), Get: &pb.Get{Row: key(rand.IntN(rows))}})
		}
		frames = append(frames, frame(uint32(id), "Multi", &pb.MultiRequest{RegionAction: []*pb.RegionAction{ra}}, nil))
	}
	c := f.dial("ClientService", func(h *pb.ConnectionHeader) { h.VersionInfo = nil })
	_ = c.nc.SetDeadline(time.Now().Add(time.Hour))
	slots := make(chan struct{}, 2)
	b.ReportAllocs()
	b.ResetTimer()
	used := cputime.Used()
	defer func() { b.ReportMetric(float64(cputime.Used()-used)/float64(b.N), "cpu-ns/op") }()
	go func() {
		for i := range (b.N + batch - 1) / batch {
			slots <- struct{}{}
			if _, err := c.nc.Write(frames[i%len(frames)]); err != nil {
				return
			}
		}
	}()
	for range (b.N + batch - 1) / batch {
		if h, _ := c.receive(nil); h.Exception != nil {
			b.Fatal(h.Exception)
		}
		<-slots
	}
}
