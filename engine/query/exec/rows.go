package exec

import (
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// chunkBits is the binary logarithm of types.BatchRows: row i of a rows lies in chunk
// i >> chunkBits.
const chunkBits = 10

// rows is a list of rows in memory, which owns all that they hold. All chunks but
// the last are full.
type rows struct {
	types  []*types.Type
	chunks []*types.Batch
	n      int
	// bytes is what the rows take, roughly.
	bytes int64
}

func columnTypes(cols []algebra.Column) []*types.Type {
	out := make([]*types.Type, len(cols))
	for i, c := range cols {
		out[i] = c.Type
	}
	return out
}

// reset forgets all rows.
func (r *rows) reset() { r.chunks, r.n, r.bytes = nil, 0, 0 }

// append adds rows: those of sel, or all n. cols has a vector, which may be nil
// for NULLs, for each of r.types.
func (r *rows) append(cols []*types.Vector, sel []int32, n int) {
	if sel != nil {
		n = len(sel)
	}
	for at := 0; at < n; {
		if len(r.chunks) == 0 || r.chunks[len(r.chunks)-1].Len == types.BatchRows {
			b := &types.Batch{Cols: make([]*types.Vector, len(r.types))}
			for i, t := range r.types {
				b.Cols[i] = &types.Vector{Type: t}
			}
			r.chunks = append(r.chunks, b)
		}
		last := r.chunks[len(r.chunks)-1]
		take := min(n-at, types.BatchRows-last.Len)
		for i, v := range cols {
			if sel != nil {
				r.bytes += appendVector(last.Cols[i], last.Len, v, sel[at:at+take], 0, take)
			} else {
				r.bytes += appendVector(last.Cols[i], last.Len, v, nil, at, take)
			}
		}
		last.Len += take
		r.n += take
		at += take
	}
}

// value returns column col of row i.
func (r *rows) value(i, col int) types.Value {
	return r.chunks[i>>chunkBits].Cols[col].Value(i & (types.BatchRows - 1))
}

// appendVector appends rows of v to dst, which has length values: those of sel, or
// take rows from the row from on. It returns the bytes that they take.
func appendVector(dst *types.Vector, length int, v *types.Vector, sel []int32, from, take int) (bytes int64) {
	at := func(k int) int {
		if sel != nil {
			return int(sel[k])
		}
		return from + k
	}
	nulls := v == nil || v.Null != nil && (!v.Const || v.Null[0])
	if nulls && dst.Null == nil {
		dst.Null = make([]bool, length, max(length+take, 16))
	}
	if dst.Null != nil {
		for k := range take {
			dst.Null = append(dst.Null, nulls && (v == nil || v.IsNull(at(k))))
		}
	}
	switch dst.Type.Kind {
	case types.Float32, types.Float64:
		switch {
		case v == nil:
			dst.Floats = append(dst.Floats, make([]float64, take)...)
		case v.Const || sel != nil:
			for k := range take {
				dst.Floats = append(dst.Floats, v.Floats[v.At(at(k))])
			}
		default:
			dst.Floats = append(dst.Floats, v.Floats[from:from+take]...)
		}
		return 8 * int64(take)
	case types.String, types.Bytes, types.Proto:
		return appendStrings(dst, v, take, at)
	case types.Array, types.Struct, types.Map:
		for k := range take {
			var x types.Value
			if v != nil {
				x = v.Value(at(k)).Clone()
			}
			bytes += 24 + listBytes(x.List)
			dst.Lists = append(dst.Lists, x.List)
		}
		return bytes
	}
	switch {
	case v == nil:
		dst.Ints = append(dst.Ints, make([]int64, take)...)
	case v.Const || sel != nil:
		for k := range take {
			dst.Ints = append(dst.Ints, v.Ints[v.At(at(k))])
		}
	default:
		dst.Ints = append(dst.Ints, v.Ints[from:from+take]...)
	}
	return 8 * int64(take)
}

// appendStrings copies the bytes of all strings into one piece of memory: one
// allocation for a batch, not one for each row.
func appendStrings(dst, v *types.Vector, take int, at func(int) int) int64 {
	total := 0
	if v == nil {
		dst.Strs = append(dst.Strs, make([]string, take)...)
		return 16 * int64(take)
	}
	if v.Const {
		s := ""
		if !v.IsNull(0) {
			s = strings.Clone(v.Strs[0])
		}
		for range take {
			dst.Strs = append(dst.Strs, s)
		}
		return 16*int64(take) + int64(len(s))
	}
	for k := range take {
		if i := at(k); v.Null == nil || !v.Null[i] {
			total += len(v.Strs[i])
		}
	}
	var b strings.Builder
	b.Grow(total)
	for k := range take {
		if i := at(k); v.Null == nil || !v.Null[i] {
			b.WriteString(v.Strs[i])
		}
	}
	all := b.String()
	for k := range take {
		n := 0
		if i := at(k); v.Null == nil || !v.Null[i] {
			n = len(v.Strs[i])
		}
		dst.Strs = append(dst.Strs, all[:n])
		all = all[n:]
	}
	return 16*int64(take) + int64(total)
}

// valueBytes is what a Value takes besides its string and list.
const valueBytes = 64

func listBytes(list []types.Value) int64 {
	n := int64(len(list)) * valueBytes
	for i := range list {
		n += int64(len(list[i].Str))
		if list[i].List != nil {
			n += listBytes(list[i].List)
		}
	}
	return n
}

// vectorBytes is what rows of v would take in a rows.
func vectorBytes(v *types.Vector, sel []int32, n int) int64 {
	if sel != nil {
		n = len(sel)
	}
	if v == nil {
		return 8 * int64(n)
	}
	size := int64(8)
	switch v.Type.Kind {
	case types.String, types.Bytes, types.Proto:
		size = 16
	case types.Array, types.Struct, types.Map:
		size = 24
	default:
		return size * int64(n)
	}
	total := size * int64(n)
	for k := range n {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		if v.IsNull(i) {
			continue
		}
		i = v.At(i)
		if v.Strs != nil && i < len(v.Strs) {
			total += int64(len(v.Strs[i]))
		} else if i < len(v.Lists) {
			total += listBytes(v.Lists[i])
		}
	}
	return total
}

func batchBytes(cols []*types.Vector, sel []int32, n int) (total int64) {
	for _, v := range cols {
		total += vectorBytes(v, sel, n)
	}
	return total
}

// gather sets out to column col of the rows ids of r; the values of a negative id are
// NULL. The values are shared with r.
func (r *rows) gather(out *types.Vector, col int, ids []int32) {
	out.Resize(len(ids))
	const mask = types.BatchRows - 1
	switch out.Type.Kind {
	case types.Float32, types.Float64:
		for k, id := range ids {
			if id >= 0 {
				out.Floats[k] = r.chunks[id>>chunkBits].Cols[col].Floats[id&mask]
			}
		}
	case types.String, types.Bytes, types.Proto:
		for k, id := range ids {
			if id >= 0 {
				out.Strs[k] = r.chunks[id>>chunkBits].Cols[col].Strs[id&mask]
			}
		}
	case types.Array, types.Struct, types.Map:
		for k, id := range ids {
			if id >= 0 {
				out.Lists[k] = r.chunks[id>>chunkBits].Cols[col].Lists[id&mask]
			}
		}
	default:
		for k, id := range ids {
			if id >= 0 {
				out.Ints[k] = r.chunks[id>>chunkBits].Cols[col].Ints[id&mask]
			}
		}
	}
	for k, id := range ids {
		if id < 0 {
			out.SetNull(k)
		} else if null := r.chunks[id>>chunkBits].Cols[col].Null; null != nil && null[id&mask] {
			out.SetNull(k)
		}
	}
}

// pick sets out to the rows ids of v; the values of a negative id are NULL.
func pick(out, v *types.Vector, ids []int32) {
	out.Resize(len(ids))
	if v == nil {
		for k := range ids {
			out.SetNull(k)
		}
		return
	}
	for k, id := range ids {
		if id < 0 || v.IsNull(int(id)) {
			out.SetNull(k)
			continue
		}
		i := v.At(int(id))
		switch out.Type.Kind {
		case types.Float32, types.Float64:
			out.Floats[k] = v.Floats[i]
		case types.String, types.Bytes, types.Proto:
			out.Strs[k] = v.Strs[i]
		case types.Array, types.Struct, types.Map:
			out.Lists[k] = v.Lists[i]
		default:
			out.Ints[k] = v.Ints[i]
		}
	}
}

// newVectors returns an empty vector of each type.
func newVectors(ts []*types.Type) []*types.Vector {
	out := make([]*types.Vector, len(ts))
	for i, t := range ts {
		out[i] = &types.Vector{Type: t}
	}
	return out
}
