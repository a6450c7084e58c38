package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// TablesPrefix is where the lock service has the schemas of tables, by name. All tables of
// one name, the live one and those that can be undeleted, are one item. So one
// compare-and-set decides which of them has the name.
const TablesPrefix = "tables/"

// A Name is the value of such an item: the tables of one name.
type Name []Entry

// An Entry is one table of a name. It is live, deleted (DeleteTime is set), or
// Pending.
//
// Stored, a pending table is a deleted one of version 0, which no other table has.
type Entry struct {
	*schema.Table
	// Pending says that the table is being created: its METADATA rows may be there,
	// and count as used. Its creator replaces the entry by the live table, unless the
	// master has removed it, with its rows, after master.Options.MakeLimit.
	Pending bool
}

// stagedPrefix begins the names of staged tables.
const stagedPrefix = "restores/"

// StagedName returns the name of a staged table: one that is served like others while it
// is brought to a time, and that no client of an API can name. It is live, and gives a
// sign of life by a new version. The master removes it when it has given none for
// master.Options.MakeLimit.
func StagedName(id uint64) string { return fmt.Sprintf("%s%016x", stagedPrefix, id) }

// IsStaged tells whether a table's name is that of a staged one.
func IsStaged(name string) bool { return strings.HasPrefix(name, stagedPrefix) }

// NewPending returns the entry of a table that is about to be created.
func NewPending(t *schema.Table, now time.Time) Entry {
	t = t.Clone()
	t.Version, t.DeleteTime = 0, now
	return Entry{Table: t, Pending: true}
}

// MarshalJSON implements json.Marshaler.
func (e Entry) MarshalJSON() ([]byte, error) {
	if e.Pending != (e.Version == 0) {
		return nil, fault.New(fault.Internal, "table %s has version %d, pending: %t", e.Name, e.Version, e.Pending)
	}
	return json.Marshal(e.Table)
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Entry) UnmarshalJSON(b []byte) error {
	e.Table = new(schema.Table)
	err := json.Unmarshal(b, e.Table)
	e.Pending = e.Version == 0
	return err
}

// Live returns the table that has the name, nil if none has.
func (n Name) Live() *schema.Table {
	for _, t := range n {
		if t.DeleteTime.IsZero() {
			return t.Table
		}
	}
	return nil
}

// ReadName returns the tables of a name as they are now, and the version of
// their item, 0 if there never were any.
func ReadName(ctx context.Context, l lock.Service, name string) (Name, int64, error) {
	i, err := l.Get(ctx, TablesPrefix+name)
	if errors.Is(err, fault.NotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	n, err := ParseName(i)
	return n, i.Version, err
}

// ParseName decodes the item of a name.
func ParseName(i lock.Item) (Name, error) {
	var n Name
	if err := json.Unmarshal(i.Value, &n); err != nil {
		if fault.KindOf(err) == fault.FailedPrecondition {
			return nil, err // a later version's
		}
		return nil, fault.New(fault.Corruption, "item %s: %w", i.Key, err)
	}
	return n, nil
}

// Names calls each with every name that has tables, in order, and its item.
func Names(ctx context.Context, l lock.Service, each func(i lock.Item, n Name) error) error {
	items, _, err := l.List(ctx, TablesPrefix)
	if err != nil {
		return err
	}
	for _, i := range items {
		n, err := ParseName(i)
		if err != nil {
			return err
		}
		if err := each(i, n); err != nil {
			return err
		}
	}
	return nil
}

// WriteName stores the tables of a name if their item's version is still
// version; else Aborted. It is FailedPrecondition if they are more than the lock
// service takes.
func WriteName(ctx context.Context, l lock.Service, name string, n Name, version int64) (lock.Item, error) {
	value, err := json.Marshal(n)
	if err != nil {
		return lock.Item{}, err
	}
	if len(value) > lock.MaxValue {
		return lock.Item{}, fault.New(fault.FailedPrecondition, "the schemas of %s and of the deleted tables of that name would have %d bytes; the limit is %d. "+
			"Use another name, or wait until those that were deleted can be undeleted no more", name, len(value), lock.MaxValue)
	}
	next, err := Put(ctx, l, TablesPrefix+name, value, version)
	return lock.Item{Key: TablesPrefix + name, Value: value, Version: next}, err
}

// A Table is a table's schema as it changes.
type Table struct {
	schema  atomic.Pointer[schema.Table]
	pending atomic.Bool
	all     *Schemas
}

// Schema returns the newest schema that is known here.
func (t *Table) Schema() *schema.Table { return t.schema.Load() }

// Pending reports whether the table is being created: see Entry.
func (t *Table) Pending() bool { return t.pending.Load() }

// Wait returns once a version of the schema, or a later one, is known.
func (t *Table) Wait(ctx context.Context, version uint64) error {
	if t.schema.Load().Version >= version {
		return nil
	}
	return t.all.wait(ctx, func() bool { return t.schema.Load().Version >= version })
}

// Schemas are the tables of the cluster, as read from the lock service.
type Schemas struct {
	lock  lock.Service
	life  context.Context
	pause time.Duration // between two questions

	mu         sync.Mutex
	byID       map[uint64]*Table
	byName     map[string]*Table // live ones
	versions   map[string]int64  // of the items, by key
	revision   int64
	changed    chan struct{}
	pending    *refresh // the next one; nil if no caller waits
	refreshing bool     // refreshLoop runs
}

// A refresh is a read of the lock service for callers that miss something.
type refresh struct {
	names map[string]error // the error of reading each, once done is closed
	done  chan struct{}
}

// refreshPause is the least time between two reads of the lock service, and maxNamesEach
// how many names are read one by one. However many calls name what does not exist, they
// cost it 800 small reads a second at most, or 50 of all tables.
const (
	refreshPause = 20 * time.Millisecond
	maxNamesEach = 16
)

// WatchSchemas reads all schemas, within ctx, and follows them while life
// lasts.
func WatchSchemas(ctx, life context.Context, l lock.Service) (*Schemas, error) {
	s := &Schemas{lock: l, life: life, pause: refreshPause, byID: map[uint64]*Table{}, byName: map[string]*Table{}, versions: map[string]int64{}, changed: make(chan struct{})}
	s.putLocked(Entry{Table: metastore.Schema})
	if err := s.list(ctx); err != nil {
		return nil, fmt.Errorf("read schemas: %w", err)
	}
	go s.follow(life)
	return s, nil
}

// LockIsLocal says, before the first Refresh, that the lock service is in this process. A
// read costs it next to nothing then, and callers do not wait for the next one.
func (s *Schemas) LockIsLocal() { s.pause = 0 }

func (s *Schemas) list(ctx context.Context) error {
	items, revision, err := s.lock.List(ctx, TablesPrefix)
	if err != nil {
		return err
	}
	for _, i := range items {
		if err := s.Apply(i); err != nil {
			return err
		}
	}
	s.advanceTo(revision)
	return nil
}

// Refresh reads the tables of a name as they are when it is called, or later, and returns
// the live one, nil if none is. It reads all tables if name is empty. Callers that come at
// about the same time share one read. Unavailable if the lock service cannot be reached.
func (s *Schemas) Refresh(ctx context.Context, name string) (*Table, error) {
	s.mu.Lock()
	q := s.pending
	if q == nil {
		q = &refresh{names: map[string]error{}, done: make(chan struct{})}
		s.pending = q
	}
	if !s.refreshing {
		s.refreshing = true
		go s.refreshLoop()
	}
	q.names[name] = nil
	s.mu.Unlock()
	select {
	case <-q.done:
		return s.lookup(name), q.names[name]
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// refreshLoop answers questions, one after the other, until there is none.
func (s *Schemas) refreshLoop() {
	for {
		s.mu.Lock()
		q := s.pending
		s.pending = nil // a later caller may mean something newer
		s.refreshing = q != nil
		s.mu.Unlock()
		if q == nil {
			return
		}
		s.refreshNames(q.names)
		close(q.done)
		if s.pause == 0 {
			continue
		}
		select {
		case <-time.After(s.pause):
		case <-s.life.Done():
		}
	}
}

// refreshNames reads the tables of names and notes the errors.
func (s *Schemas) refreshNames(names map[string]error) {
	_, all := names[""]
	var err error
	if all = all || len(names) > maxNamesEach; all {
		err = s.list(s.life)
	}
	for name := range names {
		if !all {
			var i lock.Item
			if i, err = s.lock.Get(s.life, TablesPrefix+name); err == nil {
				err = s.Apply(i)
			} else if errors.Is(err, fault.NotFound) {
				err = nil
			}
		}
		names[name] = err
	}
}

// Apply takes over an item, as the lock service has it or the caller has just stored it.
func (s *Schemas) Apply(i lock.Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.Version <= s.versions[i.Key] {
		return nil // it was taken before the event came
	}
	n, err := ParseName(i)
	if err != nil {
		return err
	}
	s.versions[i.Key] = i.Version
	name := strings.TrimPrefix(i.Key, TablesPrefix)
	delete(s.byName, name)
	there := map[uint64]bool{}
	for _, t := range n {
		there[t.ID] = true
		s.putLocked(t)
	}
	for id, t := range s.byID {
		if t.Schema().Name == name && !there[id] && id != metastore.Table {
			delete(s.byID, id) // purged
		}
	}
	return nil
}

func (s *Schemas) putLocked(sch Entry) {
	t := s.byID[sch.ID]
	if t == nil {
		t = &Table{all: s}
		s.byID[sch.ID] = t
	}
	// Wait looks at the schema: whoever it lets go on sees the state that belongs to it.
	t.pending.Store(sch.Pending)
	t.schema.Store(sch.Table)
	if sch.DeleteTime.IsZero() {
		s.byName[sch.Name] = t
	}
}

// advanceTo notes that everything up to a revision is known.
func (s *Schemas) advanceTo(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = max(s.revision, revision)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Schemas) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.lock.Watch(ctx, TablesPrefix, s.Revision(), func(e lock.Event) error {
			// A name's item stays when its last table is purged.
			if err := s.Apply(e.Item); err != nil {
				return err
			}
			s.advanceTo(e.Version)
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

// Named returns a live table by name, or NotFound. A client that made a table has waited
// until tablet servers knew it, and not for other processes. So what is not known here is
// read before it is reported as missing.
func (s *Schemas) Named(ctx context.Context, name string) (*Table, error) {
	t := s.lookup(name)
	if t != nil {
		return t, nil
	}
	t, err := s.Refresh(ctx, name)
	if t == nil && err == nil {
		err = fault.New(fault.NotFound, "Table not found: %s", name)
	}
	return t, err
}

func (s *Schemas) lookup(name string) *Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[name]
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
		if id != metastore.Table {
			out = append(out, t)
		}
	}
	return out
}

// AppliedPrefix is where servers say up to which revision of the lock service
// they know the schemas of tables.
const AppliedPrefix = "applied/"

// AppliedKey returns the key of the item of an incarnation's server.
func AppliedKey(incarnation uint64) string { return fmt.Sprintf("%s%016x", AppliedPrefix, incarnation) }

// AwaitAfter returns when changes after a revision are known, or with the error of
// ctx. It may return too early.
func (s *Schemas) AwaitAfter(ctx context.Context, revision int64) error {
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
