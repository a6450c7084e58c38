package wire

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// errMalformed answers bytes that are no message of the wanted type.
var errMalformed = errors.New("malformed message")

// errUTF8 answers a string field that holds other bytes.
var errUTF8 = errors.New("string field contains invalid UTF-8")

// A field is one field of an encoded message. bytes aliases the message.
type field struct {
	num    protowire.Number
	typ    protowire.Type
	bytes  []byte // of a BytesType
	varint uint64 // of a VarintType
}

// nextField reads the field that b starts with and returns the rest. It accepts
// exactly what the generated code accepts. A field of another type than
// VarintType or BytesType is skipped over, and the caller ignores it as it
// ignores any field it does not know.
func nextField(b []byte) (f field, rest []byte, err error) {
	tag, n := varint(b)
	if n <= 0 {
		return f, nil, errMalformed
	}
	num := tag >> 3
	if num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber) {
		return f, nil, errMalformed
	}
	f.num, f.typ = protowire.Number(num), protowire.Type(tag&7)
	b = b[n:]
	switch f.typ {
	case protowire.VarintType:
		v, n := varint(b)
		if n <= 0 {
			return f, nil, errMalformed
		}
		f.varint = v
		return f, b[n:], nil
	case protowire.BytesType:
		l, n := varint(b)
		if n <= 0 || l > uint64(len(b)-n) {
			return f, nil, errMalformed
		}
		end := n + int(l)
		f.bytes = b[n:end:end]
		return f, b[end:], nil
	default:
		n := protowire.ConsumeFieldValue(f.num, f.typ, b)
		if n < 0 {
			return f, nil, errMalformed
		}
		return f, b[n:], nil
	}
}

// varint is protowire.ConsumeVarint with the one-byte case inlined.
func varint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// names turns the bytes of names into strings. Requests repeat the same few
// table and family names, and a decoder is used for many requests, so that
// most names need no allocation. The strings do not alias the message, since
// the receiver may keep it.
type names struct {
	seen [8]string
	next uint8
}

func (c *names) get(b []byte) (string, error) {
	if len(b) == 0 {
		return "", nil
	}
	for i := range c.seen {
		if c.seen[i] == string(b) {
			return c.seen[i], nil
		}
	}
	if !utf8.Valid(b) {
		return "", errUTF8
	}
	s := string(b)
	if len(s) <= 512 { // what is remembered stays bounded
		c.seen[c.next] = s
		c.next = (c.next + 1) % uint8(len(c.seen))
	}
	return s, nil
}
