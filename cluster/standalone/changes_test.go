package standalone

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// errEnough ends a read of changes.
var errEnough = errors.New("enough")

// upTo is a changes.Writer that ends at a watermark, or after a record.
type upTo struct {
	mark cell.Seq
	recs []cell.Seq
	at   changes.Position
}

func (w *upTo) Record(r *changes.Record, _ changes.Position) (bool, error) {
	w.recs = append(w.recs, r.Stamp)
	return false, nil
}

func (w *upTo) Flush() error { return nil }

func (w *upTo) Watermark(at changes.Position) error {
	if w.at = at; at.Through >= w.mark && (w.mark > 0 || len(w.recs) > 0) {
		return errEnough
	}
	return nil
}

// TestPromiseSurvives: what was promised to readers holds after a crash, though the clock is
// put back meanwhile, and though everything was flushed and the log trimmed. The log does
// not stay long for the promise.
func TestPromiseSurvives(t *testing.T) {
	for _, trimmed := range []bool{false, true} {
		t.Run(fmt.Sprint("trimmed=", trimmed), func(t *testing.T) { promiseSurvives(t, trimmed) })
	}
}

// promiseSurvives crashes four times. trimmed says that the log is trimmed before the first time
// too, when no change is above the promise.
func promiseSurvives(t *testing.T, trimmed bool) {
	const ahead = 10 * time.Minute
	ctx := t.Context()
	fs := datadirtest.NewCrashableMem()
	open := func(ahead time.Duration) *Server {
		t.Helper()
		s, err := Open(ctx, Options{Dir: "d", FS: fs, NoReserve: true, Log: commitlog.Options{SegmentBytes: 1 << 20},
			TabletServer: tabletserver.Options{Now: func() time.Time { return time.Now().Add(ahead) }, ClockEvery: 10 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	write := func(s *Server, table, key string, bytes int) {
		t.Helper()
		v := make([]byte, bytes)
		rand.NewChaCha8([32]byte{1}).Read(v)
		if err := s.MutateRow(ctx, table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000, Value: v}}}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(s *Server, from changes.Position, mark cell.Seq) *upTo {
		t.Helper()
		w := &upTo{mark: mark}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, err := s.ReadChanges(ctx, &changes.Request{Table: table, Life: 1, From: from, Every: 20 * time.Millisecond}, w); !errors.Is(err, errEnough) {
			t.Fatalf("read changes: %v", err)
		}
		return w
	}
	s := open(ahead)
	begin := time.Now()
	for _, name := range []string{table, table + "2"} {
		sch := &schema.Table{Name: name, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}
		if name == table {
			sch.Stream = &schema.Stream{Life: 1, Retention: time.Hour, Since: begin}
		}
		if _, err := s.CreateTable(ctx, sch, nil); err != nil {
			t.Fatal(err)
		}
	}
	mark := read(s, changes.Position{Through: stamp.At(begin) - 1}, stamp.At(begin.Add(ahead))).at
	for round := range 4 {
		if trimmed || round > 0 { // all is flushed and trimmed, but for the promise
			for i := range 40 {
				write(s, table+"2", fmt.Sprintf("%d-%d", round, i), 100<<10)
			}
			if err := s.TabletServer().FlushAll(ctx); err != nil {
				t.Fatal(err)
			}
			if round > 1 { // and the promise is renewed
				for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
					if err := s.TabletServer().FlushAll(ctx); err != nil {
						t.Fatal(err)
					}
					if n := s.TabletServer().Stats().LogBytes; n <= 2<<20 {
						break
					} else if time.Since(begin) > time.Minute {
						t.Fatalf("%d bytes of log stay for the promise", n)
					}
				}
			}
		}
		fs = fs.CrashClone(vfs.CrashCloneCfg{})
		_ = s.Close(ctx)
		s = open(0)
		write(s, table, fmt.Sprint("r", round), 1)
		w := read(s, mark, 0)
		if len(w.recs) != 1 || w.recs[0] <= mark.Through {
			t.Fatalf("round %d: after the watermark %d come changes %d", round, mark.Through, w.recs)
		}
		mark = changes.Position{Through: w.recs[0]}
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestPromiseSurvivesDrop: what was promised to readers holds after the log was given up that had
// the promise, though the clock is put back meanwhile.
func TestPromiseSurvivesDrop(t *testing.T) {
	const ahead = 10 * time.Minute
	ctx := t.Context()
	fs := datadirtest.NewCrashableMem()
	open := func(ahead time.Duration) *Server {
		t.Helper()
		s, err := Open(ctx, Options{Dir: "d", FS: fs, NoReserve: true,
			TabletServer: tabletserver.Options{Now: func() time.Time { return time.Now().Add(ahead) }, ClockEvery: 10 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	read := func(s *Server, from changes.Position, mark cell.Seq) *upTo {
		t.Helper()
		w := &upTo{mark: mark}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, err := s.ReadChanges(ctx, &changes.Request{Table: table, Life: 1, From: from, Every: 20 * time.Millisecond}, w); !errors.Is(err, errEnough) {
			t.Fatalf("read changes: %v, at %+v", err, w.at)
		}
		return w
	}
	s := open(ahead)
	begin := time.Now()
	sch := &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}, Stream: &schema.Stream{Life: 1, Retention: time.Hour, Since: begin}}
	if _, err := s.CreateTable(ctx, sch, nil); err != nil {
		t.Fatal(err)
	}
	mark := read(s, changes.Position{Through: stamp.At(begin) - 1}, stamp.At(begin.Add(ahead))).at
	for round := range 3 {
		fs = fs.CrashClone(vfs.CrashCloneCfg{})
		_ = s.Close(ctx)
		if err := fs.RemoveAll("d/ulog"); err != nil {
			t.Fatal(err)
		}
		if _, err := DropDamagedLog(ctx, fs, "d"); err != nil {
			t.Fatal(err)
		}
		s = open(0)
		if err := s.MutateRow(ctx, table, &row.Entry{Key: []byte("r"), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000}}}); err != nil {
			t.Fatal(err)
		}
		w := read(s, mark, 0)
		if len(w.recs) != 1 || w.recs[0] <= mark.Through {
			t.Fatalf("round %d: after the watermark %d come changes %d", round, mark.Through, w.recs)
		}
		if ahead := stamp.Time(w.recs[0]).Sub(stamp.Time(mark.Through)); ahead > 3*time.Minute {
			t.Errorf("round %d: commit times go on %v ahead of what was promised", round, ahead)
		}
		mark = changes.Position{Through: w.recs[0]}
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestManyColumnsTold: the deletions of a family up to a time are told by columns, of which there
// is a most in all mutations of a row together, as of what they look through. It is so too of
// changes that are kept for views.
func TestManyColumnsTold(t *testing.T) {
	ctx := t.Context()
	s, err := Open(ctx, Options{Dir: "d", FS: vfs.NewMem(), NoReserve: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	for name, stream := range map[string]*schema.Stream{"stream": {}, "views": {Hidden: true}} {
		name = "projects/p/instances/i/tables/" + name
		stream.Life, stream.Retention, stream.Since = 1, time.Hour, time.Now()
		if _, err := s.CreateTable(ctx, &schema.Table{Name: name, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}, Stream: stream}, nil); err != nil {
			t.Fatal(err)
		}
		muts := []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("later"), Timestamp: 9000}}
		for i := range schema.MaxMutations * 3 / 5 {
			muts = append(muts, row.Mutation{Op: row.SetCell, Family: "f", Qualifier: fmt.Append(nil, i), Timestamp: 1000})
		}
		if err := s.MutateRow(ctx, name, &row.Entry{Key: []byte("r"), Mutations: muts}); err != nil {
			t.Fatal(err)
		}
		upTo := row.Mutation{Op: row.DeleteFamily, Family: "f", Times: cell.TimeRange{Start: math.MinInt64, End: 5000}}
		for _, c := range []struct {
			n    int
			kind fault.Kind
		}{{2, fault.FailedPrecondition}, {1, 0}} {
			if err := s.MutateRow(ctx, name, &row.Entry{Key: []byte("r"), Mutations: slices.Repeat([]row.Mutation{upTo}, c.n)}); fault.KindOf(err) != c.kind {
				t.Errorf("%s, %d deletions: %v", name, c.n, err)
			}
		}
		// Of cells that stay nothing is told, but they are looked through for each deletion. The
		// first is let be, however many there are.
		for i := range muts {
			muts[i].Timestamp = 9000
		}
		if err := s.MutateRow(ctx, name, &row.Entry{Key: []byte("s"), Mutations: muts}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			key  string
			n    int
			kind fault.Kind
		}{
			{"s", 1_000_000/len(muts) + 2, fault.FailedPrecondition}, {"s", 1_000_000 / len(muts), 0},
			// Each deletion looks through those before it.
			{"none", 1500, fault.FailedPrecondition}, {"none", 1300, 0},
		} {
			if err := s.MutateRow(ctx, name, &row.Entry{Key: []byte(c.key), Mutations: slices.Repeat([]row.Mutation{upTo}, c.n)}); fault.KindOf(err) != c.kind {
				t.Errorf("%s, row %s, %d deletions: %v", name, c.key, c.n, err)
			}
		}
	}
}
