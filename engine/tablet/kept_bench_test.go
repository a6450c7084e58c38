package tablet

import (
	"fmt"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/schema"
)

// BenchmarkKept flushes rows of three cells: of a table without a stream, whose changes are kept
// for views, and for clients. Some have overwritten others of the same memtable, which are
// collected. The time is the processor's.
func BenchmarkKept(b *testing.B) {
	for _, c := range []struct {
		name   string
		stream func(*schema.Stream) *schema.Stream
	}{
		{"nobody", func(*schema.Stream) *schema.Stream { return nil }},
		{"views", func(s *schema.Stream) *schema.Stream {
			return &schema.Stream{Life: s.Life, Hidden: true, Retention: s.Retention, Since: s.Since}
		}},
		{"clients", func(s *schema.Stream) *schema.Stream { return s }},
	} {
		for _, versions := range []int{1, 2} {
			b.Run(fmt.Sprint(c.name, "/versions", versions), func(b *testing.B) {
				const rows = 50_000
				var spent time.Duration
				for range b.N {
					s, _ := oneVersion(b)
					s.stream(c.stream(s.sch.Load().Stream))
					for v := range versions {
						for i := 0; i < rows; i += 100 {
							batch := NewBatch(fmt.Appendf(nil, "%08d", i))
							for k := range 100 {
								if k > 0 {
									batch.Row(fmt.Appendf(nil, "%08d", i+k))
								}
								for _, q := range []string{"group", "rest", "value"} {
									batch.Set(1, []byte(q), int64(1000+1000*v), fmt.Appendf(nil, "%032d", i*k))
								}
							}
							s.apply(batch)
						}
					}
					before := cputime.Used()
					s.flush()
					spent += cputime.Used() - before
					s.Tablet.Close()
				}
				b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N*rows*versions), "cpu-ns/row")
			})
		}
	}
}
