package exec

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

const benchRows = 1 << 20

// benchTable returns rows of k INT64 (1000 values), v INT64, s STRING (1000 values) as
// batches.
func benchTable() *batchRel {
	r := rand.New(rand.NewPCG(1, 2))
	b := &batchRel{cols: []algebra.Column{{Type: types.Int64Type}, {Type: types.Int64Type}, {Type: types.StringType}}}
	for range benchRows / types.BatchRows {
		batch := &types.Batch{Len: types.BatchRows, Cols: newVectors([]*types.Type{types.Int64Type, types.Int64Type, types.StringType})}
		for _, v := range batch.Cols {
			v.Resize(types.BatchRows)
		}
		for i := range types.BatchRows {
			k := r.Int64N(1000)
			batch.Cols[0].Ints[i] = k
			batch.Cols[1].Ints[i] = r.Int64N(1 << 20)
			batch.Cols[2].Strs[i] = fmt.Sprintf("user%04d", k)
		}
		b.batches = append(b.batches, batch)
	}
	return b
}

// replaceScans puts b in the place of scans of t.
func replaceScans(r algebra.Rel, b *batchRel) algebra.Rel {
	switch r := r.(type) {
	case *algebra.Scan:
		// The columns that are used, with the numbers that the statement gave them.
		out := &batchRel{}
		for _, u := range r.Uses {
			out.cols = append(out.cols, u.Column)
		}
		for _, from := range b.batches {
			to := &types.Batch{Len: from.Len}
			for _, u := range r.Uses {
				to.Cols = append(to.Cols, from.Cols[u.Index])
			}
			out.batches = append(out.batches, to)
		}
		return out
	case *algebra.Filter:
		r.Input = replaceScans(r.Input, b)
	case *algebra.Project:
		r.Input = replaceScans(r.Input, b)
	case *algebra.Keep:
		r.Input = replaceScans(r.Input, b)
	case *algebra.Aggregate:
		r.Input = replaceScans(r.Input, b)
	case *algebra.Sort:
		r.Input = replaceScans(r.Input, b)
	case *algebra.Limit:
		r.Input = replaceScans(r.Input, b)
	case *algebra.Window:
		r.Input = replaceScans(r.Input, b)
	case *algebra.Join:
		r.Left, r.Right = replaceScans(r.Left, b), replaceScans(r.Right, b)
	}
	return r
}

func BenchmarkQuery(b *testing.B) {
	c := tables{}
	c.add("t", nil, algebra.TableColumn{Name: "k", Type: types.Int64Type}, algebra.TableColumn{Name: "v", Type: types.Int64Type},
		algebra.TableColumn{Name: "s", Type: types.StringType})
	table := benchTable()
	for _, q := range []struct{ name, sql string }{
		{"filter+count", "SELECT COUNT(*) FROM t WHERE v < 500000"},
		{"filter2+count", "SELECT COUNT(*) FROM t WHERE v < 500000 AND k > 10"},
		{"sum", "SELECT SUM(v) FROM t"},
		{"group int", "SELECT k, SUM(v) FROM t GROUP BY k"},
		{"group int many", "SELECT v, COUNT(*) FROM t GROUP BY v"},
		{"group string", "SELECT s, SUM(v), COUNT(*) FROM t GROUP BY s"},
		{"group two", "SELECT s, k, SUM(v) FROM t GROUP BY s, k"},
		{"distinct", "SELECT COUNT(DISTINCT v) FROM t"},
		{"arithmetic", "SELECT SUM(v * 2 + k) FROM t WHERE v + k > 100"},
		{"top 10", "SELECT k, v FROM t ORDER BY v DESC LIMIT 10"},
		{"sort", "SELECT k, v FROM t ORDER BY v"},
		{"join", "SELECT COUNT(*) FROM t a JOIN (SELECT DISTINCT k FROM t) b ON a.k = b.k"},
		{"window", "SELECT SUM(r) FROM (SELECT ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS r FROM t)"},
	} {
		b.Run(q.name, func(b *testing.B) {
			stmt := prepare(b, c, q.sql, false)
			rel := replaceScans(stmt.Query, table)
			pool := NewPool(Limits{Query: 1 << 30, Dir: b.TempDir()})
			b.ResetTimer()
			for range b.N {
				r, err := Query(b.Context(), Config{Pool: pool}, rel, stmt.Columns)
				if err != nil {
					b.Fatal(err)
				}
				for {
					_, err := r.Next(b.Context())
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				r.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchRows, "ns/row")
		})
	}
}

// BenchmarkStart is what it costs to begin and end a query that reads one row.
func BenchmarkStart(b *testing.B) {
	c := tables{}
	c.add("t", values([]modelRow{{1, "x"}}), algebra.TableColumn{Name: "i", Type: types.Int64Type}, algebra.TableColumn{Name: "s", Type: types.StringType})
	stmt := prepare(b, c, "SELECT i, CONCAT(s, 'y') FROM t WHERE i = 1", false)
	pool := NewPool(Limits{})
	b.ReportAllocs()
	for range b.N {
		r, err := Query(b.Context(), Config{Pool: pool}, stmt.Query, stmt.Columns)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = r.Next(b.Context())
		}
		if !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
		r.Close()
	}
}

// BenchmarkSortSpilled sorts rows of 120 bytes by 100 of them, 25 times the memory there is.
func BenchmarkSortSpilled(b *testing.B) {
	const n, memory = 1 << 20, 8 << 20
	c := tables{}
	c.add("t", nil, algebra.TableColumn{Name: "k", Type: types.BytesType}, algebra.TableColumn{Name: "v", Type: types.BytesType})
	stmt := prepare(b, c, "SELECT k FROM t ORDER BY v", false)
	table, r := &batchRel{}, rand.New(rand.NewPCG(1, 1))
	for range n / types.BatchRows {
		batch := &types.Batch{Len: types.BatchRows, Cols: []*types.Vector{types.NewVector(types.BytesType, types.BatchRows), types.NewVector(types.BytesType, types.BatchRows)}}
		for i := range types.BatchRows {
			key, value := make([]byte, 20), make([]byte, 100)
			for k := range key {
				key[k] = byte(r.Uint32())
			}
			for k := range value {
				value[k] = byte(r.Uint32())
			}
			batch.Cols[0].Strs[i], batch.Cols[1].Strs[i] = string(key), string(value)
		}
		table.batches = append(table.batches, batch)
	}
	rel := replaceScans(stmt.Query, table)
	pool := NewPool(Limits{Query: memory, Dir: b.TempDir()})
	b.ResetTimer()
	for range b.N {
		r, err := Query(b.Context(), Config{Pool: pool}, rel, stmt.Columns)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = r.Next(b.Context())
		}
		if !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
		r.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/row")
}
