package server

import (
	"unsafe"

	"github.com/trestledb/trestle/compat/hbase/filter"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/schema"
)

// A room counts what a call holds of rows. What of it goes beyond the call's
// reservation, large rows, it takes of Options.Memory. It is not safe for
// concurrent use.
type room struct {
	memory *budget.Budget
	free   int64 // that are reserved, or few enough for any call
	// again says that the answer is copied once more when its rows are read.
	again  bool
	row    int64 // bytes of the row at hand, as it was read
	answer int64
	taken  int64 // of memory
}

// roomStep is how many bytes a room takes at a time: a row of small cells does not
// ask for each.
const roomStep = 64 << 10

// cellBytes is what a cell takes beside its bytes.
const cellBytes = int64(unsafe.Sizeof(filter.Cell{}))

// read counts n more bytes of the row at hand.
func (r *room) read(n int64) error {
	r.row += n
	return r.fit(r.row)
}

// answered counts n more bytes of the answer, which are of the row at hand.
func (r *room) answered(n int64) error {
	if n > schema.MaxRow {
		return wire.DoNotRetryIO.New("The row has more than the %d bytes that one answer may have of it", schema.MaxRow)
	}
	r.answer += n
	return r.fit(r.row + n)
}

// need returns how many bytes of memory are wanted.
func (r *room) need() int64 {
	n := r.answer + r.row
	if r.again {
		n = max(n, 2*r.answer)
	}
	return max(n-r.free, 0)
}

// fit takes what is missing. It does not wait, as the call holds memory already.
// alone is what the row at hand needs if no other is held.
func (r *room) fit(alone int64) error {
	more := r.need() - r.taken
	if more <= 0 {
		return nil
	}
	more = (more + roomStep - 1) / roomStep * roomStep
	if !r.memory.Try(more) {
		return noRoom(r.memory, alone+roomStep)
	}
	r.taken += more
	return nil
}

// noRoom returns the exception of a row that needs n bytes of b. Clients come again
// unless there never is room.
func noRoom(b *budget.Budget, n int64) error {
	if n > b.Limit() {
		return wire.DoNotRetryIO.New("The row needs more than the %d bytes of memory that requests and answers have; see --memory", b.Limit())
	}
	return wire.CallQueueTooBig.New("%v", budget.ReadsBusy("large rows"))
}

// forget gives back what the row at hand has taken.
func (r *room) forget() {
	r.row = 0
	if more := r.taken - r.need(); more > 0 {
		r.memory.Release(more)
		r.taken -= more
	}
}

// pass takes n bytes that go on to another holder, which has to give them back.
func (r *room) pass(n int64) error {
	r.answer += n
	err := r.fit(r.row + n)
	r.answer -= n
	if more := n - r.taken; err == nil && more > 0 { // the rest is reserved
		if !r.memory.Try(more) {
			return noRoom(r.memory, r.row+n+roomStep)
		}
		r.taken = n
	}
	if err == nil {
		r.taken -= n
	}
	return err
}

// release gives everything back.
func (r *room) release() {
	r.memory.Release(r.taken)
	r.row, r.answer, r.taken = 0, 0, 0
}
