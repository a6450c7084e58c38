package master

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// change runs a change of a table or of what has its name.
func (m *Master) change(ctx context.Context, c *server.Call, n nonce, rpc, what string, name model.Name, do func(ctx context.Context) error) (*uint64, error) {
	if name.System() {
		return nil, wire.DoNotRetryIO.New("%s: the tables of the namespace %s are computed", name, model.SystemNamespace)
	}
	resource := m.catalog.Mapping().Resource(name)
	if rpc == toCreate {
		resource = m.catalog.Mapping().InstanceName(name.Namespace)
	}
	ctx, err := m.authorize(ctx, c, rpc, resource)
	if err != nil {
		return nil, err
	}
	id, err := m.procs.run(ctx, n, func() error {
		m.ddl.Lock()
		defer m.ddl.Unlock()
		return do(ctx)
	})
	if err != nil {
		return nil, err
	}
	m.o.Log.LogAttrs(ctx, slog.LevelInfo, what, slog.String("table", name.String()), slog.String("user", c.User))
	return &id, nil
}

func (m *Master) createTable(ctx context.Context, c *server.Call, req *pb.CreateTableRequest) (*pb.CreateTableResponse, error) {
	name := model.NameOf(req.GetTableSchema().GetTableName())
	id, err := m.change(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toCreate, "HBase table created", name, func(ctx context.Context) error {
		return m.create(ctx, name, req.GetTableSchema(), req.GetSplitKeys())
	})
	if err != nil {
		return nil, err
	}
	return &pb.CreateTableResponse{ProcId: id}, nil
}

func (m *Master) create(ctx context.Context, name model.Name, d *pb.TableSchema, splits [][]byte) error {
	families, err := checkDescriptor(d)
	if err != nil {
		return err
	}
	if err := m.namespaceExists(ctx, name.Namespace); err != nil {
		return err
	}
	splits = slices.Clone(splits)
	slices.SortFunc(splits, bytes.Compare)
	for i, k := range splits {
		if len(k) == 0 {
			return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: Empty split key must not be passed in the split keys.")
		}
		if i > 0 && bytes.Equal(k, splits[i-1]) {
			return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: All split keys must be unique, found duplicate: %q", k)
		}
	}
	stored, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		return err
	}
	want := &schema.Table{Name: m.catalog.Mapping().Resource(name), Families: map[string]schema.Family{}, Granularity: granularity(d)}
	for n, f := range families {
		want.Families[n] = schema.Family{Name: n, GC: f.Rule()}
	}
	made, err := m.b.CreateTable(ctx, want, splits)
	if errors.Is(err, fault.AlreadyExists) {
		return wire.TableExists.New("%s", name)
	}
	if err != nil {
		return err
	}
	// A crash here leaves the table as if it had been made through another API.
	return m.catalog.Update(ctx, made, func(s *model.Stored) error {
		*s = model.Stored{State: int32(pb.TableState_ENABLED), Descriptor: stored}
		return nil
	})
}

// granularity is that of the timestamps which clients give: whole
// milliseconds, or numbers that mean something else.
func granularity(d *pb.TableSchema) int64 {
	if u, _ := attribute(d.GetAttributes(), model.AttrTimestampUnit); u == model.TimestampUnitRaw {
		return 1
	}
	return 1000
}

func notDisabled(t *model.Table) error {
	return wire.TableNotDisabled.New("Not DISABLED; tableName=%s, state=%s", t.Name, pb.TableState_State(t.Stored.State))
}

func (m *Master) deleteTable(ctx context.Context, c *server.Call, req *pb.DeleteTableRequest) (*pb.DeleteTableResponse, error) {
	name := model.NameOf(req.GetTableName())
	id, err := m.change(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toDelete, "HBase table deleted", name, func(ctx context.Context) error {
		t, err := m.changeable(ctx, name)
		if err != nil {
			return err
		}
		if t.Enabled() {
			return notDisabled(t)
		}
		if err := m.b.DeleteTable(ctx, t.Resource); err != nil {
			return err
		}
		// What is stored of it stays: it may be undeleted. It is served then, as it was
		// disabled for the deletion.
		return m.setState(ctx, t, pb.TableState_ENABLED)
	})
	if err != nil {
		return nil, err
	}
	return &pb.DeleteTableResponse{ProcId: id}, nil
}

func (m *Master) truncateTable(ctx context.Context, c *server.Call, req *pb.TruncateTableRequest) (*pb.TruncateTableResponse, error) {
	name := model.NameOf(req.GetTableName())
	id, err := m.change(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toClear, "HBase table truncated", name, func(ctx context.Context) error {
		t, err := m.changeable(ctx, name)
		if err != nil {
			return err
		}
		if t.Enabled() {
			return notDisabled(t)
		}
		if err := m.b.DropRowRange(ctx, t.Resource, nil); err != nil {
			return err
		}
		if !req.GetPreserveSplits() && m.tablets != nil {
			regions, err := m.catalog.Regions(ctx, t)
			if err != nil {
				return err
			}
			for range len(regions) - 1 {
				if err := m.tablets.MergeAt(ctx, t.Resource, nil); err != nil {
					return err
				}
			}
		}
		return m.setState(ctx, t, pb.TableState_ENABLED)
	})
	if err != nil {
		return nil, err
	}
	return &pb.TruncateTableResponse{ProcId: id}, nil
}

func (m *Master) setState(ctx context.Context, t *model.Table, state pb.TableState_State) error {
	return m.catalog.Update(ctx, t.Schema, func(s *model.Stored) error {
		s.State = int32(state)
		return nil
	})
}

func (m *Master) enableTable(ctx context.Context, c *server.Call, req *pb.EnableTableRequest) (*pb.EnableTableResponse, error) {
	name := model.NameOf(req.GetTableName())
	id, err := m.change(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toModify, "HBase table enabled", name, func(ctx context.Context) error {
		t, err := m.changeable(ctx, name)
		if err != nil {
			return err
		}
		if t.Enabled() {
			return notDisabled(t)
		}
		return m.setState(ctx, t, pb.TableState_ENABLED)
	})
	if err != nil {
		return nil, err
	}
	return &pb.EnableTableResponse{ProcId: id}, nil
}

func (m *Master) disableTable(ctx context.Context, c *server.Call, req *pb.DisableTableRequest) (*pb.DisableTableResponse, error) {
	name := model.NameOf(req.GetTableName())
	id, err := m.change(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toModify, "HBase table disabled", name, func(ctx context.Context) error {
		t, err := m.changeable(ctx, name)
		if err != nil {
			return err
		}
		if !t.Enabled() {
			return wire.TableNotEnabled.New("%s", name)
		}
		return m.setState(ctx, t, pb.TableState_DISABLED)
	})
	if err != nil {
		return nil, err
	}
	return &pb.DisableTableResponse{ProcId: id}, nil
}

// An alteration makes a descriptor another one. began is the table as it was when the
// call began. It may run several times.
type alteration func(d *pb.TableSchema, began *model.Table) error

// on returns what the alteration makes of a table's descriptor: with the families of
// s, and with what given says beside them.
func (a alteration) on(began *model.Table, s *schema.Table, given *pb.TableSchema) (*pb.TableSchema, map[string]model.Family, error) {
	now := *began
	now.Schema, now.Descriptor = s, given
	d := descriptor(&now)
	if err := a(d, began); err != nil {
		return nil, nil, err
	}
	d.TableName = began.Name.Proto()
	if _, ok := attribute(d.GetAttributes(), model.AttrDeletes); !ok && proto.Size(given) == 0 {
		// The table was made through another API. That it has a descriptor now would
		// say that it was not.
		d.Attributes = setAttribute(d.Attributes, model.AttrDeletes, model.DeletesLikeBigtable)
	}
	families, err := checkDescriptor(d)
	if err != nil {
		return nil, nil, err
	}
	if granularity(d) != granularity(given) {
		return nil, nil, insane("%s of a table cannot be changed", model.AttrTimestampUnit)
	}
	return d, families, nil
}

// modify alters a table. Other processes and APIs may change it at the same time, so
// that the alteration is made of the very schema that it replaces.
func (m *Master) modify(ctx context.Context, c *server.Call, n nonce, name model.Name, alter alteration) (*uint64, error) {
	return m.change(ctx, c, n, toModify, "HBase table modified", name, func(ctx context.Context) error {
		t, err := m.changeable(ctx, name)
		if err != nil {
			return err
		}
		var was *schema.Table
		made, err := m.b.UpdateTable(ctx, t.Resource, func(s *schema.Table) error {
			if s.ID != t.Schema.ID {
				return fault.New(fault.Aborted, "table %s was made anew", name)
			}
			was = s.Clone()
			_, families, err := alter.on(t, was, t.Descriptor)
			if err != nil {
				return err
			}
			for n := range s.Families {
				if _, ok := families[n]; !ok {
					delete(s.Families, n)
				}
			}
			for n, want := range families {
				have, ok := s.Families[n]
				if !ok {
					s.AddFamily(schema.Family{Name: n, GC: want.Rule()})
					continue
				}
				// A rule that HBase has no words for stays, unless it was changed.
				if now, _ := model.FamilyOf(have.GC); now != want {
					have.GC, have.GCVersion = want.Rule(), s.Version+1
					s.Families[n] = have
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		return m.catalog.Update(ctx, made, func(s *model.Stored) error {
			given := &pb.TableSchema{}
			if err := proto.Unmarshal(s.Descriptor, given); err != nil {
				return err
			}
			d, _, err := alter.on(t, was, given)
			if err != nil {
				return err
			}
			// A family that is in neither of the two that this call began with was added
			// after this alteration, by another one that has come here first.
			for _, f := range given.GetColumnFamilies() {
				if _, ok := was.Families[string(f.GetName())]; !ok && familyIndex(t.Descriptor, f.GetName()) < 0 && familyIndex(d, f.GetName()) < 0 {
					d.ColumnFamilies = append(d.ColumnFamilies, f)
				}
			}
			s.Descriptor, err = proto.MarshalOptions{Deterministic: true}.Marshal(d)
			return err
		})
	})
}

func (m *Master) modifyTable(ctx context.Context, c *server.Call, req *pb.ModifyTableRequest) (*pb.ModifyTableResponse, error) {
	id, err := m.modify(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, model.NameOf(req.GetTableName()), func(d *pb.TableSchema, began *model.Table) error {
		now := d.GetColumnFamilies()
		proto.Reset(d)
		proto.Merge(d, req.GetTableSchema())
		// The client cannot have meant to delete a family that came after its call.
		for _, f := range now {
			if _, ok := began.Schema.Families[string(f.GetName())]; !ok && familyIndex(d, f.GetName()) < 0 {
				d.ColumnFamilies = append(d.ColumnFamilies, f)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &pb.ModifyTableResponse{ProcId: id}, nil
}

func familyIndex(d *pb.TableSchema, name []byte) int {
	return slices.IndexFunc(d.GetColumnFamilies(), func(f *pb.ColumnFamilySchema) bool { return bytes.Equal(f.GetName(), name) })
}

func (m *Master) addColumn(ctx context.Context, c *server.Call, req *pb.AddColumnRequest) (*pb.AddColumnResponse, error) {
	f := req.GetColumnFamilies()
	id, err := m.modify(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, model.NameOf(req.GetTableName()), func(d *pb.TableSchema, _ *model.Table) error {
		if familyIndex(d, f.GetName()) >= 0 {
			return wire.InvalidFamily.New("Column family '%s' in table '%s' already exists so cannot be added", f.GetName(), model.NameOf(d.GetTableName()))
		}
		d.ColumnFamilies = append(d.ColumnFamilies, f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &pb.AddColumnResponse{ProcId: id}, nil
}

func (m *Master) modifyColumn(ctx context.Context, c *server.Call, req *pb.ModifyColumnRequest) (*pb.ModifyColumnResponse, error) {
	f := req.GetColumnFamilies()
	id, err := m.modify(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, model.NameOf(req.GetTableName()), func(d *pb.TableSchema, _ *model.Table) error {
		i := familyIndex(d, f.GetName())
		if i < 0 {
			return wire.InvalidFamily.New("Family '%s' does not exist, so it cannot be modified", f.GetName())
		}
		d.ColumnFamilies[i] = f
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &pb.ModifyColumnResponse{ProcId: id}, nil
}

func (m *Master) deleteColumn(ctx context.Context, c *server.Call, req *pb.DeleteColumnRequest) (*pb.DeleteColumnResponse, error) {
	id, err := m.modify(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, model.NameOf(req.GetTableName()), func(d *pb.TableSchema, _ *model.Table) error {
		i := familyIndex(d, req.GetColumnName())
		switch {
		case i < 0:
			return wire.InvalidFamily.New("Family '%s' does not exist, so it cannot be deleted", req.GetColumnName())
		case len(d.ColumnFamilies) == 1:
			return wire.InvalidFamily.New("Family '%s' is the only column family in the table, so it cannot be deleted", req.GetColumnName())
		}
		d.ColumnFamilies = slices.Delete(d.ColumnFamilies, i, i+1)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &pb.DeleteColumnResponse{ProcId: id}, nil
}

// flushTable makes what is in memory of a table SSTables.
func (m *Master) flushTable(ctx context.Context, c *server.Call, req *pb.FlushTableRequest) (*pb.FlushTableResponse, error) {
	name := model.NameOf(req.GetTableName())
	ctx, err := m.authorize(ctx, c, toModify, m.catalog.Mapping().Resource(name))
	if err != nil {
		return nil, err
	}
	id, err := m.procs.run(ctx, nonce{req.GetNonceGroup(), req.GetNonce()}, func() error { return m.flush(ctx, name) })
	if err != nil {
		return nil, err
	}
	return &pb.FlushTableResponse{ProcId: &id}, nil
}

func (m *Master) flush(ctx context.Context, name model.Name) error {
	if name.System() {
		return nil
	}
	t, err := m.table(ctx, name)
	switch {
	case err != nil:
		return err
	case m.tablets == nil:
		return unsupported("this store's tablets are not flushed by hand")
	case !t.Enabled():
		return wire.TableNotEnabled.New("%s", name)
	}
	return m.tablets.FlushTablets(ctx, t.Resource, row.All)
}
