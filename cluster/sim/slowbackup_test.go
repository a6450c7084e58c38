//go:build sim

package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// slowFlush is how long a server's tablets take to be flushed for a backup, which has them flushed
// twice before they are paused.
const slowFlush = 45 * time.Second

// startSlowFlushes starts a stage whose tablets stay where they are, and whose flushes for backups
// are slow.
func startSlowFlushes(t *testing.T) *stage {
	g := &stage{t: t}
	g.options = func(o *Options) {
		o.Net = func(ctx context.Context, m Message) error {
			if m.From == "admin" && m.Kind == "Flush" && !m.Answer {
				if err := wait(ctx, slowFlush); err != nil {
					return err
				}
			}
			return g.net(ctx, m)
		}
		o.MakeLimit = catalog.ReservationTTL / 2
		o.Balance, o.Merge = -1, time.Hour
	}
	g.start()
	t.Cleanup(func() { g.Close(); time.Sleep(time.Minute) })
	return g
}

// TestSlowBackupKeepsItsName: while the tablets of a backup are flushed, which takes longer than a
// reservation lasts, no other caller gets its name, and the master does not take it for left.
func TestSlowBackupKeepsItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startSlowFlushes(t)
		ctx := t.Context()
		const name = "backups/b"
		others := make(chan error, 1)
		go func() {
			time.Sleep(catalog.ReservationTTL + time.Second)
			_, err := g.admin.CreateBackup(ctx, tableName, &schema.Backup{Name: name})
			others <- err
		}()
		start := time.Now()
		if _, err := g.admin.CreateBackup(ctx, tableName, &schema.Backup{Name: name}); err != nil {
			t.Errorf("the backup: %v", err)
		}
		if took := time.Since(start); took < 2*slowFlush {
			t.Errorf("the backup took %v", took)
		}
		if err := <-others; fault.KindOf(err) != fault.AlreadyExists {
			t.Errorf("another caller that wants the name meanwhile: %v", err)
		}
		if _, err := g.admin.Backup(ctx, name); err != nil {
			t.Error(err)
		}
	})
}

// TestSlowBackupIsTriedAgain: a backup whose tablets take long to be flushed comes though one of
// them is split meanwhile.
func TestSlowBackupIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startSlowFlushes(t)
		split := make(chan struct{})
		go func() {
			defer close(split)
			time.Sleep(slowFlush + slowFlush/2)
			middle := g.of("k")
			g.ask("server-2", func(ctx context.Context, s rpc.TabletServer) {
				if err := s.Split(ctx, middle.Tablet, []byte("l")); err != nil {
					t.Error(err)
				}
			})
		}()
		start := time.Now()
		if _, err := g.admin.CreateBackup(t.Context(), tableName, &schema.Backup{Name: "backups/b"}); err != nil {
			t.Errorf("the backup: %v", err)
		}
		if took := time.Since(start); took < 4*slowFlush {
			t.Errorf("the backup took %v: the split did not disturb it", took)
		}
		<-split
	})
}
