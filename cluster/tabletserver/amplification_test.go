package tabletserver_test

import (
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// BenchmarkAmplification loads rows of 1,000 bytes, in flushes of 4 MiB, and
// reports what flushes and compactions wrote for each byte flushed, and how many
// runs a read had to look into.
func BenchmarkAmplification(b *testing.B) {
	const rows = 128_000
	r := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		name string
		key  func(i int) int
	}{
		{"random", func(int) int { return r.IntN(1e9) }},
		{"ascending", func(i int) int { return i }},
		{"updates", func(int) int { return r.IntN(16_000) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				o := Options{}
				o.Tablet.MemtableBytes = 4 << 20
				s, _ := benchStore(b, o)
				sch := newSchema("load", 1000, "cf")
				f := sch.Families["cf"]
				f.GC = &schema.GCRule{MaxVersions: 1}
				sch.Families["cf"] = f
				table := mustCreate(b, s, sch)
				tt := s.tabletsOf(table)[0]
				pool, runs, most, looks := values(), 0, 0, 0
				for i := 0; i < rows; i += 100 {
					entries := make([]row.Entry, 100)
					for k := range entries {
						at := r.IntN(len(pool) - 1000)
						entries[k] = row.Entry{Key: benchKey(nil, c.key(i+k)), Mutations: []row.Mutation{setCell("cf", "field0", int64(i+k)*1000, string(pool[at:at+1000]))}}
					}
					if err := s.MutateRows(ctx, table, entries, func(int, error) {}); err != nil {
						b.Fatal(err)
					}
					n := tt.Runs()
					runs, most, looks = runs+n, max(most, n), looks+1
				}
				st := s.Stats()
				b.ReportMetric(float64(st.FlushBytes+st.CompactionOut)/float64(st.FlushBytes), "write-amplification")
				b.ReportMetric(float64(st.Flushes), "flushes")
				b.ReportMetric(float64(runs)/float64(looks), "mean-runs")
				b.ReportMetric(float64(most), "most-runs")
				b.ReportMetric(st.Stalled.Seconds(), "stalled-s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
