package aggregate

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	aggregatorType  = 112
	encodingVersion = 2

	fieldType       = 1
	fieldValues     = 2
	fieldVersion    = 3
	fieldValueType  = 4
	fieldHLL        = 112
	fieldSparseSize = 2
	fieldPrecision  = 3
	fieldSparseP    = 4
	fieldDense      = 5
	fieldSparse     = 6
	// fieldOldType is where BigQuery's older sketches have the value type: 1 for
	// bytes and strings, 2 for integers.
	fieldOldType = 7
)

// decode parses a state and checks all of it. The result's registers alias b.
// What it needs in memory is at most 5 times the length of b.
func decode(b []byte) (*sketch, error) {
	s := new(sketch)
	var hll, sparse []byte
	var kind, version, oldType uint64
	version = 1
	err := fields(b, func(num protowire.Number, v uint64, data []byte) {
		switch num {
		case fieldType:
			kind = v
		case fieldValues:
			s.values = int64(v)
		case fieldVersion:
			version = v
		case fieldValueType:
			s.valueType = int32(v)
		case fieldHLL:
			hll = data
		}
	})
	if err != nil {
		return nil, malformed("%w", err)
	}
	if kind != aggregatorType || version != encodingVersion {
		return nil, malformed("it is of type %d, version %d, not %d, version %d", kind, version, aggregatorType, encodingVersion)
	}
	var p, sp uint64
	err = fields(hll, func(num protowire.Number, v uint64, data []byte) {
		switch num {
		case fieldPrecision:
			p = v
		case fieldSparseP:
			sp = v
		case fieldDense:
			s.dense = data
		case fieldSparse:
			sparse = data
		case fieldOldType:
			oldType = v
		}
	})
	if err != nil {
		return nil, malformed("%w", err)
	}
	if p < minPrecision || p > maxPrecision || sp != 0 && (sp < p || sp > maxSparsePrecision) {
		return nil, malformed("its precision is %d, its sparse precision %d", p, sp)
	}
	s.p, s.sp = int(p), int(sp)
	if s.valueType == typeUnknown {
		switch oldType {
		case 1:
			s.valueType = typeBytes
		case 2:
			s.valueType = typeInt
		}
	}
	if len(s.dense) == 0 {
		s.dense = nil
	} else {
		if len(s.dense) != s.registers() {
			return nil, malformed("it has %d registers where its precision says %d", len(s.dense), s.registers())
		}
		if i := checkRegisters(s.dense, 65-s.p); i >= 0 {
			return nil, malformed("register %d holds %d", i, s.dense[i])
		}
	}
	if len(sparse) == 0 {
		return s, nil
	}
	// Writers change to registers earlier than that.
	if !s.isSparse() || len(sparse) > s.registers() {
		return nil, malformed("it has %d registers and %d bytes of sparse values at sparse precision %d", len(s.dense), len(sparse), s.sp)
	}
	s.sparse, err = decodeSparse(s.form(), sparse)
	if err != nil {
		return nil, malformed("%w", err)
	}
	return s, nil
}

func malformed(format string, args ...any) error {
	return fault.New(fault.Invalid, "the state of an HLL aggregate is malformed: %w", fmt.Errorf(format, args...))
}

// fields calls f with every field that is a varint or bytes. It skips others.
func fields(b []byte, f func(num protowire.Number, v uint64, data []byte)) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			var v uint64
			if v, n = protowire.ConsumeVarint(b); n >= 0 {
				f(num, v, nil)
			}
		case protowire.BytesType:
			var data []byte
			if data, n = protowire.ConsumeBytes(b); n >= 0 {
				f(num, 0, data)
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	return nil
}

// decodeSparse parses ascending values.
func decodeSparse(f form, b []byte) ([]uint32, error) {
	count := 1 // room for one more
	for _, c := range b {
		if c < 0x80 { // the last byte of a varint
			count++
		}
	}
	values := make([]uint32, 0, count)
	low := uint64(1)<<(f.sp-f.p) - 1
	v := uint64(0)
	for len(b) > 0 {
		diff, n := uint64(b[0]), 1
		if diff >= 0x80 {
			if diff, n = protowire.ConsumeVarint(b); n < 0 {
				return nil, protowire.ParseError(n)
			}
		}
		b = b[n:]
		v += min(diff, 1<<32) // so much is no value's difference, but v cannot overflow
		// Most values hold no rho, and then are their index.
		ok := v < 1<<f.sp && v&low != 0 && (diff > 0 || len(values) == 0)
		if !ok {
			ok = v < 1<<32 && f.valid(uint32(v)) && (len(values) == 0 || !f.sameIndex(values[len(values)-1], uint32(v)))
		}
		if !ok {
			return nil, fmt.Errorf("sparse value %d is %#x", len(values), v)
		}
		values = append(values, uint32(v))
	}
	return values, nil
}

// checkRegisters returns the first register that holds more than limit, -1 if
// none does. len(dense) is a multiple of 8 and limit below 128.
func checkRegisters(dense []byte, limit int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	// A byte up to limit plus this stays below 0x80. A larger one does not, or
	// is not below 0x80 itself; what it then carries into the next is no matter.
	add := uint64(127-limit) * ones
	for i := 0; i < len(dense); i += 8 {
		w := binary.LittleEndian.Uint64(dense[i:])
		if (w|(w+add))&tops != 0 {
			return i + slices.IndexFunc(dense[i:], func(r byte) bool { return int(r) > limit })
		}
	}
	return -1
}

// sparseSize returns the length of the encoding of ascending values.
func sparseSize(values []uint32) int {
	n := 0
	var last uint32
	for _, v := range values {
		n += (bits.Len32((v-last)|1) + 6) / 7
		last = v
	}
	return n
}

// encode returns the state. If s is dense its registers are the end of it.
func (s *sketch) encode() []byte {
	sparse := 0
	var hll []byte // all but the data
	if s.isSparse() {
		sparse = sparseSize(s.sparse)
		if len(s.sparse) > 0 {
			hll = appendVarint(hll, fieldSparseSize, uint64(len(s.sparse)))
		}
	}
	hll = appendVarint(hll, fieldPrecision, uint64(s.p))
	if s.sp != 0 {
		hll = appendVarint(hll, fieldSparseP, uint64(s.sp))
	}
	switch {
	case s.isSparse():
		hll = protowire.AppendTag(hll, fieldSparse, protowire.BytesType)
		hll = protowire.AppendVarint(hll, uint64(sparse))
	case s.dense != nil:
		hll = protowire.AppendTag(hll, fieldDense, protowire.BytesType)
		hll = protowire.AppendVarint(hll, uint64(len(s.dense)))
	}

	b := make([]byte, 0, 32+len(hll)+len(s.dense)+sparse)
	b = appendVarint(b, fieldType, aggregatorType)
	b = appendVarint(b, fieldValues, uint64(s.values))
	b = appendVarint(b, fieldVersion, encodingVersion)
	if s.valueType != typeUnknown {
		b = appendVarint(b, fieldValueType, uint64(s.valueType))
	}
	b = protowire.AppendTag(b, fieldHLL, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(hll)+len(s.dense)+sparse))
	b = append(b, hll...)
	b = append(b, s.dense...)
	var last uint32
	for _, v := range s.sparse {
		d := v - last
		for ; d >= 0x80; d >>= 7 {
			b = append(b, byte(d)|0x80)
		}
		b = append(b, byte(d))
		last = v
	}
	return b
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}
