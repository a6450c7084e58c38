package row

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/cell"
)

// A Range is the half-open range [Start, End) of row keys. An empty End means
// no end.
type Range struct{ Start, End []byte }

// All is the range of every row.
var All = Range{}

// Single returns the range that holds just key.
func Single(key []byte) Range {
	return Range{Start: key, End: Successor(key)}
}

// IsSingle tells whether r holds at most the one key r.Start.
func (r Range) IsSingle() bool {
	n := len(r.Start)
	return len(r.End) == n+1 && r.End[n] == 0 && bytes.Equal(r.End[:n], r.Start)
}

// Successor returns the smallest key after key.
func Successor(key []byte) []byte {
	s := make([]byte, len(key)+1)
	copy(s, key)
	return s
}

// Prefix returns the range of keys that start with p.
func Prefix(p []byte) Range {
	end := slices.Clone(p)
	for len(end) > 0 {
		if end[len(end)-1] != 0xFF {
			end[len(end)-1]++
			break
		}
		end = end[:len(end)-1]
	}
	return Range{Start: p, End: end}
}

// Contains tells whether key is in r.
func (r Range) Contains(key []byte) bool {
	return bytes.Compare(key, r.Start) >= 0 && (len(r.End) == 0 || bytes.Compare(key, r.End) < 0)
}

// Empty tells whether no key can be in r.
func (r Range) Empty() bool {
	return len(r.End) > 0 && bytes.Compare(r.Start, r.End) >= 0
}

// Intersect returns the keys that are in both, which may be Empty.
func (r Range) Intersect(s Range) Range {
	if bytes.Compare(s.Start, r.Start) > 0 {
		r.Start = s.Start
	}
	if len(s.End) > 0 && (len(r.End) == 0 || bytes.Compare(s.End, r.End) < 0) {
		r.End = s.End
	}
	return r
}

// Union sorts ranges and merges those that overlap or touch. Empty ones
// vanish. It reuses the slice.
func Union(ranges []Range) []Range {
	ranges = slices.DeleteFunc(ranges, Range.Empty)
	slices.SortFunc(ranges, func(a, b Range) int { return bytes.Compare(a.Start, b.Start) })
	out := ranges[:0]
	for _, r := range ranges {
		if n := len(out); n > 0 {
			last := &out[n-1]
			if len(last.End) == 0 {
				break
			}
			if bytes.Compare(r.Start, last.End) <= 0 {
				if len(r.End) == 0 || bytes.Compare(r.End, last.End) > 0 {
					last.End = r.End
				}
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// A Cell is one version of one column. The function that passes a Cell on says how long
// its slices are valid.
type Cell struct {
	Family    string
	Qualifier []byte
	// Timestamp is in microseconds.
	Timestamp int64
	Value     []byte
	// Labels were set by filters, in the order they were applied.
	Labels []string
}

// Clone returns a Cell that shares nothing with c.
func (c *Cell) Clone() Cell {
	return Cell{Family: c.Family, Qualifier: bytes.Clone(c.Qualifier), Timestamp: c.Timestamp,
		Value: bytes.Clone(c.Value), Labels: slices.Clone(c.Labels)}
}

// ServerTime as the timestamp of a SetCell asks for the server's time.
const ServerTime int64 = -1

// An Op is what a Mutation does.
type Op uint8

// The operations, each as google.bigtable.v2.Mutation defines it.
const (
	SetCell      Op = iota + 1 // Family, Qualifier, Timestamp, Value
	DeleteColumn               // Family, Qualifier, Times
	DeleteFamily               // Family, Times
	DeleteRow                  //
	AddToCell                  // Family, Qualifier, Timestamp, Input
	MergeToCell                // Family, Qualifier, Timestamp, Input
)

// A Mutation changes one row. Which fields count depends on Op.
type Mutation struct {
	Op        Op
	Family    string
	Qualifier []byte
	// Timestamp is in microseconds; ServerTime is allowed in SetCell only.
	Timestamp int64
	// Until is when the cell of a SetCell comes to its end, in microseconds since
	// the epoch; 0 is never. From then on it is as if the column's cells up to it
	// had been deleted.
	Until int64
	// Truncate rounds Timestamp down to the table's granularity instead of
	// refusing it (TimestampOrigin.CLIENT_AUTO_GENERATED).
	Truncate bool
	// Times is the range that DeleteColumn deletes, and DeleteFamily unless it is
	// zero.
	Times cell.TimeRange
	// Sticky makes a deletion with Times cover also what is written after it, as
	// HBase's does, until it is forgotten. That is done by a flush or compaction
	// that has all that is older, or by a deletion of the row or of the whole
	// family.
	Sticky bool
	Value  []byte
	Input  Input
}

// An Input is the operand of AddToCell or MergeToCell.
type Input struct {
	Kind  InputKind
	Int   int64
	Bytes []byte // RawInput, BytesInput, StringInput (UTF-8)
	Float float64
}

// An InputKind is the kind of google.bigtable.v2.Value that an Input was.
type InputKind uint8

// The kinds. NullInput changes nothing.
const (
	NullInput InputKind = iota
	IntInput
	BytesInput
	StringInput
	FloatInput
	BoolInput      // Int is 0 or 1
	TimestampInput // Int is microseconds since the epoch
	DateInput      // Int is days since the epoch
	RawInput       // Bytes are the value in the aggregate's input encoding
)

// A Token makes the retry of a mutation of aggregate cells harmless
// (google.bigtable.v2.Idempotency).
type Token struct {
	// Token is at least schema.MinTokenBytes long; empty means none.
	Token []byte
	// Start is when the client first sent the mutation; zero means not given.
	Start time.Time
}

// An Entry is the change of one row: all of it is applied, or none.
type Entry struct {
	Key       []byte
	Mutations []Mutation
	Token     Token
}

// A Rule is one step of a ReadModifyWriteRow.
type Rule struct {
	Family    string
	Qualifier []byte
	// Append is appended to the newest value; nil means Increment.
	Append    []byte
	Increment int64
	IsAppend  bool
}

// Escape writes a row key as text: printable ASCII as it is except for the
// backslash, which is doubled, every other byte as \xNN.
func Escape(key []byte) string {
	var b strings.Builder
	for _, c := range key {
		switch {
		case c == '\\':
			b.WriteString(`\\`)
		case c >= ' ' && c <= '~':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}
