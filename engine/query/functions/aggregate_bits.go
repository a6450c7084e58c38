package functions

import (
	"encoding/binary"

	"github.com/trestledb/trestle/engine/query/types"
)

func init() {
	register(
		bitFunction("BIT_AND", "Returns the bitwise AND of values that are not NULL; NULL if there are none.",
			func(a, b uint64) uint64 { return a & b }),
		bitFunction("BIT_OR", "Returns the bitwise OR of values that are not NULL; NULL if there are none.",
			func(a, b uint64) uint64 { return a | b }),
		bitFunction("BIT_XOR", "Returns the bitwise XOR of values that are not NULL; NULL if there are none.",
			func(a, b uint64) uint64 { return a ^ b }),
		&Function{
			Name: "COUNTIF", Category: aggregateCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc: "Returns the number of rows in which the expression is TRUE.",
			Signatures: []*Signature{
				grouped(&Signature{Args: []Arg{{Type: T(types.BoolType)}}, Result: T(types.Int64Type)},
					func(*Call) cells { return &countIfs{} }),
			},
		},
		&Function{
			Name: "LOGICAL_AND", Category: aggregateCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc: "Returns whether all values that are not NULL are TRUE; NULL if there are none.",
			Signatures: []*Signature{
				grouped(&Signature{Args: []Arg{{Type: T(types.BoolType)}}, Result: T(types.BoolType)},
					func(*Call) cells { return &intExtremes{largest: false} }),
			},
		},
		&Function{
			Name: "LOGICAL_OR", Category: aggregateCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc: "Returns whether a value is TRUE; NULL if all are NULL or there are none.",
			Signatures: []*Signature{
				grouped(&Signature{Args: []Arg{{Type: T(types.BoolType)}}, Result: T(types.BoolType)},
					func(*Call) cells { return &intExtremes{largest: true} }),
			},
		},
	)
}

// countIfs are the states of COUNTIF.
type countIfs struct{ counts }

func (c *countIfs) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	x := args[0]
	groups, n = groupsOf(groups, sel, n)
	if x.Const {
		return addConst(c, groups, args)
	}
	counts, ints, null := c.n, x.Ints, x.Null
	if sel == nil {
		for k, v := range ints[:n] {
			if null == nil || !null[k] {
				counts[groups[k]] += v
			}
		}
		return nil
	}
	for k, i := range sel {
		if null == nil || !null[i] {
			counts[groups[k]] += ints[i]
		}
	}
	return nil
}

func (c *countIfs) addRow(group int, args []types.Value) error {
	if args[0].Valid {
		c.n[group] += args[0].Int
	}
	return nil
}

func (c *countIfs) removeRow(group int, args []types.Value) {
	if args[0].Valid {
		c.n[group] -= args[0].Int
	}
}

func bitFunction(name, doc string, op func(a, b uint64) uint64) *Function {
	return &Function{
		Name: name, Category: aggregateCategory, Kind: Aggregate, Doc: doc, IgnoreNulls: true,
		Signatures: []*Signature{
			{
				Args: []Arg{{Type: T(types.Int64Type)}}, Result: T(types.Int64Type),
				New: func(*Call) Accumulator { return &bitAgg{name: name, op: op} },
			},
			{
				Args: []Arg{
					{Type: T(types.BytesType)},
					{Name: "mode", Type: T(types.StringType), Optional: true, Const: true, NotNull: true},
				},
				Result: T(types.BytesType),
				New: func(c *Call) Accumulator {
					return &bitBytesAgg{name: name, op: op, given: givenArg(c, 1)}
				},
			},
		},
	}
}

// bitAgg is the state of BIT_AND, BIT_OR or BIT_XOR of INT64.
type bitAgg struct {
	name string
	op   func(a, b uint64) uint64
	v    uint64
	some bool
}

func (a *bitAgg) add(v uint64) {
	if a.some {
		v = a.op(a.v, v)
	}
	a.v, a.some = v, true
}

func (a *bitAgg) Add(args []types.Value) error {
	if args[0].Valid {
		a.add(uint64(args[0].Int))
	}
	return nil
}

func (a *bitAgg) Result() (types.Value, error) {
	if !a.some {
		return types.Null, nil
	}
	return types.NewInt(int64(a.v)), nil
}

func (a *bitAgg) AppendState(dst []byte) []byte {
	dst = append(dst, formBits)
	if !a.some {
		return append(dst, 0)
	}
	return binary.LittleEndian.AppendUint64(append(dst, 1), a.v)
}

func (a *bitAgg) MergeState(state []byte) error {
	r := readState(state, formBits)
	some, v := r.Bool(), uint64(0)
	if some {
		v = r.Uint64LE()
	}
	if err := r.done(a.name); err != nil || !some {
		return err
	}
	a.add(v)
	return nil
}

func (a *bitAgg) Size() int { return 48 }

// What bitBytesAgg does with values of different lengths.
const (
	strictBits   byte = iota // refuses them
	truncateBits             // cuts the longer
	padBits                  // fills the shorter with zeros, at its end
)

// bitBytesAgg is the state of BIT_AND, BIT_OR or BIT_XOR of BYTES.
type bitBytesAgg struct {
	name  string
	op    func(a, b uint64) uint64
	given bool // whether there is a second argument
	mode  byte
	some  bool
	b     []byte
}

func (a *bitBytesAgg) Add(args []types.Value) error {
	if !args[0].Valid {
		return nil
	}
	mode := strictBits
	if a.given {
		switch {
		case !args[1].Valid:
			return Errorf("The mode of %s must not be NULL", a.name)
		case args[1].Str == "STRICT":
		case args[1].Str == "TRUNCATE":
			mode = truncateBits
		case args[1].Str == "PAD":
			mode = padBits
		default:
			return Errorf("Invalid mode of %s: %s", a.name, args[1].Str)
		}
	}
	return a.add(args[0].Str, mode)
}

func (a *bitBytesAgg) add(v string, mode byte) error {
	if !a.some {
		a.b, a.some, a.mode = []byte(v), true, mode
		return nil
	}
	if n := len(v); n != len(a.b) {
		switch mode {
		case strictBits:
			return Errorf("Bitwise binary operator for BYTES requires equal length of the inputs. Got %d bytes on the left hand side and %d bytes on the right hand side.",
				len(a.b), n)
		case truncateBits:
			n = min(n, len(a.b))
			a.b, v = a.b[:n], v[:n]
		case padBits:
			if n > len(a.b) {
				a.b = append(a.b, make([]byte, n-len(a.b))...)
			}
		}
	}
	for i := range a.b {
		c := byte(0)
		if i < len(v) {
			c = v[i]
		}
		a.b[i] = byte(a.op(uint64(a.b[i]), uint64(c)))
	}
	return nil
}

func (a *bitBytesAgg) Result() (types.Value, error) {
	if !a.some {
		return types.Null, nil
	}
	return types.NewString(string(a.b)), nil
}

func (a *bitBytesAgg) AppendState(dst []byte) []byte {
	dst = append(dst, formBitsBytes)
	if !a.some {
		return append(dst, 0)
	}
	return append(append(dst, 1, a.mode), a.b...)
}

func (a *bitBytesAgg) MergeState(state []byte) error {
	r := readState(state, formBitsBytes)
	if !r.Bool() {
		return r.done(a.name)
	}
	mode := r.Byte()
	if mode > padBits {
		r.Fail()
	}
	v := r.Take(r.Len())
	if err := r.done(a.name); err != nil {
		return err
	}
	return a.add(string(v), mode)
}

func (a *bitBytesAgg) Size() int { return 64 + cap(a.b) }
