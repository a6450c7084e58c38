package tabletserver_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// TestCrash changes rows, schemas, tables and records at random while flushes
// and compactions run, takes the power away at a random operation of the file
// system, and recovers - taking the power away during that as well. Whatever
// was acknowledged is there, what was under way is there wholly or not at all.
func TestCrash(t *testing.T) {
	first, end := seeds(t, 200)
	deadline := time.Now().Add(25 * time.Second)
	for seed := first; seed < end; seed++ {
		if end-first <= 200 && time.Now().After(deadline) {
			t.Logf("out of time after %d seeds", seed-first)
			break
		}
		if crashRun(t, seed); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A register is whatever changes as a whole: a row, a record, a small table
// with its schema.
type register struct {
	states []string // after each change that was begun; the first is what it was
	acked  int      // the last of states that was acknowledged
}

// A history is the registers that workers change. Each has one worker.
type history struct {
	mu   sync.Mutex
	regs map[string]*register
}

func (h *history) begin(key, state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.regs[key]
	if r == nil {
		r = &register{states: []string{""}}
		h.regs[key] = r
	}
	r.states = append(r.states, state)
}

func (h *history) ack(keys ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range keys {
		h.regs[k].acked = len(h.regs[k].states) - 1
	}
}

// marks returns how far each register has come: acknowledged, and begun.
func (h *history) marks() (acked, begun map[string]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	acked, begun = map[string]int{}, map[string]int{}
	for k, r := range h.regs {
		acked[k], begun[k] = r.acked, len(r.states)-1
	}
	return acked, begun
}

// A crasher takes the power away before the n-th operation that changes the
// file system.
type crasher struct {
	fs    *datadirtest.CrashableMem
	n     atomic.Int64
	cfg   vfs.CrashCloneCfg
	h     *history
	once  sync.Once
	done  chan struct{}
	clone *datadirtest.CrashableMem

	acked, begun map[string]int
}

func newCrasher(fs *datadirtest.CrashableMem, n int, rng *rand.Rand, h *history) *crasher {
	c := &crasher{fs: fs, h: h, done: make(chan struct{})}
	c.cfg = vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 90, 100}[rng.IntN(5)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 1))}
	c.n.Store(int64(n))
	return c
}

func (c *crasher) wrap() vfs.FS {
	return errorfs.Wrap(c.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && c.n.Add(-1) == 0 {
			c.crash()
		}
		return nil
	}))
}

func (c *crasher) crash() {
	c.once.Do(func() {
		// First what must be there, then the crash, then what may be there.
		c.acked, _ = c.h.marks()
		c.clone = c.fs.CrashClone(c.cfg)
		_, c.begun = c.h.marks()
		close(c.done)
	})
}

func (c *crasher) crashed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

var (
	crashFamilies   = []string{"a", "b"}
	crashAggregates = []string{"sum"}
	crashTables     = []string{parent + "ms", parent + "us"}
	crashQualifiers = []string{"", "q", "q\x00"}
)

func crashTable(name string) *schema.Table {
	return newSchema(strings.TrimPrefix(name, parent), 1000, "a", "b", "sum=sum")
}

// A crashWorker changes rows and records of its own, and one table of its own.
type crashWorker struct {
	maker
	t     *testing.T
	id    string
	h     *history
	real  *Store
	model *model.Backend
	keys  []string
	// tokens are idempotency tokens that were acknowledged.
	tokens []usedToken
}

type usedToken struct {
	table string
	e     *row.Entry
	state int // of the row, when it was acknowledged
}

func rowReg(table, key string) string { return "row " + table + " " + key }
func tableReg(table string) string    { return "table " + table }
func recordReg(key string) string     { return "record " + key }
func backupReg(name string) string    { return "backup " + name }

func (w *crashWorker) own() string { return parent + "own" + w.id }

// tableState renders a table with its schema.
func tableState(b backend.Backend, name string) string {
	s, err := b.Table(ctx, name)
	if errors.Is(err, fault.NotFound) {
		return ""
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprintf("%v protected=%v\n%s", s.FamilyNames(), s.DeletionProtection, content(b, name, row.All))
}

// restoreScratch restores a backup to a table of its own, and returns its name.
func restoreScratch(b backend.Backend, name string) (string, error) {
	scratch := parent + "scratch" + name
	// A crash may have left it behind.
	if err := b.DeleteTable(ctx, scratch); err != nil && !errors.Is(err, fault.NotFound) {
		return "", err
	}
	_, err := b.RestoreTable(ctx, name, scratch, func(*schema.Table) error { return nil })
	return scratch, err
}

// backupState renders the table that a backup would be restored to.
func backupState(b backend.Backend, name string) string {
	scratch, err := restoreScratch(b, name)
	if errors.Is(err, fault.NotFound) {
		return ""
	}
	state := tableState(b, scratch)
	if err = errors.Join(err, b.DeleteTable(ctx, scratch)); err != nil {
		return "error: " + err.Error()
	}
	return state
}

func recordState(b backend.Backend, key string) string {
	v, _, err := b.GetRecord(ctx, key)
	if errors.Is(err, fault.NotFound) {
		return ""
	}
	return fmt.Sprintf("%v %.50q %d", err, v, len(v))
}

// state renders a register.
func state(b backend.Backend, reg string) string {
	f := strings.SplitN(reg, " ", 3)
	switch f[0] {
	case "row":
		return content(b, f[1], row.Single([]byte(f[2])))
	case "table":
		return tableState(b, f[1])
	case "backup":
		return backupState(b, f[1])
	}
	return recordState(b, f[1])
}

// both does op to the model, notes what becomes of regs, and does it to the
// store.
func (w *crashWorker) both(what string, regs []string, op func(b backend.Backend) (string, error)) bool {
	want, wantErr := op(w.model)
	for _, k := range regs {
		w.h.begin(k, state(w.model, k))
	}
	got, gotErr := op(w.real)
	if kindOf(wantErr) != kindOf(gotErr) || want != got {
		w.t.Errorf("%s: got %q, %v, want %q, %v", what, got, gotErr, want, wantErr)
		return false
	}
	w.h.ack(regs...)
	return true
}

func (w *crashWorker) step() {
	table, key := w.pick(crashTables), w.pick(w.keys)
	switch n := w.IntN(100); {
	case n < 40:
		e := &row.Entry{Key: []byte(key), Mutations: w.mutations()}
		if w.IntN(5) == 0 {
			e.Token.Token = fmt.Appendf(nil, "token-%d-%d", w.Uint64(), w.Uint64())
		}
		again := len(w.tokens) > 0 && w.IntN(10) == 0
		if again {
			u := w.tokens[w.IntN(len(w.tokens))]
			table, e = u.table, u.e
		}
		ok := w.both("MutateRow", []string{rowReg(table, string(e.Key))}, func(b backend.Backend) (string, error) {
			return "", b.MutateRow(ctx, table, e)
		})
		if ok && len(e.Token.Token) > 0 && !again {
			acked, _ := w.h.marks()
			w.tokens = append(w.tokens, usedToken{table, e, acked[rowReg(table, key)]})
		}
	case n < 55:
		keys := slices.Clone(w.keys)
		w.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		keys = keys[:1+w.IntN(len(keys))]
		var entries []row.Entry
		var regs []string
		for _, k := range keys {
			entries = append(entries, row.Entry{Key: []byte(k), Mutations: w.mutations()})
			regs = append(regs, rowReg(table, k))
		}
		w.both("MutateRows", regs, func(b backend.Backend) (string, error) {
			kinds := make([]string, len(entries))
			err := b.MutateRows(ctx, table, entries, func(i int, err error) { kinds[i] = kindOf(err) })
			return fmt.Sprint(kinds), err
		})
	case n < 65:
		rules := w.rules()
		w.both("ReadModifyWriteRow", []string{rowReg(table, key)}, func(b backend.Backend) (string, error) {
			cells, err := b.ReadModifyWriteRow(ctx, table, []byte(key), rules)
			return fmt.Sprint(cells), err
		})
	case n < 72:
		then, otherwise := w.mutations(), w.mutations()
		w.both("CheckAndMutateRow", []string{rowReg(table, key)}, func(b backend.Backend) (string, error) {
			ok, err := b.CheckAndMutateRow(ctx, table, []byte(key), nil, then, otherwise)
			return fmt.Sprint(ok), err
		})
	case n < 76:
		prefix := w.id
		if w.IntN(2) == 0 {
			prefix = key
		}
		var regs []string
		w.tokens = slices.DeleteFunc(w.tokens, func(u usedToken) bool { // they go along
			return u.table == table && strings.HasPrefix(string(u.e.Key), prefix)
		})
		for _, k := range w.keys {
			if strings.HasPrefix(k, prefix) {
				regs = append(regs, rowReg(table, k))
			}
		}
		w.both("DropRowRange", regs, func(b backend.Backend) (string, error) {
			return "", b.DropRowRange(ctx, table, []byte(prefix))
		})
	case n < 84:
		k, v, del := w.id+"-"+w.pick([]string{"r1", "r2"}), w.value(), w.IntN(3) == 0
		w.both("record", []string{recordReg(k)}, func(b backend.Backend) (string, error) {
			_, version, err := b.GetRecord(ctx, k)
			if err != nil {
				version = 0
			}
			if del {
				err = b.DeleteRecord(ctx, k, version)
			} else {
				_, err = b.PutRecord(ctx, k, v, version)
			}
			return "", err
		})
	default:
		w.admin()
	}
}

// admin changes the worker's own table.
func (w *crashWorker) admin() {
	own := w.own()
	reg := []string{tableReg(own)}
	splits := [][]byte{[]byte("k"), []byte("m")}[:w.IntN(3)]
	f := w.pick([]string{"a", "b", "c"})
	n := w.IntN(18)
	backups := []string{"backup" + w.id, "copy" + w.id}
	from := w.IntN(2)
	switch n {
	case 12, 13, 14:
		reg = []string{backupReg(backups[from])}
	case 15:
		reg = []string{backupReg(backups[1-from])}
	}
	e := &row.Entry{Key: []byte(w.pick([]string{"a", "k", "l", "z"})), Mutations: []row.Mutation{setCell(f, "q", w.timestamp(), string(w.value()))}}
	w.both(fmt.Sprint("admin ", n), reg, func(b backend.Backend) (string, error) {
		var err error
		switch n {
		case 0, 1:
			_, err = b.CreateTable(ctx, crashTable(own), splits)
		case 2:
			err = b.DeleteTable(ctx, own)
		case 3, 4:
			// With a table there it fails in ways of its own.
			if _, err = b.Table(ctx, own); err != nil {
				_, err = b.UndeleteTable(ctx, own)
			}
		case 5, 6:
			_, err = b.UpdateTable(ctx, own, func(s *schema.Table) error {
				if _, ok := s.Families[f]; ok {
					delete(s.Families, f)
				} else {
					s.AddFamily(schema.Family{Name: f})
				}
				return nil
			})
		case 7:
			err = b.DropRowRange(ctx, own, []byte("k"))
		case 12, 13:
			_, err = b.CreateBackup(ctx, own, &schema.Backup{Name: backups[from]})
		case 14:
			err = b.DeleteBackup(ctx, backups[from])
		case 15:
			_, err = b.CopyBackup(ctx, backups[from], &schema.Backup{Name: backups[1-from]})
		case 16, 17:
			_, err = b.RestoreTable(ctx, backups[from], own, func(*schema.Table) error { return nil })
		default:
			err = b.MutateRow(ctx, own, e)
		}
		return "", err
	})
}

// crashOptions are small enough that everything happens often.
func crashOptions(rng *rand.Rand) Options {
	o := Options{Dir: "parent/data", Now: clock, NoBackground: rng.IntN(2) == 0, CacheBytes: 1 << 20, Tend: 10 * time.Millisecond}
	o.SegmentBytes = int64(8<<10) << rng.IntN(6)
	o.Tablet.MemtableBytes = []int64{1, 64<<10 + 1, 1 << 20}[rng.IntN(3)]
	o.Tablet.FileBytes = []int64{1, 4 << 10, 1 << 20}[rng.IntN(3)]
	o.Tablet.TargetRuns = 1 + rng.IntN(4)
	o.Tablet.MaxRuns = 1000
	if rng.IntN(4) == 0 {
		o.Durability = commitlog.Async
	}
	return o
}

// churn flushes and compacts at random until stop is closed.
func churn(s *Store, rng *rand.Rand, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		ts := append(s.allTablets(), s.meta, s.meta)
		t := ts[rng.IntN(len(ts))]
		var err error
		switch rng.IntN(7) {
		case 6:
			if tables, _ := s.ListTables(ctx, strings.TrimSuffix(parent, "/tables/")); len(tables) > 0 {
				err = move(s, rng, tables[rng.IntN(len(tables))].Name)
			}
			if fault.KindOf(err) == fault.NotFound { // it was deleted meanwhile
				err = nil
			}
		case 0, 1:
			err = s.flush(ctx, t)
		case 2:
			t.Rotate()
		case 3:
			// Splits and merges may be refused, among others because each other's
			// work got in between.
			tables, _ := s.ListTables(ctx, strings.TrimSuffix(parent, "/tables/"))
			if len(tables) == 0 {
				continue
			}
			name, key := tables[rng.IntN(len(tables))].Name, []byte([]string{"k", "w0a", "w1", "w1a", "w2b"}[rng.IntN(5)])
			if rng.IntN(2) == 0 {
				err = s.SplitTablet(ctx, name, key)
			} else {
				err = s.MergeTablets(ctx, name, key)
			}
			if refusal(err) {
				err = nil
			}
		case 4:
			if rng.IntN(2) == 0 {
				t.RequestMajor()
			}
			_, err = t.Compact(ctx)
		default:
			s.work.Trim()
			s.metaWork.Trim()
			time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
		}
		if err != nil && !errors.Is(err, fault.Unavailable) {
			return err
		}
	}
}

// relieveMeta does until stop is closed what METADATA's worker would do for who
// waits for room there.
func relieveMeta(t testing.TB, s *Store, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
		if used, _ := s.metaEnv.Memory.Used(); s.o.NoBackground && used > s.metaEnv.Memory.Limit()/2 {
			if err := s.flush(ctx, s.meta); err != nil && !errors.Is(err, fault.Unavailable) {
				t.Errorf("flush METADATA: %v", err)
				return
			}
		}
		if s.o.NoBackground && s.meta.Runs() > s.metaEnv.Options.MaxRuns/2 {
			if _, err := s.meta.Compact(ctx); err != nil && !errors.Is(err, fault.Unavailable) {
				t.Errorf("compact METADATA: %v", err)
				return
			}
		}
	}
}

func crashRun(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4711))
	fs := datadirtest.NewCrashableMem()
	h := &history{regs: map[string]*register{}}
	var workers []*crashWorker
	for i := range 3 {
		id := fmt.Sprintf("w%d", i)
		w := &crashWorker{t: t, id: id, h: h, keys: []string{id, id + "\x00", id + "a", id + "ab", id + "b"}}
		w.maker = maker{Rand: rand.New(rand.NewPCG(seed, uint64(i))), families: crashFamilies, aggregates: crashAggregates,
			qualifiers: crashQualifiers, big: 10}
		workers = append(workers, w)
	}
	for round := range 2 {
		o := crashOptions(rng)
		c := newCrasher(fs, 1+rng.IntN([]int{60, 400, 2500}[rng.IntN(3)]), rng, h)
		o.FS = c.wrap()
		s := mustOpen(t, o)
		if round == 0 {
			for _, name := range crashTables {
				mustCreate(t, s, arrange(crashTable(name), rng.IntN(arranging)), "w1", "w2")
			}
		}
		if c.crashed() && round == 0 {
			// The tables may or may not be there.
			mustClose(t, s)
			o.FS = c.clone
			s = mustOpen(t, o)
			checkStore(t, s)
			mustClose(t, s)
			return
		}
		stop := make(chan struct{})
		var running, churning sync.WaitGroup
		for _, w := range workers {
			w.real = s
			w.remodel()
			steps := 30 + rng.IntN(150)
			running.Go(func() {
				for i := 0; i < steps && !c.crashed() && !t.Failed(); i++ {
					w.step()
				}
			})
		}
		for i := range 2 {
			r := rand.New(rand.NewPCG(seed, 100+uint64(i)))
			churning.Go(func() {
				if err := churn(s, r, stop); err != nil {
					t.Errorf("churn: %v", err)
				}
			})
		}
		// Without background work somebody must make room in METADATA while all
		// churners wait for it.
		relieved := make(chan struct{})
		var relieving sync.WaitGroup
		relieving.Go(func() { relieveMeta(t, s, relieved) })
		running.Wait()
		close(stop)
		churning.Wait()
		close(relieved)
		relieving.Wait()
		c.crash()
		mustClose(t, s)
		if t.Failed() {
			return
		}
		weak := o.Durability == commitlog.Async && c.cfg.UnsyncedDataPercent < 100
		fs = recoverTwice(t, rng, c, h, workers, weak)
		if t.Failed() {
			return
		}
	}
}

// recoverTwice opens what the crash left, crashing again while it is opened,
// opens that too, and compares both with the history. It returns what the
// second recovery has made, and reduces the history to it.
func recoverTwice(t *testing.T, rng *rand.Rand, c *crasher, h *history, workers []*crashWorker, weak bool) *datadirtest.CrashableMem {
	o := crashOptions(rng)
	o.NoBackground = true
	again := newCrasher(c.clone, 1+rng.IntN(60), rng, &history{})
	o.FS = again.wrap()
	s := mustOpen(t, o)
	found := map[string]string{}
	for k, r := range h.regs {
		found[k] = state(s, k)
		lo, hi := c.acked[k], c.begun[k]
		if weak {
			// Rows may have gone back to what they were; METADATA may not.
			switch k[:3] {
			case "tab":
				continue
			case "row":
				lo = 0
			}
		}
		if hi < lo || !slices.Contains(r.states[lo:hi+1], found[k]) {
			t.Errorf("%s: after the crash (%d%% of what was not synced kept)\n%s\nallowed are\n%s", k,
				c.cfg.UnsyncedDataPercent, found[k], strings.Join(r.states[lo:hi+1], "\nor\n"))
		}
	}
	checkStore(t, s)
	again.crash()
	mustClose(t, s)
	if t.Failed() {
		return nil
	}

	third := newCrasher(again.clone, 1+rng.IntN(60), rng, &history{})
	o.FS = third.wrap()
	s = mustOpen(t, o)
	for k, want := range found {
		if got := state(s, k); got != want {
			t.Errorf("%s: a second recovery finds\n%s\nthe first found\n%s", k, got, want)
		}
	}
	checkStore(t, s)
	// Tokens that were acknowledged are known.
	for _, w := range workers {
		for _, u := range w.tokens {
			reg := rowReg(u.table, string(u.e.Key))
			if weak || c.begun[reg] != c.acked[reg] || c.acked[reg] < u.state {
				continue // the crash caught the row, or came before
			}
			if err := s.MutateRow(ctx, u.table, u.e); err != nil {
				t.Errorf("retry: %v", err)
			}
			if got := state(s, reg); got != found[reg] {
				t.Errorf("%s: a retry with a known token changed\n%s\nto\n%s", reg, found[reg], got)
			}
		}
		w.tokens = nil
	}
	if !third.crashed() {
		third.crash()
	}
	mustClose(t, s)
	clear(h.regs)
	for k, v := range found {
		h.regs[k] = &register{states: []string{v}}
	}
	return third.clone
}

// remodel makes the model what the store is.
func (w *crashWorker) remodel() {
	w.model = model.New(model.Options{Now: clock})
	copyTable := func(name string) {
		s, err := w.real.Table(ctx, name)
		if err != nil {
			return
		}
		if _, err := w.model.CreateTable(ctx, s, nil); err != nil {
			w.t.Error(err)
		}
		rows, err := readRows(w.real, &scan.Request{Table: name, Ranges: []row.Range{row.All}})
		if err != nil {
			w.t.Error(err)
		}
		for _, r := range rows {
			for _, c := range r.Cells {
				m := row.Mutation{Op: row.SetCell, Family: c.Family, Qualifier: c.Qualifier, Timestamp: c.Timestamp, Value: c.Value}
				if s.Families[c.Family].Aggregate != schema.NotAggregate {
					m = row.Mutation{Op: row.MergeToCell, Family: c.Family, Qualifier: c.Qualifier, Timestamp: c.Timestamp,
						Input: row.Input{Kind: row.RawInput, Bytes: c.Value}}
				}
				if err := w.model.MutateRow(ctx, name, &row.Entry{Key: []byte(r.Key), Mutations: []row.Mutation{m}}); err != nil {
					w.t.Error(err)
				}
			}
		}
	}
	own := w.own()
	// The model does not know what was deleted, so that it comes back first.
	w.h.begin(tableReg(own), "")
	if _, err := w.real.UndeleteTable(ctx, own); err == nil {
		state := tableState(w.real, own)
		w.h.mu.Lock()
		r := w.h.regs[tableReg(own)]
		r.states[len(r.states)-1] = state
		w.h.mu.Unlock()
	} else {
		w.h.mu.Lock()
		r := w.h.regs[tableReg(own)]
		r.states[len(r.states)-1] = r.states[len(r.states)-2]
		w.h.mu.Unlock()
	}
	w.h.ack(tableReg(own))
	for _, name := range append(slices.Clone(crashTables), own) {
		copyTable(name)
	}
	for _, name := range []string{"backup" + w.id, "copy" + w.id} {
		scratch, err := restoreScratch(w.real, name)
		if errors.Is(err, fault.NotFound) {
			continue
		}
		copyTable(scratch)
		if _, e := w.model.CreateBackup(ctx, scratch, &schema.Backup{Name: name}); err == nil {
			err = e
		}
		if err = errors.Join(err, w.model.DeleteTable(ctx, scratch), w.real.DeleteTable(ctx, scratch)); err != nil {
			w.t.Errorf("backup %s: %v", name, err)
		}
	}
	err := w.real.ListRecords(ctx, w.id, func(k string, v []byte, _ uint64) error {
		_, err := w.model.PutRecord(ctx, k, v, 0)
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
}
