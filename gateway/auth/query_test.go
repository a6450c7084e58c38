package auth_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/backend"
)

// families notes the families of what it is given.
type families struct{ seen map[string]bool }

func (w *families) StartRow([]byte)       {}
func (w *families) Cell(c *row.Cell)      { w.seen[c.Family] = true }
func (w *families) EndRow() (bool, error) { return false, nil }
func (w *families) Scanned([]byte)        {}
func (w *families) Flush() error          { return nil }

// TestQuery does what a query does with tables: it looks at their schemas and
// reads them, whatever they are called.
func TestQuery(t *testing.T) {
	f := newFixture(t, auth.Options{})
	f.createTable("u")
	root := f.root.token(nil)
	for _, fam := range []string{"a", "b", "c"} {
		if err := f.set(root, fam, "r"); err != nil {
			t.Fatal(err)
		}
	}
	acc := f.account("some-acc", false)
	b := f.a.Guard(f.b)
	query := func(tbl string) (schema, seen string, err error) {
		info := &tap.Info{FullMethodName: bigtablepb.Bigtable_ExecuteQuery_FullMethodName,
			Header: metadata.MD{"authorization": {"Bearer " + acc.token(nil)}}}
		ctx, err := f.a.Tap(t.Context(), info)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.a.Unary(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: instance}, &grpc.UnaryServerInfo{FullMethod: info.FullMethodName},
			func(ctx context.Context, _ any) (any, error) {
				tb, err := b.Table(ctx, tbl)
				if err != nil {
					return nil, err
				}
				schema = strings.Join(slices.Sorted(maps.Keys(tb.Families)), " ")
				w := &families{map[string]bool{}}
				_, err = b.ReadRows(ctx, &scan.Request{Table: tbl, Ranges: []row.Range{{}}}, w)
				seen = strings.Join(slices.Sorted(maps.Keys(w.seen)), " ")
				return nil, err
			})
		return schema, seen, err
	}
	if _, _, err := query(table); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("without grants: %v", err)
	}
	// executeQuery alone shows no table, there or not.
	f.grant(project, "roles/bigtable.reader "+acc.member()+` resource.family == "zzz"`)
	f.grant(instance, "roles/bigtable.reader "+f.root.member())
	if _, _, err := query(table); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("without executeQuery: %v", err)
	}
	f.grant(project)
	f.grant(instance, "roles/bigtable.reader "+acc.member())
	if schema, seen, err := query(table); err != nil || schema != "a b c" || seen != "a b c" {
		t.Errorf("reader of the instance: %q %q %v", schema, seen, err)
	}
	if _, _, err := query(project + "/instances/inst-2/tables/t"); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("a table of another instance: %v", err)
	}
}

// TestQueryRights holds what a query does with tables to what its caller may do,
// and what a view of it does to what the view's definer may.
func TestQueryRights(t *testing.T) {
	f := newFixture(t, auth.Options{})
	f.createTable("u")
	acc, definer := f.account("some-acc", false), f.account("definer", false)
	b := f.a.Guard(f.b)
	as := func(claims map[string]any, do func(ctx context.Context) error) error {
		info := &tap.Info{FullMethodName: bigtablepb.Bigtable_ExecuteQuery_FullMethodName,
			Header: metadata.MD{"authorization": {"Bearer " + acc.token(claims)}}}
		ctx, err := f.a.Tap(t.Context(), info)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.a.Unary(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: instance}, &grpc.UnaryServerInfo{FullMethod: info.FullMethodName},
			func(ctx context.Context, _ any) (any, error) { return nil, do(ctx) })
		return err
	}
	other := instance + "/tables/u"
	names := func(ctx context.Context) string {
		ts, err := b.ListTables(ctx, instance)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, tb := range ts {
			out = append(out, tb.Name[strings.LastIndexByte(tb.Name, '/')+1:])
		}
		return strings.Join(out, " ")
	}
	f.grant(instance, "roles/bigtable.reader "+acc.member())
	write := func(ctx context.Context) error {
		return b.MutateRows(ctx, table, []row.Entry{{Key: []byte("k"), Mutations: []row.Mutation{{Op: row.SetCell, Family: "a", Timestamp: 1000}}}}, func(_ int, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	sample := func(ctx context.Context) error {
		return b.SampleRowKeys(ctx, table, row.Range{}, func(scan.Sample) error { return nil })
	}
	if err := as(nil, func(ctx context.Context) error {
		if got := names(ctx); got != "t u" {
			t.Errorf("lists %q", got)
		}
		if err := write(ctx); fault.KindOf(err) != fault.PermissionDenied {
			t.Errorf("writes: %v", err)
		}
		return sample(ctx)
	}); err != nil {
		t.Error(err)
	}
	f.grant(table, "roles/bigtable.user "+acc.member())
	if err := as(nil, write); err != nil {
		t.Error(err)
	}
	if err := as(map[string]any{"scope": scopePrefix + "bigtable.data.readonly"}, write); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("writes with a token for reading: %v", err)
	}
	// With the rights of a definer that may read one table.
	f.grant(other, "roles/bigtable.reader "+definer.member())
	if err := as(nil, func(ctx context.Context) error {
		ctx, err := f.a.As(ctx, definer.member())
		if err != nil {
			return err
		}
		if got := names(ctx); got != "u" {
			t.Errorf("the definer sees %q", got)
		}
		if _, err := b.Table(ctx, table); fault.KindOf(err) != fault.PermissionDenied {
			t.Errorf("a table that the caller may read and the definer may not: %v", err)
		}
		if err := sample(ctx); fault.KindOf(err) != fault.PermissionDenied {
			t.Error(err)
		}
		if err := write(ctx); fault.KindOf(err) != fault.PermissionDenied {
			t.Errorf("writes as the definer: %v", err)
		}
		_, err = b.Table(ctx, other)
		return err
	}); err != nil {
		t.Error(err)
	}
	// Root's views read everything, those of nobody nothing.
	if err := as(nil, func(ctx context.Context) error {
		ctx, err := f.a.As(ctx, f.root.member())
		if err == nil {
			_, err = b.Table(ctx, other)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := as(nil, func(ctx context.Context) error {
		_, err := f.a.As(ctx, "serviceAccount:gone@p.iam.trestle.internal")
		return err
	}); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("a definer that is gone: %v", err)
	}
	// Views are granted by name.
	view := instance + "/logicalViews/v"
	if err := as(nil, func(ctx context.Context) error { return f.a.ReadView(ctx, view) }); err != nil {
		t.Error(err)
	}
	f.grant(instance, "roles/bigtable.reader "+f.root.member())
	f.grant(project, "roles/bigtable.admin "+f.root.member())
	if err := as(nil, func(ctx context.Context) error { return f.a.ReadView(ctx, view) }); fault.KindOf(err) != fault.PermissionDenied {
		t.Error(err)
	}
	if got := auth.Member(t.Context()); got != "" {
		t.Errorf("work of no caller is that of %q", got)
	}
}

// TestViewRights queries tables through logical views of others.
func TestViewRights(t *testing.T) {
	f := newFixture(t, auth.Options{})
	root := f.root.token(nil)
	for _, fam := range []string{"a", "b"} {
		if err := f.set(root, fam, "r"); err != nil {
			t.Fatal(err)
		}
	}
	acc, definer := f.account("some-acc", false), f.account("definer", false)
	view := instance + "/logicalViews/v"
	create := func(tok, id, query string) error {
		_, err := adminpb.NewBigtableInstanceAdminClient(f.connect(tok)).CreateLogicalView(t.Context(), &adminpb.CreateLogicalViewRequest{
			Parent: instance, LogicalViewId: id, LogicalView: &adminpb.LogicalView{Query: query}})
		return err
	}
	query := func(tok, text string) (string, error) {
		c := bigtablepb.NewBigtableClient(f.connect(tok))
		p, err := c.PrepareQuery(t.Context(), &bigtablepb.PrepareQueryRequest{InstanceName: instance, Query: text,
			DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}})
		if err != nil {
			return "", err
		}
		s, err := c.ExecuteQuery(t.Context(), &bigtablepb.ExecuteQueryRequest{InstanceName: instance, PreparedQuery: p.GetPreparedQuery()})
		if err != nil {
			return "", err
		}
		m, err := s.Recv()
		if err != nil {
			return "", err
		}
		rows := new(bigtablepb.ProtoRows)
		if err := proto.Unmarshal(m.GetResults().GetProtoRowsBatch().GetBatchData(), rows); err != nil {
			return "", err
		}
		var out []string
		for _, v := range rows.GetValues() {
			out = append(out, string(v.GetBytesValue()))
		}
		return strings.Join(out, " "), nil
	}
	// The definer may read family a only, and make views.
	f.grant(project, "roles/bigtable.admin "+f.root.member())
	f.grant(instance, "roles/trestle.queryUser "+acc.member(), "roles/bigtable.admin "+definer.member())
	if err := create(definer.token(nil), "v", "SELECT _key AS k, a['q'] AS v FROM t"); err != nil {
		t.Fatal(err)
	}
	if _, err := query(acc.token(nil), "SELECT * FROM v"); grpcCode(err) != "PermissionDenied" {
		t.Errorf("without the view: %v", err)
	}
	if _, err := query(acc.token(nil), "SELECT * FROM nothing"); grpcCode(err) != "PermissionDenied" {
		t.Errorf("what is not there: %v", err)
	}
	f.grant(view, "roles/bigtable.reader "+acc.member())
	if got, err := query(acc.token(nil), "SELECT * FROM v"); err != nil || got != "r v" {
		t.Errorf("through the view: %q %v", got, err)
	}
	if _, err := query(acc.token(nil), "SELECT * FROM t"); grpcCode(err) != "PermissionDenied" {
		t.Errorf("the table itself: %v", err)
	}
	if _, err := query(acc.token(nil), "SELECT * FROM v, t"); grpcCode(err) != "PermissionDenied" {
		t.Errorf("the table beside the view: %v", err)
	}
	// Nor does a view let its definer read more than it may.
	f.grant(instance, "roles/trestle.queryUser "+acc.member(), "roles/trestle.queryUser "+definer.member())
	if _, err := query(acc.token(nil), "SELECT * FROM v"); grpcCode(err) != "PermissionDenied" {
		t.Errorf("through the view of a definer without rights: %v", err)
	}
	// Families count as for rows.
	f.grant(instance, "roles/bigtable.reader "+definer.member(), "roles/trestle.queryUser "+acc.member())
	f.grant(table)
	if got, err := query(definer.token(nil), "SELECT a['q'], b['q'] FROM t"); err != nil || got != "v v" {
		t.Errorf("%q %v", got, err)
	}
	f.grant(instance, "roles/trestle.queryUser "+acc.member())
	f.grant(table, `roles/bigtable.reader `+acc.member()+` resource.family == "a"`)
	if got, err := query(acc.token(nil), "SELECT * FROM t"); err != nil || got != "r " {
		t.Errorf("some families: %q %v", got, err)
	}
	if _, err := query(acc.token(nil), "SELECT b['q'] FROM t"); grpcCode(err) != "InvalidArgument" {
		t.Errorf("a family that may not be read: %v", err)
	}
	if _, err := query(acc.token(nil), "DELETE FROM t WHERE TRUE"); grpcCode(err) != "PermissionDenied" {
		t.Errorf("writes: %v", err)
	}
}

// TestViewElsewhere executes on one gateway what another has prepared: a caller that may
// read a view, and not the tables behind it, may do so there too.
func TestViewElsewhere(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc, definer := f.account("some-acc", false), f.account("definer", false)
	f.grant(project, "roles/bigtable.admin "+f.root.member())
	f.grant(instance, "roles/trestle.queryUser "+acc.member(), "roles/bigtable.admin "+definer.member())
	_, err := adminpb.NewBigtableInstanceAdminClient(f.connect(definer.token(nil))).CreateLogicalView(t.Context(), &adminpb.CreateLogicalViewRequest{
		Parent: instance, LogicalViewId: "v", LogicalView: &adminpb.LogicalView{Query: "SELECT _key AS k FROM t"}})
	if err != nil {
		t.Fatal(err)
	}
	f.grant(instance+"/logicalViews/v", "roles/bigtable.reader "+acc.member())
	p, err := bigtablepb.NewBigtableClient(f.connect(acc.token(nil))).PrepareQuery(t.Context(), &bigtablepb.PrepareQueryRequest{InstanceName: instance,
		Query: "SELECT * FROM v", DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := gateway.New(f.b, gateway.Options{Auth: f.a, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- other.Serve(l) }()
	defer func() {
		_ = other.Stop(t.Context())
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	f.addr = l.Addr().String()
	s, err := bigtablepb.NewBigtableClient(f.connect(acc.token(nil))).ExecuteQuery(t.Context(), &bigtablepb.ExecuteQueryRequest{InstanceName: instance,
		PreparedQuery: p.GetPreparedQuery()})
	if err == nil {
		_, err = s.Recv()
	}
	if err != nil {
		t.Error(err)
	}
}

// TestResumeOfAnother resumes a query with the token of somebody else, who may read the
// same: what is kept of a result is for its caller.
func TestResumeOfAnother(t *testing.T) {
	f := newFixture(t, auth.Options{})
	a, b := f.account("some-acc", false), f.account("other-acc", false)
	f.grant(instance, "roles/bigtable.reader "+a.member(), "roles/bigtable.reader "+b.member())
	p, err := bigtablepb.NewBigtableClient(f.connect(a.token(nil))).PrepareQuery(t.Context(), &bigtablepb.PrepareQueryRequest{InstanceName: instance,
		Query: "SELECT _key FROM t", DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}})
	if err != nil {
		t.Fatal(err)
	}
	execute := func(acc *account, token []byte) ([]byte, error) {
		s, err := bigtablepb.NewBigtableClient(f.connect(acc.token(nil))).ExecuteQuery(t.Context(), &bigtablepb.ExecuteQueryRequest{InstanceName: instance,
			PreparedQuery: p.GetPreparedQuery(), ResumeToken: token})
		if err != nil {
			return nil, err
		}
		m, err := s.Recv()
		return m.GetResults().GetResumeToken(), err
	}
	token, err := execute(a, nil)
	if err != nil || token == nil {
		t.Fatal(token, err)
	}
	if _, err := execute(a, token); err != nil {
		t.Errorf("its own token: %v", err)
	}
	if _, err := execute(b, nil); err != nil {
		t.Errorf("the prepared query of another: %v", err)
	}
	if _, err := execute(b, token); grpcCode(err) != "InvalidArgument" {
		t.Errorf("the token of another: %v", err)
	}
}

func grpcCode(err error) string { return status.Code(err).String() }

// endless is a Backend whose tables have no end. Each row takes some time.
type endless struct{ backend.Backend }

func (endless) ReadRows(ctx context.Context, _ *scan.Request, w scan.Writer) (scan.Stats, error) {
	value := make([]byte, 256<<10)
	for i := 0; ctx.Err() == nil; i++ {
		w.StartRow(fmt.Appendf(nil, "%09d", i))
		w.Cell(&row.Cell{Family: "a", Qualifier: []byte("q"), Timestamp: 1000, Value: value})
		full, err := w.EndRow()
		if err == nil && full {
			err = w.Flush()
		}
		if err != nil {
			return scan.Stats{}, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return scan.Stats{}, ctx.Err()
}

// TestQueryEnds takes from a query that runs one of the permissions that it has used.
func TestQueryEnds(t *testing.T) {
	f := fixtureOver(t, endless{model.New(model.Options{})}, auth.Options{})
	acc, definer := f.account("some-acc", false), f.account("definer", false)
	f.grant(project, "roles/bigtable.admin "+f.root.member())
	f.grant(instance, "roles/bigtable.admin "+definer.member())
	cases := []struct{ name, taken, left string }{
		{"table", instance + "/tables/t0", ""},
		{"family", instance + "/tables/t1", "roles/bigtable.reader " + acc.member() + ` resource.family == "b"`},
		{"view", instance + "/logicalViews/v2", ""},
		{"definer", instance + "/tables/t3", ""},
	}
	for i, c := range cases {
		id := strconv.Itoa(i)
		f.createTable("t" + id)
		_, err := adminpb.NewBigtableInstanceAdminClient(f.connect(definer.token(nil))).CreateLogicalView(t.Context(), &adminpb.CreateLogicalViewRequest{
			Parent: instance, LogicalViewId: "v" + id, LogicalView: &adminpb.LogicalView{Query: "SELECT _key, a FROM t" + id}})
		if err != nil {
			t.Fatal(c.name, err)
		}
	}
	f.grant(instance, "roles/trestle.queryUser "+acc.member())
	for i, c := range cases {
		id := strconv.Itoa(i)
		from := "t" + id
		if c.name == "view" || c.name == "definer" {
			f.grant(instance+"/tables/"+from, "roles/bigtable.reader "+definer.member())
			from = "v" + id
			f.grant(instance+"/logicalViews/"+from, "roles/bigtable.reader "+acc.member())
		} else {
			f.grant(instance+"/tables/"+from, "roles/bigtable.reader "+acc.member())
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client := bigtablepb.NewBigtableClient(f.connect(acc.token(nil)))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			p, err := client.PrepareQuery(ctx, &bigtablepb.PrepareQueryRequest{InstanceName: instance, Query: "SELECT * FROM " + from,
				DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}})
			if err != nil {
				t.Fatal(err)
			}
			s, err := client.ExecuteQuery(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: instance, PreparedQuery: p.GetPreparedQuery()})
			if err != nil {
				t.Fatal(err)
			}
			for begin := time.Now(); time.Since(begin) < auth.Recheck*3/2; {
				if _, err := s.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			if c.left == "" {
				f.grant(c.taken)
			} else {
				f.grant(c.taken, c.left)
			}
			for err == nil {
				_, err = s.Recv()
			}
			if grpcCode(err) != "PermissionDenied" {
				t.Errorf("the query goes on, or ends with %v", err)
			}
		})
	}
}
