package stream

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// BenchmarkForward measures one call to another server: the processor time of
// both sides together, in one process, so cpu-µs/op is what a hop costs in all.
func BenchmarkForward(b *testing.B) {
	value := make([]byte, 1<<10)
	key := []byte("row-0000000000")
	f := &fake{read: func(_ context.Context, _ rpc.Target, _ *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
		w.StartRow(key)
		w.Cell(&row.Cell{Family: "f", Qualifier: []byte("q"), Timestamp: 1, Value: value})
		_, err := w.EndRow()
		return nil, scan.Stats{RowsSeen: 1, RowsReturned: 1}, err
	}}
	entry := &row.Entry{Key: key, Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1, Value: value}}}
	read := &rpc.Read{Ranges: []row.Range{row.Single(key)}}
	calls := map[string]func(context.Context, rpc.TabletServer) error{
		"MutateRow": func(ctx context.Context, s rpc.TabletServer) error { return s.MutateRow(ctx, rpc.Target{}, entry) },
		"ReadRow": func(ctx context.Context, s rpc.TabletServer) error {
			_, _, err := s.ReadRows(ctx, rpc.Target{}, read, discard{})
			return err
		},
	}
	for _, name := range []string{"MutateRow", "ReadRow"} {
		for _, parallel := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("%s/%d", name, parallel), func(b *testing.B) {
				_, s, _ := serve(b, f, Options{}, ServerOptions{})
				if err := calls[name](b.Context(), s); err != nil {
					b.Fatal(err)
				}
				b.SetParallelism(parallel / 2)
				b.ReportAllocs()
				b.ResetTimer()
				before := cpu()
				run := func(pb *testing.PB) {
					for pb.Next() {
						if err := calls[name](b.Context(), s); err != nil {
							b.Error(err)
							return
						}
					}
				}
				if parallel == 1 {
					for range b.N {
						if err := calls[name](b.Context(), s); err != nil {
							b.Fatal(err)
						}
					}
				} else {
					b.RunParallel(run)
				}
				b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

func cpu() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return u.Utime.Sec*1e6 + u.Utime.Usec + u.Stime.Sec*1e6 + u.Stime.Usec
}

type discard struct{}

func (discard) StartRow([]byte)       {}
func (discard) Cell(*row.Cell)        {}
func (discard) EndRow() (bool, error) { return false, nil }
func (discard) Scanned([]byte)        {}
func (discard) Flush() error          { return nil }
