package tabletserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
)

// A damagedLog is a log of a former owner that could not be replayed for some
// tablets. The master asks for them several times a second; the log is not read again
// before retryAt.
type damagedLog struct {
	retryAt time.Time
	errors  map[metadata.TabletID]error
}

// A damaged log is read again after damagedRetryMin, or damagedRetryFactor times as long
// as reading it took, whichever is later.
const damagedRetryMin, damagedRetryFactor = 2 * time.Second, 10

// recoverUndamaged recovers the tablets whose records in the log are all sound. It notes
// in the lock service what the others wait for.
func (s *Server) recoverUndamaged(ctx context.Context, log commitlog.ID, rows []*metadata.Row) error {
	rows, err := s.withoutKnownDamage(log, rows)
	if len(rows) == 0 {
		return err
	}
	failed := s.recover(ctx, log, rows, true)
	if _, ok := errors.AsType[*commitlog.DamagedError](failed); !ok {
		if failed == nil && log != 0 {
			s.noteOpened(ctx, log, rows)
		}
		return errors.Join(err, failed)
	}
	start := time.Now()
	state, _, serr := catalog.ReadLog(ctx, s.o.Lock, log)
	if serr != nil {
		return errors.Join(err, failed)
	}
	found, ferr := commitlog.FindDamage(ctx, s.o.Logs, log, state.Kept, state.GivenUp)
	if ferr != nil || len(found) == 0 {
		return errors.Join(err, failed)
	}
	damaged := map[metadata.TabletID]error{}
	var waiting []catalog.WaitingTablet
	var sound []*metadata.Row
	for _, r := range rows {
		i := slices.IndexFunc(found, func(d commitlog.Damage) bool {
			_, lost := d.Lost[uint64(r.Tablet)]
			return lost || d.Lost == nil
		})
		if i < 0 {
			sound = append(sound, r)
			continue
		}
		d := found[i]
		w := catalog.WaitingTablet{Tablet: r.Tablet, Start: r.Start, End: r.End, Object: d.Object, Error: d.Err.Error(), Since: time.Now()}
		if t, terr := s.schemas.ByID(r.Table); terr == nil {
			w.Table = t.Schema().Name
		}
		waiting = append(waiting, w)
		// The same error each time, so that the master logs only what is new.
		failed = fmt.Errorf("recover from commit log %v: %w", log, d.Err)
		damaged[r.Tablet] = failed
	}
	s.mu.Lock()
	known := s.damaged[log]
	if known == nil {
		known = &damagedLog{errors: map[metadata.TabletID]error{}}
		s.damaged[log] = known
	}
	maps.Copy(known.errors, damaged)
	known.retryAt = time.Now().Add(max(damagedRetryMin, damagedRetryFactor*time.Since(start)))
	s.mu.Unlock()
	if len(waiting) > 0 {
		if nerr := catalog.NoteWaiting(ctx, s.o.Lock, log, waiting); nerr != nil {
			s.o.Log.Warn("could not note that tablets wait for a damaged commit log", "log", log.String(), "error", nerr)
		}
	}
	if len(sound) == 0 {
		return errors.Join(err, failed)
	}
	// Perhaps it is clock records that are damaged.
	rerr := s.recover(ctx, log, sound, false)
	if rerr == nil {
		s.noteOpened(ctx, log, sound)
		if len(waiting) > 0 {
			rerr = failed
		}
	}
	return errors.Join(err, rerr)
}

// withoutKnownDamage returns the rows for which the log is to be read, and the error of
// one of the others.
func (s *Server) withoutKnownDamage(log commitlog.ID, rows []*metadata.Row) (left []*metadata.Row, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.damaged[log]
	if d == nil {
		return rows, nil
	}
	if !time.Now().Before(d.retryAt) {
		delete(s.damaged, log)
		return rows, nil
	}
	for _, r := range rows {
		if e, ok := d.errors[r.Tablet]; ok {
			err = e
		} else {
			left = append(left, r)
		}
	}
	return left, err
}

// noteOpened removes the note that tablets wait for a log, if there is one.
func (s *Server) noteOpened(ctx context.Context, log commitlog.ID, rows []*metadata.Row) {
	var ids []metadata.TabletID
	for _, r := range rows {
		ids = append(ids, r.Tablet)
	}
	if err := catalog.NoteOpened(ctx, s.o.Lock, log, ids...); err != nil {
		s.o.Log.Warn("could not note that tablets wait for a damaged commit log no more", "log", log.String(), "error", err)
	}
}
