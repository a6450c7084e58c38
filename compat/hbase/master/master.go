package master

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/backend"
)

// Tablets is what a Backend offers whose tablets can be worked on by hand.
// Without it such calls are refused.
type Tablets interface {
	// SplitAt splits the tablet of a table that serves key at key.
	SplitAt(ctx context.Context, table string, key []byte) error
	// MergeAt merges the tablet that serves key with the one after it.
	MergeAt(ctx context.Context, table string, key []byte) error
	// FlushTablets and CompactTablets work on the tablets that serve rows.
	FlushTablets(ctx context.Context, table string, rows row.Range) error
	CompactTablets(ctx context.Context, table string, rows row.Range, report func(done, total int64)) error
}

// Instances makes the instances that namespaces are, for the other APIs to see.
type Instances interface {
	// CreateInstance makes an instance; there is no error if it is there.
	CreateInstance(ctx context.Context, project, id string) error
	// DeleteInstance deletes one; there is no error if it is not there.
	DeleteInstance(ctx context.Context, project, id string) error
}

// Options are the settings of a Master. The zero value is a good master.
type Options struct {
	// Authorize is called before each call. It returns the context of the call,
	// or why the client may not make it. change tells whether the call changes
	// something; resource is the name of a table or an instance, empty for what is
	// about the cluster. Nil lets everybody do everything.
	Authorize func(ctx context.Context, c *server.Call, change bool, resource string) (context.Context, error)
	// Instances is told of namespaces; nil if nobody wants to know.
	Instances Instances
	// Version is shown as HBase's version of the cluster. Empty means
	// "2.6.0-trestle".
	Version string
	// Log gets a line for each change, and for a compaction that fails. Nil means
	// none.
	Log *slog.Logger
}

// A Master answers MasterService and AdminService.
type Master struct {
	o       Options
	catalog *model.Catalog
	b       backend.Backend
	tablets Tablets         // nil if the backend is not one
	backups backend.Backups // nil if the backend is not one
	started time.Time

	// ctx ends with Close; compactions run in it.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	ddl   sync.Mutex // changes of tables, namespaces and snapshots
	procs procedures

	compactions struct {
		sync.Mutex
		running map[string]int // by encoded name of the region
	}
}

// New returns a master of the catalog's tables. b is the catalog's backend, or
// that held to what callers may do.
func New(catalog *model.Catalog, b backend.Backend, o Options) *Master {
	o.Version = cmp.Or(o.Version, "2.6.0-trestle")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := &Master{o: o, catalog: catalog, b: b, started: time.Now()}
	m.tablets, _ = b.(Tablets)
	m.backups, _ = b.(backend.Backups)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.procs.init(catalog.Server().StartCode)
	m.compactions.running = map[string]int{}
	return m
}

// Close ends the compactions that clients asked for, and waits for them.
func (m *Master) Close() {
	m.cancel()
	m.work.Wait()
}

// Services returns the services, for server.Options.
func (m *Master) Services() map[string]server.Service {
	return map[string]server.Service{"MasterService": m.masterService(), "AdminService": m.adminService()}
}

func (m *Master) authorize(ctx context.Context, c *server.Call, change bool, resource string) (context.Context, error) {
	if m.o.Authorize == nil {
		return ctx, nil
	}
	return m.o.Authorize(ctx, c, change, resource)
}

// table returns a table, or the exception that says that there is none.
func (m *Master) table(ctx context.Context, name model.Name) (*model.Table, error) {
	t, err := m.catalog.Table(ctx, name)
	if errors.Is(err, fault.NotFound) {
		return nil, wire.TableNotFound.New("%s", name)
	}
	return t, err
}

// is tells whether err is an exception of a class.
func is(err error, class wire.Class) bool {
	e, ok := errors.AsType[*wire.Exception](err)
	return ok && e.Class == class
}

// unsupported refuses what is not done here.
func unsupported(what string) error {
	return wire.DoNotRetryIO.New("java.lang.UnsupportedOperationException: %s", what)
}
