package request

import (
	"encoding/binary"
	"sync/atomic"
)

// traced says that a SpanContext follows the id.
const traced = 1

// AppendTo appends what another process has to know of a request to do a part of it: the
// id, and the span s of this part, unless that is nil.
func (r *Record) AppendTo(b []byte, s Span) []byte {
	var flags byte
	if s != nil {
		flags = traced
	}
	b = binary.BigEndian.AppendUint64(append(b, flags), r.ID())
	if s != nil {
		c := s.Context()
		b = append(append(append(b, c.Trace[:]...), c.Span[:]...), c.Flags)
	}
	return b
}

// Parse reads what AppendTo wrote into an unused Record. It returns false if b is not that. The
// SpanContext is nil if the request is not traced.
func (r *Record) Parse(b []byte) (*SpanContext, bool) {
	if len(b) < 9 {
		return nil, false
	}
	flags := b[0]
	r.SetID(binary.BigEndian.Uint64(b[1:]))
	if b = b[9:]; flags&traced == 0 {
		return nil, true
	}
	if len(b) < 25 {
		return nil, false
	}
	c := new(SpanContext)
	copy(c.Trace[:], b)
	copy(c.Span[:], b[16:])
	c.Flags = b[24]
	return c, true
}

// AppendTo appends what one process tells another of the work that it did for it.
func (w *Work) AppendTo(b []byte) []byte {
	for _, p := range w.parts() {
		b = binary.AppendUvarint(b, uint64(max(p.Load(), 0)))
	}
	return b
}

// AddEncoded adds the work that AppendTo wrote. It returns false, and adds nothing, if b is
// not that. What follows is a later version's.
func (w *Work) AddEncoded(b []byte) bool {
	var read [7]int64
	for i := range read {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 {
			return false
		}
		read[i], b = int64(v), b[n:]
	}
	for i, p := range w.parts() {
		addUnlessZero(p, read[i])
	}
	return true
}

func addUnlessZero(p *atomic.Int64, v int64) {
	if v != 0 {
		p.Add(v)
	}
}
