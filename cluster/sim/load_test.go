package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/gateway/backend"
)

// TestLookups: a call to a table whose tablets a client knows looks nothing up;
// the first one asks three times at most: for the METADATA tablets, in one of
// them, and the server. Neighbours are known after that, and a tablet that has
// moved costs one lookup more.
func TestLookups(t *testing.T) {
	ctx := context.Background()
	c := start(t, Options{TTL: time.Second}, 2)
	admin := clientOf(t, c, "admin")
	sch := create(t, admin, upkeepTable, "d", "h", "l", "p")
	for _, k := range []string{"a", "e", "i", "m", "q"} {
		put(t, admin, upkeepTable, k, "v")
	}
	b := clientOf(t, c, "client")
	count := func() (hits, lookups, wrong, meta int64) {
		return b.Counters.Hits.Load(), b.Counters.Lookups.Load(), b.Counters.Wrong.Load(), b.Metadata().RootReads.Load() + b.Metadata().Reads.Load()
	}
	put(t, b, upkeepTable, "a", "w")
	if _, lookups, wrong, meta := count(); lookups != 1 || wrong != 0 || meta > 2 {
		t.Errorf("a cold call: %d lookups, %d wrong guesses, %d questions", lookups, wrong, meta)
	}
	_, lookups, _, meta := count()
	for range 10 {
		for _, k := range []string{"a", "e", "i", "m", "q"} {
			put(t, b, upkeepTable, k, "x")
		}
		if got := contents(t, b, upkeepTable); len(got) != 5 {
			t.Fatalf("read %v", got)
		}
	}
	hits, nowLookups, _, nowMeta := count()
	if nowLookups != lookups || nowMeta != meta || hits < 100 {
		t.Errorf("warm calls: %d lookups, %d questions, %d hits", nowLookups-lookups, nowMeta-meta, hits)
	}
	rows, err := admin.Metadata().Lookup(ctx, sch.ID, []byte("i"), 1)
	if err != nil {
		t.Fatal(err)
	}
	from := c.Dialer("test").Dial(rows[0].Assignment.Addr)
	if err := from.Split(ctx, rows[0].Tablet, []byte("j")); err != nil {
		t.Fatal(err)
	}
	put(t, b, upkeepTable, "i", "y")
	_, after, wrong, _ := count()
	if after != lookups+1 || wrong != 1 {
		t.Errorf("after a split: %d lookups, %d wrong guesses", after-lookups, wrong)
	}
}

// TestHotTablets: what servers measure comes together, the busiest first, and
// sizes and samples are right while tablets are split.
func TestHotTablets(t *testing.T) {
	ctx := context.Background()
	c := start(t, Options{TTL: time.Second}, 2)
	b := clientOf(t, c, "client")
	var lister backend.HotTabletLister = b
	sch := create(t, b, upkeepTable, "m")
	for _, k := range []string{"a", "z"} {
		put(t, b, upkeepTable, k, "v")
	}
	if _, err := lister.HotTablets(ctx, "projects/p/instances/i"); err != nil {
		t.Fatal(err) // begins to watch
	}
	for i := range 300 {
		put(t, b, upkeepTable, fmt.Sprint("z", i), "v")
	}
	put(t, b, upkeepTable, "b", "v")
	time.Sleep(600 * time.Millisecond)
	hot, err := lister.HotTablets(ctx, "projects/p/instances/i/clusters/c")
	if err != nil || len(hot) == 0 || string(hot[0].Rows.Start) != "m" || hot[0].Table != upkeepTable || hot[0].CPUFraction <= 0 {
		t.Errorf("hot tablets are %+v, %v", hot, err)
	}
	before, err := b.TableBytes(ctx, upkeepTable)
	if err != nil || before == 0 {
		t.Fatalf("%d bytes, %v", before, err)
	}
	everyTablet(t, c, b, sch.ID, func(s rpc.TabletServer, r *metadata.Row) error {
		if len(r.End) > 0 {
			return nil
		}
		return s.Split(ctx, r.Tablet, []byte("z2"))
	})
	if after, err := b.TableBytes(ctx, upkeepTable); err != nil || after == 0 {
		t.Errorf("%d bytes after a split, %v", after, err)
	}
}

// TestBalance: a server that comes late gets its share, and tablets come to
// rest.
func TestBalance(t *testing.T) {
	ctx := context.Background()
	c := start(t, Options{TTL: time.Second, Balance: 100 * time.Millisecond}, 1)
	b := clientOf(t, c, "client")
	create(t, b, upkeepTable, "c", "e", "g", "i", "k", "m", "o")
	for i := range 26 {
		put(t, b, upkeepTable, string(rune('a'+i)), "v")
	}
	if _, err := c.StartServer(ctx, "server-2"); err != nil {
		t.Fatal(err)
	}
	count := func(name string) int {
		s, err := c.Server(name).Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(s.Tablets)
	}
	eventually(t, func() error {
		if one, two := count("server-1"), count("server-2"); two < 2 || one < 2 {
			return fmt.Errorf("one server has %d tablets, the other %d", one, two)
		}
		return nil
	})
	if got := contents(t, b, upkeepTable); len(got) != 26 {
		t.Errorf("the table holds %v", got)
	}
}

// TestMerge: neighbours that are small, on whatever servers, become one tablet;
// what has been split is not merged as long as it holds as much, and nothing
// changes once all is done.
func TestMerge(t *testing.T) {
	ctx := context.Background()
	c := start(t, Options{TTL: time.Second, Balance: 50 * time.Millisecond, Merge: 100 * time.Millisecond, SplitBytes: 4 << 20}, 3)
	b := clientOf(t, c, "client")
	var splits []string
	for i := range 15 {
		splits = append(splits, fmt.Sprintf("k%02d", i))
	}
	sch := create(t, b, upkeepTable, splits...)
	for i := range 16 {
		put(t, b, upkeepTable, fmt.Sprintf("k%02d", i), "v")
	}
	count := func() (n int) {
		everyTablet(t, c, b, sch.ID, func(rpc.TabletServer, *metadata.Row) error {
			n++
			return nil
		})
		return n
	}
	eventually(t, func() error {
		if n := count(); n > 1 {
			return fmt.Errorf("%d tablets are left", n)
		}
		return nil
	})
	if got := contents(t, b, upkeepTable); len(got) != 16 {
		t.Errorf("the table holds %v", got)
	}
	// Halves of a tablet that was as large as one may be are not small.
	rng := rand.New(rand.NewPCG(1, 1))
	value := make([]byte, 128<<10)
	for i := range 16 {
		for j := range value {
			value[j] = byte(rng.Uint32())
		}
		put(t, b, upkeepTable, fmt.Sprintf("k%02d", i), string(value))
	}
	rows, err := b.Metadata().Lookup(ctx, sch.ID, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Dialer("test").Dial(rows[0].Assignment.Addr).Split(ctx, rows[0].Tablet, []byte("k08")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if n := count(); n != 2 {
		t.Errorf("there are %d tablets of 1 MiB, with 4 MiB as the limit", n)
	}
}

// TestWantedTabletsThatAreGone: the wish where a tablet is to be goes with the
// tablet, and not before.
func TestWantedTabletsThatAreGone(t *testing.T) {
	ctx := context.Background()
	c := start(t, Options{TTL: time.Second}, 2)
	b := clientOf(t, c, "client")
	sch := create(t, b, upkeepTable, "h")
	want := func() (keys []string) {
		items, _, err := c.Lock("test").List(ctx, catalog.PinsPrefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			keys = append(keys, i.Key)
		}
		return keys
	}
	rows, err := b.Metadata().Lookup(ctx, sch.ID, nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if _, err := c.Lock("test").Put(ctx, catalog.PinKey(r.Tablet), []byte("server-2"), 0); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		now, err := b.Metadata().Lookup(ctx, sch.ID, nil, 2)
		if err == nil && (now[0].Assignment.Server != "server-2" || now[1].Assignment.Server != "server-2" || now[0].Assignment.State != metadata.Open) {
			err = fmt.Errorf("tablets are on %s and %s", now[0].Assignment.Server, now[1].Assignment.Server)
		}
		return err
	})
	time.Sleep(time.Second)
	if got := want(); len(got) != 2 {
		t.Errorf("tablets that are there are wanted no more: %v", got)
	}
	if err := c.Dialer("test").Dial("server-2").Split(ctx, rows[0].Tablet, []byte("d")); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if got := want(); len(got) != 1 || got[0] != catalog.PinKey(rows[1].Tablet) {
			return fmt.Errorf("wanted are %v", got)
		}
		return nil
	})
}
