package admin

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/view"
	"github.com/trestledb/trestle/gateway/wire"
)

// views are the authorized views of tables.
var views = &collection[*adminpb.AuthorizedView]{
	form:   form{"Authorized view", []string{"projects", "instances", "tables", "authorizedViews"}},
	prefix: "views/",
	new:    func() *adminpb.AuthorizedView { return new(adminpb.AuthorizedView) },
}

// maxViewParameters bounds the row prefixes, qualifiers and qualifier prefixes
// of one view, counted together.
const maxViewParameters = 100

// tableForChild returns the table below which something is to be created or
// listed. The instance must not be on its way out.
func (a *Admin) tableForChild(ctx context.Context, name string) (*schema.Table, error) {
	ids, err := a.parse("parent", tableForm, name)
	if err != nil {
		return nil, err
	}
	if _, err := a.instanceForTables(ctx, "parent", parent(ids, tableForm, 2)); err != nil {
		return nil, err
	}
	t, _, err := a.tableAt(ctx, "parent", name)
	return t, err
}

// CreateAuthorizedView implements T8.
func (s *tableServer) CreateAuthorizedView(ctx context.Context, req *adminpb.CreateAuthorizedViewRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	// A table is not deleted while it gets a protected view.
	l := s.protectionOf(req.GetParent())
	l.Lock()
	defer l.Unlock()
	t, err := s.tableForChild(ctx, req.GetParent())
	if err != nil {
		return nil, err
	}
	id := req.GetAuthorizedViewId()
	if err := newID("authorized_view_id", "authorizedViews", id, tableIDPattern, wire.TableID, 1, maxChildID); err != nil {
		return nil, err
	}
	pb := &adminpb.AuthorizedView{
		Name: t.Name + "/authorizedViews/" + id, Etag: randomText(),
		AuthorizedView: req.GetAuthorizedView().GetAuthorizedView(), DeletionProtection: req.GetAuthorizedView().GetDeletionProtection(),
	}
	if err := checkView(pb, t, nil); err != nil {
		return nil, within("authorized_view", -1, err)
	}
	ch := &child[*adminpb.AuthorizedView]{pb: pb, incarnation: randomText(), key: views.prefixOf(t) + id}
	if err := views.put(ctx, s.Admin, "authorized_view_id", ch); err != nil {
		return nil, err
	}
	return s.finished(ctx, pb.Name, &adminpb.CreateAuthorizedViewMetadata{
		OriginalRequest: req, RequestTime: start, FinishTime: timestamppb.New(s.o.Now()),
	}, pb)
}

// checkView refuses definitions that a view cannot have. Families that it had
// in its old definition may be gone.
func checkView(pb *adminpb.AuthorizedView, t *schema.Table, old *adminpb.AuthorizedView_SubsetView) error {
	sub := pb.GetSubsetView()
	if sub == nil {
		return refuse(fault.Invalid, "subset_view", "Error in field 'subset_view' : Must be specified")
	}
	n := len(sub.GetRowPrefixes())
	for i, p := range sub.GetRowPrefixes() {
		if len(p) > schema.MaxRowKey {
			return within("subset_view", -1, within("row_prefixes", i,
				refuse(fault.Invalid, "", "Row keys must be at most %d bytes, but found %d", schema.MaxRowKey, len(p))))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(sub.GetFamilySubsets())) {
		f := sub.GetFamilySubsets()[id]
		n += len(f.GetQualifiers()) + len(f.GetQualifierPrefixes())
		if _, ok := t.Families[id]; !ok && old.GetFamilySubsets()[id] == nil {
			e := schema.NoFamily(id, "Error in field 'family_subsets' : Requested column family not found: '%s'", id)
			e.Kind, e.Field = fault.Invalid, "family_subsets"
			return within("subset_view", -1, e)
		}
		for _, q := range slices.Concat(f.GetQualifiers(), f.GetQualifierPrefixes()) {
			if len(q) > schema.MaxQualifier {
				return within("subset_view", -1, refuse(fault.Invalid, "family_subsets",
					"Error in field 'family_subsets' : Column qualifiers must be at most %d bytes, but found %d in family '%s'", schema.MaxQualifier, len(q), id))
			}
		}
	}
	if n > maxViewParameters {
		return refuse(fault.Invalid, "subset_view", "Error in field 'subset_view' : At most %d row prefixes, qualifiers and qualifier prefixes are allowed together, but found %d", maxViewParameters, n)
	}
	return nil
}

// checkResponseView resolves the unspecified view of a request's result.
func checkResponseView(v, unspecified adminpb.AuthorizedView_ResponseView) (adminpb.AuthorizedView_ResponseView, error) {
	if v == adminpb.AuthorizedView_RESPONSE_VIEW_UNSPECIFIED {
		return unspecified, nil
	}
	if _, ok := adminpb.AuthorizedView_ResponseView_name[int32(v)]; !ok {
		return v, refuse(fault.Invalid, "view", "Error in field 'view' : Unknown value %d", v)
	}
	return v, nil
}

// reduceView clears in pb what a view does not show.
func reduceView(pb *adminpb.AuthorizedView, v adminpb.AuthorizedView_ResponseView) *adminpb.AuthorizedView {
	switch v {
	case adminpb.AuthorizedView_NAME_ONLY:
		return &adminpb.AuthorizedView{Name: pb.GetName()}
	case adminpb.AuthorizedView_BASIC:
		pb.AuthorizedView = nil
	}
	return pb
}

// ListAuthorizedViews implements T9.
func (s *tableServer) ListAuthorizedViews(ctx context.Context, req *adminpb.ListAuthorizedViewsRequest) (*adminpb.ListAuthorizedViewsResponse, error) {
	v, err := checkResponseView(req.GetView(), adminpb.AuthorizedView_NAME_ONLY)
	if err != nil {
		return nil, err
	}
	p, err := s.newPage(ctx, "authorizedViews "+req.GetParent(), req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	t, _, err := s.tableAt(ctx, "parent", req.GetParent())
	if err != nil {
		return nil, err
	}
	all, err := views.list(ctx, s.Admin, t)
	if err != nil {
		return nil, err
	}
	resp := new(adminpb.ListAuthorizedViewsResponse)
	all, resp.NextPageToken, err = cut(ctx, s.Admin, p, all, func(c *child[*adminpb.AuthorizedView]) string { return c.key })
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		resp.AuthorizedViews = append(resp.AuthorizedViews, reduceView(c.pb, v))
	}
	return resp, nil
}

// GetAuthorizedView implements T10. The API's text says that BASIC is the
// default, but clients ask without a view and take what FULL shows for granted.
func (s *tableServer) GetAuthorizedView(ctx context.Context, req *adminpb.GetAuthorizedViewRequest) (*adminpb.AuthorizedView, error) {
	v, err := checkResponseView(req.GetView(), adminpb.AuthorizedView_FULL)
	if err != nil {
		return nil, err
	}
	c, _, err := views.at(ctx, s.Admin, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	return reduceView(c.pb, v), nil
}

var viewMask = maskRule{allowed: []string{"deletion_protection", "subset_view"}, ignored: []string{"name", "etag"}}

// optionalMask returns the mask of an update that need not have one: all that
// is set in the message if it is empty, everything if it is "*".
func optionalMask(m *fieldmaskpb.FieldMask, in proto.Message, r maskRule) (*fieldmaskpb.FieldMask, error) {
	switch {
	case len(m.GetPaths()) == 0:
		m = new(fieldmaskpb.FieldMask)
		d := in.ProtoReflect()
		for _, p := range r.allowed {
			if f := d.Descriptor().Fields().ByTextName(p); f != nil && d.Has(f) {
				m.Paths = append(m.Paths, p)
			}
		}
		return m, nil
	case len(m.GetPaths()) == 1 && m.GetPaths()[0] == "*":
		return &fieldmaskpb.FieldMask{Paths: r.allowed}, nil
	}
	return m, checkMask(m, in, r)
}

// UpdateAuthorizedView implements T11.
func (s *tableServer) UpdateAuthorizedView(ctx context.Context, req *adminpb.UpdateAuthorizedViewRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in := req.GetAuthorizedView()
	mask, err := optionalMask(req.GetUpdateMask(), in, viewMask)
	if err != nil {
		return nil, err
	}
	ids, err := s.parse("authorized_view.name", views.form, in.GetName())
	if err != nil {
		return nil, err
	}
	l := s.protectionOf(parent(ids, views.form, 3))
	l.Lock()
	defer l.Unlock()
	pb, err := views.change(ctx, s.Admin, "authorized_view.name", in.GetName(), func(pb *adminpb.AuthorizedView, t *schema.Table) error {
		if err := views.checkETag("authorized_view.etag", in.GetEtag(), pb); err != nil {
			return err
		}
		old := proto.Clone(pb.GetSubsetView()).(*adminpb.AuthorizedView_SubsetView)
		applyMask(pb, in, mask, viewMask)
		if err := checkView(pb, t, old); err != nil {
			return within("authorized_view", -1, err)
		}
		if !req.GetIgnoreWarnings() && !view.New(pb.GetName(), pb.GetSubsetView()).Covers(view.New(pb.GetName(), old)) {
			return refuse(fault.FailedPrecondition, "authorized_view.subset_view", "The update takes rows or columns out of authorized view %s, which may break its users. Set 'ignore_warnings' to do it anyway.", pb.GetName())
		}
		pb.Etag = randomText()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, pb.GetName(), &adminpb.UpdateAuthorizedViewMetadata{
		OriginalRequest: req, RequestTime: start, FinishTime: timestamppb.New(s.o.Now()),
	}, pb)
}

// DeleteAuthorizedView implements T12.
func (s *tableServer) DeleteAuthorizedView(ctx context.Context, req *adminpb.DeleteAuthorizedViewRequest) (*emptypb.Empty, error) {
	err := views.remove(ctx, s.Admin, "name", req.GetName(), req.GetEtag(), func(pb *adminpb.AuthorizedView) error {
		if pb.GetDeletionProtection() {
			return refuse(fault.FailedPrecondition, "name", "Authorized view %s cannot be deleted: it has deletion protection", pb.GetName())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return new(emptypb.Empty), nil
}

// noProtectedViews refuses to delete what, in which a view is protected.
func (a *Admin) noProtectedViews(ctx context.Context, what string, t *schema.Table) error {
	vs, err := views.list(ctx, a, t)
	if err != nil {
		return err
	}
	for _, v := range vs {
		if v.pb.GetDeletionProtection() {
			return refuse(fault.FailedPrecondition, "name", "%s cannot be deleted: authorized view %s has deletion protection", what, v.pb.GetName())
		}
	}
	return nil
}

// A viewCache spares data calls decoding a view's record, not reading it.
type viewCache struct {
	views sync.Map // record key to *cachedView
	mu    struct {
		sync.Mutex
		n int
	}
}

type cachedView struct {
	record []byte
	view   *view.View
}

// maxViews bounds the cache.
const maxViews = 4096

// View returns an authorized view and its table, or NotFound. It is made for
// the path of every request, and sees every change that was made before it was
// called, by whichever gateway.
func (a *Admin) View(ctx context.Context, name string) (*schema.Table, *view.View, error) {
	const field = "authorized_view_name"
	ids, err := a.parse(field, views.form, name)
	if err != nil {
		return nil, nil, err
	}
	table := name[:strings.LastIndex(name, "/authorizedViews/")]
	t, err := a.b.Table(ctx, table)
	if err != nil {
		return nil, nil, orMissing(err, field, "Table", table)
	}
	key := views.prefixOf(t) + ids[3]
	b, version, err := a.b.GetRecord(ctx, key)
	if err != nil {
		return nil, nil, orMissing(err, field, views.form.kind, name)
	}
	// Versions begin anew when a record does, so the bytes are compared.
	c, known := a.views.views.Load(key)
	if known && bytes.Equal(c.(*cachedView).record, b) {
		return t, c.(*cachedView).view, nil
	}
	ch, err := views.decode(key, b, version)
	if err != nil {
		return nil, nil, err
	}
	v := view.New(name, ch.pb.GetSubsetView())
	a.views.mu.Lock()
	defer a.views.mu.Unlock()
	if !known {
		if a.views.mu.n++; a.views.mu.n > maxViews {
			a.views.views.Clear()
			a.views.mu.n = 1
		}
	}
	a.views.views.Store(key, &cachedView{bytes.Clone(b), v})
	return t, v, nil
}
