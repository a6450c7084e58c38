//go:build sim

package sim

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
)

// TestSlowMetadata: the master takes over the tablets of a server that ended though it takes
// longer to read METADATA than a round may take for all else.
func TestSlowMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &stage{t: t}
		var slow atomic.Bool
		g.options = func(o *Options) {
			o.Net = func(ctx context.Context, m Message) error {
				if slow.Load() && m.From == "master-1" && m.Kind == "ReadRows" && !m.Answer {
					if err := wait(ctx, 6*time.Second); err != nil { // of 10 that a round has
						return err
					}
				}
				return g.net(ctx, m)
			}
			o.Merge = time.Hour
		}
		defer func() {
			g.Close()
			time.Sleep(time.Minute)
		}()
		g.start()
		at := metastore.Key(rpc.TabletKey{Table: g.table.ID, End: []byte("p")})
		g.ask("server-1", func(ctx context.Context, s rpc.TabletServer) { _ = s.Split(ctx, g.roots()[0].Tablet, at) })
		if n := len(g.roots()); n != 2 {
			t.Fatalf("METADATA has %d tablets", n)
		}
		slow.Store(true)
		g.KillServer("server-2")
		for start := time.Now(); g.tablets() == nil; time.Sleep(time.Second) {
			if time.Since(start) > time.Minute {
				t.Fatal("the tablets of a server that ended are not served")
			}
		}
	})
}
