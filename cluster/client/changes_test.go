package client_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/conformance/changefollow"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

func streamTable(t *testing.T, c *client.Client, splits [][]byte) *schema.Table {
	t.Helper()
	sch, err := c.CreateTable(t.Context(), &schema.Table{Name: "projects/p/instances/i/tables/t", Granularity: 1000,
		Families: map[string]schema.Family{"f": {Name: "f"}}, Stream: &schema.Stream{Life: 7, Retention: 24 * time.Hour, Since: time.Now()}}, splits)
	if err != nil {
		t.Fatal(err)
	}
	return sch
}

// TestFollowChanges: whatever becomes of the tablets, readers that follow the partitions get
// every change once, those of a row in order, and no watermark is overtaken.
func TestFollowChanges(t *testing.T) {
	n := newNetwork(t, 2)
	ctx := t.Context()
	c := n.client()
	sch := streamTable(t, c, [][]byte{key(3000), key(6000)})
	var mu sync.Mutex
	seen := map[string][]int{}
	f, err := changefollow.Follow(ctx, n.client(), changefollow.Options{Table: sch.Name, Life: sch.Stream.Life, From: stamp.At(sch.Stream.Since) - 1, Every: 20 * time.Millisecond, Cut: 97,
		Bad: t.Errorf, Record: func(r *changes.Record) {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range r.Changes {
				v, err := strconv.Atoi(string(c.Value))
				if err != nil || c.Op != changes.SetCell {
					t.Errorf("row %s: %+v", r.Key, c)
				}
				seen[string(r.Key)] = append(seen[string(r.Key)], v)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	stop := make(chan struct{})
	var working sync.WaitGroup
	wrote := make([]map[string][]int, 4)
	for i := range wrote {
		wrote[i] = map[string][]int{}
		working.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for v := 1; ; v++ {
				select {
				case <-stop:
					return
				default:
				}
				k := string(key(r.IntN(250)*40 + i))
				for {
					// An outcome that is not known would have to be guessed: no server is killed here.
					err := c.MutateRow(ctx, sch.Name, &row.Entry{Key: []byte(k), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000, Value: strconv.AppendInt(nil, int64(v), 10)}}})
					if err == nil {
						break
					}
					t.Logf("write: %v", err)
				}
				wrote[i][k] = append(wrote[i][k], v)
			}
		})
	}
	rounds := 25
	if testing.Short() {
		rounds = 10
	}
	r := rand.New(rand.NewPCG(1, 1))
	var did [4]int
	for range rounds {
		var rows []*metadata.Row
		if err := c.Rows(ctx, func(r *metadata.Row) error {
			if r.Table == sch.ID {
				rows = append(rows, r)
			}
			return nil
		}); err != nil || len(rows) == 0 {
			continue
		}
		of := rows[r.IntN(len(rows))]
		var err error
		what := r.IntN(4)
		switch what {
		case 0:
			err = c.Split(ctx, of, key(r.IntN(10000)))
		case 1:
			err = c.Merge(ctx, of)
		case 2:
			to := []string{"server-1", "server-2"}[r.IntN(2)]
			err = c.Move(ctx, of, to, true)
		case 3:
			if s := of.Assignment; s != nil && s.State == metadata.Open {
				err = n.dialers[0].Dial(s.Addr).Flush(ctx, []metadata.TabletID{of.Tablet})
			}
		}
		if err == nil {
			did[what]++
		}
		time.Sleep(20 * time.Millisecond)
	}
	close(stop)
	working.Wait()
	all := map[string][]int{}
	for _, w := range wrote {
		for k, v := range w {
			all[k] = v
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		mu.Lock()
		same := maps.EqualFunc(seen, all, slices.Equal)
		mu.Unlock()
		if same {
			break
		}
		if time.Now().After(deadline) || t.Failed() {
			for k, v := range all {
				if !slices.Equal(seen[k], v) {
					t.Errorf("row %s: the stream has %v of %v", k, seen[k], v)
					break
				}
			}
			t.Fatalf("the stream is not what was written: %s", f.State())
		}
	}
	if did[0] == 0 || did[1] == 0 || did[2] == 0 || did[3] == 0 {
		t.Errorf("splits, merges, moves, flushes: %v", did)
	}
	// Watermarks go on while nothing is written.
	for begin := time.Now(); f.Watermark() < stamp.At(begin); time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("the watermark stands still: %s", f.State())
		}
	}
	t.Logf("%d closes; splits, merges, moves, flushes: %v", f.Closes(), did)
}

// TestChangesAfterUnseenMerge: a client that knows only of the halves finds the tablet that has
// all of a partition, and does not take its read to be over.
func TestChangesAfterUnseenMerge(t *testing.T) {
	n := newNetwork(t, 1)
	ctx := t.Context()
	c, old := n.client(), n.client()
	sch := streamTable(t, c, [][]byte{key(5000)})
	for _, k := range [][]byte{key(1), key(6000)} {
		if err := old.MutateRow(ctx, sch.Name, &row.Entry{Key: k, Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000}}}); err != nil {
			t.Fatal(err)
		}
	}
	var left *metadata.Row
	if err := c.Rows(ctx, func(r *metadata.Row) error {
		if r.Table == sch.ID && len(r.Start) == 0 {
			left = r
		}
		return nil
	}); err != nil || left == nil {
		t.Fatal(left, err)
	}
	if err := c.Merge(ctx, left); err != nil {
		t.Fatal(err)
	}
	var w counter
	closed, err := old.ReadChanges(ctx, &changes.Request{Table: sch.Name, Life: sch.Stream.Life, From: changes.Position{Through: stamp.At(sch.Stream.Since) - 1}, Until: stamp.At(time.Now()), Every: 10 * time.Millisecond}, &w)
	if err != nil || closed != nil || w.records != 2 {
		t.Errorf("%d records, closed %+v, error %v", w.records, closed, err)
	}
}

// A counter counts records.
type counter struct {
	nowhere
	records int
}

func (c *counter) Record(*changes.Record, changes.Position) (bool, error) {
	c.records++
	return false, nil
}

// TestSecondLife: a partition that has the rows of an earlier one is not ended by what ended
// that, however far behind its reader is.
func TestSecondLife(t *testing.T) {
	n := newNetwork(t, 1)
	ctx := t.Context()
	c := n.client()
	sch := streamTable(t, c, [][]byte{[]byte("k3")})
	rowAt := func(key string) *metadata.Row {
		t.Helper()
		rows, err := c.Metadata().Lookup(ctx, sch.ID, []byte(key), 1)
		if err != nil || len(rows) == 0 {
			t.Fatal(rows, err)
		}
		return rows[0]
	}
	must := func(do func() error) {
		t.Helper()
		for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			err := do()
			if err == nil {
				return
			}
			if !errors.Is(err, rpc.ErrNotServing) || time.Since(begin) > time.Minute {
				t.Fatal(err)
			}
		}
	}
	ended := func(of row.Range, from changes.Position, want ...row.Range) changes.Position {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		got, err := c.ReadChanges(ctx, &changes.Request{Table: sch.Name, Life: sch.Stream.Life, Within: of, From: from, Every: time.Second}, nowhere{})
		if err != nil || got == nil {
			t.Fatalf("%s-%s: %+v, %v", of.Start, of.End, got, err)
		}
		if !slices.EqualFunc(got.Partitions, want, func(a, b row.Range) bool { return string(a.Start) == string(b.Start) && string(a.End) == string(b.End) }) {
			t.Errorf("%s-%s is followed by %q, want %q", of.Start, of.End, got.Partitions, want)
		}
		return got.At
	}
	k3, k5 := []byte("k3"), []byte("k5")
	at := changes.Position{Through: stamp.At(sch.Stream.Since) - 1}
	must(func() error { return c.Merge(ctx, rowAt("a")) })
	first := ended(row.Range{Start: k3}, at, row.Range{})
	must(func() error { return c.Split(ctx, rowAt("a"), k3) })
	second := ended(row.Range{}, first, row.Range{End: k3}, row.Range{Start: k3})
	must(func() error { return c.Split(ctx, rowAt("k3"), k5) })
	ended(row.Range{Start: k3}, second, row.Range{Start: k3, End: k5}, row.Range{Start: k5})
	// The reader of the first one is told as before.
	if again := ended(row.Range{Start: k3}, at, row.Range{}); again.Born != first.Born {
		t.Errorf("the partition ends at %d and %d", first.Born, again.Born)
	}
}

// nowhere is a changes.Writer of which nothing is kept.
type nowhere struct{}

func (nowhere) Record(*changes.Record, changes.Position) (bool, error) { return false, nil }
func (nowhere) Flush() error                                           { return nil }
func (nowhere) Watermark(changes.Position) error                       { return nil }

// A listener notes what a changes.Writer is told.
type listener struct {
	t  *testing.T
	mu sync.Mutex
	// told counts the watermarks, and records the records.
	told, records int
	mark          changes.Position
	unflushed     bool
}

func (l *listener) Record(_ *changes.Record, at changes.Position) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records++
	l.unflushed = true
	return false, nil
}

func (l *listener) Flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unflushed = false
	return nil
}

func (l *listener) Watermark(at changes.Position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unflushed || at.Through < l.mark.Through {
		l.t.Errorf("told %d after %d, with records before it that were not passed on: %v", at.Through, l.mark.Through, l.unflushed)
	}
	l.told++
	l.mark = at
	return nil
}

func (l *listener) state() (told, records int, mark changes.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told, l.records, l.mark
}

// TestWatermarksWithoutServer: while no server has the tablet its reader is told the last
// watermark again, as often as it asked for.
func TestWatermarksWithoutServer(t *testing.T) {
	const every = 20 * time.Millisecond
	n := newNetwork(t, 0)
	stop, at := n.start("server-1", "127.0.0.1:0")
	c := n.client()
	sch := streamTable(t, c, nil)
	l := &listener{t: t}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.ReadChanges(ctx, &changes.Request{Table: sch.Name, Life: sch.Stream.Life, From: changes.Position{Through: stamp.At(sch.Stream.Since) - 1}, Every: every}, l)
		done <- err
	}()
	await := func(what string, ok func(told, records int, mark changes.Position) bool) {
		t.Helper()
		for begin := time.Now(); !ok(l.state()); time.Sleep(every / 4) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("no %s", what)
			}
		}
	}
	put := func() {
		t.Helper()
		if err := c.MutateRow(t.Context(), sch.Name, &row.Entry{Key: key(1), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000}}}); err != nil {
			t.Fatal(err)
		}
	}
	put()
	await("first record", func(_, records int, _ changes.Position) bool { return records == 1 })
	stop()
	before, _, mark := l.state()
	begin := time.Now()
	await("watermarks while no server runs", func(told, _ int, _ changes.Position) bool { return told >= before+10 })
	if _, _, again := l.state(); again.Through < mark.Through || time.Since(begin) < 5*every {
		t.Errorf("after watermark %d comes %d; 10 of them in %v, one is due each %v", mark.Through, again.Through, time.Since(begin), every)
	}
	n.start("server-1", at)
	put()
	await("second record", func(_, records int, _ changes.Position) bool { return records == 2 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the read ends with %v", err)
	}
	told, _, _ := l.state()
	time.Sleep(3 * every)
	if later, _, _ := l.state(); later != told {
		t.Error("the writer is told something after the read is over")
	}
}

// A stalled server gives a record, and then nothing for a while.
type stalled struct{ rpc.TabletServer }

func (s stalled) ReadChanges(ctx context.Context, _ rpc.Target, req *rpc.ChangesRead, w changes.Writer) error {
	rec := changes.Record{Stamp: req.From.Through + 1, Key: key(1)}
	if _, err := w.Record(&rec, rec.After()); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

type stalledDialer struct{ rpc.Dialer }

func (d stalledDialer) Dial(addr string) rpc.TabletServer { return stalled{d.Dialer.Dial(addr)} }

// TestWatermarkBehindRecords: what a server gave before it stalled is passed on before a
// watermark behind it is told.
func TestWatermarkBehindRecords(t *testing.T) {
	n := newNetwork(t, 1)
	d := stream.NewDialer(stream.Options{})
	t.Cleanup(d.Close)
	c := n.clientOver(stalledDialer{d})
	sch := streamTable(t, c, nil)
	l := &listener{t: t}
	limited, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	ctx, cancel := context.WithCancel(limited)
	defer cancel()
	from := stamp.At(sch.Stream.Since) - 1
	go func() {
		for ctx.Err() == nil {
			// On a busy machine the first one may be told before the server gives anything.
			if told, _, mark := l.state(); told > 0 && mark.Through != from {
				if mark.Through != from+1 {
					t.Errorf("the watermark is %d behind a record of %d", mark.Through, from+1)
				}
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := c.ReadChanges(ctx, &changes.Request{Table: sch.Name, Life: sch.Stream.Life, From: changes.Position{Through: from}, Every: 20 * time.Millisecond}, l); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
