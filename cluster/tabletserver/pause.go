package tabletserver

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/tablet"
)

// pauses are the tablets whose writes are held up.
type pauses struct {
	mu    sync.Mutex
	m     map[uint64]*paused
	ended bool // no more pauses may begin
}

type paused struct {
	*tablet.Paused
	timer *time.Timer
}

// take ends a pause and returns it: until now it was one. Its caller has to
// release it. It returns nil if the pause is over.
func (p *pauses) take(number uint64) *paused {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.m[number]
	delete(p.m, number)
	return one
}

// endAll ends all pauses.
func (p *pauses) endAll() {
	p.mu.Lock()
	all := p.m
	p.m, p.ended = nil, true
	p.mu.Unlock()
	for _, one := range all {
		one.timer.Stop()
		one.Release()
	}
}

// Pause implements rpc.Control.
func (s *Server) Pause(ctx context.Context, number uint64, tablets []metadata.TabletID, hold time.Duration) error {
	if err := s.alive(); err != nil {
		return err
	}
	found, err := s.tabletsByID(tablets...)
	if err != nil {
		return err
	}
	var ts []*tablet.Tablet
	for _, t := range found {
		ts = append(ts, t.Tablet)
	}
	// Every function that locks several tablets does it in this order.
	slices.SortFunc(ts, func(a, b *tablet.Tablet) int { return bytes.Compare(a.Bounds().Start, b.Bounds().Start) })
	p, err := tablet.Pause(ctx, ts)
	if err != nil {
		return retryable(err)
	}
	s.pauses.mu.Lock()
	defer s.pauses.mu.Unlock()
	if s.pauses.ended {
		p.Release()
		return rpc.ErrNotServing
	}
	if s.pauses.m[number] != nil {
		p.Release()
		return fault.New(fault.Invalid, "there is a pause of that number")
	}
	if s.pauses.m == nil {
		s.pauses.m = map[uint64]*paused{}
	}
	one := &paused{Paused: p}
	one.timer = time.AfterFunc(hold, func() {
		s.pauses.mu.Lock()
		over := s.pauses.m[number] == one
		if over {
			delete(s.pauses.m, number)
		}
		s.pauses.mu.Unlock()
		if over {
			p.Release()
		}
	})
	s.pauses.m[number] = one
	return nil
}

// Cut implements rpc.Control.
func (s *Server) Cut(ctx context.Context, number uint64) ([]*metadata.Row, error) {
	cut := make(chan []*metadata.Row, 1)
	err := s.runDetached(ctx, func(ctx context.Context) error {
		p := s.pauses.take(number)
		if p == nil {
			return fault.New(fault.Aborted, "the tablets' pause is over")
		}
		defer p.Release()
		p.timer.Stop()
		p.Cut()
		// No other server served the tablets while they were paused: the session has not
		// ended since.
		if err := s.alive(); err != nil {
			return err
		}
		held, err := p.Freeze(ctx)
		var rows []*metadata.Row
		for _, f := range held {
			rows = append(rows, f.Row())
			f.Release()
		}
		cut <- rows
		return err
	})
	if err != nil {
		return nil, retryable(err)
	}
	return <-cut, nil
}

// Resume implements rpc.Control.
func (s *Server) Resume(_ context.Context, number uint64) error {
	if p := s.pauses.take(number); p != nil {
		p.timer.Stop()
		p.Release()
	}
	return nil
}

// Needed implements rpc.Control.
func (s *Server) Needed(_ context.Context, objects []string) ([]string, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	var used []string
	for _, o := range objects {
		if s.users.env.Refers(o) || s.system.env.Refers(o) {
			used = append(used, o)
		}
	}
	return used, nil
}
