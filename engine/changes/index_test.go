package changes

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

// randomRefs returns n change files that can be.
func randomRefs(r *rand.Rand, n int) []Ref {
	var out []Ref
	for i := range n {
		lo := stamp.Least + cell.Seq(r.IntN(1<<40))
		f := Ref{ID: uint64(i+1) << 33, Lo: lo, Hi: lo + cell.Seq(r.IntN(1<<30)), Records: r.Uint64N(1e6), Bytes: r.Int64N(1e9)}
		f.Object = FileName(f.ID)
		if r.IntN(5) == 0 {
			f.Hi, f.At = f.Lo, f.Lo
		}
		if r.IntN(5) > 0 {
			f.Rows = bound([]byte{byte(r.IntN(100))}, bytes.Repeat([]byte{byte(100 + r.IntN(156))}, r.IntN(50)))
		}
		if f.Rows.Empty() {
			f.Rows = row.All
		}
		out = append(out, f)
	}
	slices.SortFunc(out, CompareRefs)
	return out
}

func writeIndex(t testing.TB, files []Ref) (*memory, IndexRef) {
	t.Helper()
	m := &memory{}
	ref, err := WriteIndex(m, files)
	if err != nil || !m.done || ref.Size != int64(len(m.b)) {
		t.Fatal(ref, err)
	}
	return m, ref
}

// TestIndex: an index object has the files that it was written of, and knows their bounds.
func TestIndex(t *testing.T) {
	for _, n := range []int{1, 2, 48, 1024} {
		files := randomRefs(rand.New(rand.NewPCG(uint64(n), 1)), n)
		m, ref := writeIndex(t, files)
		m.opened = 1
		got, err := ReadIndex(context.Background(), m, "x")
		if err != nil || !slices.EqualFunc(got, files, func(a, b Ref) bool { return a.Equal(&b) }) || m.opened != 0 {
			t.Fatalf("%d files: %d, %v", n, len(got), err)
		}
		if err := ref.Verify(got); err != nil {
			t.Error(err)
		}
		ref.Object = IndexName(1)
		if err := CheckIndexes([]IndexRef{ref}); err != nil {
			t.Error(err)
		}
		var size int64
		for i := range files {
			f := &files[i]
			if size += f.Bytes; f.Lo < ref.Lo || f.Hi > ref.Hi || !within(f.Rows, ref.Rows) {
				t.Errorf("%+v is not in %+v", f, ref)
			}
		}
		if ref.Files != n || ref.Bytes != size {
			t.Errorf("%+v of %d files of %d bytes", ref, n, size)
		}
		var text strings.Builder
		if err := DumpIndex(context.Background(), &text, m, "x"); err != nil || strings.Count(text.String(), "\n") != n+1 || !strings.Contains(text.String(), files[n-1].Object+" ") {
			t.Errorf("%v: %s", err, text.String())
		}
		other := slices.Clone(files)
		other[n/2].Bytes++
		if err := ref.Verify(other); fault.KindOf(err) != fault.Corruption {
			t.Errorf("other files: %v", err)
		}
		if f, b := ref.Kept(ref.Lo - 1); f != n || b != size {
			t.Errorf("all are kept: %d of %d bytes", f, b)
		}
		if f, b := ref.Kept(ref.Hi); f != 0 || b != 0 {
			t.Errorf("none is kept: %d of %d bytes", f, b)
		}
		if f, b := ref.Kept(ref.Lo + (ref.Hi-ref.Lo)/2); f < n/2 || f > n/2+1 || b < size/2 || b > size/2+size/100+1 {
			t.Errorf("a half is kept: %d of %d bytes", f, b)
		}
	}
	if _, err := WriteIndex(&memory{fail: fault.New(fault.Exhausted, "full")}, randomRefs(rand.New(rand.NewPCG(1, 1)), 3)); fault.KindOf(err) != fault.Exhausted {
		t.Error(err)
	}
	for _, bad := range []IndexRef{{}, {Object: "a", Lo: 2, Hi: 1, Files: 1, Size: 1}, {Object: "a", Lo: 1, Hi: 2, Size: 1}, {Object: "a", Lo: 1, Hi: 2, Files: 1}} {
		if err := CheckIndexes([]IndexRef{bad}); fault.KindOf(err) != fault.Corruption {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// within tells whether all rows of a are in b.
func within(a, b row.Range) bool {
	return bytes.Compare(a.Start, b.Start) >= 0 && (len(b.End) == 0 || len(a.End) > 0 && bytes.Compare(a.End, b.End) <= 0)
}

// TestIndexDamage flips every bit of an index object and cuts it everywhere: there is an error.
func TestIndexDamage(t *testing.T) {
	files := randomRefs(rand.New(rand.NewPCG(1, 1)), 5)
	m, _ := writeIndex(t, files)
	good := m.b
	for i := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			if got, err := ReadIndex(context.Background(), &memory{b: b}, "x"); fault.KindOf(err) != fault.Corruption || got != nil {
				t.Fatalf("bit %d of byte %d changed: %v", bit, i, err)
			}
		}
		if _, err := ReadIndex(context.Background(), &memory{b: good[:i]}, "x"); fault.KindOf(err) != fault.Corruption {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
	for name, b := range map[string][]byte{
		"out of order": indexBytes(t, []Ref{files[1], files[0]}),
		"twice":        indexBytes(t, []Ref{files[0], files[0]}),
		"inverted":     indexBytes(t, []Ref{{ID: 1, Lo: 5, Hi: 4}}),
		"too large":    make([]byte, maxIndexBytes+1),
		"too many":     append(binary.LittleEndian.AppendUint32(appendFrame(nil, binary.AppendUvarint(nil, MaxIndexFiles+1)), indexVersion), indexMagic...),
	} {
		if _, err := ReadIndex(context.Background(), &memory{b: b}, "x"); fault.KindOf(err) != fault.Corruption {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFullIndex: as many change files as an index object takes can be read, however long their
// names and keys, and of more it is not written.
func TestFullIndex(t *testing.T) {
	files := make([]Ref, MaxIndexFiles+1)
	rnd := rand.New(rand.NewPCG(1, 2))
	key := func(first byte) []byte {
		k := []byte{first}
		for range 2 * maxBound {
			k = append(k, byte(rnd.IntN(255)))
		}
		return k
	}
	for i := range files {
		id := uint64(1)<<63 + uint64(i)
		lo := cell.Seq(1) << 40 * cell.Seq(i+1)
		files[i] = Ref{Object: FileName(id), ID: id, Lo: lo, Hi: cell.MaxSeq - 1, Records: 1 << 63, Bytes: 1 << 62,
			Rows: bound(key(1), key(2))}
	}
	m := &memory{}
	if _, err := WriteIndex(m, files); fault.KindOf(err) != fault.Internal || m.done || len(m.b) > 0 {
		t.Errorf("%d bytes of too many files: %v", len(m.b), err)
	}
	files = files[:MaxIndexFiles]
	m, ref := writeIndex(t, files)
	got, err := ReadIndex(context.Background(), m, "x")
	if err == nil {
		err = ref.Verify(got)
	}
	if err != nil || ref.Size < 1<<20 {
		t.Errorf("of %d bytes: %v", ref.Size, err)
	}
}

func indexBytes(t *testing.T, files []Ref) []byte {
	m, _ := writeIndex(t, files)
	return m.b
}

// TestRows: a file's range has all its rows, with short keys.
func TestRows(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 100)
	for _, c := range []struct{ first, last, start, end string }{
		{"a", "b", "a", "b\x00"},
		{"", "", "", "\x00"},
		{string(long), string(long), string(long[:32]), string(long[:31]) + "y"},
		{"a", string(bytes.Repeat([]byte{255}, 40)), "a", ""},
	} {
		r := bound([]byte(c.first), []byte(c.last))
		if string(r.Start) != c.start || string(r.End) != c.end || !r.Contains([]byte(c.first)) || !r.Contains([]byte(c.last)) {
			t.Errorf("%q to %q: %q", c.first, c.last, r)
		}
	}
	recs := randomRecords(rand.New(rand.NewPCG(1, 1)), 3000, stamp.Least, "r", 1000)
	m := &memory{}
	w := NewFileWriter(m)
	for i := range recs {
		if err := w.Add(&recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	f, err := Open(context.Background(), m, "f")
	if err != nil || len(f.chunks) < 2 {
		t.Fatal(f, err)
	}
	is := w.Rows()
	if of := f.Rows(); !bytes.Equal(is.Start, of.Start) || !bytes.Equal(is.End, of.End) {
		t.Errorf("the writer says %q, the file %q", is, of)
	}
	first, last := recs[0].Key, recs[0].Key
	for i := range recs {
		first, last = slices.MinFunc([][]byte{first, recs[i].Key}, bytes.Compare), slices.MaxFunc([][]byte{last, recs[i].Key}, bytes.Compare)
	}
	if want := bound(first, last); !bytes.Equal(is.Start, want.Start) || !bytes.Equal(is.End, want.End) {
		t.Errorf("rows %q, want %q", is, want)
	}
}

// FuzzIndex gives the decoder objects, and content whose checksum is right. What it takes, it
// takes again as it writes it.
func FuzzIndex(f *testing.F) {
	m, _ := writeIndex(f, randomRefs(rand.New(rand.NewPCG(1, 1)), 5))
	content, _, err := openFrame(nil, m.b[:len(m.b)-indexFooterLen])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.b, content)
	f.Add([]byte(indexMagic), []byte{1, 5, 1, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, object, content []byte) {
		_, _ = ReadIndex(context.Background(), &memory{b: object}, "x")
		files, err := parseIndex(content)
		if err != nil || len(files) == 0 {
			return
		}
		m, ref := writeIndex(t, files)
		again, err := ReadIndex(context.Background(), m, "x")
		if err != nil || !slices.EqualFunc(again, files, func(a, b Ref) bool { return a.Equal(&b) }) || ref.Verify(again) != nil {
			t.Fatalf("%d files became %d: %v", len(files), len(again), err)
		}
	})
}
