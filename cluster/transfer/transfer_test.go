package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/leaktest"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/tablet"
)

func TestMain(m *testing.M) {
	// The sessions of processes that were killed end by themselves.
	leaktest.Main(m, goleak.IgnoreAnyFunction("github.com/trestledb/trestle/cluster/lock/memory.(*session).expire"))
}

const (
	parent  = "projects/p/instances/i/tables/"
	ttl     = 100 * time.Millisecond // where processes are killed by the hundred, and runs repeated
	patient = 15 * time.Second       // elsewhere: the machine may be busy
	again   = "trestle cluster adopt"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func tuned() tabletserver.Options {
	return tabletserver.Options{CacheBytes: 1 << 20, RowCacheBytes: -1, SplitRate: -1, SplitBytes: -1, TTL: ttl,
		Tablet: tablet.Options{MemtableBytes: 64 << 10, FileBytes: 16 << 10, TargetRuns: 4}}
}

// serve opens the directory d, as `trestle serve` does.
func serve(t testing.TB, fs vfs.FS, dir string) (*standalone.Server, error) {
	t.Helper()
	o := standalone.Options{Dir: dir, FS: fs, Log: commitlog.Options{SegmentBytes: 64 << 10}, TabletServer: tuned()}
	o.Master.Sweep, o.Master.Merge, o.Master.Balance = -1, -1, -1
	return standalone.Open(t.Context(), o)
}

// end closes a server; now leaves to the logs what is in them.
func end(t testing.TB, s interface{ Close(context.Context) error }, now bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if now {
		cancel()
	}
	must(t, s.Close(ctx))
}

// directory opens a side in a directory.
func directory(t testing.TB, fs vfs.FS, dir string) (Side, func()) {
	t.Helper()
	s, done, err := tryDirectory(t, fs, dir)
	must(t, err)
	s.TTL = patient
	return s, done
}

func tryDirectory(t testing.TB, fs vfs.FS, dir string) (Side, func(), error) {
	p, err := standalone.OpenParts(t.Context(), standalone.Options{Dir: dir, FS: fs, Log: commitlog.Options{SegmentBytes: 64 << 10}})
	if err != nil {
		return Side{}, nil, err
	}
	return Side{Name: "data directory " + dir, Lock: p.Lock, Objects: p.Objects, Private: p.Private, TTL: ttl}, func() { _ = p.Close() }, nil
}

// clusterOf returns a side on a lock service and a store in a directory.
func clusterOf(t testing.TB, fs vfs.FS, dir string, l lock.Service) Side {
	t.Helper()
	s, err := tryCluster(fs, dir, l)
	must(t, err)
	s.TTL = patient
	return s
}

func tryCluster(fs vfs.FS, dir string, l lock.Service) (Side, error) {
	store, err := objectstore.OpenLocal(fs, dir, objectstore.LocalOptions{})
	return Side{Name: "cluster " + dir, Lock: l, Objects: objectstore.Sub(store, "sst"), Logs: objectstore.Sub(store, "log"), Copies: objectstore.Sub(store, "etcd"), TTL: ttl}, err
}

// A running cluster has one server, and the master.
type running struct {
	*client.Client
	ts   *tabletserver.Server
	lock *sessions // the server's
	stop func()
	done sync.WaitGroup
}

func serveCluster(t testing.TB, s Side) *running {
	t.Helper()
	must(t, catalog.CheckTransfer(t.Context(), s.Lock))
	d := new(dialer)
	o := tuned()
	r := &running{lock: &sessions{Service: s.Lock}}
	o.Name, o.Addr, o.Lock, o.Dialer, o.Objects, o.Logs, o.Copies = "one", "one", r.lock, d, s.Objects, s.Logs, s.Copies
	o.TTL = patient
	ts, err := tabletserver.Start(t.Context(), o)
	must(t, err)
	d.server.Store(ts)
	r.ts = ts
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.done.Go(func() {
		_ = master.Run(ctx, master.Options{Name: "m", Lock: s.Lock, Dialer: d, TTL: patient, Interval: 20 * time.Millisecond, Attend: -1, Balance: -1, Merge: -1,
			Sweep: -1, Objects: s.Objects, Logs: s.Logs, Copies: s.Copies, Copy: 50 * time.Millisecond})
	})
	r.Client = client.New(client.Options{Lock: s.Lock, Dialer: d, Schemas: ts.Schemas(), Near: true})
	return r
}

// close ends master and server; now, as a crash would.
func (r *running) close(t testing.TB, now bool) {
	t.Helper()
	r.stop()
	r.done.Wait()
	if now {
		r.ts.Kill()
		r.lock.end(t)
	}
	end(t, r.ts, now)
}

// sessions is a lock service that can end all sessions, as time would.
type sessions struct {
	lock.Service
	mu  sync.Mutex
	all []lock.Session
}

func (s *sessions) NewSession(ctx context.Context, ttl time.Duration) (lock.Session, error) {
	session, err := s.Service.NewSession(ctx, ttl)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, session)
	}
	return session, err
}

func (s *sessions) end(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.all {
		must(t, session.Close(context.WithoutCancel(t.Context())))
	}
}

// runShort is Run of a cluster, which waits for a ttl, and for two if somebody serves it.
// Where a busy machine lets a session end, it is tried again with a longer one.
func runShort(t testing.TB, from, to Side) (r Result, err error) {
	t.Helper()
	for limit := 2 * time.Second; limit < time.Minute; limit *= 2 {
		from.TTL, to.TTL = limit, limit
		if r, err = Run(t.Context(), from, to, Options{Command: "trestle cluster release"}); !errors.Is(err, fault.Unavailable) {
			break
		}
	}
	return r, err
}

func put(t testing.TB, c *client.Client, table, key, family, qualifier, value string, ts int64) {
	t.Helper()
	must(t, c.MutateRow(t.Context(), parent+table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
		{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: ts, Value: []byte(value)}}}))
}

// fill makes tables with all that a transfer could lose.
func fill(t testing.TB, c *client.Client) {
	t.Helper()
	ctx := t.Context()
	for _, name := range []string{"a", "gone", "other"} {
		_, err := c.CreateTable(ctx, &schema.Table{Name: parent + name, Granularity: 1000, Families: map[string]schema.Family{
			"f": {Name: "f", GC: &schema.GCRule{MaxVersions: 3}}, "g": {Name: "g"}}}, [][]byte{[]byte("row020")})
		must(t, err)
	}
	for i := range 60 {
		for v := range 5 {
			put(t, c, "a", fmt.Sprintf("row%03d", i), []string{"f", "g"}[v%2], "q", fmt.Sprintf("value %d of %d", v, i), int64(v+1)*1000)
		}
		put(t, c, "other", fmt.Sprintf("row%03d", i), "f", "q", strings.Repeat("x", i), 1000)
	}
	_, err := c.CreateBackup(ctx, parent+"a", &schema.Backup{Name: "projects/p/instances/i/clusters/c/backups/b"})
	must(t, err)
	must(t, c.SplitAt(ctx, parent+"a", []byte("row040")))
	must(t, c.MutateRow(ctx, parent+"a", &row.Entry{Key: []byte("row003"), Mutations: []row.Mutation{{Op: row.DeleteRow}}}))
	must(t, c.MutateRow(ctx, parent+"a", &row.Entry{Key: []byte("row045"), Mutations: []row.Mutation{{Op: row.DeleteFamily, Family: "f"}}}))
	must(t, c.DropRowRange(ctx, parent+"other", []byte("row00")))
	must(t, c.DeleteTable(ctx, parent+"gone"))
	_, err = c.PutRecord(ctx, "policies/x", []byte("a policy"), 0)
	must(t, err)
	_, err = c.PutRecord(ctx, "secrets/token", []byte("a secret"), 0)
	must(t, err)
	put(t, c, "a", "last", "g", "q", "in the log alone", 5000)
}

// filled makes a directory with tables, whose server has ended, and returns their contents; now
// leaves to the logs what is in them.
func filled(t testing.TB, fs vfs.FS, dir string, now bool) string {
	t.Helper()
	s, err := serve(t, fs, dir)
	must(t, err)
	fill(t, s.Client)
	want := contents(t, s.Client)
	end(t, s, now)
	return want
}

// contents are the cells of all tables, as readers see them.
func contents(t testing.TB, c *client.Client) string {
	t.Helper()
	w := &collector{}
	for _, name := range []string{"a", "other"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for { // the tablets may not be served yet
			w.table.Reset()
			_, err := c.ReadRows(ctx, &scan.Request{Table: parent + name, Ranges: []row.Range{row.All}}, w)
			if err == nil {
				break
			}
			if !errors.Is(err, fault.Unavailable) || ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		cancel()
		fmt.Fprintf(&w.out, "table %s\n%s", name, w.table.String())
	}
	return w.out.String()
}

type collector struct{ out, table strings.Builder }

func (c *collector) StartRow(key []byte) { fmt.Fprintf(&c.table, "%s\n", key) }
func (c *collector) Cell(x *row.Cell) {
	fmt.Fprintf(&c.table, "\t%s:%s@%d %s\n", x.Family, x.Qualifier, x.Timestamp, x.Value)
}
func (*collector) EndRow() (bool, error) { return false, nil }
func (*collector) Scanned([]byte)        {}
func (*collector) Flush() error          { return nil }

// everything is what METADATA and its SSTables hold, with each entry that they have,
// hidden or not, and the items that last: a line for each table, tablet, backup and
// item.
func everything(t testing.TB, s Side) string {
	t.Helper()
	s.TTL = patient
	ctx, free, err := holdMasters(t.Context(), s)
	must(t, err)
	defer func() { must(t, free()) }()
	var out strings.Builder
	items, _, err := durableItems(ctx, s.Lock)
	must(t, err)
	for _, i := range items {
		if !strings.HasPrefix(i.Key, "root/") && i.Key != catalog.IncarnationKey {
			fmt.Fprintf(&out, "%s %s\n", i.Key, i.Value)
		}
	}
	r, err := open(ctx, s, Options{}.withDefaults())
	must(t, err)
	defer func() { must(t, r.server.Close(t.Context())) }()
	cache := sstable.NewCache(1<<20, 0)
	defer cache.Close()
	must(t, r.meta.Scan(ctx, func(m *metadata.Row) error {
		h := sha256.New()
		n := 0
		for _, f := range m.Files {
			in, err := s.Objects.Open(ctx, f.Object)
			if err != nil {
				return err
			}
			table, err := sstable.Open(ctx, cache, in, f.Object)
			if err != nil {
				return err
			}
			it, err := table.CompactionIterator(ctx)
			if err != nil {
				return err
			}
			for ok := it.First(); ok; ok = it.Next() {
				e := it.Entry()
				fmt.Fprintf(h, "%x %d %v %x\n", e.Key, e.Seq, e.Kind, e.Value)
				n++
			}
			err = it.Error()
			it.Close()
			if err := errors.Join(err, table.Close()); err != nil {
				return err
			}
		}
		m.Assignment, m.Version = nil, 0
		b, err := json.Marshal(m)
		fmt.Fprintf(&out, "%s %d entries %x\n", b, n, h.Sum(nil))
		return err
	}))
	return out.String()
}

func checked(t testing.TB, fs vfs.FS, dir string) check.Summary {
	t.Helper()
	sum, err := check.Directory(t.Context(), fs, dir, nil, func(f check.Finding) {
		if !f.Harmless {
			t.Errorf("check: %+v", f)
		}
	})
	must(t, err)
	return sum
}

func same(t testing.TB, what, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("%s: line %d\n%s\nwant\n%s", what, i, g[i], w[i])
		}
	}
	t.Fatalf("%s: %d lines, want %d", what, len(g), len(w))
}

func refused(t testing.TB, err error, kind fault.Kind, text string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Fatalf("%v, want %v with %q", err, kind, text)
	}
}

// TestThereAndBack: a directory becomes a cluster, which is written to and killed,
// and that a directory again. Nothing is lost, and each is served only when it is to
// be.
func TestThereAndBack(t *testing.T) {
	fs := vfs.NewMem()
	want := filled(t, fs, "a", true)

	service := memory.New()
	from, release := directory(t, fs, "a")
	to := clusterOf(t, fs, "c", service.Client(nil, nil))
	r, err := Run(t.Context(), from, to, Options{Command: again})
	must(t, err)
	if r.Tables != 3 || r.Tablets != 7 || r.Backups != 1 || r.SSTables == 0 || r.Again {
		t.Errorf("%+v", r)
	}
	if r, err = Run(t.Context(), from, to, Options{Command: again}); err != nil || !r.Again {
		t.Errorf("again: %+v, %v", r, err)
	}
	all := everything(t, from)
	same(t, "the cluster", everything(t, to), all)
	// Into another one, which is empty: the first has it.
	_, err = Run(t.Context(), from, clusterOf(t, fs, "c2", memory.New().Client(nil, nil)), Options{Command: again})
	refused(t, err, fault.FailedPrecondition, "it was copied to cluster c, complete at ")
	release()
	if sum := checked(t, fs, "a"); sum.Tables != 3 || sum.Backups != 1 {
		t.Errorf("%+v", sum)
	}
	_, err = serve(t, fs, "a")
	refused(t, err, fault.FailedPrecondition, "the data directory a is not served: it was copied to cluster c, complete at ")

	c := serveCluster(t, to)
	same(t, "the cluster's tables", contents(t, c.Client), want)
	for i := range 50 {
		put(t, c.Client, "a", fmt.Sprintf("row%03d", i*2), "g", "later", fmt.Sprint(i), 7000)
	}
	must(t, c.DropRowRange(t.Context(), parent+"a", []byte("row05")))
	_, err = c.UndeleteTable(t.Context(), parent+"gone")
	must(t, err)
	_, err = c.RestoreTable(t.Context(), "projects/p/instances/i/clusters/c/backups/b", parent+"restored", func(*schema.Table) error { return nil })
	must(t, err)
	want = contents(t, c.Client)
	// Its master and server are alive.
	back, releaseBack := directory(t, fs, "b")
	_, err = runShort(t, to, back)
	refused(t, err, fault.FailedPrecondition, "cluster c has a master")
	c.close(t, true)
	r, err = runShort(t, to, back)
	must(t, err)
	if r.Tables != 4 || r.Backups != 1 {
		t.Errorf("%+v", r)
	}
	releaseBack()
	checked(t, fs, "b") // as it was left
	back, releaseBack = directory(t, fs, "b")
	same(t, "the second directory", everything(t, back), everything(t, to))
	must(t, Done(t.Context(), to, back))
	_, err = Abandon(t.Context(), to)
	refused(t, err, fault.FailedPrecondition, "for good")
	refused(t, catalog.CheckTransfer(t.Context(), to.Lock), fault.FailedPrecondition, "it was given to data directory b for good")
	releaseBack()
	checked(t, fs, "b")
	s, err := serve(t, fs, "b")
	must(t, err)
	same(t, "the second directory's tables", contents(t, s.Client), want)
	put(t, s.Client, "gone", "x", "f", "q", "v", 1000)
	put(t, s.Client, "restored", "x", "f", "q", "v", 1000)
	end(t, s, false)
	checked(t, fs, "b")
}

// TestAbandon: a source can be served again, and what was copied is not taken for a
// copy of it any more.
func TestAbandon(t *testing.T) {
	fs := vfs.NewMem()
	want := filled(t, fs, "a", false)
	from, release := directory(t, fs, "a")
	to := clusterOf(t, fs, "c", memory.New().Client(nil, nil))
	refused(t, Done(t.Context(), from, to), fault.FailedPrecondition, "does not have everything")
	_, err := Abandon(t.Context(), from)
	refused(t, err, fault.FailedPrecondition, "is not being transferred")
	// It breaks off on a damaged SSTable.
	mend := breakOff(t, fs, "a", from, to)
	refused(t, catalog.CheckTransfer(t.Context(), to.Lock), fault.FailedPrecondition, "is being filled from data directory a")
	refused(t, catalog.CheckTransfer(t.Context(), from.Lock), fault.FailedPrecondition, "is being copied to cluster c")
	mend()
	_, err = Abandon(t.Context(), from)
	must(t, err)
	release()
	s, err := serve(t, fs, "a")
	must(t, err)
	same(t, "after it was abandoned", contents(t, s.Client), want)
	put(t, s.Client, "a", "new", "g", "q", "v", 1000)
	want = contents(t, s.Client)
	end(t, s, true)
	from, release = directory(t, fs, "a")
	_, err = Run(t.Context(), from, to, Options{Command: again})
	refused(t, err, fault.FailedPrecondition, "cluster c is not empty")
	to = clusterOf(t, fs, "c2", memory.New().Client(nil, nil))
	_, err = Run(t.Context(), from, to, Options{Command: again})
	must(t, err)
	must(t, Done(t.Context(), from, to))
	_, err = Run(t.Context(), from, to, Options{Command: again})
	refused(t, err, fault.FailedPrecondition, "for good")
	release()
	c := serveCluster(t, to)
	same(t, "the cluster's tables", contents(t, c.Client), want)
	c.close(t, false)
}

// breakOff has a transfer from the directory dir break off on an SSTable that is damaged
// until mend is called.
func breakOff(t testing.TB, fs vfs.FS, dir string, from, to Side) (mend func()) {
	t.Helper()
	damaged := ""
	look, err := standalone.OpenMetadata(t.Context(), fs, dir)
	must(t, err)
	must(t, look.Rows(t.Context(), func(r *metadata.Row) error {
		if len(r.Files) > 0 && r.Assignment != nil && r.Table != metastore.Table {
			damaged = r.Files[0].Object
		}
		return nil
	}))
	end(t, look, true)
	good, err := from.Objects.Get(t.Context(), damaged)
	must(t, err)
	replace(t, from.Objects, damaged, func(b []byte) { b[len(b)/3] ^= 1 })
	_, err = Run(t.Context(), from, to, Options{Command: again})
	refused(t, err, fault.Corruption, "SSTable "+damaged+" is damaged in "+from.Name)
	return func() { replace(t, from.Objects, damaged, func(b []byte) { copy(b, good) }) }
}

// TestAnotherTarget: a target that was given up half-way for another one is never served,
// and the source's mark names the one that has everything.
func TestAnotherTarget(t *testing.T) {
	fs := vfs.NewMem()
	want := filled(t, fs, "a", false)
	from, release := directory(t, fs, "a")
	half, whole := clusterOf(t, fs, "c1", memory.New().Client(nil, nil)), clusterOf(t, fs, "c2", memory.New().Client(nil, nil))
	mend := breakOff(t, fs, "a", from, half)
	_, err := Run(t.Context(), from, whole, Options{Command: again})
	refused(t, err, fault.Corruption, "is damaged")
	// Neither has everything, and the second is the one that is being filled.
	refused(t, catalog.CheckTransfer(t.Context(), from.Lock), fault.FailedPrecondition, "is being copied to cluster c2")
	_, err = Run(t.Context(), from, half, Options{Command: again})
	refused(t, err, fault.FailedPrecondition, "cluster c1 is not empty")
	mend()
	_, err = Run(t.Context(), from, whole, Options{Command: again})
	must(t, err)
	_, err = Run(t.Context(), from, half, Options{Command: again})
	refused(t, err, fault.FailedPrecondition, "cluster c1 does not know of that transfer")
	refused(t, catalog.CheckTransfer(t.Context(), half.Lock), fault.FailedPrecondition, "is being filled from data directory a")
	refused(t, Done(t.Context(), from, half), fault.FailedPrecondition, "does not have everything")
	must(t, Done(t.Context(), from, whole))
	refused(t, catalog.CheckTransfer(t.Context(), from.Lock), fault.FailedPrecondition, "it was given to cluster c2 for good")
	release()
	c := serveCluster(t, whole)
	same(t, "the cluster's tables", contents(t, c.Client), want)
	c.close(t, false)
}

func replace(t testing.TB, s objectstore.Store, name string, change func([]byte)) {
	t.Helper()
	b, err := s.Get(t.Context(), name)
	must(t, err)
	b = slices.Clone(b)
	change(b)
	must(t, s.Delete(t.Context(), name))
	must(t, s.PutIfAbsent(t.Context(), name, b))
}

// TestRecoveredItems: what a recovery of an earlier version left of HBase servers, without a
// session, does not count as a process that serves. One with a session does.
func TestRecoveredItems(t *testing.T) {
	fs := vfs.NewMem()
	filled(t, fs, "a", false)
	from, release := directory(t, fs, "a")
	to := clusterOf(t, fs, "c", memory.New().Client(nil, nil))
	_, err := Run(t.Context(), from, to, Options{Command: again})
	must(t, err)
	want := everything(t, to)
	release()
	_, err = to.Lock.Put(t.Context(), catalog.HBasePrefix+"gone,16020,1", []byte("{}"), 0)
	must(t, err)
	back, releaseBack := directory(t, fs, "b")
	defer releaseBack()
	session, err := to.Lock.NewSession(t.Context(), patient)
	must(t, err)
	_, err = session.Hold(t.Context(), catalog.HBasePrefix+"lives,16020,2", []byte("{}"))
	must(t, err)
	_, err = runShort(t, to, back)
	refused(t, err, fault.FailedPrecondition, "cluster c is served (hbase/lives,16020,2)")
	must(t, session.Close(t.Context()))
	_, err = runShort(t, to, back)
	must(t, err)
	same(t, "the second directory", everything(t, back), want)
}

// TestNotEmpty: what is there is not written over.
func TestNotEmpty(t *testing.T) {
	fs := vfs.NewMem()
	filled(t, fs, "a", false)
	from, release := directory(t, fs, "a")
	defer release()
	for name, spoil := range map[string]func(Side) error{
		"item format": func(s Side) error {
			_, err := catalog.ClaimIncarnation(t.Context(), s.Lock)
			return err
		},
		"item unheard-of": func(s Side) error {
			_, err := s.Lock.Put(t.Context(), "unheard-of", nil, 0)
			return err
		},
		"object 00.sst": func(s Side) error { return s.Objects.PutIfAbsent(t.Context(), "00.sst", nil) },
		"object x/1":    func(s Side) error { return s.Logs.PutIfAbsent(t.Context(), "x/1", []byte("x")) },
		"object 0001":   func(s Side) error { return s.Copies.PutIfAbsent(t.Context(), "0001", nil) },
	} {
		to := clusterOf(t, fs, "c"+name[len(name)-2:], memory.New().Client(nil, nil))
		must(t, spoil(to))
		_, err := Run(t.Context(), from, to, Options{Command: again})
		refused(t, err, fault.FailedPrecondition, name)
		must(t, catalog.CheckTransfer(t.Context(), from.Lock))
	}
	_, err := from.Lock.Put(t.Context(), "unheard-of", nil, 0)
	must(t, err)
	_, err = Run(t.Context(), from, clusterOf(t, fs, "c", memory.New().Client(nil, nil)), Options{Command: again})
	refused(t, err, fault.FailedPrecondition, "item unheard-of, which this version of trestle does not know")
}

// A disk and a lock service that are gone from a moment on for the process that is
// killed then: at the n-th write to either. The disk forgets what was not synced.
type crash struct {
	fs  *datadirtest.CrashableMem
	cfg vfs.CrashCloneCfg

	mu    sync.Mutex
	left  int
	after *datadirtest.CrashableMem // what is left, once it happened
}

func newCrash(fs *datadirtest.CrashableMem, writes int, rng *rand.Rand) *crash {
	return &crash{fs: fs, left: writes, cfg: vfs.CrashCloneCfg{
		UnsyncedDataPercent: []int{0, 20, 50, 90, 100}[rng.IntN(5)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 1))}}
}

// count counts a write, and tells whether it comes too late, or is the last.
func (c *crash) count() (late, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		c.cutLocked()
	}
	return c.left <= 0, c.left == 0
}

func (c *crash) cutLocked() { c.after = c.fs.CrashClone(c.cfg) }

func (c *crash) happened() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left <= 0
}

var errCut = fault.New(fault.Unavailable, "the process is killed")

// view is the file system as the process sees it. Its writes go on after the crash,
// to a disk that nobody sees any more.
func (c *crash) view() vfs.FS {
	return errorfs.Wrap(c.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			c.count()
		}
		return nil
	}))
}

// carry is the way to the lock service. The last change arrives, or not.
func (c *crash) carry(_ context.Context, kind string, do func()) error {
	if c.happened() {
		return errCut
	}
	if kind == "Put" || kind == "Delete" {
		arrives := c.cfg.UnsyncedDataPercent < 50
		if late, last := c.count(); late {
			if arrives && last {
				do()
			}
			return errCut
		}
	}
	do()
	return nil
}

// TestCrash: a transfer that ends after any of its writes, to the file system of the
// directory and of the store or to the lock service of the cluster, is ended by the
// same command; until then neither side is served.
func TestCrash(t *testing.T) {
	for _, direction := range []string{"adopt", "release"} {
		t.Run(direction, func(t *testing.T) { testCrash(t, direction == "adopt") })
	}
}

func testCrash(t *testing.T, adopt bool) {
	base := datadirtest.NewCrashableMem()
	want := filled(t, base, "a", true)
	var items []lock.Item
	var epochs int64
	if !adopt {
		service := memory.New()
		from, release := directory(t, base, "a")
		to := clusterOf(t, base, "c", service.Client(nil, nil))
		_, err := Run(t.Context(), from, to, Options{Command: again})
		must(t, err)
		release()
		c := serveCluster(t, to)
		contents(t, c.Client) // served
		for i := range 20 {
			put(t, c.Client, "a", fmt.Sprintf("row%03d", i*2), "g", "later", fmt.Sprint(i), 7000)
		}
		want = contents(t, c.Client)
		c.close(t, true)
		time.Sleep(100 * time.Millisecond)
		all, revision, err := to.Lock.List(t.Context(), "")
		must(t, err)
		for _, i := range all {
			if catalog.ClassOf(i.Key) != catalog.EphemeralItem {
				items = append(items, i)
			}
		}
		epochs, err = catalog.Epochs(t.Context(), to.Lock)
		must(t, err)
		epochs += revision + 1
	}
	// sides opens both as a process does that ends with c, which may be nil.
	sides := func(fs vfs.FS, l lock.Service) (from, to Side, release func(), err error) {
		dir := "b"
		if adopt {
			dir = "a"
		}
		d, release, err := tryDirectory(t, fs, dir)
		if err != nil {
			return from, to, nil, err
		}
		store := "c"
		if adopt {
			store = "new"
		}
		c, err := tryCluster(fs, store, l)
		if err != nil {
			release()
			return from, to, nil, err
		}
		if adopt {
			return d, c, release, nil
		}
		return c, d, release, nil
	}
	done := 0
	step := 1
	if testing.Short() {
		step = 29
	}
	for n := 1; ; n += step {
		fs := base.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		service := memory.New()
		if !adopt {
			l := service.Client(nil, nil)
			for _, i := range items {
				_, err := l.Put(t.Context(), i.Key, i.Value, 0)
				must(t, err)
			}
			must(t, catalog.RaiseEpochs(t.Context(), l, epochs))
		}
		c := newCrash(fs, n, rand.New(rand.NewPCG(uint64(n), 7)))
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // a process that is killed does not wait
			for !c.happened() && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		from, to, release, err := sides(c.view(), service.Client(c.carry, nil))
		if err == nil {
			_, err = Run(ctx, from, to, Options{Command: again, AtOnce: 2})
			release()
		}
		cancel()
		if !c.happened() && errors.Is(err, fault.Unavailable) {
			n -= step // a session has ended, as the machine is busy
			continue
		}
		if !c.happened() {
			must(t, err) // it had fewer writes
			if done < 5 {
				t.Fatalf("%d crashes", done)
			}
			t.Logf("%d crashes", done)
			return
		}
		done++
		c.mu.Lock()
		after := c.after
		c.mu.Unlock()
		l := service.Client(nil, nil)
		from, to, release, err = sides(after, l)
		if err != nil {
			t.Fatalf("crash at write %d: %v", n, err)
		}
		if err := errors.Join(catalog.CheckTransfer(t.Context(), from.Lock), catalog.CheckTransfer(t.Context(), to.Lock)); err == nil {
			items, _, lerr := durableItems(t.Context(), to.Lock)
			if lerr != nil || len(items) > 0 {
				t.Fatalf("crash at write %d: both sides could be served, the target has %d items", n, len(items))
			}
		}
		for end := time.Now().Add(time.Minute); ; {
			_, err := Run(t.Context(), from, to, Options{Command: again})
			if err == nil {
				break
			}
			// On a busy machine a session ends, or the one of the run that was killed
			// outlives twice its ttl: an operator runs the command again then.
			if held := errors.Is(err, fault.FailedPrecondition) && strings.Contains(err.Error(), "has a master"); !held && !errors.Is(err, fault.Unavailable) || time.Now().After(end) {
				t.Fatalf("crash at write %d: again: %v", n, err)
			}
		}
		same(t, fmt.Sprintf("crash at write %d", n), everything(t, to), everything(t, from))
		infos, err := to.Objects.List(t.Context(), "", "", 0)
		must(t, err)
		sources, err := from.Objects.List(t.Context(), "", "", 0)
		must(t, err)
		if len(infos) > len(sources)+2 { // METADATA was written since
			t.Errorf("crash at write %d: %d objects, of %d", n, len(infos), len(sources))
		}
		release()
		dir := map[bool]string{true: "a", false: "b"}[adopt]
		if checked(t, after, dir); t.Failed() {
			t.Fatalf("crash at write %d: %+v\n%+v", n, infos, sources)
		}
		if n%7 == 1 {
			var got string
			if adopt {
				c := serveCluster(t, to)
				got = contents(t, c.Client)
				c.close(t, false)
			} else {
				s, err := serve(t, after, "b")
				must(t, err)
				got = contents(t, s.Client)
				end(t, s, false)
			}
			same(t, fmt.Sprintf("crash at write %d: the tables", n), got, want)
		}
	}
}
