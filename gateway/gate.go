package gateway

import (
	"context"
	"log/slog"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/gateway/wire"
)

// A gate bounds the memory of requests from the first byte received until the
// handler is done with the message.
//
// Messages that do not fit the window of a stream get their memory from the
// budget before the client may send them: see receive. The others arrive
// unasked. The gate is the buffer pool that received frames are read into, and
// so knows how much of them is held. When that is over the limit it refuses new
// streams. Streams that have not sent their message yet are on a list. Those
// that take too long are ended: after a second if memory is short, else after
// the receive timeout. One that has memory of the budget is also ended if others
// want that and it sends too little: see holder.
//
// Header lists above 4 KiB count as held too. What a stream may have beside is not counted:
// headers up to that, and one frame of at most 1 KiB. Nor are headers, and such frames, that
// gRPC-Go's transport reads.
type gate struct {
	memory     *budget.Budget // of messages above streamWindow
	maxMessage int            // bytes of one
	codec      *wire.Codec
	limit      int64 // of held
	timeout    time.Duration
	born       time.Time
	traced     bool // requests may be
	keys       bool // row keys are kept for the log of slow requests
	held       atomic.Int64
	pools      [maxTier + 1]sync.Pool // of *counted, by the exponent of their size

	// sessions are the methods whose streams are ended by others than the gate
	// too: see cancelOf.
	sessions map[string]bool

	mu struct {
		sync.Mutex
		receiving list
	}
	stop chan struct{}
	done chan struct{}
}

// shortage is how long a stream may take to send its message while memory is
// short.
const shortage = time.Second

// silence is how long a stream that has memory of the budget may pause, while that
// is short: 100 uploads in turn, frame by frame, have a pause of ten seconds at
// 160 KiB/s.
const silence = 10 * time.Second

const (
	minTier = 11 // 2 KiB
	maxTier = 22 // 4 MiB; larger buffers are not pooled
)

func newGate(o Options) *gate {
	g := &gate{memory: o.Memory, maxMessage: o.MaxRequestBytes, limit: o.RequestMemory, timeout: o.ReceiveTimeout, born: time.Now(),
		traced: o.Tracer != nil, keys: o.SlowKeys && o.Slow > 0,
		stop: make(chan struct{}), done: make(chan struct{})}
	g.codec = wire.NewCodec(g, o.Memory)
	g.mu.receiving.init()
	go g.sweep()
	return g
}

func (g *gate) close() {
	close(g.stop)
	<-g.done
}

// A counted is a buffer of the pool. data comes first, so that the pointer to
// it, which gRPC holds and gives back, is one to the whole.
type counted struct {
	data []byte // as given out; gRPC may reslice it
	full []byte
	// out tells whether the buffer counts. It is a variable of its own, for what
	// ends the count of a buffer that is garbage. gRPC drops, without giving it
	// back, what a stream had received and the handler had not read.
	out *atomic.Bool
}

// newCounted returns a buffer that is counted off when it becomes garbage while
// it is out. One cleanup serves all the times that it is given out: making one
// each time took 0.5 µs.
func (g *gate) newCounted(n int) *counted {
	c := &counted{full: make([]byte, n), out: new(atomic.Bool)}
	runtime.AddCleanup(c, func(out *atomic.Bool) {
		if out.Load() {
			g.held.Add(-int64(n))
		}
	}, c.out)
	return c
}

var _ mem.BufferPool = (*gate)(nil)

// Get implements mem.BufferPool. The bytes are not zeroed: a caller that asks
// overwrites them all.
func (g *gate) Get(n int) *[]byte {
	var c *counted
	if tier := tierOf(n); tier <= maxTier {
		c = g.pooled(tier)
	} else {
		c = g.newCounted(n)
	}
	c.data = c.full[:n]
	c.out.Store(true)
	g.held.Add(int64(len(c.full)))
	return &c.data
}

// Put implements mem.BufferPool for what Get returned.
func (g *gate) Put(p *[]byte) {
	c := (*counted)(unsafe.Pointer(p))
	c.out.Store(false)
	g.held.Add(-int64(len(c.full)))
	g.repool(c)
}

// tierOf returns the exponent of the size of the pooled buffers that have n
// bytes.
func tierOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), minTier) }

// pooled returns a buffer of the pool. It does not count.
func (g *gate) pooled(tier int) *counted {
	if c, ok := g.pools[tier].Get().(*counted); ok {
		return c
	}
	return g.newCounted(1 << tier)
}

func (g *gate) repool(c *counted) {
	if tier := tierOf(len(c.full)); tier <= maxTier {
		g.pools[tier].Put(c)
	}
}

// account counts memory beside the pool's, or with n below zero that it is free.
func (g *gate) account(n int64) { g.held.Add(n) }

// errBusy refuses a stream.
var errBusy = wire.Status(context.Background(), slog.Default(), budget.Busy()).Err()

// admit is called for each stream before anything is read of it, on the goroutine
// that reads the connection.
func (g *gate) admit(ctx context.Context, method string) (context.Context, error) {
	if g.short() {
		return nil, errBusy
	}
	a := &arrival{Context: ctx}
	a.record.Keys = g.keys
	if g.traced {
		a.parent = traceParent(ctx)
	}
	if g.sessions[method] {
		if s, ok := grpc.ServerTransportStreamFromContext(ctx).(canceler); ok {
			a.cancel = s.Cancel
		} else { // gRPC-Go's receives until the context is done that is returned here
			a.Context, a.cancel = context.WithCancel(ctx)
		}
	}
	g.mu.Lock()
	g.mu.receiving.add(a)
	g.mu.Unlock()
	return a, nil
}

// traceParent returns the W3C header that says which span a request is part of.
func traceParent(ctx context.Context) string {
	if v := metadata.ValueFromIncomingContext(ctx, "traceparent"); len(v) > 0 {
		return v[0]
	}
	return ""
}

// begun tells the gate how to end the stream of ctx. It is called before the
// handler. A context that could be canceled would tell at once, but costs 0.5 µs
// and five allocations a stream, when hardly any is ended.
func (g *gate) begun(ctx context.Context) {
	a, _ := ctx.Value(arrivalKey{}).(*arrival)
	if a == nil || a.cancel != nil {
		return
	}
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(ender)
	if !ok {
		return // not called over gRPC: see cancelBy
	}
	g.mu.Lock()
	a.stream = s
	g.mu.Unlock()
}

// cancelBy has the gate end the request of ctx, which is no stream, with
// cancel.
func (g *gate) cancelBy(ctx context.Context, cancel context.CancelFunc) {
	if a, _ := ctx.Value(arrivalKey{}).(*arrival); a != nil {
		g.mu.Lock()
		a.cancel = cancel
		g.mu.Unlock()
	}
}

// arrived takes the stream of ctx off the list: its message is here, or it has
// no single one. It may be called again.
func (g *gate) arrived(ctx context.Context) {
	a, _ := ctx.Value(arrivalKey{}).(*arrival)
	if a == nil {
		return
	}
	g.mu.Lock()
	g.mu.receiving.remove(a)
	g.mu.Unlock()
}

// holding puts the stream of ctx on the list, if it is not there: it has memory of
// the budget for a message, and h tells how that arrives.
func (g *gate) holding(ctx context.Context, h *holder) {
	a, _ := ctx.Value(arrivalKey{}).(*arrival)
	if a == nil {
		return
	}
	g.mu.Lock()
	a.holder = h
	if a.next == nil {
		a.seen = 0
		g.mu.receiving.add(a)
	}
	g.mu.Unlock()
}

// cancelOf returns what ends the stream of ctx.
func cancelOf(ctx context.Context) context.CancelFunc {
	if a, _ := ctx.Value(arrivalKey{}).(*arrival); a != nil && a.cancel != nil {
		return a.cancel
	}
	return func() {} // not admitted by a gate: a test's
}

// short tells whether memory is short.
func (g *gate) short() bool { return g.held.Load() > g.limit }

func (g *gate) sweep() {
	defer close(g.done)
	tick := time.NewTicker(min(shortage, max(g.timeout/4, time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-g.stop:
			return
		case now := <-tick.C:
			g.sweepOnce(now)
		}
	}
}

// sweepOnce ends the streams that took too long.
func (g *gate) sweepOnce(now time.Time) {
	patience := g.timeout
	if g.short() {
		patience = min(patience, shortage)
	}
	wanted := g.memory.Short()
	var over []*arrival
	g.mu.Lock()
	for a := g.mu.receiving.root.next; a != &g.mu.receiving.root; {
		next := a.next
		late := a.holder.late(now, g.timeout, wanted)
		switch {
		case a.Err() != nil: // ended before any handler saw it
			g.mu.receiving.remove(a)
		case a.seen == 0:
			a.seen = now.Sub(g.born)
		case (late || now.Sub(g.born)-a.seen >= patience) && (a.cancel != nil || a.stream != nil):
			over = append(over, a)
			g.mu.receiving.remove(a)
		}
		a = next
	}
	g.mu.Unlock()
	for _, a := range over { // without the lock: gRPC holds one of its own when it calls admit
		a.late.Store(true)
		if a.cancel != nil {
			a.cancel()
		} else {
			_ = a.stream.WriteStatus(errLate) // fails if the stream has ended
		}
	}
}

// errLate ends a stream that took too long.
var errLate = status.New(codes.DeadlineExceeded, context.DeadlineExceeded.Error())

// An ender is a stream of gRPC's, which can be ended by others than its
// handler: its context is done then.
type ender interface {
	WriteStatus(*status.Status) error
}

// A canceler is a stream of gateway/transport.
type canceler interface{ Cancel() }

type arrivalKey struct{}

// An arrival is the context of a stream whose message may still be on its way.
type arrival struct {
	context.Context
	// One of them ends it. Of gRPC's streams, stream is known when the handler
	// begins.
	cancel     context.CancelFunc
	stream     ender
	seen       time.Duration // after the gate's birth, when a sweep first found it: most are gone before
	holder     *holder       // nil if it has no memory of the budget
	late       atomic.Bool
	prev, next *arrival
	// origin is what the answer names as its origin: see interceptor.served.
	// It belongs to the handler.
	origin *origin
	// record is what is measured of the request, parent the span that it is part of.
	record request.Record
	parent string
}

// A holder is a message that has memory of the budget and may not be here yet. It
// belongs to the sweep.
type holder struct {
	size     int64
	received func() int64 // bytes so far, with what came before
	noted    int64        // of those
	due      time.Time    // when more is to have arrived
}

// late tells whether too little has arrived by now, while memory is wanted. Each byte
// puts off when more is due, by as much as brings the last one within timeout: a
// client that is slow, but would be in time, is not late.
func (h *holder) late(now time.Time, timeout time.Duration, wanted bool) bool {
	if h == nil {
		return false
	}
	if least := now.Add(shortage); !wanted && h.due.Before(least) {
		h.due = least
	}
	n := h.received()
	h.due = h.due.Add(time.Duration(float64(timeout) * float64(n-h.noted) / float64(h.size)))
	if most := now.Add(silence); h.due.After(most) {
		h.due = most
	}
	h.noted = n
	return wanted && now.After(h.due)
}

func (a *arrival) Value(key any) any {
	if _, ok := key.(arrivalKey); ok {
		return a
	}
	if request.IsKey(key) {
		return &a.record
	}
	return a.Context.Value(key)
}

// Err says DeadlineExceeded for a stream that was ended for taking too long:
// gRPC makes a status of it.
func (a *arrival) Err() error {
	err := a.Context.Err()
	if err != nil && a.late.Load() {
		return context.DeadlineExceeded
	}
	return err
}

// AfterFunc is what context.WithCancel asks a context for, which is else a goroutine that waits.
func (a *arrival) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(a.Context, f) }

// A list is a ring of arrivals, oldest first, around a root that is none.
type list struct{ root arrival }

func (l *list) init() { l.root.prev, l.root.next = &l.root, &l.root }

func (l *list) add(a *arrival) {
	a.prev, a.next = l.root.prev, &l.root
	a.prev.next, l.root.prev = a, a
}

func (l *list) remove(a *arrival) {
	if a.next == nil {
		return
	}
	a.prev.next, a.next.prev = a.next, a.prev
	a.prev, a.next = nil, nil
}
