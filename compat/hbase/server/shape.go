package server

import (
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// A shape tells what messages of a type take in memory before they are decoded:
// repeated fields of nothing take fifty times their two bytes.
type shape struct {
	bytes int64    // of a message without its fields
	parts []*shape // by the number of a field; nil: it is no message
}

// What there is of a request beside its bytes: for each message what a handler makes
// of it and answers, for each other field where its value is.
const (
	messageBytes = 200
	fieldBytes   = 40
)

// shapeOf returns the shape of m's type, which has no message of its own type in it.
func shapeOf(m proto.Message) *shape {
	s := &shape{bytes: int64(reflect.TypeOf(m).Elem().Size()) + messageBytes}
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Kind() != protoreflect.MessageKind {
			continue
		}
		of, err := protoregistry.GlobalTypes.FindMessageByName(f.Message().FullName())
		if err != nil {
			panic(err) // the types of a generated message are registered
		}
		for int(f.Number()) >= len(s.parts) {
			s.parts = append(s.parts, nil)
		}
		s.parts[f.Number()] = shapeOf(of.Zero().Interface())
	}
	return s
}

// size returns about what the message that b encodes takes. Malformed bytes count as
// far as they are read.
func (s *shape) size(b []byte) int64 {
	n := s.bytes
	for len(b) > 0 {
		number, kind, w := protowire.ConsumeTag(b)
		if w < 0 {
			return n
		}
		b = b[w:]
		if kind == protowire.BytesType {
			part, w := protowire.ConsumeBytes(b)
			if w < 0 {
				return n
			}
			b = b[w:]
			if int(number) < len(s.parts) && s.parts[number] != nil {
				n += s.parts[number].size(part)
			} else {
				n += fieldBytes + int64(len(part))
			}
			continue
		}
		if w = protowire.ConsumeFieldValue(number, kind, b); w < 0 {
			return n
		}
		n += fieldBytes + int64(w)
		b = b[w:]
	}
	return n
}
