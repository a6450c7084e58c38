package admin

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
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

// CreateTable implements T1.
func (s *tableServer) CreateTable(ctx context.Context, req *adminpb.CreateTableRequest) (*adminpb.Table, error) {
	ids, err := s.parse("parent", instanceForm, req.GetParent())
	if err != nil {
		return nil, err
	}
	if err := newID("table_id", "tables", req.GetTableId(), tableIDPattern, wire.TableID, 1, schema.MaxTableID); err != nil {
		return nil, err
	}
	in := parent(ids, instanceForm, 2)
	i, err := s.instanceForTables(ctx, "parent", in)
	if err != nil {
		return nil, err
	}
	t, err := newTable(in+"/tables/"+req.GetTableId(), req.GetTable(), i, s.o.Now())
	if err != nil {
		return nil, within("table", -1, err)
	}
	splits, err := splitKeys(req.GetInitialSplits())
	if err != nil {
		return nil, err
	}
	if err := s.nameFree(ctx, "table_id", t.Name); err != nil {
		return nil, err
	}
	t, err = s.b.CreateTable(ctx, t, splits)
	if fault.KindOf(err) == fault.AlreadyExists {
		return nil, alreadyThere("table_id", "Table", in+"/tables/"+req.GetTableId())
	}
	if err != nil {
		return nil, err
	}
	// The instance may have been deleted, tables first, while this one came, or a view of
	// that name was made.
	_, err = s.instanceForTables(ctx, "parent", in)
	if err == nil {
		err = s.nameFree(ctx, "table_id", t.Name)
	}
	if k := fault.KindOf(err); k == fault.NotFound || k == fault.AlreadyExists {
		if e := s.b.DeleteTable(ctx, t.Name); e != nil && fault.KindOf(e) != fault.NotFound {
			return nil, e
		}
		return nil, err
	}
	return tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
}

// newTable returns the schema that a request describes which came at now.
func newTable(name string, pb *adminpb.Table, i *instance, now time.Time) (*schema.Table, error) {
	t := &schema.Table{Name: name, Families: map[string]schema.Family{}, DeletionProtection: pb.GetDeletionProtection()}
	switch pb.GetGranularity() {
	case adminpb.Table_TIMESTAMP_GRANULARITY_UNSPECIFIED, adminpb.Table_MILLIS:
		t.Granularity = 1000
	case adminpb.Table_MICROS:
		t.Granularity = 1
	default:
		return nil, refuse(fault.Invalid, "granularity", "Error in field 'granularity' : Unknown value %d", pb.GetGranularity())
	}
	if n := len(pb.GetColumnFamilies()); n > schema.MaxFamilies {
		err := refuse(fault.Invalid, "column_families", "Error in field 'column_families' : At most %d column families are allowed, but found %d", schema.MaxFamilies, n)
		err.Reason = schema.ReasonFamilies
		err.Metadata = map[string]string{"limit": strconv.Itoa(schema.MaxFamilies), "families": strconv.Itoa(n)}
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(pb.GetColumnFamilies())) {
		f, err := newFamily(id, pb.GetColumnFamilies()[id])
		if err != nil {
			return nil, within("column_families", -1, err)
		}
		t.Families[id] = f // the backend gives ids
	}
	return t, setConfig(t, configOf(pb), i, now)
}

// setConfig checks settings of a table, which came at now, and stores them in t.
func setConfig(t *schema.Table, x *adminpb.Table, i *instance, now time.Time) error {
	if err := checkConfig(x, i, t.Families); err != nil {
		return err
	}
	setStream(t, x.GetChangeStreamConfig(), now)
	x.ChangeStreamConfig = nil
	var err error
	t.Extra, err = deterministic.Marshal(x)
	return err
}

// splitKeys returns the keys sorted, each once.
func splitKeys(in []*adminpb.CreateTableRequest_Split) ([][]byte, error) {
	if n := len(in); n > schema.MaxInitialSplit {
		return nil, refuse(fault.Invalid, "initial_splits", "Error in field 'initial_splits' : At most %d keys are allowed, but found %d", schema.MaxInitialSplit, n)
	}
	keys := make([][]byte, 0, len(in))
	for n, s := range in {
		switch l := len(s.GetKey()); {
		case l == 0:
			return nil, within("initial_splits", n, refuse(fault.Invalid, "key", "Row keys must be non-empty"))
		case l > schema.MaxRowKey:
			return nil, within("initial_splits", n, refuse(fault.Invalid, "key", "Row keys must be at most %d bytes, but found %d", schema.MaxRowKey, l))
		}
		keys = append(keys, s.GetKey())
	}
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal), nil
}

// tableProto returns t as a view shows it. i is needed by the views that show
// clusters.
func tableProto(t *schema.Table, view adminpb.Table_View, i *instance) (*adminpb.Table, error) {
	pb := &adminpb.Table{Name: t.Name}
	if view == adminpb.Table_REPLICATION_VIEW || view == adminpb.Table_ENCRYPTION_VIEW || view == adminpb.Table_FULL {
		pb.ClusterStates = make(map[string]*adminpb.Table_ClusterState, len(i.clusters))
		for id := range i.clusters {
			st := new(adminpb.Table_ClusterState)
			if view != adminpb.Table_ENCRYPTION_VIEW {
				st.ReplicationState = adminpb.Table_ClusterState_READY
			}
			if view != adminpb.Table_REPLICATION_VIEW {
				st.EncryptionInfo = []*adminpb.EncryptionInfo{{EncryptionType: adminpb.EncryptionInfo_GOOGLE_DEFAULT_ENCRYPTION}}
			}
			pb.ClusterStates[id] = st
		}
	}
	if view != adminpb.Table_SCHEMA_VIEW && view != adminpb.Table_FULL {
		return pb, nil
	}
	pb.Granularity = adminpb.Table_MILLIS
	if t.Granularity == 1 {
		pb.Granularity = adminpb.Table_MICROS
	}
	pb.DeletionProtection = t.DeletionProtection
	pb.ColumnFamilies = make(map[string]*adminpb.ColumnFamily, len(t.Families))
	for name, f := range t.Families {
		cf, err := familyProto(f)
		if err != nil {
			return nil, err
		}
		pb.ColumnFamilies[name] = cf
	}
	x, err := tableExtra(t)
	if err != nil {
		return nil, err
	}
	pb.ChangeStreamConfig, pb.TieredStorageConfig, pb.RowKeySchema = x.ChangeStreamConfig, x.TieredStorageConfig, x.RowKeySchema
	pb.AutomatedBackupConfig, pb.EffectiveAutomatedBackupPolicy = x.AutomatedBackupConfig, x.GetAutomatedBackupPolicy()
	pb.RestoreInfo = x.RestoreInfo
	return pb, nil
}

// ListTables implements T3.
func (s *tableServer) ListTables(ctx context.Context, req *adminpb.ListTablesRequest) (*adminpb.ListTablesResponse, error) {
	ids, err := s.parse("parent", instanceForm, req.GetParent())
	if err != nil {
		return nil, err
	}
	view := req.GetView()
	switch view {
	case adminpb.Table_VIEW_UNSPECIFIED:
		view = adminpb.Table_NAME_ONLY
	case adminpb.Table_NAME_ONLY, adminpb.Table_REPLICATION_VIEW:
	default:
		return nil, refuse(fault.Invalid, "view", "Error in field 'view' : Must be NAME_ONLY or REPLICATION_VIEW, but found %v", view)
	}
	p, err := s.newPage(ctx, "tables "+req.GetParent(), req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	in := parent(ids, instanceForm, 2)
	i, err := s.instanceForTables(ctx, "parent", in)
	if err != nil {
		return nil, err
	}
	ts, err := s.b.ListTables(ctx, in)
	if err != nil {
		return nil, err
	}
	resp := new(adminpb.ListTablesResponse)
	ts, resp.NextPageToken, err = cut(ctx, s.Admin, p, ts, func(t *schema.Table) string { return t.Name })
	if err != nil {
		return nil, err
	}
	for _, t := range ts {
		pb, err := tableProto(t, view, i)
		if err != nil {
			return nil, err
		}
		resp.Tables = append(resp.Tables, pb)
	}
	return resp, nil
}

// tableAt returns the table called name, which came in field, and its ids.
func (a *Admin) tableAt(ctx context.Context, field, name string) (*schema.Table, []string, error) {
	ids, err := a.parse(field, tableForm, name)
	if err != nil {
		return nil, nil, err
	}
	t, err := a.b.Table(ctx, name)
	return t, ids, orMissing(err, field, "Table", name)
}

// GetTable implements T4.
func (s *tableServer) GetTable(ctx context.Context, req *adminpb.GetTableRequest) (*adminpb.Table, error) {
	view := req.GetView()
	if view == adminpb.Table_VIEW_UNSPECIFIED {
		view = adminpb.Table_SCHEMA_VIEW
	}
	if _, ok := adminpb.Table_View_name[int32(view)]; !ok {
		return nil, refuse(fault.Invalid, "view", "Error in field 'view' : Unknown value %d", view)
	}
	t, ids, err := s.tableAt(ctx, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	var i *instance
	if view != adminpb.Table_NAME_ONLY && view != adminpb.Table_SCHEMA_VIEW {
		if i, err = s.instanceForTables(ctx, "name", parent(ids, tableForm, 2)); err != nil {
			return nil, err
		}
	}
	return tableProto(t, view, i)
}

var tableMask = maskRule{allowed: []string{"change_stream_config", "deletion_protection", "row_key_schema", "automated_backup_policy", "tiered_storage_config"}}

// UpdateTable implements T5.
func (s *tableServer) UpdateTable(ctx context.Context, req *adminpb.UpdateTableRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in, mask := req.GetTable(), req.GetUpdateMask()
	ids, err := s.parse("table.name", tableForm, in.GetName())
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(mask.GetPaths(), func(p string) bool { return covered(p, []string{"column_families"}) }) {
		return nil, refuse(fault.Unimplemented, "update_mask", "UpdateTable does not change column families, use ModifyColumnFamilies")
	}
	if err := checkMask(mask, in, tableMask); err != nil {
		return nil, err
	}
	i, err := s.instanceForTables(ctx, "table.name", parent(ids, tableForm, 2))
	if err != nil {
		return nil, err
	}
	if masks(mask, "deletion_protection") || masks(mask, "change_stream_config") {
		l := s.protectionOf(in.GetName())
		l.Lock()
		defer l.Unlock()
	}
	t, err := s.b.UpdateTable(ctx, in.GetName(), func(t *schema.Table) error {
		was, err := tableExtra(t)
		if err != nil {
			return err
		}
		x := proto.Clone(was).(*adminpb.Table)
		x.DeletionProtection = t.DeletionProtection
		applyMask(x, in, mask, tableMask)
		t.DeletionProtection, x.DeletionProtection = x.DeletionProtection, false
		if err := setConfig(t, x, i, s.o.Now()); err != nil {
			return within("table", -1, err)
		}
		if len(t.Views) > 0 && was.GetRowKeySchema() != nil && !proto.Equal(was.GetRowKeySchema(), x.GetRowKeySchema()) {
			return refuse(fault.FailedPrecondition, "table.row_key_schema", "Materialized view %s is made of table %s and may use its row key schema. Delete the view first.", t.Views[0].Name, t.Name)
		}
		return checkRowKeyChange(was.GetRowKeySchema(), x.GetRowKeySchema(), req.GetIgnoreWarnings())
	})
	if err != nil {
		return nil, orMissing(err, "table.name", "Table", in.GetName())
	}
	pb, err := tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, t.Name, &adminpb.UpdateTableMetadata{
		Name: t.Name, StartTime: start, EndTime: timestamppb.New(s.o.Now()),
	}, pb)
}

// checkRowKeyChange permits to set a row key schema where none was, and to
// remove one on purpose.
func checkRowKeyChange(was, now *adminpb.Type_Struct, ignoreWarnings bool) error {
	switch {
	case was == nil || proto.Equal(was, now):
		return nil
	case now != nil:
		return refuse(fault.Invalid, "table.row_key_schema", "Error in field 'row_key_schema' : An existing row key schema cannot be changed, only removed")
	case !ignoreWarnings:
		return refuse(fault.Invalid, "table.row_key_schema", "Error in field 'row_key_schema' : Removing the row key schema may break queries. Set 'ignore_warnings' to do it anyway.")
	}
	return nil
}

// errProtected refuses to delete a table or one of its families.
func errProtected(field, what, table string) error {
	return refuse(fault.FailedPrecondition, field, "%s cannot be deleted: table %s has deletion protection", what, table)
}

// DeleteTable implements T6.
func (s *tableServer) DeleteTable(ctx context.Context, req *adminpb.DeleteTableRequest) (*emptypb.Empty, error) {
	l := s.protectionOf(req.GetName())
	l.Lock()
	defer l.Unlock()
	t, _, err := s.tableAt(ctx, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	if t.DeletionProtection {
		return nil, errProtected("name", "Table", t.Name)
	}
	if t.ChangeStream() != nil {
		return nil, refuse(fault.FailedPrecondition, "name", "Disable the change stream of table %s first: deleting the table ends it", t.Name)
	}
	if err := noMaterializedViews(t); err != nil {
		return nil, err
	}
	if err := s.noProtectedViews(ctx, "Table "+t.Name, t); err != nil {
		return nil, err
	}
	if err := s.b.DeleteTable(ctx, t.Name); err != nil {
		return nil, orMissing(err, "name", "Table", t.Name)
	}
	return new(emptypb.Empty), nil
}

// UndeleteTable implements T7.
func (s *tableServer) UndeleteTable(ctx context.Context, req *adminpb.UndeleteTableRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	name := req.GetName()
	ids, err := s.parse("name", tableForm, name)
	if err != nil {
		return nil, err
	}
	if _, err := s.instanceForTables(ctx, "name", parent(ids, tableForm, 2)); err != nil {
		return nil, err
	}
	if err := s.nameFree(ctx, "name", name); err != nil {
		return nil, err
	}
	t, err := s.b.UndeleteTable(ctx, name)
	switch fault.KindOf(err) {
	case fault.NotFound:
		return nil, orMissing(err, "name", "Deleted table", name)
	case fault.AlreadyExists:
		return nil, alreadyThere("name", "Table", name)
	}
	if err != nil {
		return nil, err
	}
	pb, err := tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, name, &adminpb.UndeleteTableMetadata{
		Name: name, StartTime: start, EndTime: timestamppb.New(s.o.Now()),
	}, pb)
}

// DropRowRange implements T14.
func (s *tableServer) DropRowRange(ctx context.Context, req *adminpb.DropRowRangeRequest) (*emptypb.Empty, error) {
	if _, err := s.parse("name", tableForm, req.GetName()); err != nil {
		return nil, err
	}
	var prefix []byte
	nothing := false
	switch target := req.GetTarget().(type) {
	case *adminpb.DropRowRangeRequest_RowKeyPrefix:
		prefix = target.RowKeyPrefix
		if n := len(prefix); n == 0 {
			return nil, refuse(fault.Invalid, "row_key_prefix", "Row key prefixes must be non-empty")
		} else if n > schema.MaxRowKey {
			return nil, refuse(fault.Invalid, "row_key_prefix", "Row keys must be at most %d bytes, but found %d", schema.MaxRowKey, n)
		}
	case *adminpb.DropRowRangeRequest_DeleteAllDataFromTable:
		nothing = !target.DeleteAllDataFromTable
	default:
		return nil, refuse(fault.Invalid, "target", "One of 'row_key_prefix' and 'delete_all_data_from_table' must be specified")
	}
	var err error
	if nothing {
		_, err = s.b.Table(ctx, req.GetName())
	} else {
		err = s.b.DropRowRange(ctx, req.GetName(), prefix)
	}
	if err != nil {
		return nil, orMissing(err, "name", "Table", req.GetName())
	}
	return new(emptypb.Empty), nil
}
