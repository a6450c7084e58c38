package commitlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// Checked is what CheckSegments has read.
type Checked struct {
	Segments int
	Bytes    int64
	// Sealed says that the log has a fence.
	Sealed bool
}

// CheckSegments reads the segments of a log that may be written to and trimmed meanwhile.
// It calls bad for each object that is missing or is not what was written. kept returns
// from where on the log must be there, as its owner has written down by then. read returns
// an object.
//
// Puts overtake one another. So a segment that others follow is missing only if one of
// them says that it was acknowledged, or if the log ends behind them. Acknowledged
// segments that are gone from the end of a log without a fence are not missed.
func CheckSegments(ctx context.Context, store objectstore.Store, id ID, kept func(context.Context) (Pos, error),
	read func(context.Context, string) ([]byte, error), bad func(object string, err error),
) (c Checked, err error) {
	// The list first: what it lacks because it was trimmed is not kept afterwards.
	infos, err := store.List(ctx, id.String()+"/", "", 0)
	if err != nil {
		return c, fmt.Errorf("check commit log %v: %w", id, err)
	}
	from, err := kept(ctx)
	if err != nil {
		return c, err
	}
	missing := fault.New(fault.Corruption, "the segment is missing")
	next, nonce := max(from.Segment, 1), uint64(0)
	var holes []uint64
	for _, info := range infos {
		_, index, ok := parseObjectName(info.Name)
		switch {
		case !ok:
			bad(info.Name, fault.New(fault.Corruption, "it is no object of a commit log"))
			continue
		case index < next:
			continue
		}
		for ; next < index; next++ {
			holes = append(holes, next)
		}
		next = index + 1
		b, err := read(ctx, info.Name)
		if errors.Is(err, fault.NotFound) {
			if from, err = kept(ctx); err != nil {
				return c, err
			}
			if index >= from.Segment {
				bad(info.Name, missing)
			}
			continue
		}
		if err != nil {
			return c, fmt.Errorf("check commit log %v: read %s: %w", id, info.Name, err)
		}
		c.Segments++
		c.Bytes += int64(len(b))
		h, err := checkSegment(b, id, index)
		if err == nil && nonce == 0 {
			nonce = h.nonce
		}
		switch {
		case err != nil:
			bad(info.Name, err)
			continue
		case h.kind == kindFence:
			c.Sealed = true
		case h.nonce != nonce:
			bad(info.Name, h.corrupt("it is of another writer than the one before"))
		}
		for len(holes) > 0 && (c.Sealed || holes[0] <= h.acked) {
			bad(objectName(id, holes[0]), missing)
			holes = holes[1:]
		}
		if c.Sealed {
			break // what was put behind a fence was not acknowledged
		}
	}
	return c, nil
}

// checkSegment verifies all of a segment or fence.
func checkSegment(b []byte, id ID, index uint64) (objectHeader, error) {
	h, err := parseObjectHeader(b, id, index)
	if err != nil || h.kind == kindFence {
		return h, err
	}
	s, err := decodeSegment(b, id, index, nil)
	if err != nil {
		return h, err
	}
	for i := range s.extents {
		e := &s.extents[i]
		if err, _ := h.eachRecord(e, s.data[e.tablet], func(Record) error { return nil }); err != nil {
			return h, err
		}
	}
	return h, nil
}

// A Stored log is what a listing of the store shows of one.
type Stored struct {
	ID       ID
	Segments int
	Bytes    int64 // of them
	// Newest is when the last of its segments was stored, by the clock of the store.
	Newest time.Time
}

// ListStored returns what is in store of all logs, in ascending order. An object
// that is none of a log's is left out.
func ListStored(ctx context.Context, store objectstore.Store) ([]Stored, error) {
	infos, err := store.List(ctx, "", "", 0)
	if err != nil {
		return nil, fmt.Errorf("list commit logs: %w", err)
	}
	return storedOf(infos), nil
}

func storedOf(infos []objectstore.Info) (out []Stored) {
	for _, i := range infos {
		id, _, ok := parseObjectName(i.Name)
		if !ok {
			continue
		}
		if n := len(out); n == 0 || out[n-1].ID != id {
			out = append(out, Stored{ID: id})
		}
		if i.Size == fenceLen {
			continue
		}
		s := &out[len(out)-1]
		s.Segments++
		s.Bytes += i.Size
		if i.Modified.After(s.Newest) {
			s.Newest = i.Modified
		}
	}
	return out
}

// A Remains is what the store has of a log.
type Remains struct {
	Stored
	// First is the index from which on the log is there: what is before it was
	// trimmed, or is what trimming has left behind. Of a log without segments that
	// is its first fence, or 0 if it has none.
	First uint64
}

// ListRemains returns what is in store of all logs. They must not be written to.
func ListRemains(ctx context.Context, store objectstore.Store) ([]Remains, error) {
	infos, err := store.List(ctx, "", "", 0)
	if err != nil {
		return nil, fmt.Errorf("list commit logs: %w", err)
	}
	logs, err := logsOf(infos)
	if err != nil {
		return nil, fmt.Errorf("list commit logs: %w", err)
	}
	var out []Remains
	for i, s := range storedOf(infos) {
		l, r := logs[i], Remains{Stored: s}
		if r.Segments > 0 {
			last := l.segments[r.Segments-1].index
			h, err := readObjectHeader(ctx, store, l.id, last)
			if err != nil {
				return nil, fmt.Errorf("commit log %v: %w", l.id, err)
			}
			r.First = l.firstAround(h.acked)
		} else if len(l.fences) > 0 {
			r.First = l.fences[0]
		}
		out = append(out, r)
	}
	return out, nil
}

// ReadRemains calls fn for the records of tablets that want is true for, of all stored
// segments of a log before its first fence. What is behind the fence was never
// acknowledged. Segments come in their order, those that were trimmed or given up are left
// out. The log must not be written to. An error of fn ends it and is returned as it is.
func ReadRemains(ctx context.Context, store objectstore.Store, id ID, without GivenUp, want func(tablet uint64) bool, fn func(Record) error) error {
	infos, err := store.List(ctx, id.String()+"/", "", 0)
	if err != nil {
		return fmt.Errorf("list commit log %v: %w", id, err)
	}
	l := newSealedLog(id, infos)
	var fnErr error
	each := func(index uint64, s readSegment) error {
		if s.err != nil {
			return damagedAt(id, index, s.err)
		}
		var err error
		err, fnErr = s.eachRecord(id, index, without, fn)
		return cmp.Or(fnErr, err)
	}
	for i := 0; i < len(l.segments); {
		first := l.segments[i].index
		if len(l.fences) > 0 && first > l.fences[0] {
			break
		}
		end := first
		for ; i < len(l.segments) && l.segments[i].index == end; i++ {
			end++
		}
		if err := readSegments(ctx, store, id, first, end, without, want, each); err != nil {
			if fnErr == nil {
				err = fmt.Errorf("read commit log %v: %w", id, err)
			}
			return err
		}
	}
	return nil
}

// firstAround returns the index from which on no segment is missing up to the one at
// acked, all up to which were acknowledged. If that one was trimmed itself, it returns the
// index of the first segment behind it. Of those behind it some may never have been
// stored.
func (l *sealedLog) firstAround(acked uint64) uint64 {
	first := uint64(0)
	for _, s := range slices.Backward(l.segments) {
		switch {
		case s.index >= acked || first == 0:
			first = s.index
		case s.index+1 == first && first <= acked:
			first = s.index
		default:
			return first
		}
	}
	return first
}
