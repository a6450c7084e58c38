package master

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// snapshotPrefix begins the names of the backups that are snapshots.
const snapshotPrefix = "hbase/snapshots/"

// snapshotExtra is what a snapshot keeps beside the rows and the schema.
type snapshotExtra struct {
	// Description is the pb.SnapshotDescription as it is shown.
	Description []byte
	// Descriptor is model.Stored.Descriptor of the table.
	Descriptor []byte `json:",omitempty"`
}

var noBackups = unsupported("this store keeps no snapshots")

// changeSnapshot runs a change of a snapshot, or of a table by one, for a caller that may
// do what rpc asks for to resource.
func (m *Master) changeSnapshot(ctx context.Context, c *server.Call, n nonce, rpc, resource, what, snapshot, table string, do func(ctx context.Context) error) (uint64, error) {
	if m.backups == nil {
		return 0, noBackups
	}
	ctx, err := m.authorize(ctx, c, rpc, resource)
	if err != nil {
		return 0, err
	}
	id, err := m.procs.run(ctx, n, func() error {
		m.ddl.Lock()
		defer m.ddl.Unlock()
		return do(ctx)
	})
	if err == nil {
		m.o.Log.LogAttrs(ctx, slog.LevelInfo, what, slog.String("snapshot", snapshot), slog.String("table", table), slog.String("user", c.User))
	}
	return id, err
}

func (m *Master) snapshot(ctx context.Context, c *server.Call, req *pb.SnapshotRequest) (*pb.SnapshotResponse, error) {
	d := req.GetSnapshot()
	// The same rules as for the part of a table's name after the namespace.
	if err := checkTable(model.Name{Namespace: model.DefaultNamespace, Qualifier: d.GetName()}); err != nil {
		return nil, err
	}
	name := model.ParseName(d.GetTable())
	id, err := m.changeSnapshot(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toCopy, m.catalog.Mapping().Resource(name), "HBase snapshot taken", d.GetName(), d.GetTable(), func(ctx context.Context) error {
		t, err := m.changeable(ctx, name)
		if is(err, wire.TableNotFound) {
			return wire.SnapshotCreation.New("Table '%s' doesn't exist, can't take snapshot: %s", name, d.GetName())
		}
		if err != nil {
			return err
		}
		show := proto.Clone(d).(*pb.SnapshotDescription)
		show.Table = proto.String(name.String())
		now := time.Now()
		if show.GetCreationTime() == 0 {
			show.CreationTime = proto.Int64(now.UnixMilli())
		}
		if show.GetOwner() == "" {
			show.Owner = proto.String(c.User)
		}
		if !t.Enabled() {
			show.Type = pb.SnapshotDescription_DISABLED.Enum()
		}
		want := &schema.Backup{Name: snapshotPrefix + d.GetName()}
		if ttl := d.GetTtl(); ttl > 0 && ttl < int64(1<<62/time.Second) {
			want.ExpireTime = now.Add(time.Duration(ttl) * time.Second)
		}
		b, err := proto.Marshal(show)
		if err != nil {
			return err
		}
		if want.Extra, err = json.Marshal(snapshotExtra{b, t.Stored.Descriptor}); err != nil {
			return err
		}
		_, err = m.backups.CreateBackup(ctx, t.Resource, want)
		if errors.Is(err, fault.AlreadyExists) {
			return wire.SnapshotExists.New("Snapshot '%s' already stored on the filesystem.", d.GetName())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	// It is done already; clients wait for a part of this between two questions.
	return &pb.SnapshotResponse{ExpectedTimeout: proto.Int64(1000), ProcId: proto.Int64(int64(id))}, nil
}

// lookUp returns a snapshot, or the exception that says that there is none. To a caller
// that may not know of its table there is none.
func (m *Master) lookUp(ctx context.Context, name string) (*schema.Backup, *pb.SnapshotDescription, snapshotExtra, error) {
	var x snapshotExtra
	if m.backups == nil {
		return nil, nil, x, noBackups
	}
	missing := wire.SnapshotMissing.New("Snapshot '%s' doesn't exist on the filesystem", name)
	b, err := m.backups.Backup(ctx, snapshotPrefix+name)
	if errors.Is(err, fault.NotFound) {
		return nil, nil, x, missing
	}
	if err != nil {
		return nil, nil, x, err
	}
	d, x, err := describe(b)
	if err != nil {
		return nil, nil, x, err
	}
	if ok, err := m.sees(ctx, d); err != nil {
		return nil, nil, x, err
	} else if !ok {
		return nil, nil, x, missing
	}
	return b, d, x, nil
}

// source returns the resource name of the table that a snapshot is of, which may be gone.
func (m *Master) source(d *pb.SnapshotDescription) string {
	return m.catalog.Mapping().Resource(model.ParseName(d.GetTable()))
}

// sees tells whether the caller may know of a snapshot.
func (m *Master) sees(ctx context.Context, d *pb.SnapshotDescription) (bool, error) {
	if m.o.Sees == nil {
		return true, nil
	}
	return m.o.Sees(ctx, m.source(d))
}

func describe(b *schema.Backup) (*pb.SnapshotDescription, snapshotExtra, error) {
	var x snapshotExtra
	d := &pb.SnapshotDescription{}
	err := json.Unmarshal(b.Extra, &x)
	if err == nil {
		err = proto.Unmarshal(x.Description, d)
	}
	if err != nil {
		return nil, x, fault.New(fault.Corruption, "snapshot %s: %w", strings.TrimPrefix(b.Name, snapshotPrefix), err)
	}
	return d, x, nil
}

func (m *Master) isSnapshotDone(ctx context.Context, c *server.Call, req *pb.IsSnapshotDoneRequest) (*pb.IsSnapshotDoneResponse, error) {
	ctx, err := m.known(ctx, c)
	if err != nil {
		return nil, err
	}
	_, d, _, err := m.lookUp(ctx, req.GetSnapshot().GetName())
	if is(err, wire.SnapshotMissing) {
		return nil, wire.Class{Name: "org.apache.hadoop.hbase.snapshot.UnknownSnapshotException", DoNotRetry: true}.New(
			"Snapshot %s is not currently running or one of the known completed snapshots.", req.GetSnapshot().GetName())
	}
	if err != nil {
		return nil, err
	}
	return &pb.IsSnapshotDoneResponse{Done: proto.Bool(true), Snapshot: d}, nil
}

func (m *Master) getCompletedSnapshots(ctx context.Context, c *server.Call, _ *pb.GetCompletedSnapshotsRequest) (*pb.GetCompletedSnapshotsResponse, error) {
	ctx, err := m.known(ctx, c)
	if err != nil {
		return nil, err
	}
	resp := &pb.GetCompletedSnapshotsResponse{}
	if m.backups == nil {
		return resp, nil
	}
	list, err := m.backups.ListBackups(ctx, snapshotPrefix)
	if err != nil {
		return nil, err
	}
	for _, b := range list {
		d, _, err := describe(b)
		if err != nil {
			return nil, err
		}
		if ok, err := m.sees(ctx, d); err != nil {
			return nil, err
		} else if ok {
			resp.Snapshots = append(resp.Snapshots, d)
		}
	}
	return resp, nil
}

func (m *Master) deleteSnapshot(ctx context.Context, c *server.Call, req *pb.DeleteSnapshotRequest) (*pb.DeleteSnapshotResponse, error) {
	name := req.GetSnapshot().GetName()
	_, err := m.changeSnapshot(ctx, c, nonce{}, toManage, m.cluster(), "HBase snapshot deleted", name, "", func(ctx context.Context) error {
		b, _, _, err := m.lookUp(ctx, name)
		if err != nil {
			return err
		}
		return m.backups.DeleteBackup(ctx, b.Name)
	})
	if err != nil {
		return nil, err
	}
	return &pb.DeleteSnapshotResponse{}, nil
}

// restoreSnapshot makes a table of a snapshot, or a disabled table what it was. Its caller
// may make tables there, and copy all rows of the table that the snapshot is of.
func (m *Master) restoreSnapshot(ctx context.Context, c *server.Call, req *pb.RestoreSnapshotRequest) (*pb.RestoreSnapshotResponse, error) {
	snapshot, table := req.GetSnapshot().GetName(), req.GetSnapshot().GetTable()
	if table == "" {
		as, err := m.known(ctx, c)
		if err != nil {
			return nil, err
		}
		_, d, _, err := m.lookUp(as, snapshot)
		if err != nil {
			return nil, err
		}
		table = d.GetTable()
	}
	name := model.ParseName(table)
	id, err := m.changeSnapshot(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toCreate, m.catalog.Mapping().InstanceName(name.Namespace), "HBase snapshot restored", snapshot, table, func(ctx context.Context) error {
		if name.System() {
			return wire.DoNotRetryIO.New("%s: the tables of the namespace %s are computed", name, model.SystemNamespace)
		}
		if err := checkTable(name); err != nil {
			return err
		}
		if err := m.namespaceExists(ctx, name.Namespace); err != nil {
			return err
		}
		b, d, x, err := m.lookUp(ctx, snapshot)
		if err != nil {
			return err
		}
		if _, err := m.authorize(ctx, c, toCopy, m.source(d)); err != nil {
			return err
		}
		state := pb.TableState_ENABLED
		was, err := m.table(ctx, name)
		switch {
		case is(err, wire.TableNotFound):
			was = nil
		case err != nil:
			return err
		case was.Enabled():
			return unsupported("Table '" + name.String() + "' must be disabled in order to perform a restore operation.")
		default:
			if _, err := m.authorize(ctx, c, toDelete, was.Resource); err != nil {
				return err
			}
			state = pb.TableState_DISABLED
			// Soft: it comes back if its successor cannot be made.
			if err := m.b.DeleteTable(ctx, was.Resource); err != nil {
				return err
			}
		}
		made, err := m.backups.RestoreTable(ctx, b.Name, m.catalog.Mapping().Resource(name), func(*schema.Table) error { return nil })
		if err != nil {
			if was != nil {
				if _, uerr := m.b.UndeleteTable(context.WithoutCancel(ctx), was.Resource); uerr != nil {
					err = errors.Join(err, uerr)
				}
			}
			return err
		}
		if was != nil {
			if err := m.catalog.Remove(ctx, was.Schema.ID); err != nil {
				return err
			}
		}
		return m.catalog.Update(ctx, made, func(s *model.Stored) error {
			*s = model.Stored{State: int32(state), Descriptor: slices.Clone(x.Descriptor)}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return &pb.RestoreSnapshotResponse{ProcId: &id}, nil
}
