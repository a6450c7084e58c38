package admin

import (
	"context"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/trestledb/trestle/engine/fault"
)

// Materialized views are kept up to date by nothing here. So none can be
// created, none is there, and a well-formed request to find, list, change or
// delete one is answered accordingly.

var materializedViewForm = form{"Materialized view", []string{"projects", "instances", "materializedViews"}}

// noMaterializedView is why there is no view called name, which came in field.
func (a *Admin) noMaterializedView(ctx context.Context, field, name string) error {
	ids, err := a.parse(field, materializedViewForm, name)
	if err != nil {
		return err
	}
	if _, err := a.instanceForTables(ctx, field, parent(ids, materializedViewForm, 2)); err != nil {
		return err
	}
	return missing(field, materializedViewForm.kind, name)
}

// CreateMaterializedView implements I30.
func (s *instanceServer) CreateMaterializedView(ctx context.Context, req *adminpb.CreateMaterializedViewRequest) (*longrunningpb.Operation, error) {
	_, err := s.newSQLView(ctx, materializedViewForm, req.GetParent(), "materialized_view_id", req.GetMaterializedViewId(), "materialized_view", req.GetMaterializedView().GetQuery())
	if err == nil {
		err = refuse(fault.Unimplemented, "materialized_view.query", "Materialized views are not supported")
	}
	return nil, err
}

// GetMaterializedView implements I31.
func (s *instanceServer) GetMaterializedView(ctx context.Context, req *adminpb.GetMaterializedViewRequest) (*adminpb.MaterializedView, error) {
	return nil, s.noMaterializedView(ctx, "name", req.GetName())
}

// ListMaterializedViews implements I32.
func (s *instanceServer) ListMaterializedViews(ctx context.Context, req *adminpb.ListMaterializedViewsRequest) (*adminpb.ListMaterializedViewsResponse, error) {
	ids, err := s.parse("parent", instanceForm, req.GetParent(), true)
	if err != nil {
		return nil, err
	}
	if _, err := s.newPage(ctx, "materializedViews "+req.GetParent(), req.GetPageSize(), req.GetPageToken()); err != nil {
		return nil, err
	}
	if ids[1] != "-" {
		if _, err := s.instanceForTables(ctx, "parent", parent(ids, instanceForm, 2)); err != nil {
			return nil, err
		}
	}
	return new(adminpb.ListMaterializedViewsResponse), nil
}

// UpdateMaterializedView implements I33.
func (s *instanceServer) UpdateMaterializedView(ctx context.Context, req *adminpb.UpdateMaterializedViewRequest) (*longrunningpb.Operation, error) {
	return nil, s.noMaterializedView(ctx, "materialized_view.name", req.GetMaterializedView().GetName())
}

// DeleteMaterializedView implements I34.
func (s *instanceServer) DeleteMaterializedView(ctx context.Context, req *adminpb.DeleteMaterializedViewRequest) (*emptypb.Empty, error) {
	return nil, s.noMaterializedView(ctx, "name", req.GetName())
}
