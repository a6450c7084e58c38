package tabletserver_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	const limit = 3 * time.Minute
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in %v", what, limit)
		}
	}
}

// TestNeverMoreRuns: while a long compaction makes no headway at all, what is
// flushed is compacted beside it; when that is of no more use flushes wait, and
// then writers. At no time are there more than six runs. Somebody who wants a flush
// gets it, and so does a server that is short of memory.
func TestNeverMoreRuns(t *testing.T) {
	o := Options{FS: vfs.NewMem(), Dir: "d", MemtableBytes: 64 << 20}
	o.Tablet.MemtableBytes = 2 << 20
	s := mustOpen(t, o)
	defer mustClose(t, s)
	g := &gate{Store: s.env.Objects, reached: make(chan struct{}), release: make(chan struct{})}
	s.env.Objects = g
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	tt := s.tabletsOf(table)[0]
	r := rand.New(rand.NewPCG(1, 1))
	most := 0
	var wrote atomic.Int64
	var asked atomic.Bool
	put := func() {
		e := entry(fmt.Sprintf("row%06d", r.IntN(1e6)), setCell("f", "q", 1000, randomValue(r, 8000)))
		err := s.MutateRow(ctx, table, e)
		for errors.Is(err, fault.Exhausted) { // it has waited for long
			err = s.MutateRow(ctx, table, e)
		}
		if err != nil {
			t.Error(err)
		}
		wrote.Add(1)
		if !asked.Load() {
			most = max(most, tt.Runs())
		}
	}
	// A compaction of everything is to be under way.
	for tt.Bytes() < 8*o.Tablet.MemtableBytes {
		put()
	}
	if err := tt.CompactMajor(ctx); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, table, "row500000", row.Mutation{Op: row.DeleteRow})
	if err := s.flush(ctx, tt); err != nil {
		t.Fatal(err)
	}
	if n := tt.Runs(); n > 2 {
		t.Fatalf("%d runs", n)
	}
	most = 0 // who asks for a flush gets it
	tt.RequestMajor()
	g.shut.Store(true)
	s.work.Add(tt)
	eventually(t, "a compaction begins", func() bool {
		select {
		case <-g.reached:
			return true
		default:
			return false
		}
	})
	compactions := s.Stats().Compactions
	_, long := tt.Progress()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 16_000 {
			put()
		}
	}()
	eventually(t, "something was compacted beside, two memtables wait, and then writers", func() bool {
		before := wrote.Load()
		time.Sleep(200 * time.Millisecond)
		_, all := tt.Progress() // of the long compaction alone, if no other is under way
		return all == long && tt.Held() && wrote.Load() == before && s.Stats().Compactions > compactions && tt.Behind()-tt.Runs() == 2
	})
	if n := tt.Runs(); n > 6 {
		t.Errorf("%d runs", n)
	}
	asked.Store(true)
	runs := tt.Runs()
	if more, err := tt.Flush(ctx); err != nil || !more || tt.Runs() != runs+1 {
		t.Errorf("who asks for a flush does not get it: %v, %v", more, err)
	}
	close(g.release)
	<-done
	if most > 6 {
		t.Errorf("%d runs at some time", most)
	}
	eventually(t, "few runs", func() bool { return tt.Runs() <= 6 && !tt.Held() })
	t.Logf("%d rows, at most %d runs, %d compactions, stalled %v", wrote.Load(), most, s.Stats().Compactions, s.Stats().Stalled)
}

// TestRangesBeside: rows that are dropped while two compactions rewrite them stay
// away, whichever of the two ends first; and what says that they were dropped is
// forgotten once both have ended.
func TestRangesBeside(t *testing.T) {
	for _, last := range []string{"older", "newer"} {
		for _, what := range []string{"all", "some"} {
			t.Run(last+", "+what, func(t *testing.T) {
				o := Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true}
				o.Tablet.TargetRuns, o.Tablet.MaxRuns = 3, 100
				s := mustOpen(t, o)
				defer mustClose(t, s)
				gates := [2]*gate{}
				for i := range gates {
					gates[i] = &gate{Store: s.env.Objects, reached: make(chan struct{}), release: make(chan struct{})}
					s.env.Objects = gates[i]
				}
				table := mustCreate(t, s, newSchema("t", 1000, "f"))
				tt := s.tabletsOf(table)[0]
				fill := func(gen string, runs, rows int) {
					for range runs {
						for i := range rows {
							mustPut(t, s, table, fmt.Sprintf("row%03d", i), setCell("f", "q", 1000, gen), setCell("f", gen, 1000, gen))
						}
						if err := s.flush(ctx, tt); err != nil {
							t.Fatal(err)
						}
					}
				}
				var ended [2]chan error
				begin := func(i int) {
					gates[i].shut.Store(true)
					ended[i] = make(chan error, 1)
					go func() {
						_, err := tt.Compact(ctx)
						ended[i] <- err
					}()
					select {
					case <-gates[i].reached:
					case err := <-ended[i]:
						t.Fatalf("compaction %d does nothing: %v", i, err)
					}
				}
				fill("old", 4, 100)
				begin(0)
				fill("new", 4, 40)
				begin(1)
				dropped := row.All
				if what == "some" {
					dropped = row.Prefix([]byte("row00"))
				}
				if err := tt.DropRange(ctx, dropped); err != nil {
					t.Fatal(err)
				}
				mustPut(t, s, table, "row001", setCell("f", "q", 1000, "after"))
				want := content(s, table, row.All)
				if what == "all" && strings.Count(want, "\n") != 1 || strings.Contains(want, "row002") {
					t.Fatalf("dropped, and yet there is %s", want)
				}
				order := []int{1, 0}
				if last == "newer" {
					order = []int{0, 1}
				}
				for _, i := range order {
					close(gates[i].release)
					if err := <-ended[i]; err != nil {
						t.Fatal(err)
					}
					if got := content(s, table, row.All); got != want {
						t.Errorf("after the compaction of what is %s: got\n%swant\n%s", []string{"old", "new"}[i], got, want)
					}
					if len(tt.Row().RangeDel) == 0 {
						t.Error("the range tombstone is gone before what it deletes")
					}
				}
				if err := tt.CompactMajor(ctx); err != nil {
					t.Fatal(err)
				}
				if got := content(s, table, row.All); got != want {
					t.Errorf("at last: got\n%swant\n%s", got, want)
				}
				if n := len(tt.Row().RangeDel); n != 0 {
					t.Errorf("%d range tombstones are left", n)
				}
				checkStore(t, s)
			})
		}
	}
}

// TestMajorBeside: a major compaction that is asked for while another compaction
// is under way waits for that, does its own, and says how far it has come.
func TestMajorBeside(t *testing.T) {
	o := Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true}
	o.Tablet.TargetRuns = 3
	s := mustOpen(t, o)
	defer mustClose(t, s)
	g := &gate{Store: s.env.Objects, reached: make(chan struct{}), release: make(chan struct{})}
	s.env.Objects = g
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	tt := s.tabletsOf(table)[0]
	for n := range 4 {
		for i := range 100 {
			mustPut(t, s, table, fmt.Sprintf("row%03d", i), setCell("f", "q", 1000, fmt.Sprint(n)))
		}
		if err := s.flush(ctx, tt); err != nil {
			t.Fatal(err)
		}
	}
	g.shut.Store(true)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := tt.Compact(ctx)
		first <- err
	}()
	<-g.reached
	mustPut(t, s, table, "row000", row.Mutation{Op: row.DeleteRow})
	go func() { second <- tt.CompactMajor(ctx) }()
	eventually(t, "it is asked for", func() bool { return tt.Runs() == 5 })
	select {
	case err := <-second:
		t.Errorf("a major compaction ends before the one that it waits for: %v", err)
		second <- err
	case <-time.After(20 * time.Millisecond):
	}
	if _, total := tt.Progress(); total == 0 {
		t.Error("a compaction is under way that has nothing to do")
	}
	close(g.release)
	for _, c := range []chan error{first, second} {
		if err := <-c; err != nil {
			t.Error(err)
		}
	}
	if n := tt.Runs(); n != 1 {
		t.Errorf("%d runs after a major compaction", n)
	}
	for _, f := range tt.Row().Files {
		if f.Tombstones > 0 {
			t.Errorf("%d tombstones after a major compaction", f.Tombstones)
		}
	}
	if done, total := tt.Progress(); done != 0 || total != 0 {
		t.Errorf("nothing is under way: %d of %d", done, total)
	}
}
