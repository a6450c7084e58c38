package model

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// The records of the catalog.
const (
	recordCluster = "hbase/cluster-id"
	recordTables  = "hbase/tables/"
	// RecordNamespaces begins the keys of the records of namespaces, which end
	// with their names.
	RecordNamespaces = "hbase/namespaces/"
)

// A Stored is what HBase knows of a table and the schema does not.
type Stored struct {
	// State is a pb.TableState_State.
	State int32 `json:",omitempty"`
	// Descriptor is the pb.TableSchema that the table was given, empty if it was
	// made through another API.
	Descriptor []byte `json:",omitempty"`
}

// A Table is a table as HBase sees it. It is shared: treat it as read-only.
type Table struct {
	Name Name
	// Resource is the full resource name.
	Resource string
	Schema   *schema.Table
	Stored   Stored
	// Descriptor is Stored.Descriptor, decoded; never nil.
	Descriptor *pb.TableSchema
	Unit       Unit
	// Sticky says that delete markers cover what is written after them.
	Sticky bool
	// Families by name. A family of an unknown kind of rule keeps everything.
	Families map[string]Family
}

// Enabled tells whether the table may be read and written.
func (t *Table) Enabled() bool { return t.Stored.State == int32(pb.TableState_ENABLED) }

// Attribute returns an attribute of the table's descriptor.
func (t *Table) Attribute(name string) string { return attribute(t.Descriptor.GetAttributes(), name) }

func attribute(list []*pb.BytesBytesPair, name string) string {
	for _, p := range list {
		if string(p.GetFirst()) == name {
			return string(p.GetSecond())
		}
	}
	return ""
}

// A Catalog finds tables and regions. Safe for concurrent use.
type Catalog struct {
	b       backend.Backend
	mapping Mapping
	server  Server
	cluster string
	tablets Locator // nil: there is one server

	mu struct {
		sync.Mutex
		places    []Place
		tables    map[string]cached  // by resource name
		layouts   map[uint64]*layout // by schema.Table.ID
		byName    map[string]*Region // the regions of layouts, as byEncoded
		byEncoded map[string]*Region
	}
}

type cached struct {
	t    *Table
	of   *schema.Table // what t.Schema was made of
	read time.Time
}

// recheck is how old a cached record may be: another process may have changed it,
// and have died before it told of that.
const recheck = time.Second

// Open returns a catalog of the tables of b for server, where all regions are
// unless they are Spread. The first Open of a store gives the cluster its id.
func Open(ctx context.Context, b backend.Backend, m Mapping, server Server) (*Catalog, error) {
	c := &Catalog{b: ReadOnlyViews(b), mapping: m, server: server}
	c.mu.tables = map[string]cached{}
	c.mu.layouts = map[uint64]*layout{}
	c.mu.byName, c.mu.byEncoded = map[string]*Region{}, map[string]*Region{}
	for {
		id, _, err := b.GetRecord(ctx, recordCluster)
		if errors.Is(err, fault.NotFound) {
			var r [16]byte
			_, _ = rand.Read(r[:]) // never fails
			r[6], r[8] = r[6]&0x0F|0x40, r[8]&0x3F|0x80
			id = fmt.Appendf(nil, "%x-%x-%x-%x-%x", r[:4], r[4:6], r[6:8], r[8:10], r[10:])
			if _, err = b.PutRecord(ctx, recordCluster, id, 0); errors.Is(err, fault.Aborted) {
				continue // another call was first
			}
		}
		if err != nil {
			return nil, fmt.Errorf("HBase cluster id: %w", err)
		}
		c.cluster = string(id)
		return c, nil
	}
}

// ClusterID returns the id of the cluster, a UUID that never changes.
func (c *Catalog) ClusterID() string { return c.cluster }

// Server returns whose catalog this is.
func (c *Catalog) Server() Server { return c.server }

// Mapping returns how names map.
func (c *Catalog) Mapping() Mapping { return c.mapping }

// Backend returns what the catalog reads.
func (c *Catalog) Backend() backend.Backend { return c.b }

func recordOf(id uint64) string { return fmt.Sprintf("%s%016x", recordTables, id) }

// Table returns a table, or fault.NotFound. What Update changes is seen when that
// has returned, or in a process without tablets a moment later.
func (c *Catalog) Table(ctx context.Context, name Name) (*Table, error) {
	return c.table(ctx, name, recheck)
}

// TableNow returns a table as it is now, with changes of other servers.
func (c *Catalog) TableNow(ctx context.Context, name Name) (*Table, error) {
	return c.table(ctx, name, 0)
}

// table returns a table whose record was read at most so long ago.
func (c *Catalog) table(ctx context.Context, name Name, age time.Duration) (*Table, error) {
	if name.System() {
		return nil, fault.New(fault.NotFound, "table %s is computed", name)
	}
	resource := c.mapping.Resource(name)
	if n, ok := c.mapping.Name(resource); !ok || n != name {
		// What is known of the table, and its regions, would get this name for all callers.
		return nil, fault.New(fault.NotFound, "no namespace %s has table %s", name.Namespace, name)
	}
	s, err := c.b.Table(ctx, resource)
	if errors.Is(err, fault.NotFound) {
		if v, viewErr := c.b.Table(ctx, viewOf(resource)); viewErr == nil {
			s, err, resource = v, nil, v.Name
		} else if !errors.Is(viewErr, fault.NotFound) {
			return nil, viewErr
		}
	}
	if err != nil {
		return nil, err
	}
	now := time.Now()
	c.mu.Lock()
	have := c.mu.tables[resource]
	c.mu.Unlock()
	if have.t != nil && have.of == s && now.Sub(have.read) < age {
		return have.t, nil
	}
	stored, _, err := c.stored(ctx, s.ID)
	if err != nil {
		return nil, err
	}
	if have.t == nil || have.of != s || have.t.Stored.State != stored.State || !bytes.Equal(have.t.Stored.Descriptor, stored.Descriptor) {
		if have.t, err = c.build(name, backend.Shown(s), stored); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	c.mu.tables[resource] = cached{have.t, s, now}
	c.mu.Unlock()
	return have.t, nil
}

// stored returns the record of a table and its version, 0 if there is none.
func (c *Catalog) stored(ctx context.Context, id uint64) (s Stored, version uint64, err error) {
	b, version, err := c.b.GetRecord(ctx, recordOf(id))
	if errors.Is(err, fault.NotFound) {
		return s, 0, nil
	}
	if err == nil {
		if jerr := json.Unmarshal(b, &s); jerr != nil {
			err = fault.New(fault.Corruption, "HBase descriptor of table %d: %w", id, jerr)
		}
	}
	return s, version, err
}

func (c *Catalog) build(name Name, s *schema.Table, stored Stored) (*Table, error) {
	t := &Table{Name: name, Resource: s.Name, Schema: s, Stored: stored, Descriptor: &pb.TableSchema{}, Families: map[string]Family{}}
	if err := proto.Unmarshal(stored.Descriptor, t.Descriptor); err != nil {
		return nil, fault.New(fault.Corruption, "HBase descriptor of table %s: %w", name, err)
	}
	for n, f := range s.Families {
		t.Families[n], _ = FamilyOf(f.GC)
	}
	t.Sticky = len(stored.Descriptor) > 0 && t.Attribute(AttrDeletes) != DeletesLikeBigtable
	for _, f := range t.Descriptor.GetColumnFamilies() {
		if strings.EqualFold(attribute(f.GetAttributes(), AttrNewVersions), "true") {
			t.Sticky = false
		}
	}
	if t.Attribute(AttrTimestampUnit) == TimestampUnitRaw {
		t.Unit = Raw
	}
	return t, nil
}

// Tables returns the tables of a namespace, sorted by name.
func (c *Catalog) Tables(ctx context.Context, namespace string) ([]*Table, error) {
	if namespace == SystemNamespace {
		return nil, nil
	}
	instance := c.mapping.InstanceName(namespace)
	list, err := c.b.ListTables(ctx, instance)
	if err != nil {
		return nil, err
	}
	vs, err := backend.ViewsOf(c.b).ListViews(ctx, instance)
	if err != nil {
		return nil, err
	}
	if len(vs) > 0 {
		list = append(slices.Clone(list), vs...)
		slices.SortFunc(list, func(a, b *schema.Table) int { return strings.Compare(lastPart(a.Name), lastPart(b.Name)) })
	}
	var out []*Table
	for _, s := range list {
		name, ok := c.mapping.Name(strings.Replace(s.Name, "/materializedViews/", "/tables/", 1))
		if !ok {
			continue
		}
		t, err := c.Table(ctx, name)
		if errors.Is(err, fault.NotFound) {
			continue // deleted a moment ago
		}
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// Update changes what is stored beside the schema of a table. An error of change
// is returned as it is and stores nothing.
func (c *Catalog) Update(ctx context.Context, t *schema.Table, change func(*Stored) error) error {
	for {
		s, version, err := c.stored(ctx, t.ID)
		if err != nil {
			return err
		}
		if err := change(&s); err != nil {
			return err
		}
		b, err := json.Marshal(&s)
		if err != nil {
			return err
		}
		if _, err = c.b.PutRecord(ctx, recordOf(t.ID), b, version); errors.Is(err, fault.Aborted) {
			continue
		}
		c.forget()
		if err != nil || c.tablets == nil {
			return err
		}
		// Others have read the record together with a schema. They learn of a new one
		// before this returns, and read the record again.
		_, err = c.b.UpdateTable(ctx, t.Name, func(s *schema.Table) error {
			if s.ID != t.ID {
				return fault.New(fault.NotFound, "table %s was made anew", t.Name)
			}
			return nil
		})
		if errors.Is(err, fault.NotFound) {
			return nil
		}
		return err
	}
}

// Remove forgets what was stored of a table that is gone.
func (c *Catalog) Remove(ctx context.Context, id uint64) error {
	defer c.forget()
	if err := c.removeRegions(ctx, id); err != nil {
		return err
	}
	for {
		_, version, err := c.stored(ctx, id)
		if err != nil || version == 0 {
			return err
		}
		if err = c.b.DeleteRecord(ctx, recordOf(id), version); !errors.Is(err, fault.Aborted) {
			return err
		}
	}
}

// Sweep forgets what was stored of tables that can no longer be undeleted. No request
// finds it any more: ids are not used again.
func (c *Catalog) Sweep(ctx context.Context) error {
	gone := map[uint64]bool{}
	for _, prefix := range []string{recordTables, recordRegions} {
		err := c.b.ListRecords(ctx, prefix, func(key string, _ []byte, _ uint64) error {
			if id, err := strconv.ParseUint(strings.TrimPrefix(key, prefix), 16, 64); err == nil {
				gone[id] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	c.mu.Lock()
	for id := range c.mu.layouts {
		gone[id] = true
	}
	c.mu.Unlock()
	// After all that: the table of each was there before it.
	there, err := c.b.TableIDs(ctx)
	if err != nil {
		return err
	}
	for _, id := range there {
		delete(gone, id)
	}
	for id := range gone {
		if err := c.Remove(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (c *Catalog) forget() {
	c.mu.Lock()
	clear(c.mu.tables)
	c.mu.Unlock()
}

// ErrMoved is what Region returns for a region that is here no more, if it
// ever was: the client is to look it up again.
var ErrMoved = errors.New("region is not here")

// Region returns the region that a message names, with its table, which is nil
// for computed tables.
func (c *Catalog) Region(ctx context.Context, s *pb.RegionSpecifier) (*Region, *Table, error) {
	r, old := c.find(s)
	if r == nil && s.GetType() == pb.RegionSpecifier_REGION_NAME {
		if err := c.learn(ctx, s.GetValue()); err != nil {
			return nil, nil, err
		}
		r, old = c.find(s)
	}
	if r == nil {
		return nil, nil, unknown(s)
	}
	t, err := c.tableOf(ctx, r, recheck)
	if err != nil || t == nil {
		return r, nil, err
	}
	if old {
		if err := c.refresh(ctx, t); err != nil {
			return nil, nil, err
		}
		if r, _ = c.find(s); r == nil {
			return nil, nil, unknown(s)
		}
	}
	return r, t, nil
}

func unknown(s *pb.RegionSpecifier) error { return fmt.Errorf("%w: %q", ErrMoved, s.GetValue()) }

// tableOf returns the table of a region, nil if that is computed, from a record
// that was read at most so long ago. Without table there is no region.
func (c *Catalog) tableOf(ctx context.Context, r *Region, age time.Duration) (*Table, error) {
	if r.Table.System() {
		return nil, nil
	}
	t, err := c.table(ctx, r.Table, age)
	switch {
	case errors.Is(err, fault.NotFound):
		return nil, fmt.Errorf("%w: %v: table %s does not exist", ErrMoved, r, r.Table)
	case err != nil:
		return nil, err
	case t.Schema.ID != r.TableID:
		return nil, fmt.Errorf("%w: %v: table %s was made anew", ErrMoved, r, r.Table)
	case !t.Enabled():
		return nil, fmt.Errorf("%w: %v: table %s is disabled", ErrMoved, r, r.Table)
	}
	return t, nil
}

// RegionNow is Region for a caller that works on the region itself, and asks
// once. It looks at the tablets as they are now, for a name that is not known
// at those of all tables. Another process may have split or merged them a
// moment ago.
func (c *Catalog) RegionNow(ctx context.Context, s *pb.RegionSpecifier) (*Region, *Table, error) {
	r, _ := c.find(s)
	if r != nil && r.Table.System() {
		return r, nil, nil
	}
	if err := c.look(ctx, r, s); err != nil {
		return nil, nil, err
	}
	if r, _ = c.find(s); r == nil {
		return nil, nil, unknown(s)
	}
	t, err := c.tableOf(ctx, r, 0)
	if err != nil {
		return nil, nil, err
	}
	return r, t, nil
}

// look reads the layouts of the tables that may have a region: r as it was last
// known, or nil.
func (c *Catalog) look(ctx context.Context, r *Region, s *pb.RegionSpecifier) error {
	var tables []*Table
	switch {
	case r != nil || s.GetType() == pb.RegionSpecifier_REGION_NAME:
		var name Name
		if r != nil {
			name = r.Table
		} else if name, _ = splitName(s.GetValue()); name.System() {
			return nil
		}
		t, err := c.TableNow(ctx, name)
		if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) {
			return nil
		}
		if err != nil {
			return err
		}
		tables = append(tables, t)
	default: // an encoded name does not say of which table
		namespaces, err := c.Namespaces(ctx)
		if err != nil {
			return err
		}
		for _, ns := range namespaces {
			list, err := c.Tables(ctx, ns)
			if err != nil {
				return err
			}
			tables = append(tables, list...)
		}
	}
	for _, t := range tables {
		if _, err := c.Regions(ctx, t); err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
	}
	return nil
}

// find returns a known region; old says that its table's tablets were not
// looked at for long.
func (c *Catalog) find(s *pb.RegionSpecifier) (r *Region, old bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.GetType() == pb.RegionSpecifier_ENCODED_REGION_NAME {
		if string(s.GetValue()) == metaEncoded {
			return MetaRegion, false
		}
		r = c.mu.byEncoded[string(s.GetValue())]
	} else {
		if string(s.GetValue()) == metaName {
			return MetaRegion, false
		}
		r = c.mu.byName[string(s.GetValue())]
	}
	if r != nil {
		l := c.mu.layouts[r.TableID]
		old = l != nil && time.Since(l.checked) >= relayout
	}
	return r, old
}

// Computed returns the region of a computed table.
func (c *Catalog) Computed(name Name) *Region {
	if name == Meta {
		return MetaRegion
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := NewRegion(name, 0, nil, nil, 1)
	if have := c.mu.byName[string(r.name)]; have != nil {
		return have
	}
	c.mu.byName[string(r.name)], c.mu.byEncoded[r.encoded] = r, r
	return r
}

// Namespaces returns the namespaces that have tables of clients, sorted: the
// default one, and those that were created.
func (c *Catalog) Namespaces(ctx context.Context) ([]string, error) {
	out := []string{DefaultNamespace}
	err := c.b.ListRecords(ctx, RecordNamespaces, func(key string, _ []byte, _ uint64) error {
		if ns := strings.TrimPrefix(key, RecordNamespaces); ns != DefaultNamespace {
			out = append(out, ns)
		}
		return nil
	})
	slices.Sort(out)
	return out, err
}
