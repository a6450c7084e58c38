package metadata

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/sstable"
)

func example() *Row {
	p := func(s string) []byte { return cell.AppendRow(nil, []byte(s)) }
	return &Row{
		Version: 7, Table: 3, Tablet: 4, Start: []byte("a\x00"), End: []byte("z\xff"), NextRun: 5, FlushedSeq: 90, MaxSeq: 100,
		Redo: commitlog.Pos{Segment: 3, Offset: 9}, MajorTime: 1700000000,
		Files: []FileRef{
			{Object: "c.sst", ID: 3, Run: 4, Info: sstable.Info{Lo: p("b"), Hi: p("c"), MinSeq: 50, MaxSeq: 90, Size: 10}, Cleared: 60, Instant: Instant{5, 6}},
			{Object: "a.sst", ID: 1, Run: 2, Info: sstable.Info{Lo: p("a\x00"), Hi: p("b"), MinSeq: 1, MaxSeq: 40, Size: 10}},
			{Object: "b.sst", ID: 2, Run: 2, Info: sstable.Info{Lo: p("c"), Hi: p("c\xff"), MinSeq: 2, MaxSeq: 41, Size: 10}},
		},
		RangeDel: []RangeTombstone{{Start: []byte("b"), Seq: 60}}, GroupMajors: map[uint16]int64{1: 5},
		Op: &Op{Kind: Split, At: []byte("m"), Left: 8, Right: 9},
	}
}

func TestMarshal(t *testing.T) {
	r := example()
	got, err := Unmarshal(r.Marshal())
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v, %v, want %+v", got, err, r)
	}
	b := r.Marshal()
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1 << (i % 8)
		if _, err := Unmarshal(bad); fault.KindOf(err) != fault.Corruption {
			t.Fatalf("flip at %d: %v", i, err)
		}
	}
	for i := range b {
		if _, err := Unmarshal(b[:i]); fault.KindOf(err) != fault.Corruption {
			t.Fatalf("cut to %d: %v", i, err)
		}
	}
}

func TestCheck(t *testing.T) {
	for name, change := range map[string]func(*Row){
		"run beyond the next":           func(r *Row) { r.NextRun = 4 },
		"sequence number of a file":     func(r *Row) { r.Files[0].MaxSeq = 101 },
		"inverted bounds":               func(r *Row) { r.Files[1].Lo, r.Files[1].Hi = r.Files[1].Hi, r.Files[1].Lo },
		"runs out of order":             func(r *Row) { r.Files[0], r.Files[1] = r.Files[1], r.Files[0] },
		"files out of order":            func(r *Row) { r.Files[1], r.Files[2] = r.Files[2], r.Files[1] },
		"files overlap":                 func(r *Row) { r.Files[1].Hi = r.Files[2].Lo },
		"groups out of order":           func(r *Row) { r.Files[1].Group = 1 },
		"two layouts in a run":          func(r *Row) { r.Files[1].Layout = 1 },
		"sequence number of a deletion": func(r *Row) { r.RangeDel[0].Seq = 101 },
		"flushed beyond the largest":    func(r *Row) { r.FlushedSeq = 101 },
	} {
		r := example()
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		change(r)
		if err := r.Check(); fault.KindOf(err) != fault.Corruption {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Unmarshal(r.Marshal()); fault.KindOf(err) != fault.Corruption {
			t.Errorf("%s: Unmarshal: %v", name, err)
		}
	}
}

// TestGroups: files of one run in several locality groups may overlap, and each
// group has its own last major compaction.
func TestGroups(t *testing.T) {
	r := example()
	r.Files[2].Group, r.Files[2].Layout = 1, 7
	r.Files[2].Lo, r.Files[2].Hi = r.Files[1].Lo, r.Files[1].Hi
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	want := slices.Clone(r.Files)
	r.Files[0], r.Files[2] = r.Files[2], r.Files[0]
	if SortFiles(r.Files); !reflect.DeepEqual(r.Files, want) {
		t.Errorf("sorted: %+v", r.Files)
	}
	r.SetMajor(2, 8)
	r.SetMajor(0, 9)
	if r.Major(0) != 9 || r.Major(1) != 5 || r.Major(2) != 8 || r.Major(3) != 9 {
		t.Errorf("majors %d %d %d %d", r.Major(0), r.Major(1), r.Major(2), r.Major(3))
	}
	// A row from before there were groups.
	old := []byte(`{"Version":7,"Table":3,"Tablet":4,"NextRun":3,"FlushedSeq":90,"MaxSeq":100,"Redo":{"Segment":3,"Offset":9},"MajorTime":17,` +
		`"Files":[{"Object":"a.sst","ID":1,"Run":2,"Group":0,"Instant":{},"Size":10,"Entries":1,"RawBytes":9,"MinSeq":1,"MaxSeq":40,"Lo":"YQAB","Hi":"YgAB","MinTS":0,"MaxTS":0}]}`)
	got, err := Unmarshal(append(binary.BigEndian.AppendUint32(nil, crc32.Checksum(old, castagnoli)), old...))
	if err != nil || len(got.Files) != 1 || got.Files[0].Group != 0 || got.Files[0].Layout != 0 || got.Major(0) != 17 || got.Major(5) != 17 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestClone(t *testing.T) {
	r := example()
	c := r.Clone()
	c.Files[0].Run++
	c.RangeDel[0].Seq++
	c.SetMajor(1, 9)
	if !reflect.DeepEqual(r, example()) {
		t.Error("a change of a clone shows in the original")
	}
}

// TestRoot: changes, incarnations, and what a crash at each step leaves.
func TestRoot(t *testing.T) {
	ctx := context.Background()
	fs := datadirtest.NewCrashableMem()
	var crashed []*datadirtest.CrashableMem
	wrapped := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{}))
		}
		return nil
	}))
	f, err := OpenRoot(wrapped, "", &Row{Tablet: 9})
	if err != nil {
		t.Fatal(err)
	}
	if f.Incarnation() != 1 || f.Row().Version != 1 || f.Row().Tablet != 9 {
		t.Fatalf("a new root: %d, %+v", f.Incarnation(), f.Row())
	}
	for i := range uint64(5) {
		r := f.Row()
		r.NextRun = i + 1
		if err := f.CAS(ctx, r); err != nil || r.Version != i+2 {
			t.Fatalf("CAS: %v, version %d", err, r.Version)
		}
		stale := f.Row()
		stale.Version--
		if err := f.CAS(ctx, stale); fault.KindOf(err) != fault.Fenced {
			t.Errorf("CAS with an old version: %v", err)
		}
	}
	f, err = OpenRoot(wrapped, "", nil)
	if err != nil || f.Incarnation() != 2 || f.Row().NextRun != 5 {
		t.Fatalf("reopened: %v", err)
	}
	last := uint64(0)
	for i, fs := range crashed {
		root, err := ReadRoot(fs, "")
		if errors.Is(err, fault.NotFound) && last == 0 {
			continue
		}
		if err != nil {
			t.Fatalf("crash at step %d: %v", i, err)
		}
		if root.Row.Version < last {
			t.Errorf("crash at step %d: version %d after %d", i, root.Row.Version, last)
		}
		// The copy is at most a change behind that nobody knows to have been made.
		c, err := ReadRootCopy(fs, "")
		if missing := errors.Is(err, fault.NotFound); missing && last > 1 || err != nil && !missing {
			t.Errorf("crash at step %d: the copy: %v", i, err)
		} else if err == nil && (c.Row.Version > root.Row.Version || c.Row.Version < last-1 || c.Incarnation > root.Incarnation) {
			t.Errorf("crash at step %d: the copy has version %d, ROOT %d", i, c.Row.Version, root.Row.Version)
		}
		last = root.Row.Version
	}
	if last != 6 {
		t.Errorf("the last crash left version %d", last)
	}
}

// TestRootFailures: an error of CAS says whether the row may have changed.
func TestRootFailures(t *testing.T) {
	ctx := context.Background()
	for fail := range 16 {
		mem := vfs.NewMem()
		n, armed := 0, false
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if armed && (op.Kind.ReadOrWrite() == errorfs.OpIsWrite || op.Kind == errorfs.OpOpenDir) {
				if n++; n == fail+1 {
					return syscall.ENOSPC
				}
			}
			return nil
		}))
		f, err := OpenRoot(fs, "", &Row{})
		if err != nil {
			t.Fatal(err)
		}
		armed = true
		r := f.Row()
		r.NextRun = 77
		err = f.CAS(ctx, r)
		armed = false
		root, rerr := ReadRoot(mem, "")
		if rerr != nil {
			t.Fatalf("failure %d: %v", fail, rerr)
		}
		changed := root.Row.NextRun == 77
		switch {
		case err == nil && !changed:
			t.Errorf("failure %d: not stored", fail)
		case err == nil:
			if c, err := ReadRootCopy(mem, ""); err == nil && c.Row.NextRun != 77 {
				t.Errorf("failure %d: an old copy is left, which would be believed", fail)
			} else if err != nil && !errors.Is(err, fault.NotFound) {
				t.Errorf("failure %d: %v", fail, err)
			}
		case errors.Is(err, ErrNotApplied) && changed:
			t.Errorf("failure %d: stored, in spite of %v", fail, err)
		case fault.KindOf(err) != fault.Exhausted:
			t.Errorf("failure %d: %v", fail, err)
		}
		if err != nil && (r.Version != 1 || f.Row().NextRun == 77) {
			t.Errorf("failure %d: the row in memory has changed", fail)
		}
		if err != nil && errors.Is(err, ErrNotApplied) {
			if err := f.CAS(ctx, r); err != nil {
				t.Errorf("failure %d: again: %v", fail, err)
			}
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add(example().Marshal()[4:])
	f.Add([]byte("{}"))
	f.Add([]byte(strings.Repeat("[", 100)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Unmarshal(b); err != nil && fault.KindOf(err) != fault.Corruption {
			t.Errorf("%v", err)
		}
		// With a checksum that fits.
		b = append(binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli)), b...)
		r, err := Unmarshal(b)
		if err != nil {
			if fault.KindOf(err) != fault.Corruption {
				t.Errorf("%v", err)
			}
			return
		}
		again, err := Unmarshal(r.Marshal())
		if err != nil || !bytes.Equal(again.Marshal(), r.Marshal()) {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}
