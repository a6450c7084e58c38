package materialize_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/materialize"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

type oneTable struct{ t *algebra.Table }

func (c oneTable) Table(context.Context, string) (*algebra.Table, error) { return c.t, nil }
func (c oneTable) Tables(context.Context) ([]string, error)              { return nil, nil }
func (c oneTable) Type(context.Context, []string) (*types.Type, error)   { return nil, nil }
func processor() (user, system int64) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, 0
	}
	return u.Utime.Nano(), u.Stime.Nano()
}

// BenchmarkEvaluate evaluates rows of a store of one process: 1,000 random ones of
// 100,000 at a time, and all of them. cpu-ns/row is processor time of all goroutines,
// with that of the deltas.
func BenchmarkEvaluate(b *testing.B) {
	const rows = 100_000
	store, err := standalone.Open(b.Context(), standalone.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close(context.Background())
	s := &schema.Table{Name: "projects/p/instances/i/tables/t", Granularity: 1, Families: map[string]schema.Family{}}
	s.AddFamily(schema.Family{Name: "f"})
	if s, err = store.CreateTable(b.Context(), s, nil); err != nil {
		b.Fatal(err)
	}
	for at := 0; at < rows; at += 5000 {
		var entries []row.Entry
		for i := at; i < at+5000; i++ {
			cell := func(q, v string) row.Mutation {
				return row.Mutation{Op: row.SetCell, Family: "f", Qualifier: []byte(q), Timestamp: 1000, Value: []byte(v)}
			}
			entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "row%08d", i), Mutations: []row.Mutation{
				cell("category", fmt.Sprint("c", i%30)), cell("name", fmt.Sprintf("name of row %d", i)), cell("n", fmt.Sprint(i))}})
		}
		if err := store.MutateRows(b.Context(), s.Name, entries, func(_ int, err error) {
			if err != nil {
				b.Error(err)
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	c := oneTable{&algebra.Table{Name: "t", FullName: s.Name, Schema: s, Columns: []algebra.TableColumn{
		{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn},
		{Name: "f", Type: types.MapOf(types.BytesType, types.BytesType), Kind: algebra.FamilyColumn, Family: "f"}}}}
	ev := materialize.New(materialize.Options{Source: store, Catalog: func(context.Context, *schema.View) (algebra.Catalog, error) { return c, nil }})
	for _, q := range []struct{ name, text string }{
		{"groups", "SELECT f['category'] AS c, COUNT(*) AS n, SUM(CAST(CAST(f['n'] AS STRING) AS INT64)) AS s FROM t GROUP BY c"},
		{"index", "SELECT f['name'] AS name, _key, f['category'] AS c FROM t ORDER BY name, _key"},
		{"distinct", "SELECT f['category'] AS c, HLL_COUNT.INIT(f['name']) AS n FROM t GROUP BY c"},
	} {
		v, err := materialize.Compile(b.Context(), c, q.text)
		if err != nil {
			b.Fatal(err)
		}
		e, err := ev.Evaluator(b.Context(), v.Definition)
		if err != nil {
			b.Fatal(err)
		}
		measure := func(b *testing.B, run func(emit func(*matview.Row) error) error) {
			d := matview.NewDeltas(v.Definition)
			n := 0
			u, s := processor()
			for b.Loop() {
				d.Reset()
				if err := run(func(r *matview.Row) error {
					n++
					if d.Size() > 4<<20 {
						d.Reset()
					}
					return d.Change(r.Key, nil, r.Contribution)
				}); err != nil {
					b.Fatal(err)
				}
			}
			u2, s2 := processor()
			b.ReportMetric(float64(u2+s2-u-s)/float64(n), "cpu-ns/row")
		}
		b.Run(q.name+"/keys", func(b *testing.B) {
			rnd := rand.New(rand.NewPCG(1, 1))
			measure(b, func(emit func(*matview.Row) error) error {
				var keys [][]byte
				for range 1000 {
					keys = append(keys, fmt.Appendf(nil, "row%08d", rnd.IntN(rows)))
				}
				slices.SortFunc(keys, slices.Compare)
				keys = slices.CompactFunc(keys, slices.Equal)
				return e.Keys(b.Context(), keys, emit)
			})
		})
		b.Run(q.name+"/range", func(b *testing.B) {
			measure(b, func(emit func(*matview.Row) error) error { return e.Range(b.Context(), row.All, emit) })
		})
	}
}
