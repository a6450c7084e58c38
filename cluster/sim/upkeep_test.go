package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

const upkeepTable = "projects/p/instances/i/tables/u"

// eventually calls check until it returns nil.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func clientOf(t testing.TB, c *Cluster, name string) *client.Client {
	t.Helper()
	b, err := c.Client(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func create(t testing.TB, b *client.Client, name string, splits ...string) *schema.Table {
	t.Helper()
	var at [][]byte
	for _, s := range splits {
		at = append(at, []byte(s))
	}
	sch, err := b.CreateTable(context.Background(), &schema.Table{Name: name, Granularity: 1000, Families: map[string]schema.Family{"f": {}}}, at)
	if err != nil {
		t.Fatal(err)
	}
	return sch
}

func put(t testing.TB, b *client.Client, table, key, value string) {
	t.Helper()
	err := b.MutateRow(context.Background(), table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
		{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte(value)}}})
	if err != nil {
		t.Fatal(err)
	}
}

type pairs struct {
	out map[string]string
	key string
}

func (w *pairs) StartRow(key []byte)   { w.key = string(key) }
func (w *pairs) Cell(c *row.Cell)      { w.out[w.key] = string(c.Value) }
func (w *pairs) EndRow() (bool, error) { return false, nil }
func (w *pairs) Scanned([]byte)        {}
func (w *pairs) Flush() error          { return nil }

func contents(t testing.TB, b *client.Client, table string) map[string]string {
	t.Helper()
	w := &pairs{out: map[string]string{}}
	if _, err := b.ReadRows(context.Background(), &scan.Request{Table: table, Ranges: []row.Range{row.All}}, w); err != nil {
		t.Fatal(err)
	}
	return w.out
}

// everyTablet calls do with the server and the row of each tablet of a table.
func everyTablet(t testing.TB, c *Cluster, b *client.Client, table uint64, do func(rpc.TabletServer, *metadata.Row) error) {
	t.Helper()
	ctx := context.Background()
	err := b.Metadata().Scan(ctx, func(r *metadata.Row) error {
		if r.Table != table {
			return nil
		}
		return do(c.Dialer("test").Dial(r.Assignment.Addr), r)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// named returns the objects that METADATA names, those of backups included.
func named(t testing.TB, b *client.Client) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	take := func(r *metadata.Row) error {
		for _, f := range r.Files {
			out[f.Object] = true
		}
		return nil
	}
	roots, err := b.Metadata().Roots(context.Background())
	if err == nil {
		err = b.Metadata().Scan(context.Background(), take)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range roots {
		_ = take(r)
	}
	return out
}

// I7 checks that every object that is named is there, and returns how many
// others there are.
func I7(t testing.TB, c *Cluster, b *client.Client) (others int, err error) {
	t.Helper()
	want := named(t, b)
	objects, err := c.objects.List(context.Background(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if !strings.HasSuffix(o.Name, ".sst") {
			continue
		}
		if !want[o.Name] {
			others++
		}
		delete(want, o.Name)
	}
	for name := range want {
		err = errors.Join(err, fmt.Errorf("I7: %s is named and was deleted", name))
	}
	return others, err
}

func upkeep() Options {
	// On a busy machine nobody's session may end, and nothing that is being made be
	// taken for left.
	return Options{TTL: time.Second, Sweep: 50 * time.Millisecond, Purge: 50 * time.Millisecond, Rest: 100 * time.Millisecond,
		MakeLimit: time.Minute}
}

// TestPurge: a deleted table is served no more, can be undeleted for a while,
// and leaves nothing behind after that. Nor do makers that died.
func TestPurge(t *testing.T) {
	ctx := context.Background()
	var ahead atomic.Int64
	o := upkeep()
	o.MakeLimit = 2 * time.Second
	o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	c := start(t, o, 2)
	b := clientOf(t, c, "client")
	sch := create(t, b, upkeepTable, "m")
	put(t, b, upkeepTable, "a", "1")
	put(t, b, upkeepTable, "z", "2")
	served := func() (n int) {
		for _, name := range []string{"server-1", "server-2"} {
			s, err := c.Server(name).Status(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range s.Tablets {
				if one.Table == sch.ID {
					n++
				}
			}
		}
		return n
	}
	// Whoever has a location does not get at a deleted table with it.
	l, err := b.Metadata().Lookup(ctx, sch.ID, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteTable(ctx, upkeepTable); err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Dialer("test").Dial(l[0].Assignment.Addr).ReadRows(ctx, rpc.Target{Tablet: l[0].Tablet}, &rpc.Read{Ranges: []row.Range{row.Single([]byte("a"))}},
		&pairs{out: map[string]string{}})
	if !errors.Is(err, fault.NotFound) && !errors.Is(err, rpc.ErrNotServing) {
		t.Errorf("a read of a deleted table: %v", err)
	}
	eventually(t, func() error {
		if n := served(); n > 0 {
			return fmt.Errorf("%d tablets of a deleted table are served", n)
		}
		return nil
	})
	if _, err := b.UndeleteTable(ctx, upkeepTable); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, b, upkeepTable); got["a"] != "1" || got["z"] != "2" {
		t.Errorf("after undelete the table holds %v", got)
	}
	// A table and a backup of which the maker died before they were made, and rows
	// of nothing at all.
	const half = "projects/p/instances/i/tables/half"
	pending := catalog.NewPending(&schema.Table{Name: half, ID: 77 << 32}, time.Now())
	if _, err := catalog.WriteName(ctx, c.Lock("test"), half, catalog.Name{pending}, 0); err != nil {
		t.Fatal(err)
	}
	lost := &catalog.Backup{Backup: &schema.Backup{Name: "backups/lost", ID: 78 << 32}, Renewed: time.Now()}
	if err := lost.Write(ctx, c.Lock("test")); err != nil {
		t.Fatal(err)
	}
	expired, err := b.CreateBackup(ctx, upkeepTable, &schema.Backup{Name: "backups/expires", ExpireTime: o.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := b.CreateBackup(ctx, upkeepTable, &schema.Backup{Name: "backups/kept"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{77 << 32, catalog.BackupTable(78 << 32), 79 << 32} {
		if err := b.Metadata().CAS(ctx, &metadata.Row{Table: id, Tablet: metadata.TabletID(id), End: []byte("x"), Assignment: &metadata.Assignment{}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.DeleteTable(ctx, upkeepTable); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(schema.UndeleteWindow + time.Hour))
	eventually(t, func() error {
		var left []string
		err := b.Metadata().Scan(ctx, func(r *metadata.Row) error {
			if r.Table != catalog.BackupTable(kept.ID) {
				left = append(left, fmt.Sprintf("%x %q", r.Table, r.End))
			}
			return nil
		})
		if err != nil || len(left) > 0 {
			return fmt.Errorf("rows are left: %q, %w", left, err)
		}
		return nil
	})
	n, _, err := catalog.ReadName(ctx, c.Lock("test"), upkeepTable)
	if err != nil || len(n) != 0 {
		t.Errorf("the name still has %v, %v", n, err)
	}
	all, err := catalog.Backups(ctx, c.Lock("test"), "")
	if err != nil || len(all) != 1 || all[0].ID != kept.ID || all[0].ID == expired.ID {
		t.Errorf("backups are %v, %v", all, err)
	}
	if _, err := b.UndeleteTable(ctx, upkeepTable); !errors.Is(err, fault.NotFound) {
		t.Errorf("undelete of a purged table: %v", err)
	}
	if _, err := b.RestoreTable(ctx, "backups/kept", upkeepTable, func(*schema.Table) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, b, upkeepTable); got["a"] != "1" || got["z"] != "2" {
		t.Errorf("the restored table holds %v", got)
	}
	if _, err := I7(t, c, b); err != nil {
		t.Error(err)
	}
}

// TestI11_BackupWhileTabletsMove: tablets that are split, merged and moved while
// backups are made do no harm to them, and neither does a server that dies.
func TestI11_BackupWhileTabletsMove(t *testing.T) {
	ctx := context.Background()
	o := upkeep()
	o.TTL = 3 * time.Second
	c := start(t, o, 3)
	b := clientOf(t, c, "client")
	sch := create(t, b, upkeepTable, "h", "p")
	for i := range 26 {
		put(t, b, upkeepTable, string(rune('a'+i)), "v")
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			rows, err := b.Metadata().Lookup(ctx, sch.ID, []byte{byte('a' + i%26)}, 2)
			if err != nil || rows[0].Assignment.State != metadata.Open {
				continue
			}
			s := c.Dialer("test").Dial(rows[0].Assignment.Addr)
			switch {
			case i == 10:
				c.KillServer("server-3")
			case i%3 == 0:
				_ = s.Split(ctx, rows[0].Tablet, []byte{byte('a' + i%26)})
			case i%3 == 1 && len(rows) > 1:
				_ = s.Merge(ctx, rows[0].Tablet, rows[1].Tablet)
			default:
				_ = s.Unload(ctx, []metadata.TabletID{rows[0].Tablet})
			}
		}
	}()
	for i := range 6 {
		name := fmt.Sprint("backups/", i)
		if _, err := b.CreateBackup(ctx, upkeepTable, &schema.Backup{Name: name}); err != nil {
			t.Fatal(err)
		}
		to := fmt.Sprint(upkeepTable, i)
		if _, err := b.RestoreTable(ctx, name, to, func(*schema.Table) error { return nil }); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		for i := range 26 {
			if contents(t, b, to)[string(rune('a'+i))] == "v" {
				got.WriteByte(byte('a' + i))
			}
		}
		if got.String() != "abcdefghijklmnopqrstuvwxyz" {
			t.Errorf("backup %d holds %s", i, got.String())
		}
	}
	close(stop)
	<-done
}
