package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// CheckAndMutateRow implements bigtablepb.BigtableServer.
func (s *Service) CheckAndMutateRow(ctx context.Context, req *bigtablepb.CheckAndMutateRowRequest) (*bigtablepb.CheckAndMutateRowResponse, error) {
	if err := s.open(ctx, req.GetTableName(), req.GetAuthorizedViewName(), "", req.GetAppProfileId(), transact); err != nil {
		return nil, err
	}
	if err := wire.Key(req.GetRowKey()); err != nil {
		return nil, err
	}
	if len(req.GetTrueMutations()) == 0 && len(req.GetFalseMutations()) == 0 {
		return nil, fault.InvalidField("true_mutations", "No mutations provided")
	}
	then, err := wire.Mutations("true_mutations", req.GetTrueMutations())
	if err != nil {
		return nil, err
	}
	otherwise, err := wire.Mutations("false_mutations", req.GetFalseMutations())
	if err != nil {
		return nil, err
	}
	predicate, err := wire.Filter("predicate_filter", req.GetPredicateFilter())
	if err != nil {
		return nil, err
	}
	matched, err := s.backend.CheckAndMutateRow(ctx, req.GetTableName(), req.GetRowKey(), predicate, then, otherwise)
	if err != nil {
		return nil, err
	}
	return &bigtablepb.CheckAndMutateRowResponse{PredicateMatched: matched}, nil
}
