package changes

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

const (
	chunkBytes = 1 << 20
	blockBytes = 16 << 10
	footerLen  = 24
	magic      = "trestchg"

	// version is of a file whose records all have changes, and rowsVersion of another. Programs
	// that know the former alone would give clients of a stream a record that tells nothing.
	version     = 1
	rowsVersion = 2
)

// A Writable takes the bytes of a new file. It is that of engine/sstable.
type Writable interface {
	// Write appends p. It may change p, and must not keep it.
	Write(p []byte) error
	// Finish makes the file durable and visible. Neither Write nor Abort may
	// follow.
	Finish() error
	// Abort gives up; the file does not come to exist. Nothing may follow.
	Abort()
}

// An Info says what a change file holds.
type Info struct {
	Records uint64
	// Lo and Hi are the smallest and the largest stamp; 0 if there is no record.
	Lo, Hi cell.Seq
	// Bytes is the length of the file, RawBytes that of its records before
	// compression.
	Bytes, RawBytes int64
}

// A FileWriter writes one change file. It is not safe for concurrent use. Either Finish or
// Abort must be called.
type FileWriter struct {
	w    Writable
	info Info
	err  error
	rows bool // a record has no Changes
	// first and last are the smallest and the largest row key of chunks that are cut.
	first, last []byte

	// The chunk: its records in the order in which they came.
	buf    []byte // row key and body of each
	recs   []pending
	order  []sortable
	lo, hi cell.Seq

	block, out, index, dir []byte
	chunks                 int
}

type pending struct {
	key, body, end uint32 // where they begin, and end, in buf
	stamp          cell.Seq
}

// sortable is record n, whose row key begins with prefix.
type sortable struct {
	prefix uint64
	n      uint32
}

// NewFileWriter returns a FileWriter of a file that has been begun.
func NewFileWriter(w Writable) *FileWriter { return &FileWriter{w: w} }

// Add appends a record. Records come in the order of commit: their stamps do not fall,
// and those of one row grow. The stamp is not 0, not even in a file whose records get
// theirs later (Source.At).
func (w *FileWriter) Add(r *Record) error {
	if w.err != nil {
		return w.err
	}
	if r.Stamp == 0 || r.Stamp < w.info.Hi {
		return w.fail(fault.New(fault.Internal, "a record with stamp %d follows one with %d", r.Stamp, w.info.Hi))
	}
	p := pending{key: uint32(len(w.buf)), stamp: r.Stamp}
	w.buf = append(w.buf, r.Key...)
	p.body = uint32(len(w.buf))
	var collected byte
	if r.Collected {
		collected = 1
	}
	w.buf = append(w.buf, collected)
	for i := range r.Changes {
		if w.buf = appendChange(w.buf, &r.Changes[i]); len(w.buf) > 1<<31 {
			return w.fail(fault.New(fault.Invalid, "the changes of a row are more than 2 GiB"))
		}
	}
	p.end = uint32(len(w.buf))
	if len(w.recs) == 0 {
		w.lo, w.hi = r.Stamp, r.Stamp
	}
	w.lo, w.hi = min(w.lo, r.Stamp), max(w.hi, r.Stamp)
	w.recs = append(w.recs, p)
	w.rows = w.rows || len(r.Changes) == 0
	if w.info.Records == 0 {
		w.info.Lo = r.Stamp
	}
	w.info.Records++
	w.info.Lo, w.info.Hi = min(w.info.Lo, r.Stamp), max(w.info.Hi, r.Stamp)
	if len(w.buf) >= chunkBytes {
		return w.cut()
	}
	return nil
}

func appendChange(b []byte, c *Change) []byte {
	b = append(b, byte(c.Op))
	if c.Op == DeleteRow {
		return b
	}
	b = binary.AppendUvarint(b, uint64(c.Family))
	if c.Op == DeleteFamily {
		return b
	}
	b = appendBytes(b, c.Qualifier)
	if c.Op == DeleteColumn {
		return binary.AppendVarint(binary.AppendVarint(b, c.Times.Start), c.Times.End)
	}
	return appendBytes(binary.AppendVarint(b, c.Timestamp), c.Value)
}

// cut ends the chunk.
func (w *FileWriter) cut() error {
	if len(w.recs) == 0 || w.err != nil {
		return w.err
	}
	w.sort()
	w.out, w.index = w.out[:0], w.index[:0]
	for left := w.order; len(left) > 0; {
		first := w.key(left[0])
		var last []byte
		w.block = w.block[:0]
		for len(left) > 0 {
			r := &w.recs[left[0].n]
			k := w.buf[r.key:r.body]
			if len(w.block) > 0 && len(w.block)+int(r.end-r.key) > blockBytes {
				break
			}
			shared := commonPrefix(last, k)
			w.block = binary.AppendUvarint(w.block, uint64(shared))
			w.block = appendBytes(w.block, k[shared:])
			w.block = binary.AppendUvarint(w.block, uint64(r.stamp-w.lo))
			w.block = appendBytes(w.block, w.buf[r.body:r.end])
			last, left = k, left[1:]
		}
		at := len(w.out)
		w.out = appendFrame(w.out, w.block)
		w.info.RawBytes += int64(len(w.block))
		w.index = appendBytes(w.index, first)
		w.index = binary.AppendUvarint(w.index, uint64(len(w.out)-at))
	}
	blocks := len(w.out)
	w.out = appendFrame(w.out, w.index)
	w.dir = binary.AppendUvarint(w.dir, uint64(blocks))
	w.dir = binary.AppendUvarint(w.dir, uint64(len(w.out)-blocks))
	w.dir = binary.AppendUvarint(w.dir, uint64(len(w.recs)))
	w.dir = binary.AppendUvarint(w.dir, uint64(w.lo))
	w.dir = binary.AppendUvarint(w.dir, uint64(w.hi-w.lo))
	w.dir = appendBytes(appendBytes(w.dir, w.key(w.order[0])), w.key(w.order[len(w.order)-1]))
	if first := w.key(w.order[0]); w.chunks == 0 || bytes.Compare(first, w.first) < 0 {
		w.first = bytes.Clone(first)
	}
	if last := w.key(w.order[len(w.order)-1]); bytes.Compare(last, w.last) > 0 {
		w.last = bytes.Clone(last)
	}
	w.chunks++
	w.buf, w.recs = w.buf[:0], w.recs[:0]
	return w.write(w.out)
}

// key returns the row key of a record of the chunk.
func (w *FileWriter) key(s sortable) []byte { return w.buf[w.recs[s.n].key:w.recs[s.n].body] }

// sort fills order with the records of the chunk by row, those of one row as they
// came.
func (w *FileWriter) sort() {
	w.order = w.order[:0]
	for n := range w.recs {
		r := &w.recs[n]
		w.order = append(w.order, sortable{keyPrefix(w.buf[r.key:r.body]), uint32(n)})
	}
	slices.SortFunc(w.order, func(a, b sortable) int {
		if a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		return cmp.Or(bytes.Compare(w.key(a), w.key(b)), cmp.Compare(a.n, b.n))
	})
}

// keyPrefix orders as the first eight bytes of a key do.
func keyPrefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if binary.LittleEndian.Uint64(a[i:]) != binary.LittleEndian.Uint64(b[i:]) {
			break
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// write appends to the file.
func (w *FileWriter) write(p []byte) error {
	w.info.Bytes += int64(len(p))
	if err := w.w.Write(p); err != nil {
		return w.fail(err)
	}
	return nil
}

func (w *FileWriter) fail(err error) error {
	w.err = fmt.Errorf("write change file: %w", err)
	return w.err
}

// Finish completes the file and makes it durable. After an error there is no file.
func (w *FileWriter) Finish() (Info, error) {
	if err := w.cut(); err != nil {
		w.w.Abort()
		return Info{}, err
	}
	dir := binary.AppendUvarint(nil, w.info.Records)
	dir = binary.AppendUvarint(dir, uint64(w.info.RawBytes))
	dir = append(binary.AppendUvarint(dir, uint64(w.chunks)), w.dir...)
	at := binary.LittleEndian.AppendUint64(nil, uint64(w.info.Bytes))
	w.out = appendFrame(w.out[:0], dir)
	w.out = append(w.out, at...)
	w.out = binary.LittleEndian.AppendUint32(w.out, crc32.Checksum(at, castagnoli))
	v := uint32(version)
	if w.rows {
		v = rowsVersion
	}
	w.out = binary.LittleEndian.AppendUint32(w.out, v)
	if err := w.write(append(w.out, magic...)); err != nil {
		w.w.Abort()
		return Info{}, err
	}
	if err := w.w.Finish(); err != nil {
		return Info{}, w.fail(err)
	}
	return w.info, nil
}

// Rows returns Ref.Rows of a file that is finished, and has a record.
func (w *FileWriter) Rows() row.Range { return bound(w.first, w.last) }

// Abort gives up the file.
func (w *FileWriter) Abort() { w.w.Abort() }
