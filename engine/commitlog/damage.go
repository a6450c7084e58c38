package commitlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A DamagedError is that of a segment or fence that is missing, or not what was
// written. It wraps fault.Corruption.
type DamagedError struct {
	Log   ID
	Index uint64
	err   error
}

func (e *DamagedError) Error() string { return e.err.Error() }
func (e *DamagedError) Unwrap() error { return e.err }

// Object returns the name of the segment or fence.
func (e *DamagedError) Object() string { return objectName(e.Log, e.Index) }

// damagedAt says of an error where it was met, if it is fault.Corruption.
func damagedAt(id ID, index uint64, err error) error {
	if errors.Is(err, fault.Corruption) {
		return &DamagedError{id, index, err}
	}
	return err
}

// ParseObject returns the log and the index of a segment or fence by its name.
func ParseObject(name string) (id ID, index uint64, ok bool) { return parseObjectName(name) }

// GivenUp are segments, by index, whose records are not to be had: of the tablets
// that are named, or of all if none is.
type GivenUp map[uint64][]uint64

// whole tells whether all of a segment is given up.
func (g GivenUp) whole(index uint64) bool {
	tablets, ok := g[index]
	return ok && len(tablets) == 0
}

// before tells whether index, which is not given up, is before a segment that is
// given up as a whole.
func (g GivenUp) before(index uint64) bool {
	if g.whole(index) {
		return false
	}
	for i := range g {
		if index < i && g.whole(i) {
			return true
		}
	}
	return false
}

// Has tells whether something of a segment is given up.
func (g GivenUp) Has(index uint64) bool {
	_, ok := g[index]
	return ok
}

// has tells whether the records that a segment has of a tablet are given up.
func (g GivenUp) has(index, tablet uint64) bool {
	return g.whole(index) || slices.Contains(g[index], tablet)
}

// With returns g and a segment of which the records of tablets, or of all if none
// is named, are given up too.
func (g GivenUp) With(index uint64, tablets []uint64) GivenUp {
	out := maps.Clone(g)
	if out == nil {
		out = GivenUp{}
	}
	if g.whole(index) {
		return out
	}
	if len(tablets) > 0 {
		tablets = slices.Concat(g[index], tablets)
		slices.Sort(tablets)
		tablets = slices.Compact(tablets)
	}
	out[index] = tablets
	return out
}

// A Damage is a segment of a sealed log that is not what was written.
type Damage struct {
	Object string
	Index  uint64
	Err    error // what is wrong; of the first tablet, if it is several
	// Size and Stored are those of the object: 0 if it is missing.
	Size   int64
	Stored time.Time
	// Lost are the tablets whose records cannot be read, by id, and how many the index of
	// the segment says they were. It is nil if that is not known.
	Lost map[uint64]uint32
}

// FindDamage reads a log that is not written to. It returns what of it, from a redo point
// on, can neither be replayed nor was given up. It changes nothing.
func FindDamage(ctx context.Context, store objectstore.Store, id ID, from Pos, without GivenUp) ([]Damage, error) {
	infos, err := store.List(ctx, id.String()+"/", "", 0)
	if err != nil {
		return nil, fmt.Errorf("read commit log %v: %w", id, err)
	}
	found := map[uint64]*Damage{}
	note := func(index uint64, err error) *Damage {
		d := &Damage{Object: objectName(id, index), Index: index, Err: err}
		for _, i := range infos {
			if i.Name == d.Object {
				d.Size, d.Stored = i.Size, i.Modified
			}
		}
		found[index] = d
		return d
	}
	// Where it ends without what is in the way.
	end, rest := Pos{}, without
	for {
		end, err = Seal(ctx, &unchanged{Store: store}, id, from, rest)
		d, ok := errors.AsType[*DamagedError](err)
		if !ok {
			break
		}
		note(d.Index, err)
		rest = rest.With(d.Index, nil)
	}
	if err != nil {
		return nil, err
	}
	var nonce uint64
	err = readSegments(ctx, store, id, max(from.Segment, 1), end.Segment, rest, nil, func(index uint64, s readSegment) error {
		if s.err == nil {
			s.err = s.sameWriter(&nonce)
		}
		if errors.Is(s.err, fault.Corruption) {
			note(index, s.err)
			return nil
		}
		if s.err != nil {
			return s.err
		}
		for i := range s.extents {
			e := &s.extents[i]
			if rest.has(index, e.tablet) {
				continue
			}
			err, _ := s.header.eachRecord(e, s.data[e.tablet], func(Record) error { return nil })
			if err == nil {
				continue
			}
			d := found[index]
			if d == nil {
				d = note(index, err)
				d.Lost = map[uint64]uint32{}
			}
			d.Lost[e.tablet] = e.records
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read commit log %v: %w", id, err)
	}
	var out []Damage
	for _, index := range slices.Sorted(maps.Keys(found)) {
		out = append(out, *found[index])
	}
	return out, nil
}

// unchanged is a store into which fences, which are all that Seal puts, are put for
// show.
type unchanged struct{ objectstore.Store }

func (u *unchanged) PutIfAbsent(ctx context.Context, name string, _ []byte) error {
	r, err := u.Open(ctx, name)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err == nil {
		err = errors.Join(fault.New(fault.AlreadyExists, "object %s is there", name), r.Close())
	}
	return err
}
