package matview

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/trestledb/trestle/engine/varint"
)

// exactWords is how many words an exact sum has. A FLOAT64 is a multiple of 2^-1074
// below 2^1024; the sum of 2^63 of them has 2,161 bits, and one for the sign.
const exactWords = 34

// An exact is the exact sum of finite FLOAT64, in two's complement and units of 2^-1074,
// the lowest word first. What was added can be taken away, and leaves no trace.
type exact [exactWords]uint64

// add adds x, which is finite, or takes it away.
func (e *exact) add(x float64, sub bool) {
	b := math.Float64bits(x)
	exp, frac := int(b>>52&0x7FF), b&(1<<52-1)
	if exp > 0 {
		frac |= 1 << 52
		exp--
	}
	lo, hi := frac<<(exp&63), uint64(0)
	if s := exp & 63; s > 0 {
		hi = frac >> (64 - s)
	}
	i := exp >> 6
	var carry uint64
	if b>>63 != 0 != sub {
		e[i], carry = bits.Sub64(e[i], lo, 0)
		e[i+1], carry = bits.Sub64(e[i+1], hi, carry)
		for i += 2; carry != 0 && i < exactWords; i++ {
			e[i], carry = bits.Sub64(e[i], 0, carry)
		}
		return
	}
	e[i], carry = bits.Add64(e[i], lo, 0)
	e[i+1], carry = bits.Add64(e[i+1], hi, carry)
	for i += 2; carry != 0 && i < exactWords; i++ {
		e[i], carry = bits.Add64(e[i], 0, carry)
	}
}

// addAll adds o.
func (e *exact) addAll(o *exact) {
	var carry uint64
	for i := range e {
		e[i], carry = bits.Add64(e[i], o[i], carry)
	}
}

func (e *exact) isZero() bool { return *e == exact{} }

// round returns the sum, rounded to the nearest, ties to even: an infinity if it is too
// large.
func (e *exact) round() float64 {
	m := *e
	negative := int64(m[exactWords-1]) < 0
	if negative {
		m.negate()
	}
	top := exactWords - 1
	for top >= 0 && m[top] == 0 {
		top--
	}
	if top < 0 {
		return 0
	}
	n := top*64 + bits.Len64(m[top]) // bits of the magnitude
	shift := max(n-53, 0)
	frac := m.window(shift)
	if shift > 0 && m.bit(shift-1) && (frac&1 != 0 || m.anyBelow(shift-1)) {
		frac++
	}
	// Ldexp is exact: frac has 53 bits or is 2^53, and below 2^53 nothing was cut off.
	x := math.Ldexp(float64(frac), shift-1074)
	if negative {
		return -x
	}
	return x
}

func (e *exact) negate() {
	carry := uint64(1)
	for i := range e {
		e[i], carry = bits.Add64(^e[i], 0, carry)
	}
}

// window returns 53 bits from bit at on.
func (e *exact) window(at int) uint64 {
	i, s := at>>6, at&63
	v := e[i] >> s
	if s > 0 && i+1 < exactWords {
		v |= e[i+1] << (64 - s)
	}
	return v & (1<<53 - 1)
}

func (e *exact) bit(at int) bool { return e[at>>6]>>(at&63)&1 != 0 }

func (e *exact) anyBelow(at int) bool {
	i := at >> 6
	for _, w := range e[:i] {
		if w != 0 {
			return true
		}
	}
	return e[i]&(1<<(at&63)-1) != 0
}

// append appends the words but those that are 0 at the low end and those that only
// repeat the sign at the high one: the place of the first, their number, and they.
func (e *exact) append(dst []byte) []byte {
	low, high := 0, exactWords
	for low < exactWords && e[low] == 0 {
		low++
	}
	if low == exactWords {
		return append(dst, 0, 0)
	}
	for high-1 > low && e[high-1] == uint64(int64(e[high-2])>>63) {
		high--
	}
	dst = append(dst, byte(low), byte(high-low))
	for _, w := range e[low:high] {
		dst = binary.BigEndian.AppendUint64(dst, w)
	}
	return dst
}

// read sets e to what append wrote.
func (e *exact) read(r *varint.Decoder) {
	*e = exact{}
	low, n := int(r.Byte()), int(r.Byte())
	if low+n > exactWords {
		r.Fail()
		return
	}
	for i := range n {
		e[low+i] = r.Uint64BE()
	}
	if n > 0 && int64(e[low+n-1]) < 0 {
		for i := low + n; i < exactWords; i++ {
			e[i] = math.MaxUint64
		}
	}
}
