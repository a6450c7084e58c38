package views

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// nothing is a source without rows, and an evaluator of it.
type nothing struct{ Cluster }

func (nothing) ReadRows(context.Context, *scan.Request, scan.Writer) (scan.Stats, error) {
	return scan.Stats{}, nil
}
func (nothing) Keys(context.Context, [][]byte, func(*matview.Row) error) error   { return nil }
func (nothing) Range(context.Context, row.Range, func(*matview.Row) error) error { return nil }

// runOfNothing is an attempt whose source has no rows any more. Its tablet has, of so many rows, a
// contribution, or the end of a cell.
func runOfNothing(t *testing.T, rows int, ends bool) *run {
	t.Helper()
	ctx := t.Context()
	v := &schema.View{Name: "v", Key: []schema.ViewColumn{{Name: "_key", Type: schema.ViewBytes}}, RawKey: true}
	_, sch := matview.Tables(v)
	objects, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := commitlog.CreateSegments(ctx, objects, 7, commitlog.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	var ids atomic.Uint64
	one := tablet.Open(&tablet.Env{Options: tablet.Options{}.WithDefaults(), Commit: log, Objects: objects, Memory: tablet.NewMemory(1<<30, func() {}),
		Log: slog.New(slog.DiscardHandler), Now: time.Now, NewID: func() uint64 { return ids.Add(1) }, Work: func(*tablet.Tablet) {}, Fatal: func(err error) { t.Error(err) }},
		&metadata.Row{Table: 5, Tablet: 1, Version: 1}, func() *schema.Table { return sch })
	one.Start()
	t.Cleanup(one.Close)
	st, err := openStore(ctx, one, sch, NoMistake)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Cluster: nothing{}}.WithDefaults()
	w := New(&o, one, nil, nil, new(Counters))
	r := &run{Worker: w, sch: sch, view: v, source: &schema.Table{Name: "s"}, eval: nothing{}, store: st, ended: newSweeper(), out: newOutbox(nil, nil), deltas: matview.NewDeltas(v)}
	contribution, err := matview.AppendItem(nil, v, []byte("group"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		b := tablet.NewBatch(fmt.Appendf(nil, "%06d", i))
		if ends {
			b.Set(st.expiry, nil, 0, binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMicro())))
		} else {
			b.Set(st.contribution, nil, 0, contribution)
		}
		if err := r.apply(ctx, b); err != nil {
			t.Fatal(err)
		}
		b.Free()
	}
	return r
}

// busy is a pace while requests wait for processors, for as long as the test takes.
func busy(wall bool) *pace { return &pace{busy: true, wall: wall, looked: time.Now().Add(time.Hour)} }

// TestLookGivesWay: a look that takes away the contributions of rows that are gone gives way to
// requests, though no row is evaluated.
func TestLookGivesWay(t *testing.T) {
	const rows = 3000
	r := runOfNothing(t, rows, false)
	r.o.scans = busy(true)
	began := time.Now()
	r.look = newLook(row.All, nil, []Begin{{Rows: row.All}}, cell.Seq(1))
	if err := r.lookOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.look != nil || r.deltas.Size() != 0 {
		t.Error("the look is not over")
	}
	left := 0
	if err := r.store.scan(t.Context(), r.store.contributions, []row.Range{row.All}, 0, func([]byte, *row.Cell) error { left++; return nil }); err != nil || left != 0 {
		t.Errorf("%d contributions are left: %v", left, err)
	}
	if r.o.scans.free.Before(began) {
		t.Error("the look has not given way")
	}
}

// TestEndedRowsCatchUp: rows whose cells have ended are evaluated with a larger part of the
// processors the longer that takes.
func TestEndedRowsCatchUp(t *testing.T) {
	const rows = 100
	// owed returns for how many rows the Worker is to wait after these.
	owed := func(pass time.Duration) float64 {
		r := runOfNothing(t, rows, true)
		p := busy(false)
		r.o.keys = p
		s := &r.ended
		s.busy, s.first, s.began = true, never, time.Now().Add(-pass)
		before := time.Now().Add(time.Second) // it does not take so long
		p.free = before
		if err := r.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		return float64(p.free.Sub(before)) / float64(p.cost)
	}
	if long, short := owed(time.Hour), owed(0); long <= 0 || short < 10*long {
		t.Errorf("it waits for %.0f rows in a pass of an hour, for %.0f in one that begins", long, short)
	}
}
