package tabletserver_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// A graveyard is how a huge range comes to hold nothing.
type graveyard struct {
	name string
	rule *schema.GCRule
	// row and qualifier are those of the nth cell.
	at func(n int) (key, qualifier string)
	// bury removes the n cells.
	bury func(s *Store, table string, n int) error
}

var graveyards = []graveyard{
	{name: "rows", at: func(n int) (string, string) { return fmt.Sprintf("dead%07d", n), "q" },
		bury: func(s *Store, table string, n int) error {
			return buryRows(s, table, n, func(i int) *row.Entry {
				return &row.Entry{Key: fmt.Appendf(nil, "dead%07d", i), Mutations: []row.Mutation{{Op: row.DeleteRow}}}
			})
		}},
	{name: "cells of one row", at: func(n int) (string, string) { return "dead", fmt.Sprintf("q%07d", n) },
		bury: func(s *Store, table string, n int) error {
			return buryRows(s, table, n, func(i int) *row.Entry {
				return &row.Entry{Key: []byte("dead"), Mutations: []row.Mutation{{Op: row.DeleteColumn, Family: "f",
					Qualifier: fmt.Appendf(nil, "q%07d", i), Times: cell.AllTime}}}
			})
		}},
	{name: "dropped range", at: func(n int) (string, string) { return fmt.Sprintf("dead%07d", n), "q" },
		bury: func(s *Store, table string, _ int) error { return s.DropRowRange(ctx, table, []byte("dead")) }},
	{name: "expired", at: func(n int) (string, string) { return fmt.Sprintf("dead%07d", n), "q" },
		rule: &schema.GCRule{MaxAge: time.Hour}, bury: func(*Store, string, int) error { return nil }},
}

// buryRows applies n changes.
func buryRows(s *Store, table string, n int, make func(i int) *row.Entry) error {
	for i := 0; i < n; i += 1000 {
		var es []row.Entry
		for k := i; k < min(i+1000, n); k++ {
			es = append(es, *make(k))
		}
		var failed error
		if err := s.MutateRows(ctx, table, es, func(_ int, err error) { failed = errors.Join(failed, err) }); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
	}
	return nil
}

// dig makes a table with n cells that are removed in front of a live row, and
// eight times as many behind, so that they are few of its bytes. What a flush can drop is
// flushed before.
func (g *graveyard) dig(t testing.TB, s *Store, n int, now *hand) string {
	sch := newSchema("t", 1000, "f", "g")
	f := sch.Families["f"]
	f.GC = g.rule
	sch.Families["f"] = f
	table := mustCreate(t, s, sch)
	flush := func() {
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	dead := now.Now().UnixMicro() / 1000 * 1000
	if err := buryRows(s, table, n, func(i int) *row.Entry {
		key, q := g.at(i)
		return entry(key, setCell("f", q, dead, "value"))
	}); err != nil {
		t.Fatal(err)
	}
	flush()
	r := rand.New(rand.NewPCG(1, 1))
	const rows = 400
	if err := buryRows(s, table, rows, func(i int) *row.Entry {
		e := &row.Entry{Key: fmt.Appendf(nil, "live%04d", i)}
		for c := range 8 * n / rows {
			e.Mutations = append(e.Mutations, setCell("g", fmt.Sprint(c), 1000, randomValue(r, 30)))
		}
		return e
	}); err != nil {
		t.Fatal(err)
	}
	flush()
	if err := g.bury(s, table, n); err != nil {
		t.Fatal(err)
	}
	flush()
	now.advance(2 * time.Hour)
	return table
}

// firstRow reads the first row of a table, and the bytes of blocks that it takes.
func firstRow(ctx context.Context, s *Store, table string) (got string, blocks int64, err error) {
	sch, err := s.Table(ctx, table)
	if err != nil {
		return "", 0, err
	}
	before := s.env.CacheStats(sch.ID).BlockBytes
	w := new(firstWriter)
	req := &scan.Request{Table: table, Limit: 1, Ranges: []row.Range{row.All}}
	_, err = s.ReadRows(ctx, req, w)
	return w.key, s.env.CacheStats(sch.ID).BlockBytes - before, err
}

// firstWriter keeps the key of the first row.
type firstWriter struct{ key string }

func (w *firstWriter) StartRow(key []byte) {
	if w.key == "" {
		w.key = string(key)
	}
}
func (w *firstWriter) Cell(*row.Cell)        {}
func (w *firstWriter) EndRow() (bool, error) { return false, nil }
func (w *firstWriter) Scanned([]byte)        {}
func (w *firstWriter) Flush() error          { return nil }

// TestScanOverDeleted: a scan that begins with what was deleted, dropped or has
// expired reads a few blocks once background work has had its turn, though what it
// passes is a small part of the table's bytes.
func TestScanOverDeleted(t *testing.T) {
	const n = 12_000
	for _, g := range graveyards {
		t.Run(g.name, func(t *testing.T) {
			now := &hand{now: time.Unix(1_700_000_000, 0)}
			s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true, MemtableBytes: 1 << 30, Now: now.Now})
			defer mustClose(t, s)
			table := g.dig(t, s, n, now)
			tt := s.tabletsOf(table)[0]
			_, before, err := firstRow(ctx, s, table)
			if err != nil {
				t.Fatal(err)
			}
			if err := compactAll(t, tt); err != nil {
				t.Fatal(err)
			}
			got, blocks, err := firstRow(ctx, s, table)
			if err != nil || got != "live0000" {
				t.Errorf("the first row is %q, %v", got, err)
			}
			if limit := int64(64 << 10); blocks > limit {
				t.Errorf("%d bytes of blocks are read, before compactions it was %d; want at most %d", blocks, before, limit)
			}
			t.Logf("%d bytes of blocks, then %d; %d runs", before, blocks, tt.Runs())
			if g.rule == nil && g.name != "dropped range" && before < 64<<10 {
				t.Errorf("%d bytes of blocks are read before compactions: this tests nothing", before)
			}
		})
	}
}

// A patient context is cancelled when it has been asked so often whether it is.
type patient struct {
	context.Context
	asked, limit atomic.Int64
}

func (p *patient) Err() error {
	if p.asked.Add(1) > p.limit.Load() {
		return context.Canceled
	}
	return nil
}

// TestScanOverDeletedEnds: a scan over what is deleted and not yet compacted looks
// every 1,024 cells, and in every row, whether anybody still wants it.
func TestScanOverDeletedEnds(t *testing.T) {
	const n = 20_000
	for _, g := range graveyards[:2] {
		for _, reversed := range []bool{false, true} {
			t.Run(fmt.Sprint(g.name, " reversed ", reversed), func(t *testing.T) {
				now := &hand{now: time.Unix(1_700_000_000, 0)}
				s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true, MemtableBytes: 1 << 30, Now: now.Now})
				defer mustClose(t, s)
				table := g.dig(t, s, n, now)
				req := &scan.Request{Table: table, Ranges: []row.Range{row.Prefix([]byte("dead"))}, Reversed: reversed}
				p := &patient{Context: context.Background()}
				p.limit.Store(1 << 60)
				if _, err := s.ReadRows(p, req, new(firstWriter)); err != nil {
					t.Fatal(err)
				}
				// A tombstone and what it hides, of each cell.
				if asked, want := p.asked.Load(), int64(2*n/1024); asked < want {
					t.Errorf("over %d entries it is asked %d times whether to go on, want %d", 2*n, asked, want)
				}
				half := p.asked.Load() / 2
				p.asked.Store(0)
				p.limit.Store(half)
				if _, err := s.ReadRows(p, req, new(firstWriter)); !errors.Is(err, context.Canceled) {
					t.Errorf("cancelled half way: %v", err)
				}
				// Whoever notices may ask again why it ended, a few times.
				if more := p.asked.Load() - half; more > 8 {
					t.Errorf("it goes on for %d looks after it was cancelled", more)
				}
			})
		}
	}
}

// BenchmarkScanOverDeleted is of the first row of a table in front of which a
// million cells were removed: before and after compactions.
func BenchmarkScanOverDeleted(b *testing.B) {
	const n = 1_000_000
	for _, g := range graveyards {
		b.Run(g.name, func(b *testing.B) {
			now := &hand{now: time.Unix(1_700_000_000, 0)}
			s := mustOpen(b, Options{Dir: b.TempDir(), NoBackground: true, MemtableBytes: 1 << 30, Now: now.Now})
			defer mustClose(b, s)
			sch := newSchema("t", 1000, "f")
			f := sch.Families["f"]
			f.GC = g.rule
			sch.Families["f"] = f
			table := mustCreate(b, s, sch)
			tt := s.tabletsOf(table)[0]
			dead := now.Now().UnixMicro() / 1000 * 1000
			for _, do := range []func() error{
				func() error {
					return buryRows(s, table, n, func(i int) *row.Entry {
						key, q := g.at(i)
						return entry(key, setCell("f", q, dead, "value"))
					})
				},
				func() error { return s.MutateRow(ctx, table, entry("live", setCell("f", "q", dead+3*3600e6, "v"))) },
				func() error { return s.Flush(ctx) },
				func() error { return g.bury(s, table, n) },
				func() error { return s.Flush(ctx) },
			} {
				if err := do(); err != nil {
					b.Fatal(err)
				}
			}
			now.advance(2 * time.Hour)
			for _, when := range []string{"before", "after"} {
				b.Run(when, func(b *testing.B) {
					var blocks int64
					for b.Loop() {
						_, n, err := firstRow(ctx, s, table)
						if err != nil {
							b.Fatal(err)
						}
						blocks = n
					}
					b.ReportMetric(float64(blocks), "block-B/op")
				})
				for more := true; more; {
					var err error
					if more, err = tt.Compact(ctx); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
