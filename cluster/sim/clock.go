package sim

import (
	"sync"
	"time"
)

// A Clock is that of a node. It runs at a rate of its own against true time, which is the
// simulation's, and shows another time of day. Only leases and times of day go by a node's
// clock; waits between two attempts go by true time.
type Clock struct {
	mu   sync.Mutex
	rate float64
	// At true time from the clock showed base, and goes on from there unless it
	// stands still until after that.
	from  time.Time
	base  time.Duration
	stuck time.Time
	// offset is how far the time of day is ahead.
	offset time.Duration
}

// NewClock returns a clock that runs at a rate, and whose time of day is ahead
// by an offset.
func NewClock(rate float64, offset time.Duration) *Clock {
	return &Clock{rate: rate, from: time.Now(), offset: offset}
}

func (c *Clock) readingLocked() time.Duration {
	from := c.from
	if c.stuck.After(from) {
		from = c.stuck
	}
	return c.base + time.Duration(c.rate*float64(max(time.Since(from), 0)))
}

// Reading implements memory.Clock.
func (c *Clock) Reading() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readingLocked()
}

// After implements memory.Clock.
func (c *Clock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Not a bit too early: a caller that waits again would wait for nothing, for ever.
	return time.After(max(time.Until(c.stuck), 0) + time.Duration(float64(d)/c.rate) + time.Microsecond)
}

// Now returns the time of day.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

// Rate returns how fast the clock runs.
func (c *Clock) Rate() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rate
}

// Run makes the clock run at another rate from now on.
func (c *Clock) Run(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.from, c.rate = c.readingLocked(), time.Now(), rate
}

// Stop makes the clock stand still for d, as that of a suspended virtual machine
// does.
func (c *Clock) Stop(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.from, c.stuck = c.readingLocked(), time.Now(), time.Now().Add(d)
}

// Jump changes the time of day.
func (c *Clock) Jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}
