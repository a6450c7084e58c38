package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const methodOpen = "/google.bigtable.v2.Bigtable/OpenTable"

// A session is a worker's stream of virtual calls, one at a time.
type session struct {
	stream grpc.ClientStream
	table  string
	cancel context.CancelFunc
	id     uint64
	resp   raw
}

// appendOpen appends a SessionRequest that opens a table for reading and
// writing.
func appendOpen(b []byte, table string) []byte {
	payload := appendVarint(appendBytes(nil, 1, []byte(table)), 3, 3)
	b = appendLen(b, 1, 2+sizeBytes(len(payload)))
	b = appendVarint(b, 1, 1)
	return appendBytes(b, 5, payload)
}

// appendCall appends a SessionRequest with a virtual call whose payload, the
// TableRequest's member op of n bytes, follows.
func appendCall(b []byte, id uint64, op protowire.Number, n int) []byte {
	payload := sizeBytes(n)
	b = appendLen(b, 3, 1+protowire.SizeVarint(id)+sizeBytes(payload))
	b = appendVarint(b, 1, id)
	b = appendLen(b, 4, payload)
	return appendLen(b, op, n)
}

// sessionFor returns the worker's session on a table, and opens it first.
func (w *worker) sessionFor(table string) (*session, error) {
	if w.session != nil && w.session.table == table {
		return w.session, nil
	}
	w.closeSession()
	// The session outlives the operation that opens it.
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{table: table, cancel: cancel}
	var err error
	if s.stream, err = w.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, methodOpen, rawCall...); err == nil {
		err = s.stream.SendMsg(&raw{bytes: appendOpen(nil, table)})
	}
	if err != nil && !errors.Is(err, io.EOF) {
		cancel()
		return nil, err
	}
	w.session = s
	return s, nil
}

func (w *worker) closeSession() {
	if w.session != nil {
		w.session.resp.free()
		w.session.cancel()
		w.session = nil
	}
}

// virtual sends the virtual call in w.req and passes the payload of its answer
// on.
func (w *worker) virtual(s *session, answer func(payload []byte) error) error {
	err := s.stream.SendMsg(&raw{bytes: w.req})
	if errors.Is(err, io.EOF) {
		err = nil // RecvMsg tells why
	}
	for err == nil {
		if err = s.stream.RecvMsg(&s.resp); err != nil {
			break
		}
		kind, v, _, _, perr := next(s.resp.bytes)
		if perr != nil {
			return perr
		}
		switch kind {
		case 2:
			w.unaryTraffic.add(traffic{1, 1, uint64(len(w.req)), uint64(len(s.resp.bytes))})
			return s.outcome(v, answer)
		case 3:
			return s.failed(v)
		case 6:
			err = status.Error(codes.Unavailable, "the session has to go away")
		}
	}
	w.req = nil // gRPC may still hold it
	w.closeSession()
	return err
}

func (s *session) outcome(b []byte, answer func([]byte) error) error {
	var payload []byte
	id := uint64(0)
	for len(b) > 0 {
		f, v, n, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		switch f {
		case 1:
			id = n
		case 3:
			payload = v
		}
	}
	if id != s.id {
		return fmt.Errorf("%w: an answer to call %d, where %d was made", errMessage, id, s.id)
	}
	return answer(payload)
}

// failed returns the error of an ErrorResponse.
func (s *session) failed(b []byte) error {
	code, text := codes.Unknown, ""
	for len(b) > 0 {
		f, v, _, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		for f == 3 && len(v) > 0 { // google.rpc.Status
			f, inner, n, rest, err := next(v)
			if err != nil {
				return err
			}
			v = rest
			switch f {
			case 1:
				code = codes.Code(n)
			case 2:
				text = string(inner)
			}
		}
	}
	return status.Error(code, text)
}

// virtualMutate is mutate in a session.
func (w *worker) virtualMutate(d *dataset) error {
	s, err := w.sessionFor(d.name)
	if err != nil {
		return err
	}
	s.id++
	n := sizeBytes(len(w.key))
	for i := range w.sets {
		n += sizeBytes(sizeBytes(w.sets[i].cellSize()))
	}
	w.req = appendCall(w.req[:0], s.id, 2, n)
	w.req = appendBytes(w.req, 1, w.key)
	for i := range w.sets {
		w.req = w.sets[i].appendMutation(w.req, 2)
	}
	err = w.virtual(s, func([]byte) error { return nil })
	if err == nil {
		w.rows++
	}
	return err
}

// virtualRead reads one row in a session and expects it to be there.
func (w *worker) virtualRead(d *dataset, latest bool) error {
	s, err := w.sessionFor(d.name)
	if err != nil {
		return err
	}
	s.id++
	n := sizeBytes(len(w.key))
	if latest {
		n += sizeBytes(len(latestFilter))
	}
	w.req = appendCall(w.req[:0], s.id, 1, n)
	w.req = appendBytes(w.req, 1, w.key)
	if latest {
		w.req = appendBytes(w.req, 2, latestFilter)
	}
	w.check.begin()
	if err := w.virtual(s, w.virtualRow); err != nil {
		return err
	}
	w.rows += w.check.rows
	if w.check.rows != 1 {
		return wrong("%d rows for row %q", w.check.rows, w.key)
	}
	return nil
}

// virtualRow checks a TableResponse with a row: read_row.row.
func (w *worker) virtualRow(b []byte) error {
	for range 2 {
		inner := []byte(nil)
		if err := fields(b, func(f protowire.Number, v []byte, _ uint64) error {
			if f == 1 {
				inner = v
			}
			return nil
		}); err != nil {
			return err
		}
		b = inner
	}
	var c cell
	held := false // each cell waits for the next, which tells whether it is the last
	err := fields(b, func(f protowire.Number, v []byte, _ uint64) error {
		if f == 1 {
			c.row = v
		}
		if f != 2 {
			return nil
		}
		return fields(v, func(f protowire.Number, v []byte, _ uint64) error { // Family
			if f != 2 {
				return nil
			}
			var qualifier []byte
			return fields(v, func(f protowire.Number, v []byte, _ uint64) error { // Column
				if f == 1 {
					qualifier = v
				}
				if f != 2 {
					return nil
				}
				if held {
					if err := w.check.cell(&c); err != nil {
						return err
					}
				}
				held = true
				c.qualifier, c.value, c.micros = qualifier, nil, 0
				return fields(v, func(f protowire.Number, v []byte, n uint64) error { // Cell
					switch f {
					case 1:
						c.micros = int64(n)
					case 2:
						c.value = v
					}
					return nil
				})
			})
		})
	})
	if err != nil || !held {
		return err
	}
	c.last = true
	return w.check.cell(&c)
}

// fields calls fn for each field of a message.
func fields(b []byte, fn func(f protowire.Number, v []byte, n uint64) error) error {
	for len(b) > 0 {
		f, v, n, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		if err := fn(f, v, n); err != nil {
			return err
		}
	}
	return nil
}
