package master

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
)

// fixed answers a method that is about nothing here, for callers that may ask
// about the cluster.
func fixed[Req any, Resp proto.Message, M interface {
	*Req
	proto.Message
}](m *Master, resp Resp) server.Method {
	return server.Handle(func(ctx context.Context, c *server.Call, _ M) (Resp, error) {
		_, err := m.known(ctx, c)
		return resp, err
	})
}

// refused answers a method that is not done here.
func refused[Req any, M interface {
	*Req
	proto.Message
}](what string) server.Method {
	return server.Refuse[Req, M](unsupported(what))
}

func (m *Master) masterService() server.Service {
	no, yes := proto.Bool(false), proto.Bool(true)
	s := server.Service{
		"CreateTable":                  server.Handle(m.createTable),
		"DeleteTable":                  server.Handle(m.deleteTable),
		"truncateTable":                server.Handle(m.truncateTable),
		"EnableTable":                  server.Handle(m.enableTable),
		"DisableTable":                 server.Handle(m.disableTable),
		"ModifyTable":                  server.Handle(m.modifyTable),
		"AddColumn":                    server.Handle(m.addColumn),
		"ModifyColumn":                 server.Handle(m.modifyColumn),
		"DeleteColumn":                 server.Handle(m.deleteColumn),
		"FlushTable":                   server.Handle(m.flushTable),
		"ModifyTableStoreFileTracker":  refused[pb.ModifyTableStoreFileTrackerRequest]("files of tables are not tracked HBase's way"),
		"ModifyColumnStoreFileTracker": refused[pb.ModifyColumnStoreFileTrackerRequest]("files of families are not tracked HBase's way"),

		"GetTableDescriptors":             server.Handle(m.getTableDescriptors),
		"GetTableNames":                   server.Handle(m.getTableNames),
		"GetTableState":                   server.Handle(m.getTableState),
		"GetSchemaAlterStatus":            server.Handle(m.getSchemaAlterStatus),
		"ListTableNamesByState":           server.Handle(m.listTableNamesByState),
		"ListTableDescriptorsByState":     server.Handle(m.listTableDescriptorsByState),
		"ListTableNamesByNamespace":       server.Handle(m.listTableNamesByNamespace),
		"ListTableDescriptorsByNamespace": server.Handle(m.listTableDescriptorsByNamespace),

		"CreateNamespace":          server.Handle(m.createNamespace),
		"ModifyNamespace":          server.Handle(m.modifyNamespace),
		"DeleteNamespace":          server.Handle(m.deleteNamespace),
		"GetNamespaceDescriptor":   server.Handle(m.getNamespaceDescriptor),
		"ListNamespaces":           server.Handle(m.listNamespaces),
		"ListNamespaceDescriptors": server.Handle(m.listNamespaceDescriptors),

		"MoveRegion":        server.Handle(m.moveRegion),
		"AssignRegion":      server.Handle(m.assignRegion),
		"SplitRegion":       server.Handle(m.splitRegion),
		"MergeTableRegions": server.Handle(m.mergeTableRegions),
		"UnassignRegion":    refused[pb.UnassignRegionRequest]("a region cannot be taken off the only server; disable its table"),
		"OfflineRegion":     refused[pb.OfflineRegionRequest]("a region cannot be taken off the only server; disable its table"),

		"GetClusterStatus":                         server.Handle(m.getClusterStatus),
		"IsMasterRunning":                          fixed[pb.IsMasterRunningRequest](m, &pb.IsMasterRunningResponse{IsMasterRunning: yes}),
		"IsMasterInMaintenanceMode":                fixed[pb.IsInMaintenanceModeRequest](m, &pb.IsInMaintenanceModeResponse{InMaintenanceMode: no}),
		"Shutdown":                                 refused[pb.ShutdownRequest]("the server is stopped where it was started"),
		"StopMaster":                               refused[pb.StopMasterRequest]("the server is stopped where it was started"),
		"getSecurityCapabilities":                  fixed[pb.SecurityCapabilitiesRequest](m, &pb.SecurityCapabilitiesResponse{}),
		"ListDecommissionedRegionServers":          fixed[pb.ListDecommissionedRegionServersRequest](m, &pb.ListDecommissionedRegionServersResponse{}),
		"ClearDeadServers":                         fixed[pb.ClearDeadServersRequest](m, &pb.ClearDeadServersResponse{}),
		"getLastMajorCompactionTimestamp":          fixed[pb.MajorCompactionTimestampRequest](m, &pb.MajorCompactionTimestampResponse{CompactionTimestamp: proto.Int64(0)}),
		"getLastMajorCompactionTimestampForRegion": fixed[pb.MajorCompactionTimestampForRegionRequest](m, &pb.MajorCompactionTimestampResponse{CompactionTimestamp: proto.Int64(0)}),

		// There is nothing to do for any of these.
		"Balance":         fixed[pb.BalanceRequest](m, &pb.BalanceResponse{BalancerRan: yes, MovesCalculated: proto.Uint32(0), MovesExecuted: proto.Uint32(0)}),
		"Normalize":       fixed[pb.NormalizeRequest](m, &pb.NormalizeResponse{NormalizerRan: no}),
		"RunCatalogScan":  fixed[pb.RunCatalogScanRequest](m, &pb.RunCatalogScanResponse{ScanResult: proto.Int32(0)}),
		"RunCleanerChore": fixed[pb.RunCleanerChoreRequest](m, &pb.RunCleanerChoreResponse{CleanerChoreRan: yes}),

		"SetSplitOrMergeEnabled": server.Handle(m.setSplitOrMergeEnabled),
		"IsSplitOrMergeEnabled": server.Handle(func(ctx context.Context, c *server.Call, req *pb.IsSplitOrMergeEnabledRequest) (*pb.IsSplitOrMergeEnabledResponse, error) {
			on, err := m.isOn(ctx, c, req.GetSwitchType().String(), true)
			return &pb.IsSplitOrMergeEnabledResponse{Enabled: &on}, err
		}),
		"SetBalancerRunning": server.Handle(func(ctx context.Context, c *server.Call, req *pb.SetBalancerRunningRequest) (*pb.SetBalancerRunningResponse, error) {
			was, err := m.turnOne(ctx, c, req.GetOn(), true, "balancer")
			return &pb.SetBalancerRunningResponse{PrevBalanceValue: was}, err
		}),
		"IsBalancerEnabled": server.Handle(func(ctx context.Context, c *server.Call, _ *pb.IsBalancerEnabledRequest) (*pb.IsBalancerEnabledResponse, error) {
			on, err := m.isOn(ctx, c, "balancer", true)
			return &pb.IsBalancerEnabledResponse{Enabled: &on}, err
		}),
		"SetNormalizerRunning": server.Handle(func(ctx context.Context, c *server.Call, req *pb.SetNormalizerRunningRequest) (*pb.SetNormalizerRunningResponse, error) {
			was, err := m.turnOne(ctx, c, req.GetOn(), false, "normalizer")
			return &pb.SetNormalizerRunningResponse{PrevNormalizerValue: was}, err
		}),
		"IsNormalizerEnabled": server.Handle(func(ctx context.Context, c *server.Call, _ *pb.IsNormalizerEnabledRequest) (*pb.IsNormalizerEnabledResponse, error) {
			on, err := m.isOn(ctx, c, "normalizer", false)
			return &pb.IsNormalizerEnabledResponse{Enabled: &on}, err
		}),
		"EnableCatalogJanitor": server.Handle(func(ctx context.Context, c *server.Call, req *pb.EnableCatalogJanitorRequest) (*pb.EnableCatalogJanitorResponse, error) {
			was, err := m.turnOne(ctx, c, req.GetEnable(), true, "catalog janitor")
			return &pb.EnableCatalogJanitorResponse{PrevValue: was}, err
		}),
		"IsCatalogJanitorEnabled": server.Handle(func(ctx context.Context, c *server.Call, _ *pb.IsCatalogJanitorEnabledRequest) (*pb.IsCatalogJanitorEnabledResponse, error) {
			on, err := m.isOn(ctx, c, "catalog janitor", true)
			return &pb.IsCatalogJanitorEnabledResponse{Value: &on}, err
		}),
		"SetCleanerChoreRunning": server.Handle(func(ctx context.Context, c *server.Call, req *pb.SetCleanerChoreRunningRequest) (*pb.SetCleanerChoreRunningResponse, error) {
			was, err := m.turnOne(ctx, c, req.GetOn(), true, "cleaner")
			return &pb.SetCleanerChoreRunningResponse{PrevValue: was}, err
		}),
		"IsCleanerChoreEnabled": server.Handle(func(ctx context.Context, c *server.Call, _ *pb.IsCleanerChoreEnabledRequest) (*pb.IsCleanerChoreEnabledResponse, error) {
			on, err := m.isOn(ctx, c, "cleaner", true)
			return &pb.IsCleanerChoreEnabledResponse{Value: &on}, err
		}),
		"SwitchSnapshotCleanup": server.Handle(func(ctx context.Context, c *server.Call, req *pb.SetSnapshotCleanupRequest) (*pb.SetSnapshotCleanupResponse, error) {
			was, err := m.turnOne(ctx, c, req.GetEnabled(), true, "snapshot cleanup")
			return &pb.SetSnapshotCleanupResponse{PrevSnapshotCleanup: was}, err
		}),
		"IsSnapshotCleanupEnabled": server.Handle(func(ctx context.Context, c *server.Call, _ *pb.IsSnapshotCleanupEnabledRequest) (*pb.IsSnapshotCleanupEnabledResponse, error) {
			on, err := m.isOn(ctx, c, "snapshot cleanup", true)
			return &pb.IsSnapshotCleanupEnabledResponse{Enabled: &on}, err
		}),
		"SwitchRpcThrottle": server.Handle(func(ctx context.Context, c *server.Call, req *pb.SwitchRpcThrottleRequest) (*pb.SwitchRpcThrottleResponse, error) {
			was, err := m.turnOne(ctx, c, req.GetRpcThrottleEnabled(), true, "rpc throttle")
			return &pb.SwitchRpcThrottleResponse{PreviousRpcThrottleEnabled: was}, err
		}),
		"IsRpcThrottleEnabled": server.Handle(func(ctx context.Context, c *server.Call, _ *pb.IsRpcThrottleEnabledRequest) (*pb.IsRpcThrottleEnabledResponse, error) {
			on, err := m.isOn(ctx, c, "rpc throttle", true)
			return &pb.IsRpcThrottleEnabledResponse{RpcThrottleEnabled: &on}, err
		}),
		"SwitchExceedThrottleQuota": server.Handle(func(ctx context.Context, c *server.Call, req *pb.SwitchExceedThrottleQuotaRequest) (*pb.SwitchExceedThrottleQuotaResponse, error) {
			was, err := m.turnOne(ctx, c, req.GetExceedThrottleQuotaEnabled(), false, "exceed throttle quota")
			return &pb.SwitchExceedThrottleQuotaResponse{PreviousExceedThrottleQuotaEnabled: was}, err
		}),
		"SetQuota": refused[pb.SetQuotaRequest]("quotas are not kept"),

		"getProcedureResult":    server.Handle(m.getProcedureResult),
		"AbortProcedure":        fixed[pb.AbortProcedureRequest](m, &pb.AbortProcedureResponse{IsProcedureAborted: no}),
		"GetProcedures":         fixed[pb.GetProceduresRequest](m, &pb.GetProceduresResponse{}),
		"GetLocks":              fixed[pb.GetLocksRequest](m, &pb.GetLocksResponse{}),
		"ExecProcedure":         server.Handle(m.execProcedure),
		"IsProcedureDone":       server.Handle(m.isProcedureDone),
		"Snapshot":              server.Handle(m.snapshot),
		"IsSnapshotDone":        server.Handle(m.isSnapshotDone),
		"GetCompletedSnapshots": server.Handle(m.getCompletedSnapshots),
		"DeleteSnapshot":        server.Handle(m.deleteSnapshot),
		"RestoreSnapshot":       server.Handle(m.restoreSnapshot),
		"IsRestoreSnapshotDone": fixed[pb.IsRestoreSnapshotDoneRequest](m, &pb.IsRestoreSnapshotDoneResponse{Done: yes}),
	}
	return s
}

func (m *Master) adminService() server.Service {
	me := m.catalog.Server().Proto()
	return server.Service{
		"GetRegionInfo":   server.Handle(m.getRegionInfo),
		"GetOnlineRegion": server.Handle(m.getOnlineRegion),
		"GetRegionLoad":   server.Handle(m.getRegionLoad),
		"FlushRegion":     server.Handle(m.flushRegion),
		"CompactRegion":   server.Handle(m.compactRegion),
		"GetServerInfo":   fixed[pb.GetServerInfoRequest](m, &pb.GetServerInfoResponse{ServerInfo: &pb.ServerInfo{ServerName: me}}),
		// There are no settings to read again, and the log rolls by itself.
		"UpdateConfiguration": fixed[pb.UpdateConfigurationRequest](m, &pb.UpdateConfigurationResponse{}),
		"RollWALWriter":       fixed[pb.RollWALWriterRequest](m, &pb.RollWALWriterResponse{}),
		"CompactionSwitch": server.Handle(func(ctx context.Context, c *server.Call, req *pb.CompactionSwitchRequest) (*pb.CompactionSwitchResponse, error) {
			was, err := m.turnOne(ctx, c, req.GetEnabled(), true, "compaction")
			return &pb.CompactionSwitchResponse{PrevState: was}, err
		}),
		"ClearCompactionQueues": fixed[pb.ClearCompactionQueuesRequest](m, &pb.ClearCompactionQueuesResponse{}),
		"ClearRegionBlockCache": refused[pb.ClearRegionBlockCacheRequest]("the block cache is not cleared by region"),
		"GetStoreFile":          refused[pb.GetStoreFileRequest]("SSTables are not HFiles"),
		"StopServer":            refused[pb.StopServerRequest]("the server is stopped where it was started"),
	}
}
