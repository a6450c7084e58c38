package changes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

// discard is a file of which nothing is kept.
type discard struct{}

func (discard) Write([]byte) error { return nil }
func (discard) Finish() error      { return nil }
func (discard) Abort()             {}

func benchRecords(size int) []Record {
	r := rand.New(rand.NewPCG(1, 1))
	recs := make([]Record, 64<<20/size/16)
	for i := range recs {
		v := make([]byte, size)
		for j := range v {
			v[j] = byte(r.Uint32())
		}
		recs[i] = Record{Stamp: stamp.Least + cell.Seq(i)*stamp.Stride, Key: fmt.Appendf(nil, "user%016x", r.Uint64()),
			Changes: []Change{{Op: SetCell, Family: 1, Qualifier: []byte("q"), Timestamp: 1_700_000_000_000_000, Value: v}}}
	}
	return recs
}

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			recs := benchRecords(size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			w := NewFileWriter(discard{})
			n := 0
			for b.Loop() {
				if n == len(recs) {
					_, _ = w.Finish()
					w, n = NewFileWriter(discard{}), 0
				}
				if err := w.Add(&recs[n]); err != nil {
					b.Fatal(err)
				}
				n++
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := []Source{write(b, benchRecords(size)).source(b)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			n, want := 0, b.N
			b.ResetTimer()
			for n < want {
				if _, err := Iterate(context.Background(), s, Position{}, cell.MaxSeq, row.Range{}, func(*Record) (bool, error) { n++; return n < want, nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
