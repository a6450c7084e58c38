package engine

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// TestOpenOnFullDisk: a data directory whose disk has not one byte left is opened
// with the space that was kept for that, and serves reads; writes are Exhausted,
// and go on by themselves once there is room, for which space is kept again.
// Without any it is Exhausted, and nothing is lost.
func TestOpenOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := datadirtest.NewSmallDisk(vfs.NewMem())
		o := Options{FS: disk, Dir: "d", Log: loud(), SegmentBytes: 1 << 20, MemtableBytes: 8 << 20, LogBytes: 4 << 20}
		s := mustOpen(t, o)
		table := filled(t, s, "t", 100)
		if _, err := s.PutRecord(ctx, "record", []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := content(s, table, row.All)
		reserved := func() bool { ok, _ := exists(disk, "d/"+datadir.ReserveName); return ok }
		if !reserved() {
			t.Fatal("nothing is reserved")
		}
		disk.Fill(0)
		_ = s.Close(ctx) // may say that it could not flush
		big := strings.Repeat("x", 1<<20)
		for n := range 3 { // and again, without a new reserve
			disk.Fill(0)
			if n > 0 {
				disk.Fill(64 << 10) // some of the reserve is left
			}
			s = mustOpen(t, o)
			if got := content(s, table, row.Range{Start: []byte("row")}); got != want {
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
				err = s.MutateRow(ctx, table, entry("a", setCell("f", "q", 1000, big)))
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
			mustPut(t, s, table, fmt.Sprint("b", i), setCell("f", "q", 1000, big))
		}
		if !reserved() {
			t.Error("nothing is reserved again")
		}
		mustClose(t, s)
		if err := disk.Remove("d/RESERVE"); err != nil {
			t.Fatal(err)
		}
		disk.Fill(0)
		if _, err := Open(ctx, o); fault.KindOf(err) != fault.Exhausted {
			t.Errorf("open without a reserve: %v", err)
		}
		disk.Fill(1 << 30)
		s = mustOpen(t, o)
		if got := content(s, table, row.Range{Start: []byte("row")}); got != want {
			t.Errorf("got %s", got)
		}
		mustClose(t, s)
	})
}
