package standalone

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// A lossyLock loses answers: a change was made, or was not, and its caller is told
// that the service could not be reached.
type lossyLock struct {
	lock.Service
	percent int // of changes

	mu   sync.Mutex
	rng  *rand.Rand
	lost int
}

// change makes a change, and loses it or its answer now and then.
func (l *lossyLock) change(do func() error) error {
	l.mu.Lock()
	n := l.rng.IntN(200)
	if n < 2*l.percent {
		l.lost++
	}
	l.mu.Unlock()
	if n < l.percent {
		return fault.New(fault.Unavailable, "the request was lost")
	}
	err := do()
	if n < 2*l.percent {
		return fault.New(fault.Unavailable, "the answer was lost")
	}
	return err
}

func (l *lossyLock) losses() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

func (l *lossyLock) Put(ctx context.Context, key string, value []byte, version int64) (next int64, err error) {
	err = l.change(func() (err error) {
		next, err = l.Service.Put(ctx, key, value, version)
		return err
	})
	return next, err
}

func (l *lossyLock) Delete(ctx context.Context, key string, version int64) error {
	return l.change(func() error { return l.Service.Delete(ctx, key, version) })
}

// A register is what changes as a whole: a row, a record, a table with its row, a
// backup. One worker changes it.
type register struct {
	states []string // those that were begun; the first is what it was
	acked  int      // the last of states that is known to be durable
}

// A history is all registers.
type history struct {
	mu   sync.Mutex
	regs map[string]*register
}

// begin notes that a register is to have a state.
func (h *history) begin(reg, state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.regs[reg]
	if r == nil {
		r = &register{states: []string{""}}
		h.regs[reg] = r
	}
	r.states = append(r.states, state)
}

// found notes that a register is seen in a state, and says whether it may be.
func (h *history) found(reg, state string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.regs[reg]
	for i := len(r.states) - 1; i >= r.acked; i-- {
		if r.states[i] == state {
			r.acked = i
			return true
		}
	}
	return false
}

// state returns what a register was when it was last found.
func (h *history) state(reg string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.regs[reg]; r != nil {
		return r.states[r.acked]
	}
	return ""
}

// refused notes that the last state that was begun has not come to be.
func (h *history) refused(reg string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.regs[reg]
	r.states = r.states[:len(r.states)-1]
}

// copy returns the history as it is now.
func (h *history) copy() *history {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &history{regs: map[string]*register{}}
	for k, r := range h.regs {
		c.regs[k] = &register{slices.Clone(r.states), r.acked}
	}
	return c
}

// allow adds to h, a copy, the states that were begun since.
func (h *history) allow(later *history) {
	for k, r := range later.copy().regs {
		if old := h.regs[k]; old != nil {
			r.acked = old.acked
		} else {
			r.acked = 0
		}
		h.regs[k] = r
	}
}

// A stormWorker changes rows of the table of all workers, and a table, records and
// backups of its own.
type stormWorker struct {
	*rand.Rand
	t       *testing.T
	id      int
	s       *Server
	h       *history
	l       *lossyLock
	d       *disk
	n       int    // the last value that it wrote
	deleted string // what its table was before it was deleted, if that can be undone
	// reserved says that a backup may have been begun and not made: its name is taken
	// until the master finds that nothing goes on (catalog.ReservationTTL).
	reserved bool
}

func rowKey(id, i int) string { return fmt.Sprintf("w%d-%02d", id, i) }
func ownTable(id int) string  { return fmt.Sprintf("projects/p/instances/i/tables/own%d", id) }
func ownBackup(id int) string {
	return fmt.Sprintf("projects/p/instances/i/clusters/c/backups/b%d", id)
}
func ownRecord(id, i int) string { return fmt.Sprintf("w%d/%d", id, i) }

// observe returns the state of a register.
func observe(ctx context.Context, s *Server, reg string) (string, error) {
	kind, name, _ := strings.Cut(reg, " ")
	switch kind {
	case "row":
		return readRow(ctx, s, table, name)
	case "record":
		v, _, err := s.GetRecord(ctx, name)
		return string(v), absent(err)
	case "table":
		t, err := s.Table(ctx, name)
		if err != nil {
			return "", absent(err)
		}
		v, err := readRow(ctx, s, name, "k")
		return strings.Join(t.FamilyNames(), ",") + "|" + v, err
	}
	// A backup is what it would be restored to.
	if _, err := s.Backup(ctx, name); err != nil {
		return "", absent(err)
	}
	scratch := table + "-scratch"
	if err := absent(s.DeleteTable(ctx, scratch)); err != nil {
		return "", err
	}
	if _, err := s.RestoreTable(ctx, name, scratch, func(*schema.Table) error { return nil }); err != nil {
		return "", err
	}
	state, err := observe(ctx, s, "table "+scratch)
	return state, errors.Join(err, s.DeleteTable(ctx, scratch))
}

func absent(err error) error {
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// readRow returns the newest value of a row.
func readRow(ctx context.Context, s *Server, table, key string) (string, error) {
	c := collector{}
	_, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.Single([]byte(key))}}, &c)
	return c.rows[key], err
}

// over tells whether the round has ended for the worker.
func (w *stormWorker) over() bool {
	select {
	case <-w.s.tablets.Failed():
		return true
	default:
		return w.d.isOff() || w.t.Failed()
	}
}

// do changes a register. Only a lost answer may make that fail; then the worker
// looks which of both states it is.
func (w *stormWorker) do(reg, state string, change func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	before := w.l.losses()
	w.h.begin(reg, state)
	err := change(ctx)
	if err == nil {
		// What is durable now may have become so after the power was cut: found is
		// asked of the history that was copied before that.
		if !w.h.found(reg, state) {
			w.t.Errorf("%s: %q was acknowledged, and not begun", reg, state)
		}
		return true
	}
	if w.over() {
		return false
	}
	if errors.Is(err, fault.AlreadyExists) && w.reserved && strings.HasPrefix(reg, "backup ") {
		w.h.refused(reg)
		return false
	}
	if ctx.Err() != nil || w.l.losses() == before {
		w.t.Errorf("%s to %q: %v, %d answers were lost meanwhile", reg, state, err, w.l.losses()-before)
		return false
	}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		now, err := observe(ctx, w.s, reg)
		cancel()
		switch {
		case w.over():
			return false
		case err == nil:
			if !w.h.found(reg, now) {
				w.t.Errorf("%s is %q after an answer was lost, of %v", reg, now, w.h.copy().regs[reg])
			}
			return now == state
		case ctx.Err() != nil:
			w.t.Errorf("%s cannot be read: %v", reg, err)
			return false
		}
	}
}

func (w *stormWorker) put(ctx context.Context, table, key, value string) error {
	return w.s.MutateRow(ctx, table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
		{Op: row.DeleteRow}, {Op: row.SetCell, Family: "f", Timestamp: 1000, Value: []byte(value)}}})
}

// step makes one change.
func (w *stormWorker) step() {
	w.n++
	value := fmt.Sprintf("%d", w.n)
	own, backup := "table "+ownTable(w.id), "backup "+ownBackup(w.id)
	now := w.h.state(own)
	families, _, _ := strings.Cut(now, "|")
	switch n := w.IntN(100); {
	case n < 35:
		key := rowKey(w.id, w.IntN(20))
		value += strings.Repeat("v", w.IntN(2000))
		w.do("row "+key, value, func(ctx context.Context) error { return w.put(ctx, table, key, value) })
	case n < 50:
		key := ownRecord(w.id, w.IntN(3))
		to := value
		if w.h.state("record "+key) != "" && w.IntN(3) == 0 {
			to = ""
		}
		w.do("record "+key, to, func(ctx context.Context) error {
			_, version, err := w.s.GetRecord(ctx, key)
			if err = absent(err); err != nil {
				return err
			}
			if to == "" {
				return w.s.DeleteRecord(ctx, key, version)
			}
			_, err = w.s.PutRecord(ctx, key, []byte(to), version)
			return err
		})
	case n < 65 && now == "":
		if w.deleted != "" && w.IntN(2) == 0 {
			to := w.deleted
			if w.do(own, to, func(ctx context.Context) error { _, err := w.s.UndeleteTable(ctx, ownTable(w.id)); return err }) {
				w.deleted = ""
			}
			return
		}
		if w.do(own, "f|", func(ctx context.Context) error {
			_, err := w.s.CreateTable(ctx, &schema.Table{Name: ownTable(w.id), Granularity: 1000,
				Families: map[string]schema.Family{"f": {Name: "f"}}}, [][]byte{[]byte("h")})
			return err
		}) {
			w.deleted = ""
		}
	case n < 60: // its table is there
		w.do(own, families+"|"+value, func(ctx context.Context) error { return w.put(ctx, ownTable(w.id), "k", value) })
	case n < 63:
		name := fmt.Sprintf("g%06d", w.n)
		w.do(own, families+","+name+strings.TrimPrefix(now, families), func(ctx context.Context) error {
			_, err := w.s.UpdateTable(ctx, ownTable(w.id), func(t *schema.Table) error {
				t.AddFamily(schema.Family{Name: name})
				return nil
			})
			return err
		})
	case n < 65:
		if w.do(own, "", func(ctx context.Context) error { return w.s.DeleteTable(ctx, ownTable(w.id)) }) {
			w.deleted = now
		}
	case n < 75 && w.h.state(backup) != "":
		w.do(backup, "", func(ctx context.Context) error { return w.s.DeleteBackup(ctx, ownBackup(w.id)) })
	case n < 75 && now != "":
		w.reserved = !w.do(backup, now, func(ctx context.Context) error {
			_, err := w.s.CreateBackup(ctx, ownTable(w.id), &schema.Backup{Name: ownBackup(w.id), ExpireTime: time.Now().Add(24 * time.Hour)})
			return err
		})
	default:
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		churn(ctx, w.t, w.s, w.Rand)
		if ctx.Err() != nil {
			w.t.Error("a split, merge or flush hangs")
		}
	}
}

// judge compares a server with a history, and makes what it finds the history.
func judge(t *testing.T, s *Server, h *history) {
	t.Helper()
	defer closeNow(t, s)
	byTable := map[uint64][]*metadata.Row{}
	if err := s.Rows(t.Context(), func(r *metadata.Row) error {
		byTable[r.Table] = append(byTable[r.Table], r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ids, err := s.TableIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if !metadata.Tile(byTable[id]) {
			t.Errorf("the tablets of table %d do not tile it: %v", id, byTable[id])
		}
	}
	for reg := range h.copy().regs {
		now, err := observe(t.Context(), s, reg)
		if err != nil {
			t.Errorf("%s: %v", reg, err)
			continue
		}
		if !h.found(reg, now) {
			r := h.regs[reg]
			t.Errorf("%s is %.80q after the recovery; it may be one of %.300q", reg, now, r.states[r.acked:])
		}
	}
}

// TestStorm changes rows, records, tables and backups, flushes, splits and merges
// tablets, while one change of the lock service in twenty is lost or loses its
// answer, and the power is cut at a random write. What was acknowledged is there
// after the recovery, and what was under way is there wholly or not at all. The power
// is cut during the recovery too.
func TestStorm(t *testing.T) {
	runs := 20
	if testing.Short() {
		runs = 5
	}
	first := 0
	if v := os.Getenv("TRESTLE_SIM_SEED"); v != "" {
		var err error
		if first, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	if v := os.Getenv("TRESTLE_SIM_RUNS"); v != "" {
		var err error
		if runs, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { storm(t, uint64(seed)) })
		if t.Failed() {
			return
		}
	}
}

func storm(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	fs := datadirtest.NewCrashableMem()
	start := openOn(t, fs)
	_, err := start.CreateTable(t.Context(), &schema.Table{Name: table, Granularity: 1000,
		Families: map[string]schema.Family{"f": {Name: "f"}}}, [][]byte{[]byte("w1")})
	if err != nil {
		t.Fatal(err)
	}
	closeNow(t, start)
	h := &history{regs: map[string]*register{}}
	lost := 0
	for round := range 3 {
		d := newDisk(fs, 20+rng.IntN(1200), rng)
		var cut *history
		d.before = func() { cut = h.copy() }
		l := &lossyLock{rng: rand.New(rand.NewPCG(seed, uint64(round))), percent: 5}
		s, err := openWith(t, plantedFS(d.view()), func(inner lock.Service) lock.Service {
			l.Service = plantedLock(inner)
			return l
		})
		if err == nil {
			var running sync.WaitGroup
			for id := range 3 {
				w := &stormWorker{Rand: rand.New(rand.NewPCG(seed, uint64(round*10+id+5))), t: t, id: id, s: s, h: h, l: l, d: d, n: round * 1000, reserved: true}
				running.Go(func() {
					for n := 0; n < 150 && !w.over(); n++ {
						w.step()
					}
				})
			}
			running.Wait()
		} else if l.losses() == 0 && !d.isOff() {
			t.Fatal(err)
		}
		fs = d.cut()
		if s != nil {
			closeLost(s)
		}
		lost += l.losses()
		cut.allow(h)
		h = cut
		again := newDisk(fs, 1+rng.IntN(60), rng)
		judge(t, openOn(t, plantedFS(again.view())), h.copy())
		fs = again.cut()
		judge(t, openOn(t, plantedFS(fs)), h)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d answers were lost, %d registers", lost, len(h.regs))
}

// closeLost closes a server of which the last answers may be lost: that may fail.
func closeLost(s *Server) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Close(now)
}
