package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/gateway/wire"
)

func (s *Service) readModifyWriteRow(ctx context.Context, req *wire.ReadModifyWriteRowRequest) (any, error) {
	t, err := s.open(ctx, req.Table, req.View, "", req.Profile, transact)
	if err != nil {
		return nil, err
	}
	if err := req.Check(); err != nil {
		return nil, err
	}
	if t.view != nil {
		if err := t.view.CheckRules(req.Key, req.Rules); err != nil {
			return nil, err
		}
	}
	cells, err := s.backend.ReadModifyWriteRow(ctx, t.table, req.Key, req.Rules)
	if err != nil {
		return nil, err
	}
	// Encoded here, since the key and what the backend took from the rules
	// alias the request.
	b, err := proto.Marshal(&bigtablepb.ReadModifyWriteRowResponse{Row: wire.Row(req.Key, cells)})
	return wire.Encoded(b), err
}
