package admin

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// RestoreTimeHeader is the gRPC metadata, or header of a REST request, by which
// RestoreTable is asked to bring the table to a time, in the form of RFC 3339: the API
// has no field for it. The source table of the backup has to keep changes.
const RestoreTimeHeader = "trestle-restore-time"

// restoreTime returns the time that a request for RestoreTable asks for, zero if it asks for
// none.
func restoreTime(ctx context.Context) (time.Time, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	said := md.Get(RestoreTimeHeader)
	if len(said) == 0 {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, said[0])
	if err != nil || len(said) > 1 {
		return at, refuse(fault.Invalid, RestoreTimeHeader, "%q is not one time such as 2026-01-02T15:04:05.678901Z", said)
	}
	return at, nil
}

// RestoreTable implements T26. The table serves as soon as it is there: it reads
// the backup's files until compactions replace them.
func (s *tableServer) RestoreTable(ctx context.Context, req *adminpb.RestoreTableRequest) (*longrunningpb.Operation, error) {
	now := s.o.Now()
	name, i, err := s.newTableName(ctx, req.GetParent(), req.GetTableId())
	if err != nil {
		return nil, err
	}
	if _, ok := req.GetSource().(*adminpb.RestoreTableRequest_Backup); !ok {
		return nil, refuse(fault.Invalid, "source", "Error in field 'backup' : Must be specified")
	}
	from, err := s.backupAt(ctx, "backup", backupForm, req.GetBackup())
	if err != nil {
		return nil, err
	}
	source, err := s.backupProto(from)
	if err != nil {
		return nil, err
	}
	optimizes, err := s.changesStorage(ctx, from.Name, i)
	if err != nil {
		return nil, err
	}
	at, err := restoreTime(ctx)
	if err != nil {
		return nil, err
	}
	if !at.IsZero() {
		b, ok := s.b.(backend.TimeRestorer)
		if !ok {
			return nil, refuse(fault.Unimplemented, RestoreTimeHeader, "This server does not keep changes")
		}
		if err := b.RestorableAt(ctx, from.Name, at); err != nil {
			return nil, orMissing(err, "backup", "Backup", from.Name)
		}
	}
	info := backupInfo(source)
	m := &adminpb.RestoreTableMetadata{
		Name: name, SourceType: adminpb.RestoreSourceType_BACKUP, Progress: s.progress(now, false),
		SourceInfo: &adminpb.RestoreTableMetadata_BackupInfo{BackupInfo: info},
	}
	return s.begin(ctx, name, m, func(ctx context.Context, _ string) (proto.Message, proto.Message, error) {
		t, err := s.restore(ctx, i, from.Name, name, at, &adminpb.RestoreInfo{
			SourceType: adminpb.RestoreSourceType_BACKUP, SourceInfo: &adminpb.RestoreInfo_BackupInfo{BackupInfo: info}})
		if err != nil {
			return nil, nil, orMissing(err, "backup", "Backup", from.Name)
		}
		m := proto.Clone(m).(*adminpb.RestoreTableMetadata)
		m.Progress = s.progress(now, true)
		if optimizes {
			// Nothing remains to be optimized here, but callers may wait for it.
			o, err := s.finished(ctx, name, &adminpb.OptimizeRestoredTableMetadata{Name: name, Progress: s.progress(now, true)}, new(emptypb.Empty))
			if err != nil {
				return nil, nil, err
			}
			m.OptimizeTableOperationName = o.GetName()
		}
		pb, err := tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
		return m, pb, err
	}, nil)
}

// changesStorage tells whether a table that is restored into i of the backup
// called name gets another type of storage than the backup's cluster has. Only
// then does Google's service optimize it.
func (a *Admin) changesStorage(ctx context.Context, name string, i *instance) (bool, error) {
	ids := backupForm.split(name)
	of, err := a.readInstance(ctx, parent(ids, instanceForm, 2))
	if err != nil || of == nil || of.clusters[ids[2]] == nil {
		return false, err // of no known storage: in emulator mode
	}
	return (of.clusters[ids[2]].GetDefaultStorageType() != adminpb.StorageType_HDD) != i.onSSD(), nil
}

// restore makes the table called name, in i, of a backup or snapshot. The table
// has the schema of the backup, but neither protection nor a change stream nor
// automated backups: those were of the table that was backed up. The rows are those of
// the time at; of the backup if it is zero.
func (a *Admin) restore(ctx context.Context, i *instance, from, name string, at time.Time, info *adminpb.RestoreInfo) (*schema.Table, error) {
	change := func(t *schema.Table) error {
		old, err := tableExtra(t)
		if err != nil {
			return err
		}
		x := &adminpb.Table{RowKeySchema: old.GetRowKeySchema(), RestoreInfo: info}
		if i.onSSD() {
			x.TieredStorageConfig = old.GetTieredStorageConfig()
		}
		t.DeletionProtection = false
		return setConfig(t, x, i, a.o.Now())
	}
	var t *schema.Table
	var err error
	if b, ok := a.b.(backend.TimeRestorer); ok && !at.IsZero() {
		t, err = b.RestoreTableAt(ctx, from, name, at, change)
	} else {
		t, err = a.b.RestoreTable(ctx, from, name, change)
	}
	if fault.KindOf(err) == fault.AlreadyExists {
		return nil, alreadyThere("table_id", "Table", name)
	}
	if err != nil {
		return nil, err
	}
	// The instance may have been deleted, tables first, while this one came.
	if _, err := a.instanceForTables(ctx, "parent", i.pb.GetName()); fault.KindOf(err) == fault.NotFound {
		if e := a.b.DeleteTable(ctx, name); e != nil && fault.KindOf(e) != fault.NotFound {
			return nil, e
		}
		return nil, err
	}
	return t, nil
}
