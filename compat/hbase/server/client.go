package server

import (
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
)

// clientService is ClientService: rows.
func (s *Server) clientService() Service {
	noHFiles := wire.DoNotRetryIO.New("this server does not read HFiles: load rows with puts")
	noService := Method{shape: shapeOf(coprocessorRequest()), request: coprocessorRequest, handle: refuseCoprocessor}
	return Service{
		"Get":                     Handle(s.get),
		"Mutate":                  Handle(s.mutate),
		"Scan":                    Handle(s.scan),
		"Multi":                   Handle(s.multi),
		"BulkLoadHFile":           Refuse[pb.BulkLoadHFileRequest](noHFiles),
		"PrepareBulkLoad":         Refuse[pb.PrepareBulkLoadRequest](noHFiles),
		"CleanupBulkLoad":         Refuse[pb.CleanupBulkLoadRequest](noHFiles),
		"ExecService":             noService,
		"ExecRegionServerService": noService,
	}
}
