package cell

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// FamilyID identifies a column family inside its table. Ids are never reused.
type FamilyID uint16

// FirstSystemFamily is the first id that no user family gets. Entries of
// system families sort behind all user cells of their row, are never returned
// to clients and are not covered by row markers.
const FirstSystemFamily FamilyID = 0xFFF0

// TokenFamily holds the idempotency tokens that a row has seen: the qualifier
// is the token, the timestamp the time of its mutation (microseconds).
const TokenFamily FamilyID = 0xFFF0

// A Seq orders the mutations of one tablet. It uses 56 bits.
type Seq uint64

// MaxSeq is larger than the sequence number of any entry.
const MaxSeq Seq = 1<<56 - 1

// A Kind tells whether an entry sets or removes its key. The values are those
// of the SSTable format.
type Kind uint8

const (
	// Delete removes one cell version: it covers older entries of the same key.
	// Only compactions write it.
	Delete Kind = 0
	// Set writes a cell, or a marker if the key is a marker's.
	Set Kind = 1
	// SetUntil writes a cell that lives until a time, which is the first eight
	// bytes of its value (AppendUntil). From then on it covers the older cells of
	// its column as a deletion would: the value that it replaced does not come
	// back.
	SetUntil Kind = 2
	// Recorded is what only the record of changes needs: the input of an aggregate,
	// of which the operation behind it has the result. It is in commit logs, and in
	// memtables beside their order. No SSTable has it, and Valid does not know it.
	Recorded Kind = 3
)

// AppendUntil appends the value of a SetUntil: the time until which the cell
// lives, in microseconds since the epoch, and the cell's value.
func AppendUntil(dst []byte, until int64, value []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(until)), value...)
}

// Until returns the time until which a cell lives; ok is false if it lives for
// good. A malformed SetUntil, which Valid would have said, is at its end.
func (e *Entry) Until() (until int64, ok bool) {
	if e.Kind != SetUntil {
		return 0, false
	}
	if len(e.Value) < untilLen {
		return math.MinInt64, true
	}
	return int64(binary.BigEndian.Uint64(e.Value)), true
}

// Content returns the cell's value.
func (e *Entry) Content() []byte {
	if e.Kind == SetUntil {
		return e.Value[min(untilLen, len(e.Value)):]
	}
	return e.Value
}

const untilLen = 8

// Valid tells whether there is such a kind, and it can have a value of that
// many bytes.
func (k Kind) Valid(value int) bool { return k < SetUntil || k == SetUntil && value >= untilLen }

// An Entry is one version of one key. Its slices belong to the function that returned it.
type Entry struct {
	Key   []byte
	Value []byte
	Seq   Seq
	Kind  Kind
	// PlainRow is the length of the key's row prefix if that is known and nothing
	// in it is escaped, else 0.
	PlainRow int32
}

// Compare orders entries: by key, then newest first.
func Compare(a, b *Entry) int {
	if c := bytes.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	switch {
	case a.Seq > b.Seq:
		return -1
	case a.Seq < b.Seq:
		return 1
	}
	return 0
}

// An Iterator walks entries in Compare order. A positioning method returns
// whether there is an entry; when it returns false, Error tells whether the
// end was reached (nil) or reading failed. What Entry returns is valid until
// the next positioning call.
type Iterator interface {
	// SeekGE moves to the first entry whose key is at or after key.
	SeekGE(key []byte) bool
	// SeekRow is SeekGE for the row prefix row (as AppendRow makes it). The
	// caller will not look at entries beyond that row until it seeks again, so
	// the iterator may answer false at once when it knows the row is absent.
	SeekRow(row []byte) bool
	// SeekLT moves to the last key before key, at whichever of its entries is
	// cheapest to reach.
	SeekLT(key []byte) bool
	// First moves to the first entry.
	First() bool
	// Next moves to the following entry. It may only follow a positioning call
	// other than SeekLT that returned true.
	Next() bool
	// Entry returns the current entry.
	Entry() *Entry
	// Error returns the failure that ended the iteration, nil if none.
	Error() error
	// Close releases what the iterator holds.
	Close() error
}

const (
	escape     = 0x00
	escapedNul = 0xFF
	terminator = 0x01
)

func appendEscaped(dst, s []byte) []byte {
	for {
		i := bytes.IndexByte(s, escape)
		if i < 0 {
			dst = append(dst, s...)
			return append(dst, escape, terminator)
		}
		dst = append(dst, s[:i]...)
		dst = append(dst, escape, escapedNul)
		s = s[i+1:]
	}
}

// EscapedLen returns the length of the terminated, escaped form of the part
// that key starts with, or -1 if key does not start with one.
func EscapedLen(key []byte) int {
	n, _ := EscapedPart(key)
	return n
}

// EscapedPart is EscapedLen that also tells whether the part is plain: nothing
// in it is escaped, so that all but the last two bytes are the part itself.
func EscapedPart(key []byte) (n int, plain bool) {
	for off := 0; ; {
		i := bytes.IndexByte(key[off:], escape)
		if i < 0 || off+i+1 >= len(key) {
			return -1, false
		}
		switch key[off+i+1] {
		case terminator:
			return off + i + 2, off == 0
		case escapedNul:
			off += i + 2
		default:
			return -1, false
		}
	}
}

// RowPart is EscapedPart of the entry's row prefix.
func (e *Entry) RowPart() (n int, plain bool) {
	if e.PlainRow > 0 {
		return int(e.PlainRow), true
	}
	return EscapedPart(e.Key)
}

// unescape appends to dst the part whose terminated, escaped form is s.
func unescape(dst, s []byte) []byte {
	s = s[:len(s)-2]
	for {
		i := bytes.IndexByte(s, escape)
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i+1]...)
		s = s[i+2:]
	}
}

// AppendRow appends the row prefix of row, which is also its row marker.
func AppendRow(dst, row []byte) []byte { return appendEscaped(dst, row) }

// AppendFamily appends the rest of a family marker behind a row prefix.
func AppendFamily(dst []byte, f FamilyID) []byte {
	return binary.BigEndian.AppendUint16(dst, uint16(f))
}

// AppendColumn appends the rest of a column marker behind a row prefix.
func AppendColumn(dst []byte, f FamilyID, qualifier []byte) []byte {
	return appendEscaped(AppendFamily(dst, f), qualifier)
}

// AppendTimestamp appends the rest of a cell's key behind a column marker.
func AppendTimestamp(dst []byte, ts int64) []byte {
	return binary.BigEndian.AppendUint64(dst, ^uint64(ts))
}

// AppendCell appends the rest of a cell's key behind a row prefix.
func AppendCell(dst []byte, f FamilyID, qualifier []byte, ts int64) []byte {
	return AppendTimestamp(AppendColumn(dst, f, qualifier), ts)
}

// RowPrefixLen returns the length of the row prefix of key. It returns
// len(key) if key has no complete one, as the split function of an SSTable
// must return something for any input.
func RowPrefixLen(key []byte) int {
	if n := EscapedLen(key); n >= 0 {
		return n
	}
	return len(key)
}

// RowOf appends to dst the row key of a row prefix.
func RowOf(dst, prefix []byte) ([]byte, error) {
	n, plain := EscapedPart(prefix)
	switch {
	case n != len(prefix):
		return dst, fmt.Errorf("row prefix %x is malformed", prefix)
	case plain:
		return append(dst, prefix[:n-2]...), nil
	}
	return unescape(dst, prefix), nil
}

// A Shape tells what a key names.
type Shape uint8

// The shapes, from the widest.
const (
	RowMarker Shape = iota + 1
	FamilyMarker
	ColumnMarker
	Cell
)

// A Suffix is the parsed part of a key behind its row prefix.
type Suffix struct {
	Shape  Shape
	Family FamilyID
	// Column is the escaped, terminated qualifier, aliasing the key.
	Column []byte
	// Plain says that nothing in Column is escaped: all but its last two bytes
	// are the qualifier.
	Plain bool
	// Timestamp is in microseconds.
	Timestamp int64
}

// ParseSuffix parses what follows the row prefix of a key.
func ParseSuffix(s []byte) (Suffix, error) {
	var out Suffix
	if len(s) == 0 {
		out.Shape = RowMarker
		return out, nil
	}
	if len(s) < 2 {
		return out, fmt.Errorf("key suffix %x is malformed", s)
	}
	out.Family = FamilyID(binary.BigEndian.Uint16(s))
	rest := s[2:]
	if len(rest) == 0 {
		out.Shape = FamilyMarker
		return out, nil
	}
	n, plain := EscapedPart(rest)
	switch {
	case n == len(rest):
		out.Shape = ColumnMarker
	case n > 0 && n == len(rest)-8:
		out.Shape = Cell
		out.Timestamp = int64(^binary.BigEndian.Uint64(rest[n:]))
	default:
		return out, fmt.Errorf("key suffix %x is malformed", s)
	}
	out.Column, out.Plain = rest[:n], plain
	return out, nil
}

// Qualifier appends to dst the qualifier whose escaped, terminated form is
// column.
func Qualifier(dst, column []byte) []byte { return unescape(dst, column) }

// A TimeRange is the half-open range [Start, End) of timestamps in
// microseconds.
type TimeRange struct{ Start, End int64 }

// AllTime covers every timestamp. No cell has the timestamp math.MaxInt64 - it
// is no multiple of any granularity coarser than 1 - but microsecond tables
// may. The end is taken as inclusive there: see Contains.
var AllTime = TimeRange{Start: math.MinInt64, End: math.MaxInt64}

// Contains tells whether ts is in r. An End of math.MaxInt64 means no end.
func (r TimeRange) Contains(ts int64) bool {
	return ts >= r.Start && (ts < r.End || r.End == math.MaxInt64)
}

// AppendRanges encodes the value of a column marker, or of a family marker that
// covers not all times.
func AppendRanges(dst []byte, rs ...TimeRange) []byte {
	for _, r := range rs {
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.Start))
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.End))
	}
	return dst
}

// stickyMark ends the value of a marker that is sticky.
const stickyMark = 1

// AppendSticky encodes the value of a marker that also covers what is written
// after it, for as long as the marker is there.
func AppendSticky(dst []byte, rs ...TimeRange) []byte {
	return append(AppendRanges(dst, rs...), stickyMark)
}

// IsSticky tells whether a marker with that value is of AppendSticky.
func IsSticky(value []byte) bool {
	n := len(value)
	return n%16 == 1 && value[n-1] == stickyMark
}

// ParseMarker decodes the value of a column marker, or of a family marker if it
// is not empty, into dst.
func ParseMarker(dst []TimeRange, value []byte) (rs []TimeRange, sticky bool, err error) {
	if sticky = IsSticky(value); sticky {
		value = value[:len(value)-1]
	}
	rs, err = ParseRanges(dst, value)
	return rs, sticky, err
}

// ParseRanges decodes what AppendRanges wrote into dst.
func ParseRanges(dst []TimeRange, value []byte) ([]TimeRange, error) {
	if len(value) == 0 || len(value)%16 != 0 {
		return dst, fmt.Errorf("marker value of %d bytes is malformed", len(value))
	}
	for ; len(value) > 0; value = value[16:] {
		dst = append(dst, TimeRange{
			Start: int64(binary.BigEndian.Uint64(value)),
			End:   int64(binary.BigEndian.Uint64(value[8:])),
		})
	}
	return dst, nil
}
