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

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

func subset(rows string, families ...string) *adminpb.AuthorizedView_SubsetView_ {
	s := &adminpb.AuthorizedView_SubsetView{FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{}}
	for _, r := range strings.Fields(rows) {
		s.RowPrefixes = append(s.RowPrefixes, []byte(r))
	}
	for _, f := range families {
		s.FamilySubsets[f] = &adminpb.AuthorizedView_FamilySubsets{QualifierPrefixes: [][]byte{{}}}
	}
	return &adminpb.AuthorizedView_SubsetView_{SubsetView: s}
}

func viewName(id string) string { return testTable + "/authorizedViews/" + id }

func (s *server) createView(t testing.TB, id string, v *adminpb.AuthorizedView) *adminpb.AuthorizedView {
	t.Helper()
	req := &adminpb.CreateAuthorizedViewRequest{Parent: testTable, AuthorizedViewId: id, AuthorizedView: v}
	md := new(adminpb.CreateAuthorizedViewMetadata)
	got := response(t, must(s.CreateAuthorizedView(t.Context(), req))(t), md, new(adminpb.AuthorizedView))
	if !proto.Equal(md.OriginalRequest, req) || md.RequestTime == nil || md.FinishTime == nil {
		t.Error(md)
	}
	return got
}

func TestAuthorizedViews(t *testing.T) {
	s, ctx := strict(t), t.Context()
	v := s.createView(t, "v", &adminpb.AuthorizedView{Name: "ignored", Etag: "ignored", AuthorizedView: subset("a b", "f"), DeletionProtection: true})
	if v.Name != viewName("v") || v.Etag == "" || v.Etag == "ignored" || !v.DeletionProtection || !proto.Equal(v.GetSubsetView(), subset("a b", "f").SubsetView) {
		t.Fatal(v)
	}
	get := func(view adminpb.AuthorizedView_ResponseView) *adminpb.AuthorizedView {
		return must(s.GetAuthorizedView(ctx, &adminpb.GetAuthorizedViewRequest{Name: v.Name, View: view}))(t)
	}
	basic := &adminpb.AuthorizedView{Name: v.Name, Etag: v.Etag, DeletionProtection: true}
	for view, want := range map[adminpb.AuthorizedView_ResponseView]*adminpb.AuthorizedView{
		adminpb.AuthorizedView_RESPONSE_VIEW_UNSPECIFIED: v, adminpb.AuthorizedView_FULL: v,
		adminpb.AuthorizedView_BASIC: basic, adminpb.AuthorizedView_NAME_ONLY: {Name: v.Name},
	} {
		if got := get(view); !proto.Equal(got, want) {
			t.Errorf("%v: %v", view, got)
		}
	}

	update := func(in *adminpb.AuthorizedView, m *fieldmaskpb.FieldMask, ignore bool) (*adminpb.AuthorizedView, error) {
		in.Name = v.Name
		op, err := s.UpdateAuthorizedView(ctx, &adminpb.UpdateAuthorizedViewRequest{AuthorizedView: in, UpdateMask: m, IgnoreWarnings: ignore})
		if err != nil {
			return nil, err
		}
		return response(t, op, new(adminpb.UpdateAuthorizedViewMetadata), new(adminpb.AuthorizedView)), nil
	}
	// Only what the mask names changes; without a mask, what is set.
	wider := &adminpb.AuthorizedView{AuthorizedView: subset("a b c", "f", "aged")}
	got := must(update(proto.Clone(wider).(*adminpb.AuthorizedView), mask("deletion_protection"), false))(t)
	if got.DeletionProtection || len(got.GetSubsetView().RowPrefixes) != 2 || got.Etag == v.Etag {
		t.Error(got)
	}
	got = must(update(&adminpb.AuthorizedView{DeletionProtection: true, Etag: got.Etag}, nil, false))(t)
	if !got.DeletionProtection || len(got.GetSubsetView().RowPrefixes) != 2 {
		t.Error(got)
	}
	got = must(update(proto.Clone(wider).(*adminpb.AuthorizedView), nil, false))(t)
	if !got.DeletionProtection || len(got.GetSubsetView().RowPrefixes) != 3 {
		t.Error(got)
	}
	got = must(update(proto.Clone(wider).(*adminpb.AuthorizedView), mask("*"), false))(t)
	if got.DeletionProtection || len(got.GetSubsetView().RowPrefixes) != 3 || !proto.Equal(got, get(adminpb.AuthorizedView_FULL)) {
		t.Error(got)
	}
	narrow := func() *adminpb.AuthorizedView { return &adminpb.AuthorizedView{AuthorizedView: subset("a", "f")} }
	for _, m := range []*fieldmaskpb.FieldMask{mask("subset_view"), mask("subset_view.row_prefixes"), mask("subset_view.family_subsets"), mask("*"), nil} {
		if _, err := update(narrow(), m, false); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "ignore_warnings") {
			t.Errorf("%v: %v", m, err)
		}
	}
	got = must(update(narrow(), mask("subset_view.row_prefixes"), true))(t)
	if len(got.GetSubsetView().RowPrefixes) != 1 || len(got.GetSubsetView().FamilySubsets) != 2 {
		t.Error(got)
	}

	for i := range 5 {
		s.createView(t, fmt.Sprint("w", i), &adminpb.AuthorizedView{AuthorizedView: subset("")})
	}
	var names []string
	req := &adminpb.ListAuthorizedViewsRequest{Parent: testTable, PageSize: 4}
	for {
		page := must(s.ListAuthorizedViews(ctx, req))(t)
		for _, v := range page.AuthorizedViews {
			if v.GetSubsetView() != nil || v.Etag != "" {
				t.Error("not the name only: ", v)
			}
			names = append(names, strings.TrimPrefix(v.Name, viewName("")))
		}
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "v w0 w1 w2 w3 w4" {
		t.Error(got)
	}
	full := must(s.ListAuthorizedViews(ctx, &adminpb.ListAuthorizedViewsRequest{Parent: testTable, View: adminpb.AuthorizedView_FULL}))(t)
	if len(full.AuthorizedViews) != 6 || full.AuthorizedViews[0].GetSubsetView() == nil {
		t.Error(full)
	}

	var many adminpb.AuthorizedView_SubsetView
	for i := range 50 {
		many.RowPrefixes = append(many.RowPrefixes, []byte{byte(i)})
	}
	many.FamilySubsets = map[string]*adminpb.AuthorizedView_FamilySubsets{"f": {Qualifiers: make([][]byte, 30), QualifierPrefixes: make([][]byte, 20)}}
	s.createView(t, "many", &adminpb.AuthorizedView{AuthorizedView: &adminpb.AuthorizedView_SubsetView_{SubsetView: &many}})
	more := proto.Clone(&many).(*adminpb.AuthorizedView_SubsetView)
	more.RowPrefixes = append(more.RowPrefixes, nil)

	creating := func(id string, v *adminpb.AuthorizedView) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.CreateAuthorizedView(ctx, &adminpb.CreateAuthorizedViewRequest{Parent: testTable, AuthorizedViewId: id, AuthorizedView: v}))
		}
	}
	defining := func(sub *adminpb.AuthorizedView_SubsetView) *adminpb.AuthorizedView {
		return &adminpb.AuthorizedView{AuthorizedView: &adminpb.AuthorizedView_SubsetView_{SubsetView: sub}}
	}
	updating := func(v *adminpb.AuthorizedView, paths ...string) func(context.Context, *server) error {
		return func(context.Context, *server) error { return drop(update(v, mask(paths...), false)) }
	}
	ok := &adminpb.AuthorizedView{AuthorizedView: subset("a")}
	checkRefusals(t, s, []refusal{
		{"taken", creating("v", ok), codes.AlreadyExists, "Authorized view already exists: " + v.Name, ""},
		{"no id", creating("", ok), codes.InvalidArgument, "Length should be between [1,50]", "authorized_view_id"},
		{"id", creating("a b", ok), codes.InvalidArgument, "Invalid id for collection authorizedViews", "authorized_view_id"},
		{"no view", creating("x", nil), codes.InvalidArgument, "Must be specified", "authorized_view.subset_view"},
		{"no definition", creating("x", &adminpb.AuthorizedView{}), codes.InvalidArgument, "Must be specified", "authorized_view.subset_view"},
		{"family", creating("x", &adminpb.AuthorizedView{AuthorizedView: subset("a", "f", "nope")}), codes.InvalidArgument, "Requested column family not found: 'nope'", "authorized_view.subset_view.family_subsets"},
		{"many", creating("x", defining(more)), codes.InvalidArgument, "At most 100", "authorized_view.subset_view"},
		{"row prefix", creating("x", defining(&adminpb.AuthorizedView_SubsetView{RowPrefixes: [][]byte{nil, make([]byte, 4097)}})), codes.InvalidArgument, "at most 4096 bytes", "authorized_view.subset_view.row_prefixes[1]"},
		{"qualifier", creating("x", defining(&adminpb.AuthorizedView_SubsetView{FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{
			"f": {Qualifiers: [][]byte{make([]byte, 16<<10+1)}}}})), codes.InvalidArgument, "at most 16384 bytes", "authorized_view.subset_view.family_subsets"},
		{"no table", func(ctx context.Context, s *server) error {
			return drop(s.CreateAuthorizedView(ctx, &adminpb.CreateAuthorizedViewRequest{Parent: testTable + "x", AuthorizedViewId: "v", AuthorizedView: ok}))
		}, codes.NotFound, "Table not found", ""},
		{"parent", func(ctx context.Context, s *server) error {
			return drop(s.CreateAuthorizedView(ctx, &adminpb.CreateAuthorizedViewRequest{Parent: testInstance, AuthorizedViewId: "v", AuthorizedView: ok}))
		}, codes.InvalidArgument, "Table name expected", "parent"},
		{"get", func(ctx context.Context, s *server) error {
			return drop(s.GetAuthorizedView(ctx, &adminpb.GetAuthorizedViewRequest{Name: viewName("x")}))
		}, codes.NotFound, "Authorized view not found", ""},
		{"get name", func(ctx context.Context, s *server) error {
			return drop(s.GetAuthorizedView(ctx, &adminpb.GetAuthorizedViewRequest{Name: testTable + "/views/x"}))
		}, codes.InvalidArgument, "Authorized view name expected in the form", "name"},
		{"get view", func(ctx context.Context, s *server) error {
			return drop(s.GetAuthorizedView(ctx, &adminpb.GetAuthorizedViewRequest{Name: v.Name, View: 9}))
		}, codes.InvalidArgument, "Unknown value 9", "view"},
		{"page size", func(ctx context.Context, s *server) error {
			return drop(s.ListAuthorizedViews(ctx, &adminpb.ListAuthorizedViewsRequest{Parent: testTable, PageSize: -1}))
		}, codes.InvalidArgument, "Must not be negative", "page_size"},
		{"etag", updating(&adminpb.AuthorizedView{Etag: v.Etag}, "deletion_protection"), codes.Aborted, "changed since it was read", ""},
		{"mask", updating(&adminpb.AuthorizedView{}, "colour"), codes.InvalidArgument, "Unknown field 'colour'", "update_mask"},
		{"cleared", updating(&adminpb.AuthorizedView{}, "subset_view"), codes.InvalidArgument, "Must be specified", "authorized_view.subset_view"},
		{"update family", updating(&adminpb.AuthorizedView{AuthorizedView: subset("a", "nope")}, "subset_view"), codes.InvalidArgument, "not found: 'nope'", "authorized_view.subset_view.family_subsets"},
		{"delete etag", func(ctx context.Context, s *server) error {
			return drop(s.DeleteAuthorizedView(ctx, &adminpb.DeleteAuthorizedViewRequest{Name: v.Name, Etag: v.Etag}))
		}, codes.Aborted, "changed since it was read", ""},
		{"delete", func(ctx context.Context, s *server) error {
			return drop(s.DeleteAuthorizedView(ctx, &adminpb.DeleteAuthorizedViewRequest{Name: viewName("x")}))
		}, codes.NotFound, "Authorized view not found", ""},
	})

	// A family that is dropped stays in the definition.
	must(s.ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{Name: testTable, Modifications: []*adminpb.ModifyColumnFamiliesRequest_Modification{
		{Id: "aged", Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Drop{Drop: true}}}}))(t)
	must(update(&adminpb.AuthorizedView{AuthorizedView: subset("a d", "f", "aged")}, nil, false))(t)
}

// A protected view keeps itself, its table and its instance.
func TestViewProtection(t *testing.T) {
	s, ctx := strict(t), t.Context()
	s.createView(t, "v", &adminpb.AuthorizedView{AuthorizedView: subset("a"), DeletionProtection: true})
	protect := func(on bool) {
		t.Helper()
		must(s.UpdateAuthorizedView(ctx, &adminpb.UpdateAuthorizedViewRequest{
			AuthorizedView: &adminpb.AuthorizedView{Name: viewName("v"), DeletionProtection: on}, UpdateMask: mask("deletion_protection")}))(t)
	}
	for _, err := range []error{
		drop(s.DeleteAuthorizedView(ctx, &adminpb.DeleteAuthorizedViewRequest{Name: viewName("v")})),
		drop(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable})),
		drop(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance})),
	} {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), viewName("v")) {
			t.Error(err)
		}
	}
	protect(false)
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))(t)
	if _, err := s.GetAuthorizedView(ctx, &adminpb.GetAuthorizedViewRequest{Name: viewName("v")}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	must(s.UndeleteTable(ctx, &adminpb.UndeleteTableRequest{Name: testTable}))(t)
	must(s.GetAuthorizedView(ctx, &adminpb.GetAuthorizedViewRequest{Name: viewName("v")}))(t)
	protect(true)
	protect(false)
	must(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))(t)
	left := 0
	for _, prefix := range []string{views.prefix, bundles.prefix, policyPrefix} {
		err := s.b.ListRecords(ctx, prefix, func(string, []byte, uint64) error { left++; return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if left != 0 {
		t.Errorf("%d records outlived the instance", left)
	}
}

// A view has its own policy, which another view of its name does not inherit.
func TestViewPolicy(t *testing.T) {
	s, ctx := strict(t), t.Context()
	for range 2 {
		s.createView(t, "v", &adminpb.AuthorizedView{AuthorizedView: subset("a")})
		get := func() *iampb.Policy {
			return must(s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: viewName("v")}))(t)
		}
		if p := get(); len(p.Bindings) != 0 {
			t.Fatal(p)
		}
		must(s.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: viewName("v"), Policy: aPolicy()}))(t)
		if p := get(); len(p.Bindings) != 1 || !proto.Equal(p, must(s.admin.Policy(ctx, viewName("v")))(t)) {
			t.Fatal(p)
		}
		if p := must(s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testTable}))(t); len(p.Bindings) != 0 {
			t.Fatal("the table's policy is the view's: ", p)
		}
		held := must(s.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{Resource: viewName("v"), Permissions: []string{"bigtable.authorizedViews.get"}}))(t)
		if len(held.Permissions) != 1 {
			t.Error(held)
		}
		must(s.DeleteAuthorizedView(ctx, &adminpb.DeleteAuthorizedViewRequest{Name: viewName("v")}))(t)
		if _, err := s.admin.Policy(ctx, viewName("v")); fault.KindOf(err) != fault.NotFound {
			t.Error(err)
		}
	}
}

// View sees what another gateway did, at once.
func TestViewOfAnotherGateway(t *testing.T) {
	b := model.New(model.Options{})
	s := serve(t, b, Options{Emulator: true})
	must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t"}))(t)
	other := New(b, Options{Emulator: true})
	has := func(key string) bool {
		t.Helper()
		table, v, err := other.View(t.Context(), viewName("v"))
		if err != nil || table.Name != testTable {
			t.Fatal(err)
		}
		_, again, err := other.View(t.Context(), viewName("v"))
		if err != nil || v != again {
			t.Fatal("not cached", err)
		}
		return v.HasRow([]byte(key))
	}
	absent := func() {
		t.Helper()
		if _, _, err := other.View(t.Context(), viewName("v")); fault.KindOf(err) != fault.NotFound {
			t.Fatal(err)
		}
	}
	absent()
	for _, key := range []string{"a", "b"} { // records of the same version
		s.createView(t, "v", &adminpb.AuthorizedView{AuthorizedView: subset(key)})
		if !has(key) {
			t.Error("view of another incarnation")
		}
		must(s.UpdateAuthorizedView(t.Context(), &adminpb.UpdateAuthorizedViewRequest{
			AuthorizedView: &adminpb.AuthorizedView{Name: viewName("v"), AuthorizedView: subset("c")}, IgnoreWarnings: true}))(t)
		if has(key) || !has("c") {
			t.Error("view before the update")
		}
		must(s.DeleteAuthorizedView(t.Context(), &adminpb.DeleteAuthorizedViewRequest{Name: viewName("v")}))(t)
		absent()
	}
	for i := range maxViews + 10 {
		key := views.prefixOf(&schema.Table{Name: testTable, ID: 1}) + fmt.Sprint(i)
		other.views.views.Store(key, &cachedView{})
		other.views.mu.n++
	}
	s.createView(t, "w", &adminpb.AuthorizedView{AuthorizedView: subset("a")})
	if _, _, err := other.View(t.Context(), viewName("w")); err != nil || other.views.mu.n != 1 {
		t.Errorf("%d views are cached, %v", other.views.mu.n, err)
	}
	for name, kind := range map[string]fault.Kind{"x": fault.Invalid, testTable: fault.Invalid, testTable + "x/authorizedViews/v": fault.NotFound} {
		if _, _, err := other.View(t.Context(), name); fault.KindOf(err) != kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSQLViews(t *testing.T) {
	s, ctx := strict(t), t.Context()
	l, m := testInstance+"/logicalViews/v", testInstance+"/materializedViews/v"
	if r := must(s.inst.ListLogicalViews(ctx, &adminpb.ListLogicalViewsRequest{Parent: testInstance}))(t); len(r.LogicalViews) != 0 || r.NextPageToken != "" {
		t.Error(r)
	}
	if r := must(s.inst.ListMaterializedViews(ctx, &adminpb.ListMaterializedViewsRequest{Parent: testInstance}))(t); len(r.MaterializedViews) != 0 || r.NextPageToken != "" {
		t.Error(r)
	}
	newL := func(parent, id, query string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: parent, LogicalViewId: id, LogicalView: &adminpb.LogicalView{Query: query}}))
		}
	}
	checkRefusals(t, s, []refusal{
		{"create", newL(testInstance, "v", "SELECT 1"), codes.Unimplemented, "Logical views need SQL", ""},
		{"create without query", newL(testInstance, "v", ""), codes.InvalidArgument, "Must not be empty", "logical_view.query"},
		{"create id", newL(testInstance, ".", "q"), codes.InvalidArgument, "collection logicalViews", "logical_view_id"},
		{"create parent", newL("x", "v", "q"), codes.InvalidArgument, "Instance name expected", "parent"},
		{"create instance", newL(testInstance+"x", "v", "q"), codes.NotFound, "Instance not found", ""},
		{"create materialized", func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateMaterializedView(ctx, &adminpb.CreateMaterializedViewRequest{Parent: testInstance, MaterializedViewId: "v", MaterializedView: &adminpb.MaterializedView{Query: "q"}}))
		}, codes.Unimplemented, "Materialized views need SQL", ""},
		{"get", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetLogicalView(ctx, &adminpb.GetLogicalViewRequest{Name: l}))
		}, codes.NotFound, "Logical view not found", ""},
		{"get name", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetLogicalView(ctx, &adminpb.GetLogicalViewRequest{Name: m}))
		}, codes.InvalidArgument, "Logical view name expected", "name"},
		{"get materialized", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetMaterializedView(ctx, &adminpb.GetMaterializedViewRequest{Name: m}))
		}, codes.NotFound, "Materialized view not found", ""},
		{"update", func(ctx context.Context, s *server) error {
			return drop(s.inst.UpdateLogicalView(ctx, &adminpb.UpdateLogicalViewRequest{LogicalView: &adminpb.LogicalView{Name: l}}))
		}, codes.NotFound, "Logical view not found", ""},
		{"update materialized", func(ctx context.Context, s *server) error {
			return drop(s.inst.UpdateMaterializedView(ctx, &adminpb.UpdateMaterializedViewRequest{MaterializedView: &adminpb.MaterializedView{Name: m}}))
		}, codes.NotFound, "Materialized view not found", ""},
		{"delete", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteLogicalView(ctx, &adminpb.DeleteLogicalViewRequest{Name: l}))
		}, codes.NotFound, "Logical view not found", ""},
		{"delete materialized", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteMaterializedView(ctx, &adminpb.DeleteMaterializedViewRequest{Name: m}))
		}, codes.NotFound, "Materialized view not found", ""},
		{"list instance", func(ctx context.Context, s *server) error {
			return drop(s.inst.ListLogicalViews(ctx, &adminpb.ListLogicalViewsRequest{Parent: testInstance + "x"}))
		}, codes.NotFound, "Instance not found", ""},
		{"list page", func(ctx context.Context, s *server) error {
			return drop(s.inst.ListMaterializedViews(ctx, &adminpb.ListMaterializedViewsRequest{Parent: testInstance, PageSize: -1}))
		}, codes.InvalidArgument, "Must not be negative", "page_size"},
		{"policy", func(ctx context.Context, s *server) error {
			return drop(s.inst.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: l, Policy: aPolicy()}))
		}, codes.NotFound, "Logical view not found", ""},
	})
}

func FuzzViewRecord(f *testing.F) {
	f.Add([]byte(`{"resource":"CgFh","incarnation":"x"}`))
	f.Add([]byte(`{"resource":"EgcKAWESAgoA"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := views.decode("k", b, 1); err != nil && fault.KindOf(err) != fault.Corruption {
			t.Fatal(err)
		}
	})
}
