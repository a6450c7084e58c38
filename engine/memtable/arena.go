package memtable

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

const (
	firstChunk = 64 << 10
	chunkSize  = 1 << 20
	// ownChunk is the allocation size from which one gets a chunk to itself.
	// It bounds what is left unused at the end of a chunk.
	ownChunk = 128 << 10

	alignment  = 8
	offsetBits = 17 // chunkSize / alignment
	maxChunks  = 1 << (32 - offsetBits)
)

// An addr names a node; 0 names none.
type addr uint32

// arena hands out memory from chunks that never move. Only one goroutine may
// call alloc; table may be loaded by any.
type arena struct {
	// table holds the address of each chunk. The writer appends behind the
	// length that readers know of, then publishes a longer slice.
	table atomic.Pointer[[]unsafe.Pointer]
	bytes atomic.Int64 // in chunks

	// Nodes and values have chunks of their own: a search touches nodes alone,
	// which then lie close together.
	nodes, values region
}

// A region is the rest of the chunk that allocations are taken from.
type region struct {
	cur      unsafe.Pointer
	curChunk uint32
	used     uint32
	size     uint32
}

// alloc returns n zeroed bytes aligned to 8, taken from r, and their address.
func (a *arena) alloc(r *region, n int) (unsafe.Pointer, addr) {
	n = (n + alignment - 1) &^ (alignment - 1)
	if n >= ownChunk {
		p, chunk := a.addChunk(n)
		return p, addr(chunk << offsetBits)
	}
	if int(r.size-r.used) < n {
		size := chunkSize
		if r.size == 0 && n <= firstChunk {
			size = firstChunk
		}
		r.cur, r.curChunk = a.addChunk(size)
		r.used, r.size = 0, uint32(size)
	}
	p := unsafe.Add(r.cur, r.used)
	at := addr(r.curChunk<<offsetBits | r.used/alignment)
	r.used += uint32(n)
	return p, at
}

// addChunk allocates a chunk. Chunk 0 is never used, so that no node has the
// address 0.
func (a *arena) addChunk(size int) (unsafe.Pointer, uint32) {
	// Of uint64, so that the runtime aligns it whatever its size.
	p := unsafe.Pointer(unsafe.SliceData(make([]uint64, size/alignment)))
	if size >= chunkSize {
		populate(p, size)
	}
	var table []unsafe.Pointer
	if t := a.table.Load(); t != nil {
		table = *t
	} else {
		table = make([]unsafe.Pointer, 1, 4)
	}
	chunk := len(table)
	if chunk >= maxChunks {
		panic(fmt.Sprintf("memtable: %d chunks are in use and no more can be addressed", chunk))
	}
	table = append(table, p)
	a.table.Store(&table)
	a.bytes.Add(int64(size))
	return p, uint32(chunk)
}
