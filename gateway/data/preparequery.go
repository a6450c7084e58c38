package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/fault"
)

// errNoSQL answers where there are no queries.
var errNoSQL = fault.New(fault.Unimplemented, "This server has no SQL")

// PrepareQuery implements D10.
func (s *Service) PrepareQuery(ctx context.Context, req *bigtablepb.PrepareQueryRequest) (*bigtablepb.PrepareQueryResponse, error) {
	if s.opt.SQL == nil {
		return nil, errNoSQL
	}
	if err := s.instance(ctx, "instance_name", req.GetInstanceName(), req.GetAppProfileId()); err != nil {
		return nil, err
	}
	return s.opt.SQL.Prepare(ctx, req)
}
