package wire

import (
	"errors"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that Codec falls back on
	"google.golang.org/grpc/mem"
)

// A Decoder reads itself from a received message. It may keep a reference to
// data, which the caller frees.
type Decoder interface {
	DecodeWire(data mem.BufferSlice) error
}

// An Encoder is a message that is encoded already. The caller of TakeWire owns
// the buffers.
type Encoder interface {
	TakeWire() mem.BufferSlice
}

// Codec is the "proto" codec of gRPC, with a way around reflection for Decoder
// and Encoder.
type Codec struct{ proto encoding.CodecV2 }

// NewCodec returns a Codec. Give it to grpc.ForceServerCodecV2.
func NewCodec() *Codec { return &Codec{proto: encoding.GetCodecV2("proto")} }

// Name returns "proto".
func (*Codec) Name() string { return "proto" }

// Marshal encodes v.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(Encoder); ok {
		return e.TakeWire(), nil
	}
	return c.proto.Marshal(v)
}

// Unmarshal decodes data into v.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if d, ok := v.(Decoder); ok {
		return d.DecodeWire(data)
	}
	return c.proto.Unmarshal(data, v)
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
