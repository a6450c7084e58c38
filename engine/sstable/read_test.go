package sstable

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// rows returns n rows of one cell with a value of size bytes that does not
// compress. Row i is user%016d of 2i, so that there are absent rows between.
func rows(n, size int) []cell.Entry {
	r := rand.New(rand.NewPCG(1, 1))
	pool := make([]byte, max(1<<20, min(n*size, 32<<20)))
	for i := 0; i < len(pool); i += 4 {
		binary.LittleEndian.PutUint32(pool[i:], r.Uint32())
	}
	es := make([]cell.Entry, n)
	for i := range es {
		at := r.IntN(len(pool) - size)
		es[i] = cell.Entry{Key: cellKey(rowName(2*i), 1, "field0", int64(1000+i)), Value: pool[at : at+size], Seq: cell.Seq(i + 1), Kind: cell.Set}
	}
	return es
}

func rowName(i int) string { return fmt.Sprintf("user%016d", i) }

func prefix(i int) []byte { return cell.AppendRow(nil, []byte(rowName(i))) }

func iterate(t testing.TB, r *Reader, o IterOptions) cell.Iterator {
	t.Helper()
	it, err := r.Iterator(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { it.Close() })
	return it
}

func TestBloomFilterSavesReads(t *testing.T) {
	c := newCache(t)
	f, _ := write(t, Options{}, rows(5000, 100))
	r := open(t, c, f)
	it := iterate(t, r, IterOptions{})
	it.SeekRow(prefix(3)) // absent, but loads the filter
	before := f.reads.Load()
	for i := range 4000 {
		if it.SeekRow(prefix(2*i + 1)) {
			t.Fatalf("row %d is there", 2*i+1)
		}
		if err := it.Error(); err != nil {
			t.Fatal(err)
		}
	}
	m := c.Metrics()
	if part := float64(m.BloomPasses) / 4000; part > 0.03 {
		t.Errorf("the filter lets %.1f %% of absent rows through", 100*part)
	}
	// One block per false positive, and the index once.
	if reads := f.reads.Load() - before; reads > m.BloomPasses+1 {
		t.Errorf("%d reads for %d false positives", reads, m.BloomPasses)
	}
	for i := range 5000 {
		if !it.SeekRow(prefix(2 * i)) {
			t.Fatalf("row %d is missing", 2*i)
		}
	}
	if it.SeekRow(cell.AppendRow(nil, []byte("a"))) || it.SeekRow(cell.AppendRow(nil, []byte("z"))) {
		t.Error("a row outside the bounds is there")
	}
}

func TestOpenReadsLittle(t *testing.T) {
	f, info := write(t, Options{}, rows(5000, 100))
	r := open(t, newCache(t), f)
	if n := f.reads.Load(); n != 1 {
		t.Errorf("opening takes %d reads, want 1", n)
	}
	got, err := r.Info(t.Context())
	if err != nil || got.Size != int64(len(f.data)) || got.Size != info.Size {
		t.Errorf("size is %d and %d, want %d (%v)", got.Size, info.Size, len(f.data), err)
	}
}

// A time filter must show every cell in range and every tombstone, and should
// skip most blocks without either.
func TestTimeFilter(t *testing.T) {
	var es []cell.Entry
	seq := cell.Seq(0)
	add := func(key []byte, kind cell.Kind, size int) {
		seq++
		es = append(es, cell.Entry{Key: key, Value: make([]byte, size), Seq: seq, Kind: kind})
	}
	tombstones := 0
	for i := range 3000 {
		row := cell.AppendRow(nil, []byte(rowName(i)))
		if i%500 == 77 {
			add(row, cell.Set, 0) // row marker
			tombstones++
		}
		if i%500 == 78 {
			add(cell.AppendFamily(bytes.Clone(row), 1), cell.Set, 0)
			tombstones++
		}
		if i%500 == 79 {
			add(cell.AppendColumn(bytes.Clone(row), 1, []byte("q")), cell.Set, 16)
			tombstones++
		}
		kind := cell.Set
		if i%500 == 80 {
			kind = cell.Delete
			tombstones++
		}
		add(cell.AppendCell(bytes.Clone(row), 1, []byte("q"), int64(1000*i)), kind, 100)
	}
	add(cellKey("z0", 1, "q", math.MaxInt64), cell.Set, 0)
	add(cellKey("z1", 1, "q", math.MaxInt64-1), cell.Set, 0)
	add(cellKey("z2", 1, "q", math.MinInt64), cell.Set, 0)
	f, _ := write(t, Options{BlockBytes: 1000}, es)
	c := newCache(t)
	r := open(t, c, f)
	for _, tr := range []cell.TimeRange{
		{Start: 0, End: 1}, {Start: 1000_000, End: 1010_000}, {Start: 500, End: 501}, {Start: 5, End: 5},
		{Start: math.MaxInt64, End: math.MaxInt64}, {Start: math.MaxInt64 - 1, End: math.MaxInt64},
		{Start: math.MinInt64, End: math.MinInt64 + 1}, {Start: 2999_000, End: math.MaxInt64}, cell.AllTime,
	} {
		it := iterate(t, r, IterOptions{Times: &tr})
		var cells, tombs, shown int
		for ok := it.First(); ok; ok = it.Next() {
			shown++
			e := it.Entry()
			s, err := cell.ParseSuffix(e.Key[cell.RowPrefixLen(e.Key):])
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case s.Shape != cell.Cell || e.Kind == cell.Delete:
				tombs++
			case tr.Contains(s.Timestamp):
				cells++
			}
		}
		if err := it.Error(); err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, e := range es {
			s, _ := cell.ParseSuffix(e.Key[cell.RowPrefixLen(e.Key):])
			if s.Shape == cell.Cell && e.Kind == cell.Set && tr.Contains(s.Timestamp) {
				want++
			}
		}
		if tombs != tombstones {
			t.Errorf("%+v shows %d tombstones, want %d", tr, tombs, tombstones)
		}
		if cells != want {
			t.Errorf("%+v shows %d cells, want %d", tr, cells, want)
		}
		if want < 100 && shown > 300 && tr.Start < tr.End {
			t.Errorf("%+v shows %d entries for %d cells: the filter does not filter", tr, shown, want)
		}
		// The other ways to move see the tombstones as well.
		if !it.SeekRow(cell.AppendRow(nil, []byte(rowName(77)))) || !it.SeekRow(cell.AppendRow(nil, []byte(rowName(580)))) {
			t.Errorf("%+v: SeekRow misses a tombstone", tr)
		}
		if !it.SeekLT(cell.AppendRow(nil, []byte(rowName(82)))) {
			t.Errorf("%+v: SeekLT misses a tombstone", tr)
		}
	}
	// A file with nothing in range is not read at all.
	g, _ := write(t, Options{}, rows(1000, 100))
	q := open(t, c, g)
	before := g.reads.Load()
	it := iterate(t, q, IterOptions{Times: &cell.TimeRange{Start: 1, End: 2}})
	if it.First() || it.SeekGE(nil) || it.SeekLT([]byte("z")) {
		t.Error("an entry shows that is out of range")
	}
	if g.reads.Load() != before {
		t.Error("a file out of range is read")
	}
}

// A flipped bit anywhere gives an error of kind Corruption, or does not matter;
// never other entries, never a panic.
func TestFlippedBits(t *testing.T) {
	for _, o := range []Options{{BlockBytes: 1 << 10}, {BlockBytes: 1 << 10, Compression: NoCompression}, {BlockBytes: 1 << 10, Compression: Zstd, BloomBitsPerKey: -1}} {
		es := rows(200, 40)
		es[50].Kind, es[50].Value = cell.Delete, nil
		f, _ := write(t, o, es)
		good := f.data
		step := max(1, len(good)/1500)
		silent := 0
		for at := 0; at < len(good); at++ {
			// Every byte of the end, where all depends on few bytes.
			if at%step != 0 && at < len(good)-700 {
				continue
			}
			f.data = bytes.Clone(good)
			f.data[at] ^= 1 << (at % 8)
			if err := readAll(t, f, es); err == nil {
				silent++
			} else if !errors.Is(err, fault.Corruption) {
				t.Fatalf("%+v: bit %d of byte %d of %d: %v", o, at%8, at, len(good), err)
			}
		}
		// VerifyChecksums and readAll between them must have seen every flip.
		if silent > 0 {
			t.Errorf("%+v: %d flips went unseen", o, silent)
		}
		for _, n := range []int{0, 1, 11, 60, 61, 62, len(good) / 2, len(good) - 1} {
			f.data = good[:n]
			if err := readAll(t, f, es); !errors.Is(err, fault.Corruption) {
				t.Errorf("cut to %d bytes: %v", n, err)
			}
		}
		f.data = append(bytes.Clone(good), 0)
		if err := readAll(t, f, es); !errors.Is(err, fault.Corruption) {
			t.Errorf("one byte longer: %v", err)
		}
	}
}

// readAll reads a file in every way, and fails the test if it sees an entry
// that is not among es.
func readAll(t testing.TB, f *memFile, es []cell.Entry) error {
	c := NewCache(1<<20, 0)
	defer c.Close()
	r, err := Open(t.Context(), c, f, "f")
	if err != nil {
		return err
	}
	defer r.Close()
	scan := func(it cell.Iterator, err error) error {
		if err != nil {
			return err
		}
		defer it.Close()
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			if n >= len(es) || !equal(it.Entry(), &es[n]) {
				t.Fatalf("entry %d is wrong: %s", n, appendKey(nil, it.Entry().Key))
			}
			n++
		}
		if err := it.Error(); err != nil {
			return err
		}
		if n != len(es) {
			t.Fatalf("%d entries, want %d", n, len(es))
		}
		for _, e := range es {
			row := e.Key[:cell.RowPrefixLen(e.Key)]
			if !it.SeekRow(row) && it.Error() == nil {
				t.Fatal("a row is gone")
			}
			if err := it.Error(); err != nil {
				return err
			}
		}
		return nil
	}
	err = errors.Join(scan(r.Iterator(t.Context(), IterOptions{})), scan(r.CompactionIterator(t.Context())))
	verr := r.VerifyChecksums(t.Context())
	if (verr == nil) != (err == nil) && verr == nil {
		t.Fatalf("VerifyChecksums misses what a reader meets: %v", err)
	}
	return errors.Join(err, verr)
}

func TestForeignFile(t *testing.T) {
	f := new(memFile)
	w := sstable.NewWriter(&sink{w: f, buf: make([]byte, 0, 100)}, sstable.WriterOptions{TableFormat: sstable.TableFormatPebblev7})
	if err := w.Set([]byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), newCache(t), f, "foreign"); !errors.Is(err, fault.Corruption) {
		t.Errorf("Open = %v", err)
	}
	if f.closed.Load() != 1 {
		t.Error("Open does not close what it rejects")
	}
}

// What storage reports is not corruption, and keeps its kind.
func TestStorageErrors(t *testing.T) {
	f, _ := write(t, Options{}, rows(1000, 100))
	c := newCache(t)
	r := open(t, c, f)
	for _, want := range []error{fault.Unavailable, fault.NotFound, context.DeadlineExceeded, errors.New("odd")} {
		f.fail = want
		it := iterate(t, r, IterOptions{})
		if it.First() || !errors.Is(it.Error(), want) || errors.Is(it.Error(), fault.Corruption) {
			t.Errorf("First: %v, want %v", it.Error(), want)
		}
		if it.SeekRow(prefix(2)) || !errors.Is(it.Error(), want) {
			t.Errorf("SeekRow: %v, want %v", it.Error(), want)
		}
		if err := r.VerifyChecksums(t.Context()); !errors.Is(err, want) {
			t.Errorf("VerifyChecksums: %v, want %v", err, want)
		}
		// It works again when storage does.
		f.fail = nil
		if !it.SeekRow(prefix(2)) {
			t.Errorf("SeekRow after the failure: %v", it.Error())
		}
		c.evict(r.num)
	}
	ctx, cancel := context.WithCancel(t.Context())
	it, err := r.CompactionIterator(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if it.First() || !errors.Is(it.Error(), context.Canceled) {
		t.Errorf("cancelled compaction: %v", it.Error())
	}
	it.Close()
	f.fail = fault.Unavailable
	if _, err := Open(t.Context(), c, f, "x"); !errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Corruption) {
		t.Errorf("Open: %v", err)
	}
}

func TestWriterErrors(t *testing.T) {
	key := func(s string) []byte { return cellKey(s, 1, "q", 1) }
	for _, bad := range [][]cell.Entry{
		{{Key: key("b"), Seq: 1, Kind: cell.Set}, {Key: key("a"), Seq: 2, Kind: cell.Set}},
		{{Key: key("b"), Seq: 1, Kind: cell.Set}, {Key: key("b"), Seq: 1, Kind: cell.Delete}},
		{{Key: key("b"), Seq: 1, Kind: cell.Set}, {Key: key("b"), Seq: 2, Kind: cell.Set}},
		{{Key: []byte("no row"), Seq: 1, Kind: cell.Set}},
		{{Key: append(key("b"), 0), Seq: 1, Kind: cell.Set}},
		{{Key: key("b"), Seq: 1, Kind: 2}},
		{{Key: key("b"), Seq: cell.MaxSeq + 1, Kind: cell.Set}},
		{},
	} {
		f := new(memFile)
		w, err := NewWriter(f, Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = nil
		for i := range bad {
			err = w.Add(&bad[i])
		}
		if len(bad) > 0 && !errors.Is(err, fault.Internal) {
			t.Errorf("Add: %v", err)
		}
		if _, err := w.Finish(); err == nil || f.finished || !f.aborted {
			t.Errorf("Finish: %v, finished %v, aborted %v", err, f.finished, f.aborted)
		}
	}
	for _, o := range []Options{{BlockBytes: -1}, {Compression: 9}} {
		f := new(memFile)
		if _, err := NewWriter(f, o); !errors.Is(err, fault.Invalid) || f.aborted {
			t.Errorf("NewWriter(%+v): %v, aborted %v", o, err, f.aborted)
		}
	}
	// A full disk: the error comes through, and the file is aborted.
	f := &memFile{fail: fault.Exhausted, failAt: 100 << 10}
	w, _ := NewWriter(f, Options{Compression: NoCompression})
	var err error
	for _, e := range rows(2000, 1000) {
		if err = w.Add(&e); err != nil {
			break
		}
	}
	_, ferr := w.Finish()
	if !errors.Is(errors.Join(err, ferr), fault.Exhausted) || f.finished || !f.aborted {
		t.Errorf("full disk: %v, %v, finished %v, aborted %v", err, ferr, f.finished, f.aborted)
	}
	// An abort in the middle, also while the first sinkBytes are written.
	for n := 250; n < 300; n++ {
		f = new(memFile)
		w, _ = NewWriter(f, Options{Compression: NoCompression})
		for _, e := range rows(n, 1000) {
			if err := w.Add(&e); err != nil {
				t.Fatal(err)
			}
		}
		w.Abort()
		w.Abort()
		if f.finished || !f.aborted {
			t.Errorf("abort after %d rows: finished %v, aborted %v", n, f.finished, f.aborted)
		}
	}
}

func TestLargeValues(t *testing.T) {
	big := make([]byte, 20<<20)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	es := []cell.Entry{
		{Key: cellKey("a", 1, "q", 1), Value: []byte{}, Seq: 1, Kind: cell.Set},
		{Key: cellKey("b", 1, "q", 1), Value: big, Seq: cell.MaxSeq, Kind: cell.Set},
		{Key: cellKey("c", 1, "q", 1), Value: []byte("x"), Seq: 0, Kind: cell.Set},
	}
	f, _ := write(t, Options{}, es)
	r := open(t, newCache(t), f)
	for _, it := range []cell.Iterator{iterate(t, r, IterOptions{})} {
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			if !equal(it.Entry(), &es[n]) {
				t.Fatalf("entry %d is wrong", n)
			}
			n++
		}
		if n != 3 {
			t.Fatalf("%d entries: %v", n, it.Error())
		}
		if !it.SeekRow(cell.AppendRow(nil, []byte("c"))) {
			t.Fatal("row c is missing")
		}
	}
}

// Two-level indexes are for large files; force one.
func TestManyBlocks(t *testing.T) {
	es := rows(30000, 10)
	f, _ := write(t, Options{BlockBytes: 1}, es)
	r := open(t, newCache(t), f)
	tab := r.table.Load()
	if !tab.sst.Attributes.Has(sstable.AttributeTwoLevelIndex) {
		t.Fatal("the index has one level")
	}
	it := iterate(t, r, IterOptions{})
	for i := range es {
		if !it.SeekRow(es[i].Key[:cell.RowPrefixLen(es[i].Key)]) || !equal(it.Entry(), &es[i]) {
			t.Fatalf("row %d: %v", i, it.Error())
		}
		if i > 0 && (!it.SeekLT(es[i].Key) || !equal(it.Entry(), &es[i-1])) {
			t.Fatalf("before row %d: %v", i, it.Error())
		}
	}
	mid, err := r.MidRow(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := bytes.Compare(mid, prefix(29000)) * bytes.Compare(mid, prefix(31000)); d != -1 {
		t.Errorf("the middle is %s", appendKey(nil, mid))
	}
	it2, err := r.CompactionIterator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer it2.Close()
	n := 0
	for ok := it2.First(); ok; ok = it2.Next() {
		n++
	}
	if n != len(es) {
		t.Errorf("%d entries: %v", n, it2.Error())
	}
}

func TestApproximateBytes(t *testing.T) {
	f, info := write(t, Options{BlockBytes: 4 << 10}, rows(10000, 100))
	r := open(t, newCache(t), f)
	for _, c := range []struct {
		lo, hi []byte
		want   float64 // part of the file
	}{
		{nil, nil, 1}, {nil, prefix(10000), 0.5}, {prefix(10000), nil, 0.5}, {prefix(5000), prefix(15000), 0.5},
		{prefix(0), prefix(20000), 1}, {prefix(30000), nil, 0}, {nil, prefix(0), 0}, {nil, []byte("a"), 0},
		{prefix(100), prefix(101), 0},
	} {
		got, err := r.ApproximateBytes(t.Context(), c.lo, c.hi)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(float64(got)/float64(info.Size)-c.want) > 0.02 {
			t.Errorf("[%s, %s): %d bytes of %d, want %.2f", appendKey(nil, c.lo), appendKey(nil, c.hi), got, info.Size, c.want)
		}
	}
	marks, err := r.Marks(t.Context(), info.Size/10)
	if err != nil || len(marks) < 8 || len(marks) > 11 {
		t.Fatalf("%d marks, want about 9 (%v)", len(marks), err)
	}
	for i, m := range marks {
		want := float64(i+1) / 10
		var row float64
		if _, err := fmt.Sscanf(string(m.Row[4:]), "%f", &row); err != nil {
			// A shortened row: pad it.
			t.Logf("mark %d: %s", i, appendKey(nil, m.Row))
			continue
		}
		if math.Abs(float64(m.Bytes)/float64(info.Size)-want) > 0.05 {
			t.Errorf("mark %d is at %d of %d bytes", i, m.Bytes, info.Size)
		}
	}
}

func TestMidRowOfWideRows(t *testing.T) {
	wide := func(rows ...int) []cell.Entry {
		var es []cell.Entry
		for i, n := range rows {
			for k := range n {
				es = append(es, cell.Entry{Key: cellKey(string(rune('a'+i)), 1, fmt.Sprintf("%06d", k), 1), Value: make([]byte, 100), Seq: 1, Kind: cell.Set})
			}
		}
		return es
	}
	for _, c := range []struct {
		rows []int
		want string // rows among which the middle is
	}{
		{[]int{1000}, ""}, {[]int{1000, 1}, "b"}, {[]int{1, 1000}, "b"}, {[]int{10, 1000, 10}, "bc"}, {[]int{500, 500, 500, 500}, "c"},
	} {
		f, _ := write(t, Options{BlockBytes: 500, Compression: NoCompression}, wide(c.rows...))
		mid, err := open(t, newCache(t), f).MidRow(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.want == "" {
			if mid != nil {
				t.Errorf("%v: middle %s of one row", c.rows, appendKey(nil, mid))
			}
			continue
		}
		if mid == nil || !strings.Contains(c.want, string(mid[:1])) {
			t.Errorf("%v: middle %s, want one of %q", c.rows, appendKey(nil, mid), c.want)
		}
	}
}

// TestLargestRow: of rows of several blocks the largest is found, wherever it is.
func TestLargestRow(t *testing.T) {
	for _, c := range []struct {
		rows  []int
		want  string
		share float64
	}{
		{[]int{1000}, "a", 1}, {[]int{1000, 1}, "a", 1}, {[]int{1, 1000}, "b", 1}, {[]int{10, 1000, 10}, "b", 0.98}, {[]int{300, 100, 600}, "c", 0.6}, {[]int{300, 400, 300}, "b", 0.4},
	} {
		var es []cell.Entry
		for i, n := range c.rows {
			for k := range n {
				es = append(es, cell.Entry{Key: cellKey(string(rune('a'+i)), 1, fmt.Sprintf("%06d", k), 1), Value: make([]byte, 100), Seq: 1, Kind: cell.Set})
			}
		}
		f, info := write(t, Options{BlockBytes: 500, Compression: NoCompression}, es)
		row, size, err := open(t, newCache(t), f).LargestRow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if share := float64(size) / float64(info.Size); string(row) != string(cell.AppendRow(nil, []byte(c.want))) || math.Abs(share-c.share) > 0.03 {
			t.Errorf("%v: row %s has %.2f of the bytes, want %s and %.2f", c.rows, appendKey(nil, row), share, c.want, c.share)
		}
	}
}

// files is a store whose files are counted as they are opened and closed.
type files struct {
	mu   sync.Mutex
	data map[string]*memFile
	open int
	most int
}

type counted struct {
	*memFile
	fs *files
}

func (c counted) Close() error {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	c.fs.open--
	return nil
}

func (fs *files) openFile(_ context.Context, name string) (Readable, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.data[name]
	if f == nil {
		return nil, fault.New(fault.NotFound, "no %s", name)
	}
	fs.open++
	fs.most = max(fs.most, fs.open)
	return counted{f, fs}, nil
}

func TestCacheBoundsOpenFiles(t *testing.T) {
	const n, limit = 40, 5
	fs := &files{data: map[string]*memFile{}}
	es := rows(50, 20)
	for i := range n {
		fs.data[fmt.Sprint(i)], _ = write(t, Options{}, es)
	}
	c := NewCache(8<<20, limit)
	rs := make([]*Reader, n)
	for i := range rs {
		rs[i] = c.Acquire(fmt.Sprint(i), fs.openFile)
		if again := c.Acquire(fmt.Sprint(i), fs.openFile); again != rs[i] {
			t.Fatal("one file has two Readers")
		}
	}
	if fs.open != 0 {
		t.Fatal("Acquire opens files")
	}
	const workers = 8
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 0))
			for range 500 {
				k := r.IntN(n)
				it, err := rs[k].Iterator(t.Context(), IterOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				e := r.IntN(len(es))
				if !it.SeekRow(es[e].Key[:cell.RowPrefixLen(es[e].Key)]) || !equal(it.Entry(), &es[e]) {
					t.Errorf("row %d: %v", e, it.Error())
				}
				if r.IntN(10) == 0 {
					time.Sleep(10 * time.Microsecond)
				}
				if err := it.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// Beside those that the Cache keeps, each worker may have one in use that was
	// put out of the Cache, and be closing another for which it was put out.
	if fs.most > limit+2*workers {
		t.Errorf("%d files were open at once", fs.most)
	}
	if m := c.Metrics(); m.OpenFiles > limit || fs.open > limit || m.Opens <= n || m.Hits == 0 || m.Bytes == 0 {
		t.Errorf("%d files open, %+v", fs.open, m)
	}
	// A file in use stays open for its iterators, and its Reader can go.
	it, err := rs[0].Iterator(t.Context(), IterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		r.Close()
	}
	for _, r := range rs {
		r.Close()
	}
	if fs.open != 1 || !it.First() {
		t.Errorf("%d files are open, want the one in use: %v", fs.open, it.Error())
	}
	it.Close()
	if m := c.Metrics(); fs.open != 0 || m.OpenFiles != 0 || m.Blocks != 0 {
		t.Errorf("%d files are open, %+v are left", fs.open, m)
	}
	if _, err := rs[0].Iterator(t.Context(), IterOptions{}); err == nil {
		t.Error("a closed Reader reads")
	}
	// A name may come back, with a new Reader.
	r := c.Acquire("3", fs.openFile)
	if _, err := r.Info(t.Context()); err != nil {
		t.Error(err)
	}
	r.Close()
	missing := c.Acquire("none", fs.openFile)
	if _, err := missing.Iterator(t.Context(), IterOptions{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("missing file: %v", err)
	}
	missing.Close()
	c.Close()
}

func TestCompactionLeavesCacheAlone(t *testing.T) {
	f, _ := write(t, Options{}, rows(5000, 1000))
	c := newCache(t)
	r := open(t, c, f)
	before := f.reads.Load()
	it, err := r.CompactionIterator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if n != 5000 || it.Error() != nil {
		t.Fatalf("%d entries: %v", n, it.Error())
	}
	if m := c.Metrics(); m.Bytes > 0 {
		t.Errorf("%d bytes are in the cache", m.Bytes)
	}
	if reads := f.reads.Load() - before; reads > int64(len(f.data)/aheadBytes+4) {
		t.Errorf("%d reads of a file of %d bytes", reads, len(f.data))
	}
}

// Of what reads of single rows bring to a full cache a part stays, and what is
// read again and again all of it; all of them read what was written.
func TestPointReadsInFullCache(t *testing.T) {
	const perBlock = 30
	es := rows(20_000, 1000)
	f, _ := write(t, Options{}, es)
	c := NewCache(8<<20, 0)
	t.Cleanup(c.Close)
	r := open(t, c, f)
	scan, n := iterate(t, r, IterOptions{}), 0
	for ok := scan.First(); ok && n < 9000; ok = scan.Next() {
		n++
	}
	_ = scan.Close()
	// read reads a row of every block from the first on, and returns how often
	// that took storage.
	read := func(first, blocks int) int64 {
		before := f.reads.Load()
		for n := first; n < first+blocks*perBlock; n += perBlock {
			it := iterate(t, r, IterOptions{})
			if !it.SeekRow(prefix(2*n)) || !equal(it.Entry(), &es[n]) {
				t.Fatalf("row %d is not what was written: %v", n, it.Error())
			}
			_ = it.Close()
		}
		return f.reads.Load() - before
	}
	for range 200 { // until the cache knows that it is full
		read(19_000, 10)
	}
	const cold, blocks = 10_000, 40
	if n := read(cold, blocks); n < blocks*9/10 {
		t.Fatalf("%d reads of storage for %d blocks that cannot be in the cache", n, blocks)
	}
	if n := read(cold, blocks); n < blocks/3 || n >= blocks {
		t.Errorf("%d of %d blocks were left out", n, blocks)
	}
	for range 100 {
		read(cold, blocks)
	}
	if n := read(cold, blocks); n > 0 {
		t.Errorf("%d of %d blocks that are read again and again are not in the cache", n, blocks)
	}
}

// A block, with what the cache keeps beside it, is no longer than what Go's
// allocator has a size for.
func TestBlocksFitAllocator(t *testing.T) {
	for _, size := range []int{10, 100, 1000} {
		f, _ := write(t, Options{}, rows(2000, size))
		r := open(t, newCache(t), f)
		it, err := r.Iterator(t.Context(), IterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		longest := 0
		for ok := it.First(); ok; ok = it.Next() {
			longest = max(longest, len(it.cur.h.BlockData())+block.MetadataSize)
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
		if longest > 32<<10 || longest < 30<<10 {
			t.Errorf("values of %d bytes are in blocks of %d bytes", size, longest)
		}
	}
}

// A scan of what is not cached reads ahead; point reads do not.
func TestScanReadsAhead(t *testing.T) {
	f, _ := write(t, Options{}, rows(5000, 1000))
	r := open(t, newCache(t), f)
	it := iterate(t, r, IterOptions{})
	reads := func(do func()) int64 {
		before := f.reads.Load()
		do()
		return f.reads.Load() - before
	}
	for i := range 20 {
		row := prefix(2 * (i * 2017 % 5000))
		before := f.bytes.Load()
		if n := reads(func() {
			if !it.SeekRow(row) {
				t.Fatal("row is missing")
			}
		}); n > 1 && i > 0 || f.bytes.Load()-before > 40<<10 && i > 0 {
			t.Errorf("point read %d takes %d reads of %d bytes", i, n, f.bytes.Load()-before)
		}
	}
	r.cache.evict(r.num)
	n := 0
	blocks := int64(len(f.data) / (32 << 10))
	if got := reads(func() {
		for ok := it.First(); ok; ok = it.Next() {
			n++
		}
	}); got > blocks/4 {
		t.Errorf("a scan of %d blocks takes %d reads", blocks, got)
	}
	if n != 5000 {
		t.Errorf("%d rows: %v", n, it.Error())
	}
}

// The comparer keeps what Pebble wants of it for any bytes, not only keys.
func TestComparer(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	gen := func() []byte {
		b := make([]byte, r.IntN(7))
		for i := range b {
			b[i] = []byte{0, 1, 2, 'a', 0xFE, 0xFF}[r.IntN(6)]
		}
		return b
	}
	sign := func(n int) int { return min(1, max(-1, n)) }
	for range 200000 {
		a, b := gen(), gen()
		pa, pb := comparer.Split.Prefix(a), comparer.Split.Prefix(b)
		sa, sb := a[len(pa):], b[len(pb):]
		cmp := comparer.Compare(a, b)
		if cmp <= 0 && comparer.Compare(pa, pb) > 0 {
			t.Fatalf("%x <= %x but prefixes %x > %x", a, b, pa, pb)
		}
		if comparer.Compare(pa, pb) < 0 && cmp >= 0 {
			t.Fatalf("prefixes %x < %x but %x >= %x", pa, pb, a, b)
		}
		if bytes.Equal(pa, pb) && sign(comparer.ComparePointSuffixes(sa, sb)) != sign(cmp) {
			t.Fatalf("suffixes of %x and %x compare differently", a, b)
		}
		if len(sa) > 0 && comparer.Compare(pa, a) >= 0 {
			t.Fatalf("prefix of %x is not smaller", a)
		}
		if cmp < 0 && len(a) > 0 && len(b) > 0 {
			if s := comparer.Separator(nil, a, b); bytes.Compare(a, s) > 0 || bytes.Compare(s, b) >= 0 {
				t.Fatalf("%x is not between %x and %x", s, a, b)
			}
			row := rowAtOrBefore(a)
			if cell.EscapedLen(row) != len(row) {
				t.Fatalf("%x is made of %x and no row prefix", row, a)
			}
		}
	}
}

func TestDump(t *testing.T) {
	es := []cell.Entry{
		{Key: cell.AppendRow(nil, []byte("a\x00b")), Seq: 9, Kind: cell.Set},
		{Key: cellKey("a\x00b", 2, "q", 1000), Value: []byte("value"), Seq: 3, Kind: cell.Set},
		{Key: cellKey("c\n\\", 2, "é", 1000), Seq: 4, Kind: cell.Delete},
	}
	f, _ := write(t, Options{}, es)
	r := open(t, newCache(t), f)
	var b strings.Builder
	if err := r.Dump(t.Context(), &b, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"a\x00b" #9 0 ""`, `"a\x00b" f2:"q"@1000 #3 5 "value"`, `"c\x0a\\" f2:"\xc3\xa9"@1000 #4 delete`, "entries: 3, 2 tombstones, ", "blocks: 1 data"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the dump lacks %s:\n%s", want, b.String())
		}
	}
	if s := string(appendKey(nil, []byte{1, 2})); s != "0102" {
		t.Errorf("no key comes out as %s", s)
	}
}

func TestCompressionNames(t *testing.T) {
	for c := range Compression(len(profiles)) {
		if got, err := ParseCompression(c.String()); err != nil || got != c {
			t.Errorf("%v becomes %v (%v)", c, got, err)
		}
	}
	if _, err := ParseCompression("lzma"); !errors.Is(err, fault.Invalid) {
		t.Errorf("lzma: %v", err)
	}
}

func TestPointReadAllocations(t *testing.T) {
	f, _ := write(t, Options{}, rows(5000, 100))
	r := open(t, newCache(t), f)
	row, absent := prefix(4000), prefix(4001)
	times := cell.TimeRange{Start: 0, End: 1 << 40}
	read := func(row []byte, o IterOptions, want bool) func() {
		return func() {
			it, err := r.Iterator(context.Background(), o)
			if err != nil || it.SeekRow(row) != want {
				t.Fatal(err)
			}
			it.Close()
		}
	}
	if raceEnabled {
		t.Skip("the race detector empties pools")
	}
	for _, c := range []struct {
		name string
		f    func()
		max  float64
	}{
		{"present", read(row, IterOptions{}, true), 0},
		{"present, with a time range", read(row, IterOptions{Times: &times}, true), 0},
		{"absent", read(absent, IterOptions{}, false), 0},
	} {
		if got := testing.AllocsPerRun(1000, c.f); got > c.max {
			t.Errorf("%s: %.1f allocations, want at most %.0f", c.name, got, c.max)
		}
	}
	it := iterate(t, r, IterOptions{})
	it.First()
	if got := testing.AllocsPerRun(4000, func() { it.Next() }); got > 0 {
		t.Errorf("Next: %.1f allocations", got)
	}
}

// FuzzOpen feeds whole files to the reader; its seeds are real ones.
func FuzzOpen(f *testing.F) {
	for _, o := range []Options{{}, {BlockBytes: 100, Compression: Zstd}, {BloomBitsPerKey: -1}} {
		file, _ := write(f, o, rows(20, 20))
		f.Add(file.data, uint32(0), byte(0))
		f.Add(file.data, uint32(len(file.data)-10), byte(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, at uint32, flip byte) {
		data = bytes.Clone(data)
		if len(data) > 0 {
			data[int(at)%len(data)] ^= flip
		}
		c := NewCache(1<<20, 0)
		defer c.Close()
		r, err := Open(t.Context(), c, &memFile{data: data}, "fuzz")
		if err != nil {
			if !errors.Is(err, fault.Corruption) {
				t.Fatal(err)
			}
			return
		}
		defer r.Close()
		if err := r.Dump(t.Context(), io.Discard, true); err != nil && !errors.Is(err, fault.Corruption) {
			t.Fatal(err)
		}
	})
}

// writeFile writes rows of 1,000 bytes to a file on disk.
func writeFile(b *testing.B, path string, es []cell.Entry, o Options) {
	b.Helper()
	f, err := vfs.Default.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		b.Fatal(err)
	}
	w, err := NewWriter(objstorageprovider.NewFileWritable(f), o)
	if err != nil {
		b.Fatal(err)
	}
	for i := range es {
		if err := w.Add(&es[i]); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := w.Finish(); err != nil {
		b.Fatal(err)
	}
}

const benchRows = 100_000

// benchFile returns a Reader of benchRows rows, in the cache if warm.
func benchFile(b *testing.B, warm bool) *Reader {
	b.Helper()
	path := b.TempDir() + "/f.sst"
	writeFile(b, path, rows(benchRows, 1000), Options{})
	f, err := vfs.Default.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	rd, err := sstable.NewSimpleReadable(f)
	if err != nil {
		b.Fatal(err)
	}
	c := NewCache(512<<20, 0)
	r, err := Open(b.Context(), c, rd, "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.Close(); c.Close() })
	if warm {
		it, err := r.Iterator(b.Context(), IterOptions{})
		if err != nil {
			b.Fatal(err)
		}
		for ok := it.First(); ok; ok = it.Next() {
		}
		it.Close()
	}
	return r
}

type discard struct{}

func (discard) Write([]byte) error { return nil }
func (discard) Finish() error      { return nil }
func (discard) Abort()             {}

// BenchmarkWrite writes 64 MB of 1,000-byte values that do not compress, to
// nowhere.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []Compression{Snappy, NoCompression, MinLZ, Zstd} {
		b.Run(c.String(), func(b *testing.B) {
			es := rows(64<<10, 1000)
			b.SetBytes(64 << 10 * 1034)
			b.ReportAllocs()
			for b.Loop() {
				w, err := NewWriter(discard{}, Options{Compression: c})
				if err != nil {
					b.Fatal(err)
				}
				for i := range es {
					if err := w.Add(&es[i]); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := w.Finish(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWriteFile writes them to disk, and syncs.
func BenchmarkWriteFile(b *testing.B) {
	es := rows(64<<10, 1000)
	dir := b.TempDir()
	b.SetBytes(64 << 10 * 1034)
	for b.Loop() {
		writeFile(b, dir+"/f.sst", es, Options{})
	}
	b.ReportMetric(float64(b.N)*float64(len(es))/b.Elapsed().Seconds(), "rows/s")
}

func benchPoint(b *testing.B, odd int) {
	r := benchFile(b, true)
	keys := make([][]byte, 1<<14)
	rnd := rand.New(rand.NewPCG(5, 5))
	for i := range keys {
		keys[i] = prefix(2*rnd.IntN(benchRows-1) + odd)
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		i, n := rand.IntN(len(keys)), 0
		for pb.Next() {
			it, err := r.Iterator(context.Background(), IterOptions{})
			if err != nil {
				b.Error(err)
				return
			}
			i = (i + 1) % len(keys)
			if it.SeekRow(keys[i]) != (odd == 0) {
				b.Error("wrong row")
			}
			n += len(it.Entry().Value)
			it.Close()
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
}

func BenchmarkPointRead(b *testing.B)       { benchPoint(b, 0) }
func BenchmarkPointReadAbsent(b *testing.B) { benchPoint(b, 1) }

func benchScan(b *testing.B, warm bool, iterator func(*Reader) (cell.Iterator, error)) {
	r := benchFile(b, warm)
	b.ResetTimer()
	for b.Loop() {
		it, err := iterator(r)
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			n += len(it.Entry().Value)
		}
		it.Close()
		if n != benchRows*1000 {
			b.Fatal("wrong scan")
		}
	}
	b.ReportMetric(float64(b.N)*benchRows/b.Elapsed().Seconds(), "rows/s")
}

func BenchmarkScan(b *testing.B) {
	benchScan(b, true, func(r *Reader) (cell.Iterator, error) { return r.Iterator(b.Context(), IterOptions{}) })
}

// BenchmarkScanCompaction reads from the page cache of the system.
func BenchmarkScanCompaction(b *testing.B) {
	b.SetBytes(benchRows * 1034)
	benchScan(b, false, func(r *Reader) (cell.Iterator, error) { return r.CompactionIterator(b.Context()) })
}

// Iterators in large blocks count against the cache: at a bound they are refused
// as what may be tried again. Compactions are not. All of it comes back.
func TestHeldBlocks(t *testing.T) {
	cache := newCache(t) // 64 MiB
	cache.BoundLarge(48 << 20)
	var es []cell.Entry
	for i := range 30 {
		es = append(es, cell.Entry{Key: cellKey(fmt.Sprintf("%02d", i), 1, "q", 1), Value: make([]byte, 3<<20), Seq: 1, Kind: cell.Set})
	}
	f, _ := write(t, Options{}, es)
	r := open(t, cache, f)
	var its []*Iterator
	in := func() error {
		it, err := r.Iterator(t.Context(), IterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		its = append(its, it)
		it.First()
		return it.Error()
	}
	for i := range 15 {
		if err := in(); err != nil {
			t.Fatalf("block %d of 15 that have room: %v", i, err)
		}
	}
	if err := in(); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a block beyond the bound: %v", err)
	}
	if room, most := cache.blocks.MaxSize()-cache.reserved.Load(), int64(20<<20); room > most {
		t.Errorf("blocks may have %d bytes of the cache, beside those that are held", room)
	}
	c, err := r.CompactionIterator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ok := c.First(); ok; ok = c.Next() {
		n++
	}
	if err := errors.Join(c.Error(), c.Close()); n != 30 || err != nil {
		t.Errorf("a compaction read %d entries, %v", n, err)
	}
	for _, it := range its {
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}
	if cache.held.Used() != 0 || cache.reserved.Load() != 0 {
		t.Errorf("%d bytes are held in the end, %d reserved", cache.held.Used(), cache.reserved.Load())
	}
	if err := in(); err != nil {
		t.Error(err)
	}
	if err := its[len(its)-1].Close(); err != nil {
		t.Error(err)
	}
}
