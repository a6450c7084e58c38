package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// PingAndWarm implements bigtablepb.BigtableServer. Clients call it on every
// connection and take NotFound for success.
func (s *Service) PingAndWarm(ctx context.Context, req *bigtablepb.PingAndWarmRequest) (*bigtablepb.PingAndWarmResponse, error) {
	if err := s.instance(ctx, "name", req.GetName(), req.GetAppProfileId()); err != nil {
		return nil, err
	}
	if !s.opt.LaxNames {
		tables, err := s.tables.ListTables(ctx, req.GetName())
		if err != nil {
			return nil, err
		}
		if len(tables) == 0 {
			return nil, fault.New(fault.NotFound, "No tables found for instance")
		}
	}
	return &bigtablepb.PingAndWarmResponse{}, nil
}

// instance checks a request that names an instance.
func (s *Service) instance(ctx context.Context, field, name, profile string) error {
	if err := wire.CheckInstance(field, name, s.opt.LaxNames); err != nil {
		return err
	}
	if s.opt.Instance != nil && !s.opt.LaxNames {
		if err := s.opt.Instance(ctx, name); err != nil {
			return err
		}
	}
	return s.profile(ctx, name, profile, read)
}
