package catalog

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	cmeta "github.com/trestledb/trestle/cluster/metadata"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// TablesPrefix is where the lock service has the schemas of tables, by id.
const TablesPrefix = "tables/"

// TableKey returns the key of a table's schema.
func TableKey(id uint64) string { return fmt.Sprintf("%s%016x", TablesPrefix, id) }

// A Table is a table's schema as it changes.
type Table struct {
	schema atomic.Pointer[schema.Table]
	// version is that of the item in the lock service.
	version atomic.Int64
	all     *Schemas
}

// Schema returns the newest schema that is known here.
func (t *Table) Schema() *schema.Table { return t.schema.Load() }

// ItemVersion returns the version of the item that holds it.
func (t *Table) ItemVersion() int64 { return t.version.Load() }

// Wait returns once a version of the schema, or a later one, is known.
func (t *Table) Wait(ctx context.Context, version uint64) error {
	if t.schema.Load().Version >= version {
		return nil
	}
	return t.all.wait(ctx, func() bool { return t.schema.Load().Version >= version })
}

// Schemas are the tables of the cluster as the lock service tells of them.
type Schemas struct {
	lock lock.Service

	mu       sync.Mutex
	byID     map[uint64]*Table
	byName   map[string]*Table // live ones
	revision int64
	changed  chan struct{}
}

// WatchSchemas reads all schemas, within ctx, and follows them while life
// lasts.
func WatchSchemas(ctx, life context.Context, l lock.Service) (*Schemas, error) {
	s := &Schemas{lock: l, byID: map[uint64]*Table{}, byName: map[string]*Table{}, changed: make(chan struct{})}
	s.add(cmeta.Schema, 1)
	if err := s.list(ctx); err != nil {
		return nil, fmt.Errorf("read schemas: %w", err)
	}
	go s.follow(life)
	return s, nil
}

func (s *Schemas) list(ctx context.Context) error {
	items, revision, err := s.lock.List(ctx, TablesPrefix)
	if err != nil {
		return err
	}
	seen := map[uint64]bool{cmeta.Table: true}
	for _, i := range items {
		id, err := s.take(i)
		if err != nil {
			return err
		}
		seen[id] = true
	}
	s.mu.Lock()
	for id := range s.byID {
		if !seen[id] {
			s.removeLocked(id)
		}
	}
	s.mu.Unlock()
	s.at(revision)
	return nil
}

func (s *Schemas) take(i lock.Item) (uint64, error) {
	sch, err := schema.Unmarshal(i.Value)
	if err != nil {
		return 0, fault.New(fault.Corruption, "item %s: %w", i.Key, err)
	}
	s.add(sch, i.Version)
	return sch.ID, nil
}

func (s *Schemas) add(sch *schema.Table, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byID[sch.ID]
	if t == nil {
		t = &Table{all: s}
		s.byID[sch.ID] = t
	}
	if version <= t.version.Load() {
		return // an answer to a change of our own came before the event
	}
	t.schema.Store(sch)
	t.version.Store(version)
	if sch.DeleteTime.IsZero() {
		s.byName[sch.Name] = t
	} else if s.byName[sch.Name] == t {
		delete(s.byName, sch.Name)
	}
}

func (s *Schemas) removeLocked(id uint64) {
	if t := s.byID[id]; t != nil {
		if name := t.Schema().Name; s.byName[name] == t {
			delete(s.byName, name)
		}
		delete(s.byID, id)
	}
}

// at notes that everything up to a revision is known.
func (s *Schemas) at(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = max(s.revision, revision)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Schemas) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.lock.Watch(ctx, TablesPrefix, s.Revision(), func(e lock.Event) error {
			if !e.Deleted {
				if _, err := s.take(e.Item); err != nil {
					return err
				}
			} else if id, err := strconv.ParseUint(strings.TrimPrefix(e.Key, TablesPrefix), 16, 64); err == nil {
				s.mu.Lock()
				s.removeLocked(id)
				s.mu.Unlock()
			}
			s.at(e.Version)
			return nil
		})
		for err != nil && ctx.Err() == nil {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			err = s.list(ctx)
		}
	}
}

// Revision returns the revision of the lock service up to which all changes of
// schemas are known.
func (s *Schemas) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// wait returns when done does after some change.
func (s *Schemas) wait(ctx context.Context, done func() bool) error {
	timeout := time.NewTimer(5 * time.Second)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if done() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return fault.New(fault.Unavailable, "a change of the table's schema has not arrived here yet")
		}
	}
}

// Named returns a live table by name, or NotFound.
func (s *Schemas) Named(name string) (*Table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.byName[name]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "Table not found: %s", name)
}

// ByID returns a table, live or deleted, or NotFound.
func (s *Schemas) ByID(id uint64) (*Table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.byID[id]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "there is no table %x", id)
}

// All returns the tables, live and deleted, METADATA excepted.
func (s *Schemas) All() []*Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*Table
	for id, t := range s.byID {
		if id != cmeta.Table {
			out = append(out, t)
		}
	}
	return out
}

// Take makes a change known that the caller has made in the lock service.
func (s *Schemas) Take(i lock.Item) error {
	_, err := s.take(i)
	return err
}

// AppliedPrefix is where servers say up to which revision of the lock service
// they know the schemas of tables.
const AppliedPrefix = "applied/"

// After returns when changes after a revision are known, or with the error of
// ctx. It may return too early.
func (s *Schemas) After(ctx context.Context, revision int64) error {
	s.mu.Lock()
	changed, now := s.changed, s.revision
	s.mu.Unlock()
	if now > revision {
		select {
		case <-time.After(20 * time.Millisecond): // telling of it has failed
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
