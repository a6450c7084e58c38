package sstable

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// fullCache returns a cache that is full and knows it, so that no long read fills it in.
func fullCache(t testing.TB) *Cache {
	t.Helper()
	c := NewCache(8<<20, 0)
	t.Cleanup(c.Close)
	f, _ := write(t, Options{}, rows(12_000, 1000))
	r := open(t, c, f)
	it := iterate(t, r, IterOptions{})
	for ok := it.First(); ok; ok = it.Next() {
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		t.Fatal(err)
	}
	if !c.Full() {
		t.Fatal("the cache is not full")
	}
	return c
}

// long are the options of a read that has gone on for so long that it is past the cache.
func long() IterOptions { return IterOptions{Blocks: new(BlockStats), Before: 1 << 40} }

// A read past the cache shows what one through it does, wherever it goes.
func TestPastCache(t *testing.T) {
	es := rows(3000, 300)
	for i := range es {
		if i%3 == 0 { // so that some blocks are compressed
			es[i].Value = make([]byte, 300)
		}
		if i >= 1000 && i < 1400 {
			es[i].Value = make([]byte, 300)
		}
	}
	c := fullCache(t)
	for _, o := range []Options{{}, {BlockBytes: 1 << 10}, {BlockBytes: 1 << 10, Compression: NoCompression, indexBytes: 1 << 10}, {BlockBytes: 4000, Compression: Zstd, indexBytes: 1 << 10}} {
		f, _ := write(t, o, es)
		past, through := open(t, c, f), open(t, newCache(t), f)
		ahead := &Ahead{}
		opt := long()
		opt.Ahead = ahead
		a, b := iterate(t, past, opt), iterate(t, through, IterOptions{})
		r := rand.New(rand.NewPCG(1, 2))
		ok := false
		for step := range 20_000 {
			n := r.IntN(2*len(es) + 10)
			var got bool
			switch op := r.IntN(100); {
			case ok && op < 90:
				got, ok = a.Next(), b.Next()
			case op < 93:
				if r.IntN(2) == 0 {
					*ahead = Ahead{Bytes: int64(r.IntN(400 << 10))}
				}
				if r.IntN(3) == 0 {
					ahead.End = prefix(n + r.IntN(300))
				}
				got, ok = a.SeekGE(prefix(n)), b.SeekGE(prefix(n))
			case op < 96:
				got, ok = a.SeekLT(prefix(n)), b.SeekLT(prefix(n))
			case op < 99:
				got, ok = a.SeekRow(prefix(n)), b.SeekRow(prefix(n))
			default:
				got, ok = a.First(), b.First()
			}
			if got != ok || ok && !equal(a.Entry(), b.Entry()) || a.Error() != nil {
				t.Fatalf("%+v: step %d: %v past the cache, %v through it (%v)", o, step, got, ok, a.Error())
			}
		}
		if n := len(es); opt.Blocks.BlockBytes == 0 || n == 0 {
			t.Errorf("%+v: no block is counted", o)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := c.ahead.Used(); n != 0 {
		t.Errorf("%d bytes are counted as read ahead in the end", n)
	}
}

// scanPages reads from a row on, as a read does that ends when it has bytes of values,
// and returns how many reads of storage, of how many bytes, that took.
func scanPages(t *testing.T, r *Reader, f *memFile, from int, bytes int, o IterOptions) (reads, read int64) {
	t.Helper()
	reads, read = f.reads.Load(), f.bytes.Load()
	it := iterate(t, r, o)
	n := 0
	for ok := it.SeekGE(prefix(2 * from)); ok && n < bytes; ok = it.Next() {
		n += len(it.Entry().Value)
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		t.Fatal(err)
	}
	return f.reads.Load() - reads, f.bytes.Load() - read
}

// What is expected of a read is read at once, and little more. What is not in order, or
// behind the end, is not.
func TestExpectedIsReadAhead(t *testing.T) {
	c := fullCache(t)
	f, _ := write(t, Options{}, rows(5000, 1000))
	r := open(t, c, f)
	_, _ = scanPages(t, r, f, 0, 1, long()) // the index
	const page = 100_000
	expecting := func(n int64, end []byte) IterOptions {
		o := long()
		o.Ahead = &Ahead{Bytes: n, End: end}
		return o
	}
	var reads, read, plain, plainRead int64
	const pages = 40
	for i := range pages {
		n, m := scanPages(t, r, f, 100*i, page, expecting(page, nil))
		reads, read = reads+n, read+m
		n, m = scanPages(t, r, f, 100*i, page, long())
		plain, plainRead = plain+n, plainRead+m
	}
	if reads > 2*pages || plain < 3*pages {
		t.Errorf("%d pages take %d reads, %d if nothing is expected", pages, reads, plain)
	}
	if read > plainRead*5/4 {
		t.Errorf("%d pages take %d bytes, %d if nothing is expected", pages, read, plainRead)
	}
	if _, n := scanPages(t, r, f, 1000, 3000, expecting(page, prefix(2*1003))); n > 70<<10 {
		t.Errorf("%d bytes are read of a range of three rows", n)
	}
	// Rows far from each other: only the first seek reads ahead.
	o := expecting(250_000, nil)
	it := iterate(t, r, o)
	before := f.bytes.Load()
	for i := range 30 {
		if !it.SeekGE(prefix(2 * (i * 130))) {
			t.Fatal(it.Error())
		}
	}
	if n := f.bytes.Load() - before; n > 30*(32<<10)+stretchBytes {
		t.Errorf("30 rows far from each other take %d bytes", n)
	}
	if err := it.Close(); err != nil {
		t.Error(err)
	}
	// Blocks in the cache are not read again.
	whole := NewCache(64<<20, 0)
	t.Cleanup(whole.Close)
	w := open(t, whole, f)
	for i := 2; i < 160; i += 4 {
		_, _ = scanPages(t, w, f, i*30, 1, IterOptions{})
	}
	all := iterate(t, w, IterOptions{Ahead: &Ahead{Bytes: 1 << 20}})
	before = f.bytes.Load()
	for ok := all.First(); ok; ok = all.Next() {
	}
	if n := f.bytes.Load() - before; n > int64(len(f.data))*4/5 {
		t.Errorf("a scan reads %d of %d bytes, of which a quarter is in the cache", n, len(f.data))
	}
	if m := whole.Metrics(); m.Misses > 2*m.Blocks {
		t.Errorf("%d misses for %d blocks", m.Misses, m.Blocks)
	}
}

// When many read ahead at the same time some read block by block.
func TestReadAheadIsBounded(t *testing.T) {
	c := fullCache(t)
	f, _ := write(t, Options{}, rows(2000, 1000))
	r := open(t, c, f)
	var its []cell.Iterator
	for range 20 {
		o := long()
		o.Ahead = &Ahead{Bytes: 1 << 20}
		it := iterate(t, r, o)
		n := 0
		for ok := it.First(); ok && n < 1000; ok = it.Next() {
			n++
		}
		if n != 1000 || it.Error() != nil {
			t.Fatalf("%d rows: %v", n, it.Error())
		}
		its = append(its, it)
	}
	if used := c.ahead.Used(); used == 0 || used > c.ahead.Limit() {
		t.Errorf("%d bytes are read ahead, of %d", used, c.ahead.Limit())
	}
	for _, it := range its {
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}
	if used := c.ahead.Used(); used != 0 {
		t.Errorf("%d bytes are read ahead in the end", used)
	}
}

// badFile cannot read some bytes.
type badFile struct {
	*memFile
	from, to int64
}

func (b *badFile) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < b.to && off+int64(len(p)) > b.from {
		return errors.New("medium error")
	}
	return b.memFile.ReadAt(ctx, p, off)
}

// A damaged block, and one that storage cannot read, fail the read that comes to it, not
// those of blocks that are read with it.
func TestDamageInReadAhead(t *testing.T) {
	c := fullCache(t)
	es := rows(2000, 1000)
	f, _ := write(t, Options{}, es)
	at := bytes.Index(f.data, es[1000].Value)
	if at < 0 {
		t.Fatal("the row is not in the file")
	}
	sound := f.data
	for _, damaged := range []bool{true, false} {
		bad := &badFile{memFile: f}
		if f.data = bytes.Clone(sound); damaged {
			f.data[at] ^= 1
		} else {
			bad.from, bad.to = int64(at), int64(at)+1
		}
		r, err := Open(t.Context(), c, bad, "bad")
		if err != nil {
			t.Fatal(err)
		}
		o := long()
		o.Ahead = &Ahead{Bytes: 2 << 20}
		it := iterate(t, r, o)
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			if !equal(it.Entry(), &es[n]) {
				t.Fatalf("row %d is wrong", n)
			}
			n++
		}
		if n > 1000 || n < 1000-32 {
			t.Errorf("%d rows were read before row 1000", n)
		}
		if err := it.Error(); err == nil || errors.Is(err, fault.Corruption) != damaged {
			t.Errorf("damaged is %v: %v", damaged, err)
		}
		if o.Ahead.Bytes = 2 << 20; !it.SeekGE(prefix(2*1000 + 2*32)) {
			t.Errorf("rows behind the block: %v", it.Error())
		}
		if it.SeekGE(prefix(2 * 1000)) {
			t.Error("the bad row was read")
		}
		if err := errors.Join(it.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	}
}
