package sstable

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/cell"
)

// memFile is a file in memory, written once and then read.
type memFile struct {
	data     []byte
	finished bool
	aborted  bool
	fail     error
	failAt   int // length from which Write fails
	reads    atomic.Int64
	bytes    atomic.Int64
	closed   atomic.Int64
}

func (m *memFile) Write(p []byte) error {
	if m.fail != nil && len(m.data)+len(p) > m.failAt {
		return m.fail
	}
	m.data = append(m.data, p...)
	for i := range p {
		p[i] = 0xEE // allowed by Writable
	}
	return nil
}
func (m *memFile) Finish() error { m.finished = true; return m.fail }
func (m *memFile) Abort()        { m.aborted = true }
func (m *memFile) ReadAt(ctx context.Context, p []byte, off int64) error {
	m.reads.Add(1)
	m.bytes.Add(int64(len(p)))
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.fail != nil {
		return m.fail
	}
	if off+int64(len(p)) > int64(len(m.data)) {
		return io.ErrUnexpectedEOF
	}
	copy(p, m.data[off:])
	return nil
}
func (m *memFile) Size() int64  { return int64(len(m.data)) }
func (m *memFile) Close() error { m.closed.Add(1); return nil }

func write(t testing.TB, o Options, es []cell.Entry) (*memFile, Info) {
	t.Helper()
	f := new(memFile)
	w, err := NewWriter(f, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range es {
		if err := w.Add(&es[i]); err != nil {
			t.Fatal(err)
		}
	}
	info, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if !f.finished || f.aborted {
		t.Fatal("file is not finished")
	}
	return f, info
}

func open(t testing.TB, c *Cache, f *memFile) *Reader {
	t.Helper()
	r, err := Open(t.Context(), c, f, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func newCache(t testing.TB) *Cache {
	c := NewCache(64<<20, 0)
	t.Cleanup(c.Close)
	return c
}

func equal(a, b *cell.Entry) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && a.Seq == b.Seq && a.Kind == b.Kind
}

func cellKey(row string, f cell.FamilyID, q string, ts int64) []byte {
	return cell.AppendCell(cell.AppendRow(nil, []byte(row)), f, []byte(q), ts)
}

// genBytes favours the bytes that the encoding of keys treats apart.
func genBytes(lo, hi int) *rapid.Generator[[]byte] {
	return rapid.SliceOfN(rapid.SampledFrom([]byte{0x00, 0x01, 0x02, 'a', 'b', 0xFE, 0xFF}), lo, hi)
}

// genEntries makes entries of few rows in cell.Compare order: markers, many
// versions, several sequence numbers per key.
func genEntries(t *rapid.T) []cell.Entry {
	rows := rapid.SliceOfN(genBytes(1, 5), 1, 8).Draw(t, "rows")
	if rapid.Bool().Draw(t, "plain") {
		for i := range rows {
			rows[i] = bytes.ReplaceAll(rows[i], []byte{0}, []byte{'c'})
		}
	}
	n := rapid.IntRange(1, 200).Draw(t, "n")
	var es []cell.Entry
	for range n {
		key := cell.AppendRow(nil, rapid.SampledFrom(rows).Draw(t, "row"))
		e := cell.Entry{Seq: cell.Seq(rapid.IntRange(1, 1000).Draw(t, "seq")), Kind: cell.Set}
		f := cell.FamilyID(rapid.IntRange(1, 3).Draw(t, "family"))
		q := genBytes(0, 3).Draw(t, "qualifier")
		switch rapid.IntRange(0, 9).Draw(t, "shape") {
		case 0:
		case 1:
			key = cell.AppendFamily(key, f)
		case 2:
			key = cell.AppendColumn(key, f, q)
			e.Value = cell.AppendRanges(nil, cell.AllTime)
		default:
			ts := rapid.SampledFrom([]int64{0, 1, 2, 3, 1000, 2000, math.MaxInt64 - 1, math.MaxInt64}).Draw(t, "ts")
			key = cell.AppendCell(key, f, q, ts)
			if rapid.IntRange(0, 5).Draw(t, "delete") == 0 {
				e.Kind = cell.Delete
			} else {
				e.Value = rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "value")
			}
		}
		e.Key = key
		es = append(es, e)
	}
	sort.Slice(es, func(i, j int) bool { return cell.Compare(&es[i], &es[j]) < 0 })
	return slices.CompactFunc(es, func(a, b cell.Entry) bool { return cell.Compare(&a, &b) == 0 })
}

func genOptions(t *rapid.T) Options {
	return Options{
		BlockBytes:      rapid.SampledFrom([]int{1, 64, 200, 4096, 0}).Draw(t, "block"),
		Compression:     Compression(rapid.IntRange(0, 3).Draw(t, "compression")),
		BloomBitsPerKey: rapid.SampledFrom([]int{-1, 0, 4}).Draw(t, "bloom"),
		FilterColumns:   rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "columns"),
		indexBytes:      rapid.SampledFrom([]int{0, 1, 100}).Draw(t, "index"),
	}
}

// visible is what an iterator with maxSeq shows of es.
func visible(es []cell.Entry, maxSeq cell.Seq) []cell.Entry {
	var out []cell.Entry
	for _, e := range es {
		if maxSeq == 0 || e.Seq <= maxSeq {
			out = append(out, e)
		}
	}
	return out
}

// checkPlain checks what an entry says of its row prefix.
func checkPlain(t *rapid.T, e *cell.Entry) {
	if n, plain := cell.EscapedPart(e.Key); e.PlainRow != 0 && (!plain || int(e.PlainRow) != n) {
		t.Fatalf("%x has a plain row prefix of %d bytes", e.Key, e.PlainRow)
	}
}

// checkSome is checkForward of an iterator with a range of times, which leaves out
// nothing that is in it, and no tombstones.
func checkSome(t *rapid.T, it cell.Iterator, got bool, want []cell.Entry, times cell.TimeRange) {
	for i := range want {
		e := &want[i]
		if got && equal(it.Entry(), e) {
			got = it.Next()
			continue
		}
		s, err := cell.ParseSuffix(e.Key[cell.RowPrefixLen(e.Key):])
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != cell.Set || s.Shape != cell.Cell || times.Contains(s.Timestamp) {
			t.Fatalf("%s#%d is missing: %v", appendKey(nil, e.Key), e.Seq, it.Error())
		}
	}
	if got {
		t.Fatalf("%s#%d is out of order", appendKey(nil, it.Entry().Key), it.Entry().Seq)
	}
	if err := it.Error(); err != nil {
		t.Fatal(err)
	}
}

// checkForward compares the iterator, which a positioning call has just left
// at got, with want from there on.
func checkForward(t *rapid.T, it cell.Iterator, got bool, want []cell.Entry) {
	for i := range want {
		if !got {
			t.Fatalf("entry %d of %d is missing: %v", i, len(want), it.Error())
		}
		if !equal(it.Entry(), &want[i]) {
			t.Fatalf("entry %d is %s#%d, want %s#%d", i, appendKey(nil, it.Entry().Key), it.Entry().Seq, appendKey(nil, want[i].Key), want[i].Seq)
		}
		checkPlain(t, it.Entry())
		got = it.Next()
	}
	if got {
		t.Fatalf("%s#%d beyond the end", appendKey(nil, it.Entry().Key), it.Entry().Seq)
	}
	if err := it.Error(); err != nil {
		t.Fatal(err)
	}
}

func TestModel(t *testing.T) {
	ample, full := newCache(t), newCache(t)
	defer full.Reserve(64 << 20)()
	rapid.Check(t, func(rt *rapid.T) {
		es := genEntries(rt)
		// In a full cache iterators change, at some block, to leaving it alone.
		c, o := ample, IterOptions{}
		if fill := rapid.SampledFrom([]uint64{math.MaxUint64, 0, 1, 100, 1000, 3000}).Draw(rt, "fill"); fill != math.MaxUint64 {
			c, o.Blocks = full, new(BlockStats)
			c.fill = fill
		}
		f, info := write(t, genOptions(rt), es)
		r, err := Open(t.Context(), c, f, "model")
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		checkInfo(rt, info, es)
		if got, err := r.Info(t.Context()); err != nil || fmt.Sprint(got) != fmt.Sprint(info) {
			rt.Fatalf("file says %+v (%v), writer said %+v", got, err, info)
		}

		maxSeq := cell.Seq(rapid.SampledFrom([]int{0, 1, 500, 1000}).Draw(rt, "maxSeq"))
		want := visible(es, maxSeq)
		o.MaxSeq = maxSeq
		it, err := r.Iterator(t.Context(), o)
		if err != nil {
			rt.Fatal(err)
		}
		defer it.Close()
		checkForward(rt, it, it.First(), want)

		for range 20 {
			var key []byte
			switch rapid.IntRange(0, 3).Draw(rt, "how") {
			case 0:
				key = genBytes(0, 6).Draw(rt, "bytes")
			case 1:
				key = cell.AppendRow(nil, genBytes(1, 5).Draw(rt, "row"))
			default:
				key = bytes.Clone(rapid.SampledFrom(es).Draw(rt, "entry").Key)
				key = key[:rapid.IntRange(0, len(key)).Draw(rt, "cut")]
			}
			at := sort.Search(len(want), func(i int) bool { return bytes.Compare(want[i].Key, key) >= 0 })
			switch rapid.IntRange(0, 2).Draw(rt, "op") {
			case 0:
				checkForward(rt, it, it.SeekGE(key), want[at:])
			case 1:
				ok := it.SeekLT(key)
				if ok != (at > 0) {
					rt.Fatalf("SeekLT(%x) = %v, want %v", key, ok, at > 0)
				}
				if ok && !bytes.Equal(it.Entry().Key, want[at-1].Key) {
					rt.Fatalf("SeekLT(%x) is at %x, want %x", key, it.Entry().Key, want[at-1].Key)
				}
				if ok && !slices.ContainsFunc(want, func(e cell.Entry) bool { return equal(&e, it.Entry()) }) {
					rt.Fatalf("SeekLT(%x) shows a strange entry", key)
				}
			case 2:
				n := cell.EscapedLen(key)
				if n < 0 {
					continue
				}
				row := key[:n]
				at := sort.Search(len(want), func(i int) bool { return bytes.Compare(want[i].Key, row) >= 0 })
				end := at
				for end < len(want) && bytes.HasPrefix(want[end].Key, row) {
					end++
				}
				checkForward(rt, it, it.SeekRow(row), want[at:end])
			}
		}

		start := rapid.SampledFrom([]int64{0, 1, 2, 1000, math.MaxInt64 - 1}).Draw(rt, "start")
		o.Times = &cell.TimeRange{Start: start, End: rapid.SampledFrom([]int64{start + 1, 1000, math.MaxInt64}).Draw(rt, "end")}
		ti, err := r.Iterator(t.Context(), o)
		if err != nil {
			rt.Fatal(err)
		}
		defer ti.Close()
		checkSome(rt, ti, ti.First(), want, *o.Times)
		for range 5 {
			at := rapid.IntRange(0, len(es)-1).Draw(rt, "time at")
			from := sort.Search(len(want), func(i int) bool { return bytes.Compare(want[i].Key, es[at].Key) >= 0 })
			checkSome(rt, ti, ti.SeekGE(es[at].Key), want[from:], *o.Times)
		}

		o.Times, o.OneColumn = nil, true
		oi, err := r.Iterator(t.Context(), o)
		if err != nil {
			rt.Fatal(err)
		}
		defer oi.Close()
		for range 10 {
			key := rapid.SampledFrom(es).Draw(rt, "column of").Key
			n := cell.RowPrefixLen(key)
			column := cell.AppendColumn(bytes.Clone(key[:n]), cell.FamilyID(rapid.IntRange(1, 3).Draw(rt, "family")), genBytes(0, 3).Draw(rt, "qualifier"))
			if s, _ := cell.ParseSuffix(key[n:]); s.Shape == cell.Cell && rapid.Bool().Draw(rt, "there") {
				column = key[:len(key)-8]
			}
			// Whatever it shows, what it has of the column it shows.
			at := sort.Search(len(want), func(i int) bool { return bytes.Compare(want[i].Key, column) >= 0 })
			ok := oi.SeekColumn(key[:n], column)
			for ; at < len(want) && len(want[at].Key) == len(column)+8 && bytes.HasPrefix(want[at].Key, column); at++ {
				if !ok {
					rt.Fatalf("%s is missing: %v", appendKey(nil, want[at].Key), oi.Error())
				}
				if !equal(oi.Entry(), &want[at]) {
					rt.Fatalf("at %s, want %s", appendKey(nil, oi.Entry().Key), appendKey(nil, want[at].Key))
				}
				ok = oi.Next()
			}
		}

		ci, err := r.CompactionIterator(t.Context())
		if err != nil {
			rt.Fatal(err)
		}
		defer ci.Close()
		checkForward(rt, ci, ci.First(), es)
		at := rapid.IntRange(0, len(es)-1).Draw(rt, "at")
		for at > 0 && bytes.Equal(es[at-1].Key, es[at].Key) {
			at--
		}
		checkForward(rt, ci, ci.SeekGE(es[at].Key), es[at:])
		if err := r.VerifyChecksums(t.Context()); err != nil {
			rt.Fatal(err)
		}
		checkPlaces(rt, r, es)
	})
}

func checkInfo(t *rapid.T, info Info, es []cell.Entry) {
	want := Info{Size: info.Size, Families: info.Families, FilterColumns: info.FilterColumns, MaxTS: -1, MinSeq: cell.MaxSeq, PlainRows: true}
	type column struct {
		key  string
		rank int
	}
	fams := map[cell.FamilyID]*FamilyInfo{}
	var col column
	cells := false
	for i, e := range es {
		want.Entries++
		want.RawBytes += uint64(len(e.Key) + len(e.Value))
		want.MinSeq, want.MaxSeq = min(want.MinSeq, e.Seq), max(want.MaxSeq, e.Seq)
		n := cell.RowPrefixLen(e.Key)
		if i == 0 {
			want.Lo = e.Key[:n]
		}
		want.Hi = e.Key[:n]
		want.PlainRows = want.PlainRows && !bytes.Contains(e.Key[:n-2], []byte{0})
		same := i > 0 && bytes.Equal(es[i-1].Key, e.Key)
		if same {
			want.Shadowed++
		}
		s, _ := cell.ParseSuffix(e.Key[n:])
		if s.Shape != cell.Cell || e.Kind == cell.Delete {
			want.Tombstones++
		}
		if s.Shape != cell.Cell {
			continue
		}
		if !cells {
			cells = true
			want.MinTS, want.MaxTS = s.Timestamp, s.Timestamp
		}
		want.MinTS, want.MaxTS = min(want.MinTS, s.Timestamp), max(want.MaxTS, s.Timestamp)
		if k := string(e.Key[:len(e.Key)-8]); k != col.key {
			col = column{key: k}
		}
		if same || e.Kind == cell.Delete {
			continue
		}
		f := fams[s.Family]
		if f == nil {
			f = &FamilyInfo{ID: s.Family, MinTS: s.Timestamp, MaxTS: s.Timestamp}
			fams[s.Family] = f
		}
		f.Cells++
		f.Bytes += uint64(len(e.Key) + len(e.Value))
		f.MinTS, f.MaxTS = min(f.MinTS, s.Timestamp), max(f.MaxTS, s.Timestamp)
		for b := 0; b < maxOlder && olderThan(b) <= col.rank; b++ {
			if b == len(f.Older) {
				f.Older = append(f.Older, 0)
			}
			f.Older[b]++
		}
		col.rank++
	}
	if fmt.Sprint(info) != fmt.Sprint(want) {
		t.Fatalf("info is %+v, want %+v", info, want)
	}
	if len(info.Families) != len(fams) {
		t.Fatalf("%d families, want %d", len(info.Families), len(fams))
	}
	for i, f := range info.Families {
		if i > 0 && info.Families[i-1].ID >= f.ID {
			t.Fatal("families are out of order")
		}
		if fmt.Sprint(f) != fmt.Sprint(*fams[f.ID]) {
			t.Fatalf("family is %+v, want %+v", f, *fams[f.ID])
		}
	}
}

// checkPlaces checks what a split relies on: every place is a row prefix with
// something on both sides.
func checkPlaces(t *rapid.T, r *Reader, es []cell.Entry) {
	ctx := context.Background()
	lo, hi := es[0].Key[:cell.RowPrefixLen(es[0].Key)], es[len(es)-1].Key[:cell.RowPrefixLen(es[len(es)-1].Key)]
	inside := func(row []byte) {
		if cell.EscapedLen(row) != len(row) {
			t.Fatalf("%x is no row prefix", row)
		}
		if bytes.Compare(row, lo) <= 0 || bytes.Compare(row, hi) > 0 {
			t.Fatalf("%x is not within (%x, %x]", row, lo, hi)
		}
	}
	mid, err := r.MidRow(ctx, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if mid != nil {
		inside(mid)
	} else if !bytes.Equal(lo, hi) {
		t.Fatal("no middle in a file of several rows")
	}
	marks, err := r.Marks(ctx, int64(rapid.IntRange(1, 500).Draw(t, "step")))
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range marks {
		inside(m.Row)
		if i > 0 && (bytes.Compare(marks[i-1].Row, m.Row) >= 0 || marks[i-1].Bytes >= m.Bytes) {
			t.Fatal("marks are out of order")
		}
	}
}

func TestOlder(t *testing.T) {
	for rank := 1; rank < 1<<17; rank++ {
		i := olderIndex(rank)
		if olderThan(i) > rank || i+1 < maxOlder && olderThan(i+1) <= rank {
			t.Fatalf("rank %d counts as at least %d", rank, olderThan(i))
		}
	}
	const n = 70000
	var f FamilyInfo
	for rank := range n {
		f.add(1, int64(rank), rank)
	}
	f.sum()
	for _, c := range []struct{ n, want int }{{0, n}, {1, n - 1}, {3, n - 3}, {16, n - 16}, {17, n - 32}, {32, n - 32}, {1000, n - 1024}, {1 << 15, n - 1<<15}, {1<<15 + 1, 0}} {
		if got := f.OlderThan(c.n); got != uint64(c.want) {
			t.Errorf("OlderThan(%d) = %d, want %d", c.n, got, c.want)
		}
	}
}
