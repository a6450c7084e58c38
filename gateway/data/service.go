package data

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/sql"
	"github.com/trestledb/trestle/gateway/view"
	"github.com/trestledb/trestle/gateway/wire"
)

// A Profile is what an app profile means for a request.
type Profile struct {
	// Transactions allows CheckAndMutateRow and ReadModifyWriteRow.
	Transactions bool
	// ReadOnly refuses everything that writes.
	ReadOnly bool
	// SingleCluster allows to read changes: their order is that of one cluster, which
	// is Cluster; an empty one stands for Options.Cluster.
	SingleCluster bool
	Cluster       string
}

// DefaultProfile is the id of the profile that every instance has and that an
// empty id means.
const DefaultProfile = "default"

// Options are the parts of a service that the backend does not give. The zero
// value is usable.
type Options struct {
	// Profile resolves an app profile, called with "default" for an empty id. It
	// is on the path of every request. NotFound if there is none. Nil knows only
	// "default", which allows everything.
	Profile func(ctx context.Context, instance, id string) (Profile, error)
	// Instance says whether an instance exists: nil, or NotFound. A nil func
	// accepts any.
	Instance func(ctx context.Context, name string) error
	// View resolves an authorized view: its table and what it lets through, or
	// NotFound. It is on the path of every request that names one. A nil func
	// knows none.
	View func(ctx context.Context, name string) (*schema.Table, *view.View, error)
	// SQL answers queries. Nil means that there are none.
	SQL *sql.Service
	// LaxNames accepts any project and instance id, and takes any instance to
	// exist, as the emulator does.
	LaxNames bool
	// Cluster is the id of the cluster that changes come from where the profile does
	// not tell. Empty means "default".
	Cluster string
	// TokenKey returns the secret by which tokens of change streams are known. It is
	// called often. Nil makes one that lasts as long as the service.
	TokenKey func(context.Context) ([]byte, error)
	// MaxChangeStreams bounds the change streams that are read at a time. Zero means
	// 10,000.
	MaxChangeStreams int64
	// Streams is told of change streams; nil: nothing is.
	Streams StreamObserver
	// Budget bounds the memory of large rows on their way to clients.
	Budget *budget.Budget
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
	// Log gets what clients are not told. Nil is slog.Default.
	Log *slog.Logger
}

// A Service answers the data RPCs. Those it does not build answer
// UNIMPLEMENTED.
type Service struct {
	bigtablepb.UnimplementedBigtableServer
	backend  backend.Data
	tables   backend.Tables
	sessions Sessions // nil if there are none
	opt      Options
	now      func() time.Time

	streams atomic.Int64    // that are read
	reading sync.Map        // *streamReader: those that have begun
	drained context.Context // done once they are to end
	drain   context.CancelCauseFunc
}

// New returns a Service over b.
func New(b backend.Backend, o Options) *Service {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Cluster == "" {
		o.Cluster = "default"
	}
	if o.MaxChangeStreams == 0 {
		o.MaxChangeStreams = maxStreams
	}
	if o.TokenKey == nil {
		key := make([]byte, 32)
		rand.Read(key)
		o.TokenKey = func(context.Context) ([]byte, error) { return key, nil }
	}
	if o.Streams == nil {
		o.Streams = noStreamObserver{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Service{backend: b, tables: b, opt: o, now: o.Now}
	s.drained, s.drain = context.WithCancelCause(context.Background())
	return s
}

// Register registers s.
func Register(r grpc.ServiceRegistrar, s *Service) { r.RegisterService(&desc, s) }

// desc is the generated description with the handlers of the RPCs whose
// requests package wire decodes.
var desc = func() grpc.ServiceDesc {
	d := bigtablepb.Bigtable_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	d.Streams = slices.Clone(d.Streams)
	method := func(name string) *grpc.MethodDesc {
		i := slices.IndexFunc(d.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == name })
		return &d.Methods[i]
	}
	stream := func(name string) *grpc.StreamDesc {
		i := slices.IndexFunc(d.Streams, func(m grpc.StreamDesc) bool { return m.StreamName == name })
		return &d.Streams[i]
	}
	method("MutateRow").Handler = unary(bigtablepb.Bigtable_MutateRow_FullMethodName, (*Service).mutateRow)
	method("CheckAndMutateRow").Handler = unary(bigtablepb.Bigtable_CheckAndMutateRow_FullMethodName, (*Service).checkAndMutateRow)
	method("ReadModifyWriteRow").Handler = unary(bigtablepb.Bigtable_ReadModifyWriteRow_FullMethodName, (*Service).readModifyWriteRow)
	stream("ReadRows").Handler = serverStream((*Service).readRows)
	stream("MutateRows").Handler = serverStream((*Service).mutateRows)
	stream("ExecuteQuery").Handler = serverStream((*Service).executeQuery)
	stream("ReadChangeStream").Handler = serverStream((*Service).readChangeStream)
	stream("OpenTable").Handler = openSession("OpenTable", Sessions.OpenTable)
	stream("OpenAuthorizedView").Handler = openSession("OpenAuthorizedView", Sessions.OpenAuthorizedView)
	stream("OpenMaterializedView").Handler = openSession("OpenMaterializedView", Sessions.OpenMaterializedView)
	return d
}()

// access is what a request wants to do.
type access uint8

const (
	read access = iota
	write
	transact // read and write one row atomically
)

// open checks the resource names and the app profile of a request and returns
// what it is about. It does not ask whether the table exists: the backend tells.
func (s *Service) open(ctx context.Context, table, view, materialized, profile string, a access) (target, error) {
	named := 0
	for _, n := range [...]string{table, view, materialized} {
		if n != "" {
			named++
		}
	}
	if named != 1 {
		if a == read {
			return target{}, fault.InvalidField("table_name", "Exactly one of table_name, authorized_view_name and materialized_view_name must be set, but %d are", named)
		}
		return target{}, fault.InvalidField("table_name", "Exactly one of table_name and authorized_view_name must be set, but %d are", named)
	}
	switch {
	case view != "":
		return s.openView(ctx, view, profile, a)
	case materialized != "":
		return s.openMaterialized(ctx, materialized, profile, a)
	}
	instance, err := wire.CheckTable("table_name", table, s.opt.LaxNames)
	if err != nil {
		return target{}, err
	}
	return target{table: table}, s.profile(ctx, instance, profile, a)
}

func (s *Service) profile(ctx context.Context, instance, id string, a access) error {
	if s.opt.Profile == nil {
		if id != "" && id != DefaultProfile {
			return fault.New(fault.NotFound, "App profile not found: %s", id)
		}
		return nil
	}
	if id == "" {
		id = DefaultProfile
	}
	p, err := s.opt.Profile(ctx, instance, id)
	if err != nil {
		return err
	}
	switch {
	case a != read && p.ReadOnly:
		return fault.New(fault.FailedPrecondition, "The app profile %s is for reading only", id)
	case a == transact && !p.Transactions:
		return fault.New(fault.FailedPrecondition, "Single-row transactions are not allowed by this app profile")
	}
	return nil
}
