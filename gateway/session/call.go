package session

import (
	"context"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/chunk"
	"github.com/trestledb/trestle/gateway/wire"
)

// A call is one virtual call. It is the call's context, so that what is known
// of it costs one allocation; it is not used again, since a holder of a context
// may keep it.
type call struct {
	context.Context // the stream's
	req             *wire.SessionRequest
	start           time.Time
	deadline        time.Time // zero is none
	refused         error
	zone, cluster   string // where it was served, if the answer said so
	row             chunk.Row
	stats           scan.Stats
	record          request.Record

	mu struct {
		sync.Mutex
		done chan struct{} // made when a caller asks
		err  error
	}
}

type callKey struct{}

// Value implements context.Context.
func (c *call) Value(key any) any {
	if _, ok := key.(callKey); ok {
		return c
	}
	if request.IsKey(key) {
		return &c.record
	}
	return c.Context.Value(key)
}

// Served notes where the virtual call of ctx is served, which its answer will
// name. It returns false if ctx is of no virtual call.
func Served(ctx context.Context, zone, cluster string) bool {
	c, _ := ctx.Value(callKey{}).(*call)
	if c != nil {
		c.zone, c.cluster = zone, cluster
	}
	return c != nil
}

// Deadline implements context.Context.
func (c *call) Deadline() (time.Time, bool) {
	if !c.deadline.IsZero() {
		return c.deadline, true
	}
	return c.Context.Deadline()
}

// Done implements context.Context. The channel is closed some time after the
// deadline, by the service's watch; Err knows at once.
func (c *call) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.done == nil {
		c.mu.done = make(chan struct{})
		if c.mu.err != nil {
			close(c.mu.done)
		}
	}
	return c.mu.done
}

// Err implements context.Context.
func (c *call) Err() error {
	if err := c.Context.Err(); err != nil {
		c.cancel(err)
	} else if !c.deadline.IsZero() && time.Now().After(c.deadline) {
		c.cancel(context.DeadlineExceeded)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// cancel ends the call's context.
func (c *call) cancel(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err == nil {
		c.mu.err = err
		if c.mu.done != nil {
			close(c.mu.done)
		}
	}
}
