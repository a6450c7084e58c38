package chunk

import (
	"bytes"
	"encoding/base64"
	"math/bits"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

const (
	// firstMessage and fullMessage are the sizes from which a message is sent:
	// the first one soon, for the sake of who waits for it.
	firstMessage = 16 << 10
	fullMessage  = 256 << 10
	// maxMessage is the size that only a message of a single row exceeds: some
	// clients accept no more than 4 MiB.
	maxMessage = 4<<20 - 64<<10
	// freeBytes of a message are not charged to the budget.
	freeBytes = 1 << 20
	// maxRowBytes is the size of the encoded row that still fits, with what may
	// follow the last row, a message of schema.MaxRow. Clients accept no more.
	maxRowBytes = schema.MaxRow - 8<<10
	// patchRoom is what a chunk grows by when commit_row is set: the field, and
	// one more byte of length.
	patchRoom = 2 + 1
	// scannedEvery is the least time between two last_scanned_row_keys.
	scannedEvery = time.Second
)

// Options are how a Writer meets its client.
type Options struct {
	// Send passes an encoded message on and may block. It owns the buffers.
	Send func(mem.BufferSlice) error
	// Budget is charged for what a stream holds above 1 MiB.
	Budget *Budget
	// LastScanned allows last_scanned_row_key messages.
	LastScanned bool
	// Now is time.Now unless a test says otherwise.
	Now func() time.Time
}

// A Writer is the scan.Writer of one ReadRows stream. It is not safe for
// concurrent use.
type Writer struct {
	opt Options

	segs  []*segment // of the message being built
	size  int        // bytes in segs
	rows  int        // complete rows in segs
	first bool       // no message was sent yet
	err   error      // of the current row

	// The current row, and the chunk written last: its header is at
	// [chunkAt, bodyAt) of the last segment, its body runs to the segment's end.
	row       position
	key       []byte
	family    []byte
	qualifier []byte
	cells     int
	open      bool // between StartRow and EndRow
	chunkAt   int
	bodyAt    int

	// Where the latest complete row began.
	lastRow position

	returned  int64  // complete rows so far
	lastKey   []byte // of the last complete row
	scanned   []byte // what Scanned said last and was not sent
	scannedAt time.Time
}

// A position is a place in a message.
type position struct {
	seg, off int // segment and offset in it
	size     int // bytes of the message before it
}

var _ scan.Writer = (*Writer)(nil)

var writers sync.Pool

// NewWriter returns a Writer. Close it.
func NewWriter(o Options) *Writer {
	if o.Now == nil {
		o.Now = time.Now
	}
	w, ok := writers.Get().(*Writer)
	if !ok {
		w = new(Writer)
	}
	w.opt, w.first = o, true
	if o.LastScanned {
		w.scannedAt = o.Now()
	}
	return w
}

// StartRow implements scan.Writer.
func (w *Writer) StartRow(key []byte) {
	w.row = w.position()
	w.key = append(w.key[:0], key...)
	w.cells, w.err, w.open = 0, nil, true
}

func (w *Writer) position() position {
	p := position{seg: len(w.segs) - 1, size: w.size}
	if p.seg >= 0 {
		p.off = len(w.segs[p.seg].buf)
	}
	return p
}

func uvarintLen(x uint64) int { return (bits.Len64(x|1) + 6) / 7 }

// Cell implements scan.Writer.
func (w *Writer) Cell(c *row.Cell) {
	if w.err != nil {
		return
	}
	newFamily := w.cells == 0 || c.Family != string(w.family)
	newColumn := newFamily || !bytes.Equal(c.Qualifier, w.qualifier)
	n := 0
	if w.cells == 0 {
		n += 1 + uvarintLen(uint64(len(w.key))) + len(w.key)
	}
	famLen, qualLen := 0, 0 // of the wrapper messages
	if newFamily {
		if len(c.Family) > 0 {
			famLen = 1 + uvarintLen(uint64(len(c.Family))) + len(c.Family)
		}
		n += 1 + uvarintLen(uint64(famLen)) + famLen
	}
	if newColumn {
		if len(c.Qualifier) > 0 {
			qualLen = 1 + uvarintLen(uint64(len(c.Qualifier))) + len(c.Qualifier)
		}
		n += 1 + uvarintLen(uint64(qualLen)) + qualLen
	}
	if c.Timestamp != 0 {
		n += 1 + uvarintLen(uint64(c.Timestamp))
	}
	for _, l := range c.Labels {
		n += 1 + uvarintLen(uint64(len(l))) + len(l)
	}
	if len(c.Value) > 0 {
		n += 1 + uvarintLen(uint64(len(c.Value))) + len(c.Value)
	}
	head := 1 + uvarintLen(uint64(n))
	if w.size-w.row.size+head+n+patchRoom > maxRowBytes {
		w.fail(w.tooLarge())
		return
	}
	s := w.room(head + n + patchRoom)
	if s == nil {
		return
	}

	b := s.buf
	w.chunkAt = len(b)
	b = append(b, 1<<3|2)
	b = protowire.AppendVarint(b, uint64(n))
	w.bodyAt = len(b)
	if w.cells == 0 {
		b = append(b, 1<<3|2)
		b = protowire.AppendVarint(b, uint64(len(w.key)))
		b = append(b, w.key...)
	}
	if newFamily {
		b = append(b, 2<<3|2)
		b = protowire.AppendVarint(b, uint64(famLen))
		if famLen > 0 {
			b = append(b, 1<<3|2)
			b = protowire.AppendVarint(b, uint64(len(c.Family)))
			b = append(b, c.Family...)
		}
		w.family = append(w.family[:0], c.Family...)
	}
	if newColumn {
		b = append(b, 3<<3|2)
		b = protowire.AppendVarint(b, uint64(qualLen))
		if qualLen > 0 {
			b = append(b, 1<<3|2)
			b = protowire.AppendVarint(b, uint64(len(c.Qualifier)))
			b = append(b, c.Qualifier...)
		}
		w.qualifier = append(w.qualifier[:0], c.Qualifier...)
	}
	if c.Timestamp != 0 {
		b = append(b, 4<<3|0)
		b = protowire.AppendVarint(b, uint64(c.Timestamp))
	}
	for _, l := range c.Labels {
		b = append(b, 5<<3|2)
		b = protowire.AppendVarint(b, uint64(len(l)))
		b = append(b, l...)
	}
	if len(c.Value) > 0 {
		b = append(b, 6<<3|2)
		b = protowire.AppendVarint(b, uint64(len(c.Value)))
		b = append(b, c.Value...)
	}
	s.buf = b
	w.size += head + n
	w.cells++
}

// room returns the last segment with room for n more bytes, or a new one. It
// returns nil after failing the row if the budget is used up.
func (w *Writer) room(n int) *segment {
	if k := len(w.segs); k > 0 {
		if s := w.segs[k-1]; cap(s.buf)-len(s.buf) >= n {
			return s
		}
	}
	s := newSegment(n, len(w.segs) > 0 || !w.first)
	if w.size+cap(s.buf) > freeBytes && !w.opt.Budget.charge(s) {
		s.free()
		// The client resumes after the last row it got.
		w.fail(&fault.Error{Kind: fault.Unavailable, Reason: "READ_BUFFERS_EXHAUSTED", RetryAfter: time.Second,
			Msg: "The memory for large rows is in use, try again"})
		return nil
	}
	w.segs = append(w.segs, s)
	return s
}

// fail gives the current row up.
func (w *Writer) fail(err error) {
	w.err = err
	w.truncate(w.row)
}

// truncate drops what is behind p.
func (w *Writer) truncate(p position) {
	for _, s := range w.segs[p.seg+1:] {
		s.free()
	}
	clear(w.segs[p.seg+1:])
	w.segs = w.segs[:p.seg+1]
	if p.seg >= 0 {
		s := w.segs[p.seg]
		s.buf = s.buf[:p.off]
	}
	w.size = p.size
}

func (w *Writer) tooLarge() error {
	return &fault.Error{Kind: fault.FailedPrecondition, Reason: "LargeRowReadError",
		Msg:      "Row exceeds the size limit of 256 MiB",
		Metadata: map[string]string{"rowKeyBase64Encoded": base64.StdEncoding.EncodeToString(w.key)}}
}

// EndRow implements scan.Writer. After an error the rows before this one are
// still there to be flushed.
func (w *Writer) EndRow() (full bool, err error) {
	w.open = false
	if w.err != nil {
		return false, w.err
	}
	if w.cells == 0 {
		return w.full(), nil
	}
	w.commit()
	w.rows++
	w.returned++
	w.lastRow = w.row
	w.lastKey = append(w.lastKey[:0], w.key...)
	w.scanned = w.scanned[:0]
	return w.full(), nil
}

func (w *Writer) full() bool {
	return w.size >= fullMessage || w.first && w.size >= firstMessage ||
		len(w.scanned) > 0 && w.opt.Now().Sub(w.scannedAt) >= scannedEvery
}

// commit sets commit_row in the last chunk. Its segment has patchRoom left.
func (w *Writer) commit() {
	s := w.segs[len(w.segs)-1]
	b := append(s.buf, 9<<3|0, 1)
	old := w.bodyAt - w.chunkAt - 1
	n := len(b) - w.bodyAt
	if need := uvarintLen(uint64(n)); need > old {
		b = append(b, 0)
		copy(b[w.bodyAt+1:], b[w.bodyAt:])
		w.size++
	}
	protowire.AppendVarint(b[:w.chunkAt+1], uint64(n))
	s.buf = b
	w.size += 2
}

// Scanned implements scan.Writer.
func (w *Writer) Scanned(key []byte) {
	if w.opt.LastScanned {
		w.scanned = append(w.scanned[:0], key...)
	}
}

// Flush implements scan.Writer: it sends the rows that are complete. A read that
// failed may have left a row without its end; that is dropped.
func (w *Writer) Flush() error {
	if w.open {
		w.open = false
		w.truncate(w.row)
	}
	return w.send(nil)
}

// Finish sends what is left. tail holds further encoded fields of the last
// message, and makes it be sent even if there is no row for it.
func (w *Writer) Finish(tail []byte) error { return w.send(tail) }

// RowsReturned returns the number of complete rows so far.
func (w *Writer) RowsReturned() int64 { return w.returned }

func (w *Writer) send(tail []byte) error {
	if w.opt.LastScanned && len(w.scanned) > 0 {
		if now := w.opt.Now(); now.Sub(w.scannedAt) >= scannedEvery {
			w.scannedAt = now
			if !bytes.Equal(w.scanned, w.lastKey) || w.returned == 0 {
				// Field 2 goes before the tail's field 3.
				b := protowire.AppendTag(nil, 2, protowire.BytesType)
				tail = append(protowire.AppendBytes(b, w.scanned), tail...)
			}
			w.scanned = w.scanned[:0]
		}
	}
	if w.size == 0 && len(tail) == 0 {
		w.release()
		return nil
	}
	// Buffers first: from here on they belong to the messages.
	bufs := make(mem.BufferSlice, 0, len(w.segs)+1)
	for _, s := range w.segs {
		bufs = append(bufs, s.buffer())
	}
	clear(w.segs)
	w.segs = w.segs[:0]
	size, rows, last := w.size, w.rows, w.lastRow
	w.size, w.rows, w.first = 0, 0, false
	if rows > 1 && size > maxMessage {
		// The last row made it too large: it goes alone.
		before, after := split(bufs, last)
		if err := w.opt.Send(before); err != nil {
			after.Free()
			return err
		}
		bufs = after
	}
	if len(tail) > 0 {
		bufs = append(bufs, mem.SliceBuffer(tail))
	}
	return w.opt.Send(bufs)
}

// split cuts a message at p.
func split(bufs mem.BufferSlice, p position) (before, after mem.BufferSlice) {
	for i, b := range bufs {
		switch {
		case i < p.seg || i == p.seg && p.off == b.Len():
			before = append(before, b)
		case i == p.seg:
			before = append(before, b.Slice(0, p.off))
			after = append(after, b.Slice(p.off, b.Len()))
			b.Free()
		default:
			after = append(after, b)
		}
	}
	return before, after
}

// release frees what was not sent.
func (w *Writer) release() {
	for _, s := range w.segs {
		s.free()
	}
	clear(w.segs)
	w.segs, w.size, w.rows = w.segs[:0], 0, 0
}

// Close frees what the Writer holds. Nothing may be called afterwards.
func (w *Writer) Close() {
	w.release()
	*w = Writer{segs: w.segs, key: w.key[:0], family: w.family[:0], qualifier: w.qualifier[:0],
		lastKey: w.lastKey[:0], scanned: w.scanned[:0]}
	writers.Put(w)
}
