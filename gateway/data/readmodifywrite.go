package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/gateway/wire"
)

// ReadModifyWriteRow implements bigtablepb.BigtableServer.
func (s *Service) ReadModifyWriteRow(ctx context.Context, req *bigtablepb.ReadModifyWriteRowRequest) (*bigtablepb.ReadModifyWriteRowResponse, error) {
	if err := s.open(ctx, req.GetTableName(), req.GetAuthorizedViewName(), "", req.GetAppProfileId(), transact); err != nil {
		return nil, err
	}
	if err := wire.Key(req.GetRowKey()); err != nil {
		return nil, err
	}
	rules, err := wire.Rules(req.GetRules())
	if err != nil {
		return nil, err
	}
	cells, err := s.backend.ReadModifyWriteRow(ctx, req.GetTableName(), req.GetRowKey(), rules)
	if err != nil {
		return nil, err
	}
	return &bigtablepb.ReadModifyWriteRowResponse{Row: wire.Row(req.GetRowKey(), cells)}, nil
}
