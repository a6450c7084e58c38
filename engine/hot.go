package engine

import (
	"context"
	"runtime"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// HotTablets returns the tablets with load of the tables whose names start with
// parent + "/tables/", the busiest first. What they keep busy is estimated from
// the rows and bytes read and written in the last seconds; the gateway's part of
// a request is not in it.
func (s *Store) HotTablets(_ context.Context, parent string) ([]scan.HotTablet, error) {
	parent, _, _ = strings.Cut(parent, "/clusters/")
	now := s.o.Now()
	var out []scan.HotTablet
	s.catalog.RLock()
	defer s.catalog.RUnlock()
	for name, t := range s.catalog.byName {
		if !strings.HasPrefix(name, parent+"/tables/") {
			continue
		}
		for _, tt := range t.list() {
			out = tablet.AppendHot(out, name, tt.Bounds(), tt.Load(now).Busy()/float64(runtime.GOMAXPROCS(0)), now)
		}
	}
	scan.SortHot(out)
	return out, nil
}

// splitHot splits tablets that have been hot for Options.SplitHotAfter, at a
// row that parts their load. It is called now and then by one goroutine.
func (s *Store) splitHot(ctx context.Context, hot tablet.Hot) {
	if s.o.SplitRate <= 0 {
		return
	}
	for tt, rate := range hot.Lasting(s.allTablets(), s.o.Now(), s.o.SplitRate, s.o.SplitHotAfter) {
		s.splitForLoad(ctx, tt, rate)
	}
}

// splitForLoad splits tt where its load is parted, if anywhere.
func (s *Store) splitForLoad(ctx context.Context, tt *tablet.Tablet, rate float64) {
	key, ok := tt.HotKey()
	if !ok {
		return // a hot row cannot be divided
	}
	s.admin.Lock()
	defer s.admin.Unlock()
	if s.stopped || ctx.Err() != nil {
		return
	}
	s.catalog.RLock()
	t := s.catalog.byID[tt.Row().Table]
	s.catalog.RUnlock()
	if t == nil || !t.schema.Load().DeleteTime.IsZero() || !slices.Contains(t.list(), tt) {
		return
	}
	if err := s.split(ctx, t, tt, key); err != nil {
		if ctx.Err() == nil {
			s.o.Log.Warn("split tablet for its load", "tablet", tt.Name(), "error", err)
		}
		return
	}
	s.o.Log.Info("tablet was hot", "tablet", tt.Name(), "rows_per_second", int64(rate))
}
