package auth_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/admin"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/sql"
)

// withViews is a fixture over a store that keeps materialized views.
func withViews(t *testing.T) *fixture {
	t.Helper()
	s, err := standalone.Open(t.Context(), standalone.Options{Dir: "d", FS: vfs.NewMem(), NoReserve: true, Views: func(c *client.Client) views.Options {
		return views.Options{Evaluators: gateway.ViewEvaluators(c, 16<<20, t.TempDir())}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return fixtureOver(t, s, auth.Options{})
}

const viewQuery = "SELECT a['q'] AS _key, COUNT(*) AS n FROM t GROUP BY _key"

// TestMaterializedViewRights reads a view by every way as one who may read it and nothing
// else, and as others.
func TestMaterializedViewRights(t *testing.T) {
	f := withViews(t)
	ctx := t.Context()
	root := f.root.token(nil)
	if err := f.set(root, "a", "r1"); err != nil {
		t.Fatal(err)
	}
	definer, reader, other := f.account("definer", false), f.account("some-reader", false), f.account("somebody-else", false)
	view := instance + "/materializedViews/v"
	create := func(tok, id string) error {
		op, err := adminpb.NewBigtableInstanceAdminClient(f.connect(tok)).CreateMaterializedView(ctx, &adminpb.CreateMaterializedViewRequest{
			Parent: instance, MaterializedViewId: id, MaterializedView: &adminpb.MaterializedView{Query: viewQuery}})
		for err == nil && !op.GetDone() {
			op, err = longrunningpb.NewOperationsClient(f.connect(tok)).GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.GetName()})
		}
		return err
	}
	if err := create(other.token(nil), "v"); status.Code(err) != codes.PermissionDenied {
		t.Fatalf("created by one who may not: %v", err)
	}
	f.grant(instance, "roles/bigtable.admin "+definer.member(), "roles/trestle.queryUser "+reader.member(), "roles/trestle.queryUser "+other.member())
	if err := create(definer.token(nil), "v"); err != nil {
		t.Fatal(err)
	}

	// Each way returns the count of the group "v".
	count := func(b []byte) (int, error) {
		if len(b) != 8 {
			return 0, errors.New("no count")
		}
		return int(binary.BigEndian.Uint64(b)), nil
	}
	scan := func(conn *grpc.ClientConn, name string) (int, error) {
		s, err := bigtablepb.NewBigtableClient(conn).ReadRows(ctx, &bigtablepb.ReadRowsRequest{MaterializedViewName: name})
		if err != nil {
			return 0, err
		}
		var value []byte
		for {
			m, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return count(value)
			}
			if err != nil {
				return 0, err
			}
			for _, c := range m.GetChunks() {
				if string(c.GetQualifier().GetValue()) == "n" {
					value = c.GetValue()
				}
			}
		}
	}
	inSession := func(conn *grpc.ClientConn, name string) (int, error) {
		payload, err := proto.Marshal(&bigtablepb.OpenMaterializedViewRequest{MaterializedViewName: name, Permission: bigtablepb.OpenMaterializedViewRequest_PERMISSION_READ})
		if err != nil {
			return 0, err
		}
		stream, err := bigtablepb.NewBigtableClient(conn).OpenMaterializedView(ctx)
		if err != nil {
			return 0, err
		}
		s := &session{t: t, stream: stream}
		if err := stream.Send(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_OpenSession{OpenSession: &bigtablepb.OpenSessionRequest{Payload: payload}}}); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for range 2 {
			if _, err := stream.Recv(); err != nil {
				return 0, err
			}
		}
		_, err, ended := s.call(&bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_MutateRow{MutateRow: &bigtablepb.SessionMutateRowRequest{Key: []byte("v"), Mutations: []*bigtablepb.Mutation{setCell("default")}}}})
		if err == nil && ended == nil {
			return 0, errors.New("the session took a write")
		}
		r, err, ended := s.call(&bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_ReadRow{ReadRow: &bigtablepb.SessionReadRowRequest{Key: []byte("v")}}})
		if err = errors.Join(err, ended); err != nil {
			return 0, err
		}
		for _, fam := range r.GetReadRow().GetRow().GetFamilies() {
			if strings.HasPrefix(fam.GetName(), "~") {
				t.Errorf("a session shows %v", fam)
			}
			for _, c := range fam.GetColumns() {
				if string(c.GetQualifier()) == "n" {
					return count(c.GetCells()[0].GetValue())
				}
			}
		}
		return 0, errors.New("no count in a session")
	}
	bySQL := func(conn *grpc.ClientConn, name string) (int, error) {
		c := bigtablepb.NewBigtableClient(conn)
		p, err := c.PrepareQuery(ctx, &bigtablepb.PrepareQueryRequest{InstanceName: instance, Query: "SELECT n FROM `" + name[strings.LastIndexByte(name, '/')+1:] + "`",
			DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}})
		if err != nil {
			return 0, err
		}
		s, err := c.ExecuteQuery(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: instance, PreparedQuery: p.GetPreparedQuery()})
		if err != nil {
			return 0, err
		}
		m, err := s.Recv()
		if err != nil {
			return 0, err
		}
		rows := new(bigtablepb.ProtoRows)
		if err := proto.Unmarshal(m.GetResults().GetProtoRowsBatch().GetBatchData(), rows); err != nil || len(rows.GetValues()) != 1 {
			return 0, errors.Join(err, errors.New("not one row"))
		}
		return int(rows.GetValues()[0].GetIntValue()), nil
	}
	sample := func(conn *grpc.ClientConn, name string) (int, error) {
		s, err := bigtablepb.NewBigtableClient(conn).SampleRowKeys(ctx, &bigtablepb.SampleRowKeysRequest{MaterializedViewName: name})
		if err == nil {
			_, err = s.Recv()
		}
		return 1, err
	}
	ways := map[string]func(*grpc.ClientConn, string) (int, error){"scan": scan, "session": inSession, "SQL": bySQL, "sample": sample}
	for what, way := range ways {
		// Whether there is such a view is not told.
		for _, name := range []string{view, instance + "/materializedViews/none"} {
			if _, err := way(f.connect(reader.token(nil)), name); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s of %s without grants: %v", what, name, err)
			}
		}
	}
	f.grant(view, "roles/bigtable.reader "+reader.member())
	for what, way := range ways {
		if n, err := way(f.connect(reader.token(nil)), view); err != nil || n != 1 {
			t.Errorf("%s as a reader of the view: %d, %v", what, n, err)
		}
		if _, err := way(f.connect(other.token(nil)), view); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s as another: %v", what, err)
		}
	}
	if _, err := f.read(reader.token(nil), nil); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the source as a reader of the view: %v", err)
	}
	if _, err := bySQL(f.connect(reader.token(nil)), table); status.Code(err) != codes.PermissionDenied {
		t.Errorf("SQL over the source as a reader of the view: %v", err)
	}
	views := adminpb.NewBigtableInstanceAdminClient(f.connect(reader.token(nil)))
	if _, err := views.DeleteMaterializedView(ctx, &adminpb.DeleteMaterializedViewRequest{Name: view}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("deleted by a reader: %v", err)
	}

	// A view goes on with what its definer could read. The definer cannot make another.
	f.grant(instance)
	if err := create(definer.token(nil), "w"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("created by a definer without the permission: %v", err)
	}
	if err := f.set(root, "a", "r2"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		n, err := scan(f.connect(reader.token(nil)), view)
		if n == 2 {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("after the definer has no rights: %d, %v", n, err)
		}
	}
}

// TestUseOfViewsByRights: a statement which a materialized view can answer has the plan of its
// caller, whoever sent the same text before.
func TestUseOfViewsByRights(t *testing.T) {
	f := withViews(t)
	ctx := t.Context()
	op, err := adminpb.NewBigtableInstanceAdminClient(f.connect(f.root.token(nil))).CreateMaterializedView(ctx, &adminpb.CreateMaterializedViewRequest{
		Parent: instance, MaterializedViewId: "v", MaterializedView: &adminpb.MaterializedView{Query: viewQuery}})
	for err == nil && !op.GetDone() {
		op, err = longrunningpb.NewOperationsClient(f.connect(f.root.token(nil))).GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.GetName()})
	}
	if err != nil {
		t.Fatal(err)
	}
	both, one := f.account("reader-of-both", false), f.account("reader-of-one", false)
	f.grant(instance, "roles/trestle.queryUser "+both.member(), "roles/trestle.queryUser "+one.member())
	f.grant(table, "roles/bigtable.reader "+both.member(), "roles/bigtable.reader "+one.member())
	f.grant(instance+"/materializedViews/v", "roles/bigtable.reader "+both.member())
	c := map[*account]bigtablepb.BigtableClient{both: bigtablepb.NewBigtableClient(f.connect(both.token(nil))), one: bigtablepb.NewBigtableClient(f.connect(one.token(nil)))}
	// lines has the plan as text, by a prepared query or by the text of one.
	lines := func(a *account, req *bigtablepb.ExecuteQueryRequest) (string, error) {
		req.InstanceName = instance
		s, err := c[a].ExecuteQuery(ctx, req)
		var out []byte
		for err == nil {
			var m *bigtablepb.ExecuteQueryResponse
			m, err = s.Recv()
			out = append(out, m.GetResults().GetProtoRowsBatch().GetBatchData()...)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return string(out), err
	}
	check := func(who, way string, a *account, req *bigtablepb.ExecuteQueryRequest) {
		t.Helper()
		if got, err := lines(a, req); err != nil || strings.Contains(got, "answered by v") != (a == both) {
			t.Errorf("%s, %s: %q, %v", who, way, got, err)
		}
	}
	const text = "EXPLAIN @{use_materialized_views=true} SELECT a['q'] AS k, COUNT(*) AS n FROM t WHERE a['q'] IS NOT NULL GROUP BY k"
	var tokens [][]byte
	for _, a := range []*account{both, one, both, one} {
		who := "the reader of both"
		if a == one {
			who = "the reader of the table"
		}
		p, err := c[a].PrepareQuery(ctx, &bigtablepb.PrepareQueryRequest{InstanceName: instance, Query: text,
			DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}})
		if err != nil {
			t.Errorf("%s prepares: %v", who, err)
			continue
		}
		tokens = append(tokens, p.GetPreparedQuery())
		check(who, "prepared", a, &bigtablepb.ExecuteQueryRequest{PreparedQuery: p.GetPreparedQuery()})
		req := new(bigtablepb.ExecuteQueryRequest).ProtoReflect()
		req.Set(req.Descriptor().Fields().ByName("query"), protoreflect.ValueOfString(text))
		check(who, "by its text", a, req.Interface().(*bigtablepb.ExecuteQueryRequest))
	}
	// The plan of another is not given to who may not read all of it.
	if _, err := lines(one, &bigtablepb.ExecuteQueryRequest{PreparedQuery: tokens[0]}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the plan of another: %v", err)
	}
}

// TestMaterializedViewPermissions: what each role on a view allows to do with it, and with
// another.
func TestMaterializedViewPermissions(t *testing.T) {
	f := withViews(t)
	ctx := t.Context()
	root := adminpb.NewBigtableInstanceAdminClient(f.connect(f.root.token(nil)))
	name := func(id string) string { return instance + "/materializedViews/" + id }
	create := func(c adminpb.BigtableInstanceAdminClient, id string) error {
		_, err := c.CreateMaterializedView(ctx, &adminpb.CreateMaterializedViewRequest{Parent: instance, MaterializedViewId: id,
			MaterializedView: &adminpb.MaterializedView{Query: viewQuery}})
		return err
	}
	for _, id := range []string{"mine", "another"} {
		if err := create(root, id); err != nil {
			t.Fatal(err)
		}
	}
	calls := map[string]func(conn *grpc.ClientConn, id string) error{
		"get": func(conn *grpc.ClientConn, id string) error {
			_, err := adminpb.NewBigtableInstanceAdminClient(conn).GetMaterializedView(ctx, &adminpb.GetMaterializedViewRequest{Name: name(id)})
			return err
		},
		"update": func(conn *grpc.ClientConn, id string) error {
			_, err := adminpb.NewBigtableInstanceAdminClient(conn).UpdateMaterializedView(ctx, &adminpb.UpdateMaterializedViewRequest{MaterializedView: &adminpb.MaterializedView{Name: name(id)},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"deletion_protection"}}})
			return err
		},
		"getIamPolicy": func(conn *grpc.ClientConn, id string) error {
			_, err := adminpb.NewBigtableInstanceAdminClient(conn).GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: name(id)})
			return err
		},
		"readRows": func(conn *grpc.ClientConn, id string) error {
			s, err := bigtablepb.NewBigtableClient(conn).ReadRows(ctx, &bigtablepb.ReadRowsRequest{MaterializedViewName: name(id)})
			if err == nil {
				if _, err = s.Recv(); errors.Is(err, io.EOF) {
					err = nil
				}
			}
			return err
		},
		"sampleRowKeys": func(conn *grpc.ClientConn, id string) error {
			s, err := bigtablepb.NewBigtableClient(conn).SampleRowKeys(ctx, &bigtablepb.SampleRowKeysRequest{MaterializedViewName: name(id)})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"create": func(conn *grpc.ClientConn, id string) error {
			return create(adminpb.NewBigtableInstanceAdminClient(conn), id+"2")
		},
		"list": func(conn *grpc.ClientConn, _ string) error {
			_, err := adminpb.NewBigtableInstanceAdminClient(conn).ListMaterializedViews(ctx, &adminpb.ListMaterializedViewsRequest{Parent: instance})
			return err
		},
		"delete": func(conn *grpc.ClientConn, id string) error {
			_, err := adminpb.NewBigtableInstanceAdminClient(conn).DeleteMaterializedView(ctx, &adminpb.DeleteMaterializedViewRequest{Name: name(id)})
			return err
		},
	}
	for i, c := range []struct{ role, may string }{
		{"roles/trestle.queryUser", ""},
		{"roles/bigtable.viewer", "get"},
		{"roles/bigtable.reader", "get readRows sampleRowKeys"},
		{"roles/bigtable.user", "get readRows sampleRowKeys"},
		{"roles/bigtable.admin", "get readRows sampleRowKeys update getIamPolicy delete"},
	} {
		a := f.account(fmt.Sprintf("some-account-%d", i), false)
		f.grant(name("mine"), c.role+" "+a.member())
		conn := f.connect(a.token(nil))
		for what, call := range calls {
			want := codes.PermissionDenied
			if slices.Contains(strings.Fields(c.may), what) {
				want = codes.OK
			}
			if err := call(conn, "mine"); status.Code(err) != want {
				t.Errorf("%s of the view with %s: %v", what, c.role, err)
			}
			if what == "delete" && want == codes.OK {
				if err := create(root, "mine"); err != nil {
					t.Fatal(err)
				}
				f.grant(name("mine"), c.role+" "+a.member())
			}
			if err := call(conn, "another"); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s of another view with %s: %v", what, c.role, err)
			}
		}
	}
	// A policy goes with its view: who had rights on the one of before has none on the next.
	a := f.account("some-account-of-before", false)
	f.grant(name("mine"), "roles/bigtable.admin "+a.member())
	conn := f.connect(a.token(nil))
	if err := errors.Join(calls["get"](conn, "mine"), calls["delete"](conn, "mine")); err != nil {
		t.Fatal(err)
	}
	if err := create(root, "mine"); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"get", "readRows", "delete"} {
		if err := calls[what](conn, "mine"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s of a view that was made anew: %v", what, err)
		}
	}
}

// TestMaterializedViewFamilies: the query of a view may name the families that its definer
// may read.
func TestMaterializedViewFamilies(t *testing.T) {
	f := newFixture(t, auth.Options{})
	definer := f.account("definer", false)
	a := admin.New(f.b, admin.Options{})
	defer a.Close()
	b := f.a.Guard(f.b)
	svc := sql.New(sql.Options{Tables: b, Resources: a, Engine: query.New(b, query.Options{As: f.a.As}), As: f.a.As, ReadView: f.a.ReadView, Principal: auth.Member, MAC: a.MAC})
	defer svc.Close()
	compile := func(q string) error {
		info := &tap.Info{FullMethodName: adminpb.BigtableInstanceAdmin_CreateMaterializedView_FullMethodName, Header: metadata.MD{"authorization": {"Bearer " + f.root.token(nil)}}}
		ctx, err := f.a.Tap(t.Context(), info)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.a.Unary(ctx, &adminpb.CreateMaterializedViewRequest{Parent: instance}, &grpc.UnaryServerInfo{FullMethod: info.FullMethodName},
			func(ctx context.Context, _ any) (any, error) {
				return svc.CompileView(ctx, instance, definer.member(), q)
			})
		return err
	}
	const ofB = "SELECT _key, MAX(b['q']) AS m FROM t GROUP BY _key"
	if err := compile(viewQuery); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("no rights: %v", err)
	}
	f.grant(table, "roles/bigtable.reader "+definer.member()+` resource.family == "a"`)
	if err := compile(viewQuery); err != nil {
		t.Errorf("a family that may be read: %v", err)
	}
	if err := compile(ofB); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "b") {
		t.Errorf("a family that may not be read: %v", err)
	}
	f.grant(table, "roles/bigtable.reader "+definer.member())
	if err := compile(ofB); err != nil {
		t.Errorf("a table that may be read: %v", err)
	}
}

// measured is a backend that measures its tablets' load.
type measured struct{ backend.Backend }

func (measured) HotTablets(context.Context, string) ([]backend.HotTablet, error) {
	return []backend.HotTablet{{Table: table, Rows: row.All, CPUFraction: 0.5, From: time.Now().Add(-time.Minute), To: time.Now()}}, nil
}

// TestHotTablets lists them with login.
func TestHotTablets(t *testing.T) {
	f := fixtureOver(t, measured{model.New(model.Options{})}, auth.Options{})
	acc := f.account("some-acc", false)
	list := func() (int, error) {
		r, err := adminpb.NewBigtableInstanceAdminClient(f.connect(acc.token(nil))).ListHotTablets(t.Context(), &adminpb.ListHotTabletsRequest{Parent: instance + "/clusters/cl-1"})
		return len(r.GetHotTablets()), err
	}
	if _, err := list(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("without grants: %v", err)
	}
	f.grant(instance, "roles/bigtable.viewer "+acc.member())
	if n, err := list(); n != 1 || err != nil {
		t.Errorf("%d hot tablets, %v", n, err)
	}
	if _, err := f.a.Guard(model.New(model.Options{})).(backend.HotTabletLister).HotTablets(t.Context(), instance); fault.KindOf(err) != fault.Unimplemented {
		t.Errorf("a backend that does not measure: %v", err)
	}
}
