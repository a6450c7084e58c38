package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// changeRetention is how long the tables' changes are kept, the API's least.
const changeRetention = 24 * time.Hour

// A target is a server under measurement.
type target struct {
	label    string // A, B or ceiling
	addr     string
	pids     []int
	echo     bool
	sessions bool // see Options.Sessions
	changes  bool // see Options.ChangeStream
	conns    []*grpc.ClientConn
	o        *Options
	// loaded is the table of the workload before, nil if that has written to it.
	loaded *dataset
}

func openTarget(o *Options, label, addr string, pids []int) (*target, error) {
	conns, err := dialAll(addr, o.Connections)
	if err != nil {
		return nil, err
	}
	return &target{label: label, addr: addr, pids: pids, echo: label == labelCeiling, conns: conns, o: o, sessions: o.Sessions && label == labelA,
		changes: o.ChangeStream && label == labelA}, nil
}

func (t *target) instance() string {
	return fmt.Sprintf("projects/%s/instances/%s", t.o.Project, t.o.Instance)
}

// create makes an empty table for d, in place of an earlier one.
func (t *target) create(ctx context.Context, id string, d *dataset) error {
	tables := btapb.NewBigtableTableAdminClient(t.conns[0])
	d.name = t.instance() + "/tables/" + id
	gc := &btapb.GcRule{Rule: &btapb.GcRule_MaxNumVersions{MaxNumVersions: 1}}
	if d.keepAll {
		gc = nil
	}
	req := &btapb.CreateTableRequest{
		Parent: t.instance(), TableId: id,
		Table: &btapb.Table{ColumnFamilies: map[string]*btapb.ColumnFamily{family: {GcRule: gc}}},
	}
	if d.changes || t.changes {
		req.Table.ChangeStreamConfig = &btapb.ChangeStreamConfig{RetentionPeriod: durationpb.New(changeRetention)}
	}
	for i := range min(uint64(t.o.Splits), d.rows) {
		if i > 0 {
			req.InitialSplits = append(req.InitialSplits, &btapb.CreateTableRequest_Split{Key: d.boundary(i, min(uint64(t.o.Splits), d.rows))})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	wait := grpc.WaitForReady(true) // the server may still be starting
	for try := 0; ; try++ {
		_, err := tables.CreateTable(ctx, req, wait)
		switch code := status.Code(err); {
		case err == nil:
			return nil
		case code == codes.AlreadyExists && try < 3:
			if err := t.drop(ctx, d.name); err != nil {
				return fmt.Errorf("delete table %s left by an earlier run: %w", d.name, err)
			}
		case code == codes.NotFound && try < 3:
			if err := t.createInstance(ctx); err != nil {
				return err
			}
		default:
			return fmt.Errorf("create table %s on %s: %w", d.name, t.addr, err)
		}
	}
}

func (t *target) createInstance(ctx context.Context) error {
	_, err := btapb.NewBigtableInstanceAdminClient(t.conns[0]).CreateInstance(ctx, &btapb.CreateInstanceRequest{
		Parent: "projects/" + t.o.Project, InstanceId: t.o.Instance,
		Instance: &btapb.Instance{DisplayName: t.o.Instance, Type: btapb.Instance_DEVELOPMENT},
		Clusters: map[string]*btapb.Cluster{"bench-cluster": {Location: "projects/" + t.o.Project + "/locations/local-a", DefaultStorageType: btapb.StorageType_SSD}},
	})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("create instance %s: %w", t.instance(), err)
	}
	return nil
}

// leave deletes the table that was loaded last, unless it is to be kept.
func (t *target) leave(ctx context.Context) error {
	d := t.loaded
	if t.loaded = nil; d == nil || t.o.Keep {
		return nil
	}
	if err := t.drop(ctx, d.name); err != nil {
		return fmt.Errorf("drop the table on %s: %w", t.label, err)
	}
	return nil
}

// drop deletes a table that create made. It ends the change stream first, with which
// no table can be deleted.
func (t *target) drop(ctx context.Context, name string) error {
	tables := btapb.NewBigtableTableAdminClient(t.conns[0])
	_, err := tables.DeleteTable(ctx, &btapb.DeleteTableRequest{Name: name})
	if status.Code(err) != codes.FailedPrecondition {
		return err
	}
	if _, err := tables.UpdateTable(ctx, &btapb.UpdateTableRequest{Table: &btapb.Table{Name: name},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"change_stream_config"}}}); err != nil {
		return err
	}
	for {
		_, err := tables.DeleteTable(ctx, &btapb.DeleteTableRequest{Name: name})
		if status.Code(err) != codes.FailedPrecondition {
			return err
		}
		select { // the update is an operation
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// each runs fn in n workers, until all have ended or one has failed.
func (t *target) each(ctx context.Context, n int, fn func(ctx context.Context, w *worker) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make(chan error, n)
	for i := range n {
		w := newWorker(t.conns[i%len(t.conns)], t.o.Seed, uint64(i))
		go func() {
			err := fn(ctx, w)
			if err != nil {
				cancel(err)
			}
			errs <- err
		}()
	}
	var all []error
	for range n {
		all = append(all, <-errs)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return errors.Join(all...)
}

// close closes the connections.
func (t *target) close() error { return closeAll(t.conns) }
