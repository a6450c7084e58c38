//go:build sim

package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestRestoreAtSteps: a node ends while a table is brought to a time, at one or another of the
// messages that it sends or gets. The table is there as it was, or is not there and never will be.
// The restore can be done again, and what it had made is removed.
func TestRestoreAtSteps(t *testing.T) {
	for _, victim := range []string{"client", "master-1", "server-1", "server-2", "server-3"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			for _, how := range []mishap{crash, lastWord} {
				runs, done, last := 0, 0, 0
				for n := 1; ; {
					reached, ok := false, false
					synctest.Test(t, func(t *testing.T) { reached, ok = restoreAtRun(t, victim, how, n) })
					if t.Failed() {
						t.Fatalf("%s of %s at message %d", how, victim, n)
					}
					if !reached {
						break
					}
					runs, last = runs+1, n
					if ok {
						done++
					}
					if n++; os.Getenv("TRESTLE_SIM_STEPS") != "all" {
						n += n / 3
					}
				}
				t.Logf("%s: %d runs, up to message %d; %d restores came to their end", how, runs, last, done)
				if runs < 3 && victim != "master-1" {
					t.Error("that is too few")
				}
			}
		})
	}
}

// restoreAtRun tells whether there was an n-th message, and whether the restore was done.
func restoreAtRun(t *testing.T, victim string, how mishap, n int) (reached, done bool) {
	ctx := t.Context()
	g := &stage{t: t, options: func(o *Options) { o.MakeLimit = 30 * time.Second }}
	defer func() {
		if g.Cluster != nil {
			g.Close()
		}
		time.Sleep(time.Minute)
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	g.start()
	_, err := g.admin.UpdateTable(ctx, tableName, func(s *schema.Table) error {
		s.Stream = &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}
		return nil
	})
	must(err)
	write := func(value string, keys ...string) {
		t.Helper()
		for _, k := range keys {
			must(g.set(k, value))
			g.want[k] = value
		}
	}
	write("before", "a", "i", "q")
	const backup = "backups/b"
	_, err = g.admin.CreateBackup(ctx, tableName, &schema.Backup{Name: backup})
	must(err)
	write("since", "b", "j", "r", "new")
	for _, k := range []string{"c", "k"} {
		must(g.admin.MutateRow(ctx, tableName, &row.Entry{Key: []byte(k), Mutations: []row.Mutation{{Op: row.DeleteRow}}}))
		delete(g.want, k)
	}
	middle := g.of("k")
	g.ask("server-2", func(ctx context.Context, s rpc.TabletServer) {
		must(s.Flush(ctx, []metadata.TabletID{middle.Tablet}))
		must(s.Split(ctx, middle.Tablet, []byte("l")))
	})
	write("at last", "l", "s")
	time.Sleep(time.Millisecond)
	at, want := time.Now(), maps.Clone(g.want)
	time.Sleep(time.Millisecond)
	write("later", "a", "l", "s", "newer")

	same := func(*schema.Table) error { return nil }
	const first, again = tableName + "r", tableName + "s"
	g.arm(victim, how, n)
	g.client(func(ctx context.Context, b *client.Client) {
		_, err := b.RestoreTableAt(ctx, backup, first, at, same)
		if done = err == nil; !done && victim != "client" && !may(err) && !errors.Is(err, rpc.ErrUnknown) {
			t.Errorf("the restore: %v", err)
		}
	})
	reached = g.disarm()
	time.Sleep(3 * time.Second) // a session ends
	g.waitServed()
	there := func() bool {
		t.Helper()
		_, err := g.admin.Table(ctx, first)
		if err != nil {
			if fault.KindOf(err) != fault.NotFound {
				t.Error(err)
			}
			return false
		}
		if got := contents(t, g.admin, first); !maps.Equal(got, want) {
			t.Errorf("restored is %v, want %v", got, want)
		}
		return true
	}
	is := there()
	if done && !is {
		t.Error("the restored table is not there")
	}
	_, err = g.admin.RestoreTableAt(ctx, backup, again, at, same)
	must(err)
	if got := contents(t, g.admin, again); !maps.Equal(got, want) {
		t.Errorf("restored again is %v, want %v", got, want)
	}
	left := func() (names []string) {
		must(catalog.Names(ctx, g.Lock("admin"), func(_ lock.Item, entries catalog.Name) error {
			for _, e := range entries {
				if catalog.IsStaged(e.Name) {
					names = append(names, e.Name)
				}
			}
			return nil
		}))
		backups, err := catalog.Backups(ctx, g.Lock("admin"), "")
		must(err)
		for _, b := range backups {
			if b.Name != backup {
				names = append(names, b.Name)
			}
		}
		return names
	}
	for begin := time.Now(); len(left()) > 0; time.Sleep(time.Second) {
		if time.Since(begin) > 2*time.Minute {
			t.Fatalf("%q stay", left())
		}
	}
	if there() != is {
		t.Error("the table came, or went, once the restore was over")
	}
	g.check(fmt.Sprintf("%s of %s at message %d, %+v", how, victim, n, g.last))
	return reached, done
}
