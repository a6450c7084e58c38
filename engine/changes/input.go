package changes

import (
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// AppendInput encodes the input of AddToCell or MergeToCell as a Change has it: the
// number of its kind, then its bytes, or 8 big-endian bytes of its number.
func AppendInput(dst []byte, in row.Input) []byte {
	dst = append(dst, byte(in.Kind))
	switch in.Kind {
	case row.BytesInput, row.StringInput, row.RawInput:
		return append(dst, in.Bytes...)
	case row.FloatInput:
		return binary.BigEndian.AppendUint64(dst, math.Float64bits(in.Float))
	case row.NullInput:
		return dst
	}
	return binary.BigEndian.AppendUint64(dst, uint64(in.Int))
}

// ParseInput decodes what AppendInput wrote. The answer aliases b.
func ParseInput(b []byte) (row.Input, error) {
	if len(b) == 0 {
		return row.Input{}, fault.New(fault.Corruption, "the input of an aggregate has no bytes")
	}
	in, rest := row.Input{Kind: row.InputKind(b[0])}, b[1:]
	switch in.Kind {
	case row.BytesInput, row.StringInput, row.RawInput:
		in.Bytes = rest
		return in, nil
	case row.NullInput:
		if len(rest) == 0 {
			return in, nil
		}
	case row.IntInput, row.FloatInput, row.BoolInput, row.TimestampInput, row.DateInput:
		if len(rest) != 8 {
			break
		}
		if n := binary.BigEndian.Uint64(rest); in.Kind == row.FloatInput {
			in.Float = math.Float64frombits(n)
		} else {
			in.Int = int64(n)
		}
		return in, nil
	}
	return row.Input{}, fault.New(fault.Corruption, "the input of an aggregate is malformed: kind %d with %d bytes", b[0], len(rest))
}
