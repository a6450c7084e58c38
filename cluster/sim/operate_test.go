package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// groupOf returns what is told of a locality group, "" being what is to be
// divided.
func groupOf(t *testing.T, c *client.Client, table, name string) (tablet.GroupInfo, bool) {
	t.Helper()
	_, groups, err := c.Groups(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if g.Name == name {
			return g, true
		}
	}
	return tablet.GroupInfo{}, false
}

// TestOperate: what an operator does to the tablets of a table that is on several
// servers, and is told of them.
func TestOperate(t *testing.T) {
	c := start(t, Options{}, 3)
	defer c.Close()
	b := clientOf(t, c, "client")
	other := clientOf(t, c, "another")
	ctx := t.Context()
	create(t, b, upkeepTable, "d", "h", "m")
	for i := range 400 {
		put(t, b, upkeepTable, fmt.Sprintf("%c%03d", 'a'+i%26, i), strings.Repeat("v", 100))
	}
	tablets := func(table string) []tablet.Info {
		t.Helper()
		infos, err := other.Tablets(ctx, table)
		if err != nil {
			t.Fatal(err)
		}
		return infos
	}
	starts := func() (out []string) {
		for _, i := range tablets("u") {
			out = append(out, string(i.Rows.Start))
		}
		return out
	}
	infos := tablets("u")
	if len(infos) != 4 || infos[0].Table != upkeepTable || infos[0].Server == "" || infos[0].MemtableBytes == 0 || infos[0].Redo == "" {
		t.Errorf("tablets: %+v", infos)
	}
	if all := tablets(""); len(all) != 5 || all[4].Table != "METADATA" || all[4].Server == "" {
		t.Errorf("all tablets: %+v", all)
	}
	if err := b.SplitAt(ctx, "u", []byte("q")); err != nil {
		t.Fatal(err)
	}
	if got := starts(); !slices.Equal(got, []string{"", "d", "h", "m", "q"}) {
		t.Errorf("tablets after a split begin at %q", got)
	}
	if err := b.MergeAt(ctx, "u", []byte("e")); err != nil {
		t.Fatal(err)
	}
	if got := starts(); !slices.Equal(got, []string{"", "d", "m", "q"}) {
		t.Errorf("tablets after a merge begin at %q", got)
	}
	for _, server := range []string{"server-1", "server-2", "server-3"} {
		if err := b.MoveAt(ctx, upkeepTable, []byte("x"), server); err != nil {
			t.Fatal(err)
		}
		if at := tablets("u")[3].Server; at != server {
			t.Errorf("after a move to %s the tablet is at %q", server, at)
		}
	}
	key, ok, err := b.SplitKey(ctx, upkeepTable, []byte("x"))
	if err != nil || !ok || string(key) <= "q" {
		t.Errorf("split key %q, %v, %v", key, ok, err)
	}
	if err := b.FlushTablets(ctx, "u", row.All); err != nil {
		t.Fatal(err)
	}
	for _, i := range tablets("u") {
		if i.MemtableBytes != 0 || i.Files == 0 {
			t.Errorf("after a flush: %+v", i)
		}
	}
	if err := b.FlushTablets(ctx, "METADATA", row.All); err != nil {
		t.Fatal(err)
	}
	if all := tablets("METADATA"); len(all) != 1 || all[0].Files == 0 {
		t.Errorf("METADATA after a flush: %+v", all)
	}
	var done, total int64
	if err := b.CompactTablets(ctx, "u", row.Single([]byte("e")), func(d, of int64) { done, total = d, of }); err != nil || done != total || total == 0 {
		t.Errorf("compacted %d of %d bytes, %v", done, total, err)
	}
	if err := b.CompactTablets(ctx, "u", row.All, nil); err != nil {
		t.Fatal(err)
	}
	for _, i := range tablets("u") {
		if i.Runs != 1 || i.LastMajor.IsZero() {
			t.Errorf("after a compaction: %+v", i)
		}
	}

	// An SSTable is damaged.
	sound := func(d tablet.ObjectDamage) { t.Errorf("damaged: %+v", d) }
	if err := b.VerifyTablets(ctx, "u", row.All, sound, func(d, of int64) { done, total = d, of }); err != nil || done != total || total == 0 {
		t.Errorf("verified %d of %d bytes, %v", done, total, err)
	}
	r, err := b.RowOf(ctx, tablets("u")[0].Tablet)
	if err != nil {
		t.Fatal(err)
	}
	object := r.Files[0].Object
	c.damage(t, object) // though a server that has the file open may read what was in it
	var found []tablet.ObjectDamage
	if err := b.VerifyTablets(ctx, "u", row.All, func(d tablet.ObjectDamage) { found = append(found, d) }, func(int64, int64) {}); err != nil {
		t.Error(err)
	}
	if len(found) != 1 || found[0].Object != object || found[0].Tablet != r.Tablet || found[0].Table != upkeepTable || found[0].Err == nil {
		t.Errorf("damaged: %+v, want %s of %v", found, object, r.Tablet)
	}
	loss, err := b.DropDamaged(ctx, "u", object)
	if err != nil || loss.Entries == 0 || string(loss.First) < "a" {
		t.Errorf("dropped %+v, %v", loss, err)
	}
	if err := b.VerifyTablets(ctx, "u", row.All, sound, func(int64, int64) {}); err != nil {
		t.Error(err)
	}

	for name, err := range map[string]error{
		"no table":        b.SplitAt(ctx, "none", []byte("q")),
		"no object":       second(b.DropDamaged(ctx, "u", object)),
		"no server":       b.MoveAt(ctx, "u", []byte("x"), "server-9"),
		"no tablet":       second(b.RowOf(ctx, metadata.TabletID(1))),
		"flush of none":   b.FlushTablets(ctx, "none", row.All),
		"groups of none":  second(b.CreateGroup(ctx, "none", schema.Group{Name: "g"})),
		"tablets of none": second(b.Tablets(ctx, "none")),
	} {
		if fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.MergeAt(ctx, "u", []byte("x")); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("merge of the last tablet: %v", err)
	}
}

// damage changes a byte of an object of the store.
func (c *Cluster) damage(t *testing.T, object string) { c.damageAt(t, object, 100) }

func (c *Cluster) damageAt(t *testing.T, object string, at int) {
	t.Helper()
	ctx := t.Context()
	b, err := c.objects.Get(ctx, object)
	if err == nil {
		err = c.objects.Delete(ctx, object)
	}
	if err == nil {
		b = slices.Clone(b)
		b[at] ^= 1
		err = c.objects.PutIfAbsent(ctx, object, b)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestOperateCancelled: a compaction ends with its caller, and the tablet serves
// on.
func TestOperateCancelled(t *testing.T) {
	c := start(t, Options{}, 2)
	defer c.Close()
	b := clientOf(t, c, "client")
	create(t, b, upkeepTable, "m")
	for i := range 200 {
		put(t, b, upkeepTable, fmt.Sprintf("%c%03d", 'a'+i%26, i), strings.Repeat("v", 1000))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.CompactTablets(ctx, "u", row.All, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled compaction: %v", err)
	}
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.CompactTablets(ctx, "u", row.All, nil) }()
		put(t, b, upkeepTable, "a", "more")
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	put(t, b, upkeepTable, "z", "more")
	if err := b.CompactTablets(t.Context(), "u", row.All, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"server-1", "server-2"} {
		if s := c.Server(name); s == nil || s.Err() != nil {
			t.Errorf("%s has failed", name)
		}
	}
}

// startMove starts a cluster whose master stops before it has moved upkeepTable from server-1 to
// server-2. moved has the outcome of the call that waits for that.
func startMove(ctx context.Context, t *testing.T) (c *Cluster, b *client.Client, moved <-chan error) {
	t.Helper()
	c = start(t, Options{}, 2)
	t.Cleanup(c.Close)
	b = clientOf(t, c, "client")
	create(t, b, upkeepTable)
	if err := b.MoveAt(ctx, upkeepTable, nil, "server-1"); err != nil {
		t.Fatal(err)
	}
	c.StopMaster("master-1")
	ended := make(chan error, 1)
	go func() { ended <- b.MoveAt(ctx, upkeepTable, nil, "server-2") }()
	select {
	case err := <-ended:
		t.Fatalf("a move without a master: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	return c, b, ended
}

// TestMoveToDrainedServer: a tablet that is to go to a server that gets none is refused at
// once, and so is one that is on its way when the drain begins.
func TestMoveToDrainedServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, b, moved := startMove(ctx, t)
	if err := b.Drain(ctx, "server-2"); err != nil {
		t.Fatal(err)
	}
	if err := <-moved; fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("a move to a server that is drained meanwhile: %v", err)
	}
	if err := b.MoveAt(ctx, upkeepTable, nil, "server-2"); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("a move to a drained server: %v", err)
	}
}

// TestMoveOfDeletedTable: a caller that waits for a move is told when the table is deleted. Its
// tablets are served nowhere after a while.
func TestMoveOfDeletedTable(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, b, moved := startMove(ctx, t)
	if err := b.DeleteTable(ctx, upkeepTable); err != nil {
		t.Fatal(err)
	}
	if err := <-moved; fault.KindOf(err) != fault.NotFound {
		t.Errorf("a move of a tablet whose table is deleted meanwhile: %v", err)
	}
}

// TestMoveToServerStartedAgain: a move ends when the tablet is where it was to go, though
// that server was started again meanwhile.
func TestMoveToServerStartedAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, moved := startMove(ctx, t)
	c.KillServer("server-2")
	if _, err := c.StartServer(ctx, "server-2"); err != nil {
		t.Fatal(err)
	}
	c.StartMaster("master-1")
	if err := <-moved; err != nil {
		t.Error(err)
	}
}

// TestFailedMovesLeavePins: a merge or move that fails leaves tablets pinned as they were.
func TestFailedMovesLeavePins(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprintf("pinned=%v", pinned), func(t *testing.T) {
			c := start(t, Options{}, 2)
			defer c.Close()
			b := clientOf(t, c, "client")
			ctx := t.Context()
			create(t, b, upkeepTable, "m")
			for key, server := range map[string]string{"a": "server-2", "x": "server-1"} {
				if err := b.MoveTablet(ctx, upkeepTable, []byte(key), server, pinned); err != nil {
					t.Fatal(err)
				}
			}
			pins := func() string {
				t.Helper()
				items, _, err := c.Lock("test").List(ctx, catalog.PinsPrefix)
				if err != nil {
					t.Fatal(err)
				}
				var s strings.Builder
				for _, i := range items {
					fmt.Fprintf(&s, "%s=%s ", i.Key, i.Value)
				}
				return s.String()
			}
			before := pins()
			c.StopMaster("master-1")
			if err := b.Drain(ctx, "server-2"); err != nil {
				t.Fatal(err)
			}
			if err := b.MergeAt(ctx, upkeepTable, []byte("a")); fault.KindOf(err) != fault.FailedPrecondition {
				t.Errorf("a merge on a drained server: %v", err)
			}
			if after := pins(); after != before {
				t.Errorf("pins after a merge that failed: %q, before: %q", after, before)
			}
			if err := b.MoveAt(ctx, upkeepTable, []byte("x"), "server-2"); fault.KindOf(err) != fault.FailedPrecondition {
				t.Errorf("a move to a drained server: %v", err)
			}
			if after := pins(); after != before {
				t.Errorf("pins after a move that failed: %q, before: %q", after, before)
			}
		})
	}
}

// TestGroups: locality groups are set in one place, known everywhere, carried out
// by all servers and kept by those that take over.
func TestGroups(t *testing.T) {
	c := start(t, Options{}, 2)
	defer c.Close()
	b := clientOf(t, c, "client")
	other := clientOf(t, c, "another")
	ctx := t.Context()
	_, err := b.CreateTable(ctx, &schema.Table{Name: upkeepTable, Granularity: 1000, Families: map[string]schema.Family{"f": {}, "big": {}, "small": {}}}, [][]byte{[]byte("h"), []byte("q")})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 260 {
		err := b.MutateRow(ctx, upkeepTable, &row.Entry{Key: fmt.Appendf(nil, "%c%03d", 'a'+i%26, i), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte("v")},
			{Op: row.SetCell, Family: "big", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte(strings.Repeat("x", 500))},
			{Op: row.SetCell, Family: "small", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte("s")}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := b.FlushTablets(ctx, "u", row.All); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CreateGroup(ctx, "u", schema.Group{Name: "pages", BlockBytes: 4096, Compression: "zstd"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CreateGroup(ctx, "u", schema.Group{Name: "pages"}); fault.KindOf(err) != fault.AlreadyExists {
		t.Errorf("the group is made twice: %v", err)
	}
	if _, err := b.CreateGroup(ctx, "u", schema.Group{Name: "bad", BlockBytes: 1}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a group of blocks of one byte: %v", err)
	}
	if _, err := b.CreateGroup(ctx, "METADATA", schema.Group{Name: "g"}); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("a group of METADATA: %v", err)
	}
	if _, err := other.CreateGroup(ctx, upkeepTable, schema.Group{Name: "mem"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.AssignFamilies(ctx, "u", "pages", []string{"big"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.AssignFamilies(ctx, "u", "mem", []string{"small"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.DeleteGroup(ctx, "u", "mem"); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("a group with families is deleted: %v", err)
	}
	// Servers divide what there is by themselves.
	eventually(t, func() error {
		if before, ok := groupOf(t, other, "u", ""); ok {
			return fmt.Errorf("to be divided: %+v", before)
		}
		for _, name := range []string{"default", "pages", "mem"} {
			if g, _ := groupOf(t, other, "u", name); g.Files != 3 || g.Runs != 1 {
				return fmt.Errorf("%s: %+v", name, g)
			}
		}
		return nil
	})
	if g, _ := groupOf(t, other, "u", "pages"); g.BlockBytes != 4096 || g.Compression != "zstd" || !slices.Equal(g.Families, []string{"big"}) {
		t.Errorf("pages: %+v", g)
	}
	// In memory, everywhere, at once.
	if _, err := other.SetGroup(ctx, "u", "mem", func(g *schema.Group) error { g.InMemory = true; return nil }); err != nil {
		t.Fatal(err)
	}
	resident := func() error {
		if g, _ := groupOf(t, b, "u", "mem"); !g.InMemory || g.Resident != g.Bytes || g.Bytes == 0 {
			return fmt.Errorf("mem: %+v", g)
		}
		return nil
	}
	eventually(t, resident)

	// Another schema change keeps them, and so does another server.
	if _, err := b.UpdateTable(ctx, upkeepTable, func(t *schema.Table) error { t.AddFamily(schema.Family{Name: "new"}); return nil }); err != nil {
		t.Fatal(err)
	}
	if g, _ := groupOf(t, b, "u", "default"); !slices.Equal(g.Families, []string{"f", "new"}) {
		t.Errorf("default: %+v", g)
	}
	c.KillServer("server-1")
	eventually(t, func() error {
		infos, err := b.Tablets(ctx, "u")
		for _, i := range infos {
			if i.Server != "server-2" {
				return fmt.Errorf("%+v", i)
			}
		}
		return err
	})
	eventually(t, resident)
	if g, _ := groupOf(t, b, "u", "pages"); g.Files != 3 {
		t.Errorf("pages after a takeover: %+v", g)
	}
	got := contents(t, b, upkeepTable)
	if len(got) != 260 {
		t.Errorf("%d rows", len(got))
	}
	for key, v := range got {
		if v != "s" { // of the last family
			t.Errorf("row %s has %q", key, v)
		}
	}
}

// TestMasterCounters: a master tells what it does.
func TestMasterCounters(t *testing.T) {
	var n master.Counters
	c := start(t, Options{Masters: &n, Balance: 50 * time.Millisecond}, 3)
	defer c.Close()
	b := clientOf(t, c, "client")
	create(t, b, upkeepTable, "d", "h", "m", "q", "u")
	put(t, b, upkeepTable, "a", "v")
	at := func() string {
		t.Helper()
		infos, err := b.Tablets(t.Context(), "u")
		if err != nil {
			t.Fatal(err)
		}
		return infos[0].Server
	}
	to := "server-1"
	if at() == to {
		to = "server-2"
	}
	if err := b.MoveAt(t.Context(), "u", []byte("a"), to); err != nil {
		t.Fatal(err)
	}
	before := n.Assigned.Load()
	if before < 8 || n.MovedWanted.Load() == 0 || n.TakenOver.Load() != 0 {
		t.Errorf("assigned %d, moved as wanted %d, taken over %d", before, n.MovedWanted.Load(), n.TakenOver.Load())
	}
	c.KillServer(to)
	eventually(t, func() error {
		if s := at(); s == "" || s == to {
			return fmt.Errorf("the tablet is at %q", s)
		}
		if n.Waiting.Load()+n.Opening.Load() != 0 || n.Servers.Load() != 2 || n.Tablets.Load() != 6 || n.Balanced.Load() == 0 {
			return fmt.Errorf("waiting %d, opening %d, servers %d, tablets %d, balanced %d", n.Waiting.Load(), n.Opening.Load(), n.Servers.Load(), n.Tablets.Load(), n.Balanced.Load())
		}
		return nil
	})
	if n.TakenOver.Load() == 0 || n.Assigned.Load() <= before {
		t.Errorf("taken over %d, assigned %d", n.TakenOver.Load(), n.Assigned.Load())
	}
	// What was asked of METADATA is told with the end of a round, what was assigned at once.
	eventually(t, func() error {
		if n.Leading.Load() != 1 || n.Terms.Load() != 1 || n.Rounds.Load() == 0 || n.RoundNanos.Load() == 0 || n.Calls.Load() == 0 ||
			n.Scans.Load() == 0 || n.MetadataReads.Load() == 0 || n.RootReads.Load() == 0 || n.MetadataChanges.Load() < n.Assigned.Load() {
			return fmt.Errorf("leading %d, terms %d, rounds %d, calls %d, scans %d, METADATA reads %d, roots %d, changes %d", n.Leading.Load(), n.Terms.Load(), n.Rounds.Load(),
				n.Calls.Load(), n.Scans.Load(), n.MetadataReads.Load(), n.RootReads.Load(), n.MetadataChanges.Load())
		}
		return nil
	})
	c.StopMaster("master-1")
	if n.Leading.Load() != 0 || n.Tablets.Load() != 0 {
		t.Errorf("after the master's end: leading %d, tablets %d", n.Leading.Load(), n.Tablets.Load())
	}
}
