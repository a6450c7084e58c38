package history

import (
	"context"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/conformance/target"
)

// TestLoad: a server that nobody disturbs gives no cause for complaint, and each
// thing that should not be is found: somebody else changes what is the load's.
func TestLoad(t *testing.T) {
	addr := target.Addr(t)
	load := func(suffix string) (*Load, *cluster) {
		l, err := StartLoad(t.Context(), LoadOptions{Addrs: []string{addr, addr}, Suffix: "-load" + suffix + strings.ReplaceAll(strings.ReplaceAll(time.Now().Format("150405.000000"), ".", "-"), ":", ""), Seed: *seed, Pause: time.Millisecond, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		c, err := dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.close() })
		return l, c
	}
	all := func(l *Load, c *cluster, workload int) (rows []bigtable.Row) {
		for limit := time.Now().Add(time.Minute); len(rows) == 0 && time.Now().Before(limit); {
			if err := c.data.Open(l.table(workload)).ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
				rows = append(rows, r)
				return true
			}); err != nil {
				t.Fatal(err)
			}
		}
		return rows
	}
	apply := func(l *Load, c *cluster, workload int, key string, change func(*bigtable.Mutation)) {
		m := bigtable.NewMutation()
		change(m)
		if err := c.data.Open(l.table(workload)).Apply(t.Context(), key, m); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		do   func(*Load, *cluster)
		want string
	}{
		"nothing": {func(*Load, *cluster) { time.Sleep(*duration / 4) }, ""},
		"rows": {func(l *Load, c *cluster) {
			// Rows in use may be deleted before anybody looks; those that had their turn
			// are read once more.
			for l.mu.Lock(); len(l.ops) < 3*perRow*hotRows; l.mu.Lock() {
				l.mu.Unlock()
				time.Sleep(10 * time.Millisecond)
			}
			l.mu.Unlock()
			for _, row := range all(l, c, workRows) {
				apply(l, c, workRows, row.Key(), func(m *bigtable.Mutation) { m.Set("f", "v", 1000, []byte("planted")) })
			}
		}, "is not linearizable"},
		"bank": {func(l *Load, c *cluster) {
			apply(l, c, workBank, l.banks[0].row, func(m *bigtable.Mutation) {
				m.Set("f", "0", bigtable.Now()+1e6, []byte("\x00\x00\x00\x00\x00\x00\x00\x01"))
			})
		}, "sum to"},
		"moves": {func(l *Load, c *cluster) {
			b := l.banks[0] // of which there is something to lose
			for b.mu.Lock(); b.acked == 0; b.mu.Lock() {
				b.mu.Unlock()
				time.Sleep(time.Millisecond)
			}
			b.mu.Unlock()
			apply(l, c, workBank, l.banks[0].row, func(m *bigtable.Mutation) { m.DeleteRow() })
		}, "were acknowledged before"},
		"lost node": {func(l *Load, c *cluster) {
			key := all(l, c, workList)[0].Key()
			apply(l, c, workList, key, func(m *bigtable.Mutation) { m.DeleteRow() })
		}, "was acknowledged and is lost"},
		"torn node": {func(l *Load, c *cluster) {
			key := all(l, c, workList)[0].Key()
			apply(l, c, workList, key, func(m *bigtable.Mutation) { m.Set("f", "other", 0, nil) })
		}, "has 2 cells"},
		"scan": {func(l *Load, c *cluster) {
			key := all(l, c, workScan)[0].Key()
			apply(l, c, workScan, key, func(m *bigtable.Mutation) { m.DeleteCellsInColumn("g", "v") })
		}, "has hash"},
	} {
		t.Run(name, func(t *testing.T) {
			l, c := load("-" + strings.ReplaceAll(name, " ", "-"))
			progress := func() {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := l.Progress(ctx); err != nil {
					t.Fatal(err)
				}
			}
			progress()
			tc.do(l, c)
			progress()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r, err := l.Stop(ctx)
			if err != nil {
				t.Fatal(err)
			}
			found := strings.Join(r.Violations, "\n")
			if !strings.Contains(found, tc.want) || tc.want == "" && found != "" {
				t.Errorf("found %q, want %q", found, tc.want)
			}
			if r.Acked == 0 || r.Reads == 0 || r.Scans == 0 || r.Judged == 0 || r.Failed > 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}
