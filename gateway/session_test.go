package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/leaktest"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/session"
)

const testView = testTable + "/authorizedViews/v"

// newSessionFixture is newFixture with sessions, and so with an instance.
func newSessionFixture(t testing.TB, o Options) *fixture {
	t.Helper()
	f := newFixture(t, o, strict)
	if _, err := adminpb.NewBigtableInstanceAdminClient(f.conn).CreateInstance(t.Context(), &adminpb.CreateInstanceRequest{Parent: "projects/p", InstanceId: "inst-1",
		Instance: &adminpb.Instance{DisplayName: "An instance"},
		Clusters: map[string]*adminpb.Cluster{"clus-1": {Location: "projects/p/locations/zone-a", ServeNodes: 1}}}); err != nil {
		t.Fatal(err)
	}
	return f
}

// A rawSession is a session of which every frame is the test's business.
type rawSession struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[bigtablepb.SessionRequest, bigtablepb.SessionResponse]
	last   int64
	beats  int
}

func openFrame(payload proto.Message) *bigtablepb.SessionRequest {
	b, err := proto.Marshal(payload)
	if err != nil {
		panic(err)
	}
	return &bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_OpenSession{OpenSession: &bigtablepb.OpenSessionRequest{ProtocolVersion: 1, Payload: b}}}
}

const readWrite = bigtablepb.OpenTableRequest_PERMISSION_READ_WRITE

// openTable opens a session, which must come to be with headers and parameters.
func (f *fixture) openTable(req *bigtablepb.OpenTableRequest) *rawSession {
	f.t.Helper()
	s, err := f.tryTable(f.t.Context(), openFrame(req))
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func (f *fixture) tryTable(ctx context.Context, first *bigtablepb.SessionRequest) (*rawSession, error) {
	stream, err := f.raw.OpenTable(ctx)
	if err != nil {
		return nil, err
	}
	return f.opened(stream, first)
}

func (f *fixture) opened(stream grpc.BidiStreamingClient[bigtablepb.SessionRequest, bigtablepb.SessionResponse], first *bigtablepb.SessionRequest) (*rawSession, error) {
	f.t.Helper()
	if err := stream.Send(first); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	m, err := stream.Recv()
	// Of a refusal, too.
	if md, err := stream.Header(); err != nil || len(md.Get("bigtable-peer-info")) != 1 {
		f.t.Errorf("headers %v, %v", md, err)
	}
	if err != nil {
		return nil, err
	}
	if m.GetOpenSession().GetBackend().GetApplicationFrontendId() == 0 {
		f.t.Errorf("opened with %v", m)
	}
	if m, err = stream.Recv(); err != nil || m.GetSessionParameters().GetKeepAlive().AsDuration() <= 0 {
		f.t.Errorf("parameters %v, %v", m, err)
	}
	return &rawSession{t: f.t, stream: stream}, nil
}

func readPayload(key string, filter *bigtablepb.RowFilter) proto.Message {
	return &bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_ReadRow{ReadRow: &bigtablepb.SessionReadRowRequest{Key: []byte(key), Filter: filter}}}
}

func mutatePayload(key string, muts ...*bigtablepb.Mutation) proto.Message {
	return &bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_MutateRow{MutateRow: &bigtablepb.SessionMutateRowRequest{Key: []byte(key), Mutations: muts}}}
}

// send sends a call and returns its id.
func (s *rawSession) send(payload proto.Message, change ...func(*bigtablepb.VirtualRpcRequest)) int64 {
	s.t.Helper()
	b, err := proto.Marshal(payload)
	if err != nil {
		s.t.Fatal(err)
	}
	s.last++
	v := &bigtablepb.VirtualRpcRequest{RpcId: s.last, Payload: b}
	for _, c := range change {
		c(v)
	}
	if err := s.stream.Send(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_VirtualRpc{VirtualRpc: v}}); err != nil {
		s.t.Fatalf("send: %v", err)
	}
	return v.RpcId
}

// recv returns the next frame that is no heartbeat.
func (s *rawSession) recv() (*bigtablepb.SessionResponse, error) {
	for {
		m, err := s.stream.Recv()
		if err != nil || m.GetHeartbeat() == nil {
			return m, err
		}
		s.beats++
	}
}

// answer returns the outcome of call id, which must be the next.
func (s *rawSession) answer(id int64) (*bigtablepb.TableResponse, error) {
	s.t.Helper()
	m, err := s.recv()
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	got, out, err := s.outcome(m)
	if got != id {
		s.t.Fatalf("answer %v to call %d", m, id)
	}
	return out, err
}

func (s *rawSession) outcome(m *bigtablepb.SessionResponse) (int64, *bigtablepb.TableResponse, error) {
	s.t.Helper()
	if e := m.GetError(); e != nil {
		st := status.FromProto(e.GetStatus())
		if e.RetryInfo != nil {
			st, _ = st.WithDetails(e.RetryInfo)
		}
		return e.RpcId, nil, st.Err()
	}
	v := m.GetVirtualRpc()
	if v.GetClusterInfo().GetClusterId() != "clus-1" || v.GetClusterInfo().GetZoneId() != "zone-a" || v.GetStats().GetBackendLatency() == nil {
		s.t.Errorf("answer %v", v)
	}
	out := new(bigtablepb.TableResponse)
	if err := proto.Unmarshal(v.GetPayload(), out); err != nil {
		s.t.Error(err)
	}
	return v.GetRpcId(), out, nil
}

func (s *rawSession) call(payload proto.Message, change ...func(*bigtablepb.VirtualRpcRequest)) (*bigtablepb.TableResponse, error) {
	s.t.Helper()
	return s.answer(s.send(payload, change...))
}

// close closes the session, which must end well.
func (s *rawSession) close() {
	s.t.Helper()
	if err := s.stream.Send(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_CloseSession{CloseSession: &bigtablepb.CloseSessionRequest{}}}); err != nil {
		s.t.Error(err)
	}
	if m, err := s.recv(); !errors.Is(err, io.EOF) {
		s.t.Errorf("end of the session: %v, %v", m, err)
	}
}

func cell(family, qualifier string, ts int64, value []byte) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
		FamilyName: family, ColumnQualifier: []byte(qualifier), TimestampMicros: ts, Value: value}}}
}

func withTimeout(d time.Duration) func(*bigtablepb.VirtualRpcRequest) {
	return func(v *bigtablepb.VirtualRpcRequest) { v.Deadline = durationpb.New(d) }
}

// The official client uses sessions without being told to.
func TestSessionOfficialClient(t *testing.T) {
	f := newSessionFixture(t, Options{})
	c, err := bigtable.NewClientWithConfig(t.Context(), "p", "inst-1", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}},
		option.WithEndpoint(f.addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tbl := c.OpenTable("t")
	seen := func(method string) int {
		f.seen.mu.Lock()
		defer f.seen.mu.Unlock()
		return len(f.seen.codes[method])
	}
	big := bytes.Repeat([]byte("x"), 300_000)
	// Until the client has its configuration it makes plain calls.
	for deadline := time.Now().Add(time.Minute); seen(session.MethodMutateRow) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the client opens no session")
		}
		mut := bigtable.NewMutation()
		mut.Set("cf", "a", 1000, []byte("one"))
		mut.Set("cf", "b", 2000, nil)
		mut.Set("cf2", "", 3000, big)
		if err := tbl.Apply(t.Context(), "row1", mut); err != nil {
			t.Fatal(err)
		}
	}
	r, err := tbl.ReadRow(t.Context(), "row1")
	if err != nil || len(r["cf"]) != 2 || string(r["cf"][0].Value) != "one" || !bytes.Equal(r["cf2"][0].Value, big) {
		t.Fatalf("read %v, %v", r, err)
	}
	if r, err := tbl.ReadRow(t.Context(), "row1", bigtable.RowFilter(bigtable.FamilyFilter("cf"))); err != nil || len(r) != 1 {
		t.Fatalf("filtered %v, %v", r, err)
	}
	if r, err := tbl.ReadRow(t.Context(), "absent"); err != nil || r != nil {
		t.Fatalf("absent row: %v, %v", r, err)
	}
	mut := bigtable.NewMutation()
	mut.Set("nope", "a", 1000, nil)
	if err := tbl.Apply(t.Context(), "row1", mut); status.Code(err) != codes.NotFound {
		t.Errorf("unknown family: %v", err)
	}
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			for i := range 20 {
				key := fmt.Sprintf("w%d-%d", w, i)
				mut := bigtable.NewMutation()
				mut.Set("cf", "a", 1000, []byte(key))
				if err := tbl.Apply(t.Context(), key, mut); err != nil {
					t.Errorf("apply %s: %v", key, err)
				} else if r, err := tbl.ReadRow(t.Context(), key); err != nil || len(r["cf"]) != 1 || string(r["cf"][0].Value) != key {
					t.Errorf("read %s: %v, %v", key, r, err)
				}
			}
		})
	}
	wg.Wait()
	if n := seen(session.MethodReadRow); n < 640 {
		t.Errorf("%d reads in sessions", n)
	}
}

// What is refused since it is not built, or since there are no sessions, has the
// header that clients demand too.
func TestSessionPeerOfRefusals(t *testing.T) {
	for name, o := range map[string]Options{"on": {}, "off": {NoSessions: true}} {
		f := newFixture(t, o, strict)
		for _, method := range []string{bigtablepb.Bigtable_OpenTable_FullMethodName, bigtablepb.Bigtable_OpenAuthorizedView_FullMethodName,
			bigtablepb.Bigtable_OpenMaterializedView_FullMethodName} {
			stream, err := f.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			err = stream.RecvMsg(new(bigtablepb.SessionResponse))
			if md, _ := stream.Header(); err == nil || len(md.Get("bigtable-peer-info")) != 1 {
				t.Errorf("sessions %s, %s: %v with headers %v", name, method, err, md)
			}
		}
	}
}

// Who knows sessions is told to use them.
func TestSessionConfiguration(t *testing.T) {
	f := newSessionFixture(t, Options{})
	for _, sessions := range []bool{false, true} {
		b, err := proto.Marshal(&bigtablepb.FeatureFlags{ReverseScans: true, SessionsCompatible: sessions})
		if err != nil {
			t.Fatal(err)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), "bigtable-features", encodeFeatures(b))
		c, err := f.raw.GetClientConfiguration(ctx, &bigtablepb.GetClientConfigurationRequest{InstanceName: testInstance})
		if err != nil {
			t.Fatal(err)
		}
		// Of a table that is not there, a call waits for the next failure of a
		// session, which is that long; and sessions are tried for ever.
		if p := c.GetSessionConfiguration().GetSessionPoolConfiguration(); sessions {
			penalty, most := p.GetNewSessionCreationPenalty().AsDuration(), p.GetNewSessionCreationBudget()
			if penalty > 250*time.Millisecond || float64(most)/penalty.Seconds() > 50 || most < p.GetConsecutiveSessionFailureThreshold() {
				t.Errorf("%d sessions in %v, and calls fail with %d", most, penalty, p.GetConsecutiveSessionFailureThreshold())
			}
		}
		load := c.GetSessionConfiguration().GetSessionLoad()
		if sessions != (load == 1) || sessions == c.GetStopPolling() || sessions != (c.GetPollingConfiguration().GetPollingInterval().AsDuration() >= time.Minute) {
			t.Errorf("compatible %v: %v", sessions, c)
		}
	}
}

// What a session reads is what ReadRows reads, whatever the row.
func TestSessionRows(t *testing.T) {
	f := newSessionFixture(t, Options{})
	s := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	defer s.close()
	tbl := f.table()
	value := func(n int) []byte { return bytes.Repeat([]byte("v"), n) }
	long := strings.Repeat("q", 200)
	rows := map[string][]*bigtablepb.Mutation{
		"one":   {cell("cf", "a", 1000, []byte("x"))},
		"zero":  {cell("cf", "", 0, nil)},
		"many":  nil,
		"large": {cell("cf", "a", 1000, value(127)), cell("cf", "b", 1000, value(16_500)), cell("cf2", "a", 5000, value(300_000)), cell("cf2", "b", 1000, value(3_000_000))},
		"edge":  nil,
	}
	for i := range 300 {
		rows["many"] = append(rows["many"], cell([]string{"cf", "cf2"}[i%2], fmt.Sprintf("%s%d", long[:i%200], i%7), int64(i)*1000, value(i)))
	}
	for i := range 140 { // lengths around where they take another byte
		rows["edge"] = append(rows["edge"], cell("cf", fmt.Sprintf("%03d", i), 1000, value(i)))
		rows["edge"] = append(rows["edge"], cell("cf2", fmt.Sprintf("%03d", i), 0, value(16_384-70+i)))
	}
	for key, muts := range rows {
		if out, err := s.call(mutatePayload(key, muts...)); err != nil || out.GetMutateRow() == nil {
			t.Fatalf("mutate %s: %v, %v", key, out, err)
		}
		for filter, p := range map[bigtable.Filter]*bigtablepb.RowFilter{
			bigtable.PassAllFilter():           nil,
			bigtable.LatestNFilter(1):          {Filter: &bigtablepb.RowFilter_CellsPerColumnLimitFilter{CellsPerColumnLimitFilter: 1}},
			bigtable.CellsPerRowLimitFilter(1): {Filter: &bigtablepb.RowFilter_CellsPerRowLimitFilter{CellsPerRowLimitFilter: 1}},
			bigtable.FamilyFilter("cf2"):       familyFilter("cf2"),
			bigtable.LabelFilter("l"):          {Filter: &bigtablepb.RowFilter_ApplyLabelTransformer{ApplyLabelTransformer: "l"}},
			bigtable.BlockAllFilter():          {Filter: &bigtablepb.RowFilter_BlockAllFilter{BlockAllFilter: true}},
		} {
			opts := []bigtable.ReadOption{bigtable.RowFilter(filter)}
			want, err := tbl.ReadRow(t.Context(), key, opts...)
			if err != nil {
				t.Fatal(err)
			}
			out, err := s.call(readPayload(key, p))
			if err != nil || out.GetReadRow() == nil {
				t.Fatalf("read %s: %v, %v", key, out, err)
			}
			got := out.GetReadRow().GetRow()
			st := out.GetReadRow().GetStats().GetFullReadStatsView()
			if n := st.GetReadIterationStats().GetCellsReturnedCount(); n != int64(len(itemsOf(got))) || st.GetRequestLatencyStats().GetFrontendServerLatency().AsDuration() <= 0 {
				t.Errorf("row %s, filter %v: stats %v", key, filter, st)
			}
			if len(want) == 0 {
				if got != nil {
					t.Errorf("%s, %v: %v instead of nothing", key, filter, got)
				}
				continue
			}
			if string(got.GetKey()) != key {
				t.Errorf("key %q of row %s", got.GetKey(), key)
			}
			if !slices.EqualFunc(itemsOf(got), clientItems(want), func(a, b bigtable.ReadItem) bool {
				return a.Column == b.Column && a.Timestamp == b.Timestamp && bytes.Equal(a.Value, b.Value) && slices.Equal(a.Labels, b.Labels)
			}) {
				t.Errorf("row %s, filter %v: not what ReadRows gives", key, filter)
			}
		}
	}
}

func itemsOf(r *bigtablepb.Row) (out []bigtable.ReadItem) {
	for _, f := range r.GetFamilies() {
		for _, c := range f.GetColumns() {
			for _, cell := range c.GetCells() {
				out = append(out, bigtable.ReadItem{Column: f.Name + ":" + string(c.Qualifier), Timestamp: bigtable.Timestamp(cell.TimestampMicros), Value: cell.Value, Labels: cell.Labels})
			}
		}
	}
	return out
}

func clientItems(r bigtable.Row) []bigtable.ReadItem {
	return slices.Concat(r["cf"], r["cf2"])
}

// Errors have the codes and details of the same call made by itself.
func TestSessionErrors(t *testing.T) {
	f := newSessionFixture(t, Options{})
	s := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	defer s.close()
	f.stub.mutateRow = func(ctx context.Context, table string, e *row.Entry) error {
		switch string(e.Key) {
		case "again":
			return fault.New(fault.Unavailable, "again")
		case "later":
			return &fault.Error{Kind: fault.Exhausted, RetryAfter: 3 * time.Second, Msg: "full"}
		case "panic":
			panic("a row that is not to be written")
		}
		return f.stub.Backend.MutateRow(ctx, table, e)
	}
	sink := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Sink{}}
	ok := cell("cf", "a", 1000, nil)
	for _, c := range []struct {
		name    string
		payload proto.Message
		change  func(*bigtablepb.VirtualRpcRequest)
		code    codes.Code
		text    string
		retry   time.Duration
	}{
		{"empty key", readPayload("", nil), nil, codes.InvalidArgument, "Row keys must be non-empty", 0},
		{"filter", readPayload("k", sink), nil, codes.InvalidArgument, "sink must be true", 0},
		{"no mutation", mutatePayload("k"), nil, codes.InvalidArgument, "No mutations provided", 0},
		{"timestamp", mutatePayload("k", cell("cf", "a", -2, nil)), nil, codes.InvalidArgument, "Timestamps must be", 0},
		{"unknown family", mutatePayload("k", cell("nope", "a", 1000, nil)), nil, codes.NotFound, "", 0},
		{"no payload", &bigtablepb.TableRequest{}, nil, codes.InvalidArgument, "holds no request", 0},
		{"malformed", readPayload("k", nil), func(v *bigtablepb.VirtualRpcRequest) { v.Payload = []byte{0x0a, 0x7f, 1} }, codes.InvalidArgument, "no request of this kind", 0},
		{"too late", mutatePayload("k", ok), withTimeout(-time.Second), codes.DeadlineExceeded, "", 0},
		{"unavailable", mutatePayload("again", ok), nil, codes.Unavailable, "", 10 * time.Millisecond},
		{"third attempt", mutatePayload("again", ok), func(v *bigtablepb.VirtualRpcRequest) {
			v.Metadata = &bigtablepb.VirtualRpcRequest_Metadata{AttemptNumber: 3}
		}, codes.Unavailable, "", 40 * time.Millisecond},
		{"exhausted", mutatePayload("later", ok), nil, codes.ResourceExhausted, "full", 3 * time.Second},
		{"panic", mutatePayload("panic", ok), nil, codes.Internal, "error id", 0},
		{"after all that", mutatePayload("k", ok), nil, codes.OK, "", 0},
	} {
		var change []func(*bigtablepb.VirtualRpcRequest)
		if c.change != nil {
			change = append(change, c.change)
		}
		_, err := s.call(c.payload, change...)
		if st := status.Convert(err); st.Code() != c.code || !strings.Contains(st.Message(), c.text) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if err != nil && c.code != codes.DeadlineExceeded && detail[*errdetails.ErrorInfo](err).GetReason() == "" {
			t.Errorf("%s: no ErrorInfo", c.name)
		}
		if got := detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration(); got != c.retry {
			t.Errorf("%s: retry after %v, want %v", c.name, got, c.retry)
		}
	}
	if f.seen.panics != 1 || !strings.Contains(f.log.String(), "handler panicked") {
		t.Errorf("%d panics, log %s", f.seen.panics, f.log)
	}
}

// What cannot be opened fails as the same request would.
func TestSessionOpenErrors(t *testing.T) {
	f := newSessionFixture(t, Options{Session: session.Options{MaxSessions: 3, MaxPerConnection: 2}})
	table := func(name, profile string, p bigtablepb.OpenTableRequest_Permission) *bigtablepb.SessionRequest {
		return openFrame(&bigtablepb.OpenTableRequest{TableName: name, AppProfileId: profile, Permission: p})
	}
	if _, err := adminpb.NewBigtableInstanceAdminClient(f.conn).CreateAppProfile(t.Context(), &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: "boost", IgnoreWarnings: true,
		AppProfile: &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{ClusterId: "clus-1"}},
			Isolation: &adminpb.AppProfile_DataBoostIsolationReadOnly_{DataBoostIsolationReadOnly: &adminpb.AppProfile_DataBoostIsolationReadOnly{
				ComputeBillingOwner: adminpb.AppProfile_DataBoostIsolationReadOnly_HOST_PAYS.Enum()}}}}); err != nil {
		t.Fatal(err)
	}
	call := &bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_VirtualRpc{VirtualRpc: &bigtablepb.VirtualRpcRequest{RpcId: 1}}}
	for _, c := range []struct {
		name  string
		first *bigtablepb.SessionRequest
		code  codes.Code
		text  string
	}{
		{"no table", table(testTable+"x", "", readWrite), codes.NotFound, ""},
		{"no instance", table("projects/p/instances/inst-2/tables/t", "", readWrite), codes.NotFound, "Instance not found"},
		{"bad name", table("t", "", readWrite), codes.InvalidArgument, "Table name expected"},
		{"no name", table("", "", readWrite), codes.InvalidArgument, ""},
		{"no profile", table(testTable, "nope", readWrite), codes.NotFound, "App profile not found: nope"},
		{"read-only profile", table(testTable, "boost", readWrite), codes.FailedPrecondition, "reading only"},
		{"no permission", table(testTable, "", 0), codes.InvalidArgument, "permission"},
		{"call first", call, codes.InvalidArgument, "begins with open_session"},
		{"nothing first", &bigtablepb.SessionRequest{}, codes.InvalidArgument, "begins with open_session"},
		{"malformed", &bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_OpenSession{OpenSession: &bigtablepb.OpenSessionRequest{Payload: []byte{0x0a, 0xff}}}}, codes.InvalidArgument, "no SessionRequest"},
	} {
		if _, err := f.tryTable(t.Context(), c.first); status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	if _, err := f.tryTable(t.Context(), table(testTable, "boost", bigtablepb.OpenTableRequest_PERMISSION_READ)); err != nil {
		t.Error(err)
	}
	f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	_, err := f.tryTable(t.Context(), table(testTable, "", readWrite))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "on this connection") || detail[*errdetails.RetryInfo](err) == nil {
		t.Errorf("third of a connection: %v", err)
	}
	other := f.dial()
	defer other.Close()
	g := *f
	g.raw = bigtablepb.NewBigtableClient(other)
	g.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	if _, err := g.tryTable(t.Context(), table(testTable, "", readWrite)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("fourth of all: %v", err)
	}
}

// A session of one permission is for nothing else.
func TestSessionPermission(t *testing.T) {
	f := newSessionFixture(t, Options{})
	r := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: bigtablepb.OpenTableRequest_PERMISSION_READ})
	w := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: bigtablepb.OpenTableRequest_PERMISSION_WRITE})
	if _, err := r.call(mutatePayload("k", cell("cf", "a", 0, nil))); status.Code(err) != codes.PermissionDenied {
		t.Errorf("write in a session for reading: %v", err)
	}
	if _, err := w.call(readPayload("k", nil)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("read in a session for writing: %v", err)
	}
	if _, err := w.call(mutatePayload("k", cell("cf", "a", 0, nil))); err != nil {
		t.Error(err)
	}
	if out, err := r.call(readPayload("k", nil)); err != nil || out.GetReadRow().GetRow() == nil {
		t.Errorf("got %v, %v", out, err)
	}
	r.close()
	w.close()
}

// An authorized view shows in a session what it shows elsewhere, and what it is
// at the time of the call.
func TestSessionAuthorizedView(t *testing.T) {
	f := newSessionFixture(t, Options{})
	f.view("v", &adminpb.AuthorizedView_SubsetView{RowPrefixes: bytesOf("a"), FamilySubsets: subsets{"cf": {Qualifiers: bytesOf("q")}}})
	tbl := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	if _, err := tbl.call(mutatePayload("a1", cell("cf", "q", 0, []byte("seen")), cell("cf", "r", 0, nil), cell("cf2", "q", 0, nil))); err != nil {
		t.Fatal(err)
	}
	if _, err := tbl.call(mutatePayload("b1", cell("cf", "q", 0, nil))); err != nil {
		t.Fatal(err)
	}
	stream, err := f.raw.OpenAuthorizedView(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.opened(stream, openFrame(&bigtablepb.OpenAuthorizedViewRequest{AuthorizedViewName: testView, Permission: bigtablepb.OpenAuthorizedViewRequest_PERMISSION_READ_WRITE}))
	if err != nil {
		t.Fatal(err)
	}
	other := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_FamilyNameRegexFilter{FamilyNameRegexFilter: "cf2"}}
	if _, err := s.call(readPayload("a1", other)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("filter outside of the view: %v", err)
	}
	if out, err := s.call(readPayload("a1", nil)); err != nil || len(itemsOf(out.GetReadRow().GetRow())) != 1 {
		t.Errorf("got %v, %v", out, err)
	}
	if out, err := s.call(readPayload("b1", nil)); err != nil || out.GetReadRow().GetRow() != nil {
		t.Errorf("row outside of the view: %v, %v", out, err)
	}
	for _, m := range []proto.Message{mutatePayload("b1", cell("cf", "q", 0, nil)), mutatePayload("a1", cell("cf", "r", 0, nil)), mutatePayload("a1", cell("cf2", "q", 0, nil))} {
		if _, err := s.call(m); status.Code(err) != codes.PermissionDenied {
			t.Errorf("write outside of the view: %v", err)
		}
	}
	if _, err := s.call(mutatePayload("a1", cell("cf", "q", 0, nil))); err != nil {
		t.Error(err)
	}
	if _, err := adminpb.NewBigtableTableAdminClient(f.conn).DeleteAuthorizedView(t.Context(), &adminpb.DeleteAuthorizedViewRequest{Name: testView}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.call(readPayload("a1", nil)); status.Code(err) != codes.NotFound {
		t.Errorf("read of a view that is gone: %v", err)
	}
	s.close()
	stream, err = f.raw.OpenAuthorizedView(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.opened(stream, openFrame(&bigtablepb.OpenAuthorizedViewRequest{AuthorizedViewName: testView, Permission: bigtablepb.OpenAuthorizedViewRequest_PERMISSION_READ})); status.Code(err) != codes.NotFound {
		t.Errorf("open of a view that is gone: %v", err)
	}
}

// Calls of a client that does not wait are made at the same time, each answered
// when it is done, up to a number; those beyond wait.
func TestSessionPipeline(t *testing.T) {
	f := newSessionFixture(t, Options{Session: session.Options{MaxInFlight: 8}})
	s := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	var running, most atomic.Int64
	f.stub.mutateRow = func(context.Context, string, *row.Entry) error {
		n := running.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(10 * time.Millisecond)
		running.Add(-1)
		return nil
	}
	const n = 40
	for i := range n {
		s.send(mutatePayload(fmt.Sprintf("k%d", i), cell("cf", "a", 0, nil)))
	}
	got := map[int64]bool{}
	for range n {
		m, err := s.recv()
		if err != nil {
			t.Fatal(err)
		}
		id, _, err := s.outcome(m)
		if err != nil || got[id] {
			t.Errorf("call %d: %v", id, err)
		}
		got[id] = true
	}
	// How many there are depends on when it is seen that the client does not wait.
	if m := most.Load(); m > 8 {
		t.Errorf("%d calls at a time, more than MaxInFlight", m)
	} else {
		t.Logf("up to %d calls at a time", m)
	}
	f.stub.mutateRow = nil
	for i := range n {
		s.send(readPayload(fmt.Sprintf("k%d", i), nil))
		s.send(mutatePayload("other", cell("cf", "a", 0, nil)))
	}
	for range 2 * n {
		if _, err := s.recv(); err != nil {
			t.Fatal(err)
		}
	}
	s.close()
}

// Heartbeats come while a call takes its time, and the deadline ends it.
func TestSessionHeartbeatAndDeadline(t *testing.T) {
	const keepAlive, limit = 100 * time.Millisecond, 200 * time.Millisecond
	f := newSessionFixture(t, Options{Session: session.Options{KeepAlive: keepAlive}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := f.tryTable(ctx, openFrame(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite}))
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	wait := func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.stub.readRows = func(ctx context.Context, _ *scan.Request, _ scan.Writer) (scan.Stats, error) {
		return scan.Stats{}, wait(ctx)
	}
	f.stub.mutateRow = func(ctx context.Context, _ string, _ *row.Entry) error { return wait(ctx) }
	for _, m := range []proto.Message{readPayload("k", nil), mutatePayload("k", cell("cf", "a", 0, nil))} {
		id := s.send(m)
		// On a busy machine one that comes in time may take some.
		var last time.Time
		for {
			if m, err := s.stream.Recv(); err != nil || m.GetHeartbeat() == nil {
				t.Fatalf("instead of a heartbeat: %v, %v", m, err)
			}
			before := last
			if last = time.Now(); last.Sub(before) < keepAlive {
				break
			}
		}
		release <- struct{}{}
		if _, err := s.answer(id); err != nil {
			t.Error(err)
		}
		start := time.Now()
		_, err := s.call(m, withTimeout(limit))
		if d := time.Since(start); status.Code(err) != codes.DeadlineExceeded || d < limit {
			t.Errorf("after %v: %v", d, err)
		}
	}
	s.close()
}

// A client that goes away takes its calls with it.
func TestSessionCancel(t *testing.T) {
	f := newSessionFixture(t, Options{})
	began, ended := make(chan struct{}, 2), make(chan error, 2)
	f.stub.readRows = func(ctx context.Context, _ *scan.Request, _ scan.Writer) (scan.Stats, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return scan.Stats{}, ctx.Err()
	}
	f.stub.mutateRow = func(ctx context.Context, _ string, _ *row.Entry) error {
		began <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	for _, m := range []proto.Message{readPayload("k", nil), mutatePayload("k", cell("cf", "a", 0, nil))} {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := f.tryTable(ctx, openFrame(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite}))
		if err != nil {
			t.Fatal(err)
		}
		s.send(m)
		select {
		case <-began:
		case <-time.After(time.Minute):
			t.Fatal("the call does not begin")
		}
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the call goes on without its client")
		}
	}
}

// An old session and one of a server that stops are told to go away: what was
// admitted is answered, what comes later is refused and may be made again.
func TestSessionGoAway(t *testing.T) {
	var s *rawSession
	var first int64
	var m *bigtablepb.SessionResponse
	var err error
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	for age := time.Second; ; age *= 2 {
		f := newSessionFixture(t, Options{Session: session.Options{MaxAge: age, Quiet: time.Minute}})
		f.stub.mutateRow = func(ctx context.Context, table string, e *row.Entry) error {
			<-hold
			return f.stub.Backend.MutateRow(ctx, table, e)
		}
		s = f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
		first = s.send(mutatePayload("k", cell("cf", "a", 0, nil)))
		// On a busy machine a session may be old before it has a call.
		if m, err = s.recv(); err != nil || m.GetGoAway() == nil || m.GetGoAway().GetLastRpcIdAdmitted() != 0 || age > 20*time.Second {
			break
		}
	}
	if err != nil || m.GetGoAway() == nil || m.GetGoAway().GetLastRpcIdAdmitted() != first || m.GetGoAway().GetReason() == "" {
		t.Fatalf("got %v, %v", m, err)
	}
	late := s.send(readPayload("k", nil))
	release()
	if _, err := s.answer(first); err != nil {
		t.Errorf("admitted call: %v", err)
	}
	if _, err := s.answer(late); status.Code(err) != codes.Unavailable || detail[*errdetails.RetryInfo](err) == nil {
		t.Errorf("call after the end: %v", err)
	}
	s.close()

	// One that does not close is ended.
	f := newSessionFixture(t, Options{Session: session.Options{MaxAge: time.Second, Quiet: 200 * time.Millisecond}})
	s = f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	if m, err := s.recv(); err != nil || m.GetGoAway() == nil {
		t.Fatalf("got %v, %v", m, err)
	}
	if m, err := s.recv(); err == nil {
		t.Fatalf("got %v", m)
	}
}

func TestSessionDrain(t *testing.T) {
	f := newSessionFixture(t, Options{Session: session.Options{Quiet: 300 * time.Millisecond}})
	polite := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite}) // and one that does not listen
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stopped <- f.server.Stop(ctx)
	}()
	if m, err := polite.recv(); err != nil || m.GetGoAway() == nil {
		t.Fatalf("got %v, %v", m, err)
	}
	polite.close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Ids increase; what else a session may not be sent ends it, and nothing else.
func TestSessionProtocol(t *testing.T) {
	f := newSessionFixture(t, Options{})
	id := func(n int64) *bigtablepb.SessionRequest {
		b, _ := proto.Marshal(readPayload("k", nil))
		return &bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_VirtualRpc{VirtualRpc: &bigtablepb.VirtualRpcRequest{RpcId: n, Payload: b}}}
	}
	open := openFrame(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	unknown := &bigtablepb.SessionRequest{}
	unknown.ProtoReflect().SetUnknown([]byte{3<<3 | 2, 2, 0x0a, 0x7f})
	for name, frames := range map[string][]*bigtablepb.SessionRequest{
		"twice": {id(7), id(7)}, "backwards": {id(7), id(6)}, "opened again": {open}, "nothing": {{}}, "malformed": {unknown},
	} {
		s, err := f.tryTable(t.Context(), open)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range frames {
			if err := s.stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		for err == nil {
			_, err = s.recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	if _, err := s.call(readPayload("k", nil)); err != nil {
		t.Error(err)
	}
	if err := s.stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := s.recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the client's end: %v", err)
	}
}

func encodeFeatures(b []byte) string { return base64.URLEncoding.EncodeToString(b) }

func familyFilter(name string) *bigtablepb.RowFilter {
	return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_FamilyNameRegexFilter{FamilyNameRegexFilter: name}}
}

// Clients that flood, that do not read, that send nothing or nonsense, get what
// they ask for or an error; others notice nothing, and no goroutine stays.
func TestSessionAbuse(t *testing.T) {
	f := newSessionFixture(t, Options{Session: session.Options{KeepAlive: 200 * time.Millisecond}})
	open := openFrame(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	warm := f.openTable(&bigtablepb.OpenTableRequest{TableName: testTable, Permission: readWrite})
	if _, err := warm.call(mutatePayload("big", cell("cf", "a", 1000, bytes.Repeat([]byte("x"), 300_000)))); err != nil {
		t.Fatal(err)
	}
	defer leaktest.None(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	deaf, err := f.tryTable(ctx, open)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		deaf.send(readPayload("big", nil))
	}
	for range 20 { // half open
		if _, err := f.raw.OpenTable(ctx); err != nil {
			t.Fatal(err)
		}
	}
	flood, err := f.tryTable(ctx, open)
	if err != nil {
		t.Fatal(err)
	}
	const n = 3000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			switch i % 4 {
			case 0:
				flood.send(readPayload(fmt.Sprintf("k%d", i%100), nil))
			case 1:
				flood.send(mutatePayload(fmt.Sprintf("k%d", i%100), cell("cf", "a", 0, []byte("v"))))
			case 2:
				flood.send(readPayload("k", nil), func(v *bigtablepb.VirtualRpcRequest) { v.Payload = bytes.Repeat([]byte{byte(i)}, i%50) })
			case 3:
				flood.send(mutatePayload("k", cell("cf", "a", -7, nil)), withTimeout(time.Duration(i)*time.Microsecond))
			}
		}
	})
	seen := map[int64]bool{}
	for range n {
		m, err := flood.recv()
		if err != nil {
			t.Fatal(err)
		}
		id, _, err := flood.outcome(m)
		if seen[id] {
			t.Errorf("two answers to call %d", id)
		}
		seen[id] = true
		if code := status.Code(err); code != codes.OK && code != codes.InvalidArgument && code != codes.DeadlineExceeded {
			t.Errorf("call %d: %v", id, err)
		}
	}
	wg.Wait()
	if out, err := warm.call(readPayload("big", nil)); err != nil || out.GetReadRow().GetRow() == nil {
		t.Errorf("meanwhile: %v", err)
	}
	flood.close()
	cancel()
	// Their handlers end some time after their clients are gone.
	for deadline := time.Now().Add(time.Minute); f.seen.open.Load() > 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions are still open", f.seen.open.Load())
		}
	}
}
