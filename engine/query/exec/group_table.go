package exec

import (
	"hash/maphash"
	"math/bits"

	"github.com/trestledb/trestle/engine/query/types"
)

// groupTable numbers the different keys of rows, in the order in which they come.
type groupTable struct {
	types []*types.Type
	// keys are the keys of the groups, in order.
	keys rows
	ints *intTable  // of one key that is kept as an integer
	strs *byteTable // of all others
	// groups are the numbers of the rows of the last call of number, fresh the rows that
	// began a group.
	groups, fresh []int32
	buf           []byte
}

func newGroupTable(ts []*types.Type) *groupTable {
	t := &groupTable{types: ts}
	t.reset()
	return t
}

func (t *groupTable) reset() {
	t.keys = rows{types: t.types}
	t.ints, t.strs = nil, nil
	if len(t.types) == 1 && isInt(t.types[0]) {
		t.ints = newIntTable()
		return
	}
	t.strs = newByteTable()
}

// len returns the number of groups.
func (t *groupTable) len() int { return t.keys.n }

func (t *groupTable) bytes() int64 {
	if t.ints != nil {
		return t.keys.bytes + t.ints.bytes()
	}
	return t.keys.bytes + t.strs.bytes()
}

// number returns the group of each row: of the k'th of sel, or of row k. Rows with new
// keys begin groups.
func (t *groupTable) number(cols []*types.Vector, sel []int32, n int) []int32 {
	rows := n
	if sel != nil {
		rows = len(sel)
	}
	if cap(t.groups) < rows {
		t.groups = make([]int32, max(rows, types.BatchRows))
	}
	t.groups = t.groups[:rows]
	t.fresh = t.fresh[:0]
	switch {
	case t.ints != nil:
		t.numberInts(cols[0], sel)
	case len(cols) == 1 && isString(t.types[0]):
		t.numberStrings(cols[0], sel)
	default:
		for k := range t.groups {
			i := k
			if sel != nil {
				i = int(sel[k])
			}
			t.buf = t.buf[:0]
			for c, v := range cols {
				t.buf = types.AppendKey(t.buf, t.types[c], v.Value(i))
			}
			g, fresh := t.strs.find(t.buf)
			t.groups[k] = g
			if fresh {
				t.fresh = append(t.fresh, int32(i))
			}
		}
	}
	if len(t.fresh) > 0 {
		t.keys.append(cols, t.fresh, n)
	}
	return t.groups
}

func isString(t *types.Type) bool { return t.Kind == types.String || t.Kind == types.Bytes }

func (t *groupTable) numberInts(v *types.Vector, sel []int32) {
	if sel == nil && !v.Const && v.Null == nil {
		for k, x := range v.Ints[:len(t.groups)] {
			g, fresh := t.ints.find(x)
			t.groups[k] = g
			if fresh {
				t.fresh = append(t.fresh, int32(k))
			}
		}
		return
	}
	for k := range t.groups {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		at := v.At(i)
		var g int32
		var fresh bool
		if v.Null != nil && v.Null[at] {
			g, fresh = t.ints.null()
		} else {
			g, fresh = t.ints.find(v.Ints[at])
		}
		t.groups[k] = g
		if fresh {
			t.fresh = append(t.fresh, int32(i))
		}
	}
}

// numberStrings gives a string a byte before it, so that NULL differs from "".
func (t *groupTable) numberStrings(v *types.Vector, sel []int32) {
	for k := range t.groups {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		at := v.At(i)
		if v.Null != nil && v.Null[at] {
			t.buf = t.buf[:0]
		} else {
			t.buf = append(append(t.buf[:0], 1), v.Strs[at]...)
		}
		g, fresh := t.strs.find(t.buf)
		t.groups[k] = g
		if fresh {
			t.fresh = append(t.fresh, int32(i))
		}
	}
}

// intTable is a hash table of integers with linear probing.
type intTable struct {
	slots []intSlot
	shift uint8
	n     int32 // groups, NULL's included
	nulls int32 // NULL's group, or -1
}

// intSlot holds a key and its group plus one, 0 of an empty slot.
type intSlot struct {
	key   int64
	group int32
}

func newIntTable() *intTable {
	t := &intTable{nulls: -1}
	t.alloc(64)
	return t
}

func (t *intTable) alloc(n int) {
	t.slots = make([]intSlot, n)
	t.shift = uint8(64 - bits.Len(uint(n-1)))
}

func (t *intTable) bytes() int64 { return 16 * int64(len(t.slots)) }

// hashInt spreads x over the upper bits.
func hashInt(x int64) uint64 {
	h := uint64(x) * 0x9E3779B97F4A7C15
	return (h ^ h>>32) * 0xD6E8FEB86659FD93
}

func (t *intTable) find(x int64) (int32, bool) {
	mask := uint64(len(t.slots) - 1)
	for i := hashInt(x) >> t.shift; ; i++ {
		s := &t.slots[i&mask]
		if s.group == 0 {
			if 4*int(t.n) >= 3*len(t.slots) {
				t.rehash()
				return t.find(x)
			}
			t.n++
			s.key, s.group = x, t.n
			return t.n - 1, true
		}
		if s.key == x {
			return s.group - 1, false
		}
	}
}

// lookup is find for a key that is not to be added: -1 if it is not there.
func (t *intTable) lookup(x int64) int32 {
	mask := uint64(len(t.slots) - 1)
	for i := hashInt(x) >> t.shift; ; i++ {
		s := &t.slots[i&mask]
		if s.group == 0 {
			return -1
		}
		if s.key == x {
			return s.group - 1
		}
	}
}

func (t *intTable) null() (int32, bool) {
	if t.nulls >= 0 {
		return t.nulls, false
	}
	t.nulls = t.n
	t.n++
	return t.nulls, true
}

func (t *intTable) rehash() {
	old := t.slots
	t.alloc(2 * len(old))
	mask := uint64(len(t.slots) - 1)
	for _, s := range old {
		if s.group == 0 {
			continue
		}
		i := hashInt(s.key) >> t.shift
		for t.slots[i&mask].group != 0 {
			i++
		}
		t.slots[i&mask] = s
	}
}

// seed makes hashes differ from process to process, so that keys cannot be chosen to
// collide.
var seed = maphash.MakeSeed()

// byteTable is a hash table of byte strings with linear probing.
type byteTable struct {
	slots []byteSlot
	keys  [][]byte
	arena byteArena
}

// byteSlot holds the upper bits of a key's hash and its group plus one, 0 of an empty
// slot.
type byteSlot struct {
	hash  uint32
	group int32
}

// hashBytes is the hash by which keys are divided into partitions.
func hashBytes(key []byte) uint64 { return maphash.Bytes(seed, key) }

func newByteTable() *byteTable { return &byteTable{slots: make([]byteSlot, 64)} }

func (t *byteTable) bytes() int64 {
	return 8*int64(len(t.slots)) + 24*int64(cap(t.keys)) + t.arena.bytes
}

// find returns the group of key, and whether it is new.
func (t *byteTable) find(key []byte) (int32, bool) {
	h := maphash.Bytes(seed, key)
	mask := uint64(len(t.slots) - 1)
	tag := uint32(h >> 32)
	for i := h; ; i++ {
		s := &t.slots[i&mask]
		if s.group == 0 {
			if 4*len(t.keys) >= 3*len(t.slots) {
				t.rehash()
				return t.find(key)
			}
			t.keys = append(t.keys, t.arena.copy(key))
			*s = byteSlot{tag, int32(len(t.keys))}
			return int32(len(t.keys) - 1), true
		}
		if s.hash == tag && string(t.keys[s.group-1]) == string(key) {
			return s.group - 1, false
		}
	}
}

// lookup is find for a key that is not to be added: -1 if it is not there.
func (t *byteTable) lookup(key []byte) int32 {
	h := maphash.Bytes(seed, key)
	mask := uint64(len(t.slots) - 1)
	tag := uint32(h >> 32)
	for i := h; ; i++ {
		s := &t.slots[i&mask]
		if s.group == 0 {
			return -1
		}
		if s.hash == tag && string(t.keys[s.group-1]) == string(key) {
			return s.group - 1
		}
	}
}

func (t *byteTable) rehash() {
	t.slots = make([]byteSlot, 2*len(t.slots))
	mask := uint64(len(t.slots) - 1)
	for g, key := range t.keys {
		h := maphash.Bytes(seed, key)
		i := h
		for t.slots[i&mask].group != 0 {
			i++
		}
		t.slots[i&mask] = byteSlot{uint32(h >> 32), int32(g + 1)}
	}
}
