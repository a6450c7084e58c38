package standalone

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// BenchmarkTablets lists the tablets of a store that has many.
func BenchmarkTablets(b *testing.B) {
	const many = 20_000
	s, err := Open(b.Context(), Options{Dir: "d", FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close(b.Context()) }()
	splits := make([][]byte, many-1)
	for i := range splits {
		splits[i] = fmt.Appendf(nil, "%06d", i)
	}
	if _, err := s.CreateTable(b.Context(), &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, splits); err != nil {
		b.Fatal(err)
	}
	for served := 0; served < many; time.Sleep(100 * time.Millisecond) {
		if served = len(s.TabletServer().Infos()); b.Context().Err() != nil {
			b.Fatal(served)
		}
	}
	for _, of := range []string{"", table} {
		b.Run("of="+of, func(b *testing.B) {
			n := 0
			for b.Loop() {
				n = 0
				if err := s.EachTablet(b.Context(), of, func(*tablet.Info) error { n++; return nil }); err != nil || n < many {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/tablet")
		})
	}
	b.Run("sum", func(b *testing.B) {
		for b.Loop() {
			if all, err := s.Servers(b.Context()); err != nil || all[0].Sum == nil || all[0].Sum.Tablets < many {
				b.Fatal(all, err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*many), "ns/tablet")
	})
}
