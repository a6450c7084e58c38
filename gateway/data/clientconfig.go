package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
)

// GetClientConfiguration implements bigtablepb.BigtableServer. Where there are
// no sessions no request goes through one, and there is no need to ask again.
func (s *Service) GetClientConfiguration(ctx context.Context, req *bigtablepb.GetClientConfigurationRequest) (*bigtablepb.ClientConfiguration, error) {
	if err := s.instance(ctx, "instance_name", req.GetInstanceName(), req.GetAppProfileId()); err != nil {
		return nil, err
	}
	if s.sessions != nil {
		return s.sessions.Configuration(ctx), nil
	}
	return &bigtablepb.ClientConfiguration{
		SessionConfiguration: &bigtablepb.SessionClientConfiguration{SessionLoad: 0},
		Polling:              &bigtablepb.ClientConfiguration_StopPolling{StopPolling: true},
	}, nil
}
