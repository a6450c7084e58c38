package wire

import (
	"encoding/binary"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A value is a google.bigtable.v2.Value of a mutation, aliasing the message.
// What may be written has no structure. Of a type or an array no more is kept
// than that there was one, so that a request cannot be made to take many times
// its size.
type value struct {
	kind  valueKind
	given bool // the message was there, be it empty: NULL is a value
	typed bool
	bytes []byte
	int   int64
	float float64
	nanos int32    // of a timestamp, whose seconds are in int
	date  [3]int32 // year, month, day
}

// A valueKind is the number of the oneof's member; 0 is none.
type valueKind protowire.Number

const (
	bytesValue     valueKind = 2
	stringValue    valueKind = 3
	arrayValue     valueKind = 4
	intValue       valueKind = 6
	rawValue       valueKind = 8
	rawTimestamp   valueKind = 9
	boolValue      valueKind = 10
	floatValue     valueKind = 11
	timestampValue valueKind = 12
	dateValue      valueKind = 13
)

func (v *value) become(k valueKind) {
	if v.kind != k {
		*v = value{kind: k, given: v.given, typed: v.typed}
	}
}

// decode merges the encoded message b into v.
func (v *value) decode(b []byte) error {
	v.given = true
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		k := valueKind(f.num)
		switch f.typ {
		case protowire.BytesType:
			switch k {
			case 7:
				v.typed = true
			case bytesValue, rawValue:
				v.become(k)
				v.bytes = f.bytes
			case stringValue:
				if !utf8.Valid(f.bytes) {
					return errUTF8
				}
				v.become(k)
				v.bytes = f.bytes
			case arrayValue:
				v.become(k)
			case timestampValue:
				v.become(k)
				err = decodeInts(f.bytes, func(num protowire.Number, n uint64) {
					switch num {
					case 1:
						v.int = int64(n)
					case 2:
						v.nanos = int32(n)
					}
				})
			case dateValue:
				v.become(k)
				err = decodeInts(f.bytes, func(num protowire.Number, n uint64) {
					if num <= 3 {
						v.date[num-1] = int32(n)
					}
				})
			}
		case protowire.VarintType:
			switch k {
			case intValue, rawTimestamp:
				v.become(k)
				v.int = int64(f.varint)
			case boolValue:
				v.become(k)
				v.int = 0
				if f.varint != 0 {
					v.int = 1
				}
			}
		case protowire.Fixed64Type:
			if k == floatValue {
				v.become(k)
				v.float = math.Float64frombits(binary.LittleEndian.Uint64(b[len(b)-len(rest)-8:]))
			}
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// decodeInts reads a message of which only the varints matter.
func decodeInts(b []byte, set func(protowire.Number, uint64)) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ == protowire.VarintType {
			set(f.num, f.varint)
		}
	}
	return nil
}

// The years that google.protobuf.Timestamp can name.
const (
	minTimestampSeconds = -62135596800
	maxTimestampSeconds = 253402300799
)

// operand converts v to the operand of an aggregate.
func (v *value) operand() (row.Input, *fault.Error) {
	limit := func(name string, k row.InputKind) (row.Input, *fault.Error) {
		if len(v.bytes) > schema.MaxValue {
			return row.Input{}, inField(name, "Cell values must be at most %d bytes, but got %d", schema.MaxValue, len(v.bytes))
		}
		return row.Input{Kind: k, Bytes: v.bytes}, nil
	}
	switch v.kind {
	case 0:
		return row.Input{Kind: row.NullInput}, nil
	case rawValue:
		return limit("raw_value", row.RawInput)
	case bytesValue:
		return limit("bytes_value", row.BytesInput)
	case stringValue:
		return limit("string_value", row.StringInput)
	case intValue:
		return row.Input{Kind: row.IntInput, Int: v.int}, nil
	case boolValue:
		return row.Input{Kind: row.BoolInput, Int: v.int}, nil
	case floatValue:
		if math.IsNaN(v.float) || math.IsInf(v.float, 0) {
			return row.Input{}, inField("float_value", "A float must be finite")
		}
		return row.Input{Kind: row.FloatInput, Float: v.float}, nil
	case timestampValue:
		if v.int < minTimestampSeconds || v.int > maxTimestampSeconds || v.nanos < 0 || v.nanos > 999_999_999 {
			return row.Input{}, inField("timestamp_value", "The timestamp is out of range")
		}
		return row.Input{Kind: row.TimestampInput, Int: v.int*1_000_000 + int64(v.nanos)/1000}, nil
	case dateValue:
		n, ok := days(v.date[0], v.date[1], v.date[2])
		if !ok {
			return row.Input{}, inField("date_value", "No such day")
		}
		return row.Input{Kind: row.DateInput, Int: n}, nil
	default:
		return row.Input{}, fault.InvalidField("", "The kind of value is not supported as input")
	}
}

// days returns the number of the day since 1970-01-01.
func days(year, month, dayOfMonth int32) (int64, bool) {
	y, m, day := int(year), time.Month(month), int(dayOfMonth)
	t := time.Date(y, m, day, 0, 0, 0, 0, time.UTC)
	if y < 1 || y > 9999 || t.Year() != y || t.Month() != m || t.Day() != day {
		return 0, false
	}
	return t.Unix() / 86400, true
}
