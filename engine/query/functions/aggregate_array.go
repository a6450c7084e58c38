package functions

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

func init() {
	register(
		&Function{
			Name: "ANY_VALUE", Category: aggregateCategory, Kind: Aggregate,
			Doc: "Returns the expression for some row, which may be NULL; NULL if there are none.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: AnyT("T1")}}, Result: AnyT("T1"),
				New: func(c *Call) Accumulator { return &anyValue{t: c.Types[0]} },
			}},
		},
		&Function{
			Name: "ARRAY_AGG", Category: aggregateCategory, Kind: Aggregate, Ordered: true, Limited: true, Nulls: true,
			Doc: "Returns an array of the values, NULLs among them; NULL if there are no rows.",
			Refuse: func(args []*types.Type) string {
				if len(args) > 0 && args[0] != nil && args[0].Kind == types.Array {
					return "The argument to ARRAY_AGG must not be an array type but was " + args[0].String()
				}
				return ""
			},
			Signatures: []*Signature{{
				Args: []Arg{{Type: AnyT("T1")}}, Result: ArrayT(AnyT("T1")),
				New: func(c *Call) Accumulator { return &arrayAgg{t: c.Types[0]} },
			}},
		},
		&Function{
			Name: "ARRAY_CONCAT_AGG", Category: aggregateCategory, Kind: Aggregate, Ordered: true, Limited: true, IgnoreNulls: true,
			Doc: "Returns the concatenation of arrays that are not NULL; NULL if there are none.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: ArrayT(AnyT("T1"))}}, Result: ArrayT(AnyT("T1")),
				New: func(c *Call) Accumulator { return &arrayAgg{t: c.Types[0].Elem, concat: true} },
			}},
		},
		&Function{
			Name: "STRING_AGG", Category: aggregateCategory, Kind: Aggregate, Ordered: true, Limited: true, IgnoreNulls: true,
			Doc: "Returns the concatenation of values that are not NULL, with a delimiter (a comma by default) between them; NULL if there are none.",
			Signatures: []*Signature{
				stringAggSignature(types.StringType, false),
				stringAggSignature(types.StringType, true),
				stringAggSignature(types.BytesType, false),
				stringAggSignature(types.BytesType, true),
			},
		},
	)
}

// anyValue is the state of ANY_VALUE: the first row's value.
type anyValue struct {
	t    *types.Type
	v    types.Value
	some bool
}

func (a *anyValue) Add(args []types.Value) error {
	if !a.some {
		a.v, a.some = args[0].Clone(), true
	}
	return nil
}

func (a *anyValue) Result() (types.Value, error) { return a.v, nil }

func (a *anyValue) AppendState(dst []byte) []byte {
	dst = append(dst, formAnyValue)
	if !a.some {
		return append(dst, 0)
	}
	return appendStateValue(append(dst, 1), a.t, a.v)
}

func (a *anyValue) MergeState(state []byte) error {
	r := readState(state, formAnyValue)
	some, v := r.Bool(), types.Null
	if some {
		v = r.value(a.t)
	}
	if err := r.done("ANY_VALUE"); err != nil {
		return err
	}
	if some && !a.some {
		a.v, a.some = v, true
	}
	return nil
}

func (a *anyValue) Size() int { return 24 + sizeOfValue(a.v) }

// arrayAgg is the state of ARRAY_AGG and, with concat, ARRAY_CONCAT_AGG.
type arrayAgg struct {
	t      *types.Type // of the elements
	concat bool
	some   bool
	list   []types.Value
	size   int // of the elements
}

func (a *arrayAgg) name() string {
	if a.concat {
		return "ARRAY_CONCAT_AGG"
	}
	return "ARRAY_AGG"
}

func (a *arrayAgg) Add(args []types.Value) error {
	v := args[0]
	if !a.concat {
		a.append(v)
		return nil
	}
	if !v.Valid {
		return nil
	}
	a.some = true
	for _, e := range v.List {
		a.append(e)
	}
	return nil
}

func (a *arrayAgg) append(v types.Value) {
	a.some = true
	a.list = append(a.list, v.Clone())
	a.size += sizeOfValue(v)
}

func (a *arrayAgg) Result() (types.Value, error) {
	if !a.some {
		return types.Null, nil
	}
	// A frame may add rows afterwards: the capacity stays with a.
	return types.NewList(a.list[:len(a.list):len(a.list)]), nil
}

func (a *arrayAgg) form() byte {
	if a.concat {
		return formConcat
	}
	return formArray
}

func (a *arrayAgg) AppendState(dst []byte) []byte {
	dst = append(dst, a.form())
	if !a.some {
		return append(dst, 0)
	}
	dst = binary.AppendUvarint(append(dst, 1), uint64(len(a.list)))
	for _, v := range a.list {
		dst = appendStateValue(dst, a.t, v)
	}
	return dst
}

func (a *arrayAgg) MergeState(state []byte) error {
	r := readState(state, a.form())
	some, n := r.Bool(), 0
	if some {
		n = r.Count()
	}
	before, size := len(a.list), a.size
	for i := 0; i < n && !r.Bad(); i++ {
		v := r.value(a.t)
		a.list = append(a.list, v)
		a.size += sizeOfValue(v)
	}
	if err := r.done(a.name()); err != nil {
		a.list, a.size = a.list[:before], size
		return err
	}
	a.some = a.some || some
	return nil
}

func (a *arrayAgg) Size() int { return 64 + a.size }

func stringAggSignature(t *types.Type, delimiter bool) *Signature {
	args := []Arg{{Type: T(t)}}
	if delimiter {
		args = append(args, Arg{Type: T(t), Const: true, NotNull: true})
	}
	return &Signature{
		Args: args, Result: T(t),
		New: func(*Call) Accumulator { return &stringAgg{t: t, given: delimiter, delimiter: ","} },
	}
}

// stringAgg is the state of STRING_AGG.
type stringAgg struct {
	t         *types.Type
	given     bool // whether there is a second argument
	some      bool
	delimiter string
	b         []byte
}

func (a *stringAgg) Add(args []types.Value) error {
	delimiter := ","
	if a.given {
		if !args[1].Valid {
			return Errorf("Illegal NULL separator in STRING_AGG")
		}
		delimiter = args[1].Str
	}
	if !args[0].Valid {
		return nil
	}
	if a.some {
		a.b = append(a.b, delimiter...)
	} else {
		a.some = true
		a.delimiter = string(append([]byte(nil), delimiter...))
	}
	a.b = append(a.b, args[0].Str...)
	return nil
}

func (a *stringAgg) Result() (types.Value, error) {
	if !a.some {
		return types.Null, nil
	}
	return types.NewString(string(a.b)), nil
}

// AppendState writes the delimiter, which a state without rows of its own needs to
// merge two others.
func (a *stringAgg) AppendState(dst []byte) []byte {
	dst = append(dst, formString)
	if !a.some {
		return append(dst, 0)
	}
	dst = binary.AppendUvarint(append(dst, 1), uint64(len(a.delimiter)))
	dst = append(dst, a.delimiter...)
	return append(dst, a.b...)
}

func (a *stringAgg) MergeState(state []byte) error {
	r := readState(state, formString)
	if !r.Bool() {
		return r.done("STRING_AGG")
	}
	delimiter := r.Bytes()
	text := r.Take(r.Len())
	if a.t.Kind == types.String && !(utf8.Valid(delimiter) && utf8.Valid(text)) {
		r.Fail()
	}
	if err := r.done("STRING_AGG"); err != nil {
		return err
	}
	if a.some {
		a.b = append(a.b, delimiter...)
	} else {
		a.some, a.delimiter = true, string(delimiter)
	}
	a.b = append(a.b, text...)
	return nil
}

func (a *stringAgg) Size() int { return 64 + cap(a.b) + len(a.delimiter) }
