package changes

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
)

// A Source is a change file to read from.
type Source struct {
	// Lo and Hi are the smallest and largest stamp.
	Lo, Hi cell.Seq
	// At, if it is not 0, is the stamp of all records, whatever the file says: it was
	// not known when the file was written. Lo and Hi are At then.
	At cell.Seq
	// Open opens the file, which Iterate closes.
	Open func(ctx context.Context) (*File, error)
}

// Iterate gives the records of sources that are behind after, with stamps up to through
// and rows in within, to to, until that returns false or an error. It reads what
// overlaps as one chunk. Records of one row and one stamp are one, given once: the rows that a
// range's deletion found are in several files. It returns the position behind the last record given, and
// one with Through at least through when there is none left.
//
// A position within a chunk must have come from sources with the same records; in
// which files they are does not matter.
func Iterate(ctx context.Context, sources []Source, after Position, through cell.Seq, within row.Range, to func(*Record) (bool, error)) (Position, error) {
	it := iteration{left: slices.Clone(sources), within: within, to: to, at: after}
	slices.SortStableFunc(it.left, func(a, b Source) int { return cmp.Compare(a.Lo, b.Lo) })
	defer it.close()
	for {
		it.forget()
		if it.at.ChunkEnd == 0 {
			end, err := it.nextEnd(ctx, through)
			if err != nil {
				return it.at, err
			}
			if end = min(end, through); end <= it.at.Through {
				return Position{Through: max(it.at.Through, through)}, nil
			}
			it.at = Position{Through: it.at.Through, ChunkEnd: end}
		} else if err := it.openUpTo(ctx, it.at.ChunkEnd); err != nil {
			return it.at, err
		}
		end := it.at.ChunkEnd
		if more, err := it.chunk(ctx); err != nil || !more {
			return it.at, err
		}
		it.at = Position{Through: end}
	}
}

type iteration struct {
	left   []Source // ascending by Lo
	open   []source // have something behind at that is wanted
	within row.Range
	to     func(*Record) (bool, error)
	at     Position
	rows   []byte // what at.Row is in
}

type source struct {
	Source
	f *File
}

func (it *iteration) close() {
	for _, s := range it.open {
		_ = s.f.Close()
	}
}

// forget closes the files in which nothing is behind at.
func (it *iteration) forget() {
	it.open = slices.DeleteFunc(it.open, func(s source) bool {
		if s.end(it.at.Through, it.within) > 0 {
			return false
		}
		_ = s.f.Close()
		return true
	})
}

// openUpTo opens the files that have something in (at.Through, through].
func (it *iteration) openUpTo(ctx context.Context, through cell.Seq) error {
	for len(it.left) > 0 && it.left[0].Lo <= through {
		if _, err := it.openNext(ctx); err != nil {
			return err
		}
	}
	return nil
}

// nextEnd returns the smallest end of a chunk that is behind at and wanted; 0 if there is
// none up to through. All files with something up to it are open then.
func (it *iteration) nextEnd(ctx context.Context, through cell.Seq) (cell.Seq, error) {
	var least cell.Seq
	take := func(end cell.Seq) {
		if end > 0 && (least == 0 || end < least) {
			least = end
		}
	}
	for i := range it.open {
		take(it.open[i].end(it.at.Through, it.within))
	}
	for len(it.left) > 0 && it.left[0].Lo <= through && (least == 0 || it.left[0].Lo <= least) {
		end, err := it.openNext(ctx)
		if err != nil {
			return 0, err
		}
		take(end)
	}
	return least, nil
}

// openNext opens the first file of left, unless nothing of it is wanted, and returns
// the end of its first chunk that is.
func (it *iteration) openNext(ctx context.Context) (cell.Seq, error) {
	s := source{Source: it.left[0]}
	it.left = it.left[1:]
	if s.Hi <= it.at.Through {
		return 0, nil
	}
	var err error
	if s.f, err = s.Open(ctx); err != nil {
		return 0, err
	}
	end := s.end(it.at.Through, it.within)
	if end == 0 {
		return 0, s.f.Close()
	}
	it.open = append(it.open, s)
	return end, nil
}

// stamps returns the smallest and the largest stamp of a chunk.
func (s *source) stamps(k *chunk) (lo, hi cell.Seq) {
	if s.At != 0 {
		return s.At, s.At
	}
	return k.lo, k.hi
}

// wanted tells whether rows of a chunk may be in within.
func (k *chunk) wanted(within row.Range) bool {
	return bytes.Compare(k.last, within.Start) >= 0 && (len(within.End) == 0 || bytes.Compare(k.first, within.End) < 0)
}

// end returns the smallest end of a chunk with something behind after that is wanted; 0
// if there is none.
func (s *source) end(after cell.Seq, within row.Range) cell.Seq {
	var least cell.Seq
	for i := range s.f.chunks {
		k := &s.f.chunks[i]
		if _, hi := s.stamps(k); hi > after && (least == 0 || hi < least) && k.wanted(within) {
			least = hi
		}
	}
	return least
}

// chunk gives the records of (at.Through, at.ChunkEnd] that are behind at. more is false
// if the function that takes them wants no more.
func (it *iteration) chunk(ctx context.Context) (more bool, err error) {
	through, end := it.at.Through, it.at.ChunkEnd
	// What is behind the position is in these rows.
	within, from := it.within, it.within.Start
	if bytes.Compare(it.at.Row, from) > 0 {
		from = it.at.Row
		within.Start = from
	}
	resumed := bytes.Clone(it.at.Row)
	var waiting []*cursor
	for i := range it.open {
		s := &it.open[i]
		for j := range s.f.chunks {
			k := &s.f.chunks[j]
			if lo, hi := s.stamps(k); hi <= through || lo > end || !k.wanted(within) {
				continue
			}
			waiting = append(waiting, &cursor{f: s.f, k: k, b: &bounds{within: it.within, after: through, through: end, at: s.At, row: resumed, stamp: it.at.Stamp}})
		}
	}
	slices.SortStableFunc(waiting, func(a, b *cursor) int { return bytes.Compare(a.k.first, b.k.first) })
	var active []*cursor
	for {
		least := smallest(active)
		// A chunk is read once its rows may be next.
		for len(waiting) > 0 && (least < 0 || bytes.Compare(waiting[0].k.first, active[least].key) <= 0) {
			u := waiting[0]
			waiting = waiting[1:]
			if err := u.start(ctx, from); err != nil {
				return false, u.f.annotate(err)
			}
			if active, err = advance(ctx, active, u); err != nil {
				return false, err
			}
			least = smallest(active)
		}
		if least < 0 {
			return true, nil
		}
		u := active[least]
		if u.rec.Stamp != it.at.Stamp || !bytes.Equal(u.key, it.at.Row) {
			u.rec.Through, u.rec.ChunkEnd = through, end
			more, err := it.to(&u.rec)
			if err != nil {
				return false, err
			}
			it.rows = append(it.rows[:0], u.key...)
			it.at = Position{Through: through, ChunkEnd: end, Row: it.rows, Stamp: u.rec.Stamp}
			if !more {
				it.at.Row = bytes.Clone(it.rows)
				return false, nil
			}
		}
		ok, err := u.advance(ctx)
		if err != nil {
			return false, u.f.annotate(err)
		}
		if !ok {
			active = slices.Delete(active, least, least+1)
		}
	}
}

// advance adds a cursor to active, unless it is at its end.
func advance(ctx context.Context, active []*cursor, u *cursor) ([]*cursor, error) {
	ok, err := u.advance(ctx)
	if err != nil {
		return active, u.f.annotate(err)
	}
	if ok {
		active = append(active, u)
	}
	return active, nil
}

// smallest returns which cursor is at the record that comes first; -1 if there is none.
func smallest(active []*cursor) int {
	least := -1
	for i, u := range active {
		if least < 0 {
			least = i
			continue
		}
		l := active[least]
		if c := cmp.Or(bytes.Compare(u.key, l.key), cmp.Compare(u.rec.Stamp, l.rec.Stamp)); c < 0 {
			least = i
		}
	}
	return least
}
