package admin

import (
	"context"
	"hash/fnv"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// The names of what exists before anyone created anything.
const (
	DefaultInstance = "projects/default/instances/default"
	defaultCluster  = "default"
	defaultProfile  = "default"
	defaultZone     = "local"
)

// Options say how strict the services are. The zero value is a good server.
type Options struct {
	// Emulator accepts table and data calls for any project and instance,
	// whether or not it was created, and does not look at the form of its name.
	Emulator bool
	// Zone is where the clusters are that were never created. Empty means "local".
	Zone string
	// ProfileTTL is how long an answer about an instance or app profile may be
	// older than a change that another gateway made; own changes show at once.
	// Zero means 5 s.
	ProfileTTL time.Duration
	// Permissions returns those of permissions that the caller holds on a
	// resource. Nil means all of them.
	Permissions func(ctx context.Context, resource string, permissions []string) ([]string, error)
	// Member returns the name of the caller as policies write it, "" if it has none: the
	// definer of a logical view. Nil means that no caller has.
	Member func(ctx context.Context) string
	// Maintenance is how often the background looks for something to do, such as
	// an automated backup that is due. Zero means 1 minute.
	Maintenance time.Duration
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
	// Log gets what no client is told. Nil means slog.Default().
	Log *slog.Logger
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	if o.Zone == "" {
		o.Zone = defaultZone
	}
	if o.ProfileTTL == 0 {
		o.ProfileTTL = 5 * time.Second
	}
	if o.Permissions == nil {
		o.Permissions = func(_ context.Context, _ string, permissions []string) ([]string, error) {
			return permissions, nil
		}
	}
	if o.Member == nil {
		o.Member = func(context.Context) string { return "" }
	}
	if o.Maintenance == 0 {
		o.Maintenance = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Admin keeps instances, app profiles, policies and operations over a backend.
// It is safe for concurrent use. Close ends what it does in the background.
type Admin struct {
	b backend.Backend
	v backend.MaterializedViews // of b
	o Options

	// protection is held while a table is deleted or its protection changed, so
	// that a table is not deleted just after it was protected. Tables share the
	// locks by a hash of their name.
	protection [64]sync.Mutex

	key      atomic.Pointer[tokenKey]
	profiles profileCache
	views    viewCache
	purge    purgeClock
	orphans  purgeClock
	tasks    tasks
	places   places
	// checkView tells whether a query can be that of a logical view.
	checkView func(ctx context.Context, instance, name, definer, query string) error
	// compileView analyzes the query of a materialized view.
	compileView func(ctx context.Context, instance, definer, query string) (*schema.View, error)
}

// New returns an Admin over b that serves nothing yet.
func New(b backend.Backend, o Options) *Admin {
	a := &Admin{b: b, v: backend.ViewsOf(b), o: o.WithDefaults()}
	a.profiles.init()
	a.tasks.init()
	a.places.making = map[string]*making{}
	return a
}

// Register adds the three services, served over b, to s.
func Register(s grpc.ServiceRegistrar, b backend.Backend, o Options) *Admin {
	a := New(b, o)
	a.RegisterWith(s)
	return a
}

// protectionOf returns the lock on a table's deletion protection.
func (a *Admin) protectionOf(table string) *sync.Mutex {
	h := fnv.New32a()
	h.Write([]byte(table))
	return &a.protection[h.Sum32()%uint32(len(a.protection))]
}

// RegisterWith adds the three services to s.
func (a *Admin) RegisterWith(s grpc.ServiceRegistrar) {
	adminpb.RegisterBigtableTableAdminServer(s, &tableServer{Admin: a})
	adminpb.RegisterBigtableInstanceAdminServer(s, &instanceServer{Admin: a})
	longrunningpb.RegisterOperationsServer(s, &operationsServer{Admin: a})
}

// tableServer is BigtableTableAdmin. What it does not define answers
// UNIMPLEMENTED.
type tableServer struct {
	adminpb.UnimplementedBigtableTableAdminServer
	*Admin
}

// instanceServer is BigtableInstanceAdmin.
type instanceServer struct {
	adminpb.UnimplementedBigtableInstanceAdminServer
	*Admin
}

// operationsServer is google.longrunning.Operations.
type operationsServer struct {
	longrunningpb.UnimplementedOperationsServer
	*Admin
}
