package memtable

import (
	"bytes"
	"sync"
	"unsafe"

	"github.com/trestledb/trestle/engine/cell"
)

// iterator implements cell.Iterator over the entries up to a sequence number.
type iterator struct {
	m      *Memtable
	maxSeq cell.Seq
	// table may be shorter than the arena's; node loads that again when an
	// address lies behind it.
	table []unsafe.Pointer
	nd    *header // nil if not at an entry
	entry cell.Entry
	// path has, of the levels below deep, the last node before what was sought last. A
	// key that is not far behind that is found from there: as rows of a sorted batch are.
	path [maxHeight]*header
	deep int
}

var iterators = sync.Pool{New: func() any { return new(iterator) }}

// Iterator returns an iterator over the entries whose sequence number is at
// most maxSeq. It may be used while entries are added and then sees each new
// one or not; a caller whose maxSeq was complete when it called has a
// snapshot. What Entry returns refers to the memtable's own memory: it must not
// be changed and stays valid after the next positioning call and after Close.
// The iterator must not be used after Close.
func (m *Memtable) Iterator(maxSeq cell.Seq) cell.Iterator {
	it := iterators.Get().(*iterator)
	it.m, it.maxSeq = m, maxSeq
	return it
}

// node returns the node at address a, nil for 0.
func (it *iterator) node(a uint32) *header {
	if int(a>>offsetBits) >= len(it.table) {
		if a == 0 {
			return nil
		}
		it.table = *it.m.arena.table.Load()
	}
	return nodeAt(it.table, a)
}

// seek returns the last node before (key, seq), nil for the head, and the node
// behind that one, nil for the end.
func (it *iterator) seek(key []byte, seq cell.Seq) (prev, next *header) {
	var above *header // a node known not to be before key
	level := int(it.m.height.Load()) - 1
	if it.deep > 0 && it.path[0] != nil && it.path[0].before(key, seq) {
		level, above = it.climb(key, seq)
		prev = it.path[level]
	}
	it.deep = max(it.deep, level+1)
	for ; level >= 0; level-- {
		next = it.node(it.m.link(prev, level).Load())
		for next != nil && next != above && next.before(key, seq) {
			prev, next = next, it.node(next.link(level).Load())
		}
		it.path[level], above = prev, next
	}
	return prev, next
}

// climb returns the lowest level of path at which (key, seq), before which all of path is,
// lies before the next node, and that node. It is the highest level of path if there is none.
func (it *iterator) climb(key []byte, seq cell.Seq) (level int, next *header) {
	for ; level < it.deep-1; level++ {
		next = it.node(it.m.link(it.path[level], level).Load())
		if next == nil || !next.before(key, seq) {
			return level, next
		}
	}
	return level, nil
}

// toVisible moves to nd or the first visible node behind it.
func (it *iterator) toVisible(nd *header) bool {
	for nd != nil && nd.seq() > it.maxSeq {
		nd = it.node(nd.link(0).Load())
	}
	return it.set(nd)
}

func (it *iterator) set(nd *header) bool {
	it.nd = nd
	if nd == nil {
		return false
	}
	if int(nd.valueAt>>offsetBits) >= len(it.table) {
		it.table = *it.m.arena.table.Load()
	}
	it.entry.Key = nd.key()
	it.entry.Value = nd.value(it.table)
	it.entry.Seq = nd.seq()
	it.entry.Kind = nd.kind()
	return true
}

func (it *iterator) First() bool {
	return it.toVisible(it.node(it.m.head[0].Load()))
}

func (it *iterator) SeekGE(key []byte) bool {
	_, nd := it.seek(key, cell.MaxSeq+1)
	return it.toVisible(nd)
}

func (it *iterator) SeekRow(row []byte) bool {
	_, nd := it.seek(row, cell.MaxSeq+1)
	return it.toVisible(nd) && (bytes.HasPrefix(it.entry.Key, row) || it.set(nil))
}

// SeekLT costs a search for each key before key of which no entry is visible;
// only keys of mutations that are newer than maxSeq are such.
func (it *iterator) SeekLT(key []byte) bool {
	for {
		nd, _ := it.seek(key, cell.MaxSeq+1)
		// nd is the oldest entry of its key.
		if nd == nil || nd.seq() <= it.maxSeq {
			return it.set(nd)
		}
		key = nd.key()
	}
}

func (it *iterator) Next() bool {
	return it.toVisible(it.node(it.nd.link(0).Load()))
}

func (it *iterator) Entry() *cell.Entry { return &it.entry }

func (it *iterator) Error() error { return nil }

func (it *iterator) Close() error {
	*it = iterator{}
	iterators.Put(it)
	return nil
}
