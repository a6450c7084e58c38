package tabletserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
)

// isAssignedHere tells whether a row wants this server to serve its tablet.
func (s *Server) isAssignedHere(r *metadata.Row) bool {
	a := r.Assignment
	return a != nil && a.Incarnation == s.owner && a.State != metadata.Unassigned
}

// runDetached calls do with the life of the server and waits for it until ctx ends.
// Changes of METADATA rows go on without their caller. A change that is given up before
// its outcome is known costs the tablet, or the server.
func (s *Server) runDetached(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return rpc.ErrNotServing
	}
	s.running.Go(func() { done <- do(s.ctx) })
	s.mu.Unlock()
	select {
	case err := <-done:
		return s.translateShutdown(err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// translateShutdown returns err, as Unavailable if the end of the server cancelled the
// work: its caller has cancelled nothing.
func (s *Server) translateShutdown(err error) error {
	if err != nil && s.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return fault.New(fault.Unavailable, "the tablet server ended meanwhile: %s", err.Error())
	}
	return err
}

// Load implements rpc.Control. The tablets that need the log of one former
// owner are recovered together, by one replay.
func (s *Server) Load(ctx context.Context, keys []rpc.TabletKey) error {
	for {
		if err := s.alive(); err != nil {
			return err
		}
		var others []beingLoaded
		err := s.runDetached(ctx, func(ctx context.Context) (err error) {
			others, err = s.load(ctx, keys)
			return err
		})
		if err != nil || len(others) == 0 {
			return err
		}
		keys = nil
		for _, o := range others {
			select {
			case <-o.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			keys = append(keys, o.key) // the other call may have failed
		}
	}
}

// A beingLoaded is a tablet that another call of Load is opening. done is closed when that
// has succeeded or failed.
type beingLoaded struct {
	key  rpc.TabletKey
	done <-chan struct{}
}

// load opens tablets. It returns those that it left to other calls.
func (s *Server) load(ctx context.Context, keys []rpc.TabletKey) (others []beingLoaded, err error) {
	byLog := map[uint64][]*metadata.Row{}
	var errs []error
	for _, k := range keys {
		r, err := s.meta.Get(ctx, k)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// A row that says Open is of a tablet that is served here already, or is being
		// split or merged. Its log is this server's own and must not be sealed.
		if !s.isAssignedHere(r) || r.Assignment.State == metadata.Open {
			continue
		}
		claimed, done, err := s.claim(r)
		switch {
		case err != nil:
			errs = append(errs, err)
		case claimed:
			byLog[r.Assignment.Log] = append(byLog[r.Assignment.Log], r)
		case done != nil:
			others = append(others, beingLoaded{k, done})
		}
	}
	for log, rows := range byLog {
		err := s.recoverUndamaged(ctx, commitlog.ID(log), rows)
		if err != nil && s.Err() == nil {
			errs = append(errs, err)
		}
		s.mu.Lock()
		for _, r := range rows {
			close(s.loading[r.Tablet])
			delete(s.loading, r.Tablet)
		}
		s.mu.Unlock()
	}
	return others, errors.Join(errs...)
}

// claim notes that a tablet is being loaded, unless it is served. If another call loads it
// already, done is closed when that ends.
func (s *Server) claim(r *metadata.Row) (claimed bool, done <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.tablets[r.Tablet] != nil:
		return false, nil, nil
	case s.loading[r.Tablet] != nil:
		return false, s.loading[r.Tablet], nil
	case s.logGroupOf(r.Table).closed:
		return false, nil, rpc.ErrNotServing // it never will be
	}
	s.loading[r.Tablet] = make(chan struct{})
	return true, nil, nil
}

// recover opens tablets whose newest changes are in the log of a former owner,
// or, if log is 0 or our own, in no log. clock says that the log's clock records are to be
// read; otherwise all that its item bounds may have been promised to readers of changes.
func (s *Server) recover(ctx context.Context, log commitlog.ID, rows []*metadata.Row, clock bool) error {
	start := time.Now()
	opened := map[uint64]*served{}
	abandon := func() {
		for _, t := range opened {
			t.Close()
		}
	}
	for _, r := range rows {
		id := r.Tablet
		r, err := s.resolveMerge(ctx, r)
		if errors.Is(err, errMerged) {
			continue
		}
		var table *catalog.Table
		if err == nil {
			table, err = s.schemas.ByID(r.Table)
		}
		if err != nil {
			abandon()
			return fmt.Errorf("resolve the operation of tablet %v: %w", id, err)
		}
		h := s.logGroupOf(r.Table)
		opened[uint64(r.Tablet)] = &served{Tablet: tablet.Open(h.env, r, table.Schema), table: table, epoch: r.Assignment.Epoch, group: h, servedSince: time.Now()}
	}
	records := 0
	var promised cell.Seq
	if log != 0 {
		l, err := catalog.SealLog(ctx, s.o.Lock, s.o.Logs, log)
		if err == nil {
			// From here on nothing is acknowledged there. All that was goes by schemas that are
			// stored by now, and that a watch may bring later.
			_, err = s.schemas.Refresh(ctx, "")
		}
		if err == nil {
			if !clock || len(l.GivenUp) > 0 {
				promised = l.Promised
			}
			if len(l.GivenUp) > 0 {
				s.o.Log.Warn("recovers from a commit log without what was given up of it", "server", s.serverName(), "log", log.String(), "segments", len(l.GivenUp), "tablets", len(opened))
			}
			want := func(id uint64) bool { return opened[id] != nil || clock && id == ClockTablet }
			err = commitlog.ReplaySealed(ctx, s.o.Logs, log, l.From, l.End, l.GivenUp, want, func(rec commitlog.Record) error {
				if rec.Tablet == ClockTablet {
					promised = max(promised, cell.Seq(rec.FirstSeq))
					return nil
				}
				records++
				// The position is one of another log: it holds up no trimming of ours.
				rec.Pos = commitlog.Pos{}
				return opened[rec.Tablet].Replay(&rec)
			})
		}
		if err != nil {
			abandon()
			return fmt.Errorf("recover from commit log %v: %w", log, err)
		}
	}
	var errs []error
	for _, t := range opened {
		if promised > 0 {
			t.Promise(promised)
			t.promised = promised
		}
		t.Start()
		if err := s.open(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("open %v: %w", t.Name(), err))
			continue
		}
		s.o.Held("load", time.Since(start))
	}
	s.o.Log.Info("tablets opened", "server", s.serverName(), "tablets", len(opened), "log", log.String(), "records", records, "elapsed", time.Since(start))
	return errors.Join(errs...)
}

// open writes the replayed changes to SSTables, marks the tablet as Open in its METADATA
// row, and serves it. If it fails it closes the tablet.
func (s *Server) open(ctx context.Context, t *served) (err error) {
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if err := t.FlushAll(ctx); err != nil {
		return err
	}
	if op := t.Row().Op; op != nil {
		right, err := s.finishSplit(ctx, t)
		if err != nil {
			return err
		}
		t = right // the one that was split is closed
	}
	err = t.Change(ctx, func(r *metadata.Row) {
		a := *r.Assignment
		a.State, a.Log = metadata.Open, uint64(t.group.log.ID())
		r.Assignment = &a
		r.Redo = commitlog.Pos{}
		// The log that has the promise will be deleted.
		r.MaxSeq = max(r.MaxSeq, t.promised)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.group.closed {
		return tablet.ErrClosed
	}
	s.tablets[t.ID()] = t
	s.wakeViews(t.table)
	return nil
}

// errMerged says that a tablet's rows belong to another one by now.
var errMerged = errors.New("the tablet was merged into the next one")

// resolveMerge runs before a tablet is opened. It makes sure that a merge begun by the
// former owner has happened or cannot happen any more, even if that owner is alive. It
// returns the row as it is then, or errMerged.
func (s *Server) resolveMerge(ctx context.Context, r *metadata.Row) (*metadata.Row, error) {
	op := r.Op
	if op == nil || op.Kind == metadata.Split {
		return r, nil // a split is resolved when everything is in SSTables
	}
	next := r.Clone()
	next.Op = nil
	if op.Kind == metadata.Merge {
		left, err := s.meta.Get(ctx, rpc.TabletKey{Table: r.Table, End: op.At})
		if err == nil && left.Tablet == op.Left {
			err = s.meta.Retire(ctx, left)
		}
		if err != nil && !errors.Is(err, fault.NotFound) {
			return nil, err
		}
		return next, s.meta.CAS(ctx, next)
	}
	rows, err := s.meta.Lookup(ctx, r.Table, r.End, 1)
	if err != nil {
		return nil, err
	}
	b := rows[0].Clone()
	if b.Op != nil && b.Op.Kind == metadata.Merge && b.Op.Left == r.Tablet || string(b.Start) < string(r.End) {
		return nil, errMerged
	}
	// The merge was to be made by the former owner of both. If b is still open at it, its
	// compare-and-set of b's row must fail from here on; if it is not, it does. A server that
	// b was assigned to since must keep the version that it opens b from.
	if log, of := r.Assignment.Log, b.Assignment; of != nil && of.State == metadata.Open && of.Log == log && log != 0 {
		if err := s.meta.CAS(ctx, b); err != nil {
			return nil, fault.New(fault.Unavailable, "the tablet after tablet %v is changing: %v", r.Tablet, err)
		}
	}
	return next, s.meta.CAS(ctx, next)
}

// finishSplit ends a split that the former owner of t has begun. That owner may be alive
// and add the left child's row at any time, so the split cannot be forgotten. If it does
// add the row, everything was in SSTables before, and its row equals the one written here.
// It can be added once: to the version of its key that the operation names.
func (s *Server) finishSplit(ctx context.Context, t *served) (*served, error) {
	var right *metadata.Row
	err := t.Replace(func(parent *metadata.Row) error {
		var left *metadata.Row
		parent = parent.Clone()
		parent.MaxSeq = max(parent.MaxSeq, t.promised)
		if parent.Stream != nil {
			parent.MaxSeq = stamp.Next(parent.MaxSeq, s.o.Now())
		}
		left, right = tablet.SplitRows(parent)
		left.Assignment = &metadata.Assignment{State: metadata.Unassigned, Epoch: t.epoch, Master: parent.Assignment.Master}
		if err := s.meta.CAS(ctx, left); err != nil && !errors.Is(err, fault.Fenced) {
			return err
		}
		return s.meta.CAS(ctx, right)
	})
	if err != nil {
		return nil, err
	}
	next := &served{Tablet: tablet.Open(t.group.env, right, t.table.Schema), table: t.table, epoch: t.epoch, group: t.group, servedSince: t.servedSince}
	next.Start()
	return next, nil
}

// Unload implements rpc.Control.
func (s *Server) Unload(ctx context.Context, tablets []metadata.TabletID) error {
	return s.runDetached(ctx, func(ctx context.Context) error {
		var errs []error
		for _, id := range tablets {
			errs = append(errs, s.unload(ctx, id))
		}
		return errors.Join(errs...)
	})
}

func (s *Server) unload(ctx context.Context, id metadata.TabletID) error {
	s.mu.RLock()
	t := s.tablets[id]
	s.mu.RUnlock()
	if t == nil {
		return nil
	}
	err := t.Release(ctx, func(r *metadata.Row) {
		r.Assignment = &metadata.Assignment{State: metadata.Unassigned, Epoch: r.Assignment.Epoch, Master: r.Assignment.Master}
		r.Redo = commitlog.Pos{}
	})
	if errors.Is(err, tablet.ErrReplaced) {
		err = nil // it was split, merged or unloaded meanwhile
	}
	if err != nil {
		return fmt.Errorf("unload %v: %w", t.Name(), err)
	}
	s.mu.Lock()
	delete(s.tablets, id)
	s.mu.Unlock()
	s.wakeViews(t.table)
	s.o.Log.Info("tablet given up", "server", s.serverName(), "tablet", t.Name())
	return nil
}

// tabletsByID returns tablets that are served.
func (s *Server) tabletsByID(ids ...metadata.TabletID) ([]*served, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*served
	for _, id := range ids {
		t := s.tablets[id]
		if t == nil {
			return nil, rpc.ErrNotServing
		}
		out = append(out, t)
	}
	return out, nil
}

// replaceServed puts tablets in the place of others.
func (s *Server) replaceServed(old []*served, by []*tablet.Tablet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range old {
		delete(s.tablets, t.ID())
	}
	for _, t := range by {
		s.tablets[t.ID()] = &served{Tablet: t, table: old[0].table, epoch: old[0].epoch, group: old[0].group, servedSince: time.Now()}
	}
	s.wakeViews(old[0].table)
}

// Split implements rpc.Control.
func (s *Server) Split(ctx context.Context, id metadata.TabletID, at []byte) error {
	ts, err := s.tabletsByID(id)
	if err != nil {
		return err
	}
	t := ts[0]
	if len(at) == 0 {
		var ok bool
		if at, ok, err = t.SplitKey(ctx); err != nil {
			return err
		} else if !ok {
			return fault.New(fault.FailedPrecondition, "%v has no row to split it at", t.Name())
		}
		if at, err = s.alignSplitKey(ctx, t, at); err != nil {
			return err
		}
	}
	return s.runDetached(ctx, func(ctx context.Context) error { return s.split(ctx, t, at) })
}

// alignSplitKey returns where to split a tablet near at: one of METADATA just after the
// row of a tablet. A lookup of a tablet's row reads from there to the tablet's end. It
// would have to read two METADATA tablets if they met in between.
func (s *Server) alignSplitKey(ctx context.Context, t *served, at []byte) ([]byte, error) {
	if t.group != s.system {
		return at, nil
	}
	q, err := tablet.NewQuery(t.table.Schema(), metastore.LiveRows, false)
	if err != nil {
		return nil, err
	}
	bounds := t.Bounds()
	var next keyReader
	for rest := []row.Range{{Start: at, End: bounds.End}}; len(rest) > 0 && next.key == nil; {
		if rest, _, err = t.Read(ctx, q, rest, 1, &next, new(scan.Stats)); err != nil {
			return nil, notServing(err)
		}
	}
	if after := row.Successor(next.key); next.key != nil && bounds.Contains(after) {
		return after, nil
	}
	return at, nil
}

// A keyReader keeps the key of the last row.
type keyReader struct{ key []byte }

func (r *keyReader) StartRow(key []byte) { r.key = slices.Clone(key) }
func (*keyReader) Cell(*row.Cell)        {}
func (*keyReader) EndRow() (bool, error) { return false, nil }
func (*keyReader) Scanned([]byte)        {}
func (*keyReader) Flush() error          { return nil }

func (s *Server) split(ctx context.Context, t *served, at []byte) error {
	start := time.Now()
	err := t.Tablet.Split(ctx, slices.Clone(at), metadata.TabletID(s.newID()), metadata.TabletID(s.newID()), func(children ...*tablet.Tablet) {
		s.replaceServed([]*served{t}, children)
	})
	if err == nil {
		s.o.Log.Info("tablet split", "server", s.serverName(), "tablet", t.Name(), "elapsed", time.Since(start))
	}
	return retryable(err)
}

// Merge implements rpc.Control.
func (s *Server) Merge(ctx context.Context, left, right metadata.TabletID) error {
	ts, err := s.tabletsByID(left, right)
	if err != nil {
		return err
	}
	if ts[0].table != ts[1].table {
		return fault.New(fault.Invalid, "%v and %v are of different tables", ts[0].Name(), ts[1].Name())
	}
	start := time.Now()
	return retryable(s.runDetached(ctx, func(ctx context.Context) error {
		err := tablet.Merge(ctx, ts[0].Tablet, ts[1].Tablet, metadata.TabletID(s.newID()),
			func(r *metadata.Row) error { return s.meta.Retire(ctx, r) },
			func(merged ...*tablet.Tablet) { s.replaceServed(ts, merged) })
		if err == nil {
			s.o.Log.Info("tablets merged", "server", s.serverName(), "left", ts[0].Name(), "right", ts[1].Name(), "elapsed", time.Since(start))
		}
		return err
	}))
}

// Flush implements rpc.Control.
func (s *Server) Flush(ctx context.Context, tablets []metadata.TabletID) error {
	ts, err := s.tabletsByID(tablets...)
	if err != nil {
		return err
	}
	return retryable(s.runDetached(ctx, func(ctx context.Context) error {
		for _, t := range ts {
			if err := t.FlushAll(ctx); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Compact implements rpc.Control.
func (s *Server) Compact(ctx context.Context, tablets []metadata.TabletID) error {
	ts, err := s.tabletsByID(tablets...)
	if err != nil {
		return err
	}
	return retryable(s.runAttached(ctx, func(ctx context.Context) error {
		for _, t := range ts {
			if err := t.CompactMajor(ctx); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Status implements rpc.Control.
func (s *Server) Status(context.Context) (*rpc.Status, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	out := &rpc.Status{Server: s.o.Name, Incarnation: s.owner, Copy: s.rollback.Number(), SplitBytes: max(s.o.SplitBytes, 0),
		MetadataSplitBytes: max(s.o.MetadataSplitBytes, 0), SplitRate: max(s.o.SplitRate, 0)}
	now := time.Now()
	for _, t := range s.allTablets() {
		x := t.status(t.Load(now), t.Bytes())
		x.Changes, x.View = t.ChangesBegin(), s.views.progress(t)
		out.Tablets = append(out.Tablets, x)
	}
	slices.SortFunc(out.Tablets, func(a, b rpc.TabletStatus) int {
		if a.Tablet < b.Tablet {
			return -1
		}
		return 1
	})
	return out, nil
}

// splitLoop splits tablets that have grown too large, or take too much of the
// load, until ctx ends.
func (s *Server) splitLoop(ctx context.Context) {
	hot := tablet.Hot{}
	checks := time.NewTicker(s.o.SplitCheck)
	defer checks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-checks.C:
		}
		split := func(t *tablet.Tablet, at []byte) {
			err := s.Split(ctx, t.ID(), at)
			if err != nil && ctx.Err() == nil && !errors.Is(err, fault.FailedPrecondition) && !errors.Is(err, rpc.ErrNotServing) {
				s.o.Log.Warn("split tablet", "tablet", t.Name(), "error", err)
			}
		}
		// METADATA first: splits of others change it.
		for _, h := range []struct {
			*logGroup
			bytes int64
		}{{s.system, s.o.MetadataSplitBytes}, {s.users, s.o.SplitBytes}} {
			for _, t := range s.tabletsOf(h.logGroup) {
				if h.bytes > 0 && t.Large(h.bytes) {
					split(t, nil)
				}
			}
		}
		if s.o.SplitRate < 0 {
			continue
		}
		for t, rate := range hot.Lasting(append(s.tabletsOf(s.users), s.tabletsOf(s.system)...), time.Now(), s.o.SplitRate, s.o.SplitHotAfter) {
			// A hot row cannot be divided.
			if at, ok := t.HotKey(); ok {
				s.o.Log.Info("tablet is hot", "server", s.serverName(), "tablet", t.Name(), "rows_per_second", int64(rate))
				split(t, at)
			}
		}
	}
}

// recheckCompactions has the compactor look again at tablets whose table's schema has
// changed. Their families may be in other locality groups now, or the groups be kept in
// memory. seen has the versions that were looked at.
func (s *Server) recheckCompactions(seen map[metadata.TabletID]uint64) {
	wake(s.views.wake)
	ts := s.allTablets()
	if len(seen) > 2*len(ts)+100 {
		clear(seen)
	}
	for _, t := range ts {
		if v := t.table.Schema().Version; seen[t.ID()] != v {
			seen[t.ID()] = v
			t.group.work.Add(t.Tablet)
		}
	}
}

// publishSchemas tells the cluster up to which revision this server judges by the schemas
// of tables. A client that changes a schema waits for that.
func (s *Server) publishSchemas() {
	key := catalog.AppliedKey(s.owner)
	var item lock.Item
	var published int64
	seen := map[metadata.TabletID]uint64{}
	for {
		s.recheckCompactions(seen)
		now := s.schemas.Revision()
		if now > published {
			value, err := json.Marshal(now)
			if err == nil && item.Version == 0 {
				item, err = s.session.Hold(s.ctx, key, value)
			} else if err == nil {
				item.Version, err = s.o.Lock.Put(s.ctx, key, value, item.Version)
			}
			if err == nil {
				published = now
			} else {
				// An answer was lost, the session has stored the item again, or the lock
				// service is away.
				select {
				case <-time.After(s.o.TTL / 50):
				case <-s.ctx.Done():
					return
				}
				if i, err := s.o.Lock.Get(s.ctx, key); err == nil || errors.Is(err, fault.NotFound) {
					item = i
				}
				continue
			}
		}
		if err := s.schemas.AwaitAfter(s.ctx, max(published, 0)); err != nil {
			return
		}
	}
}
