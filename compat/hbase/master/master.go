package master

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/backend"
)

// Tablets is what a Backend offers whose tablets can be worked on by hand.
type Tablets interface {
	// SplitKey returns a row that cuts the tablet that serves key into about two
	// halves, or false if there is none.
	SplitKey(ctx context.Context, table string, key []byte) ([]byte, bool, error)
	// SplitAt splits the tablet of a table that serves key at key.
	SplitAt(ctx context.Context, table string, key []byte) error
	// MergeAt merges the tablet that serves key with the one after it.
	MergeAt(ctx context.Context, table string, key []byte) error
	// FlushTablets and CompactTablets work on the tablets that serve rows.
	FlushTablets(ctx context.Context, table string, rows row.Range) error
	CompactTablets(ctx context.Context, table string, rows row.Range, report func(done, total int64)) error
	// MoveAt moves the tablet of a table that serves key to the tablet server of a
	// name, and returns when it is served there.
	MoveAt(ctx context.Context, table string, key []byte, server string) error
}

// Options are the settings of a Master. The zero value is a good master.
type Options struct {
	// Authorize is called before each call. It returns the context of the call,
	// or why the client may not make it. rpc is the full name of the RPC of the
	// Bigtable admin API that asks for the same permission. resource is what
	// that RPC would be about: a table, an instance or the project. It is empty
	// for what every caller with a known name may ask. Nil allows everything.
	Authorize func(ctx context.Context, c *server.Call, rpc, resource string) (context.Context, error)
	// Sees tells whether the client whose context Authorize returned may know that a
	// table is there, by its resource name. Nil shows all to every caller.
	Sees func(ctx context.Context, table string) (bool, error)
	// Ensure makes the instance that a namespace is, by its resource name, unless
	// it is there. Nil if no observer needs it.
	Ensure func(ctx context.Context, instance string) error
	// Tablets and Backups are the backend's, nil if it has none: then the calls
	// that need them are refused.
	Tablets Tablets
	Backups backend.Backups
	// Version is shown as HBase's version of the cluster. Empty means
	// "2.6.0-trestle".
	Version string
	// Log gets a line for each change, and for work in the background that fails.
	// Nil means none.
	Log *slog.Logger
}

// A Master answers MasterService and AdminService.
type Master struct {
	o       Options
	catalog *model.Catalog
	b       backend.Backend
	tablets Tablets         // or nil
	backups backend.Backups // or nil
	started time.Time

	// ctx ends with Close; compactions and sweep run in it.
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

// New returns a master of the catalog's tables.
func New(catalog *model.Catalog, o Options) *Master {
	o.Version = cmp.Or(o.Version, "2.6.0-trestle")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := &Master{o: o, catalog: catalog, b: catalog.Backend(), tablets: o.Tablets, backups: o.Backups, started: time.Now()}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.procs.init(catalog.Server().StartCode)
	m.compactions.running = map[string]int{}
	m.work.Go(m.sweep)
	return m
}

// sweep has the catalog forget tables that are gone: soon after the start, and from then
// on once an hour.
func (m *Master) sweep() {
	for wait := time.Minute; ; wait = time.Hour {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := m.catalog.Sweep(m.ctx); err != nil && m.ctx.Err() == nil {
			m.o.Log.LogAttrs(m.ctx, slog.LevelWarn, "records of deleted HBase tables not forgotten", slog.String("error", err.Error()))
		}
	}
}

// Close ends the compactions that clients asked for, and other work in the background,
// and waits for it.
func (m *Master) Close() {
	m.cancel()
	m.work.Wait()
}

// Services returns the services, for server.Options.
func (m *Master) Services() map[string]server.Service {
	return map[string]server.Service{"MasterService": m.masterService(), "AdminService": m.adminService()}
}

// What calls ask for, as RPCs of the Bigtable admin API.
const (
	toCreate  = adminpb.BigtableTableAdmin_CreateTable_FullMethodName // in an instance
	toDelete  = adminpb.BigtableTableAdmin_DeleteTable_FullMethodName
	toClear   = adminpb.BigtableTableAdmin_DropRowRange_FullMethodName
	toCopy    = adminpb.BigtableTableAdmin_CreateBackup_FullMethodName // all rows of a table, into a snapshot or out of one
	toModify  = adminpb.BigtableTableAdmin_ModifyColumnFamilies_FullMethodName
	toSee     = adminpb.BigtableTableAdmin_GetTable_FullMethodName
	toList    = adminpb.BigtableTableAdmin_ListTables_FullMethodName        // in an instance
	toFound   = adminpb.BigtableInstanceAdmin_CreateInstance_FullMethodName // in the project
	toManage  = adminpb.BigtableInstanceAdmin_PartialUpdateInstance_FullMethodName
	toAbolish = adminpb.BigtableInstanceAdmin_DeleteInstance_FullMethodName
	toVisit   = adminpb.BigtableInstanceAdmin_GetInstance_FullMethodName
)

func (m *Master) authorize(ctx context.Context, c *server.Call, rpc, resource string) (context.Context, error) {
	if m.o.Authorize == nil {
		return ctx, nil
	}
	return m.o.Authorize(ctx, c, rpc, resource)
}

// known allows what every caller with a known name may do.
func (m *Master) known(ctx context.Context, c *server.Call) (context.Context, error) {
	return m.authorize(ctx, c, toVisit, "")
}

// manages is for what changes the cluster as a whole.
func (m *Master) manages(ctx context.Context, c *server.Call) (context.Context, error) {
	return m.authorize(ctx, c, toManage, m.cluster())
}

// cluster returns the resource name that stands for the cluster as a whole.
func (m *Master) cluster() string {
	return m.catalog.Mapping().InstanceName(model.DefaultNamespace)
}

// table returns a table, or the exception that says that there is none.
func (m *Master) table(ctx context.Context, name model.Name) (*model.Table, error) {
	t, err := m.catalog.TableNow(ctx, name)
	if errors.Is(err, fault.NotFound) {
		return nil, wire.TableNotFound.New("%s", name)
	}
	return t, err
}

// changeable returns a table that is to be changed as a whole, or kept in a snapshot: a
// materialized view is not.
func (m *Master) changeable(ctx context.Context, name model.Name) (*model.Table, error) {
	t, err := m.table(ctx, name)
	if err == nil && backend.IsMaterializedView(t.Resource) {
		return nil, unsupported(name.String() + " is a materialized view: it can only be read")
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
