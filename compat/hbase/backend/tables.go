package backend

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

func notFound(resource string) error {
	return fault.New(fault.NotFound, "Table not found: %s", resource)
}

// descriptors asks the master for descriptors of tables that are not its own:
// all, those of a namespace, or one.
func (b *Backend) descriptors(ctx context.Context, namespace string, one *model.Name) ([]*pb.TableSchema, error) {
	req := &pb.GetTableDescriptorsRequest{IncludeSysTables: proto.Bool(false)}
	if namespace != "" {
		req.Namespace = proto.String(namespace)
	}
	if one != nil {
		req.TableNames = []*pb.TableName{one.Proto()}
	}
	r, err := ask[*pb.GetTableDescriptorsResponse](ctx, b, "GetTableDescriptors", req, func() proto.Message { return new(pb.GetTableDescriptorsResponse) })
	if is(err, "TableNotFoundException", "NamespaceNotFoundException") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(r.GetTableSchema(), func(d *pb.TableSchema) bool {
		n := model.NameOf(d.GetTableName())
		return n.System() || n == recordsTable || n.Namespace == "hbase"
	}), nil
}

// load reads a table's descriptor.
func (b *Backend) load(ctx context.Context, resource string) (*table, *pb.TableSchema, error) {
	name, err := b.place.table(resource)
	if err != nil {
		return nil, nil, notFound(resource)
	}
	list, err := b.descriptors(ctx, "", &name)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range list {
		if model.NameOf(d.GetTableName()) == name {
			t, err := describe(d, resource)
			return t, d, err
		}
	}
	return nil, nil, notFound(resource)
}

// table returns a table, from memory if it was read a moment ago.
func (b *Backend) table(ctx context.Context, resource string) (*table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	t := b.mu.tables[resource]
	b.mu.Unlock()
	if t != nil && time.Since(t.read) < b.o.SchemaAge {
		return t, nil
	}
	t, _, err := b.load(ctx, resource)
	b.remember(resource, t)
	return t, err
}

// remember keeps a table, or forgets it if t is nil.
func (b *Backend) remember(resource string, t *table) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t == nil {
		delete(b.mu.tables, resource)
		return
	}
	if len(b.mu.tables) > 10_000 {
		clear(b.mu.tables) // of a client that asks for names at random
	}
	b.mu.tables[resource] = t
}

// onTable calls f with a table. If HBase has another idea of it than what is
// remembered, it is read again for the next call.
func (b *Backend) onTable(ctx context.Context, resource string, f func(*table) error) error {
	t, err := b.table(ctx, resource)
	if err != nil {
		return err
	}
	err = f(t)
	if is(err, "TableNotFoundException") {
		b.remember(resource, nil)
		return notFound(resource)
	}
	if is(err, "NoSuchColumnFamilyException") {
		b.remember(resource, nil)
	}
	return err
}

// procedure runs a procedure of the master, and waits for its end.
func procedure[M interface {
	proto.Message
	GetProcId() uint64
}](ctx context.Context, b *Backend, name string, request proto.Message, answer func() proto.Message) error {
	r, err := ask[M](ctx, b, name, request, answer)
	if err != nil {
		return err
	}
	return b.wait(ctx, r.GetProcId())
}

func (b *Backend) create(ctx context.Context, d *pb.TableSchema, splits [][]byte) error {
	return procedure[*pb.CreateTableResponse](ctx, b, "CreateTable", &pb.CreateTableRequest{TableSchema: d, SplitKeys: splits, NonceGroup: nonce(), Nonce: nonce()},
		func() proto.Message { return new(pb.CreateTableResponse) })
}

func (b *Backend) modify(ctx context.Context, d *pb.TableSchema) error {
	return procedure[*pb.ModifyTableResponse](ctx, b, "ModifyTable", &pb.ModifyTableRequest{TableName: d.GetTableName(), TableSchema: d, NonceGroup: nonce(), Nonce: nonce()},
		func() proto.Message { return new(pb.ModifyTableResponse) })
}

// disable disables a table. was tells whether it was enabled, or whether it may have been
// if err is not nil.
func (b *Backend) disable(ctx context.Context, n model.Name) (was bool, err error) {
	err = procedure[*pb.DisableTableResponse](ctx, b, "DisableTable", &pb.DisableTableRequest{TableName: n.Proto(), NonceGroup: nonce(), Nonce: nonce()},
		func() proto.Message { return new(pb.DisableTableResponse) })
	if is(err, "TableNotEnabledException") {
		return false, nil
	}
	return true, err
}

// enable enables a table, if there is one and it is disabled.
func (b *Backend) enable(ctx context.Context, n model.Name) error {
	err := procedure[*pb.EnableTableResponse](ctx, b, "EnableTable", &pb.EnableTableRequest{TableName: n.Proto(), NonceGroup: nonce(), Nonce: nonce()},
		func() proto.Message { return new(pb.EnableTableResponse) })
	if is(err, "TableNotDisabledException", "TableNotFoundException") {
		return nil
	}
	return err
}

// whileDisabled calls f, which removes a table or enables it, with the table disabled. If
// that fails, the table is enabled again, unless it was disabled before.
func (b *Backend) whileDisabled(ctx context.Context, n model.Name, f func() error) error {
	was, err := b.disable(ctx, n)
	if err == nil {
		err = f()
	}
	if err == nil || !was {
		return err
	}
	// Also if the caller has gone. HBase makes the changes of a table one after the other: if
	// it is still at ours, this comes after it.
	again, done := context.WithTimeout(context.WithoutCancel(ctx), b.o.Timeout)
	defer done()
	if eerr := b.enable(again, n); eerr != nil {
		b.o.Log.Warn("a table may stay disabled", "table", n.String(), "error", eerr)
	}
	return err
}

func (b *Backend) remove(ctx context.Context, n model.Name) error {
	return procedure[*pb.DeleteTableResponse](ctx, b, "DeleteTable", &pb.DeleteTableRequest{TableName: n.Proto(), NonceGroup: nonce(), Nonce: nonce()},
		func() proto.Message { return new(pb.DeleteTableResponse) })
}

// random returns a number that no other call gets.
func random() uint64 {
	var r [8]byte
	_, _ = rand.Read(r[:]) // never fails
	return binary.BigEndian.Uint64(r[:])
}

// nonce makes a request that gohbase sends twice count once.
func nonce() *uint64 { return proto.Uint64(random() | 1) }

// ensureNamespace makes a namespace if it is not there.
func (b *Backend) ensureNamespace(ctx context.Context, namespace string) error {
	if namespace == model.DefaultNamespace {
		return nil
	}
	err := procedure[*pb.CreateNamespaceResponse](ctx, b, "CreateNamespace",
		&pb.CreateNamespaceRequest{NamespaceDescriptor: &pb.NamespaceDescriptor{Name: []byte(namespace)}, NonceGroup: nonce(), Nonce: nonce()},
		func() proto.Message { return new(pb.CreateNamespaceResponse) })
	if is(err, "NamespaceExistException") {
		return nil
	}
	return err
}

// newSchema is the schema of a table that is made as want says.
func newSchema(want *schema.Table) *schema.Table {
	s := want.Clone()
	s.ID, s.Version, s.CreateTime, s.DeleteTime = random()>>1|1, 1, time.Now().Truncate(time.Microsecond), time.Time{}
	if s.Granularity == 0 {
		s.Granularity = 1000
	}
	s.NextFamily, s.Families = 1, map[string]schema.Family{}
	for _, name := range want.FamilyNames() {
		f := want.Families[name]
		f.Name, f.GC = name, f.GC.Clone()
		s.AddFamily(f)
	}
	return s
}

func exists(resource string) error {
	return fault.New(fault.AlreadyExists, "Table already exists: %s", resource)
}

// CreateTable implements backend.Tables.
func (b *Backend) CreateTable(ctx context.Context, want *schema.Table, splits [][]byte) (*schema.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	name, err := b.place.table(want.Name)
	if err != nil {
		return nil, err
	}
	if name == recordsTable {
		return nil, fault.New(fault.Invalid, "The name %s is taken", name.Qualifier)
	}
	s := newSchema(want)
	if err := s.CheckFamilies(nil); err != nil {
		return nil, err
	}
	d, err := descriptor(name, s, nil)
	if err != nil {
		return nil, err
	}
	if err := b.ensureNamespace(ctx, name.Namespace); err != nil {
		return nil, err
	}
	err = b.create(ctx, d, splits)
	b.remember(want.Name, nil)
	if errors.Is(err, fault.AlreadyExists) {
		return nil, exists(want.Name)
	}
	if err != nil {
		return nil, err
	}
	return b.Table(ctx, want.Name)
}

// Table implements backend.Tables.
func (b *Backend) Table(ctx context.Context, resource string) (*schema.Table, error) {
	t, err := b.table(ctx, resource)
	if err != nil {
		return nil, err
	}
	return t.schema.Clone(), nil
}

// ListTables implements backend.Tables.
func (b *Backend) ListTables(ctx context.Context, parent string) ([]*schema.Table, error) {
	namespace := "" // all of them
	if m := resourceName.FindStringSubmatch(parent + "/tables/t"); m != nil {
		namespace = b.place.namespace(m[1], m[2])
	}
	list, err := b.descriptors(ctx, namespace, nil)
	if err != nil {
		return nil, err
	}
	var out []*schema.Table
	for _, d := range list {
		n := model.NameOf(d.GetTableName())
		if !strings.HasPrefix(b.place.parent(n.Namespace)+"/", parent+"/") {
			continue
		}
		t, err := describe(d, b.place.resource(n))
		if err != nil {
			return nil, err
		}
		out = append(out, t.schema)
	}
	slices.SortFunc(out, func(a, b *schema.Table) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// TableIDs implements backend.Tables.
func (b *Backend) TableIDs(ctx context.Context) ([]uint64, error) {
	list, err := b.descriptors(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	var ids []uint64
	for _, d := range list {
		t, err := describe(d, b.place.resource(model.NameOf(d.GetTableName())))
		if err != nil {
			return nil, err
		}
		ids = append(ids, t.schema.ID)
	}
	err = b.listDeleted(ctx, "", func(_ string, d *deleted) error {
		ids = append(ids, d.ID)
		return nil
	})
	return ids, err
}

// UpdateTable implements backend.Tables.
func (b *Backend) UpdateTable(ctx context.Context, resource string, change func(*schema.Table) error) (*schema.Table, error) {
	var out *schema.Table
	err := b.locked(ctx, resource, func(ctx context.Context) error {
		t, old, err := b.load(ctx, resource)
		if err != nil {
			return err
		}
		s := t.schema.Clone()
		if err := change(s); err != nil {
			return err
		}
		s.ID, s.Name, s.Granularity, s.Version = t.schema.ID, t.schema.Name, t.schema.Granularity, t.schema.Version+1
		if err := s.CheckFamilies(t.schema); err != nil {
			return err
		}
		s.NoteRules(t.schema)
		gone, anew := 0, false
		for name, f := range t.schema.Families {
			now, ok := s.Families[name]
			if !ok || now.ID != f.ID {
				gone++
				anew = anew || ok
				if t.schema.DeletionProtection && s.DeletionProtection {
					return fault.New(fault.FailedPrecondition, "Cannot delete column family %s of %s: deletion protection is on", name, resource)
				}
			}
		}
		if !t.versioned && len(s.Families) == 0 {
			return fault.New(fault.Invalid, "HBase's table %s must keep a column family", t.name)
		}
		if anew {
			// HBase drops a family's files when the family is not there any more.
			between := s.Clone()
			for name, f := range t.schema.Families {
				if between.Families[name].ID != f.ID {
					delete(between.Families, name)
				}
			}
			d, err := descriptor(t.name, between, old)
			if err != nil {
				return err
			}
			if err := b.modify(ctx, d); err != nil {
				return err
			}
			old = d
		}
		d, err := descriptor(t.name, s, old)
		if err != nil {
			return err
		}
		if err := b.modify(ctx, d); err != nil {
			return err
		}
		out = s
		return nil
	})
	b.remember(resource, nil)
	return out, err
}

// DropRowRange implements backend.Tables. All rows go at once; those with a
// prefix are deleted one by one.
func (b *Backend) DropRowRange(ctx context.Context, resource string, prefix []byte) error {
	t, err := b.table(ctx, resource)
	if err != nil {
		return err
	}
	if len(prefix) == 0 {
		return b.locked(ctx, resource, func(ctx context.Context) error {
			return b.whileDisabled(ctx, t.name, func() error {
				return procedure[*pb.TruncateTableResponse](ctx, b, "truncateTable",
					&pb.TruncateTableRequest{TableName: t.name.Proto(), PreserveSplits: proto.Bool(true), NonceGroup: nonce(), Nonce: nonce()},
					func() proto.Message { return new(pb.TruncateTableResponse) })
			})
		})
	}
	d := &dropper{ctx: ctx, b: b, t: t}
	q, err := newQuery(t, nil)
	if err != nil || q.none {
		return err
	}
	// One cell is enough to know that a row is there.
	q.scan.MaxVersions = proto.Uint32(1)
	q.scan.Filter = hbaseFilter("FilterList", &pb.FilterList{Operator: pb.FilterList_MUST_PASS_ALL.Enum(), Filters: []*pb.Filter{
		hbaseFilter("FirstKeyOnlyFilter", &pb.FirstKeyOnlyFilter{}), hbaseFilter("KeyOnlyFilter", &pb.KeyOnlyFilter{LenAsVal: proto.Bool(false)})}})
	s := &scanner{b: b, client: b.client(), table: t.key(), template: q.scan}
	if err := s.run(ctx, row.Prefix(prefix), d); err != nil {
		return err
	}
	return d.flush()
}

// A dropper deletes the rows that a scanner finds.
type dropper struct {
	ctx  context.Context
	b    *Backend
	t    *table
	keys [][]byte
}

func (d *dropper) piece(p *piece) (bool, error) {
	if n := len(d.keys); n == 0 || !bytes.Equal(d.keys[n-1], p.row) {
		d.keys = append(d.keys, bytes.Clone(p.row))
	}
	return false, nil
}

func (d *dropper) end() (bool, error) {
	if len(d.keys) < 1000 {
		return false, nil
	}
	return false, d.flush()
}

func (d *dropper) flush() error {
	entries := make([]row.Entry, len(d.keys))
	for i, k := range d.keys {
		entries[i] = row.Entry{Key: k, Mutations: []row.Mutation{{Op: row.DeleteRow}}}
	}
	d.keys = nil
	var first error
	err := d.b.MutateRows(d.ctx, d.t.schema.Name, entries, func(_ int, err error) {
		if first == nil {
			first = err
		}
	})
	return errors.Join(err, first)
}

// regionOf is a region of a table, and its size in bytes.
type regionOf struct {
	name       string
	start, end []byte
	bytes      int64
}

// regions reads the regions of a table from hbase:meta, in order.
func (b *Backend) regions(ctx context.Context, t *table) ([]regionOf, error) {
	var out []regionOf
	prefix := t.name.String() + ","
	s := &scanner{b: b, client: b.client(), table: []byte("hbase:meta"),
		template: &pb.Scan{Column: []*pb.Column{{Family: []byte("info"), Qualifier: [][]byte{[]byte("regioninfo")}}}}}
	err := s.run(ctx, row.Range{Start: []byte(prefix + ","), End: []byte(t.name.String() + " ,,")}, takerFunc(func(p *piece) error {
		if !strings.HasPrefix(string(p.row), prefix) {
			return nil
		}
		for _, c := range p.cells {
			info := &pb.RegionInfo{}
			v, ok := bytes.CutPrefix(c.Value, []byte("PBUF"))
			if !ok {
				continue
			}
			if err := (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}).Unmarshal(v, info); err != nil {
				return fault.New(fault.Corruption, "row %q of hbase:meta: %w", p.row, err)
			}
			if info.GetOffline() || info.GetSplit() || info.GetReplicaId() != 0 {
				continue
			}
			out = append(out, regionOf{name: string(p.row), start: bytes.Clone(info.GetStartKey()), end: bytes.Clone(info.GetEndKey())})
		}
		return nil
	}))
	slices.SortFunc(out, func(a, b regionOf) int { return bytes.Compare(a.start, b.start) })
	return out, err
}

// takerFunc takes the pieces of short rows.
type takerFunc func(*piece) error

func (f takerFunc) piece(p *piece) (bool, error) { return false, f(p) }
func (takerFunc) end() (bool, error)             { return false, nil }

// measure fills in how large regions are, as the region servers said last:
// seconds ago, in whole MiB.
func (b *Backend) measure(ctx context.Context, regions []regionOf) error {
	const mib = 1 << 20
	r, err := ask[*pb.GetClusterStatusResponse](ctx, b, "GetClusterStatus", &pb.GetClusterStatusRequest{}, func() proto.Message { return new(pb.GetClusterStatusResponse) })
	if err != nil {
		return err
	}
	byName := make(map[string]*regionOf, len(regions))
	for i := range regions {
		byName[regions[i].name] = &regions[i]
	}
	for _, s := range r.GetClusterStatus().GetLiveServers() {
		for _, l := range s.GetServerLoad().GetRegionLoads() {
			if x := byName[string(l.GetRegionSpecifier().GetValue())]; x != nil {
				x.bytes = (int64(l.GetStorefileSize_MB()) + int64(l.GetMemStoreSize_MB())) * mib
			}
		}
	}
	return nil
}

// TableBytes implements backend.Tables.
func (b *Backend) TableBytes(ctx context.Context, resource string) (n int64, err error) {
	t, err := b.table(ctx, resource)
	if err != nil {
		return 0, err
	}
	regions, err := b.regions(ctx, t)
	if err == nil {
		err = b.measure(ctx, regions)
	}
	for _, r := range regions {
		n += r.bytes
	}
	return n, err
}

// TabletCuts implements backend.Data. What rows a region has is not known here.
func (b *Backend) TabletCuts(context.Context, string, row.Range) ([][]byte, error) { return nil, nil }

// SampleRowKeys implements backend.Data.
func (b *Backend) SampleRowKeys(ctx context.Context, resource string, within row.Range, emit func(scan.Sample) error) error {
	t, err := b.table(ctx, resource)
	if err != nil {
		return err
	}
	regions, err := b.regions(ctx, t)
	if err != nil {
		return err
	}
	if err := b.measure(ctx, regions); err != nil {
		return err
	}
	var offset int64
	for _, r := range regions {
		if offset += r.bytes; offset < 0 {
			offset = math.MaxInt64
		}
		if len(r.end) > 0 && bytes.Compare(r.end, within.Start) > 0 && (len(within.End) == 0 || bytes.Compare(r.end, within.End) < 0) {
			if err := emit(scan.Sample{Key: r.end, Offset: offset}); err != nil {
				return err
			}
		}
	}
	return emit(scan.Sample{Key: within.End, Offset: offset})
}
