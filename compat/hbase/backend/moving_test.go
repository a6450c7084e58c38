package backend

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

func made(t testing.TB, b *Backend, id string, splits ...string) string {
	t.Helper()
	var keys [][]byte
	for _, s := range splits {
		keys = append(keys, []byte(s))
	}
	s, err := b.CreateTable(t.Context(), &schema.Table{Name: "projects/p/instances/i/tables/" + id, Granularity: 1000,
		Families: map[string]schema.Family{"f": {}}}, keys)
	if err != nil {
		t.Fatal(err)
	}
	return s.Name
}

func setCell(v string) []row.Mutation {
	return []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte(v)}}
}

// TestSplitsUnderWay: regions split while rows are written, counted and
// scanned; nothing is lost, done twice or refused.
func TestSplitsUnderWay(t *testing.T) {
	quorum, store := startStore(t)
	b := open(t, quorum)
	table := made(t, b, "t")
	ctx := t.Context()
	const writers, rounds = 4, 40
	var wg sync.WaitGroup
	var stop atomic.Bool
	scans := make(chan error, 1)
	go func() {
		for !stop.Load() {
			w := &backendtest.Collector{FullEvery: 7}
			if _, err := b.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, w); err != nil && !errors.Is(err, fault.Unavailable) {
				scans <- err
				return
			}
			if err := w.Check(); err != nil {
				scans <- err
				return
			}
		}
		scans <- nil
	}()
	for w := range writers {
		wg.Go(func() {
			for i := range rounds {
				if err := b.MutateRow(ctx, table, &row.Entry{Key: fmt.Appendf(nil, "a%03d-%d", i, w), Mutations: setCell("v")}); err != nil {
					t.Error("MutateRow:", err)
				}
				var entries []row.Entry
				for j := range 5 {
					entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "%c%03d-%d", "bdfhj"[j], i, w), Mutations: setCell("v")})
				}
				if err := b.MutateRows(ctx, table, entries, func(_ int, err error) {
					if err != nil {
						t.Error("MutateRows:", err)
					}
				}); err != nil {
					t.Error(err)
				}
				if _, err := b.ReadModifyWriteRow(ctx, table, []byte("counter"), []row.Rule{{Family: "f", Qualifier: []byte("n"), Increment: 1}}); err != nil {
					t.Error("ReadModifyWriteRow:", err)
				}
			}
		})
	}
	for _, k := range []string{"c", "a020", "e", "g", "d010", "i"} {
		if err := store.SplitAt(ctx, table, []byte(k)); err != nil {
			t.Error("split:", err)
		}
	}
	wg.Wait()
	stop.Store(true)
	if err := <-scans; err != nil {
		t.Error("scan:", err)
	}
	w := &backendtest.Collector{}
	if _, err := b.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, w); err != nil {
		t.Fatal(err)
	}
	if want := writers*rounds*6 + 1; len(w.Rows) != want {
		t.Errorf("%d rows, want %d", len(w.Rows), want)
	}
	for _, r := range w.Rows {
		if r.Key == "counter" && binary.BigEndian.Uint64(r.Cells[0].Value) != writers*rounds {
			t.Errorf("counted to %d, not %d", binary.BigEndian.Uint64(r.Cells[0].Value), writers*rounds)
		}
	}
	w = &backendtest.Collector{Reversed: true}
	if _, err := b.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}, Reversed: true}, w); err != nil || len(w.Rows) != writers*rounds*6+1 {
		t.Errorf("backwards %d rows, %v", len(w.Rows), err)
	}
}

// TestForeign: what a table that was made through HBase can do, and what it
// refuses.
func TestForeign(t *testing.T) {
	quorum := startOurs(t)
	b := open(t, quorum)
	ctx := t.Context()
	admin := gohbase.NewAdminClient(quorum)
	if err := admin.CreateTable(hrpc.NewCreateTable(ctx, []byte("foreign"), map[string]map[string]string{"f": {"VERSIONS": "5"}})); err != nil {
		t.Fatal(err)
	}
	const table = "projects/p/instances/i/tables/foreign"
	s, err := b.Table(ctx, table)
	if err != nil || s.Families["f"].GC == nil || s.Families["f"].GC.MaxVersions != 5 {
		t.Fatalf("table %+v, %v", s, err)
	}
	client := gohbase.NewClient(quorum, gohbase.FlushInterval(0))
	defer client.Close()
	p, err := hrpc.NewPutStr(ctx, "foreign", "r", map[string]map[string][]byte{"f": {"q": []byte("theirs")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(p); err != nil {
		t.Fatal(err)
	}
	key := []byte("r")
	is := func(v string) bool {
		matched, err := b.CheckAndMutateRow(ctx, table, key, chain(keep("f"), qualifier("q"), newest(), valued(v)), setCell("then"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return matched
	}
	if is("other") || !is("theirs") {
		t.Error("the condition is wrong")
	}
	for want := uint64(1); want < 4; want++ {
		got, err := b.ReadModifyWriteRow(ctx, table, key, []row.Rule{{Family: "f", Qualifier: []byte("n"), Increment: 1}, {Family: "f", Qualifier: []byte("a"), IsAppend: true, Append: []byte("x")}})
		if err != nil || len(got) != 2 || len(got[0].Value) != int(want) || binary.BigEndian.Uint64(got[1].Value) != want {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	if _, err := b.ReadModifyWriteRow(ctx, table, key, []row.Rule{{Family: "f", Qualifier: []byte("a"), Increment: 1}}); !errors.Is(err, fault.FailedPrecondition) {
		t.Errorf("increment of a text: %v", err)
	}
	if _, err := b.CheckAndMutateRow(ctx, table, key, valued("v"), setCell("x"), nil); !errors.Is(err, fault.FailedPrecondition) {
		t.Errorf("any value: %v", err)
	}
	// HBase's increments may be ahead of its clock, up to which a deletion reaches.
	time.Sleep(20 * time.Millisecond)
	if err := b.MutateRow(ctx, table, &row.Entry{Key: key, Mutations: []row.Mutation{{Op: row.DeleteRow}}}); err != nil {
		t.Fatal(err)
	}
	w := &backendtest.Collector{}
	if _, err := b.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, w); err != nil || len(w.Rows) != 0 {
		t.Errorf("after a deletion: %+v, %v", w.Rows, err)
	}
}

// A loser is a listener that loses the answer to one Multi: its connection ends instead.
type loser struct {
	net.Listener
	armed atomic.Bool
}

// Accept implements net.Listener.
func (l *loser) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &losingConn{Conn: c, l: l}, err
}

type losingConn struct {
	net.Conn
	l     *loser
	loses atomic.Bool
}

// Read implements net.Conn.
func (c *losingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if bytes.Contains(p[:n], []byte("\x05Multi")) && c.l.armed.CompareAndSwap(true, false) {
		c.loses.Store(true)
	}
	return n, err
}

// Write implements net.Conn.
func (c *losingConn) Write(p []byte) (int, error) {
	if c.loses.Load() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// TestOneBranchIsCarriedOut: when HBase's answer to CheckAndMutateRow is lost, the other branch
// is not carried out as well, and no caller is told that the wrong one was.
func TestOneBranchIsCarriedOut(t *testing.T) {
	for _, c := range []struct {
		name, first     string
		then, otherwise []row.Mutation
		want            string
	}{
		{"Both", "old", setCell("new"), setCell("failed"), "new"},
		{"Then", "old", setCell("new"), nil, "new"},
		{"Otherwise", "other", nil, setCell("old"), "old"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &loser{}
			quorum, _ := startChanged(t, changes{listener: func(inner net.Listener) net.Listener { l.Listener = inner; return l }})
			b := open(t, quorum)
			ctx := t.Context()
			if err := gohbase.NewAdminClient(quorum).CreateTable(hrpc.NewCreateTable(ctx, []byte("foreign"), map[string]map[string]string{"f": {}})); err != nil {
				t.Fatal(err)
			}
			const table = "projects/p/instances/i/tables/foreign"
			key := []byte("r")
			isOld := chain(keep("f"), qualifier("q"), newest(), valued("old"))
			if err := b.MutateRow(ctx, table, &row.Entry{Key: key, Mutations: setCell(c.first)}); err != nil {
				t.Fatal(err)
			}
			l.armed.Store(true)
			matched, err := b.CheckAndMutateRow(ctx, table, key, isOld, c.then, c.otherwise)
			if l.armed.Load() {
				t.Fatal("no answer was lost")
			}
			if !errors.Is(err, fault.Unavailable) {
				t.Errorf("matched %v, %v", matched, err)
			}
			w := &backendtest.Collector{}
			if _, err := b.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, w); err != nil || len(w.Rows) != 1 || string(w.Rows[0].Cells[0].Value) != c.want {
				t.Errorf("rows %+v, %v", w.Rows, err)
			}
		})
	}
}

// BenchmarkReal measures the Backend and gohbase on the same HBase.
func BenchmarkReal(bench *testing.B) {
	quorum := os.Getenv("TRESTLE_HBASE_QUORUM")
	if quorum == "" {
		bench.Skip("TRESTLE_HBASE_QUORUM is not set")
	}
	b := open(bench, quorum)
	wipe(bench, b)
	table := made(bench, b, "bench")
	client := gohbase.NewClient(quorum, gohbase.FlushInterval(0))
	defer client.Close()
	value := string(make([]byte, 100))
	ctx := context.Background()
	var n atomic.Uint64
	for _, c := range []struct {
		name string
		do   func(key string) error
	}{
		{"gohbase/Put", func(key string) error {
			p, err := hrpc.NewPutStr(ctx, "bench", key, map[string]map[string][]byte{"f": {"q": []byte(value)}}, hrpc.SkipBatch())
			if err == nil {
				_, err = client.Put(p)
			}
			return err
		}},
		{"trestle/MutateRow", func(key string) error {
			return b.MutateRow(ctx, table, &row.Entry{Key: []byte(key), Mutations: setCell(value)})
		}},
		{"gohbase/Get", func(key string) error {
			g, err := hrpc.NewGetStr(ctx, "bench", key, hrpc.SkipBatch())
			if err == nil {
				_, err = client.Get(g)
			}
			return err
		}},
		{"trestle/ReadRow", func(key string) error {
			_, err := b.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.Single([]byte(key))}}, &backendtest.Collector{})
			return err
		}},
		{"trestle/ReadModifyWriteRow", func(key string) error {
			_, err := b.ReadModifyWriteRow(ctx, table, []byte(key), []row.Rule{{Family: "f", Qualifier: []byte("n"), Increment: 1}})
			return err
		}},
	} {
		bench.Run(c.name, func(bench *testing.B) {
			bench.SetParallelism(16)
			bench.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := c.do(fmt.Sprintf("r%05d", n.Add(7919)%10_000)); err != nil {
						bench.Error(err)
						return
					}
				}
			})
		})
	}
}

func keep(family string) *filter.Node {
	return &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(family)}
}

func qualifier(q string) *filter.Node {
	return &filter.Node{Op: filter.QualifierRegex, Pattern: []byte(q)}
}

func newest() *filter.Node { return &filter.Node{Op: filter.CellsPerColumnLimit, N: 1} }

func valued(v string) *filter.Node {
	return &filter.Node{Op: filter.ValueRegex, Pattern: []byte(v)}
}
