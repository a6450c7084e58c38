package commitlog

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// flipped is a store in which one byte of an object is another one, or an object
// is gone.
type flipped struct {
	objectstore.Store
	name string
	at   int // -1: it is gone
}

func (s flipped) List(ctx context.Context, prefix, after string, n int) ([]objectstore.Info, error) {
	infos, err := s.Store.List(ctx, prefix, after, n)
	return slices.DeleteFunc(infos, func(i objectstore.Info) bool { return s.at < 0 && i.Name == s.name }), err
}

func (s flipped) Get(ctx context.Context, name string) ([]byte, error) {
	b, err := s.Store.Get(ctx, name)
	if err == nil && name == s.name {
		b[s.at] ^= 4
	}
	return b, err
}

// TestCheckSegments: whatever byte of a segment is not what was written, and
// whatever segment is missing that was acknowledged, is found, and nothing else
// is, while the log is written to and when it is sealed.
func TestCheckSegments(t *testing.T) {
	store := memStore(t)
	w := createSegments(t, store, 7, SegmentOptions{SegmentBytes: 2000})
	sink := new(testSink)
	for i := range 40 {
		mustWait(t, w, appendRecord(t, w, uint64(i%3+1), uint64(i+1), i*3, sink))
	}
	var kept Pos
	check := func(s objectstore.Store) (c Checked, bad []string) {
		t.Helper()
		c, err := CheckSegments(t.Context(), s, 7, func(context.Context) (Pos, error) { return kept, nil }, s.Get, func(object string, err error) {
			bad = append(bad, object)
		})
		if err != nil {
			t.Fatal(err)
		}
		return c, bad
	}
	for _, sealed := range []bool{false, true} {
		if sealed {
			mustSeal(t, store, 7, Pos{})
		}
		c, bad := check(store)
		if len(bad) > 0 || c.Segments < 40 || c.Sealed != sealed || c.Bytes == 0 {
			t.Fatalf("a sound log: %+v, %v", c, bad)
		}
		infos, err := store.List(t.Context(), ID(7).String()+"/", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, info := range infos {
			b, err := store.Get(t.Context(), info.Name)
			if err != nil {
				t.Fatal(err)
			}
			step := 1
			if i%10 > 0 {
				step = 17
			}
			for at := 0; at < len(b); at += step {
				if _, bad := check(flipped{store, info.Name, at}); !slices.Equal(bad, []string{info.Name}) {
					t.Fatalf("byte %d of %d of %s: found %v", at, info.Size, info.Name, bad)
				}
			}
			// Of the end of a log that is not sealed nothing tells.
			_, bad := check(flipped{store, info.Name, -1})
			if want := []string{info.Name}; i < len(infos)-1 && !slices.Equal(bad, want) || i == len(infos)-1 && len(bad) > 0 {
				t.Errorf("without %s: found %v", info.Name, bad)
			}
		}
		kept = Pos{Log: 7, Segment: 20}
		if c, bad := check(flipped{store, infos[5].Name, -1}); len(bad) > 0 || c.Segments > 25 {
			t.Errorf("what was trimmed: %+v, %v", c, bad)
		}
		kept = Pos{}
	}
}

// TestRemains: the place from which on a log is there is told apart from what
// trimming has left behind, and from what came after a segment that was never
// stored.
func TestRemains(t *testing.T) {
	for _, c := range []struct {
		there        []uint64
		acked, first uint64
	}{
		{[]uint64{1}, 0, 1},
		{[]uint64{1, 2, 3}, 2, 1},
		{[]uint64{3, 4, 5}, 4, 3},
		{[]uint64{2, 3, 8, 9, 10}, 9, 8}, // 2 and 3 are left over
		{[]uint64{2, 10}, 9, 10},         // 9 was trimmed since
		{[]uint64{1, 2, 3, 5, 7}, 3, 1},  // 4 and 6 were not stored
		{[]uint64{2, 4, 5, 6, 9}, 6, 4},  // both
		{[]uint64{1, 5, 8, 9}, 5, 5},     // both
	} {
		l := &sealedLog{}
		for _, i := range c.there {
			l.segments = append(l.segments, keptSegment{index: i})
		}
		if got := l.firstAround(c.acked); got != c.first {
			t.Errorf("segments %v, %d acknowledged: from %d on, not %d", c.there, c.acked, got, c.first)
		}
	}
	store := &wrapStore{Store: memStore(t)} // each segment a file, which is deleted by itself
	w := createSegments(t, store, 7, SegmentOptions{})
	sink := new(testSink)
	for i := range 5 {
		mustWait(t, w, appendRecord(t, w, 1, uint64(i+1), 10, sink))
	}
	if err := w.Trim(Pos{Log: 7, Segment: 3}); err != nil {
		t.Fatal(err)
	}
	mustSeal(t, store, 7, Pos{Log: 7, Segment: 3})
	mustSeal(t, store, 9, Pos{})
	got, err := ListRemains(t.Context(), store)
	if err != nil || len(got) != 2 || got[0].First != 3 || got[0].Segments != 3 || got[0].Newest.IsZero() || got[1].Segments != 0 || got[1].ID != 9 || got[1].First != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestReadRemains: the records that are left of a log are those of its segments
// up to its fence, but for what was given up.
func TestReadRemains(t *testing.T) {
	store := &wrapStore{Store: memStore(t)} // each segment a file
	w := createSegments(t, store, 7, SegmentOptions{})
	for i := range uint64(6) {
		mustWait(t, w, appendRecord(t, w, 1+i%2, 1+i, 10, nil))
	}
	read := func(without GivenUp, want func(uint64) bool) (got []uint64, err error) {
		err = ReadRemains(t.Context(), store, 7, without, want, func(r Record) error {
			got = append(got, r.FirstSeq)
			return nil
		})
		return got, err
	}
	check := func(without GivenUp, want func(uint64) bool, seqs ...uint64) {
		t.Helper()
		if got, err := read(without, want); err != nil || !slices.Equal(got, seqs) {
			t.Errorf("%v, %v, not %v", got, err, seqs)
		}
	}
	check(nil, nil, 1, 2, 3, 4, 5, 6)
	check(nil, func(id uint64) bool { return id == 2 }, 2, 4, 6)
	check(GivenUp(nil).With(3, nil).With(5, []uint64{1}), nil, 1, 2, 4, 6)
	if err := store.Delete(t.Context(), objectName(7, 2)); err != nil {
		t.Fatal(err)
	}
	check(nil, nil, 1, 3, 4, 5, 6)
	b, err := store.Get(t.Context(), objectName(7, 4))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Delete(t.Context(), objectName(7, 4)), store.PutIfAbsent(t.Context(), objectName(7, 4), fence(7, 4, 1))); err != nil {
		t.Fatal(err)
	}
	check(nil, nil, 1, 3)
	b[len(b)-1] ^= 1
	if err := errors.Join(store.Delete(t.Context(), objectName(7, 4)), store.PutIfAbsent(t.Context(), objectName(7, 4), b)); err != nil {
		t.Fatal(err)
	}
	if _, err := read(nil, nil); !errors.Is(err, fault.Corruption) {
		t.Errorf("of a damaged log: %v", err)
	}
	stop := errors.New("stop")
	if err := ReadRemains(t.Context(), store, 7, nil, nil, func(Record) error { return stop }); err != stop {
		t.Error(err)
	}
}
