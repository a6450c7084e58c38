package tabletserver_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/backend"
)

var _ backend.HotTabletLister = (*Store)(nil)

// A hand is a clock moved by hand.
type hand struct {
	mu  sync.Mutex
	now time.Time
}

func (h *hand) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hand) advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// hotStore is for a synctest bubble, in which time passes when all wait for it.
func hotStore(t testing.TB, rate float64) (*Store, string) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", SplitRate: rate, SplitHotAfter: time.Minute, Log: loud()})
	t.Cleanup(func() {
		mustClose(t, s)
		time.Sleep(time.Minute) // what a server leaves behind ends
	})
	return s, mustCreate(t, s, newSchema("t", 1000, "f"), "m")
}

// serveLoad has s serve load for d: n rows that keys names are written in each five
// seconds, after which the server looks for hot tablets.
func serveLoad(t testing.TB, s *Store, table string, d time.Duration, keys func(i int) string, n int) {
	for range int(d / (5 * time.Second)) {
		for i := range n {
			mustPut(t, s, table, keys(i), setCell("f", "q", 1000, "v"))
		}
		time.Sleep(5 * time.Second)
	}
}

func starts(s *Store, table string) string {
	infos, err := s.Tablets(context.Background(), table)
	if err != nil {
		return err.Error()
	}
	var list []string
	for _, i := range infos {
		list = append(list, fmt.Sprintf("%q", i.Rows.Start))
	}
	return strings.Join(list, " ")
}

// TestSplitHot: a tablet that takes most of a high load for a minute is split
// where the load is parted.
func TestSplitHot(t *testing.T) { synctest.Test(t, splitHot) }

func splitHot(t *testing.T) {
	s, table := hotStore(t, 100)
	keys := func(int) string { return fmt.Sprintf("c%02d", rand.IntN(100)) }
	// 200 rows a second: hot, but not for long enough yet.
	serveLoad(t, s, table, 55*time.Second, keys, 1000)
	if got := starts(s, table); got != `"" "m"` {
		t.Fatalf("after 55 s the tablets start at %s", got)
	}
	serveLoad(t, s, table, 30*time.Second, keys, 1000)
	infos, err := s.Tablets(context.Background(), "t")
	if err != nil || len(infos) != 3 {
		t.Fatalf("%v, the tablets start at %s", err, starts(s, table))
	}
	at := string(infos[1].Rows.Start)
	if at < "c20" || at > "c80" {
		t.Fatalf("split at %q", at)
	}
	// The place comes from a sample, so the halves may differ: the larger one is
	// split once more if it has 60 % of the load, which is as good as certain when
	// it has 65 of the 100 rows, and out of the question with 55.
	serveLoad(t, s, table, 3*time.Minute, keys, 1000)
	n, err := strconv.Atoi(at[1:])
	if err != nil {
		t.Fatal(err)
	}
	larger := max(n, 100-n)
	infos, err = s.Tablets(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if l := len(infos); l < 3 || l > 4 || l == 4 && larger < 55 || l == 3 && larger > 65 {
		t.Errorf("later the tablets start at %s", starts(s, table))
	}
	for i := range 100 {
		if k := fmt.Sprintf("c%02d", i); !strings.Contains(content(s, table, row.Single([]byte(k))), k) {
			t.Errorf("row %s is gone", k)
		}
	}
}

// TestSplitHotByItself: the store watches and splits without being asked.
func TestSplitHotByItself(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", SplitRate: 50, SplitHotAfter: 700 * time.Millisecond, SplitCheck: 50 * time.Millisecond, Log: loud()})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	n := 0
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		mustPut(t, s, table, fmt.Sprintf("c%02d", rand.IntN(100)), setCell("f", "q", 1000, "v"))
		if n++; n%100 > 0 {
			continue // to ask is load of METADATA
		}
		if infos, err := s.Tablets(context.Background(), table); err != nil {
			t.Fatal(err)
		} else if len(infos) > 1 {
			return
		}
	}
	t.Error("the tablet was never split")
}

// TestSplitHotNot: nothing is gained by splitting these.
func TestSplitHotNot(t *testing.T) {
	for name, c := range map[string]struct {
		rate float64
		keys func(i int) string
		n    int
	}{
		"one hot row": {100, func(i int) string {
			if i%10 == 0 {
				return fmt.Sprintf("c%02d", rand.IntN(100))
			}
			return "c50"
		}, 1000},
		"the load is everywhere": {100, func(i int) string { return fmt.Sprintf("%c%d", "cx"[i%2], rand.IntN(100)) }, 2000},
		"little load":            {1000, func(int) string { return fmt.Sprintf("c%02d", rand.IntN(100)) }, 1000},
		"off":                    {-1, func(int) string { return fmt.Sprintf("c%02d", rand.IntN(100)) }, 2000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, table := hotStore(t, c.rate)
				serveLoad(t, s, table, 3*time.Minute, c.keys, c.n)
				if got := starts(s, table); got != `"" "m"` {
					t.Errorf("the tablets start at %s", got)
				}
			})
		})
	}
	t.Run("bursts", func(t *testing.T) { synctest.Test(t, bursts) })
}

// bursts are over before anything is done about them.
func bursts(t *testing.T) {
	s, table := hotStore(t, 100)
	for range 4 {
		serveLoad(t, s, table, 30*time.Second, func(int) string { return fmt.Sprintf("c%02d", rand.IntN(100)) }, 1000)
		serveLoad(t, s, table, time.Minute, func(int) string { return "c" }, 1)
	}
	if got := starts(s, table); got != `"" "m"` {
		t.Errorf("after bursts the tablets start at %s", got)
	}
}

// TestHotTablets: the load of each tablet is told, and fades.
func TestHotTablets(t *testing.T) { synctest.Test(t, hotTablets) }

func hotTablets(t *testing.T) {
	s, table := hotStore(t, -1)
	const in = "projects/p/instances/i"
	if hot, err := s.HotTablets(ctx, in); err != nil || len(hot) > 0 {
		t.Fatalf("at the start %v %v", hot, err)
	}
	for range 12 { // a minute
		for i := range 500 {
			mustPut(t, s, table, fmt.Sprintf("z%d", i), setCell("f", "q", 1000, "v"))
			if i%5 == 0 {
				content(s, table, row.Single([]byte("a")))
				mustPut(t, s, table, "a", setCell("f", "q", 1000, "v"))
			}
		}
		time.Sleep(5 * time.Second)
		if _, err := s.HotTablets(ctx, in); err != nil {
			t.Fatal(err)
		}
	}
	hot, err := s.HotTablets(ctx, in+"/clusters/c")
	if err != nil || len(hot) != 2 || string(hot[0].Rows.Start) != "m" || hot[0].Table != table || !(hot[0].CPUFraction > hot[1].CPUFraction) ||
		hot[1].CPUFraction <= 0 || hot[0].CPUFraction > 1 || !hot[0].To.Equal(time.Now()) || !hot[0].From.Before(hot[0].To) {
		t.Fatalf("%+v %v", hot, err)
	}
	infos, err := s.Tablets(context.Background(), "t")
	if err != nil || len(infos) != 2 {
		t.Fatal(err)
	}
	if l := infos[1].Load; l.RowsWritten < 99 || l.RowsWritten > 101 || l.RowsRead != 0 {
		t.Errorf("z: %+v", l)
	}
	if l := infos[0].Load; l.RowsWritten < 19 || l.RowsWritten > 21 || l.Reads < 19 || l.Reads > 21 || l.RowsRead < 18 || l.Bytes == 0 {
		t.Errorf("a: %+v", l)
	}
	if hot, _ := s.HotTablets(ctx, "projects/p/instances/other"); len(hot) > 0 {
		t.Errorf("another instance: %v", hot)
	}
	time.Sleep(10 * time.Minute)
	if hot, _ := s.HotTablets(ctx, in); len(hot) > 0 {
		t.Errorf("ten minutes later: %v", hot)
	}
}

// lastOpen is a store that keeps whoever opens the last of some objects waiting.
type lastOpen struct {
	objectstore.Store
	before  atomic.Int32
	release chan struct{}
}

func (l *lastOpen) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	if l.before.Add(-1) == -1 {
		<-l.release
	}
	return l.Store.Open(ctx, name)
}

// TestVerifyProgress: how far a verification has come is told while it reads a tablet.
func TestVerifyProgress(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true})
	defer mustClose(t, s)
	table := filled(t, s, "t", 300)
	for i := range 300 {
		mustPut(t, s, table, fmt.Sprintf("row%05d", i), setCell("f", "q", 1000, "again"))
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	files := s.tabletsOf(table)[0].Row().Files
	if len(files) != 2 {
		t.Fatalf("%d SSTables", len(files))
	}
	store := &lastOpen{Store: s.env.Objects, release: make(chan struct{})}
	store.before.Store(1)
	s.env.Objects = store
	var last, total int64
	within := false
	err := s.VerifyTablets(ctx, "t", row.All, func(d tablet.ObjectDamage) { t.Errorf("damaged: %+v", d) }, func(done, of int64) {
		if done < last || done > of {
			t.Errorf("%d of %d bytes, after %d", done, of, last)
		}
		last, total = done, of
		if done > 0 && done < of && !within {
			within = true
			close(store.release)
		}
	})
	if err != nil || !within || last != total {
		t.Errorf("%v; told on the way: %v; at last %d of %d bytes", err, within, last, total)
	}
}

// TestOperate: what an operator does to tablets.
func TestOperate(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, Options{FS: fs, Dir: "d", NoBackground: true, Log: loud(), CacheBytes: 1})
	defer mustClose(t, s)
	table := filled(t, s, "t", 300)
	for i := range 300 {
		mustPut(t, s, table, fmt.Sprintf("row%05d", i), setCell("f", "q", 1000, "again"))
	}
	if err := s.SplitAt(ctx, "t", []byte("row00100")); err != nil {
		t.Fatal(err)
	}
	if err := s.SplitAt(ctx, "t", []byte("row00200")); err != nil {
		t.Fatal(err)
	}
	if err := s.MergeAt(ctx, "t", []byte("row00150")); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, table, "row00000", setCell("f", "q", 1000, "in memory"))
	infos, err := s.Tablets(context.Background(), "")
	if err != nil || len(infos) != 3 || infos[2].Table != metastore.Schema.Name || infos[0].MemtableBytes == 0 || infos[0].Redo == "" ||
		infos[1].MemtableBytes != 0 || infos[1].Redo != "" || infos[1].Bytes == 0 {
		t.Fatalf("%+v %v", infos, err)
	}
	if err := s.FlushTablets(ctx, "t", row.All); err != nil {
		t.Fatal(err)
	}
	if infos, _ = s.Tablets(context.Background(), "t"); infos[0].MemtableBytes != 0 || infos[0].Runs < 2 {
		t.Errorf("after a flush %+v", infos[0])
	}
	before := content(s, table, row.All)
	var done, total int64
	if err := s.CompactTablets(ctx, "t", row.Range{End: []byte("row00050")}, func(d, n int64) { done, total = d, n }); err != nil || done != total || total == 0 {
		t.Fatalf("%d of %d %v", done, total, err)
	}
	if infos, _ = s.Tablets(context.Background(), "t"); infos[0].Runs != 1 || infos[0].LastMajor.IsZero() || infos[1].Runs < 1 {
		t.Errorf("after a compaction of the first %+v", infos)
	}
	if err := s.CompactTablets(ctx, metastore.Schema.Name, row.All, nil); err != nil {
		t.Fatal(err)
	}
	if got := content(s, table, row.All); got != before {
		t.Error("the compactions changed the content")
	}

	none := func(d tablet.ObjectDamage) { t.Errorf("damaged: %+v", d) }
	for _, name := range []string{"t", metastore.Schema.Name} {
		if err := s.VerifyTablets(ctx, name, row.All, none, func(d, n int64) { done, total = d, n }); err != nil || done != total || total == 0 {
			t.Fatalf("%s: %d of %d %v", name, done, total, err)
		}
	}
	object := s.tabletsOf(table)[0].Row().Files[0].Object
	// In place: the store has the file open.
	f, err := fs.OpenReadWrite("d/sst/"+object, "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(datadirtest.Flip(100)(datadirtest.ReadFile(t, fs, "d/sst/"+object))[:101], 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var found []tablet.ObjectDamage
	if err := s.VerifyTablets(ctx, "t", row.All, func(d tablet.ObjectDamage) { found = append(found, d) }, func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].Object != object || found[0].Table != table || !strings.Contains(found[0].Err.Error(), "wrong checksum") {
		t.Errorf("%+v", found)
	}
	damage := s.Damage()
	if len(damage) != 1 || damage[0].Object != object || damage[0].Table != table || damage[0].Reads != 1 {
		t.Errorf("%+v", damage)
	}
	// A tablet that is split hands its damage on.
	if _, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}}); fault.KindOf(err) != fault.Corruption {
		t.Errorf("read: %v", err)
	}
	if damage = s.Damage(); len(damage) != 1 || damage[0].Reads != 2 {
		t.Errorf("%+v", damage)
	}
	if err := s.SplitAt(ctx, table, []byte("row00050")); err != nil {
		t.Fatal(err)
	}
	if damage = s.Damage(); len(damage) != 2 || damage[0].Tablet == damage[1].Tablet {
		t.Errorf("after a split %+v", damage)
	}
	other := newSchema("t", 1000, "f")
	other.Name = "projects/p/instances/other/tables/t"
	mustCreate(t, s, other)
	for what, err := range map[string]error{
		"two tables of a name": s.SplitAt(ctx, "t", []byte("x")),
		"no table":             s.FlushTablets(ctx, "nobody", row.All),
		"the last":             s.MergeAt(ctx, table, []byte("zzz")),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestMissingSSTable: a file that somebody deleted under a running store is lost
// data, not a table that is not found.
func TestMissingSSTable(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, Dir: "d", NoBackground: true, Log: loud()}
	s := mustOpen(t, o)
	table := filled(t, s, "t", 10)
	mustClose(t, s)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	object := s.tabletsOf(table)[0].Row().Files[0].Object
	if err := fs.Remove("d/sst/" + object); err != nil {
		t.Fatal(err)
	}
	if _, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}}); fault.KindOf(err) != fault.Corruption {
		t.Errorf("read: %v", err)
	}
	if d := s.Damage(); len(d) != 1 || d[0].Object != object {
		t.Errorf("%+v", d)
	}
}
