package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
)

// The records of an answer with changes.
const (
	changesRecord = iota + 1 // stamp, key, the chunk, changes
	changesMark              // position: a watermark
	changesEnd               // everything up to Until was given
)

func appendPosition(b []byte, p *changes.Position) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.Through)), uint64(p.ChunkEnd))
	return binary.AppendUvarint(appendBytes(b, p.Row), uint64(p.Stamp))
}

func (d *decoder) position() changes.Position {
	return changes.Position{Through: cell.Seq(d.Uvarint()), ChunkEnd: cell.Seq(d.Uvarint()), Row: d.bytes(), Stamp: cell.Seq(d.Uvarint())}
}

func appendChangesRead(b []byte, req *rpc.ChangesRead) []byte {
	b = binary.AppendUvarint(b, req.Life)
	b = appendPosition(appendRange(b, req.Within), &req.From)
	b = binary.AppendVarint(binary.AppendUvarint(b, uint64(req.Until)), int64(req.Every))
	// Earlier versions end here, and leave alone what follows.
	switch {
	case req.Untold:
		return b
	case req.Rows:
		return append(b, 1)
	}
	return append(b, 0)
}

func (d *decoder) changesRead() *rpc.ChangesRead {
	req := &rpc.ChangesRead{Life: d.Uvarint(), Within: d.rowRange(), From: d.position(), Until: cell.Seq(d.Uvarint()), Every: time.Duration(d.Varint())}
	if req.Untold = d.Len() == 0; !req.Untold {
		req.Rows = d.Byte() != 0
	}
	return req
}

func appendChanges(b []byte, r *changes.Record) []byte {
	b = binary.AppendUvarint(append(b, changesRecord), uint64(r.Stamp))
	b = appendBytes(b, r.Key)
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(r.Through)), uint64(r.ChunkEnd))
	var collected byte
	if r.Collected {
		collected = 1
	}
	b = binary.AppendUvarint(append(b, collected), uint64(len(r.Changes)))
	for i := range r.Changes {
		c := &r.Changes[i]
		b = binary.AppendUvarint(append(b, byte(c.Op)), uint64(c.Family))
		b = binary.AppendVarint(appendBytes(b, c.Qualifier), c.Timestamp)
		b = appendBytes(b, c.Value)
		b = binary.AppendVarint(binary.AppendVarint(b, c.Times.Start), c.Times.End)
	}
	return b
}

// changes decodes what appendChanges wrote behind its kind into r, whose slices alias the
// message.
func (d *decoder) changes(r *changes.Record) {
	r.Stamp, r.Key = cell.Seq(d.Uvarint()), d.bytes()
	r.Through, r.ChunkEnd = cell.Seq(d.Uvarint()), cell.Seq(d.Uvarint())
	r.Collected, r.Changes = d.Byte() != 0, r.Changes[:0]
	for range d.Count() {
		c := changes.Change{Op: changes.Op(d.Byte()), Family: cell.FamilyID(d.Uvarint()), Qualifier: d.bytes(), Timestamp: d.Varint(), Value: d.bytes()}
		c.Times.Start, c.Times.End = d.Varint(), d.Varint()
		if d.Bad() {
			return
		}
		r.Changes = append(r.Changes, c)
	}
}

// A changesWriter makes messages of changes.
type changesWriter struct {
	b    []byte
	send func([]byte) error
}

var _ changes.Writer = (*changesWriter)(nil)

// Record implements changes.Writer.
func (w *changesWriter) Record(r *changes.Record, _ changes.Position) (bool, error) {
	w.begin()
	w.b = appendChanges(w.b, r)
	return len(w.b) >= rowsBytes, nil
}

func (w *changesWriter) begin() {
	if len(w.b) == 0 {
		w.b = append(batches.empty(), answerOK)
	}
}

// Flush implements changes.Writer.
func (w *changesWriter) Flush() error {
	b := w.b
	if w.b = nil; len(b) == 0 {
		return nil
	}
	return w.send(b)
}

// Watermark implements changes.Writer.
func (w *changesWriter) Watermark(at changes.Position) error {
	w.begin()
	w.b = appendPosition(append(w.b, changesMark), &at)
	return w.Flush()
}

// changes answers a read of changes.
func (s *Server) changes(st grpc.ServerStream) (err error) {
	var in raw
	if err := st.RecvMsg(&in); err != nil {
		return err
	}
	send := func(b []byte) error { return st.SendMsg(&raw{b, true}) }
	defer func() {
		if r := recover(); r != nil {
			s.o.Log.Error("a read of changes of another server ended in a panic", "panic", r, "stack", string(debug.Stack()))
			err = send(appendError([]byte{answerError}, fault.New(fault.Internal, "panic: %v", r)))
		}
	}()
	return s.sendChanges(st.Context(), in.b, send)
}

// sendChanges sends the messages that answer a question.
func (s *Server) sendChanges(ctx context.Context, question []byte, send func([]byte) error) error {
	d := decoderOf(question)
	at, req := d.target(), d.changesRead()
	if d.Bad() || req.Every <= 0 {
		return errMalformed
	}
	var lost error
	w := &changesWriter{send: func(b []byte) error {
		lost = send(b)
		return lost
	}}
	err := s.to.ReadChanges(ctx, at, req, w)
	if lost != nil {
		return lost
	}
	if err == nil {
		w.begin()
		w.b = append(w.b, changesEnd)
	}
	if ferr := w.Flush(); ferr != nil || err == nil {
		return ferr
	}
	return send(appendError([]byte{answerError}, err))
}

// ReadChanges implements rpc.Data.
func (p *peer) ReadChanges(ctx context.Context, at rpc.Target, req *rpc.ChangesRead, w changes.Writer) error {
	question := appendChangesRead(appendTarget(nil, at), req)
	var r changesReader
	if p.inline != nil {
		return p.inline.sendChanges(ctx, question, func(b []byte) error { return r.read(b, w) })
	}
	l, err := p.get(ctx)
	if err != nil {
		return err
	}
	l.acquire()
	defer l.release()
	p.d.Forwarded.Add(1)
	during, cancel := l.boundContext(ctx)
	defer cancel()
	s, err := l.grpc.NewStream(during, &changesDesc, methodChanges)
	if err != nil {
		return p.translateGRPC(ctx, err, false)
	}
	if err := s.SendMsg(&raw{b: question}); err != nil && !errors.Is(err, io.EOF) {
		return p.translateGRPC(ctx, err, false)
	}
	if err := s.CloseSend(); err != nil {
		return p.translateGRPC(ctx, err, false)
	}
	m := raw{pooled: true}
	defer m.free()
	for !r.ended {
		m.free()
		if err := s.RecvMsg(&m); err != nil {
			return p.translateGRPC(ctx, err, false)
		}
		l.lastHeard.Store(now())
		if err := r.read(m.b, w); err != nil {
			return err
		}
	}
	return nil
}

// A changesReader gives messages to a Writer.
type changesReader struct {
	rec   changes.Record
	ended bool
}

// read gives w what is in a message. An error of w comes as it is.
func (r *changesReader) read(b []byte, w changes.Writer) error {
	if len(b) == 0 {
		return errMalformed
	}
	switch d := decoderOf(b[1:]); b[0] {
	case answerOK:
		return r.give(d, w)
	case answerError:
		return d.error()
	}
	return errMalformed
}

// give gives w the records of a message.
func (r *changesReader) give(d decoder, w changes.Writer) error {
	taken := false
	flush := func() error {
		if !taken {
			return nil
		}
		taken = false
		return w.Flush()
	}
	for d.Len() > 0 && !r.ended {
		switch d.Byte() {
		case changesRecord:
			d.changes(&r.rec)
			if d.Bad() {
				return errMalformed
			}
			full, err := w.Record(&r.rec, r.rec.After())
			if err != nil {
				return err
			}
			if taken = true; full {
				if err := flush(); err != nil {
					return err
				}
			}
		case changesMark:
			at := d.position()
			if d.Bad() {
				return errMalformed
			}
			if err := flush(); err != nil {
				return err
			}
			if err := w.Watermark(at); err != nil {
				return err
			}
		case changesEnd:
			r.ended = true
		default:
			return errMalformed
		}
	}
	return flush()
}
