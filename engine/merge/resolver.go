package merge

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// A Verdict is what a Resolver says of an entry.
type Verdict uint8

// The verdicts.
const (
	// Live is a cell that a read returns.
	Live Verdict = iota + 1
	// Covered is an entry that a newer one hides: no read needs it.
	Covered
	// Tombstone is a marker or a Delete that nothing newer hides: reads skip
	// it, and only a compaction that holds every older entry may drop it.
	Tombstone
)

// A rangeDelete is what a marker covers: entries older than it, or all if it is
// sticky, whose timestamps are in times.
type rangeDelete struct {
	times  cell.TimeRange
	seq    cell.Seq
	sticky bool
}

func (d *rangeDelete) covers(seq cell.Seq, ts int64) bool {
	return (seq < d.seq || d.sticky) && d.times.Contains(ts)
}

// A Resolver judges the entries of a stream in Compare order, one by one. The
// zero Resolver is ready, once Ranges is set.
//
// At any time it holds at most one row marker, the markers of one family and
// those of one column.
type Resolver struct {
	// Ranges are the tablet's range tombstones.
	Ranges Ranges
	// Time is what decides whether a cell lives that was written for a while, in
	// microseconds. Zero is the present: it is asked for when it first matters.
	Time int64

	prefix   []byte   // of the current row; nil before the first
	plain    bool     // nothing in prefix is escaped
	rangeDel cell.Seq // what Ranges say of the current row
	rowDel   cell.Seq
	family   cell.FamilyID
	famDel   cell.Seq
	famTimes []rangeDelete
	column   []byte // escaped; of an earlier row as long as fresh is set
	colPlain bool   // nothing in column is escaped
	fresh    bool   // no column of this family was begun
	colDel   []rangeDelete
	last     int64 // timestamp of the newest-seq entry judged in this column
	lastSet  bool
	repeats  int    // entries judged since that had the same key
	ended    bool   // a cell of this column has come to its end
	columns  uint64 // how many columns were begun

	rowKey []byte           // scratch
	ranges []cell.TimeRange // scratch
}

// Reset forgets the current row, keeping Ranges.
func (r *Resolver) Reset() {
	r.prefix = r.prefix[:0]
	r.newRow()
}

func (r *Resolver) newRow() {
	r.rowDel, r.rangeDel = 0, 0
	r.newFamily(0)
}

func (r *Resolver) newFamily(f cell.FamilyID) {
	r.family, r.famDel = f, 0
	r.famTimes = r.famTimes[:0]
	r.fresh = true
	r.newColumn()
}

func (r *Resolver) newColumn() {
	r.colDel = r.colDel[:0]
	r.lastSet, r.ended = false, false
	r.columns++
}

// Prefix returns the row prefix of the entry judged last. It is valid until
// the next row.
func (r *Resolver) Prefix() []byte { return r.prefix }

// Column returns the escaped qualifier of the current column. It is valid
// until the next column.
func (r *Resolver) Column() []byte { return r.column }

// Repeats returns how many entries with the same key as the one judged last, a cell's, have
// been judged before it. All further ones with that key are Covered.
func (r *Resolver) Repeats() int { return r.repeats }

// StartRow begins the row that e belongs to.
func (r *Resolver) StartRow(e *cell.Entry) error {
	n, plain := e.RowPart()
	if n < 0 {
		return fault.New(fault.Corruption, "key %x has no row", e.Key)
	}
	r.prefix, r.plain = append(r.prefix[:0], e.Key[:n]...), plain
	r.newRow()
	if !r.Ranges.Empty() {
		row, err := r.Row()
		if err != nil {
			return err
		}
		r.rangeDel = r.Ranges.Newest(row)
	}
	return nil
}

// Row returns the key of the current row. It is valid until the next row.
func (r *Resolver) Row() ([]byte, error) {
	if r.plain {
		return r.prefix[:len(r.prefix)-2], nil
	}
	var err error
	if r.rowKey, err = cell.RowOf(r.rowKey[:0], r.prefix); err != nil {
		return nil, fault.New(fault.Corruption, "%w", err)
	}
	return r.rowKey, nil
}

// InRow tells whether key belongs to the current row.
func (r *Resolver) InRow(key []byte) bool {
	return len(r.prefix) > 0 && bytes.HasPrefix(key, r.prefix)
}

// Judge judges e, starting a new row where e is not InRow. out describes the
// key; out.Column aliases e.
func (r *Resolver) Judge(e *cell.Entry, out *cell.Suffix) (Verdict, error) {
	if !r.InRow(e.Key) {
		if err := r.StartRow(e); err != nil {
			return 0, err
		}
	}
	return r.JudgeInRow(e, out)
}

// JudgeInRow is Judge of an entry that is known to be InRow.
func (r *Resolver) JudgeInRow(e *cell.Entry, out *cell.Suffix) (Verdict, error) {
	s := e.Key[len(r.prefix):]
	// The usual case: another version in the same column, or the same column in
	// another row.
	n := len(r.column)
	if n == 0 || len(s) != 2+n+8 || !bytes.Equal(s[2:2+n], r.column) {
		return r.judgeOther(e, s, out)
	}
	// Field by field: a literal would be made elsewhere, then copied in words
	// that are wider than what was just written, which a processor waits for.
	out.Shape, out.Family = cell.Cell, cell.FamilyID(binary.BigEndian.Uint16(s))
	out.Column, out.Plain = s[2:2+n], r.colPlain
	out.Timestamp = int64(^binary.BigEndian.Uint64(s[2+n:]))
	if out.Family != r.family {
		r.newFamily(out.Family)
	}
	if r.fresh {
		r.fresh = false
		r.columns++
	}
	return r.cell(e, out.Timestamp), nil
}

// judgeOther judges an entry with suffix s that is no cell of r.column.
func (r *Resolver) judgeOther(e *cell.Entry, s []byte, out *cell.Suffix) (Verdict, error) {
	var err error
	if *out, err = cell.ParseSuffix(s); err != nil {
		return 0, fault.New(fault.Corruption, "%w", err)
	}
	if out.Shape == cell.RowMarker {
		return r.rowMarker(e), nil
	}
	if out.Family != r.family {
		r.newFamily(out.Family)
	}
	if out.Shape == cell.FamilyMarker {
		return r.familyMarker(e)
	}
	if r.fresh || !bytes.Equal(out.Column, r.column) {
		r.fresh = false
		r.column, r.colPlain = append(r.column[:0], out.Column...), out.Plain
		r.newColumn()
	}
	if out.Shape == cell.ColumnMarker {
		return r.columnMarker(e)
	}
	return r.cell(e, out.Timestamp), nil
}

// wide is the newest deletion that covers the whole current family. System
// families are covered by range tombstones only.
func (r *Resolver) wide() cell.Seq {
	if r.family >= cell.FirstSystemFamily {
		return r.rangeDel
	}
	return max(r.rangeDel, r.rowDel, r.famDel)
}

func (r *Resolver) rowMarker(e *cell.Entry) Verdict {
	if e.Seq < max(r.rowDel, r.rangeDel) {
		return Covered
	}
	r.rowDel = e.Seq
	return Tombstone
}

func (r *Resolver) familyMarker(e *cell.Entry) (Verdict, error) {
	if len(e.Value) > 0 {
		return r.timesMarker(e, &r.famTimes)
	}
	if e.Seq < r.wide() {
		return Covered, nil
	}
	r.famDel = e.Seq
	return Tombstone, nil
}

func (r *Resolver) columnMarker(e *cell.Entry) (Verdict, error) { return r.timesMarker(e, &r.colDel) }

// timesMarker adds what e covers to dels. The end of a row or of a family ends
// its sticky markers too.
func (r *Resolver) timesMarker(e *cell.Entry, dels *[]rangeDelete) (Verdict, error) {
	if e.Seq < r.wide() {
		return Covered, nil
	}
	var err error
	var sticky bool
	if r.ranges, sticky, err = cell.ParseMarker(r.ranges[:0], e.Value); err != nil {
		return 0, fault.New(fault.Corruption, "%w", err)
	}
	covered := true
	for _, t := range r.ranges {
		// Markers come newest first: an older one within a newer one is spent,
		// unless it covers what came after the newer one.
		inside := false
		for _, d := range *dels {
			if d.times.Start <= t.Start && d.times.End >= t.End && (d.sticky || !sticky) {
				inside = true
				break
			}
		}
		if !inside {
			covered = false
			*dels = append(*dels, rangeDelete{t, e.Seq, sticky})
		}
	}
	if covered {
		return Covered, nil
	}
	return Tombstone, nil
}

func (r *Resolver) cell(e *cell.Entry, ts int64) Verdict {
	if r.lastSet && r.last == ts {
		r.repeats++
		return Covered
	}
	r.last, r.lastSet, r.repeats = ts, true, 0
	if e.Seq < r.wide() {
		return Covered
	}
	for i := range r.colDel {
		if r.colDel[i].covers(e.Seq, ts) {
			return Covered
		}
	}
	for i := range r.famTimes {
		if r.famTimes[i].covers(e.Seq, ts) {
			return Covered
		}
	}
	if r.ended {
		return Covered
	}
	if until, ok := e.Until(); ok {
		if r.Time == 0 {
			r.Time = time.Now().UnixMicro()
		}
		if r.ended = until <= r.Time; r.ended {
			return Tombstone
		}
	}
	if e.Kind == cell.Delete {
		return Tombstone
	}
	return Live
}
