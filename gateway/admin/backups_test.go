package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

const (
	testCluster = testInstance + "/clusters/cluster-one"
	testBackup  = testCluster + "/backups/b"
)

// strictAt is strict with a clock.
func strictAt(t testing.TB, c *clock, b backend.Backend) *server {
	t.Helper()
	s := serve(t, b, Options{Now: c.now})
	s.createInstance(t, "inst-one", "cluster-one", "cluster-two")
	s.createInstance(t, "inst-two", "cluster-one")
	must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t", Table: &adminpb.Table{
		ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {GcRule: maxVersions(2)}},
	}}))(t)
	return s
}

func modelAt(c *clock) *model.Backend { return model.New(model.Options{Now: c.now}) }

func (s *server) putRow(t testing.TB, table, key string) {
	t.Helper()
	err := s.b.MutateRow(t.Context(), table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
		{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte("v")}}})
	if err != nil {
		t.Fatal(err)
	}
}

func newBackup(c *clock, id string, change func(*adminpb.CreateBackupRequest)) *adminpb.CreateBackupRequest {
	req := &adminpb.CreateBackupRequest{Parent: testCluster, BackupId: id, Backup: &adminpb.Backup{
		SourceTable: testTable, ExpireTime: timestamppb.New(c.now().Add(8 * time.Hour))}}
	if change != nil {
		change(req)
	}
	return req
}

func TestBackups(t *testing.T) {
	c := newClock()
	s := strictAt(t, c, modelAt(c))
	ctx := t.Context()
	s.putRow(t, testTable, "r")
	start := c.now()
	m := new(adminpb.CreateBackupMetadata)
	made := response(t, must(s.CreateBackup(ctx, newBackup(c, "b", nil)))(t), m, new(adminpb.Backup))
	if made.Name != testBackup || made.SourceTable != testTable || made.State != adminpb.Backup_READY || made.SizeBytes == 0 ||
		made.BackupType != adminpb.Backup_STANDARD || made.HotToStandardTime != nil || made.SourceBackup != "" || !made.StartTime.AsTime().Equal(start) ||
		made.EndTime == nil || made.EncryptionInfo.GetEncryptionType() != adminpb.EncryptionInfo_GOOGLE_DEFAULT_ENCRYPTION {
		t.Errorf("made %v", made)
	}
	if m.Name != testBackup || m.SourceTable != testTable || m.StartTime == nil || m.EndTime == nil {
		t.Errorf("metadata %v", m)
	}
	if got := must(s.GetBackup(ctx, &adminpb.GetBackupRequest{Name: testBackup}))(t); !proto.Equal(got, made) {
		t.Errorf("got %v, want %v", got, made)
	}
	hot := response(t, must(s.CreateBackup(ctx, newBackup(c, "hot", func(r *adminpb.CreateBackupRequest) {
		r.Backup.BackupType, r.Backup.HotToStandardTime = adminpb.Backup_HOT, timestamppb.New(start.Add(48*time.Hour))
		r.Backup.ExpireTime = timestamppb.New(start.Add(90 * day))
	})))(t), m, new(adminpb.Backup))
	if hot.BackupType != adminpb.Backup_HOT || !hot.HotToStandardTime.AsTime().Equal(start.Add(48*time.Hour)) {
		t.Errorf("hot backup %v", hot)
	}

	with := func(change func(*adminpb.CreateBackupRequest)) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.CreateBackup(ctx, newBackup(c, "new", change)))
		}
	}
	expires := func(d time.Duration) func(context.Context, *server) error {
		return with(func(r *adminpb.CreateBackupRequest) { r.Backup.ExpireTime = timestamppb.New(c.now().Add(d)) })
	}
	update := func(change func(*adminpb.Backup), paths ...string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			b := &adminpb.Backup{Name: testBackup}
			change(b)
			return drop(s.UpdateBackup(ctx, &adminpb.UpdateBackupRequest{Backup: b, UpdateMask: mask(paths...)}))
		}
	}
	copyTo := func(change func(*adminpb.CopyBackupRequest)) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			r := &adminpb.CopyBackupRequest{Parent: testCluster, BackupId: "copy", SourceBackup: testBackup, ExpireTime: timestamppb.New(c.now().Add(30 * day))}
			change(r)
			return drop(s.CopyBackup(ctx, r))
		}
	}
	restoreTo := func(change func(*adminpb.RestoreTableRequest)) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			r := &adminpb.RestoreTableRequest{Parent: testInstance, TableId: "restored", Source: &adminpb.RestoreTableRequest_Backup{Backup: testBackup}}
			change(r)
			return drop(s.RestoreTable(ctx, r))
		}
	}
	checkRefusals(t, s, []refusal{
		{"create twice", with(func(r *adminpb.CreateBackupRequest) { r.BackupId = "b" }), codes.AlreadyExists, "Backup already exists: " + testBackup, ""},
		{"create of missing table", with(func(r *adminpb.CreateBackupRequest) { r.Backup.SourceTable += "2" }), codes.NotFound, "Table not found", ""},
		{"create in missing cluster", with(func(r *adminpb.CreateBackupRequest) { r.Parent += "x" }), codes.NotFound, "Cluster not found", ""},
		{"create in missing instance", with(func(r *adminpb.CreateBackupRequest) {
			r.Parent = testInstance + "-x/clusters/cluster-one"
			r.Backup.SourceTable = testInstance + "-x/tables/t"
		}), codes.NotFound, "", ""},
		{"create elsewhere", with(func(r *adminpb.CreateBackupRequest) {
			r.Parent = testProject + "/instances/inst-two/clusters/cluster-one"
		}),
			codes.InvalidArgument, "Must be a table of", "backup.source_table"},
		{"create without parent", with(func(r *adminpb.CreateBackupRequest) { r.Parent = "" }), codes.InvalidArgument, "When parsing", "parent"},
		{"create without backup", with(func(r *adminpb.CreateBackupRequest) { r.Backup = nil }), codes.InvalidArgument, "Must be specified", "backup"},
		{"create without table", with(func(r *adminpb.CreateBackupRequest) { r.Backup.SourceTable = "" }), codes.InvalidArgument, "When parsing", "backup.source_table"},
		{"create with long id", with(func(r *adminpb.CreateBackupRequest) { r.BackupId = strings.Repeat("b", 51) }), codes.InvalidArgument, "Length", "backup_id"},
		{"create with bad id", with(func(r *adminpb.CreateBackupRequest) { r.BackupId = "-" }), codes.InvalidArgument, "Should match", "backup_id"},
		{"create with other name", with(func(r *adminpb.CreateBackupRequest) { r.Backup.Name = testBackup }), codes.InvalidArgument, "Expected", "backup.name"},
		{"create for ever", with(func(r *adminpb.CreateBackupRequest) { r.Backup.ExpireTime = nil }), codes.InvalidArgument, "Must be specified", "backup.expire_time"},
		{"create too short", expires(6*time.Hour - clockSlack - time.Second), codes.InvalidArgument, "between 6h", "backup.expire_time"},
		{"create too long", expires(90*day + clockSlack + time.Second), codes.InvalidArgument, "2160h", "backup.expire_time"},
		{"create standard with hot time", with(func(r *adminpb.CreateBackupRequest) {
			r.Backup.HotToStandardTime = timestamppb.New(c.now().Add(48 * time.Hour))
		}),
			codes.InvalidArgument, "Only HOT", "backup.hot_to_standard_time"},
		{"create hot too short", with(func(r *adminpb.CreateBackupRequest) {
			r.Backup.BackupType, r.Backup.HotToStandardTime = adminpb.Backup_HOT, timestamppb.New(c.now().Add(24*time.Hour-clockSlack-time.Second))
		}), codes.InvalidArgument, "at least 24h", "backup.hot_to_standard_time"},
		{"create unknown type", with(func(r *adminpb.CreateBackupRequest) { r.Backup.BackupType = 9 }), codes.InvalidArgument, "Unknown value", "backup.backup_type"},
		{"get missing", func(ctx context.Context, s *server) error {
			return drop(s.GetBackup(ctx, &adminpb.GetBackupRequest{Name: testBackup + "2"}))
		}, codes.NotFound, "Backup not found", ""},
		{"delete missing", func(ctx context.Context, s *server) error {
			return drop(s.DeleteBackup(ctx, &adminpb.DeleteBackupRequest{Name: testBackup + "2"}))
		}, codes.NotFound, "Backup not found", ""},
		{"update nothing", update(func(*adminpb.Backup) {}), codes.InvalidArgument, "update_mask", "update_mask"},
		{"update source", update(func(*adminpb.Backup) {}, "source_table"), codes.InvalidArgument, "Immutable", "update_mask"},
		{"update unknown", update(func(*adminpb.Backup) {}, "nothing"), codes.InvalidArgument, "Unknown field", "update_mask"},
		{"update missing", update(func(b *adminpb.Backup) { b.Name += "2" }, "expire_time"), codes.NotFound, "Backup not found", ""},
		{"update to no end", update(func(*adminpb.Backup) {}, "expire_time"), codes.InvalidArgument, "Must be specified", "backup.expire_time"},
		{"update too long", update(func(b *adminpb.Backup) { b.ExpireTime = timestamppb.New(start.Add(90*day + clockSlack + time.Second)) }, "expire_time"),
			codes.InvalidArgument, "between", "backup.expire_time"},
		{"update standard to hot", update(func(b *adminpb.Backup) { b.BackupType = adminpb.Backup_HOT }, "backup_type"), codes.InvalidArgument, "does not become HOT", "backup.backup_type"},
		{"update standard with hot time", update(func(b *adminpb.Backup) { b.HotToStandardTime = timestamppb.New(start.Add(48 * time.Hour)) }, "hot_to_standard_time"),
			codes.InvalidArgument, "Only HOT", "backup.hot_to_standard_time"},
		{"copy missing", copyTo(func(r *adminpb.CopyBackupRequest) { r.SourceBackup += "2" }), codes.NotFound, "Backup not found", ""},
		{"copy over", copyTo(func(r *adminpb.CopyBackupRequest) { r.BackupId = "hot" }), codes.AlreadyExists, "already exists", ""},
		{"copy to missing cluster", copyTo(func(r *adminpb.CopyBackupRequest) { r.Parent += "x" }), codes.NotFound, "Cluster not found", ""},
		{"copy too short", copyTo(func(r *adminpb.CopyBackupRequest) { r.ExpireTime = timestamppb.New(c.now()) }), codes.InvalidArgument, "between", "expire_time"},
		{"restore over", restoreTo(func(r *adminpb.RestoreTableRequest) { r.TableId = "t" }), codes.AlreadyExists, "Table already exists", ""},
		{"restore missing", restoreTo(func(r *adminpb.RestoreTableRequest) {
			r.Source = &adminpb.RestoreTableRequest_Backup{Backup: testBackup + "2"}
		}),
			codes.NotFound, "Backup not found", ""},
		{"restore nothing", restoreTo(func(r *adminpb.RestoreTableRequest) { r.Source = nil }), codes.InvalidArgument, "Must be specified", "source"},
		{"restore to missing instance", restoreTo(func(r *adminpb.RestoreTableRequest) { r.Parent += "-x" }), codes.NotFound, "Instance not found", ""},
		{"restore to bad id", restoreTo(func(r *adminpb.RestoreTableRequest) { r.TableId = "" }), codes.InvalidArgument, "Length", "table_id"},
		{"delete the instance", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))
		}, codes.FailedPrecondition, "has backups", ""},
		{"delete the cluster", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteCluster(ctx, &adminpb.DeleteClusterRequest{Name: testCluster}))
		}, codes.FailedPrecondition, "has backups", ""},
	})

	// Updates, counted from the creation.
	c.add(time.Hour)
	up := func(name string, b *adminpb.Backup, paths ...string) *adminpb.Backup {
		t.Helper()
		b.Name = name
		return must(s.UpdateBackup(ctx, &adminpb.UpdateBackupRequest{Backup: b, UpdateMask: mask(paths...)}))(t)
	}
	later := timestamppb.New(start.Add(90 * day))
	if b := up(testBackup, &adminpb.Backup{ExpireTime: later}, "expire_time"); !proto.Equal(b.ExpireTime, later) || !proto.Equal(b.StartTime, made.StartTime) {
		t.Errorf("updated %v", b)
	}
	if b := up(hot.Name, &adminpb.Backup{}, "hot_to_standard_time"); b.BackupType != adminpb.Backup_HOT || b.HotToStandardTime != nil {
		t.Errorf("updated %v", b)
	}
	if b := up(hot.Name, &adminpb.Backup{HotToStandardTime: timestamppb.New(start.Add(25 * time.Hour))}, "hot_to_standard_time"); b.HotToStandardTime == nil {
		t.Errorf("updated %v", b)
	}
	c.add(24 * time.Hour)
	if b := must(s.GetBackup(ctx, &adminpb.GetBackupRequest{Name: hot.Name}))(t); b.BackupType != adminpb.Backup_STANDARD || b.HotToStandardTime != nil {
		t.Errorf("a hot backup past its time is %v", b)
	}
	if b := up(hot.Name, &adminpb.Backup{BackupType: adminpb.Backup_STANDARD}, "backup_type"); b.BackupType != adminpb.Backup_STANDARD {
		t.Errorf("updated %v", b)
	}

	// It outlives its table, and is restored also elsewhere.
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))(t)
	for _, in := range []string{testInstance, testProject + "/instances/inst-two"} {
		m := new(adminpb.RestoreTableMetadata)
		table := response(t, must(s.RestoreTable(ctx, &adminpb.RestoreTableRequest{Parent: in, TableId: "restored",
			Source: &adminpb.RestoreTableRequest_Backup{Backup: testBackup}}))(t), m, new(adminpb.Table))
		i := m.GetBackupInfo()
		if m.Name != in+"/tables/restored" || m.SourceType != adminpb.RestoreSourceType_BACKUP || i.GetBackup() != testBackup || i.GetSourceTable() != testTable ||
			m.Progress.GetProgressPercent() != 100 {
			t.Errorf("metadata %v", m)
		}
		if table.Name != m.Name || table.ColumnFamilies["f"].GetGcRule().GetMaxNumVersions() != 2 || !proto.Equal(table.RestoreInfo.GetBackupInfo(), i) {
			t.Errorf("restored %v", table)
		}
		if got := must(s.GetTable(ctx, &adminpb.GetTableRequest{Name: m.Name}))(t); !proto.Equal(got, table) {
			t.Errorf("got %v, want %v", got, table)
		}
		if m.OptimizeTableOperationName != "" {
			t.Errorf("an operation optimizes what was restored on storage of the same type: %v", m)
		}
		if n, err := s.b.TableBytes(ctx, m.Name); err != nil || n == 0 {
			t.Errorf("%s has %d bytes, %v", m.Name, n, err)
		}
	}

	// Copies.
	cm := new(adminpb.CopyBackupMetadata)
	other := testProject + "/instances/inst-two/clusters/cluster-one"
	cp := response(t, must(s.CopyBackup(ctx, &adminpb.CopyBackupRequest{Parent: other, BackupId: "copy", SourceBackup: testBackup,
		ExpireTime: timestamppb.New(c.now().Add(90 * day))}))(t), cm, new(adminpb.Backup))
	if cp.Name != other+"/backups/copy" || cp.SourceBackup != testBackup || cp.SourceTable != testTable || cp.State != adminpb.Backup_READY ||
		!proto.Equal(cp.StartTime, made.StartTime) || cm.Name != cp.Name || cm.SourceBackupInfo.GetBackup() != testBackup {
		t.Errorf("copy %v, %v", cp, cm)
	}
	checkRefusals(t, s, []refusal{{"copy a copy", copyTo(func(r *adminpb.CopyBackupRequest) { r.SourceBackup = cp.Name }), codes.FailedPrecondition, "cannot be copied", ""}})
	must(s.DeleteBackup(ctx, &adminpb.DeleteBackupRequest{Name: testBackup}))(t)
	must(s.RestoreTable(ctx, &adminpb.RestoreTableRequest{Parent: testInstance, TableId: "again", Source: &adminpb.RestoreTableRequest_Backup{Backup: cp.Name}}))(t)

	// At its end it is gone, and its cluster can go.
	c.add(90 * day)
	if l := must(s.ListBackups(ctx, &adminpb.ListBackupsRequest{Parent: testInstance + "/clusters/-"}))(t); len(l.Backups) != 0 {
		t.Errorf("expired backups are listed: %v", l)
	}
	must(s.inst.DeleteCluster(ctx, &adminpb.DeleteClusterRequest{Name: testCluster}))(t)
	must(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))(t)
}

// Callers count a backup's times from what their clocks say, which is some time
// before the request arrives, and their clocks may be wrong.
func TestBackupTimesOfCallers(t *testing.T) {
	c := newClock()
	s := strictAt(t, c, modelAt(c))
	for i, late := range []time.Duration{time.Millisecond, 2 * time.Minute, -2 * time.Minute} {
		said := c.now().Add(-late)
		for j, life := range []time.Duration{minBackupLife, maxBackupLife} {
			m := new(adminpb.CreateBackupMetadata)
			b := response(t, must(s.CreateBackup(t.Context(), newBackup(c, fmt.Sprintf("b%d-%d", i, j), func(r *adminpb.CreateBackupRequest) {
				r.Backup.ExpireTime = timestamppb.New(said.Add(life))
				r.Backup.BackupType, r.Backup.HotToStandardTime = adminpb.Backup_HOT, timestamppb.New(said.Add(minHot))
			})))(t), m, new(adminpb.Backup))
			if !b.ExpireTime.AsTime().Equal(said.Add(life)) {
				t.Errorf("%v late: %v", late, b)
			}
		}
	}
}

// An operation optimizes a restored table only where the storage is of another
// type than that of the backup.
func TestRestoreOptimizes(t *testing.T) {
	c := newClock()
	s := strictAt(t, c, modelAt(c))
	ctx := t.Context()
	disks := cluster(1)
	disks.DefaultStorageType = adminpb.StorageType_HDD
	must(s.inst.CreateInstance(ctx, &adminpb.CreateInstanceRequest{Parent: testProject, InstanceId: "inst-disks",
		Instance: &adminpb.Instance{DisplayName: "Disks"}, Clusters: map[string]*adminpb.Cluster{"cluster-one": disks}}))(t)
	on := map[string]string{"ssd": testInstance, "hdd": testProject + "/instances/inst-disks"}
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: on["hdd"], TableId: "t", Table: &adminpb.Table{}}))(t)
	for from, in := range on {
		must(s.CreateBackup(ctx, newBackup(c, "b", func(r *adminpb.CreateBackupRequest) {
			r.Parent, r.Backup.SourceTable = in+"/clusters/cluster-one", in+"/tables/t"
		})))(t)
		for to, other := range on {
			m := new(adminpb.RestoreTableMetadata)
			response(t, must(s.RestoreTable(ctx, &adminpb.RestoreTableRequest{Parent: other, TableId: "from-" + from,
				Source: &adminpb.RestoreTableRequest_Backup{Backup: in + "/clusters/cluster-one/backups/b"}}))(t), m, new(adminpb.Table))
			if (m.OptimizeTableOperationName != "") != (from != to) {
				t.Errorf("%s to %s: optimized by %q", from, to, m.OptimizeTableOperationName)
			}
			if from != to {
				optimized := must(s.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: m.OptimizeTableOperationName}))(t)
				response(t, optimized, new(adminpb.OptimizeRestoredTableMetadata), new(emptypb.Empty))
			}
		}
	}
}

func TestListBackups(t *testing.T) {
	c := newClock()
	s := strictAt(t, c, modelAt(c))
	ctx := t.Context()
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "prod", Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}))(t)
	s.putRow(t, testInstance+"/tables/prod", "r")
	first := c.now()
	for i, id := range []string{"howl", "exact", "exactly", "z"} {
		must(s.CreateBackup(ctx, newBackup(c, id, func(r *adminpb.CreateBackupRequest) {
			if i%2 == 1 {
				r.Backup.SourceTable = testInstance + "/tables/prod"
			}
			if id == "z" {
				r.Parent = testInstance + "/clusters/cluster-two"
			}
			r.Backup.ExpireTime = timestamppb.New(c.now().Add(time.Duration(20-4*i) * time.Hour))
		})))(t)
		c.add(time.Minute)
	}
	must(s.SnapshotTable(ctx, &adminpb.SnapshotTableRequest{Name: testTable, Cluster: testCluster, SnapshotId: "snap"}))(t)
	list := func(req *adminpb.ListBackupsRequest) string {
		t.Helper()
		var ids []string
		for {
			l := must(s.ListBackups(ctx, req))(t)
			if req.PageSize > 0 && len(l.Backups) > int(req.PageSize) {
				t.Errorf("a page of %d", len(l.Backups))
			}
			for _, b := range l.Backups {
				ids = append(ids, b.Name[strings.LastIndexByte(b.Name, '/')+1:])
			}
			if l.NextPageToken == "" {
				return strings.Join(ids, " ")
			}
			req.PageToken = l.NextPageToken
		}
	}
	all := testInstance + "/clusters/-"
	at := first.Add(time.Minute).Format(time.RFC3339)
	for _, tc := range []struct{ parent, filter, order, want string }{
		{all, "", "", "z exactly exact howl"},
		{testCluster, "", "", "exactly exact howl"},
		{all, "", "start_time", "howl exact exactly z"},
		{all, "", "name desc", "z howl exactly exact"},
		{all, "", "source_table, start_time  DESC", "z exact exactly howl"},
		{all, "", "expire_time", "z exactly exact howl"},
		{all, "", "size_bytes desc,name", "exact z exactly howl"},
		{all, "", "state, end_time", "howl exact exactly z"},
		{all, "", "name desc, name", "z howl exactly exact"},
		{all, `name:"exact"`, "", "exact"},
		{all, `name:EXACT`, "", "exactly exact"},
		{all, `name = ` + testCluster + `/backups/exact`, "", "exact"},
		{all, `name != exact`, "", "z exactly howl"},
		{all, `source_table:prod`, "", "z exact"},
		{all, `state:READY`, "", "z exactly exact howl"},
		{all, `state:CREATING`, "", ""},
		{all, `(name:howl) AND (start_time < "` + at + `")`, "", "howl"},
		{all, `start_time >= ` + at, "", "z exactly exact"},
		{all, `start_time >= ` + at + ` AND NOT name:z`, "", "exactly exact"},
		{all, `name:howl OR name:z`, "", "z howl"},
		{all, `size_bytes > 0`, "", "z exact"},
		{all, `expire_time < "2026-01-02T18:00:00Z"`, "", "z exactly"},
	} {
		for _, size := range []int32{0, -3, 1, 3} {
			got := list(&adminpb.ListBackupsRequest{Parent: tc.parent, Filter: tc.filter, OrderBy: tc.order, PageSize: size})
			if got != tc.want {
				t.Errorf("%s, filter %s, order %s, pages of %d: got %s, want %s", tc.parent, tc.filter, tc.order, size, got, tc.want)
			}
		}
	}
	bad := func(req *adminpb.ListBackupsRequest) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error { return drop(s.ListBackups(ctx, req)) }
	}
	checkRefusals(t, s, []refusal{
		{"filter", bad(&adminpb.ListBackupsRequest{Parent: all, Filter: "nothing:1"}), codes.InvalidArgument, "unknown field", "filter"},
		{"half a filter", bad(&adminpb.ListBackupsRequest{Parent: all, Filter: "(name:x"}), codes.InvalidArgument, "missing", "filter"},
		{"long filter", bad(&adminpb.ListBackupsRequest{Parent: all, Filter: strings.Repeat("name:x ", 1<<18)}), codes.InvalidArgument, "at most 16384 bytes", "filter"},
		{"long order", bad(&adminpb.ListBackupsRequest{Parent: all, OrderBy: strings.Repeat("name,", 1<<18) + "name"}), codes.InvalidArgument, "at most 16384 bytes", "order_by"},
		{"order", bad(&adminpb.ListBackupsRequest{Parent: all, OrderBy: "name up"}), codes.InvalidArgument, "Expected", "order_by"},
		{"order by nothing", bad(&adminpb.ListBackupsRequest{Parent: all, OrderBy: "name,"}), codes.InvalidArgument, "Expected", "order_by"},
		{"token", bad(&adminpb.ListBackupsRequest{Parent: all, PageToken: "x"}), codes.InvalidArgument, "Not a token", "page_token"},
		{"cluster", bad(&adminpb.ListBackupsRequest{Parent: testCluster + "x"}), codes.NotFound, "Cluster not found", ""},
		{"instance", bad(&adminpb.ListBackupsRequest{Parent: testInstance + "x/clusters/-"}), codes.NotFound, "Instance not found", ""},
		{"parent", bad(&adminpb.ListBackupsRequest{Parent: testInstance}), codes.InvalidArgument, "When parsing", "parent"},
	})
}

func TestBackupPolicies(t *testing.T) {
	c := newClock()
	s := strictAt(t, c, modelAt(c))
	ctx := t.Context()
	must(s.CreateBackup(ctx, newBackup(c, "b", nil)))(t)
	get := func() *iampb.Policy {
		t.Helper()
		return must(s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testBackup}))(t)
	}
	p := get()
	if len(p.Bindings) != 0 {
		t.Errorf("a new backup has the policy %v", p)
	}
	p.Bindings = []*iampb.Binding{{Role: "roles/viewer", Members: []string{"domain:example.com"}}}
	must(s.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: testBackup, Policy: p}))(t)
	if got := get(); len(got.Bindings) != 1 {
		t.Errorf("policy %v", got)
	}
	if _, err := s.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: testBackup, Policy: p}); status.Code(err) != codes.Aborted {
		t.Errorf("stale etag: %v", err)
	}
	held := must(s.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{Resource: testBackup, Permissions: []string{"bigtable.backups.get"}}))(t)
	if len(held.Permissions) != 1 {
		t.Errorf("held %v", held)
	}
	must(s.DeleteBackup(ctx, &adminpb.DeleteBackupRequest{Name: testBackup}))(t)
	must(s.CreateBackup(ctx, newBackup(c, "b", nil)))(t)
	if got := get(); len(got.Bindings) != 0 {
		t.Errorf("a backup made again has the policy %v", got)
	}
	if _, err := s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testBackup + "2"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// A slow backend keeps backups waiting until it is let go.
type slow struct {
	backend.Backend
	mu      sync.Mutex
	let     chan struct{} // nil: nobody waits
	ignores bool          // that its caller gave up
}

func (b *slow) CreateBackup(ctx context.Context, table string, want *schema.Backup) (*schema.Backup, error) {
	b.mu.Lock()
	let, ignores := b.let, b.ignores
	b.mu.Unlock()
	if let != nil {
		done := ctx.Done()
		if ignores {
			done = nil
		}
		select {
		case <-let:
		case <-done:
			return nil, ctx.Err()
		}
	}
	return b.Backend.CreateBackup(context.WithoutCancel(ctx), table, want)
}

func (s *server) wait(t testing.TB, op *longrunningpb.Operation) *longrunningpb.Operation {
	t.Helper()
	for range 12_000 {
		got := must(s.ops.GetOperation(t.Context(), &longrunningpb.GetOperationRequest{Name: op.Name}))(t)
		if got.Done {
			return got
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s does not end", op.Name)
	return nil
}

// While a backup is made it is seen as such, and can be given up.
func TestBackupTakesTime(t *testing.T) {
	c := newClock()
	b := &slow{Backend: modelAt(c)}
	s := strictAt(t, c, b)
	ctx := t.Context()
	begin := func() *longrunningpb.Operation {
		t.Helper()
		b.let = make(chan struct{})
		op := must(s.CreateBackup(ctx, newBackup(c, "b", nil)))(t)
		m := new(adminpb.CreateBackupMetadata)
		if op.Done || op.Metadata.UnmarshalTo(m) != nil || m.Name != testBackup || m.EndTime != nil {
			t.Fatalf("operation %v", op)
		}
		for _, got := range append(must(s.ListBackups(ctx, &adminpb.ListBackupsRequest{Parent: testInstance + "/clusters/-", Filter: "state:CREATING"}))(t).Backups,
			must(s.GetBackup(ctx, &adminpb.GetBackupRequest{Name: testBackup}))(t)) {
			if got.Name != testBackup || got.State != adminpb.Backup_CREATING || got.SourceTable != testTable {
				t.Errorf("being made: %v", got)
			}
		}
		return op
	}
	op := begin()
	checkRefusals(t, s, []refusal{
		{"create twice", func(ctx context.Context, s *server) error { return drop(s.CreateBackup(ctx, newBackup(c, "b", nil))) }, codes.AlreadyExists, "already exists", ""},
		{"update", func(ctx context.Context, s *server) error {
			return drop(s.UpdateBackup(ctx, &adminpb.UpdateBackupRequest{Backup: &adminpb.Backup{Name: testBackup}, UpdateMask: mask("expire_time")}))
		}, codes.FailedPrecondition, "still being created", ""},
		{"copy", func(ctx context.Context, s *server) error {
			return drop(s.CopyBackup(ctx, &adminpb.CopyBackupRequest{Parent: testCluster, BackupId: "c", SourceBackup: testBackup}))
		}, codes.FailedPrecondition, "still being created", ""},
		{"restore", func(ctx context.Context, s *server) error {
			return drop(s.RestoreTable(ctx, &adminpb.RestoreTableRequest{Parent: testInstance, TableId: "u", Source: &adminpb.RestoreTableRequest_Backup{Backup: testBackup}}))
		}, codes.FailedPrecondition, "still being created", ""},
		{"policy", func(ctx context.Context, s *server) error {
			return drop(s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testBackup}))
		}, codes.NotFound, "Backup not found", ""},
		{"forget the operation", func(ctx context.Context, s *server) error {
			return drop(s.ops.DeleteOperation(ctx, &longrunningpb.DeleteOperationRequest{Name: op.Name}))
		}, codes.FailedPrecondition, "still running", ""},
		{"delete the cluster", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteCluster(ctx, &adminpb.DeleteClusterRequest{Name: testCluster}))
		}, codes.FailedPrecondition, "has backups", ""},
		{"delete the instance", func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))
		}, codes.FailedPrecondition, "has backups", ""},
	})
	close(b.let)
	if pb := response(t, s.wait(t, op), new(adminpb.CreateBackupMetadata), new(adminpb.Backup)); pb.State != adminpb.Backup_READY {
		t.Errorf("made %v", pb)
	}
	must(s.DeleteBackup(ctx, &adminpb.DeleteBackupRequest{Name: testBackup}))(t)

	gone := func() {
		t.Helper()
		if _, err := s.GetBackup(ctx, &adminpb.GetBackupRequest{Name: testBackup}); status.Code(err) != codes.NotFound {
			t.Errorf("a backup that was given up: %v", err)
		}
	}
	op = begin()
	must(s.ops.CancelOperation(ctx, &longrunningpb.CancelOperationRequest{Name: op.Name}))(t)
	if op = s.wait(t, op); codes.Code(op.GetError().GetCode()) != codes.Canceled {
		t.Errorf("cancelled operation %v", op)
	}
	gone()
	op = begin()
	must(s.DeleteBackup(ctx, &adminpb.DeleteBackupRequest{Name: testBackup}))(t)
	if op = s.wait(t, op); codes.Code(op.GetError().GetCode()) != codes.Canceled {
		t.Errorf("operation of a deleted backup: %v", op)
	}
	gone()
	// Cancelling may come too late.
	b.ignores = true
	op = begin()
	must(s.ops.CancelOperation(ctx, &longrunningpb.CancelOperationRequest{Name: op.Name}))(t)
	close(b.let)
	response(t, s.wait(t, op), new(adminpb.CreateBackupMetadata), new(adminpb.Backup))
	must(s.DeleteBackup(ctx, &adminpb.DeleteBackupRequest{Name: testBackup}))(t)
	// A server that stops takes it along.
	b.ignores = false
	op = begin()
	s.admin.Close()
	if op = s.wait(t, op); codes.Code(op.GetError().GetCode()) != codes.Aborted {
		t.Errorf("operation of a server that stopped: %v", op)
	}
	gone()
}

// An operation whose server is gone is what it has come to.
func TestOperationsAreSettled(t *testing.T) {
	c := newClock()
	b := &slow{Backend: modelAt(c)}
	s := strictAt(t, c, b)
	ctx := t.Context()
	b.let, b.ignores = make(chan struct{}), true
	var ops []*longrunningpb.Operation
	for _, id := range []string{"made", "lost"} {
		ops = append(ops, must(s.CreateBackup(ctx, newBackup(c, id, nil)))(t))
	}
	// The other server sees what the first has stored only.
	var stored schema.Backup
	stored.Name, stored.Extra = testCluster+"/backups/made", storedBackup{Operation: ops[0].Name}.encode()
	stored.ExpireTime = c.now().Add(day)
	must(b.Backend.CreateBackup(ctx, testTable, &stored))(t)
	other := serve(t, b.Backend, Options{Now: c.now})
	for _, op := range ops {
		if got := must(other.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.Name}))(t); got.Done {
			t.Errorf("an operation that runs elsewhere: %v", got)
		}
	}
	c.add(taskLease)
	response(t, must(other.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: ops[0].Name}))(t), new(adminpb.CreateBackupMetadata), new(adminpb.Backup))
	l := must(other.ops.ListOperations(ctx, &longrunningpb.ListOperationsRequest{Name: "operations/" + testCluster}))(t)
	if len(l.Operations) != 2 {
		t.Errorf("listed %v", l)
	}
	for _, op := range l.Operations {
		if !op.Done || op.Name == ops[1].Name && codes.Code(op.GetError().GetCode()) != codes.Aborted {
			t.Errorf("settled as %v", op)
		}
	}
	close(b.let)
	s.admin.Close()
}

func TestSnapshots(t *testing.T) {
	c := newClock()
	s := strictAt(t, c, modelAt(c))
	ctx := t.Context()
	s.putRow(t, testTable, "r")
	name := testCluster + "/snapshots/s"
	req := &adminpb.SnapshotTableRequest{Name: testTable, Cluster: testCluster, SnapshotId: "s", Description: "before the flood"}
	m := new(adminpb.SnapshotTableMetadata)
	made := response(t, must(s.SnapshotTable(ctx, req))(t), m, new(adminpb.Snapshot))
	if made.Name != name || made.SourceTable.GetName() != testTable || made.SourceTable.ColumnFamilies["f"] == nil || made.DataSizeBytes == 0 ||
		!made.DeleteTime.AsTime().Equal(c.now().Add(24*time.Hour)) || made.State != adminpb.Snapshot_READY || made.Description != req.Description {
		t.Errorf("made %v", made)
	}
	if !proto.Equal(m.OriginalRequest, req) || m.FinishTime == nil {
		t.Errorf("metadata %v", m)
	}
	if got := must(s.GetSnapshot(ctx, &adminpb.GetSnapshotRequest{Name: name}))(t); !proto.Equal(got, made) {
		t.Errorf("got %v, want %v", got, made)
	}
	must(s.CreateBackup(ctx, newBackup(c, "b", nil)))(t)
	for _, in := range []string{testCluster, testInstance + "/clusters/-"} {
		if l := must(s.ListSnapshots(ctx, &adminpb.ListSnapshotsRequest{Parent: in, PageSize: -1}))(t); len(l.Snapshots) != 1 || !proto.Equal(l.Snapshots[0], made) {
			t.Errorf("listed %v", l)
		}
	}
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))(t)
	tm := new(adminpb.CreateTableFromSnapshotMetadata)
	table := response(t, must(s.CreateTableFromSnapshot(ctx, &adminpb.CreateTableFromSnapshotRequest{Parent: testInstance, TableId: "u", SourceSnapshot: name}))(t), tm, new(adminpb.Table))
	if table.Name != testInstance+"/tables/u" || table.ColumnFamilies["f"] == nil || tm.FinishTime == nil {
		t.Errorf("made %v, %v", table, tm)
	}
	with := func(change func(*adminpb.SnapshotTableRequest)) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			r := &adminpb.SnapshotTableRequest{Name: testInstance + "/tables/u", Cluster: testCluster, SnapshotId: "new"}
			change(r)
			return drop(s.SnapshotTable(ctx, r))
		}
	}
	from := func(change func(*adminpb.CreateTableFromSnapshotRequest)) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			r := &adminpb.CreateTableFromSnapshotRequest{Parent: testInstance, TableId: "v", SourceSnapshot: name}
			change(r)
			return drop(s.CreateTableFromSnapshot(ctx, r))
		}
	}
	checkRefusals(t, s, []refusal{
		{"twice", with(func(r *adminpb.SnapshotTableRequest) { r.SnapshotId = "s" }), codes.AlreadyExists, "Snapshot already exists", ""},
		{"missing table", with(func(r *adminpb.SnapshotTableRequest) { r.Name += "2" }), codes.NotFound, "Table not found", ""},
		{"missing cluster", with(func(r *adminpb.SnapshotTableRequest) { r.Cluster += "2" }), codes.NotFound, "Cluster not found", ""},
		{"too long", with(func(r *adminpb.SnapshotTableRequest) { r.Ttl = durationpb.New(7*day + time.Second) }), codes.InvalidArgument, "between", "ttl"},
		{"bad id", with(func(r *adminpb.SnapshotTableRequest) { r.SnapshotId = "" }), codes.InvalidArgument, "Length", "snapshot_id"},
		{"elsewhere", with(func(r *adminpb.SnapshotTableRequest) {
			r.Cluster = testProject + "/instances/inst-two/clusters/cluster-one"
		}),
			codes.InvalidArgument, "Must be a cluster of", "cluster"},
		{"from missing", from(func(r *adminpb.CreateTableFromSnapshotRequest) { r.SourceSnapshot += "2" }), codes.NotFound, "Snapshot not found", ""},
		{"from a backup", from(func(r *adminpb.CreateTableFromSnapshotRequest) { r.SourceSnapshot = testBackup }), codes.InvalidArgument, "When parsing", "source_snapshot"},
		{"to there", from(func(r *adminpb.CreateTableFromSnapshotRequest) { r.TableId = "u" }), codes.AlreadyExists, "Table already exists", ""},
		{"to elsewhere", from(func(r *adminpb.CreateTableFromSnapshotRequest) { r.Parent = testProject + "/instances/inst-two" }), codes.InvalidArgument, "Must be a snapshot of", "source_snapshot"},
	})
	must(s.DeleteSnapshot(ctx, &adminpb.DeleteSnapshotRequest{Name: name}))(t)
	if _, err := s.GetSnapshot(ctx, &adminpb.GetSnapshotRequest{Name: name}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if _, err := s.DeleteSnapshot(ctx, &adminpb.DeleteSnapshotRequest{Name: name}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// Automated backups are made when they are due, once each, also by a server that
// starts later, and end when they are old enough.
func TestAutomatedBackups(t *testing.T) {
	c := newClock()
	b := modelAt(c)
	s := strictAt(t, c, b)
	ctx := t.Context()
	s.putRow(t, testTable, "r")
	policy := func(p *adminpb.Table_AutomatedBackupPolicy) {
		t.Helper()
		must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{
			Table:      &adminpb.Table{Name: testTable, AutomatedBackupConfig: &adminpb.Table_AutomatedBackupPolicy_{AutomatedBackupPolicy: p}},
			UpdateMask: mask("automated_backup_policy"),
		}))(t)
	}
	list := func() []*adminpb.Backup {
		t.Helper()
		return must(s.ListBackups(ctx, &adminpb.ListBackupsRequest{Parent: testInstance + "/clusters/-", OrderBy: "start_time"}))(t).Backups
	}
	s.admin.maintain(ctx)
	if l := list(); len(l) != 0 {
		t.Errorf("without a policy: %v", l)
	}
	policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), KeepHotDuration: durationpb.New(2 * day)})
	first := c.now()
	for range 2 {
		s.admin.maintain(ctx)
		l := list()
		if len(l) != 2 {
			t.Fatalf("one for each cluster, but there is %v", l)
		}
		for _, b := range l {
			if b.SourceTable != testTable || !b.ExpireTime.AsTime().Equal(first.Add(3*day)) || b.BackupType != adminpb.Backup_HOT ||
				!b.HotToStandardTime.AsTime().Equal(first.Add(2*day)) || b.State != adminpb.Backup_READY || b.SourceBackup != "" {
				t.Errorf("made %v", b)
			}
		}
		c.add(day - time.Second - c.now().Sub(first))
	}
	// A server that starts later keeps to the schedule.
	s = serve(t, b, Options{Now: c.now})
	s.admin.maintain(ctx)
	if l := list(); len(l) != 2 {
		t.Errorf("before the second is due: %v", l)
	}
	c.add(time.Second)
	// A crash came between a backup and the note that it was made.
	key := fmt.Sprintf("%s%s#%d", schedulePrefix, testTable, must(b.Table(ctx, testTable))(t).ID)
	noted, _, err := b.GetRecord(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	s.admin.maintain(ctx)
	_, version, err := b.GetRecord(ctx, key)
	if err == nil {
		_, err = b.PutRecord(ctx, key, noted, version)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.admin.maintain(ctx)
	if l := list(); len(l) != 4 {
		t.Errorf("on the second day: %v", l)
	}
	// Five days without a server, but for one backup.
	c.add(5 * day)
	for range 3 {
		s.admin.maintain(ctx)
	}
	if l := list(); len(l) != 2 || !l[0].StartTime.AsTime().Equal(c.now()) {
		t.Errorf("after five days: %v", l)
	}
	policy(&adminpb.Table_AutomatedBackupPolicy{Disabled: true})
	c.add(day)
	s.admin.maintain(ctx)
	if l := list(); len(l) != 2 {
		t.Errorf("switched off: %v", l)
	}
	// They outlive the table.
	policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day)})
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))(t)
	s.admin.maintain(ctx)
	if l := list(); len(l) != 2 {
		t.Errorf("deleted: %v", l)
	}
	c.add(3 * day)
	if l := list(); len(l) != 0 {
		t.Errorf("expired: %v", l)
	}
}

// reserving is a backend with names of backups that somebody else is about to make.
type reserving struct {
	backend.Backend
	taken bool
}

func (r *reserving) CreateBackup(ctx context.Context, table string, b *schema.Backup) (*schema.Backup, error) {
	if r.taken {
		return nil, fault.New(fault.AlreadyExists, "Backup already exists: %s", b.Name)
	}
	return r.Backend.CreateBackup(ctx, table, b)
}

// A backup that somebody else is about to make stays due until it is there: its
// maker may fail.
func TestAutomatedBackupsOfAnother(t *testing.T) {
	c := newClock()
	b := &reserving{Backend: modelAt(c), taken: true}
	s := strictAt(t, c, b)
	ctx := t.Context()
	must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{
		Table: &adminpb.Table{Name: testTable, AutomatedBackupConfig: &adminpb.Table_AutomatedBackupPolicy_{
			AutomatedBackupPolicy: &adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day)}}},
		UpdateMask: mask("automated_backup_policy"),
	}))(t)
	first := c.now()
	for range 3 {
		s.admin.maintain(ctx)
		c.add(time.Minute)
	}
	key := fmt.Sprintf("%s%s#%d", schedulePrefix, testTable, must(b.Table(ctx, testTable))(t).ID)
	var next schedule
	if noted, _, err := b.GetRecord(ctx, key); err != nil {
		t.Fatal(err)
	} else if err := json.Unmarshal(noted, &next); err != nil {
		t.Fatal(err)
	}
	if !next.Next.Equal(first) {
		t.Errorf("the backup of %v is taken for made: the next is due at %v", first, next.Next)
	}
	b.taken = false
	s.admin.maintain(ctx)
	if l := must(s.ListBackups(ctx, &adminpb.ListBackupsRequest{Parent: testInstance + "/clusters/-"}))(t).Backups; len(l) != 2 {
		t.Errorf("once the name is free: %v", l)
	}
}

// The background makes them by itself.
func TestAutomatedBackupsInTheBackground(t *testing.T) {
	s := serve(t, model.New(model.Options{}), Options{Maintenance: time.Millisecond})
	s.createInstance(t, "inst-one", "cluster-one")
	s.admin.Start()
	defer s.admin.Close()
	must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t", Table: &adminpb.Table{
		AutomatedBackupConfig: &adminpb.Table_AutomatedBackupPolicy_{AutomatedBackupPolicy: &adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day)}},
	}}))(t)
	for range 12_000 {
		if l := must(s.ListBackups(t.Context(), &adminpb.ListBackupsRequest{Parent: testInstance + "/clusters/-"}))(t); len(l.Backups) == 1 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("no backup came")
}

// What belongs to a table or backup goes some time after it, and nothing else
// does.
func TestOrphans(t *testing.T) {
	c := newClock()
	b := modelAt(c)
	s := strictAt(t, c, b)
	ctx := t.Context()
	for _, id := range []string{"t", "u"} {
		table := testInstance + "/tables/" + id
		if id != "t" {
			must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: id}))(t)
		}
		must(s.CreateAuthorizedView(ctx, &adminpb.CreateAuthorizedViewRequest{Parent: table, AuthorizedViewId: "v", AuthorizedView: &adminpb.AuthorizedView{
			AuthorizedView: &adminpb.AuthorizedView_SubsetView_{SubsetView: &adminpb.AuthorizedView_SubsetView{RowPrefixes: [][]byte{{}}}}}}))(t)
		must(s.CreateBackup(ctx, newBackup(c, id, func(r *adminpb.CreateBackupRequest) {
			r.Backup.SourceTable = table
			if id == "u" {
				r.Backup.ExpireTime = timestamppb.New(c.now().Add(80 * day))
			}
		})))(t)
		for _, r := range []string{table, table + "/authorizedViews/v", testCluster + "/backups/" + id, testInstance} {
			if r == testInstance {
				must(s.inst.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: r, Policy: new(iampb.Policy)}))(t)
				continue
			}
			must(s.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: r, Policy: new(iampb.Policy)}))(t)
		}
	}
	records := func() int {
		t.Helper()
		s.admin.maintain(ctx)
		n := 0
		err := b.ListRecords(ctx, "", func(key string, _ []byte, _ uint64) error {
			if strings.HasPrefix(key, policyPrefix) || strings.HasPrefix(key, views.prefix) {
				n++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))(t)
	if n := records(); n != 9 {
		t.Errorf("%d records, want 9", n)
	}
	c.add(6 * day) // the backup expires, the table can be undeleted
	if n := records(); n != 8 {
		t.Errorf("%d records, want 8", n)
	}
	c.add(6 * day)
	if n := records(); n != 5 {
		t.Errorf("%d records, want 5", n)
	}
	must(s.GetAuthorizedView(ctx, &adminpb.GetAuthorizedViewRequest{Name: testInstance + "/tables/u/authorizedViews/v"}))(t)
}

func FuzzStoredBackup(f *testing.F) {
	f.Add(storedBackup{Hot: true, SourceBackup: "b", Operation: "o"}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := backupExtra(&schema.Backup{Name: "b", Extra: b})
		if err != nil {
			if fault.KindOf(err) != fault.Corruption {
				t.Fatal(err)
			}
			return
		}
		if again, err := backupExtra(&schema.Backup{Extra: s.encode()}); err != nil || again.SourceBackup != s.SourceBackup {
			t.Fatal(err)
		}
	})
}

// However often an order repeats a field, keys have it once.
func TestOrderKeysStayShort(t *testing.T) {
	b := &adminpb.Backup{Name: strings.Repeat("n", 100)}
	key := must(parseOrder(strings.Repeat("name,", 1000) + "name desc"))(t)
	if n := len(key(b)); n > 250 {
		t.Errorf("a name of 100 bytes has a key of %d", n)
	}
}

func FuzzOrder(f *testing.F) {
	f.Add("name desc, start_time", "a", "b", int64(3))
	f.Fuzz(func(t *testing.T, order, a, b string, size int64) {
		key, err := parseOrder(order)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatal(err)
			}
			return
		}
		x, y := &adminpb.Backup{Name: a, SizeBytes: size}, &adminpb.Backup{Name: b, SizeBytes: size}
		if (key(x) == key(y)) != (a == b) && !strings.ContainsRune(a+b, 0) {
			t.Errorf("%q and %q have the keys %s and %s", a, b, key(x), key(y))
		}
	})
}

// The same over a real store that is closed and opened again: the schedule goes
// on, and an expired backup frees the disk.
func TestAutomatedBackupsSurviveARestart(t *testing.T) {
	c := newClock()
	fs := vfs.NewMem()
	ctx := t.Context()
	open := func() (*standalone.Server, *server) {
		t.Helper()
		b := must(standalone.Open(ctx, standalone.Options{Dir: "data", FS: fs,
			TabletServer: tabletserver.Options{Now: c.now}, Master: master.Options{Now: c.now, Purge: 2 * time.Millisecond, Interval: 2 * time.Millisecond}}))(t)
		return b, serve(t, b, Options{Now: c.now})
	}
	sstables := func() int { return len(must(fs.List("data/sst"))(t)) }
	list := func(s *server) []*adminpb.Backup {
		t.Helper()
		return must(s.ListBackups(ctx, &adminpb.ListBackupsRequest{Parent: testInstance + "/clusters/-"}))(t).Backups
	}
	b, s := open()
	s.createInstance(t, "inst-one", "cluster-one", "cluster-two")
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t", Table: &adminpb.Table{
		ColumnFamilies:        map[string]*adminpb.ColumnFamily{"f": {}},
		AutomatedBackupConfig: &adminpb.Table_AutomatedBackupPolicy_{AutomatedBackupPolicy: &adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day)}},
	}}))(t)
	empty := sstables()
	s.putRow(t, testTable, "r")
	s.admin.maintain(ctx)
	if n := len(list(s)); n != 2 {
		t.Errorf("%d backups, want one for each cluster", n)
	}
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
	b, s = open()
	s.admin.maintain(ctx)
	if n := len(list(s)); n != 2 {
		t.Errorf("%d backups after a restart", n)
	}
	c.add(day)
	s.putRow(t, testTable, "r2")
	s.admin.maintain(ctx)
	if n := len(list(s)); n != 4 {
		t.Errorf("%d backups on the second day", n)
	}
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))(t)
	must(s.RestoreTable(ctx, &adminpb.RestoreTableRequest{Parent: testInstance, TableId: "u", Source: &adminpb.RestoreTableRequest_Backup{Backup: list(s)[0].Name}}))(t)
	if n := must(b.TableBytes(ctx, testInstance+"/tables/u"))(t); n == 0 {
		t.Error("the restored table is empty")
	}
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testInstance + "/tables/u"}))(t)
	c.add(8 * day)
	// METADATA's own SSTables may have come.
	for start := time.Now(); sstables() > empty+1; time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("%d SSTables are left", sstables()-empty)
		}
	}
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
