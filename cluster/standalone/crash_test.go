package standalone

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
)

const table = "projects/p/instances/i/tables/t"

// A disk forgets what was not synced when its power is cut, at the n-th write.
type disk struct {
	fs  *datadirtest.CrashableMem
	cfg vfs.CrashCloneCfg

	mu   sync.Mutex
	left int
	// before is called when the power is about to be cut.
	before func()
	after  *datadirtest.CrashableMem // what is left, once the power was cut
	off    chan struct{}
}

func newDisk(fs *datadirtest.CrashableMem, writes int, rng *rand.Rand) *disk {
	return &disk{fs: fs, left: writes, off: make(chan struct{}), cfg: vfs.CrashCloneCfg{
		UnsyncedDataPercent: []int{0, 20, 50, 90, 100}[rng.IntN(5)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 1)),
	}}
}

// view is the file system as the process sees it: it outlives the power cut, as a
// process would that wrote to a disk that keeps nothing any more.
func (d *disk) view() vfs.FS {
	return errorfs.Wrap(d.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.left--; d.left == 0 {
				d.cutLocked()
			}
		}
		return nil
	}))
}

func (d *disk) cutLocked() {
	if d.before != nil {
		d.before()
	}
	d.after = d.fs.CrashClone(d.cfg)
	close(d.off)
}

// cut cuts the power now, if it was not cut before, and returns what is left.
func (d *disk) cut() *datadirtest.CrashableMem {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.after == nil {
		d.left = 0
		d.cutLocked()
	}
	return d.after
}

func (d *disk) isOff() bool {
	select {
	case <-d.off:
		return true
	default:
		return false
	}
}

func openOn(t *testing.T, fs vfs.FS) *Server {
	t.Helper()
	s, err := openWith(t, fs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openWith opens a directory whose small sizes make much happen in it.
func openWith(t *testing.T, fs vfs.FS, wrapLock func(lock.Service) lock.Service) (*Server, error) {
	return Open(t.Context(), Options{wrapLock: wrapLock, Dir: "d", FS: fs, Log: commitlog.Options{SegmentBytes: 64 << 10},
		TabletServer: tabletserver.Options{CacheBytes: 1 << 20, SplitRate: -1, SplitBytes: -1,
			Tablet: tablet.Options{MemtableBytes: 64 << 10, FileBytes: 16 << 10, TargetRuns: 2, ChangeFiles: 4}}})
}

func closeNow(t *testing.T, s *Server) {
	t.Helper()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Close(now); err != nil {
		t.Fatal(err)
	}
}

// values reads the newest value of each row.
func values(t *testing.T, s *Server) map[string]string {
	t.Helper()
	c := collector{}
	_, err := s.ReadRows(t.Context(), &scan.Request{Table: table, Ranges: []row.Range{row.All}}, &c)
	if err != nil {
		t.Fatal(err)
	}
	return c.rows
}

type collector struct {
	rows map[string]string
	key  string
}

func (c *collector) StartRow(key []byte) {
	if c.key = string(key); c.rows == nil {
		c.rows = map[string]string{}
	}
}
func (c *collector) Cell(x *row.Cell) {
	if _, ok := c.rows[c.key]; !ok {
		c.rows[c.key] = string(x.Value)
	}
}
func (*collector) EndRow() (bool, error) { return false, nil }
func (*collector) Scanned([]byte)        {}
func (*collector) Flush() error          { return nil }

// A writer counts upwards in rows of its own.
type writer struct {
	keys  []string
	acked map[string]int // durable before the power was cut
	begun map[string]int
}

func (w *writer) write(ctx context.Context, s *Server, d *disk, rng *rand.Rand) error {
	key := w.keys[rng.IntN(len(w.keys))]
	w.begun[key]++
	n := w.begun[key]
	value := fmt.Appendf(nil, "%06d%s", n, bytes.Repeat([]byte{'v'}, rng.IntN(2000)))
	err := s.MutateRow(ctx, table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
		{Op: row.SetCell, Family: "f", Timestamp: int64(n) * 1000, Value: value}}})
	if err == nil && !d.isOff() {
		w.acked[key] = n
	}
	return err
}

// TestCrash writes rows while tablets are flushed, split and merged, cuts the
// power at a random write, and recovers: what was acknowledged is there, no row
// is older, and the tablets tile the table. The power is cut during the recovery
// too.
func TestCrash(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	if v := os.Getenv("TRESTLE_TEST_SEEDS"); v != "" {
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		seeds = n
	}
	for seed := range seeds {
		if crash(t, seed); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func crash(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	fs := datadirtest.NewCrashableMem()
	first := openOn(t, fs)
	// Of every third seed the table has no stream.
	var stream *schema.Stream
	if seed%3 > 0 {
		stream = &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}
	}
	_, err := first.CreateTable(t.Context(), &schema.Table{Name: table, Granularity: 1000,
		Families: map[string]schema.Family{"f": {Name: "f"}}, Stream: stream}, [][]byte{[]byte("w1"), []byte("w2")})
	if err != nil {
		t.Fatal(err)
	}
	closeNow(t, first)
	var writers []*writer
	for i := range 3 {
		w := &writer{acked: map[string]int{}, begun: map[string]int{}}
		for j := range 20 {
			w.keys = append(w.keys, fmt.Sprintf("w%d-%02d", i, j))
		}
		writers = append(writers, w)
	}
	// Every other seed is about splits and merges more than about rows.
	writes, churns := 300, 40
	if seed%2 == 1 {
		writes, churns = 20, 150
	}
	for round := range 3 {
		d := newDisk(fs, 20+rng.IntN(600), rng)
		s := openOn(t, d.view())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var running sync.WaitGroup
		for i, w := range writers {
			r := rand.New(rand.NewPCG(seed, uint64(round*10+i)))
			running.Go(func() {
				for n := 0; n < writes && !d.isOff(); n++ {
					if err := w.write(ctx, s, d, r); err != nil && !d.isOff() {
						t.Errorf("write: %v", err)
						return
					}
				}
			})
		}
		r := rand.New(rand.NewPCG(seed, uint64(round*10+9)))
		running.Go(func() {
			for n := 0; n < churns && !d.isOff(); n++ {
				churn(ctx, t, s, r)
			}
		})
		running.Wait()
		cancel()
		fs = d.cut()
		closeNow(t, s)
		again := newDisk(fs, 1+rng.IntN(40), rng)
		check(t, openOn(t, again.view()), writers)
		fs = again.cut()
		found := check(t, openOn(t, fs), writers)
		if t.Failed() {
			return
		}
		for _, w := range writers {
			for _, k := range w.keys {
				w.acked[k], w.begun[k] = found[k], found[k]
			}
		}
	}
}

// churn flushes, splits or merges a tablet. Each may find that another was
// faster.
func churn(ctx context.Context, t *testing.T, s *Server, rng *rand.Rand) {
	var rows []*metadata.Row
	if err := s.Rows(ctx, func(r *metadata.Row) error {
		rows = append(rows, r)
		return nil
	}); err != nil {
		t.Logf("read METADATA: %v", err)
		return
	}
	r := rows[rng.IntN(len(rows))]
	switch rng.IntN(3) {
	case 0:
		_ = s.tablets.Flush(ctx, []metadata.TabletID{r.Tablet})
	case 1:
		_ = s.tablets.Split(ctx, r.Tablet, fmt.Appendf(nil, "w%d-%02d", rng.IntN(3), rng.IntN(20)))
	case 2:
		i := slices.Index(rows, r)
		if i+1 < len(rows) && rows[i+1].Table == r.Table {
			_ = s.tablets.Merge(ctx, r.Tablet, rows[i+1].Tablet)
		}
	}
}

// check compares what a recovery has found with what was acknowledged, closes the
// server and returns the number in each row.
func check(t *testing.T, s *Server, writers []*writer) map[string]int {
	t.Helper()
	defer closeNow(t, s)
	var rows []*metadata.Row
	if err := s.Rows(t.Context(), func(r *metadata.Row) error {
		if r.Table != 1 {
			rows = append(rows, r)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !metadata.Tile(rows) {
		t.Errorf("the tablets do not tile the table: %d", len(rows))
	}
	got, found := values(t, s), map[string]int{}
	for _, w := range writers {
		for _, k := range w.keys {
			n := 0
			if v, ok := got[k]; ok {
				if _, err := fmt.Sscanf(v[:6], "%d", &n); err != nil {
					t.Errorf("row %s holds %q", k, v[:6])
				}
			}
			if n < w.acked[k] || n > w.begun[k] {
				t.Errorf("row %s holds value %d; %d was acknowledged, %d was begun", k, n, w.acked[k], w.begun[k])
			}
			found[k] = n
		}
	}
	checkChanges(t, s, found)
	return found
}

// checkChanges compares the changes of the table, if they are kept, with the last value of
// each row: it was written with each number up to that.
func checkChanges(t *testing.T, s *Server, found map[string]int) {
	t.Helper()
	parts, err := s.StreamPartitions(t.Context(), table)
	if fault.KindOf(err) == fault.FailedPrecondition {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	sch, err := s.Table(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	w := changeCounter{t: t, last: map[string]int{}}
	for _, p := range parts {
		req := &changes.Request{Table: table, Life: 1, Within: p, From: changes.Position{Through: stamp.At(sch.Stream.Since) - stamp.Stride},
			Until: stamp.At(time.Now()), Every: 10 * time.Millisecond}
		if c, err := s.ReadChanges(t.Context(), req, &w); err != nil || c != nil {
			t.Fatalf("read the changes of %q: %+v, %v", p, c, err)
		}
	}
	for k, n := range found {
		if w.last[k] != n {
			t.Errorf("row %s holds value %d, its last change made it %d", k, n, w.last[k])
		}
	}
}

// A changeCounter sees to it that each change adds one to its row.
type changeCounter struct {
	t    *testing.T
	last map[string]int
}

func (c *changeCounter) Record(r *changes.Record, _ changes.Position) (bool, error) {
	n := 0
	if len(r.Changes) != 1 || r.Changes[0].Op != changes.SetCell {
		c.t.Errorf("change of row %s: %+v", r.Key, r.Changes)
	} else if _, err := fmt.Sscanf(string(r.Changes[0].Value[:6]), "%d", &n); err != nil {
		c.t.Errorf("row %s was set to %q", r.Key, r.Changes[0].Value[:6])
	}
	if key := string(r.Key); n != c.last[key]+1 {
		c.t.Errorf("row %s was set to %d after %d", r.Key, n, c.last[key])
	} else {
		c.last[key] = n
	}
	return len(c.last)%7 == 0, nil
}
func (*changeCounter) Flush() error                     { return nil }
func (*changeCounter) Watermark(changes.Position) error { return nil }
