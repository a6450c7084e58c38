package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/api/option"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trestledb/trestle/conformance/streamcheck"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/sql"
)

func sleepABit() { time.Sleep(10 * time.Millisecond) }

// A sqlFixture is a server with a fakeEngine, and a connection whose streams are
// checked.
type sqlFixture struct {
	*fixture
	engine *fakeEngine
	check  *streamcheck.Checker
	dir    string
	raw    bigtablepb.BigtableClient
	conn   *grpc.ClientConn
}

func newSQLFixture(t testing.TB) *sqlFixture {
	t.Helper()
	return heldSQLFixture(t, time.Minute)
}

// heldSQLFixture has results held for a time.
func heldSQLFixture(t testing.TB, held time.Duration) *sqlFixture {
	t.Helper()
	e := new(fakeEngine)
	f := sqlFixtureOf(t, Options{SQL: sql.Options{Engine: e, Streams: e.streams, Dir: t.TempDir(), HoldFor: held}})
	f.engine = e
	return f
}

// sqlFixtureOf starts a server with options, SQL.Dir being one of them.
func sqlFixtureOf(t testing.TB, o Options) *sqlFixture {
	t.Helper()
	f := &sqlFixture{fixture: newFixture(t, o), check: streamcheck.New(), dir: o.SQL.Dir}
	if n := o.SQL.FirstToken; n > 0 {
		f.check.FirstToken = int(n)
	}
	conn, err := grpc.NewClient(f.addr, append(f.check.Options(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	f.conn, f.raw = conn, bigtablepb.NewBigtableClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		for _, v := range f.check.Violations() {
			t.Error(v)
		}
	})
	return f
}

func (f *sqlFixture) client() *bigtable.Client {
	f.t.Helper()
	c, err := bigtable.NewClientWithConfig(context.Background(), "p", "inst-1",
		bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(f.conn))
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *sqlFixture) prepare(text string, types ...any) (*bigtablepb.PrepareQueryResponse, error) {
	req := &bigtablepb.PrepareQueryRequest{InstanceName: testInstance, Query: text, DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}}
	for i := 0; i < len(types); i += 2 {
		if req.ParamTypes == nil {
			req.ParamTypes = map[string]*bigtablepb.Type{}
		}
		req.ParamTypes[types[i].(string)] = types[i+1].(*bigtablepb.Type)
	}
	return f.raw.PrepareQuery(context.Background(), req)
}

func (f *sqlFixture) mustPrepare(text string, types ...any) []byte {
	f.t.Helper()
	r, err := f.prepare(text, types...)
	if err != nil {
		f.t.Fatal(err)
	}
	return r.GetPreparedQuery()
}

// deprecated sets the fields that the API has deprecated, the text of a query and the
// format of its result, by their names.
func deprecated(req *bigtablepb.ExecuteQueryRequest, text string, format bool) *bigtablepb.ExecuteQueryRequest {
	m := req.ProtoReflect()
	fields := m.Descriptor().Fields()
	m.Set(fields.ByName("query"), protoreflect.ValueOfString(text))
	if format {
		m.Set(fields.ByName("proto_format"), protoreflect.ValueOfMessage(new(bigtablepb.ProtoFormat).ProtoReflect()))
	}
	return req
}

// A result is what a stream gave.
type result struct {
	tokens   [][]byte
	after    []int // rows before each token
	messages int
	values   []*bigtablepb.Value
}

// execute reads a stream to its end, or until stop says so.
func (f *sqlFixture) execute(ctx context.Context, req *bigtablepb.ExecuteQueryRequest, stop func(*result) bool) (*result, error) {
	req.InstanceName = testInstance
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := f.raw.ExecuteQuery(ctx, req)
	if err != nil {
		return nil, err
	}
	r := new(result)
	var batch []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		r.messages++
		p := m.GetResults()
		batch = append(batch, p.GetProtoRowsBatch().GetBatchData()...)
		if p.GetBatchChecksum() != 0 {
			rows := new(bigtablepb.ProtoRows)
			if err := proto.Unmarshal(batch, rows); err != nil {
				return r, err
			}
			r.values = append(r.values, rows.GetValues()...)
			batch = nil
		}
		if p.GetResumeToken() != nil {
			r.tokens = append(r.tokens, p.GetResumeToken())
			r.after = append(r.after, len(r.values)/2)
		}
		if stop != nil && stop(r) {
			return r, nil
		}
	}
}

// numbers checks that a result has the rows [from, to) in order.
func (r *result) numbers(t testing.TB, from, to int) {
	t.Helper()
	if len(r.values) != 2*(to-from) {
		t.Errorf("%d rows, want [%d, %d)", len(r.values)/2, from, to)
		return
	}
	for i := from; i < to; i++ {
		if got := r.values[2*(i-from)].GetIntValue(); got != int64(i) {
			t.Errorf("row %d is %d", i, got)
			return
		}
	}
}

func TestSQLStream(t *testing.T) {
	f, ctx := newSQLFixture(t), t.Context()
	for _, kind := range []string{"numbers", "sorted"} {
		for _, tc := range []struct{ n, width, tokens int }{{0, 1, 1}, {1, 0, 1}, {10, 10, 1}, {100_000, 10, 1}, {6000, 1000, 2}, {30_000, 1000, 10}, {3, 3 << 20, 2}} {
			text := fmt.Sprintf("%s %d %d", kind, tc.n, tc.width)
			q := f.mustPrepare(text)
			all, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			all.numbers(t, 0, tc.n)
			if n := len(all.tokens); n < tc.tokens || tc.tokens == 1 && n != 1 {
				t.Errorf("%s: %d tokens", text, n)
			}
			// Each token that was sent is good for the rest.
			for i, token := range all.tokens {
				rest, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, ResumeToken: token}, nil)
				if err != nil {
					t.Fatalf("%s: resume with token %d: %v", text, i, err)
				}
				rest.numbers(t, all.after[i], tc.n)
			}
		}
	}
	if n := f.engine.opened(); n != 0 {
		t.Errorf("%d queries are not closed", n)
	}
	if streams, tokens := f.check.Seen(); streams < 50 || tokens < 50 {
		t.Errorf("the checker saw %d streams, %d tokens", streams, tokens)
	}
}

// A client that goes away may come back to a sorted result, within a while.
func TestSQLSpool(t *testing.T) {
	const held = 3 * time.Second // longer than a busy machine takes from one read to the next
	f, ctx := heldSQLFixture(t, held), t.Context()
	q := f.mustPrepare("sorted 20000 1000")
	part, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, func(r *result) bool { return len(r.tokens) == 3 })
	if err != nil {
		t.Fatal(err)
	}
	// Once more from each of the tokens, the last of which is still to be computed, and
	// without waiting for the server to notice.
	for i := range part.tokens {
		rest, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, ResumeToken: part.tokens[i]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		rest.numbers(t, part.after[i], 20000)
	}
	// Other parameters, other queries: not with this token.
	other := f.mustPrepare("sorted 20001 1000")
	if _, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: other, ResumeToken: part.tokens[0]}, nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("the token of another query: %v", err)
	}
	if files, err := filepath.Glob(filepath.Join(f.dir, "*")); err != nil || len(files) > 0 {
		t.Errorf("files with names: %v %v", files, err)
	}
	eventually(t, "the spool is gone", func() bool {
		_, err = f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, ResumeToken: part.tokens[0]}, nil)
		if err == nil {
			time.Sleep(held + held/10)
			return false
		}
		return true
	})
	if status.Code(err) != codes.FailedPrecondition || len(status.Convert(err).Details()) != 2 || !strings.Contains(err.Error(), "no longer valid") {
		t.Errorf("%v %v", err, status.Convert(err).Details())
	}
	eventually(t, "the query is closed", func() bool { return f.engine.opened() == 0 })
}

// What goes wrong behind the first row is the server's business as far as it can
// help it.
func TestSQLHiccup(t *testing.T) {
	f, ctx := newSQLFixture(t), t.Context()
	failures := 0
	f.engine.next = func(n int) error {
		if n == 3 && failures < 5 {
			failures++
			return fault.New(fault.Unavailable, "the tablet moved")
		}
		return nil
	}
	r, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: f.mustPrepare("numbers 50000 300")}, nil)
	if err != nil || failures != 5 {
		t.Fatal(err, failures)
	}
	r.numbers(t, 0, 50000)
	// Before the first row the client tries again.
	f.engine.next = func(int) error { return fault.New(fault.Unavailable, "not yet") }
	for _, kind := range []string{"numbers", "sorted"} {
		if _, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: f.mustPrepare(kind + " 5 5")}, nil); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", kind, err)
		}
	}
	// Behind a token it must not.
	f.engine.next = func(n int) error {
		if n == 10 {
			return fault.New(fault.Unavailable, "gone")
		}
		return nil
	}
	r, err = f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: f.mustPrepare("sorted 50000 1000")}, nil)
	if status.Code(err) != codes.Aborted || len(r.tokens) == 0 {
		t.Errorf("%v, %d tokens", err, len(r.tokens))
	}
	f.engine.next = func(n int) error {
		if n == 2 {
			return fault.New(fault.OutOfRange, "division by zero: 1 / 0")
		}
		return nil
	}
	if _, err = f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: f.mustPrepare("numbers 50000 1000")}, nil); status.Code(err) != codes.OutOfRange {
		t.Error(err)
	}
	// A caller that stops waiting meanwhile is not kept.
	f.engine.next = func(n int) error {
		if n == 0 {
			return nil
		}
		return fault.New(fault.Unavailable, "away")
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err = f.execute(short, &bigtablepb.ExecuteQueryRequest{PreparedQuery: f.mustPrepare("numbers 50000 10")}, nil); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	eventually(t, "all queries are closed", func() bool { return f.engine.opened() == 0 })
	f.seen.mu.Lock()
	defer f.seen.mu.Unlock()
	if f.seen.panics > 0 {
		t.Errorf("%d panics", f.seen.panics)
	}
}

// A client that goes, or does not read, holds nothing up.
func TestSQLCancel(t *testing.T) {
	f := newSQLFixture(t)
	for _, kind := range []string{"numbers", "sorted"} {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := f.raw.ExecuteQuery(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: testInstance, PreparedQuery: f.mustPrepare(kind + " 3000 1000")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		cancel()
		eventually(t, kind+": the query is closed", func() bool { return f.engine.opened() == 0 })
	}
}

var int64Type = &bigtablepb.Type{Kind: &bigtablepb.Type_Int64Type{Int64Type: &bigtablepb.Type_Int64{}}}

func TestSQLRefusals(t *testing.T) {
	f, ctx := newSQLFixture(t), t.Context()
	q := f.mustPrepare("params", "a", int64Type, "b", &bigtablepb.Type{Kind: &bigtablepb.Type_ArrayType{ArrayType: &bigtablepb.Type_Array{ElementType: int64Type}}})
	num := func(n int64) *bigtablepb.Value {
		return &bigtablepb.Value{Kind: &bigtablepb.Value_IntValue{IntValue: n}}
	}
	list := func(vs ...*bigtablepb.Value) *bigtablepb.Value {
		return &bigtablepb.Value{Kind: &bigtablepb.Value_ArrayValue{ArrayValue: &bigtablepb.ArrayValue{Values: vs}}}
	}
	type params = map[string]*bigtablepb.Value
	good := params{"A": num(1), "b": list(num(1), new(bigtablepb.Value), num(3))}
	r, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: good}, nil)
	if err != nil || len(r.values) != 2 || r.values[0].GetIntValue() != 1 || len(r.values[1].GetArrayValue().GetValues()) != 3 {
		t.Fatal(r, err)
	}
	token := r.tokens[0]
	typed := func(v *bigtablepb.Value, t *bigtablepb.Type) *bigtablepb.Value {
		v.Type = t
		return v
	}
	altered := append([]byte(nil), q...)
	altered[len(altered)/2] ^= 1
	alteredToken := append([]byte(nil), token...)
	alteredToken[5] ^= 1
	for name, tc := range map[string]struct {
		field string
		req   *bigtablepb.ExecuteQueryRequest
	}{
		"neither":          {"prepared_query", &bigtablepb.ExecuteQueryRequest{}},
		"both":             {"prepared_query", deprecated(&bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, "params", false)},
		"format":           {"data_format", deprecated(&bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: good}, "", true)},
		"missing":          {"params", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: params{"a": num(1)}}},
		"superfluous":      {"params[c]", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: params{"a": num(1), "b": list(), "c": num(1)}}},
		"other type":       {"params[a].type", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: params{"a": typed(num(1), &bigtablepb.Type{Kind: &bigtablepb.Type_BoolType{}}), "b": list()}}},
		"other kind":       {"params[a].string_value", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: params{"a": {Kind: &bigtablepb.Value_StringValue{}}, "b": list()}}},
		"nested type":      {"params[b].array_value.values[1].type", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: params{"a": num(1), "b": list(num(1), typed(num(1), int64Type))}}},
		"nested kind":      {"params[b].array_value.values[0].bool_value", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: params{"a": num(1), "b": list(&bigtablepb.Value{Kind: &bigtablepb.Value_BoolValue{}})}}},
		"garbage":          {"prepared_query", &bigtablepb.ExecuteQueryRequest{PreparedQuery: []byte("garbage"), Params: good}},
		"truncated":        {"prepared_query", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q[:len(q)-1], Params: good}},
		"altered":          {"prepared_query", &bigtablepb.ExecuteQueryRequest{PreparedQuery: altered, Params: good}},
		"garbage token":    {"resume_token", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: good, ResumeToken: []byte("x")}},
		"altered token":    {"resume_token", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: good, ResumeToken: alteredToken}},
		"truncated token":  {"resume_token", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: good, ResumeToken: token[:8]}},
		"other parameters": {"resume_token", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: params{"a": num(2), "b": list()}, ResumeToken: token}},
		"the other token":  {"resume_token", &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: good, ResumeToken: q}},
		"query untyped":    {"params[a]", deprecated(&bigtablepb.ExecuteQueryRequest{Params: params{"a": num(1)}}, "params", false)},
	} {
		_, err := f.execute(ctx, tc.req, nil)
		field := ""
		for _, d := range status.Convert(err).Details() {
			if b, ok := d.(*errdetails.BadRequest); ok {
				field = b.GetFieldViolations()[0].GetField()
			}
		}
		if status.Code(err) != codes.InvalidArgument || field != tc.field {
			t.Errorf("%s: %v, field %q, want %q", name, err, field, tc.field)
		}
	}
	// The token of the end, once more.
	if r, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, Params: good, ResumeToken: token}, nil); err != nil || len(r.values) > 0 || len(r.tokens) != 1 || string(r.tokens[0]) != string(token) || r.messages != 1 {
		t.Errorf("%+v %v", r, err)
	}
	// Of another instance.
	req := &bigtablepb.ExecuteQueryRequest{InstanceName: "projects/p/instances/other", PreparedQuery: q, Params: good}
	s, err := f.raw.ExecuteQuery(ctx, req)
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "another instance") {
		t.Error(err)
	}
	if _, err := f.raw.PrepareQuery(ctx, &bigtablepb.PrepareQueryRequest{InstanceName: testInstance, Query: "nothing"}); err != nil {
		t.Errorf("no format, as Node's client: %v", err)
	}
	for name, req := range map[string]*bigtablepb.PrepareQueryRequest{
		"no query":    {InstanceName: testInstance},
		"bad text":    {InstanceName: testInstance, Query: "SELEC"},
		"struct":      {InstanceName: testInstance, Query: "params", ParamTypes: map[string]*bigtablepb.Type{"a": {Kind: &bigtablepb.Type_StructType{}}}},
		"no type":     {InstanceName: testInstance, Query: "params", ParamTypes: map[string]*bigtablepb.Type{"a": {}}},
		"nested":      {InstanceName: testInstance, Query: "params", ParamTypes: map[string]*bigtablepb.Type{"a": {Kind: &bigtablepb.Type_ArrayType{ArrayType: &bigtablepb.Type_Array{}}}}},
		"no instance": {Query: "params"},
		"long":        {InstanceName: testInstance, Query: "params" + strings.Repeat(" ", 1<<20)},
	} {
		if _, err := f.raw.PrepareQuery(ctx, req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The text of a query can come with each execution, as it once did.
func TestSQLUnprepared(t *testing.T) {
	f, ctx := newSQLFixture(t), t.Context()
	req := deprecated(&bigtablepb.ExecuteQueryRequest{InstanceName: testInstance}, "numbers 6000 1000", true)
	s, err := f.raw.ExecuteQuery(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil || len(m.GetMetadata().GetProtoSchema().GetColumns()) != 2 {
		t.Fatal(m, err)
	}
	if _, err := recvAll(s.Recv); err != nil {
		t.Fatal(err)
	}
	all, err := f.execute(ctx, req, nil)
	if err != nil {
		t.Fatal(err)
	}
	all.numbers(t, 0, 6000)
	req.ResumeToken = all.tokens[0]
	rest, err := f.execute(ctx, req, nil)
	if err != nil {
		t.Fatal(err)
	}
	rest.numbers(t, all.after[0], 6000)
	if n := f.engine.prepared.Load(); n != 1 {
		t.Errorf("analyzed %d times", n)
	}
}

func expiredBy(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if p, ok := d.(*errdetails.PreconditionFailure); ok && p.GetViolations()[0].GetType() == "PREPARED_QUERY_EXPIRED" {
			return status.Code(err) == codes.FailedPrecondition
		}
	}
	return false
}

// A plan lives through changes that do not touch it, and no other.
func TestSQLExpiry(t *testing.T) {
	f, ctx := newSQLFixture(t), t.Context()
	exec := func(q []byte, token ...byte) error {
		_, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, ResumeToken: token}, nil)
		return err
	}
	change := func(fn func(*schema.Table)) {
		t.Helper()
		if _, err := f.stub.UpdateTable(ctx, testTable, func(t *schema.Table) error { fn(t); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	first, err := f.prepare("table t")
	if err != nil {
		t.Fatal(err)
	}
	q := first.GetPreparedQuery()
	var names []string
	for _, c := range first.GetMetadata().GetProtoSchema().GetColumns() {
		names = append(names, fmt.Sprintf("%s %T", c.GetName(), c.GetType().GetMapType().GetValueType().GetKind()))
	}
	if got := strings.Join(names, ", "); got != "_key <nil>, agg *bigtablepb.Type_Int64Type, cf *bigtablepb.Type_BytesType, cf2 *bigtablepb.Type_BytesType" {
		t.Error(got)
	}
	if d := time.Until(first.GetValidUntil().AsTime()); d < 23*time.Hour+59*time.Minute || d > 24*time.Hour {
		t.Errorf("valid for %v", d)
	}
	r, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.prepare("table t")
	if err != nil || string(again.GetPreparedQuery()) != string(q) || f.engine.prepared.Load() != 1 {
		t.Errorf("prepared %d times, %v", f.engine.prepared.Load(), err)
	}
	change(func(t *schema.Table) { t.DeletionProtection = true })
	if err := exec(q); err != nil || f.engine.prepared.Load() != 2 {
		t.Errorf("after a change of something else: %v, prepared %d times", err, f.engine.prepared.Load())
	}
	if err := exec(q); err != nil || f.engine.prepared.Load() != 2 {
		t.Errorf("%v, prepared %d times", err, f.engine.prepared.Load())
	}
	change(func(t *schema.Table) { t.DeletionProtection = false; t.AddFamily(schema.Family{Name: "new"}) })
	if err := exec(q); !expiredBy(err) {
		t.Errorf("after a new family: %v", err)
	}
	// Not for a client that has a token.
	if err := exec(q, r.tokens[0]...); err != nil {
		t.Errorf("with a token: %v", err)
	}
	begun := q
	q = f.mustPrepare("table t")
	if err := exec(q); err != nil {
		t.Fatal(err)
	}
	if err := f.stub.DeleteTable(ctx, testTable); err != nil {
		t.Fatal(err)
	}
	if err := exec(q); !expiredBy(err) {
		t.Errorf("after the table's end: %v", err)
	}
	if err := exec(begun, r.tokens[0]...); expiredBy(err) || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("with a token, after the table's end: %v", err)
	}
	if _, err := f.prepare("table t"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "Table not found: t") {
		t.Error(err)
	}
	if _, err := f.stub.CreateTable(ctx, &schema.Table{Name: testTable, Granularity: 1000, Families: map[string]schema.Family{"agg": {Name: "agg", Aggregate: schema.Sum},
		"cf": {Name: "cf"}, "cf2": {Name: "cf2"}, "new": {Name: "new"}}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := exec(q); !expiredBy(err) {
		t.Errorf("another table of that name: %v", err)
	}
	// The official client prepares again by itself.
	ps, err := f.client().PrepareStatement(ctx, "table t", nil)
	if err != nil {
		t.Fatal(err)
	}
	change(func(t *schema.Table) { t.AddFamily(schema.Family{Name: "newer"}) })
	bs, err := ps.Bind(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := bs.Execute(ctx, func(bigtable.ResultRow) bool { return true }); err != nil {
		t.Error(err)
	}
}

// A prepared query lives for a day, and a resume token of it for longer: its client gets
// the rest.
func TestSQLExpiresInTime(t *testing.T) {
	var ahead atomic.Int64
	e := new(fakeEngine)
	f := sqlFixtureOf(t, Options{SQL: sql.Options{Engine: e, Streams: e.streams, Dir: t.TempDir(),
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}})
	q := f.mustPrepare("numbers 6000 1000")
	all, err := f.execute(t.Context(), &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, hours := range []int64{23, 25, 24 * 365} {
		ahead.Store(hours * int64(time.Hour))
		if _, err := f.execute(t.Context(), &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil); expiredBy(err) != (hours > 24) || hours < 24 && err != nil {
			t.Errorf("after %d hours: %v", hours, err)
		}
		rest, err := f.execute(t.Context(), &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, ResumeToken: all.tokens[0]}, nil)
		if err != nil {
			t.Fatalf("with a token, after %d hours: %v", hours, err)
		}
		rest.numbers(t, all.after[0], 6000)
	}
}

// Tokens are good at any gateway.
func TestSQLOtherGateway(t *testing.T) {
	a, b := newSQLFixture(t), newSQLFixture(t)
	q := a.mustPrepare("numbers 6000 1000")
	all, err := a.execute(t.Context(), &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.check = a.check // knows the columns
	rest, err := b.execute(t.Context(), &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, ResumeToken: all.tokens[0]}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rest.numbers(t, all.after[0], 6000)
}

func TestSQLViewsByName(t *testing.T) {
	f, ctx := newSQLFixture(t), t.Context()
	admin := adminpb.NewBigtableInstanceAdminClient(f.conn)
	create := func(id, q string) error {
		_, err := admin.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: id, LogicalView: &adminpb.LogicalView{Query: q}})
		return err
	}
	if err := errors.Join(create("v", "table t"), create("w", "table v")); err != nil {
		t.Fatal(err)
	}
	q := f.mustPrepare("table w")
	if _, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil); err != nil {
		t.Fatal(err)
	}
	update := func(id, q string) error {
		_, err := admin.UpdateLogicalView(ctx, &adminpb.UpdateLogicalViewRequest{LogicalView: &adminpb.LogicalView{Name: testInstance + "/logicalViews/" + id, Query: q}})
		return err
	}
	if err := update("v", "table w"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "refers to itself") {
		t.Errorf("a cycle: %v", err)
	}
	if err := create("self", "table self"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a view of itself: %v", err)
	}
	if err := update("v", "table  t"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil); !expiredBy(err) {
		t.Errorf("after a change of a view: %v", err)
	}
	last := "w"
	for i := range 20 {
		id := fmt.Sprint("deep", i)
		if err := create(id, "table "+last); err != nil {
			if i < 12 || !strings.Contains(err.Error(), "More than 16") {
				t.Error(i, err)
			}
			return
		}
		last = id
	}
	t.Error("twenty views on top of each other")
}

// Long statements, and the views that statements expand, are analyzed if there is memory.
func TestSQLMemoryOfAnalysis(t *testing.T) {
	memory := budget.New(64 << 20)
	f, ctx := sqlFixtureOf(t, Options{Memory: memory, SQL: sql.Options{Dir: t.TempDir()}}), t.Context()
	list := func(n int) string { return "SELECT [1" + strings.Repeat(",1", n-1) + "] AS a" }
	prepare := func(text string) error {
		_, err := f.prepare(text)
		return err
	}
	unprepared := func(text string) error {
		_, err := f.execute(ctx, deprecated(new(bigtablepb.ExecuteQueryRequest), text, false), nil)
		return err
	}
	create := func(id, text string) error {
		_, err := adminpb.NewBigtableInstanceAdminClient(f.conn).CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: id, LogicalView: &adminpb.LogicalView{Query: text}})
		return err
	}
	materialize := func(text string) error {
		_, err := adminpb.NewBigtableInstanceAdminClient(f.conn).CreateMaterializedView(ctx, &adminpb.CreateMaterializedViewRequest{Parent: testInstance, MaterializedViewId: "m", MaterializedView: &adminpb.MaterializedView{Query: text}})
		return err
	}
	if err := create("v", list(20_000)); err != nil {
		t.Fatal(err)
	}
	views := "SELECT * FROM v" + strings.Repeat(" UNION ALL SELECT * FROM v", 2)
	all := map[string]func() error{
		"prepared":          func() error { return prepare(list(50_000)) },
		"unprepared":        func() error { return unprepared(list(50_001)) },
		"over views":        func() error { return prepare(views) },
		"of a view":         func() error { return create("w", list(50_002)) },
		"of rows of a view": func() error { return materialize(list(50_003)) },
	}
	const others = 48 << 20
	if !memory.Try(others) {
		t.Fatal("no memory for others")
	}
	for what, try := range all {
		err := try()
		if status.Code(err) != codes.ResourceExhausted || detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration() <= 0 {
			t.Errorf("%s without memory: %v", what, err)
		}
	}
	if err := prepare(list(2000)); err != nil {
		t.Errorf("a short one without memory: %v", err)
	}
	memory.Release(others)
	for what, try := range all {
		if err := try(); err != nil && what != "of rows of a view" || status.Code(err) == codes.ResourceExhausted {
			t.Errorf("%s with memory: %v", what, err)
		}
	}
	if err := prepare("SELECT '" + strings.Repeat("鍵", 300_000) + "'"); err != nil {
		t.Errorf("a long literal: %v", err)
	}
	if err := prepare(list(200_000)); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "see --memory") {
		t.Errorf("one that needs more than there is: %v", err)
	}
	for end := time.Now().Add(time.Minute); memory.Used() > 0; sleepABit() {
		if time.Now().After(end) {
			t.Fatalf("%d bytes were not given back", memory.Used())
		}
	}
}

// A value of each type arrives as it is.
func TestSQLValues(t *testing.T) {
	f, ctx := newSQLFixture(t), t.Context()
	st := types.StructOf(types.Field{Name: "a", Type: types.Int64Type}, types.Field{Type: types.StringType}, types.Field{Name: "a", Type: types.ArrayOf(types.BoolType)})
	mp := types.MapOf(types.BytesType, types.ArrayOf(types.StructOf(types.Field{Name: "timestamp", Type: types.TimestampType}, types.Field{Name: "value", Type: types.BytesType})))
	big := strings.Repeat("y", 300)
	for _, tc := range []struct {
		typ  *types.Type
		v    types.Value
		want string
	}{
		{types.Int64Type, types.NewInt(0), "int_value:0"},
		{types.Int64Type, types.NewInt(math.MinInt64), "int_value:-9223372036854775808"},
		{types.BoolType, types.NewBool(false), "bool_value:false"},
		{types.BoolType, types.NewBool(true), "bool_value:true"},
		{types.Float64Type, types.NewFloat(math.NaN()), "float_value:nan"},
		{types.Float64Type, types.NewFloat(math.Inf(-1)), "float_value:-inf"},
		{types.Float32Type, types.NewFloat(1.5), "float_value:1.5"},
		{types.StringType, types.NewString(""), `string_value:""`},
		{types.StringType, types.NewString(big), `string_value:"` + big + `"`},
		{types.BytesType, types.NewString("\x00\xff"), `bytes_value:"\x00\xff"`},
		{types.DateType, types.NewInt(0), "date_value:{year:1970 month:1 day:1}"},
		{types.DateType, types.NewInt(-719162), "date_value:{year:1 month:1 day:1}"},
		{types.DateType, types.NewInt(2932896), "date_value:{year:9999 month:12 day:31}"},
		{types.DateType, types.NewInt(11016), "date_value:{year:2000 month:2 day:29}"},
		{types.TimestampType, types.NewInt(0), "timestamp_value:{}"},
		{types.TimestampType, types.NewInt(-1), "timestamp_value:{seconds:-1 nanos:999999000}"},
		{types.TimestampType, types.NewInt(253402300799999999), "timestamp_value:{seconds:253402300799 nanos:999999000}"},
		{types.ArrayOf(types.Int64Type), types.NewList(nil), "array_value:{}"},
		{types.ArrayOf(types.StringType), types.NewList([]types.Value{types.NewString("a"), types.Null, types.NewString(big)}), `array_value:{values:{string_value:"a"} values:{} values:{string_value:"` + big + `"}}`},
		{st, types.NewList([]types.Value{types.NewInt(-1), types.Null, types.NewList([]types.Value{types.NewBool(true)})}), "array_value:{values:{int_value:-1} values:{} values:{array_value:{values:{bool_value:true}}}}"},
		{mp, types.NewList([]types.Value{types.NewString("k"), types.NewList([]types.Value{types.NewList([]types.Value{types.NewInt(1), types.NewString("v")})})}),
			`array_value:{values:{array_value:{values:{bytes_value:"k"} values:{array_value:{values:{array_value:{values:{timestamp_value:{nanos:1000}} values:{bytes_value:"v"}}}}}}}}`},
	} {
		v := types.NewVector(tc.typ, 2)
		v.Set(0, tc.v)
		v.SetNull(1)
		f.engine.cols = []algebra.OutputColumn{{Type: tc.typ}, {Type: tc.typ}}
		f.engine.values = &types.Batch{Len: 2, Cols: []*types.Vector{v, types.NewConst(tc.typ, tc.v)}}
		r, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: f.mustPrepare("values " + fmt.Sprint(tc.typ) + tc.want)}, nil)
		if err != nil {
			t.Fatal(tc.typ, err)
		}
		squeeze := func(v *bigtablepb.Value) string { return strings.ReplaceAll(fmt.Sprint(v), "  ", " ") }
		if len(r.values) != 4 || squeeze(r.values[0]) != tc.want || squeeze(r.values[1]) != tc.want || squeeze(r.values[2]) != "" || squeeze(r.values[3]) != tc.want {
			t.Errorf("%v: %v, want %s", tc.typ, r.values, tc.want)
		}
	}
}

// Parameters of all types come back as they went, by the official client.
func TestSQLParams(t *testing.T) {
	f, ctx := newSQLFixture(t), t.Context()
	now := time.Now().UTC().Truncate(time.Microsecond)
	ps, err := f.client().PrepareStatement(ctx, "params", map[string]bigtable.SQLType{
		"b": bigtable.BytesSQLType{}, "s": bigtable.StringSQLType{}, "i": bigtable.Int64SQLType{}, "f": bigtable.Float32SQLType{}, "d": bigtable.Float64SQLType{},
		"o": bigtable.BoolSQLType{}, "t": bigtable.TimestampSQLType{}, "l": bigtable.ArraySQLType{ElemType: bigtable.StringSQLType{}}, "n": bigtable.Int64SQLType{},
	})
	if err != nil {
		t.Fatal(err)
	}
	bs, err := ps.Bind(map[string]any{"b": []byte("x\x00"), "s": "é", "i": int64(-7), "f": float32(0.1), "d": 0.1, "o": true, "t": now, "l": []string{"a", ""}, "n": nil})
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	err = bs.Execute(ctx, func(r bigtable.ResultRow) bool {
		rows++
		var (
			b []byte
			s string
			i int64
			g float32
			d float64
			o bool
			u time.Time
			l []string
		)
		for n, dest := range map[string]any{"b": &b, "s": &s, "i": &i, "f": &g, "d": &d, "o": &o, "t": &u, "l": &l} {
			if err := r.GetByName(n, dest); err != nil {
				t.Error(n, err)
			}
		}
		if string(b) != "x\x00" || s != "é" || i != -7 || g != float32(0.1) || d != 0.1 || !o || !u.Equal(now) || len(l) != 2 || l[0] != "a" {
			t.Error(b, s, i, g, d, o, u, l)
		}
		return true
	})
	if err != nil || rows != 1 {
		t.Fatal(rows, err)
	}
}
