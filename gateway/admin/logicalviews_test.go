package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/trestledb/trestle/engine/fault"
)

// withSQL is strict with an analysis that refuses texts with "bad".
func withSQL(t testing.TB) *server {
	t.Helper()
	s := strict(t)
	s.admin.CheckViews(func(_ context.Context, instance, name, definer, query string) error {
		if strings.Contains(query, "bad") {
			return fault.New(fault.Invalid, "Unrecognized name: bad [at 1:8]")
		}
		return nil
	})
	return s
}

func logicalName(id string) string { return testInstance + "/logicalViews/" + id }

func (s *server) createLogical(t testing.TB, id, query string, protected bool) *adminpb.LogicalView {
	t.Helper()
	req := &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: id, LogicalView: &adminpb.LogicalView{Name: "ignored", Etag: "ignored", Query: query, DeletionProtection: protected}}
	md := new(adminpb.CreateLogicalViewMetadata)
	v := response(t, must(s.inst.CreateLogicalView(t.Context(), req))(t), md, new(adminpb.LogicalView))
	if !proto.Equal(md.OriginalRequest, req) || md.StartTime == nil || md.EndTime == nil {
		t.Error(md)
	}
	return v
}

func TestLogicalViews(t *testing.T) {
	s, ctx := withSQL(t), t.Context()
	v := s.createLogical(t, "v", "SELECT 1 AS value", true)
	if v.Name != logicalName("v") || v.Query != "SELECT 1 AS value" || v.Etag == "" || v.Etag == "ignored" || !v.DeletionProtection {
		t.Fatal(v)
	}
	get := func() *adminpb.LogicalView {
		return must(s.inst.GetLogicalView(ctx, &adminpb.GetLogicalViewRequest{Name: v.Name}))(t)
	}
	if got := get(); !proto.Equal(got, v) {
		t.Errorf("got %v, created %v", got, v)
	}
	update := func(in *adminpb.LogicalView, m *fieldmaskpb.FieldMask) (*adminpb.LogicalView, error) {
		in.Name = v.Name
		op, err := s.inst.UpdateLogicalView(ctx, &adminpb.UpdateLogicalViewRequest{LogicalView: in, UpdateMask: m})
		if err != nil {
			return nil, err
		}
		return response(t, op, new(adminpb.UpdateLogicalViewMetadata), new(adminpb.LogicalView)), nil
	}
	// Only what the mask names changes; without a mask, what is set.
	got := must(update(&adminpb.LogicalView{Query: "SELECT 2"}, mask("deletion_protection")))(t)
	if got.DeletionProtection || got.Query != v.Query || got.Etag == v.Etag {
		t.Error(got)
	}
	got = must(update(&adminpb.LogicalView{Query: "SELECT 2", Etag: got.Etag}, nil))(t)
	if got.DeletionProtection || got.Query != "SELECT 2" || !proto.Equal(got, get()) {
		t.Error(got)
	}
	got = must(update(&adminpb.LogicalView{Query: "SELECT 3", DeletionProtection: true}, mask("*")))(t)
	if !got.DeletionProtection || got.Query != "SELECT 3" {
		t.Error(got)
	}
	// IAM as for any resource; the policy goes with the view.
	policy := &iampb.SetIamPolicyRequest{Resource: v.Name, Policy: aPolicy()}
	set := must(s.inst.SetIamPolicy(ctx, policy))(t)
	if p := must(s.inst.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: v.Name}))(t); !proto.Equal(p, set) {
		t.Error(p)
	}
	checkRefusals(t, s, []refusal{
		{"create again", func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: "v", LogicalView: &adminpb.LogicalView{Query: "q"}}))
		}, codes.AlreadyExists, "already exists", ""},
		{"create as a table", func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: "t", LogicalView: &adminpb.LogicalView{Query: "q"}}))
		}, codes.AlreadyExists, "name of a table", ""},
		{"create table", func(ctx context.Context, s *server) error {
			return drop(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "v"}))
		}, codes.AlreadyExists, "name of a logical view", ""},
		{"create bad", func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: "w", LogicalView: &adminpb.LogicalView{Query: "SELECT bad"}}))
		}, codes.InvalidArgument, "Unrecognized name: bad [at 1:8]", "logical_view.query"},
		{"create long", func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: "w", LogicalView: &adminpb.LogicalView{Query: strings.Repeat(" ", maxViewQuery+1)}}))
		}, codes.InvalidArgument, "at most", "logical_view.query"},
		{"update bad", func(context.Context, *server) error { return drop(update(&adminpb.LogicalView{Query: "bad"}, nil)) }, codes.InvalidArgument, "Unrecognized name", "logical_view.query"},
		{"update empty", func(context.Context, *server) error { return drop(update(&adminpb.LogicalView{}, mask("query"))) }, codes.InvalidArgument, "Must not be empty", "logical_view.query"},
		{"update etag", func(context.Context, *server) error {
			return drop(update(&adminpb.LogicalView{Query: "q", Etag: v.Etag}, nil))
		}, codes.Aborted, "was changed", ""},
		{"update mask", func(context.Context, *server) error { return drop(update(&adminpb.LogicalView{}, mask("nothing"))) }, codes.InvalidArgument, "Unknown field", "update_mask"},
		{"delete protected", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteLogicalView(ctx, &adminpb.DeleteLogicalViewRequest{Name: v.Name}))
		}, codes.FailedPrecondition, "deletion protection", ""},
		{"delete instance", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))
		}, codes.FailedPrecondition, "deletion protection", ""},
		{"delete etag", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteLogicalView(ctx, &adminpb.DeleteLogicalViewRequest{Name: v.Name, Etag: v.Etag}))
		}, codes.Aborted, "was changed", ""},
	})

	for i := range 5 {
		s.createLogical(t, fmt.Sprint("w", i), "SELECT 1", false)
	}
	var names []string
	req := &adminpb.ListLogicalViewsRequest{Parent: testInstance, PageSize: 4}
	for {
		page := must(s.inst.ListLogicalViews(ctx, req))(t)
		for _, v := range page.LogicalViews {
			names = append(names, strings.TrimPrefix(v.Name, logicalName("")))
			if got := must(s.inst.GetLogicalView(ctx, &adminpb.GetLogicalViewRequest{Name: v.Name}))(t); !proto.Equal(got, v) {
				t.Errorf("listed %v, got %v", v, got)
			}
		}
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "v w0 w1 w2 w3 w4" {
		t.Error(got)
	}
	if all := must(s.inst.ListLogicalViews(ctx, &adminpb.ListLogicalViewsRequest{Parent: "projects/p/instances/-"}))(t); len(all.LogicalViews) != 6 {
		t.Error(all)
	}

	must(update(&adminpb.LogicalView{}, mask("deletion_protection")))(t)
	must(s.inst.DeleteLogicalView(ctx, &adminpb.DeleteLogicalViewRequest{Name: v.Name, Etag: get().Etag}))(t)
	if _, err := s.inst.GetLogicalView(ctx, &adminpb.GetLogicalViewRequest{Name: v.Name}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	s.createLogical(t, "v", "SELECT 1", false)
	if p := must(s.inst.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: v.Name}))(t); len(p.Bindings) > 0 {
		t.Errorf("the policy of the view before it: %v", p)
	}
	// All go with their instance.
	must(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))(t)
	left := 0
	if err := s.b.ListRecords(ctx, logicalPrefix, func(string, []byte, uint64) error { left++; return nil }); err != nil || left > 0 {
		t.Error(left, err)
	}
}

func FuzzLogicalViewRecord(f *testing.F) {
	f.Add([]byte(`{"resource":"CgFh","incarnation":"x","definer":"user:a"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decodeLogicalView(b, 1); err != nil && fault.KindOf(err) != fault.Corruption {
			t.Error(err)
		}
	})
}
