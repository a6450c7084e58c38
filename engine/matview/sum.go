package matview

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/varint"
)

// A kind is how the values of a column of groups add up.
type kind uint8

const (
	countRows  kind = iota // they do not: the group counts its rows
	countSome              // values that are not NULL
	sumInts                // in 128 bits
	sumFloats              // exact
	xorBits                // exclusive or
	countBits              // how many values have each bit
	least                  // each value is counted, and the first one shown
	elements               // each element of a sketch is counted
	sketchings             // elements of whole sketches
)

func kindOf(c *schema.ViewColumn) kind {
	switch c.Aggregate {
	case schema.ViewCount:
		return countSome
	case schema.ViewSum, schema.ViewAvg:
		if c.Arg == schema.ViewFloat {
			return sumFloats
		}
		return sumInts
	case schema.ViewBitXor:
		return xorBits
	case schema.ViewBitAnd, schema.ViewBitOr:
		return countBits
	case schema.ViewMin, schema.ViewMax, schema.ViewAny:
		return least
	case schema.ViewSketch:
		return elements
	case schema.ViewMerge, schema.ViewMergeSketch:
		return sketchings
	}
	return countRows
}

// A sum is what values of a column add up to, or a difference of two such.
type sum struct {
	n      int64  // values that are not NULL
	lo     uint64 // of sumInts and xorBits; of sketchings the values that they have seen
	hi     int64
	floats *floats
	bits   *[64]int64
}

// floats are a sum of FLOAT64. Those that are not finite are counted.
type floats struct {
	exact         exact
	nan, up, down int64
}

// addInt adds x sign times, which is 1 or -1.
func (s *sum) addInt(x, sign int64) {
	hi := x >> 63
	var carry uint64
	if sign > 0 {
		s.lo, carry = bits.Add64(s.lo, uint64(x), 0)
		s.hi += hi + int64(carry)
		return
	}
	s.lo, carry = bits.Sub64(s.lo, uint64(x), 0)
	s.hi -= hi + int64(carry)
}

func (s *sum) addFloat(x float64, sign int64) {
	if s.floats == nil {
		s.floats = new(floats)
	}
	f := s.floats
	switch {
	case x != x:
		f.nan += sign
	case math.IsInf(x, 1):
		f.up += sign
	case math.IsInf(x, -1):
		f.down += sign
	default:
		f.exact.add(x, sign < 0)
	}
}

func (s *sum) addBits(x uint64, sign int64) {
	if s.bits == nil {
		s.bits = new([64]int64)
	}
	for ; x != 0; x &= x - 1 {
		s.bits[bits.TrailingZeros64(x)] += sign
	}
}

// add adds o.
func (s *sum) add(k kind, o *sum) {
	s.n += o.n
	if k == xorBits {
		s.lo ^= o.lo
		return
	}
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, o.lo, 0)
	s.hi += o.hi + int64(carry)
	if o.floats != nil {
		if s.floats == nil {
			s.floats = new(floats)
		}
		s.floats.exact.addAll(&o.floats.exact)
		s.floats.nan += o.floats.nan
		s.floats.up += o.floats.up
		s.floats.down += o.floats.down
	}
	if o.bits != nil {
		if s.bits == nil {
			s.bits = new([64]int64)
		}
		for i, n := range o.bits {
			s.bits[i] += n
		}
	}
}

func (s *sum) isZero() bool {
	return s.n == 0 && s.lo == 0 && s.hi == 0 && (s.floats == nil || *s.floats == floats{}) && (s.bits == nil || *s.bits == [64]int64{})
}

// append appends what a column of kind k needs of s.
func (s *sum) append(dst []byte, k kind) []byte {
	switch k {
	case countRows, least:
		return dst
	}
	dst = binary.AppendVarint(dst, s.n)
	switch k {
	case sketchings:
		return binary.AppendVarint(dst, int64(s.lo))
	case sumInts:
		if s.hi == int64(s.lo)>>63 {
			return binary.AppendVarint(append(dst, 0), int64(s.lo))
		}
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(append(dst, 1), uint64(s.hi)), s.lo)
	case xorBits:
		return binary.BigEndian.AppendUint64(dst, s.lo)
	case sumFloats:
		f := s.floats
		if f == nil {
			f = new(floats)
		}
		if f.nan == 0 && f.up == 0 && f.down == 0 {
			return f.exact.append(append(dst, 0))
		}
		dst = binary.AppendVarint(append(dst, 1), f.nan)
		dst = binary.AppendVarint(dst, f.up)
		dst = binary.AppendVarint(dst, f.down)
		return f.exact.append(dst)
	case countBits:
		var mask uint64
		counts := s.bits
		if counts == nil {
			counts = new([64]int64)
		}
		for i, n := range counts {
			if n != 0 {
				mask |= 1 << i
			}
		}
		dst = binary.AppendUvarint(dst, mask)
		for ; mask != 0; mask &= mask - 1 {
			dst = binary.AppendVarint(dst, counts[bits.TrailingZeros64(mask)])
		}
	}
	return dst
}

// read sets s, which is empty, to what append wrote.
func (s *sum) read(r *varint.Decoder, k kind) {
	switch k {
	case countRows, least:
		return
	}
	s.n = r.Varint()
	switch k {
	case sketchings:
		s.lo = uint64(r.Varint())
	case sumInts:
		switch r.Byte() {
		case 0:
			v := r.Varint()
			s.lo, s.hi = uint64(v), v>>63
		case 1:
			s.hi = int64(r.Uint64BE())
			s.lo = r.Uint64BE()
		default:
			r.Fail()
		}
	case xorBits:
		s.lo = r.Uint64BE()
	case sumFloats:
		s.floats = new(floats)
		switch r.Byte() {
		case 0:
		case 1:
			s.floats.nan, s.floats.up, s.floats.down = r.Varint(), r.Varint(), r.Varint()
		default:
			r.Fail()
		}
		s.floats.exact.read(r)
	case countBits:
		s.bits = new([64]int64)
		for mask := r.Uvarint(); mask != 0; mask &= mask - 1 {
			s.bits[bits.TrailingZeros64(mask)] = r.Varint()
		}
	}
}

// appendResult appends the value of the cell of c; ok is false if there is none: of no
// values, and of a sum that its type does not hold, which is an error in a query.
func (s *sum) appendResult(dst []byte, c *schema.ViewColumn, k kind) (out []byte, ok bool) {
	if k == countSome {
		return binary.BigEndian.AppendUint64(dst, uint64(s.n)), true
	}
	if s.n == 0 {
		return dst, false
	}
	mean := c.Aggregate == schema.ViewAvg
	var v uint64
	switch k {
	case sumInts:
		if mean {
			v = math.Float64bits(s.mean())
			break
		}
		if s.hi != int64(s.lo)>>63 {
			return dst, false
		}
		v = s.lo
	case sumFloats:
		f, ok := s.floatResult(mean)
		if !ok {
			return dst, false
		}
		v = math.Float64bits(f)
	case xorBits:
		v = s.lo
	case countBits:
		for i, n := range s.bits {
			if n > 0 && (c.Aggregate == schema.ViewBitOr || n == s.n) {
				v |= 1 << i
			}
		}
	}
	return binary.BigEndian.AppendUint64(dst, v), true
}

// mean returns the mean of integers, as AVG does.
func (s *sum) mean() float64 {
	const exact = 1 << 53
	if sum := int64(s.lo); s.hi == sum>>63 && -exact <= sum && sum <= exact && s.n <= exact {
		return float64(sum) / float64(s.n)
	}
	sum := new(big.Int).SetInt64(s.hi)
	sum.Lsh(sum, 64).Add(sum, new(big.Int).SetUint64(s.lo))
	mean, _ := new(big.Rat).SetFrac(sum, big.NewInt(s.n)).Float64()
	return mean
}

// floatResult returns the sum or mean of FLOAT64.
func (s *sum) floatResult(mean bool) (float64, bool) {
	f := s.floats
	if f == nil {
		f = new(floats)
	}
	switch {
	case f.nan > 0 || f.up > 0 && f.down > 0, mean && f.up+f.down > 0 && s.n > 1:
		// A mean depends on where the infinity stands among the rows; here it does not.
		return math.NaN(), true
	case f.up > 0:
		return math.Inf(1), true
	case f.down > 0:
		return math.Inf(-1), true
	}
	hi := f.exact.round()
	if !mean {
		return hi, !math.IsInf(hi, 0)
	}
	if math.IsInf(hi, 0) || math.Abs(hi) > 1e300 {
		m, _ := new(big.Rat).SetFrac(f.exact.big(), new(big.Int).Lsh(big.NewInt(s.n), 1074)).Float64()
		return m, true
	}
	// As AVG rounds: the sum in two parts, and what the quotient of the first leaves.
	rest := f.exact
	rest.add(hi, true)
	lo, n := rest.round(), float64(s.n)
	q := (hi + lo) / n
	return q + (math.FMA(-q, n, hi)+lo)/n, true
}

// big returns the sum in units of 2^-1074.
func (e *exact) big() *big.Int {
	m := *e
	negative := int64(m[exactWords-1]) < 0
	if negative {
		m.negate()
	}
	var b [8 * exactWords]byte
	for i, w := range m {
		binary.BigEndian.PutUint64(b[8*(exactWords-1-i):], w)
	}
	v := new(big.Int).SetBytes(b[:])
	if negative {
		v.Neg(v)
	}
	return v
}
