package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// takeSnapshot makes a snapshot of a table and waits for it. ttl is in seconds;
// 0 is for good.
func (b *Backend) takeSnapshot(ctx context.Context, n model.Name, snapshot string, ttl time.Duration, kind pb.SnapshotDescription_Type) error {
	d := &pb.SnapshotDescription{Name: proto.String(snapshot), Table: proto.String(n.String()), Type: kind.Enum(), Ttl: proto.Int64(int64(ttl / time.Second)),
		Owner: proto.String("trestle"), CreationTime: proto.Int64(time.Now().UnixMilli()), Version: proto.Int32(2)}
	if _, err := ask[*pb.SnapshotResponse](ctx, b, "Snapshot", &pb.SnapshotRequest{Snapshot: d, NonceGroup: nonce(), Nonce: nonce()},
		func() proto.Message { return new(pb.SnapshotResponse) }); err != nil {
		return err
	}
	pause := 5 * time.Millisecond
	for {
		r, err := ask[*pb.IsSnapshotDoneResponse](ctx, b, "IsSnapshotDone", &pb.IsSnapshotDoneRequest{Snapshot: d},
			func() proto.Message { return new(pb.IsSnapshotDoneResponse) })
		if err != nil || r.GetDone() {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, 200*time.Millisecond)
	}
}

// cloneSnapshot makes a table of a snapshot.
func (b *Backend) cloneSnapshot(ctx context.Context, snapshot string, n model.Name) error {
	return procedure[*pb.RestoreSnapshotResponse](ctx, b, "RestoreSnapshot",
		&pb.RestoreSnapshotRequest{Snapshot: &pb.SnapshotDescription{Name: proto.String(snapshot), Table: proto.String(n.String())}, NonceGroup: nonce(), Nonce: nonce()},
		func() proto.Message { return new(pb.RestoreSnapshotResponse) })
}

func (b *Backend) dropSnapshot(ctx context.Context, snapshot string) error {
	_, err := ask[*pb.DeleteSnapshotResponse](ctx, b, "DeleteSnapshot", &pb.DeleteSnapshotRequest{Snapshot: &pb.SnapshotDescription{Name: proto.String(snapshot)}},
		func() proto.Message { return new(pb.DeleteSnapshotResponse) })
	if is(err, "SnapshotDoesNotExistException") {
		return nil
	}
	return err
}

// A deleted table is a snapshot that HBase drops at the end of the time in which
// the table can be undeleted.
type deleted struct {
	ID       uint64
	Snapshot string
	Time     time.Time
}

// listDeleted calls emit for the tables that can be undeleted, those of one name
// from the oldest. An empty resource is any.
func (b *Backend) listDeleted(ctx context.Context, resource string, emit func(key string, d *deleted) error) error {
	prefix := deletedRecord
	if resource != "" {
		prefix += resource + "\x00"
	}
	return b.records(ctx, row.Prefix([]byte(prefix)), func(key string, value []byte, _ uint64) error {
		d := &deleted{}
		if err := json.Unmarshal(value, d); err != nil {
			return fault.New(fault.Corruption, "record of the deleted table %s: %w", key, err)
		}
		if time.Since(d.Time) > schema.UndeleteWindow {
			return nil
		}
		return emit(key, d)
	})
}

// DeleteTable implements backend.Tables: the table is disabled, a snapshot of it
// taken, and the table deleted.
func (b *Backend) DeleteTable(ctx context.Context, resource string) error {
	err := b.locked(ctx, resource, func(ctx context.Context) error {
		t, _, err := b.load(ctx, resource)
		if err != nil {
			return err
		}
		if t.schema.DeletionProtection {
			return fault.New(fault.FailedPrecondition, "Cannot delete table %s: deletion protection is on", resource)
		}
		return b.whileDisabled(ctx, t.name, func() error {
			d := deleted{ID: t.schema.ID, Snapshot: fmt.Sprintf("trestle-deleted-%016x", random()), Time: time.Now()}
			if err := b.takeSnapshot(ctx, t.name, d.Snapshot, schema.UndeleteWindow, pb.SnapshotDescription_DISABLED); err != nil {
				return err
			}
			value, err := json.Marshal(d)
			if err != nil {
				return err
			}
			key := fmt.Sprintf("%s%s\x00%016x", deletedRecord, resource, d.Time.UnixNano())
			if _, err := b.setRecord(ctx, key, value, 0, false); err != nil {
				return err
			}
			return b.remove(ctx, t.name)
		})
	})
	b.remember(resource, nil)
	return err
}

// UndeleteTable implements backend.Tables.
func (b *Backend) UndeleteTable(ctx context.Context, resource string) (*schema.Table, error) {
	err := b.locked(ctx, resource, func(ctx context.Context) error {
		var key string
		var last *deleted
		if err := b.listDeleted(ctx, resource, func(k string, d *deleted) error { key, last = k, d; return nil }); err != nil {
			return err
		}
		if last == nil {
			return fault.New(fault.NotFound, "Deleted table not found: %s", resource)
		}
		name, err := b.place.table(resource)
		if err != nil {
			return err
		}
		if _, _, err := b.load(ctx, resource); !errors.Is(err, fault.NotFound) {
			if err == nil {
				err = exists(resource)
			}
			return err
		}
		if err := b.cloneSnapshot(ctx, last.Snapshot, name); err != nil {
			return err
		}
		if _, version, err := b.record(ctx, key); err == nil {
			if _, err := b.setRecord(ctx, key, nil, version, true); err != nil {
				return err
			}
		}
		return b.dropSnapshot(ctx, last.Snapshot)
	})
	b.remember(resource, nil)
	if err != nil {
		return nil, err
	}
	return b.Table(ctx, resource)
}
