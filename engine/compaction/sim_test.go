package compaction

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/cell"
)

// entryBytes is the size of an entry in the simulation.
const entryBytes = 1 << 20

// fileEntries is where the simulation cuts its outputs.
const fileEntries = 64

type simEntry struct {
	key  uint32
	seq  int
	tomb bool
}

// A sim is a locality group whose files hold real, if few, entries, so that
// what the picker is promised can be checked against what it chose.
type sim struct {
	t     fataler
	o     Options
	runs  []Run
	data  map[uint64][]simEntry // by file
	id    uint64
	seq   int
	model map[uint32]int // newest sequence number; absent if deleted

	flushed, written int64 // bytes
	jobs, moved      int
	maxRuns          int
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func newSim(t fataler, o Options) *sim {
	return &sim{t: t, o: o, data: map[uint64][]simEntry{}, model: map[uint32]int{}}
}

func rowPrefix(key uint32) []byte {
	return cell.AppendRow(nil, binary.BigEndian.AppendUint32(nil, key))
}

func (s *sim) newFile(es []simEntry) File {
	s.id++
	s.data[s.id] = es
	f := File{ID: s.id, Lo: rowPrefix(es[0].key), Hi: rowPrefix(es[len(es)-1].key),
		Bytes: int64(len(es)) * entryBytes, Entries: int64(len(es))}
	for _, e := range es {
		if e.tomb {
			f.Tombstones++
		}
	}
	return f
}

// newRun adds the bounds of its files' sequence numbers.
func (s *sim) newRun(files []File) Run {
	s.id++
	r := Run{ID: s.id, Files: files, MinSeq: cell.MaxSeq}
	for _, f := range files {
		for _, e := range s.data[f.ID] {
			r.MinSeq, r.MaxSeq = min(r.MinSeq, cell.Seq(e.seq)), max(r.MaxSeq, cell.Seq(e.seq))
		}
	}
	return r
}

// flush writes one run of these keys, deleting those that del names.
func (s *sim) flush(keys []uint32, del func(i int) bool) {
	newest := map[uint32]simEntry{}
	for i, k := range keys {
		s.seq++
		e := simEntry{key: k, seq: s.seq, tomb: del != nil && del(i)}
		newest[k] = e
		if e.tomb {
			delete(s.model, k)
		} else {
			s.model[k] = s.seq
		}
	}
	es := make([]simEntry, 0, len(newest))
	for _, e := range newest {
		es = append(es, e)
	}
	slices.SortFunc(es, func(a, b simEntry) int { return int(int64(a.key) - int64(b.key)) })
	var files []File
	for c := range slices.Chunk(es, fileEntries) {
		files = append(files, s.newFile(c))
	}
	s.flushed += int64(len(es)) * entryBytes
	s.written += int64(len(es)) * entryBytes
	s.runs = append([]Run{s.newRun(files)}, s.runs...)
}

// settle compacts until there is nothing to do.
func (s *sim) settle() {
	s.t.Helper()
	for n := 0; ; n++ {
		if n > 1000 {
			s.t.Fatalf("compactions do not come to an end")
		}
		s.maxRuns = max(s.maxRuns, len(s.runs))
		j, ok := Pick(s.runs, s.o)
		if !ok {
			return
		}
		s.run(j)
	}
}

func (s *sim) run(j Job) {
	s.t.Helper()
	s.check(j)
	s.finish(j)
}

// finish puts the output of a job in the place of its inputs.
func (s *sim) finish(j Job) {
	s.t.Helper()
	s.jobs++
	var files []File
	var open []simEntry // output of rewritten parts that is not in a file yet
	cut := func(all bool) {
		for len(open) >= fileEntries || all && len(open) > 0 {
			n := min(len(open), fileEntries)
			files = append(files, s.newFile(open[:n:n]))
			s.written += int64(n) * entryBytes
			open = open[n:]
		}
	}
	for _, p := range j.Parts {
		if p.Move {
			cut(true)
			files = append(files, p.Inputs[0].Files[0])
			s.moved++
			continue
		}
		newest := map[uint32]simEntry{}
		for _, in := range slices.Backward(p.Inputs) { // oldest first
			for _, f := range in.Files {
				for _, e := range s.data[f.ID] {
					if old, ok := newest[e.key]; ok && old.seq > e.seq {
						s.t.Fatalf("part of job %q lists an older run before a newer", j.Reason)
					}
					newest[e.key] = e
				}
			}
		}
		es := make([]simEntry, 0, len(newest))
		for _, e := range newest {
			if !e.tomb || !p.Complete {
				es = append(es, e)
			}
		}
		slices.SortFunc(es, func(a, b simEntry) int { return int(int64(a.key) - int64(b.key)) })
		open = append(open, es...)
		cut(false)
	}
	cut(true)
	next, ok := j.Apply(s.runs, s.newRun(files))
	if !ok {
		s.t.Fatalf("job %q does not apply", j.Reason)
	}
	s.runs = next
	if j.Kind == Major {
		s.o.LastMajor = s.o.Now
		s.o.Force = false
	}
	s.verify()
}

// check holds a job to what Pick promises of it.
func (s *sim) check(j Job) {
	s.t.Helper()
	at := slices.IndexFunc(s.runs, func(r Run) bool { return r.ID == j.Runs[0] })
	for i, id := range j.Runs {
		if at < 0 || at+i >= len(s.runs) || s.runs[at+i].ID != id {
			s.t.Fatalf("runs %v of job %q are no neighbours", j.Runs, j.Reason)
		}
		if s.runs[at+i].taken() {
			s.t.Fatalf("job %q takes a run that it must not", j.Reason)
		}
	}
	if j.Kind == Major && len(j.Runs) != len(s.runs) {
		s.t.Fatalf("major compaction of %d of %d runs", len(j.Runs), len(s.runs))
	}
	if len(j.Runs) < 2 && j.RewriteBytes() == 0 {
		s.t.Fatalf("job %q does nothing", j.Reason)
	}
	seen := map[uint64]bool{}
	var end []byte
	for i := range j.Parts {
		p := &j.Parts[i]
		if end != nil && bytes.Compare(p.first(), end) <= 0 {
			s.t.Fatalf("part %d of job %q overlaps the one before", i, j.Reason)
		}
		end = p.last()
		n := 0
		for _, in := range p.Inputs {
			for k, f := range in.Files {
				if seen[f.ID] {
					s.t.Fatalf("file %d is in two parts", f.ID)
				}
				seen[f.ID] = true
				n++
				if f.Rewrite && p.Move {
					s.t.Fatalf("file %d is not rewritten", f.ID)
				}
				if k > 0 && bytes.Compare(in.Files[k-1].Hi, f.Lo) >= 0 {
					s.t.Fatalf("files of run %d overlap", in.Run)
				}
			}
		}
		if p.Move && n != 1 {
			s.t.Fatalf("part of %d files is moved", n)
		}
		complete := true
		for _, r := range s.runs[at+len(j.Runs):] {
			for _, f := range r.Files {
				if bytes.Compare(f.Lo, p.last()) <= 0 && bytes.Compare(f.Hi, p.first()) >= 0 {
					complete = false
				}
			}
		}
		if p.Complete != complete {
			s.t.Fatalf("part %d of job %q: Complete is %v", i, j.Reason, p.Complete)
		}
	}
	for i := range j.Runs {
		for _, f := range s.runs[at+i].Files {
			if !seen[f.ID] {
				s.t.Fatalf("file %d of run %d is in no part", f.ID, s.runs[at+i].ID)
			}
		}
	}
}

// verify reads everything through the runs and compares with the model.
func (s *sim) verify() {
	s.t.Helper()
	newest := map[uint32]simEntry{}
	minSeq := 1 << 60
	for _, r := range s.runs {
		if int(r.MaxSeq) >= minSeq {
			s.t.Fatalf("runs are out of order of age")
		}
		minSeq = int(r.MinSeq)
		var end []byte
		for _, f := range r.Files {
			if end != nil && bytes.Compare(f.Lo, end) <= 0 {
				s.t.Fatalf("files of run %d overlap", r.ID)
			}
			end = f.Hi
			for _, e := range s.data[f.ID] {
				if _, ok := newest[e.key]; !ok {
					newest[e.key] = e
				}
			}
		}
	}
	live := 0
	for k, e := range newest {
		if e.tomb {
			if _, ok := s.model[k]; ok {
				s.t.Fatalf("key %d is deleted", k)
			}
			continue
		}
		live++
		if s.model[k] != e.seq {
			s.t.Fatalf("key %d has sequence number %d, want %d", k, e.seq, s.model[k])
		}
	}
	if live != len(s.model) {
		s.t.Fatalf("%d keys, want %d", live, len(s.model))
	}
}

func (s *sim) amplification() float64 { return float64(s.written) / float64(s.flushed) }

func (s *sim) bytes() (n int64) {
	for i := range s.runs {
		n += s.runs[i].Bytes()
	}
	return n
}

func random(r *rand.Rand, n int, below uint32) []uint32 {
	ks := make([]uint32, n)
	for i := range ks {
		ks[i] = r.Uint32N(below)
	}
	return ks
}

func TestWriteAmplification(t *testing.T) {
	for _, n := range []int{4, 16, 64, 256} {
		for name, size := range map[string]func(*rand.Rand) int{
			"equal flushes":  func(*rand.Rand) int { return 64 },
			"uneven flushes": func(r *rand.Rand) int { return 16 + r.IntN(97) },
			"bursts": func(r *rand.Rand) int {
				if r.IntN(4) > 0 {
					return 2
				}
				return 120
			},
		} {
			r := rand.New(rand.NewPCG(1, uint64(n)))
			s := newSim(t, Options{})
			for range n {
				s.flush(random(r, size(r), math.MaxUint32), nil)
				s.settle()
				if len(s.runs) > 6 {
					t.Fatalf("%d runs", len(s.runs))
				}
			}
			wa, bound := s.amplification(), 1+0.6*math.Log2(float64(n))
			t.Logf("%4d %s: write amplification %.2f (bound %.2f), %d jobs, %d runs left", n, name, wa, bound, s.jobs, len(s.runs))
			if wa > bound {
				t.Errorf("%d %s: write amplification %.2f > %.2f", n, name, wa, bound)
			}
		}
	}
}

func TestSequentialLoad(t *testing.T) {
	for _, per := range []int{64, 3} { // large and small flushes
		s := newSim(t, Options{})
		key := uint32(0)
		for range 300 {
			ks := make([]uint32, per)
			for i := range ks {
				key += 10
				ks[i] = key
			}
			s.flush(ks, nil)
			s.settle()
			if len(s.runs) != 1 {
				t.Fatalf("%d runs", len(s.runs))
			}
		}
		files := len(s.runs[0].Files)
		t.Logf("flushes of %d: write amplification %.2f, %d files", per, s.amplification(), files)
		if per == 64 && s.amplification() != 1 {
			t.Errorf("write amplification %.2f, want 1", s.amplification())
		}
		if s.amplification() > 4 {
			t.Errorf("write amplification %.2f", s.amplification())
		}
		if limit := 300*per/8 + 10; files > limit {
			t.Errorf("%d files, want at most %d", files, limit)
		}
	}
}

// Several ascending streams at once, as time series with a device id before the
// time are.
func TestInterleavedLoad(t *testing.T) {
	s := newSim(t, Options{})
	next := make([]uint32, 16)
	for range 200 {
		var ks []uint32
		for d := range next {
			for range 4 {
				next[d]++
				ks = append(ks, uint32(d)<<20+next[d])
			}
		}
		s.flush(ks, nil)
		s.settle()
		if len(s.runs) > 6 {
			t.Fatalf("%d runs", len(s.runs))
		}
	}
	t.Logf("write amplification %.2f, %d runs, %d files", s.amplification(), len(s.runs), fileCount(s.runs))
	if s.amplification() > 1+0.6*math.Log2(200) {
		t.Errorf("write amplification %.2f", s.amplification())
	}
}

func fileCount(runs []Run) (n int) {
	for i := range runs {
		n += len(runs[i].Files)
	}
	return n
}

// A data set that is overwritten again and again must not grow without bound.
func TestSpaceAmplification(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	s := newSim(t, Options{})
	const keys = 4096
	worst := 0.0
	for i := range 600 {
		s.flush(random(r, 64, keys), nil)
		s.settle()
		if i > 300 {
			worst = max(worst, float64(s.bytes())/float64(len(s.model)*entryBytes))
		}
	}
	t.Logf("space amplification at most %.2f, write amplification %.2f", worst, s.amplification())
	if worst > 3 {
		t.Errorf("space amplification %.2f", worst)
	}
}

// A queue: rows are written at one end and deleted at the other.
func TestQueue(t *testing.T) {
	s := newSim(t, Options{})
	head, tail := uint32(0), uint32(0)
	for range 300 {
		var ks []uint32
		for range 32 {
			head++
			ks = append(ks, head)
		}
		n := len(ks)
		for head-tail > 200 {
			tail++
			ks = append(ks, tail)
		}
		s.flush(ks, func(i int) bool { return i >= n })
		s.settle()
	}
	tombs := int64(0)
	for _, r := range s.runs {
		for _, f := range r.Files {
			tombs += f.Tombstones
		}
	}
	t.Logf("%d live, %d stored, %d tombstones, write amplification %.2f", len(s.model), s.bytes()/entryBytes, tombs, s.amplification())
	if s.bytes() > 3*200*entryBytes {
		t.Errorf("%d entries stored for %d live ones", s.bytes()/entryBytes, len(s.model))
	}
}

// Whatever is flushed, jobs are well formed, no entry is lost or comes back,
// runs stay few and compactions end.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		o := Options{Now: now, LastMajor: now}
		if rapid.Bool().Draw(t, "options") {
			o.MaxRuns = rapid.IntRange(2, 8).Draw(t, "max runs")
			o.Growth = rapid.Float64Range(1.5, 8).Draw(t, "growth")
		}
		s := newSim(t, o)
		base := uint32(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			span := uint32(rapid.SampledFrom([]int{10, 200, 10000}).Draw(t, "span"))
			if rapid.Bool().Draw(t, "ahead") {
				base += span
			}
			ks := make([]uint32, rapid.IntRange(1, 100).Draw(t, "n"))
			seed := rapid.Uint64().Draw(t, "seed")
			r := rand.New(rand.NewPCG(seed, 0))
			for i := range ks {
				ks[i] = base + r.Uint32N(span)
			}
			deletes := rapid.SampledFrom([]float64{0, 0.1, 0.9}).Draw(t, "deletes")
			s.flush(ks, func(int) bool { return r.Float64() < deletes })
			s.o.Now = s.o.Now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "hours")) * time.Hour)
			s.o.Force = rapid.IntRange(0, 9).Draw(t, "force") == 0
			for i := range s.runs {
				for k := range s.runs[i].Files {
					if rapid.IntRange(0, 30).Draw(t, "mark") == 0 {
						f := &s.runs[i].Files[k]
						f.Garbage = f.Bytes / 2
						f.Rewrite = rapid.Bool().Draw(t, "rewrite")
					}
				}
			}
			s.settle()
			if limit := s.o.WithDefaults().MaxRuns; len(s.runs) > limit {
				t.Fatalf("%d runs, want at most %d", len(s.runs), limit)
			}
		}
	})
}

// A load is a steady one in simulated time, whose unit is the time in which a
// memtable fills. A compaction of so many flushes as speed says takes one unit;
// one that is behind another has a quarter of its speed.
type load struct {
	flushes int
	speed   float64
	jobs    int  // that may be under way at once
	hold    bool // flushes wait rather than be one run too many

	most    int // runs at any time
	mean    float64
	stalled float64 // part of the time in which two memtables wait, and writers have to
	atOnce  int     // jobs under way
}

type underWay struct {
	Job
	left float64 // flushes to be rewritten
}

func (s *sim) sustain(l *load, keys func() []uint32) {
	s.t.Helper()
	per := int64(0) // bytes of a flush
	var works []*underWay
	var now, full, area float64 // full: when the memtable is
	waiting, last := 0, -1.0
	full = 1
	start := func() {
		for len(works) < l.jobs {
			o := s.o
			if l.hold && len(s.runs) >= o.MaxRuns {
				o.Waiting = waiting
			}
			j, ok := Pick(s.runs, o)
			if !ok {
				return
			}
			s.check(j)
			for i := range s.runs {
				s.runs[i].Compacting = s.runs[i].Compacting || slices.Contains(j.Runs, s.runs[i].ID)
			}
			works = append(works, &underWay{j, float64(j.RewriteBytes()) / float64(per)})
			l.atOnce = max(l.atOnce, len(works))
		}
	}
	flush := func() {
		start()
		for waiting > 0 && (!l.hold || len(s.runs) < s.o.MaxRuns || len(works) == 0) {
			waiting--
			before := s.flushed
			s.flush(keys(), nil)
			per = s.flushed - before
			l.most = max(l.most, len(s.runs))
			start()
		}
	}
	for n := 0; n < l.flushes; {
		slices.SortStableFunc(works, func(a, b *underWay) int {
			if a.left < b.left {
				return -1
			}
			return 1
		})
		// What comes next: the memtable is full, or the first job ends.
		stalled := l.hold && waiting == 2
		next := math.Inf(1)
		if !stalled {
			next = max(now, full)
		}
		if len(works) > 0 {
			next = min(next, now+works[0].left/l.speed)
		}
		if math.IsInf(next, 1) {
			s.t.Fatalf("flushes wait for nothing")
		}
		dt := next - now
		now = next
		area += dt * float64(len(s.runs))
		if stalled {
			l.stalled += dt
			full += dt
		}
		part := 1.0
		for _, w := range works {
			w.left -= dt * l.speed * part
			part = 0.25
		}
		if len(works) > 0 && works[0].left < 1e-9 {
			j := works[0].Job
			works = works[1:]
			s.finish(j)
			flush()
			continue
		}
		if now > last {
			n++
			waiting++
			last, full = now, now+1
			flush()
		}
	}
	l.mean, l.stalled = area/now, l.stalled/now
	for len(works) > 0 {
		s.finish(works[0].Job)
		works = works[1:]
	}
}

// TestSustainedLoad: while memtables fill as fast as they can, there are never
// more than six runs, those that are being compacted included; compactions beside
// a long one keep writers from waiting; and hardly more is written than when there
// may be any number of runs.
func TestSustainedLoad(t *testing.T) {
	for _, n := range []int{16, 32, 64, 128} {
		for _, speed := range []float64{3, 4, 6, 8, 12, 16} {
			simulate := func(l load) (load, *sim) {
				r := rand.New(rand.NewPCG(1, uint64(n)))
				l.flushes, l.speed = n, speed
				s := newSim(t, Options{MaxRuns: 6, Long: 8 * 64 * entryBytes})
				s.sustain(&l, func() []uint32 { return random(r, 64, math.MaxUint32) })
				return l, s
			}
			free, fs := simulate(load{jobs: 1})
			alone, as := simulate(load{jobs: 1, hold: true})
			beside, bs := simulate(load{jobs: 2, hold: true})
			t.Logf("%3d flushes, speed %2.0f: no waiting: %2d runs (mean %.1f), written %.2f; waiting: %d (%.1f), %.2f, stalled %2.0f %%; and beside: %d (%.1f), %.2f, %2.0f %%",
				n, speed, free.most, free.mean, fs.amplification(), alone.most, alone.mean, as.amplification(), 100*alone.stalled,
				beside.most, beside.mean, bs.amplification(), 100*beside.stalled)
			if beside.most > 6 || alone.most > 6 {
				t.Errorf("%d flushes, speed %.0f: %d runs; without a second compaction %d", n, speed, beside.most, alone.most)
			}
			wa := bs.amplification()
			// Below a speed of 6 the load is more than can be compacted.
			if bound := 1 + 0.6*math.Log2(float64(n)); speed >= 6 && (wa > bound || wa > 1.15*fs.amplification()) {
				t.Errorf("%d flushes, speed %.0f: write amplification %.2f, want at most %.2f, and hardly more than %.2f", n, speed, wa, bound, fs.amplification())
			}
			if wa/speed < 0.65 && beside.stalled > 0.05 || beside.stalled > alone.stalled+0.005 {
				t.Errorf("%d flushes, speed %.0f: stalled for %.2f of the time, without a second compaction %.2f", n, speed, beside.stalled, alone.stalled)
			}
			if n == 64 && beside.atOnce < 2 {
				t.Error("nothing was compacted beside anything")
			}
		}
	}
}

// Beside a compaction that is under way, nothing is chosen that gains little, and
// nothing at all while a major one waits for its turn, unless there are too many
// runs; and nothing that is long if it is asked for what is short.
func TestBeside(t *testing.T) {
	file := func(size int64) []File {
		return []File{{ID: uint64(size), Lo: rowPrefix(0), Hi: rowPrefix(9), Bytes: size << 20, Entries: 10}}
	}
	for _, c := range []struct {
		name  string
		sizes []int64 // of runs, newest first; negative ones are being compacted
		o     Options
		want  string
	}{
		{"few runs", []int64{1, 1, -8, -8, -8}, Options{}, ""},
		{"room for them", []int64{1, 1, 1, 1, -8, -8}, Options{}, "[0 1 2 3]"},
		{"the last place", []int64{1, 1, -8, -8, -8, -8}, Options{}, "[0 1]"},
		{"too many", []int64{1, 2, -8, -8, -8, -8, -8}, Options{}, "[0 1]"},
		{"too many, of no use", []int64{1, 4, -8, -8, -8, -8, -8}, Options{}, ""},
		{"one waits", []int64{1, 2, -8, -8, -8, -8}, Options{Waiting: 1}, "[0 1]"},
		{"older than what is under way", []int64{-1, -1, 8, 8, 8, 8}, Options{}, "[2 3 4 5]"},
		{"major is due", []int64{1, 1, 1, 1, -8, -8}, Options{Force: true}, ""},
		{"major is due, too many", []int64{1, 1, 1, 1, 1, -8, -8}, Options{Force: true}, "[0 1 2 3 4]"},
		{"major is under way", []int64{1, 1, 1, 1, -8, -8}, Options{Force: true, Major: true}, "[0 1 2 3]"},
		{"major is long", []int64{1, 1, 400, 400}, Options{Force: true, Short: true}, ""},
		{"long, with room to spare", []int64{1, 300, 300, 300}, Options{}, "[0 1 2 3]"},
		{"not long", []int64{1, 30, 30, 30}, Options{}, ""},
		{"long, asked for short", []int64{1, 300, 300, 300}, Options{Short: true}, ""},
		{"too many, asked for short", []int64{1, 9, 80, 300, 300, 300, 300}, Options{Short: true}, "[0 1 2 3]"},
	} {
		var runs []Run
		for i, n := range c.sizes {
			runs = append(runs, Run{ID: uint64(i), Files: file(max(n, -n)), Compacting: n < 0})
		}
		got := ""
		if j, ok := Pick(runs, c.o); ok {
			got = fmt.Sprint(j.Runs)
		}
		if got != c.want {
			t.Errorf("%s: Pick takes %s of %v, want %s", c.name, got, c.sizes, c.want)
		}
	}
}

// Whatever is flushed and deleted while two compactions are under way, in whatever
// order they end, nothing is lost or comes back.
func TestBesideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		s := newSim(t, Options{Now: now, LastMajor: now, Long: int64(rapid.IntRange(1, 300).Draw(t, "long")) * entryBytes})
		var works []Job
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				if len(works) > 0 {
					i := rapid.IntRange(0, len(works)-1).Draw(t, "which")
					j := works[i]
					works = slices.Delete(works, i, i+1)
					s.finish(j)
				}
			case 1, 2:
				if len(works) == 2 {
					continue
				}
				s.o.Major = slices.ContainsFunc(works, func(j Job) bool { return j.Kind == Major })
				s.o.Waiting = rapid.IntRange(0, 3).Draw(t, "waiting")
				s.o.Force = rapid.IntRange(0, 9).Draw(t, "force") == 0
				s.o.Short = rapid.IntRange(0, 3).Draw(t, "short") == 0
				j, ok := Pick(s.runs, s.o)
				if !ok {
					continue
				}
				s.check(j)
				// Small files that are joined do not count.
				window := slices.DeleteFunc(slices.Clone(s.runs), func(r Run) bool { return !slices.Contains(j.Runs, r.ID) })
				if _, n := growth(sorted(window), 0, len(window)); s.o.Short && n >= s.o.Long {
					t.Fatalf("%d bytes are not short", n)
				}
				for i := range s.runs {
					s.runs[i].Compacting = s.runs[i].Compacting || slices.Contains(j.Runs, s.runs[i].ID)
				}
				works = append(works, j)
			default:
				r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				deletes := rapid.SampledFrom([]float64{0, 0.1, 0.9}).Draw(t, "deletes")
				s.flush(random(r, rapid.IntRange(1, 60).Draw(t, "n"), 100), func(int) bool { return r.Float64() < deletes })
			}
		}
		for _, j := range works {
			s.finish(j)
		}
		s.o = Options{Now: now, LastMajor: now}
		s.settle()
	})
}

// While a run is damaged, it is left alone.
func TestBusy(t *testing.T) {
	s := newSim(t, Options{MaxRuns: 2})
	r := rand.New(rand.NewPCG(3, 3))
	for range 8 {
		s.flush(random(r, 10, math.MaxUint32), nil)
	}
	s.runs[3].Busy = true
	for range 100 {
		j, ok := Pick(s.runs, s.o)
		if !ok {
			break
		}
		s.run(j)
	}
	busy := slices.IndexFunc(s.runs, func(r Run) bool { return r.Busy })
	if len(s.runs) != 3 || busy != 1 {
		t.Fatalf("%d runs, the busy one is number %d; want one run on either side of it", len(s.runs), busy)
	}
	if _, ok := Pick(s.runs, Options{Force: true}); ok {
		t.Fatal("a major compaction takes a busy run")
	}
}

func TestMajorReasons(t *testing.T) {
	now := time.Unix(1e9, 0)
	file := func(id uint64, lo, hi uint32) File {
		return File{ID: id, Lo: rowPrefix(lo), Hi: rowPrefix(hi), Bytes: 64 << 20, Entries: 64}
	}
	for _, c := range []struct {
		name    string
		change  func(fs []File, o *Options)
		reason  string
		rewrite int // files
	}{
		{"clean", func([]File, *Options) {}, "", 0},
		{"old and clean", func(_ []File, o *Options) { o.LastMajor = now.Add(-100 * time.Hour) }, "", 0},
		{"forced and clean", func(_ []File, o *Options) { o.Force = true }, "", 0},
		{"few tombstones", func(fs []File, o *Options) { fs[1].Tombstones = 1 }, "", 0},
		{"few tombstones, forced", func(fs []File, o *Options) { fs[1].Tombstones = 1; o.Force = true }, "on demand", 1},
		{"few tombstones, old", func(fs []File, o *Options) { fs[1].Tombstones = 1; o.LastMajor = now.Add(-25 * time.Hour) }, "age", 1},
		{"few tombstones, no last time", func(fs []File, o *Options) { fs[1].Tombstones = 1; o.LastMajor = time.Time{} }, "", 0},
		{"many tombstones", func(fs []File, o *Options) { fs[1].Tombstones = 64; fs[2].Tombstones = 1 }, "tombstones", 1},
		{"much garbage, soon", func(fs []File, o *Options) { fs[1].Garbage = fs[1].Bytes }, "", 0},
		{"much garbage", func(fs []File, o *Options) { fs[1].Garbage = fs[1].Bytes; o.LastMajor = now.Add(-2 * time.Hour) }, "garbage", 1},
		{"dense", func(fs []File, o *Options) {
			fs[0].Entries, fs[0].Tombstones = 20_000, 10_000
			fs[1].Bytes = 1 << 40
			o.LastMajor = now.Add(-20 * time.Minute)
		}, "dense tombstones", 1},
		{"a spent file", func(fs []File, o *Options) {
			fs[0].Entries, fs[0].Garbage = 10_000, fs[0].Bytes/2
			fs[1].Bytes = 1 << 40
			o.LastMajor = now.Add(-2 * time.Hour)
		}, "garbage", 1},
		{"dense, soon", func(fs []File, _ *Options) { fs[0].Entries, fs[0].Tombstones, fs[1].Bytes = 20_000, 10_000, 1<<40 }, "", 0},
		{"nearly dense", func(fs []File, o *Options) {
			fs[0].Entries, fs[0].Tombstones = 20_001, 10_000
			fs[1].Bytes = 1 << 40
			o.LastMajor = now.Add(-20 * time.Minute)
		}, "", 0},
		{"rewrite", func(fs []File, o *Options) { fs[0].Rewrite = true }, "rewrite", 1},
	} {
		fs := []File{file(1, 0, 9), file(2, 10, 19), file(3, 20, 29)}
		o := Options{Now: now, LastMajor: now.Add(-time.Minute)}
		c.change(fs, &o)
		j, ok := Pick([]Run{{ID: 9, Files: fs}}, o)
		if ok != (c.reason != "") || j.Reason != c.reason {
			t.Errorf("%s: Pick gives %v, %q; want %q", c.name, ok, j.Reason, c.reason)
			continue
		}
		n := 0
		for _, p := range j.Parts {
			if !p.Move {
				n++
			}
		}
		if n != c.rewrite {
			t.Errorf("%s: %d files are rewritten, want %d", c.name, n, c.rewrite)
		}
	}
}

func TestApply(t *testing.T) {
	j := Job{Runs: []uint64{3, 2}}
	ids := func(rs []Run) string {
		var s []uint64
		for _, r := range rs {
			s = append(s, r.ID)
		}
		return fmt.Sprint(s)
	}
	runs := []Run{{ID: 5}, {ID: 3}, {ID: 2}, {ID: 1}}
	if got, ok := j.Apply(runs, Run{ID: 6, Files: make([]File, 1)}); !ok || ids(got) != "[5 6 1]" {
		t.Errorf("%v %s", ok, ids(got))
	}
	if got, ok := j.Apply(runs, Run{ID: 6}); !ok || ids(got) != "[5 1]" {
		t.Errorf("%v %s", ok, ids(got))
	}
	for _, gone := range [][]Run{{{ID: 5}, {ID: 2}}, {{ID: 3}, {ID: 1}, {ID: 2}}, {{ID: 3}}, nil} {
		if _, ok := j.Apply(gone, Run{ID: 6}); ok {
			t.Errorf("applies to %s", ids(gone))
		}
	}
}

func BenchmarkPick(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	s := newSim(b, Options{})
	for range 64 {
		s.flush(random(r, 640, math.MaxUint32), nil)
		if len(s.runs) == 24 {
			break
		}
	}
	b.Logf("%d runs, %d files", len(s.runs), fileCount(s.runs))
	for b.Loop() {
		Pick(s.runs, s.o)
	}
}
