package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/locality"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// The rows of the METADATA tablet:
//
//	"s" table u64                     schema
//	"t" table u64 00 end of range     METADATA row of a tablet
//	"t" table u64 01                  the same, of the last tablet of the table
//	"b" backup u64 ...                backup, see there
//	"r" key                           record of the gateway

func schemaKey(table uint64) []byte { return binary.BigEndian.AppendUint64([]byte{'s'}, table) }

func tabletKey(r *metadata.Row) []byte {
	k := binary.BigEndian.AppendUint64([]byte{'t'}, r.Table)
	if len(r.End) == 0 {
		return append(k, 1)
	}
	return append(append(k, 0), r.End...)
}

// metaRows keeps METADATA rows in the METADATA tablet.
type metaRows struct{ s *Store }

// CAS implements metadata.Store.
func (m metaRows) CAS(ctx context.Context, r *metadata.Row) error {
	next := r.Clone()
	next.Version++
	if err := next.Check(); err != nil {
		return errors.Join(err, metadata.ErrNotApplied)
	}
	err := m.s.put(ctx, tabletKey(r), func(old []byte) ([]byte, error) {
		var version uint64
		if old != nil {
			o, err := metadata.Unmarshal(old)
			if err != nil {
				return nil, err
			}
			version = o.Version
		}
		if version != r.Version {
			return nil, fault.New(fault.Fenced, "METADATA row has version %d, not %d", version, r.Version)
		}
		return next.Marshal(), nil
	})
	if err == nil {
		r.Version = next.Version
	}
	return err
}

// loadCatalog reads schemas and METADATA rows, and opens the tablets.
func (s *Store) loadCatalog(ctx context.Context) error {
	err := s.list(ctx, []byte{'s'}, func(key, value []byte) error {
		sch, err := schema.Unmarshal(value)
		if err != nil {
			return fault.New(fault.Corruption, "decode schema %x: %w", key, err)
		}
		t := new(table)
		t.schema.Store(sch)
		s.catalog.byID[sch.ID] = t
		if err := sch.CheckSound(); err != nil {
			s.o.Log.Warn("the rows of a table are not served", "table", sch.Name, "families", sch.Unsound(), "error", err)
		}
		if sch.DeleteTime.IsZero() {
			s.catalog.byName[sch.Name] = t
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read schemas: %w", err)
	}
	var rows []*metadata.Row
	err = s.list(ctx, []byte{'t'}, func(_, value []byte) error {
		r, err := metadata.Unmarshal(value)
		if err == nil {
			rows = append(rows, r)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read METADATA rows: %w", err)
	}
	if rows, err = s.settle(ctx, rows); err != nil {
		return fmt.Errorf("settle METADATA rows: %w", err)
	}
	for _, r := range rows {
		t := s.catalog.byID[r.Table]
		if t == nil {
			// A crash came while the table was made or purged.
			if err := s.forget(ctx, r); err != nil {
				return fmt.Errorf("delete METADATA row: %w", err)
			}
			continue
		}
		s.addTablet(t, tablet.Open(s.env, r, t.schema.Load))
	}
	for _, t := range s.catalog.byID {
		if err := t.check(); err != nil {
			return err
		}
	}
	return s.loadBackups(ctx)
}

// forget deletes a METADATA row.
func (s *Store) forget(ctx context.Context, r *metadata.Row) error {
	return s.put(ctx, tabletKey(r), func([]byte) ([]byte, error) { return nil, nil })
}

// settle finishes or forgets the splits and merges that a crash interrupted. It
// returns the rows as they are then, in the order they came.
func (s *Store) settle(ctx context.Context, rows []*metadata.Row) ([]*metadata.Row, error) {
	var out []*metadata.Row
	for _, r := range rows {
		var last *metadata.Row
		if len(out) > 0 && out[len(out)-1].Table == r.Table {
			last = out[len(out)-1]
		}
		switch op := r.Op; {
		case op == nil:
		case op.Kind == metadata.Split && last != nil && last.Tablet == op.Left:
			_, r = tablet.SplitRows(r)
			if err := s.env.Meta.CAS(ctx, r); err != nil {
				return nil, err
			}
		default:
			if op.Kind == metadata.Merge && last != nil && last.Tablet == op.Left {
				if err := s.forget(ctx, last); err != nil {
					return nil, err
				}
				out = out[:len(out)-1]
			}
			r = r.Clone()
			r.Op = nil
			if err := s.env.Meta.CAS(ctx, r); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// addTablet adds the last tablet of t.
func (s *Store) addTablet(t *table, tt *tablet.Tablet) {
	list := append(slices.Clip(t.list()), tt)
	t.tablets.Store(&list)
	s.catalog.tablets[tt.ID()] = tt
}

// list returns the tablets of t, ascending.
func (t *table) list() []*tablet.Tablet {
	if l := t.tablets.Load(); l != nil {
		return *l
	}
	return nil
}

// check reports a gap or overlap between the tablets (invariant I5).
func (t *table) check() error {
	var ranges []row.Range
	for _, tt := range t.list() {
		ranges = append(ranges, tt.Bounds())
	}
	if err := checkTiles(ranges); err != nil {
		return fmt.Errorf("%s: %w", t.schema.Load().Name, err)
	}
	return nil
}

// checkTiles reports a gap or overlap between the ranges of tablets.
func checkTiles(ranges []row.Range) error {
	var end []byte
	for i, b := range ranges {
		if i > 0 && len(end) == 0 || string(b.Start) != string(end) {
			return fault.New(fault.Corruption, "the tablets do not tile the key space: %q follows %q", b.Start, end)
		}
		end = b.End
	}
	if len(ranges) == 0 || len(end) != 0 {
		return fault.New(fault.Corruption, "the tablets end at %q", end)
	}
	return nil
}

func (s *Store) allTablets() []*tablet.Tablet {
	s.catalog.RLock()
	defer s.catalog.RUnlock()
	return slices.Collect(maps.Values(s.catalog.tablets))
}

// table returns a live table by name.
func (s *Store) table(name string) (*table, error) {
	s.catalog.RLock()
	t := s.catalog.byName[name]
	s.catalog.RUnlock()
	if t == nil {
		return nil, fault.New(fault.NotFound, "Table not found: %s", name)
	}
	return t, nil
}

// index returns the place in list of the tablet that serves key.
func index(list []*tablet.Tablet, key []byte) int {
	if len(list) == 1 {
		return 0
	}
	return sort.Search(len(list), func(i int) bool {
		end := list[i].Bounds().End
		return len(end) == 0 || string(end) > string(key)
	})
}

// serve calls do with the tablet that serves key, again when a split or merge
// has replaced that tablet before it did anything.
func (t *table) serve(key []byte, do func(*tablet.Tablet) error) error {
	for {
		list := t.list()
		err := do(list[index(list, key)])
		if !errors.Is(err, tablet.ErrReplaced) {
			return err
		}
	}
}

// lockAdmin takes the admin lock for who is going to make tablets.
func (s *Store) lockAdmin() error {
	s.admin.Lock()
	if s.stopped {
		s.admin.Unlock()
		return fault.New(fault.Unavailable, "the store is closed")
	}
	return nil
}

// CreateTable implements backend.Tables.
func (s *Store) CreateTable(ctx context.Context, want *schema.Table, splits [][]byte) (*schema.Table, error) {
	if err := s.lockAdmin(); err != nil {
		return nil, err
	}
	defer s.admin.Unlock()
	if _, err := s.table(want.Name); err == nil {
		return nil, fault.New(fault.AlreadyExists, "Table already exists: %s", want.Name)
	}
	sch := want.Clone()
	sch.ID, sch.NextFamily, sch.Version, sch.CreateTime = s.newID(), 0, 1, s.o.Now()
	names := sch.FamilyNames()
	fams := sch.Families
	sch.Families = make(map[string]schema.Family, len(fams))
	for _, n := range names {
		// In the order of names, so that cells come out of a tablet in the order
		// in which they are returned.
		f := fams[n]
		f.Name = n
		sch.AddFamily(f)
	}
	if err := sch.CheckFamilies(nil); err != nil {
		return nil, err
	}
	if err := locality.Check(sch); err != nil {
		return nil, err
	}
	var rows []*metadata.Row
	start := []byte(nil)
	for i := range len(splits) + 1 {
		r := &metadata.Row{Table: sch.ID, Tablet: metadata.TabletID(s.newID()), Start: start,
			MajorTime: sch.CreateTime.Unix()}
		if i < len(splits) {
			r.End, start = splits[i], splits[i]
		}
		rows = append(rows, r)
	}
	if err := s.addTable(ctx, sch, rows); err != nil {
		return nil, err
	}
	return sch, nil
}

// addTable stores a table that is new, with the METADATA rows of its tablets, and
// lets it serve. Its caller holds the admin lock.
func (s *Store) addTable(ctx context.Context, sch *schema.Table, rows []*metadata.Row) error {
	t := new(table)
	t.schema.Store(sch)
	// The tablets first: without a schema they are orphans that the next start
	// removes, so the schema is the commit point.
	for _, r := range rows {
		if err := s.env.Meta.CAS(ctx, r); err != nil {
			return err
		}
	}
	if err := s.storeSchema(ctx, sch); err != nil {
		return err
	}
	s.catalog.Lock()
	defer s.catalog.Unlock()
	for _, r := range rows {
		tt := tablet.Open(s.env, r, t.schema.Load)
		tt.Start()
		s.addTablet(t, tt)
	}
	s.catalog.byID[sch.ID] = t
	s.catalog.byName[sch.Name] = t
	return nil
}

func (s *Store) storeSchema(ctx context.Context, sch *schema.Table) error {
	return s.put(ctx, schemaKey(sch.ID), func([]byte) ([]byte, error) { return sch.Marshal(), nil })
}

// Table implements backend.Tables.
func (s *Store) Table(_ context.Context, name string) (*schema.Table, error) {
	t, err := s.table(name)
	if err != nil {
		return nil, err
	}
	return t.schema.Load(), nil
}

// TableIDs implements backend.Tables.
func (s *Store) TableIDs(context.Context) ([]uint64, error) {
	s.catalog.RLock()
	defer s.catalog.RUnlock()
	return slices.Collect(maps.Keys(s.catalog.byID)), nil
}

// ListTables implements backend.Tables.
func (s *Store) ListTables(_ context.Context, parent string) ([]*schema.Table, error) {
	s.catalog.RLock()
	defer s.catalog.RUnlock()
	var out []*schema.Table
	for name, t := range s.catalog.byName {
		if strings.HasPrefix(name, parent+"/") {
			out = append(out, t.schema.Load())
		}
	}
	slices.SortFunc(out, func(a, b *schema.Table) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// UpdateTable implements backend.Tables. What change makes of locality groups
// does not count: families keep theirs, and new ones go to the default group.
func (s *Store) UpdateTable(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	return s.updateTable(ctx, name, func(sch *schema.Table) error {
		old := sch.Clone()
		if err := change(sch); err != nil {
			return err
		}
		sch.KeepGroups(old)
		return nil
	})
}

func (s *Store) updateTable(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	s.admin.Lock()
	defer s.admin.Unlock()
	t, err := s.table(name)
	if err != nil {
		return nil, err
	}
	sch := t.schema.Load().Clone()
	if err := change(sch); err != nil {
		return nil, err
	}
	sch.Version++
	old := t.schema.Load()
	if err := sch.CheckFamilies(old); err != nil {
		return nil, err
	}
	sch.NoteRules(old)
	if err := s.storeSchema(ctx, sch); err != nil {
		return nil, err
	}
	t.schema.Store(sch)
	return sch, nil
}

// DeleteTable implements backend.Tables.
func (s *Store) DeleteTable(ctx context.Context, name string) error {
	s.admin.Lock()
	defer s.admin.Unlock()
	t, err := s.table(name)
	if err != nil {
		return err
	}
	sch := t.schema.Load().Clone()
	if sch.DeletionProtection {
		return fault.New(fault.FailedPrecondition, "The table %s is protected against deletion.", name)
	}
	sch.DeleteTime = s.o.Now()
	sch.Version++
	if err := s.storeSchema(ctx, sch); err != nil {
		return err
	}
	t.schema.Store(sch)
	s.catalog.Lock()
	defer s.catalog.Unlock()
	delete(s.catalog.byName, name)
	return nil
}

// UndeleteTable implements backend.Tables.
func (s *Store) UndeleteTable(ctx context.Context, name string) (*schema.Table, error) {
	s.admin.Lock()
	defer s.admin.Unlock()
	if _, err := s.table(name); err == nil {
		return nil, fault.New(fault.AlreadyExists, "Table already exists: %s", name)
	}
	// Of several deleted tables of one name the last to be made was the last to
	// be deleted, whatever the clock said.
	var newest *table
	s.catalog.RLock()
	for _, t := range s.catalog.byID {
		if sch := t.schema.Load(); sch.Name == name && s.o.Now().Sub(sch.DeleteTime) < schema.UndeleteWindow &&
			(newest == nil || sch.ID > newest.schema.Load().ID) {
			newest = t
		}
	}
	s.catalog.RUnlock()
	if newest == nil {
		return nil, fault.New(fault.NotFound, "Table not found, or deleted too long ago: %s", name)
	}
	sch := newest.schema.Load().Clone()
	sch.DeleteTime = time.Time{}
	sch.Version++
	if err := s.storeSchema(ctx, sch); err != nil {
		return nil, err
	}
	newest.schema.Store(sch)
	s.catalog.Lock()
	defer s.catalog.Unlock()
	s.catalog.byName[name] = newest
	return sch, nil
}

// purge removes the tables that can no longer be undeleted, and the backups that
// have expired.
func (s *Store) purge(ctx context.Context) {
	// Writers may be waiting for the caller to make room.
	if !s.admin.TryLock() {
		return
	}
	defer s.admin.Unlock()
	s.purgeBackups(ctx)
	s.catalog.RLock()
	var dead []*table
	for _, t := range s.catalog.byID {
		if d := t.schema.Load().DeleteTime; !d.IsZero() && s.o.Now().Sub(d) >= schema.UndeleteWindow {
			dead = append(dead, t)
		}
	}
	s.catalog.RUnlock()
	for _, t := range dead {
		sch := t.schema.Load()
		if err := s.purgeTable(ctx, t); err != nil {
			s.o.Log.Warn("purge table", "table", sch.Name, "error", err)
			return
		}
		s.o.Log.Info("purged deleted table", "table", sch.Name, "deleted", sch.DeleteTime)
	}
}

func (s *Store) purgeTable(ctx context.Context, t *table) error {
	id := t.schema.Load().ID
	// The schema first: from here on the tablets are orphans.
	if err := s.put(ctx, schemaKey(id), func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		return err
	}
	s.catalog.Lock()
	delete(s.catalog.byID, id)
	for _, tt := range t.list() {
		delete(s.catalog.tablets, tt.ID())
	}
	s.catalog.Unlock()
	for _, tt := range t.list() {
		// Closing it lets go of the files, which nobody names any more: without
		// a schema the METADATA row is an orphan.
		tt.Close()
		if err := s.forget(ctx, tt.Row()); err != nil {
			return err
		}
	}
	return nil
}

// SplitTablet splits the tablet of a table that serves key at key; key becomes
// the first row of the right one.
func (s *Store) SplitTablet(ctx context.Context, name string, key []byte) error {
	if err := s.lockAdmin(); err != nil {
		return err
	}
	defer s.admin.Unlock()
	t, err := s.table(name)
	if err != nil {
		return err
	}
	return s.split(ctx, t, t.list()[index(t.list(), key)], key)
}

// SplitKey returns a row key that cuts the tablet of a table that serves key
// into about two halves, or false if there is none.
func (s *Store) SplitKey(ctx context.Context, name string, key []byte) ([]byte, bool, error) {
	t, err := s.table(name)
	if err != nil {
		return nil, false, err
	}
	list := t.list()
	return list[index(list, key)].SplitKey(ctx)
}

// split is SplitTablet for who holds the admin lock.
func (s *Store) split(ctx context.Context, t *table, tt *tablet.Tablet, key []byte) error {
	start := time.Now()
	err := tt.Split(ctx, slices.Clone(key), metadata.TabletID(s.newID()), metadata.TabletID(s.newID()), func(children ...*tablet.Tablet) {
		s.swap(t, []*tablet.Tablet{tt}, children)
	})
	if err == nil {
		s.o.Log.Info("tablet split", "tablet", tt.Name(), "elapsed", time.Since(start))
	}
	return err
}

// MergeTablets merges the tablet of a table that serves key with the one after
// it.
func (s *Store) MergeTablets(ctx context.Context, name string, key []byte) error {
	if err := s.lockAdmin(); err != nil {
		return err
	}
	defer s.admin.Unlock()
	t, err := s.table(name)
	if err != nil {
		return err
	}
	list := t.list()
	at := index(list, key)
	if at+1 == len(list) {
		return fault.New(fault.Invalid, "the tablet of row %q is the last of %s", key, name)
	}
	a, b := list[at], list[at+1]
	return tablet.Merge(ctx, a, b, metadata.TabletID(s.newID()), func(r *metadata.Row) error { return s.forget(ctx, r) },
		func(merged ...*tablet.Tablet) { s.swap(t, []*tablet.Tablet{a, b}, merged) })
}

// swap replaces neighbouring tablets of t.
func (s *Store) swap(t *table, old, by []*tablet.Tablet) {
	s.catalog.Lock()
	defer s.catalog.Unlock()
	list := slices.Clone(t.list())
	at := slices.Index(list, old[0])
	list = slices.Replace(list, at, at+len(old), by...)
	t.tablets.Store(&list)
	for _, tt := range old {
		delete(s.catalog.tablets, tt.ID())
	}
	for _, tt := range by {
		s.catalog.tablets[tt.ID()] = tt
	}
}

// splitLarge splits the tablets that have grown beyond Options.SplitBytes.
func (s *Store) splitLarge(ctx context.Context) {
	s.catalog.RLock()
	tables := slices.Collect(maps.Values(s.catalog.byName))
	s.catalog.RUnlock()
	for _, t := range tables {
		for _, tt := range t.list() {
			if !tt.Large(s.o.SplitBytes) {
				continue
			}
			key, ok, err := tt.SplitKey(ctx)
			if err == nil && ok {
				s.admin.Lock()
				if err = ctx.Err(); err == nil && t.schema.Load().DeleteTime.IsZero() && slices.Contains(t.list(), tt) {
					err = s.split(ctx, t, tt, key)
				}
				s.admin.Unlock()
			}
			if err != nil && ctx.Err() == nil {
				s.o.Log.Warn("split tablet", "tablet", tt.Name(), "error", err)
			}
		}
	}
}

// DropRowRange implements backend.Tables.
func (s *Store) DropRowRange(ctx context.Context, name string, prefix []byte) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	for rest := row.Prefix(prefix); !rest.Empty(); {
		var end []byte
		err := t.serve(rest.Start, func(tt *tablet.Tablet) error {
			end = tt.Bounds().End
			return tt.DropRange(ctx, rest.Intersect(tt.Bounds()))
		})
		if err != nil || len(end) == 0 {
			return err
		}
		rest.Start = end
	}
	return nil
}

// TableBytes implements backend.Tables.
func (s *Store) TableBytes(_ context.Context, name string) (int64, error) {
	t, err := s.table(name)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, tt := range t.list() {
		n += tt.Bytes()
	}
	return n, nil
}
