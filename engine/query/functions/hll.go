package functions

import (
	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/query/types"
)

const hllCategory = "HyperLogLog++"

func init() {
	initSignature := func(t *types.Type) *Signature {
		return &Signature{
			Args:   []Arg{{Type: T(t)}, {Type: T(types.Int64Type), Optional: true, Const: true, NotNull: true, Range: []int64{aggregate.MinPrecision, aggregate.MaxPrecision}}},
			Result: T(types.BytesType),
			New:    func(c *Call) Accumulator { return &hllInit{t: t, given: givenArg(c, 1)} },
		}
	}
	mergeSignature := func(name string, result *types.Type) *Signature {
		return &Signature{
			Args: []Arg{{Type: T(types.BytesType)}}, Result: T(result),
			New: func(*Call) Accumulator { return &hllMerge{name: name, partial: result.Kind == types.Bytes} },
		}
	}
	register(
		&Function{
			Name: "HLL_COUNT.INIT", Category: hllCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc: "Returns a HyperLogLog++ sketch, in ZetaSketch's format, of the values that are not NULL, with a precision of 10 to 24 (15 by default); NULL if there are none.",
			Signatures: []*Signature{
				initSignature(types.Int64Type),
				initSignature(types.StringType),
				initSignature(types.BytesType),
			},
		},
		&Function{
			Name: "HLL_COUNT.MERGE", Category: hllCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc:        "Returns about how many distinct values sketches have seen together.",
			Signatures: []*Signature{mergeSignature("HLL_COUNT.MERGE", types.Int64Type)},
		},
		&Function{
			Name: "HLL_COUNT.MERGE_PARTIAL", Category: hllCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc:        "Returns the sketch of the values that sketches have seen together; NULL if there are none.",
			Signatures: []*Signature{mergeSignature("HLL_COUNT.MERGE_PARTIAL", types.BytesType)},
		},
		&Function{
			Name: "HLL_COUNT.EXTRACT", Category: hllCategory, Kind: Scalar,
			Doc: "Returns about how many distinct values a sketch has seen, 0 for NULL.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: T(types.BytesType)}}, Result: T(types.Int64Type), Nulls: true,
				Eval: func(_ *Call, args []types.Value) (types.Value, error) {
					if !args[0].Valid {
						return types.NewInt(0), nil
					}
					n, err := aggregate.Estimate([]byte(args[0].Str))
					if err != nil {
						return types.Null, Errorf("Invalid sketch in HLL_COUNT.EXTRACT")
					}
					return types.NewInt(n), nil
				},
			}},
		},
	)
}

// hllInit is the state of HLL_COUNT.INIT.
type hllInit struct {
	t      *types.Type
	given  bool              // whether there is a second argument
	sketch *aggregate.Sketch // nil before the first value
	buf    []byte
}

func (a *hllInit) Add(args []types.Value) error {
	if !args[0].Valid {
		return nil
	}
	if a.sketch == nil {
		precision := int64(aggregate.DefaultPrecision)
		if a.given {
			if !args[1].Valid {
				return Errorf("The second argument to HLL_COUNT.INIT must not be NULL")
			}
			precision = args[1].Int
			if precision < aggregate.MinPrecision || precision > aggregate.MaxPrecision {
				return Errorf("The second argument to HLL_COUNT.INIT must be between %d and %d; got %d",
					aggregate.MinPrecision, aggregate.MaxPrecision, precision)
			}
		}
		a.sketch = aggregate.NewSketch(int(precision))
	}
	if a.t.Kind == types.Int64 {
		return a.sketch.AddInt(args[0].Int)
	}
	a.buf = append(a.buf[:0], args[0].Str...)
	return a.sketch.AddBytes(a.buf)
}

func (a *hllInit) Result() (types.Value, error) {
	if a.sketch == nil {
		return types.Null, nil
	}
	return types.NewString(string(a.sketch.Encode())), nil
}

func (a *hllInit) AppendState(dst []byte) []byte { return appendSketch(dst, a.sketch) }

func (a *hllInit) MergeState(state []byte) error {
	return mergeSketch(&a.sketch, state, "HLL_COUNT.INIT")
}

func (a *hllInit) Size() int { return sketchSize(a.sketch) + cap(a.buf) }

// hllMerge is the state of HLL_COUNT.MERGE and, with partial, MERGE_PARTIAL.
type hllMerge struct {
	name    string
	partial bool
	sketch  *aggregate.Sketch // nil before the first
}

func (a *hllMerge) Add(args []types.Value) error {
	if !args[0].Valid {
		return nil
	}
	s, err := aggregate.ParseSketch([]byte(args[0].Str))
	if err == nil && a.sketch != nil {
		err = a.sketch.Merge(s)
	} else if err == nil {
		a.sketch = s
	}
	if err != nil {
		return Errorf("Invalid or incompatible sketch in %s", a.name)
	}
	return nil
}

func (a *hllMerge) Result() (types.Value, error) {
	switch {
	case !a.partial && a.sketch == nil:
		return types.NewInt(0), nil
	case !a.partial:
		return types.NewInt(a.sketch.Estimate()), nil
	case a.sketch == nil:
		return types.Null, nil
	}
	return types.NewString(string(a.sketch.Encode())), nil
}

func (a *hllMerge) AppendState(dst []byte) []byte { return appendSketch(dst, a.sketch) }

// MergeState refuses sketches of other values than those seen: rows of another
// server may have them.
func (a *hllMerge) MergeState(state []byte) error {
	if len(state) > 1 && state[0] == formHLL {
		return a.Add([]types.Value{types.NewString(string(state[1:]))})
	}
	return mergeSketch(&a.sketch, state, a.name)
}

func (a *hllMerge) Size() int { return sketchSize(a.sketch) }

func sketchSize(s *aggregate.Sketch) int {
	if s == nil {
		return 64
	}
	return 64 + s.Size()
}

// appendSketch appends the state that s is; s may be nil.
func appendSketch(dst []byte, s *aggregate.Sketch) []byte {
	dst = append(dst, formHLL)
	if s == nil {
		return dst
	}
	return append(dst, s.Encode()...)
}

// mergeSketch adds to *s the sketch of a state.
func mergeSketch(s **aggregate.Sketch, state []byte, function string) error {
	r := readState(state, formHLL)
	encoded := r.Take(r.Len())
	if err := r.done(function); err != nil || len(encoded) == 0 {
		return err
	}
	o, err := aggregate.ParseSketch(encoded)
	if err != nil {
		return err
	}
	if *s == nil {
		*s = o
		return nil
	}
	return (*s).Merge(o)
}
