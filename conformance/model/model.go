package model

import (
	"context"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// Options of a Backend. The zero value is usable.
type Options struct {
	// Now is the server's clock. Nil means time.Now.
	Now func() time.Time
}

// A Backend keeps tables in memory.
type Backend struct {
	now func() time.Time

	mu struct {
		sync.Mutex
		live    map[string]*table
		deleted []*table // oldest first
		records map[string]record
		backups map[string]*backup
		nextID  uint64
	}
}

// New returns an empty Backend.
func New(o Options) *Backend {
	b := &Backend{now: o.Now}
	if b.now == nil {
		b.now = time.Now
	}
	b.mu.live = map[string]*table{}
	b.mu.records = map[string]record{}
	b.mu.backups = map[string]*backup{}
	b.mu.nextID = 1
	return b
}

// A table is one table with its rows.
type table struct {
	schema *schema.Table
	splits []string
	keys   []string // of rows, ascending
	rows   map[string]cells
	tokens map[string]map[string]time.Time // by row, then token: when it was seen
	stream stream
	last   cell.Seq // given to a change
}

// cells is the content of one row. It is never changed once it is in a table,
// so a reader keeps it without a lock.
type cells map[column]versions

type column struct {
	family    cell.FamilyID
	qualifier string
}

// versions are the values of a column by timestamp.
type versions map[int64][]byte

func (c cells) clone() cells {
	d := make(cells, len(c))
	for col, vs := range c {
		w := make(versions, len(vs))
		for ts, v := range vs {
			w[ts] = v
		}
		d[col] = w
	}
	return d
}

// set replaces a row. One without cells is not a row.
func (t *table) set(key string, c cells) {
	i, found := slices.BinarySearch(t.keys, key)
	switch {
	case len(c) == 0 && found:
		t.keys = slices.Delete(t.keys, i, i+1)
		delete(t.rows, key)
	case len(c) > 0:
		if !found {
			t.keys = slices.Insert(t.keys, i, key)
		}
		t.rows[key] = c
	}
}

func (t *table) bytes(key string) (n int64) {
	for col, vs := range t.rows[key] {
		for _, v := range vs {
			n += int64(len(key) + len(col.qualifier) + 8 + len(v))
		}
	}
	return n
}

func (b *Backend) tableLocked(name string) (*table, error) {
	if t := b.mu.live[name]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "Table not found: %s", name)
}

func (b *Backend) lockedTable(ctx context.Context, name string) (t *table, unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	if t, err = b.tableLocked(name); err != nil {
		b.mu.Unlock()
		return nil, nil, err
	}
	return t, b.mu.Unlock, nil
}

// CreateTable implements backend.Tables.
func (b *Backend) CreateTable(ctx context.Context, want *schema.Table, splits [][]byte) (*schema.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.live[want.Name] != nil {
		return nil, fault.New(fault.AlreadyExists, "Table already exists: %s", want.Name)
	}
	s := want.Clone()
	s.ID, s.Version, s.CreateTime, s.DeleteTime = b.mu.nextID, 1, b.now(), time.Time{}
	b.mu.nextID++
	if s.Granularity == 0 {
		s.Granularity = 1000
	}
	s.NextFamily, s.Families = 1, map[string]schema.Family{}
	for _, name := range want.FamilyNames() {
		f := want.Families[name]
		f.Name, f.GC = name, f.GC.Clone()
		s.AddFamily(f)
	}
	if err := s.CheckFamilies(nil); err != nil {
		return nil, err
	}
	t := &table{schema: s, rows: map[string]cells{}, tokens: map[string]map[string]time.Time{}}
	for _, k := range splits {
		t.splits = append(t.splits, string(k))
	}
	b.mu.live[s.Name] = t
	return s.Clone(), nil
}

// Table implements backend.Tables.
func (b *Backend) Table(ctx context.Context, name string) (*schema.Table, error) {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return t.schema.Clone(), nil
}

// ListTables implements backend.Tables.
func (b *Backend) ListTables(ctx context.Context, parent string) ([]*schema.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*schema.Table
	for name, t := range b.mu.live {
		if strings.HasPrefix(name, parent+"/") {
			out = append(out, t.schema.Clone())
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// TableIDs implements backend.Tables.
func (b *Backend) TableIDs(ctx context.Context) ([]uint64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []uint64
	for _, t := range b.mu.live {
		ids = append(ids, t.schema.ID)
	}
	for _, t := range b.mu.deleted {
		if !b.now().After(t.schema.DeleteTime.Add(schema.UndeleteWindow)) {
			ids = append(ids, t.schema.ID)
		}
	}
	return ids, nil
}

// UpdateTable implements backend.Tables.
func (b *Backend) UpdateTable(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := t.schema.Clone()
	if err := change(s); err != nil {
		return nil, err
	}
	if err := s.CheckFamilies(t.schema); err != nil {
		return nil, err
	}
	kept := map[cell.FamilyID]bool{}
	for _, f := range s.Families {
		kept[f.ID] = true
	}
	for _, f := range t.schema.Families {
		if !kept[f.ID] && t.schema.DeletionProtection && s.DeletionProtection {
			return nil, fault.New(fault.FailedPrecondition,
				"Cannot delete column family %s of %s: deletion protection is on", f.Name, name)
		}
	}
	s.Version = t.schema.Version + 1
	old := t.schema
	t.schema = s
	t.streamChanged(old)
	for _, key := range slices.Clone(t.keys) {
		c := t.rows[key].clone()
		for col := range c {
			if !kept[col.family] {
				delete(c, col)
			}
		}
		t.set(key, c)
	}
	return s.Clone(), nil
}

// DeleteTable implements backend.Tables.
func (b *Backend) DeleteTable(ctx context.Context, name string) error {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if t.schema.DeletionProtection {
		return fault.New(fault.FailedPrecondition, "Cannot delete table %s: deletion protection is on", name)
	}
	t.schema = t.schema.Clone()
	t.schema.DeleteTime = b.now()
	t.schema.Version++
	delete(b.mu.live, name)
	t.woken()
	b.mu.deleted = append(b.mu.deleted, t)
	return nil
}

// UndeleteTable implements backend.Tables.
func (b *Backend) UndeleteTable(ctx context.Context, name string) (*schema.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.mu.deleted) - 1; i >= 0; i-- {
		t := b.mu.deleted[i]
		if t.schema.Name != name || b.now().After(t.schema.DeleteTime.Add(schema.UndeleteWindow)) {
			continue
		}
		if b.mu.live[name] != nil {
			return nil, fault.New(fault.AlreadyExists, "Table already exists: %s", name)
		}
		t.schema = t.schema.Clone()
		t.schema.DeleteTime = time.Time{}
		t.schema.Version++
		b.mu.deleted = slices.Delete(b.mu.deleted, i, i+1)
		b.mu.live[name] = t
		return t.schema.Clone(), nil
	}
	return nil, fault.New(fault.NotFound, "Deleted table not found: %s", name)
}

// DropRowRange implements backend.Tables.
func (b *Backend) DropRowRange(ctx context.Context, name string, prefix []byte) error {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	t.dropRows(string(prefix), b.now())
	return nil
}

// TableBytes implements backend.Tables.
func (b *Backend) TableBytes(ctx context.Context, name string) (n int64, err error) {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return 0, err
	}
	defer unlock()
	for _, key := range t.keys {
		n += t.bytes(key)
	}
	return n, nil
}
