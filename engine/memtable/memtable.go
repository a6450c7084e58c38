package memtable

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"unsafe"

	"github.com/trestledb/trestle/engine/cell"
)

const (
	maxHeight  = 20
	headerSize = 24
	linkSize   = 4
	// inlineValue is the length up to which a value lies behind its key.
	inlineValue = 32
)

// heightLimit[h] is the bound on a random uint32 below which a node is higher
// than h. Each level holds 1/e of the one below, which needs the fewest
// comparisons.
var heightLimit = func() (limit [maxHeight]uint32) {
	p := 1.0
	for h := range limit {
		limit[h] = uint32(math.MaxUint32 * p)
		p /= math.E
	}
	return limit
}()

// header is the fixed part of a node; height links, the key and a short value
// follow it in memory. Nothing but the links changes once a node is linked.
type header struct {
	keyLen   uint32
	valueLen uint32
	valueAt  addr // of a value that does not follow the key
	// later is the node that was committed after this one, if the memtable records.
	later atomic.Uint32
	// trailer is seq<<8 | begins<<7 | height<<2 | kind. A height is below 32 and a
	// kind is below 4.
	trailer uint64
}

// beginsBit says that the node is the first of a record.
const beginsBit = 1 << 7

func (h *header) seq() cell.Seq   { return cell.Seq(h.trailer >> 8) }
func (h *header) kind() cell.Kind { return cell.Kind(h.trailer & 3) }
func (h *header) height() int     { return int(h.trailer >> 2 & 31) }
func (h *header) begins() bool    { return h.trailer&beginsBit != 0 }

func (h *header) link(level int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Add(unsafe.Pointer(h), headerSize+linkSize*level))
}

// data returns the address of the key, which a short value follows.
func (h *header) data() *byte {
	return (*byte)(unsafe.Add(unsafe.Pointer(h), headerSize+linkSize*h.height()))
}

func (h *header) key() []byte { return unsafe.Slice(h.data(), h.keyLen) }

func (h *header) value(table []unsafe.Pointer) []byte {
	if h.valueAt != 0 {
		return unsafe.Slice((*byte)(address(table, uint32(h.valueAt))), h.valueLen)
	}
	return unsafe.Slice(h.data(), h.keyLen+h.valueLen)[h.keyLen:]
}

// before tells whether h sorts before the entry (key, seq).
func (h *header) before(key []byte, seq cell.Seq) bool {
	c := bytes.Compare(h.key(), key)
	return c < 0 || c == 0 && h.seq() > seq
}

// A Memtable is an ordered set of entries. The package comment says which calls
// may be made at the same time. The zero value is not usable; call New.
type Memtable struct {
	arena  arena
	head   [maxHeight]atomic.Uint32
	height atomic.Int32 // levels in use, at least 1

	count  atomic.Int64
	minSeq atomic.Uint64
	maxSeq atomic.Uint64
	ends   atomic.Bool // one is of the kind cell.SetUntil

	// splice is where the last Add linked its node: at each level below height,
	// prev[i] and next[i] are neighbours and that node is prev[i] or lies
	// between them. An Add close to the last one starts from there. A nil node
	// is the head as prev and the end as next. Only the writer looks at it.
	splice struct {
		prev, next [maxHeight]*header
	}
	rng *rand.PCG

	commits *commits // nil if the memtable does not record
}

// New returns an empty Memtable.
func New() *Memtable {
	m := &Memtable{rng: rand.NewPCG(rand.Uint64(), rand.Uint64())}
	m.height.Store(1)
	return m
}

// NewRecording returns an empty Memtable that also keeps the order in which entries
// are added: see BeginRecord and Commits.
func NewRecording() *Memtable {
	m := New()
	m.commits = new(commits)
	return m
}

// Bytes returns the size of the memory that holds the entries, including what
// is allocated but not yet used. Safe at any time.
func (m *Memtable) Bytes() int64 { return m.arena.bytes.Load() }

// Count returns the number of entries. Safe at any time.
func (m *Memtable) Count() int { return int(m.count.Load()) }

// Empty tells whether there are no entries. Safe at any time.
func (m *Memtable) Empty() bool { return m.count.Load() == 0 }

// Ends tells whether a cell comes to an end of its own. Safe at any time.
func (m *Memtable) Ends() bool { return m.ends.Load() }

// MinSeq returns the smallest sequence number of any entry, or 0 if there is
// none. Safe at any time.
func (m *Memtable) MinSeq() cell.Seq { return cell.Seq(m.minSeq.Load()) }

// MaxSeq returns the largest sequence number of any entry, or 0 if there is
// none. Safe at any time.
func (m *Memtable) MaxSeq() cell.Seq { return cell.Seq(m.maxSeq.Load()) }

// Sample returns keys of entries, ascending, that cut the memtable into parts of about one
// number of entries: n of them or a few times more, or all if there are fewer. It reads no
// more nodes than twice that. The keys must not be changed. Safe at any time.
func (m *Memtable) Sample(n int) [][]byte {
	var keys [][]byte
	for level := int(m.height.Load()) - 1; level >= 0 && len(keys) < n; level-- {
		keys = keys[:0] // each level has some e times as many nodes as the one above
		for at := m.head[level].Load(); at != 0; {
			nd := nodeAt(*m.arena.table.Load(), at)
			keys, at = append(keys, nd.key()), nd.link(level).Load()
		}
	}
	return keys
}

// Add adds an entry, copying its key and value. One goroutine at a time may
// add. A pair of key and sequence number must not repeat: Add panics if it
// does, as two entries would then claim to be the same version.
func (m *Memtable) Add(e *cell.Entry) { m.AddParts(e.Key, nil, e.Value, e.Seq, e.Kind) }

// AddParts is Add of an entry whose key is prefix followed by suffix. One of the kind
// cell.Recorded is found by Commits only.
func (m *Memtable) AddParts(prefix, suffix, value []byte, seq cell.Seq, kind cell.Kind) {
	if seq > cell.MaxSeq || kind > 3 || len(value) > math.MaxInt32 || len(prefix)+len(suffix) > math.MaxInt32 {
		panic(fmt.Sprintf("memtable: no room for an entry with sequence number %d, kind %d, %d bytes of key and %d of value",
			seq, kind, len(prefix)+len(suffix), len(value)))
	}
	height := 0
	if kind != cell.Recorded {
		height = m.randomHeight()
	} else if m.commits == nil {
		return
	}
	if kind == cell.SetUntil {
		m.ends.Store(true)
	}
	keyLen := len(prefix) + len(suffix)
	size := headerSize + linkSize*height + keyLen
	if len(value) <= inlineValue {
		size += len(value)
	}
	p, at := m.arena.alloc(&m.arena.nodes, size)
	nd := (*header)(p)
	nd.keyLen, nd.valueLen = uint32(keyLen), uint32(len(value))
	nd.trailer = uint64(seq)<<8 | uint64(height)<<2 | uint64(kind)
	key := nd.key()
	copy(key, prefix)
	copy(key[len(prefix):], suffix)
	if len(value) <= inlineValue {
		copy(nd.value(nil), value)
	} else {
		var v unsafe.Pointer
		v, nd.valueAt = m.arena.alloc(&m.arena.values, len(value))
		copy(unsafe.Slice((*byte)(v), len(value)), value)
	}
	if m.commits != nil {
		if m.commits.begin {
			nd.trailer |= beginsBit
		}
		if height == 0 {
			m.setSeqs(uint64(seq))
			m.commits.add(m, nd, at)
			return
		}
	}
	if h := m.height.Load(); int32(height) > h {
		// The levels between are empty: the splice there is head and end.
		m.height.Store(int32(height))
	}
	m.findSplice(key, seq)
	s := &m.splice
	if next := s.next[0]; next != nil && next.seq() == seq && bytes.Equal(next.key(), key) {
		panic(fmt.Sprintf("memtable: key %x with sequence number %d was added twice", key, seq))
	}
	m.setSeqs(uint64(seq))
	for i := range height {
		if s.next[i] != nil {
			nd.link(i).Store(m.link(s.prev[i], i).Load())
		}
		m.link(s.prev[i], i).Store(uint32(at))
		s.prev[i] = nd
	}
	m.count.Add(1)
	if m.commits != nil {
		m.commits.add(m, nd, at)
	}
}

// setSeqs widens the range of sequence numbers before the entry can be seen.
func (m *Memtable) setSeqs(seq uint64) {
	if m.count.Load() == 0 {
		m.minSeq.Store(seq)
		m.maxSeq.Store(seq)
		return
	}
	if seq < m.minSeq.Load() {
		m.minSeq.Store(seq)
	}
	if seq > m.maxSeq.Load() {
		m.maxSeq.Store(seq)
	}
}

func (m *Memtable) randomHeight() int {
	r := uint32(m.rng.Uint64())
	h := 1
	for h < maxHeight && r < heightLimit[h] {
		h++
	}
	return h
}

// link returns the link of nd at level, that of the head if nd is nil.
func (m *Memtable) link(nd *header, level int) *atomic.Uint32 {
	if nd == nil {
		return &m.head[level]
	}
	return nd.link(level)
}

// findSplice moves the splice to the place of (key, seq). It climbs from the
// lowest level until the splice brackets the key, then searches down.
func (m *Memtable) findSplice(key []byte, seq cell.Seq) {
	s := &m.splice
	height := int(m.height.Load())
	level := 0
	for ; level < height; level++ {
		if (s.prev[level] == nil || s.prev[level].before(key, seq)) &&
			(s.next[level] == nil || !s.next[level].before(key, seq)) {
			break
		}
	}
	var prev *header
	if level < height {
		prev = s.prev[level]
	}
	var table []unsafe.Pointer
	if t := m.arena.table.Load(); t != nil {
		table = *t
	}
	for level--; level >= 0; level-- {
		next := nodeAt(table, m.link(prev, level).Load())
		// What stopped the level above would stop this one too, without another
		// look at its key.
		for next != nil && (level+1 >= height || next != s.next[level+1]) && next.before(key, seq) {
			prev, next = next, nodeAt(table, next.link(level).Load())
		}
		s.prev[level], s.next[level] = prev, next
	}
}

// nodeAt returns the node at address a, nil for 0.
func nodeAt(table []unsafe.Pointer, a uint32) *header {
	if a == 0 {
		return nil
	}
	return (*header)(address(table, a))
}

func address(table []unsafe.Pointer, a uint32) unsafe.Pointer {
	return unsafe.Add(table[a>>offsetBits], uintptr(a&(1<<offsetBits-1))*alignment)
}
