package standalone

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestViewSparseLook: a turn of a look ends also if none of many rows contributes anything.
func TestViewSparseLook(t *testing.T) {
	var between atomic.Int64 // positions within the look
	w := newViewWorld(t, views.Options{Turn: time.Nanosecond, Step: func(t *tablet.Tablet, step string) error {
		if f := t.Followed(); step == "position noted" && f != nil && len(f.Before) > 0 {
			between.Add(1)
		}
		return nil
	}})
	defer func() { w.close() }()
	entries := make([]row.Entry, 20)
	for i := range entries {
		entries[i] = row.Entry{Key: fmt.Appendf(nil, "row%03d", i), Mutations: []row.Mutation{w.set(viewstest.Value, []byte("12345678"))}}
	}
	if err := w.s.MutateRows(t.Context(), table, entries, func(i int, err error) {
		if err != nil {
			t.Errorf("row %d: %v", i, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	w.create()
	w.check()
	if between.Load() == 0 {
		t.Error("all rows were looked at in one turn")
	}
}
