package commitlog

import (
	"testing"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
)

// TestTogether: what one Append adds is in one frame of a file, or in one segment of a store,
// however much it is. So a crash leaves it as a whole or not at all.
func TestTogether(t *testing.T) {
	batch := func(tablet uint64) []rec {
		recs := make([]rec, 200)
		for i := range recs {
			recs[i] = rec{tablet: tablet, seq: uint64(i + 1), size: 300}
		}
		return recs
	}
	t.Run("file", func(t *testing.T) {
		fs := datadirtest.NewCrashableMem()
		w := start(t, open(t, fs, "log", small())) // segments of which a batch fills several
		var all []rec
		for tablet := range uint64(8) {
			appendRecord(t, w, 100, tablet+1, 5000, nil)
			recs := batch(tablet)
			appendTogether(t, w, recs)
			all = append(all, recs...)
		}
		mustWait(t, w, all[len(all)-1].pos)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		type place struct {
			file string
			at   int
		}
		frames := map[uint64]map[place]int{}
		for name, b := range segmentsOf(t, fs) {
			number, _ := parseSegmentName(name)
			for off := segmentHeaderLen; ; {
				f, ok := parseFrameHeader(window{data: b}, number, off)
				if !ok {
					break
				}
				f.payload = b[off+frameHeaderLen : f.end()]
				if err := f.eachRecord(number, func(r Record) error {
					if frames[r.Tablet] == nil {
						frames[r.Tablet] = map[place]int{}
					}
					frames[r.Tablet][place{name, off}]++
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				off = int(f.end())
			}
		}
		for tablet := range uint64(8) {
			if len(frames[tablet]) != 1 {
				t.Errorf("the records of one Append are in %d frames: %v", len(frames[tablet]), frames[tablet])
			}
			for _, n := range frames[tablet] {
				if n != 200 {
					t.Errorf("a frame has %d of 200 records", n)
				}
			}
		}
	})
	t.Run("store", func(t *testing.T) {
		store := memStore(t)
		w := createSegments(t, store, 7, SegmentOptions{SegmentBytes: 5000})
		var last Pos
		for tablet := range uint64(8) {
			appendRecord(t, w, 100, tablet+1, 3000, nil)
			recs := batch(tablet)
			appendTogether(t, w, recs)
			last = recs[0].pos
		}
		mustWait(t, w, last)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		end := mustSeal(t, store, 7, Pos{})
		got, err := replaySealed(t, store, 7, Pos{}, end, nil)
		if err != nil {
			t.Fatal(err)
		}
		for tablet := range uint64(8) {
			segments := map[uint64]int{}
			for _, r := range got[tablet] {
				segments[r.pos.Segment]++
			}
			if len(segments) != 1 || len(got[tablet]) != 200 {
				t.Errorf("the %d records of one Append are in %d segments", len(got[tablet]), len(segments))
			}
		}
	})
}
