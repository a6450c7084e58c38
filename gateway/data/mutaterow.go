package data

import (
	"context"

	"github.com/trestledb/trestle/gateway/wire"
)

// empty is an empty message, ready to be sent.
var empty any = wire.Encoded(nil)

func (s *Service) mutateRow(ctx context.Context, req *wire.MutateRowRequest) (any, error) {
	if err := s.open(ctx, req.Table, req.View, "", req.Profile, write); err != nil {
		return nil, err
	}
	if err := req.Check(); err != nil {
		return nil, err
	}
	if err := s.backend.MutateRow(ctx, req.Table, &req.Entry); err != nil {
		return nil, err
	}
	return empty, nil
}
