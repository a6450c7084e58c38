package admin

import (
	"context"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/wire"
)

// A snapshot is what backups were before there were backups: the same, with
// fewer rules. Clients still ask for them.

const (
	defaultSnapshotTTL = 24 * time.Hour
	maxSnapshotTTL     = 7 * day
)

// snapshotProto returns a snapshot as clients see it.
func (a *Admin) snapshotProto(b *schema.Backup) (*adminpb.Snapshot, error) {
	s, err := backupExtra(b)
	if err != nil {
		return nil, err
	}
	t, err := tableProto(b.Table, adminpb.Table_SCHEMA_VIEW, nil)
	if err != nil {
		return nil, err
	}
	return &adminpb.Snapshot{Name: b.Name, SourceTable: t, DataSizeBytes: b.Bytes, CreateTime: timestamppb.New(b.CreateTime),
		DeleteTime: timestamppb.New(b.ExpireTime), State: adminpb.Snapshot_READY, Description: s.Description}, nil
}

// SnapshotTable implements T17.
func (s *tableServer) SnapshotTable(ctx context.Context, req *adminpb.SnapshotTableRequest) (*longrunningpb.Operation, error) {
	now := s.o.Now()
	of, err := s.parse("name", tableForm, req.GetName())
	if err != nil {
		return nil, err
	}
	ids, err := s.parse("cluster", clusterForm, req.GetCluster())
	if err != nil {
		return nil, err
	}
	if of[0] != ids[0] || of[1] != ids[1] {
		return nil, refuse(fault.Invalid, "cluster", "Error in field 'cluster' : Must be a cluster of %s, but found '%s'", parent(of, tableForm, 2), req.GetCluster())
	}
	if err := newID("snapshot_id", "snapshots", req.GetSnapshotId(), tableIDPattern, wire.TableID, 1, maxBackupID); err != nil {
		return nil, err
	}
	ttl := defaultSnapshotTTL
	if !zeroDuration(req.GetTtl()) {
		d, err := duration("ttl", req.GetTtl(), time.Microsecond, maxSnapshotTTL)
		if err != nil {
			return nil, err
		}
		ttl = d.AsDuration()
	}
	t, err := s.b.Table(ctx, req.GetName())
	if err != nil {
		return nil, orMissing(err, "name", "Table", req.GetName())
	}
	name := req.GetCluster() + "/snapshots/" + req.GetSnapshotId()
	extra := storedBackup{Description: req.GetDescription()}
	want := &schema.Backup{Name: name, Table: t, CreateTime: now, ExpireTime: now.Add(ttl).Truncate(time.Microsecond), Extra: extra.encode()}
	pb, err := s.snapshotProto(want)
	if err != nil {
		return nil, err
	}
	pb.State = adminpb.Snapshot_CREATING
	if err := s.place(ctx, snapshotForm, "snapshot_id", name, ids, pb); err != nil {
		return nil, err
	}
	m := &adminpb.SnapshotTableMetadata{OriginalRequest: req, RequestTime: timestamppb.New(now)}
	return s.begin(ctx, name, m, func(ctx context.Context, op string) (proto.Message, proto.Message, error) {
		extra.Operation = op
		want.Extra = extra.encode()
		s.made(name, op)
		b, err := s.b.CreateBackup(ctx, req.GetName(), want)
		m := proto.Clone(m).(*adminpb.SnapshotTableMetadata)
		m.FinishTime = timestamppb.New(s.o.Now())
		if err != nil {
			return m, nil, orMissing(err, "name", "Table", req.GetName())
		}
		pb, err := s.snapshotProto(b)
		return m, pb, err
	}, func() { s.unplace(name) })
}

// GetSnapshot implements T18.
func (s *tableServer) GetSnapshot(ctx context.Context, req *adminpb.GetSnapshotRequest) (*adminpb.Snapshot, error) {
	if _, err := s.parse("name", snapshotForm, req.GetName()); err != nil {
		return nil, err
	}
	m := s.isMaking(req.GetName())
	b, err := s.b.Backup(ctx, req.GetName())
	if fault.KindOf(err) == fault.NotFound && m != nil {
		return m.pb.(*adminpb.Snapshot), nil
	}
	if err != nil {
		return nil, orMissing(err, "name", "Snapshot", req.GetName())
	}
	return s.snapshotProto(b)
}

// ListSnapshots implements T19. It gives all there are, whatever page_size says.
func (s *tableServer) ListSnapshots(ctx context.Context, req *adminpb.ListSnapshotsRequest) (*adminpb.ListSnapshotsResponse, error) {
	ids, err := s.parse("parent", clusterForm, req.GetParent(), true)
	if err != nil {
		return nil, err
	}
	if _, err := s.newPage(ctx, "snapshots "+req.GetParent(), 0, req.GetPageToken()); err != nil {
		return nil, err
	}
	if ids[2] == "-" {
		_, err = s.instanceForTables(ctx, "parent", parent(ids, clusterForm, 2))
	} else {
		_, err = s.clusterForBackup(ctx, "parent", ids)
	}
	if err != nil {
		return nil, err
	}
	all, err := backupsBelow(ctx, s.Admin, snapshotForm, ids, s.snapshotProto, (*adminpb.Snapshot).GetName)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *adminpb.Snapshot) int { return strings.Compare(a.GetName(), b.GetName()) })
	return &adminpb.ListSnapshotsResponse{Snapshots: all}, nil
}

// DeleteSnapshot implements T20.
func (s *tableServer) DeleteSnapshot(ctx context.Context, req *adminpb.DeleteSnapshotRequest) (*emptypb.Empty, error) {
	return s.deleteBackup(ctx, snapshotForm, req.GetName())
}

// CreateTableFromSnapshot implements T2.
func (s *tableServer) CreateTableFromSnapshot(ctx context.Context, req *adminpb.CreateTableFromSnapshotRequest) (*longrunningpb.Operation, error) {
	now := s.o.Now()
	name, i, err := s.newTableName(ctx, req.GetParent(), req.GetTableId())
	if err != nil {
		return nil, err
	}
	from, err := s.backupAt(ctx, "source_snapshot", snapshotForm, req.GetSourceSnapshot())
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(from.Name, req.GetParent()+"/") {
		return nil, refuse(fault.Invalid, "source_snapshot", "Error in field 'source_snapshot' : Must be a snapshot of %s, but found '%s'", req.GetParent(), from.Name)
	}
	m := &adminpb.CreateTableFromSnapshotMetadata{OriginalRequest: req, RequestTime: timestamppb.New(now)}
	return s.begin(ctx, name, m, func(ctx context.Context, _ string) (proto.Message, proto.Message, error) {
		t, err := s.restore(ctx, i, from.Name, name, time.Time{}, nil)
		m := proto.Clone(m).(*adminpb.CreateTableFromSnapshotMetadata)
		m.FinishTime = timestamppb.New(s.o.Now())
		if err != nil {
			return m, nil, orMissing(err, "source_snapshot", "Snapshot", from.Name)
		}
		pb, err := tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
		return m, pb, err
	}, nil)
}
