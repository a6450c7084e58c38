package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/wire"
)

// A materialized view is a table of the backend that has the view's name. What the
// backend does not know of it, its etag, is the table's Extra: a MaterializedView with
// nothing else set.

var materializedViewForm = form{"Materialized view", []string{"projects", "instances", "materializedViews"}}

// CompileViews sets what analyzes the query of a materialized view with the rights of
// definer, as sql.(*Service).CompileView does. Call it before requests are served; without
// it no view can be created.
func (a *Admin) CompileViews(compile func(ctx context.Context, instance, definer, query string) (*schema.View, error)) {
	a.compileView = compile
}

// materializedProto returns the view whose rows t has.
func materializedProto(t *schema.Table) (*adminpb.MaterializedView, error) {
	pb := new(adminpb.MaterializedView)
	if err := proto.Unmarshal(t.Extra, pb); err != nil {
		return nil, fault.New(fault.Corruption, "read settings of materialized view %s: %w", t.Name, err)
	}
	pb.Name, pb.Query, pb.DeletionProtection = t.Name, t.View.Query, t.DeletionProtection
	return pb, nil
}

// setMaterialized stores what may change of a view, with a new etag.
func setMaterialized(t *schema.Table, protected bool) error {
	t.DeletionProtection = protected
	var err error
	t.Extra, err = deterministic.Marshal(&adminpb.MaterializedView{Etag: randomText()})
	return err
}

// materializedAt returns the table of the materialized view called name, which came in
// field.
func (a *Admin) materializedAt(ctx context.Context, field, name string) (*schema.Table, error) {
	ids, err := a.parse(field, materializedViewForm, name)
	if err != nil {
		return nil, err
	}
	if _, err := a.instanceForTables(ctx, field, parent(ids, materializedViewForm, 2)); err != nil {
		return nil, err
	}
	t, err := a.b.Table(ctx, name)
	if err != nil {
		return nil, orMissing(err, field, materializedViewForm.kind, name)
	}
	if t.View == nil {
		return nil, missing(field, materializedViewForm.kind, name)
	}
	return t, nil
}

// policyOfMaterialized is the record of a view's policy.
func policyOfMaterialized(t *schema.Table) string {
	return fmt.Sprintf("%s%s#%d", policyPrefix, t.Name, t.ID)
}

// materializedFree returns AlreadyExists if something that is to be called by this id in
// the instance would have the name of a materialized view.
func (a *Admin) materializedFree(ctx context.Context, field, kind, instance, id string) error {
	name := instance + "/materializedViews/" + id
	switch _, err := a.b.Table(ctx, name); {
	case fault.KindOf(err) == fault.NotFound:
		return nil
	case err != nil:
		return err
	}
	return refuse(fault.AlreadyExists, field, "%s %s would have the name of a materialized view, which is there already: %s", kind, id, name)
}

// othersFree returns AlreadyExists if a materialized view of this id would have the name of
// a table or a logical view.
func (a *Admin) othersFree(ctx context.Context, instance, id string) error {
	const field = "materialized_view_id"
	if err := a.tableFree(ctx, field, materializedViewForm, instance, id); err != nil {
		return err
	}
	return a.logicalFree(ctx, field, materializedViewForm.kind, instance, id)
}

// compileMaterialized returns the definition of the view called name.
func (a *Admin) compileMaterialized(ctx context.Context, instance, name, query string) (*schema.View, error) {
	if n := len(query); n > maxViewQuery {
		return nil, refuse(fault.Invalid, "query", "Error in field 'query' : Must be at most %d bytes, but found %d", maxViewQuery, n)
	}
	if a.compileView == nil {
		return nil, refuse(fault.Unimplemented, "query", "Materialized views need SQL, which this server does not have")
	}
	v, err := a.compileView(ctx, instance, a.o.Member(ctx), query)
	if err != nil {
		return nil, ofQuery(err)
	}
	v.Name = name
	return v, nil
}

// CreateMaterializedView implements I30. The operation is done when the view shows all rows
// of its source. The view is there before, and shows some. To cancel the operation is
// to delete it.
func (s *instanceServer) CreateMaterializedView(ctx context.Context, req *adminpb.CreateMaterializedViewRequest) (*longrunningpb.Operation, error) {
	m := &adminpb.CreateMaterializedViewMetadata{OriginalRequest: req, StartTime: timestamppb.New(s.o.Now())}
	in, id := req.GetMaterializedView(), req.GetMaterializedViewId()
	instance, err := s.newSQLView(ctx, materializedViewForm, req.GetParent(), "materialized_view_id", id, "materialized_view", in.GetQuery())
	if err != nil {
		return nil, err
	}
	name := instance + "/materializedViews/" + id
	if _, err := s.b.Table(ctx, name); err == nil {
		return nil, alreadyThere("materialized_view_id", materializedViewForm.kind, name)
	}
	if err := s.othersFree(ctx, instance, id); err != nil {
		return nil, err
	}
	v, err := s.compileMaterialized(ctx, instance, name, in.GetQuery())
	if err != nil {
		return nil, within("materialized_view", -1, err)
	}
	var extra error
	t, err := s.v.CreateView(ctx, v, func(t *schema.Table) { extra = setMaterialized(t, in.GetDeletionProtection()) })
	if fault.KindOf(err) == fault.AlreadyExists {
		return nil, alreadyThere("materialized_view_id", materializedViewForm.kind, name)
	}
	if err != nil {
		return nil, err
	}
	pb, err := materializedProto(t)
	// A table of that name, or the end of the instance, may have come meanwhile.
	if err = errors.Join(err, extra); err == nil {
		err = s.othersFree(ctx, instance, id)
	}
	if err == nil {
		_, err = s.instanceForTables(ctx, "parent", instance)
	}
	var op *longrunningpb.Operation
	if err == nil {
		op, err = s.begin(ctx, name, m, func(ctx context.Context, _ string) (proto.Message, proto.Message, error) {
			err := s.backfilled(ctx, t)
			m := proto.Clone(m).(*adminpb.CreateMaterializedViewMetadata)
			m.EndTime = timestamppb.New(s.o.Now())
			return m, pb, err
		}, nil)
	}
	if err != nil {
		return nil, errors.Join(err, s.dropMaterialized(context.WithoutCancel(ctx), t))
	}
	return op, nil
}

// backfilled returns once a view that was made shows all rows of its source.
func (a *Admin) backfilled(ctx context.Context, t *schema.Table) error {
	err := a.v.WaitView(ctx, t.Name)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), errStopped):
		return errGoesOn
	case ctx.Err() != nil:
		if err := a.dropMaterialized(context.WithoutCancel(ctx), t); err != nil {
			return err
		}
		return context.Canceled
	case fault.KindOf(err) == fault.NotFound:
		return fault.New(fault.Aborted, "Materialized view %s was deleted before it showed all rows of its source", t.Name)
	}
	return err
}

// dropMaterialized deletes the view whose rows t has, whether it is protected or not,
// unless it is another by now.
func (a *Admin) dropMaterialized(ctx context.Context, t *schema.Table) error {
	_, err := a.v.UpdateView(ctx, t.Name, func(now *schema.Table) error {
		if now.ID != t.ID {
			return missing("", materializedViewForm.kind, t.Name)
		}
		now.DeletionProtection = false
		return nil
	})
	if err == nil {
		err = a.v.DeleteView(ctx, t.Name)
	}
	if fault.KindOf(err) == fault.NotFound {
		return nil
	}
	return err
}

// materializedSince is the outcome of a CreateMaterializedView whose server has ended: the
// view, nil if there is none, or errGoesOn.
func (a *Admin) materializedSince(ctx context.Context, m *adminpb.CreateMaterializedViewMetadata) (proto.Message, error) {
	name := m.GetOriginalRequest().GetParent() + "/materializedViews/" + m.GetOriginalRequest().GetMaterializedViewId()
	t, err := a.b.Table(ctx, name)
	switch {
	case fault.KindOf(err) == fault.NotFound || err == nil && (t.View == nil || t.CreateTime.Before(m.GetStartTime().AsTime())):
		return nil, nil
	case err != nil:
		return nil, err
	}
	st, err := a.v.ViewStatus(ctx, name)
	if err != nil {
		return nil, err
	}
	if st.Building+st.Behind > 0 {
		return nil, errGoesOn
	}
	m.EndTime = timestamppb.New(a.o.Now())
	return materializedProto(t)
}

// GetMaterializedView implements I31.
func (s *instanceServer) GetMaterializedView(ctx context.Context, req *adminpb.GetMaterializedViewRequest) (*adminpb.MaterializedView, error) {
	t, err := s.materializedAt(ctx, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	return materializedProto(t)
}

// ListMaterializedViews implements I32. A page may have fewer than were asked for.
func (s *instanceServer) ListMaterializedViews(ctx context.Context, req *adminpb.ListMaterializedViewsRequest) (*adminpb.ListMaterializedViewsResponse, error) {
	ids, err := s.parse("parent", instanceForm, req.GetParent(), true)
	if err != nil {
		return nil, err
	}
	p, err := s.newPage(ctx, "materializedViews "+req.GetParent(), req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	below := parent(ids, instanceForm, 1)
	if ids[1] != "-" {
		below = parent(ids, instanceForm, 2)
		if _, err := s.instanceForTables(ctx, "parent", below); err != nil {
			return nil, err
		}
	}
	ts, err := s.v.ListViews(ctx, below)
	if err != nil {
		return nil, err
	}
	resp := new(adminpb.ListMaterializedViewsResponse)
	size := 0
	for _, t := range ts {
		if t.Name <= p.after {
			continue
		}
		pb, err := materializedProto(t)
		if err != nil {
			return nil, err
		}
		size += proto.Size(pb)
		if n := len(resp.MaterializedViews); n > 0 && size > viewPage || p.size > 0 && n == int(p.size) {
			resp.NextPageToken, err = p.next(ctx, s.Admin, resp.MaterializedViews[n-1].GetName())
			return resp, err
		}
		resp.MaterializedViews = append(resp.MaterializedViews, pb)
	}
	return resp, nil
}

var materializedMask = maskRule{allowed: []string{"deletion_protection"}, ignored: []string{"name", "etag"}}

// UpdateMaterializedView implements I33. A query that is set without a mask must be the one
// that the view has.
func (s *instanceServer) UpdateMaterializedView(ctx context.Context, req *adminpb.UpdateMaterializedViewRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in := req.GetMaterializedView()
	mask, err := optionalMask(req.GetUpdateMask(), in, materializedMask)
	if err != nil {
		return nil, err
	}
	t, err := s.materializedAt(ctx, "materialized_view.name", in.GetName())
	if err != nil {
		return nil, err
	}
	if q := in.GetQuery(); q != "" && q != t.View.Query && len(req.GetUpdateMask().GetPaths()) == 0 {
		return nil, refuse(fault.Invalid, "materialized_view.query", "Error in field 'query' : The query of a materialized view cannot be changed: create another view")
	}
	l := s.protectionOf(t.Name)
	l.Lock()
	defer l.Unlock()
	t, err = s.v.UpdateView(ctx, t.Name, func(t *schema.Table) error {
		was, err := materializedProto(t)
		if err != nil {
			return err
		}
		if e := in.GetEtag(); e != "" && e != was.GetEtag() {
			return refuse(fault.Aborted, "materialized_view.etag", "%s was changed since it was read: %s", materializedViewForm.kind, t.Name)
		}
		applyMask(was, in, mask, materializedMask)
		return setMaterialized(t, was.GetDeletionProtection())
	})
	if err != nil {
		return nil, orMissing(err, "materialized_view.name", materializedViewForm.kind, in.GetName())
	}
	pb, err := materializedProto(t)
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, t.Name, &adminpb.UpdateMaterializedViewMetadata{
		OriginalRequest: req, StartTime: start, EndTime: timestamppb.New(s.o.Now()),
	}, pb)
}

// DeleteMaterializedView implements I34.
func (s *instanceServer) DeleteMaterializedView(ctx context.Context, req *adminpb.DeleteMaterializedViewRequest) (*emptypb.Empty, error) {
	if _, err := s.parse("name", materializedViewForm, req.GetName()); err != nil {
		return nil, err
	}
	l := s.protectionOf(req.GetName())
	l.Lock()
	defer l.Unlock()
	t, err := s.materializedAt(ctx, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	pb, err := materializedProto(t)
	if err != nil {
		return nil, err
	}
	if e := req.GetEtag(); e != "" && e != pb.GetEtag() {
		return nil, refuse(fault.Aborted, "etag", "%s was changed since it was read: %s", materializedViewForm.kind, t.Name)
	}
	if t.DeletionProtection {
		return nil, refuse(fault.FailedPrecondition, "name", "Materialized view %s cannot be deleted: it has deletion protection", t.Name)
	}
	if err := s.v.DeleteView(ctx, t.Name); err != nil {
		return nil, orMissing(err, "name", materializedViewForm.kind, t.Name)
	}
	// No request finds the policy any more. If this fails it goes with other orphans.
	key := policyOfMaterialized(t)
	if _, version, err := s.b.GetRecord(ctx, key); err == nil {
		_ = s.b.DeleteRecord(ctx, key, version)
	}
	return new(emptypb.Empty), nil
}

// noMaterializedViews refuses to delete a table that materialized views are made of.
func noMaterializedViews(t *schema.Table) error {
	if len(t.Views) == 0 {
		return nil
	}
	return refuse(fault.FailedPrecondition, "name", "Table %s cannot be deleted: materialized view %s is made of it. Delete the view first.", t.Name, t.Views[0].Name)
}

// noProtectedMaterialized refuses to delete an instance in which a materialized view is
// protected.
func (a *Admin) noProtectedMaterialized(ctx context.Context, instance string) error {
	ts, err := a.v.ListViews(ctx, instance)
	if err != nil {
		return err
	}
	for _, t := range ts {
		if t.DeletionProtection {
			return refuse(fault.FailedPrecondition, "name", "Instance %s cannot be deleted: materialized view %s has deletion protection", instance, t.Name)
		}
	}
	return nil
}

// MaterializedView implements sql.Resources.
func (a *Admin) MaterializedView(ctx context.Context, instance, id string) (*schema.Table, error) {
	name := instance + "/materializedViews/" + id
	if !wire.TableID(id) {
		return nil, missing("", materializedViewForm.kind, name)
	}
	t, err := a.b.Table(ctx, name)
	if err != nil {
		return nil, orMissing(err, "", materializedViewForm.kind, name)
	}
	if t.View == nil {
		return nil, missing("", materializedViewForm.kind, name)
	}
	return t, nil
}

// MaterializedViews implements sql.Resources.
func (a *Admin) MaterializedViews(ctx context.Context, instance string) ([]string, error) {
	ts, err := a.v.ListViews(ctx, instance)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(ts))
	for _, t := range ts {
		ids = append(ids, strings.TrimPrefix(t.Name, instance+"/materializedViews/"))
	}
	return ids, nil
}
