package chunk

import (
	"math"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

const (
	// changeMessage is the size in bytes that a message of changes has at most: one
	// change of an aggregate cell may make it larger, as there is no way to cut it.
	changeMessage = 1 << 20
	// changeValue is the largest value that is not cut, and the size of the parts of
	// those that are. The rest of a message is for a row key, a column and a token.
	changeValue = changeMessage - 128<<10
	// changeTail is room for the end of a record beside its token.
	changeTail = 64
	// changeHead is what is left free before a message, for its length and that of
	// the one inside.
	changeHead = 2 * (1 + 5)
	// changeBatch is the size from which records are sent.
	changeBatch = 128 << 10
)

// The types of a DataChange.
const (
	changeUser         = 1
	changeCollected    = 2
	changeContinuation = 3
)

// ChangeOptions are how a ChangeWriter meets its client.
type ChangeOptions struct {
	// Send passes on an encoded ReadChangeStreamResponse and may block. It owns the
	// buffers.
	Send func(mem.BufferSlice) error
	// Cluster is the id of the cluster that took the writes. It is not empty.
	Cluster string
	// Family returns the name of a column family, an empty one if it was dropped: its
	// changes are left out. An error fails the record.
	Family func(cell.FamilyID) (string, error)
	// Families returns the names of all, ascending: those that deleting a row deletes.
	Families func() []string
	// Token appends the token of the place after the record that is being encoded,
	// which has TokenSize bytes at most. Watermark is that of this place.
	Token     func(dst []byte) []byte
	TokenSize func() int
	Watermark func() cell.Seq
	// Budget is charged for what is held beyond one small segment. Nil has no bound.
	Budget *budget.Budget
}

// A ChangeWriter encodes records of changes as messages of ReadChangeStream. A record
// is one message, or several of about 1 MiB. It is not safe for concurrent use.
type ChangeWriter struct {
	opt  ChangeOptions
	segs []*segment
	msgs []changeSpan
	size int // bytes in msgs
	// tight says that there was no room in the budget for more than one segment.
	tight bool

	// The message that is being made: its body is [body, len) of the last segment.
	open   bool
	body   int
	chunks int // in it
	record struct {
		segs, msgs, size, off int // what there was before the record
		messages              int
		err                   error
	}
}

// A changeSpan is where a message is.
type changeSpan struct{ seg, from, to int }

// NewChangeWriter returns a ChangeWriter. Close it.
func NewChangeWriter(o ChangeOptions) *ChangeWriter { return &ChangeWriter{opt: o} }

// Record encodes a record. When full is true the caller flushes before the next.
// After an error nothing of the record is left.
func (w *ChangeWriter) Record(r *changes.Record) (full bool, err error) {
	b := &w.record
	b.segs, b.msgs, b.size, b.off, b.messages, b.err = len(w.segs), len(w.msgs), w.size, 0, 0, nil
	if b.segs > 0 {
		b.off = len(w.segs[b.segs-1].buf)
	}
	for i := range r.Changes {
		w.change(r, &r.Changes[i])
		if b.err != nil {
			w.drop()
			return false, b.err
		}
	}
	if !w.open && b.messages == 0 {
		return false, nil // nothing is left of it
	}
	if w.tail(); b.err != nil {
		w.drop()
		return false, b.err
	}
	return w.size >= changeBatch || w.tight, nil
}

// drop takes back what there is of the current record.
func (w *ChangeWriter) drop() {
	b := &w.record
	for _, s := range w.segs[b.segs:] {
		s.free()
	}
	clear(w.segs[b.segs:])
	w.segs = w.segs[:b.segs]
	if b.segs > 0 {
		s := w.segs[b.segs-1]
		s.buf = s.buf[:b.off]
	}
	w.msgs, w.size, w.open = w.msgs[:b.msgs], b.size, false
}

// change encodes one change of r.
func (w *ChangeWriter) change(r *changes.Record, c *changes.Change) {
	if c.Op == changes.DeleteRow {
		for _, name := range w.opt.Families() {
			m := appendName(nil, name)
			w.add(r, 0, protowire.AppendBytes([]byte{3<<3 | 2}, m), nil)
		}
		return
	}
	name, err := w.opt.Family(c.Family)
	switch {
	case err != nil:
		w.record.err = err
		return
	case name == "":
		return
	}
	var head [256]byte
	m := appendName(head[:0], name)
	switch c.Op {
	case changes.SetCell:
		m = appendBytes(m, 2, c.Qualifier)
		m = appendVarint(m, 3, uint64(c.Timestamp))
		w.setCell(r, m, c.Value)
	case changes.DeleteFamily:
		w.add(r, 0, protowire.AppendBytes([]byte{3<<3 | 2}, m), nil)
	case changes.DeleteColumn:
		m = appendBytes(m, 2, c.Qualifier)
		var t []byte
		if c.Times.Start > 0 {
			t = appendVarint(t, 1, uint64(c.Times.Start))
		}
		if c.Times.End != math.MaxInt64 {
			t = appendVarint(t, 2, uint64(c.Times.End))
		}
		// Also a range of all times is said.
		m = protowire.AppendBytes(append(m, 3<<3|2), t)
		w.add(r, 0, protowire.AppendBytes([]byte{2<<3 | 2}, m), nil)
	case changes.AddToCell, changes.MergeToCell:
		in, err := changes.ParseInput(c.Value)
		if err != nil {
			w.record.err = err
			return
		}
		m = appendMessage(m, 2, protowire.AppendBytes([]byte{8<<3 | 2}, c.Qualifier))
		m = appendMessage(m, 3, protowire.AppendVarint([]byte{9<<3 | 0}, uint64(c.Timestamp)))
		m = appendMessage(m, 4, appendInput(nil, in))
		field := byte(5)
		if c.Op == changes.MergeToCell {
			field = 6
		}
		w.add(r, 0, protowire.AppendBytes([]byte{field<<3 | 2}, m), nil)
	default:
		w.record.err = fault.New(fault.Corruption, "a record of changes has the operation %d", c.Op)
	}
}

// setCell encodes a SetCell, whose fields but the value are in m.
func (w *ChangeWriter) setCell(r *changes.Record, m, value []byte) {
	if len(value) <= changeValue {
		n := len(m)
		if len(value) > 0 {
			n += sizeBytes(len(value))
		}
		var head [300]byte
		b := protowire.AppendVarint(append(head[:0], 1<<3|2), uint64(n))
		b = append(b, m...)
		if len(value) > 0 {
			b = protowire.AppendVarint(append(b, 4<<3|2), uint64(len(value)))
		}
		w.add(r, 0, b, value)
		return
	}
	for offset := 0; offset < len(value) && w.record.err == nil; {
		part := value[offset:min(offset+changeValue, len(value))]
		last := offset+len(part) == len(value)
		info := appendVarint(nil, 1, uint64(len(value)))
		info = appendVarint(info, 2, uint64(offset))
		if last {
			info = appendVarint(info, 3, 1)
		}
		if offset > 0 {
			m = nil // only the first part says where the value goes
		}
		b := protowire.AppendBytes([]byte{1<<3 | 2}, info) // chunk_info
		head := len(b)
		b = protowire.AppendVarint(append(b, 1<<3|2), uint64(len(m)+sizeBytes(len(part))))
		b = append(b, m...)
		b = protowire.AppendVarint(append(b, 4<<3|2), uint64(len(part)))
		w.add(r, head, b, part)
		if !last {
			w.finish() // what goes on is in the next message
		}
		offset += len(part)
	}
}

// add adds a MutationChunk: info bytes of head are its chunk_info, the rest of head
// and value its mutation.
func (w *ChangeWriter) add(r *changes.Record, info int, head, value []byte) {
	if w.record.err != nil {
		return
	}
	mutation := len(head) - info + len(value)
	n := info + sizeBytes(mutation)
	most := sizeBytes(n)
	if !w.begin(r, most) {
		return
	}
	s := w.segs[len(w.segs)-1]
	b := protowire.AppendVarint(append(s.buf, 6<<3|2), uint64(n))
	b = append(b, head[:info]...)
	b = protowire.AppendVarint(append(b, 2<<3|2), uint64(mutation))
	b = append(b, head[info:]...)
	s.buf = append(b, value...)
	w.chunks++
}

// begin opens a message with room for n more bytes, or finds that there is one. It
// tells whether there is.
func (w *ChangeWriter) begin(r *changes.Record, n int) bool {
	tail := changeTail + w.opt.TokenSize()
	if w.open {
		s := w.segs[len(w.segs)-1]
		if cap(s.buf)-len(s.buf) >= n+tail && len(s.buf)-w.body+n+tail <= changeMessage {
			return true
		}
		if len(s.buf)-w.body+n+tail <= changeMessage && w.grow(n+tail) {
			return true
		}
		if w.record.err != nil {
			return false
		}
		w.finish()
	}
	head := 64 + len(r.Key) + len(w.opt.Cluster)
	s := w.room(changeHead + head + n + tail)
	if s == nil {
		return false
	}
	b := append(s.buf, make([]byte, changeHead)...)
	w.open, w.body, w.chunks = true, len(b), 0
	if w.record.messages > 0 {
		b = append(b, 1<<3|0, changeContinuation)
	} else {
		if r.Collected {
			b = append(b, 1<<3|0, changeCollected)
		} else {
			b = appendBytes(append(b, 1<<3|0, changeUser), 2, []byte(w.opt.Cluster))
		}
		b = appendBytes(b, 3, r.Key)
		b = appendTime(b, 4, stamp.Time(r.Stamp))
		if site := (r.Stamp - stamp.Least) % stamp.Stride; r.Stamp >= stamp.Least && site > 0 {
			b = appendVarint(b, 5, uint64(site))
		}
	}
	s.buf = b
	return true
}

// grow moves the message that is being made to a segment with room for n more bytes.
func (w *ChangeWriter) grow(n int) bool {
	old := w.segs[len(w.segs)-1]
	have := old.buf[w.body-changeHead:]
	s := w.newSegment(max(2*len(have), len(have)+n))
	if s == nil {
		return false
	}
	s.buf = append(s.buf, have...)
	old.buf = old.buf[:w.body-changeHead]
	w.body = changeHead
	if len(old.buf) == 0 && len(w.segs) > w.record.segs {
		old.free()
		w.segs[len(w.segs)-1] = s
		return true
	}
	w.segs = append(w.segs, s)
	return true
}

// room returns the last segment if it has room for n more bytes, or a new one; nil
// after failing the record if the budget is used up.
func (w *ChangeWriter) room(n int) *segment {
	if k := len(w.segs); k > 0 {
		if s := w.segs[k-1]; cap(s.buf)-len(s.buf) >= n {
			return s
		}
	}
	s := w.newSegment(n)
	if s != nil {
		w.segs = append(w.segs, s)
	}
	return s
}

func (w *ChangeWriter) newSegment(n int) *segment {
	s := newSegment(n, len(w.segs) > 0)
	if (len(w.segs) > 0 || cap(s.buf) > smallSegment) && !s.take(w.opt.Budget) {
		s.free()
		if s = newSegment(n, false); cap(s.buf) > smallSegment || w.record.segs < len(w.segs) {
			s.free()
			w.record.err = noRoomForChanges(w.opt.Budget, int64(w.size-w.record.size+n))
			return nil
		}
		w.tight = true
	}
	return s
}

func noRoomForChanges(b *budget.Budget, n int64) error {
	if n > b.Limit() {
		return fault.New(fault.Exhausted, "A change has more than the %d bytes that answers have; see --memory", b.Limit())
	}
	return budget.ReadsBusy("large changes")
}

// tail ends the record, which is open.
func (w *ChangeWriter) tail() {
	s := w.segs[len(w.segs)-1]
	b := append(s.buf, 8<<3|0, 1, 9<<3|2)
	// The token is made in place: its length follows from it.
	start := len(b)
	b = append(b, 0, 0)
	b = w.opt.Token(b)
	n := len(b) - start - 2
	if n < 1<<7 {
		copy(b[start+1:], b[start+2:])
		b = b[:len(b)-1]
		b[start] = byte(n)
	} else if n < 1<<14 {
		b[start], b[start+1] = byte(n)|0x80, byte(n>>7)
	} else {
		token := append([]byte(nil), b[start+2:]...)
		b = protowire.AppendBytes(b[:start], token)
	}
	s.buf = appendTime(b, 10, stamp.Time(w.opt.Watermark()))
	w.finish()
}

// finish ends a message: it gets the lengths before its body.
func (w *ChangeWriter) finish() {
	if !w.open {
		return
	}
	s := w.segs[len(w.segs)-1]
	inner := len(s.buf) - w.body
	// ReadChangeStreamResponse.data_change
	from := w.body - uvarintLen(uint64(inner)) - 1
	protowire.AppendVarint(append(s.buf[:from], 1<<3|2), uint64(inner))
	w.msgs = append(w.msgs, changeSpan{len(w.segs) - 1, from, len(s.buf)})
	w.size += len(s.buf) - from
	w.record.messages++
	w.open = false
}

// Flush sends what there is. After an error some may have been sent.
func (w *ChangeWriter) Flush() error {
	if len(w.msgs) == 0 {
		w.release()
		return nil
	}
	bufs := make([]mem.Buffer, len(w.segs))
	for i, s := range w.segs {
		bufs[i] = s.buffer()
	}
	clear(w.segs)
	w.segs, w.size, w.tight = w.segs[:0], 0, false
	var err error
	for i, m := range w.msgs {
		if err = w.opt.Send(mem.BufferSlice{bufs[m.seg].Slice(m.from, m.to)}); err != nil {
			break
		}
		if i+1 == len(w.msgs) || w.msgs[i+1].seg != m.seg {
			// A segment is free once its messages are on their way.
			bufs[m.seg].Free()
			bufs[m.seg] = nil
		}
	}
	for _, b := range bufs {
		if b != nil {
			b.Free()
		}
	}
	w.msgs = w.msgs[:0]
	return err
}

func (w *ChangeWriter) release() {
	for _, s := range w.segs {
		s.free()
	}
	clear(w.segs)
	w.segs, w.msgs, w.size, w.open, w.tight = w.segs[:0], w.msgs[:0], 0, false, false
}

// Close frees what the ChangeWriter holds. Nothing may be called afterwards.
func (w *ChangeWriter) Close() { w.release() }

// sizeBytes is the size of a field of n bytes with its number, which is below 16.
func sizeBytes(n int) int { return 1 + uvarintLen(uint64(n)) + n }

func appendName(b []byte, name string) []byte {
	b = protowire.AppendVarint(append(b, 1<<3|2), uint64(len(name)))
	return append(b, name...)
}

// appendBytes and appendVarint leave out what is empty, as messages do.
func appendBytes(b []byte, num byte, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return appendMessage(b, num, v)
}

func appendVarint(b []byte, num byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(append(b, num<<3), v)
}

func appendMessage(b []byte, num byte, m []byte) []byte {
	return protowire.AppendBytes(append(b, num<<3|2), m)
}

// appendTime appends a field of type Timestamp.
func appendTime(b []byte, num byte, t time.Time) []byte {
	var a [20]byte
	m := appendVarint(a[:0], 1, uint64(t.Unix()))
	m = appendVarint(m, 2, uint64(t.Nanosecond()))
	return appendMessage(b, num, m)
}

// appendInput appends the fields of a Value.
func appendInput(b []byte, in row.Input) []byte {
	switch in.Kind {
	case row.IntInput:
		return protowire.AppendVarint(append(b, 6<<3|0), uint64(in.Int))
	case row.BytesInput:
		return appendMessage(b, 2, in.Bytes)
	case row.StringInput:
		return appendMessage(b, 3, in.Bytes)
	case row.FloatInput:
		return protowire.AppendFixed64(append(b, 11<<3|1), math.Float64bits(in.Float))
	case row.BoolInput:
		return protowire.AppendVarint(append(b, 10<<3|0), uint64(in.Int))
	case row.TimestampInput:
		return appendTime(b, 12, time.UnixMicro(in.Int))
	case row.DateInput:
		y, m, d := time.Unix(in.Int*24*60*60, 0).UTC().Date()
		date := appendVarint(nil, 1, uint64(y))
		date = appendVarint(date, 2, uint64(m))
		return appendMessage(b, 13, appendVarint(date, 3, uint64(d)))
	case row.RawInput:
		return appendMessage(b, 8, in.Bytes)
	}
	return b
}
