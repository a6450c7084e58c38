package tabletserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/rowcache"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/engine/worker"
)

// Options are the settings of a Server. Name, Lock, Dialer, Objects and Logs are
// needed; of a private store Name, Lock and Objects.
type Options struct {
	// Name tells an operator which server it is. Two servers may not have one
	// name at a time.
	Name string
	// Addr is where other servers of the cluster reach this one.
	Addr string
	// Lock is the lock service.
	Lock lock.Service
	// Dialer reaches the servers of METADATA tablets.
	Dialer rpc.Dialer
	// Objects keeps SSTables, Logs commit logs; they may be one store.
	Objects, Logs objectstore.Store
	// Private, if set, says that no other process can reach the store: commit logs
	// are files, and the tablets stay this server's over restarts. Logs, Segments
	// and Copies mean nothing then.
	Private *Private
	// Copies is the part of the store with copies of the lock service: the server
	// does not begin with one that is older. Without it, it does not know.
	Copies objectstore.Store
	// TTL is the time after which a server that is not heard of is given up.
	// Default 5 s.
	TTL time.Duration
	// Log writing options.
	Segments commitlog.SegmentOptions
	// Dropped, if not nil, is called with each object that this server does not need any
	// more.
	Dropped func(object string)
	// CacheBytes is the size of the caches: of blocks of SSTables, and of rows that
	// are read often. Default 128 MiB.
	CacheBytes int64
	// LargeBlockBytes bounds the blocks of large cells that reads are in, for which
	// the block cache makes room: see sstable.Cache.BoundLarge. Default no bound.
	LargeBlockBytes int64
	// MemtableBytes bounds the memtables of all tablets of tables together. Default
	// 128 MiB.
	MemtableBytes int64
	// LogBytes is the size of the commit log at which the tablet that holds it
	// back is flushed. Default 512 MiB.
	LogBytes int64
	// MajorCheck is how often idle tablets are looked at for something to collect.
	// Default 1 min.
	MajorCheck time.Duration
	// MetadataMemtableBytes is the size at which the memtable of a METADATA tablet is
	// flushed. Default 4 MiB, or Tablet.MemtableBytes if that is less.
	MetadataMemtableBytes int64
	// NoBackground leaves flushes, compactions and splits to explicit calls, for
	// tests that drive them.
	NoBackground bool
	// SplitBytes is the size beyond which a tablet is split. Default 1 GiB.
	SplitBytes int64
	// MetadataSplitBytes is that of METADATA tablets. Default 128 MiB.
	MetadataSplitBytes int64
	// SplitCheck is how often tablets are looked at for that. Default 5 s.
	SplitCheck time.Duration
	// SplitRate is the number of rows read or written per second from which on a hot
	// tablet is split. A tablet is hot that takes most of the server's load for
	// SplitHotAfter, 1 minute by default. Negative means never. Default 10 000.
	SplitRate     float64
	SplitHotAfter time.Duration
	// RowCacheBytes is how much of CacheBytes rows that are read often may take
	// from blocks. Negative means nothing. Default a quarter.
	RowCacheBytes int64
	// InMemoryBytes bounds the SSTables that locality groups keep in memory.
	// Default 64 MiB.
	InMemoryBytes int64
	// Tablet are the settings of tablets.
	Tablet tablet.Options
	// Now is the clock of cells. Default time.Now.
	Now func() time.Time
	// Reading is the clock by which the server keeps promises (catalog.Promise):
	// the time since some instant. Default: the monotonic clock.
	Reading func() time.Duration
	// ClockEvery is how often a server with readers of changes writes to its log up to where
	// there will be no later change, at least if readers do not ask for it more often.
	// Default 250 ms, or ten commit intervals if that is more.
	ClockEvery time.Duration
	// Ask, if set, answers rpc.Operate.Ask.
	Ask func(ctx context.Context, what string, question []byte) ([]byte, error)
	// CutReaders, if set, is called by Close once nothing is served any more. It ends the
	// connections of readers, which Close waits for: one may be in the middle of a large row
	// that its caller does not receive.
	CutReaders func()
	// ChangeStreamMax bounds the bytes of change files of the server's tablets that are kept
	// for clients: beyond it the oldest go before their retention ends. 0: nothing does.
	ChangeStreamMax int64
	// Held, if set, is called with how long writes of a tablet waited for a "split" or
	// until it was given up ("unload"), and how long opening a tablet took ("load").
	Held func(why string, d time.Duration)
	// Log takes what happens. Default: nothing.
	Log *slog.Logger
}

// WithDefaults returns o with every zero field set that has a default.
func (o Options) WithDefaults() Options {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.CacheBytes, 128<<20)
	set(&o.RowCacheBytes, o.CacheBytes/4)
	set(&o.InMemoryBytes, 64<<20)
	set(&o.MemtableBytes, 128<<20)
	set(&o.LogBytes, 512<<20)
	set(&o.SplitBytes, 1<<30)
	set(&o.MetadataSplitBytes, 128<<20)
	if o.Dropped == nil {
		o.Dropped = func(string) {}
	}
	if o.TTL == 0 {
		o.TTL = 5 * time.Second
	}
	if o.SplitRate == 0 {
		o.SplitRate = 10_000
	}
	if o.SplitHotAfter == 0 {
		o.SplitHotAfter = time.Minute
	}
	if o.SplitCheck == 0 {
		o.SplitCheck = 5 * time.Second
	}
	if o.Tablet.MemtableBytes == 0 {
		o.Tablet.MemtableBytes = min(64<<20, o.MemtableBytes/4)
	}
	o.Tablet = o.Tablet.WithDefaults()
	set(&o.MetadataMemtableBytes, min(4<<20, o.Tablet.MemtableBytes))
	if o.ClockEvery == 0 {
		o.ClockEvery = max(250*time.Millisecond, min(10*o.Segments.CommitInterval, 2500*time.Millisecond))
	}
	if o.MajorCheck == 0 {
		o.MajorCheck = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Reading == nil {
		begun := time.Now()
		o.Reading = func() time.Duration { return time.Since(begun) }
	}
	if o.Held == nil {
		o.Held = func(string, time.Duration) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Server is one incarnation of a tablet server.
type Server struct {
	o Options
	// incarnation is in every id that the server gives out. owner is what METADATA rows
	// call the server: the incarnation, or always privateOwner in a private store.
	incarnation, owner uint64
	lastID             atomic.Uint64
	session            lock.Session
	promise            promise
	rollback           *catalog.RollbackGuard
	meta               *metastore.Store
	schemas            *catalog.Schemas

	cache *sstable.Cache
	rows  *rowcache.Cache // nil if there is none
	// users and system are the tablets of tables and of METADATA, each with a log
	// of its own, so that METADATA recovers first.
	users, system *logGroup

	mu      sync.RWMutex
	tablets map[metadata.TabletID]*served
	loading map[metadata.TabletID]chan struct{} // closed when that ends
	damaged map[commitlog.ID]*damagedLog
	pauses  pauses
	// clock guards the times of commits, and of promises.
	clock stamp.Clock
	// droppedChanges counts bytes of change files that went before their retention ended.
	droppedChanges atomic.Int64
	// promises are those to readers of changes.
	promises promises
	// views are the workers of materialized views.
	views viewWorkers
	// stopping says that nothing new is to run.
	stopping bool
	stopped  chan struct{} // closed when nothing runs any more

	ctx      context.Context // ends with the server
	cancel   context.CancelFunc
	running  sync.WaitGroup
	failOnce sync.Once
	failed   chan struct{}
	failure  error
	started  time.Duration // how long Start took
}

// A logGroup is the tablets on one log.
type logGroup struct {
	env  *tablet.Env
	work *worker.Worker
	log  ownLog
	// clock is log with clock records; nil of METADATA's.
	clock *clockedLog
	// closed says that it takes no tablets any more. Server.mu guards it.
	closed bool
}

// served is a tablet that is served.
type served struct {
	*tablet.Tablet
	table       *catalog.Table
	queries     tablet.Queries
	epoch       uint64
	group       *logGroup
	servedSince time.Time
	// promised is what the former owner may have promised to readers of changes.
	promised cell.Seq
	// view orders the updates of a tablet of a view's rows.
	view sync.Mutex
	// askedNow, if it is set, is closed when readers of changes are to be told at once up to
	// where there is nothing.
	askedNow atomic.Pointer[chan struct{}]
	// verified, if it is set, counts the bytes of SSTables that Verify has read.
	verified atomic.Pointer[atomic.Int64]
}

// Start begins a new incarnation. It returns once the server may be given
// tablets.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	o = o.WithDefaults()
	begin := time.Now()
	s := &Server{o: o, tablets: map[metadata.TabletID]*served{}, loading: map[metadata.TabletID]chan struct{}{}, damaged: map[commitlog.ID]*damagedLog{}, failed: make(chan struct{}), stopped: make(chan struct{})}
	s.promise.wake = make(chan struct{}, 1)
	s.promise.until.Store(unbound)
	// From here on the clock is watched: before the first change, and the first reader.
	s.clock.Read(o.Now())
	s.promises.init(&s.clock)
	s.views.wake = make(chan struct{}, 1)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer func() {
		if err == nil {
			return
		}
		s.cancel()
		if o.Private != nil {
			err = errors.Join(err, o.Private.closeEarly())
		}
		for _, h := range []*logGroup{s.users, s.system} {
			if h != nil {
				h.work.Stop()
				err = errors.Join(err, h.log.Close())
			}
		}
		for _, t := range s.tablets {
			t.Close()
		}
		if s.rows != nil {
			s.rows.Close()
		}
		if s.cache != nil {
			s.cache.Close()
		}
	}()
	if o.Private != nil {
		o.Private.openEarly()
	}
	if o.Copies != nil {
		if err = (&catalog.Copier{Lock: o.Lock, Store: o.Copies}).Check(ctx); err != nil {
			return nil, err
		}
	}
	s.rollback = catalog.NewRollbackGuard(o.Lock)
	if err = s.rollback.Check(ctx); err != nil {
		return nil, err
	}
	if s.session, err = o.Lock.NewSession(ctx, o.TTL); err != nil {
		return nil, fmt.Errorf("begin a session: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.session.Close(context.WithoutCancel(ctx)))
		}
	}()
	if s.incarnation, err = catalog.ClaimIncarnation(ctx, o.Lock); err != nil {
		return nil, err
	}
	s.lastID.Store(s.incarnation << 32)
	if s.owner = s.incarnation; o.Private != nil {
		s.owner = privateOwner
	}
	if o.Private != nil {
		o.Dialer = privateDialer{s}
	}
	s.meta = metastore.New(o.Lock, o.Dialer).Until(s.failed)
	if s.schemas, err = catalog.WatchSchemas(ctx, s.ctx, o.Lock); err != nil {
		return nil, err
	}
	s.cache = sstable.NewCache(o.CacheBytes, 0)
	if o.LargeBlockBytes > 0 {
		s.cache.BoundLarge(o.LargeBlockBytes)
	}
	if o.RowCacheBytes > 0 {
		s.rows = rowcache.New(o.RowCacheBytes, s.cache)
	}
	if o.Private != nil {
		s.schemas.LockIsLocal()
	}
	if s.users, err = s.newLogGroup(ctx, catalog.UserLog(s.owner), o.MemtableBytes); err != nil {
		return nil, err
	}
	s.users.env.Rows, s.users.env.InMemoryBytes = s.rows, o.InMemoryBytes
	if s.system, err = s.newLogGroup(ctx, catalog.MetadataLog(s.owner), 16<<20); err != nil {
		return nil, err
	}
	s.system.env.Options.MemtableBytes = o.MetadataMemtableBytes
	value, err := json.Marshal(s.registration())
	if err != nil {
		return nil, err
	}
	if i, err := o.Lock.Get(ctx, catalog.ServersPrefix+o.Name); err == nil {
		// Of this server before it was started again, most likely.
		var r catalog.Registration
		_ = json.Unmarshal(i.Value, &r)
		o.Log.Info("waits until the tablet server that is registered under this name has ended", "server", r.ServerName(), "addr", r.Addr, "ttl", o.TTL)
	}
	// The name is taken until the last incarnation's session has ended.
	item, err := lock.Acquire(ctx, o.Lock, s.session, catalog.ServersPrefix+o.Name, value)
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	// A client that changed a schema before this server was registered has not waited for
	// it.
	if _, err = s.schemas.Refresh(ctx, ""); err != nil {
		return nil, fmt.Errorf("read schemas: %w", err)
	}
	// A tool that only looks must see the SSTables that are stored, not those that a
	// compaction would make of them.
	background := !o.NoBackground && (o.Private == nil || !o.Private.MetadataOnly)
	// METADATA first: the rows of all other tablets are in it.
	for _, h := range []*logGroup{s.system, s.users} {
		if err = s.resume(ctx, h); err != nil {
			return nil, err
		}
		if background {
			h.work.Start()
		}
	}
	s.started = time.Since(begin)
	s.running.Go(s.watch)
	if o.Private == nil {
		s.running.Go(func() { s.keepPromise(item.Version) })
	}
	s.running.Go(s.watchRollback)
	s.running.Go(s.publishSchemas)
	s.running.Go(s.promiseLoop)
	if o.ChangeStreamMax > 0 && background {
		s.running.Go(s.boundChanges)
	}
	if background {
		s.running.Go(func() { s.splitLoop(s.ctx) })
	}
	o.Log.Info("tablet server started", "server", s.serverName(), "addr", o.Addr)
	return s, nil
}

func (s *Server) newLogGroup(ctx context.Context, id commitlog.ID, memory int64) (*logGroup, error) {
	h := new(logGroup)
	var err error
	if s.o.Private != nil {
		h.log, err = s.o.Private.open(id, s.o.Lock)
	} else {
		h.log, err = createLog(ctx, s.o.Lock, s.o.Logs, id, s.o.Name, s.o.Segments)
	}
	if err != nil {
		return nil, fmt.Errorf("create commit log: %w", err)
	}
	if id == catalog.UserLog(s.owner) {
		h.clock = &clockedLog{ownLog: h.log, wake: s.promises.signal}
		h.log = h.clock
	}
	h.env = &tablet.Env{
		Options: s.o.Tablet, Commit: h.log, Meta: detachedMeta{s.meta, s.ctx}, Objects: s.o.Objects, Cache: s.cache, Log: s.o.Log, Now: s.o.Now, Clock: &s.clock,
		NewID: s.newID,
		// Others may refer to the same SSTables: backups, and tablets on other servers
		// after a split. The master sweeps objects without references.
		Remove: s.o.Dropped,
		Fatal:  s.fail, Held: s.held,
	}
	h.work = worker.New(worker.Options{Tablets: func() []*tablet.Tablet { return s.tabletsOf(h) }, LogBytes: s.o.LogBytes,
		MajorCheck: s.o.MajorCheck, Failed: s.Err, Log: s.o.Log}, h.env, memory)
	return h, nil
}

// slowHold is how long writes may wait for a split or a move without a log line.
const slowHold = 100 * time.Millisecond

func (s *Server) held(why string, d time.Duration) {
	s.o.Held(why, d)
	if d > slowHold {
		s.o.Log.Warn("writes of a tablet were held up", "server", s.serverName(), "for", why, "elapsed", d)
	}
}

// Stats returns the server's counters. It visits every tablet.
func (s *Server) Stats() tablet.Summary {
	var tables []*schema.Table
	for _, t := range s.schemas.All() {
		if sch := t.Schema(); sch.DeleteTime.IsZero() {
			tables = append(tables, sch)
		}
	}
	ts := append(s.tabletsOf(s.users), s.tabletsOf(s.system)...)
	st := tablet.Summarize(s.users.env, s.system.env, tables, ts, s.cache, s.rows)
	st.Recovery = s.started
	return st
}

func (s *Server) newID() uint64 { return s.lastID.Add(1) }

// tabletsOf returns the tablets that are served from one half.
func (s *Server) tabletsOf(h *logGroup) []*tablet.Tablet {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*tablet.Tablet
	for _, t := range s.tablets {
		if t.group == h {
			out = append(out, t.Tablet)
		}
	}
	return out
}

func (s *Server) logGroupOf(table uint64) *logGroup {
	if table == metastore.Table {
		return s.system
	}
	return s.users
}

// watch ends the server when its session or one of its logs has.
func (s *Server) watch() {
	select {
	case <-s.session.Done():
		s.fail(fault.New(fault.Unavailable, "the session with the lock service has ended"))
	case <-s.users.log.Failed():
		s.fail(fmt.Errorf("commit log: %w", s.users.log.Err()))
	case <-s.system.log.Failed():
		s.fail(fmt.Errorf("METADATA commit log: %w", s.system.log.Err()))
	case <-s.ctx.Done():
	}
}

// watchRollback ends the server when the lock service was put back to an earlier
// state. The session alone does not tell: an earlier state may have it.
func (s *Server) watchRollback() {
	tick := time.NewTicker(s.o.TTL / 5)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		if err := s.rollback.Check(s.ctx); errors.Is(err, fault.FailedPrecondition) {
			s.fail(err)
		}
	}
}

// fail ends the incarnation.
func (s *Server) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		s.o.Log.Error("the tablet server has failed", "server", s.serverName(), "error", err)
		close(s.failed)
		s.cancel()
	})
}

// Failed is closed when the server must not serve any longer. The process should end.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Full returns why writes are refused at the moment if the store has no room for
// the commit log, else nil.
func (s *Server) Full() error {
	if err := s.users.log.Full(); err != nil {
		return err
	}
	return s.system.log.Full()
}

// Err returns why Failed is closed.
func (s *Server) Err() error {
	select {
	case <-s.failed:
		return s.failure
	default:
		return nil
	}
}

// Name returns the name that the server was given.
func (s *Server) Name() string { return s.o.Name }

func (s *Server) serverName() metadata.ServerName {
	return metadata.ServerName{Name: s.o.Name, Incarnation: s.owner}
}

// Incarnation returns the server's number, which no other server ever has.
func (s *Server) Incarnation() uint64 { return s.incarnation }

// Tablets returns how many tablets the server serves.
func (s *Server) Tablets() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.tablets)
}

// Schemas returns the tables as this server knows them.
func (s *Server) Schemas() *catalog.Schemas { return s.schemas }

// alive returns an error unless the lock service is certain to keep the session, and the
// master its promise. Otherwise another server may serve its tablets. The margin allows
// for clocks that run at different rates; the master adds that of a promise.
func (s *Server) alive() error {
	if err := s.Err(); err != nil {
		return fault.New(fault.Unavailable, "this tablet server has failed: %w", err)
	}
	if s.o.Private != nil {
		return nil // no other server can serve its tablets
	}
	if margin := s.o.TTL/10 + s.o.TTL/50; time.Until(s.session.Deadline()) < margin {
		return fault.New(fault.Unavailable, "this tablet server has lost touch with the lock service")
	}
	if until := s.promise.until.Load(); until != unbound && int64(s.o.Reading()) > until {
		return fault.New(fault.Unavailable, "this tablet server has lost touch with the master")
	}
	return nil
}

// lookup returns the tablet of a Target once its schema is known here.
func (s *Server) lookup(ctx context.Context, at rpc.Target) (*served, error) {
	if err := s.alive(); err != nil {
		return nil, errors.Join(rpc.ErrNotServing, err)
	}
	if s.views.active.Load() && request.From(ctx) != nil {
		s.views.requests.Add(1)
	}
	s.mu.RLock()
	t := s.tablets[at.Tablet]
	s.mu.RUnlock()
	if t == nil {
		return nil, rpc.ErrNotServing
	}
	if err := t.table.Wait(ctx, at.Schema); err != nil {
		return nil, err
	}
	if sch := t.table.Schema(); !sch.DeleteTime.IsZero() {
		return nil, fault.New(fault.NotFound, "Table not found: %s", sch.Name)
	}
	return t, nil
}

// lookupWritable is lookup of a tablet that a client writes to. A gateway refuses that of a
// materialized view; one that is older, or wrong, would take the view from its query.
func (s *Server) lookupWritable(ctx context.Context, at rpc.Target) (*served, error) {
	t, err := s.lookup(ctx, at)
	if err != nil {
		return nil, err
	}
	return t, t.table.Schema().CheckWritable()
}

// drain lets the master give the tablets to other servers, one after the other,
// as long as there are such and it goes on. Tablets that are only given up wait
// until the master notices.
func (s *Server) drain(ctx context.Context) {
	if s.Err() != nil || ctx.Err() != nil {
		return
	}
	// The item vanishes with the session; if there is one, an operator made it.
	_, err := s.session.Hold(ctx, catalog.DrainingPrefix+s.o.Name, nil)
	if err != nil && !errors.Is(err, fault.Aborted) {
		return
	}
	var looked time.Time
	for last, since := -1, time.Now(); s.Err() == nil; {
		s.mu.RLock()
		n := len(s.tablets)
		s.mu.RUnlock()
		if n != last {
			last, since = n, time.Now()
		}
		if n == 0 || time.Since(since) > s.o.TTL {
			return
		}
		if time.Since(looked) > s.o.TTL/10 {
			if looked = time.Now(); !s.hasPeers(ctx) {
				return
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// hasPeers tells whether there is a server that tablets can be given to.
func (s *Server) hasPeers(ctx context.Context) bool {
	servers, _, err := catalog.Servers(ctx, s.o.Lock)
	if err != nil {
		return false
	}
	drained, err := catalog.Drained(ctx, s.o.Lock)
	if err != nil {
		return false
	}
	for _, r := range servers {
		if !drained[r.Name] {
			return true
		}
	}
	return false
}

// waitForDependents waits, as long as their number falls, for other servers that are
// draining. To give a tablet up they have to change its row, which METADATA tablets of
// this server may hold.
func (s *Server) waitForDependents(ctx context.Context) {
	for last, since := -1, time.Now(); s.Err() == nil; {
		n := s.dependentTablets(ctx)
		if n != last {
			last, since = n, time.Now()
		}
		if n == 0 || time.Since(since) > s.o.TTL {
			return
		}
		select {
		case <-time.After(s.o.TTL / 40):
		case <-ctx.Done():
			return
		}
	}
}

// dependentTablets returns how many tablets servers that leave have whose rows are in
// METADATA tablets of this one; 0 if that cannot be found out.
func (s *Server) dependentTablets(ctx context.Context) (n int) {
	ctx, cancel := context.WithTimeout(ctx, s.o.TTL)
	defer cancel()
	servers, _, err := catalog.Servers(ctx, s.o.Lock)
	if err != nil {
		return 0
	}
	drained, err := catalog.Drained(ctx, s.o.Lock)
	if err != nil {
		return 0
	}
	leaving := map[string]bool{}
	for _, r := range servers {
		if r.Name != s.o.Name && drained[r.Name] {
			leaving[r.Name] = true
		}
	}
	if len(leaving) == 0 {
		return 0
	}
	for _, t := range s.tabletsOf(s.system) {
		if err := s.meta.ScanWithin(ctx, t.Bounds(), func(r *metadata.Row) error {
			if a := r.Assignment; a != nil && a.State != metadata.Unassigned && leaving[a.Server] {
				n++
			}
			return nil
		}); err != nil {
			return 0
		}
	}
	return n
}

// Close hands the tablets over to other servers, if there are any, and writes everything
// to the store. Then it gives up what is left, cleanly, and ends the session. With a
// context that has ended it stops at once: what was acknowledged is safe in any case.
func (s *Server) Close(ctx context.Context) error {
	var errs []error
	if s.o.Private == nil {
		errs = s.unloadAll(ctx)
	} else if err := s.FlushAll(ctx); err != nil && s.Err() == nil && ctx.Err() == nil {
		errs = append(errs, err) // the next process replays what is in memtables
	}
	s.stop()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.TTL)
	defer cancel()
	errs = append(errs, s.session.Close(closing))
	return errors.Join(errs...)
}

// unloadAll hands the tablets over to other servers, and unloads the rest.
func (s *Server) unloadAll(ctx context.Context) (errs []error) {
	s.drain(ctx)
	// METADATA tablets last: the others' rows are in them, perhaps.
	for _, h := range []*logGroup{s.users, s.system} {
		if s.Err() != nil || ctx.Err() != nil {
			break
		}
		if h == s.system {
			s.waitForDependents(ctx)
		}
		s.mu.Lock()
		h.closed = true
		s.mu.Unlock()
		err := s.runDetached(ctx, func(live context.Context) error {
			for _, t := range s.tabletsOf(h) {
				if ctx.Err() != nil {
					break
				}
				if err := s.unload(live, t.ID()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && s.Err() == nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// stop ends everything but the session.
func (s *Server) stop() {
	s.mu.Lock()
	again := s.stopping
	s.users.closed, s.system.closed, s.stopping = true, true, true
	s.mu.Unlock()
	if again {
		<-s.stopped
		return
	}
	defer close(s.stopped)
	s.failOnce.Do(func() {
		s.failure = fault.New(fault.Unavailable, "the tablet server was stopped")
		close(s.failed)
	})
	s.cancel()
	s.pauses.endAll()
	for _, h := range []*logGroup{s.users, s.system} {
		h.work.Stop()
	}
	s.running.Wait()
	// Not with the lock, which a flush that Close waits for may ask for. A split that it waits
	// for leaves others.
	for {
		s.mu.Lock()
		all := slices.Collect(maps.Values(s.tablets))
		clear(s.tablets)
		s.mu.Unlock()
		if len(all) == 0 {
			break
		}
		for _, t := range all {
			t.Close()
		}
	}
	if s.o.CutReaders != nil {
		s.o.CutReaders()
	}
	for _, h := range []*logGroup{s.users, s.system} {
		h.env.Drain()
		if err := h.log.Close(); err != nil {
			s.o.Log.Warn("close commit log", "error", err)
		}
	}
	if s.rows != nil {
		s.rows.Close()
	}
	s.cache.Close()
}

// Kill ends the server as a crash would, for tests. Nothing is flushed, and the session is
// left to expire. What the server still sends was under way before.
func (s *Server) Kill() {
	s.fail(fault.New(fault.Unavailable, "the tablet server was killed"))
}
