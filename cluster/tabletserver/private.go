package tabletserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/mutex"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
)

// privateOwner is the owner that METADATA rows of a private store name. It is
// the process that holds the directory, whichever that is: no claimed
// incarnation is so small.
const privateOwner = 1

// Private says where a server that no other can replace keeps its commit logs.
// The caller holds the directory for as long as the server lives.
//
// A restart opens the logs again and replays them into the tablets whose METADATA
// rows name the owner. It changes no row and writes no SSTable, so it costs one
// read of METADATA and of the logs, however many tablets there are.
type Private struct {
	FS  vfs.FS
	Dir string
	// User and Metadata are the settings of the logs: of tables' tablets and of
	// METADATA's.
	User, Metadata commitlog.Options
	// MetadataOnly serves METADATA and no table, for tools. The log of tables is not
	// replayed. The store must be one that may be written to, and is not kept.
	MetadataOnly bool

	early chan earlyLog // of tables; nil if it was taken
}

type earlyLog struct {
	log *commitlog.FileLog
	err error
}

// openEarly opens the log of tables beside what else a start begins with: to find its end
// takes 30 ms after a kill.
func (p *Private) openEarly() {
	early := make(chan earlyLog, 1)
	p.early = early
	go func() {
		log, err := commitlog.Open(p.FS, p.FS.PathJoin(p.Dir, "ulog"), p.User)
		early <- earlyLog{log, err}
	}()
}

// takeEarly returns what openEarly opened.
func (p *Private) takeEarly() (*commitlog.FileLog, error) {
	e := <-p.early
	p.early = nil
	return e.log, e.err
}

// closeEarly closes the log of a start that did not come to take it.
func (p *Private) closeEarly() error {
	if p.early == nil {
		return nil
	}
	if log, err := p.takeEarly(); err == nil {
		return log.Close()
	}
	return nil // the start has failed before
}

// ownLog is a commit log of this server.
type ownLog interface {
	commitlog.Writer
	// ID is what METADATA rows call the log.
	ID() commitlog.ID
	// Full returns why writes are refused, or will be soon, if the store has no room
	// for the log, else nil.
	Full() error
	// allow is called before a clock record is appended that promises w, and does not
	// return before whoever takes over can find a bound of w without the log.
	allow(ctx context.Context, w cell.Seq) error
	// begin is called once, before the first record. For a log in files it calls recovered
	// with the log of an earlier process.
	begin(ctx context.Context, recovered func(*commitlog.FileLog) error) error
}

// fileLog is the log in files of a private store.
type fileLog struct {
	*commitlog.FileWriter // nil until it has begun
	log                   *commitlog.FileLog
	id                    commitlog.ID
	lock                  lock.Service

	mu       mutex.Mutex
	promised cell.Seq // that of the lock service's item, or less
}

func (p *Private) open(id commitlog.ID, l lock.Service) (_ *fileLog, err error) {
	f := &fileLog{id: id, lock: l}
	if id == catalog.MetadataLog(privateOwner) {
		f.log, err = commitlog.Open(p.FS, p.FS.PathJoin(p.Dir, "mlog"), p.Metadata)
	} else {
		f.log, err = p.takeEarly()
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ID implements ownLog.
func (f *fileLog) ID() commitlog.ID { return f.id }

func (f *fileLog) begin(_ context.Context, recovered func(*commitlog.FileLog) error) error {
	if err := recovered(f.log); err != nil {
		return fmt.Errorf("recover from commit log %v: %w", f.id, err)
	}
	w, err := f.log.Start()
	if err != nil {
		return fmt.Errorf("begin commit log %v: %w", f.id, err)
	}
	f.FileWriter = w.(*commitlog.FileWriter)
	return nil
}

// allow implements ownLog. A start replays the clock records; the bound is for one behind which
// an operator has given up a part of the log.
func (f *fileLog) allow(ctx context.Context, w cell.Seq) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w <= f.promised {
		return nil
	}
	promised, version, err := catalog.ReadPromised(ctx, f.lock)
	if err == nil && promised < w {
		promised = stamp.At(stamp.Time(w).Add(promiseSteps))
		_, err = catalog.WritePromised(ctx, f.lock, promised, version)
	}
	if err != nil {
		return fmt.Errorf("note how far commit log %v promises: %w", f.id, err)
	}
	f.promised = promised
	return nil
}

// ClockRecord returns the clock record for a log of which records are given up, where the bound
// of promises is w. No tablet takes a stamp that a reader may have been told of. Those of changes
// pass the bound by the time since the last promise, or by a microsecond each while commit times
// are ahead of the clock: a minute is more than either.
func ClockRecord(w cell.Seq) commitlog.Record {
	payload, n := clockRecord{}.AppendRecord(nil, 0)
	return commitlog.Record{Tablet: ClockTablet, FirstSeq: uint64(stamp.At(stamp.Time(w).Add(promiseSteps))), N: n, Payload: payload}
}

// Close implements commitlog.Writer.
func (f *fileLog) Close() error { return f.log.Close() }

// A privateDialer reaches the only server there is.
type privateDialer struct{ s *Server }

// Dial implements rpc.Dialer.
func (d privateDialer) Dial(string) rpc.TabletServer { return d.s }

// resume begins the log of one half and serves the tablets that an earlier process
// served from it.
func (s *Server) resume(ctx context.Context, h *logGroup) error {
	if p := s.o.Private; p != nil && p.MetadataOnly && h == s.users {
		return h.log.begin(ctx, func(*commitlog.FileLog) error { return nil })
	}
	opened := map[uint64]*served{}
	var gone []*metadata.Row // of tables that were purged
	err := h.log.begin(ctx, func(l *commitlog.FileLog) (err error) {
		gone, err = s.reopen(ctx, h, l, opened)
		return err
	})
	if err != nil {
		for _, t := range opened {
			t.Close()
		}
		return err
	}
	s.mu.Lock()
	for _, t := range opened {
		s.tablets[t.ID()] = t
	}
	s.mu.Unlock()
	// Whatever changes METADATA rows may have to wait for a flush of METADATA.
	for _, t := range opened {
		t.Start()
	}
	for _, t := range opened {
		if err := s.finishReopen(ctx, t); err != nil {
			return fmt.Errorf("open %v: %w", t.Name(), err)
		}
	}
	for _, r := range gone {
		// The master deletes the rows of unassigned tablets.
		r = r.Clone()
		r.Assignment, r.Op, r.Redo = &metadata.Assignment{State: metadata.Unassigned, Epoch: r.Assignment.Epoch, Master: r.Assignment.Master}, nil, commitlog.Pos{}
		if err := s.meta.CAS(ctx, r); err != nil {
			return fmt.Errorf("give up tablet %v, whose table was purged: %w", r.Tablet, err)
		}
	}
	if h == s.system && s.o.Private != nil {
		return s.openRoots(ctx)
	}
	return nil
}

// openRoots opens the METADATA tablets that no process served when the earlier one
// ended. The others' rows are in them, so they cannot wait for the master.
func (s *Server) openRoots(ctx context.Context) error {
	roots, err := s.meta.Roots(ctx)
	if err != nil {
		return err
	}
	for _, r := range roots {
		if r.Assignment.State == metadata.Open {
			continue
		}
		next := r.Clone()
		next.Assignment = &metadata.Assignment{State: metadata.Opening, Epoch: r.Assignment.Epoch + 1, Server: s.o.Name, Addr: s.o.Addr,
			Incarnation: s.owner, Master: r.Assignment.Master}
		if err := s.meta.CAS(ctx, next); err != nil {
			return fmt.Errorf("take METADATA tablet %v: %w", r.Tablet, err)
		}
		if err := s.recover(ctx, 0, []*metadata.Row{next}, true); err != nil {
			return err
		}
	}
	return nil
}

// finishReopen brings the row of a tablet into line with what its log held, and
// ends a split that was under way.
func (s *Server) finishReopen(ctx context.Context, t *served) error {
	if t.Row().Op == nil {
		return t.SettleRedo(ctx)
	}
	if err := t.FlushAll(ctx); err != nil {
		return err
	}
	right, err := s.finishSplit(ctx, t)
	if err != nil {
		return err
	}
	s.replaceServed([]*served{t}, []*tablet.Tablet{right.Tablet})
	return nil
}

// reopen opens the tablets of one half that an earlier process served, with what its log
// holds of them. It returns the rows of tablets whose table is gone.
func (s *Server) reopen(ctx context.Context, h *logGroup, l *commitlog.FileLog, opened map[uint64]*served) (gone []*metadata.Row, err error) {
	rows, err := s.resolvedRows(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("read METADATA: %w", err)
	}
	now := time.Now()
	var opening []*served
	var of []*metadata.Row // each of opening
	for _, r := range rows {
		if !s.isAssignedHere(r) || r.Assignment.State != metadata.Open {
			continue // the log holds nothing of it, and the master will have it opened
		}
		table, err := s.schemas.ByID(r.Table)
		if errors.Is(err, fault.NotFound) {
			gone = append(gone, r)
			continue
		}
		if err != nil {
			return nil, err
		}
		opening, of = append(opening, &served{table: table, epoch: r.Assignment.Epoch, group: h, servedSince: now}), append(of, r)
	}
	inParts(len(of), func(from, to int) {
		for i := from; i < to; i++ {
			opening[i].Tablet = tablet.Open(h.env, of[i], opening[i].table.Schema)
		}
	})
	for i, t := range opening {
		opened[uint64(of[i].Tablet)] = t
	}
	var last *served
	var promised cell.Seq
	err = l.Replay(commitlog.Pos{}, func(rec commitlog.Record) error {
		if rec.Tablet == ClockTablet && h.clock != nil {
			promised = max(promised, cell.Seq(rec.FirstSeq))
			h.clock.found(rec.Pos)
			return nil
		}
		if last == nil || uint64(last.ID()) != rec.Tablet {
			if last = opened[rec.Tablet]; last == nil {
				return nil // it was flushed, and then split, merged, given up or purged
			}
		}
		return last.Replay(&rec)
	})
	if err == nil && promised > 0 {
		// It is above the bound after a part of the log was given up.
		if err := h.log.allow(ctx, promised); err != nil {
			return nil, err
		}
		s.promises.found(promised)
		for _, t := range opened {
			t.Promise(promised)
			t.promised = promised
		}
	}
	return gone, err
}

// resolvedRows returns the METADATA rows of the tablets of one half, once no merge
// is under way among them.
func (s *Server) resolvedRows(ctx context.Context, h *logGroup) ([]*metadata.Row, error) {
	for {
		rows, err := s.rowsOf(ctx, h)
		if err != nil {
			return nil, err
		}
		again := false
		for _, r := range rows {
			if r.Op == nil || r.Op.Kind == metadata.Split || !s.isAssignedHere(r) {
				continue
			}
			again = true
			if _, err := s.resolveMerge(ctx, r); err != nil && !errors.Is(err, errMerged) {
				return nil, err
			}
		}
		if !again {
			return rows, nil
		}
	}
}

// rowsOf returns the METADATA rows of the tablets of one half.
func (s *Server) rowsOf(ctx context.Context, h *logGroup) (rows []*metadata.Row, err error) {
	roots, err := s.meta.Roots(ctx)
	if h == s.system || err != nil || len(roots) == 0 {
		return roots, err
	}
	err = s.meta.Scan(ctx, func(r *metadata.Row) error {
		rows = append(rows, r)
		return nil
	})
	return rows, err
}

// FlushAll writes all memtables to SSTables, those of METADATA last, whose rows it
// changes, and trims the commit logs. It returns why it stopped if ctx or the
// server ends before.
func (s *Server) FlushAll(ctx context.Context) error {
	ended := func() error { return errors.Join(s.Err(), context.Cause(ctx)) }
	for _, h := range []*logGroup{s.users, s.system} {
		for _, t := range s.tabletsOf(h) {
			if err := ended(); err != nil {
				return err
			}
			if err := t.FlushAll(ctx); err != nil && !errors.Is(err, tablet.ErrReplaced) && !errors.Is(err, tablet.ErrClosed) && t.Failure() == nil {
				return err
			}
		}
		if err := ended(); err != nil {
			return err // its tablets are gone, and were not all flushed
		}
		h.work.Trim()
	}
	return nil
}
