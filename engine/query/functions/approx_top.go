package functions

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/trestledb/trestle/engine/query/types"
)

// topBuffer is how many distinct values APPROX_TOP_COUNT and APPROX_TOP_SUM keep at
// least. Up to twice as many the result is exact. Beyond, a count is wrong by at most the
// number of rows divided by topBuffer, and a sum by the sum of all divided by it.
const topBuffer = 8192

func init() {
	result := func(field string, weight func(args []*types.Type) *types.Type) func(args []*types.Type) *types.Type {
		return func(args []*types.Type) *types.Type {
			return types.ArrayOf(types.StructOf(types.Field{Name: "value", Type: args[0]}, types.Field{Name: field, Type: weight(args)}))
		}
	}
	sum := func(t *types.Type) *Signature {
		return &Signature{
			Args:     []Arg{{Type: AnyT("T1")}, {Type: T(t)}, {Type: T(types.Int64Type), Const: true, NotNull: true}},
			ResultOf: result("sum", func([]*types.Type) *types.Type { return t }),
			Check:    groupingCheck("APPROX_TOP_SUM"),
			New: func(c *Call) Accumulator {
				return &topValues{name: "APPROX_TOP_SUM", t: c.Types[0], float: t.Kind == types.Float64, weighted: true, grow: c.Grow}
			},
		}
	}
	register(
		&Function{
			Name: "APPROX_TOP_COUNT", Category: approxCategory, Kind: Aggregate,
			Doc: "Returns the most frequent values, as many as the second argument says, with their counts, largest first. It is exact up to 16,384 distinct values.",
			Signatures: []*Signature{{
				Args:     []Arg{{Type: AnyT("T1")}, {Type: T(types.Int64Type), Const: true, NotNull: true}},
				ResultOf: result("count", func([]*types.Type) *types.Type { return types.Int64Type }),
				Check:    groupingCheck("APPROX_TOP_COUNT"),
				New: func(c *Call) Accumulator {
					return &topValues{name: "APPROX_TOP_COUNT", t: c.Types[0], grow: c.Grow}
				},
			}},
		},
		&Function{
			Name: "APPROX_TOP_SUM", Category: approxCategory, Kind: Aggregate,
			Doc:        "Returns the values with the largest sums of weights, as many as the third argument says, with their sums, largest first. It is exact up to 16,384 distinct values.",
			Signatures: []*Signature{sum(types.Int64Type), sum(types.Float64Type)},
		},
	)
}

// A weight is a sum of weights: n of INT64, f of FLOAT64. The other one is 0.
type weight struct {
	some bool // one of them was not NULL
	n    int64
	f    float64
}

// compare orders weights. NULL is the smallest.
func (w weight) compare(o weight) int {
	if w.some != o.some {
		if o.some {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(w.n, o.n), cmp.Compare(w.f, o.f))
}

// plus returns the sum of w and o.
func (w weight) plus(o weight) (weight, error) {
	if !o.some {
		return w, nil
	}
	if w.n > math.MaxInt64-o.n {
		return w, Errorf("int64 overflow: %d + %d", w.n, o.n)
	}
	f := w.f + o.f
	if math.IsInf(f, 1) && !math.IsInf(w.f, 1) && !math.IsInf(o.f, 1) {
		return w, Errorf("double overflow: %s + %s", formatWeight(w.f), formatWeight(o.f))
	}
	return weight{some: true, n: w.n + o.n, f: f}, nil
}

// A topValue is a distinct value and the sum of its weights.
type topValue struct {
	key string // AppendKey of v
	v   types.Value
	sum weight
}

// topValues is the state of APPROX_TOP_COUNT and, with weighted, APPROX_TOP_SUM: a
// sketch like space-saving (Metwally, Agrawal and El Abbadi, "Efficient computation of
// frequent and top-k elements in data streams", 2005). When it has twice the values that it
// keeps, it drops the half with the smaller sums. The largest sum dropped is the floor,
// with which a value begins that comes later. All sums together are never larger than
// those of all rows, and each is at least the floor: which therefore is at most a
// topBuffer'th of them.
type topValues struct {
	name            string
	t               *types.Type
	float, weighted bool
	grow            func(bytes int64) error
	want            int64 // how many values the result has, 0 before the first row
	list            []topValue
	index           map[string]int32 // of a key in list
	floor           weight
	size            int
	key             []byte
}

// room is how many values are kept.
func (a *topValues) room() int { return max(topBuffer, int(a.want)) }

func (a *topValues) Add(args []types.Value) error {
	if a.want == 0 {
		which := "second"
		if a.weighted {
			which = "third"
		}
		limit := args[len(args)-1]
		if err := checkApproxLimit(a.name, which, limit); err != nil {
			return err
		}
		a.want = limit.Int
	}
	w := weight{some: true, n: 1}
	if a.weighted {
		w = weight{some: args[1].Valid, n: args[1].Int, f: args[1].Float}
		if w.n < 0 || !(w.f >= 0) {
			got := strconv.FormatInt(w.n, 10)
			if a.float {
				got = formatWeight(w.f)
			}
			return Errorf("%s does not support negative or NaN weights in the second argument; got %s", a.name, got)
		}
	}
	if err := a.add(args[0], w, true); err != nil {
		return err
	}
	if len(a.list) >= 2*a.room() {
		a.prune()
	}
	return nil
}

// add adds a weight to the sum of a value, which it clones if shared is set.
func (a *topValues) add(v types.Value, w weight, shared bool) error {
	a.key = types.AppendKey(a.key[:0], a.t, v)
	if i, ok := a.index[string(a.key)]; ok {
		sum, err := a.list[i].sum.plus(w)
		a.list[i].sum = sum
		return err
	}
	sum, err := w.plus(a.floor)
	if err != nil {
		return err
	}
	if shared {
		v = v.Clone()
	}
	if a.index == nil {
		a.index = map[string]int32{}
	}
	e := topValue{string(a.key), v, sum}
	a.index[e.key] = int32(len(a.list))
	a.list = append(a.list, e)
	a.size += e.size()
	return nil
}

// prune drops all values but those with the largest sums. Of those with the same sum the first
// to come stay.
func (a *topValues) prune() {
	sums := make([]weight, len(a.list))
	for i := range a.list {
		sums[i] = a.list[i].sum
	}
	slices.SortFunc(sums, func(x, y weight) int { return y.compare(x) })
	least := sums[a.room()-1] // of those that stay
	same := 0                 // of them have this sum
	for i := a.room() - 1; i >= 0 && sums[i] == least; i-- {
		same++
	}
	a.floor = sums[a.room()]
	kept := a.list[:0]
	for _, e := range a.list {
		c := e.sum.compare(least)
		if c == 0 {
			same--
		}
		if c < 0 || c == 0 && same < 0 {
			delete(a.index, e.key)
			a.size -= e.size()
			continue
		}
		a.index[e.key] = int32(len(kept))
		kept = append(kept, e)
	}
	clear(a.list[len(kept):])
	a.list = kept
}

// size is the memory that e takes in the map and the list.
func (e *topValue) size() int { return 96 + len(e.key) + sizeOfValue(e.v) }

// sorted returns all values, largest sum first; of equal sums the smallest value is the
// first.
func (a *topValues) sorted() []topValue {
	list := slices.Clone(a.list)
	slices.SortFunc(list, func(x, y topValue) int { return cmp.Or(y.sum.compare(x.sum), cmp.Compare(x.key, y.key)) })
	return list
}

func formatWeight(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f != f:
		return "nan"
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

func (a *topValues) Result() (types.Value, error) {
	if a.want == 0 {
		return types.Null, nil
	}
	list := a.sorted()
	list = list[:min(int64(len(list)), a.want)]
	if a.grow != nil {
		if err := a.grow(192 * int64(len(list))); err != nil {
			return types.Null, err
		}
	}
	out := make([]types.Value, len(list))
	for i, e := range list {
		w := types.Null
		switch {
		case e.sum.some && a.float:
			w = types.NewFloat(e.sum.f)
		case e.sum.some:
			w = types.NewInt(e.sum.n)
		}
		out[i] = types.NewList([]types.Value{e.v, w})
	}
	return types.NewList(out), nil
}

func (a *topValues) AppendState(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, formTop), uint64(a.want))
	dst = a.appendWeight(dst, a.floor)
	dst = binary.AppendUvarint(dst, uint64(len(a.list)))
	for _, e := range a.list {
		dst = a.appendWeight(appendStateValue(dst, a.t, e.v), e.sum)
	}
	return dst
}

func (a *topValues) appendWeight(dst []byte, w weight) []byte {
	switch {
	case !w.some:
		return append(dst, 0)
	case a.float:
		return appendStateFloat(append(dst, 1), w.f)
	}
	return binary.AppendUvarint(append(dst, 1), uint64(w.n))
}

func (a *topValues) readWeight(r *stateReader) weight {
	w := weight{some: r.Bool()}
	switch {
	case !w.some:
	case a.float:
		if w.f = r.float(); !(w.f >= 0) {
			r.Fail()
		}
	default:
		if v := r.Uvarint(); v <= math.MaxInt64 {
			w.n = int64(v)
		} else {
			r.Fail()
		}
	}
	return w
}

// MergeState adds the sums of both. A value that one has dropped lacks what it had there,
// at most the floor.
func (a *topValues) MergeState(state []byte) error {
	r := readState(state, formTop)
	want, floor, n := r.Uvarint(), a.readWeight(r), r.Count()
	if want > maxQuantiles || want == 0 && n > 0 {
		r.Fail()
	}
	var list []topValue
	for i := 0; i < n && !r.Bad(); i++ {
		list = append(list, topValue{v: r.value(a.t), sum: a.readWeight(r)})
	}
	if err := r.done(a.name); err != nil || n == 0 {
		return err
	}
	if a.want > 0 && floor.compare(a.floor) > 0 {
		floor = a.floor // each sum is at least the smaller one
	}
	a.want = max(a.want, int64(want))
	a.floor = weight{} // sums of the other have its floor in them
	for _, e := range list {
		if err := a.add(e.v, e.sum, false); err != nil {
			return err
		}
	}
	a.floor = floor
	if len(a.list) >= 2*a.room() {
		a.prune()
	}
	return nil
}

func (a *topValues) Size() int { return 256 + a.size }
