package chunk

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

const (
	// firstMessage and fullMessage are the sizes from which a message is sent:
	// the first one soon, as its reader waits for it.
	firstMessage = 16 << 10
	fullMessage  = 256 << 10
	// MaxMessage is the size in bytes that only a message of a single row exceeds:
	// some clients accept no more than 4 MiB. See Parts.
	MaxMessage = 4<<20 - 64<<10
	// tightMessage is the size from which a message is sent that has one small
	// segment, because the budget had no large one.
	tightMessage = smallSegment / 2
	// maxRowBytes is the size of the encoded row that still fits, with what may
	// follow the last row, a message of schema.MaxRow. Clients accept no more.
	maxRowBytes = schema.MaxRow - 8<<10
	// pieceMessage is the size from which a piece is passed on: it fills a segment,
	// where it goes too. tearBytes is the size above which a piece is of one row
	// only, or of a part of one.
	pieceMessage = largeSegment - 16<<10
	tearBytes    = 1 << 20
	// valuePart is the most of a value that one chunk has; a longer value is cut
	// into several, so that a large row can be sent as several messages.
	valuePart = 1 << 20
	// patchRoom is what a chunk grows by when commit_row is set: the field, and
	// one more byte of length.
	patchRoom = 2 + 1
	// scannedEvery is the least time between two last_scanned_row_keys.
	scannedEvery = time.Second
)

// Encoding is the number of this package's encoding: see scan.EncodedWriter. The
// bytes of a piece are chunks as they are in messages, each row with all that
// it needs. Should one of them ever change, so does the number: servers of two
// versions serve one cluster while it is upgraded.
const Encoding = 1

// Options are how a Writer meets its client.
type Options struct {
	// Send passes an encoded message on and may block. It owns the buffers.
	Send func(mem.BufferSlice) error
	// Piece, if set, takes everything in place of Send: pieces for the Writer of
	// another server. Rows that are large come in several.
	Piece func(*scan.Piece, mem.BufferSlice) error
	// Budget is charged for what a message holds beyond one small segment. Nil has
	// no bound.
	Budget *budget.Budget
	// Page says that the client waits for a number of rows that is not large: the first
	// message need not go out sooner than others.
	Page bool
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
	tight bool       // there was no large segment for the message
	err   error      // of the current row

	// The current row, and the chunk written last: its header is at
	// [chunkAt, bodyAt) of the last segment, its body runs to the segment's end.
	row       position
	key       []byte
	family    []byte
	qualifier []byte
	cells     int
	open      bool // between StartRow and EndRow, or pieces of a row
	sent      int  // bytes of the row in earlier pieces
	chunkAt   int
	bodyAt    int
	// filling says that a piece is coming, from row on unless open.
	filling bool

	// Where the latest complete row began.
	lastRow position

	returned  int64  // complete rows so far
	rowCells  int64  // cells of the complete rows in segs
	lastKey   []byte // of the last complete row
	scanned   []byte // what Scanned said last and was not sent
	scannedAt time.Time
}

// A position is a place in a message.
type position struct {
	seg, off int // segment and offset in it
	size     int // bytes of the message before it
}

var (
	_ scan.EncodedWriter = (*Writer)(nil)
	_ scan.SpaceWriter   = (*Writer)(nil)
)

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
	w.cells, w.sent, w.err, w.open = 0, 0, nil, true
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
	value, rest := c.Value, []byte(nil)
	if len(value) > valuePart {
		value, rest = value[:valuePart], value[valuePart:]
		n += 1 + uvarintLen(uint64(len(c.Value)))
	}
	if len(value) > 0 {
		n += 1 + uvarintLen(uint64(len(value))) + len(value)
	}
	s, b := w.chunk(n)
	if s == nil {
		return
	}
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
	if len(value) > 0 {
		b = append(b, 6<<3|2)
		b = protowire.AppendVarint(b, uint64(len(value)))
		b = append(b, value...)
	}
	s.buf = b
	w.cells++
	if rest != nil {
		s.buf = appendSize(b, len(c.Value))
		w.value(rest, len(c.Value))
	}
}

// value writes the rest of a value of size bytes, behind its first chunk. All
// chunks of it but the last name the size.
func (w *Writer) value(rest []byte, size int) {
	for len(rest) > 0 {
		part := rest[:min(len(rest), valuePart)]
		rest = rest[len(part):]
		n := 1 + uvarintLen(uint64(len(part))) + len(part)
		if len(rest) > 0 {
			n += 1 + uvarintLen(uint64(size))
		}
		s, b := w.chunk(n)
		if s == nil {
			return
		}
		b = append(b, 6<<3|2)
		b = protowire.AppendVarint(b, uint64(len(part)))
		s.buf = append(b, part...)
		if len(rest) > 0 {
			s.buf = appendSize(s.buf, size)
		}
	}
}

func appendSize(b []byte, size int) []byte {
	return protowire.AppendVarint(append(b, 7<<3|0), uint64(size))
}

// chunk begins a chunk whose body has n bytes. It returns the segment for them
// and what it holds then, or nil after failing the row.
func (w *Writer) chunk(n int) (*segment, []byte) {
	head := 1 + uvarintLen(uint64(n))
	if w.sent+w.size-w.row.size+head+n+patchRoom > maxRowBytes {
		w.fail(w.tooLarge())
		return nil, nil
	}
	if w.opt.Piece != nil && w.size > 0 && w.size+head+n > tearBytes {
		if w.err = w.tear(); w.err != nil {
			return nil, nil
		}
	}
	s := w.room(head + n + patchRoom)
	if s == nil {
		return nil, nil
	}
	b := s.buf
	w.chunkAt = len(b)
	b = protowire.AppendVarint(append(b, 1<<3|2), uint64(n))
	w.bodyAt = len(b)
	w.size += head + n
	return s, b
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
	if (len(w.segs) > 0 || cap(s.buf) > smallSegment) && !s.take(w.opt.Budget) {
		s.free()
		if len(w.segs) > 0 || n > smallSegment {
			w.fail(noRoom(w.opt.Budget, int64(w.size+n)))
			return nil
		}
		// All can go on with a small one, in small messages.
		s, w.tight = newSegment(n, false), true
	}
	w.segs = append(w.segs, s)
	return s
}

// noRoom returns the error of a row that has n bytes so far, for which b has no
// room.
func noRoom(b *budget.Budget, n int64) error {
	if n > b.Limit() {
		return &fault.Error{Kind: fault.Exhausted, Reason: "LargeRowReadError",
			Msg: fmt.Sprintf("The row has more than the %d bytes that answers have; see --memory", b.Limit())}
	}
	return budget.ReadsBusy("large rows")
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

// tear passes on what there is: the rows that are complete, then what there is
// of the current one.
func (w *Writer) tear() error {
	rows := scan.Piece{Rows: int64(w.rows), Cells: w.rowCells, Key: w.lastKey}
	at, part := w.row, w.size-w.row.size
	before, after := split(w.take(), at)
	w.row, w.sent = position{seg: -1}, w.sent+part
	if rows.Rows == 0 {
		before.Free()
	} else if err := w.opt.Piece(&rows, before); err != nil {
		after.Free()
		return err
	}
	if part == 0 {
		after.Free()
		return nil
	}
	return w.opt.Piece(&scan.Piece{Key: w.key, Open: true}, after)
}

// take makes a message of what there is.
func (w *Writer) take() mem.BufferSlice {
	// The buffers belong to the message from here on.
	bufs := make(mem.BufferSlice, 0, len(w.segs)+1)
	for _, s := range w.segs {
		bufs = append(bufs, s.buffer())
	}
	clear(w.segs)
	w.segs = w.segs[:0]
	w.size, w.rows, w.rowCells, w.first, w.tight = 0, 0, 0, false, false
	return bufs
}

// Encoding implements scan.EncodedWriter.
func (w *Writer) Encoding() uint64 { return Encoding }

// Room implements scan.EncodedWriter.
func (w *Writer) Room(n int) ([]byte, error) {
	if !w.filling {
		if !w.open && w.rows > 0 && w.size+n > MaxMessage {
			if err := w.send(nil); err != nil {
				return nil, err
			}
		}
		if w.filling = true; !w.open {
			w.row, w.sent, w.err = w.position(), 0, nil
		}
	}
	if n <= 0 || w.size-w.row.size+n > maxRowBytes {
		return nil, fault.New(fault.Internal, "a piece of %d bytes behind %d of its row", n, w.size-w.row.size)
	}
	free := 0
	if k := len(w.segs); k > 0 {
		free = cap(w.segs[k-1].buf) - len(w.segs[k-1].buf)
	}
	if free < min(n, smallSegment) {
		free = largeSegment
	}
	n = min(n, free)
	s := w.room(n)
	if s == nil {
		return nil, w.err
	}
	at := len(s.buf)
	s.buf = s.buf[:at+n]
	w.size += n
	return s.buf[at:], nil
}

// Encoded implements scan.EncodedWriter.
func (w *Writer) Encoded(p *scan.Piece) (full bool, err error) {
	if w.filling = false; p.Open {
		w.open, w.key = true, append(w.key[:0], p.Key...)
		return false, nil
	}
	w.open = false
	w.ended(int(p.Rows), w.row, p.Cells, p.Key)
	return w.full(), nil
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
	w.ended(1, w.row, int64(w.cells), w.key)
	return w.full(), nil
}

// ended counts complete rows, the last of which has the key and begins at at.
func (w *Writer) ended(rows int, at position, cells int64, key []byte) {
	w.rows += rows
	w.returned += int64(rows)
	w.rowCells += cells
	w.lastRow = at
	w.lastKey = append(w.lastKey[:0], key...)
	w.scanned = w.scanned[:0]
}

// most is the size from which the message is sent, unless it is the first.
func (w *Writer) most() int {
	switch {
	case w.tight:
		return tightMessage
	case w.opt.Piece != nil:
		return pieceMessage
	}
	return fullMessage
}

// Space implements scan.SpaceWriter.
func (w *Writer) Space() int {
	most := w.most()
	if w.soon() {
		most = min(most, firstMessage)
	}
	return max(most-w.size, 1)
}

// soon tells whether the message is to go out soon, as the client waits for it.
func (w *Writer) soon() bool { return w.first && !w.opt.Page }

func (w *Writer) full() bool {
	// The end of a row that is in pieces is a piece of its own.
	return w.size >= w.most() || w.sent > 0 || w.soon() && w.size >= firstMessage ||
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
	if w.open || w.filling {
		w.open, w.filling = false, false
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
	size, rows, last := w.size, w.rows, w.lastRow
	cells := w.rowCells
	bufs := w.take()
	if w.opt.Piece != nil {
		return w.opt.Piece(&scan.Piece{Rows: int64(rows), Cells: cells, Key: w.lastKey}, bufs)
	}
	if rows > 1 && size > MaxMessage {
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

// Parts sends a message of a Writer as several of at most MaxMessage bytes each,
// which takes a row apart. send owns the buffers it is given. Parts returns its
// error.
func Parts(m mem.BufferSlice, send func(mem.BufferSlice) error) error {
	for left := m.Len(); left > MaxMessage; {
		p := cut(m)
		before, after := split(m, p)
		if err := send(before); err != nil {
			after.Free()
			return err
		}
		m, left = after, left-p.size
	}
	return send(m)
}

// cut returns where the last of the fields ends that fit MaxMessage, or the
// first one. All fields of a ReadRowsResponse have a length, and none has more
// than valuePart, a key, a qualifier and labels.
func cut(m mem.BufferSlice) position {
	var p position
	next := func() byte {
		for p.off == m[p.seg].Len() {
			p.seg, p.off = p.seg+1, 0
		}
		p.off++
		return m[p.seg].ReadOnlyData()[p.off-1]
	}
	for {
		at, n := p, 0
		next()
		size := p.size + 1
		for shift := 0; ; shift += 7 {
			b := next()
			size++
			if n |= int(b&0x7f) << shift; b < 0x80 {
				break
			}
		}
		if size += n; size > MaxMessage && at.size > 0 {
			return at
		}
		for n > m[p.seg].Len()-p.off {
			n -= m[p.seg].Len() - p.off
			p.seg, p.off = p.seg+1, 0
		}
		p.off += n
		p.size = size
	}
}

// release frees what was not sent.
func (w *Writer) release() {
	for _, s := range w.segs {
		s.free()
	}
	clear(w.segs)
	w.segs, w.size, w.rows, w.rowCells = w.segs[:0], 0, 0, 0
}

// Close frees what the Writer holds. Nothing may be called afterwards.
func (w *Writer) Close() {
	w.release()
	*w = Writer{segs: w.segs, key: w.key[:0], family: w.family[:0], qualifier: w.qualifier[:0],
		lastKey: w.lastKey[:0], scanned: w.scanned[:0]}
	writers.Put(w)
}
