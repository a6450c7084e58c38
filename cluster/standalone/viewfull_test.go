package standalone

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestViewFullDisk: a view pauses while its server's disk is full, and catches up by itself
// once there is room.
func TestViewFullDisk(t *testing.T) {
	ctx := t.Context()
	disk := datadirtest.NewSmallDisk(vfs.NewMem())
	s, err := Open(ctx, Options{FS: disk, Dir: "d", Log: commitlog.Options{SegmentBytes: 1 << 20},
		TabletServer: tabletserver.Options{ClockEvery: 10 * time.Millisecond, MemtableBytes: 8 << 20, LogBytes: 4 << 20},
		Views: func(c *client.Client) views.Options {
			return views.Options{Linger: time.Millisecond, Watermark: 20 * time.Millisecond, Evaluators: viewstest.Evaluators{Reader: c}}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	source, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: viewstest.Families()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateView(ctx, viewstest.Groups(viewName, source), nil); err != nil {
		t.Fatal(err)
	}
	put := func(i int, rest []byte) error {
		set := func(q, v []byte) row.Mutation {
			return row.Mutation{Op: row.SetCell, Family: viewstest.Family, Qualifier: q, Timestamp: 1000, Value: v}
		}
		return s.MutateRow(ctx, table, &row.Entry{Key: fmt.Appendf(nil, "row%05d", i), Mutations: []row.Mutation{
			set(viewstest.Group, fmt.Appendf(nil, "group%d", i%5)), set(viewstest.Value, number(int64(i))), set([]byte("rest"), rest)}})
	}
	check := func() {
		t.Helper()
		wait, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := s.WaitView(wait, viewName); err != nil {
			st, _ := s.ViewStatus(ctx, viewName)
			t.Fatalf("%v; %+v", err, st)
		}
		if err := viewstest.Check(ctx, s, viewName, table); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		if err := put(i, nil); err != nil {
			t.Fatal(err)
		}
	}
	check()
	disk.Fill(0)
	n := 100
	for _, size := range []int{64 << 10, 4 << 10, 100} { // until nothing has room
		for err = nil; err == nil && n < 10_000; n++ {
			err = put(n, bytes.Repeat([]byte("x"), size))
		}
		if fault.KindOf(err) != fault.Exhausted {
			t.Fatalf("a write to a full disk: %v", err)
		}
	}
	paused := false
	for limit := time.Now().Add(time.Minute); !paused && time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		st, err := s.ViewStatus(ctx, viewName)
		if err != nil {
			t.Fatal(err)
		}
		paused = st.Errors > 0
	}
	if !paused {
		t.Error("the view did not pause")
	}
	disk.Fill(1 << 30)
	for ; err != nil; time.Sleep(50 * time.Millisecond) {
		err = put(n, nil)
	}
	check()
}
