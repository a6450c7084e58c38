package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// asked counts what a client has asked for to find tablets: lists of the
// METADATA tablets, and calls to them.
func asked(b *client.Client) int64 {
	return b.Metadata().RootReads.Load() + b.Metadata().Reads.Load()
}

// TestMetadataGrowsAndShrinks: METADATA tablets are split by size, spread over
// the servers, and merged when they have become small. In between a cold client
// finds any tablet with three questions at most, a warm one asks nothing, and
// one that has known the METADATA tablets from before finds its way.
func TestMetadataGrowsAndShrinks(t *testing.T) {
	t.Parallel() // most of the time it waits
	ctx := context.Background()
	const tablets = 600
	var ahead atomic.Int64
	c := start(t, Options{TTL: time.Minute, // however busy the machine is, no server is given up
		Balance: 100 * time.Millisecond, Purge: 100 * time.Millisecond,
		MakeLimit: 30 * time.Second, // what rows wait for whose tablets were on their way when the table was purged
		Now:       func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, MetadataSplitBytes: 140 << 10, SplitCheck: 100 * time.Millisecond,
		// A memtable that has anything has 128 KiB.
		Tablet: tablet.Options{MemtableBytes: 129 << 10}}, 3)
	admin, old := clientOf(t, c, "admin"), clientOf(t, c, "old")
	create(t, admin, upkeepTable)
	put(t, old, upkeepTable, "a", "v")
	const large = upkeepTable + "large"
	// Long, and not to be compressed: they are most of a METADATA row.
	rng := rand.NewChaCha8([32]byte{})
	keys := make([]string, tablets)
	for i := range keys {
		random := make([]byte, 800)
		_, _ = rng.Read(random)
		keys[i] = fmt.Sprintf("k%04d%s", i, random)
	}
	key := func(i int) string { return keys[i] }
	var splits []string
	for i := 1; i < tablets; i++ {
		splits = append(splits, key(i))
	}
	sch := create(t, admin, large, splits...)
	roots := func() []*metadata.Row {
		t.Helper()
		rows, err := admin.Metadata().Roots(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	eventually(t, func() error {
		rows := roots()
		servers := map[string]bool{}
		for _, r := range rows {
			servers[r.Assignment.Server] = true
		}
		if len(rows) < 3 || len(servers) < 2 || !metadata.Tile(rows) {
			return fmt.Errorf("METADATA has %d tablets on %d servers", len(rows), len(servers))
		}
		return nil
	})
	eventually(t, func() error {
		n := 0
		err := admin.Metadata().ScanTable(ctx, sch.ID, func(r *metadata.Row) error {
			if n++; r.Assignment.State != metadata.Open {
				return fmt.Errorf("tablet %d is not open", r.Tablet)
			}
			return nil
		})
		if err == nil && n != tablets {
			err = fmt.Errorf("METADATA has %d tablets of the table", n)
		}
		return err
	})
	most := int64(0)
	cold := clientOf(t, c, "cold")
	for i := range tablets {
		put(t, cold, large, key(i)+"x", "v")
	}
	eventually(t, func() error { // tablets come to rest
		before := asked(cold)
		for i := range tablets {
			put(t, cold, large, key(i)+"x", "w")
		}
		if n := asked(cold) - before; n > 0 {
			return fmt.Errorf("a warm client asked %d times", n)
		}
		return nil
	})
	// Each tablet with a client of its own, those at the borders of METADATA
	// tablets among them. METADATA changes meanwhile: an attempt that met a change
	// says nothing.
	for i := 0; i < tablets; i += 11 {
		eventually(t, func() error {
			b := clientOf(t, c, "client")
			put(t, b, large, key(i)+"y", "v")
			if n := asked(b); n > 3 || b.Counters.Wrong.Load() > 0 {
				return fmt.Errorf("a cold client asked %d times for tablet %d", n, i)
			} else if n > most {
				most = n
			}
			return nil
		})
	}
	put(t, old, upkeepTable, "a", "w") // warm, whatever has become of METADATA
	put(t, old, large, key(tablets-1), "v")
	t.Logf("%d METADATA tablets; a cold client asked %d times at most", len(roots()), most)
	// The table goes, and METADATA shrinks.
	if err := admin.DeleteTable(ctx, large); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(2 * schema.UndeleteWindow))
	c.StopMaster("master-1")
	c.o.Merge = 300 * time.Millisecond
	c.StartMaster("master-2")
	eventually(t, func() error {
		rows := roots()
		n := 0
		if err := admin.Metadata().ScanTable(ctx, sch.ID, func(*metadata.Row) error { n++; return nil }); err != nil || n > 0 {
			return fmt.Errorf("METADATA has %d rows of the table, %w", n, err)
		}
		if len(rows) == 1 {
			return nil
		}
		for _, r := range rows { // what was deleted goes in major compactions
			_ = c.Dialer("test").Dial(r.Assignment.Addr).Compact(ctx, []metadata.TabletID{r.Tablet})
		}
		time.Sleep(300 * time.Millisecond)
		return fmt.Errorf("METADATA has %d tablets left", len(rows))
	})
	if got := contents(t, old, upkeepTable); len(got) != 1 || got["a"] != "w" {
		t.Errorf("the table holds %v", got)
	}
	if _, err := admin.Metadata().Lookup(ctx, sch.ID, []byte("k"), 1); !errors.Is(err, fault.NotFound) {
		t.Errorf("a purged table has tablets: %v", err)
	}
}
