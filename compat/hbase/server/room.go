package server

import (
	"unsafe"

	"github.com/trestledb/trestle/compat/hbase/filter"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/schema"
)

// A room counts what a call holds of rows and filters. What of it goes beyond the call's
// reservation, large ones, it takes of Options.Memory. It is not safe for
// concurrent use.
type room struct {
	memory *budget.Budget
	// request is what the request has of memory, which no row or filter can have.
	request int64
	free    int64 // that are reserved, or few enough for any call
	// again says that the answer is copied once more when its rows are read.
	again   bool
	row     int64 // bytes of the row at hand, as it was read
	answer  int64
	filters int64 // and comparators
	taken   int64 // of memory
}

// roomStep is how many bytes a room takes at a time: a row of small cells does not
// ask for each.
const roomStep = 64 << 10

// cellBytes is what a cell takes beside its bytes.
const cellBytes = int64(unsafe.Sizeof(filter.Cell{}))

// read counts n more bytes of the row at hand.
func (r *room) read(n int64) error {
	r.row += n
	return r.fit("row", r.row)
}

// decode counts n more bytes of filters and comparators, which will be decoded then.
func (r *room) decode(n int64) error {
	r.filters += n
	return r.fit("filter", r.filters)
}

// answered counts n more bytes of the answer, which are of the row at hand.
func (r *room) answered(n int64) error {
	if n > schema.MaxRow {
		return wire.DoNotRetryIO.New("The row has more than the %d bytes that one answer may have of it", schema.MaxRow)
	}
	r.answer += n
	return r.fit("row", r.row+n)
}

// need returns how many bytes of memory are wanted.
func (r *room) need() int64 {
	n := r.answer + r.row + r.filters
	if r.again {
		n = max(n, 2*r.answer)
	}
	return max(n-r.free, 0)
}

// fit takes what is missing. It does not wait, as the call holds memory already.
// alone is what the row at hand, or what else it is for, needs if no other is held.
func (r *room) fit(what string, alone int64) error {
	more := r.need() - r.taken
	if more <= 0 {
		return nil
	}
	more = (more + roomStep - 1) / roomStep * roomStep
	if !r.memory.Try(more) {
		return noRoom(r.memory, what, r.request+alone+roomStep)
	}
	r.taken += more
	return nil
}

// noRoom returns the exception of a row, or of what else it is, that needs n bytes of b.
// Clients come again unless there never is room.
func noRoom(b *budget.Budget, what string, n int64) error {
	if n > b.Limit() {
		return wire.DoNotRetryIO.New("The %s needs more than the %d bytes of memory that requests and answers have; see --memory", what, b.Limit())
	}
	return wire.CallQueueTooBig.New("%v", budget.ReadsBusy("large "+what+"s"))
}

// forget gives back what the row at hand has taken.
func (r *room) forget() {
	r.row = 0
	r.trim()
}

// filtered gives back what filters have taken.
func (r *room) filtered() {
	r.filters = 0
	r.trim()
}

func (r *room) trim() {
	if more := r.taken - r.need(); more > 0 {
		r.memory.Release(more)
		r.taken -= more
	}
}

// pass takes n bytes that go on to another holder, which has to give them back.
func (r *room) pass(what string, n int64) error {
	r.answer += n
	err := r.fit(what, r.row+n)
	r.answer -= n
	if more := n - r.taken; err == nil && more > 0 { // the rest is reserved
		if !r.memory.Try(more) {
			return noRoom(r.memory, what, r.request+r.row+n+roomStep)
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
	r.row, r.answer, r.filters, r.taken = 0, 0, 0, 0
}
