package exec

import (
	"unsafe"

	"github.com/trestledb/trestle/engine/query/types"
)

// A scanBatch is rows on their way from a table to the consumer, with the memory that
// their values lie in. It is used again when the consumer has finished with it.
type scanBatch struct {
	batch types.Batch
	vecs  []types.Vector
	// nulls has the memory of the vectors' Null, true from the row that is filled next,
	// and set how many rows are not NULL, for columns that can be.
	nulls [][]bool
	set   []int
	bytes arena
	lists listArena
	// charged is what the query was charged for bytes and lists.
	charged int64
	// piece, if it is set, is what a tablet's server has made of rows, in place of all the
	// rest.
	piece []byte
	// key is that of the last row, as far as it is asked for.
	key []byte
}

// size returns the memory that the values take, in bytes.
func (b *scanBatch) size() int {
	return len(b.piece) + b.bytes.used + b.lists.used*int(unsafe.Sizeof(types.Value{}))
}

// held returns the memory that bytes and lists have taken, in bytes.
func (b *scanBatch) held() int64 {
	return int64(b.bytes.held) + int64(b.lists.held)*int64(unsafe.Sizeof(types.Value{}))
}

// chunkBytes is the least that an arena takes at once.
const chunkBytes = 32 << 10

// An arena is memory for the bytes of a batch. What was given out stays where it is
// until reset.
type arena struct {
	now  []byte   // the chunk that is being filled
	full [][]byte // earlier ones
	used int
	held int // capacity of all chunks
}

// text returns b as a string that lives in the arena.
func (a *arena) text(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if cap(a.now)-len(a.now) < len(b) {
		a.grow(len(b))
	}
	at := len(a.now)
	a.now = append(a.now, b...)
	a.used += len(b)
	return unsafe.String(&a.now[at], len(b))
}

// grow begins a chunk with room for n bytes.
func (a *arena) grow(n int) {
	size := max(n, min(chunkBytes<<min(len(a.full), 5), 1<<20))
	if a.now != nil {
		a.full = append(a.full, a.now)
	} else if n < 1<<10 {
		size = 2 << 10 // a point read needs no more
	}
	a.now = make([]byte, 0, size)
	a.held += size
}

// keepBytes is the most that an arena keeps for the next batch.
const keepBytes = 4 << 20

// reset makes all memory free again. It keeps the largest chunk, so that later batches
// find one that fits.
func (a *arena) reset() {
	for _, c := range a.full {
		if cap(c) > cap(a.now) && cap(c) <= keepBytes || cap(a.now) > keepBytes {
			a.now = c
		}
	}
	clear(a.full)
	a.full = a.full[:0]
	if cap(a.now) > keepBytes {
		a.now = nil
	}
	a.now = a.now[:0]
	a.used, a.held = 0, cap(a.now)
}

// A listArena is the same for the values of lists.
type listArena struct {
	chunk []types.Value
	used  int
	held  int // in values
}

func (a *listArena) room(n int) []types.Value {
	a.used += n
	at := len(a.chunk)
	if cap(a.chunk)-at < n {
		size := max(n, min(max(64, 2*cap(a.chunk)), 16<<10))
		a.chunk, at = make([]types.Value, 0, size), 0
		a.held += size
	}
	a.chunk = a.chunk[:at+n]
	return a.chunk[at : at+n : at+n]
}

func (a *listArena) reset() {
	a.used, a.held = 0, cap(a.chunk)
	a.chunk = a.chunk[:0]
}
