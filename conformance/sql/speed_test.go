package sql

import (
	"context"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/conformance/views"
	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway"
)

// BenchmarkAggregates asks for aggregates of 1,000,000 rows of 100 bytes on one processor,
// in turns with the engine's own scans: those reads that the query makes, with a writer that
// only counts. The figures are processor time of the whole process, so the gateway's and the
// client's are in those of SQL, and medians of all turns. "all" is the scan without a filter.
func BenchmarkAggregates(b *testing.B) {
	const n = 1_000_000
	store, err := standalone.Open(b.Context(), standalone.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := store.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	reads := &readsOf{Server: store}
	front, err := gateway.New(reads, gateway.Options{Emulator: true})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		if err := front.Serve(l); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() {
		_ = front.Stop(context.Background())
		served.Wait()
	})
	client, admin := dial(b, l.Addr().String())
	load(b, client, admin, n, 1)
	if err := store.CompactTablets(b.Context(), "projects/p/instances/i/tables/t", row.All, func(int64, int64) {}); err != nil {
		b.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))

	for i, q := range aggregates(n) {
		b.Run([]string{"count", "group"}[i], func(b *testing.B) {
			ask := func() {
				reads.list = nil
				if err := views.Rows(b.Context(), client, q, func(string) {}); err != nil {
					b.Fatal(err)
				}
			}
			ask()
			same := reads.list
			all := []*scan.Request{{Table: same[0].Table, Ranges: []row.Range{row.All}}}
			engine := func(list []*scan.Request) {
				var w counter
				for _, r := range list {
					if _, err := store.ReadRows(b.Context(), r, &w); err != nil {
						b.Fatal(err)
					}
				}
				if w.rows != n {
					b.Fatalf("%d rows of %d", w.rows, n)
				}
			}
			turns := []func(){ask, func() { engine(same) }, func() { engine(all) }}
			took := make([][]float64, len(turns))
			for b.Loop() {
				for i, turn := range turns {
					before := cputime.Used()
					turn()
					took[i] = append(took[i], float64(cputime.Used()-before)/n)
				}
			}
			for _, t := range took {
				slices.Sort(t)
			}
			sql, own, whole := took[0][len(took[0])/2], took[1][len(took[1])/2], took[2][len(took[2])/2]
			b.ReportMetric(sql, "sql-ns/row")
			b.ReportMetric(own, "engine-ns/row")
			b.ReportMetric(whole, "all-ns/row")
			b.ReportMetric(min(own, whole)/sql, "of-engine")
		})
	}
}

// readsOf notes what is read.
type readsOf struct {
	*standalone.Server
	mu   sync.Mutex
	list []*scan.Request
}

func (r *readsOf) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	r.mu.Lock()
	r.list = append(r.list, req)
	r.mu.Unlock()
	return r.Server.ReadRows(ctx, req, w)
}

// counter is a scan.Writer that only counts.
type counter struct{ rows, cells, bytes int }

func (c *counter) StartRow(key []byte) { c.bytes += len(key) }
func (c *counter) Cell(cell *row.Cell) {
	c.cells++
	c.bytes += len(cell.Value)
}
func (c *counter) EndRow() (bool, error) {
	c.rows++
	return false, nil
}
func (c *counter) Scanned([]byte) {}
func (c *counter) Flush() error   { return nil }

// dial returns clients of the server at addr.
func dial(tb testing.TB, addr string) (*bigtable.Client, *bigtable.AdminClient) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	client, err := bigtable.NewClientWithConfig(tb.Context(), "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		tb.Fatal(err)
	}
	admin, err := bigtable.NewAdminClient(tb.Context(), "p", "i", option.WithGRPCConn(conn))
	if err != nil {
		tb.Fatal(err)
	}
	return client, admin
}
