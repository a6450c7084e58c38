//go:build sim

package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/lock/memory"
)

// A storm disturbs the network of a cluster, by a seed: messages are late, lost,
// carried out though their sender has given up, or arrive twice; nodes are cut
// off, in one direction or both; nodes stand still and go on where they were.
type storm struct {
	mu     sync.Mutex
	rng    *rand.Rand
	calm   bool
	loss   float64
	late   float64              // part of the messages that are late
	cut    map[way]time.Time    // what is cut off, and until when
	paused map[string]time.Time // nodes that stand still, the lock service and the store among them
	clocks map[string]*Clock
	drift  float64 // how much faster or slower than true a clock may run

	sent, lost, delayed, twice, held int
}

// A way is that of messages from a node to another one, or all ways of a node if
// to is empty.
type way struct{ from, to string }

func newStorm(seed uint64, rng *rand.Rand) *storm {
	return &storm{rng: rand.New(rand.NewPCG(seed, 2)), calm: true, loss: []float64{0, 0.002, 0.02}[rng.IntN(3)], late: []float64{0.005, 0.02}[rng.IntN(2)],
		cut: map[way]time.Time{}, paused: map[string]time.Time{}, clocks: map[string]*Clock{}, drift: []float64{0, 0.05}[rng.IntN(2)]}
}

// clock returns the clock of a node, which stays when its processes end.
func (s *storm) clock(name string) *Clock {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clocks[name]
	if c == nil {
		c = NewClock(1+s.drift*(2*s.rng.Float64()-1), 0)
		if s.drift > 0 {
			c.Jump(time.Duration(s.rng.IntN(120)-60) * time.Second)
		}
		s.clocks[name] = c
	}
	return c
}

// twiceIs implements Options.Twice.
func (s *storm) twiceIs(Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := !s.calm && s.rng.IntN(50) == 0
	if again {
		s.twice++
	}
	return again
}

// net implements Net.
func (s *storm) net(ctx context.Context, m Message) error {
	s.mu.Lock()
	now := time.Now()
	lost := !s.calm && s.rng.Float64() < s.loss
	refused := s.rng.IntN(2) == 0
	delay := time.Duration(s.rng.IntN(1000)) * time.Microsecond
	if !s.calm && s.rng.Float64() < s.late {
		delay = time.Duration(s.rng.IntN(400)) * time.Millisecond
		if s.rng.IntN(20) == 0 {
			delay *= 20
		}
		s.delayed++
	}
	if m.Kind == memory.Heartbeat && s.loss == 0 {
		delay = min(delay, 300*time.Millisecond)
	}
	for _, w := range []way{{m.From, ""}, {m.To, ""}, {m.From, m.To}} {
		if !s.calm && s.cut[w].After(now) {
			lost = true
		}
	}
	s.sent++
	if lost {
		s.lost++
	}
	s.mu.Unlock()
	if err := wait(ctx, delay); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		now, until := time.Now(), time.Time{}
		for _, n := range []string{m.From, m.To} {
			if s.paused[n].After(until) {
				until = s.paused[n]
			}
		}
		if until.After(now) {
			s.held++
		}
		s.mu.Unlock()
		if !until.After(now) {
			break
		}
		if err := wait(ctx, until.Sub(now)); err != nil {
			return err
		}
	}
	if !lost {
		return nil
	}
	if refused && !m.Answer {
		return ErrRefused
	}
	// Whoever waits for an answer notices after a while.
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	return errors.New("the message is lost")
}

// wait lasts d, though the cluster may end meanwhile, which is an error then:
// simulated time costs nothing, a select for each message a tenth of a storm.
func wait(ctx context.Context, d time.Duration) error {
	time.Sleep(d)
	return ctx.Err()
}

// cutOff makes messages of a way be lost for d.
func (s *storm) cutOff(w way, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[w] = time.Now().Add(d)
}

// pause makes a node stand still for d: what it sends, and what is sent to it,
// arrives after that.
func (s *storm) pause(node string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused[node] = time.Now().Add(d)
}

// rage lets the storm begin.
func (s *storm) rage() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = false
}

func (s *storm) calmDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = true
	clear(s.paused)
}
