package sql

import (
	"context"
	"log/slog"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// An Engine prepares and runs statements. *query.Engine is one.
type Engine interface {
	// Prepare analyzes a statement. params are the types of its parameters, by name in
	// lower case. Errors of the statement are Invalid.
	Prepare(ctx context.Context, c algebra.Catalog, text string, params map[string]*types.Type) (*query.Prepared, error)
	// Execute begins to run a statement. The context is that of all its work.
	Execute(ctx context.Context, p *query.Prepared, r query.Request) (query.Rows, error)
}

// A View is a logical view.
type View struct {
	Name  string // its resource name
	Query string
	// Definer is the principal with whose rights it reads, "" for its caller's.
	Definer string
	// Incarnation tells it from those of the same name before and after it; Etag changes
	// with it.
	Incarnation, Etag string
}

// Resources are what an instance has beside tables. *admin.Admin has them.
type Resources interface {
	// LogicalView returns a logical view, or NotFound.
	LogicalView(ctx context.Context, instance, id string) (View, error)
	// LogicalViews returns the ids of all logical views of an instance, sorted.
	LogicalViews(ctx context.Context, instance string) ([]string, error)
	// BundleETag returns the etag of a schema bundle of a table, or NotFound.
	BundleETag(ctx context.Context, t *schema.Table, id string) (string, error)
	// BundleDescriptors returns the FileDescriptorSet of a schema bundle, nil if it
	// has another kind of schema.
	BundleDescriptors(ctx context.Context, t *schema.Table, id string) ([]byte, error)
	// MaterializedView returns the table of a materialized view's rows, or NotFound,
	// whether or not the caller may read it.
	MaterializedView(ctx context.Context, instance, id string) (*schema.Table, error)
	// MaterializedViews returns the ids of all materialized views of an instance, sorted.
	MaterializedViews(ctx context.Context, instance string) ([]string, error)
	Settings
}

// Settings are what the engine keeps with a table and does not read.
type Settings interface {
	// Settings returns what the engine does not know of a table, such as the schema
	// of its row keys.
	Settings(t *schema.Table) (*adminpb.Table, error)
	// ValueType returns the type of a family's values; one without a kind is BYTES.
	ValueType(f schema.Family) (*adminpb.Type, error)
}

// Options are what a Service works with. Tables, Resources and Engine are
// needed.
type Options struct {
	Tables    backend.Tables
	Resources Resources
	Engine    Engine
	// Streams tells whether the rows of a statement have positions. Nil means
	// (*query.Prepared).Streams.
	Streams func(*query.Prepared) bool
	// MAC signs tokens; its result has 16 bytes at least. Nil is for a server without
	// login: tokens have a checksum only.
	MAC func(ctx context.Context, purpose string, body []byte) ([]byte, error)
	// Principal returns the name of the caller. What is kept of a result is given to
	// who asked for it only. Nil is for a server without login: all callers are one.
	Principal func(ctx context.Context) string
	// As returns a context with the rights of a principal, for views. Nil leaves those
	// of the caller.
	As func(ctx context.Context, definer string) (context.Context, error)
	// ReadView tells whether the caller may read a logical view: nil, or
	// PermissionDenied. A nil func allows it.
	ReadView func(ctx context.Context, name string) error
	// Budget bounds the memory of results on their way to clients, and of the analysis of
	// long statements.
	Budget *budget.Budget
	// CacheBytes bounds the plans that are kept. Zero means 32 MiB.
	CacheBytes int64
	// Dir is where results are kept that a client may ask for again; empty is the
	// system's temporary directory. SpoolBytes bounds all of them: 0 is 16 GiB.
	Dir        string
	SpoolBytes int64
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
	// Log gets what clients are not told. Nil is slog.Default.
	Log *slog.Logger

	// HoldFor is how long a spool is kept for a client that is gone. Zero means 1
	// minute.
	HoldFor time.Duration
	// FirstToken is how many bytes of a result come before its first token. Zero means
	// 4 MiB.
	FirstToken int64
}

// A Service answers PrepareQuery and ExecuteQuery. It is safe for concurrent
// use.
type Service struct {
	o        Options
	settings Settings
	plans    planCache
	bundles  bundleCache
	spools   spools
}

// New returns a Service. Close it after the last call.
func New(o Options) *Service {
	if o.Streams == nil {
		o.Streams = (*query.Prepared).Streams
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 32 << 20
	}
	if o.SpoolBytes == 0 {
		o.SpoolBytes = 16 << 30
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.HoldFor == 0 {
		o.HoldFor = time.Minute
	}
	if o.FirstToken == 0 {
		o.FirstToken = 4 << 20
	}
	s := &Service{o: o, settings: o.Resources}
	s.plans.limit = o.CacheBytes
	s.spools.limit = o.SpoolBytes
	return s
}

// Close ends the queries that are kept for clients that are gone.
func (s *Service) Close() { s.spools.close() }

// principal returns the name of the caller, "" if callers have none.
func (s *Service) principal(ctx context.Context) string {
	if s.o.Principal == nil {
		return ""
	}
	return s.o.Principal(ctx)
}

// as returns ctx with the rights of definer, if it is a name.
func (s *Service) as(ctx context.Context, definer string) (context.Context, error) {
	if definer == "" || s.o.As == nil {
		return ctx, nil
	}
	return s.o.As(ctx, definer)
}

func (s *Service) readView(ctx context.Context, name string) error {
	if s.o.ReadView == nil {
		return nil
	}
	return s.o.ReadView(ctx, name)
}

// CheckView returns why query cannot be that of the logical view called name,
// which definer defines: it does not analyze, it is no SELECT, or it refers to
// the view itself.
func (s *Service) CheckView(ctx context.Context, instance, name, definer, query string) error {
	c := newCatalog(s, instance)
	c.refused, c.definer, c.path = name, definer, []string{name}
	defer c.release()
	if err := c.charge(query); err != nil {
		return err
	}
	p, err := s.o.Engine.Prepare(ctx, c, query, nil)
	if err != nil {
		return err
	}
	if p.Statement.Mutation != nil || p.Statement.Explain != algebra.NoExplain {
		return fault.New(fault.Invalid, "The query of a logical view must be a SELECT")
	}
	return nil
}
