package commitlog

import (
	"context"
	"errors"
	"fmt"

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

// CheckSegments reads the segments of a log that somebody may write to and trim
// meanwhile, and calls bad for each object that is missing or is not what was
// written. kept returns from where on the log must be there, as its owner has
// written down by then; read returns an object.
//
// A segment that others follow is missing only if one of them says that it was
// acknowledged, or if the log ends behind them: puts overtake one another.
// Acknowledged segments that are gone from the end of a log without a fence are
// not missed.
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
