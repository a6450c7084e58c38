package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/gateway/backend"
)

const restoreParent = "projects/p/instances/i"

// cells writes down the cells of rows.
type cells struct {
	row  string
	list []string
}

func (c *cells) StartRow(key []byte)   { c.row = string(key) }
func (c *cells) EndRow() (bool, error) { return false, nil }
func (c *cells) Scanned([]byte)        {}
func (c *cells) Flush() error          { return nil }
func (c *cells) Cell(e *row.Cell) {
	c.list = append(c.list, fmt.Sprintf("%s %s:%s@%d=%x", c.row, e.Family, e.Qualifier, e.Timestamp, e.Value))
}

func cellsOf(t *testing.T, b backend.Data, table string) string {
	t.Helper()
	var w cells
	if _, err := b.ReadRows(t.Context(), &scan.Request{Table: table, Ranges: []row.Range{row.All}}, &w); err != nil {
		t.Fatal(err)
	}
	return strings.Join(w.list, "\n")
}

// stampsOf notes the stamps of records.
type stampsOf struct {
	nowhere
	list *[]cell.Seq
}

func (s stampsOf) Record(r *changes.Record, _ changes.Position) (bool, error) {
	*s.list = append(*s.list, r.Stamp)
	return false, nil
}

// eventually does something that is refused while tablets are on the move.
func eventually(t *testing.T, do func() error) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if !errors.Is(err, rpc.ErrNotServing) && !errors.Is(err, fault.Unavailable) || time.Since(begin) > time.Minute {
			t.Fatal(err)
		}
	}
}

// TestRestoreAt: a restored table is what a model was after each change, to the stamp,
// whatever became of tablets, and whether changes are in files or in memory.
func TestRestoreAt(t *testing.T) {
	n := newNetwork(t, 2)
	ctx := t.Context()
	c, m := n.client(), model.New(model.Options{})
	want := &schema.Table{Name: restoreParent + "/tables/t", Granularity: 1000, Families: map[string]schema.Family{
		"f": {Name: "f"}, "n": {Name: "n", Aggregate: schema.Sum}, "old": {Name: "old", GC: &schema.GCRule{MaxVersions: 1}}}}
	want.Stream = &schema.Stream{Life: 3, Retention: 24 * time.Hour, Since: time.Now()}
	splits := [][]byte{[]byte("r3"), []byte("r6")}
	sch, err := c.CreateTable(ctx, want, splits)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.CreateTable(ctx, want, splits); err != nil {
		t.Fatal(err)
	}
	both := func(do func(b backend.Backend) error) {
		t.Helper()
		for _, b := range []backend.Backend{c, m} {
			if err := do(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := rand.New(rand.NewPCG(5, 1))
	rowKey := func() []byte { return fmt.Appendf(nil, "r%d", r.IntN(10)) }
	write := func() {
		t.Helper()
		key, col, ts := rowKey(), fmt.Appendf(nil, "c%d", r.IntN(2)), int64(1+r.IntN(3))*1000
		set := row.Mutation{Op: row.SetCell, Family: "f", Qualifier: col, Timestamp: ts, Value: fmt.Append(nil, r.IntN(1000))}
		muts := [][]row.Mutation{
			{set},
			{{Op: row.SetCell, Family: "old", Qualifier: []byte("v"), Timestamp: ts, Value: set.Value}},
			{set, {Op: row.AddToCell, Family: "n", Qualifier: col, Timestamp: ts, Input: row.Input{Kind: row.IntInput, Int: int64(r.IntN(100))}}},
			{{Op: row.AddToCell, Family: "n", Qualifier: col, Timestamp: ts, Input: row.Input{Kind: row.IntInput, Int: int64(r.IntN(100))}}},
			{{Op: row.DeleteRow}, set},
			{set, {Op: row.DeleteFamily, Family: "f"}},
			{set, {Op: row.DeleteColumn, Family: "f", Qualifier: col, Times: cell.TimeRange{Start: 2000, End: 3000}}},
			nil, nil,
		}
		switch one := muts[r.IntN(len(muts))]; {
		case one != nil:
			both(func(b backend.Backend) error { return b.MutateRow(ctx, sch.Name, &row.Entry{Key: key, Mutations: one}) })
		case r.IntN(3) == 0:
			both(func(b backend.Backend) error { return b.DropRowRange(ctx, sch.Name, key) })
		default:
			both(func(b backend.Backend) error {
				_, err := b.CheckAndMutateRow(ctx, sch.Name, key, nil, []row.Mutation{set}, []row.Mutation{{Op: row.DeleteRow}, set})
				return err
			})
		}
	}
	backup := func(name string) string {
		t.Helper()
		b, err := c.CreateBackup(ctx, sch.Name, &schema.Backup{Name: restoreParent + "/clusters/c/backups/" + name, ExpireTime: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return b.Name
	}
	// The changes whose outcome is noted are those of which there is a record each.
	var stamps []cell.Seq
	read := func() {
		t.Helper()
		stamps = nil
		todo := []row.Range{{}}
		for len(todo) > 0 {
			within := todo[0]
			todo = todo[1:]
			from := stamp.At(want.Stream.Since) - 1
			closed, err := c.ReadChanges(ctx, &changes.Request{Table: sch.Name, Life: 3, Within: within, From: changes.Position{Through: from}, Until: stamp.At(time.Now()), Every: 10 * time.Millisecond}, stampsOf{list: &stamps})
			if err != nil {
				t.Fatal(err)
			}
			if closed != nil {
				todo = append(todo, closed.Partitions...)
			}
		}
		slices.Sort(stamps)
		stamps = slices.Compact(stamps)
	}
	var first string
	type instant struct {
		at    time.Time
		cells string
	}
	var instants []instant
	merges, collected := 0, false
	note := func() {
		t.Helper()
		now := time.Now()
		time.Sleep(2 * time.Microsecond)
		// The model collects nothing.
		kept := func(cells string) string {
			return strings.Join(slices.DeleteFunc(strings.Split(cells, "\n"), func(c string) bool { return strings.Contains(c, " old:") }), "\n")
		}
		got, model := cellsOf(t, c, sch.Name), cellsOf(t, m, sch.Name)
		if collected = collected || got != model; kept(got) != kept(model) {
			t.Fatalf("the table is\n%s\nand the model\n%s", got, model)
		}
		instants = append(instants, instant{now, got})
	}
	for range 30 {
		write()
	}
	first = backup("first")
	for i := range 120 {
		write()
		note()
		at := rowKey()
		switch i % 20 {
		case 4:
			eventually(t, func() error { return c.SplitAt(ctx, sch.Name, fmt.Appendf(nil, "r%dx", i/20)) })
		case 9:
			if rows, err := c.Metadata().Lookup(ctx, sch.ID, at, 1); err != nil {
				t.Fatal(err)
			} else if s := rows[0].Assignment; s != nil && s.State == metadata.Open {
				_ = n.dialers[0].Dial(s.Addr).Flush(ctx, []metadata.TabletID{rows[0].Tablet})
			}
		case 14:
			// The tablet may be the last one, or have none beside it that it fits.
			if c.MergeAt(ctx, sch.Name, at) == nil {
				merges++
			}
		case 19:
			eventually(t, func() error { return c.MoveAt(ctx, sch.Name, at, []string{"server-1", "server-2"}[r.IntN(2)]) })
		}
	}
	if merges == 0 || !collected {
		t.Errorf("%d merges; garbage was collected: %t", merges, collected)
	}
	tables := 0
	same := func(what string, at time.Time, want string) {
		t.Helper()
		tables++
		name := fmt.Sprintf("%s/tables/at-%d", restoreParent, tables)
		got, err := c.RestoreTableAt(ctx, first, name, at, func(*schema.Table) error { return nil })
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		now := cellsOf(t, c, name)
		if live(now) != live(want) || !contains(want, now) {
			t.Errorf("%s: restored to %v:\n%s\nwanted\n%s", what, at, now, want)
		}
		if got.Families["old"].GC == nil || got.Families["f"].GC != nil || got.Stream != nil && got.Stream.Life == 3 {
			t.Errorf("the restored table has families %+v and stream %+v", got.Families, got.Stream)
		}
	}
	for i := 3; i < len(instants); i += 13 {
		same(fmt.Sprintf("after change %d", i), instants[i].at, instants[i].cells)
	}
	// To the stamp: a change is in at its commit time, and not a microsecond before.
	read()
	i := len(instants) / 2
	for i+1 < len(instants) && instants[i].cells == instants[i-1].cells {
		i++
	}
	var exact []cell.Seq
	for _, s := range stamps {
		if at := stamp.Time(s); at.After(instants[i-1].at) && !at.After(instants[i].at) {
			exact = append(exact, s)
		}
	}
	if len(exact) == 0 {
		t.Fatalf("change %d has no stamp", i)
	}
	same("at its commit time", stamp.Time(exact[len(exact)-1]), instants[i].cells)
	same("a microsecond before", stamp.Time(exact[0]).Add(-time.Microsecond), instants[i-1].cells)

	// Nothing is left of it: neither tables nor backups.
	err = catalog.Names(ctx, n.lock.Client(nil, nil), func(_ lock.Item, entries catalog.Name) error {
		for _, e := range entries {
			if catalog.IsStaged(e.Name) {
				t.Errorf("%s is left", e.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if left, err := c.ListBackups(ctx, ""); err != nil || len(left) != 1 {
		t.Errorf("backups %v, %v", left, err)
	}
	restoreRefusals(t, c, sch, first, backup)
}

// live leaves out of a list of cells the garbage: versions of family old but the newest of a row.
// Its collection has a commit time as soon as it is decided. Readers see garbage for some longer,
// until the compaction is done.
func live(cells string) string {
	last := ""
	return strings.Join(slices.DeleteFunc(strings.Split(cells, "\n"), func(c string) bool {
		rowKey, column, _ := strings.Cut(c, " ")
		if !strings.HasPrefix(column, "old:") {
			return false
		}
		older := rowKey == last
		last = rowKey
		return older
	}), "\n")
}

// contains tells whether a list of cells has all of part.
func contains(cells, part string) bool {
	all := strings.Split(cells, "\n")
	return !slices.ContainsFunc(strings.Split(part, "\n"), func(c string) bool { return !slices.Contains(all, c) })
}

// restoreRefusals: what cannot be had is refused with what can be.
func restoreRefusals(t *testing.T, c *client.Client, sch *schema.Table, first string, backup func(string) string) {
	ctx := t.Context()
	refused := func(what, from string, at time.Time, kind fault.Kind, text string) {
		t.Helper()
		_, err := c.RestoreTableAt(ctx, from, restoreParent+"/tables/refused", at, func(*schema.Table) error { return nil })
		if fault.KindOf(err) != kind || !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%s: %v, want %v with %q", what, err, kind, text)
		}
		if _, err := c.Table(ctx, restoreParent+"/tables/refused"); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s: the table is there: %v", what, err)
		}
	}
	refused("the future", first, time.Now().Add(time.Minute), fault.Invalid, "is not over yet")
	refused("before the backup", first, sch.Stream.Since.Add(-time.Second), fault.OutOfRange, "use one that was made before")
	refused("no backup", first+"x", time.Now(), fault.NotFound, "Backup not found")
	if _, err := c.RestoreTableAt(ctx, first, sch.Name, time.Now(), func(*schema.Table) error { return nil }); fault.KindOf(err) != fault.AlreadyExists {
		t.Errorf("over a table: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.RestoreTableAt(gone, first, restoreParent+"/tables/refused", time.Now(), func(*schema.Table) error { return nil }); err == nil {
		t.Error("it is restored for a caller that is gone")
	}
	change := func(s *schema.Stream) {
		t.Helper()
		if _, err := c.UpdateTable(ctx, sch.Name, func(t *schema.Table) error { t.Stream = s; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	change(nil)
	refused("no stream", first, time.Now(), fault.FailedPrecondition, "not enabled")
	change(&schema.Stream{Life: 3, Hidden: true, Retention: time.Hour, Since: sch.Stream.Since})
	refused("a stream for views", first, time.Now(), fault.FailedPrecondition, "not enabled")
	change(&schema.Stream{Life: 3, Enabled: 5, Retention: time.Hour, Since: sch.Stream.Since, EnabledSince: time.Now()})
	refused("a later stream of a table with views", first, time.Now(), fault.FailedPrecondition, "after backup "+first)
	late := backup("late")
	change(&schema.Stream{Life: 4, Retention: 24 * time.Hour, Since: time.Now()})
	for _, b := range []string{first, late} {
		refused("another life", b, time.Now(), fault.FailedPrecondition, "later backups can be brought to a time")
	}
}

// TestRestoreAtFamilyMadeAgain: what was written to a family that took the place of one of
// the backup, or that came and went since, is refused rather than left out.
func TestRestoreAtFamilyMadeAgain(t *testing.T) {
	n := newNetwork(t, 1)
	ctx := t.Context()
	c := n.client()
	sch := streamTable(t, c, nil)
	write := func(family, value string) {
		t.Helper()
		err := c.MutateRow(ctx, sch.Name, &row.Entry{Key: []byte("r"), Mutations: []row.Mutation{{Op: row.SetCell, Family: family, Timestamp: 1000, Value: []byte(value)}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	families := func(change func(*schema.Table)) {
		t.Helper()
		if _, err := c.UpdateTable(ctx, sch.Name, func(t *schema.Table) error { change(t); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) { families(func(t *schema.Table) { delete(t.Families, name) }) }
	added := func(name string) { families(func(t *schema.Table) { t.AddFamily(schema.Family{Name: name}) }) }
	restored := 0
	restore := func(from *schema.Backup, at time.Time) (string, error) {
		t.Helper()
		restored++
		name := fmt.Sprintf("%s/tables/at-%d", restoreParent, restored)
		if _, err := c.RestoreTableAt(ctx, from.Name, name, at, func(*schema.Table) error { return nil }); err != nil {
			return "", err
		}
		return cellsOf(t, c, name), nil
	}
	backup := func(name string) *schema.Backup {
		t.Helper()
		b, err := c.CreateBackup(ctx, sch.Name, &schema.Backup{Name: restoreParent + "/clusters/c/backups/" + name, ExpireTime: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}

	first := backup("first")
	write("f", "a")
	made := time.Now()
	time.Sleep(2 * time.Microsecond)
	gone("f")
	added("f")
	write("f", "b")
	if got, err := restore(first, time.Now()); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "has the name of one that the backup has") {
		t.Errorf("of a family that was made again there is %q, %v", got, err)
	}
	if got, err := restore(first, made); err != nil || got != "r f:@1000=61" {
		t.Errorf("before it was dropped: %q, %v", got, err)
	}
	second := backup("second")
	write("f", "c")
	if got, err := restore(second, time.Now()); err != nil || got != "r f:@1000=63" {
		t.Errorf("a later backup gives %q, %v", got, err)
	}

	// A family that the backup lacks, and the table by now.
	added("g")
	before := time.Now()
	time.Sleep(2 * time.Microsecond)
	write("g", "d")
	gone("g")
	if got, err := restore(second, time.Now()); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "is no more") {
		t.Errorf("without the family that came and went: %q, %v", got, err)
	}
	if got, err := restore(second, before); err != nil || got != "r f:@1000=63" {
		t.Errorf("before it was written: %q, %v", got, err)
	}
	third := backup("third")
	write("f", "e")
	if got, err := restore(third, time.Now()); err != nil || got != "r f:@1000=65" {
		t.Errorf("with a backup that was made after it: %q, %v", got, err)
	}
}

// TestRestoreAtExpired: changes that are no longer kept are not passed over.
func TestRestoreAtExpired(t *testing.T) {
	n := newNetwork(t, 1)
	ctx := t.Context()
	c := n.client()
	sch := streamTable(t, c, nil)
	write := func() {
		t.Helper()
		if err := c.MutateRow(ctx, sch.Name, &row.Entry{Key: []byte("r"), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000, Value: []byte("v")}}}); err != nil {
			t.Fatal(err)
		}
	}
	flush := func() {
		t.Helper()
		rows, err := c.Metadata().Lookup(ctx, sch.ID, []byte("r"), 1)
		if err == nil {
			err = n.dialers[0].Dial(rows[0].Assignment.Addr).Flush(ctx, []metadata.TabletID{rows[0].Tablet})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := c.CreateBackup(ctx, sch.Name, &schema.Backup{Name: restoreParent + "/clusters/c/backups/b", ExpireTime: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	write()
	flush()
	if _, err := c.UpdateTable(ctx, sch.Name, func(t *schema.Table) error { t.Stream.Retention = time.Millisecond; return nil }); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	write()
	flush()
	_, err = c.RestoreTableAt(ctx, b.Name, restoreParent+"/tables/u", time.Now(), func(*schema.Table) error { return nil })
	if fault.KindOf(err) != fault.OutOfRange || !strings.Contains(err.Error(), "are kept from") {
		t.Errorf("it is restored past changes that are gone: %v", err)
	}
}
