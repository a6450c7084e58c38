package views

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
)

// outboxBytes bounds the entries that are not known to have arrived; shipBytes is about how
// many bytes are sent at a time.
const (
	outboxBytes = 4 << 20
	shipBytes   = 1 << 20
)

// An outbox has the entries that are stored in the tablet, in the order in which they are
// to be sent.
type outbox struct {
	mu      sync.Mutex
	waiting []*entry
	bytes   int            // of waiting
	memory  *budget.Budget // of entries; nil: no bound
	sent    []*entry
	// added and gone count the entries that came, and those that have arrived.
	added, gone int64
	marks       []outboxMark
	room        chan struct{}
	wake        chan struct{} // there is something to send
	arrived     chan struct{} // there is something to clean
}

// An outboxMark is what to tell once some entries have arrived.
type outboxMark struct {
	after int64 // entries, as added counts
	at    cell.Seq
	tell  func(cell.Seq)
}

func newOutbox(entries []*entry, memory *budget.Budget) *outbox {
	o := &outbox{waiting: entries, memory: memory, added: int64(len(entries)), room: make(chan struct{}), wake: make(chan struct{}, 1), arrived: make(chan struct{}, 1)}
	for _, e := range entries {
		o.hold(e)
	}
	signal(o.wake)
	return o
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (o *outbox) add(e *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, e)
	o.hold(e)
	o.added++
	signal(o.wake)
}

// hold counts an entry that waits. It is there: at most it is not counted among all.
func (o *outbox) hold(e *entry) {
	o.bytes += len(e.value)
	if o.memory.Try(int64(len(e.value))) {
		e.held = int64(len(e.value))
	}
}

// close gives back the memory of entries.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.waiting {
		o.memory.Release(e.held)
		e.held = 0
	}
}

// admit waits until there is room.
func (o *outbox) admit(ctx context.Context) error {
	for {
		o.mu.Lock()
		full, room := o.fullLocked(), o.room
		o.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// full tells whether admit would wait.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fullLocked()
}

func (o *outbox) fullLocked() bool {
	return o.bytes >= outboxBytes || o.bytes > 0 && !spare(o.memory)
}

// oldest returns the least stamp of a change that entries are about; 0: none.
func (o *outbox) oldest() (s cell.Seq) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.waiting {
		if e.oldest != 0 && (s == 0 || e.oldest < s) {
			s = e.oldest
		}
	}
	return s
}

// next returns the first entries that wait; they go on waiting.
func (o *outbox) next() []*entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, size := 0, 0
	for n < len(o.waiting) && size < shipBytes {
		size += len(o.waiting[n].value)
		n++
	}
	return slices.Clone(o.waiting[:n])
}

// arrive says that the first n entries that wait have arrived.
func (o *outbox) arrive(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.waiting[:n] {
		o.bytes -= len(e.value)
		o.memory.Release(e.held)
		e.value, e.held = nil, 0
		o.sent = append(o.sent, e)
	}
	o.waiting = slices.Delete(o.waiting, 0, n)
	o.gone += int64(n)
	o.resolveLocked()
	close(o.room)
	o.room = make(chan struct{})
	signal(o.arrived)
}

// mark has tell called with at once all entries that were added before have arrived.
func (o *outbox) mark(at cell.Seq, tell func(cell.Seq)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.marks); n > 0 && o.marks[n-1].after == o.added {
		o.marks = o.marks[:n-1]
	}
	o.marks = append(o.marks, outboxMark{o.added, at, tell})
	o.resolveLocked()
}

func (o *outbox) resolveLocked() {
	for len(o.marks) > 0 && o.marks[0].after <= o.gone {
		o.marks[0].tell(o.marks[0].at)
		o.marks = o.marks[1:]
	}
}

// done tells whether there are entries that have arrived and none that has not, so that it is
// worth while to delete them in a batch of their own.
func (o *outbox) done() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting) == 0 && len(o.sent) > 0
}

// takeSent returns the entries that have arrived, to be deleted.
func (o *outbox) takeSent() []*entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	sent := o.sent
	o.sent = nil
	return sent
}

// ship sends entries until ctx ends.
func (r *run) ship(ctx context.Context) error {
	for attempt := 0; ; {
		entries := r.out.next()
		if len(entries) == 0 {
			select {
			case <-r.out.wake:
			case <-ctx.Done():
				return nil
			}
			continue
		}
		rows, err := updates(entries)
		if err != nil {
			return err
		}
		if r.o.Mistake == CountsTwice && attempt > 0 {
			for i := range rows {
				for k := range rows[i].Updates {
					rows[i].Updates[k].Seq += uint64(attempt)
				}
			}
		}
		if err = r.step("sending"); err != nil {
			return err
		}
		began := time.Now()
		err = r.o.Cluster.ApplyView(ctx, r.view.Name, r.view.Life, rows)
		took := time.Since(began)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, fault.NotFound):
			return errGone
		case err != nil:
			r.failed(err)
			if attempt++; rpc.Backoff(ctx, nil, attempt+3, 2e9) != nil {
				return nil
			}
			continue
		}
		if err := r.step("sent"); err != nil {
			return err
		}
		attempt = 0
		r.out.arrive(len(entries))
		if entries[0].look {
			// An index's rows cost more than their evaluation. The look waits for it, and
			// not the changes of rows that come next.
			r.o.scans.charge(time.Now(), len(rows), min(took, r.o.Turn), scanShare)
		}
	}
}

// A delta is what an entry means to one row of the view.
type delta struct {
	key    []byte
	update matview.Update
}

// updates returns what entries mean to each row of the view, ascending. Of each row the
// updates are in the order of the entries.
func updates(entries []*entry) ([]rpc.ViewRow, error) {
	var list []delta
	ends := make([]int, 0, len(entries))
	for _, e := range entries {
		err := e.each(func(key, payload []byte) {
			list = append(list, delta{key, matview.Update{Shard: e.shard, Seq: e.seq, Payload: payload}})
		})
		if err != nil {
			return nil, err
		}
		ends = append(ends, len(list))
	}
	list = mergeDeltas(list, ends)
	rows, all := make([]rpc.ViewRow, 0, len(list)), make([]matview.Update, len(list))
	first := 0 // of the last row's updates
	for i := range list {
		d := &list[i]
		all[i] = d.update
		if n := len(rows); n > 0 && bytes.Equal(rows[n-1].Key, d.key) {
			rows[n-1].Updates = all[first : i+1 : i+1]
			continue
		}
		first = i
		rows = append(rows, rpc.ViewRow{Key: d.key, Updates: all[i : i+1 : i+1]})
	}
	return rows, nil
}

// mergeDeltas sorts deltas by their keys. They are runs that ascend, each up to one of ends;
// those of one key stay in the order of the runs.
func mergeDeltas(list []delta, ends []int) []delta {
	if len(ends) < 2 {
		return list
	}
	for spare := make([]delta, len(list)); len(ends) > 1; {
		out, merged, start := spare[:0], ends[:0], 0
		for i := 0; i < len(ends); i += 2 {
			a, b := list[start:ends[i]], []delta(nil)
			if start = ends[i]; i+1 < len(ends) {
				b = list[start:ends[i+1]]
				start = ends[i+1]
			}
			for len(a) > 0 && len(b) > 0 {
				if bytes.Compare(b[0].key, a[0].key) < 0 {
					out, b = append(out, b[0]), b[1:]
				} else {
					out, a = append(out, a[0]), a[1:]
				}
			}
			out = append(append(out, a...), b...)
			merged = append(merged, len(out))
		}
		list, spare, ends = out, list, merged
	}
	return list
}
