package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/wire"
)

func (s *Service) checkAndMutateRow(ctx context.Context, req *wire.CheckAndMutateRowRequest) (any, error) {
	t, err := s.open(ctx, req.Table, req.View, "", req.Profile, transact)
	if err != nil {
		return nil, err
	}
	if err := req.Check(); err != nil {
		return nil, err
	}
	// Both, so that the answer does not tell whether the predicate matched.
	for _, muts := range [...][]row.Mutation{req.Then, req.Otherwise} {
		if err := t.check(req.Key, muts); err != nil {
			return nil, err
		}
	}
	predicate, err := t.filter(req.Predicate)
	if err != nil {
		return nil, err
	}
	matched, err := s.backend.CheckAndMutateRow(ctx, t.table, req.Key, predicate, req.Then, req.Otherwise)
	if err != nil {
		return nil, err
	}
	return &bigtablepb.CheckAndMutateRowResponse{PredicateMatched: matched}, nil
}
