package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// TestInline: what comes without a connection is what comes with one, errors included.
func TestInline(t *testing.T) {
	f := &fake{mutate: func(context.Context, rpc.Target, *row.Entry) error {
		return errors.Join(rpc.ErrNotServing, fault.InvalidField("f", "bad"))
	}}
	late := changes.Expired("t", 1<<40)
	f.changes = func(_ context.Context, _ rpc.Target, _ *rpc.ChangesRead, w changes.Writer) error {
		_, _ = w.Record(&someChanges[0], someChanges[0].After())
		return late
	}
	f.reads(func(_ context.Context, _ rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
		for i := range 3 {
			w.StartRow(append(req.Ranges[0].Start, byte('a'+i)))
			w.Cell(&row.Cell{Family: "f", Value: bytes.Repeat([]byte("v"), rowsBytes)})
			if full, err := w.EndRow(); err != nil {
				return nil, scan.Stats{}, err
			} else if full {
				if err := w.Flush(); err != nil {
					return nil, scan.Stats{}, err
				}
			}
		}
		return nil, scan.Stats{RowsReturned: 3}, nil
	})
	_, connected, _ := serve(t, f, Options{}, ServerOptions{})
	var got [2][]any
	for i, s := range []rpc.TabletServer{connected, Inline(f)} {
		note := func(v ...any) { got[i] = append(got[i], v...) }
		err := s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{})
		note(err.Error(), fault.KindOf(err), errors.Is(err, rpc.ErrNotServing))
		for _, ranges := range [][]row.Range{{row.Single([]byte("s"))}, {row.Prefix([]byte("p"))}} {
			w := &collect{}
			rest, stats, err := s.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: ranges}, w)
			note(w.rows, len(rest), stats, err)
		}
		w := &takes{}
		err = s.ReadChanges(t.Context(), rpc.Target{}, &rpc.ChangesRead{Every: time.Second}, w)
		note(w.got, fmt.Sprintf("%#v", err))
		loss, err := s.DropDamaged(t.Context(), 7, "x")
		note(loss, err)
	}
	if !reflect.DeepEqual(got[0], got[1]) || len(got[0][3].([]bufferedRow)) != 3 {
		t.Errorf("%.1000v with a connection, %.1000v without", got[0], got[1])
	}
	f.mutate = func(context.Context, rpc.Target, *row.Entry) error { panic("boom") }
	defer func() {
		if r := recover(); r != "boom" {
			t.Errorf("a panic of the server becomes %v", r)
		}
	}()
	_ = Inline(f).MutateRow(t.Context(), rpc.Target{}, &row.Entry{})
}
