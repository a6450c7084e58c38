package matview

import (
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/varint"
)

// The bounds of what a row of the source may contribute, in bytes. MaxContribution is
// that of all its items. MaxCounted is that of a value of MIN, MAX and ANY_VALUE, and of
// the key of a row that an index has: the qualifier of a hidden cell holds it, escaped.
const (
	MaxContribution = 8 << 20
	MaxCounted      = 8 << 10
)

// MaxPrecision is that of the sketches of a view: a group's is written anew with each
// change, and has up to 2^MaxPrecision bytes.
const MaxPrecision = 18

// version is the first byte of each encoding here.
const version = 1

// A contribution is
//
//	version (uvarint len, key, uvarint len, arguments)*
//
// The arguments of a view of groups are, for each column but COUNT(*), 0 for NULL, or
// 1 and the value; those of an index are its cells.

// An Arg is the argument of an aggregate, or the value of a column of an index.
type Arg struct {
	// Valid is false for NULL.
	Valid bool
	// Int is an INT64, a TIMESTAMP's microseconds, or a BOOL; Float a FLOAT64 or FLOAT32;
	// Text a STRING, BYTES, or a sketch.
	Int   int64
	Float float64
	Text  string
	// Map is what a schema.ViewColumn with Map has: qualifier and value in turn.
	Map []string
}

// AppendItem appends to a contribution, which may be empty, an item for the row of the
// view with that key. args has one for each of v.Columns, that of COUNT(*) being unused.
// The error says which bound of the above is exceeded; dst is returned as it was then.
func AppendItem(dst []byte, v *schema.View, key []byte, args []Arg) ([]byte, error) {
	before := len(dst)
	if before == 0 {
		dst = append(dst, version)
	}
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	dst = append(dst, key...)
	at := len(dst)
	// Most arguments are short: their length takes a byte.
	dst = append(dst, 0)
	var err error
	for i := range v.Columns {
		if v.Index {
			dst = appendCells(dst, &v.Columns[i], &args[i])
		} else if dst, err = appendArg(dst, &v.Columns[i], &args[i]); err != nil {
			return dst[:before], err
		}
	}
	if n := len(dst) - at - 1; n < 0x80 {
		dst[at] = byte(n)
	} else {
		var room [binary.MaxVarintLen64]byte
		k := binary.PutUvarint(room[:], uint64(n))
		dst = append(dst, room[:k-1]...)
		copy(dst[at+k:], dst[at+1:at+1+n])
		copy(dst[at:], room[:k])
	}
	if len(dst) > MaxContribution {
		return dst[:before], fault.New(fault.OutOfRange, "the row contributes more than %d bytes to the view", MaxContribution)
	}
	return dst, nil
}

func appendArg(dst []byte, c *schema.ViewColumn, a *Arg) ([]byte, error) {
	if c.Aggregate == schema.ViewCountRows {
		return dst, nil
	}
	if !a.Valid {
		return append(dst, 0), nil
	}
	dst = append(dst, 1)
	switch c.Aggregate {
	case schema.ViewSum, schema.ViewAvg:
		if c.Arg == schema.ViewFloat {
			return binary.BigEndian.AppendUint64(dst, math.Float64bits(a.Float)), nil
		}
		return binary.AppendVarint(dst, a.Int), nil
	case schema.ViewBitAnd, schema.ViewBitOr, schema.ViewBitXor:
		return binary.BigEndian.AppendUint64(dst, uint64(a.Int)), nil
	case schema.ViewMin, schema.ViewMax, schema.ViewAny:
		if len(a.Text) > MaxCounted {
			return dst, fault.New(fault.OutOfRange, "a value of MIN, MAX or ANY_VALUE in a materialized view has %d bytes; the limit is %d", len(a.Text), MaxCounted)
		}
		at := len(dst)
		dst = append(dst, 0, 0, 0) // room for the length
		dst = appendOrdered(dst, c.Arg, c.Aggregate == schema.ViewMax, a)
		n := len(dst) - at - 3
		k := binary.PutUvarint(dst[at:at+3], uint64(n))
		copy(dst[at+k:], dst[at+3:])
		return dst[:at+k+n], nil
	case schema.ViewSketch:
		var e uint32
		if c.Arg == schema.ViewInt {
			e = aggregate.IntElement(c.Precision, a.Int)
		} else {
			e = aggregate.BytesElement(c.Precision, []byte(a.Text))
		}
		return binary.BigEndian.AppendUint32(dst, e), nil
	case schema.ViewMerge, schema.ViewMergeSketch:
		k, err := aggregate.ParseSketch([]byte(a.Text))
		if err != nil {
			return dst, fault.New(fault.OutOfRange, "Invalid or incompatible sketch in HLL_COUNT.MERGE")
		}
		if p := k.Shape().Precision; p > MaxPrecision {
			return dst, fault.New(fault.OutOfRange, "a sketch in a materialized view has precision %d; the limit is %d", p, MaxPrecision)
		}
		return append(binary.AppendUvarint(dst, uint64(len(a.Text))), a.Text...), nil
	}
	return dst, nil // COUNT
}

func appendCells(dst []byte, c *schema.ViewColumn, a *Arg) []byte {
	if c.Map {
		dst = binary.AppendUvarint(dst, uint64(len(a.Map)/2))
		for _, s := range a.Map {
			dst = append(binary.AppendUvarint(dst, uint64(len(s))), s...)
		}
		return dst
	}
	if !a.Valid {
		return append(dst, 0)
	}
	switch c.Type {
	case schema.ViewBytes, schema.ViewString:
		return append(binary.AppendUvarint(append(dst, 1), uint64(len(a.Text))), a.Text...)
	}
	dst = append(dst, 1, 0)
	at := len(dst)
	dst = AppendValue(dst, c.Type, a)
	dst[at-1] = byte(len(dst) - at)
	return dst
}

// AppendValue appends the value of a cell of that type.
func AppendValue(dst []byte, t schema.ViewType, a *Arg) []byte {
	switch t {
	case schema.ViewInt, schema.ViewTimestamp:
		return binary.BigEndian.AppendUint64(dst, uint64(a.Int))
	case schema.ViewFloat:
		return binary.BigEndian.AppendUint64(dst, math.Float64bits(a.Float))
	case schema.ViewFloat32:
		return binary.BigEndian.AppendUint32(dst, math.Float32bits(float32(a.Float)))
	case schema.ViewBool:
		return append(dst, byte(a.Int))
	}
	return append(dst, a.Text...)
}

// An item is one of a contribution. It aliases it.
type item struct{ key, args []byte }

// parseContribution appends the items of a contribution. Arguments are not looked at.
func parseContribution(dst []item, b []byte) ([]item, error) {
	if len(b) == 0 {
		return dst, nil
	}
	r := varint.Of(b)
	if r.Byte() != version {
		return dst, malformed("contribution")
	}
	for r.Len() > 0 && !r.Bad() {
		it := item{key: r.Bytes()}
		it.args = r.Bytes()
		dst = append(dst, it)
	}
	if r.Bad() {
		return dst, malformed("contribution")
	}
	return dst, nil
}

func malformed(what string) error {
	return fault.New(fault.Corruption, "a %s of a materialized view is malformed", what)
}
