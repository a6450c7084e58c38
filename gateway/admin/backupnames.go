package admin

import (
	"context"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/wire"
)

// A making is a backup or snapshot that is being made.
type making struct {
	pb proto.Message
	// operation makes it; empty until it has begun.
	operation string
}

// places are held while it is decided that a cluster takes a backup, or that it
// is deleted as it has none.
type places struct {
	sync.Mutex
	making map[string]*making // by name of the backup or snapshot
}

// place takes the name of a backup or snapshot that is going to be made in a
// cluster. Its caller gives it back.
func (a *Admin) place(ctx context.Context, f form, field, name string, ids []string, pb proto.Message) error {
	a.places.Lock()
	defer a.places.Unlock()
	if _, err := a.clusterForBackup(ctx, "parent", ids); err != nil {
		return err
	}
	if a.places.making[name] != nil {
		return alreadyThere(field, f.kind, name)
	}
	if _, err := a.b.Backup(ctx, name); err == nil {
		return alreadyThere(field, f.kind, name)
	} else if fault.KindOf(err) != fault.NotFound {
		return err
	}
	a.places.making[name] = &making{pb: pb}
	return nil
}

func (a *Admin) unplace(name string) {
	a.places.Lock()
	defer a.places.Unlock()
	delete(a.places.making, name)
}

// isMaking returns what is being made under a name, or nil.
func (a *Admin) isMaking(name string) *making {
	a.places.Lock()
	defer a.places.Unlock()
	if m := a.places.making[name]; m != nil {
		c := *m
		return &c
	}
	return nil
}

// makingBelow returns what is being made under names with a prefix.
func (a *Admin) makingBelow(prefix string) []proto.Message {
	a.places.Lock()
	defer a.places.Unlock()
	var out []proto.Message
	for name, m := range a.places.making {
		if strings.HasPrefix(name, prefix) {
			out = append(out, m.pb)
		}
	}
	return out
}

// clusterForBackup returns the instance that has the cluster with these ids.
func (a *Admin) clusterForBackup(ctx context.Context, field string, ids []string) (*instance, error) {
	i, err := a.instanceForTables(ctx, field, parent(ids, clusterForm, 2))
	if err != nil {
		return nil, err
	}
	if i.clusters[ids[2]] == nil && (i.version != 0 || !a.o.Emulator) {
		return nil, missing(field, "Cluster", parent(ids, clusterForm, 3))
	}
	return i, nil
}

// noBackupsLocked refuses to delete a cluster or instance that has backups.
func (a *Admin) noBackupsLocked(ctx context.Context, kind, name, prefix string) error {
	list, err := a.b.ListBackups(ctx, prefix)
	if err != nil {
		return err
	}
	some := ""
	if len(list) > 0 {
		some = list[0].Name
	}
	for m := range a.places.making {
		if strings.HasPrefix(m, prefix) {
			some = m
		}
	}
	if some == "" {
		return nil
	}
	return refuse(fault.FailedPrecondition, "name", "%s %s cannot be deleted: it has backups or snapshots, among them %s", kind, name, some)
}

// creating returns a backup as clients see it while it is being made.
func (a *Admin) creating(b *schema.Backup) (*adminpb.Backup, error) {
	pb, err := a.backupProto(b)
	if err != nil {
		return nil, err
	}
	pb.State, pb.EndTime, pb.EncryptionInfo = adminpb.Backup_CREATING, nil, nil
	return pb, nil
}

// made notes the operation that makes a backup.
func (a *Admin) made(name, operation string) {
	a.places.Lock()
	defer a.places.Unlock()
	if m := a.places.making[name]; m != nil {
		m.operation = operation
	}
}

// newTableName returns the name of a table that is going to be restored, and its
// instance.
func (a *Admin) newTableName(ctx context.Context, in, id string) (string, *instance, error) {
	ids, err := a.parse("parent", instanceForm, in)
	if err != nil {
		return "", nil, err
	}
	if err := newID("table_id", "tables", id, tableIDPattern, wire.TableID, 1, schema.MaxTableID); err != nil {
		return "", nil, err
	}
	i, err := a.instanceForTables(ctx, "parent", parent(ids, instanceForm, 2))
	if err != nil {
		return "", nil, err
	}
	name := parent(ids, instanceForm, 2) + "/tables/" + id
	if _, err := a.b.Table(ctx, name); err == nil {
		return "", nil, alreadyThere("table_id", "Table", name)
	} else if fault.KindOf(err) != fault.NotFound {
		return "", nil, err
	}
	return name, i, a.nameFree(ctx, "table_id", name)
}

// outcome returns the response of an operation that another server carried out,
// or nil if it had no effect.
func (a *Admin) outcome(ctx context.Context, operation string, metadata proto.Message) (proto.Message, error) {
	var name string
	switch m := metadata.(type) {
	case *adminpb.CreateBackupMetadata:
		name = m.GetName()
		m.EndTime = timestamppb.New(a.o.Now())
	case *adminpb.CopyBackupMetadata:
		name = m.GetName()
	case *adminpb.SnapshotTableMetadata:
		m.FinishTime = timestamppb.New(a.o.Now())
		name = m.GetOriginalRequest().GetCluster() + "/snapshots/" + m.GetOriginalRequest().GetSnapshotId()
	case *adminpb.CreateMaterializedViewMetadata:
		return a.materializedSince(ctx, m)
	case *adminpb.RestoreTableMetadata:
		return a.tableSince(ctx, m.GetName(), m.GetProgress().GetStartTime().AsTime())
	case *adminpb.CreateTableFromSnapshotMetadata:
		m.FinishTime = timestamppb.New(a.o.Now())
		return a.tableSince(ctx, m.GetOriginalRequest().GetParent()+"/tables/"+m.GetOriginalRequest().GetTableId(), m.GetRequestTime().AsTime())
	default:
		return nil, nil
	}
	b, err := a.b.Backup(ctx, name)
	if fault.KindOf(err) == fault.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if s, err := backupExtra(b); err != nil || s.Operation != operation {
		return nil, err
	}
	if snapshotForm.split(name) != nil {
		return a.snapshotProto(b)
	}
	return a.backupProto(b)
}

// tableSince returns a table that was made after a time, or nil.
func (a *Admin) tableSince(ctx context.Context, name string, at time.Time) (proto.Message, error) {
	t, err := a.b.Table(ctx, name)
	switch {
	case fault.KindOf(err) == fault.NotFound || err == nil && t.CreateTime.Before(at):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
}
