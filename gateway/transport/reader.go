package transport

import (
	"io"
	"net"
	"time"

	"github.com/trestledb/trestle/engine/tryio"
)

// readBytes are read at a time.
const readBytes = 32 << 10

// A reader reads a connection through a buffer that it has only while there are bytes in it:
// connections are idle mostly.
type reader struct {
	c    *conn
	from io.Reader
	try  *tryio.Reader // from; nil: it cannot be told when there is something to read
	box  *[]byte       // of the server's pool; nil if the buffer is empty
	b    []byte        // what was read and not taken
}

func newReader(c *conn, nc net.Conn) *reader {
	r := &reader{c: c, from: tryio.NewReader(nc)}
	r.try, _ = r.from.(*tryio.Reader)
	return r
}

// HasFrame tells whether a frame can be read without waiting.
func (r *reader) HasFrame() bool {
	return len(r.b) >= frameHeaderBytes && len(r.b)-frameHeaderBytes >= int(r.b[0])<<16|int(r.b[1])<<8|int(r.b[2])
}

// Read implements io.Reader. What is larger than the buffer goes past it.
func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.b) == 0 {
		if len(p) >= readBytes {
			return r.read(p)
		}
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.b)
	r.take(n)
	return n, nil
}

// take drops the first n bytes of the buffer, and the buffer when it is empty.
func (r *reader) take(n int) {
	if r.b = r.b[n:]; len(r.b) == 0 {
		r.drop()
	}
}

func (r *reader) drop() {
	if r.b = nil; r.box != nil {
		r.c.s.reading.Put(r.box)
		r.box = nil
	}
}

func (r *reader) hold() {
	if r.box == nil {
		r.box, _ = r.c.s.reading.Get().(*[]byte)
	}
}

// Lend implements tryio.Lender.
func (r *reader) Lend() []byte {
	r.hold()
	return *r.box
}

// TakeBack implements tryio.Lender.
func (r *reader) TakeBack() { r.drop() }

// fill reads into the empty buffer, which it gets when there is something to read.
func (r *reader) fill() error {
	var n int
	var err error
	if r.try == nil {
		n, err = r.read(r.Lend())
	} else {
		n, err = r.try.ReadLent(r)
		r.heard()
	}
	if n > 0 {
		r.b = (*r.box)[:n]
		return nil
	}
	r.drop()
	return err
}

// read reads into p.
func (r *reader) read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.heard()
	return n, err
}

// heard notes that the other end was heard of.
func (r *reader) heard() { r.c.last.Store(int64(time.Since(r.c.born))) }

// Peek returns the next n bytes, at most smallFrame. They stay until the next call.
func (r *reader) Peek(n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if len(r.b) == 0 {
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
	if len(r.b) < n {
		// The rest is read behind what there is, at the buffer's beginning.
		r.b = (*r.box)[:copy(*r.box, r.b)]
		for len(r.b) < n {
			k, err := r.read((*r.box)[len(r.b):])
			if k == 0 {
				return nil, err
			}
			r.b = (*r.box)[:len(r.b)+k]
		}
	}
	return r.b[:n], nil
}

// Discard takes n bytes.
func (r *reader) Discard(n int) error {
	for n > 0 {
		if len(r.b) == 0 {
			if err := r.fill(); err != nil {
				return err
			}
		}
		k := min(n, len(r.b))
		r.take(k)
		n -= k
	}
	return nil
}

// ReadByte implements io.ByteReader.
func (r *reader) ReadByte() (byte, error) {
	b, err := r.Peek(1)
	if err != nil {
		return 0, err
	}
	c := b[0]
	r.take(1)
	return c, nil
}
