package auth_test

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/gateway/auth"
)

// TestBackups grants one backup, and so a copy of a table to who may not use the
// table.
func TestBackups(t *testing.T) {
	f := newFixture(t, auth.Options{})
	ctx := t.Context()
	root := adminpb.NewBigtableTableAdminClient(f.connect(f.root.token(nil)))
	acc := f.account("some-acc", false)
	conn := f.connect(acc.token(nil))
	some := adminpb.NewBigtableTableAdminClient(conn)
	const cluster = instance + "/clusters/cl-1"
	const name, other = cluster + "/backups/b", cluster + "/backups/c"
	expire := timestamppb.New(time.Now().Add(24 * time.Hour))
	create := func(c adminpb.BigtableTableAdminClient, id string) (*longrunningpb.Operation, error) {
		return c.CreateBackup(ctx, &adminpb.CreateBackupRequest{Parent: cluster, BackupId: id, Backup: &adminpb.Backup{SourceTable: table, ExpireTime: expire}})
	}
	for _, id := range []string{"b", "c"} {
		if _, err := create(root, id); err != nil {
			t.Fatal(err)
		}
	}
	restore := func(from, id string) error {
		_, err := some.RestoreTable(ctx, &adminpb.RestoreTableRequest{Parent: instance, TableId: id, Source: &adminpb.RestoreTableRequest_Backup{Backup: from}})
		return err
	}
	copied := func(from, id string) error {
		_, err := some.CopyBackup(ctx, &adminpb.CopyBackupRequest{Parent: cluster, BackupId: id, SourceBackup: from, ExpireTime: expire})
		return err
	}
	type call struct {
		name string
		do   func(context.Context) error
		want codes.Code
	}
	check := func(when string, calls ...call) {
		t.Helper()
		for _, c := range calls {
			if err := c.do(ctx); status.Code(err) != c.want {
				t.Errorf("%s: %s: got %v, want %v", when, c.name, err, c.want)
			}
		}
	}
	get := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := some.GetBackup(ctx, &adminpb.GetBackupRequest{Name: name})
			return err
		}
	}
	list := func(ctx context.Context) error {
		_, err := some.ListBackups(ctx, &adminpb.ListBackupsRequest{Parent: instance + "/clusters/-"})
		return err
	}
	const no = codes.PermissionDenied
	check("without a grant",
		call{"get", get(name), no}, call{"list", list, no},
		call{"create", func(context.Context) error { _, err := create(some, "mine"); return err }, no},
		call{"restore", func(context.Context) error { return restore(name, "u") }, no},
		call{"copy", func(context.Context) error { return copied(name, "d") }, no},
		call{"snapshot", func(ctx context.Context) error {
			_, err := some.SnapshotTable(ctx, &adminpb.SnapshotTableRequest{Name: table, Cluster: cluster, SnapshotId: "s"})
			return err
		}, no},
		call{"policy", func(ctx context.Context) error {
			_, err := some.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: name})
			return err
		}, no},
		call{"delete", func(ctx context.Context) error {
			_, err := some.DeleteBackup(ctx, &adminpb.DeleteBackupRequest{Name: name})
			return err
		}, no})
	f.grant(name, "roles/bigtable.admin "+acc.member())
	update := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := some.UpdateBackup(ctx, &adminpb.UpdateBackupRequest{Backup: &adminpb.Backup{Name: name, ExpireTime: expire},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"expire_time"}}})
			return err
		}
	}
	check("with one backup",
		call{"get", get(name), codes.OK}, call{"get another", get(other), no}, call{"list", list, no},
		call{"update", update(name), codes.OK}, call{"update another", update(other), no},
		call{"restore", func(context.Context) error { return restore(name, "u") }, no})
	// Whoever may make tables and backups in the instance, but has no rows of the
	// table to read, takes the rows of that backup only.
	f.grant(instance, "roles/bigtable.viewer "+acc.member())
	check("as a viewer", call{"list", list, codes.OK}, call{"get another", get(other), codes.OK},
		call{"restore", func(context.Context) error { return restore(other, "u") }, no},
		call{"copy", func(context.Context) error { return copied(other, "d") }, no},
		call{"create", func(context.Context) error { _, err := create(some, "mine"); return err }, no})
	f.grant(instance, "roles/bigtable.admin "+acc.member())
	check("as an administrator",
		call{"create", func(context.Context) error {
			op, err := create(some, "mine")
			if err == nil {
				_, err = longrunningpb.NewOperationsClient(conn).GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.GetName()})
			}
			return err
		}, codes.OK},
		call{"restore", func(context.Context) error { return restore(name, "u") }, codes.OK},
		call{"copy", func(context.Context) error { return copied(other, "d") }, codes.OK})
}
