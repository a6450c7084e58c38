package aggregate

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

const (
	newPrecision       = 15
	newSparsePrecision = 20

	minPrecision       = 4
	maxPrecision       = 24
	maxSparsePrecision = 25

	rhoBits = 6
)

// The value types of AggregatorStateProto that are written here.
const (
	typeUnknown = 0
	typeInt     = 8
	typeFloat   = 10
	typeBytes   = 11
)

// A sketch is the decoded state of an HLL cell. It is sparse if p's registers
// are not there and sp is not 0.
type sketch struct {
	values    int64
	valueType int32
	p         int
	sp        int // 0 if the sparse form is not used
	// dense is nil, or 2^p registers. It may alias the state it was decoded from.
	dense []byte
	// sparse are the values of a sparse sketch, ascending, at most one for each
	// index.
	sparse []uint32
}

func (s *sketch) isSparse() bool { return s.dense == nil && s.sp != 0 }

// registers returns how many registers the dense form has.
func (s *sketch) registers() int { return 1 << s.p }

func addHLL(state []byte, in row.Input) ([]byte, error) {
	valueType, hash, err := hashInput(in)
	if err != nil {
		return nil, err
	}
	s := &sketch{p: newPrecision, sp: newSparsePrecision}
	if state != nil {
		if s, err = decode(state); err != nil {
			return nil, err
		}
	}
	if err := s.setType(valueType); err != nil {
		return nil, err
	}
	if s.isSparse() || s.dense == nil {
		s.addHash(hash)
		return s.encode(), nil
	}
	// The registers alias state, which must not change, and are the end of the
	// encoding. Setting one there saves a copy.
	s.values++
	out := s.encode()
	setRegister(out[len(out)-s.registers():], s.p, hash)
	return out, nil
}

// addHash counts a hash. It changes the registers in place.
func (s *sketch) addHash(hash uint64) {
	s.values++
	if s.isSparse() {
		s.sparse = insert(s.form(), s.sparse, s.form().encode(hash))
		s.compact()
		return
	}
	if s.dense == nil {
		s.dense = make([]byte, s.registers())
	}
	setRegister(s.dense, s.p, hash)
}

func setRegister(dense []byte, p int, hash uint64) {
	i := hash >> (64 - p)
	dense[i] = max(dense[i], rho(hash, 64-p))
}

func hashInput(in row.Input) (valueType int32, hash uint64, err error) {
	var word [8]byte
	switch in.Kind {
	case row.IntInput, row.TimestampInput, row.DateInput, row.BoolInput:
		binary.LittleEndian.PutUint64(word[:], uint64(in.Int))
		return typeInt, fingerprint(word[:]), nil
	case row.FloatInput:
		f := in.Float
		if f == 0 {
			f = 0 // not -0
		}
		binary.LittleEndian.PutUint64(word[:], math.Float64bits(f))
		return typeFloat, fingerprint(word[:]), nil
	case row.BytesInput, row.RawInput, row.StringInput:
		return typeBytes, fingerprint(in.Bytes), nil
	}
	return 0, 0, fault.New(fault.Invalid, "an input of kind %d cannot be counted", in.Kind)
}

// setType makes s a sketch of values of type t, unless it is of another one.
func (s *sketch) setType(t int32) error {
	if s.valueType != typeUnknown && t != typeUnknown && s.valueType != t {
		return fault.New(fault.Invalid, "a sketch of values of type %d cannot take values of type %d", s.valueType, t)
	}
	if s.valueType == typeUnknown {
		s.valueType = t
	}
	return nil
}

func mergeHLL(state, other []byte) ([]byte, error) {
	if len(other) == 0 {
		return state, nil
	}
	o, err := decode(other)
	if err != nil {
		return nil, err
	}
	if state == nil {
		return o.encode(), nil
	}
	s, err := decode(state)
	if err != nil {
		return nil, err
	}
	if err := s.merge(o); err != nil {
		return nil, err
	}
	return s.encode(), nil
}

// merge adds the values of o, which it does not change.
func (s *sketch) merge(o *sketch) error {
	if err := s.setType(o.valueType); err != nil {
		return err
	}
	out := sketch{values: s.values + o.values, valueType: s.valueType, p: min(s.p, o.p), sp: min(s.sp, o.sp)}
	if s.isSparse() && o.isSparse() {
		if (s.p < o.p && s.sp > o.sp) || (s.p > o.p && s.sp < o.sp) {
			return fault.New(fault.Invalid, "sketches of precision %d and %d cannot be merged: their sparse precisions are %d and %d",
				s.p, o.p, s.sp, o.sp)
		}
		out.sparse = union(out.form(), s.downgraded(out.form()), o.downgraded(out.form()))
		out.compact()
	} else {
		out.dense = make([]byte, out.registers())
		s.addTo(&out)
		o.addTo(&out)
	}
	*s = out
	return nil
}

// addTo raises the registers of out, whose precision is at most that of s, to
// what s knows.
func (s *sketch) addTo(out *sketch) {
	shift := s.p - out.p
	if !s.isSparse() {
		if shift == 0 {
			dense := out.dense[:len(s.dense)] // spares the loop a bounds check
			for i, r := range s.dense {
				if r > dense[i] {
					dense[i] = r
				}
			}
			return
		}
		for i, r := range s.dense {
			if r != 0 {
				j := i >> shift
				out.dense[j] = max(out.dense[j], widen(uint32(i), r, shift))
			}
		}
		return
	}
	f := s.form()
	for _, v := range s.sparse {
		index, r := f.decode(v)
		j := index >> (f.sp - out.p)
		out.dense[j] = max(out.dense[j], widen(index, r, f.sp-out.p))
	}
}

// compact turns a sparse sketch into a dense one when that is not much larger.
// The limit is that of the latest ZetaSketch; its first release wrote one byte
// more.
func (s *sketch) compact() {
	if sparseSize(s.sparse) < s.registers()/4*3 {
		return
	}
	out := sketch{values: s.values, valueType: s.valueType, p: s.p, sp: s.sp, dense: make([]byte, s.registers())}
	s.addTo(&out)
	*s = out
}

// rho returns the number of leading zeros of the low n bits of v, plus 1.
func rho(v uint64, n int) byte {
	if n == 0 {
		return 1
	}
	return byte(min(bits.LeadingZeros64(v<<(64-n)), n) + 1)
}

// widen returns the rho that belongs to the index without its last n bits. r is
// the rho behind the whole index; it counts only if those bits are all 0.
func widen(index uint32, r byte, n int) byte {
	if last := uint64(index) & (1<<n - 1); last != 0 {
		return rho(last, n)
	}
	return r + byte(n)
}

// A form is how sparse values of a pair of precisions are written.
type form struct{ p, sp int }

func (s *sketch) form() form { return form{s.p, s.sp} }

// flag marks the values that hold a rho. They sort behind all others.
func (f form) flag() uint32 { return 1 << max(f.sp, f.p+rhoBits) }

// encode returns the value of a hash.
func (f form) encode(hash uint64) uint32 {
	return f.value(uint32(hash>>(64-f.sp)), rho(hash, 64-f.sp))
}

// value returns the value of an index of sp bits with the rho behind it.
func (f form) value(index uint32, r byte) uint32 {
	n := f.sp - f.p
	if index&(1<<n-1) != 0 {
		return index // the rho behind p bits can be read off the index
	}
	return f.flag() | index>>n<<rhoBits | uint32(r)
}

// decode returns the index of sp bits and, if the value holds it, the rho behind
// it.
func (f form) decode(v uint32) (index uint32, r byte) {
	if v&f.flag() == 0 {
		return v, 0
	}
	return (v ^ f.flag()) >> rhoBits << (f.sp - f.p), byte(v & (1<<rhoBits - 1))
}

// valid tells whether encode can have made v.
func (f form) valid(v uint32) bool {
	if v >= 2*f.flag() {
		return false
	}
	index, r := f.decode(v)
	return index < 1<<f.sp && int(r) <= 65-f.sp && f.value(index, r) == v && (v&f.flag() == 0 || r > 0)
}

// downgraded returns the sparse values of s in the form to, whose precisions are
// at most those of s.
func (s *sketch) downgraded(to form) []uint32 {
	from := s.form()
	if from == to {
		return s.sparse
	}
	out := make([]uint32, len(s.sparse))
	shift := from.sp - to.sp
	for i, v := range s.sparse {
		index, r := from.decode(v)
		out[i] = to.value(index>>shift, widen(index, r, shift))
	}
	slices.Sort(out)
	return union(to, out, nil)
}

// union merges ascending values. Of values with one index the largest rho
// stays.
func union(f form, a, b []uint32) []uint32 {
	out := make([]uint32, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		if len(a) == 0 || len(b) > 0 && b[0] < a[0] {
			a, b = b, a
		}
		v := a[0]
		a = a[1:]
		if n := len(out); n > 0 && f.sameIndex(out[n-1], v) {
			out[n-1] = v // the larger, as it comes later
			continue
		}
		out = append(out, v)
	}
	return out
}

func (f form) sameIndex(v, w uint32) bool {
	if v&w&f.flag() != 0 {
		return v>>rhoBits == w>>rhoBits
	}
	return v == w
}

// insert is union with one value. It reuses values.
func insert(f form, values []uint32, v uint32) []uint32 {
	i, found := slices.BinarySearch(values, v)
	switch {
	case found, i < len(values) && f.sameIndex(v, values[i]):
		return values
	case i > 0 && f.sameIndex(values[i-1], v):
		values[i-1] = v
		return values
	}
	return slices.Insert(values, i, v)
}
