package tablet

import (
	"context"
	"math"
	"time"

	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A State is what an operator wants to know of a tablet.
type State struct {
	Bytes, MemtableBytes int64 // of SSTables and memtables together; of memtables
	Runs, Files          int
	LastMajor            time.Time // of the locality group where it is longest ago; zero if there was none
}

// State returns the tablet's state; ok is false if it is closed.
func (t *Tablet) State() (s State, ok bool) {
	v := t.pin()
	if v == nil {
		if v = t.pinStopped(); v == nil {
			return s, false
		}
	}
	defer v.release()
	s.Bytes, s.Runs, s.Files = v.bytes(), len(v.runs), len(v.row.Files)
	for _, m := range v.mems {
		if !m.Empty() {
			s.MemtableBytes += m.Bytes()
		}
	}
	major := int64(math.MaxInt64)
	for _, u := range v.runs {
		major = min(major, v.row.Major(u.group))
	}
	if len(v.runs) == 0 {
		major = v.row.MajorTime
	}
	if major > 0 {
		s.LastMajor = time.Unix(major, 0).UTC()
	}
	return s, true
}

// Verify reads every SSTable of the tablet from storage, past the cache, and
// checks all checksums. It calls each with every object and what is wrong with
// it, or nil; an error of each ends it.
func (t *Tablet) Verify(ctx context.Context, each func(object string, bytes int64, err error) error) error {
	now := t.pin()
	if now == nil {
		return t.gone()
	}
	v := now.onFiles()
	now.release()
	defer v.release()
	for _, u := range v.runs {
		for _, f := range u.files {
			err := t.env.verify(ctx, f.object)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := each(f.name, f.ref.Size, t.readError(err)); err != nil {
				return err
			}
		}
	}
	return nil
}

// An Info is what an operator is told of a tablet.
type Info struct {
	Table  string // full name
	Tablet metadata.TabletID
	Rows   row.Range
	State
	// Server names the tablet server that has the tablet, in a cluster; empty if
	// none has.
	Server string
	// Changes is what is kept of its changes.
	Changes Kept
	// Redo is the place in the commit log from which on a restart would replay
	// for this tablet, as "segment:offset", "" if nothing would be.
	Redo string
	// Load is per second, lately. It is zero when first asked for.
	Load Load
}

// An ObjectDamage is an SSTable that is not what was written.
type ObjectDamage struct {
	Table  string
	Tablet metadata.TabletID
	Rows   row.Range // of the tablet
	Object string
	Err    error
}

// A GroupInfo is what an operator is told of a locality group.
type GroupInfo struct {
	schema.Group
	Families []string
	// The sums over all tablets; Runs is the largest of any.
	GroupState
}

// A GroupSum adds up the states of the locality groups of a table's tablets.
type GroupSum struct {
	groups []GroupInfo
	before GroupInfo
}

// NewGroupSum returns the sum of no tablets.
func NewGroupSum(t *schema.Table) *GroupSum {
	s := new(GroupSum)
	for _, g := range t.AllGroups() {
		s.groups = append(s.groups, GroupInfo{Group: g, Families: t.FamiliesOf(g.ID)})
	}
	return s
}

// Add adds what GroupStates tells of a tablet, or of several.
func (s *GroupSum) Add(states map[uint16]GroupState, earlier GroupState) {
	s.before.add(earlier)
	for id, state := range states {
		to := &s.before // of a group that was deleted
		for i := range s.groups {
			if s.groups[i].ID == id {
				to = &s.groups[i]
			}
		}
		to.add(state)
	}
}

func (s *GroupState) add(o GroupState) {
	s.Bytes += o.Bytes
	s.Resident += o.Resident
	s.Files += o.Files
	s.Runs = max(s.Runs, o.Runs)
}

// Groups returns the locality groups, the default one first. A last one without
// a name is what was written under an earlier assignment of families, if anything
// is left of that.
func (s *GroupSum) Groups() []GroupInfo {
	if s.before.Files > 0 {
		return append(s.groups, s.before)
	}
	return s.groups
}
