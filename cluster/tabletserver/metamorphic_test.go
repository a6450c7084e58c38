package tabletserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/backend"
)

// variants are Options that must make no difference to any answer.
func variants() map[string]Options {
	out := map[string]Options{}
	add := func(name string, change func(*Options)) {
		o := Options{Dir: "d", CacheBytes: 1 << 20}
		change(&o)
		out[name] = o
	}
	add("tiny memtables", func(o *Options) { o.Tablet.MemtableBytes = 1 })
	add("tiny files", func(o *Options) { o.Tablet.MemtableBytes, o.Tablet.FileBytes = 1, 1; o.Tablet.Table.BlockBytes = 64 })
	add("columns in filters", func(o *Options) { o.Tablet.MemtableBytes, o.Tablet.Table.FilterColumns = 1, 1 })
	add("one run", func(o *Options) { o.Tablet.MemtableBytes, o.Tablet.TargetRuns = 1, 1 })
	add("many runs", func(o *Options) { o.NoBackground = true; o.Tablet.TargetRuns, o.Tablet.MaxRuns = 50, 1000 })
	add("no background", func(o *Options) { o.NoBackground = true })
	add("tiny cache", func(o *Options) { o.Tablet.MemtableBytes, o.CacheBytes = 1, 1 })
	add("no row cache", func(o *Options) { o.Tablet.MemtableBytes, o.RowCacheBytes = 1, -1 })
	add("tiny row cache", func(o *Options) { o.Tablet.MemtableBytes, o.RowCacheBytes = 1, 128<<10 })
	add("async", func(o *Options) { o.Durability = commitlog.Async; o.SegmentBytes = 4 << 10 })
	add("no Bloom filters", func(o *Options) { o.Tablet.MemtableBytes = 1; o.Tablet.Table.BloomBitsPerKey = -1 })
	return out
}

// TestVariants compares random operations with the model under many Options,
// with flushes and compactions at any time.
func TestVariants(t *testing.T) {
	// rapid's 100 for each variant take a minute and a half; make meta runs more.
	if checks := flag.Lookup("rapid.checks"); os.Getenv("RAPID_CHECKS") == "" {
		old := checks.Value.String()
		if err := flag.Set(checks.Name, "40"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set(checks.Name, old) })
	}
	for name, o := range variants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // one after the other uses half of two processors
			n := uint64(0)
			backendtest.Random(t, func(t testing.TB) backend.Backend {
				o := o
				o.FS = vfs.NewMem()
				s := mustOpen(t, o)
				stop := make(chan struct{})
				var churning sync.WaitGroup
				n++
				for i := range uint64(2) { // two, so that compactions are beside each other
					rng := rand.New(rand.NewPCG(n, 9+i))
					churning.Go(func() {
						if err := churn(s, rng, stop); err != nil {
							t.Errorf("churn: %v", err)
						}
					})
				}
				churning.Go(func() { relieveMeta(t, s, stop) })
				t.Cleanup(func() {
					close(stop)
					churning.Wait()
					mustClose(t, s)
				})
				return groupedStore{s, int(n % arranging)}
			})
		})
	}
}

// TestGC writes, deletes, flushes, compacts, splits, merges, drops, reopens and
// moves the clock at random, under rules. Any read then returns every cell that
// no rule has ever been able to collect, and never one that was overwritten or
// deleted (invariant I9).
func TestGC(t *testing.T) {
	first, end := seeds(t, 200)
	done := map[string]int{}
	for seed := first; seed < end; seed++ {
		if g := newGCRun(t, seed); !t.Failed() {
			g.run()
			for kind, n := range g.done {
				done[kind] += n
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Log(done)
	if end-first < 20 {
		return
	}
	for _, kind := range []string{"mutate", "read-modify-write", "drop", "flush", "rotate", "compact", "major compaction", "begin a compaction", "end a compaction",
		"two compactions", "flush beside", "drop beside", "move", "settings of", "split", "merge", "reopen", "clock", "rule of", "back up", "restore",
		"layout 0", "layout 1", "layout 2", "layout 3", "row", "reversed", "limit"} {
		if done[kind] == 0 {
			t.Errorf("in %d seeds there was no %q: %v", end-first, kind, done)
		}
	}
}

// TestRollback: who deletes the newest version gets the one before, and keeps
// it, even if the two were compacted by a rule by which that one could go only
// while there was a newer one.
func TestRollback(t *testing.T) {
	twoOld := &schema.GCRule{Intersection: []*schema.GCRule{{MaxVersions: 1}, {MaxAge: time.Millisecond}}}
	for name, tc := range map[string]struct{ before, after *schema.GCRule }{
		"intersection": {twoOld, nil},
		"new rule":     {nil, &schema.GCRule{MaxVersions: 1}},
	} {
		for _, flushed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, deletion flushed %v", name, flushed), func(t *testing.T) {
				now := &hand{now: time.UnixMicro(3000)}
				s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true, Now: now.Now})
				defer mustClose(t, s)
				sch := newSchema("t", 1000, "f")
				sch.Families["f"] = schema.Family{Name: "f", GC: tc.before}
				table := mustCreate(t, s, sch)
				tt := s.tabletsOf(table)[0]
				for i := range 2 { // in two runs, so that there is something to compact
					mustPut(t, s, table, "r", setCell("f", "q", int64(2+i)*1000, fmt.Sprint("v", i)))
					if err := s.flush(ctx, tt); err != nil {
						t.Fatal(err)
					}
				}
				// A bad version, and the way back.
				mustPut(t, s, table, "r", row.Mutation{Op: row.DeleteColumn, Family: "f", Qualifier: []byte("q"),
					Times: cell.TimeRange{Start: 3000, End: 4000}})
				if flushed {
					tt.Rotate()
				}
				now.advance(time.Hour)
				if tc.after != nil {
					if _, err := s.UpdateTable(ctx, table, func(s *schema.Table) error {
						s.Families["f"] = schema.Family{Name: "f", ID: s.Families["f"].ID, GC: tc.after}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				}
				want := "\"r\" f:\"q\"@2000=\"v0\"\n"
				for range 2 {
					tt.RequestMajor()
					if _, err := tt.Compact(ctx); err != nil {
						t.Fatal(err)
					}
					if got := content(s, table, row.All); got != want {
						t.Errorf("got %q, want %q", got, want)
					}
					if err := s.flush(ctx, tt); err != nil {
						t.Fatal(err)
					}
				}
				mustPut(t, s, table, "r", setCell("f", "q", 1000, "older"))
				if err := s.flush(ctx, tt); err != nil {
					t.Fatal(err)
				}
				now.advance(time.Hour)
				tt.RequestMajor()
				if _, err := tt.Compact(ctx); err != nil {
					t.Fatal(err)
				}
				if got := content(s, table, row.All); got != want {
					t.Errorf("what can be collected was not: got %q, want %q", got, want)
				}
			})
		}
	}
}

type gcRun struct {
	maker
	t     *testing.T
	fs    *vfs.MemFS
	o     Options
	s     *Store
	model *model.Backend
	table string
	keys  []string
	clock sync.Mutex // guards now: the master asks too
	now   time.Time  // of the engine
	// latest is the latest that the clock ever said.
	latest time.Time
	// spent holds the cells of the model that a rule could have collected.
	spent map[string]bool
	log   []string
	seed  uint64
	done  map[string]int // operations by kind
	// gate stops a compaction before it writes anything; held is the one that it
	// has stopped, nil if there is none.
	gate   gate
	held   chan error
	holder *tablet.Tablet // whose compaction it is
	// saved is what the table held when it was backed up, nil if it was not.
	saved *savedTable
}

type savedTable struct {
	cells map[string]string
	spent map[string]bool
}

// A gate stops whoever creates the next SSTable once it is shut.
type gate struct {
	objectstore.Store
	shut             atomic.Bool
	reached, release chan struct{}
}

func (g *gate) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if g.shut.CompareAndSwap(true, false) {
		release := g.release
		close(g.reached)
		<-release
	}
	return g.Store.Create(ctx, name)
}

// beginCompaction begins a compaction of tt that goes on beside whatever comes,
// until endCompaction.
func (g *gcRun) beginCompaction(tt *tablet.Tablet) {
	g.gate.reached, g.gate.release = make(chan struct{}), make(chan struct{})
	g.gate.shut.Store(true)
	held := make(chan error, 1)
	go func() {
		_, err := tt.Compact(ctx)
		held <- err
	}()
	select {
	case <-g.gate.reached:
		g.held, g.holder = held, tt
	case err := <-held: // it writes nothing
		g.gate.shut.Store(false)
		if err != nil {
			g.fail("compact: %v", err)
		}
	}
}

func (g *gcRun) endCompaction() {
	if g.held == nil {
		return
	}
	g.did("end a compaction")
	close(g.gate.release)
	err := <-g.held
	g.held = nil
	if err != nil {
		g.fail("compaction beside others: %v", err)
	}
}

// did notes an operation.
func (g *gcRun) did(kind string, args ...any) {
	g.done[kind]++
	if g.held != nil {
		g.done[kind+" beside"]++
	}
	g.log = append(g.log, strings.TrimSpace(kind+" "+fmt.Sprint(args...)))
}

func newGCRun(t *testing.T, seed uint64) *gcRun {
	g := &gcRun{t: t, seed: seed, fs: vfs.NewMem(), spent: map[string]bool{}, done: map[string]int{}, now: time.UnixMicro(10_000), keys: []string{"a", "a\x00", "b", "c", "d\xff"}}
	g.Rand = rand.New(rand.NewPCG(seed, 99))
	g.families, g.aggregates, g.qualifiers = []string{"a", "b"}, []string{"sum"}, []string{"", "q", "q\x00"}
	g.latest = g.now
	clock := func() time.Time {
		g.clock.Lock()
		defer g.clock.Unlock()
		return g.now
	}
	g.o = Options{FS: g.fs, Dir: "d", NoBackground: true, Now: clock, CacheBytes: 1 << 20, Tend: 10 * time.Millisecond}
	g.o.Tablet.FileBytes = []int64{1, 1 << 20}[g.IntN(2)]
	g.o.Tablet.TargetRuns = 1 + g.IntN(5)
	g.o.Tablet.MaxRuns = 10_000
	g.o.Tablet.MajorInterval = 50 * time.Millisecond
	g.s = g.open()
	g.model = model.New(model.Options{Now: clock})
	sch := newSchema("gc", 1000, "a", "b", "sum=sum")
	var splits []string
	if g.IntN(2) == 0 {
		splits = []string{"b"}
	}
	for _, name := range sch.FamilyNames() {
		f := sch.Families[name]
		f.GC = g.rule(2)
		sch.Families[name] = f
	}
	how := g.IntN(arranging)
	g.done[fmt.Sprint("layout ", how)]++
	g.table = mustCreate(t, g.s, arrange(sch, how), splits...)
	mustCreate(t, g.model, sch)
	return g
}

// open opens the store, with a gate before what it writes.
func (g *gcRun) open() *Store {
	s := mustOpen(g.t, g.o)
	g.gate.Store, s.env.Objects = s.env.Objects, &g.gate
	return s
}

func (g *gcRun) rule(depth int) *schema.GCRule {
	switch n := g.IntN(4 + 2*depth); n {
	case 0:
		return nil
	case 1, 2:
		return &schema.GCRule{MaxVersions: 1 + int32(g.IntN(3))}
	case 3:
		return &schema.GCRule{MaxAge: time.Duration(1+g.IntN(20)) * time.Millisecond}
	default:
		rules := []*schema.GCRule{g.rule(depth - 1), g.rule(depth - 1)}
		if n%2 == 0 {
			return &schema.GCRule{Union: rules}
		}
		return &schema.GCRule{Intersection: rules}
	}
}

// wanted returns the rows of the model.
func (g *gcRun) wanted() []backendtest.Row {
	rows, err := readRows(g.model, &scan.Request{Table: g.table, Ranges: []row.Range{row.All}})
	if err != nil {
		g.t.Fatal(err)
	}
	return rows
}

func cellID(key string, c *row.Cell) string {
	return fmt.Sprintf("%q %s %q %d", key, c.Family, c.Qualifier, c.Timestamp)
}

// mark notes what rules can collect now. Cells that are gone, or were written
// anew with another value, are fresh.
func (g *gcRun) mark(before map[string]string) {
	sch, err := g.s.Table(ctx, g.table)
	if err != nil {
		g.t.Fatal(err)
	}
	live := map[string]bool{}
	for _, r := range g.wanted() {
		rank, last := 0, ""
		for i := range r.Cells {
			c := &r.Cells[i]
			if col := c.Family + ":" + string(c.Qualifier); col != last {
				rank, last = 0, col
			}
			id := cellID(r.Key, c)
			live[id] = true
			if v, ok := before[id]; !ok || v != string(c.Value) {
				delete(g.spent, id)
			}
			if sch.Families[c.Family].GC.Collects(rank, c.Timestamp, g.latest.UnixMicro()) {
				g.spent[id] = true
			}
			rank++
		}
	}
	for id := range g.spent {
		if !live[id] {
			delete(g.spent, id)
		}
	}
}

func (g *gcRun) cells() map[string]string {
	out := map[string]string{}
	for _, r := range g.wanted() {
		for i := range r.Cells {
			out[cellID(r.Key, &r.Cells[i])] = string(r.Cells[i].Value)
		}
	}
	return out
}

// write does op to both.
func (g *gcRun) write(kind, what string, op func(b backend.Backend) (string, error)) {
	g.did(kind, what)
	before := g.cells()
	want, wantErr := op(g.model)
	got, gotErr := op(g.s)
	if want != got || kindOf(wantErr) != kindOf(gotErr) {
		g.fail("%s %s: got %q, %v, want %q, %v", kind, what, got, gotErr, want, wantErr)
	}
	g.mark(before)
}

func (g *gcRun) fail(format string, args ...any) {
	g.t.Helper()
	if n := len(g.log); n > 40 {
		g.log = g.log[n-40:]
	}
	args = append([]any{g.seed}, args...)
	args = append(args, show(g.wanted()), strings.Join(g.log, "\n"))
	if sch, err := g.s.Table(ctx, g.table); err == nil {
		b, _ := json.Marshal(sch.Families)
		args = append(args, string(b))
	}
	g.t.Fatalf("seed %d: "+format+"\nwanted (some may be gone):\n%s\nlog:\n%s\nfamilies %s", args...)
}

// writable tells whether muts write nothing whose outcome depends on a spent
// cell. A cell must not be written anew with the value it had either: its old
// fate would be forgotten.
func (g *gcRun) writable(key string, muts []row.Mutation) bool {
	for _, m := range muts {
		if m.Op == row.AddToCell && g.spent[cellID(key, &row.Cell{Family: m.Family, Qualifier: m.Qualifier, Timestamp: m.Timestamp})] {
			return false
		}
	}
	return true
}

func (g *gcRun) step() {
	key := g.pick(g.keys)
	tablets := g.s.tabletsOf(g.table)
	tt := tablets[g.IntN(len(tablets))]
	must := func(kind string, err error) {
		g.did(kind)
		if err != nil {
			g.fail("%s: %v", kind, err)
		}
	}
	switch n := g.IntN(110); {
	case n < 40:
		e := &row.Entry{Key: []byte(key), Mutations: g.mutations()}
		for i := range e.Mutations {
			if m := &e.Mutations[i]; m.Op == row.SetCell {
				m.Value = fmt.Appendf(nil, "v%d", g.Uint32())
			}
		}
		if g.writable(key, e.Mutations) {
			g.write("mutate", fmt.Sprintf("%q %s", key, brief(e.Mutations)), func(b backend.Backend) (string, error) { return "", b.MutateRow(ctx, g.table, e) })
		}
	case n < 45:
		rules := g.rules()
		for _, r := range g.wanted() {
			for i := range r.Cells {
				if r.Key == key && g.spent[cellID(key, &r.Cells[i])] {
					return // perhaps the newest
				}
			}
		}
		g.write("read-modify-write", fmt.Sprintf("%q %+v", key, rules), func(b backend.Backend) (string, error) {
			cells, err := b.ReadModifyWriteRow(ctx, g.table, []byte(key), rules)
			return fmt.Sprint(cells), err
		})
	case n < 49:
		prefix := []byte(g.pick([]string{"", "a", "b", "c", "d"}))
		g.write("drop", fmt.Sprintf("%q", prefix), func(b backend.Backend) (string, error) { return "", b.DropRowRange(ctx, g.table, prefix) })
	case n < 60:
		must("flush", g.s.flush(ctx, tt))
	case n < 65:
		tt.Rotate()
		g.did("rotate")
	case n < 75:
		more, err := tt.Compact(ctx)
		must("compact", err)
		if more && g.held != nil && tt == g.holder {
			g.done["two compactions"]++
		}
	case n < 79:
		tt.RequestMajor()
		_, err := tt.Compact(ctx)
		must("major compaction", err)
	case n < 82:
		must("move", move(g.s, g.Rand, g.table))
	case n < 83: // it waits until nothing is compacted
		g.endCompaction()
		// Refusals are fine.
		if err := g.s.SplitTablet(ctx, g.table, []byte(key)); err == nil {
			g.did("split", key)
		}
	case n < 85:
		if i := slices.Index(tablets, tt); i+1 < len(tablets) {
			g.endCompaction()
			must("merge", g.s.MergeTablets(ctx, g.table, tt.Bounds().Start))
		}
	case n < 88:
		g.endCompaction()
		must("reopen", g.s.Close(ctx))
		g.s = g.open()
	case n < 96:
		before := g.cells()
		g.clock.Lock()
		g.now = g.now.Add(time.Duration(g.IntN(12)) * time.Millisecond)
		if g.IntN(4) == 0 { // the clock is set back
			g.now = g.now.Add(-time.Duration(g.IntN(10)) * time.Millisecond)
			if g.now.UnixMicro() < 0 { // no timestamp is negative
				g.now = time.UnixMicro(0)
			}
		}
		g.clock.Unlock()
		if g.now.After(g.latest) {
			g.latest = g.now
		}
		g.did("clock", g.now.UnixMicro())
		g.mark(before)
	case n < 103:
		if g.held == nil {
			if g.IntN(3) == 0 {
				tt.RequestMajor()
			}
			g.did("begin a compaction")
			g.beginCompaction(tt)
			return
		}
		g.endCompaction()
	case n < 104:
		must("settings of", g.settings())
	case n < 106:
		if g.saved == nil {
			_, err := g.s.CreateBackup(ctx, g.table, &schema.Backup{Name: "saved"})
			must("back up", err)
			g.saved = &savedTable{g.cells(), maps.Clone(g.spent)}
			return
		}
		g.restore()
	default:
		f, r := g.pick(g.families), g.rule(1)
		b, _ := json.Marshal(r)
		g.write("rule of", fmt.Sprintf("%s: %s", f, b), func(b backend.Backend) (string, error) {
			_, err := b.UpdateTable(ctx, g.table, func(s *schema.Table) error {
				fam := s.Families[f]
				fam.GC = r
				s.Families[f] = fam
				return nil
			})
			return "", err
		})
	}
}

// settings changes those of a locality group.
func (g *gcRun) settings() error {
	sch, err := g.s.Schema(ctx, g.table)
	if err != nil {
		return err
	}
	groups := sch.AllGroups()
	_, err = g.s.SetGroup(ctx, g.table, groups[g.IntN(len(groups))].Name, func(c *schema.Group) error {
		switch g.IntN(4) {
		case 0:
			c.Compression = g.pick([]string{"none", "snappy", "minlz", "zstd"})
		case 1:
			c.BlockBytes = 512 << g.IntN(8)
		case 2:
			c.BloomBits = []int{-1, 10}[g.IntN(2)]
		default:
			c.InMemory = !c.InMemory
		}
		return nil
	})
	return err
}

// restore makes a table of the backup, which has what the table had when it was
// made, and forgets both.
func (g *gcRun) restore() {
	g.did("restore")
	name := parent + "restored"
	if _, err := g.s.RestoreTable(ctx, "saved", name, func(*schema.Table) error { return nil }); err != nil {
		g.fail("restore: %v", err)
	}
	got, err := readRows(g.s, &scan.Request{Table: name, Ranges: []row.Range{row.All}})
	if err != nil {
		g.fail("read what was restored: %v", err)
	}
	found := map[string]string{}
	for _, r := range got {
		for i := range r.Cells {
			found[cellID(r.Key, &r.Cells[i])] = string(r.Cells[i].Value)
		}
	}
	for id, v := range found {
		if g.saved.cells[id] != v {
			g.fail("restored: %s is %q, when the backup was made it was %q", id, v, g.saved.cells[id])
		}
	}
	for id := range g.saved.cells {
		if _, ok := found[id]; !ok && !g.saved.spent[id] {
			g.fail("restored: %s is lost", id)
		}
	}
	if err := g.s.DeleteTable(ctx, name); err != nil {
		g.fail("delete: %v", err)
	}
	if err := g.s.DeleteBackup(ctx, "saved"); err != nil {
		g.fail("delete backup: %v", err)
	}
	g.saved = nil
}

// brief renders mutations.
func brief(muts []row.Mutation) string {
	var b strings.Builder
	for _, m := range muts {
		switch m.Op {
		case row.SetCell:
			fmt.Fprintf(&b, " set %s:%q@%d=%s", m.Family, m.Qualifier, m.Timestamp, m.Value)
		case row.AddToCell:
			fmt.Fprintf(&b, " add %s:%q@%d+%d", m.Family, m.Qualifier, m.Timestamp, m.Input.Int)
		case row.DeleteColumn:
			fmt.Fprintf(&b, " delete %s:%q[%d,%d)", m.Family, m.Qualifier, m.Times.Start, m.Times.End)
		default:
			fmt.Fprintf(&b, " delete %s", m.Family)
		}
	}
	return b.String()
}

// check reads in several ways.
func (g *gcRun) check() {
	ranges := []row.Range{row.All}
	if g.IntN(3) == 0 {
		ranges = nil
		for range 1 + g.IntN(3) {
			a, b := g.pick(g.keys), g.pick(g.keys)
			switch g.IntN(3) {
			case 0:
				ranges = append(ranges, row.Single([]byte(a)))
			case 1:
				ranges = append(ranges, row.Range{Start: []byte(a), End: []byte(b)})
			default:
				ranges = append(ranges, row.Prefix([]byte(a)))
			}
		}
		ranges = row.Union(ranges)
	}
	req := &scan.Request{Table: g.table, Ranges: ranges, Reversed: g.IntN(2) == 0}
	for kind, is := range map[string]bool{"reversed": req.Reversed, "row": len(ranges) > 0 && ranges[0].IsSingle()} {
		if is {
			g.done[kind]++
		}
	}
	got, err := readRows(g.s, req)
	if err != nil {
		g.fail("read: %v", err)
	}
	found := map[string]string{}
	for _, r := range got {
		for i := range r.Cells {
			found[cellID(r.Key, &r.Cells[i])] = string(r.Cells[i].Value)
		}
	}
	in := func(key string) bool {
		return slices.ContainsFunc(ranges, func(r row.Range) bool { return r.Contains([]byte(key)) })
	}
	want := map[string]string{}
	for _, r := range g.wanted() {
		if !in(r.Key) {
			continue
		}
		for i := range r.Cells {
			id := cellID(r.Key, &r.Cells[i])
			want[id] = string(r.Cells[i].Value)
			if _, ok := found[id]; !ok && !g.spent[id] {
				g.fail("%s = %q is lost (%q, reversed %v)", id, r.Cells[i].Value, ranges, req.Reversed)
			}
		}
	}
	for id, v := range found {
		if w, ok := want[id]; !ok || v != w {
			g.fail("%s is %q, want %q (%v) (%q, reversed %v)", id, v, w, ok, ranges, req.Reversed)
		}
	}
	if req.Limit = int64(1 + g.IntN(3)); len(got) > 0 {
		g.done["limit"]++
		some, err := readRows(g.s, req)
		if err != nil {
			g.fail("read: %v", err)
		}
		if n := min(int(req.Limit), len(got)); show(some) != show(got[:n]) {
			g.fail("limit %d: got\n%swant\n%s", req.Limit, show(some), show(got[:n]))
		}
	}
}

func (g *gcRun) run() {
	for range 30 + g.IntN(120) {
		g.step()
		g.check()
	}
	g.endCompaction()
	// After major compactions everything collectable is gone, and what was
	// dropped is.
	if err := g.s.Flush(ctx); err != nil {
		g.fail("flush: %v", err)
	}
	for _, tt := range g.s.tabletsOf(g.table) {
		tt.RequestMajor()
		for {
			more, err := tt.Compact(ctx)
			if err != nil {
				g.fail("major compaction: %v", err)
			}
			if !more {
				break
			}
		}
		if r := tt.Row(); len(r.RangeDel) > 0 {
			g.fail("after a major compaction of tablet %d: range tombstones %v", tt.ID(), r.RangeDel)
		}
	}
	g.check()
	sch, _ := g.s.Table(ctx, g.table)
	got, err := readRows(g.s, &scan.Request{Table: g.table, Ranges: []row.Range{row.All}})
	if err != nil {
		g.fail("read: %v", err)
	}
	for _, r := range got {
		rank, last := 0, []byte(nil)
		for i := range r.Cells {
			c := &r.Cells[i]
			if col := []byte(c.Family + ":" + string(c.Qualifier)); !bytes.Equal(col, last) {
				rank, last = 0, col
			}
			if sch.Families[c.Family].GC.Collects(rank, c.Timestamp, g.now.UnixMicro()) {
				g.fail("%s is collectable and outlived a major compaction", cellID(r.Key, c))
			}
			rank++
		}
	}
	checkStore(g.t, g.s)
	mustClose(g.t, g.s)
}
