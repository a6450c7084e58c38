//go:build sim

package sim

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// noCopies is a store that takes no copy of the lock service while told so.
type noCopies struct {
	objectstore.Store
	full *atomic.Bool
}

func (s noCopies) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if s.full.Load() && strings.HasPrefix(name, copiesPart+"/") {
		return fault.New(fault.Unavailable, "no copies now")
	}
	return s.Store.PutIfAbsent(ctx, name, data)
}

// TestSweepKeepsLogsForCopies: a METADATA log that nobody needs is deleted once a
// copy of the lock service does not need it either. Before that a copy could be
// recovered that names it, and nothing would show that METADATA has gone on since.
func TestSweepKeepsLogsForCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := new(atomic.Bool)
		c, err := New(Options{TTL: time.Second, Copy: time.Second, Sweep: time.Second, Log: logger(),
			WrapStore: func(_ string, s objectstore.Store) objectstore.Store { return noCopies{s, full} }})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			c.Close()
			time.Sleep(time.Minute)
		}()
		ctx := t.Context()
		c.StartMaster("master")
		first, err := c.StartServer(ctx, "server-1")
		if err != nil {
			t.Fatal(err)
		}
		admin, err := c.Client(ctx, "admin")
		if err != nil {
			t.Fatal(err)
		}
		newTable(t, admin)
		time.Sleep(5 * time.Second)
		recovered := func() (bool, error) {
			cp, err := (&catalog.Copier{Store: c.copies(c.objects)}).Newest(ctx)
			if err != nil {
				t.Fatal(err)
			}
			err = cp.Amend(ctx, c.objects, onlyLogs{c.objects})
			if err != nil && fault.KindOf(err) != fault.FailedPrecondition {
				t.Fatal(err)
			}
			return err == nil, err
		}
		if ok, err := recovered(); !ok {
			t.Fatalf("a copy that is up to date is refused: %v", err)
		}
		full.Store(true)
		if _, err := c.StartServer(ctx, "server-2"); err != nil {
			t.Fatal(err)
		}
		c.KillServer("server-1")
		time.Sleep(time.Minute)
		segments := func() int {
			infos, err := c.objects.List(ctx, catalog.MetadataLog(first.Incarnation()).String()+"/", "", 0)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, i := range infos {
				if i.Size > fenceBytes {
					n++
				}
			}
			return n
		}
		if segments() == 0 {
			t.Error("the log is deleted that the newest copy needs")
		}
		if ok, _ := recovered(); ok {
			t.Error("a copy from before METADATA moved is recovered")
		}
		full.Store(false)
		time.Sleep(time.Minute)
		if n := segments(); n > 0 {
			t.Errorf("%d segments are left of a log that nobody needs", n)
		}
		if ok, err := recovered(); !ok {
			t.Errorf("a copy that is up to date is refused: %v", err)
		}
		if logs, err := commitlog.ListStored(ctx, onlyLogs{c.objects}); err != nil || len(logs) == 0 {
			t.Errorf("%v, %v", logs, err)
		}
	})
}
