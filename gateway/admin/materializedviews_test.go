package admin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// keeper is the model with materialized views that show nothing.
type keeper struct {
	backend.Backend
	mu       sync.Mutex
	views    map[string]*schema.Table
	next     uint64
	built    chan struct{} // until it is closed views are being built
	building bool
}

func (k *keeper) Table(ctx context.Context, name string) (*schema.Table, error) {
	k.mu.Lock()
	t := k.views[name]
	k.mu.Unlock()
	if t != nil {
		return t, nil
	}
	return k.Backend.Table(ctx, name)
}

func (k *keeper) CreateView(_ context.Context, v *schema.View, set func(*schema.Table)) (*schema.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.views[v.Name] != nil {
		return nil, fault.New(fault.AlreadyExists, "there")
	}
	k.next++
	t := &schema.Table{Name: v.Name, ID: k.next << 32, View: v, CreateTime: time.Now()}
	set(t)
	k.views[v.Name] = t
	return t, nil
}

func (k *keeper) UpdateView(_ context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.views[name]
	if t == nil {
		return nil, fault.New(fault.NotFound, "none")
	}
	t = t.Clone()
	if err := change(t); err != nil {
		return nil, err
	}
	k.views[name] = t
	return t, nil
}

func (k *keeper) DeleteView(_ context.Context, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch t := k.views[name]; {
	case t == nil:
		return fault.New(fault.NotFound, "none")
	case t.DeletionProtection:
		return fault.New(fault.FailedPrecondition, "protected")
	}
	delete(k.views, name)
	return nil
}

func (k *keeper) ListViews(_ context.Context, instance string) (out []*schema.Table, _ error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(k.views)) {
		if strings.HasPrefix(n, instance+"/") {
			out = append(out, k.views[n])
		}
	}
	return out, nil
}

func (k *keeper) WaitView(ctx context.Context, name string) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-k.built:
	}
	_, err := k.Table(ctx, name)
	return err
}

func (k *keeper) ViewStatus(context.Context, string) (*backend.ViewStatus, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := &backend.ViewStatus{Tablets: 1}
	if k.building {
		st.Building = 1
	}
	return st, nil
}

func (k *keeper) setBuilding(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.building = on
}

// withViews is withSQL over a keeper.
func withViews(t testing.TB, o Options) (*server, *keeper) {
	t.Helper()
	k := &keeper{Backend: model.New(model.Options{}), views: map[string]*schema.Table{}, built: make(chan struct{})}
	s := serve(t, k, o)
	s.createInstance(t, "inst-one", "cluster-one")
	must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t", Table: &adminpb.Table{
		ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}))(t)
	s.admin.CheckViews(func(context.Context, string, string, string, string) error { return nil })
	s.admin.CompileViews(func(ctx context.Context, instance, definer, query string) (*schema.View, error) {
		if strings.Contains(query, "bad") {
			return nil, fault.New(fault.Invalid, "LIMIT is not allowed [at 1:8]")
		}
		return &schema.View{Query: query, Source: instance + "/tables/t"}, nil
	})
	return s, k
}

func materializedName(id string) string { return testInstance + "/materializedViews/" + id }

func materializedRequest(id, query string, protected bool) *adminpb.CreateMaterializedViewRequest {
	return &adminpb.CreateMaterializedViewRequest{Parent: testInstance, MaterializedViewId: id,
		MaterializedView: &adminpb.MaterializedView{Name: "ignored", Etag: "ignored", Query: query, DeletionProtection: protected}}
}

func TestMaterializedViews(t *testing.T) {
	s, k := withViews(t, Options{})
	ctx := t.Context()
	close(k.built)
	md := new(adminpb.CreateMaterializedViewMetadata)
	req := materializedRequest("v", "q", true)
	v := response(t, must(s.inst.CreateMaterializedView(ctx, req))(t), md, new(adminpb.MaterializedView))
	if v.Name != materializedName("v") || v.Query != "q" || v.Etag == "" || v.Etag == "ignored" || !v.DeletionProtection || md.EndTime == nil || !proto.Equal(md.OriginalRequest, req) {
		t.Fatal(v, md)
	}
	get := func() *adminpb.MaterializedView {
		return must(s.inst.GetMaterializedView(ctx, &adminpb.GetMaterializedViewRequest{Name: v.Name}))(t)
	}
	if got := get(); !proto.Equal(got, v) {
		t.Errorf("got %v, created %v", got, v)
	}
	update := func(in *adminpb.MaterializedView, m *fieldmaskpb.FieldMask) (*adminpb.MaterializedView, error) {
		in.Name = v.Name
		op, err := s.inst.UpdateMaterializedView(ctx, &adminpb.UpdateMaterializedViewRequest{MaterializedView: in, UpdateMask: m})
		if err != nil {
			return nil, err
		}
		return response(t, op, new(adminpb.UpdateMaterializedViewMetadata), new(adminpb.MaterializedView)), nil
	}
	set := must(s.inst.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: v.Name, Policy: aPolicy()}))(t)
	if p := must(s.inst.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: v.Name}))(t); !proto.Equal(p, set) {
		t.Error(p)
	}
	if err := s.admin.dropOrphans(ctx); err != nil {
		t.Fatal(err)
	}
	k.setBuilding(false)
	must(s.inst.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{Resource: v.Name, Permissions: []string{"bigtable.materializedViews.get"}}))(t)
	create := func(id, query string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateMaterializedView(ctx, materializedRequest(id, query, false)))
		}
	}
	must(s.inst.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: "l", LogicalView: &adminpb.LogicalView{Query: "q"}}))(t)
	checkRefusals(t, s, []refusal{
		{"again", create("v", "q"), codes.AlreadyExists, "already exists", "materialized_view_id"},
		{"as a table", create("t", "q"), codes.AlreadyExists, "name of a table", "materialized_view_id"},
		{"as a logical view", create("l", "q"), codes.AlreadyExists, "name of a logical view", "materialized_view_id"},
		{"bad", create("w", "bad"), codes.InvalidArgument, "LIMIT is not allowed [at 1:8]", "materialized_view.query"},
		{"empty", create("w", ""), codes.InvalidArgument, "Must not be empty", "materialized_view.query"},
		{"long", create("w", strings.Repeat(" ", maxViewQuery+1)), codes.InvalidArgument, "at most", "materialized_view.query"},
		{"id", create("-w", "q"), codes.InvalidArgument, "Invalid id", "materialized_view_id"},
		{"table of that name", func(ctx context.Context, s *server) error {
			return drop(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "v"}))
		}, codes.AlreadyExists, "name of a materialized view", "table_id"},
		{"logical view of that name", func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: "v", LogicalView: &adminpb.LogicalView{Query: "q"}}))
		}, codes.AlreadyExists, "name of a materialized view", "logical_view_id"},
		{"mask with query", func(context.Context, *server) error {
			return drop(update(&adminpb.MaterializedView{Query: "other"}, mask("query")))
		}, codes.InvalidArgument, "Immutable fields 'query'", "update_mask"},
		{"query without mask", func(context.Context, *server) error {
			return drop(update(&adminpb.MaterializedView{Query: "other"}, nil))
		}, codes.InvalidArgument, "cannot be changed", "materialized_view.query"},
		{"stale etag", func(context.Context, *server) error {
			return drop(update(&adminpb.MaterializedView{Etag: "x"}, mask("deletion_protection")))
		}, codes.Aborted, "changed since", "materialized_view.etag"},
		{"delete protected", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteMaterializedView(ctx, &adminpb.DeleteMaterializedViewRequest{Name: v.Name}))
		}, codes.FailedPrecondition, "deletion protection", "name"},
		{"delete instance", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))
		}, codes.FailedPrecondition, "deletion protection", "name"},
	})
	got := must(update(&adminpb.MaterializedView{Query: "q", Etag: v.Etag}, mask("deletion_protection")))(t)
	if got.DeletionProtection || got.Query != "q" || got.Etag == v.Etag || !proto.Equal(got, get()) {
		t.Error(got)
	}
	for _, id := range []string{"a", "b"} {
		must(s.inst.CreateMaterializedView(ctx, materializedRequest(id, "q", false)))(t)
	}
	var ids []string
	for token := ""; ; {
		r := must(s.inst.ListMaterializedViews(ctx, &adminpb.ListMaterializedViewsRequest{Parent: testInstance, PageSize: 2, PageToken: token}))(t)
		for _, v := range r.MaterializedViews {
			ids = append(ids, v.Name[len(materializedName("")):])
		}
		if token = r.NextPageToken; token == "" {
			break
		}
	}
	if !slices.Equal(ids, []string{"a", "b", "v"}) {
		t.Error(ids)
	}
	must(s.inst.DeleteMaterializedView(ctx, &adminpb.DeleteMaterializedViewRequest{Name: v.Name, Etag: got.Etag}))(t)
	if _, err := s.inst.GetMaterializedView(ctx, &adminpb.GetMaterializedViewRequest{Name: v.Name}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	// The policy of the one before is not that of the next.
	must(s.inst.CreateMaterializedView(ctx, materializedRequest("v", "q", false)))(t)
	if p := must(s.inst.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: v.Name}))(t); len(p.GetBindings()) > 0 {
		t.Error(p)
	}
	// Views go with their instance.
	must(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))(t)
	if len(k.views) > 0 {
		t.Error(k.views)
	}
}

// A table cannot be deleted while there are views of it.
func TestDeleteSourceOfView(t *testing.T) {
	s, _ := withViews(t, Options{})
	must(s.b.UpdateTable(t.Context(), testTable, func(t *schema.Table) error {
		t.Views = []schema.ViewOf{{Name: materializedName("v")}}
		return nil
	}))(t)
	_, err := s.DeleteTable(t.Context(), &adminpb.DeleteTableRequest{Name: testTable})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), materializedName("v")) {
		t.Error(err)
	}
}

// The operation that makes a view is done when the view is; to cancel it deletes the view,
// and a server that is stopped leaves it to the next.
func TestMaterializedViewOperation(t *testing.T) {
	now := time.Now()
	var mu sync.Mutex
	s, k := withViews(t, Options{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	ctx := t.Context()
	op := must(s.inst.CreateMaterializedView(ctx, materializedRequest("v", "q", true)))(t)
	if op.Done {
		t.Fatal(op)
	}
	must(s.ops.CancelOperation(ctx, &longrunningpb.CancelOperationRequest{Name: op.Name}))(t)
	wait := func(name string) *longrunningpb.Operation {
		for {
			op := must(s.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: name}))(t)
			if op.Done {
				return op
			}
			time.Sleep(time.Millisecond)
		}
	}
	if op = wait(op.Name); codes.Code(op.GetError().GetCode()) != codes.Canceled {
		t.Error(op)
	}
	if _, err := s.inst.GetMaterializedView(ctx, &adminpb.GetMaterializedViewRequest{Name: materializedName("v")}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}

	op = must(s.inst.CreateMaterializedView(ctx, materializedRequest("w", "q", false)))(t)
	k.setBuilding(true)
	s.admin.Close()
	mu.Lock()
	now = now.Add(2 * taskLease)
	mu.Unlock()
	if op = must(s.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.Name}))(t); op.Done {
		t.Errorf("done while the view is being built: %v", op)
	}
	k.setBuilding(false)
	response(t, wait(op.Name), new(adminpb.CreateMaterializedViewMetadata), new(adminpb.MaterializedView))
}
