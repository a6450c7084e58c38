package exec

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/varint"
)

// A batch in a temporary file is the number of rows and then each column: a byte
// that is 1 if a bitmap of NULLs follows, the bitmap, and the values that are not
// NULL. Numbers are varints, floats eight bytes, strings and lists have their length
// before them.

// appendBatch appends the encoding of rows of cols: those of sel, or take rows from
// the row from on.
func appendBatch(dst []byte, ts []*types.Type, cols []*types.Vector, sel []int32, from, take int) []byte {
	at := func(k int) int {
		if sel != nil {
			return int(sel[from+k])
		}
		return from + k
	}
	dst = binary.AppendUvarint(dst, uint64(take))
	for c, t := range ts {
		v := cols[c]
		if v == nil || v.Null != nil {
			dst = append(dst, 1)
			start := len(dst)
			dst = append(dst, make([]byte, (take+7)/8)...)
			for k := range take {
				if v == nil || v.IsNull(at(k)) {
					dst[start+k/8] |= 1 << (k % 8)
				}
			}
		} else {
			dst = append(dst, 0)
		}
		if v == nil {
			continue
		}
		for k := range take {
			if i := at(k); !v.IsNull(i) {
				dst = appendPlain(dst, t, v.Value(i))
			}
		}
	}
	return dst
}

// appendPlain appends a value that is not NULL.
func appendPlain(dst []byte, t *types.Type, v types.Value) []byte {
	switch t.Kind {
	case types.Float32, types.Float64:
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.Float))
	case types.String, types.Bytes, types.Proto:
		return append(binary.AppendUvarint(dst, uint64(len(v.Str))), v.Str...)
	case types.Array, types.Struct, types.Map:
		dst = binary.AppendUvarint(dst, uint64(len(v.List)))
		for i, e := range v.List {
			if !e.Valid {
				dst = append(dst, 0)
				continue
			}
			dst = appendPlain(append(dst, 1), elementType(t, i), e)
		}
		return dst
	}
	return binary.AppendVarint(dst, v.Int)
}

// elementType returns the type of the i'th part of a list of type t.
func elementType(t *types.Type, i int) *types.Type {
	switch t.Kind {
	case types.Struct:
		return t.Fields[i].Type
	case types.Map:
		if i%2 == 0 {
			return t.Key
		}
	}
	return t.Elem
}

// decoder reads what appendBatch wrote. Strings are parts of its input.
type decoder struct{ varint.Decoder }

// decoderOf returns a decoder of in. A caller must not write to slices that it returns.
func decoderOf(in string) decoder {
	return decoder{varint.Of(unsafe.Slice(unsafe.StringData(in), len(in)))}
}

// text reads a string behind its length: a part of what decoderOf had.
func (d *decoder) text() string {
	b := d.Bytes()
	return unsafe.String(unsafe.SliceData(b), len(b))
}

func errDamaged(what string) error {
	return fault.New(fault.Corruption, "a temporary file of a query is damaged: %s", what)
}

// decodeBatch sets the vectors of b, of the types ts, to the rows that in encodes.
func decodeBatch(in string, ts []*types.Type, b *types.Batch) error {
	d := decoderOf(in)
	n := d.Uvarint()
	if n > types.BatchRows {
		return errDamaged("too many rows")
	}
	b.Len, b.Sel = int(n), nil
	for c, t := range ts {
		v := b.Cols[c]
		v.Resize(int(n))
		var nulls []byte
		if d.Bool() {
			nulls = d.Take((int(n) + 7) / 8)
		}
		for k := range int(n) {
			if d.Bad() {
				return errDamaged("a batch ends early")
			}
			if nulls != nil && nulls[k/8]>>(k%8)&1 != 0 {
				v.SetNull(k)
				continue
			}
			v.Set(k, d.plain(t))
		}
	}
	if d.Bad() || d.Len() > 0 {
		return errDamaged("a batch has another length than its rows")
	}
	return nil
}

func (d *decoder) plain(t *types.Type) types.Value {
	switch t.Kind {
	case types.Float32, types.Float64:
		return types.NewFloat(math.Float64frombits(d.Uint64LE()))
	case types.String, types.Bytes, types.Proto:
		return types.NewString(d.text())
	case types.Array, types.Struct, types.Map:
		n := d.Count()
		if t.Kind == types.Struct && n != len(t.Fields) || t.Kind == types.Map && n%2 != 0 {
			d.Fail()
			return types.Null
		}
		list := make([]types.Value, n)
		for i := range list {
			if d.Bool() {
				list[i] = d.plain(elementType(t, i))
			}
			if d.Bad() {
				return types.Null
			}
		}
		return types.NewList(list)
	}
	return types.NewInt(d.Varint())
}
