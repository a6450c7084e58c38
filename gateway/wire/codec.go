package wire

import (
	"errors"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that Codec falls back on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/budget"
)

// A Decoder reads itself from a received message. It may keep references to
// the buffers of data, which the caller frees; when it needs them in one piece
// it takes that from pool. What it is decoded to it takes from memory, until it
// is released. An Exhausted error tells that there is not enough.
type Decoder interface {
	DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error
}

// An Encoder is a message that is encoded already. The caller of TakeWire owns
// the buffers.
type Encoder interface {
	TakeWire() mem.BufferSlice
}

// Codec is the "proto" codec of gRPC, with a way around reflection for Decoder
// and Encoder.
type Codec struct {
	proto  encoding.CodecV2
	pool   mem.BufferPool
	memory *budget.Budget
}

// NewCodec returns a Codec that takes buffers from pool, which need not zero
// them, and what messages are decoded to from memory. Give it to
// grpc.ForceServerCodecV2.
func NewCodec(pool mem.BufferPool, memory *budget.Budget) *Codec {
	return &Codec{proto: encoding.GetCodecV2("proto"), pool: pool, memory: memory}
}

// Name returns "proto".
func (*Codec) Name() string { return "proto" }

// Marshal encodes v.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(Encoder); ok {
		return e.TakeWire(), nil
	}
	return c.proto.Marshal(v)
}

// Unmarshal decodes data into v, for a caller that does not account for what v
// takes from then on.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	kept, err := c.Decode(data, v)
	kept.Release()
	return err
}

// Decode decodes data into v. What is returned is to be released when v is no longer
// in use; it is nil of a Decoder, which releases what it keeps. An Exhausted error
// tells that there is no memory for v.
func (c *Codec) Decode(data mem.BufferSlice, v any) (*Kept, error) {
	switch v := v.(type) {
	case Decoder:
		return nil, v.DecodeWire(data, c.pool, c.memory)
	case proto.Message:
		k := new(Kept)
		b, err := k.keep(data, c.pool, c.memory)
		if err == nil {
			proto.Reset(v)
			err = k.unmarshal(b, v)
		}
		return k, err
	}
	return nil, c.proto.Unmarshal(data, v)
}

// Size returns the encoded length of a message that a handler got or gave.
func Size(v any) int {
	switch v := v.(type) {
	case interface{ WireLen() int }:
		return v.WireLen()
	case proto.Message:
		return proto.Size(v)
	}
	return 0
}

// errTwice answers a client that sends a second message where one belongs; the
// first must not be overwritten while it is in use.
var errTwice = errors.New("a second request message")

// Encoded is an Encoder of a constant message: its bytes are never changed or
// recycled.
type Encoded []byte

// TakeWire returns the bytes.
func (e Encoded) TakeWire() mem.BufferSlice {
	if len(e) == 0 {
		return nil
	}
	return mem.BufferSlice{mem.SliceBuffer(e)}
}

// WireLen returns the length of the message.
func (e Encoded) WireLen() int { return len(e) }

// Buffers is an Encoder of a message in buffers that gRPC frees.
type Buffers struct {
	b mem.BufferSlice
	n int
}

// NewBuffers returns the message in b, which the caller gives away.
func NewBuffers(b mem.BufferSlice) *Buffers { return &Buffers{b: b, n: b.Len()} }

// TakeWire returns the buffers, once.
func (m *Buffers) TakeWire() mem.BufferSlice {
	b := m.b
	m.b = nil
	return b
}

// WireLen returns the length of the message.
func (m *Buffers) WireLen() int { return m.n }

// Free frees the buffers unless they were taken.
func (m *Buffers) Free() { m.TakeWire().Free() }
