package metastore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A Store reads and changes METADATA rows.
type Store struct {
	lock lock.Service
	dial rpc.Dialer
	// master is what Assignment.Master of the rows that it changes is set to; 0
	// leaves it.
	master int64
	// ended, if not nil, is closed when no METADATA tablet will be served any more.
	ended <-chan struct{}
	// maxWait is how long an unavailable METADATA tablet is asked for; 0: until
	// the context ends.
	maxWait time.Duration

	mu    sync.Mutex
	roots []*metadata.Row // of the METADATA tablets, ascending; nil if unknown

	// RootReads counts lists of the METADATA tablets, and Reads calls to them. Changes
	// counts attempts to change a row, and Conflicts those that found another version.
	RootReads, Reads, Changes, Conflicts atomic.Int64
}

// New returns the METADATA of the cluster of a lock service.
func New(l lock.Service, d rpc.Dialer) *Store { return &Store{lock: l, dial: d} }

// Until returns a Store that waits for no METADATA tablet once ended is closed,
// as by the end of the only tablet server there is.
func (s *Store) Until(ended <-chan struct{}) *Store {
	return &Store{lock: s.lock, dial: s.dial, master: s.master, maxWait: s.maxWait, ended: ended}
}

// ForMaster returns a Store that changes rows on behalf of the master of an epoch. It
// refuses to change a row that a later master has changed. It does not wait for a METADATA
// tablet that is not served, since the master may be the one to assign it. The methods
// return Unavailable then; CAS and Delete may not know what became of the change.
func (s *Store) ForMaster(epoch int64) *Store {
	return &Store{lock: s.lock, dial: s.dial, master: epoch, maxWait: 500 * time.Millisecond, ended: s.ended}
}

var (
	_ metadata.Store   = (*Store)(nil)
	_ metadata.Retirer = (*Store)(nil)
)

// rootRows returns the rows of the METADATA tablets, ascending; none while the
// cluster has none.
func (s *Store) rootRows(ctx context.Context) ([]*metadata.Row, error) {
	s.mu.Lock()
	roots := s.roots
	s.mu.Unlock()
	if roots != nil {
		return roots, nil
	}
	s.RootReads.Add(1)
	items, _, err := s.lock.List(ctx, RootPrefix)
	if err != nil {
		return nil, err
	}
	for _, i := range items {
		if roots, err = appendRoot(roots, i.Value); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.roots = roots
	s.mu.Unlock()
	return roots, nil
}

// appendRoot adds the row that an item holds, unless it was retired.
func appendRoot(roots []*metadata.Row, value []byte) ([]*metadata.Row, error) {
	if _, ok := retiredVersion(value); ok {
		return roots, nil
	}
	r, err := metadata.Unmarshal(value)
	return append(roots, r), err
}

// RootsOf returns the rows of METADATA tablets, ascending, that are among items
// of the lock service.
func RootsOf(items map[string][]byte) (roots []*metadata.Row, err error) {
	for _, key := range slices.Sorted(maps.Keys(items)) {
		if !strings.HasPrefix(key, RootPrefix) {
			continue
		}
		if roots, err = appendRoot(roots, items[key]); err != nil {
			return nil, err
		}
	}
	return roots, nil
}

// invalidateRoots makes the next call ask the lock service again.
func (s *Store) invalidateRoots() {
	s.mu.Lock()
	s.roots = nil
	s.mu.Unlock()
}

// backoff waits between two attempts.
func (s *Store) backoff(ctx context.Context, attempt int) error {
	return rpc.Backoff(ctx, s.ended, attempt, 200*time.Millisecond)
}

// withTablet calls do with the server of the METADATA tablet that holds key, again
// until it is served or ctx ends. An error of do that is not Unavailable ends
// it; lost says that an answer was lost before.
func (s *Store) withTablet(ctx context.Context, key []byte, do func(rpc.TabletServer, rpc.Target, row.Range) error) error {
	start := time.Now()
	for attempt := 0; ; attempt++ {
		err := s.try(ctx, key, do)
		if err == nil || ctx.Err() != nil || !errors.Is(err, fault.Unavailable) || s.timedOut(start) {
			return err
		}
		s.invalidateRoots()
		if perr := s.backoff(ctx, attempt); perr != nil {
			return err
		}
	}
}

// timedOut tells whether something has been tried for long enough.
func (s *Store) timedOut(start time.Time) bool {
	return s.maxWait > 0 && time.Since(start) > s.maxWait
}

func (s *Store) try(ctx context.Context, key []byte, do func(rpc.TabletServer, rpc.Target, row.Range) error) error {
	roots, err := s.rootRows(ctx)
	if err != nil {
		return err
	}
	i := sort.Search(len(roots), func(i int) bool { return len(roots[i].End) == 0 || bytes.Compare(roots[i].End, key) > 0 })
	if i == len(roots) {
		return fault.New(fault.Unavailable, "the cluster has no METADATA tablet for %q yet", key)
	}
	r := roots[i]
	a := r.Assignment
	if a == nil || a.State != metadata.Open {
		return fault.New(fault.Unavailable, "METADATA tablet %v is not served at the moment", r.Tablet)
	}
	s.Reads.Add(1)
	return do(s.dial.Dial(a.Addr), rpc.Target{Tablet: r.Tablet, Schema: Schema.Version}, row.Range{Start: r.Start, End: r.End})
}

// Get returns the row of a key, or NotFound.
func (s *Store) Get(ctx context.Context, k rpc.TabletKey) (*metadata.Row, error) {
	if k.Table == Table {
		r, _, _, err := s.getRoot(ctx, k)
		return r, err
	}
	key := Key(k)
	var found *metadata.Row
	err := s.withTablet(ctx, key, func(t rpc.TabletServer, at rpc.Target, _ row.Range) error {
		found = nil
		_, _, err := t.ReadRows(ctx, at, &rpc.Read{Ranges: []row.Range{row.Single(key)}, Filter: LiveRows}, &rowReader{each: func(r *metadata.Row) error {
			found = r
			return nil
		}})
		return err
	})
	if err == nil && found == nil {
		err = fault.New(fault.NotFound, "there is no METADATA row of table %d that ends at %q", k.Table, k.End)
	}
	return found, err
}

// getRoot returns the row of a METADATA tablet, NotFound if there is none or it was
// retired. In any case it returns the versions of the key and of its item, 0 if there is
// no item.
func (s *Store) getRoot(ctx context.Context, k rpc.TabletKey) (r *metadata.Row, version uint64, item int64, err error) {
	i, err := s.lock.Get(ctx, rootKey(k))
	if err != nil {
		return nil, 0, 0, err
	}
	if v, ok := retiredVersion(i.Value); ok {
		return nil, v, i.Version, fault.New(fault.NotFound, "there is no METADATA tablet that ends at %q any more", k.End)
	}
	if r, err = metadata.Unmarshal(i.Value); err != nil {
		return nil, 0, 0, err
	}
	return r, r.Version, i.Version, nil
}

// retiredVersion returns the version in the item of a METADATA tablet's row if that was
// retired. Such an item holds the version alone, and no row is as short.
func retiredVersion(value []byte) (uint64, bool) {
	if len(value) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(value), true
}

// Lookup returns the rows of the tablet that holds a row of a table and of up
// to n-1 tablets after it. Unavailable if there is none: a tablet is being
// split or merged.
func (s *Store) Lookup(ctx context.Context, table uint64, key []byte, n int) ([]*metadata.Row, error) {
	if table == Table {
		s.invalidateRoots()
		roots, err := s.rootRows(ctx)
		if err != nil {
			return nil, err
		}
		i := sort.Search(len(roots), func(i int) bool { return len(roots[i].End) == 0 || bytes.Compare(roots[i].End, key) > 0 })
		return roots[i:], nil
	}
	var rows []*metadata.Row
	// The rows of the tablets that end after key; their keys begin at after(key).
	want := row.Range{Start: after(table, key), End: Key(rpc.TabletKey{Table: table + 1, End: []byte{0}})}
	want.End = want.End[:8]
	for rows == nil {
		err := s.withTablet(ctx, want.Start, func(t rpc.TabletServer, at rpc.Target, within row.Range) error {
			rows = nil
			part := want.Intersect(within)
			if part.Empty() {
				return nil
			}
			_, _, err := t.ReadRows(ctx, at, &rpc.Read{Ranges: []row.Range{part}, Limit: int64(n), Filter: LiveRows}, &rowReader{each: func(r *metadata.Row) error {
				rows = append(rows, r)
				return nil
			}})
			if err == nil && rows == nil {
				if want.Start = within.End; len(within.End) == 0 || bytes.Compare(within.End, want.End) >= 0 {
					return fault.New(fault.NotFound, "table %d has no tablet for row %q", table, key)
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// Scan calls each with the METADATA rows of all tables but METADATA itself, in
// order of their keys, and with none twice.
func (s *Store) Scan(ctx context.Context, each func(*metadata.Row) error) error {
	return s.scan(ctx, row.All, each)
}

// ScanWithin is Scan of the rows whose keys are in a range.
func (s *Store) ScanWithin(ctx context.Context, keys row.Range, each func(*metadata.Row) error) error {
	return s.scan(ctx, keys, each)
}

// ScanTable is Scan of the rows of one table.
func (s *Store) ScanTable(ctx context.Context, table uint64, each func(*metadata.Row) error) error {
	return s.scan(ctx, row.Range{Start: binary.BigEndian.AppendUint64(nil, table), End: binary.BigEndian.AppendUint64(nil, table+1)}, each)
}

func (s *Store) scan(ctx context.Context, rest row.Range, each func(*metadata.Row) error) error {
	for {
		var end []byte
		err := s.withTablet(ctx, rest.Start, func(t rpc.TabletServer, at rpc.Target, within row.Range) error {
			if end = within.End; len(end) > 0 && bytes.Compare(end, rest.Start) <= 0 {
				end = rest.Start // the tablet was split, and an earlier attempt has come further
				return nil
			}
			for left := []row.Range{rest.Intersect(within)}; len(left) > 0; {
				var err error
				left, _, err = t.ReadRows(ctx, at, &rpc.Read{Ranges: left, Filter: LiveRows}, &rowReader{each: func(r *metadata.Row) error {
					rest.Start = row.Successor(Key(rpc.TabletKey{Table: r.Table, End: r.End}))
					return each(r)
				}})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		rest.Start = end
		if len(end) == 0 || rest.Empty() {
			return nil
		}
	}
}

// Roots returns the rows of the METADATA tablets, as they are now.
func (s *Store) Roots(ctx context.Context) ([]*metadata.Row, error) {
	s.invalidateRoots()
	return s.rootRows(ctx)
}

// CAS implements metadata.Store. It returns when it is known whether the row
// was changed, or when ctx ends.
func (s *Store) CAS(ctx context.Context, r *metadata.Row) error {
	next := r.Clone()
	next.Version++
	if s.master != 0 {
		a := metadata.Assignment{}
		if r.Assignment != nil {
			a = *r.Assignment
		}
		if a.Master > s.master {
			return errors.Join(fault.New(fault.Fenced, "master %d was deposed by %d", s.master, a.Master), metadata.ErrNotApplied)
		}
		a.Master = s.master
		next.Assignment = &a
	}
	if err := next.Check(); err != nil {
		return errors.Join(err, metadata.ErrNotApplied)
	}
	k := rpc.TabletKey{Table: r.Table, End: r.End}
	if err := s.change(ctx, k, r.Version, change{next: next}); err != nil {
		return err
	}
	r.Version, r.Assignment = next.Version, next.Assignment
	return nil
}

// Delete removes the row of a tablet, if it is still as it was when r was read.
// A row of the same key can be made again, with versions from the beginning: it
// is for tables that are gone for good.
func (s *Store) Delete(ctx context.Context, r *metadata.Row) error {
	return s.change(ctx, rpc.TabletKey{Table: r.Table, End: r.End}, r.Version, change{kind: remove})
}

// Retire removes the row of a tablet whose rows others serve from now on, if it is still
// as it was when r was read. The key's version stays and goes on growing, so an earlier
// change that arrives late changes nothing.
func (s *Store) Retire(ctx context.Context, r *metadata.Row) error {
	return s.change(ctx, rpc.TabletKey{Table: r.Table, End: r.End}, r.Version, change{kind: retire})
}

// RetiredVersion implements metadata.Retirer.
func (s *Store) RetiredVersion(ctx context.Context, table uint64, end []byte) (version uint64, err error) {
	k := rpc.TabletKey{Table: table, End: end}
	if table == Table {
		_, version, _, err := s.getRoot(ctx, k)
		if errors.Is(err, fault.NotFound) {
			err = nil
		}
		return version, err
	}
	key := Key(k)
	err = s.withTablet(ctx, key, func(t rpc.TabletServer, at rpc.Target, _ row.Range) error {
		w := new(versionReader)
		_, _, err := t.ReadRows(ctx, at, &rpc.Read{Ranges: []row.Range{row.Single(key)}}, w)
		version = w.version
		return err
	})
	return version, err
}

// A change is the new state of a row.
type change struct {
	kind changeKind
	next *metadata.Row // to put
}

type changeKind int

const (
	put changeKind = iota
	remove
	retire
)

// errVersion is wrapped by the error of an attempt that found another version.
var errVersion = fault.New(fault.Fenced, "the METADATA row has another version")

// change changes the row of k, if its version is version.
func (s *Store) change(ctx context.Context, k rpc.TabletKey, version uint64, c change) error {
	start := time.Now()
	unsure := false // whether an earlier attempt may have been carried out
	for attempt := 0; ; attempt++ {
		s.Changes.Add(1)
		err := s.attempt(ctx, k, version, c)
		if err == nil {
			return nil
		}
		if errors.Is(err, errVersion) {
			s.Conflicts.Add(1)
		}
		if errors.Is(err, errVersion) && unsure {
			// It may be our own change that is in the way.
			now, gerr := s.Get(ctx, k)
			switch {
			case gerr == nil && c.kind == put && bytes.Equal(now.Marshal(), c.next.Marshal()):
				return nil
			case c.kind != put && errors.Is(gerr, fault.NotFound):
				return nil
			case gerr != nil && !errors.Is(gerr, fault.NotFound):
				return gerr
			}
			return err
		}
		if !errors.Is(err, fault.Unavailable) && ctx.Err() == nil {
			if !unsure {
				err = errors.Join(err, metadata.ErrNotApplied)
			}
			return err
		}
		unsure = unsure || !errors.Is(err, rpc.ErrNotServing)
		s.invalidateRoots()
		if s.timedOut(start) || s.backoff(ctx, attempt) != nil {
			if !unsure {
				err = errors.Join(err, metadata.ErrNotApplied)
			}
			return err
		}
	}
}

func (s *Store) attempt(ctx context.Context, k rpc.TabletKey, version uint64, c change) error {
	if k.Table == Table {
		return s.attemptRoot(ctx, k, version, c)
	}
	key := Key(k)
	return s.try(ctx, key, func(t rpc.TabletServer, at rpc.Target, _ row.Range) error {
		var muts []row.Mutation
		switch c.kind {
		case remove:
			muts = []row.Mutation{{Op: row.DeleteRow}}
		case retire:
			muts = []row.Mutation{
				{Op: row.DeleteRow},
				{Op: row.SetCell, Family: family, Qualifier: columnVersion, Value: versionValue(version + 1)},
			}
		default:
			muts = []row.Mutation{
				{Op: row.SetCell, Family: family, Qualifier: columnRow, Value: c.next.Marshal()},
				{Op: row.SetCell, Family: family, Qualifier: columnVersion, Value: versionValue(c.next.Version)},
			}
		}
		then, otherwise := muts, []row.Mutation(nil)
		predicate := filterVersion(version)
		if version == 0 {
			then, otherwise = nil, muts
		}
		matched, err := t.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
		if err == nil && matched != (version != 0) {
			err = fmt.Errorf("METADATA row %q of table %d, version %d: %w", k.End, k.Table, version, errVersion)
		}
		return err
	})
}

func (s *Store) attemptRoot(ctx context.Context, k rpc.TabletKey, version uint64, c change) error {
	_, now, item, err := s.getRoot(ctx, k)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	fenced := fmt.Errorf("METADATA row %q of the METADATA table, version %d: %w", k.End, version, errVersion)
	if now != version {
		return fenced
	}
	switch c.kind {
	case remove:
		err = s.lock.Delete(ctx, rootKey(k), item)
	case retire:
		_, err = s.lock.Put(ctx, rootKey(k), versionValue(version+1), item)
	default:
		_, err = s.lock.Put(ctx, rootKey(k), c.next.Marshal(), item)
	}
	if errors.Is(err, fault.Aborted) {
		return fenced
	}
	return err
}

// filterVersion passes something if the row has that version; for 0, if it is
// there.
func filterVersion(version uint64) *filter.Node {
	if version == 0 {
		return &filter.Node{Op: filter.CellsPerRowLimit, N: 1}
	}
	v := versionValue(version)
	column := filter.Bound{Key: columnVersion, Set: true}
	value := filter.Bound{Key: v, Set: true}
	return &filter.Node{Op: filter.Chain, Children: []*filter.Node{
		{Op: filter.ColumnRange, Family: family, Start: column, End: column},
		{Op: filter.CellsPerColumnLimit, N: 1},
		{Op: filter.ValueRange, Start: value, End: value},
	}}
}

// LiveRows passes of each row what describes its tablet: nothing of a row that was
// retired.
var LiveRows = &filter.Node{Op: filter.ColumnRange, Family: family, Start: filter.Bound{Key: columnRow, Set: true}, End: filter.Bound{Key: columnRow, Set: true}}

// A versionReader takes the version of a row, retired or not.
type versionReader struct {
	rowReader
	version uint64
}

// Cell implements scan.Writer.
func (w *versionReader) Cell(c *row.Cell) {
	if w.version == 0 && bytes.Equal(c.Qualifier, columnVersion) && len(c.Value) == 8 {
		w.version = binary.BigEndian.Uint64(c.Value)
	}
}

// EndRow implements scan.Writer.
func (w *versionReader) EndRow() (bool, error) { return false, nil }

// A rowReader takes METADATA rows.
type rowReader struct {
	each func(*metadata.Row) error
	row  *metadata.Row
	err  error
}

// StartRow implements scan.Writer.
func (w *rowReader) StartRow([]byte) { w.row = nil }

// Cell implements scan.Writer.
func (w *rowReader) Cell(c *row.Cell) {
	if w.row == nil && bytes.Equal(c.Qualifier, columnRow) && w.err == nil {
		w.row, w.err = metadata.Unmarshal(slices.Clone(c.Value))
	}
}

// EndRow implements scan.Writer.
func (w *rowReader) EndRow() (bool, error) {
	if w.err != nil {
		return false, w.err
	}
	if w.row == nil {
		return false, corrupt("a METADATA row has no column %s", columnRow)
	}
	return false, w.each(w.row)
}

// Scanned implements scan.Writer.
func (w *rowReader) Scanned([]byte) {}

// Flush implements scan.Writer.
func (w *rowReader) Flush() error { return nil }

var _ scan.Writer = (*rowReader)(nil)
