package chunk

import (
	"bytes"
	"encoding/base64"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// Headroom is how many bytes a Row can be given in front of it.
const Headroom = 256

// A Row is the scan.Writer of a read of one row: it encodes the row as a
// google.bigtable.v2.Row, in one piece. Families and columns are begun with a
// length of one byte. When one ends and is longer, its bytes are moved. For all
// but large rows that costs less than knowing the length first.
//
// It is not safe for concurrent use. The zero value, with a Budget, is ready.
type Row struct {
	Budget *budget.Budget

	seg               *segment // Headroom bytes, then the row
	key               []byte
	family, qualifier []byte
	familyAt, colAt   int // where the open family's and column's lengths are
	cells             int
	done              bool
	err               error
}

var _ scan.Writer = (*Row)(nil)

// StartRow implements scan.Writer.
func (w *Row) StartRow(key []byte) {
	w.Reset()
	w.key = append(w.key[:0], key...)
}

// Reset makes w ready for another row, and frees what it holds.
func (w *Row) Reset() {
	if w.seg != nil {
		w.seg.free()
		w.seg = nil
	}
	w.cells, w.done, w.err = 0, false, nil
}

// Cell implements scan.Writer.
func (w *Row) Cell(c *row.Cell) {
	if w.err != nil {
		return
	}
	newFamily := w.cells == 0 || c.Family != string(w.family)
	newColumn := newFamily || !bytes.Equal(c.Qualifier, w.qualifier)
	n := 0
	if c.Timestamp != 0 {
		n += 1 + uvarintLen(uint64(c.Timestamp))
	}
	if len(c.Value) > 0 {
		n += 1 + uvarintLen(uint64(len(c.Value))) + len(c.Value)
	}
	for _, l := range c.Labels {
		n += 1 + uvarintLen(uint64(len(l))) + len(l)
	}
	// The most that this cell adds: itself, the heads of its column and family,
	// and what the lengths of those before it and of its own may grow by.
	const heads = 40
	most := heads + n + len(c.Family) + len(c.Qualifier)
	if w.cells == 0 {
		most += Headroom + len(w.key) + heads
	}
	if !w.grow(most) {
		return
	}
	b := w.seg.buf
	if w.cells == 0 {
		b = b[:Headroom]
		b = append(b, 1<<3|2)
		b = protowire.AppendBytes(b, w.key)
	}
	if newColumn {
		if w.cells > 0 {
			b = closeAt(b, w.colAt)
		}
		if newFamily {
			if w.cells > 0 {
				b = closeAt(b, w.familyAt)
			}
			b = append(b, 2<<3|2, 0)
			w.familyAt = len(b) - 1
			if len(c.Family) > 0 {
				b = append(b, 1<<3|2)
				b = protowire.AppendVarint(b, uint64(len(c.Family)))
				b = append(b, c.Family...)
			}
			w.family = append(w.family[:0], c.Family...)
		}
		b = append(b, 2<<3|2, 0)
		w.colAt = len(b) - 1
		if len(c.Qualifier) > 0 {
			b = append(b, 1<<3|2)
			b = protowire.AppendBytes(b, c.Qualifier)
		}
		w.qualifier = append(w.qualifier[:0], c.Qualifier...)
	}
	b = append(b, 2<<3|2)
	b = protowire.AppendVarint(b, uint64(n))
	if c.Timestamp != 0 {
		b = append(b, 1<<3|0)
		b = protowire.AppendVarint(b, uint64(c.Timestamp))
	}
	if len(c.Value) > 0 {
		b = append(b, 2<<3|2)
		b = protowire.AppendBytes(b, c.Value)
	}
	for _, l := range c.Labels {
		b = append(b, 3<<3|2)
		b = protowire.AppendString(b, l)
	}
	w.seg.buf = b
	w.cells++
}

// closeAt sets the length of the message that begins behind the byte at and
// runs to the end of b, which has room for a longer length.
func closeAt(b []byte, at int) []byte {
	n := uint64(len(b) - at - 1)
	if more := uvarintLen(n) - 1; more > 0 {
		b = b[:len(b)+more]
		copy(b[at+1+more:], b[at+1:len(b)-more])
	}
	protowire.AppendVarint(b[:at], n)
	return b
}

// grow makes room for n more bytes, or fails the row.
func (w *Row) grow(n int) bool {
	used := 0
	if w.seg != nil {
		if used = len(w.seg.buf); cap(w.seg.buf)-used >= n {
			return true
		}
	}
	if used+n > maxRowBytes {
		w.fail(&fault.Error{Kind: fault.FailedPrecondition, Reason: "LargeRowReadError",
			Msg:      "Row exceeds the size limit of 256 MiB",
			Metadata: map[string]string{"rowKeyBase64Encoded": base64.StdEncoding.EncodeToString(w.key)}})
		return false
	}
	want := used + n
	if used > 0 {
		want = min(max(want, 2*used), maxRowBytes)
	}
	s := newSegment(want, false)
	if cap(s.buf) > smallSegment && !s.take(w.Budget) {
		s.free()
		w.fail(noRoom(w.Budget, int64(want)))
		return false
	}
	if w.seg != nil {
		s.buf = append(s.buf, w.seg.buf...)
		w.seg.free()
	}
	w.seg = s
	return true
}

func (w *Row) fail(err error) {
	w.Reset()
	w.err = err
}

// EndRow implements scan.Writer.
func (w *Row) EndRow() (full bool, err error) {
	if w.err != nil {
		return false, w.err
	}
	if w.cells > 0 {
		w.seg.buf = closeAt(closeAt(w.seg.buf, w.colAt), w.familyAt)
		w.done = true
	}
	return false, nil
}

// Scanned implements scan.Writer: no client waits for it.
func (w *Row) Scanned([]byte) {}

// Flush implements scan.Writer. There is nothing to be sent before the row is
// complete.
func (w *Row) Flush() error { return nil }

// Len returns the length of the encoded row. ok is false if there is none.
func (w *Row) Len() (n int, ok bool) {
	if !w.done {
		return 0, false
	}
	return len(w.seg.buf) - Headroom, true
}

// Take returns prefix, of at most Headroom bytes, and the row behind it. w is
// ready for another.
func (w *Row) Take(prefix []byte) mem.Buffer {
	s := w.seg
	w.seg = nil
	w.Reset()
	from := Headroom - len(prefix)
	copy(s.buf[from:], prefix)
	s.out = s.buf[from:]
	return mem.NewBuffer(&s.out, s)
}
