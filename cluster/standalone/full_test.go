package standalone

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// TestOpenOnFullDisk: a data directory whose disk has not one byte left is opened
// with the space that was kept for that, and serves reads; writes are Exhausted,
// and go on by themselves once there is room, for which space is kept again.
// Without any it is Exhausted, and nothing is lost.
func TestOpenOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // what a server leaves behind ends
		ctx := context.Background()
		disk := datadirtest.NewSmallDisk(vfs.NewMem())
		o := Options{FS: disk, Dir: "d", Log: commitlog.Options{SegmentBytes: 1 << 20},
			TabletServer: tabletserver.Options{MemtableBytes: 8 << 20, LogBytes: 4 << 20}}
		open := func() *Server {
			t.Helper()
			s, err := Open(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		put := func(s *Server, key string, value []byte) error {
			return s.MutateRow(ctx, table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
				{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: value}}})
		}
		rows := func(s *Server) string {
			t.Helper()
			w := &backendtest.Collector{FullEvery: 3}
			if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{{Start: []byte("row")}}}, w); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(len(w.Rows), w.Rows)
		}
		reserved := func() bool { _, err := disk.Stat("d/" + datadir.ReserveName); return err == nil }
		s := open()
		if _, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, nil); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			if err := put(s, fmt.Sprintf("row%03d", i), []byte("v")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.PutRecord(ctx, "record", []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		want := rows(s)
		if !reserved() {
			t.Fatal("nothing is reserved")
		}
		disk.Fill(0)
		_ = s.Close(ctx) // may say that it could not flush
		big := bytes.Repeat([]byte("x"), 1<<20)
		for n := range 3 { // and again, without a new reserve
			disk.Fill(0)
			if n > 0 {
				disk.Fill(64 << 10) // some of the reserve is left
			}
			s = open()
			if got := rows(s); got != want {
				t.Fatalf("start %d: got %s", n, got)
			}
			if _, _, err := s.GetRecord(ctx, "record"); err != nil {
				t.Errorf("start %d: %v", n, err)
			}
			if reserved() {
				t.Errorf("start %d: the reserve is there still", n)
			}
			disk.Fill(0)
			var err error
			for i := 0; err == nil && i < 100; i++ {
				err = put(s, "a", big)
			}
			if fault.KindOf(err) != fault.Exhausted {
				t.Errorf("start %d: a write: %v", n, err)
			}
			if n < 2 {
				_ = s.Close(ctx)
			}
		}
		disk.Fill(1 << 30)
		time.Sleep(2 * datadir.ReserveEvery)
		for i := range 20 {
			if err := put(s, fmt.Sprint("b", i), big); err != nil {
				t.Fatal(err)
			}
		}
		if !reserved() {
			t.Error("nothing is reserved again")
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if err := disk.Remove("d/" + datadir.ReserveName); err != nil {
			t.Fatal(err)
		}
		disk.Fill(0)
		if _, err := Open(ctx, o); fault.KindOf(err) != fault.Exhausted {
			t.Errorf("open without a reserve: %v", err)
		}
		disk.Fill(1 << 30)
		s = open()
		if got := rows(s); got != want {
			t.Errorf("got %s", got)
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
	})
}
