package exec

import (
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
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
type decoder struct {
	in  string
	bad bool
}

func errDamaged(what string) error {
	return fault.New(fault.Corruption, "a temporary file of a query is damaged: %s", what)
}

// decodeBatch sets the vectors of b, of the types ts, to the rows that in encodes.
func decodeBatch(in string, ts []*types.Type, b *types.Batch) error {
	d := decoder{in: in}
	n := d.uvarint()
	if n > types.BatchRows {
		return errDamaged("too many rows")
	}
	b.Len, b.Sel = int(n), nil
	for c, t := range ts {
		v := b.Cols[c]
		v.Resize(int(n))
		nulls := ""
		if flag := d.take(1); flag == "\x01" {
			nulls = d.take((int(n) + 7) / 8)
		} else if flag != "\x00" {
			d.bad = true
		}
		for k := range int(n) {
			if d.bad {
				return errDamaged("a batch ends early")
			}
			if nulls != "" && nulls[k/8]>>(k%8)&1 != 0 {
				v.SetNull(k)
				continue
			}
			v.Set(k, d.plain(t))
		}
	}
	if d.bad || d.in != "" {
		return errDamaged("a batch has another length than its rows")
	}
	return nil
}

func (d *decoder) take(n int) string {
	if n < 0 || n > len(d.in) {
		d.bad, d.in = true, ""
		return ""
	}
	s := d.in[:n]
	d.in = d.in[n:]
	return s
}

func (d *decoder) uvarint() uint64 {
	var x uint64
	for i := 0; i < len(d.in) && i < binary.MaxVarintLen64; i++ {
		c := d.in[i]
		x |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			d.in = d.in[i+1:]
			return x
		}
	}
	d.bad, d.in = true, ""
	return 0
}

// length reads the number of things that take at least a byte each.
func (d *decoder) length() int {
	n := d.uvarint()
	if n > uint64(len(d.in)) {
		d.bad, d.in = true, ""
		return 0
	}
	return int(n)
}

func (d *decoder) plain(t *types.Type) types.Value {
	switch t.Kind {
	case types.Float32, types.Float64:
		s := d.take(8)
		if s == "" {
			return types.Null
		}
		return types.NewFloat(math.Float64frombits(binary.LittleEndian.Uint64([]byte(s))))
	case types.String, types.Bytes, types.Proto:
		return types.NewString(d.take(d.length()))
	case types.Array, types.Struct, types.Map:
		n := d.length()
		if t.Kind == types.Struct && n != len(t.Fields) || t.Kind == types.Map && n%2 != 0 {
			d.bad = true
			return types.Null
		}
		list := make([]types.Value, n)
		for i := range list {
			switch d.take(1) {
			case "\x00":
			case "\x01":
				list[i] = d.plain(elementType(t, i))
			default:
				d.bad = true
			}
			if d.bad {
				return types.Null
			}
		}
		return types.NewList(list)
	}
	u := d.uvarint()
	return types.NewInt(int64(u>>1) ^ -int64(u&1))
}
