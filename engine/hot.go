package engine

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// What the processors spend on requests, as measured: see HotTablets.
const (
	readSeconds    = 4e-6   // a call that reads
	rowSeconds     = 0.3e-6 // a row of a scan
	writtenSeconds = 12e-6  // a row changed
	byteSeconds    = 0.5e-9 // of values, copied and checked
)

// busy estimates how many processors a load keeps busy.
func busy(l tablet.Load) float64 {
	return l.Reads*readSeconds + l.RowsRead*rowSeconds + l.RowsWritten*writtenSeconds + l.Bytes*byteSeconds
}

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
			part := busy(tt.Load(now)) / float64(runtime.GOMAXPROCS(0))
			if part < 1e-6 {
				continue
			}
			out = append(out, scan.HotTablet{Table: name, Rows: tt.Bounds(), CPUFraction: min(part, 1),
				From: now.Add(-tablet.LoadWindow), To: now})
		}
	}
	slices.SortFunc(out, func(a, b scan.HotTablet) int {
		switch {
		case a.CPUFraction > b.CPUFraction:
			return -1
		case a.CPUFraction < b.CPUFraction:
			return 1
		case a.Table != b.Table:
			return strings.Compare(a.Table, b.Table)
		}
		return strings.Compare(string(a.Rows.Start), string(b.Rows.Start))
	})
	return out, nil
}

// A tablet is hot when it takes more than Options.SplitRate rows a second and
// most of what its server is asked for.
const hotShare = 0.6

// splitHot splits tablets that have been hot for Options.SplitHotAfter, at a
// row that parts their load. It is called now and then by one goroutine, and
// keeps in hot since when which tablets are hot.
func (s *Store) splitHot(ctx context.Context, hot map[*tablet.Tablet]time.Time) {
	if s.o.SplitRate <= 0 {
		return
	}
	now := s.o.Now()
	var total float64
	rates := map[*tablet.Tablet]float64{}
	for _, tt := range s.allTablets() {
		rates[tt] = tt.Load(now).Rows()
		total += rates[tt]
	}
	for tt, rate := range rates {
		if rate < s.o.SplitRate || rate < hotShare*total {
			delete(hot, tt)
		} else if since, ok := hot[tt]; !ok {
			hot[tt] = now
		} else if now.Sub(since) >= s.o.SplitHotAfter {
			delete(hot, tt) // whatever comes of it, look again in a while
			s.splitForLoad(ctx, tt, rate)
		}
	}
	maps.DeleteFunc(hot, func(tt *tablet.Tablet, _ time.Time) bool { _, ok := rates[tt]; return !ok })
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
			s.o.Log.Warn("split tablet for its load", "tablet", uint64(tt.ID()), "error", err)
		}
		return
	}
	s.o.Log.Info("tablet was hot", "table", t.schema.Load().Name, "tablet", uint64(tt.ID()), "rows_per_second", int64(rate))
}
