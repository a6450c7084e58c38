package worker

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/tablet"
)

// hookedMeta calls a function before each change of a row.
type hookedMeta struct{ before func(*metadata.Row) }

// CAS implements metadata.Store.
func (m *hookedMeta) CAS(_ context.Context, r *metadata.Row) error {
	m.before(r)
	r.Version++
	return nil
}

// A server is tablets and their worker, with all they stand on.
type server struct {
	t       *testing.T
	env     *tablet.Env
	meta    hookedMeta
	tablets []*tablet.Tablet
	*Worker
}

// newServer returns one that is not started.
func newServer(t *testing.T, majorCheck time.Duration, memory int64, rows ...*metadata.Row) *server {
	t.Helper()
	s := &server{t: t, meta: hookedMeta{func(*metadata.Row) {}}}
	objects, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := commitlog.CreateSegments(t.Context(), objects, 7, commitlog.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	cache := sstable.NewCache(1<<20, 0)
	t.Cleanup(cache.Close)
	var ids atomic.Uint64
	s.env = &tablet.Env{Options: tablet.Options{}.WithDefaults(), Commit: log, Meta: &s.meta, Objects: objects, Cache: cache,
		Log: slog.New(slog.DiscardHandler), Now: time.Now, NewID: func() uint64 { return ids.Add(1) }, Remove: func(string) {},
		Fatal: func(err error) { t.Error(err) }}
	s.Worker = New(Options{Tablets: func() []*tablet.Tablet { return s.tablets }, LogBytes: 1 << 30, MajorCheck: majorCheck,
		Failed: func() error { return nil }, Log: s.env.Log}, s.env, memory)
	sch := &schema.Table{Name: "t", ID: 5, NextFamily: 1, Families: map[string]schema.Family{"f": {Name: "f"}}}
	for _, r := range rows {
		r.Table, r.Version = 5, 1
		one := tablet.Open(s.env, r, func() *schema.Table { return sch })
		one.Start()
		t.Cleanup(one.Close)
		s.tablets = append(s.tablets, one)
	}
	return s
}

func (s *server) write(one *tablet.Tablet, key string, value []byte) {
	s.t.Helper()
	b := tablet.NewBatch([]byte(key))
	defer b.Free()
	b.Set(0, []byte("q"), 1, value)
	pos, err := one.ApplyAsync(s.t.Context(), b)
	if err == nil {
		err = one.Wait(s.t.Context(), pos)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// happens fails the test unless something does within a minute.
func happens(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal(what + ": not within a minute")
	}
}

// TestRelieves: a tablet is flushed for want of memory while METADATA does not answer a change
// of another, and writes of a third are held up.
func TestRelieves(t *testing.T) {
	s := newServer(t, time.Millisecond, 1<<20, &metadata.Row{Tablet: 1, Stream: &metadata.StreamState{Life: 1}}, &metadata.Row{Tablet: 2}, &metadata.Row{Tablet: 3})
	trims, flushes, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var trim, flush sync.Once
	s.meta.before = func(r *metadata.Row) {
		switch r.Tablet {
		case 1:
			trim.Do(func() { close(trims) })
			<-release
		case 2:
			flush.Do(func() { close(flushes) })
		}
	}
	s.Start()
	defer s.Stop()
	defer close(release)
	happens(t, "a stream that has ended is let go of", trims)
	p, err := tablet.Pause(t.Context(), s.tablets[2:])
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	s.write(s.tablets[1], "row", make([]byte, 600<<10))
	happens(t, "the large memtable is flushed", flushes)
}

// TestPausedTabletsHoldUpNoOthers: while tablets are paused and one of them takes long to be
// frozen, others are flushed and compacted, those that are frozen already as well. What was left
// out is done afterwards.
func TestPausedTabletsHoldUpNoOthers(t *testing.T) {
	// More than goroutines compact.
	var rows []*metadata.Row
	for i := range 3 + runtime.GOMAXPROCS(0) {
		rows = append(rows, &metadata.Row{Tablet: metadata.TabletID(i + 1)})
	}
	s := newServer(t, time.Hour, 1<<30, rows...)
	first, slow, other := s.tablets[0], s.tablets[1], s.tablets[len(rows)-1]
	paused := s.tablets[:len(rows)-1]
	freezes, release := make(chan struct{}), make(chan struct{})
	var begun sync.Once
	var mu sync.Mutex
	changes := map[metadata.TabletID]chan struct{}{}
	changed := func(one *tablet.Tablet) chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		if changes[one.ID()] == nil {
			changes[one.ID()] = make(chan struct{}, 100)
		}
		return changes[one.ID()]
	}
	s.meta.before = func(r *metadata.Row) {
		if r.Tablet == slow.ID() {
			begun.Do(func() { close(freezes) })
			<-release
		}
		changed(s.tablets[r.Tablet-1]) <- struct{}{}
	}
	flush := func(one *tablet.Tablet, what string) {
		t.Helper()
		s.write(one, "row", []byte("newer"))
		one.Rotate()
		happens(t, what, changed(one))
	}
	s.Start()
	defer s.Stop()
	var once sync.Once
	open := func() { once.Do(func() { close(release) }) }
	defer open()
	for _, one := range paused {
		s.write(one, "row", []byte("v"))
	}
	p, err := tablet.Pause(t.Context(), paused)
	if err != nil {
		t.Fatal(err)
	}
	p.Cut()
	type result struct {
		held []*tablet.Frozen
		err  error
	}
	frozen := make(chan result, 1)
	go func() {
		defer p.Release()
		held, err := p.Freeze(t.Context())
		frozen <- result{held, err}
	}()
	happens(t, "what was cut of the slow tablet is flushed", freezes)
	happens(t, "what was cut of the first tablet is flushed", changed(first))
	flush(other, "another tablet is flushed")
	flush(first, "the first tablet is flushed again")
	flush(other, "another tablet is flushed again")
	other.RequestMajor()
	s.Add(other)
	happens(t, "another tablet is compacted", changed(other))
	s.write(slow, "row", []byte("newer"))
	slow.Rotate()
	open()
	got := <-frozen
	if got.err != nil {
		t.Fatal(got.err)
	}
	for i, f := range got.held {
		if files := len(f.Row().Files); files != 1 {
			t.Errorf("tablet %d held %d files, want what was cut", i+1, files)
		}
		f.Release()
	}
	happens(t, "what was cut of the slow tablet is flushed", changed(slow))
	happens(t, "the slow tablet is flushed again", changed(slow))
}

// TestWorkerRetries: a tablet whose work fails is tried again later, and holds
// up no other.
func TestWorkerRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{Failed: func() error { return nil }, Log: slog.New(slog.DiscardHandler)}, new(tablet.Env), 1)
		var bad, good tablet.Tablet
		start := time.Now()
		done := map[*tablet.Tablet][]time.Duration{}
		w.done.Add(1)
		go w.loop(w.flushes, func(tt *tablet.Tablet) error {
			done[tt] = append(done[tt], time.Since(start))
			if tt == &bad && len(done[tt]) < 3 {
				return errors.New("broken")
			}
			return nil
		})
		w.flushes.put(&bad)
		w.flushes.put(&good)
		time.Sleep(time.Minute)
		w.Stop()
		if len(done[&good]) != 1 || done[&good][0] != 0 {
			t.Errorf("the good tablet's work was done after %v", done[&good])
		}
		if len(done[&bad]) != 3 || done[&bad][2] != 2*retryDelay {
			t.Errorf("the bad tablet's work was tried after %v", done[&bad])
		}
	})
}

// TestQueue: the most urgent first, each once, and none to two goroutines.
func TestQueue(t *testing.T) {
	ts := make([]tablet.Tablet, 4)
	rank := map[*tablet.Tablet]int{&ts[2]: 5}
	q := newQueue(1, func(t *tablet.Tablet) int { return rank[t] })
	place := func(got *tablet.Tablet) int {
		for i := range ts {
			if got == &ts[i] {
				return i
			}
		}
		return -1
	}
	get := func(want int) *tablet.Tablet {
		t.Helper()
		got, ok := q.get()
		if !ok || place(got) != want {
			t.Fatalf("got tablet %d, %v, want %d", place(got), ok, want)
		}
		return got
	}
	for i := range 3 {
		q.put(&ts[i])
		q.put(&ts[i])
	}
	rank[&ts[1]] = 7
	q.put(&ts[1]) // has become urgent
	a := get(1)
	q.put(a) // while it is worked on
	get(2)
	get(0)
	if len(q.order) != 0 {
		t.Fatalf("%d are left", len(q.order))
	}
	q.done(a)
	q.done(get(1))
	q.close()
	if _, ok := q.get(); ok {
		t.Error("a closed queue gives a tablet")
	}
}

// TestDebt: what compactions owe grows with the runs while there are writes, and is nothing
// a second after the last.
func TestDebt(t *testing.T) {
	var d debt
	now := time.Now()
	for _, c := range []struct {
		after   time.Duration
		written int64
		delayed bool
		excess  int
		want    float64
	}{
		{0, 0, false, 3, 0}, // nothing was written yet
		{time.Hour, 1, false, -2, 0},
		{time.Millisecond, 2, false, -1, 1. / 3},
		{time.Millisecond, 3, false, 1, 1},
		{calm - time.Millisecond, 3, false, 1, 1},
		{time.Millisecond, 3, false, 1, 0},
		{time.Hour, 3, false, 1, 0},
		{time.Millisecond, 4, false, 1, 1},
		{calm, 4, true, 1, 1}, // all writers wait
		{time.Hour, 4, true, 1, 1},
		{calm, 4, false, 1, 0},
		{calm, 2, false, 1, 1}, // a tablet that was written to was closed
		{calm, 2, false, 1, 0},
	} {
		now = now.Add(c.after)
		if got := d.look(now, c.written, c.delayed, c.excess); got != c.want {
			t.Errorf("%+v: debt %v", c, got)
		}
	}
}
