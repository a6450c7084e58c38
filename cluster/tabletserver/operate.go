package tabletserver

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/tablet"
)

// runAttached calls do with the life of the server and waits for it. Unlike with
// runDetached, it ends when its caller does.
func (s *Server) runAttached(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return rpc.ErrNotServing
	}
	s.running.Go(func() {
		during, cancel := context.WithCancelCause(s.ctx)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		done <- do(during)
	})
	s.mu.Unlock()
	err := <-done
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.translateShutdown(err)
}

// status describes a tablet of a load and a size.
func (t *served) status(l tablet.Load, bytes int64) rpc.TabletStatus {
	b := t.Bounds()
	return rpc.TabletStatus{Tablet: t.ID(), Table: t.table.Schema().ID, Start: b.Start, End: b.End, Epoch: t.epoch,
		Bytes: bytes, Reads: l.RowsRead, Writes: l.RowsWritten, CPU: l.Busy() / float64(runtime.GOMAXPROCS(0)), Runs: t.Runs(), Since: t.servedSince}
}

// Describe implements rpc.Operate.
func (s *Server) Describe(_ context.Context, table uint64, groups bool) ([]rpc.TabletDetail, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	all := s.ofTable(table)
	out := make([]rpc.TabletDetail, len(all))
	now := time.Now()
	inParts(len(all), func(from, to int) {
		for i := from; i < to; i++ {
			if d, ok := all[i].describe(now); ok {
				if groups && table != rpc.AllTables {
					all[i].describeGroups(&d)
				}
				out[i] = d
			}
		}
	})
	return slices.DeleteFunc(out, func(d rpc.TabletDetail) bool { return d.Kept == nil }), nil // was given up
}

// Sum implements rpc.Operate.
func (s *Server) Sum(_ context.Context, table uint64) (*rpc.TabletSum, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	all := s.ofTable(table)
	now := time.Now()
	sum := new(rpc.TabletSum)
	var mu sync.Mutex
	inParts(len(all), func(from, to int) {
		part := rpc.TabletSum{Tablets: to - from}
		groups := map[uint16]tablet.GroupState{}
		for _, t := range all[from:to] {
			l := t.Load(now)
			part.Bytes += t.Bytes()
			part.Reads += l.RowsRead
			part.Writes += l.RowsWritten
			if table != rpc.AllTables {
				part.Earlier.Add(rpc.GroupState(t.GroupStates(groups)))
				for id, g := range groups {
					part.AddGroup(id, rpc.GroupState(g))
				}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		sum.Add(&part)
	})
	return sum, nil
}

// partSize is how many tablets are looked at by one goroutine at least.
const partSize = 1 << 12

// inParts calls do with ranges that make up [0, n), at once if they are large. Most of a look at
// a tablet is to wait for memory, since no cache holds what there is of many.
func inParts(n int, do func(from, to int)) {
	size := max(partSize, (n+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	var parts sync.WaitGroup
	for from := 0; from < n; from += size {
		parts.Go(func() { do(from, min(from+size, n)) })
	}
	parts.Wait()
}

// ofTable returns the tablets of a table that are served, or of all tables.
func (s *Server) ofTable(table uint64) []*served {
	all := s.allTablets()
	if table != rpc.AllTables {
		all = slices.DeleteFunc(all, func(t *served) bool { return t.table.Schema().ID != table })
	}
	return all
}

// allTablets returns all tablets that are served.
func (s *Server) allTablets() []*served {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*served, 0, len(s.tablets))
	for _, t := range s.tablets {
		out = append(out, t)
	}
	return out
}

// noneKept is shared by the many tablets without a stream.
var noneKept rpc.Kept

// describe describes a tablet for an operator, but for its locality groups; ok is false if it
// was given up meanwhile.
func (t *served) describe(now time.Time) (d rpc.TabletDetail, ok bool) {
	state, ok := t.State()
	if !ok {
		return d, false
	}
	l := t.Load(now)
	d = rpc.TabletDetail{TabletStatus: t.status(l, state.Bytes), MemtableBytes: state.MemtableBytes, Files: state.Files, LastMajor: state.LastMajor,
		ReadCalls: l.Reads, BytesRate: l.Bytes, Kept: &noneKept}
	if pos, ok := t.RedoPoint(); ok {
		d.Redo = pos.String()
	}
	if k := rpc.Kept(tablet.KeptOf(t.Row())); k != noneKept {
		d.Kept = &k
	}
	d.Done, d.Total = t.Progress()
	if read := t.verified.Load(); read != nil {
		d.Done, d.Total = d.Done+read.Load(), d.Total+state.Bytes
	}
	return d, true
}

// describeGroups describes a tablet's locality groups.
func (t *served) describeGroups(d *rpc.TabletDetail) {
	groups := map[uint16]tablet.GroupState{}
	d.Earlier = rpc.GroupState(t.GroupStates(groups))
	d.Groups = make(map[uint16]rpc.GroupState, len(groups))
	for id, g := range groups {
		d.Groups[id] = rpc.GroupState(g)
	}
}

// Infos describes the tablets that are served here, in any order.
func (s *Server) Infos() []tablet.Info {
	var out []tablet.Info
	now := time.Now()
	for _, t := range s.allTablets() {
		if state, ok := t.State(); ok {
			out = append(out, tablet.Info{Table: t.table.Schema().Name, Tablet: t.ID(), Rows: t.Bounds(), State: state, Server: s.o.Name, Load: t.Load(now)})
		}
	}
	return out
}

// Loaded calls each with the tablets that are served here, and their tables' ids.
func (s *Server) Loaded(each func(t *tablet.Tablet, table uint64)) {
	for _, t := range s.allTablets() {
		each(t.Tablet, t.table.Schema().ID)
	}
}

// Ask implements rpc.Operate.
func (s *Server) Ask(ctx context.Context, what string, question []byte) ([]byte, error) {
	if s.o.Ask == nil {
		return nil, fault.New(fault.Unimplemented, "the process of this tablet server answers no questions")
	}
	return s.o.Ask(ctx, what, question)
}

// SplitKey implements rpc.Operate.
func (s *Server) SplitKey(ctx context.Context, id metadata.TabletID) (key []byte, ok bool, err error) {
	ts, err := s.tabletsByID(id)
	if err != nil {
		return nil, false, err
	}
	err = s.runAttached(ctx, func(ctx context.Context) error {
		key, ok, err = ts[0].SplitKey(ctx)
		return err
	})
	return key, ok, retryable(err)
}

// Cuts implements rpc.Operate.
func (s *Server) Cuts(ctx context.Context, id metadata.TabletID) (out [][]byte, err error) {
	ts, err := s.tabletsByID(id)
	if err != nil {
		return nil, err
	}
	err = s.runAttached(ctx, func(ctx context.Context) error {
		out, err = ts[0].Cuts(ctx)
		return err
	})
	return out, retryable(err)
}

// Verify implements rpc.Operate.
func (s *Server) Verify(ctx context.Context, id metadata.TabletID) (out []rpc.Verified, err error) {
	ts, err := s.tabletsByID(id)
	if err != nil {
		return nil, err
	}
	read := new(atomic.Int64)
	ts[0].verified.Store(read)
	defer ts[0].verified.CompareAndSwap(read, nil)
	err = s.runAttached(ctx, func(ctx context.Context) error {
		return ts[0].Verify(ctx, func(object string, bytes int64, err error) error {
			read.Add(bytes)
			v := rpc.Verified{Object: object, Bytes: bytes}
			if err != nil {
				v.Error = err.Error()
			}
			out = append(out, v)
			return nil
		})
	})
	return out, retryable(err)
}

// DropDamaged implements rpc.Operate.
func (s *Server) DropDamaged(ctx context.Context, id metadata.TabletID, object string) (*rpc.Loss, error) {
	ts, err := s.tabletsByID(id)
	if err != nil {
		return nil, err
	}
	lost := make(chan rpc.Loss, 1)
	err = s.runDetached(ctx, func(ctx context.Context) error {
		l, err := ts[0].DropDamaged(ctx, object)
		lost <- rpc.Loss(l)
		return err
	})
	if err != nil {
		return nil, retryable(err)
	}
	l := <-lost
	return &l, nil
}

// Damage returns the SSTables that reads found damaged and that tablets of this
// server have.
func (s *Server) Damage() []tablet.TableDamage {
	met := append(s.users.env.Damage(), s.system.env.Damage()...)
	if len(met) == 0 {
		return nil
	}
	tables := map[*tablet.Tablet]string{}
	var ts []*tablet.Tablet
	for _, t := range s.allTablets() {
		ts = append(ts, t.Tablet)
		tables[t.Tablet] = t.table.Schema().Name
	}
	return tablet.DamageOf(met, ts, func(t *tablet.Tablet) string { return tables[t] })
}

// A detachedMeta store makes changes of METADATA rows that do not end with their callers.
// A change that is given up before its outcome is known costs the server.
type detachedMeta struct {
	metadataStore
	life context.Context
}

// metadataStore is what tablets need of METADATA.
type metadataStore interface {
	metadata.Store
	metadata.Retirer
}

// CAS implements metadata.Store.
func (l detachedMeta) CAS(_ context.Context, r *metadata.Row) error {
	err := l.metadataStore.CAS(l.life, r)
	if err != nil && l.life.Err() != nil && errors.Is(err, context.Canceled) {
		// The caller has not given up.
		ended := fault.New(fault.Unavailable, "the tablet server ended meanwhile")
		if errors.Is(err, metadata.ErrNotApplied) {
			return errors.Join(ended, metadata.ErrNotApplied)
		}
		return ended
	}
	return err
}
