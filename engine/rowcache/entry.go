package rowcache

import (
	"bytes"
	"encoding/binary"
	"math"
	"sort"

	"github.com/trestledb/trestle/engine/cell"
)

// An Entry is a row, or the note that a row is too large to be one. What is in it
// does not change.
type Entry struct {
	hash   uint64
	tablet uint64
	state  uint64
	part   uint64
	row    []byte
	at     int  // in the ring
	used   bool // since the hand passed

	tooLarge bool
	// data holds one entry of the SSTables after the other, ends where each ends:
	//
	//	length of key (4) · seq<<2|kind (8) · key · value
	data []byte
	ends []uint32
}

const header = 4 + 8

// entryBytes is what an Entry, its places in map and ring, and the rounding of
// the allocator take.
const entryBytes = 256

func (e *Entry) size() int64 {
	return int64(entryBytes + len(e.row) + cap(e.data) + 4*cap(e.ends))
}

// is tells whether e is of k's row, in whatever state.
func (e *Entry) is(k Key) bool {
	return e.tablet == k.Tablet && e.part == k.Part && bytes.Equal(e.row, k.Row)
}

// TooLarge tells that the row is not in the entry, being too large.
func (e *Entry) TooLarge() bool { return e.tooLarge }

// A Builder makes Entries. The zero Builder is ready.
type Builder struct {
	data []byte
	ends []uint32
}

// Add adds an entry, copying it. Entries come in cell.Compare order.
func (b *Builder) Add(e *cell.Entry) {
	b.data = binary.BigEndian.AppendUint32(b.data, uint32(len(e.Key)))
	b.data = binary.BigEndian.AppendUint64(b.data, uint64(e.Seq)<<2|uint64(e.Kind))
	b.data = append(append(b.data, e.Key...), e.Value...)
	b.ends = append(b.ends, uint32(min(len(b.data), math.MaxUint32)))
}

// Bytes returns how much has been added.
func (b *Builder) Bytes() int { return len(b.data) + 4*len(b.ends) }

// Entry returns what was added. The Builder may be used again.
func (b *Builder) Entry() *Entry {
	e := &Entry{data: make([]byte, len(b.data)), ends: make([]uint32, len(b.ends))}
	copy(e.data, b.data)
	copy(e.ends, b.ends)
	return e
}

// TooLarge returns the entry of a row that is too large.
func TooLarge() *Entry { return &Entry{tooLarge: true} }

// An Iterator walks the entries of an Entry. What Entry returns is part of the
// entry and stays valid. It needs no Close.
type Iterator struct {
	e     *Entry
	i     int
	entry cell.Entry
}

var _ cell.Iterator = (*Iterator)(nil)

// Reset makes it walk e, positioned nowhere.
func (it *Iterator) Reset(e *Entry) { *it = Iterator{e: e} }

// split returns the parts of entry i.
func (e *Entry) split(i int) (key, value []byte, trailer uint64) {
	start := uint32(0)
	if i > 0 {
		start = e.ends[i-1]
	}
	b := e.data[start:e.ends[i]:e.ends[i]]
	n := binary.BigEndian.Uint32(b) + header
	return b[header:n:n], b[n:], binary.BigEndian.Uint64(b[4:])
}

func (it *Iterator) move(i int) bool {
	it.i = i
	if i < 0 || i >= len(it.e.ends) {
		it.entry = cell.Entry{}
		return false
	}
	var trailer uint64
	it.entry.Key, it.entry.Value, trailer = it.e.split(i)
	it.entry.Seq, it.entry.Kind = cell.Seq(trailer>>2), cell.Kind(trailer&3)
	return true
}

// search returns the first entry at or after key.
func (it *Iterator) search(key []byte) int {
	return sort.Search(len(it.e.ends), func(i int) bool {
		k, _, _ := it.e.split(i)
		return bytes.Compare(k, key) >= 0
	})
}

// First implements cell.Iterator.
func (it *Iterator) First() bool { return it.move(0) }

// SeekGE implements cell.Iterator.
func (it *Iterator) SeekGE(key []byte) bool { return it.move(it.search(key)) }

// SeekRow implements cell.Iterator. It is the entry's row, or nothing is there.
func (it *Iterator) SeekRow(row []byte) bool { return bytes.Equal(row, it.e.row) && it.move(0) }

// SeekLT implements cell.Iterator.
func (it *Iterator) SeekLT(key []byte) bool { return it.move(it.search(key) - 1) }

// Next implements cell.Iterator.
func (it *Iterator) Next() bool { return it.move(it.i + 1) }

// Entry implements cell.Iterator.
func (it *Iterator) Entry() *cell.Entry { return &it.entry }

// Error implements cell.Iterator.
func (it *Iterator) Error() error { return nil }

// Close implements cell.Iterator.
func (it *Iterator) Close() error { *it = Iterator{}; return nil }
