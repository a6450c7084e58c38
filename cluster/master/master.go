package master

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
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
	// Objects has the SSTables of the cluster, Logs its commit logs; they may be one
	// store. Without Objects the master does not sweep. Without Logs it does not delete
	// logs, as where the only tablet server has them on a disk of its own.
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
	// MakeLimit is how long a table or backup may be pending, without a sign of life,
	// before the master takes its creator for dead. Default 10 min.
	MakeLimit time.Duration
	// Abandoned is an incarnation. A pending table or backup whose id was claimed by an
	// earlier one is of a process that has ended, and is purged at once. The version of
	// its item would not tell: a client that creates a table of the same name writes the
	// item anew. Default 0, for none.
	Abandoned uint64
	// Now is the clock of tables and backups. Default time.Now.
	Now func() time.Time
	// Counters count what the master does; they may be those of an earlier term. Default:
	// they are not published.
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

// A master is one term of office.
type master struct {
	o     Options
	term  context.Context
	epoch int64
	meta  *metastore.Store
	wake  chan struct{}
	calls sync.WaitGroup
	// copier is nil if there is no store.
	copier  *catalog.Copier
	age     *catalog.RollbackGuard
	endTerm context.CancelCauseFunc

	// tablets is what is known of METADATA, names reads the tables.
	tablets tabletCache
	names   catalog.NameReader

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
	// balanced is when the load of servers was balanced last.
	balanced time.Time
	// moveTargets are the incarnations of the servers that balancing moves tablets to.
	moveTargets map[metadata.TabletID]uint64
	// merging has both of each pair of neighbours that is being brought to one server, and
	// when the master gives that up.
	merging map[metadata.TabletID]time.Time
	// purged is when tables were looked at last. pendingSince says since when something is
	// pending, by id and version. orphans says since when a tablet is of no table, of
	// those that were so in the last purge.
	purged       time.Time
	pendingSince map[[2]int64]time.Time
	orphans      map[metadata.TabletID]time.Time

	needsMu sync.Mutex // guards what needs uses, in calls made by several goroutines

	// told is how much of METADATA's counters Options.Counters have.
	told struct{ reads, roots, changes, conflicts counterDelta }

	mu         sync.Mutex
	busy       map[string]bool   // calls that are under way
	lastLogged map[string]logged // by call
	// moving are tablets that moveOne is moving: rounds leave them alone.
	moving map[metadata.TabletID]bool
}
