package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/gateway/wire"
)

func (s *Service) checkAndMutateRow(ctx context.Context, req *wire.CheckAndMutateRowRequest) (any, error) {
	if err := s.open(ctx, req.Table, req.View, "", req.Profile, transact); err != nil {
		return nil, err
	}
	if err := req.Check(); err != nil {
		return nil, err
	}
	matched, err := s.backend.CheckAndMutateRow(ctx, req.Table, req.Key, req.Predicate, req.Then, req.Otherwise)
	if err != nil {
		return nil, err
	}
	return &bigtablepb.CheckAndMutateRowResponse{PredicateMatched: matched}, nil
}
