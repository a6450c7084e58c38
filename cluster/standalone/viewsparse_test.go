package standalone

import (
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
	w.put(20, func(int) row.Mutation { return w.set(viewstest.Value, []byte("12345678")) })
	w.create()
	w.check()
	if between.Load() == 0 {
		t.Error("all rows were looked at in one turn")
	}
}
