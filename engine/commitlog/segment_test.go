package commitlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

func memStore(t testing.TB) objectstore.Store {
	t.Helper()
	s, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// createSegments begins a log that the test closes.
func createSegments(t testing.TB, store objectstore.Store, id ID, o SegmentOptions) *SegmentWriter {
	t.Helper()
	w, err := CreateSegments(t.Context(), store, id, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func mustSeal(t testing.TB, store objectstore.Store, id ID, from Pos) Pos {
	t.Helper()
	end, err := Seal(t.Context(), store, id, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// replaySealed returns the records of a sealed log by tablet, checking that
// their content is what payload makes of them.
func replaySealed(t testing.TB, store objectstore.Store, id ID, from, end Pos, want func(uint64) bool) (map[uint64][]rec, error) {
	out := map[uint64][]rec{}
	err := ReplaySealed(t.Context(), store, id, from, end, nil, want, func(r Record) error {
		if want := payload(nil, r.Tablet, r.FirstSeq, len(r.Payload)); !bytes.Equal(want, r.Payload) {
			return fmt.Errorf("record %v has wrong content", r.Pos)
		}
		if l := out[r.Tablet]; r.Pos.Less(from) || len(l) > 0 && !l[len(l)-1].pos.Less(r.Pos) {
			return fmt.Errorf("record at %v out of order", r.Pos)
		}
		out[r.Tablet] = append(out[r.Tablet], rec{r.Tablet, r.FirstSeq, len(r.Payload), r.Pos})
		return nil
	})
	return out, err
}

func TestSegmentsRoundTrip(t *testing.T) {
	store := memStore(t)
	rng := rand.New(rand.NewPCG(1, 2))
	w := createSegments(t, store, 7, SegmentOptions{SegmentBytes: 20_000})
	sinks := make([]testSink, 4)
	want := map[uint64][]rec{}
	var all []rec
	for i := range 3000 {
		tablet := rng.Uint64N(4)
		if i%7 > 3 {
			tablet = 1 // some segments have one tablet only
		}
		size := rng.IntN(200)
		if i == 1500 {
			size = 900_000 // more than a segment, and than is read whole
		}
		seq := uint64(len(want[tablet])) + 1
		r := rec{tablet, seq, size, appendRecord(t, w, tablet, seq, size, &sinks[tablet])}
		want[tablet] = append(want[tablet], r)
		all = append(all, r)
		if rng.IntN(20) == 0 {
			mustWait(t, w, r.pos)
			if got := sinks[tablet].last.Load(); got < seq {
				t.Fatalf("sink of tablet %d is at %d, the record awaited has %d", tablet, got, seq)
			}
		}
	}
	mustWait(t, w, all[len(all)-1].pos)
	if w.Durable().Compare(w.End()) != 0 {
		t.Errorf("durable up to %v, the end is %v", w.Durable(), w.End())
	}
	end := mustSeal(t, store, 7, Pos{})
	for range 2 {
		if again := mustSeal(t, store, 7, all[rng.IntN(len(all))].pos); again != end {
			t.Errorf("sealed at %v and %v", end, again)
		}
	}
	for range 20 {
		from := all[rng.IntN(len(all))].pos
		only := rng.Uint64N(5)
		var filter func(uint64) bool
		if only < 4 {
			filter = func(t uint64) bool { return t == only }
		}
		got, err := replaySealed(t, store, 7, from, end, filter)
		if err != nil {
			t.Fatal(err)
		}
		for tablet, l := range want {
			l = slices.DeleteFunc(slices.Clone(l), func(r rec) bool { return r.pos.Less(from) || only < 4 && only != tablet })
			equal(t, got[tablet], l)
		}
	}
	wantKind(t, func() error { _, err := CreateSegments(t.Context(), store, 7, SegmentOptions{}); return err }(), fault.AlreadyExists)
	// The writer has not heard of it yet.
	pos := appendRecord(t, w, 1, 1<<40, 10, nil)
	wantKind(t, w.Wait(t.Context(), pos), fault.Fenced)
	<-w.Failed()
	wantKind(t, w.Err(), fault.Fenced)
	wantKind(t, w.Trim(end), fault.Fenced)
	if _, err := w.Reserve(t.Context(), 1); !errors.Is(err, fault.Fenced) {
		t.Errorf("a reservation in a sealed log: %v", err)
	}
	if end2 := mustSeal(t, store, 7, Pos{}); end2 != end {
		t.Errorf("sealed at %v, then %v", end, end2)
	}
}

type testSink struct{ last atomic.Uint64 }

func (s *testSink) Durable(seq uint64) { s.last.Store(seq) }

func wantKind(t testing.TB, err error, kind fault.Kind) {
	t.Helper()
	if fault.KindOf(err) != kind {
		t.Errorf("error is %v, want kind %v", err, kind)
	}
}

// A wrapStore lets a test come between.
type wrapStore struct {
	objectstore.Store
	put    func(ctx context.Context, name string, data []byte, put func() error) error
	delete func(name string) error
}

func (s *wrapStore) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	put := func() error { return s.Store.PutIfAbsent(ctx, name, data) }
	if s.put == nil {
		return put()
	}
	return s.put(ctx, name, data, put)
}

func (s *wrapStore) Delete(ctx context.Context, name string) error {
	if s.delete != nil {
		if err := s.delete(name); err != nil {
			return err
		}
	}
	return s.Store.Delete(ctx, name)
}

// TestSegmentsUnknownOutcome: a put whose outcome is unknown is made again, and
// found to have happened.
func TestSegmentsUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		store := &wrapStore{Store: memStore(t)}
		store.put = func(_ context.Context, name string, _ []byte, put func() error) error {
			switch tries.Add(1) {
			case 1:
				return errLost // before
			case 2:
				return errors.Join(errLost, put()) // after
			}
			return put()
		}
		w := createSegments(t, store, 1, SegmentOptions{})
		mustWait(t, w, appendRecord(t, w, 1, 1, 100, nil))
		if n := tries.Load(); n != 3 {
			t.Errorf("%d attempts, want 3", n)
		}
	})
}

// TestSegmentsFullStore: a full store refuses reservations, and nothing that was
// appended is lost when there is room again.
func TestSegmentsFullStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		store := &wrapStore{Store: memStore(t)}
		store.put = func(_ context.Context, _ string, _ []byte, put func() error) error {
			if full.Load() {
				return fault.New(fault.Exhausted, "full")
			}
			return put()
		}
		w := createSegments(t, store, 1, SegmentOptions{})
		full.Store(true)
		pos := appendRecord(t, w, 1, 1, 100, nil)
		synctest.Wait()
		_, err := w.Reserve(t.Context(), 1)
		wantKind(t, err, fault.Exhausted)
		wantKind(t, w.Full(), fault.Exhausted)
		full.Store(false)
		mustWait(t, w, pos)
		if _, err = w.Reserve(t.Context(), 1); err != nil || w.Full() != nil {
			t.Errorf("with room again: %v, %v", err, w.Full())
		}
	})
}

// TestSegmentsClose: Close stores what was appended, and gives up on a store
// that does not answer.
func TestSegmentsClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &wrapStore{Store: memStore(t)}
		w := createSegments(t, store, 1, SegmentOptions{CommitInterval: time.Second, SegmentBytes: 100})
		for i := range uint64(50) {
			appendRecord(t, w, 1, i+1, 50, nil)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := replaySealed(t, store, 1, Pos{}, mustSeal(t, store, 1, Pos{}), nil)
		if err != nil || len(got[1]) != 50 {
			t.Errorf("%d records, %v", len(got[1]), err)
		}
		w = createSegments(t, store, 2, SegmentOptions{})
		store.put = func(ctx context.Context, _ string, _ []byte, _ func() error) error { <-ctx.Done(); return ctx.Err() }
		pos := appendRecord(t, w, 1, 1, 50, nil)
		wantKind(t, w.Close(), fault.Unavailable)
		wantKind(t, w.Wait(t.Context(), pos), fault.Unavailable)
	})
}

// TestSegmentsTwoWriters: a second writer under the same ID is found out by
// whoever comes second.
func TestSegmentsTwoWriters(t *testing.T) {
	store := memStore(t)
	a, b := createSegments(t, store, 1, SegmentOptions{}), createSegments(t, store, 1, SegmentOptions{})
	mustWait(t, a, appendRecord(t, a, 1, 1, 10, nil))
	wantKind(t, b.Wait(t.Context(), appendRecord(t, b, 1, 1, 10, nil)), fault.Fenced)
	mustWait(t, a, appendRecord(t, a, 1, 2, 10, nil))
}

// TestSegmentsInterval: with a commit interval the number of puts is bounded,
// and a store that is slower than the interval has several under way.
func TestSegmentsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var puts, flying, most atomic.Int64
		store := &wrapStore{Store: memStore(t)}
		store.put = func(_ context.Context, _ string, _ []byte, put func() error) error {
			puts.Add(1)
			most.Store(max(most.Load(), flying.Add(1)))
			time.Sleep(100 * time.Millisecond)
			defer flying.Add(-1)
			return put()
		}
		w := createSegments(t, store, 1, SegmentOptions{CommitInterval: 50 * time.Millisecond})
		start := time.Now()
		var pos Pos
		for i := range uint64(1000) {
			pos = appendRecord(t, w, 1, i+1, 10, nil)
			time.Sleep(time.Millisecond)
		}
		mustWait(t, w, pos)
		if d := time.Since(start); d > 1200*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		if puts.Load() > 22 || most.Load() < 2 || most.Load() > 4 {
			t.Errorf("%d puts, %d at a time", puts.Load(), most.Load())
		}
	})
}

// TestSegmentsGather: callers that come back soon are in every put, all of
// them, and nobody waits for long for one that does not.
func TestSegmentsGather(t *testing.T) {
	for _, tc := range []struct {
		name          string
		put, back     time.Duration // what a put takes, and a caller to come back
		puts          int64         // at most, in a second
		longest, mean time.Duration // of a record
	}{
		{"as often as not", 5 * time.Millisecond, 2 * time.Millisecond, 1000/7 + 8, 15 * time.Millisecond, 6 * time.Millisecond},
		{"late", 5 * time.Millisecond, 100 * time.Millisecond, 200, 15 * time.Millisecond, 11 * time.Millisecond},
		{"sooner than a put", 200 * time.Microsecond, 100 * time.Microsecond, 5010, 700 * time.Microsecond, 400 * time.Microsecond},
		// Without a wait each put has what came during the one before.
		{"many, of fast puts", 100 * time.Microsecond, 600 * time.Microsecond, 6000, 1400 * time.Microsecond, 500 * time.Microsecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var puts atomic.Int64
				store := &wrapStore{Store: memStore(t), put: func(_ context.Context, _ string, _ []byte, put func() error) error {
					puts.Add(1)
					time.Sleep(tc.put)
					return put()
				}}
				w := createSegments(t, store, 1, SegmentOptions{})
				end := time.Now().Add(time.Second)
				var seq atomic.Uint64
				var longest, sum, n atomic.Int64
				var callers sync.WaitGroup
				for i := range 16 {
					callers.Go(func() {
						time.Sleep(time.Duration(i) * 300 * time.Microsecond)
						for time.Now().Before(end) {
							at := time.Now()
							mustWait(t, w, appendRecord(t, w, 1, seq.Add(1), 10, nil))
							took := int64(time.Since(at))
							sum.Add(took)
							n.Add(1)
							for was := longest.Load(); took > was && !longest.CompareAndSwap(was, took); was = longest.Load() {
							}
							time.Sleep(tc.back)
						}
					})
				}
				callers.Wait()
				mean := time.Duration(sum.Load() / n.Load())
				t.Logf("%d puts, %d records, %v, %v", puts.Load(), n.Load(), mean, time.Duration(longest.Load()))
				if puts.Load() > tc.puts || mean > tc.mean || time.Duration(longest.Load()) > tc.longest {
					t.Errorf("want at most %d puts, %v, %v", tc.puts, tc.mean, tc.longest)
				}
			})
		})
	}
}

// TestSegmentsSlowPut: who comes behind a put that takes much longer than others
// waits for its end, and not for another put after it. Puts that take as long as
// others are one at a time.
func TestSegmentsSlowPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const usual, slow = 5 * time.Millisecond, 50 * time.Millisecond
		var flying, most int64
		takes := usual
		store := &wrapStore{Store: memStore(t)}
		var mu sync.Mutex
		store.put = func(_ context.Context, _ string, _ []byte, put func() error) error {
			mu.Lock()
			flying++
			most = max(most, flying)
			d := takes
			takes = usual
			mu.Unlock()
			time.Sleep(d)
			mu.Lock()
			flying--
			mu.Unlock()
			return put()
		}
		w := createSegments(t, store, 1, SegmentOptions{})
		for i := range uint64(10) {
			first := appendRecord(t, w, 1, 2*i+1, 10, nil)
			time.Sleep(usual / 2)
			mustWait(t, w, appendRecord(t, w, 1, 2*i+2, 10, nil)) // waits for the put of the first
			mustWait(t, w, first)
		}
		mu.Lock()
		if most != 1 {
			t.Errorf("%d puts at a time", most)
		}
		takes = slow
		mu.Unlock()
		start := time.Now()
		first := appendRecord(t, w, 1, 21, 10, nil)
		time.Sleep(2 * usual) // the wait for others, and a part of the put
		mustWait(t, w, appendRecord(t, w, 1, 22, 10, nil))
		if d := time.Since(start); d > slow+2*usual {
			t.Errorf("who came behind a put of %v waited for %v", slow, d)
		}
		mustWait(t, w, first)
	})
}

// TestSealChasesWriter: a writer that is alive and faster than the fencer is
// caught all the same.
func TestSealChasesWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &wrapStore{Store: memStore(t)}
		store.put = func(_ context.Context, _ string, data []byte, put func() error) error {
			d := time.Millisecond
			if len(data) == fenceLen {
				d = 3 * time.Millisecond
			}
			time.Sleep(d)
			return put()
		}
		w := createSegments(t, store, 1, SegmentOptions{})
		var wg sync.WaitGroup
		acked := uint64(0)
		wg.Go(func() {
			for seq := uint64(1); ; seq++ {
				r, err := w.Reserve(t.Context(), 8)
				if err != nil {
					return
				}
				pos := w.Append(r, 1, seq, record(func(dst []byte) []byte { return payload(dst, 1, seq, 8) }), nil)
				if w.Wait(t.Context(), pos) != nil {
					return
				}
				acked = seq
			}
		})
		time.Sleep(50 * time.Millisecond)
		end := mustSeal(t, store, 1, Pos{Log: 1, Segment: 1})
		wg.Wait()
		got, err := replaySealed(t, store, 1, Pos{}, end, nil)
		if err != nil || uint64(len(got[1])) < acked || acked < 50 {
			t.Errorf("%d records of %d acknowledged, %v", len(got[1]), acked, err)
		}
	})
}

// TestI8_TrimKeepsWhatIsNeeded: no trim deletes a segment at or after the redo
// point, nor the newest acknowledged one, nor a fence; and a redo point in what
// was trimmed is found out instead of getting a fence.
func TestI8_TrimKeepsWhatIsNeeded(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		store := memStore(t)
		alone := seed%2 == 0 // each segment a file, which is deleted by itself
		if alone {
			store = &wrapStore{Store: store}
		}
		w := createSegments(t, store, 3, SegmentOptions{SegmentBytes: 64})
		var all []rec
		var oldest Pos
		for i := range uint64(20 + rng.IntN(60)) {
			r := rec{1, i + 1, 40, appendRecord(t, w, 1, i+1, 40, nil)}
			all = append(all, r)
			if rng.IntN(3) == 0 {
				mustWait(t, w, r.pos)
			}
			if rng.IntN(4) == 0 {
				before := all[rng.IntN(len(all))].pos
				if rng.IntN(8) == 0 {
					before = w.End()
				}
				if err := w.Trim(before); err != nil {
					t.Fatal(err)
				}
				if oldest.Less(before) {
					oldest = before
				}
			}
		}
		mustWait(t, w, all[len(all)-1].pos)
		var sum int64
		infos, _ := store.List(t.Context(), "", "", 0)
		for _, i := range infos {
			sum += i.Size
		}
		if sum != w.Bytes() && alone || sum < w.Bytes() {
			t.Errorf("seed %d: the log says it has %d bytes, it has %d", seed, w.Bytes(), sum)
		}
		needed := slices.DeleteFunc(slices.Clone(all), func(r rec) bool { return r.pos.Less(oldest) })
		end := mustSeal(t, store, 3, oldest)
		got, err := replaySealed(t, store, 3, oldest, end, nil)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, got[1], needed)
		// What is gone is known to be gone.
		for i := uint64(1); i < end.Segment; i++ {
			if _, err := store.Get(t.Context(), objectName(3, i)); err == nil {
				continue
			}
			if _, err := Seal(t.Context(), store, 3, Pos{Log: 3, Segment: i}, nil); !errors.Is(err, fault.Corruption) {
				t.Errorf("seed %d: sealing from the trimmed segment %d: %v", seed, i, err)
			}
		}
		// Recovered, the log goes, and its fence stays.
		for _, before := range []Pos{{Log: 3, Segment: end.Segment / 2}, end, {Log: 4}} {
			if err := TrimSealed(t.Context(), store, 3, before); err != nil {
				t.Fatal(err)
			}
			infos, _ := store.List(t.Context(), "", "", 0)
			for _, i := range infos {
				if _, index, _ := parseObjectName(i.Name); index < end.Segment && (before.Log > 3 || index < before.Segment && alone) {
					t.Errorf("seed %d: %s is kept, trimmed before %v", seed, i.Name, before)
				}
			}
			if b, err := store.Get(t.Context(), objectName(3, end.Segment)); err != nil || len(b) != fenceLen {
				t.Fatalf("seed %d: the fence: %v", seed, err)
			}
		}
		wantKind(t, w.Wait(t.Context(), appendRecord(t, w, 1, 1000, 40, nil)), fault.Fenced)
	}
}

// TestI13_ReplayIsIdempotent breaks the recovery of a server with several
// incarnations off at every request to the store, before and after the request
// has happened, and begins anew. Whatever was acknowledged is replayed each
// time, and the last recovery goes through.
func TestI13_ReplayIsIdempotent(t *testing.T) {
	errDead := errors.New("the process died")
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 13))
		store := &wrapStore{Store: memStore(t)}
		var want []rec // in the order of positions
		var redo Pos
		kept := map[ID]Pos{}
		through := 0
		for id := ID(1); id < 40; id++ {
			// Dies at one of the first requests, then a little later, until it is through.
			n := int64(-1)
			if id%4 != 1 {
				n = rng.Int64N(12)
			}
			var count atomic.Int64
			after := rng.IntN(2) == 0
			store.put = func(_ context.Context, _ string, _ []byte, put func() error) error {
				if c := count.Add(1) - 1; n >= 0 && c >= n {
					if c == n && after {
						_ = put()
					}
					return fault.New(fault.Internal, "put: %w", errDead) // not to be tried again
				}
				return put()
			}
			store.delete = func(string) error {
				if c := count.Add(1) - 1; n >= 0 && c >= n {
					return errDead
				}
				return nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			var got []rec
			recovered := func() error {
				got = nil
				for old := max(redo.Log, 1); old < id; old++ {
					end, err := Seal(ctx, store, old, kept[old], nil)
					if err != nil {
						return err
					}
					from := kept[old]
					if old == redo.Log {
						from = redo
					}
					err = ReplaySealed(ctx, store, old, from, end, nil, nil, func(r Record) error {
						got = append(got, rec{r.Tablet, r.FirstSeq, len(r.Payload), r.Pos})
						return nil
					})
					if err != nil {
						return err
					}
				}
				return nil
			}
			var err error
			for range 2 {
				if err = recovered(); errors.Is(err, errDead) {
					break
				}
				if err != nil {
					t.Fatalf("seed %d: recovery %d from %v: %v", seed, id, redo, err)
				}
				// What was under way when a process died may be there, too.
				if i := slices.IndexFunc(want, func(r rec) bool { return !r.pos.Less(redo) }); i >= 0 {
					for _, r := range want[i:] {
						if !slices.Contains(got, r) {
							t.Fatalf("seed %d: incarnation %d lost %+v, redo point %v", seed, id, r, redo)
						}
					}
				}
			}
			var w *SegmentWriter
			if err == nil {
				w, err = CreateSegments(ctx, store, id, SegmentOptions{SegmentBytes: 100})
			}
			if err != nil {
				if !errors.Is(err, errDead) {
					t.Fatalf("seed %d: create %d: %v", seed, id, err)
				}
				cancel()
				continue
			}
			through++
			for i := range uint64(rng.IntN(12)) {
				r, err := w.Reserve(ctx, 50)
				if err != nil {
					break
				}
				seq := uint64(id)<<32 | i
				pos := w.Append(r, 1, seq, record(func(dst []byte) []byte { return payload(dst, 1, seq, 50) }), nil)
				dead, stop := context.WithTimeout(ctx, 20*time.Millisecond)
				err = w.Wait(dead, pos)
				stop()
				if err != nil {
					break
				}
				want = append(want, rec{1, seq, 50, pos})
				if rng.IntN(6) == 0 {
					if r := want[len(want)-1-rng.IntN(min(3, len(want)))]; redo.Less(r.pos) {
						redo = r.pos
					}
					// A position is kept before what lies before it is trimmed.
					kept[redo.Log] = redo
					if redo.Log == id {
						_ = w.Trim(redo)
					}
					for old := ID(1); old < id; old++ {
						_ = TrimSealed(ctx, store, old, redo)
					}
				}
			}
			w.cancel() // the process dies
			cancel()
			_ = w.Close()
		}
		if through < 10 {
			t.Errorf("seed %d: only %d recoveries went through", seed, through)
		}
	}
}

// TestSegmentDamage: no damaged byte of a segment goes unnoticed, and what is
// not a segment is not taken for one.
func TestSegmentDamage(t *testing.T) {
	var b builder
	for i := range uint64(10) {
		b.add(i%3, i+1, 30, record(func(dst []byte) []byte { return payload(dst, i%3, i+1, 30) }))
	}
	data := slices.Clone(b.build(objectHeader{kind: kindSegment, log: 1, index: 5, nonce: 9, acked: 4}))
	if err := decodeAll(data, 1, 5); err != nil {
		t.Fatal(err)
	}
	for i := range data {
		d := slices.Clone(data)
		d[i] ^= 0x10
		if err := decodeAll(d, 1, 5); !errors.Is(err, fault.Corruption) && (i < 48 || !errors.Is(err, fault.FailedPrecondition)) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if err := decodeAll(data[:i], 1, 5); !errors.Is(err, fault.Corruption) {
			t.Errorf("cut off at %d: %v", i, err)
		}
	}
	wantKind(t, decodeAll(append(slices.Clone(data), 0), 1, 5), fault.Corruption)
	wantKind(t, decodeAll(data, 2, 5), fault.Corruption)
	wantKind(t, decodeAll(data, 1, 6), fault.Corruption)
	wantKind(t, decodeAll(fence(1, 5, 1), 1, 5), fault.Corruption)

	store := memStore(t)
	ctx := t.Context()
	for i := uint64(1); i < 4; i++ {
		var b builder
		b.add(1, i, 10, record(func(dst []byte) []byte { return payload(dst, 1, i, 10) }))
		if err := store.PutIfAbsent(ctx, objectName(1, i), b.build(objectHeader{kind: kindSegment, log: 1, index: i, nonce: 1 + i/3, acked: i - 1})); err != nil {
			t.Fatal(err)
		}
	}
	end := mustSeal(t, store, 1, Pos{})
	_, err := replaySealed(t, store, 1, Pos{}, end, nil)
	wantKind(t, err, fault.Corruption) // the third is of another writer
	if err := store.Delete(ctx, objectName(1, 2)); err != nil {
		t.Fatal(err)
	}
	_, err = replaySealed(t, store, 1, Pos{}, end, nil)
	wantKind(t, err, fault.Corruption) // a hole
}

func decodeAll(data []byte, id ID, index uint64) error {
	s, err := decodeSegment(data, id, index, nil)
	if err != nil {
		return err
	}
	for i := range s.extents {
		if err, _ := s.header.eachRecord(&s.extents[i], s.data[s.extents[i].tablet], func(Record) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// FuzzSegmentObject decodes any bytes: an error or records, never a panic, and what
// was read part by part is what was read whole.
func FuzzSegmentObject(f *testing.F) {
	var b builder
	for i := range uint64(6) {
		b.add(i%2, i+1, 30, record(func(dst []byte) []byte { return payload(dst, i%2, i+1, 30) }))
	}
	f.Add(slices.Clone(b.build(objectHeader{kind: kindSegment, log: 1, index: 5, acked: 4})), true)
	f.Add(fence(1, 5, 3), false)
	f.Fuzz(func(t *testing.T, data []byte, fix bool) {
		if len(data) > 8<<10 {
			t.Skip("takes long, and shows no more")
		}
		if fix && len(data) >= objectHeaderLen {
			// Past the checksums.
			data = slices.Clone(data)
			n := uint64(binary.LittleEndian.Uint32(data[48:])) * extentLen
			if n <= uint64(len(data)-objectHeaderLen) {
				for i := objectHeaderLen; i < objectHeaderLen+int(n); i += extentLen {
					off, length := binary.LittleEndian.Uint32(data[i+8:]), binary.LittleEndian.Uint32(data[i+12:])
					if uint64(off)+uint64(length) <= uint64(len(data)) {
						binary.LittleEndian.PutUint32(data[i+20:], checksum(data[off:off+length]))
					}
				}
				binary.LittleEndian.PutUint32(data[56:], checksum(data[objectHeaderLen:objectHeaderLen+n]))
			}
			binary.LittleEndian.PutUint32(data[60:], checksum(data[:60]))
		}
		read := func(s readSegment) (out []Record, err error) {
			for i := range s.extents {
				b, ok := s.data[s.extents[i].tablet]
				if !ok {
					continue
				}
				if err, _ := s.header.eachRecord(&s.extents[i], b, func(r Record) error { out = append(out, r); return nil }); err != nil {
					return nil, err
				}
			}
			return out, nil
		}
		whole, err := decodeSegment(data, 1, 5, nil)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Corruption && k != fault.FailedPrecondition {
				t.Fatalf("error of kind %v: %v", k, err)
			}
			return
		}
		parts, err := readExtents(context.Background(), memReadable(data), data[:min(len(data), 100)], 1, 5, func(uint64) bool { return true })
		if err != nil {
			t.Fatalf("read in parts: %v", err)
		}
		a, errA := read(whole)
		b, errB := read(parts)
		if len(a) != len(b) || (errA == nil) != (errB == nil) {
			t.Fatalf("whole: %d records, %v; in parts: %d records, %v", len(a), errA, len(b), errB)
		}
	})
}
