package gateway

import (
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trestledb/trestle/gateway/wire"
)

// fillIn has decode fill in a request that a handler of a method gets. One that decodes
// itself gets what decode has made as bytes of its own, which are never recycled.
func fillIn(fullMethod string, m any, decode func(proto.Message) error, codec *wire.Codec) error {
	switch m := m.(type) {
	case proto.Message:
		return decode(m)
	case wire.Decoder:
		d, err := methodOf(fullMethod)
		if err != nil {
			return err
		}
		p, err := newMessage(d.Input())
		if err == nil {
			err = decode(p)
		}
		if err != nil {
			return err
		}
		b, err := proto.Marshal(p)
		if err != nil {
			return err
		}
		return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, m)
	}
	return errNotUnary
}

// readOut returns the message that a handler of a method has answered.
func readOut(fullMethod string, resp any, pool mem.BufferPool) (proto.Message, error) {
	switch resp := resp.(type) {
	case proto.Message:
		return resp, nil
	case wire.Encoder:
		d, err := methodOf(fullMethod)
		if err != nil {
			return nil, err
		}
		p, err := newMessage(d.Output())
		if err != nil {
			return nil, err
		}
		b := resp.TakeWire()
		data := b.MaterializeToBuffer(pool)
		b.Free()
		defer data.Free()
		return p, proto.Unmarshal(data.ReadOnlyData(), p)
	}
	return nil, errNotUnary
}

func methodOf(fullMethod string) (protoreflect.MethodDescriptor, error) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(fullMethod, "/"), "/", ".")))
	if err != nil {
		return nil, err
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, errNotUnary
	}
	return m, nil
}

func newMessage(d protoreflect.MessageDescriptor) (proto.Message, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, err
	}
	return t.New().Interface(), nil
}
