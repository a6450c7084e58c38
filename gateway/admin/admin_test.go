package admin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/wire"
)

const (
	testProject  = "projects/p"
	testInstance = "projects/p/instances/inst-one"
	testTable    = testInstance + "/tables/t"
)

// A server is the three services behind a real connection.
type server struct {
	admin *Admin
	b     backend.Backend
	conn  *grpc.ClientConn
	adminpb.BigtableTableAdminClient
	inst adminpb.BigtableInstanceAdminClient
	ops  longrunningpb.OperationsClient
}

func serve(t testing.TB, b backend.Backend, o Options) *server {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	o.Log = log
	gs := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		resp, err := h(ctx, req)
		if err != nil {
			return nil, wire.Status(ctx, log, err).Err()
		}
		return resp, nil
	}))
	s := &server{admin: Register(gs, b, o), b: b}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); gs.Serve(l) }()
	s.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close(); gs.Stop(); <-done })
	s.BigtableTableAdminClient = adminpb.NewBigtableTableAdminClient(s.conn)
	s.inst = adminpb.NewBigtableInstanceAdminClient(s.conn)
	s.ops = longrunningpb.NewOperationsClient(s.conn)
	return s
}

// strict serves a new model with the instance inst-one: cluster-one and
// cluster-two on SSD in zones z1 and z2, and the table t with families f (no
// rule), aged (max_age 1 h) and sum.
func strict(t testing.TB) *server {
	t.Helper()
	s := serve(t, model.New(model.Options{}), Options{})
	s.createInstance(t, "inst-one", "cluster-one", "cluster-two")
	must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t", Table: &adminpb.Table{
		ColumnFamilies: map[string]*adminpb.ColumnFamily{
			"f":    {},
			"aged": {GcRule: maxAge(time.Hour)},
			"sum":  {ValueType: sumType()},
		},
	}}))(t)
	return s
}

func (s *server) createInstance(t testing.TB, id string, clusters ...string) {
	t.Helper()
	req := &adminpb.CreateInstanceRequest{
		Parent: testProject, InstanceId: id, Instance: &adminpb.Instance{DisplayName: "An instance"},
		Clusters: map[string]*adminpb.Cluster{},
	}
	for i, c := range clusters {
		req.Clusters[c] = cluster(i + 1)
	}
	must(s.inst.CreateInstance(t.Context(), req))(t)
}

func cluster(zone int) *adminpb.Cluster {
	return &adminpb.Cluster{Location: "projects/p/locations/z" + string(rune('0'+zone)), ServeNodes: 1, DefaultStorageType: adminpb.StorageType_SSD}
}

// must fails the test on an error, else returns v.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func mask(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

// response unpacks the response of a finished operation and checks the types of
// its parts.
func response[M, R proto.Message](t testing.TB, op *longrunningpb.Operation, metadata M, resp R) R {
	t.Helper()
	if !op.GetDone() || !strings.HasPrefix(op.GetName(), "operations/projects/p/instances/") {
		t.Fatalf("operation is not done, or has a strange name: %v", op)
	}
	for url, m := range map[string]proto.Message{op.GetMetadata().GetTypeUrl(): metadata, op.GetResponse().GetTypeUrl(): resp} {
		if want := "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()); url != want {
			t.Fatalf("type url %s, want %s", url, want)
		}
	}
	if err := errors.Join(op.GetMetadata().UnmarshalTo(metadata), op.GetResponse().UnmarshalTo(resp)); err != nil {
		t.Fatal(err)
	}
	return resp
}

// A refusal is a call that must fail.
type refusal struct {
	name  string
	call  func(context.Context, *server) error
	code  codes.Code
	text  string // part of the message
	field string // of BadRequest; checked with INVALID_ARGUMENT only
}

func checkRefusals(t *testing.T, s *server, rs []refusal) {
	t.Helper()
	for _, r := range rs {
		t.Run(r.name, func(t *testing.T) {
			err := r.call(t.Context(), s)
			st := status.Convert(err)
			if err == nil || st.Code() != r.code || !strings.Contains(st.Message(), r.text) {
				t.Fatalf("got %v: %s\nwant %v: … %s …", st.Code(), st.Message(), r.code, r.text)
			}
			if r.code != codes.InvalidArgument {
				return
			}
			for _, d := range st.Details() {
				if b, ok := d.(*errdetails.BadRequest); ok && len(b.FieldViolations) == 1 {
					if f := b.FieldViolations[0].Field; f != r.field {
						t.Fatalf("field %q, want %q (%s)", f, r.field, st.Message())
					}
					return
				}
			}
			t.Fatalf("no field violation: %v", st)
		})
	}
}

// drop makes a call's result an error alone.
func drop[T any](_ T, err error) error { return err }

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}
