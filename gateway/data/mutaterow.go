package data

import (
	"context"

	"github.com/trestledb/trestle/gateway/wire"
)

// empty is an empty message, ready to be sent.
var empty any = wire.Encoded(nil)

func (s *Service) mutateRow(ctx context.Context, req *wire.MutateRowRequest) (any, error) {
	t, err := s.open(ctx, req.Table, req.View, "", req.Profile, write)
	if err != nil {
		return nil, err
	}
	if err := req.Check(); err != nil {
		return nil, err
	}
	if err := t.check(req.Entry.Key, req.Entry.Mutations); err != nil {
		return nil, err
	}
	if err := s.backend.MutateRow(ctx, t.table, &req.Entry); err != nil {
		return nil, err
	}
	return empty, nil
}
