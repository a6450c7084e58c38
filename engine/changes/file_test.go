package changes

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

// memory is a file in memory.
type memory struct {
	b      []byte
	done   bool
	opened int
	fail   error
}

func (m *memory) Write(p []byte) error {
	if m.fail != nil {
		return m.fail
	}
	m.b = append(m.b, p...)
	clear(p)
	return nil
}
func (m *memory) Finish() error { m.done = true; return nil }
func (m *memory) Abort()        {}
func (m *memory) Size() int64   { return int64(len(m.b)) }
func (m *memory) Close() error  { m.opened--; return nil }
func (m *memory) ReadAt(_ context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > int64(len(m.b)) {
		return errors.New("beyond the end")
	}
	copy(p, m.b[off:])
	return nil
}

func (m *memory) source(t testing.TB) Source {
	t.Helper()
	open := func(ctx context.Context) (*File, error) {
		m.opened++
		return Open(ctx, m, "f")
	}
	f, err := open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return Source{Lo: f.Info().Lo, Hi: f.Info().Hi, Open: open}
}

// write returns a file of records.
func write(t testing.TB, recs []Record) *memory {
	t.Helper()
	m := &memory{}
	w := NewFileWriter(m)
	for i := range recs {
		if err := w.Add(&recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	info, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if !m.done || info.Bytes != int64(len(m.b)) || info.Records != uint64(len(recs)) {
		t.Fatalf("%+v of a file of %d bytes", info, len(m.b))
	}
	f, err := Open(context.Background(), m, "f")
	if err != nil {
		t.Fatal(err)
	}
	if f.Info() != info {
		t.Fatalf("wrote %+v, and the file says %+v", info, f.Info())
	}
	if err := f.Verify(context.Background()); err != nil {
		t.Fatal(err)
	}
	return m
}

// changes returns n records of few rows with stamps that grow from first on.
func randomRecords(r *rand.Rand, n int, first cell.Seq, rows string, value int) []Record {
	var out []Record
	at := first
	for range n {
		rec := Record{Stamp: at, Key: fmt.Appendf(nil, "%s%04d", rows, r.IntN(n/3+1)), Collected: r.IntN(5) == 0}
		for range r.IntN(4) {
			c := Change{Op: Op(1 + r.IntN(int(MergeToCell)))}
			if c.Op != DeleteRow {
				c.Family = cell.FamilyID(r.IntN(1 << 16))
			}
			if c.Op != DeleteRow && c.Op != DeleteFamily {
				c.Qualifier = make([]byte, r.IntN(5))
			}
			switch c.Op {
			case SetCell, AddToCell, MergeToCell:
				c.Timestamp, c.Value = r.Int64()-math.MaxInt64/2, bytes.Repeat([]byte{byte(r.Int())}, r.IntN(value))
			case DeleteColumn:
				c.Times = cell.TimeRange{Start: r.Int64N(1000), End: r.Int64N(1000)}
			}
			rec.Changes = append(rec.Changes, c)
		}
		out = append(out, rec)
		at += cell.Seq(1+r.IntN(100)) * stamp.Stride
	}
	return out
}

func clone(r *Record) Record {
	out := Record{Stamp: r.Stamp, Key: bytes.Clone(r.Key), Collected: r.Collected}
	for _, c := range r.Changes {
		c.Qualifier, c.Value = bytes.Clone(c.Qualifier), bytes.Clone(c.Value)
		out.Changes = append(out.Changes, c)
	}
	return out
}

func show(r *Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %q %v", r.Stamp, r.Key, r.Collected)
	for i := range r.Changes {
		c := &r.Changes[i]
		fmt.Fprintf(&b, " %d %d %q %d %q %v", c.Op, c.Family, c.Qualifier, c.Timestamp, c.Value, c.Times)
	}
	return b.String()
}

// expect compares what was read with those of recs that are in within, and the order of
// each row.
func expect(t *testing.T, got, recs []Record, after, through cell.Seq, within row.Range) {
	t.Helper()
	var want, have []string
	for i := range recs {
		if r := &recs[i]; r.Stamp > after && r.Stamp <= through && within.Contains(r.Key) {
			want = append(want, show(r))
		}
	}
	last := map[string]cell.Seq{}
	for i := range got {
		r := &got[i]
		have = append(have, show(r))
		if s, ok := last[string(r.Key)]; ok && s >= r.Stamp {
			t.Fatalf("row %q: %d comes after %d", r.Key, r.Stamp, s)
		}
		last[string(r.Key)] = r.Stamp
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		t.Fatalf("%d records were read of %d", len(have), len(want))
	}
}

// TestIterate reads files, some of which overlap, in pieces of any length, each from where the
// last ended.
func TestIterate(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 1))
		var all []Record
		var files []*memory
		for i, rows := range []string{"a", "a", "b", "c", "a"} {
			first := stamp.Least + cell.Seq(r.IntN(1<<16))*stamp.Stride
			if rows == "a" {
				first = stamp.Least + cell.Seq(i<<30)*stamp.Stride // files of one tablet do not overlap
			}
			recs := randomRecords(r, 1+r.IntN(2000), first, rows, 1+r.IntN(3000))
			all = append(all, recs...)
			files = append(files, write(t, recs))
		}
		var sources []Source
		for _, f := range files {
			sources = append(sources, f.source(t))
		}
		within := row.Range{}
		if r.IntN(2) == 0 {
			within.Start = []byte("a0100")
		}
		if r.IntN(2) == 0 {
			within.End = []byte("b0050")
		}
		after := Position{}
		if r.IntN(3) == 0 {
			after.Through = all[r.IntN(len(all))].Stamp
		}
		begin, through := after.Through, cell.MaxSeq
		if r.IntN(3) == 0 {
			through = all[r.IntN(len(all))].Stamp
		}
		var got []Record
		for after.ChunkEnd != 0 || after.Through < through {
			n := 1 + r.IntN(2)*r.IntN(len(all)) + len(all)/40
			var mark cell.Seq
			next, err := Iterate(ctx, sources, after, through, within, func(rec *Record) (bool, error) {
				if rec.Stamp <= rec.Watermark() && rec.ChunkEnd != 0 || rec.Watermark() < mark {
					t.Fatalf("watermark %d at a record of %d, after %d", rec.Watermark(), rec.Stamp, mark)
				}
				mark = rec.Watermark()
				got = append(got, clone(rec))
				n--
				return n > 0, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			after = next
		}
		expect(t, got, all, begin, through, within)
		for _, f := range files {
			if f.opened > 0 {
				t.Fatalf("a file is open %d times", f.opened)
			}
		}
	}
}

// TestSplitPosition goes on at a position of a tablet in both tablets that it was split
// into.
func TestSplitPosition(t *testing.T) {
	ctx := context.Background()
	recs := randomRecords(rand.New(rand.NewPCG(1, 1)), 3000, stamp.Least, "r", 300)
	sources := []Source{write(t, recs).source(t)}
	for n := 1; n < len(recs); n += 97 {
		var got []Record
		left := n
		at, err := Iterate(ctx, sources, Position{}, cell.MaxSeq, row.Range{}, func(r *Record) (bool, error) {
			got = append(got, clone(r))
			left--
			return left > 0, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, within := range []row.Range{{End: []byte("r0500")}, {Start: []byte("r0500")}} {
			if _, err := Iterate(ctx, sources, at, cell.MaxSeq, within, func(r *Record) (bool, error) {
				got = append(got, clone(r))
				return true, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, got, recs, 0, cell.MaxSeq, row.Range{})
	}
}

// TestStamped reads a file of which the stamp was found out later.
func TestStamped(t *testing.T) {
	var recs []Record
	for i := range 40000 {
		recs = append(recs, Record{Stamp: 1, Key: fmt.Appendf(nil, "%06d", i), Collected: true, Changes: []Change{{Op: DeleteColumn, Family: 1, Qualifier: []byte("quite a long qualifier"), Times: cell.TimeRange{Start: int64(i), End: int64(i + 1)}}}})
	}
	m := write(t, recs)
	s := (&Ref{Object: "o", Lo: 77, Hi: 77, At: 77}).Source(func(ctx context.Context) (*File, error) { return Open(ctx, m, "f") })
	n, at := 0, Position{}
	for at.Through < 77 {
		var err error
		at, err = Iterate(context.Background(), []Source{s}, at, 100, row.Range{}, func(r *Record) (bool, error) {
			if r.Stamp != 77 || string(r.Key) != fmt.Sprintf("%06d", n) {
				t.Fatalf("record %d is %s", n, show(r))
			}
			n++
			return n%1000 != 0, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n != len(recs) {
		t.Fatalf("read %d", n)
	}
}

func TestLargeRecord(t *testing.T) {
	big := make([]byte, 5<<20)
	rand.NewChaCha8([32]byte{}).Read(big)
	recs := []Record{
		{Stamp: 1, Key: []byte("b"), Changes: []Change{{Op: SetCell, Value: []byte("small")}}},
		{Stamp: 2, Key: []byte("a"), Changes: []Change{{Op: SetCell, Value: big}}},
		{Stamp: 3, Key: []byte("b"), Changes: []Change{{Op: DeleteRow}}},
	}
	var got []Record
	at, err := Iterate(context.Background(), []Source{write(t, recs).source(t)}, Position{}, 9, row.Range{}, func(r *Record) (bool, error) {
		got = append(got, clone(r))
		return true, nil
	})
	if err != nil || at.Through != 9 || at.ChunkEnd != 0 {
		t.Fatal(at, err)
	}
	expect(t, got, recs, 0, 9, row.Range{})
}

// TestDamage flips every bit of a file and cuts it everywhere: what is read is right, or
// there is an error.
func TestDamage(t *testing.T) {
	ctx := context.Background()
	recs := randomRecords(rand.New(rand.NewPCG(1, 1)), 40, stamp.Least, "r", 40)
	good := write(t, recs).b
	read := func(b []byte) error {
		m := &memory{b: b}
		f, err := Open(ctx, m, "f")
		if err != nil {
			return err
		}
		return f.Verify(ctx)
	}
	if err := read(good); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1 << (i % 8)
		if err := read(b); fault.KindOf(err) != fault.Corruption {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		if err := read(good[:i]); err == nil {
			t.Fatalf("cut to %d bytes: nothing is wrong", i)
		}
	}
}

func TestWriteErrors(t *testing.T) {
	m := &memory{fail: fault.New(fault.Exhausted, "full")}
	w := NewFileWriter(m)
	if err := w.Add(&Record{Stamp: 5, Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Finish(); fault.KindOf(err) != fault.Exhausted {
		t.Fatal(err)
	}
	w = NewFileWriter(&memory{})
	_ = w.Add(&Record{Stamp: 5, Key: []byte("a")})
	if err := w.Add(&Record{Stamp: 4, Key: []byte("a")}); fault.KindOf(err) != fault.Internal {
		t.Fatal(err)
	}
	if w, empty := NewFileWriter(&memory{}), (Info{}); true {
		info, err := w.Finish()
		if info.Bytes = 0; err != nil || info != empty {
			t.Fatal(info, err)
		}
	}
}

func TestRefs(t *testing.T) {
	if err := Check([]Ref{{Object: "a", ID: 1, Lo: 100, Hi: 150, Records: 1, Bytes: 10}, {Object: "b", Lo: 2, Hi: 2, At: 2}}); err != nil {
		t.Error(err)
	}
	for _, bad := range []Ref{{}, {Object: "a", Lo: 2, Hi: 1}, {Object: "a", Lo: 1, Hi: 2, Bytes: -1}, {Object: "a", Lo: 1, Hi: 2, At: 1}} {
		if err := Check([]Ref{bad}); fault.KindOf(err) != fault.Corruption {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestVersions: programs that know version 1 alone read the files whose records all have
// changes, and refuse the others.
func TestVersions(t *testing.T) {
	set := []Change{{Op: SetCell, Family: 1, Qualifier: []byte("q"), Timestamp: 1, Value: []byte("v")}}
	recs := []Record{{Stamp: 10, Key: []byte("a"), Changes: set}, {Stamp: 20, Key: []byte("b")}, {Stamp: 30, Key: []byte("c"), Changes: set}}
	for n, want := range []uint32{version, version, rowsVersion, rowsVersion} {
		m := write(t, recs[:n])
		at := len(m.b) - footerLen + 12
		if is := binary.LittleEndian.Uint32(m.b[at:]); is != want {
			t.Errorf("a file of %d records has version %d, not %d", n, is, want)
		}
		var out bytes.Buffer
		if err := Dump(t.Context(), &out, m, "f"); err != nil || strings.Count(out.String(), ", for views\n") != max(0, min(n-1, 1)) {
			t.Errorf("%d records: %v\n%s", n, err, out.String())
		}
		binary.LittleEndian.PutUint32(m.b[at:], rowsVersion+1)
		if _, err := Open(t.Context(), m, "f"); fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), "has version 3") {
			t.Errorf("a later version: %v", err)
		}
	}
}

func FuzzFile(f *testing.F) {
	recs := randomRecords(rand.New(rand.NewPCG(1, 1)), 40, stamp.Least, "r", 40)
	f.Add(write(f, recs).b)
	f.Add(write(f, nil).b)
	for i := range recs {
		recs[i].Changes = nil
	}
	f.Add(write(f, recs).b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &memory{b: b}
		c, err := Open(context.Background(), m, "f")
		if err != nil {
			return
		}
		_ = c.Verify(context.Background())
		src := Source{Lo: c.Info().Lo, Hi: c.Info().Hi, Open: func(ctx context.Context) (*File, error) { return Open(ctx, m, "f") }}
		_, _ = Iterate(context.Background(), []Source{src}, Position{}, cell.MaxSeq, row.Range{Start: []byte("r0003")}, func(*Record) (bool, error) { return true, nil })
	})
}

// FuzzBlock gives the decoders content whose checksums are right.
func FuzzBlock(f *testing.F) {
	f.Add([]byte("\x00\x01a\x00\x01\x00"), []byte("\x01a\x0b"), uint64(1))
	f.Fuzz(func(t *testing.T, block, index []byte, lo uint64) {
		b := appendFrame(nil, block)
		blocks := len(b)
		b = appendFrame(b, index)
		dir := binary.AppendUvarint(nil, 1)
		dir = binary.AppendUvarint(dir, uint64(len(block)))
		dir = binary.AppendUvarint(dir, 1)
		dir = binary.AppendUvarint(dir, uint64(blocks))
		dir = binary.AppendUvarint(dir, uint64(len(b)-blocks))
		dir = binary.AppendUvarint(dir, 1)
		dir = binary.AppendUvarint(binary.AppendUvarint(dir, lo), 1000)
		dir = appendBytes(appendBytes(dir, nil), bytes.Repeat([]byte{0xff}, 20))
		c := &File{f: &memory{b: b}, name: "f"}
		if c.parse(dir, int64(len(b))) == nil {
			_ = c.Verify(context.Background())
		}
		_ = (&File{}).parse(block, int64(lo))
	})
}
