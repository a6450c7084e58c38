package admin

import (
	"bytes"
	"context"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// ModifyColumnFamilies implements T13: all modifications in order, or none.
func (s *tableServer) ModifyColumnFamilies(ctx context.Context, req *adminpb.ModifyColumnFamiliesRequest) (*adminpb.Table, error) {
	ids, err := s.parse("name", tableForm, req.GetName())
	if err != nil {
		return nil, err
	}
	if len(req.GetModifications()) == 0 {
		return nil, refuse(fault.Invalid, "modifications", "Error in field 'modifications' : No modifications provided")
	}
	i, err := s.instanceForTables(ctx, "name", parent(ids, tableForm, 2))
	if err != nil {
		return nil, err
	}
	replicated := len(i.clusters) > 1 && !req.GetIgnoreWarnings()
	t, err := s.b.UpdateTable(ctx, req.GetName(), func(t *schema.Table) error {
		old := t.Clone()
		for n, m := range req.GetModifications() {
			if err := modifyFamily(t, m, replicated); err != nil {
				return within("modifications", n, err)
			}
		}
		if err := t.CheckFamilies(old); err != nil {
			return within("modifications", -1, err)
		}
		return checkKeyNames(t)
	})
	if err != nil {
		return nil, orMissing(err, "name", "Table", req.GetName())
	}
	return tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
}

// checkKeyNames refuses families that are called like a field of the row key.
func checkKeyNames(t *schema.Table) error {
	x, err := tableExtra(t)
	if err != nil {
		return err
	}
	for _, f := range x.GetRowKeySchema().GetFields() {
		if _, ok := t.Families[f.GetFieldName()]; ok {
			return refuse(fault.Invalid, "modifications", "Column family '%s' has the name of a field of the row key schema", f.GetFieldName())
		}
	}
	return nil
}

// modifyFamily applies one modification to t.
func modifyFamily(t *schema.Table, m *adminpb.ModifyColumnFamiliesRequest_Modification, replicated bool) error {
	id := m.GetId()
	old, exists := t.Families[id]
	switch mod := m.GetMod().(type) {
	case *adminpb.ModifyColumnFamiliesRequest_Modification_Create:
		if exists {
			return refuse(fault.AlreadyExists, "id", "Column family already exists: %s", id)
		}
		f, err := newFamily(id, mod.Create)
		if err != nil {
			return within("create", -1, err)
		}
		t.AddFamily(f)
		return nil
	case *adminpb.ModifyColumnFamiliesRequest_Modification_Update:
		if !exists {
			return errNoFamily(id)
		}
		f, err := updateFamily(old, mod.Update, m, replicated)
		if err != nil {
			return err
		}
		t.Families[id] = f
		return nil
	case *adminpb.ModifyColumnFamiliesRequest_Modification_Drop:
		switch {
		case !mod.Drop:
			return refuse(fault.Invalid, "drop", "Error in field 'drop' : Must be true")
		case !exists:
			return errNoFamily(id)
		case t.DeletionProtection:
			return errProtected("id", "Column family '"+id+"'", t.Name)
		}
		delete(t.Families, id)
		return nil
	}
	return refuse(fault.Invalid, "mod", "One of 'create', 'update' and 'drop' must be specified")
}

func errNoFamily(id string) error {
	e := schema.NoFamily(id, "Requested column family not found: %s", id)
	e.Field = "id"
	return e
}

// updateFamily returns old with the masked fields of pb.
func updateFamily(old schema.Family, pb *adminpb.ColumnFamily, m *adminpb.ModifyColumnFamiliesRequest_Modification, replicated bool) (schema.Family, error) {
	paths := m.GetUpdateMask().GetPaths()
	if len(paths) == 0 {
		paths = []string{"gc_rule"}
	}
	for _, p := range paths {
		switch {
		case covered(p, []string{"gc_rule"}) && known(pb.ProtoReflect().Descriptor(), p):
			gc, err := newGCRule(pb.GetGcRule())
			if err != nil {
				return old, within("update", -1, err)
			}
			if replicated && relaxesAge(old.GC, gc) {
				return old, refuse(fault.FailedPrecondition, "update.gc_rule", "Cannot relax pure age-based GC for a replicated family (%s). If you must relax the age constraint, unreplicate the instance and try again.", old.Name)
			}
			old.GC = gc
		case covered(p, []string{"value_type"}) && known(pb.ProtoReflect().Descriptor(), p):
			agg, extra, err := newValueType(pb.GetValueType())
			if err == nil && bytes.Equal(extra, old.Extra) {
				continue
			}
			if agg != schema.NotAggregate || old.Aggregate != schema.NotAggregate {
				return old, refuse(fault.Invalid, "update.value_type", "Immutable fields 'value_type.aggregate_type.*' cannot be updated")
			}
			if err != nil {
				return old, within("update", -1, err)
			}
			old.Extra = extra
		default:
			return old, refuse(fault.Invalid, "update_mask", "Error in field 'update_mask' : Unknown field '%s'", p)
		}
	}
	return old, nil
}
