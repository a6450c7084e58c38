package stream

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/chunk"
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
				before := cputime.Used()
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
				b.ReportMetric(float64((cputime.Used()-before).Microseconds())/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

// BenchmarkScan measures a scan of 1,000 rows of 1 KB that another server has,
// from the rows to the messages for the client: both servers together.
func BenchmarkScan(b *testing.B) {
	value := make([]byte, 1<<10)
	f := &fake{read: func(_ context.Context, _ rpc.Target, _ *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
		key := []byte("row-0000000000")
		c := row.Cell{Family: "f", Qualifier: []byte("q"), Timestamp: 1, Value: value}
		for i := range 1000 {
			for n, at := i, len(key)-1; n > 0; n, at = n/10, at-1 {
				key[at] = byte('0' + n%10)
			}
			w.StartRow(key)
			w.Cell(&c)
			full, err := w.EndRow()
			if err == nil && full {
				err = w.Flush()
			}
			if err != nil {
				return nil, scan.Stats{}, err
			}
		}
		return nil, scan.Stats{RowsSeen: 1000, RowsReturned: 1000}, nil
	}}
	for _, parallel := range []int{1, 16} {
		b.Run(strconv.Itoa(parallel), func(b *testing.B) {
			_, s, _ := serve(b, f, Options{}, ServerOptions{Encoders: encoders})
			one := func() {
				w := chunk.NewWriter(chunk.Options{Send: func(m mem.BufferSlice) error { m.Free(); return nil }})
				defer w.Close()
				_, _, err := s.ReadRows(b.Context(), rpc.Target{}, &rpc.Read{Ranges: []row.Range{row.All}}, w)
				if err == nil {
					err = w.Finish(nil)
				}
				if err == nil && w.RowsReturned() != 1000 {
					err = fmt.Errorf("%d rows", w.RowsReturned())
				}
				if err != nil {
					b.Error(err)
				}
			}
			one()
			b.SetParallelism(max(parallel/2, 1))
			b.ReportAllocs()
			b.ResetTimer()
			before := cputime.Used()
			if parallel == 1 {
				for range b.N {
					one()
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						one()
					}
				})
			}
			b.ReportMetric(float64((cputime.Used()-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// encoders are those of a tablet server.
func encoders(encoding uint64, pass func(*scan.Piece, mem.BufferSlice) error) Encoder {
	if encoding != chunk.Encoding {
		return nil
	}
	return chunk.NewWriter(chunk.Options{Piece: pass})
}

type discard struct{}

func (discard) StartRow([]byte)       {}
func (discard) Cell(*row.Cell)        {}
func (discard) EndRow() (bool, error) { return false, nil }
func (discard) Scanned([]byte)        {}
func (discard) Flush() error          { return nil }
