package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	cmeta "github.com/trestledb/trestle/cluster/metadata"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// Options are the settings of a Master. Lock and Dialer are needed.
type Options struct {
	// Name tells an operator which process is the master.
	Name   string
	Lock   lock.Service
	Dialer rpc.Dialer
	// TTL is that of the master's session. Default 5 s.
	TTL time.Duration
	// ServerTTL is that of the tablet servers' sessions. A server that is gone is
	// given a tenth of it more before its tablets are, for clocks that run at
	// different rates. Default TTL.
	ServerTTL time.Duration
	// Attend is how often each tablet server is called, so that one that has died is
	// known before its session ends. Default a 25th of ServerTTL; negative
	// means never.
	Attend time.Duration
	// Reading is the clock by which the master judges a promise: the time since some
	// instant. Default: the monotonic clock.
	Reading func() time.Duration
	// Interval is how often the master looks at everything; what the lock service
	// tells of makes it look at once. Default 1 s.
	Interval time.Duration
	// Balance is how often it evens out the tablets of servers. Default 10 s;
	// negative means never.
	Balance time.Duration
	// Merge is how long two neighbouring tablets must have been small and idle on
	// their servers before they are merged. Default 24 h, so that a table that was
	// cut up in advance has its data by then; negative means never.
	Merge time.Duration
	// Objects has the SSTables of the cluster, Logs its commit logs; they may be
	// one store. Without Objects the master does not sweep; without Logs, as where the
	// only tablet server has them on a disk of its own, it sees to no logs.
	Objects, Logs objectstore.Store
	// Copies is the part of the store for copies of the lock service, one each Copy
	// (default 10 s) in which anything has changed. Without it the master knows a
	// lock service that was put back to an earlier state only if it has seen that
	// itself.
	Copies objectstore.Store
	Copy   time.Duration
	// Sweep is how often it looks for objects and logs that nothing names: they are
	// deleted the second time. Default 10 min; negative means never.
	Sweep time.Duration
	// Garbage, if not nil, has one when there are objects that nothing names any
	// more: the master looks for them soon.
	Garbage <-chan struct{}
	// Purge is how often it looks for tables and backups whose time has come.
	// Default 1 min; negative means never.
	Purge time.Duration
	// Rest is how long the tablets of a deleted table are served, for one that is
	// undeleted at once. Default 1 min.
	Rest time.Duration
	// MakeLimit is how long a table or backup may be in the making, without a sign
	// of life, before the master takes its maker for dead. Default 10 min.
	MakeLimit time.Duration
	// Abandoned, if not 0, is a revision of the lock service: what was in the making
	// then is of a process that has ended, and is purged at once.
	Abandoned int64
	// Now is the clock of tables and backups. Default time.Now.
	Now func() time.Time
	// Counters count what the master does; they may be those of an earlier term.
	// Default: nobody sees them.
	Counters *Counters
	// Log takes what happens. Default: nothing.
	Log *slog.Logger
}

// WithDefaults returns o with every zero field set that has a default.
func (o Options) WithDefaults() Options {
	if o.TTL == 0 {
		o.TTL = 5 * time.Second
	}
	if o.ServerTTL == 0 {
		o.ServerTTL = o.TTL
	}
	if o.Attend == 0 {
		o.Attend = o.ServerTTL / 25
	}
	if o.Reading == nil {
		begun := time.Now()
		o.Reading = func() time.Duration { return time.Since(begun) }
	}
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	if o.Balance == 0 {
		o.Balance = 10 * time.Second
	}
	if o.Merge == 0 {
		o.Merge = 24 * time.Hour
	}
	if o.Copy == 0 {
		o.Copy = 10 * time.Second
	}
	if o.Sweep == 0 {
		o.Sweep = 10 * time.Minute
	}
	if o.Purge == 0 {
		o.Purge = time.Minute
	}
	if o.Rest == 0 {
		o.Rest = time.Minute
	}
	if o.MakeLimit == 0 {
		o.MakeLimit = 10 * time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Key is the lock service's item of the master.
const Key = catalog.MasterKey

// Run waits until this process is the master and then is, until ctx ends or the
// lock service no longer agrees; it returns why.
func Run(ctx context.Context, o Options) error {
	o = o.WithDefaults()
	var copier *catalog.Copier
	if o.Copies != nil {
		copier = &catalog.Copier{Lock: o.Lock, Store: o.Copies}
		if err := copier.Check(ctx); err != nil {
			return err
		}
	}
	session, err := o.Lock.NewSession(ctx, o.TTL)
	if err != nil {
		return fmt.Errorf("begin a session: %w", err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.TTL)
		defer cancel()
		if err := session.Close(end); err != nil {
			o.Log.Warn("end the master's session", "error", err)
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-session.Done():
			cancel(fault.New(fault.Unavailable, "the session with the lock service has ended"))
		case <-ctx.Done():
		}
	}()
	value, err := json.Marshal(catalog.Registration{Name: o.Name})
	if err != nil {
		return err
	}
	item, err := lock.Acquire(ctx, o.Lock, session, Key, value)
	if err != nil {
		return fmt.Errorf("become the master: %w", err)
	}
	before, err := catalog.Epochs(ctx, o.Lock)
	if err != nil {
		return err
	}
	epoch := before + item.Created
	if copier != nil {
		// Before anything else is done: it may have been put back while another was the
		// master.
		if err := copier.Take(ctx, time.Now()); errors.Is(err, fault.FailedPrecondition) {
			return err
		} else if err != nil {
			o.Log.Warn("the lock service was not copied, and will be in a while", "error", err)
		}
	}
	age := catalog.NewAge(o.Lock)
	if err := age.Look(ctx); err != nil {
		return err
	}
	o.Log.Info("this process is the master", "name", o.Name, "epoch", epoch)
	m := &master{o: o, copier: copier, age: age, term: ctx, end: cancel, epoch: epoch, meta: cmeta.New(o.Lock, o.Dialer).ForMaster(epoch),
		missing: map[uint64]time.Time{}, merging: map[metadata.TabletID]time.Time{}, making: map[[2]int64]time.Time{}, busy: map[string]bool{}, failing: map[string]telling{}, parting: map[metadata.TabletID]bool{}, wake: make(chan struct{}, 1)}
	o.Counters.Terms.Add(1)
	o.Counters.Leading.Store(1)
	defer o.Counters.end()
	var watching sync.WaitGroup
	for _, prefix := range []string{catalog.ServersPrefix, catalog.TablesPrefix, catalog.DrainingPrefix, catalog.WantedPrefix} {
		watching.Go(func() { m.watch(ctx, prefix, m.wake) })
	}
	watching.Go(func() { m.sweepAlways(ctx) })
	if o.Attend > 0 {
		watching.Go(func() { m.attendAlways(ctx) })
	}
	if copier != nil {
		watching.Go(func() { m.copyAlways(ctx, copier) })
	}
	m.run(ctx)
	watching.Wait()
	m.calls.Wait()
	return context.Cause(ctx)
}

// A master is one term of office.
type master struct {
	o     Options
	term  context.Context
	epoch int64
	meta  *cmeta.Store
	wake  chan struct{}
	calls sync.WaitGroup
	// copier is nil if there is no store.
	copier *catalog.Copier
	age    *catalog.Age
	end    context.CancelCauseFunc // ends the term

	// tablets is what is known of METADATA.
	tablets known

	// missing says since when the server of an incarnation that rows name is
	// gone.
	missing map[uint64]time.Time
	// toldOf is what was logged last of servers.
	toldOf struct {
		servers map[uint64]catalog.Registration
		drained map[string]bool
		emptied map[string]bool // of those, the ones that have no tablet
	}
	// ended has the incarnations that this master has given up by their promise:
	// they serve nothing.
	ended sync.Map
	// start is the cold start that is under way.
	start coldStart
	// balanced is when servers were evened out last.
	balanced time.Time
	// heading are the servers, by incarnation, that tablets are moved to.
	heading map[metadata.TabletID]uint64
	// merging are the left ones of neighbours that are brought together to be
	// merged, and until when.
	merging map[metadata.TabletID]time.Time
	// purged is when tables were looked at last. making says since when something
	// is being made, by id and version, and orphans since when a tablet is of no
	// table, of what was so then.
	purged  time.Time
	making  map[[2]int64]time.Time
	orphans map[metadata.TabletID]time.Time

	judging sync.Mutex // of who calls needs while others may

	// told is how much of METADATA's counters Options.Counters have.
	told struct{ reads, roots, changes, conflicts since }

	mu      sync.Mutex
	busy    map[string]bool    // calls that are under way
	failing map[string]telling // by call
	// parting are tablets that are being moved: the mover sees to them.
	parting map[metadata.TabletID]bool
}

// believable returns an error if the lock service was put back to an earlier
// state: what it does not know of is not garbage then.
func (m *master) believable(ctx context.Context) error {
	if m.copier == nil {
		return nil
	}
	return m.copier.Check(ctx)
}

// copyAlways copies the lock service into the store. A lock service that is
// older than the store ends the term.
func (m *master) copyAlways(ctx context.Context, c *catalog.Copier) {
	tick := time.NewTicker(m.o.Copy)
	defer tick.Stop()
	// What cannot be found out from the store is copied soon.
	soon := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, prefix := range []string{cmeta.RootPrefix, catalog.TablesPrefix, catalog.BackupsPrefix} {
		watching.Go(func() { m.watch(ctx, prefix, soon) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-soon:
			select { // with what changes together with it
			case <-ctx.Done():
				return
			case <-time.After(min(m.o.Copy, 200*time.Millisecond)):
			}
		}
		err := c.Take(ctx, time.Now())
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, fault.FailedPrecondition):
			m.end(err)
		default:
			m.o.Log.Warn("the lock service was not copied, and will be in a while", "error", err)
		}
	}
}

// watch wakes whoever waits for a channel when items change.
func (m *master) watch(ctx context.Context, prefix string, whom chan struct{}) {
	for ctx.Err() == nil {
		_, revision, err := m.o.Lock.List(ctx, prefix)
		if err == nil {
			wake(whom)
			err = m.o.Lock.Watch(ctx, prefix, revision, func(lock.Event) error {
				wake(whom)
				return nil
			})
		}
		if err != nil {
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

func wake(whom chan struct{}) {
	select {
	case whom <- struct{}{}:
	default:
	}
}

// look makes the master look at everything soon.
func (m *master) look() { wake(m.wake) }

func (m *master) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-m.wake:
		}
		start := time.Now()
		err := m.round(ctx)
		m.metadata()
		m.o.Counters.Rounds.Add(1)
		m.o.Counters.RoundNanos.Add(int64(time.Since(start)))
		if err != nil && ctx.Err() == nil {
			m.o.Counters.Failed.Add(1)
			m.o.Log.Warn("the master could not see to everything, and will try again", "error", err)
		}
		// In a large cluster there is always something new. What comes meanwhile is
		// seen to at once in the next round.
		rest := time.NewTimer(min(time.Since(start), m.o.Interval/4))
		select {
		case <-ctx.Done():
		case <-rest.C:
		}
		timer.Reset(m.o.Interval)
	}
}

// A view is what a round begins with.
type view struct {
	servers map[uint64]catalog.Registration
	drained map[string]bool
	wanted  map[metadata.TabletID]lock.Item
	// tables are those whose tablets are to be served; resting those that were
	// deleted a while ago.
	tables, resting map[uint64]bool
	names           map[uint64]string // of tables, by id
	// load counts the tablets of a server, those included that it is about to get.
	load map[uint64]int
}

// round looks at every tablet once.
func (m *master) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(10*m.o.Interval, 10*time.Second))
	defer cancel()
	v := &view{load: map[uint64]int{}, tables: map[uint64]bool{cmeta.Table: true}, resting: map[uint64]bool{}, names: map[uint64]string{cmeta.Table: cmeta.Schema.Name}, wanted: map[metadata.TabletID]lock.Item{}}
	var err error
	if v.servers, _, err = catalog.Servers(ctx, m.o.Lock); err != nil {
		return err
	}
	if v.drained, err = catalog.Drained(ctx, m.o.Lock); err != nil {
		return err
	}
	if err := m.readWanted(ctx, v); err != nil {
		return err
	}
	if err := m.readTables(ctx, v); err != nil {
		return err
	}
	m.o.Counters.Servers.Store(int64(len(v.servers)))
	for n := range m.missing {
		if _, ok := v.servers[n]; ok {
			delete(m.missing, n)
		}
	}
	m.tellServers(v)
	// METADATA first: everything else is in it.
	roots, err := m.meta.Roots(ctx)
	if err != nil {
		return err
	}
	// After what was read of the lock service, which is not older than it was then.
	if err := m.age.Look(ctx); err != nil {
		if errors.Is(err, fault.FailedPrecondition) {
			m.end(err)
		}
		return err
	}
	if len(roots) == 0 {
		return m.found(ctx)
	}
	if err := m.settle(ctx, v, roots); err != nil {
		return err
	}
	if slices.ContainsFunc(roots, func(r *metadata.Row) bool {
		_, living := v.servers[r.Assignment.Incarnation]
		return r.Assignment.State != metadata.Open || !living
	}) {
		m.again(50 * time.Millisecond)
		return nil
	}
	whole, err := m.know(ctx, v)
	if err != nil {
		return err
	}
	if err := m.settle(ctx, v, m.tablets.rows); err != nil {
		return err
	}
	rows := slices.Concat(roots, m.tablets.rows)
	m.even(ctx, v, rows)
	m.tellDrained(v)
	if !whole {
		return nil
	}
	m.tablets.slim()
	if err := m.unwant(ctx, v, rows); err != nil {
		return err
	}
	if m.o.Purge > 0 && time.Since(m.purged) >= m.o.Purge {
		m.purged = time.Now()
		if err := m.believable(ctx); err != nil {
			return err
		}
		return m.purge(ctx, v, m.tablets.rows)
	}
	return nil
}

// unwant removes what says where tablets are to be that are gone: they were
// split, merged or deleted. The items were read before rows, which are all there
// are, and no tablet comes back.
func (m *master) unwant(ctx context.Context, v *view, rows []*metadata.Row) error {
	if len(v.wanted) == 0 {
		return nil
	}
	there := map[metadata.TabletID]bool{}
	for _, r := range rows {
		there[r.Tablet] = true
	}
	for id, i := range v.wanted {
		if there[id] {
			continue
		}
		if err := m.o.Lock.Delete(ctx, i.Key, i.Version); err != nil && !errors.Is(err, fault.Aborted) && !errors.Is(err, fault.NotFound) {
			return err
		}
	}
	return nil
}

// again makes the master look once more after d.
func (m *master) again(d time.Duration) { time.AfterFunc(d, m.look) }

// found makes the METADATA tablet of a new cluster.
func (m *master) found(ctx context.Context) error {
	n, err := catalog.ClaimIncarnation(ctx, m.o.Lock)
	if err != nil {
		return err
	}
	r := &metadata.Row{Table: cmeta.Table, Tablet: metadata.TabletID(n << 32), Assignment: &metadata.Assignment{}, MajorTime: time.Now().Unix()}
	if err := m.meta.CAS(ctx, r); err != nil {
		return err
	}
	m.look()
	return nil
}

func (m *master) readWanted(ctx context.Context, v *view) error {
	items, _, err := m.o.Lock.List(ctx, catalog.WantedPrefix)
	if err != nil {
		return err
	}
	for _, i := range items {
		var id uint64
		if _, err := fmt.Sscanf(strings.TrimPrefix(i.Key, catalog.WantedPrefix), "%x", &id); err == nil {
			v.wanted[metadata.TabletID(id)] = i
		}
	}
	return nil
}

func (m *master) readTables(ctx context.Context, v *view) error {
	return catalog.Names(ctx, m.o.Lock, func(_ lock.Item, n catalog.Name) error {
		for _, t := range n {
			v.tables[t.ID] = !catalog.IsMaking(t)
			v.names[t.ID] = t.Name
			v.resting[t.ID] = !t.DeleteTime.IsZero() && m.o.Now().Sub(t.DeleteTime) >= m.o.Rest
		}
		return nil
	})
}

// dead tells whether the server that a row names is gone for good.
func (m *master) dead(v *view, r *metadata.Row) bool {
	a := r.Assignment
	if a.State == metadata.Unassigned {
		return false
	}
	if _, ok := v.servers[a.Incarnation]; ok {
		return false
	}
	if _, ok := m.ended.Load(a.Incarnation); ok {
		return true
	}
	since, ok := m.missing[a.Incarnation]
	if !ok {
		since = time.Now()
		m.missing[a.Incarnation] = since
		m.o.Log.Warn("a tablet server that is gone has tablets, which others are to take over", "server", a.Owner())
	}
	margin := m.o.ServerTTL / 10 // see tabletserver.alive for the other clock
	if left := margin - time.Since(since); left > 0 {
		m.again(left)
		return false
	}
	return true
}

// changesAtOnce is how many METADATA rows are changed at a time: they share
// commits of the METADATA server's log.
const changesAtOnce = 128

// What settle has to do about a tablet.
type need int

const (
	needsNothing need = iota
	needsServer
	needsHint // its server is to open it
)

func (m *master) needs(v *view, r *metadata.Row) need {
	a := r.Assignment
	switch {
	case !v.tables[r.Table] || a == nil:
		return needsNothing // of a table that is being made, or was purged
	case v.resting[r.Table] && a.State == metadata.Unassigned && a.Log == 0:
		return needsNothing
	case a.State == metadata.Unassigned && m.isParting(r.Tablet):
		return needsNothing
	case a.State == metadata.Unassigned || m.dead(v, r):
		return needsServer
	case a.State == metadata.Opening:
		return needsHint
	}
	return needsNothing
}

// give makes a tablet that of a server, if it still needs one, and returns its
// row as it is then.
func (m *master) give(ctx context.Context, v *view, r *metadata.Row, to catalog.Registration) (*metadata.Row, error) {
	if isSlim(r) {
		now, err := m.meta.Get(ctx, keyOf(r))
		if err != nil {
			return nil, err
		}
		m.judging.Lock()
		need := m.needs(v, now)
		m.judging.Unlock()
		if need != needsServer {
			return slim(now), nil
		}
		r = now
	}
	over := r.Assignment.State != metadata.Unassigned
	r, err := m.assign(ctx, v.name(r), r, to)
	if err == nil && over {
		m.o.Counters.TakenOver.Add(1)
	}
	if err != nil {
		m.tablets.doubt(keyOf(r)) // it changed since it was read, perhaps
		return nil, err
	}
	if r.Table != cmeta.Table {
		r = slim(r)
	}
	return r, nil
}

// settle gives a server to the tablets of rows that have none, and reminds
// servers of those that they have not opened yet. It changes rows to what they
// are then.
func (m *master) settle(ctx context.Context, v *view, rows []*metadata.Row) error {
	for _, r := range rows {
		if a := r.Assignment; a != nil && a.State != metadata.Unassigned {
			v.load[a.Incarnation]++
		}
	}
	type change struct {
		at int
		to catalog.Registration
	}
	var changes []change
	hints := map[string][]rpc.TabletKey{} // by address
	needs := make([]need, len(rows))
	without := 0
	for i, r := range rows {
		if needs[i] = m.needs(v, r); needs[i] == needsServer {
			without++
		}
	}
	what, most := "load ", math.MaxInt
	if len(rows) > 0 && rows[0].Table == cmeta.Table {
		// Loads of other tablets may be waiting for these.
		what = "load METADATA "
	} else {
		most = m.start.most(v.servers, without, len(rows), m.o.Interval, time.Now())
	}
	full, hinted := false, 0
	for i, r := range rows {
		switch needs[i] {
		case needsServer:
			if full {
				continue
			}
			to, ok := m.pick(v, r)
			if full = !ok || v.load[to.Incarnation] >= most; full {
				m.again(m.o.Interval / 4)
				continue // until there is a server
			}
			v.load[to.Incarnation]++
			changes = append(changes, change{i, to})
		case needsHint:
			if s, ok := v.servers[r.Assignment.Incarnation]; ok {
				hints[s.Addr] = append(hints[s.Addr], keyOf(r))
				hinted++
			}
		}
	}
	// Many at a time: each is a durable write.
	var mu sync.Mutex
	var errs []error
	var doing sync.WaitGroup
	slots := make(chan struct{}, changesAtOnce)
	for _, c := range changes {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		doing.Go(func() {
			defer func() { <-slots }()
			r, err := m.give(ctx, v, rows[c.at], c.to)
			mu.Lock()
			defer mu.Unlock()
			if r != nil {
				rows[c.at] = r
			}
			switch {
			case err != nil && len(errs) < 8:
				errs = append(errs, err)
			case err == nil && r.Assignment != nil && r.Assignment.Incarnation == c.to.Incarnation:
				hints[c.to.Addr] = append(hints[c.to.Addr], keyOf(r))
			}
		})
	}
	doing.Wait()
	if ctx.Err() != nil {
		errs = append(errs, context.Cause(ctx))
	}
	opening := 0
	for _, keys := range hints {
		opening += len(keys)
	}
	m.o.Counters.Tablets.Store(int64(len(rows)))
	m.o.Counters.Opening.Store(int64(opening))
	m.o.Counters.Waiting.Store(int64(without - (opening - hinted)))
	for addr, keys := range hints {
		m.call(what+addr, func(ctx context.Context) error {
			err := m.o.Dialer.Dial(addr).Load(ctx, keys)
			if err == nil {
				m.opened(keys)
			}
			return err
		})
	}
	if len(errs) > 0 {
		m.again(m.o.Interval / 4)
	}
	return errors.Join(errs...)
}

// call makes a call to a tablet server in the background, unless one of that
// name is under way, and looks at everything when it is done.
func (m *master) call(name string, do func(context.Context) error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[name] {
		return false
	}
	m.busy[name] = true
	m.calls.Go(func() {
		// The server goes on with it by itself, so nothing is lost with this master.
		ctx, cancel := context.WithTimeout(m.term, time.Minute)
		defer cancel()
		m.o.Counters.Calls.Add(1)
		if err := do(ctx); err != nil && m.term.Err() == nil {
			m.o.Counters.CallsFailed.Add(1)
			if m.news(name, err) {
				m.o.Log.Warn("a tablet server could not do what the master asked for, and is asked again", "call", name, "error", err)
			}
			select {
			case <-time.After(m.o.Interval / 10):
			case <-m.term.Done():
			}
		}
		m.mu.Lock()
		delete(m.busy, name)
		m.mu.Unlock()
		m.look()
	})
	return true
}

// retellEvery is how often the same failure of a call is logged.
const retellEvery = 10 * time.Second

// A telling is a failure that was logged.
type telling struct {
	what string
	when time.Time
}

// news tells whether the failure of a call is to be logged: what fails is called
// again several times a second.
func (m *master) news(call string, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.failing[call]; t.what == err.Error() && time.Since(t.when) < retellEvery {
		return false
	}
	m.failing[call] = telling{err.Error(), time.Now()}
	return true
}

// pick returns the server that a tablet is to be served by: the one that is
// wanted for it, or the one with the fewest tablets. Only METADATA is better
// served by one that is to have none than by nobody: without it no server can
// give up what it has.
func (m *master) pick(v *view, r *metadata.Row) (catalog.Registration, bool) {
	if n, ok := m.heading[r.Tablet]; ok {
		if s, ok := v.servers[n]; ok && !v.drained[s.Name] && v.wanted[r.Tablet].Key == "" {
			return s, true
		}
	}
	var best catalog.Registration
	found := false
	for _, drained := range []bool{false, true} {
		for n, s := range v.servers {
			if v.drained[s.Name] != drained {
				continue
			}
			if string(v.wanted[r.Tablet].Value) == s.Name {
				return s, true
			}
			if !found || v.load[n] < v.load[best.Incarnation] || v.load[n] == v.load[best.Incarnation] && n < best.Incarnation {
				best, found = s, true
			}
		}
		if found || r.Table != cmeta.Table {
			break
		}
	}
	return best, found
}

// atOnce is how many tablets one server gives up at a time, of up to partings
// that it is asked for before the master looks at everything again.
const atOnce, partings = 4, 64

// even moves tablets: from servers that are being drained, to those that they
// are wanted on, and from the busiest servers to those that are least so.
func (m *master) even(ctx context.Context, v *view, rows []*metadata.Row) {
	leave := map[uint64][]*metadata.Row{}
	ask := func(r *metadata.Row) {
		n := r.Assignment.Incarnation
		if len(leave[n]) < partings {
			leave[n] = append(leave[n], r)
		}
	}
	if m.o.Balance > 0 && time.Since(m.balanced) >= m.o.Balance {
		m.balanced = time.Now()
		m.heading = map[metadata.TabletID]uint64{}
		for _, o := range m.balance(ctx, v, rows) {
			m.heading[o.row.Tablet] = o.to
			ask(o.row)
			m.o.Counters.MovedEven.Add(1)
			m.o.Log.Info("tablet is moved", "tablet", v.name(o.row), "from", v.servers[o.from].ServerName(), "to", v.servers[o.to].ServerName(), "why", "balance")
		}
	}
	living := 0
	for _, s := range v.servers {
		if !v.drained[s.Name] {
			living++
		}
	}
	begun := func(r *metadata.Row, why string, count *atomic.Int64) {
		if !m.isParting(r.Tablet) && len(leave[r.Assignment.Incarnation]) < partings && !m.isBusy("unload "+v.servers[r.Assignment.Incarnation].Addr) {
			count.Add(1)
			m.o.Log.Info("tablet is moved", "tablet", v.name(r), "from", r.Assignment.Owner(), "why", why)
		}
		ask(r)
	}
	for _, r := range rows {
		a := r.Assignment
		// One that says it is being split or merged may say so because that was given
		// up: giving the tablet up waits for what is really under way.
		if a == nil || a.State != metadata.Open {
			continue
		}
		s, ok := v.servers[a.Incarnation]
		if !ok {
			continue
		}
		wanted := string(v.wanted[r.Tablet].Value)
		switch {
		case v.resting[r.Table]:
			begun(r, "its table was deleted", &m.o.Counters.MovedAway)
		case wanted != "" && wanted != s.Name && !v.drained[wanted] && m.isLiving(v, wanted):
			begun(r, "an operator wants it on "+wanted, &m.o.Counters.MovedWanted)
		case v.drained[s.Name] && living > 0:
			begun(r, "its server is drained", &m.o.Counters.MovedAway)
		}
	}
	m.part(v, leave)
}

// A parting is a tablet that is to leave its server.
type parting struct {
	row  *metadata.Row
	name metadata.TabletName
	to   catalog.Registration // who is to serve it; the zero value for nobody
}

// part asks servers, by incarnation, to give up tablets.
func (m *master) part(v *view, leave map[uint64][]*metadata.Row) {
	for n, rows := range leave {
		from, ok := v.servers[n]
		if !ok {
			continue
		}
		var all []parting
		for _, r := range rows {
			p := parting{row: r, name: v.name(r)}
			if v.tables[r.Table] && !v.resting[r.Table] {
				if to, ok := m.pick(v, r); ok {
					v.load[to.Incarnation]++
					p.to = to
				}
			}
			all = append(all, p)
		}
		m.call("unload "+from.Addr, func(ctx context.Context) error { return m.handOver(ctx, from, all) })
	}
}

// handOver moves tablets, each by itself: a tablet is served by nobody only
// while its own server gives it up and the next one opens it. A round, which
// looks at all tablets, would take longer than both. Tablets of METADATA come
// first.
func (m *master) handOver(ctx context.Context, from catalog.Registration, all []parting) error {
	var mu sync.Mutex
	var errs []error
	one := func(p parting) {
		if err := m.moveOne(ctx, from, p); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
	}
	var moving sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, p := range all {
		if ctx.Err() != nil {
			break
		}
		if p.row.Table == cmeta.Table {
			one(p) // while METADATA moves, nothing else can
			continue
		}
		slots <- struct{}{}
		moving.Go(func() {
			defer func() { <-slots }()
			one(p)
		})
	}
	moving.Wait()
	return errors.Join(errs...)
}

func (m *master) moveOne(ctx context.Context, from catalog.Registration, p parting) error {
	id := p.row.Tablet
	m.mu.Lock()
	m.parting[id] = true
	m.mu.Unlock()
	defer func() {
		m.tablets.doubt(keyOf(p.row))
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.parting, id)
	}()
	if err := m.o.Dialer.Dial(from.Addr).Unload(ctx, []metadata.TabletID{id}); err != nil {
		m.o.Counters.MovesFailed.Add(1)
		return err
	}
	if p.to.Addr == "" {
		return nil
	}
	key := rpc.TabletKey{Table: p.row.Table, End: p.row.End}
	r, err := m.meta.Get(ctx, key)
	if err != nil {
		return err
	}
	if r.Tablet != id || r.Assignment == nil || r.Assignment.State != metadata.Unassigned {
		return nil // it was split or merged instead: the next round sees to it
	}
	if _, err := m.assign(ctx, p.name, r, p.to); err != nil {
		return err
	}
	return m.o.Dialer.Dial(p.to.Addr).Load(ctx, []rpc.TabletKey{key})
}

// assign makes a server the one that is to serve the tablet of a row and a name,
// and returns the row as it is then.
func (m *master) assign(ctx context.Context, name metadata.TabletName, r *metadata.Row, to catalog.Registration) (*metadata.Row, error) {
	r = r.Clone()
	old := r.Assignment
	r.Assignment = &metadata.Assignment{State: metadata.Opening, Epoch: old.Epoch + 1, Server: to.Name, Addr: to.Addr,
		Incarnation: to.Incarnation, Log: old.Log, Master: old.Master}
	err := m.meta.CAS(ctx, r)
	if err == nil {
		m.o.Counters.Assigned.Add(1)
		if old.State != metadata.Unassigned {
			m.o.Log.Info("tablet is taken over", "tablet", name, "from", old.Owner(), "to", to.ServerName(), "log", commitlog.ID(old.Log).String())
		} else {
			m.o.Log.Info("tablet is assigned", "tablet", name, "to", to.ServerName())
		}
	}
	return r, err
}

// isBusy tells whether a call of a name is under way: another of that name would
// not be made.
func (m *master) isBusy(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy[name]
}

// isParting tells whether a tablet is being moved.
func (m *master) isParting(id metadata.TabletID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.parting[id]
}

func (m *master) isLiving(v *view, name string) bool {
	for _, s := range v.servers {
		if s.Name == name {
			return true
		}
	}
	return false
}
