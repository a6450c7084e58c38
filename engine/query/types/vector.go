package types

// BatchRows is how many rows a Batch has at most.
const BatchRows = 1024

// A Vector holds values of one type, of consecutive rows. Only the slice that
// the type's kind needs is used:
//
//	Ints   BOOL (0, 1), INT64, DATE, TIMESTAMP, ENUM
//	Floats FLOAT32, FLOAT64
//	Strs   STRING, BYTES, PROTO
//	Lists  ARRAY, STRUCT, MAP: as Value.List
//
// Strings and lists may lie in memory that the producer of a batch uses again
// for the next: a consumer that keeps one clones it.
type Vector struct {
	Type *Type
	// Const says that all rows have the value at index 0.
	Const bool
	// Null says of each row whether it is NULL. If it is nil, none is. What the other
	// slices hold for a NULL is undefined.
	Null   []bool
	Ints   []int64
	Floats []float64
	Strs   []string
	Lists  [][]Value
}

// NewVector returns a Vector with room for n values, none of them NULL.
func NewVector(t *Type, n int) *Vector {
	v := &Vector{Type: t}
	v.Resize(n)
	return v
}

// NewConst returns a Vector of which every row is x.
func NewConst(t *Type, x Value) *Vector {
	v := NewVector(t, 1)
	v.Const = true
	v.Set(0, x)
	return v
}

// Resize gives v room for n values and forgets which were NULL. The values are
// undefined. Memory is used again.
func (v *Vector) Resize(n int) {
	v.Const, v.Null = false, nil
	switch v.Type.Kind {
	case Float32, Float64:
		v.Floats = resize(v.Floats, n)
	case String, Bytes, Proto:
		v.Strs = resize(v.Strs, n)
	case Array, Struct, Map:
		v.Lists = resize(v.Lists, n)
	default:
		v.Ints = resize(v.Ints, n)
	}
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, max(n, min(2*cap(s), BatchRows)))
	}
	return s[:n]
}

// Cap returns how many values v has room for.
func (v *Vector) Cap() int {
	return max(len(v.Ints), len(v.Floats), len(v.Strs), len(v.Lists))
}

// At returns the index at which v keeps the value of row i.
func (v *Vector) At(i int) int {
	if v.Const {
		return 0
	}
	return i
}

// IsNull tells whether row i is NULL.
func (v *Vector) IsNull(i int) bool { return v.Null != nil && v.Null[v.At(i)] }

// Value returns the value of row i.
func (v *Vector) Value(i int) Value {
	i = v.At(i)
	if v.Null != nil && v.Null[i] {
		return Value{}
	}
	switch v.Type.Kind {
	case Float32, Float64:
		return Value{Valid: true, Float: v.Floats[i]}
	case String, Bytes, Proto:
		return Value{Valid: true, Str: v.Strs[i]}
	case Array, Struct, Map:
		return Value{Valid: true, List: v.Lists[i]}
	}
	return Value{Valid: true, Int: v.Ints[i]}
}

// Set makes x the value at index i.
func (v *Vector) Set(i int, x Value) {
	if !x.Valid {
		v.SetNull(i)
		return
	}
	if v.Null != nil {
		v.Null[i] = false
	}
	switch v.Type.Kind {
	case Float32, Float64:
		v.Floats[i] = x.Float
	case String, Bytes, Proto:
		v.Strs[i] = x.Str
	case Array, Struct, Map:
		v.Lists[i] = x.List
	default:
		v.Ints[i] = x.Int
	}
}

// SetNull makes the value at index i NULL.
func (v *Vector) SetNull(i int) {
	if v.Null == nil {
		v.Null = make([]bool, v.Cap())
	}
	v.Null[i] = true
}

// A Batch is up to BatchRows rows, as columns.
type Batch struct {
	// Len is how many rows Cols have.
	Len int
	// Sel lists the rows that count, ascending. Nil means all of them.
	Sel []int32
	// Cols may hold nil for a column that nobody asked for.
	Cols []*Vector
}

// Rows returns how many rows of b count.
func (b *Batch) Rows() int {
	if b.Sel != nil {
		return len(b.Sel)
	}
	return b.Len
}
