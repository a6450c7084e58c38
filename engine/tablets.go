package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/locality"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// MetadataTable is the name by which an operator speaks of the METADATA tablet.
const MetadataTable = "METADATA"

// fullName returns the name of the table that an operator means: its full name,
// or the last part of it if that is the only such table.
func (s *Store) fullName(name string) (string, error) {
	s.catalog.RLock()
	defer s.catalog.RUnlock()
	if s.catalog.byName[name] != nil || name == MetadataTable {
		return name, nil
	}
	return locality.FullName(name, maps.Keys(s.catalog.byName))
}

// Tablets describes the tablets of a table, in the order of rows; of all tables
// and of METADATA if name is empty.
func (s *Store) Tablets(_ context.Context, name string) ([]tablet.Info, error) {
	if name != "" {
		var err error
		if name, err = s.fullName(name); err != nil {
			return nil, err
		}
	}
	now := s.o.Now()
	type named struct {
		name string
		list []*tablet.Tablet
	}
	var tables []named
	s.catalog.RLock()
	for full, t := range s.catalog.byName {
		if name == "" || name == full {
			tables = append(tables, named{full, t.list()})
		}
	}
	s.catalog.RUnlock()
	slices.SortFunc(tables, func(a, b named) int { return strings.Compare(a.name, b.name) })
	if name == "" || name == MetadataTable {
		tables = append(tables, named{MetadataTable, []*tablet.Tablet{s.meta}})
	}
	var out []tablet.Info
	for _, t := range tables {
		for _, tt := range t.list {
			state, ok := tt.State()
			if !ok {
				continue // split or merged a moment ago
			}
			info := tablet.Info{Table: t.name, Tablet: tt.ID(), Rows: tt.Bounds(), State: state, Load: tt.Load(now)}
			if pos, ok := tt.RedoPoint(); ok {
				info.Redo = pos.String()
			}
			out = append(out, info)
		}
	}
	return out, nil
}

// SplitAt and MergeAt are SplitTablet and MergeTablets for an operator, who may
// give the last part of a table's name.
func (s *Store) SplitAt(ctx context.Context, name string, key []byte) error {
	name, err := s.userTable(name)
	if err != nil {
		return err
	}
	return s.SplitTablet(ctx, name, key)
}

// MergeAt merges the tablet that serves key with the one after it.
func (s *Store) MergeAt(ctx context.Context, name string, key []byte) error {
	name, err := s.userTable(name)
	if err != nil {
		return err
	}
	return s.MergeTablets(ctx, name, key)
}

// userTable is fullName of anything but METADATA.
func (s *Store) userTable(name string) (string, error) {
	name, err := s.fullName(name)
	if err == nil && name == MetadataTable {
		err = fault.New(fault.FailedPrecondition, "METADATA is one tablet, and stays one")
	}
	return name, err
}

// eachTablet calls do for every tablet of a table that may serve a row of rows,
// in order. A tablet that is split or merged before do did anything is looked up
// again.
func (s *Store) eachTablet(ctx context.Context, name string, rows row.Range, do func(*tablet.Tablet) error) error {
	name, err := s.fullName(name)
	if err != nil {
		return err
	}
	if name == MetadataTable {
		return do(s.meta)
	}
	t, err := s.table(name)
	if err != nil {
		return err
	}
	for key := rows.Start; ; {
		var end []byte
		err := t.serve(key, func(tt *tablet.Tablet) error {
			end = tt.Bounds().End
			return do(tt)
		})
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(end) == 0 || len(rows.End) > 0 && string(end) >= string(rows.End) {
			return nil
		}
		key = end
	}
}

// CompactTablets does a major compaction of the tablets of a table that serve
// rows, memtables included, one after the other. report, if set, is called about
// ten times a second with how many bytes, of how many, have been compacted; both
// are estimates that may change.
func (s *Store) CompactTablets(ctx context.Context, name string, rows row.Range, report func(done, total int64)) error {
	if report == nil {
		report = func(int64, int64) {}
	}
	var total int64
	if err := s.eachTablet(ctx, name, rows, func(tt *tablet.Tablet) error { total += tt.Bytes(); return nil }); err != nil {
		return err
	}
	report(0, total)
	var before int64
	err := s.eachTablet(ctx, name, rows, func(tt *tablet.Tablet) error {
		size := tt.Bytes()
		done := make(chan error, 1)
		go func() { done <- tt.CompactMajor(ctx) }()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case err := <-done:
				before += size
				if err == nil {
					report(min(before, total), total)
				}
				return err
			case <-tick.C:
				if read, of := tt.Progress(); of > 0 {
					report(min(before+int64(float64(read)/float64(of)*float64(size)), total), total)
				}
			}
		}
	})
	if err == nil {
		report(total, total)
	}
	return err
}

// FlushTablets writes the memtables of the tablets of a table that serve rows to
// SSTables.
func (s *Store) FlushTablets(ctx context.Context, name string, rows row.Range) error {
	err := s.eachTablet(ctx, name, rows, func(tt *tablet.Tablet) error { return s.flush(ctx, tt) })
	s.work.Trim()
	s.metaWork.Trim()
	return err
}

// VerifyTablets reads the SSTables of the tablets of a table that serve rows
// from storage and checks their checksums. It calls damaged for each that is
// damaged, and report after each with how many bytes, of about how many, have
// been read. Tablets that are split or merged meanwhile may be read twice.
func (s *Store) VerifyTablets(ctx context.Context, name string, rows row.Range, damaged func(tablet.ObjectDamage), report func(done, total int64)) error {
	var total, done int64
	err := s.eachTablet(ctx, name, rows, func(tt *tablet.Tablet) error {
		for _, f := range tt.Row().Files {
			total += f.Size
		}
		return nil
	})
	if err != nil {
		return err
	}
	report(0, total)
	full, err := s.fullName(name)
	if err != nil {
		return err
	}
	return s.eachTablet(ctx, name, rows, func(tt *tablet.Tablet) error {
		return tt.Verify(ctx, func(object string, bytes int64, err error) error {
			switch {
			case fault.KindOf(err) == fault.Corruption:
				damaged(tablet.ObjectDamage{Table: full, Tablet: tt.ID(), Rows: tt.Bounds(), Object: object, Err: err})
			case err != nil:
				return err
			}
			done += bytes
			report(min(done, total), total)
			return nil
		})
	})
}

// DropDamaged forgets a damaged SSTable of a table, in every tablet that names
// it: see tablet.Tablet.DropDamaged.
func (s *Store) DropDamaged(ctx context.Context, name, object string) (tablet.Loss, error) {
	var loss tablet.Loss
	name, err := s.userTable(name)
	if err != nil {
		return loss, err
	}
	found := false
	err = s.eachTablet(ctx, name, row.All, func(tt *tablet.Tablet) error {
		l, err := tt.DropDamaged(ctx, object)
		if fault.KindOf(err) == fault.NotFound {
			return nil // of another tablet
		}
		if err == nil {
			loss, found = l, true
		}
		return err
	})
	if err == nil && !found {
		err = fault.New(fault.NotFound, "no tablet of %s has an SSTable %s", name, object)
	}
	return loss, err
}

// Damage returns the SSTables that reads since the start found damaged and that
// are still in use, by tablet and object.
func (s *Store) Damage() []tablet.TableDamage {
	met := append(s.env.Damage(), s.metaEnv.Damage()...)
	if len(met) == 0 {
		return nil
	}
	s.catalog.RLock()
	defer s.catalog.RUnlock()
	tablets := []*tablet.Tablet{s.meta}
	for _, tt := range s.catalog.tablets {
		tablets = append(tablets, tt)
	}
	return tablet.DamageOf(met, tablets, func(tt *tablet.Tablet) string {
		if tt == s.meta {
			return MetadataTable
		}
		if t := s.catalog.byID[tt.Row().Table]; t != nil {
			return t.schema.Load().Name
		}
		return ""
	})
}
