//go:build sim

package sim

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/objectstore"
)

// Stuck logs give nobody an object of a commit log before let is closed.
type stuckLogs struct {
	objectstore.Store
	let   <-chan struct{}
	asked *atomic.Bool
}

func (s stuckLogs) wait(ctx context.Context, name string) error {
	if log, _, _ := strings.Cut(name, "/"); len(log) != 16 {
		return nil
	}
	s.asked.Store(true)
	select {
	case <-s.let:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s stuckLogs) Get(ctx context.Context, name string) ([]byte, error) {
	if err := s.wait(ctx, name); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, name)
}

func (s stuckLogs) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	if err := s.wait(ctx, name); err != nil {
		return nil, err
	}
	return s.Store.Open(ctx, name)
}

// TestCreateBesideRecovery: a table that is made while a server recovers the tablets of another
// one is served at once, and does not wait for them.
func TestCreateBesideRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let, asked := make(chan struct{}), new(atomic.Bool)
		g := &stage{t: t, want: map[string]string{}, options: func(o *Options) {
			o.WrapStore = func(_ string, s objectstore.Store) objectstore.Store { return stuckLogs{s, let, asked} }
		}}
		defer func() {
			g.Close()
			time.Sleep(time.Minute)
		}()
		g.start()
		g.place(g.table.ID, "server-2")
		if err := g.set("a", "v"); err != nil {
			t.Fatal(err)
		}
		g.want["a"] = "v"
		asked.Store(false)
		g.KillServer("server-2")
		for range 60 {
			if time.Sleep(time.Second); asked.Load() {
				break
			}
		}
		if !asked.Load() {
			t.Fatal("nobody recovers the tablets of a server that ended")
		}
		start := time.Now()
		create(t, g.admin, upkeepTable)
		put(t, g.admin, upkeepTable, "b", "w")
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("a table is made and served in %v", took)
		}
		if g.tablets() != nil {
			t.Error("the recovery is over")
		}
		close(let)
		g.check("recovered")
	})
}
