package commitlog

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// overwrite changes an object; nil removes it.
func overwrite(t *testing.T, store objectstore.Store, name string, change func([]byte) []byte) {
	t.Helper()
	b, err := store.Get(t.Context(), name)
	if err == nil {
		err = store.Delete(t.Context(), name)
	}
	if b = change(bytes.Clone(b)); err == nil && b != nil {
		err = store.PutIfAbsent(t.Context(), name, b)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestGivenUp: whatever is wrong with a log is found, all of it, without a change
// of the store; given up, the log is sealed and replayed without that, and with
// everything else; what is sound is not found.
func TestGivenUp(t *testing.T) {
	gone := func([]byte) []byte { return nil }
	at := func(n int) func([]byte) []byte {
		return func(b []byte) []byte {
			if n < 0 {
				n += len(b)
			}
			b[n] ^= 1
			return b
		}
	}
	// Each of 12 segments has a record of tablet 1 and one of tablet 2; the first
	// bytes behind header and index are of tablet 1.
	const segments, body = 12, objectHeaderLen + 2*extentLen
	for _, c := range []struct {
		name   string
		damage map[uint64]func([]byte) []byte
		sealed bool // it was sealed before
		lost   map[uint64][]uint64
	}{
		{"nothing", nil, false, map[uint64][]uint64{}},
		{"a segment in the middle is gone", map[uint64]func([]byte) []byte{5: gone}, false, map[uint64][]uint64{5: nil}},
		{"the segment of the redo point is gone", map[uint64]func([]byte) []byte{1: gone}, false, map[uint64][]uint64{1: nil}},
		{"headers", map[uint64]func([]byte) []byte{4: at(3), 6: at(40)}, false, map[uint64][]uint64{4: nil, 6: nil}},
		{"the newest header", map[uint64]func([]byte) []byte{segments: at(41)}, false, map[uint64][]uint64{segments: nil}},
		{"the newest headers", map[uint64]func([]byte) []byte{segments: at(41), segments - 1: at(20)}, false, map[uint64][]uint64{segments: nil, segments - 1: nil}},
		{"the last two, which may not have been there", map[uint64]func([]byte) []byte{segments - 1: gone, segments: at(41)}, false, map[uint64][]uint64{segments: nil, segments - 1: nil}},
		{"the index", map[uint64]func([]byte) []byte{7: at(objectHeaderLen + 5)}, false, map[uint64][]uint64{7: nil}},
		{"records of one tablet", map[uint64]func([]byte) []byte{3: at(body + 30), 8: at(-1)}, false, map[uint64][]uint64{3: {1}, 8: {2}}},
		{"cut short", map[uint64]func([]byte) []byte{9: func(b []byte) []byte { return b[:len(b)-1] }}, false, map[uint64][]uint64{9: nil}},
		{"cut to the size of a fence", map[uint64]func([]byte) []byte{9: func(b []byte) []byte { return b[:fenceLen-1] }}, false, map[uint64][]uint64{9: nil}},
		{"the fence", map[uint64]func([]byte) []byte{segments + 1: at(9)}, true, map[uint64][]uint64{segments + 1: nil}},
		{"all sorts, sealed", map[uint64]func([]byte) []byte{1: gone, 2: at(body), 11: gone, 12: at(2)}, true, map[uint64][]uint64{1: nil, 2: {1}, 11: nil, 12: nil}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := memStore(t)
			for i := uint64(1); i <= segments; i++ {
				var b builder
				for tablet := uint64(1); tablet <= 2; tablet++ {
					b.add(tablet, i, 40, record(func(dst []byte) []byte { return payload(dst, tablet, i, 40) }))
				}
				data := b.build(objectHeader{kind: kindSegment, log: 7, index: i, nonce: 99, acked: i - 1})
				if err := store.PutIfAbsent(t.Context(), objectName(7, i), data); err != nil {
					t.Fatal(err)
				}
			}
			from := Pos{Log: 7, Segment: 1}
			if c.sealed {
				mustSeal(t, store, 7, from)
			}
			for index, change := range c.damage {
				overwrite(t, store, objectName(7, index), change)
			}
			before, err := store.List(t.Context(), "", "", 0)
			if err != nil {
				t.Fatal(err)
			}
			found, err := FindDamage(t.Context(), store, 7, from, nil)
			if err != nil {
				t.Fatal(err)
			}
			if after, err := store.List(t.Context(), "", "", 0); err != nil || !slices.EqualFunc(before, after, func(a, b objectstore.Info) bool { return a.Name == b.Name && a.Size == b.Size }) {
				t.Errorf("the store has %v, had %v: %v", after, before, err)
			}
			var given GivenUp
			got := map[uint64][]uint64{}
			for _, d := range found {
				if fault.KindOf(d.Err) != fault.Corruption || d.Object != objectName(7, d.Index) {
					t.Errorf("%+v", d)
				}
				got[d.Index] = slices.Sorted(maps.Keys(d.Lost))
				given = given.With(d.Index, got[d.Index])
			}
			if !maps.EqualFunc(got, c.lost, slices.Equal[[]uint64]) {
				t.Fatalf("found %v, not %v", got, c.lost)
			}
			replay := func(given GivenUp) (map[uint64][]uint64, error) {
				end, err := Seal(t.Context(), store, 7, from, given)
				if err != nil {
					return nil, err
				}
				seqs := map[uint64][]uint64{}
				return seqs, ReplaySealed(t.Context(), store, 7, from, end, given, nil, func(r Record) error {
					seqs[r.Tablet] = append(seqs[r.Tablet], r.FirstSeq)
					return nil
				})
			}
			_, err = replay(nil)
			if _, ok := errors.AsType[*DamagedError](err); ok != (len(c.lost) > 0) || !ok && err != nil {
				t.Errorf("without giving anything up: %v", err)
			}
			seqs, err := replay(given)
			if err != nil {
				t.Fatal(err)
			}
			for tablet := uint64(1); tablet <= 2; tablet++ {
				var want []uint64
				for i := uint64(1); i <= segments; i++ {
					if lost, ok := c.lost[i]; !ok || len(lost) > 0 && !slices.Contains(lost, tablet) {
						want = append(want, i)
					}
				}
				if !slices.Equal(seqs[tablet], want) {
					t.Errorf("tablet %d has %v, not %v", tablet, seqs[tablet], want)
				}
			}
			if found, err := FindDamage(t.Context(), store, 7, from, given); err != nil || len(found) > 0 {
				t.Errorf("found again: %v, %v", found, err)
			}
		})
	}
}

func TestGivenUpWith(t *testing.T) {
	var g GivenUp
	g = g.With(3, []uint64{5, 4}).With(3, []uint64{5, 9}).With(4, nil).With(4, []uint64{1})
	if !slices.Equal(g[3], []uint64{4, 5, 9}) || g.whole(3) || !g.has(3, 9) || g.has(3, 8) || !g.whole(4) || !g.has(4, 77) || g.Has(5) || g.With(3, nil)[3] != nil {
		t.Errorf("%v", g)
	}
}

// TestGivenUpInFile: of segments that share a file, as in a directory, those are
// lost whose bytes are damaged.
func TestGivenUpInFile(t *testing.T) {
	fs := vfs.NewMem()
	store, err := objectstore.OpenLocal(fs, "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const segments = 20
	w := createSegments(t, store, 7, SegmentOptions{})
	for i := uint64(1); i <= segments; i++ {
		mustWait(t, w, appendRecord(t, w, 1, i, 400, nil))
	}
	file := "store/" + objectName(7, 1)
	info, err := fs.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenReadWrite(file, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int64{info.Size() / 4, info.Size() / 2} {
		if _, err := f.WriteAt([]byte("damaged"), at); err != nil {
			t.Fatal(err)
		}
	}
	found, err := FindDamage(t.Context(), store, 7, Pos{Log: 7, Segment: 1}, nil)
	if err != nil || len(found) != 2 {
		t.Fatalf("found %v, %v", found, err)
	}
	// Sealing asks for no segment but the newest.
	end := mustSeal(t, store, 7, Pos{Log: 7, Segment: 1})
	if end.Segment != segments+1 {
		t.Errorf("sealed at %v", end)
	}
	if found, err = FindDamage(t.Context(), store, 7, Pos{Log: 7, Segment: 1}, nil); err != nil || len(found) != 2 {
		t.Fatalf("found %v, %v", found, err)
	}
	var given GivenUp
	for _, d := range found {
		given = given.With(d.Index, slices.Sorted(maps.Keys(d.Lost)))
	}
	var seqs []uint64
	if err := ReplaySealed(t.Context(), store, 7, Pos{Log: 7, Segment: 1}, end, given, nil, func(r Record) error {
		seqs = append(seqs, r.FirstSeq)
		return nil
	}); err != nil || len(seqs) != segments-2 {
		t.Errorf("replayed %v, %v", seqs, err)
	}
}
