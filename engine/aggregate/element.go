package aggregate

import "slices"

// An element is what a sketch remembers of a value. The sketch of a set of values
// depends on their elements only, so that a caller who counts the elements can take
// values away again. An element of a sparse sketch is a sparse value, one of a dense
// sketch a register and what it holds.

// IntElement returns the element of an integer in a NewSketch of that precision.
func IntElement(precision int, v int64) uint32 {
	k := NewSketch(precision)
	k.pending = make([]uint32, 0, 1)
	_ = k.AddInt(v) // an empty sketch takes any type
	return k.pending[0]
}

// BytesElement is IntElement of bytes.
func BytesElement(precision int, b []byte) uint32 {
	k := NewSketch(precision)
	k.pending = make([]uint32, 0, 1)
	_ = k.AddBytes(b)
	return k.pending[0]
}

// A Shape is what sketches of one kind have in common. It is comparable.
type Shape struct {
	Precision, Sparse uint8
	Type              uint8
	Dense             bool
}

// NewShape returns the shape of a NewSketch, of integers or of bytes.
func NewShape(precision int, ints bool) Shape {
	k := NewSketch(precision)
	s := Shape{Precision: uint8(k.s.p), Sparse: uint8(k.s.sp), Type: typeBytes}
	if ints {
		s.Type = typeInt
	}
	return s
}

// Valid tells whether there are sketches of that shape.
func (s Shape) Valid() bool {
	return s.Precision >= minPrecision && s.Precision <= maxPrecision && (s.Sparse == 0 && s.Dense || s.Sparse >= s.Precision && s.Sparse <= maxSparsePrecision) &&
		s.Type <= typeBytes
}

// Shape returns the shape of k.
func (k *Sketch) Shape() Shape {
	k.flush()
	return Shape{Precision: uint8(k.s.p), Sparse: uint8(k.s.sp), Type: uint8(k.s.valueType), Dense: !k.s.isSparse()}
}

// Values returns how many values were added, those that are alike included.
func (k *Sketch) Values() int64 { return k.s.values }

// Elements calls visit for each element of k.
func (k *Sketch) Elements(visit func(element uint32)) {
	k.flush()
	if k.s.isSparse() {
		for _, v := range k.s.sparse {
			visit(v)
		}
		return
	}
	for i, r := range k.s.dense {
		if r != 0 {
			visit(uint32(i)<<rhoBits | uint32(r))
		}
	}
}

// Register returns the register that an element of s counts in, and what it holds for
// it at least. ok is false if it is no element of s.
func (s Shape) Register(element uint32) (register uint32, rank byte, ok bool) {
	p := int(s.Precision)
	if s.Dense {
		register, rank = element>>rhoBits, byte(element&(1<<rhoBits-1))
		return register, rank, register < 1<<p && rank > 0 && int(rank) <= 65-p
	}
	f := form{p, int(s.Sparse)}
	if !f.valid(element) {
		return 0, 0, false
	}
	index, r := f.decode(element)
	return index >> (f.sp - p), widen(index, r, f.sp-p), true
}

// FromElements returns the sketch of n values that have these elements of s, in any
// order. ok is false if one is none of s.
func FromElements(s Shape, n int64, elements []uint32) (k *Sketch, ok bool) {
	k = &Sketch{s: sketch{values: n, valueType: int32(s.Type), p: int(s.Precision), sp: int(s.Sparse)}}
	if s.Dense {
		k.s.dense = make([]byte, k.s.registers())
		for _, e := range elements {
			i, r, ok := s.Register(e)
			if !ok {
				return nil, false
			}
			k.s.dense[i] = max(k.s.dense[i], r)
		}
		return k, true
	}
	for _, e := range elements {
		if !k.s.form().valid(e) {
			return nil, false
		}
	}
	elements = slices.Clone(elements)
	slices.Sort(elements)
	k.s.sparse = union(k.s.form(), elements, nil)
	k.s.compact()
	return k, true
}

// AddElement adds an element of a sparse sketch of the same precisions as k, without
// counting a value.
func (k *Sketch) AddElement(element uint32) {
	if k.s.isSparse() {
		if k.pending = append(k.pending, element); len(k.pending) >= maxPending {
			k.flush()
		}
		return
	}
	if i, r, ok := (Shape{Precision: uint8(k.s.p), Sparse: uint8(k.s.sp)}).Register(element); ok {
		k.s.dense[i] = max(k.s.dense[i], r)
	}
}

// SetRegister makes rank, 0 for nothing, what a register of a dense sketch holds.
func (k *Sketch) SetRegister(register uint32, rank byte) {
	if k.s.dense != nil && int(register) < len(k.s.dense) {
		k.s.dense[register] = rank
	}
}

// SetValues sets how many values were added.
func (k *Sketch) SetValues(n int64) { k.s.values = n }

// SurelyDense is how many different elements make a sparse sketch of s dense for
// certain: each takes a byte at least.
func (s Shape) SurelyDense() int { return 1 << s.Precision / 4 * 3 }
