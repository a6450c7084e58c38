package data

import (
	"bytes"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/wire"
)

// SampleRowKeys implements bigtablepb.BigtableServer.
func (s *Service) SampleRowKeys(req *bigtablepb.SampleRowKeysRequest, stream bigtablepb.Bigtable_SampleRowKeysServer) error {
	ctx := stream.Context()
	t, err := s.open(ctx, req.GetTableName(), req.GetAuthorizedViewName(), req.GetMaterializedViewName(), req.GetAppProfileId(), read)
	if err != nil {
		return err
	}
	within, err := wire.RowRange(req.GetRowRange())
	if err != nil {
		return err
	}
	// Collected first, so that a slow client cannot keep the backend waiting.
	// There are as many as tablets.
	var samples []scan.Sample
	for _, r := range t.ranges([]row.Range{within}) {
		err := s.backend.SampleRowKeys(ctx, t.table, r, func(sm scan.Sample) error {
			samples = append(samples, scan.Sample{Key: bytes.Clone(sm.Key), Offset: sm.Offset})
			return nil
		})
		if err != nil {
			return t.refusal(err)
		}
	}
	for _, sm := range samples {
		if err := stream.Send(&bigtablepb.SampleRowKeysResponse{RowKey: sm.Key, OffsetBytes: sm.Offset}); err != nil {
			return err
		}
	}
	return nil
}
