package commitlog

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// salvageable returns a log of several segments, and its records.
func salvageable(t *testing.T) (*vfs.MemFS, []string) {
	t.Helper()
	fs := vfs.NewMem()
	var all []string
	for run := range 2 { // two writers
		l, err := Open(fs, "log", Options{SegmentBytes: minSegment})
		if err != nil {
			t.Fatal(err)
		}
		w, err := l.Start()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 60 {
			payload := fmt.Appendf(nil, "%d-%03d-%s", run, i, strings.Repeat("x", 3000))
			r, err := w.Reserve(t.Context(), len(payload))
			if err != nil {
				t.Fatal(err)
			}
			pos := w.Append(r, uint64(i%3), uint64(len(all)+1), oneRecord(payload), nil)
			if err := w.Wait(t.Context(), pos); err != nil {
				t.Fatal(err)
			}
			all = append(all, string(payload[:5]))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return fs, all
}

const minSegment = 64 << 10

type oneRecord []byte

func (r oneRecord) Records() int { return 1 }
func (r oneRecord) AppendRecord(dst []byte, _ int) ([]byte, int) {
	return append(dst, r...), 1
}

func salvaged(t *testing.T, fs vfs.FS, dir string) (records []string, gaps []Gap) {
	t.Helper()
	err := Salvage(fs, dir, func(r Record) error {
		records = append(records, string(r.Payload[:5]))
		return nil
	}, func(g Gap) { gaps = append(gaps, g) })
	if err != nil {
		t.Fatal(err)
	}
	return records, gaps
}

// replayed opens a log as a start does; it fails if the log is damaged.
func replayed(fs vfs.FS, dir string) (records []string, err error) {
	l, err := Open(fs, dir, Options{SegmentBytes: minSegment})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	err = l.Replay(Pos{}, func(r Record) error {
		records = append(records, string(r.Payload[:5]))
		return nil
	})
	return records, err
}

// TestSalvage: of a log that is damaged in any one place, everything else can be
// read, in order; Salvage sees a gap exactly if a start would refuse the log; and
// what Rewrite makes of it is a sound log with the same records.
func TestSalvage(t *testing.T) {
	healthy, all := salvageable(t)
	if got, gaps := salvaged(t, healthy, "log"); !slices.Equal(got, all) || len(gaps) > 0 {
		t.Fatalf("of a sound log %d of %d records, and %v", len(got), len(all), gaps)
	}
	names, err := healthy.List("log")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, segmentSuffix) })
	slices.Sort(names)
	if len(names) < 6 {
		t.Fatalf("only %v", names)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	damages := map[string]func(b []byte) []byte{
		"segment header": func(b []byte) []byte { b[20] ^= 1; return b },
		"frame header":   func(b []byte) []byte { b[segmentHeaderLen+20] ^= 1; return b },
		"payload":        func(b []byte) []byte { b[segmentHeaderLen+frameHeaderLen+500] ^= 1; return b },
		"somewhere":      func(b []byte) []byte { b[rng.IntN(len(b))] ^= 1 << rng.IntN(8); return b },
		"sector":         func(b []byte) []byte { clear(b[4096:4608]); return b },
		"all but header": func(b []byte) []byte { clear(b[segmentHeaderLen:]); return b },
		"all":            func(b []byte) []byte { clear(b); return b },
		"cut":            func(b []byte) []byte { return b[:rng.IntN(len(b))] },
		"missing":        nil,
	}
	refused := 0
	for i, name := range names {
		for what, damage := range damages {
			for range 5 {
				fs := vfs.NewMem()
				if _, err := vfs.Clone(healthy, fs, "log", "log"); err != nil {
					t.Fatal(err)
				}
				path := "log/" + name
				if damage == nil {
					if err := fs.Remove(path); err != nil {
						t.Fatal(err)
					}
				} else {
					write(t, fs, path, damage(readAll(t, fs, path)))
				}
				got, gaps := salvaged(t, fs, "log")
				// In order, nothing twice, and nothing that was not written.
				at := -1
				for _, r := range got {
					n := slices.Index(all, r)
					if n <= at {
						t.Fatalf("%s of %s: record %s after %d", what, name, r, at)
					}
					at = n
				}
				// One segment has some twenty records, and one sector is in two at most.
				least := len(all) - 25
				if what == "frame header" || what == "payload" || what == "segment header" || what == "sector" {
					least = len(all) - 2
				}
				if len(got) < least && i < len(names)-1 {
					t.Errorf("%s of %s: %d of %d records; %v", what, name, len(got), len(all), gaps)
				}
				_, err := replayed(copyLog(t, fs), "log")
				if (err != nil) != (len(gaps) > 0) {
					t.Errorf("%s of %s: a start says %v, salvage %v", what, name, err, gaps)
				}
				for _, g := range gaps {
					if err == nil || !strings.Contains(g.String(), ".log") || g.End != 0 && g.End <= g.Start {
						t.Errorf("%s of %s: %v", what, name, g)
					}
				}
				if err != nil {
					refused++
				}
				if err := Rewrite(fs, "log", "new"); err != nil {
					t.Fatal(err)
				}
				again, err := replayed(fs, "new")
				if err != nil || !slices.Equal(again, got) {
					t.Errorf("%s of %s: the new log has %d of %d records, %v", what, name, len(again), len(got), err)
				}
			}
		}
	}
	if refused < 100 {
		t.Errorf("only %d damages were refused", refused)
	}
}

// TestRewriteLast: records are put behind those of a log, and of one that is missing.
func TestRewriteLast(t *testing.T) {
	fs, all := salvageable(t)
	for dir, want := range map[string]int{"log": len(all), "nowhere": 0} {
		last := Record{Tablet: 7, FirstSeq: 1 << 60, N: 1, Payload: []byte(dir)}
		if err := Rewrite(fs, dir, "new "+dir, last, last); err != nil {
			t.Fatal(err)
		}
		l, err := Open(fs, "new "+dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var got []Record
		if err := l.Replay(Pos{}, func(r Record) error { got = append(got, r); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(got) != want+2 {
			t.Fatalf("%s: %d records, want %d and 2", dir, len(got), want)
		}
		for _, r := range got[want:] {
			if r.Tablet != last.Tablet || r.FirstSeq != last.FirstSeq || r.N != 1 || string(r.Payload) != dir {
				t.Errorf("%s: %+v", dir, r)
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func copyLog(t *testing.T, from vfs.FS) vfs.FS {
	t.Helper()
	to := vfs.NewMem()
	if _, err := vfs.Clone(from, to, "log", "log"); err != nil {
		t.Fatal(err)
	}
	return to
}

func readAll(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(bytes.Clone(b)); err != nil {
		t.Fatal(err)
	}
}
