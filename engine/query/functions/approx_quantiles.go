package functions

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/types"
)

const (
	// quantileBuffer is how many values the sketch of APPROX_QUANTILES keeps at least. Up to
	// so many rows the result is exact. Beyond, the rank of a result is off by about
	// 0.05 % of the rows, and no more than about 3 times as many values are kept.
	quantileBuffer = 4096
	// maxQuantiles is GoogleSQL's limit of the second argument.
	maxQuantiles = 100_000
	// maxQuantileLevels is more than 2^62 rows make.
	maxQuantileLevels = 60
)

func init() {
	register(&Function{
		Name: "APPROX_QUANTILES", Category: approxCategory, Kind: Aggregate, IgnoreNulls: true, Nulls: true,
		Doc: "Returns an array of n + 1 values at the approximate bounds of n equal groups of rows, the smallest and the largest among them; NULL if there are no rows. It is exact up to 4,096 rows.",
		Signatures: []*Signature{{
			Args:   []Arg{{Type: AnyT("T1")}, {Type: T(types.Int64Type), Const: true, NotNull: true, Range: []int64{1}}},
			Result: ArrayT(AnyT("T1")),
			Check:  orderCheck("APPROX_QUANTILES"),
			New:    newQuantiles,
		}},
	})
}

// newQuantiles returns the state for arguments of type t.
func newQuantiles(c *Call) Accumulator {
	switch t := c.Types[0]; t.Kind {
	case types.Float32, types.Float64:
		return &quantiles[float64]{t: t, grow: c.Grow, read: func(v types.Value) float64 { return v.Float }, value: types.NewFloat}
	case types.String, types.Bytes:
		return &quantiles[string]{t: t, grow: c.Grow, read: func(v types.Value) string { return strings.Clone(v.Str) }, value: types.NewString}
	default:
		return &quantiles[int64]{t: t, grow: c.Grow, read: func(v types.Value) int64 { return v.Int }, value: types.NewInt}
	}
}

// quantiles is the state of APPROX_QUANTILES: a KLL sketch (Karnin, Lang, Liberty,
// "Optimal quantile approximation in streams", 2016). A value of levels[h] stands for 2^h
// rows. A full level is sorted, and every other value of it moves up. NULLs, which
// come before all values, are only counted.
type quantiles[T cmp.Ordered] struct {
	t        *types.Type
	grow     func(bytes int64) error
	read     func(v types.Value) T
	value    func(T) types.Value
	parts    int64 // the second argument, 0 before the first row
	nulls    int64
	rows     int64 // without NULLs
	min, max T
	levels   [][]T
	rooms    []int // what each level may hold
	bytes    int   // of strings
	odd      bool  // which half moves up: they alternate, so that errors cancel out
}

func checkApproxLimit(function, which string, v types.Value) error {
	switch {
	case !v.Valid:
		return Errorf("The %s argument to %s function must not be NULL", which, function)
	case v.Int <= 0:
		return Errorf("The %s argument to %s function must be positive", which, function)
	case v.Int > maxQuantiles:
		return Errorf("The %s argument to %s function cannot be greater than %d", which, function, maxQuantiles)
	}
	return nil
}

func (a *quantiles[T]) Add(args []types.Value) error {
	if a.parts == 0 {
		if err := checkApproxLimit("APPROX_QUANTILES", "second", args[1]); err != nil {
			return err
		}
		a.parts = args[1].Int
	}
	if !args[0].Valid {
		a.nulls++
		return nil
	}
	v := a.read(args[0])
	a.bytes += len(args[0].Str)
	a.extend(v)
	a.rows++
	if len(a.levels) == 0 {
		a.addLevel()
	}
	a.levels[0] = append(a.levels[0], v)
	if len(a.levels[0]) >= a.rooms[0] {
		a.compact()
	}
	return nil
}

// extend makes v one of the values between min and max.
func (a *quantiles[T]) extend(v T) {
	if a.rows == 0 {
		a.min, a.max = v, v
		return
	}
	if cmp.Less(v, a.min) {
		a.min = v
	}
	if cmp.Less(a.max, v) {
		a.max = v
	}
}

// addLevel adds a level at the top. The further a level is below it the less it may
// hold.
func (a *quantiles[T]) addLevel() {
	a.levels = append(a.levels, nil)
	a.rooms = append(a.rooms, 0)
	for h := range a.rooms {
		a.rooms[h] = max(8, int(quantileBuffer*math.Pow(2.0/3, float64(len(a.rooms)-1-h))))
	}
}

// compact makes room in all levels that are full.
func (a *quantiles[T]) compact() {
	for h := 0; h < len(a.levels); h++ {
		level := a.levels[h]
		if len(level) < a.rooms[h] {
			continue
		}
		if h+1 == len(a.levels) {
			a.addLevel()
		}
		slices.Sort(level)
		// The last value of an odd number stays.
		n := len(level) &^ 1
		from := 0
		if a.odd {
			from = 1
		}
		a.odd = !a.odd
		for i := 0; i < n; i += 2 {
			a.levels[h+1] = append(a.levels[h+1], level[i+from])
			if a.t.Kind == types.String || a.t.Kind == types.Bytes {
				a.bytes -= len(a.value(level[i+1-from]).Str)
			}
		}
		rest := copy(level, level[n:])
		clear(level[rest:])
		a.levels[h] = level[:rest]
	}
}

func (a *quantiles[T]) Result() (types.Value, error) {
	if a.rows+a.nulls == 0 {
		return types.Null, nil
	}
	type weighted struct {
		v      T
		weight uint64
	}
	list := make([]weighted, 0, a.values())
	total := uint64(a.nulls)
	for h, level := range a.levels {
		for _, v := range level {
			list = append(list, weighted{v, 1 << h})
			total += 1 << h
		}
	}
	slices.SortFunc(list, func(x, y weighted) int { return cmp.Compare(x.v, y.v) })
	if a.grow != nil {
		if err := a.grow(64 * a.parts); err != nil {
			return types.Null, err
		}
	}
	out := make([]types.Value, a.parts+1) // of NULLs
	if a.nulls == 0 {
		out[0] = a.value(a.min)
	}
	i, upTo := 0, uint64(a.nulls)
	for k := 1; k < int(a.parts) && len(list) > 0; k++ {
		// The rank is total*k/parts, rounded up.
		hi, lo := bits.Mul64(total, uint64(k))
		rank, rest := bits.Div64(hi, lo, uint64(a.parts))
		if rest > 0 {
			rank++
		}
		if rank <= uint64(a.nulls) {
			continue
		}
		for i < len(list)-1 && upTo+list[i].weight < rank {
			upTo += list[i].weight
			i++
		}
		out[k] = a.value(list[i].v)
	}
	if a.rows > 0 {
		out[a.parts] = a.value(a.max)
	}
	return types.NewList(out), nil
}

// values returns how many values are kept.
func (a *quantiles[T]) values() int {
	n := 0
	for _, level := range a.levels {
		n += len(level)
	}
	return n
}

func (a *quantiles[T]) AppendState(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, formQuantiles), uint64(a.parts))
	dst = binary.AppendUvarint(dst, uint64(a.nulls))
	dst = binary.AppendUvarint(dst, uint64(a.rows))
	if a.rows == 0 {
		return dst
	}
	dst = appendStateValue(dst, a.t, a.value(a.min))
	dst = appendStateValue(dst, a.t, a.value(a.max))
	dst = append(dst, byte(len(a.levels)))
	for _, level := range a.levels {
		dst = binary.AppendUvarint(dst, uint64(len(level)))
		for _, v := range level {
			dst = appendStateValue(dst, a.t, a.value(v))
		}
	}
	return dst
}

func (a *quantiles[T]) MergeState(state []byte) error {
	r := readState(state, formQuantiles)
	parts, nulls, rows := r.Uvarint(), r.count(), r.count()
	if parts > maxQuantiles || parts == 0 && nulls+rows > 0 {
		r.Fail()
	}
	next := func() T {
		v := r.value(a.t)
		if !v.Valid {
			r.Fail()
		}
		return a.read(v)
	}
	var least, most T
	var levels [][]T
	size := 0
	if rows > 0 {
		least, most = next(), next()
		n := int(r.Byte())
		if n > maxQuantileLevels {
			r.Fail()
		}
		for h := 0; h < n && !r.Bad(); h++ {
			count := r.Count()
			level := make([]T, 0, min(count, quantileBuffer))
			before := r.Len()
			for i := 0; i < count && !r.Bad(); i++ {
				level = append(level, next())
			}
			size += before - r.Len()
			levels = append(levels, level)
		}
		if !slices.ContainsFunc(levels, func(level []T) bool { return len(level) > 0 }) {
			r.Fail()
		}
	}
	if err := r.done("APPROX_QUANTILES"); err != nil {
		return err
	}
	a.parts = max(a.parts, int64(parts))
	a.nulls += nulls
	if rows == 0 {
		return nil
	}
	if a.rows == 0 {
		a.min, a.max = least, most
	}
	a.rows += rows
	a.extend(least)
	a.extend(most)
	if a.t.Kind == types.String || a.t.Kind == types.Bytes {
		a.bytes += size
	}
	for h, level := range levels {
		if h == len(a.levels) {
			a.addLevel()
		}
		a.levels[h] = append(a.levels[h], level...)
	}
	for len(a.levels) < maxQuantileLevels && a.full() {
		a.compact()
	}
	return nil
}

// full tells whether a level has as many values as it may.
func (a *quantiles[T]) full() bool {
	for h, level := range a.levels {
		if len(level) >= a.rooms[h] {
			return true
		}
	}
	return false
}

func (a *quantiles[T]) Size() int { return 256 + a.bytes + 16*a.values() }
