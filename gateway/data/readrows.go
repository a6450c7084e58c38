package data

import (
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/chunk"
	"github.com/trestledb/trestle/gateway/wire"
)

// scanBytes is what a scan takes while it lasts, whatever it reads: two small
// segments, its stack, its iterators and gRPC's stream.
const scanBytes = 64 << 10

func (s *Service) readRows(req *wire.ReadRowsRequest, stream grpc.ServerStream) error {
	start := time.Now()
	ctx := stream.Context()
	t, err := s.open(ctx, req.Table, req.View, req.Materialized, req.Profile, read)
	if err != nil {
		return err
	}
	features := wire.Features(ctx)
	if req.Reversed && !features.GetReverseScans() {
		return fault.New(fault.Unimplemented, "Client doesn't support reverse scans yet")
	}
	if err := req.Check(); err != nil {
		return err
	}
	f, err := t.filter(req.Filter)
	if err != nil {
		return err
	}
	if len(req.Ranges) != 1 || !req.Ranges[0].IsSingle() {
		// Clients wait for the headers before anything else; the first row may be
		// far. A single row is answered so soon that they come with it. Headers name
		// the cluster that has the table, so there must be one.
		if _, err := s.tables.Table(ctx, t.table); err != nil {
			return t.refusal(err)
		}
		if !s.opt.Budget.Try(scanBytes) {
			return budget.Busy()
		}
		defer s.opt.Budget.Release(scanBytes)
		if err := stream.SendHeader(nil); err != nil {
			return err
		}
	}
	send := func(b mem.BufferSlice) error {
		m := wire.NewBuffers(b)
		defer m.Free()
		return stream.SendMsg(m)
	}
	w := chunk.NewWriter(chunk.Options{
		Send: func(b mem.BufferSlice) error {
			if b.Len() > chunk.MaxMessage && !wire.WholeRows(ctx) {
				return chunk.Parts(b, send)
			}
			return send(b)
		},
		Budget:      s.opt.Budget,
		Page:        req.Limit > fewRows && req.Limit <= pageRows,
		LastScanned: features.GetLastScannedRowResponses(),
	})
	defer w.Close()
	stats, err := s.backend.ReadRows(ctx, &scan.Request{Table: t.table, Ranges: t.ranges(req.Ranges), Limit: req.Limit,
		Reversed: req.Reversed, Filter: f}, w)
	if err != nil {
		// What was read is good: the client resumes behind it.
		if ctx.Err() == nil {
			_ = w.Flush()
		}
		return t.refusal(err)
	}
	var tail []byte
	if req.FullStats {
		if tail, err = encodeStats(stats, time.Since(start)); err != nil {
			return err
		}
	}
	wire.LastMessage(ctx) // where there are several, the others have left
	return w.Finish(tail)
}

// A client that limits its rows to more than fewRows, which are as soon answered as the
// first of them, and to pageRows at most, waits for all of them: a message that goes out
// before the others costs it as much as 20 rows, and storage the block that both are in.
const fewRows, pageRows = 16, 1000

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
