package data

import (
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/chunk"
	"github.com/trestledb/trestle/gateway/wire"
)

func readRowsHandler(srv any, stream grpc.ServerStream) error {
	req := new(bigtablepb.ReadRowsRequest)
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	return srv.(*Service).readRows(req, stream)
}

func (s *Service) readRows(req *bigtablepb.ReadRowsRequest, stream grpc.ServerStream) error {
	start := time.Now()
	ctx := stream.Context()
	if err := s.open(ctx, req.GetTableName(), req.GetAuthorizedViewName(), req.GetMaterializedViewName(), req.GetAppProfileId(), read); err != nil {
		return err
	}
	features := wire.Features(ctx)
	if req.GetReversed() && !features.GetReverseScans() {
		return fault.New(fault.Unimplemented, "Client doesn't support reverse scans yet")
	}
	r, err := scanRequest(req)
	if err != nil {
		return err
	}
	if len(r.Ranges) != 1 || !r.Ranges[0].IsSingle() {
		// Clients wait for the headers before anything else; the first row may be
		// far. A single row is answered so soon that they come with it.
		if err := stream.SendHeader(nil); err != nil {
			return err
		}
	}
	w := chunk.NewWriter(chunk.Options{
		Send: func(b mem.BufferSlice) error {
			m := wire.NewBuffers(b)
			defer m.Free()
			return stream.SendMsg(m)
		},
		Budget:      s.opt.Budget,
		LastScanned: features.GetLastScannedRowResponses(),
	})
	defer w.Close()
	stats, err := s.backend.ReadRows(ctx, r, w)
	if err != nil {
		// What was read is good: the client resumes behind it.
		if ctx.Err() == nil {
			_ = w.Flush()
		}
		return err
	}
	var tail []byte
	if req.GetRequestStatsView() == bigtablepb.ReadRowsRequest_REQUEST_STATS_FULL {
		if tail, err = encodeStats(stats, time.Since(start)); err != nil {
			return err
		}
	}
	return w.Finish(tail)
}

// scanRequest converts what is to be read.
func scanRequest(req *bigtablepb.ReadRowsRequest) (*scan.Request, error) {
	if req.GetRowsLimit() < 0 {
		return nil, fault.InvalidField("rows_limit", "rows_limit must be >= 0, but got %d", req.GetRowsLimit())
	}
	ranges, err := wire.RowSet(req.GetRows())
	if err != nil {
		return nil, err
	}
	f, err := wire.Filter("filter", req.GetFilter())
	if err != nil {
		return nil, err
	}
	return &scan.Request{Table: req.GetTableName(), Ranges: ranges, Limit: req.GetRowsLimit(),
		Reversed: req.GetReversed(), Filter: f}, nil
}

// encodeStats returns the request_stats field of a ReadRowsResponse.
func encodeStats(st scan.Stats, latency time.Duration) ([]byte, error) {
	return proto.Marshal(&bigtablepb.ReadRowsResponse{RequestStats: &bigtablepb.RequestStats{
		StatsView: &bigtablepb.RequestStats_FullReadStatsView{FullReadStatsView: &bigtablepb.FullReadStatsView{
			ReadIterationStats: &bigtablepb.ReadIterationStats{
				RowsSeenCount: max(st.RowsSeen, st.RowsReturned), RowsReturnedCount: st.RowsReturned,
				CellsSeenCount: max(st.CellsSeen, st.CellsReturned), CellsReturnedCount: st.CellsReturned,
			},
			RequestLatencyStats: &bigtablepb.RequestLatencyStats{FrontendServerLatency: durationpb.New(latency)},
		}},
	}})
}
