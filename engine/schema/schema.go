package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// The hard limits of the Bigtable data model (proto comments of
// google.bigtable.v2 and google.bigtable.admin.v2), in bytes unless said
// otherwise.
const (
	MaxRowKey       = 4 << 10
	MaxHBaseRowKey  = 1<<15 - 1 // through HBase's API
	MaxQualifier    = 16 << 10
	MaxValue        = 100 << 20
	MaxRow          = 256 << 20
	MaxFamilyName   = 64
	MaxTableID      = 50
	MaxMutations    = 100_000 // per row, per branch, and per MutateRows request
	MaxFilter       = 20 << 10
	MaxFilterDepth  = 20
	MaxLabel        = 15
	MaxGCRule       = 500 // serialized GcRule
	MinTokenBytes   = 8   // idempotency token
	TokenWindow     = 15 * time.Minute
	UndeleteWindow  = 7 * 24 * time.Hour
	MaxInitialSplit = 10_000 // keys in CreateTable.initial_splits
)

// MaxFamilies bounds the column families of a table, and MaxSchema its schema,
// in bytes of JSON. Cloud Bigtable recommends 100 families at most. This is ten
// times as many, and little enough for what grows with them. A schema of that
// many is about 100 KiB, more with long rules and types. Every server and
// gateway holds it, and it is part of one item of etcd, which takes 1.5 MiB.
const (
	MaxFamilies = 1000
	MaxSchema   = 1 << 20
)

// FamilyKey is the key under which the metadata of a NoFamily names the family.
const FamilyKey = "family"

// NoFamily returns the refusal of a request that names a column family which the
// table does not have. The metadata tells programs which one, over RPCs too.
func NoFamily(name, format string, args ...any) *fault.Error {
	e := fault.New(fault.NotFound, format, args...)
	e.Metadata = map[string]string{FamilyKey: name}
	return e
}

// IsNoFamily reports whether err is a NoFamily, as opposed to other things that
// are not there.
func IsNoFamily(err error) bool {
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.NotFound {
		return false
	}
	_, ok := e.Metadata[FamilyKey]
	return ok
}

// A Table is the schema of one table. Treat one that was handed out as
// read-only: the engine shares it between requests.
type Table struct {
	// Name is the full resource name, projects/P/instances/I/tables/T.
	Name string
	// ID never changes and is never reused.
	ID uint64
	// Families by name.
	Families map[string]Family
	// NextFamily is the id that the next family gets, if it is less than
	// cell.FirstSystemFamily: otherwise no more can be added.
	NextFamily uint32
	// Groups are the locality groups, the default one only if it has settings of
	// its own: see AllGroups. NextGroup is the id that the next one gets.
	Groups    []Group `json:",omitempty"`
	NextGroup uint16  `json:",omitempty"`
	// Layout names the assignment of families to groups. It changes, to a value
	// that was never used before, whenever a family goes to another group; 0 is
	// that of a table whose families have never moved. Which families an SSTable
	// holds is known only of one that was written under this Layout.
	Layout uint64 `json:",omitempty"`
	// Granularity divides every cell timestamp: 1000 (MILLIS) or 1 (MICROS), in
	// microseconds.
	Granularity int64
	// DeletionProtection refuses to delete the table or a family.
	DeletionProtection bool
	CreateTime         time.Time
	// DeleteTime is zero while the table lives. Afterwards the table can be
	// undeleted until DeleteTime plus UndeleteWindow.
	DeleteTime time.Time
	// Version grows by one with each change.
	Version uint64
	// Stream is nil unless the table's changes are kept.
	Stream *Stream `json:",omitempty"`
	// View is nil unless the table belongs to a materialized view.
	View *View `json:",omitempty"`
	// Views are the materialized views of the table, by name.
	Views []ViewOf `json:",omitempty"`
	// Extra is what the gateway keeps with a table and the engine does not read.
	Extra []byte `json:",omitempty"`

	unsound []string // what Unsound returns
}

// A Stream says that the changes of a table are kept, to be read in order.
type Stream struct {
	// Life is another number each time that changes begin to be kept: what was kept,
	// and positions in it, are of one life only. It is never 0.
	Life uint64
	// Retention is for how long a change is kept, by its commit time.
	Retention time.Duration
	// Since is when changes began to be kept, by the clock of the gateway.
	Since time.Time
	// Hidden says that changes are kept for the table's views only: clients see no stream.
	Hidden bool `json:",omitempty"`
	// Enabled is the life of the stream that clients see, and EnabledSince when it began, if
	// that is not Life and Since: the table had views, whose reading goes on.
	Enabled      uint64    `json:",omitempty"`
	EnabledSince time.Time `json:",omitzero"`
}

// A Family is a column family of a table.
type Family struct {
	Name string
	ID   cell.FamilyID
	// GC is nil for a family that keeps everything.
	GC *GCRule `json:",omitempty"`
	// GCVersion is the Version of the table in which GC last changed.
	GCVersion uint64 `json:",omitempty"`
	// Aggregate is NotAggregate for an ordinary family.
	Aggregate Aggregate `json:",omitempty"`
	// Group is the id of the family's locality group.
	Group uint16 `json:",omitempty"`
	// Extra is the value type as the gateway keeps it.
	Extra []byte `json:",omitempty"`
}

// An Aggregate is how the cells of an aggregate family combine
// (google.bigtable.admin.v2 Type.Aggregate).
type Aggregate uint8

// The aggregators. State of the first three is a 64-bit big-endian two's
// complement integer; that of HLL a serialized HyperLogLog++ sketch.
const (
	NotAggregate Aggregate = iota
	Sum
	Min
	Max
	HLL
)

// Clone returns a copy that can be changed.
func (t *Table) Clone() *Table {
	c := *t
	c.Families = make(map[string]Family, len(t.Families))
	for n, f := range t.Families {
		f.GC = f.GC.Clone()
		f.Extra = slices.Clone(f.Extra)
		c.Families[n] = f
	}
	c.Extra = slices.Clone(t.Extra)
	c.Groups = slices.Clone(t.Groups)
	if t.Stream != nil {
		s := *t.Stream
		c.Stream = &s
	}
	c.View, c.Views = t.View.Clone(), cloneViews(t.Views)
	return &c
}

// AddFamily gives f the next id and adds it. The name must be free. CheckFamilies
// tells whether there was such an id.
func (t *Table) AddFamily(f Family) {
	f.ID = cell.FamilyID(min(t.NextFamily, math.MaxUint16))
	t.NextFamily++
	t.Families[f.Name] = f
}

func (t *Table) byID() map[cell.FamilyID]Family {
	m := make(map[cell.FamilyID]Family, len(t.Families))
	for _, f := range t.Families {
		m[f.ID] = f
	}
	return m
}

// FamilyNames returns the names of the families in ascending order.
func (t *Table) FamilyNames() []string {
	names := make([]string, 0, len(t.Families))
	for n := range t.Families {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Marshal encodes t for storage.
func (t *Table) Marshal() []byte {
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // no field of Table can fail to encode
	}
	return b
}

// Unmarshal decodes what Marshal wrote.
func Unmarshal(b []byte) (*Table, error) {
	t := new(Table)
	if err := json.Unmarshal(b, t); err != nil {
		return nil, err
	}
	return t, nil
}

// UnmarshalJSON implements json.Unmarshaler. A field that this version does not know is
// FailedPrecondition: a schema is written anew with each change, which would drop it, and
// what it says of the table would not be heeded.
func (t *Table) UnmarshalJSON(b []byte) error {
	type plain Table
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode((*plain)(t)); err != nil {
		if strings.HasPrefix(err.Error(), "json: unknown field") {
			return fault.New(fault.FailedPrecondition, "the schema of table %s was written by a later version of trestle (%w): use that version", t.Name, err)
		}
		return err
	}
	if t.Families == nil {
		t.Families = map[string]Family{}
	}
	for _, f := range t.Families {
		// Earlier versions counted with 16 bits, and began again.
		t.NextFamily = max(t.NextFamily, uint32(f.ID)+1)
	}
	t.unsound = unsound(t.Families)
	return nil
}

// A GCRule says which cells of a column may be collected
// (google.bigtable.admin.v2 GcRule). Exactly one field is set.
type GCRule struct {
	// MaxVersions keeps the newest that many cells of a column.
	MaxVersions int32 `json:",omitempty"`
	// MaxAge collects cells whose timestamp is older than that, by the server's
	// clock. A whole number of microseconds, at least 1 ms.
	MaxAge time.Duration `json:",omitempty"`
	// Union collects what any of the rules would.
	Union []*GCRule `json:",omitempty"`
	// Intersection collects what all of the rules would.
	Intersection []*GCRule `json:",omitempty"`
}

// Clone returns a deep copy. It accepts nil.
func (r *GCRule) Clone() *GCRule {
	if r == nil {
		return nil
	}
	c := *r
	c.Union = cloneRules(r.Union)
	c.Intersection = cloneRules(r.Intersection)
	return &c
}

func cloneRules(rs []*GCRule) []*GCRule {
	if rs == nil {
		return nil
	}
	out := make([]*GCRule, len(rs))
	for i, r := range rs {
		out[i] = r.Clone()
	}
	return out
}

// Collects tells whether a cell may be collected. rank is the number of live
// cells of its column with larger timestamps; ts its timestamp and now the
// time, both in microseconds. A nil rule collects nothing, and so does an
// empty Union or Intersection.
func (r *GCRule) Collects(rank int, ts, now int64) bool {
	switch {
	case r == nil:
		return false
	case r.MaxVersions > 0:
		return rank >= int(r.MaxVersions)
	case r.MaxAge > 0:
		return ts < now-r.MaxAge.Microseconds()
	case len(r.Union) > 0:
		for _, s := range r.Union {
			if s.Collects(rank, ts, now) {
				return true
			}
		}
		return false
	case len(r.Intersection) > 0:
		for _, s := range r.Intersection {
			if !s.Collects(rank, ts, now) {
				return false
			}
		}
		return true
	}
	return false
}

// NoteRules notes since when the rules of t, which follows old, are in force.
func (t *Table) NoteRules(old *Table) {
	before := old.byID()
	for name, f := range t.Families {
		f.GCVersion = t.Version
		if g, ok := before[f.ID]; ok && reflect.DeepEqual(g.GC, f.GC) {
			f.GCVersion = g.GCVersion
		}
		t.Families[name] = f
	}
}
