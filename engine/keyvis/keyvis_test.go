package keyvis

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// A fake is a tablet that samples as a tablet does.
type fake struct {
	rows   row.Range
	window tablet.Window
	cuts   [][]byte
	bytes  int64
	large  *tablet.LargeRow
	rng    *rand.Rand
}

func (f *fake) Bounds() row.Range                      { return f.rows }
func (f *fake) State() (tablet.State, bool)            { return tablet.State{Bytes: f.bytes}, true }
func (f *fake) Cuts(context.Context) ([][]byte, error) { return f.cuts, nil }
func (f *fake) LargeRow(context.Context, int) (*tablet.LargeRow, int, error) {
	return f.large, 0, nil
}
func (f *fake) TakeWindows(time.Time, bool) []tablet.Window {
	w := f.window
	f.window = tablet.Window{}
	return []tablet.Window{w}
}

func (f *fake) write(key string) {
	f.window.RowsWritten++
	f.window.BytesWritten += 100
	s := tablet.Sampled{Key: []byte(key), Written: true}
	if n := f.window.RowsWritten; n <= 64 {
		f.window.Sample = append(f.window.Sample, s)
	} else if i := f.rng.Int64N(n); i < 64 {
		f.window.Sample[i] = s
	}
}

type world struct {
	t       testing.TB
	store   objectstore.Store
	now     time.Time
	h       *History
	r       *Recorder
	tablets map[Tablet]string
	rng     *rand.Rand
	process int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	s, err := objectstore.OpenLocal(vfs.NewMem(), "k", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: s, now: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC), tablets: map[Tablet]string{}, rng: rand.New(rand.NewPCG(1, 2))}
	w.restart()
	return w
}

// restart begins a process on the same store.
func (w *world) restart() {
	w.process++
	w.h = OpenHistory(w.store, func() time.Time { return w.now })
	w.r = NewRecorder(w.h, Options{Process: fmt.Sprint("p-", w.process), Now: w.h.now, Tablets: func(each func(Tablet, string)) {
		for t, name := range w.tablets {
			each(t, name)
		}
	}})
	w.r.poll(w.t.Context())
}

func (w *world) add(table, start, end string) *fake {
	f := &fake{rows: row.Range{Start: []byte(start), End: []byte(end)}, rng: w.rng}
	w.tablets[f] = table
	return f
}

// pass lets time pass, with load of each quarter of a minute.
func (w *world) pass(minutes int, load func()) {
	for range 4 * minutes {
		load()
		w.now = w.now.Add(15 * time.Second)
		w.r.poll(w.t.Context())
	}
}

func (w *world) read(q Query) *Matrix {
	w.t.Helper()
	q.SplitRate = 10_000
	m, err := w.h.Read(w.t.Context(), q)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(m.Keys) > MaxBuckets+1 || len(m.Keys[0]) != 0 || len(m.Keys[len(m.Keys)-1]) != 0 {
		w.t.Fatalf("%d keys, from %q to %q", len(m.Keys), m.Keys[0], m.Keys[len(m.Keys)-1])
	}
	return m
}

// in returns the sum of the buckets within [start, end), and that of all.
func in(m *Matrix, start, end string) (part, all int64) {
	for _, c := range m.Values {
		for i, v := range c {
			all += v
			if bytes.Compare(m.Keys[i], []byte(start)) >= 0 && compareEnds(endOf(m.Keys, i), []byte(end)) <= 0 {
				part += v
			}
		}
	}
	return part, all
}

func (w *world) kinds(m *Matrix) (out []Kind) {
	for _, f := range m.Findings {
		if !slices.Contains(out, f.Kind) {
			out = append(out, f.Kind)
		}
	}
	return out
}

// TestPatterns writes four patterns, over a split and a restart, and compares the heat
// map with what was written.
func TestPatterns(t *testing.T) {
	w := newWorld(t)
	const each = 2000 // rows in a quarter of a minute
	var sent int64
	seq := 0
	byTable := map[string][]*fake{}
	for _, table := range []string{"row", "range", "seq", "even"} {
		f := w.add(table, "", "")
		f.bytes = 8 << 20
		for i := 1; i < 8; i++ {
			f.cuts = append(f.cuts, fmt.Appendf(nil, "%06d", i*125_000))
		}
		byTable[table] = []*fake{f}
	}
	write := func(table, key string) {
		for _, f := range byTable[table] {
			if f.rows.Contains([]byte(key)) {
				f.write(key)
				return
			}
		}
		t.Fatalf("no tablet of %s has %s", table, key)
	}
	load := func() {
		for range each {
			write("row", "345678")
			write("range", fmt.Sprintf("%06d", 500_000+w.rng.IntN(50_000)))
			write("seq", fmt.Sprintf("s%09d", seq))
			write("even", fmt.Sprintf("%06d", w.rng.IntN(1_000_000)))
			seq++
		}
		sent += each
	}
	check := func(when string) {
		t.Helper()
		for _, x := range []struct {
			table, start, end string
			part              float64
			kind              Kind
		}{
			{"row", "345678", "345678\x00", 1, HotRow},
			{"range", "500000", "550000", 1, HotRange},
			{"seq", "s", "t", 1, Sequential},
			{"even", "", "300000", 0.3, Even},
			{"even", "300000", "", 0.7, Even},
		} {
			m := w.read(Query{Table: x.table, Metric: RowsWritten})
			part, all := in(m, x.start, x.end)
			if all != sent {
				t.Errorf("%s: %s: %d rows are in the heat map, %d were written", when, x.table, all, sent)
			}
			if got := float64(part) / float64(sent); got < x.part-0.02 || got > x.part+0.02 {
				t.Errorf("%s: %s: %.3f of the load is in [%s, %s), want %.2f", when, x.table, got, x.start, x.end, x.part)
			}
			if got := w.kinds(m); !slices.Contains(got, x.kind) {
				t.Errorf("%s: %s: findings %v, want %s", when, x.table, m.Findings, x.kind)
			}
			for _, f := range m.Findings {
				if f.Kind != x.kind && !(x.kind == Sequential && f.From.Equal(m.Times[0])) {
					t.Errorf("%s: %s: a finding too many: %+v", when, x.table, f)
				}
			}
		}
	}
	w.pass(10, load)
	w.pass(1, func() {})
	check("before")
	// What lasts is one finding.
	if m := w.read(Query{Table: "row", Metric: RowsWritten}); len(m.Findings) != 1 || m.Findings[0].To.Sub(m.Findings[0].From) != 10*time.Minute || string(m.Findings[0].Key) != "345678" {
		t.Errorf("findings of ten minutes: %+v", m.Findings)
	}
	// Each tablet is split; what the old one has counted by then is not lost.
	load()
	for table, l := range byTable {
		old := l[0]
		delete(w.tablets, Tablet(old))
		byTable[table] = []*fake{w.add(table, "", "52"), w.add(table, "52", "")}
		byTable[table][0].cuts, byTable[table][1].cuts = old.cuts[:4], old.cuts[4:]
		byTable[table][0].bytes, byTable[table][1].bytes = 4<<20, 4<<20
	}
	w.pass(5, load)
	w.pass(1, func() {})
	check("after a split")
	w.pass(1, load)
	load() // since the last poll
	w.r.finish(t.Context())
	w.restart()
	check("after a restart")
	w.pass(5, load)
	w.pass(1, func() {})
	check("some time after")
	// What is older is there in longer columns.
	w.pass(3*60, func() {})
	w.now = w.now.Add(4 * time.Hour)
	w.pass(1, func() {})
	m := w.read(Query{Table: "row", Metric: RowsWritten, From: w.now.Add(-20 * time.Hour)})
	if part, all := in(m, "345678", "345678\x00"); m.Step != 10*time.Minute || all != sent || part != sent {
		t.Errorf("columns of %v have %d rows, %d of them in the row, want %d", m.Step, all, part, sent)
	}
	w.now = w.now.Add(5 * 24 * time.Hour)
	for range 6 {
		w.pass(10, func() {})
	}
	m = w.read(Query{Table: "row", Metric: RowsWritten, From: w.now.Add(-7 * 24 * time.Hour)})
	if part, all := in(m, "345678", "345678\x00"); m.Step != time.Hour || all != sent || part != sent {
		t.Errorf("columns of %v have %d rows, %d of them in the row, want %d", m.Step, all, part, sent)
	}
	names := func(l level) int {
		infos, err := w.store.List(t.Context(), l.name+"/", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(infos)
	}
	if n := names(levels[0]); n > 6*60+10 {
		t.Errorf("%d columns of a minute are kept", n)
	}
	w.now = w.now.Add(15 * 24 * time.Hour)
	clear(w.tablets)
	for range 6 {
		w.pass(10, func() {})
	}
	for _, l := range levels {
		if n := names(l); n > 0 {
			t.Errorf("%d columns of %v are kept", n, l.step)
		}
	}
}

// TestLargeRow: a large row is a bucket of its own and a finding, however little is asked for,
// and however many buckets there are. It is one finding over a restart.
func TestLargeRow(t *testing.T) {
	w := newWorld(t)
	var fs []*fake
	for i := range 1500 {
		f := w.add("t", fmt.Sprintf("%04d", i), fmt.Sprintf("%04d", i+1))
		f.bytes = 1 << 20
		fs = append(fs, f)
	}
	const key = "0700-large"
	fs[700].bytes, fs[700].large = 300<<20, &tablet.LargeRow{Key: []byte(key), Bytes: 250 << 20, RawBytes: 400 << 20}
	w.pass(2, func() { fs[3].write("0003") })
	w.restart()
	w.pass(12, func() { fs[3].write("0003") })
	for _, step := range []time.Duration{0, 40 * time.Hour} { // minutes, and ten of them
		q := Query{Table: "t", Metric: Stored}
		if step > 0 {
			q.From = w.now.Add(-step)
		}
		m := w.read(q)
		var found []Finding
		for _, f := range m.Findings {
			if f.Kind == LargeRow {
				found = append(found, f)
			}
		}
		if len(found) != 1 || string(found[0].Key) != key || found[0].Severity != "warning" {
			t.Errorf("columns of %v: findings %+v", m.Step, m.Findings)
		}
		if part, all := in(m, key, key+"\x00"); part*100/max(all, 1) != 250*100/(1499+300) {
			t.Errorf("columns of %v: the row has %d of %d bytes", m.Step, part, all)
		}
	}
}

// TestTwoServers: a table's tablets are of two processes, and one moves.
func TestTwoServers(t *testing.T) {
	w := newWorld(t)
	a, b := w.add("t", "", "m"), w.add("t", "m", "")
	other := map[Tablet]string{b: "t"}
	delete(w.tablets, Tablet(b))
	r2 := NewRecorder(w.h, Options{Process: "other", Now: w.h.now, Tablets: func(each func(Tablet, string)) {
		for t, name := range other {
			each(t, name)
		}
	}})
	r2.poll(t.Context())
	var sent int64
	both := func() {
		for range 100 {
			a.write("a")
			b.write("x")
			sent += 2
		}
		w.now = w.now.Add(15 * time.Second)
		w.r.poll(t.Context())
		r2.poll(t.Context())
	}
	for range 8 {
		both()
	}
	moved := w.add("t", "m", "")
	delete(other, Tablet(b))
	w.r.poll(t.Context())
	r2.poll(t.Context())
	b = moved
	for range 8 {
		both()
	}
	w.r.finish(t.Context())
	r2.finish(t.Context())
	w.now = w.now.Add(time.Minute)
	m := w.read(Query{Table: "t", Metric: RowsWritten})
	left, all := in(m, "", "m")
	if right, _ := in(m, "m", ""); all != sent || left != sent/2 || right != sent/2 {
		t.Errorf("%d and %d of %d, want %d", left, right, all, sent)
	}
	if m := w.read(Query{Table: "none"}); len(m.Findings) > 0 || slices.Max(append(slices.Concat(m.Values...), 0)) > 0 {
		t.Errorf("of a table without load: %+v", m)
	}
	if _, err := w.h.Read(t.Context(), Query{Table: "t", From: w.now, To: w.now.Add(-time.Second)}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a range that ends before it begins: %v", err)
	}
}

// TestStoreAway: columns that cannot be stored are stored later.
func TestStoreAway(t *testing.T) {
	w := newWorld(t)
	f := w.add("t", "", "")
	good := w.h.store
	w.h.store = awayStore{good}
	var sent int64
	w.pass(3, func() { f.write("a"); sent++ })
	w.h.store = good
	w.pass(2, func() { f.write("a"); sent++ })
	w.pass(1, func() {})
	if _, all := in(w.read(Query{Table: "t", Metric: RowsWritten}), "", ""); all != sent {
		t.Errorf("%d rows of %d", all, sent)
	}
}

// TestClockSetBack: a column that begins when an earlier one did is stored beside it.
func TestClockSetBack(t *testing.T) {
	w := newWorld(t)
	f := w.add("t", "", "")
	var sent int64
	load := func() { f.write("a"); sent++ }
	w.pass(4, load)
	w.now = w.now.Add(-3 * time.Minute)
	w.pass(6, load)
	w.pass(1, func() {})
	if _, all := in(w.read(Query{Table: "t", Metric: RowsWritten}), "", ""); all != sent {
		t.Errorf("%d rows of %d", all, sent)
	}
}

type awayStore struct{ objectstore.Store }

func (awayStore) PutIfAbsent(context.Context, string, []byte) error { return errors.New("away") }

func randomBuckets(rng *rand.Rand, n int) (out []Bucket) {
	key := []byte{}
	for range n {
		key = append(bytes.Clone(key), byte(rng.IntN(256)), byte(1+rng.IntN(255)))
		b := Bucket{Start: key, Tablet: rng.IntN(2) == 0}
		switch rng.IntN(3) {
		case 0:
			b.End = append(bytes.Clone(key), 0)
		case 1:
			b.End = append(bytes.Clone(key), 0xFF, 0xFF)
		}
		for m := range b.Values {
			b.Values[m] = rng.Int64N(1000)
		}
		if len(b.End) > 0 {
			key = b.End
		} else {
			key = append(bytes.Clone(key), 0xFF)
			b.End = key
		}
		out = append(out, b)
		if len(key) > 100 {
			break
		}
	}
	out[len(out)-1].End = []byte{}
	return out
}

// TestMergedKeepsSums: whatever is put together, nothing is lost or gained.
func TestMergedKeepsSums(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var lists [][]Bucket
		var want Values
		for range 1 + rng.IntN(4) {
			l := randomBuckets(rng, 1+rng.IntN(30))
			for i := range l {
				want.add(&l[i].Values)
			}
			lists = append(lists, l)
		}
		most := 4 + rng.IntN(60)
		got := merged(most, lists...)
		var sum Values
		for i := range got {
			sum.add(&got[i].Values)
			if i > 0 && compareEnds(got[i-1].End, got[i].Start) > 0 {
				t.Fatalf("seed %d: bucket %d overlaps the next", seed, i-1)
			}
		}
		if sum != want || len(got) > most {
			t.Fatalf("seed %d: %d buckets of %d have %v, want %v", seed, len(got), most, sum, want)
		}
	}
}

func sampleColumn(seed uint64) *column {
	rng := rand.New(rand.NewPCG(seed, 1))
	return &column{start: time.Unix(1_700_000_040, 0).UTC(), step: time.Minute, tables: []tableColumn{
		{"projects/p/instances/i/tables/a", randomBuckets(rng, 20)}, {"b", randomBuckets(rng, 1)}}}
}

func TestColumnRoundTrip(t *testing.T) {
	for seed := range uint64(100) {
		c := sampleColumn(seed)
		b, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeColumn(b, func(string) bool { return true })
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Fatalf("seed %d: %v\ngot  %+v\nwant %+v", seed, err, got, c)
		}
		got, err = decodeColumn(b, func(s string) bool { return s == "b" })
		if err != nil || len(got.tables) != 1 || !reflect.DeepEqual(got.tables[0], c.tables[1]) {
			t.Fatalf("one table: %v %+v", err, got)
		}
		b[rand.IntN(len(b))] ^= 1 << rand.IntN(8)
		if _, err := decodeColumn(b, func(string) bool { return true }); fault.KindOf(err) != fault.Corruption {
			t.Fatalf("a flipped bit: %v", err)
		}
	}
}

// sealed makes a column of what is between the magic and the checksum.
func sealed(body []byte) []byte {
	b := append([]byte(columnMagic), body...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// FuzzDecodeColumn: whatever is decoded encodes to what decodes to the same.
func FuzzDecodeColumn(f *testing.F) {
	for seed := range uint64(4) {
		b, _ := sampleColumn(seed).encode()
		f.Add(b[len(columnMagic) : len(b)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if l, err := decodeBuckets(body); err == nil {
			again, err := decodeBuckets(appendBuckets(nil, l))
			if err != nil || len(again) != len(l) {
				t.Fatalf("%d buckets, decoded again %d: %v", len(l), len(again), err)
			}
			merged(MaxBuckets, l, l)
		}
		c, err := decodeColumn(sealed(body), func(string) bool { return true })
		if err != nil {
			return
		}
		b, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeColumn(b, func(string) bool { return true }); err != nil {
			t.Fatal(err)
		}
		together(c.start, c.step, 1, []*column{c, c})
	})
}
