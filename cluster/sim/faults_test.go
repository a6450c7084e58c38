//go:build sim

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

const tableName = "projects/p/instances/i/tables/t"

// A register is a row that one worker writes: values that only grow.
type register struct {
	key           string
	acked, tried  int
	client        *client.Client
	t             *testing.T
	readsSeen     int
	wild          bool // a read may be old, but for the last
	unknown, done int
}

// work takes steps until stop is closed.
func (r *register) work(ctx context.Context, rng *rand.Rand, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		r.step(ctx, rng)
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
	}
}

func (r *register) step(ctx context.Context, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	switch rng.IntN(3) {
	case 0, 1:
		r.tried++
		e := &row.Entry{Key: []byte(r.key), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "a", Qualifier: []byte("q"), Timestamp: int64(r.tried) * 1000, Value: []byte(strconv.Itoa(r.tried))},
			{Op: row.SetCell, Family: "b", Qualifier: []byte("q"), Timestamp: int64(r.tried) * 1000, Value: []byte(strconv.Itoa(r.tried))},
		}}
		err := r.client.MutateRow(ctx, tableName, e)
		switch {
		case err == nil:
			r.acked = r.tried
			r.done++
		case errors.Is(err, fault.Unavailable) || ctx.Err() != nil || errors.Is(err, fault.Exhausted):
			r.unknown++
		default:
			r.t.Errorf("%s: write: %v", r.key, err)
		}
	default:
		r.read(ctx, false)
	}
}

// read checks what the row holds: at least what was acknowledged before, and
// never less than what was read before.
func (r *register) read(ctx context.Context, must bool) {
	w := new(collector)
	_, err := r.client.ReadRows(ctx, &scan.Request{Table: tableName, Ranges: []row.Range{row.Single([]byte(r.key))}, Filter: newest}, w)
	if err != nil {
		if must || !errors.Is(err, fault.Unavailable) && ctx.Err() == nil {
			r.t.Errorf("%s: read: %v", r.key, err)
		}
		return
	}
	got := 0
	if len(w.values) > 0 {
		if len(w.values) != 2 || w.values[0] != w.values[1] {
			r.t.Errorf("%s: a torn row: %q", r.key, w.values)
			return
		}
		got, _ = strconv.Atoi(w.values[0])
	}
	if old := got < r.acked || got < r.readsSeen; old && (must || !r.wild) || got > r.tried {
		r.t.Errorf("%s: read %d after %d was acknowledged and %d was read; %d was tried", r.key, got, r.acked, r.readsSeen, r.tried)
	}
	r.readsSeen = max(r.readsSeen, got)
}

// newest passes the newest cell of each column: a write whose outcome is unknown
// may come later, and is an older one then.
var newest = &filter.Node{Op: filter.CellsPerColumnLimit, N: 1}

type collector struct {
	keys, values []string
}

func (w *collector) StartRow(key []byte)   { w.keys = append(w.keys, string(key)) }
func (w *collector) Cell(c *row.Cell)      { w.values = append(w.values, string(c.Value)) }
func (w *collector) EndRow() (bool, error) { return false, nil }
func (w *collector) Scanned([]byte)        {}
func (w *collector) Flush() error          { return nil }

// newTable is a table with three tablets.
func newTable(t *testing.T, c *client.Client) {
	t.Helper()
	sch := &schema.Table{Name: tableName, Granularity: 1000, Families: map[string]schema.Family{
		"a": {Name: "a", GC: &schema.GCRule{MaxVersions: 1}}, "b": {Name: "b"}}}
	if _, err := c.CreateTable(context.Background(), sch, [][]byte{[]byte("k3"), []byte("k6")}); err != nil {
		t.Fatal(err)
	}
}

// seeds returns the seeds to run: TRESTLE_SIM_SEED and TRESTLE_SIM_RUNS say
// which.
func seeds(usual int) (first uint64, runs int) {
	first, runs = 1, usual
	if v, err := strconv.ParseUint(os.Getenv("TRESTLE_SIM_SEED"), 10, 64); err == nil {
		first = v
	}
	if v, err := strconv.Atoi(os.Getenv("TRESTLE_SIM_RUNS")); err == nil {
		runs = v
	}
	return first, runs
}

// TestStorm: invariants I2 to I5 and I10. Under lost messages, cut-off nodes,
// deaths of servers and masters,
// splits, merges and moves, every acknowledged write is read, no row is torn,
// nothing that was read disappears, single rows are linearizable, and METADATA
// tiles the key space.
func TestStorm(t *testing.T) {
	first, runs := seeds(10)
	for seed := first; seed < first+uint64(runs); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			h := new(history)
			synctest.Test(t, func(t *testing.T) { stormRun(t, seed, h, false) })
			h.check(t)
		})
		if t.Failed() {
			return
		}
	}
}

// TestUnboundedDrift: clocks run at any rate, and stand still for longer than a
// lease lasts. Then reads may be of a server that has lost the tablet, and be
// old; but what was acknowledged is there in the end, what changes rows is
// linearizable, no row is torn, and METADATA tiles: fences and compare-and-sets
// do not go by the clock.
func TestUnboundedDrift(t *testing.T) {
	first, runs := seeds(6)
	for seed := first; seed < first+uint64(max(runs/4, 1)); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			h := &history{noReads: true}
			synctest.Test(t, func(t *testing.T) { stormRun(t, seed, h, true) })
			h.check(t)
		})
		if t.Failed() {
			return
		}
	}
}

// stormRun lets a storm rage. In a wild one clocks go as they like.
func stormRun(t *testing.T, seed uint64, h *history, wild bool) {
	rng := rand.New(rand.NewPCG(seed, 1))
	st := newStorm(seed, rng)
	if wild {
		st.drift = 0.7
	}
	o := Options{TTL: 2 * time.Second, Interval: 200 * time.Millisecond, Net: st.net, Twice: st.twiceIs, Clocks: st.clock, Witness: NewWitness(), Log: logger(), LogBytes: 64 << 10,
		// A memtable that has anything has 128 KiB.
		Tablet: tablet.Options{MemtableBytes: 192 << 10, FileBytes: 16 << 10, ChangeFiles: 4},
		Copy:   10 * time.Second, Sweep: 2 * time.Second, Purge: time.Second, Rest: time.Second, MakeLimit: 20 * time.Second}
	if seed%2 == 0 {
		o.Attend = o.TTL / 25
	}
	if rng.IntN(2) == 0 {
		o.Balance, o.Merge = 3*time.Second, 4*time.Second
	}
	if rng.IntN(2) == 0 {
		// METADATA tablets are split and merged by themselves.
		o.MetadataSplitBytes, o.SplitCheck = 130<<10, time.Second
	}
	if p := os.Getenv("TRESTLE_SIM_PLANT"); p != "" {
		plants[p](&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Close()
		time.Sleep(time.Minute) // timers of what was killed
	}()
	ctx := t.Context()
	c.StartMaster("master-1")
	c.StartMaster("master-2")
	for i := range 3 {
		if _, err := c.StartServer(ctx, fmt.Sprint("server-", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := c.Client(ctx, "admin")
	if err != nil {
		t.Fatal(err)
	}
	newTable(t, admin)
	var regs []*register
	for i := range 9 {
		cl, err := c.Client(ctx, fmt.Sprint("client-", i%3))
		if err != nil {
			t.Fatal(err)
		}
		regs = append(regs, &register{key: fmt.Sprint("k", i), client: cl, t: t, wild: wild})
	}
	var working sync.WaitGroup
	stop := make(chan struct{})
	for i, r := range regs {
		mine := rand.New(rand.NewPCG(seed, 100+uint64(i)))
		working.Go(func() { r.work(ctx, mine, stop) })
	}
	for i := range 3 {
		mine := rand.New(rand.NewPCG(seed, 200+uint64(i)))
		working.Go(func() { h.work(ctx, t, regs[i].client, i, mine, stop) })
	}
	works := make([]*work, 4)
	for i := range works {
		cl, err := c.Client(ctx, fmt.Sprint("client-", i%3))
		if err != nil {
			t.Fatal(err)
		}
		w := &work{t: t, client: cl, rng: rand.New(rand.NewPCG(seed, 300+uint64(i))), id: i}
		works[i] = w
		do := []func(context.Context, chan struct{}){w.backups, w.drops, w.schemas, w.views}[i]
		if !wild || i == 3 { // records are in the lock service
			working.Go(func() { do(ctx, stop) })
		}
	}
	st.rage()
	next := 4
	for range 20 + rng.IntN(20) {
		time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		c.disturb(ctx, t, rng, st, admin, &next)
	}
	st.calmDown()
	time.Sleep(5 * time.Second)
	close(stop)
	working.Wait()
	if len(c.names()) == 0 {
		if _, err := c.StartServer(ctx, fmt.Sprint("server-", next)); err != nil {
			t.Fatal(err)
		}
	}
	writes, unknown := 0, 0
	for _, r := range regs {
		r.read(ctx, true)
		writes += r.done
		unknown += r.unknown
	}
	tile(ctx, t, admin)
	c.verify(t, admin)
	roots, err := admin.Metadata().Roots(ctx)
	if err != nil {
		t.Error(err)
	}
	if writes == 0 {
		t.Error("no write was acknowledged")
	}
	t.Logf("%d writes acknowledged, %d of unknown outcome; %d messages, of which %d lost, %d late, %d held, %d twice; "+
		"%d backups, %d looks at dropped rows, %d schemas, %d views; %d METADATA tablets", writes, unknown, st.sent, st.lost, st.delayed, st.held, st.twice,
		works[0].done, works[1].done, works[2].done, works[3].done, len(roots))
}

// disturb does one thing that a cluster must bear.
func (c *Cluster) disturb(ctx context.Context, t *testing.T, rng *rand.Rand, st *storm, admin *client.Client, next *int) {
	names := c.names()
	pick := func() string { return names[rng.IntN(len(names))] }
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	n := rng.IntN(20)
	if len(names) < 2 {
		n = 1
	}
	masters := []string{"master-1", "master-2"}
	switch n {
	case 0:
		c.KillServer(pick())
	case 1:
		if len(names) < 5 {
			name := fmt.Sprint("server-", *next)
			*next++
			if _, err := c.StartServer(short, name); err != nil && !errors.Is(err, fault.Unavailable) && short.Err() == nil {
				t.Errorf("start %s: %v", name, err)
			}
		}
	case 2:
		// In order, if it goes fast enough.
		_ = c.StopServer(short, pick())
	case 3:
		// Whoever is cut off from the lock service is a zombie after a while.
		st.cutOff(way{pick(), Lock}, 5*time.Second)
	case 4:
		st.cutOff(way{from: pick()}, time.Duration(rng.IntN(5000))*time.Millisecond)
	case 5:
		st.cutOff(way{pick(), Store}, time.Duration(rng.IntN(3000))*time.Millisecond)
	case 6:
		m := masters[rng.IntN(2)]
		if rng.IntN(2) == 0 {
			c.StopMaster(m)
		} else {
			c.KillMaster(m)
		}
		c.StartMaster(m)
	case 7:
		st.cutOff(way{from: masters[rng.IntN(2)]}, 5*time.Second)
	case 8:
		// A zombie that does not know: past its lease it goes on where it was.
		st.pause(append(masters, names...)[rng.IntN(2+len(names))], time.Duration(1000+rng.IntN(7000))*time.Millisecond)
	case 9:
		c.lock.Elect()
		st.pause([]string{Lock, Store, Lock + "x", "client-0", "admin"}[rng.IntN(5)], time.Duration(500+rng.IntN(4000))*time.Millisecond)
	case 10:
		// In one direction only: questions or answers.
		all := append([]string{Lock, Store, masters[0], masters[1], "client-1"}, names...)
		st.cutOff(way{all[rng.IntN(len(all))], all[rng.IntN(len(all))]}, time.Duration(1000+rng.IntN(4000))*time.Millisecond)
	case 11:
		if st.drift > 0 {
			clock := st.clock(pick())
			clock.Run(1 + st.drift*(2*rng.Float64()-1))
			clock.Jump(time.Duration(rng.IntN(60)-30) * time.Second)
			clock.Stop(time.Duration(rng.IntN(50)) * time.Millisecond)
			if st.drift > 0.5 {
				clock.Stop(time.Duration(rng.IntN(8000)) * time.Millisecond)
			}
		}
	default:
		c.reshape(short, rng, admin, pick())
	}
}

// reshape splits, merges or moves a tablet, or flushes or compacts it.
func (c *Cluster) reshape(ctx context.Context, rng *rand.Rand, admin *client.Client, server string) {
	table, err := admin.Table(ctx, tableName)
	if err != nil {
		return
	}
	rows, err := admin.Metadata().Lookup(ctx, table.ID, nil, 100)
	if err != nil || len(rows) == 0 {
		return
	}
	i := rng.IntN(len(rows))
	a := rows[i].Assignment
	if a == nil || a.State != metadata.Open {
		return
	}
	s := c.Dialer("admin").Dial(a.Addr)
	// Any of it may fail: it is the data that counts.
	switch rng.IntN(7) {
	case 5:
		// A METADATA tablet.
		roots, err := admin.Metadata().Roots(ctx)
		if err != nil || len(roots) == 0 {
			return
		}
		i := rng.IntN(len(roots))
		switch r := roots[i]; {
		case i > 0 && rng.IntN(2) == 0:
			_ = c.Dialer("admin").Dial(r.Assignment.Addr).Merge(ctx, roots[i-1].Tablet, r.Tablet)
		case len(roots) < 4:
			_ = c.Dialer("admin").Dial(r.Assignment.Addr).Split(ctx, r.Tablet, metastore.Key(rpc.TabletKey{Table: table.ID, End: fmt.Append(nil, "k", rng.IntN(9))}))
		}
	case 6:
		if roots, err := admin.Metadata().Roots(ctx); err == nil {
			_ = c.want(ctx, "admin", roots[rng.IntN(len(roots))].Tablet, server)
		}
	case 0:
		_ = s.Split(ctx, rows[i].Tablet, fmt.Append(nil, "k", rng.IntN(9), "x"))
	case 1:
		if i+1 < len(rows) {
			_ = s.Merge(ctx, rows[i].Tablet, rows[i+1].Tablet)
		}
	case 2:
		_ = s.Flush(ctx, []metadata.TabletID{rows[i].Tablet})
	case 3:
		_ = s.Compact(ctx, []metadata.TabletID{rows[i].Tablet})
	default:
		_ = c.want(ctx, "admin", rows[i].Tablet, server)
	}
}

// want says, as a node, where a tablet is to be, wherever it was to be before;
// nowhere in particular if server is empty.
func (c *Cluster) want(ctx context.Context, node string, id metadata.TabletID, server string) error {
	l, key := c.Lock(node), catalog.PinKey(id)
	i, err := l.Get(ctx, key)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	if server == "" {
		return l.Delete(ctx, key, i.Version)
	}
	_, err = l.Put(ctx, key, []byte(server), i.Version)
	return err
}

func (c *Cluster) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for n := range c.servers {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// tile checks invariant I5: the METADATA rows of the table tile the key space.
func tile(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	table, err := c.Table(ctx, tableName)
	if err != nil {
		t.Fatal(err)
	}
	var rows []*metadata.Row
	for attempt := 0; ; attempt++ {
		rows = nil
		if err := c.Metadata().Scan(ctx, func(r *metadata.Row) error {
			if r.Table == table.ID {
				rows = append(rows, r)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		settled := true
		for _, r := range rows {
			// The mark of a split or merge that was given up stays until the next, or
			// until the tablet is given up.
			given := attempt > 50 && r.Op != nil && r.Op.Kind != metadata.Merge
			settled = settled && (r.Op == nil || given) && r.Assignment.State == metadata.Open
		}
		if settled {
			break
		}
		if attempt == 100 {
			for _, r := range rows {
				t.Logf("%d [%q, %q) %+v %+v", r.Tablet, r.Start, r.End, r.Assignment, r.Op)
			}
			t.Fatal("tablets do not come to rest")
		}
		time.Sleep(200 * time.Millisecond)
	}
	var end []byte
	for i, r := range rows {
		if string(r.Start) != string(end) || i > 0 && len(end) == 0 {
			t.Errorf("I5: tablet %d begins at %q, the one before it ends at %q", r.Tablet, r.Start, end)
		}
		end = r.End
	}
	if len(rows) == 0 || len(end) > 0 {
		t.Errorf("I5: the last tablet ends at %q", end)
	}
}

// verify checks what must hold when everything has come to rest: invariants I1,
// I6, I7, I8 and I12 as far as they can be seen from outside.
func (c *Cluster) verify(t *testing.T, b *client.Client) {
	t.Helper()
	if err := c.o.Witness.Check(); err != nil {
		t.Error(err)
	}
	if _, err := I7(t, c, b); err != nil {
		t.Error(err)
	}
	if err := c.i8(b); err != nil {
		t.Error(err)
	}
}

// i8 checks that commit logs that tablets need are there, without a hole.
func (c *Cluster) i8(b *client.Client) error {
	ctx := context.Background()
	logs := map[uint64]bool{}
	roots, err := b.Metadata().Roots(ctx)
	if err != nil {
		return err
	}
	take := func(r *metadata.Row) error {
		if a := r.Assignment; a != nil && a.Log != 0 {
			logs[a.Log] = true
		}
		return nil
	}
	for _, r := range roots {
		_ = take(r)
	}
	if err := b.Metadata().Scan(ctx, take); err != nil {
		return err
	}
	for log := range logs {
		id := commitlog.ID(log)
		// The objects first: the log may be trimmed meanwhile.
		objects, err := c.objects.List(ctx, id.String()+"/", "", 0)
		if err != nil {
			return err
		}
		item, err := c.lock.Client(nil, nil).Get(ctx, catalog.LogKey(id))
		if err != nil {
			return fmt.Errorf("I8: commit log %v is needed: %w", id, err)
		}
		var state catalog.LogState
		if err := json.Unmarshal(item.Value, &state); err != nil {
			return err
		}
		next := uint64(0)
		for _, o := range objects {
			var index uint64
			if _, err := fmt.Sscanf(o.Name[len(id.String())+1:], "%d", &index); err != nil {
				return fmt.Errorf("object %s: %w", o.Name, err)
			}
			switch {
			case index < state.Kept.Segment:
				continue
			case next == 0 && index > max(state.Kept.Segment, 1) || next != 0 && index != next:
				return fmt.Errorf("I8: commit log %v is kept from %d on, and the segment before %d is gone", id, state.Kept.Segment, index)
			}
			next = index + 1
		}
	}
	return nil
}
