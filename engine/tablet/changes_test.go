package tablet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/stamp"
)

// rowStore keeps METADATA rows as they are stored.
type rowStore struct {
	mu   sync.Mutex
	rows map[metadata.TabletID][]byte
	// before is called with each row that is to be stored.
	before func(*metadata.Row)
}

func (s *rowStore) CAS(_ context.Context, r *metadata.Row) error {
	if s.before != nil {
		s.before(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var version uint64
	if b, ok := s.rows[r.Tablet]; ok {
		old, err := metadata.Unmarshal(b)
		if err != nil {
			return err
		}
		version = old.Version
	} else if r.Tablet != 1 && r.Version != 0 {
		version = r.Version // a child takes the place of its parent
	}
	if version != r.Version {
		return fault.New(fault.Fenced, "version %d, not %d", version, r.Version)
	}
	r.Version++
	if err := r.Check(); err != nil {
		return err
	}
	s.rows[r.Tablet] = r.Marshal()
	return nil
}

// A streamed is a tablet with all it stands on.
type streamed struct {
	t       testing.TB
	fs      *vfs.MemFS
	meta    *rowStore
	objects objectstore.Store
	sch     atomic.Pointer[schema.Table]
	log     *commitlog.FileLog
	env     *Env
	id      atomic.Uint64
	// memtableBytes and changeFiles are those of Options, 0 for the default.
	memtableBytes int64
	changeFiles   int
	*Tablet
}

func newStreamed(t testing.TB) *streamed {
	t.Helper()
	s := &streamed{t: t, fs: vfs.NewMem(), meta: &rowStore{rows: map[metadata.TabletID][]byte{}}}
	s.id.Store(1 << 32)
	var err error
	if s.objects, err = objectstore.OpenLocal(s.fs, "sst", objectstore.LocalOptions{}); err != nil {
		t.Fatal(err)
	}
	s.sch.Store(&schema.Table{Name: "t", ID: 5, NextFamily: 3, Families: map[string]schema.Family{"f": {Name: "f", ID: 1}, "sum": {Name: "sum", ID: 2, Aggregate: schema.Sum}},
		Stream: &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}})
	s.open()
	t.Cleanup(func() { s.close() })
	return s
}

// stream changes the settings of the stream.
func (s *streamed) stream(st *schema.Stream) {
	next := s.sch.Load().Clone()
	next.Stream = st
	next.Version++
	s.sch.Store(next)
}

func (s *streamed) open() {
	s.t.Helper()
	var err error
	if s.log, err = commitlog.Open(s.fs, "log", commitlog.Options{}); err != nil {
		s.t.Fatal(err)
	}
	s.env = &Env{Options: Options{MemtableBytes: s.memtableBytes, ChangeFiles: s.changeFiles}.WithDefaults(), Meta: s.meta, Objects: s.objects, Cache: sstable.NewCache(1<<20, 0), Memory: NewMemory(1<<30, nil),
		Log: slog.New(slog.DiscardHandler), Now: time.Now, NewID: func() uint64 { return s.id.Add(1) }, Work: func(*Tablet) {}, Fatal: func(err error) { s.t.Error(err) },
		Remove: func(object string) {
			if err := s.objects.Delete(context.Background(), object); err != nil {
				s.t.Error(err)
			}
		}}
	r := &metadata.Row{Table: 5, Tablet: 1}
	s.meta.mu.Lock()
	if b, ok := s.meta.rows[1]; ok {
		if r, err = metadata.Unmarshal(b); err != nil {
			s.t.Fatal(err)
		}
	}
	s.meta.mu.Unlock()
	s.Tablet = Open(s.env, r, func() *schema.Table { return s.sch.Load() })
	if err := s.log.Replay(r.Redo, func(rec commitlog.Record) error { return s.Replay(&rec) }); err != nil {
		s.t.Fatal(err)
	}
	if s.env.Commit, err = s.log.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.Start()
}

func (s *streamed) close() {
	s.env.KeepObjects()
	s.Tablet.Close()
	if err := errors.Join(s.env.Commit.Close(), s.log.Close()); err != nil {
		s.t.Error(err)
	}
}

func (s *streamed) reopen() {
	s.t.Helper()
	s.close()
	s.open()
}

func (s *streamed) apply(b *Batch) {
	s.t.Helper()
	pos, err := s.ApplyAsync(s.t.Context(), b)
	if err == nil {
		err = s.Wait(s.t.Context(), pos)
	}
	b.Free()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *streamed) flush() {
	s.t.Helper()
	if err := s.FlushAll(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *streamed) files() int {
	if st := s.Row().Stream; st != nil {
		return len(st.Files)
	}
	return 0
}

// told describes a record but for its stamp.
func told(r *changes.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q", r.Key)
	for _, c := range r.Changes {
		switch c.Op {
		case changes.SetCell:
			fmt.Fprintf(&b, " set %d:%q@%d=%q", c.Family, c.Qualifier, c.Timestamp, c.Value)
		case changes.AddToCell, changes.MergeToCell:
			in, err := changes.ParseInput(c.Value)
			fmt.Fprintf(&b, " input(%d) %d:%q@%d=%d %v", c.Op, c.Family, c.Qualifier, c.Timestamp, in.Int, err)
		case changes.DeleteColumn:
			fmt.Fprintf(&b, " column %d:%q[%d,%d)", c.Family, c.Qualifier, c.Times.Start, c.Times.End)
		case changes.DeleteFamily:
			fmt.Fprintf(&b, " family %d", c.Family)
		case changes.DeleteRow:
			b.WriteString(" row")
		}
	}
	return b.String()
}

// all returns what there is behind from, n records a call, in the order of stamps.
func (s *streamed) all(from changes.Position, within row.Range, n int, between func()) (out []string, at changes.Position) {
	s.t.Helper()
	type one struct {
		stamp cell.Seq
		what  string
	}
	var got []one
	// Whoever asks for rows alone hears of the same.
	var rows, alone []string
	row := func(r *changes.Record) string { return fmt.Sprintf("%d %q", r.Stamp, r.Key) }
	if between == nil {
		if _, _, err := s.ReadChangedRows(s.t.Context(), from, within, func(r *changes.Record) (bool, error) {
			alone = append(alone, row(r))
			return true, nil
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	last := map[string]cell.Seq{}
	for {
		left := n
		next, end, err := s.ReadChanges(s.t.Context(), from, within, func(r *changes.Record) (bool, error) {
			got, rows = append(got, one{r.Stamp, told(r)}), append(rows, row(r))
			if r.Stamp <= last[string(r.Key)] || r.Stamp <= from.Through {
				s.t.Errorf("record %v of row %q comes behind %v, read from %+v", r.Stamp, r.Key, last[string(r.Key)], from)
			}
			last[string(r.Key)] = r.Stamp
			left--
			return left != 0, nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
		from = next
		if left != 0 {
			if next.Through < end || next.ChunkEnd != 0 {
				s.t.Errorf("everything up to %d was given, and it is at %+v", end, next)
			}
			break
		}
		if between != nil {
			between()
		}
	}
	if between == nil && !slices.Equal(alone, rows) {
		s.t.Errorf("rows alone are %s, with what was changed %s", alone, rows)
	}
	slices.SortStableFunc(got, func(a, b one) int { return int(int64(a.stamp) - int64(b.stamp)) })
	for _, g := range got {
		out = append(out, g.what)
	}
	return out, from
}

// TestReadChanges: every kind of change is given as it was made, in order, from memory and
// from a change file, and after a restart.
func TestReadChanges(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	b := NewBatch([]byte("a\x00"))
	b.Set(1, []byte("q\x00"), 1000, []byte("v"))
	b.SetUntil(1, []byte("u"), 1000, []byte("w"), 5000)
	b.Set(1, nil, 2000, bytes.Repeat([]byte("long"), 100))
	s.apply(b)
	b = NewBatch([]byte("b"))
	b.Input(changes.AddToCell, 2, []byte("n"), 0, changes.AppendInput(nil, row.Input{Kind: row.IntInput, Int: 5}))
	b.Set(2, []byte("n"), 0, []byte("state 5"))
	b.Input(changes.MergeToCell, 2, []byte("n"), 0, changes.AppendInput(nil, row.Input{Kind: row.IntInput, Int: 7}))
	b.Set(2, []byte("n"), 0, []byte("state 12"))
	b.Set(1, []byte("q"), 1000, []byte("x"))
	s.apply(b)
	b = NewBatch([]byte("b"))
	b.DeleteColumn(1, []byte("q"), cell.AllTime)
	b.DeleteColumn(1, []byte("q"), cell.TimeRange{Start: 3000, End: 4000})
	b.DeleteFamily(2)
	b.Row([]byte("a\x00"))
	b.DeleteRow()
	s.apply(b)
	b = NewBatch([]byte("c"))
	b.SetToken([]byte("token of an entry"), 1)
	s.apply(b)
	b = NewBatch([]byte("c"))
	b.Set(1, []byte("q"), 1, nil)
	b.SetToken([]byte("token"), 1)
	s.apply(b)
	want := []string{
		`"a\x00" set 1:"q\x00"@1000="v" set 1:"u"@1000="w" set 1:""@2000="` + strings.Repeat("long", 100) + `"`,
		`"b" input(5) 2:"n"@0=5 <nil> input(6) 2:"n"@0=7 <nil> set 1:"q"@1000="x"`,
		`"b" column 1:"q"[0,0) column 1:"q"[3000,4000) family 2`,
		`"a\x00" row`,
		`"c" set 1:"q"@1=""`,
	}
	check := func(what string) {
		t.Helper()
		got, at := s.all(start, row.All, -1, nil)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", what, got)
		}
		if rest, _ := s.all(at, row.All, -1, nil); len(rest) > 0 {
			t.Errorf("%s: behind the end there is %q", what, rest)
		}
		if got, _ := s.all(start, row.Range{Start: []byte("b"), End: []byte("c")}, -1, nil); !slices.Equal(got, want[1:3]) {
			t.Errorf("%s: of row b %q", what, got)
		}
	}
	check("in memory")
	s.reopen()
	check("replayed")
	s.flush()
	if s.files() != 1 {
		t.Errorf("%d change files", s.files())
	}
	check("flushed")
	s.reopen()
	check("opened again")
	// The inputs are in the record of changes and nowhere else.
	v := s.View(t.Context(), []byte("b"))
	if _, ok, err := v.Cell(nil, 2, []byte("n"), 0); ok || err != nil {
		t.Errorf("a deleted cell is there: %v", err)
	}
	if v, ok, err := s.View(t.Context(), []byte("c")).Cell(nil, 1, []byte("q"), 1); !ok || err != nil || len(v) > 0 {
		t.Errorf("cell %q, %v, %v", v, ok, err)
	}
}

// TestReadChangesResumes: with flushes and restarts at any time each record is given once,
// whatever the number that a call gives.
func TestReadChangesResumes(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		s := newStreamed(t)
		start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
		var want []string
		write := func() {
			b := NewBatch(fmt.Appendf(nil, "row%02d", rnd.IntN(20)))
			for i := range 1 + rnd.IntN(3) {
				if i > 0 {
					b.Row(fmt.Appendf(nil, "row%02d", rnd.IntN(20)))
				}
				for range 1 + rnd.IntN(3) {
					b.Set(1, []byte("q"), 1000, fmt.Append(nil, len(want), " ", b.Len()))
				}
				from := 0
				if n := len(b.rows); n > 1 {
					from = b.rows[n-2].opsEnd
				}
				r := changes.Record{Key: b.rows[len(b.rows)-1].key}
				for _, o := range b.ops[from:] {
					r.Changes = append(r.Changes, changes.Change{Op: changes.SetCell, Family: 1, Qualifier: []byte("q"), Timestamp: 1000, Value: o.value})
				}
				want = append(want, told(&r))
			}
			s.apply(b)
		}
		something := func() {
			switch rnd.IntN(8) {
			case 0:
				s.flush()
			case 1:
				s.Rotate()
			case 2:
				s.reopen()
			default:
				write()
			}
		}
		for range 60 {
			something()
		}
		left := 40
		got, at := s.all(start, row.All, 1+rnd.IntN(4), func() {
			if left--; left > 0 {
				something()
			}
		})
		more, _ := s.all(at, row.All, 3, nil)
		if got = append(got, more...); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %d records, want %d", seed, len(got), len(want))
		}
		again, _ := s.all(start, row.All, 1, nil)
		if !slices.Equal(again, want) {
			t.Fatalf("seed %d: read one by one %d records, want %d", seed, len(again), len(want))
		}
	}
}

// TestStreamBeginsAhead: stamps may be ahead of a clock, be it the tablet's own or a gateway's. A
// client who reads a stream from the moment on at which it was enabled is told where it begins,
// as long as nothing of it was let go, and finds all that came later.
func TestStreamBeginsAhead(t *testing.T) {
	s := newStreamed(t)
	s.stream(nil)
	set := func(key string) {
		b := NewBatch([]byte(key))
		b.Set(1, []byte("q"), 1, nil)
		s.apply(b)
	}
	s.env.Now = func() time.Time { return time.Now().Add(time.Minute) }
	set("before")
	s.env.Now = time.Now
	now := time.Now()
	s.stream(&schema.Stream{Life: 2, Retention: time.Hour, Since: now})
	from := changes.Position{Through: stamp.At(now)}
	begin := func(what string) changes.Position {
		t.Helper()
		_, _, err := s.ReadChanges(t.Context(), from, row.All, nil)
		p, ok := changes.BeginOf(err)
		if !ok || p.Through <= from.Through {
			t.Fatalf("%s: %v", what, err)
		}
		return p
	}
	reads := func(what string, from changes.Position) {
		t.Helper()
		if got, _ := s.all(from, row.All, -1, nil); !slices.Equal(got, []string{`"after" set 1:"q"@1=""`}) {
			t.Errorf("%s: %q", what, got)
		}
	}
	first := begin("before a change")
	set("after")
	reads("in memory", first)
	s.flush()
	reads("in a file", first)
	reads("in a file, from where it is told to", begin("in a file"))
	s.reopen()
	reads("opened again", begin("opened again"))
	// A view has a row that was written before.
	if _, _, err := s.ReadChangedRows(t.Context(), from, row.All, nil); fault.KindOf(err) != fault.OutOfRange {
		t.Errorf("a view is told %v", err)
	} else if _, ok := changes.BeginOf(err); ok {
		t.Error("a view is told to go on where the stream begins")
	}
	s.env.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if err := s.TrimStream(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.ReadChanges(t.Context(), from, row.All, nil)
	if _, ok := changes.BeginOf(err); ok || fault.KindOf(err) != fault.OutOfRange {
		t.Errorf("after the retention: %v", err)
	}
}

// TestStreamLives: what is kept is of one life and as old as the retention at most; a
// table without a stream keeps nothing.
func TestStreamLives(t *testing.T) {
	s := newStreamed(t)
	set := func(key string) {
		b := NewBatch([]byte(key))
		b.Set(1, []byte("q"), 1, nil)
		s.apply(b)
	}
	object := func() string {
		st := s.Row().Stream
		if st == nil || len(st.Files) != 1 {
			t.Fatalf("%+v", st)
		}
		return st.Files[0].Object
	}
	there := func(name string) bool {
		_, err := s.objects.Get(t.Context(), name)
		return err == nil
	}
	first := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	set("a")
	s.flush()
	one := object()
	s.stream(nil)
	if _, _, err := s.ReadChanges(t.Context(), first, row.All, nil); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("of a stream that is off: %v", err)
	}
	set("b")
	if err := s.TrimStream(t.Context()); err != nil || s.Row().Stream != nil || there(one) {
		t.Errorf("off: %+v, %v", s.Row().Stream, err)
	}
	s.flush()
	if s.Row().Stream != nil {
		t.Error("a stream that is off keeps something")
	}
	set("c")
	s.stream(&schema.Stream{Life: 2, Retention: time.Hour, Since: time.Now()})
	now := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	set("d")
	if got, _ := s.all(now, row.All, -1, nil); !slices.Equal(got, []string{`"d" set 1:"q"@1=""`}) {
		t.Errorf("on again: %q", got)
	}
	if _, _, err := s.ReadChanges(t.Context(), first, row.All, nil); fault.KindOf(err) != fault.OutOfRange {
		t.Errorf("before it was on: %v", err)
	}
	s.flush()
	two := object()
	if got, _ := s.all(now, row.All, -1, nil); !slices.Equal(got, []string{`"d" set 1:"q"@1=""`}) {
		t.Errorf("flushed: %q", got)
	}
	// A retention that is over.
	late := time.Now().Add(2 * time.Hour)
	s.env.Now = func() time.Time { return late }
	if err := s.TrimStream(t.Context()); err != nil || len(s.Row().Stream.Files) != 0 || there(two) {
		t.Errorf("after the retention: %+v, %v", s.Row().Stream, err)
	}
	if _, _, err := s.ReadChanges(t.Context(), now, row.All, nil); fault.KindOf(err) != fault.OutOfRange {
		t.Errorf("after the retention: %v", err)
	}
	if got, _ := s.all(changes.Position{Through: s.Row().Stream.Since}, row.All, -1, nil); len(got) > 0 {
		t.Errorf("after the retention: %q", got)
	}
}

// TestPromiseBeforeChange: a stream begins when it is enabled, though a promise to its readers is
// the first that the tablet hears of it.
func TestPromiseBeforeChange(t *testing.T) {
	s := newStreamed(t)
	for life := range uint64(3) {
		s.stream(nil)
		if life > 0 { // the memtable is empty, or it is not
			b := NewBatch([]byte("before"))
			b.Set(1, []byte("q"), 1, nil)
			s.apply(b)
		}
		s.stream(&schema.Stream{Life: 2 + life, Retention: time.Hour, Since: time.Now().Add(time.Duration(life) * time.Second)})
		since := stamp.At(s.sch.Load().Stream.Since)
		s.Promise(since + 1000*stamp.Stride)
		b := NewBatch([]byte("behind"))
		b.Set(1, []byte("q"), 1, nil)
		s.apply(b)
		if got, _ := s.all(changes.Position{Through: since - 1}, row.All, -1, nil); !slices.Equal(got, []string{`"behind" set 1:"q"@1=""`}) {
			t.Errorf("life %d: %q", 2+life, got)
		}
	}
}

// A heldLog tells of what is durable when it is released.
type heldLog struct {
	commitlog.Writer
	mu   sync.Mutex
	held []func()
}

func (l *heldLog) Append(r commitlog.Reservation, tablet, firstSeq uint64, recs commitlog.Records, sink commitlog.Sink) commitlog.Pos {
	return l.Writer.Append(r, tablet, firstSeq, recs, heldSink{l, sink})
}

func (l *heldLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tell := range l.held {
		tell()
	}
	l.held = nil
}

type heldSink struct {
	l    *heldLog
	sink commitlog.Sink
}

func (s heldSink) Durable(last uint64) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.held = append(s.l.held, func() { s.sink.Durable(last) })
}

// TestChangesBegin: while something is on its way to the log there is a stamp from which on it
// will be read, and before which everything is that was acknowledged. There is none while
// something is on its way that the stream does not have.
func TestChangesBegin(t *testing.T) {
	s := newStreamed(t)
	write := func(key string) {
		t.Helper()
		b := NewBatch([]byte(key))
		b.Set(1, []byte("q"), 1, nil)
		s.apply(b)
	}
	write("a")
	log := &heldLog{Writer: s.env.Commit}
	s.env.Commit = log
	write("b")
	begin, seen := s.ChangesBegin(), s.content()
	if begin == 0 || begin != s.Visible() || len(seen) != 1 {
		t.Errorf("changes begin at %v, with %v visible, and %v", begin, s.Visible(), seen)
	}
	write("c")
	if again := s.ChangesBegin(); again != begin {
		t.Errorf("changes begin at %v, and now at %v", begin, again)
	}
	log.release()
	want := []string{`"b" set 1:"q"@1=""`, `"c" set 1:"q"@1=""`}
	if got, _ := s.all(changes.Position{Through: begin}, row.All, -1, nil); !slices.Equal(got, want) {
		t.Errorf("read are %v, and then %q", seen, got)
	}
	if now := s.ChangesBegin(); now <= begin {
		t.Errorf("at rest changes begin at %v, before at %v", now, begin)
	}

	s.stream(nil)
	write("d")
	s.stream(&schema.Stream{Life: 2, Retention: time.Hour, Since: time.Now()})
	if begin := s.ChangesBegin(); begin != 0 {
		t.Errorf("changes begin at %v, with %v visible and one below the stream on its way", begin, s.Visible())
	}
	write("e")
	if begin := s.ChangesBegin(); begin != 0 {
		t.Errorf("changes begin at %v, with %v visible and one below the stream on its way", begin, s.Visible())
	}
	log.release()
	if begin := s.ChangesBegin(); begin != s.Visible() || len(s.content()) != 5 {
		t.Errorf("at rest changes begin at %v, with %v visible, and %v", begin, s.Visible(), s.content())
	}
}

// TestStreamSplitMerge: children have their parent's changes, and know of what they came.
func TestStreamSplitMerge(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	for i := range 10 {
		b := NewBatch(fmt.Appendf(nil, "row%d", i))
		b.Set(1, []byte("q"), 1, nil)
		s.apply(b)
		if i == 4 {
			s.flush()
		}
	}
	w := stamp.At(time.Now().Add(time.Minute))
	if !s.Promise(w) {
		t.Error("a promise of an idle tablet is none")
	}
	var children []*Tablet
	if err := s.Split(t.Context(), []byte("row6"), 2, 3, func(c ...*Tablet) { children = c }); err != nil {
		t.Fatal(err)
	}
	left := children[0]
	for i, c := range children {
		n := 0
		at, end, err := c.ReadChanges(t.Context(), start, row.All, func(*changes.Record) (bool, error) { n++; return true, nil })
		if want := []int{6, 4}[i]; n != want || err != nil || end < w || at.Through < w {
			t.Errorf("child %d has %d records up to %d, promised were %d: %v", i, n, end, w, err)
		}
		e := c.Lineage(row.All, start.Through)
		if e == nil || len(e.Children) != 2 || string(e.Children[0].End) != "row6" || e.Stamp <= w {
			t.Errorf("child %d comes of %+v", i, e)
		}
		if e := c.Lineage(c.Bounds(), start.Through); e != nil {
			t.Errorf("child %d has ended: %+v", i, e)
		}
	}
	b := NewBatch([]byte("row1"))
	b.Set(1, []byte("q"), 2, nil)
	pos, err := left.ApplyAsync(t.Context(), b)
	if err = errors.Join(err, left.Wait(t.Context(), pos)); err != nil {
		t.Fatal(err)
	}
	if left.write.seq <= w {
		t.Errorf("a change of a child has stamp %d, %d was promised", left.write.seq, w)
	}
	// Each of the two has promised something of its own.
	later := []cell.Seq{left.write.seq + 2_000_000*stamp.Stride, left.write.seq + 1_000_000*stamp.Stride}
	for i, c := range children {
		if !c.Promise(later[i]) {
			t.Errorf("a promise of child %d is none", i)
		}
	}
	var merged *Tablet
	err = Merge(t.Context(), left, children[1], 4, func(r *metadata.Row) error {
		s.meta.mu.Lock()
		defer s.meta.mu.Unlock()
		delete(s.meta.rows, r.Tablet)
		return nil
	}, func(m ...*Tablet) { merged = m[0] })
	if err != nil {
		t.Fatal(err)
	}
	defer merged.Close()
	s.Tablet = merged
	if got, _ := s.all(start, row.All, 2, nil); len(got) != 11 {
		t.Errorf("merged there are %d records: %q", len(got), got)
	}
	for _, p := range []row.Range{row.All, left.Bounds(), children[1].Bounds()} {
		if e := merged.Lineage(p, start.Through); e == nil {
			t.Errorf("what became of %q is not known", p)
		}
	}
	// A reader that was told a watermark looks for the event behind it.
	for i, c := range children {
		if e := merged.Lineage(c.Bounds(), later[i]); e == nil || e.Stamp <= later[i] {
			t.Errorf("child %d has promised %d, and ended by %+v", i, later[i], e)
		}
	}
	if merged.write.seq <= later[0] {
		t.Errorf("the merged tablet goes on behind %d, %d was promised", merged.write.seq, later[0])
	}
	if e := merged.Lineage(left.Bounds(), start.Through); len(e.Children) != 1 || len(e.Children[0].Start)+len(e.Children[0].End) > 0 {
		t.Errorf("the left child became %+v", e)
	}
}

// TestWakes: a reader that waits is woken by a change that is durable, and by the end.
func TestWakes(t *testing.T) {
	s := newStreamed(t)
	_, at := s.all(changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}, row.All, -1, nil)
	wait := func(c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatal("nothing wakes it")
		}
	}
	c := s.ChangesReady()
	if c != s.ChangesReady() {
		t.Error("two readers wait for two things")
	}
	b := NewBatch([]byte("a"))
	b.Set(1, []byte("q"), 1, nil)
	s.apply(b)
	wait(c)
	if got, _ := s.all(at, row.All, -1, nil); len(got) != 1 {
		t.Errorf("%q", got)
	}
	c = s.ChangesReady()
	s.Promise(s.write.seq + 1000*stamp.Stride)
	wait(c)
	c = s.ChangesReady()
	s.Tablet.Close()
	wait(c)
	if _, _, err := s.ReadChanges(t.Context(), at, row.All, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestCountersBecomeStamps: a tablet of format 2 goes over at its next write, and never
// back, whatever its clock says.
func TestCountersBecomeStamps(t *testing.T) {
	s := newStreamed(t)
	s.stream(nil)
	s.reopen()
	// As it was written: numbers of a counter.
	b := NewBatch([]byte("old"))
	b.Set(1, []byte("q"), 1, []byte("1"))
	b.Set(1, []byte("q"), 1, []byte("2"))
	for _, first := range []uint64{1, 3} {
		room, err := s.env.Commit.Reserve(t.Context(), b.Size())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.env.Commit.Wait(t.Context(), s.env.Commit.Append(room, 1, first, b, nil)); err != nil {
			t.Fatal(err)
		}
	}
	s.reopen()
	if s.write.seq != 4 {
		t.Fatalf("replayed up to %d", s.write.seq)
	}
	value := func(row, want string) {
		t.Helper()
		if v, ok, err := s.View(t.Context(), []byte(row)).Cell(nil, 1, []byte("q"), 1); !ok || err != nil || string(v) != want {
			t.Errorf("%s is %q, want %q: %v", row, v, want, err)
		}
	}
	value("old", "2")
	last := s.write.seq
	for _, now := range []time.Time{time.Now(), time.Unix(0, 0), time.Now().Add(-time.Hour), time.Now().Add(time.Minute), time.Unix(5, 0)} {
		s.env.Now = func() time.Time { return now }
		b := NewBatch([]byte("old"))
		b.Set(1, []byte("q"), 1, []byte("x"))
		b.Set(1, []byte("q"), 1, fmt.Append(nil, now.Unix()))
		s.apply(b)
		if s.write.seq < stamp.Least || s.write.seq < last+2*stamp.Stride && last >= stamp.Least || s.visible.Load() != uint64(s.write.seq) {
			t.Errorf("at %v the number is %d, visible %d, behind %d", now, s.write.seq, s.visible.Load(), last)
		}
		last = s.write.seq
		s.reopen()
		if s.write.seq != last {
			t.Errorf("replayed up to %d instead of %d", s.write.seq, last)
		}
		value("old", fmt.Sprint(now.Unix()))
		s.flush()
		s.reopen()
		value("old", fmt.Sprint(now.Unix()))
	}
}

// content returns the cells of the tablet, and applied those that a stream leads to.
func (s *streamed) content() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	q, err := NewQuery(s.sch.Load(), nil, false)
	if err != nil {
		s.t.Fatal(err)
	}
	w := &cellLister{out: out}
	var stats scan.Stats
	for rest := []row.Range{row.All}; len(rest) > 0; {
		if rest, _, err = s.Read(s.t.Context(), q, rest, 0, w, &stats); err != nil {
			s.t.Fatal(err)
		}
	}
	return out
}

type cellLister struct {
	out map[string]string
	key string
}

func (w *cellLister) StartRow(key []byte) { w.key = string(key) }
func (w *cellLister) Cell(c *row.Cell) {
	w.out[fmt.Sprintf("%s %s:%s@%d", w.key, c.Family, c.Qualifier, c.Timestamp)] = string(c.Value)
}
func (w *cellLister) EndRow() (bool, error) { return false, nil }
func (w *cellLister) Scanned([]byte)        {}
func (w *cellLister) Flush() error          { return nil }

// replayed applies what the stream has behind from to nothing, n records a call.
func (s *streamed) replayed(from changes.Position, n int) (out map[string]string, collected, records int) {
	s.t.Helper()
	return s.replayedOn(map[string]string{}, from, n)
}

// replayedOn applies what the stream has behind from to cells, n records a call.
func (s *streamed) replayedOn(out map[string]string, from changes.Position, n int) (_ map[string]string, collected, records int) {
	s.t.Helper()
	type one struct {
		stamp cell.Seq
		do    func()
	}
	var got []one
	for {
		left := n
		next, _, err := s.ReadChanges(s.t.Context(), from, row.All, func(r *changes.Record) (bool, error) {
			records++
			if r.Collected {
				collected++
			}
			key := string(r.Key)
			for _, c := range r.Changes {
				prefix := key + " "
				if c.Op != changes.DeleteRow {
					prefix += fmt.Sprintf("f%d:", c.Family)
				}
				if c.Op == changes.SetCell || c.Op == changes.DeleteColumn {
					prefix += string(c.Qualifier) + "@"
				}
				value, at := string(c.Value), c.Timestamp
				got = append(got, one{r.Stamp, func() {
					if c.Op == changes.SetCell {
						out[prefix+fmt.Sprint(at)] = value
						return
					}
					for k := range out {
						if !strings.HasPrefix(k, prefix) {
							continue
						}
						if c.Op == changes.DeleteColumn {
							var ts int64
							fmt.Sscan(k[len(prefix):], &ts)
							if ts < c.Times.Start || c.Times.End != 0 && ts >= c.Times.End {
								continue
							}
						}
						delete(out, k)
					}
				}})
			}
			left--
			return left != 0, nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
		if from = next; left != 0 {
			break
		}
	}
	slices.SortStableFunc(got, func(a, b one) int { return int(int64(a.stamp) - int64(b.stamp)) })
	for _, g := range got {
		g.do()
	}
	return out, collected, records
}

// TestStreamIsTheTable: the changes, applied to an empty table, are the table: what was
// collected and what DropRange deleted included, at any time and after restarts.
func TestStreamIsTheTable(t *testing.T) {
	collected, indexed := 0, 0
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		s := newStreamed(t)
		next := s.sch.Load().Clone()
		next.Granularity = 1000
		next.Families = map[string]schema.Family{"f1": {Name: "f1", ID: 1, GC: &schema.GCRule{MaxVersions: 1}}, "f2": {Name: "f2", ID: 2}}
		s.sch.Store(next)
		s.changeFiles = 4
		s.reopen()
		start := changes.Position{Through: stamp.At(next.Stream.Since)}
		key := func() []byte { return fmt.Appendf(nil, "row%02d", rnd.IntN(12)) }
		for i := range 150 {
			switch rnd.IntN(16) {
			case 0:
				s.flush()
			case 1:
				if rnd.IntN(2) == 0 {
					s.RequestMajor()
				}
				if _, err := s.Compact(t.Context()); err != nil {
					t.Fatal(err)
				}
			case 2:
				s.reopen()
			case 3:
				r := row.Range{Start: key(), End: key()}
				if bytes.Compare(r.Start, r.End) < 0 && rnd.IntN(3) == 0 {
					if err := s.DropRange(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				}
			default:
				b := NewBatch(key())
				for range 1 + rnd.IntN(3) {
					f, q := cell.FamilyID(1+rnd.IntN(2)), []byte{byte('a' + rnd.IntN(2))}
					switch rnd.IntN(8) {
					case 0:
						b.DeleteColumn(f, q, cell.TimeRange{Start: int64(rnd.IntN(3)) * 1000, End: int64(3+rnd.IntN(3)) * 1000})
					case 1:
						b.DeleteFamily(f)
					case 2:
						b.DeleteRow()
					default:
						b.Set(f, q, int64(rnd.IntN(5))*1000, fmt.Append(nil, i))
					}
				}
				s.apply(b)
			}
		}
		s.flush()
		s.RequestMajor()
		for more := true; more; {
			var err error
			if more, err = s.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.Promise(s.write.seq)
		want := s.content()
		for _, n := range []int{-1, 1, 3} {
			got, c, records := s.replayed(start, n)
			if !maps.Equal(got, want) {
				t.Fatalf("seed %d, %d records at once of %d: the stream leads to %d cells, the table has %d:\n%v\n%v", seed, n, records, len(got), len(want), got, want)
			}
			collected += c
		}
		for _, f := range s.Row().Stream.Files {
			if _, err := s.objects.Get(t.Context(), f.Object); err != nil {
				t.Error(err)
			}
		}
		s.close()
		// Nothing is left behind that no row names.
		infos, err := s.objects.List(t.Context(), "", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		named := map[string]bool{}
		s.Row().Objects(func(object string) { named[object] = true })
		for _, f := range s.indexed(s.Row()) {
			indexed++
			named[f.Object] = true
		}
		for _, i := range infos {
			if !named[i.Name] {
				t.Errorf("seed %d: %s is left behind", seed, i.Name)
			}
		}
		s.open()
	}
	if collected == 0 || indexed == 0 {
		t.Errorf("%d cells were collected, %d files indexed", collected, indexed)
	}
}

// TestDropRangeUnderWrites: rows written while a range is dropped are deleted in the
// stream if they are in the table, and readers see the deletion behind all of that.
func TestDropRangeUnderWrites(t *testing.T) {
	s := newStreamed(t)
	next := s.sch.Load().Clone()
	next.Families = map[string]schema.Family{"f1": {Name: "f1", ID: 1}, "f2": {Name: "f2", ID: 2}}
	s.sch.Store(next)
	s.reopen()
	start := changes.Position{Through: stamp.At(next.Stream.Since)}
	var done atomic.Bool
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			for i := 0; !done.Load(); i++ {
				b := NewBatch(fmt.Appendf(nil, "row%d-%d", w, i%50))
				b.Set(1, []byte("q"), 1000, fmt.Append(nil, i))
				pos, err := s.ApplyAsync(t.Context(), b)
				if err = errors.Join(err, s.Wait(t.Context(), pos)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 10 {
		if err := s.DropRange(t.Context(), row.Range{Start: []byte("row1"), End: []byte("row2-3")}); err != nil {
			t.Fatal(err)
		}
		s.flush()
	}
	done.Store(true)
	writers.Wait()
	want := s.content()
	got, _, _ := s.replayed(start, 7)
	if !maps.Equal(got, want) {
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s is %q in the table, %q by the stream", k, v, got[k])
			}
		}
		t.Fatalf("the stream leads to %d cells, the table has %d", len(got), len(want))
	}
}

// TestChangesInFiles: what a range's deletion, or a garbage collection, is to readers of
// changes comes in its place, also if there are later changes before it is stored.
func TestChangesInFiles(t *testing.T) {
	set := func(s *streamed, key string) {
		b := NewBatch([]byte(key))
		b.Set(1, []byte("q"), 1000*int64(s.id.Add(1)), nil)
		s.apply(b)
	}
	brief := func(list []string) (out []string) {
		for _, s := range list {
			key, rest, _ := strings.Cut(s, " ")
			out = append(out, key+strings.Fields(rest)[0][:3])
		}
		return out
	}
	for name, c := range map[string]struct {
		do   func(s *streamed) error
		want []string
	}{
		"range": {func(s *streamed) error {
			l, err := s.list(t.Context(), row.Range{Start: []byte("b")})
			if err != nil {
				return err
			}
			set(s, "d") // after it was listed
			set(s, "b") // was listed
			done, err := s.drop(t.Context(), row.Range{Start: []byte("b")}, l)
			if !done && err == nil {
				t.Error("a list of this stream is not good for it")
			}
			return err
		}, []string{`"a"set`, `"b"set`, `"b"set`, `"d"set`, `"b"set`, `"b"row`, `"d"row`, `"e"set`}},
		"flush": {func(s *streamed) error { return s.FlushAll(t.Context()) },
			[]string{`"a"set`, `"b"set`, `"b"set`, `"b"col`, `"e"set`}},
		"compaction": {func(s *streamed) error {
			s.flush()
			s.RequestMajor()
			_, err := s.Compact(t.Context())
			return err
		}, []string{`"a"set`, `"b"set`, `"b"set`, `"b"col`, `"e"set`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStreamed(t)
			next := s.sch.Load().Clone()
			next.Families = map[string]schema.Family{"f1": {Name: "f1", ID: 1}}
			if name == "flush" {
				next.Families["f1"] = schema.Family{Name: "f1", ID: 1, GC: &schema.GCRule{MaxVersions: 1}}
			}
			s.sch.Store(next)
			s.reopen()
			set(s, "a")
			set(s, "b")
			set(s, "b")
			if name == "compaction" {
				s.flush()
				next = next.Clone()
				next.Families["f1"] = schema.Family{Name: "f1", ID: 1, GC: &schema.GCRule{MaxVersions: 1}}
				next.Version++
				s.sch.Store(next)
			}
			start := changes.Position{Through: stamp.At(next.Stream.Since)}
			var got []string
			at := start
			read := func() {
				more, now := s.all(at, row.All, -1, nil)
				got, at = append(got, more...), now
			}
			between := false
			s.meta.before = func(r *metadata.Row) {
				if !slices.ContainsFunc(r.Stream.Files, func(f changes.Ref) bool { return f.At != 0 }) || between {
					return
				}
				between = true
				set(s, "e") // its stamp is behind that of what is not stored yet
				read()
			}
			if err := c.do(s); err != nil {
				t.Fatal(err)
			}
			s.meta.before = nil
			if !between {
				t.Fatal("nothing was stored")
			}
			read()
			if got := brief(got); !slices.Equal(got, c.want) {
				t.Errorf("read bit by bit: %q, want %q", got, c.want)
			}
			all, _ := s.all(start, row.All, 1, nil)
			if got := brief(all); !slices.Equal(got, c.want) {
				t.Errorf("read again: %q, want %q", got, c.want)
			}
			s.reopen()
			all, _ = s.all(start, row.All, -1, nil)
			if got := brief(all); !slices.Equal(got, c.want) {
				t.Errorf("after a restart: %q, want %q", got, c.want)
			}
		})
	}
}

// An openHook is told what is opened.
type openHook struct {
	objectstore.Store
	opens func(name string)
}

func (h *openHook) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	h.opens(name)
	return h.Store.Open(ctx, name)
}

// TestDropRangeReads: what is dropped is found before rows are locked, though what was written
// meanwhile is in files.
func TestDropRangeReads(t *testing.T) {
	s := newStreamed(t)
	write := func(from, to int) {
		for i := from; i < to; i++ {
			b := NewBatch(fmt.Appendf(nil, "row%04d", i))
			b.Set(1, []byte("q"), 1000, nil)
			s.apply(b)
		}
	}
	opened := 0
	s.env.Objects = &openHook{s.objects, func(name string) {
		if !changes.IsFile(name) {
			return
		}
		opened++
		for i := range s.rows {
			if !s.rows[i].TryLock() {
				t.Fatalf("%s is opened with rows locked", name)
			}
			s.rows[i].Unlock()
		}
	}}
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	write(0, 100)
	l, err := s.list(t.Context(), row.All)
	if err != nil {
		t.Fatal(err)
	}
	write(50, 150)
	s.flush()
	write(140, 200)
	if done, err := s.drop(t.Context(), row.All, l); err != nil || !done {
		t.Fatal(done, err)
	}
	if opened == 0 {
		t.Error("no change file was opened")
	}
	deleted := map[string]int{}
	if _, _, err := s.ReadChanges(t.Context(), start, row.All, func(r *changes.Record) (bool, error) {
		if r.Changes[0].Op == changes.DeleteRow {
			deleted[string(r.Key)]++
		}
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if n := deleted[fmt.Sprintf("row%04d", i)]; n != 1 {
			t.Errorf("row %d is deleted %d times", i, n)
		}
	}
}

// TestDropRangeUnderNewStream: a stream that is enabled while a range is dropped has the
// deletions, or begins behind them; one that is disabled does no harm.
func TestDropRangeUnderNewStream(t *testing.T) {
	for _, c := range []struct {
		name         string
		first, later uint64 // lives
	}{{"enabled", 0, 1}, {"anew", 1, 2}, {"disabled", 1, 0}} {
		t.Run(c.name, func(t *testing.T) {
			s := newStreamed(t)
			since := time.Now()
			live := func(life uint64) *schema.Stream {
				if life == 0 {
					return nil
				}
				return &schema.Stream{Life: life, Retention: 24 * time.Hour, Since: since}
			}
			s.stream(live(c.first))
			b := NewBatch([]byte("before"))
			b.Set(1, []byte("q"), 1000, nil)
			s.apply(b)
			l, err := s.list(t.Context(), row.All)
			if err != nil {
				t.Fatal(err)
			}
			since = time.Now()
			s.stream(live(c.later))
			b = NewBatch([]byte("after"))
			b.Set(1, []byte("q"), 1000, nil)
			s.apply(b)
			if done, err := s.drop(t.Context(), row.All, l); done || err != nil {
				t.Fatalf("a list of another stream is used: %v, %v", done, err)
			}
			if err := s.DropRange(t.Context(), row.All); err != nil {
				t.Fatal(err)
			}
			if n := len(s.content()); n != 0 {
				t.Errorf("%d cells are left", n)
			}
			if c.later == 0 {
				return
			}
			got, _ := s.all(changes.Position{Through: s.write.mem.since}, row.All, -1, nil)
			if want := []string{`"after" set 1:"q"@1000=""`, `"after" row`, `"before" row`}; !slices.Equal(got, want) {
				t.Errorf("the stream has %q, want %q", got, want)
			}
		})
	}
}

// TestCellsEnd: readers of changes are told that a cell of its own end has come to it, once.
func TestCellsEnd(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	write := func(until time.Time) {
		b := NewBatch([]byte("row"))
		b.SetUntil(1, []byte("q"), 1000, []byte("v"), until.UnixMicro())
		s.apply(b)
		s.flush()
	}
	compact := func() {
		t.Helper()
		s.RequestMajor()
		if _, err := s.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	write(time.Now().Add(time.Hour))
	compact()
	const set, gone = `"row" set 1:"q"@1000="v"`, `"row" column 1:"q"[1000,1001)`
	if got, _ := s.all(start, row.All, -1, nil); !slices.Equal(got, []string{set}) {
		t.Errorf("before its end the stream has %q", got)
	}
	write(time.Now().Add(-time.Hour))
	compact()
	compact()
	if got, _ := s.all(start, row.All, -1, nil); !slices.Equal(got, []string{set, set, gone}) {
		t.Errorf("after its end the stream has %q", got)
	}
	if n := len(s.content()); n != 0 {
		t.Errorf("%d cells are left", n)
	}
}

// TestDropOldChanges: the oldest change files of all tablets go until the rest is small enough,
// and readers that are behind are told.
func TestDropOldChanges(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	var marks []cell.Seq
	for i := range 5 {
		b := NewBatch(fmt.Appendf(nil, "row%d", i))
		b.Set(1, []byte("q"), 1000, bytes.Repeat([]byte{byte(i)}, 1000))
		s.apply(b)
		s.flush()
		marks = append(marks, s.write.seq)
	}
	all := KeptBy([]*Tablet{s.Tablet})
	if len(all) != 1 || all[0].Files != 5 || all[0].Table != "t" || all[0].Newest != stamp.Time(marks[4]) || all[0].Bytes != KeptOf(s.Row()).Bytes {
		t.Fatalf("%+v", all)
	}
	if d := DropOldChanges(t.Context(), []*Tablet{s.Tablet}, all[0].Bytes); len(d) != 0 {
		t.Errorf("%+v is dropped of what is small enough", d)
	}
	d := DropOldChanges(t.Context(), []*Tablet{s.Tablet}, all[0].Bytes/2)
	if len(d) != 1 || d[0].Files != 3 || d[0].Err != nil || d[0].Until != stamp.Time(marks[2]) || d[0].Bytes+KeptOf(s.Row()).Bytes != all[0].Bytes {
		t.Fatalf("%+v of %+v", d, all)
	}
	s.reopen()
	for _, from := range []changes.Position{start, {Through: marks[1]}} {
		var f *fault.Error
		if _, _, err := s.ReadChanges(t.Context(), from, row.All, nil); !errors.As(err, &f) || f.Kind != fault.OutOfRange || f.Reason != changes.ExpiredReason {
			t.Errorf("from %d on: %v", from.Through, err)
		}
	}
	if got, _ := s.all(changes.Position{Through: marks[2]}, row.All, -1, nil); len(got) != 2 {
		t.Errorf("what is kept is %q", got)
	}
}

// TestDropKeepsLineage: the oldest change files go, and readers are still told of every split
// and merge.
func TestDropKeepsLineage(t *testing.T) {
	s := newStreamed(t)
	var lineage []metadata.Event
	for i := range 4 {
		b := NewBatch([]byte("row"))
		b.Set(1, []byte("q"), int64(i)*1000, nil)
		s.apply(b)
		s.flush()
		lineage = append(lineage, metadata.Event{Stamp: s.write.seq, Parents: []row.Range{row.All}, Children: []row.Range{{End: []byte("m")}, {Start: []byte("m")}}})
	}
	if err := s.Change(t.Context(), func(r *metadata.Row) { r.Stream.Lineage = slices.Clone(lineage) }); err != nil {
		t.Fatal(err)
	}
	if d := DropOldChanges(t.Context(), []*Tablet{s.Tablet}, KeptOf(s.Row()).Bytes/2); len(d) != 1 || d[0].Files == 0 || d[0].Err != nil {
		t.Fatalf("%+v", d)
	}
	s.reopen()
	if got := s.Row().Stream.Lineage; !slices.EqualFunc(got, lineage, func(a, b metadata.Event) bool { return a.Stamp == b.Stamp && len(a.Children) == len(b.Children) }) {
		t.Errorf("%+v is left of %+v", got, lineage)
	}
}

// TestReplayRecordsAll: what is replayed is recorded, also behind a memtable that was full
// before, and below a stamp that METADATA has.
func TestReplayRecordsAll(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	for i := range 5 {
		b := NewBatch(fmt.Appendf(nil, "row%d", i))
		b.Set(1, []byte("q"), 1, make([]byte, 200<<10))
		s.apply(b)
	}
	if err := s.DropRange(t.Context(), row.Range{Start: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	s.memtableBytes = 256 << 10
	s.reopen()
	if n := len(s.mu.version.mems); n < 3 {
		t.Fatalf("it was replayed to %d memtables", n)
	}
	if got, _ := s.all(start, row.All, -1, nil); len(got) != 5 {
		t.Errorf("%d changes of 5 after a restart", len(got))
	}
	s.flush()
	if got, _ := s.all(start, row.All, -1, nil); len(got) != 5 {
		t.Errorf("%d changes of 5 in files", len(got))
	}
}

// TestDamagedChanges: a change file that is damaged or missing costs readers of its time,
// and others nothing.
func TestDamagedChanges(t *testing.T) {
	for _, missing := range []bool{false, true} {
		s := newStreamed(t)
		start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
		set := func() {
			b := NewBatch([]byte("row"))
			b.Set(1, []byte("q"), 1, []byte("value"))
			s.apply(b)
		}
		set()
		s.flush()
		f := s.Row().Stream.Files[0]
		set()
		name := "sst/" + f.Object
		if missing {
			if err := s.fs.Remove(name); err != nil {
				t.Fatal(err)
			}
		} else {
			datadirtest.WriteFile(t, s.fs, name, datadirtest.Flip(20)(datadirtest.ReadFile(t, s.fs, name)))
		}
		if _, _, err := s.ReadChanges(t.Context(), start, row.All, func(*changes.Record) (bool, error) { return true, nil }); fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), f.Object) {
			t.Errorf("missing %v: %v", missing, err)
		}
		if got, _ := s.all(changes.Position{Through: f.Hi}, row.All, -1, nil); len(got) != 1 {
			t.Errorf("missing %v: behind it there are %q", missing, got)
		}
		if v, ok, err := s.View(t.Context(), []byte("row")).Cell(nil, 1, []byte("q"), 1); !ok || err != nil || string(v) != "value" || s.Failure() != nil || len(s.Quarantined()) > 0 {
			t.Errorf("missing %v: the row is %q, %v", missing, v, err)
		}
		if met := s.env.Damage(); len(met) != 1 || met[0].Object != f.Object {
			t.Errorf("missing %v: damage %+v", missing, met)
		}
		set()
		s.flush()
	}
}
