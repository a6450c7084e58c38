package tabletserver

import (
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestViewsAsleep: a tablet that comes or goes has nobody look at all tablets for views'
// workers, if it is of no view.
func TestViewsAsleep(t *testing.T) {
	s, table := startServer(t, nil)
	defer s.Kill()
	// From then on, nothing but tablets can wake it.
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := s.o.Lock.Get(t.Context(), catalog.AppliedKey(s.owner)); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the schemas are not applied")
		}
	}
	select {
	case <-s.views.wake:
	default:
	}
	s.replaceServed([]*served{{Tablet: tablet.Open(s.users.env, &metadata.Row{Table: 5, Tablet: 1, Version: 1}, table.Schema), table: table, group: s.users}}, nil)
	if len(s.views.wake) > 0 {
		t.Error("all tablets are looked at for one that is of no view")
	}
}
