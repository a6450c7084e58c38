package master

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
)

// purge removes tables that can be undeleted no more, backups that have expired, and
// pending ones of both, and staged tables, whose creator is gone. It also removes
// METADATA rows, of those that were read before, that are of no table and no backup. The
// item is removed first and by a compare-and-set, so a client that is creating or
// undeleting it fails. Its rows are garbage from then on, as are those of a creator that
// died.
func (m *master) purge(ctx context.Context, v *view, rows []*tabletHint) error {
	now, known := m.o.Now(), map[uint64]bool{metastore.Table: true}
	pending := map[[2]int64]bool{}
	// stale tells whether something has been pending for too long. It goes by this
	// process's clock, as the creator's may be wrong.
	stale := func(id uint64, version int64) bool {
		if id>>32 < m.o.Abandoned {
			return true
		}
		k := [2]int64{int64(id), version}
		pending[k] = true
		since, ok := m.pendingSince[k]
		if !ok {
			since = time.Now()
			m.pendingSince[k] = since
		}
		return time.Since(since) > m.o.MakeLimit
	}
	backups, err := catalog.Backups(ctx, m.o.Lock, "")
	if err != nil {
		return err
	}
	for _, b := range backups {
		known[catalog.BackupTable(b.ID)] = true
		left := !b.Made || catalog.IsStaged(b.Name)
		if !b.Expired(now) && !left || left && !stale(b.ID, b.Version) {
			continue
		}
		err := m.o.Lock.Delete(ctx, catalog.BackupsPrefix+b.Name, b.Version)
		if err != nil && !errors.Is(err, fault.Aborted) && !errors.Is(err, fault.NotFound) {
			return err
		}
		m.o.Log.Info("deleted a backup that has expired, or that nobody makes any more", "backup", b.Name)
	}
	lives := map[uint64]bool{} // of views that are there
	var later []namedItem
	err = m.names.Names(ctx, m.o.Lock, func(i lock.Item, n catalog.Name) error {
		for _, t := range n {
			known[t.ID] = true
			switch {
			case t.View != nil && !t.View.State:
				lives[t.View.Life] = true
			case t.View != nil, len(t.Views) > 0:
				later = append(later, namedItem{i, n})
			}
		}
		left := slices.DeleteFunc(slices.Clone(n), func(t catalog.Entry) bool {
			if t.Pending {
				return stale(t.ID, 0)
			}
			if catalog.IsStaged(t.Name) {
				return stale(t.ID, int64(t.Version))
			}
			return !t.DeleteTime.IsZero() && now.Sub(t.DeleteTime) >= schema.UndeleteWindow
		})
		if len(left) == len(n) {
			return nil
		}
		name := i.Key[len(catalog.TablesPrefix):]
		if _, err := catalog.WriteName(ctx, m.o.Lock, name, left, i.Version); err != nil && !errors.Is(err, fault.Aborted) {
			return err
		}
		m.o.Log.Info("purged tables of a name", "name", name, "tables", len(n)-len(left))
		return nil
	})
	if err != nil {
		return err
	}
	for _, x := range later {
		if err := m.forgetViews(ctx, x, lives, stale); err != nil {
			return err
		}
	}
	for k := range m.pendingSince {
		if !pending[k] {
			delete(m.pendingSince, k)
		}
	}
	// The items were read after the rows, and were there before them.
	orphans := map[metadata.TabletID]time.Time{}
	var doomed []*tabletHint
	leave := map[uint64][]*tabletHint{}
	for _, r := range rows {
		if known[r.Table] {
			continue
		}
		since, ok := m.orphans[r.Tablet]
		if !ok {
			since = time.Now()
		}
		if !catalog.IsBackupTable(r.Table) { // their tablets' ids are those of others
			orphans[r.Tablet] = since
		}
		a := r.Assignment
		switch {
		case a == nil || a.State == metadata.Unassigned || m.dead(v, r):
			doomed = append(doomed, r)
		case a.State == metadata.Open:
			if n := a.Incarnation; len(leave[n]) < maxMovesPerServer {
				leave[n] = append(leave[n], r)
			}
		case time.Since(since) > m.o.MakeLimit:
			// The server that was to open it never will: it knows no such table.
			doomed = append(doomed, r)
		}
	}
	m.orphans = orphans
	m.moveOff(v, leave)
	return m.drop(ctx, doomed)
}

// A namedItem is the item of a name.
type namedItem struct {
	lock.Item
	tables catalog.Name
}

// forgetViews removes what a process left that died while it deleted a materialized view, or made
// one: contributions of a view that is not there, and the note in its source. lives are
// those of the views that are there. A view that is being made is in its source first, and has its
// rows' table before that of contributions.
func (m *master) forgetViews(ctx context.Context, x namedItem, lives map[uint64]bool, stale func(id uint64, version int64) bool) error {
	var left catalog.Name
	changed := false
	for _, t := range x.tables {
		if t.View != nil && t.View.State && !t.Pending && !lives[t.View.Life] {
			changed = true
			continue
		}
		if t.DeleteTime.IsZero() {
			next := t.Clone()
			for _, v := range t.Views {
				if !lives[v.Life] && stale(v.Life, -1) {
					next.RemoveView(v.Name, v.Life)
				}
			}
			if len(next.Views) < len(t.Views) {
				next.Version++
				next.KeepForViews(m.o.Now())
				next.NoteRules(t.Table)
				t.Table, changed = next, true
			}
		}
		left = append(left, t)
	}
	if !changed {
		return nil
	}
	if _, err := catalog.WriteName(ctx, m.o.Lock, x.Key[len(catalog.TablesPrefix):], left, x.Version); err != nil && !errors.Is(err, fault.Aborted) {
		return err
	}
	m.o.Log.Info("removed what was left of materialized views that are deleted, or were never made", "name", x.Key[len(catalog.TablesPrefix):])
	return nil
}

// drop deletes METADATA rows that are of no table and that no server serves.
func (m *master) drop(ctx context.Context, rows []*tabletHint) error {
	var mu sync.Mutex
	var errs []error
	var doing sync.WaitGroup
	slots := make(chan struct{}, 32)
	for _, r := range rows {
		slots <- struct{}{}
		doing.Go(func() {
			defer func() { <-slots }()
			err := m.meta.Delete(ctx, &metadata.Row{Version: r.Version, Table: r.Table, End: r.End})
			if err != nil && !errors.Is(err, fault.Fenced) && !errors.Is(err, fault.NotFound) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	doing.Wait()
	if len(rows) > 0 {
		m.o.Log.Info("deleted METADATA rows of tables and backups that are gone", "rows", len(rows))
	}
	return errors.Join(errs...)
}
