//go:build sim

package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

const simView = "projects/p/instances/i/materializedViews/v"

// stormView returns how a view differs from its source after a storm: servers die, tablets of
// source, contributions and rows are split, merged and moved, and workers are stopped between
// any two steps. Clients have a stream of the source now and then, and a family of it is dropped
// that the view does not name.
func stormView(t *testing.T, seed uint64, mistake views.Mistake) (diff error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, rnd := t.Context(), rand.New(rand.NewPCG(seed, 7))
		var steps, stop atomic.Int64
		stop.Store(9)
		c, err := New(Options{TTL: 2 * time.Second, Interval: 100 * time.Millisecond, Log: logger(), Tablet: tablet.Options{MemtableBytes: 32 << 10},
			Views: func(c *client.Client) views.Options {
				return views.Options{Evaluators: viewstest.Evaluators{Reader: c}, Mistake: mistake, Linger: time.Millisecond, Step: func(*tablet.Tablet, string) error {
					if n := stop.Load(); n > 0 && steps.Add(1)%n == 0 {
						return errors.New("stopped")
					}
					return nil
				}}
			}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { c.Close(); time.Sleep(time.Minute) }()
		c.StartMaster("master")
		for i := range 3 {
			if _, err := c.StartServer(ctx, fmt.Sprintf("server-%d", i)); err != nil {
				t.Fatal(err)
			}
		}
		cl, err := c.Client(ctx, "client")
		if err != nil {
			t.Fatal(err)
		}
		source, err := cl.CreateTable(ctx, &schema.Table{Name: tableName, Granularity: 1000, Families: viewstest.Families()}, [][]byte{[]byte("r3"), []byte("r6")})
		if err != nil {
			t.Fatal(err)
		}
		write := func() {
			_ = within(ctx, func(ctx context.Context) error {
				key := fmt.Appendf(nil, "r%02d", rnd.IntN(100))
				muts := []row.Mutation{{Op: row.SetCell, Family: viewstest.Family, Qualifier: viewstest.Group, Timestamp: 1000, Value: fmt.Appendf(nil, "g%d", rnd.IntN(5))},
					{Op: row.SetCell, Family: viewstest.Family, Qualifier: viewstest.Value, Timestamp: 1000, Value: binary.BigEndian.AppendUint64(nil, rnd.Uint64N(1000))}}
				switch rnd.IntN(8) {
				case 0, 1:
					muts = []row.Mutation{{Op: row.DeleteRow}}
				case 2, 3:
					muts = []row.Mutation{{Op: row.AddToCell, Family: viewstest.Sums, Qualifier: viewstest.Value, Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: 1}}}
				}
				return cl.MutateRow(ctx, tableName, &row.Entry{Key: key, Mutations: muts})
			})
		}
		for range 100 {
			write()
		}
		view := viewstest.Groups(simView, source)
		view.Families = []string{viewstest.Family} // the other one is dropped
		if _, err := cl.CreateView(ctx, view, nil); err != nil {
			t.Fatal(err)
		}
		for round := range 6 {
			// What is kept says rows alone while clients have no stream.
			_ = within(ctx, func(ctx context.Context) error {
				_, err := cl.UpdateTable(ctx, tableName, func(t *schema.Table) error {
					switch t.DisableStream(); round % 3 {
					case 1:
						t.EnableStream(time.Hour, time.Now())
					case 2:
						delete(t.Families, viewstest.Sums)
						t.AddFamily(schema.Family{Name: viewstest.Sums, Aggregate: schema.Sum})
					}
					return nil
				})
				return err
			})
			var operating sync.WaitGroup
			operating.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(round)))
				var rows []*metadata.Row
				_ = cl.Rows(ctx, func(r *metadata.Row) error {
					if r.Table>>32 != 0 {
						rows = append(rows, r)
					}
					return nil
				})
				for range 4 {
					if len(rows) == 0 {
						return
					}
					r := rows[rnd.IntN(len(rows))]
					switch rnd.IntN(3) {
					case 0:
						_ = within(ctx, func(ctx context.Context) error {
							return cl.Split(ctx, r, fmt.Appendf(nil, "%c%d", "rg"[rnd.IntN(2)], rnd.IntN(10)))
						})
					case 1:
						_ = within(ctx, func(ctx context.Context) error { return cl.Merge(ctx, r) })
					case 2:
						_ = within(ctx, func(ctx context.Context) error {
							return cl.Move(ctx, r, fmt.Sprintf("server-%d", rnd.IntN(3)), false)
						})
					}
				}
			})
			for range 60 {
				write()
				time.Sleep(time.Duration(rnd.IntN(30)) * time.Millisecond)
			}
			operating.Wait()
			if round%2 == 1 {
				name := fmt.Sprintf("server-%d", rnd.IntN(3))
				c.KillServer(name)
				for range 20 {
					write()
				}
				if _, err := c.StartServer(ctx, name); err != nil {
					t.Fatal(err)
				}
			}
		}
		stop.Store(0)
		wait, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		if err := cl.WaitView(wait, simView); err != nil {
			st, serr := cl.ViewStatus(ctx, simView)
			t.Fatalf("wait: %v; %+v, %v", err, st, serr)
		}
		diff = viewstest.Check(ctx, cl, simView, tableName)
	})
	return diff
}

// TestViewStorm: a view is its query's result after a storm.
func TestViewStorm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	if err := stormView(t, seed, views.NoMistake); err != nil {
		t.Error(err)
	}
}

// TestViewStormFinds: a mistake of the workers is found.
func TestViewStormFinds(t *testing.T) {
	for _, m := range []views.Mistake{views.LosesOutbox, views.SplitLosesOutbox, views.SplitBeginsAnew, views.MergeLosesShard, views.PositionTooEarly} {
		t.Run(string(m), func(t *testing.T) {
			for try := range uint64(40) {
				if err := stormView(t, 1+try, m); err != nil {
					t.Logf("at try %d: %v", try, err)
					return
				}
			}
			t.Error("it was not found")
		})
	}
}

// TestViewLosesRows: what a damaged SSTable of the source held leaves the view when it is
// dropped, though another server has the source, and clients have a stream. Nothing but the
// worker's request says that server that a view reads.
func TestViewLosesRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c, err := New(Options{TTL: 2 * time.Second, Interval: 100 * time.Millisecond, Log: logger(), Views: func(c *client.Client) views.Options {
			return views.Options{Evaluators: viewstest.Evaluators{Reader: c}, Linger: time.Millisecond}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { c.Close(); time.Sleep(time.Minute) }()
		c.StartMaster("master")
		for _, name := range []string{"source", "view"} {
			if _, err := c.StartServer(ctx, name); err != nil {
				t.Fatal(err)
			}
		}
		cl, err := c.Client(ctx, "client")
		if err != nil {
			t.Fatal(err)
		}
		source, err := cl.CreateTable(ctx, &schema.Table{Name: tableName, Granularity: 1000, Families: viewstest.Families()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cl.CreateView(ctx, viewstest.Groups(simView, source), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := cl.UpdateTable(ctx, tableName, func(t *schema.Table) error {
			t.EnableStream(time.Hour, time.Now())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		var object string
		each := func(do func(r *metadata.Row) error) {
			t.Helper()
			var rows []*metadata.Row
			if err := cl.Rows(ctx, func(r *metadata.Row) error {
				if r.Table>>32 != 0 {
					rows = append(rows, r)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				if err := do(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		each(func(r *metadata.Row) error {
			to := "view"
			if r.Table == source.ID {
				to = "source"
			}
			if r.Assignment.Server == to {
				return nil
			}
			return within(ctx, func(ctx context.Context) error { return cl.Move(ctx, r, to, false) })
		})
		check := func() {
			t.Helper()
			if err := within(ctx, func(ctx context.Context) error { return cl.WaitView(ctx, simView) }); err != nil {
				t.Fatal(err)
			}
			if err := viewstest.Check(ctx, cl, simView, tableName); err != nil {
				t.Error(err)
			}
		}
		for i := range 100 {
			if err := cl.MutateRow(ctx, tableName, &row.Entry{Key: fmt.Appendf(nil, "r%02d", i), Mutations: []row.Mutation{
				{Op: row.SetCell, Family: viewstest.Family, Qualifier: viewstest.Group, Timestamp: 1000, Value: fmt.Appendf(nil, "g%d", i)}}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := cl.FlushTablets(ctx, tableName, row.All); err != nil {
			t.Fatal(err)
		}
		check()
		each(func(r *metadata.Row) error {
			if r.Table == source.ID {
				object = r.Files[0].Object
			}
			return nil
		})
		c.damage(t, object)
		if loss, err := cl.DropDamaged(ctx, tableName, object); err != nil || loss.Entries != 100 {
			t.Fatalf("%+v, %v", loss, err)
		}
		check()
	})
}
