package gateway

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/logtest"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

const (
	testInstance = "projects/p/instances/inst-1"
	testTable    = testInstance + "/tables/t"
)

// A stub is the model with hooks in front of it.
type stub struct {
	backend.Backend
	backend.ChangeStreamer
	readRows  func(context.Context, *scan.Request, scan.Writer) (scan.Stats, error)
	mutateRow func(context.Context, string, *row.Entry) error
}

func (s *stub) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	if s.readRows != nil {
		return s.readRows(ctx, req, w)
	}
	return s.Backend.ReadRows(ctx, req, w)
}

func (s *stub) MutateRow(ctx context.Context, table string, e *row.Entry) error {
	if s.mutateRow != nil {
		return s.mutateRow(ctx, table, e)
	}
	return s.Backend.MutateRow(ctx, table, e)
}

// A fixture is a server over TCP with a connection to it.
type fixture struct {
	t      testing.TB
	server *Server
	stub   *stub
	addr   string
	conn   *grpc.ClientConn
	raw    bigtablepb.BigtableClient
	seen   *recorder
	log    *logtest.Buffer
	ahead  *atomic.Int64 // nanoseconds by which the store's clock is ahead
}

// strict makes a fixture outside emulator mode.
const strict = true

// newFixture starts a server with one table, "t", of families cf, cf2 and the
// sums agg.
func newFixture(t testing.TB, o Options, mode ...bool) *fixture {
	t.Helper()
	f := &fixture{t: t, stub: &stub{}, seen: &recorder{}, log: &logtest.Buffer{}, ahead: new(atomic.Int64)}
	m := model.New(model.Options{Now: func() time.Time { return time.Now().Add(time.Duration(f.ahead.Load())) }})
	f.stub.Backend, f.stub.ChangeStreamer = m, m
	families := map[string]schema.Family{}
	for _, n := range []string{"cf", "cf2"} {
		families[n] = schema.Family{Name: n}
	}
	families["agg"] = schema.Family{Name: "agg", Aggregate: schema.Sum}
	if _, err := f.stub.CreateTable(context.Background(), &schema.Table{Name: testTable, Families: families, Granularity: 1000}, [][]byte{[]byte("m")}); err != nil {
		t.Fatal(err)
	}
	o.Log = slog.New(slog.NewTextHandler(f.log, nil))
	o.Observer = f.seen
	o.GRPCGo = o.GRPCGo || byGRPCGo
	o.Emulator = len(mode) == 0 // no instance was created
	var err error
	if f.server, err = New(f.stub, o); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(l) }()
	f.conn = f.dial()
	f.raw = bigtablepb.NewBigtableClient(f.conn)
	t.Cleanup(func() {
		_ = f.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := f.server.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return f
}

func (f *fixture) dial() *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<28), grpc.MaxCallSendMsgSize(1<<28)))
	if err != nil {
		f.t.Fatal(err)
	}
	return conn
}

// table is the table as the official client sees it.
func (f *fixture) table() *bigtable.Table {
	f.t.Helper()
	c, err := bigtable.NewClientWithConfig(context.Background(), "p", "inst-1",
		bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(f.conn))
	if err != nil {
		f.t.Fatal(err)
	}
	return c.Open("t")
}

// A recorder is an Observer that remembers.
type recorder struct {
	mu       sync.Mutex
	started  int
	panics   int
	records  []*request.Record
	codes    map[string][]codes.Code
	received int64
	sent     int64
	open     atomic.Int64 // sessions
}

func (r *recorder) SessionOpened() { r.open.Add(1) }
func (r *recorder) SessionClosed() { r.open.Add(-1) }

func (r *recorder) RPCStarted(*request.Record) { r.mu.Lock(); r.started++; r.mu.Unlock() }
func (r *recorder) Panicked(string)            { r.mu.Lock(); r.panics++; r.mu.Unlock() }
func (r *recorder) RPCDone(of *request.Record, code codes.Code, _ time.Duration, received, sent int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.codes == nil {
		r.codes = map[string][]codes.Code{}
	}
	r.codes[of.Method] = append(r.codes[of.Method], code)
	r.records = append(r.records, of)
	r.received += received
	r.sent += sent
}

func recvAll[T any](recv func() (T, error)) ([]T, error) {
	var out []T
	for {
		m, err := recv()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}
