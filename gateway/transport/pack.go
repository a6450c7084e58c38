package transport

import (
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Memory is a budget. Try takes n bytes of it if they are there, Release gives them back.
type Memory interface {
	Try(n int64) bool
	Release(n int64)
}

// pieceBytes is the size of the pieces of a compressed message.
const pieceBytes = 16 << 10

type piece [pieceBytes]byte

var pieces = sync.Pool{New: func() any { return new(piece) }}

// A packed is a compressed message. It takes its pieces of the budget as they are filled, for
// its client may leave it waiting for as long as it likes.
type packed struct {
	memory  Memory
	pieces  []*piece
	room    int   // of the last
	charged int64 // bytes that are taken of memory
	short   bool  // memory did not have all of them
}

// pack compresses a message. What it returns is to be freed, with an error too.
func pack(c encoding.Compressor, data mem.BufferSlice, memory Memory) (*packed, error) {
	p := &packed{memory: memory}
	z, err := c.Compress(p)
	if err != nil {
		return p, err
	}
	for _, b := range data {
		if _, err := z.Write(b.ReadOnlyData()); err != nil {
			return p, err
		}
	}
	return p, z.Close()
}

// Write implements io.Writer for the compressor.
func (p *packed) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if p.room == 0 {
			p.add()
		}
		m := copy(p.pieces[len(p.pieces)-1][pieceBytes-p.room:], b)
		b, p.room = b[m:], p.room-m
	}
	return n, nil
}

func (p *packed) add() {
	switch {
	case p.memory == nil || p.short:
	case p.memory.Try(pieceBytes):
		p.charged += pieceBytes
	default:
		p.short = true
	}
	p.pieces, p.room = append(p.pieces, pieces.Get().(*piece)), pieceBytes
}

// data returns the message, which is there until free.
func (p *packed) data() mem.BufferSlice {
	out := make(mem.BufferSlice, len(p.pieces))
	for i, b := range p.pieces {
		out[i] = mem.SliceBuffer(b[:])
	}
	if last := len(out) - 1; last >= 0 {
		out[last] = mem.SliceBuffer(p.pieces[last][:pieceBytes-p.room])
	}
	return out
}

func (p *packed) free() {
	for _, b := range p.pieces {
		pieces.Put(b)
	}
	if p.charged > 0 {
		p.memory.Release(p.charged)
	}
	*p = packed{}
}
