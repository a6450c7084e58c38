package functions

import (
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

// Functions that only Bigtable's SQL has: cells hold numbers as big-endian bytes.

// wrongLength is the error of bytes that are no number of a type.
func wrongLength(function, what string, size, got int) error {
	return Errorf("Invalid argument to %s: %s takes %d bytes, found %d", function, what, size, got)
}

// bigEndian returns the big-endian integer of the eight bytes of s.
func bigEndian(s string) uint64 {
	_ = s[7]
	return uint64(s[0])<<56 | uint64(s[1])<<48 | uint64(s[2])<<40 | uint64(s[3])<<32 |
		uint64(s[4])<<24 | uint64(s[5])<<16 | uint64(s[6])<<8 | uint64(s[7])
}

func toInt64(_ *Call, args []types.Value) (types.Value, error) {
	if len(args[0].Str) != 8 {
		return types.Null, wrongLength("TO_INT64", "a big-endian INT64", 8, len(args[0].Str))
	}
	return types.NewInt(int64(bigEndian(args[0].Str))), nil
}

func toInt64Kernel(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	a := args[0]
	if sel == nil && !a.Const && a.Null == nil {
		// The usual case: all rows, none NULL.
		for i, s := range a.Strs[:n] {
			if len(s) != 8 {
				return wrongLength("TO_INT64", "a big-endian INT64", 8, len(s))
			}
			out.Ints[i] = int64(bigEndian(s))
		}
		return nil
	}
	return eachRow(sel, n, func(i int) error {
		if a.IsNull(i) {
			out.SetNull(i)
			return nil
		}
		s := a.Strs[a.At(i)]
		if len(s) != 8 {
			return wrongLength("TO_INT64", "a big-endian INT64", 8, len(s))
		}
		out.Ints[i] = int64(bigEndian(s))
		return nil
	})
}

func toFloat64(_ *Call, args []types.Value) (types.Value, error) {
	f, err := parseFloat64(args[0].Str)
	if err != nil {
		return types.Null, err
	}
	return types.NewFloat(f), nil
}

func parseFloat64(s string) (float64, error) {
	if len(s) != 8 {
		return 0, wrongLength("TO_FLOAT64", "a big-endian FLOAT64", 8, len(s))
	}
	return math.Float64frombits(bigEndian(s)), nil
}

func toFloat32(_ *Call, args []types.Value) (types.Value, error) {
	f, err := parseFloat32(args[0].Str)
	if err != nil {
		return types.Null, err
	}
	return types.NewFloat(f), nil
}

func parseFloat32(s string) (float64, error) {
	if len(s) != 4 {
		return 0, wrongLength("TO_FLOAT32", "a big-endian FLOAT32", 4, len(s))
	}
	u := uint32(s[0])<<24 | uint32(s[1])<<16 | uint32(s[2])<<8 | uint32(s[3])
	return float64(math.Float32frombits(u)), nil
}

// floatKernel returns the Kernel of a function that parses a float of bytes.
func floatKernel(parse func(string) (float64, error)) func(*Call, []*types.Vector, *types.Vector, []int32, int) error {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a := args[0]
		return eachRow(sel, n, func(i int) (err error) {
			if a.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			out.Floats[i], err = parse(a.Strs[a.At(i)])
			return err
		})
	}
}

// toVector returns the Eval of TO_VECTOR32 (size 4) or TO_VECTOR64 (size 8).
func toVector(name string, size int) func(*Call, []types.Value) (types.Value, error) {
	return func(c *Call, args []types.Value) (types.Value, error) {
		s := args[0].Str
		if len(s)%size != 0 {
			return types.Null, Errorf("Invalid argument to %s: a vector takes a multiple of %d bytes, found %d", name, size, len(s))
		}
		if err := growList(c, len(s)/size); err != nil {
			return types.Null, err
		}
		out := make([]types.Value, len(s)/size)
		for i := range out {
			e := s[i*size : i*size+size]
			if size == 8 {
				out[i] = types.NewFloat(math.Float64frombits(bigEndian(e)))
			} else {
				out[i] = types.NewFloat(float64(math.Float32frombits(binary.BigEndian.Uint32([]byte(e)))))
			}
		}
		return types.NewList(out), nil
	}
}

// notPlanned is the Eval of functions of which the planner makes a column of a scan.
func notPlanned(_ *Call, _ []types.Value) (types.Value, error) {
	return types.Null, fault.New(fault.Internal, "WRITE_TIMESTAMP was not planned as a column of a scan")
}

func init() {
	bytes := T(types.BytesType)
	register(
		&Function{
			Name: "TO_INT64", Category: "Bigtable", Doc: "Returns the INT64 that eight big-endian bytes are.",
			Signatures: []*Signature{{Args: []Arg{{Type: bytes}}, Result: T(types.Int64Type), Eval: toInt64, Kernel: toInt64Kernel}},
		},
		&Function{
			Name: "TO_FLOAT32", Category: "Bigtable", Doc: "Returns the FLOAT32 that four big-endian bytes are.",
			Signatures: []*Signature{{Args: []Arg{{Type: bytes}}, Result: T(types.Float32Type), Eval: toFloat32, Kernel: floatKernel(parseFloat32)}},
		},
		&Function{
			Name: "TO_FLOAT64", Category: "Bigtable", Doc: "Returns the FLOAT64 that eight big-endian bytes are.",
			Signatures: []*Signature{{Args: []Arg{{Type: bytes}}, Result: T(types.Float64Type), Eval: toFloat64, Kernel: floatKernel(parseFloat64)}},
		},
		&Function{
			Name: "TO_VECTOR32", Category: "Bigtable", Doc: "Returns an array of the FLOAT32s of which bytes have four each, big-endian.",
			Signatures: []*Signature{{Args: []Arg{{Type: bytes}}, Result: T(types.ArrayOf(types.Float32Type)), Eval: toVector("TO_VECTOR32", 4)}},
		},
		&Function{
			Name: "TO_VECTOR64", Category: "Bigtable", Doc: "Returns an array of the FLOAT64s of which bytes have eight each, big-endian.",
			Signatures: []*Signature{{Args: []Arg{{Type: bytes}}, Result: T(types.ArrayOf(types.Float64Type)), Eval: toVector("TO_VECTOR64", 8)}},
		},
		&Function{
			Name: "WRITE_TIMESTAMP", Category: "Bigtable", Doc: "Returns the timestamp of the newest cell of a column, NULL if it has none.",
			Signatures: []*Signature{{Args: []Arg{{Type: MapT(bytes, AnyT("V"))}, {Type: bytes}}, Result: T(types.TimestampType), Eval: notPlanned}},
		},
	)
}
