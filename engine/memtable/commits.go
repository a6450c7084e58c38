package memtable

import (
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/trestledb/trestle/engine/cell"
)

// markEvery is the number of records between two marks. To find a place takes a
// search among marks, and a walk over as many records at most.
const markEvery = 256

// commits is the order in which entries were added: a list through header.later, in
// nodes that are there anyway. Only the writer looks at anything but first and marks.
type commits struct {
	first atomic.Uint32
	marks atomic.Pointer[[]mark]

	begin   bool // the next entry begins a record
	last    *header
	records int
}

// A mark is the first node of a record.
type mark struct {
	seq cell.Seq
	at  uint32
}

func (c *commits) add(m *Memtable, nd *header, at addr) {
	if c.begin {
		c.begin = false
		if c.records%markEvery == 0 {
			var marks []mark
			if p := c.marks.Load(); p != nil {
				marks = *p
			}
			// Readers know of the length before.
			marks = append(marks, mark{nd.seq(), uint32(at)})
			c.marks.Store(&marks)
		}
		c.records++
	}
	if c.last == nil {
		c.first.Store(uint32(at))
	} else {
		c.last.later.Store(uint32(at))
	}
	c.last = nd
}

// BeginRecord says that the entries that follow, up to the next call, are one record.
// Their sequence numbers are above those of all before. It does nothing if the
// memtable does not record.
func (m *Memtable) BeginRecord() {
	if m.commits != nil {
		m.commits.begin = true
	}
}

// Records tells whether the memtable keeps the order in which entries are added.
func (m *Memtable) Records() bool { return m.commits != nil }

// A CommitIterator walks entries in the order in which they were added. It may be
// used while entries are added.
type CommitIterator struct {
	m     *Memtable
	table []unsafe.Pointer
	max   cell.Seq
	nd    *header
	next  uint32
	entry cell.Entry
}

// Commits returns an iterator over the entries of records that begin after a sequence
// number, up to another one, from before the first. The memtable records.
func (m *Memtable) Commits(after, through cell.Seq) *CommitIterator {
	it := &CommitIterator{m: m, max: through, next: m.commits.first.Load()}
	if p := m.commits.marks.Load(); p != nil {
		marks := *p
		// The last mark that is not beyond the place.
		if i := sort.Search(len(marks), func(i int) bool { return marks[i].seq > after }) - 1; i >= 0 {
			it.next = marks[i].at
		}
	}
	for it.peek() && it.nd.seq() <= after {
		it.next = it.nd.later.Load()
	}
	// What is left of a record that began before is no part of one that begins after.
	for it.peek() && !it.nd.begins() {
		it.next = it.nd.later.Load()
	}
	it.nd = nil
	return it
}

// peek makes the node at it.next the current one.
func (it *CommitIterator) peek() bool {
	if it.next == 0 {
		it.nd = nil
		return false
	}
	if int(it.next>>offsetBits) >= len(it.table) {
		it.table = *it.m.arena.table.Load()
	}
	it.nd = nodeAt(it.table, it.next)
	return true
}

// Next moves to the following entry and tells whether there is one.
func (it *CommitIterator) Next() bool {
	if it.nd != nil {
		it.next = it.nd.later.Load()
	}
	if !it.peek() {
		return false
	}
	nd := it.nd
	if nd.seq() > it.max {
		// It stays before this node.
		it.nd = nil
		return false
	}
	if int(nd.valueAt>>offsetBits) >= len(it.table) {
		it.table = *it.m.arena.table.Load()
	}
	it.entry = cell.Entry{Key: nd.key(), Value: nd.value(it.table), Seq: nd.seq(), Kind: nd.kind()}
	return true
}

// Begins tells whether the current entry is the first of a record.
func (it *CommitIterator) Begins() bool { return it.nd.begins() }

// Entry returns the current entry. It refers to the memtable's own memory and stays
// valid, as that of Iterator does.
func (it *CommitIterator) Entry() *cell.Entry { return &it.entry }
