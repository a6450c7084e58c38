package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

const (
	// sweepEvery is how often unreferenced objects are looked for.
	sweepEvery = 10 * time.Minute
	// sweepAge is how long an object that this incarnation wrote must have been
	// unreferenced: far longer than any compaction takes from its first file to
	// its METADATA row.
	sweepAge = 24 * time.Hour
)

// sweep deletes the objects that neither a tablet nor a backup names: a crash
// came between writing them and naming them, or between forgetting and deleting
// them. Nothing is being written yet.
func (s *Store) sweep(ctx context.Context) error {
	used := map[string]bool{}
	for _, t := range append(s.allTablets(), s.meta) {
		for _, f := range t.Row().Files {
			used[f.Object] = true
		}
	}
	for _, b := range s.allBackups() {
		for _, t := range b.tablets {
			for _, f := range t.Row().Files {
				used[f.Object] = true
			}
		}
	}
	objects, err := s.objects.List(ctx, "", "", 0)
	if err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	for _, o := range objects {
		if !used[o.Name] {
			s.deleteObject(o.Name)
		}
		delete(used, o.Name)
	}
	for name := range used {
		return fault.New(fault.Corruption, "SSTable %s is missing from %s", name, s.o.Dir)
	}
	return nil
}

// A sweeper does the same beside everything else. What the current versions of
// tablets, readers and backups refer to is known; what is being written is not,
// so an object goes only if nothing referred to it in two passes, and only if it
// is of an incarnation that has ended or has been so for sweepAge.
type sweeper struct {
	s *Store
	// since says when an object was first seen unreferenced, of those that still
	// were in the last pass.
	since map[string]time.Time
}

// pass looks at every object once, and returns how many it deleted.
func (w *sweeper) pass(ctx context.Context) (int, error) {
	// A list first, references second: an object that is named later was not
	// there yet, or has been referred to since before the list.
	objects, err := w.s.objects.List(ctx, "", "", 0)
	if err != nil {
		return 0, fmt.Errorf("list objects: %w", err)
	}
	now, seen := w.s.o.Now(), map[string]time.Time{}
	n := 0
	for _, o := range objects {
		if w.s.env.Refers(o.Name) || w.s.metaEnv.Refers(o.Name) {
			continue
		}
		since, before := w.since[o.Name]
		if !before {
			seen[o.Name] = now
			continue
		}
		if w.s.written(o) && now.Sub(since) < sweepAge {
			seen[o.Name] = since
			continue
		}
		w.s.deleteObject(o.Name)
		w.s.o.Log.Info("deleted an object that nothing names", "object", o.Name, "bytes", o.Size)
		n++
	}
	w.since = seen
	return n, nil
}

// sweepAlways does passes until ctx ends.
func (s *Store) sweepAlways(ctx context.Context) {
	w := sweeper{s: s}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if _, err := w.pass(ctx); err != nil && ctx.Err() == nil {
				s.o.Log.Warn("sweep objects", "error", err)
			}
		}
	}
}

// written tells whether o was, or may have been, written by this incarnation.
func (s *Store) written(o objectstore.Info) bool {
	id, err := strconv.ParseUint(strings.TrimSuffix(o.Name, ".sst"), 16, 64)
	return err != nil || id>>32 >= s.root.Incarnation()
}
