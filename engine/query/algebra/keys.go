package algebra

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// Decode sets dst, one element for each field, to the fields of a row key. They may
// share key's memory; what cannot is appended to scratch, which is returned. The
// error is functions.Errorf's.
func (k *KeySchema) Decode(dst []types.Value, key, scratch []byte) ([]byte, error) {
	switch k.Encoding {
	case Singleton:
		return k.decodeField(0, &dst[0], key, scratch)
	case Delimited:
		for i := range k.Fields {
			part := key
			if i < len(k.Fields)-1 {
				n := bytes.Index(key, unsafe.Slice(unsafe.StringData(k.Delimiter), len(k.Delimiter)))
				if n < 0 {
					return scratch, badKey("it has %d of %d fields", i+1, len(k.Fields))
				}
				part, key = key[:n], key[n+len(k.Delimiter):]
			} else if strings.Contains(text(part), k.Delimiter) {
				return scratch, badKey("it has more than %d fields", len(k.Fields))
			}
			var err error
			if scratch, err = k.decodeField(i, &dst[i], part, scratch); err != nil {
				return scratch, err
			}
		}
		return scratch, nil
	}
	whole := key
	for i := range k.Fields {
		var part []byte
		var err error
		if len(key) > 0 || i == 0 {
			if part, key, scratch, err = cutOrdered(key, scratch); err != nil {
				return scratch, err
			}
		}
		if scratch, err = k.decodeField(i, &dst[i], part, scratch); err != nil {
			return scratch, err
		}
		if i == len(k.Fields)-1 {
			break
		}
		if len(key) > 0 {
			key = key[2:] // the separator
			if len(key) == 0 {
				return scratch, badKey("it ends in a separator")
			}
		}
	}
	if len(key) > 0 {
		return scratch, badKey("it has more than %d fields", len(k.Fields))
	}
	if n := len(whole); n > 2 && whole[n-1] == 0 && whole[n-2] == 0 && whole[n-3] == 1 {
		return scratch, badKey("it ends in an empty field")
	}
	return scratch, nil
}

// cutOrdered takes the first field off an OrderedCode key. rest is empty, or begins
// with the separator.
func cutOrdered(key, scratch []byte) (part, rest, out []byte, err error) {
	if len(key) == 0 {
		return nil, nil, scratch, badKey("it is empty")
	}
	if len(key) >= 2 && key[0] == 0 && key[1] == 0 {
		if rest = key[2:]; len(rest) > 0 && (len(rest) < 2 || rest[0] != 0 || rest[1] != 1) {
			return nil, nil, scratch, badKey("an empty field goes on")
		}
		return nil, rest, scratch, nil
	}
	from, escaped := len(scratch), false
	for at := 0; ; {
		n := bytes.IndexByte(key[at:], 0)
		if n < 0 {
			if !escaped {
				return key, nil, scratch, nil
			}
			scratch = append(scratch, key[at:]...)
			return scratch[from:len(scratch):len(scratch)], nil, scratch, nil
		}
		n += at
		if n+1 >= len(key) {
			return nil, nil, scratch, badKey("it ends within an escape")
		}
		switch key[n+1] {
		case 1:
			if n == 0 {
				return nil, nil, scratch, badKey("a field is missing")
			}
			if !escaped {
				return key[:n:n], key[n:], scratch, nil
			}
			scratch = append(scratch, key[at:n]...)
			return scratch[from:len(scratch):len(scratch)], key[n:], scratch, nil
		case 0xFF:
			scratch = append(scratch, key[at:n+1]...)
			escaped = true
			at = n + 2
		default:
			return nil, nil, scratch, badKey("byte 00 is followed by %02x", key[n+1])
		}
	}
}

func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func badKey(format string, args ...any) error {
	return functions.Errorf("Failed to decode row key with the table's row key schema: "+format, args...)
}

func (k *KeySchema) decodeField(i int, dst *types.Value, b, scratch []byte) ([]byte, error) {
	f := &k.Fields[i]
	*dst = types.Value{Valid: true}
	switch f.Encoding {
	case RawBytes:
		dst.Str = text(b)
	case UTF8:
		if !utf8.Valid(b) {
			return scratch, badKey("field %s is not valid UTF-8", k.FieldName(i))
		}
		dst.Str = text(b)
	case BigEndian:
		if len(b) != 8 {
			return scratch, badKey("field %s has %d bytes instead of 8", k.FieldName(i), len(b))
		}
		dst.Int = int64(binary.BigEndian.Uint64(b))
	case OrderedInt:
		v, n := decodeOrderedInt(b)
		if n == 0 || n != len(b) {
			return scratch, badKey("field %s is no integer in OrderedCode", k.FieldName(i))
		}
		dst.Int = v
	case HexBytes:
		from := len(scratch)
		scratch = append(scratch, make([]byte, hex.DecodedLen(len(b)))...)
		if _, err := hex.Decode(scratch[from:], b); err != nil {
			return scratch, badKey("field %s is not hexadecimal", k.FieldName(i))
		}
		dst.Str = text(scratch[from:])
	}
	if f.Type.Kind == types.Timestamp && (dst.Int < minTimestamp || dst.Int > maxTimestamp) {
		return scratch, badKey("field %s is no valid timestamp", k.FieldName(i))
	}
	return scratch, nil
}

// The timestamps that SQL has, in microseconds: 0001-01-01 to 9999-12-31.
const minTimestamp, maxTimestamp = -62135596800_000000, 253402300800_000000 - 1

// FieldName returns what messages call field i.
func (k *KeySchema) FieldName(i int) string { return types.QuoteIdentifier(k.Fields[i].Name) }

// EncodeField appends the encoding of a value of field i, before it is joined with
// others. ok is false if the field cannot hold it.
func (k *KeySchema) EncodeField(dst []byte, i int, v types.Value) (out []byte, ok bool) {
	if !v.Valid {
		return dst, false
	}
	switch k.Fields[i].Encoding {
	case BigEndian:
		return binary.BigEndian.AppendUint64(dst, uint64(v.Int)), true
	case OrderedInt:
		return appendOrderedInt(dst, v.Int), true
	case HexBytes:
		return hex.AppendEncode(dst, []byte(v.Str)), true
	}
	return append(dst, v.Str...), true
}

// Encode appends the row key of fields, one value for each field; ok is false if
// there is no such key.
func (k *KeySchema) Encode(dst []byte, fields []types.Value) (out []byte, ok bool) {
	var part []byte
	empty, from := 0, len(dst)
	for i, v := range fields {
		if part, ok = k.EncodeField(part[:0], i, v); !ok {
			return dst, false
		}
		switch k.Encoding {
		case Singleton:
			dst = append(dst, part...)
		case Delimited:
			if strings.IndexByte(text(part), k.Delimiter[0]) >= 0 {
				return dst, false
			}
			if i > 0 {
				dst = append(dst, k.Delimiter...)
			}
			dst = append(dst, part...)
		case OrderedCode:
			if len(part) == 0 {
				empty++
				continue
			}
			for ; empty > 0; empty-- {
				if len(dst) > from {
					dst = append(dst, 0, 1)
				}
				dst = append(dst, 0, 0)
			}
			if len(dst) > from {
				dst = append(dst, 0, 1)
			}
			dst = AppendOrderedEscape(dst, part)
		}
	}
	if k.Encoding == OrderedCode && len(dst) == from {
		dst = append(dst, 0, 0)
	}
	return dst, true
}

// AppendOrderedEscape appends the bytes of a field as OrderedCode has them: 00 FF in
// place of 00.
func AppendOrderedEscape(dst, part []byte) []byte {
	for {
		n := bytes.IndexByte(part, 0)
		if n < 0 {
			return append(dst, part...)
		}
		dst = append(append(dst, part[:n]...), 0, 0xFF)
		part = part[n+1:]
	}
}

// appendOrderedInt appends v in one to ten bytes that sort as the numbers do. As many
// leading bits as there are bytes tell the length; they are 1 for v >= 0, followed by
// a 0, and inverted for v < 0. The others are the low bits of v.
func appendOrderedInt(dst []byte, v int64) []byte {
	n := orderedLen(v)
	sign := byte(v >> 63)
	var b [10]byte
	b[0], b[1] = sign, sign
	binary.BigEndian.PutUint64(b[2:], uint64(v))
	out := b[10-n:]
	head := orderedHead[n]
	out[0] ^= byte(head >> 8)
	if n > 1 {
		out[1] ^= byte(head)
	}
	return append(dst, out...)
}

func orderedLen(v int64) int { return bits.Len64(uint64(v^v>>63))/7 + 1 }

// orderedHead has the leading bits by length.
var orderedHead = [11]uint16{0, 0x8000, 0xC000, 0xE000, 0xF000, 0xF800, 0xFC00, 0xFE00, 0xFF00, 0xFF80, 0xFFC0}

// decodeOrderedInt returns the number that b begins with, and its length, 0 if there is
// none.
func decodeOrderedInt(b []byte) (v int64, n int) {
	if len(b) == 0 {
		return 0, 0
	}
	var flip byte
	if b[0]&0x80 == 0 {
		flip = 0xFF
	}
	n = bits.LeadingZeros8(^(b[0] ^ flip))
	if n == 8 && len(b) > 1 {
		n += bits.LeadingZeros8(^(b[1] ^ flip))
	}
	if n > 10 || n > len(b) {
		return 0, 0
	}
	u := uint64(int64(int8(flip)))
	for i, c := range b[:n] {
		switch i {
		case 0:
			c ^= byte(orderedHead[n] >> 8)
		case 1:
			c ^= byte(orderedHead[n])
		}
		u = u<<8 | uint64(c)
	}
	// Each number has one encoding only.
	var room [10]byte
	if v = int64(u); !bytes.Equal(appendOrderedInt(room[:0], v), b[:n]) {
		return 0, 0
	}
	return v, n
}
