package filter

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/big"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// A Comparator compares itself with values, as a class of HBase does.
type Comparator interface {
	// compareTo is positive if the comparator is greater than value.
	compareTo(value []byte) int
}

// An evalError is an exception that a filter throws at a cell. Comparators
// panic with it; Filter.Row and Compare return it.
type evalError struct{ error }

func fail(format string, args ...any) { panic(evalError{fmt.Errorf(format, args...)}) }

func recovered(err *error) {
	if r := recover(); r != nil {
		e, ok := r.(evalError)
		if !ok {
			panic(r)
		}
		*err = &Error{Class: doNotRetry, Msg: e.Error()}
	}
}

// Compare returns a positive number if c is greater than value, and an *Error
// for a value that c cannot be compared with.
func Compare(c Comparator, value []byte) (n int, err error) {
	defer recovered(&err)
	return c.compareTo(value), nil
}

// compare is an operator with a comparator: the value's relation to it.
type compare struct {
	op         pb.CompareType
	comparator Comparator
}

// excludes tells whether the value fails the comparison.
func (f compare) excludes(value []byte) bool {
	if f.op == pb.CompareType_NO_OP {
		return true
	}
	n := f.comparator.compareTo(value)
	switch f.op {
	case pb.CompareType_LESS:
		return n <= 0
	case pb.CompareType_LESS_OR_EQUAL:
		return n < 0
	case pb.CompareType_EQUAL:
		return n != 0
	case pb.CompareType_NOT_EQUAL:
		return n == 0
	case pb.CompareType_GREATER_OR_EQUAL:
		return n > 0
	}
	return n >= 0 // GREATER
}

// DecodeComparator returns the comparator of a message, or an *Error. Unless it is nil,
// take is asked for memory as Options.Take is.
func DecodeComparator(m *pb.Comparator, take func(bytes int64) error) (Comparator, error) {
	d := decoder{take: take}
	return d.comparator(m)
}

func (d *decoder) comparator(m *pb.Comparator) (Comparator, error) {
	name, ok := strings.CutPrefix(m.GetName(), classPrefix)
	if !ok {
		return nil, unknown(m.GetName())
	}
	b := m.GetSerializedComparator()
	switch name {
	case "BinaryComparator":
		p, err := read[pb.BinaryComparator](d, b)
		return binaryComparator(p.GetComparable().GetValue()), err
	case "BinaryPrefixComparator":
		p, err := read[pb.BinaryPrefixComparator](d, b)
		return binaryPrefixComparator(p.GetComparable().GetValue()), err
	case "BinaryComponentComparator":
		p, err := read[pb.BinaryComponentComparator](d, b)
		if err == nil && int32(p.GetOffset()) < 0 {
			err = invalid("component offset %d is negative", int32(p.GetOffset()))
		}
		return binaryComponentComparator{p.GetValue(), int(p.GetOffset())}, err
	case "BitComparator":
		p, err := read[pb.BitComparator](d, b)
		return bitComparator{p.GetComparable().GetValue(), p.GetBitwiseOp()}, err
	case "NullComparator":
		_, err := read[pb.NullComparator](d, b)
		return nullComparator{}, err
	case "RegexStringComparator":
		p, err := read[pb.RegexStringComparator](d, b)
		if err != nil {
			return nil, err
		}
		return newRegexComparator(p, d)
	case "SubstringComparator":
		p, err := read[pb.SubstringComparator](d, b)
		return substringComparator(strings.ToLower(p.GetSubstr())), err
	case "LongComparator":
		p, err := read[pb.LongComparator](d, b)
		v := p.GetComparable().GetValue()
		if err == nil && len(v) != 8 {
			err = invalid("a LongComparator of %d bytes", len(v))
		}
		if err != nil {
			return nil, err
		}
		return longComparator(binary.BigEndian.Uint64(v)), nil
	case "BigDecimalComparator":
		p, err := read[pb.BigDecimalComparator](d, b)
		if err != nil {
			return nil, err
		}
		d, ok := parseDecimal(p.GetComparable().GetValue())
		if !ok {
			return nil, invalid("a BigDecimalComparator of %d bytes", len(p.GetComparable().GetValue()))
		}
		return d, nil
	}
	return nil, unknown(m.GetName())
}

// parse decodes a class's own message.
func parse[M any, P interface {
	*M
	proto.Message
}](b []byte) (P, error) {
	p := P(new(M))
	if err := proto.Unmarshal(b, p); err != nil {
		return p, invalid("read %s: %v", p.ProtoReflect().Descriptor().Name(), err)
	}
	return p, nil
}

type binaryComparator []byte

func (c binaryComparator) compareTo(value []byte) int { return bytes.Compare(c, value) }

// binaryPrefixComparator compares with as many bytes as it has itself.
type binaryPrefixComparator []byte

func (c binaryPrefixComparator) compareTo(value []byte) int {
	return bytes.Compare(c, value[:min(len(value), len(c))])
}

// binaryComponentComparator compares with a part of the value, or with what is
// there of it.
type binaryComponentComparator struct {
	part   []byte
	offset int
}

func (c binaryComponentComparator) compareTo(value []byte) int {
	value = value[min(c.offset, len(value)):]
	return bytes.Compare(c.part, value[:min(len(value), len(c.part))])
}

// bitComparator is equal to values of its own length of which a bit is left
// after the operation.
type bitComparator struct {
	bits []byte
	op   pb.BitComparator_BitwiseOp
}

func (c bitComparator) compareTo(value []byte) int {
	if len(value) != len(c.bits) {
		return 1
	}
	for i, b := range c.bits {
		switch c.op {
		case pb.BitComparator_AND:
			b &= value[i]
		case pb.BitComparator_OR:
			b |= value[i]
		default:
			b ^= value[i]
		}
		if b != 0 {
			return 0
		}
	}
	return 1
}

// nullComparator is greater than every value that there is.
type nullComparator struct{}

func (nullComparator) compareTo([]byte) int { return 1 }

// substringComparator is equal to values that contain it, whatever the case of
// their letters. It is in lower case itself.
type substringComparator string

func (c substringComparator) compareTo(value []byte) int {
	if isASCII(value) && isASCII(c) {
		for i := 0; i+len(c) <= len(value); i++ {
			if lowerEqual(value[i:i+len(c)], string(c)) {
				return 0
			}
		}
		return 1
	}
	if strings.Contains(strings.ToLower(string(value)), string(c)) {
		return 0
	}
	return 1
}

func isASCII[S ~string | ~[]byte](s S) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func lowerEqual(value []byte, lower string) bool {
	for i, c := range value {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

type longComparator int64

func (c longComparator) compareTo(value []byte) int {
	if len(value) != 8 {
		fail("Wrong length: %d, expected 8", len(value))
	}
	return cmp.Compare(int64(c), int64(binary.BigEndian.Uint64(value)))
}

// A decimal is a Java BigDecimal: unscaled / 10^scale. On the wire it is the
// scale in four bytes and then the unscaled value in two's complement.
type decimal struct {
	unscaled *big.Int
	scale    int64
}

// maxDecimal bounds a decimal's bytes: to compare two takes quadratic time.
const maxDecimal = 16 << 10

func parseDecimal(b []byte) (decimal, bool) {
	if len(b) < 5 || len(b) > maxDecimal {
		return decimal{}, false
	}
	d := decimal{new(big.Int).SetBytes(b[4:]), int64(int32(binary.BigEndian.Uint32(b)))}
	if b[4]&0x80 != 0 {
		d.unscaled.Sub(d.unscaled, new(big.Int).Lsh(big.NewInt(1), uint(8*(len(b)-4))))
	}
	return d, true
}

func (d decimal) compareTo(value []byte) int {
	o, ok := parseDecimal(value)
	if !ok {
		fail("a BigDecimal of %d bytes", len(value))
	}
	return d.compare(o)
}

func (d decimal) compare(o decimal) int {
	s := d.unscaled.Sign()
	if s != o.unscaled.Sign() {
		return cmp.Compare(s, o.unscaled.Sign())
	}
	if s == 0 {
		return 0
	}
	// First by magnitude, since the scales may be two thousand million apart.
	// 10^(m-1) <= |x| < 10^(m+1): the number of digits is known to within one.
	m := func(x decimal) int64 { return int64(float64(x.unscaled.BitLen()-1)*0.30103) + 1 - x.scale }
	if a, b := m(d), m(o); a > b+2 {
		return s
	} else if b > a+2 {
		return -s
	}
	a, b := d.unscaled, o.unscaled
	if n := d.scale - o.scale; n > 0 {
		b = new(big.Int).Mul(b, pow10(n))
	} else if n < 0 {
		a = new(big.Int).Mul(a, pow10(-n))
	}
	return a.Cmp(b)
}

func pow10(n int64) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(n), nil) }
