package admin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/sql"
	"github.com/trestledb/trestle/gateway/wire"
)

var logicalViewForm = form{"Logical view", []string{"projects", "instances", "logicalViews"}}

// A logical view is a record, <logicalPrefix><resource name>. Tables and logical
// views of an instance have their ids in one namespace, since SQL knows them by
// these.
const logicalPrefix = "logicalViews/"

const (
	// maxViewQuery bounds the query of a view, in bytes: all of it is one record.
	maxViewQuery = 256 << 10
	// viewPage bounds the bytes of a page with more than one view. Many clients take
	// messages up to 4 MiB only.
	viewPage = 4<<20 - 64<<10
)

// A logicalView is a logical view with what clients do not see of it.
type logicalView struct {
	pb *adminpb.LogicalView
	// definer is the principal that gave it its query, and with whose rights it reads;
	// "" where there is no login.
	definer     string
	incarnation string
	version     uint64 // of the record
}

type storedLogicalView struct {
	Resource    []byte `json:"resource"` // protobuf
	Definer     string `json:"definer,omitempty"`
	Incarnation string `json:"incarnation"`
}

func decodeLogicalView(b []byte, version uint64) (*logicalView, error) {
	var s storedLogicalView
	v := &logicalView{pb: new(adminpb.LogicalView), version: version}
	err := json.Unmarshal(b, &s)
	if err == nil {
		err = proto.Unmarshal(s.Resource, v.pb)
	}
	if err != nil {
		return nil, fault.New(fault.Corruption, "read record of logical view: %w", err)
	}
	v.definer, v.incarnation = s.Definer, s.Incarnation
	return v, nil
}

// putLogicalView stores v if its record was not changed since it was read.
func (a *Admin) putLogicalView(ctx context.Context, v *logicalView) error {
	b, err := deterministic.Marshal(v.pb)
	if err == nil {
		b, err = json.Marshal(storedLogicalView{Resource: b, Definer: v.definer, Incarnation: v.incarnation})
	}
	if err != nil {
		return err
	}
	v.version, err = a.b.PutRecord(ctx, logicalPrefix+v.pb.GetName(), b, v.version)
	return err
}

// logicalViewAt returns the logical view called name, which came in field.
func (a *Admin) logicalViewAt(ctx context.Context, field, name string) (*logicalView, error) {
	ids, err := a.parse(field, logicalViewForm, name)
	if err != nil {
		return nil, err
	}
	if _, err := a.instanceForTables(ctx, field, parent(ids, logicalViewForm, 2)); err != nil {
		return nil, err
	}
	b, version, err := a.b.GetRecord(ctx, logicalPrefix+name)
	if err != nil {
		return nil, orMissing(err, field, logicalViewForm.kind, name)
	}
	return decodeLogicalView(b, version)
}

// logicalViewsOf returns the logical views of an instance, sorted by name.
func (a *Admin) logicalViewsOf(ctx context.Context, instance string) ([]*logicalView, error) {
	var out []*logicalView
	err := a.b.ListRecords(ctx, logicalPrefix+instance+"/logicalViews/", func(_ string, b []byte, version uint64) error {
		v, err := decodeLogicalView(b, version)
		out = append(out, v)
		return err
	})
	return out, err
}

// newSQLView checks a request for a new view, and returns its instance.
func (a *Admin) newSQLView(ctx context.Context, f form, in, idField, id, queryField, query string) (instance string, err error) {
	ids, err := a.parse("parent", instanceForm, in)
	if err != nil {
		return "", err
	}
	instance = parent(ids, instanceForm, 2)
	if _, err := a.instanceForTables(ctx, "parent", instance); err != nil {
		return "", err
	}
	if err := newID(idField, f.collections[2], id, tableIDPattern, wire.TableID, 1, maxChildID); err != nil {
		return "", err
	}
	if query == "" {
		return "", within(queryField, -1, refuse(fault.Invalid, "query", "Error in field 'query' : Must not be empty"))
	}
	return instance, nil
}

// checkLogicalQuery refuses what cannot be the query of a view.
func (a *Admin) checkLogicalQuery(ctx context.Context, instance, name, definer, query string) error {
	if n := len(query); n > maxViewQuery {
		return refuse(fault.Invalid, "query", "Error in field 'query' : Must be at most %d bytes, but found %d", maxViewQuery, n)
	}
	if a.checkView == nil {
		return refuse(fault.Unimplemented, "query", "Logical views need SQL, which this server does not have")
	}
	return ofQuery(a.checkView(ctx, instance, name, definer, query))
}

// ofQuery returns err, of the analysis of a query, as one of the field query.
func ofQuery(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok && (f.Kind == fault.Invalid || f.Kind == fault.NotFound) {
		e := *f
		e.Kind, e.Field, e.Msg = fault.Invalid, "query", "Error in field 'query' : "+f.Msg
		return &e
	}
	return err
}

// CheckViews sets what tells whether a query can be that of a logical view. Call it
// before requests are served; without it there are none.
func (a *Admin) CheckViews(check func(ctx context.Context, instance, name, definer, query string) error) {
	a.checkView = check
}

// nameFree returns AlreadyExists if a table that is to be called name would have the
// name of a view.
func (a *Admin) nameFree(ctx context.Context, field, name string) error {
	instance, id, _ := strings.Cut(name, "/tables/")
	if err := a.logicalFree(ctx, field, "Table", instance, id); err != nil {
		return err
	}
	return a.materializedFree(ctx, field, "Table", instance, id)
}

// logicalFree returns AlreadyExists if something that is to be called by this id in the
// instance would have the name of a logical view.
func (a *Admin) logicalFree(ctx context.Context, field, kind, instance, id string) error {
	view := instance + "/logicalViews/" + id
	switch _, _, err := a.b.GetRecord(ctx, logicalPrefix+view); fault.KindOf(err) {
	case fault.NotFound:
		return nil
	default:
		if err != nil {
			return err
		}
	}
	return refuse(fault.AlreadyExists, field, "%s %s would have the name of a logical view, which is there already: %s", kind, id, view)
}

// tableFree is nameFree for a view of form f and the names of tables.
func (a *Admin) tableFree(ctx context.Context, field string, f form, instance, id string) error {
	table := instance + "/tables/" + id
	switch _, err := a.b.Table(ctx, table); fault.KindOf(err) {
	case fault.NotFound:
		return nil
	default:
		if err != nil {
			return err
		}
	}
	return refuse(fault.AlreadyExists, field, "%s %s would have the name of a table, which is there already: %s", f.kind, id, table)
}

// logicalNameFree is nameFree for a logical view.
func (a *Admin) logicalNameFree(ctx context.Context, instance, id string) error {
	const field = "logical_view_id"
	if err := a.tableFree(ctx, field, logicalViewForm, instance, id); err != nil {
		return err
	}
	return a.materializedFree(ctx, field, logicalViewForm.kind, instance, id)
}

// CreateLogicalView implements I25.
func (s *instanceServer) CreateLogicalView(ctx context.Context, req *adminpb.CreateLogicalViewRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in := req.GetLogicalView()
	instance, err := s.newSQLView(ctx, logicalViewForm, req.GetParent(), "logical_view_id", req.GetLogicalViewId(), "logical_view", in.GetQuery())
	if err != nil {
		return nil, err
	}
	name := instance + "/logicalViews/" + req.GetLogicalViewId()
	v := &logicalView{
		pb:      &adminpb.LogicalView{Name: name, Query: in.GetQuery(), Etag: randomText(), DeletionProtection: in.GetDeletionProtection()},
		definer: s.o.Member(ctx), incarnation: randomText(),
	}
	if _, _, err := s.b.GetRecord(ctx, logicalPrefix+name); err == nil {
		return nil, alreadyThere("logical_view_id", logicalViewForm.kind, name)
	}
	if err := s.logicalNameFree(ctx, instance, req.GetLogicalViewId()); err != nil {
		return nil, err
	}
	if err := s.checkLogicalQuery(ctx, instance, name, v.definer, v.pb.Query); err != nil {
		return nil, within("logical_view", -1, err)
	}
	if err := s.putLogicalView(ctx, v); fault.KindOf(err) == fault.Aborted {
		return nil, alreadyThere("logical_view_id", logicalViewForm.kind, name)
	} else if err != nil {
		return nil, err
	}
	// A table of that name, or the end of the instance, may have come meanwhile.
	err = s.logicalNameFree(ctx, instance, req.GetLogicalViewId())
	if err == nil {
		_, err = s.instanceForTables(ctx, "parent", instance)
	}
	if err != nil {
		if e := s.b.DeleteRecord(ctx, logicalPrefix+name, v.version); e != nil && fault.KindOf(e) != fault.Aborted {
			return nil, e
		}
		return nil, err
	}
	return s.finished(ctx, name, &adminpb.CreateLogicalViewMetadata{
		OriginalRequest: req, StartTime: start, EndTime: timestamppb.New(s.o.Now()),
	}, v.pb)
}

// GetLogicalView implements I26.
func (s *instanceServer) GetLogicalView(ctx context.Context, req *adminpb.GetLogicalViewRequest) (*adminpb.LogicalView, error) {
	v, err := s.logicalViewAt(ctx, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	return v.pb, nil
}

// ListLogicalViews implements I27. A page may have fewer than were asked for.
func (s *instanceServer) ListLogicalViews(ctx context.Context, req *adminpb.ListLogicalViewsRequest) (*adminpb.ListLogicalViewsResponse, error) {
	ids, err := s.parse("parent", instanceForm, req.GetParent(), true)
	if err != nil {
		return nil, err
	}
	p, err := s.newPage(ctx, "logicalViews "+req.GetParent(), req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	prefix := logicalPrefix + parent(ids, instanceForm, 1) + "/instances/"
	if ids[1] != "-" {
		in := parent(ids, instanceForm, 2)
		if _, err := s.instanceForTables(ctx, "parent", in); err != nil {
			return nil, err
		}
		prefix = logicalPrefix + in + "/logicalViews/"
	}
	resp := new(adminpb.ListLogicalViewsResponse)
	size, last := 0, ""
	err = s.b.ListRecords(ctx, prefix, func(key string, b []byte, version uint64) error {
		if key <= p.after {
			return nil
		}
		v, err := decodeLogicalView(b, version)
		if err != nil {
			return err
		}
		size += proto.Size(v.pb)
		if n := len(resp.LogicalViews); n > 0 && size > viewPage || p.size > 0 && n == int(p.size) {
			return errPageFull
		}
		resp.LogicalViews = append(resp.LogicalViews, v.pb)
		last = key
		return nil
	})
	if errors.Is(err, errPageFull) {
		resp.NextPageToken, err = p.next(ctx, s.Admin, last)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

var logicalViewMask = maskRule{allowed: []string{"query", "deletion_protection"}, ignored: []string{"name", "etag"}}

// UpdateLogicalView implements I28. Statements that were prepared with the old query
// expire with its etag.
func (s *instanceServer) UpdateLogicalView(ctx context.Context, req *adminpb.UpdateLogicalViewRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in := req.GetLogicalView()
	mask, err := optionalMask(req.GetUpdateMask(), in, logicalViewMask)
	if err != nil {
		return nil, err
	}
	for {
		v, err := s.logicalViewAt(ctx, "logical_view.name", in.GetName())
		if err != nil {
			return nil, err
		}
		if e := in.GetEtag(); e != "" && e != v.pb.GetEtag() {
			return nil, refuse(fault.Aborted, "logical_view.etag", "%s was changed since it was read: %s", logicalViewForm.kind, v.pb.GetName())
		}
		was := v.pb.GetQuery()
		applyMask(v.pb, in, mask, logicalViewMask)
		if q := v.pb.GetQuery(); q == "" {
			return nil, within("logical_view", -1, refuse(fault.Invalid, "query", "Error in field 'query' : Must not be empty"))
		} else if q != was || masks(mask, "query") {
			// Who says what it reads is whose rights it reads with.
			v.definer = s.o.Member(ctx)
			instance, _, _ := strings.Cut(v.pb.GetName(), "/logicalViews/")
			if err := s.checkLogicalQuery(ctx, instance, v.pb.GetName(), v.definer, q); err != nil {
				return nil, within("logical_view", -1, err)
			}
		}
		v.pb.Etag = randomText()
		switch err := s.putLogicalView(ctx, v); {
		case fault.KindOf(err) == fault.Aborted && ctx.Err() == nil:
			continue
		case err != nil:
			return nil, err
		}
		return s.finished(ctx, v.pb.GetName(), &adminpb.UpdateLogicalViewMetadata{
			OriginalRequest: req, StartTime: start, EndTime: timestamppb.New(s.o.Now()),
		}, v.pb)
	}
}

// DeleteLogicalView implements I29.
func (s *instanceServer) DeleteLogicalView(ctx context.Context, req *adminpb.DeleteLogicalViewRequest) (*emptypb.Empty, error) {
	for {
		v, err := s.logicalViewAt(ctx, "name", req.GetName())
		if err != nil {
			return nil, err
		}
		name := v.pb.GetName()
		if e := req.GetEtag(); e != "" && e != v.pb.GetEtag() {
			return nil, refuse(fault.Aborted, "etag", "%s was changed since it was read: %s", logicalViewForm.kind, name)
		}
		if v.pb.GetDeletionProtection() {
			return nil, refuse(fault.FailedPrecondition, "name", "Logical view %s cannot be deleted: it has deletion protection", name)
		}
		switch err := s.b.DeleteRecord(ctx, logicalPrefix+name, v.version); {
		case fault.KindOf(err) == fault.Aborted && ctx.Err() == nil:
			continue
		case err != nil:
			return nil, orMissing(err, "name", logicalViewForm.kind, name)
		}
		// No request finds the policy any more. If this fails it goes with the instance.
		key := policyOfLogicalView(v)
		if _, version, err := s.b.GetRecord(ctx, key); err == nil {
			_ = s.b.DeleteRecord(ctx, key, version)
		}
		return new(emptypb.Empty), nil
	}
}

// policyOfLogicalView is the record of a view's policy.
func policyOfLogicalView(v *logicalView) string {
	return policyPrefix + v.pb.GetName() + "#" + v.incarnation
}

// noProtectedLogicalViews refuses to delete an instance in which a logical view is
// protected.
func (a *Admin) noProtectedLogicalViews(ctx context.Context, instance string) error {
	vs, err := a.logicalViewsOf(ctx, instance)
	if err != nil {
		return err
	}
	for _, v := range vs {
		if v.pb.GetDeletionProtection() {
			return refuse(fault.FailedPrecondition, "name", "Instance %s cannot be deleted: logical view %s has deletion protection", instance, v.pb.GetName())
		}
	}
	return nil
}

// LogicalView implements sql.Resources. It sees every change that was made before it
// was called, by whichever gateway.
func (a *Admin) LogicalView(ctx context.Context, instance, id string) (sql.View, error) {
	name := instance + "/logicalViews/" + id
	if !wire.TableID(id) {
		return sql.View{}, missing("", logicalViewForm.kind, name)
	}
	b, version, err := a.b.GetRecord(ctx, logicalPrefix+name)
	if err != nil {
		return sql.View{}, orMissing(err, "", logicalViewForm.kind, name)
	}
	v, err := decodeLogicalView(b, version)
	if err != nil {
		return sql.View{}, err
	}
	return sql.View{Name: name, Query: v.pb.GetQuery(), Definer: v.definer, Incarnation: v.incarnation, Etag: v.pb.GetEtag()}, nil
}

// LogicalViews implements sql.Resources.
func (a *Admin) LogicalViews(ctx context.Context, instance string) ([]string, error) {
	vs, err := a.logicalViewsOf(ctx, instance)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(vs))
	for _, v := range vs {
		ids = append(ids, strings.TrimPrefix(v.pb.GetName(), instance+"/logicalViews/"))
	}
	return ids, nil
}
