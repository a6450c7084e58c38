package master

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/row"
)

// region returns a region that is here, with its table, which is nil for those
// of computed tables.
func (m *Master) region(ctx context.Context, c *server.Call, change bool, s *pb.RegionSpecifier) (context.Context, *model.Region, *model.Table, error) {
	r, t, err := m.catalog.RegionNow(ctx, s)
	if errors.Is(err, model.ErrMoved) {
		return ctx, nil, nil, wire.UnknownRegion.New("%s", s.GetValue())
	}
	if err != nil {
		return ctx, nil, nil, err
	}
	switch {
	case t == nil:
		ctx, err = m.known(ctx, c)
	case change:
		ctx, err = m.authorize(ctx, c, toModify, t.Resource)
	default:
		ctx, err = m.authorize(ctx, c, toSee, t.Resource)
	}
	return ctx, r, t, err
}

func rows(r *model.Region) row.Range { return row.Range{Start: r.Start, End: r.End} }

var noTablets = unsupported("this store's tablets are not worked on by hand")

// moveRegion moves a region, with its tablet, to the tablet server of the process
// that is named, or to any other. A server that is alone moves it to where it is.
func (m *Master) moveRegion(ctx context.Context, c *server.Call, req *pb.MoveRegionRequest) (*pb.MoveRegionResponse, error) {
	ctx, r, t, err := m.region(ctx, c, true, req.GetRegion())
	if err != nil {
		return nil, err
	}
	at, d := m.catalog.At(r), req.GetDestServerName()
	places := m.catalog.Places()
	if t == nil || m.tablets == nil || len(places) == 0 {
		if d != nil && (d.GetHostName() != at.Host || d.GetPort() != at.Port) {
			return nil, wire.DoNotRetryIO.New("region %s is at %s and stays there", r, at)
		}
		return &pb.MoveRegionResponse{}, nil
	}
	owner, to := m.catalog.Owner(r), ""
	rand.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	for _, p := range places {
		switch {
		case d == nil && p.Tablets != "" && p.Tablets != owner:
			to = p.Tablets
		case d != nil && p.Host == d.GetHostName() && p.Port == d.GetPort():
			if to = p.Tablets; to == "" {
				return nil, wire.DoNotRetryIO.New("%s has no tablet server, so no region can be at it", p)
			}
		}
	}
	switch {
	case to == "" && d != nil:
		return nil, wire.DoNotRetryIO.New("Unable to determine a plan to move region: no server %s,%d lives", d.GetHostName(), d.GetPort())
	case to == "": // it is where it can be
		return &pb.MoveRegionResponse{}, nil
	}
	m.o.Log.LogAttrs(ctx, slog.LevelInfo, "HBase region moved", slog.String("region", r.String()), slog.String("server", to))
	return &pb.MoveRegionResponse{}, m.tablets.MoveAt(ctx, t.Resource, r.Start, to)
}

func (m *Master) assignRegion(ctx context.Context, c *server.Call, req *pb.AssignRegionRequest) (*pb.AssignRegionResponse, error) {
	_, _, _, err := m.region(ctx, c, true, req.GetRegion()) // which is assigned, then
	return &pb.AssignRegionResponse{}, err
}

func (m *Master) splitRegion(ctx context.Context, c *server.Call, req *pb.SplitTableRegionRequest) (*pb.SplitTableRegionResponse, error) {
	info := req.GetRegionInfo()
	name := model.NameOf(info.GetTableName())
	id, err := m.change(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toModify, "HBase region split", name, func(ctx context.Context) error {
		if m.tablets == nil {
			return noTablets
		}
		t, err := m.table(ctx, name)
		if err != nil {
			return err
		}
		regions, err := m.catalog.Regions(ctx, t)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(regions, func(r *model.Region) bool {
			return r.ID == info.GetRegionId() && bytes.Equal(r.Start, info.GetStartKey()) && bytes.Equal(r.End, info.GetEndKey())
		})
		key := req.GetSplitRow()
		if len(key) == 0 && i >= 0 {
			var ok bool
			if key, ok, err = m.tablets.SplitKey(ctx, t.Resource, info.GetStartKey()); err != nil {
				return err
			}
			if !ok {
				return wire.DoNotRetryIO.New("Region not splittable because bestSplitPoint = null, maybe table is too small for auto split. For force split, try specifying split row")
			}
		}
		switch {
		case i < 0:
			return wire.UnknownRegion.New("%s: no region %d begins at %q", name, info.GetRegionId(), info.GetStartKey())
		case bytes.Equal(key, info.GetStartKey()):
			return wire.DoNotRetryIO.New("Split row is equal to startkey: %q", key)
		case !regions[i].Contains(key):
			return wire.DoNotRetryIO.New("Split row is not inside region key range splitKey:%q, region: %v", key, regions[i])
		}
		return m.tablets.SplitAt(ctx, t.Resource, key)
	})
	if err != nil {
		return nil, err
	}
	return &pb.SplitTableRegionResponse{ProcId: id}, nil
}

func (m *Master) mergeTableRegions(ctx context.Context, c *server.Call, req *pb.MergeTableRegionsRequest) (*pb.MergeTableRegionsResponse, error) {
	if m.tablets == nil {
		return nil, noTablets
	}
	var list []*model.Region
	var table *model.Table
	for _, s := range req.GetRegion() {
		_, r, t, err := m.region(ctx, c, true, s)
		if err != nil {
			return nil, err
		}
		if t == nil || table != nil && t.Schema.ID != table.Schema.ID {
			return nil, wire.DoNotRetryIO.New("Can't merge regions from two different tables, or of a computed one")
		}
		list, table = append(list, r), t
	}
	if len(list) < 2 {
		return nil, wire.DoNotRetryIO.New("Can't merge fewer than two regions")
	}
	slices.SortFunc(list, func(a, b *model.Region) int { return bytes.Compare(a.Start, b.Start) })
	for i, r := range list[1:] {
		if !bytes.Equal(list[i].End, r.Start) {
			return nil, wire.Class{Name: "org.apache.hadoop.hbase.exceptions.MergeRegionException", DoNotRetry: true}.New(
				"Unable to merge non-adjacent or non-overlapping regions %v, %v", list[i], r)
		}
	}
	id, err := m.change(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toModify, "HBase regions merged", table.Name, func(ctx context.Context) error {
		for range len(list) - 1 {
			if err := m.tablets.MergeAt(ctx, table.Resource, list[0].Start); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &pb.MergeTableRegionsResponse{ProcId: id}, nil
}

func (m *Master) flushRegion(ctx context.Context, c *server.Call, req *pb.FlushRegionRequest) (*pb.FlushRegionResponse, error) {
	ctx, r, t, err := m.region(ctx, c, true, req.GetRegion())
	if err != nil {
		return nil, err
	}
	if t != nil {
		if m.tablets == nil {
			return nil, noTablets
		}
		if err := m.tablets.FlushTablets(ctx, t.Resource, rows(r)); err != nil {
			return nil, err
		}
	}
	return &pb.FlushRegionResponse{LastFlushTime: proto.Uint64(uint64(time.Now().UnixMilli())), Flushed: proto.Bool(t != nil), WroteFlushWalMarker: proto.Bool(false)}, nil
}

func (m *Master) compacting(r *model.Region) bool {
	m.compactions.Lock()
	defer m.compactions.Unlock()
	return m.compactions.running[r.Encoded()] > 0
}

// compactRegion begins a compaction, as in HBase: the caller does not wait for it.
func (m *Master) compactRegion(ctx context.Context, c *server.Call, req *pb.CompactRegionRequest) (*pb.CompactRegionResponse, error) {
	_, r, t, err := m.region(ctx, c, true, req.GetRegion())
	if err != nil || t == nil {
		return &pb.CompactRegionResponse{}, err
	}
	if m.tablets == nil {
		return nil, noTablets
	}
	m.compactions.Lock()
	defer m.compactions.Unlock()
	if m.ctx.Err() != nil {
		return nil, wire.ServerStopped.New("the server is about to stop")
	}
	if m.compactions.running[r.Encoded()] > 0 {
		return &pb.CompactRegionResponse{}, nil // that one does
	}
	m.compactions.running[r.Encoded()]++
	m.work.Go(func() {
		err := m.tablets.CompactTablets(m.ctx, t.Resource, rows(r), func(int64, int64) {})
		if err != nil && m.ctx.Err() == nil {
			m.o.Log.LogAttrs(m.ctx, slog.LevelWarn, "HBase client's compaction failed", slog.String("table", t.Name.String()), slog.Any("error", err))
		}
		m.compactions.Lock()
		defer m.compactions.Unlock()
		delete(m.compactions.running, r.Encoded())
	})
	return &pb.CompactRegionResponse{}, nil
}

func (m *Master) getRegionInfo(ctx context.Context, c *server.Call, req *pb.GetRegionInfoRequest) (*pb.GetRegionInfoResponse, error) {
	ctx, r, t, err := m.region(ctx, c, false, req.GetRegion())
	if err != nil {
		if is(err, wire.UnknownRegion) {
			err = wire.NotServingRegion.New("%s", req.GetRegion().GetValue())
		}
		return nil, err
	}
	resp := &pb.GetRegionInfoResponse{RegionInfo: r.Info(), Splittable: proto.Bool(t != nil), Mergeable: proto.Bool(t != nil)}
	if req.GetBestSplitRow() && t != nil && m.tablets != nil {
		key, ok, err := m.tablets.SplitKey(ctx, t.Resource, r.Start)
		if err != nil {
			return nil, err
		}
		if ok {
			resp.BestSplitRow = key
		}
	}
	if req.GetCompactionState() {
		resp.CompactionState = pb.GetRegionInfoResponse_NONE.Enum()
		if m.compacting(r) {
			resp.CompactionState = pb.GetRegionInfoResponse_MAJOR.Enum()
		}
	}
	return resp, nil
}

func (m *Master) getOnlineRegion(ctx context.Context, c *server.Call, _ *pb.GetOnlineRegionRequest) (*pb.GetOnlineRegionResponse, error) {
	list, err := m.byState(ctx, c, true)
	if err != nil {
		return nil, err
	}
	resp := &pb.GetOnlineRegionResponse{RegionInfo: []*pb.RegionInfo{model.MetaRegion.Info()}}
	for _, t := range list {
		regions, err := m.catalog.Regions(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, r := range regions {
			if m.catalog.At(r) == m.catalog.Server() {
				resp.RegionInfo = append(resp.RegionInfo, r.Info())
			}
		}
	}
	return resp, nil
}

func (m *Master) getRegionLoad(ctx context.Context, c *server.Call, req *pb.GetRegionLoadRequest) (*pb.GetRegionLoadResponse, error) {
	resp := &pb.GetRegionLoadResponse{}
	var list []*model.Table
	if req.GetTableName() != nil {
		name := model.NameOf(req.GetTableName())
		if name == model.Meta {
			resp.RegionLoads = append(resp.RegionLoads, m.load(sized{Region: model.MetaRegion}, 1))
		}
		if name.System() {
			return resp, nil
		}
		ctx, err := m.authorize(ctx, c, toSee, m.catalog.Mapping().Resource(name))
		if err != nil {
			return nil, err
		}
		t, err := m.table(ctx, name)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	} else {
		var err error
		if list, err = m.byState(ctx, c, true); err != nil {
			return nil, err
		}
		resp.RegionLoads = append(resp.RegionLoads, m.load(sized{Region: model.MetaRegion}, 1))
	}
	for _, t := range list {
		if !t.Enabled() {
			continue
		}
		regions, err := m.regions(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, r := range regions {
			if m.catalog.At(r.Region) == m.catalog.Server() {
				resp.RegionLoads = append(resp.RegionLoads, m.load(r, len(t.Schema.Families)))
			}
		}
	}
	return resp, nil
}
