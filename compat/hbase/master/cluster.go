package master

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A sized is a region with the bytes of its SSTables, about.
type sized struct {
	*model.Region
	bytes int64
}

// regions returns a table's regions with their sizes.
func (m *Master) regions(ctx context.Context, t *model.Table) ([]sized, error) {
	list, err := m.catalog.Regions(ctx, t)
	if err != nil {
		return nil, err
	}
	// A table that is split in between shows its sizes one region off.
	var before int64
	var bytes []int64
	if err := m.b.SampleRowKeys(ctx, t.Resource, row.All, func(s scan.Sample) error {
		bytes = append(bytes, s.Offset-before)
		before = s.Offset
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]sized, len(list))
	for i, r := range list {
		out[i].Region = r
		if i < len(bytes) {
			out[i].bytes = max(bytes[i], 0)
		}
	}
	return out, nil
}

func megabytes(n int64) *uint32 { return proto.Uint32(uint32(min((n+1<<20-1)>>20, 1<<31))) }

func (m *Master) load(r sized, stores int) *pb.RegionLoad {
	l := &pb.RegionLoad{RegionSpecifier: r.Specifier(), Stores: proto.Uint32(uint32(stores)), StorefileSize_MB: megabytes(r.bytes), RegionSize_MB: megabytes(r.bytes)}
	l.CompactionState = pb.RegionLoad_NONE.Enum()
	if m.compacting(r.Region) {
		l.CompactionState = pb.RegionLoad_MAJOR.Enum()
	}
	return l
}

// heap returns the bytes of the process's memory in use, and its limit.
func heap() (used, limit int64) {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64()), debug.SetMemoryLimit(-1)
}

func (m *Master) getClusterStatus(ctx context.Context, c *server.Call, req *pb.GetClusterStatusRequest) (*pb.GetClusterStatusResponse, error) {
	if _, err := m.known(ctx, c); err != nil {
		return nil, err
	}
	want := func(o pb.Option) bool { return len(req.GetOptions()) == 0 || slices.Contains(req.GetOptions(), o) }
	me := m.catalog.Server().Proto()
	s := &pb.ClusterStatus{}
	if want(pb.Option_HBASE_VERSION) {
		s.HbaseVersion = &pb.HBaseVersionFileContent{Version: &m.o.Version}
	}
	if want(pb.Option_CLUSTER_ID) {
		s.ClusterId = &pb.ClusterId{ClusterId: proto.String(m.catalog.ClusterID())}
	}
	if want(pb.Option_MASTER) {
		s.Master = me
	}
	if want(pb.Option_BALANCER_ON) {
		f, _, err := m.switches(ctx)
		if err != nil {
			return nil, err
		}
		s.BalancerOn = proto.Bool(!f.Off["balancer"])
	}
	if want(pb.Option_SERVERS_NAME) {
		for _, server := range m.catalog.Servers() {
			s.ServersName = append(s.ServersName, server.Proto())
		}
	}
	if want(pb.Option_MASTER_INFO_PORT) {
		s.MasterInfoPort = proto.Int32(-1)
	}
	if !want(pb.Option_LIVE_SERVERS) && !want(pb.Option_TABLE_TO_REGIONS_COUNT) {
		return &pb.GetClusterStatusResponse{ClusterStatus: s}, nil
	}
	list, err := m.tables(ctx, c, "")
	if err != nil {
		return nil, err
	}
	loads := map[model.Server][]*pb.RegionLoad{m.catalog.Server(): {m.load(sized{Region: model.MetaRegion}, 1)}}
	for _, t := range list {
		regions, err := m.regions(ctx, t)
		if errors.Is(err, fault.NotFound) {
			continue // deleted a moment ago
		}
		if err != nil {
			return nil, err
		}
		n := uint32(len(regions))
		count := &pb.RegionStatesCount{OpenRegions: proto.Uint32(0), SplitRegions: proto.Uint32(0), ClosedRegions: proto.Uint32(0),
			RegionsInTransition: proto.Uint32(0), TotalRegions: &n}
		if t.Enabled() {
			count.OpenRegions = &n
			for _, r := range regions {
				at := m.catalog.At(r.Region)
				loads[at] = append(loads[at], m.load(r, len(t.Schema.Families)))
			}
		} else {
			count.ClosedRegions = &n
		}
		if want(pb.Option_TABLE_TO_REGIONS_COUNT) {
			s.TableRegionStatesCount = append(s.TableRegionStatesCount, &pb.TableRegionStatesCount{TableName: t.Name.Proto(), RegionStatesCount: count})
		}
	}
	if want(pb.Option_LIVE_SERVERS) {
		used, limit := heap()
		for _, server := range m.catalog.Servers() {
			load := &pb.ServerLoad{RegionLoads: loads[server], ReportEndTime: proto.Uint64(uint64(time.Now().UnixMilli()))}
			if server == m.catalog.Server() { // of the others no more is known
				load.UsedHeap_MB, load.MaxHeap_MB = megabytes(used), megabytes(limit)
				load.ReportStartTime = proto.Uint64(uint64(m.started.UnixMilli()))
			}
			s.LiveServers = append(s.LiveServers, &pb.LiveServerInfo{Server: server.Proto(), ServerLoad: load})
		}
	}
	return &pb.GetClusterStatusResponse{ClusterStatus: s}, nil
}

// recordSwitches is the record of the switches.
const recordSwitches = "hbase/switches"

// flags are the switches that differ from their initial state.
type flags struct {
	Off map[string]bool `json:",omitempty"` // of those that are on at first
	On  map[string]bool `json:",omitempty"` // of those that are off at first
}

func (m *Master) switches(ctx context.Context) (flags, uint64, error) {
	f := flags{map[string]bool{}, map[string]bool{}}
	b, version, err := m.b.GetRecord(ctx, recordSwitches)
	if errors.Is(err, fault.NotFound) {
		return f, 0, nil
	}
	if err == nil {
		if jerr := json.Unmarshal(b, &f); jerr != nil {
			err = fault.New(fault.Corruption, "record of HBase's switches: %w", jerr)
		}
	}
	if f.Off == nil {
		f.Off = map[string]bool{}
	}
	if f.On == nil {
		f.On = map[string]bool{}
	}
	return f, version, err
}

// isOn returns where a switch is.
func (m *Master) isOn(ctx context.Context, c *server.Call, name string, atFirst bool) (bool, error) {
	ctx, err := m.known(ctx, c)
	if err != nil {
		return false, err
	}
	f, _, err := m.switches(ctx)
	if atFirst {
		return !f.Off[name], err
	}
	return f.On[name], err
}

// turn turns switches and returns where they were.
func (m *Master) turn(ctx context.Context, c *server.Call, on, atFirst bool, names ...string) ([]bool, error) {
	ctx, err := m.manages(ctx, c)
	if err != nil {
		return nil, err
	}
	for {
		f, version, err := m.switches(ctx)
		if err != nil {
			return nil, err
		}
		var was []bool
		for _, name := range names {
			turned := f.On
			if atFirst {
				turned = f.Off
			}
			was = append(was, turned[name] != atFirst)
			if on != atFirst {
				turned[name] = true
			} else {
				delete(turned, name)
			}
		}
		b, err := json.Marshal(f)
		if err != nil {
			return nil, err
		}
		if _, err = m.b.PutRecord(ctx, recordSwitches, b, version); !errors.Is(err, fault.Aborted) {
			return was, err
		}
	}
}

func (m *Master) turnOne(ctx context.Context, c *server.Call, on, atFirst bool, name string) (*bool, error) {
	was, err := m.turn(ctx, c, on, atFirst, name)
	if err != nil {
		return nil, err
	}
	return &was[0], nil
}

func (m *Master) setSplitOrMergeEnabled(ctx context.Context, c *server.Call, req *pb.SetSplitOrMergeEnabledRequest) (*pb.SetSplitOrMergeEnabledResponse, error) {
	var names []string
	for _, t := range req.GetSwitchTypes() {
		names = append(names, t.String())
	}
	was, err := m.turn(ctx, c, req.GetEnabled(), true, names...)
	if err != nil {
		return nil, err
	}
	return &pb.SetSplitOrMergeEnabledResponse{PrevValue: was}, nil
}

func (m *Master) getProcedureResult(_ context.Context, _ *server.Call, req *pb.GetProcedureResultRequest) (*pb.GetProcedureResultResponse, error) {
	state := pb.GetProcedureResultResponse_NOT_FOUND
	if m.procs.known(req.GetProcId()) {
		state = pb.GetProcedureResultResponse_FINISHED
	}
	return &pb.GetProcedureResultResponse{State: &state}, nil
}

// flushProcedure is how clients before HBase 2.6 flush a table.
const flushProcedure = "flush-table-proc"

func (m *Master) execProcedure(ctx context.Context, c *server.Call, req *pb.ExecProcedureRequest) (*pb.ExecProcedureResponse, error) {
	p := req.GetProcedure()
	if p.GetSignature() != flushProcedure {
		return nil, wire.DoNotRetryIO.New("The procedure is not registered: %s", p.GetSignature())
	}
	name := model.ParseName(p.GetInstance())
	ctx, err := m.authorize(ctx, c, toModify, m.catalog.Mapping().Resource(name))
	if err != nil {
		return nil, err
	}
	if err := m.flush(ctx, name); err != nil {
		return nil, err
	}
	return &pb.ExecProcedureResponse{ExpectedTimeout: proto.Int64(1000)}, nil
}

func (m *Master) isProcedureDone(_ context.Context, _ *server.Call, req *pb.IsProcedureDoneRequest) (*pb.IsProcedureDoneResponse, error) {
	return &pb.IsProcedureDoneResponse{Done: proto.Bool(req.GetProcedure().GetSignature() == flushProcedure)}, nil
}
