package tabletserver_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// The paper's Webtable: a row per page with its contents, the anchors that point
// to it, and its language (§2).
const (
	webPages    = 10_000
	webContents = 8 << 10
)

func fillWebtable(b *testing.B, s *Store, table string) {
	b.Helper()
	pool := values()
	const batch = 100
	for i := 0; i < webPages; i += batch {
		var entries []row.Entry
		for k := i; k < i+batch; k++ {
			at := k * 997 % (len(pool) - webContents)
			e := row.Entry{Key: fmt.Appendf(nil, "com.example.%05d/index.html", k)}
			cell := func(family, qualifier string, value []byte) {
				e.Mutations = append(e.Mutations, row.Mutation{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: 1_700_000_000_000_000, Value: value})
			}
			cell("contents", "", pool[at:at+webContents])
			for n := range 3 {
				cell("anchor", fmt.Sprintf("org.example.%05d", (k*7+n)%webPages), pool[at+n*20:at+n*20+20])
			}
			cell("language", "", []byte("EN"))
			entries = append(entries, e)
		}
		if err := s.MutateRows(ctx, table, entries, func(_ int, err error) {
			if err != nil {
				b.Error(err)
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWebtable reads the language or the anchors of all pages, or all of
// 100 pages, with a block cache that is much smaller than the table. sst-MB/op is
// what that takes of SSTables from storage.
func BenchmarkWebtable(b *testing.B) {
	for _, how := range []string{"one-group", "three-groups", "three-groups-language-in-memory"} {
		b.Run(how, func(b *testing.B) {
			o := Options{Dir: b.TempDir(), CacheBytes: 4 << 20}
			s := mustOpen(b, o)
			defer mustClose(b, s)
			sch := newSchema("web", 1000, "anchor", "contents", "language")
			if how != "one-group" {
				for _, n := range sch.FamilyNames() {
					f := sch.Families[n]
					g := schema.Group{Name: n, InMemory: n == "language" && how != "three-groups"}
					f.Group = sch.PutGroup(g)
					sch.Families[n] = f
				}
			}
			table := mustCreate(b, s, sch)
			fillWebtable(b, s, table)
			if err := s.CompactTablets(ctx, table, row.All, nil); err != nil {
				b.Fatal(err)
			}
			for _, tt := range s.tabletsOf(table) { // loads what is to be in memory
				if _, err := tt.Compact(ctx); err != nil {
					b.Fatal(err)
				}
			}
			read := func(b *testing.B, family string, ranges func(i int) row.Range) {
				rows := 0
				before := s.Stats().ReadBytes
				for i := 0; b.Loop(); i++ {
					req := &scan.Request{Table: table, Ranges: []row.Range{ranges(i)}}
					if family != "" {
						req.Filter = &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(family)}
					}
					var w sinkWriter
					if _, err := s.ReadRows(ctx, req, &w); err != nil {
						b.Fatal(err)
					}
					rows += w.rows
				}
				b.ReportMetric(float64(s.Stats().ReadBytes-before)/float64(b.N)/1e6, "sst-MB/op")
				b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
			}
			all := func(int) row.Range { return row.All }
			b.Run("language", func(b *testing.B) { read(b, "language", all) })
			b.Run("anchor", func(b *testing.B) { read(b, "anchor", all) })
			b.Run("100-whole-rows", func(b *testing.B) {
				read(b, "", func(i int) row.Range {
					at := i * 137 % (webPages - 100)
					return row.Range{Start: fmt.Appendf(nil, "com.example.%05d", at), End: fmt.Appendf(nil, "com.example.%05d", at+100)}
				})
			})
		})
	}
}

// BenchmarkMinor writes memtables of 32,000 rows of 1,000 bytes, and
// BenchmarkMajor rewrites two runs of them, in a file system in memory.
func BenchmarkMinor(b *testing.B) { benchmarkWriting(b, false) }

// BenchmarkMajor: see BenchmarkMinor.
func BenchmarkMajor(b *testing.B) { benchmarkWriting(b, true) }

func benchmarkWriting(b *testing.B, major bool) {
	const n = 32_000
	for b.Loop() {
		b.StopTimer()
		o := Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true, MemtableBytes: 1 << 30}
		o.Tablet.MemtableBytes = 512 << 20
		s := mustOpen(b, o)
		table := mustCreate(b, s, newSchema("t", 1000, "cf"))
		tt := s.tabletsOf(table)[0]
		runs := 1
		if major {
			runs = 2
		}
		for i := range runs {
			fillBench(b, s, table, n)
			if i == runs-1 && !major {
				tt.Rotate()
				b.StartTimer()
			}
			if err := s.flush(ctx, tt); err != nil {
				b.Fatal(err)
			}
		}
		if major {
			tt.RequestMajor()
			b.StartTimer()
			if _, err := tt.Compact(ctx); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		mustClose(b, s)
		b.StartTimer()
		b.SetBytes(int64(runs) * n * 1000)
	}
	b.ReportMetric(0, "ns/op")
}
