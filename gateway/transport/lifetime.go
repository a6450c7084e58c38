package transport

import (
	"time"

	"golang.org/x/net/http2"
)

// drainPing asks for the answer that tells that the client has seen the first GOAWAY.
var drainPing = [8]byte{'t', 'r', 'e', 's', 't', 'l', 'e', 1}

func (c *conn) ping(f *http2.PingFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		if f.Data == drainPing && c.mu.draining {
			c.refuseLocked()
		}
		return nil
	}
	c.pingLocked(http2.FlagPingAck, f.Data)
	now, before := time.Now(), c.pinged
	c.pinged = now
	least := c.s.o.Enforcement.MinTime
	if len(c.mu.streams) == 0 && !c.s.o.Enforcement.PermitWithoutStream {
		least = 2 * time.Hour
	}
	switch {
	case c.mu.answered:
		c.mu.answered, c.strikes = false, 0
	case now.Sub(before) < least:
		if c.strikes++; c.strikes > maxPingStrikes {
			return failed(http2.ErrCodeEnhanceYourCalm, "too_many_pings")
		}
	}
	return nil
}

func (c *conn) pingLocked(flags http2.Flags, data [8]byte) {
	if !c.mu.closed {
		c.grow(0)
		c.mu.out = append(appendFrameHeader(c.mu.out, 8, http2.FramePing, flags, 0), data[:]...)
	}
}

// drain asks the client to go elsewhere. What it has sent before it knows is served.
func (c *conn) drain(why string) {
	c.mu.Lock()
	c.drainLocked(why)
	c.mu.Unlock()
	c.flush()
}

func (c *conn) drainLocked(why string) {
	if c.mu.draining || c.mu.closed {
		return
	}
	c.mu.draining, c.mu.drainBy = true, time.Now().Add(drainTimeout)
	c.goAwayLocked(maxWindow, http2.ErrCodeNo, why)
	c.pingLocked(0, drainPing)
	if c.mu.timer != nil {
		c.nextLocked(time.Now())
	}
}

// refuseLocked ends draining: streams are refused from now on.
func (c *conn) refuseLocked() {
	if c.mu.refusing || c.mu.closed {
		return
	}
	c.mu.refusing = true
	c.goAwayLocked(c.mu.lastID, http2.ErrCodeNo, "")
	c.idleLocked()
}

// tick does what is due: keep-alive, the end of an idle or an old connection, draining.
func (c *conn) tick() {
	now := time.Now()
	k := &c.s.o.Keepalive
	c.mu.Lock()
	dead := false
	if old := c.mu.age > 0 && !now.Before(c.born.Add(c.mu.age)); old {
		c.drainLocked("max_age")
		dead = k.MaxConnectionAgeGrace > 0 && !now.Before(c.born.Add(c.mu.age+k.MaxConnectionAgeGrace))
	}
	if k.MaxConnectionIdle > 0 && len(c.mu.streams) == 0 && !now.Before(c.mu.idle.Add(k.MaxConnectionIdle)) {
		c.drainLocked("max_idle")
	}
	if c.mu.draining && !now.Before(c.mu.drainBy) {
		c.refuseLocked()
	}
	read := c.born.Add(time.Duration(c.last.Load()))
	switch {
	case !c.mu.asked.After(read) && now.Sub(read) >= k.Time:
		c.mu.asked = now
		c.pingLocked(0, [8]byte{})
	case c.mu.asked.After(read) && now.Sub(c.mu.asked) >= k.Timeout:
		dead = true
	}
	c.nextLocked(now)
	c.mu.Unlock()
	if dead {
		c.close()
		return
	}
	c.flush()
}

// nextLocked sets the timer for what is due next.
func (c *conn) nextLocked(now time.Time) {
	if c.mu.closed {
		return
	}
	k := &c.s.o.Keepalive
	read := c.born.Add(time.Duration(c.last.Load()))
	next := read.Add(k.Time)
	if c.mu.asked.After(read) {
		next = c.mu.asked.Add(k.Timeout)
	}
	due := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	if c.mu.age > 0 {
		if at := c.born.Add(c.mu.age); now.Before(at) {
			due(at)
		} else if k.MaxConnectionAgeGrace > 0 {
			due(at.Add(k.MaxConnectionAgeGrace))
		}
	}
	switch {
	case k.MaxConnectionIdle == 0 || c.mu.draining:
	case len(c.mu.streams) > 0:
		due(now.Add(k.MaxConnectionIdle))
	default:
		due(c.mu.idle.Add(k.MaxConnectionIdle))
	}
	if c.mu.draining && !c.mu.refusing {
		due(c.mu.drainBy)
	}
	c.mu.timer.Reset(max(next.Sub(now), time.Millisecond))
}
