package admin

import (
	"context"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// Logical and materialized views are defined by SQL, which nothing here
// understands. So none can be created, none is there, and a well-formed
// request to find, list, change or delete one is answered accordingly.

var (
	logicalViewForm      = form{"Logical view", []string{"projects", "instances", "logicalViews"}}
	materializedViewForm = form{"Materialized view", []string{"projects", "instances", "materializedViews"}}
)

// noSQLView is why there is no view called name, which came in field.
func (a *Admin) noSQLView(ctx context.Context, field string, f form, name string) error {
	ids, err := a.parse(field, f, name)
	if err != nil {
		return err
	}
	if _, err := a.instanceForTables(ctx, field, parent(ids, f, 2)); err != nil {
		return err
	}
	return missing(field, f.kind, name)
}

// newSQLView is why a view is not created.
func (a *Admin) newSQLView(ctx context.Context, f form, in, idField, id, queryField, query string) error {
	ids, err := a.parse("parent", instanceForm, in)
	if err != nil {
		return err
	}
	if _, err := a.instanceForTables(ctx, "parent", parent(ids, instanceForm, 2)); err != nil {
		return err
	}
	if err := newID(idField, f.collections[2], id, tableIDPattern, wire.TableID, 1, maxChildID); err != nil {
		return err
	}
	if query == "" {
		return within(queryField, -1, refuse(fault.Invalid, "query", "Error in field 'query' : Must not be empty"))
	}
	return refuse(fault.Unimplemented, queryField+".query", "%ss need SQL, which is not supported", f.kind)
}

// listSQLViews checks a listing, which is empty.
func (a *Admin) listSQLViews(ctx context.Context, f form, in string, size int32, token string) error {
	ids, err := a.parse("parent", instanceForm, in, true)
	if err != nil {
		return err
	}
	if _, err := a.newPage(ctx, f.collections[2]+" "+in, size, token); err != nil {
		return err
	}
	if ids[1] == "-" {
		return nil
	}
	_, err = a.instanceForTables(ctx, "parent", parent(ids, instanceForm, 2))
	return err
}

// CreateLogicalView implements I25.
func (s *instanceServer) CreateLogicalView(ctx context.Context, req *adminpb.CreateLogicalViewRequest) (*longrunningpb.Operation, error) {
	return nil, s.newSQLView(ctx, logicalViewForm, req.GetParent(), "logical_view_id", req.GetLogicalViewId(), "logical_view", req.GetLogicalView().GetQuery())
}

// GetLogicalView implements I26.
func (s *instanceServer) GetLogicalView(ctx context.Context, req *adminpb.GetLogicalViewRequest) (*adminpb.LogicalView, error) {
	return nil, s.noSQLView(ctx, "name", logicalViewForm, req.GetName())
}

// ListLogicalViews implements I27.
func (s *instanceServer) ListLogicalViews(ctx context.Context, req *adminpb.ListLogicalViewsRequest) (*adminpb.ListLogicalViewsResponse, error) {
	return new(adminpb.ListLogicalViewsResponse), s.listSQLViews(ctx, logicalViewForm, req.GetParent(), req.GetPageSize(), req.GetPageToken())
}

// UpdateLogicalView implements I28.
func (s *instanceServer) UpdateLogicalView(ctx context.Context, req *adminpb.UpdateLogicalViewRequest) (*longrunningpb.Operation, error) {
	return nil, s.noSQLView(ctx, "logical_view.name", logicalViewForm, req.GetLogicalView().GetName())
}

// DeleteLogicalView implements I29.
func (s *instanceServer) DeleteLogicalView(ctx context.Context, req *adminpb.DeleteLogicalViewRequest) (*emptypb.Empty, error) {
	return nil, s.noSQLView(ctx, "name", logicalViewForm, req.GetName())
}

// CreateMaterializedView implements I30.
func (s *instanceServer) CreateMaterializedView(ctx context.Context, req *adminpb.CreateMaterializedViewRequest) (*longrunningpb.Operation, error) {
	return nil, s.newSQLView(ctx, materializedViewForm, req.GetParent(), "materialized_view_id", req.GetMaterializedViewId(), "materialized_view", req.GetMaterializedView().GetQuery())
}

// GetMaterializedView implements I31.
func (s *instanceServer) GetMaterializedView(ctx context.Context, req *adminpb.GetMaterializedViewRequest) (*adminpb.MaterializedView, error) {
	return nil, s.noSQLView(ctx, "name", materializedViewForm, req.GetName())
}

// ListMaterializedViews implements I32.
func (s *instanceServer) ListMaterializedViews(ctx context.Context, req *adminpb.ListMaterializedViewsRequest) (*adminpb.ListMaterializedViewsResponse, error) {
	return new(adminpb.ListMaterializedViewsResponse), s.listSQLViews(ctx, materializedViewForm, req.GetParent(), req.GetPageSize(), req.GetPageToken())
}

// UpdateMaterializedView implements I33.
func (s *instanceServer) UpdateMaterializedView(ctx context.Context, req *adminpb.UpdateMaterializedViewRequest) (*longrunningpb.Operation, error) {
	return nil, s.noSQLView(ctx, "materialized_view.name", materializedViewForm, req.GetMaterializedView().GetName())
}

// DeleteMaterializedView implements I34.
func (s *instanceServer) DeleteMaterializedView(ctx context.Context, req *adminpb.DeleteMaterializedViewRequest) (*emptypb.Empty, error) {
	return nil, s.noSQLView(ctx, "name", materializedViewForm, req.GetName())
}
