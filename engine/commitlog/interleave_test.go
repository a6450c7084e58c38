package commitlog

import (
	"cmp"
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
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// This file interleaves, at random and reproducibly, what happens around a
// commit log of segment objects in a cluster: servers that write, flush and
// trim; takers-over that wrongly believe them dead, and race; a collector of
// old logs. Requests to the store are delayed, lost, or carried out after their
// sender has given up; replies get lost. The log is the real one. METADATA rows
// are a map with a compare-and-set.
//
// In the end every acknowledged record must be in the tablet it was written to
// (I1, I2), nothing behind a redo point may have been deleted, nor any fence
// (I8), and no Seal may have found a hole.

// A plant is a mistake that the check must find.
type plant string

const (
	plantNone           plant = ""
	plantUnordered      plant = "acknowledge segments as they are stored, in any order"
	plantFenceDeleted   plant = "the collector of old logs deletes the fence too"
	plantStaleRedo      plant = "seal from a redo point read before the compare-and-set of the epoch"
	plantLoserKeepsTrim plant = "the loser of a compare-and-set drops the tablet and goes on trimming"
)

const simTablets = 2

// simSeeds returns how many seeds a check runs: n, or what the environment
// variable TRESTLE_TEST_SEEDS says, from TRESTLE_TEST_FIRST_SEED on.
func simSeeds(n int) (first, end uint64) {
	if v, err := strconv.Atoi(os.Getenv("TRESTLE_TEST_SEEDS")); err == nil {
		n = v
	} else if testing.Short() {
		n = max(n/10, 1)
	}
	if v, err := strconv.ParseUint(os.Getenv("TRESTLE_TEST_FIRST_SEED"), 10, 64); err == nil {
		first = v
	}
	return first, first + uint64(n)
}

// TestI1_OneOwnerAcknowledges: whatever is acknowledged by a server, before or
// while others take its tablets over, is found by them (I1, I2, I8).
func TestI1_OneOwnerAcknowledges(t *testing.T) {
	first, end := simSeeds(2000)
	var sum simStats
	for seed := first; seed < end; seed++ {
		s := runSim(t, seed, plantNone)
		sum.add(s)
		if len(s.violations) > 0 {
			t.Fatalf("seed %d: %s\n%s", seed, strings.Join(s.violations, "\n"), strings.Join(s.trace, "\n"))
		}
	}
	t.Logf("%d trials: %+v", end-first, sum)
	if end-first >= 100 && (sum.Takeovers == 0 || sum.Fenced == 0 || sum.Trimmed == 0 || sum.Late == 0 || sum.AckedLate == 0) {
		t.Errorf("the trials do not exercise what they should: %+v", sum)
	}
}

// TestI1_PlantedMistakes: the check finds each of the mistakes that the protocol
// avoids, by a record that was acknowledged and is lost.
func TestI1_PlantedMistakes(t *testing.T) {
	for _, p := range []plant{plantUnordered, plantFenceDeleted, plantStaleRedo, plantLoserKeepsTrim} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			trials, found := uint64(3000), 0
			if v, err := strconv.ParseUint(os.Getenv("TRESTLE_TEST_SEEDS"), 10, 64); err == nil {
				trials = max(v, trials)
			}
			lost := 0
			for seed := range trials {
				s := runSim(t, seed, p)
				if len(s.violations) > 0 {
					found++
				}
				i := slices.IndexFunc(s.violations, func(v string) bool { return strings.HasPrefix(v, "lost") })
				if i < 0 {
					continue
				}
				if lost++; lost == 1 {
					t.Logf("after %d trials, %d of which show something: %s", seed+1, found, s.violations[i])
				}
				if trials == 3000 {
					return // else go on, and count
				}
			}
			t.Logf("of %d trials %d show something, %d a lost record", trials, found, lost)
			if lost == 0 {
				t.Error("the check does not find it")
			}
		})
	}
}

type simStats struct{ Steps, Acked, AckedLate, Takeovers, Fenced, Trimmed, Late, Lost int }

func (s *simStats) add(m *sim) {
	s.Steps += m.stats.Steps
	s.Acked += m.stats.Acked
	s.AckedLate += m.stats.AckedLate
	s.Takeovers += m.stats.Takeovers
	s.Fenced += m.stats.Fenced
	s.Trimmed += m.stats.Trimmed
	s.Late += m.stats.Late
	s.Lost += m.stats.Lost
}

// A simRow is what METADATA says of a tablet.
type simRow struct {
	epoch   int
	owner   ID
	files   []simRecord
	flushed uint64
	redo    Pos
}

type simRecord struct {
	seq, id uint64
	pos     Pos
}

// An op waits for its turn.
type op struct {
	actor, what string
	n           int // order among the same
	mutates     bool
	do          func() error
	// done gets the outcome; nil if nobody waits any more.
	done chan error
	// applied says that do has happened and only the reply is under way.
	applied bool
	reply   error
}

type sim struct {
	rng        *rand.Rand
	plant      plant
	faults     bool
	trace      []string
	violations []string
	stats      simStats

	mu      sync.Mutex // guards what follows; actors run one at a time, mostly
	ops     []*op
	seq     map[string]int
	objects map[string][]byte
	rows    [simTablets]simRow
	acked   map[uint64]simAck
	written map[uint64]int // tablet of each record
	lastID  uint64
	sealed  []Pos
	stop    bool
}

type simAck struct {
	tablet int
	pos    Pos
}

func runSim(t *testing.T, seed uint64, p plant) *sim {
	s := &sim{plant: p, rng: rand.New(rand.NewPCG(seed, 1978)), faults: true,
		seq: map[string]int{}, objects: map[string][]byte{}, acked: map[uint64]simAck{}, written: map[uint64]int{}}
	synctest.Test(t, func(t *testing.T) { s.run(t.Context()) })
	return s
}

func (s *sim) logf(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *sim) violatef(format string, args ...any) {
	s.violations = append(s.violations, fmt.Sprintf(format, args...))
}

var errLost = fault.New(fault.Unavailable, "the reply got lost")

// turn waits until it is the op's turn, which the scheduler decides.
func (s *sim) turn(ctx context.Context, actor, what string, mutates bool, do func() error) error {
	o := &op{actor: actor, what: what, mutates: mutates, do: do, done: make(chan error, 1)}
	s.mu.Lock()
	s.seq[actor+what]++
	o.n = s.seq[actor+what]
	s.ops = append(s.ops, o)
	s.mu.Unlock()
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if !o.mutates {
			s.ops = slices.DeleteFunc(s.ops, func(x *op) bool { return x == o })
		}
		o.done = nil // it may still happen
		return ctx.Err()
	}
}

// step carries out one step of one op. It reports whether there was one.
func (s *sim) step() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ops) == 0 {
		return false
	}
	s.stats.Steps++
	slices.SortStableFunc(s.ops, func(a, b *op) int {
		return cmp.Or(strings.Compare(a.actor, b.actor), strings.Compare(a.what, b.what), cmp.Compare(a.n, b.n))
	})
	i := s.rng.IntN(len(s.ops))
	o := s.ops[i]
	remove := func() { s.ops = slices.Delete(s.ops, i, i+1) }
	answer := func(err error) {
		if o.done != nil {
			o.done <- err
			o.done = nil
		}
	}
	fate := -1
	if s.faults && o.mutates {
		fate = s.rng.IntN(16)
	}
	switch {
	case o.applied:
		answer(o.reply)
		remove()
	case fate == 0: // the request is lost
		s.stats.Lost++
		answer(errLost)
		remove()
	case fate == 1 && o.done != nil: // it is late: the sender gives up
		s.stats.Late++
		s.logf("%s %s: late", o.actor, o.what)
		answer(errLost)
	default:
		if o.done == nil {
			s.logf("%s %s: at last", o.actor, o.what)
		}
		o.reply = o.do()
		o.applied = true
		s.logf("%s %s: %v", o.actor, o.what, o.reply)
		switch {
		case fate == 2: // the reply is lost
			s.stats.Lost++
			answer(errLost)
			remove()
		case o.done != nil && o.mutates && s.faults: // the reply takes its time
		default:
			answer(o.reply)
			remove()
		}
	}
	return true
}

func (s *sim) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	steps := 60 + s.rng.IntN(240)
	servers := make([]*simServer, 3)
	for t := range s.rows {
		s.rows[t] = simRow{epoch: 1, owner: 1, redo: Pos{Log: 1, Segment: 1}}
	}
	for i := range servers {
		servers[i] = &simServer{sim: s, id: ID(i + 1), name: fmt.Sprintf("server%d", i+1), rng: rand.New(rand.NewPCG(s.rng.Uint64(), 5))}
		if i == 0 {
			for t := range s.rows {
				servers[i].tablets[t] = &simTablet{epoch: 1, next: 1, redo: s.rows[t].redo}
			}
		}
		running.Go(func() { servers[i].run(ctx) })
	}
	collector := rand.New(rand.NewPCG(s.rng.Uint64(), 6))
	running.Go(func() { s.collect(ctx, collector) })

	for range steps {
		synctest.Wait()
		if !s.step() || s.rng.IntN(12) == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	// Let everybody finish what he began, then take all tablets over in peace.
	synctest.Wait()
	s.mu.Lock()
	s.stop, s.faults = true, false
	s.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		running.Wait()
		for _, v := range servers {
			v.close()
		}
		close(finished)
	}()
	s.until(finished)
	final := &simServer{sim: s, id: 9, name: "final", rng: rand.New(rand.NewPCG(1, 1))}
	finished = make(chan struct{})
	go func() {
		defer close(finished)
		if final.start(ctx) != nil {
			return
		}
		for t := range s.rows {
			final.takeOver(ctx, t)
		}
		final.close()
	}()
	s.until(finished)
	s.check()
}

// until steps until something is finished.
func (s *sim) until(finished chan struct{}) {
	for {
		synctest.Wait()
		select {
		case <-finished:
			return
		default:
		}
		if !s.step() {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func (s *sim) check() {
	for t, r := range s.rows {
		found := map[uint64]bool{}
		last := uint64(0)
		for _, f := range r.files {
			if f.seq <= last {
				s.violatef("tablet %d: sequence number %d follows %d", t, f.seq, last)
			}
			last = f.seq
			if found[f.id] || s.written[f.id] != t {
				s.violatef("tablet %d: record %d is there twice, or not its own", t, f.id)
			}
			found[f.id] = true
		}
		for id, a := range s.acked {
			if a.tablet == t && !found[id] {
				s.violatef("lost: record %d of tablet %d at %v was acknowledged", id, t, a.pos)
			}
		}
	}
	slices.Sort(s.violations)
}

// ack notes that a record was acknowledged.
func (s *sim) ack(id uint64, a simAck) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.acked[id]; ok {
		return
	}
	s.acked[id] = a
	s.stats.Acked++
	if s.rows[a.tablet].owner != a.pos.Log {
		s.stats.AckedLate++ // before the fence, after the epoch
	}
	for name, b := range s.objects {
		log, index, _ := parseObjectName(name)
		if log == a.pos.Log && index <= a.pos.Segment && len(b) == fenceLen {
			s.violatef("I1: record at %v is acknowledged behind the fence at %d", a.pos, index)
		}
	}
	s.logf("acknowledged record %d of tablet %d at %v", id, a.tablet, a.pos)
}

// A simServer is a tablet server.
type simServer struct {
	*sim
	id      ID
	name    string
	rng     *rand.Rand
	w       *SegmentWriter
	tablets [simTablets]*simTablet
	taken   int
	waiting sync.WaitGroup
}

// A simTablet is what a server knows of a tablet that it serves.
type simTablet struct {
	epoch int
	next  uint64      // sequence number
	mem   []simRecord // in the log only
	redo  Pos         // as in the row

	mu      sync.Mutex
	durable uint64
}

func (t *simTablet) Durable(seq uint64) {
	t.mu.Lock()
	t.durable = seq
	t.mu.Unlock()
}

func (v *simServer) store() objectstore.Store { return &simStore{s: v.sim, actor: v.name} }

func (v *simServer) start(ctx context.Context) (err error) {
	o := SegmentOptions{SegmentBytes: 40, InFlight: 1 + v.rng.IntN(2)*3, CommitInterval: time.Duration(v.rng.IntN(2)) * 5 * time.Millisecond}
	for {
		// It may be sealed before it begins.
		if v.w, err = CreateSegments(ctx, v.store(), v.id, o); err == nil || ctx.Err() != nil || errors.Is(err, fault.AlreadyExists) {
			return err
		}
	}
}

func (v *simServer) close() {
	if v.w != nil {
		v.w.Close()
	}
	v.waiting.Wait()
}

// pause lets others go first.
func (v *simServer) pause(ctx context.Context) {
	_ = v.turn(ctx, v.name, "goes on", false, func() error { return nil })
}

func (v *simServer) stopped() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stop
}

func (v *simServer) run(ctx context.Context) {
	if v.start(ctx) != nil {
		return
	}
	for {
		v.pause(ctx)
		if v.stopped() || ctx.Err() != nil {
			return
		}
		if v.w.Err() != nil {
			if errors.Is(v.w.Err(), fault.Fenced) {
				v.mu.Lock()
				v.stats.Fenced++
				v.mu.Unlock()
			}
			return
		}
		i := v.rng.IntN(simTablets)
		t := v.tablets[i]
		switch n := v.rng.IntN(20); {
		case n < 9 && t != nil:
			v.write(ctx, i, t)
		case n < 13 && t != nil:
			if !v.flush(ctx, i, t) {
				return
			}
		case n < 16:
			v.trim()
		case n < 17 && t == nil && v.taken < 2:
			v.taken++
			if !v.takeOver(ctx, i) {
				return
			}
		}
	}
}

func (v *simServer) write(ctx context.Context, i int, t *simTablet) {
	r, err := v.w.Reserve(ctx, 8)
	if err != nil {
		return
	}
	v.mu.Lock()
	v.lastID++
	rec := simRecord{seq: t.next, id: v.lastID}
	v.written[rec.id] = i
	v.mu.Unlock()
	t.next++
	rec.pos = v.w.Append(r, uint64(i), rec.seq, record(func(dst []byte) []byte { return append(dst, byte(rec.id), byte(rec.id>>8)) }), t)
	t.mem = append(t.mem, rec)
	if v.plant == plantUnordered {
		return // simStore does it
	}
	v.waiting.Go(func() {
		if v.w.Wait(context.WithoutCancel(ctx), rec.pos) == nil {
			v.ack(rec.id, simAck{i, rec.pos})
		}
	})
}

// flush moves what is durable of a tablet to its row. It returns false when the
// server must stop.
func (v *simServer) flush(ctx context.Context, i int, t *simTablet) bool {
	t.mu.Lock()
	durable := t.durable
	t.mu.Unlock()
	n := 0
	for n < len(t.mem) && t.mem[n].seq <= durable {
		n++
	}
	redo := v.w.End()
	if n < len(t.mem) {
		redo = t.mem[n].pos
	}
	files := slices.Clone(t.mem[:n])
	err := v.cas(ctx, i, fmt.Sprintf("flushes tablet %d", i), func(r *simRow) bool {
		if r.epoch != t.epoch || r.owner != v.id {
			return false
		}
		r.files = append(slices.Clone(r.files), files...)
		r.flushed = max(r.flushed, durable)
		r.redo = redo
		return true
	})
	switch {
	case err == nil:
		t.mem = t.mem[n:]
		t.redo = redo
		return true
	case v.plant == plantLoserKeepsTrim && errors.Is(err, fault.Fenced):
		v.tablets[i] = nil
		return true
	}
	return false
}

// trim deletes what no row of this server's needs, as far as it knows.
func (v *simServer) trim() {
	before := v.w.End()
	for _, t := range v.tablets {
		if t != nil && t.redo.Less(before) {
			before = t.redo
		}
	}
	_ = v.w.Trim(before)
}

// takeOver takes a tablet from whoever has it. It returns false when the server
// must stop.
func (v *simServer) takeOver(ctx context.Context, i int) bool {
	store := v.store()
	var stale, r simRow
	_ = v.turn(ctx, v.name, fmt.Sprintf("reads row %d", i), false, func() error { stale = v.rows[i]; return nil })
	if v.plant == plantStaleRedo {
		v.pause(ctx)
	}
	err := v.cas(ctx, i, fmt.Sprintf("claims tablet %d", i), func(row *simRow) bool {
		row.epoch++
		row.owner = v.id
		r = *row
		return true
	})
	if err != nil {
		return false
	}
	v.mu.Lock()
	v.stats.Takeovers++
	v.mu.Unlock()
	redo := r.redo
	if v.plant == plantStaleRedo {
		redo = stale.redo
	}
	end, err := Seal(ctx, store, redo.Log, redo, nil)
	if err != nil {
		return v.refused(ctx, err)
	}
	v.mu.Lock()
	v.sealed = append(v.sealed, end)
	v.logf("%s sealed %v from %v at %v", v.name, redo.Log, redo, end)
	v.mu.Unlock()
	var got []simRecord
	for range 2 { // replay changes nothing, so it may be done again
		got = nil
		err = ReplaySealed(ctx, store, redo.Log, redo, end, nil, func(t uint64) bool { return t == uint64(i) }, func(rec Record) error {
			if rec.Tablet == uint64(i) && rec.FirstSeq > r.flushed {
				got = append(got, simRecord{seq: rec.FirstSeq, id: uint64(rec.Payload[0]) | uint64(rec.Payload[1])<<8, pos: rec.Pos})
			}
			return nil
		})
	}
	if err != nil {
		return v.refused(ctx, err)
	}
	t := &simTablet{epoch: r.epoch, next: r.flushed + 1, redo: v.w.End()}
	for _, rec := range got {
		t.next = rec.seq + 1
	}
	t.durable = t.next - 1
	err = v.cas(ctx, i, fmt.Sprintf("opens tablet %d", i), func(row *simRow) bool {
		if row.epoch != r.epoch || row.owner != v.id {
			return false
		}
		row.files = append(slices.Clone(row.files), got...)
		row.flushed = t.durable
		row.redo = t.redo
		return true
	})
	if err != nil {
		return false
	}
	v.tablets[i] = t
	return true
}

// refused notes that a takeover met what must not be.
func (v *simServer) refused(ctx context.Context, err error) bool {
	if ctx.Err() == nil && fault.KindOf(err) == fault.Corruption {
		// It may also be that somebody took the tablet from us, opened it and had
		// its log collected: then the next compare-and-set fails. Nobody does in
		// the end.
		if v.name == "final" || !v.overtaken(err) {
			v.mu.Lock()
			v.violatef("refused: %s: %v", v.name, err)
			v.mu.Unlock()
		}
	}
	return false
}

// overtaken tells whether no row needs the log that err is about.
func (v *simServer) overtaken(err error) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range v.rows {
		if r.owner == v.id && strings.Contains(err.Error(), r.redo.Log.String()) {
			return false
		}
	}
	return true
}

func (s *sim) cas(ctx context.Context, i int, what string, change func(*simRow) bool) error {
	return s.turn(ctx, "METADATA", what, true, func() error {
		r := s.rows[i]
		if !change(&r) {
			return fault.New(fault.Fenced, "the row has changed")
		}
		s.rows[i] = r
		return nil
	})
}

// collect deletes what no row needs of logs that were sealed.
func (s *sim) collect(ctx context.Context, rng *rand.Rand) {
	c := &simServer{sim: s, name: "collector", rng: rng}
	for {
		c.pause(ctx)
		if c.stopped() || ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		var before Pos
		if len(s.sealed) > 0 {
			before = s.sealed[rng.IntN(len(s.sealed))]
		}
		s.mu.Unlock()
		if before == (Pos{}) || rng.IntN(3) > 0 {
			continue
		}
		end := before
		for i := range s.rows {
			_ = c.turn(ctx, c.name, fmt.Sprintf("reads row %d", i), false, func() error {
				if r := s.rows[i]; r.redo.Log == before.Log && r.redo.Less(before) {
					before = r.redo
				}
				return nil
			})
		}
		_ = TrimSealed(ctx, c.store(), before.Log, before)
		if s.plant == plantFenceDeleted && before == end {
			_ = c.store().Delete(ctx, objectName(end.Log, end.Segment))
		}
	}
}

// A simStore is the store as one actor sees it.
type simStore struct {
	s     *sim
	actor string
}

func (st *simStore) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	s := st.s
	data = slices.Clone(data) // it may arrive when the sender has long gone
	err := s.turn(ctx, st.actor, "puts "+name, true, func() error {
		if _, ok := s.objects[name]; ok {
			return fault.New(fault.AlreadyExists, "%s exists", name)
		}
		s.objects[name] = data
		return nil
	})
	if err == nil && s.plant == plantUnordered && len(data) > fenceLen {
		id, index, _ := parseObjectName(name)
		d, _ := decodeSegment(data, id, index, nil)
		for _, e := range d.extents {
			_, _ = d.header.eachRecord(&e, d.data[e.tablet], func(r Record) error {
				s.ack(uint64(r.Payload[0])|uint64(r.Payload[1])<<8, simAck{int(r.Tablet), r.Pos})
				return nil
			})
		}
	}
	return err
}

func (st *simStore) Get(ctx context.Context, name string) (b []byte, err error) {
	err = st.s.turn(ctx, st.actor, "gets "+name, false, func() error {
		var ok bool
		if b, ok = st.s.objects[name]; !ok {
			return fault.New(fault.NotFound, "%s does not exist", name)
		}
		return nil
	})
	return b, err
}

func (st *simStore) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	b, err := st.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return memReadable(b), nil
}

// memReadable is an object in memory.
type memReadable []byte

func (m memReadable) ReadAt(_ context.Context, p []byte, off int64) error {
	if copy(p, m[off:]) < len(p) {
		return errors.New("read over the end")
	}
	return nil
}
func (m memReadable) Size() int64 { return int64(len(m)) }
func (memReadable) Close() error  { return nil }
func (memReadable) NewReadHandle(objstorage.ReadBeforeSize) objstorage.ReadHandle {
	panic("not needed")
}

func (st *simStore) List(ctx context.Context, prefix, after string, n int) (out []objectstore.Info, err error) {
	err = st.s.turn(ctx, st.actor, "lists "+prefix, false, func() error {
		for name, b := range st.s.objects {
			if strings.HasPrefix(name, prefix) && name > after {
				out = append(out, objectstore.Info{Name: name, Size: int64(len(b))})
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b objectstore.Info) int { return strings.Compare(a.Name, b.Name) })
	if n > 0 && len(out) > n {
		out = out[:n]
	}
	return out, err
}

func (st *simStore) Delete(ctx context.Context, name string) error {
	s := st.s
	return s.turn(ctx, st.actor, "deletes "+name, true, func() error {
		b, ok := s.objects[name]
		if !ok {
			return nil
		}
		id, index, _ := parseObjectName(name)
		if len(b) == fenceLen {
			s.violatef("I8: %s deletes the fence %s", st.actor, name)
		}
		for t, r := range s.rows {
			if r.redo.Log == id && index >= r.redo.Segment {
				s.violatef("I8: %s deletes segment %s, the redo point of tablet %d is %v", st.actor, name, t, r.redo)
			}
		}
		delete(s.objects, name)
		s.stats.Trimmed++
		return nil
	})
}

func (st *simStore) Create(context.Context, string) (objstorage.Writable, error) {
	panic("not needed")
}
func (st *simStore) Probe(context.Context) error { return nil }
