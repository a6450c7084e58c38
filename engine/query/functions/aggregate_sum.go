package functions

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"

	"github.com/trestledb/trestle/engine/query/types"
)

const aggregateCategory = "Aggregate"

func init() {
	register(
		&Function{
			Name: "$count_star", SQL: "COUNT(*)", Category: aggregateCategory, Kind: Aggregate, NoDistinct: true,
			Doc:        "Returns the number of rows.",
			Signatures: []*Signature{grouped(&Signature{Result: T(types.Int64Type)}, newCount)},
		},
		&Function{
			Name: "COUNT", Category: aggregateCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc: "Returns the number of rows in which the expression is not NULL.",
			Signatures: []*Signature{
				grouped(&Signature{Args: []Arg{{Type: AnyT("T1")}}, Result: T(types.Int64Type)}, newCount),
			},
		},
		&Function{
			Name: "SUM", Category: aggregateCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc: "Returns the sum of values that are not NULL; NULL if there are none. The sum of INT64 is exact or an error.",
			Signatures: []*Signature{
				grouped(&Signature{Args: []Arg{{Type: T(types.Int64Type)}}, Result: T(types.Int64Type)},
					func(*Call) cells { return &intSums{} }),
				grouped(&Signature{Args: []Arg{{Type: T(types.Float64Type)}}, Result: T(types.Float64Type)},
					func(*Call) cells { return &floatSums{} }),
			},
		},
		&Function{
			Name: "AVG", Category: aggregateCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc: "Returns the mean of values that are not NULL; NULL if there are none.",
			Signatures: []*Signature{
				grouped(&Signature{Args: []Arg{{Type: T(types.Int64Type)}}, Result: T(types.Float64Type)},
					func(*Call) cells { return &intSums{mean: true} }),
				grouped(&Signature{Args: []Arg{{Type: T(types.Float64Type)}}, Result: T(types.Float64Type)},
					func(*Call) cells { return &floatSums{mean: true} }),
			},
		},
		&Function{
			Name: "GROUPING", Category: aggregateCategory, Kind: Aggregate, NoOver: true, NoDistinct: true,
			Doc:        "Returns 1 in the rows of a grouping set without the key, 0 in others.",
			Signatures: []*Signature{{Args: []Arg{{Type: AnyT("T1")}}, Result: T(types.Int64Type)}},
		},
	)
}

// counts are the states of COUNT.
type counts struct{ n []int64 }

func newCount(*Call) cells { return &counts{} }

func (c *counts) Resize(groups int) { c.n = resizeCells(c.n, groups) }

func (c *counts) Size() int { return 8 * cap(c.n) }

func (c *counts) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	var null []bool
	if len(args) > 0 && args[0].Null != nil {
		null = args[0].Null
		if args[0].Const {
			if null[0] {
				return nil
			}
			null = nil
		}
	}
	if null == nil && groups == nil {
		if sel != nil {
			n = len(sel)
		}
		c.n[0] += int64(n)
		return nil
	}
	groups, n = groupsOf(groups, sel, n)
	counts := c.n
	switch {
	case null == nil:
		for _, g := range groups {
			counts[g]++
		}
	case sel == nil:
		null = null[:n]
		for k, g := range groups {
			if !null[k] {
				counts[g]++
			}
		}
	default:
		for k, i := range sel {
			if !null[i] {
				counts[groups[k]]++
			}
		}
	}
	return nil
}

func (c *counts) addRow(group int, args []types.Value) error {
	if len(args) == 0 || args[0].Valid {
		c.n[group]++
	}
	return nil
}

func (c *counts) removeRow(group int, args []types.Value) {
	if len(args) == 0 || args[0].Valid {
		c.n[group]--
	}
}

func (c *counts) value(group int) (types.Value, error) { return types.NewInt(c.n[group]), nil }

func (c *counts) Results(first int, out *types.Vector, n int) error {
	out.Resize(n)
	copy(out.Ints, c.n[first:first+n])
	return nil
}

func (c *counts) AppendState(group int, dst []byte) []byte {
	return binary.AppendUvarint(append(dst, formCount), uint64(c.n[group]))
}

func (c *counts) MergeState(group int, state []byte) error {
	r := readState(state, formCount)
	n := r.count()
	if err := r.done("COUNT"); err != nil {
		return err
	}
	c.n[group] += n
	return nil
}

// An intSum is the sum of n integers, in 128 bits of two's complement: it cannot
// overflow.
type intSum struct {
	lo uint64
	hi int64
	n  int64
}

func (s *intSum) add(x int64) {
	lo, carry := bits.Add64(s.lo, uint64(x), 0)
	s.lo = lo
	s.hi += x>>63 + int64(carry)
	s.n++
}

// intSums are the states of SUM and, with mean, AVG of INT64.
type intSums struct {
	s    []intSum
	mean bool
}

func (c *intSums) name() string { return sumName(c.mean) }

func sumName(mean bool) string {
	if mean {
		return "AVG"
	}
	return "SUM"
}

func (c *intSums) Resize(groups int) { c.s = resizeCells(c.s, groups) }

func (c *intSums) Size() int { return 24 * cap(c.s) }

func (c *intSums) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	x := args[0]
	all := groups == nil
	groups, n = groupsOf(groups, sel, n)
	sums := c.s
	switch {
	case x.Const:
		return addConst(c, groups, args)
	case x.Null == nil && sel == nil && all:
		s := sums[0]
		for _, v := range x.Ints[:n] {
			lo, carry := bits.Add64(s.lo, uint64(v), 0)
			s.lo = lo
			s.hi += v>>63 + int64(carry)
		}
		s.n += int64(n)
		sums[0] = s
	case x.Null == nil && sel == nil:
		for k, v := range x.Ints[:n] {
			sums[groups[k]].add(v)
		}
	case x.Null == nil:
		ints := x.Ints
		for k, i := range sel {
			sums[groups[k]].add(ints[i])
		}
	case sel == nil:
		null := x.Null[:n]
		for k, v := range x.Ints[:n] {
			if !null[k] {
				sums[groups[k]].add(v)
			}
		}
	default:
		ints, null := x.Ints, x.Null
		for k, i := range sel {
			if !null[i] {
				sums[groups[k]].add(ints[i])
			}
		}
	}
	return nil
}

func (c *intSums) addRow(group int, args []types.Value) error {
	if args[0].Valid {
		c.s[group].add(args[0].Int)
	}
	return nil
}

func (c *intSums) removeRow(group int, args []types.Value) {
	if !args[0].Valid {
		return
	}
	s, x := &c.s[group], args[0].Int
	lo, borrow := bits.Sub64(s.lo, uint64(x), 0)
	s.lo = lo
	s.hi -= x>>63 + int64(borrow)
	s.n--
}

func (c *intSums) value(group int) (types.Value, error) {
	s := &c.s[group]
	switch {
	case s.n == 0:
		return types.Null, nil
	case c.mean:
		return types.NewFloat(s.average()), nil
	case s.hi != int64(s.lo)>>63:
		return types.Null, Errorf("int64 overflow")
	}
	return types.NewInt(int64(s.lo)), nil
}

// average returns the sum divided by n, rounded once.
func (s *intSum) average() float64 {
	const exact = 1 << 53
	if sum := int64(s.lo); s.hi == sum>>63 && -exact <= sum && sum <= exact && s.n <= exact {
		return float64(sum) / float64(s.n)
	}
	sum := new(big.Int).SetInt64(s.hi)
	sum.Lsh(sum, 64).Add(sum, new(big.Int).SetUint64(s.lo))
	mean, _ := new(big.Rat).SetFrac(sum, big.NewInt(s.n)).Float64()
	return mean
}

func (c *intSums) Results(first int, out *types.Vector, n int) error {
	return cellResults(c, first, out, n)
}

func (c *intSums) AppendState(group int, dst []byte) []byte {
	s := &c.s[group]
	dst = binary.AppendUvarint(append(dst, formSumInt), uint64(s.n))
	dst = binary.AppendVarint(dst, s.hi)
	return binary.LittleEndian.AppendUint64(dst, s.lo)
}

func (c *intSums) MergeState(group int, state []byte) error {
	r := readState(state, formSumInt)
	n, hi, lo := r.count(), r.Varint(), r.Uint64LE()
	if err := r.done(c.name()); err != nil {
		return err
	}
	s := &c.s[group]
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi += hi + int64(carry)
	s.n += n
	return nil
}

// A floatSum is the sum of n floats. hi+lo is the sum of those below hugeFloat, where lo
// collects the rounding errors of hi (Knuth's TwoSum). The sum is as if it were
// computed with 106 bits and rounded once, so that it hardly depends on the
// order.
type floatSum struct {
	hi, lo float64
	n      int64
	huge   *hugeSum
}

// hugeFloat is from where a sum of floats may overflow that, at its end, would fit.
// 2^62 floats below it do not.
const hugeFloat = 0x1p960

// A hugeSum is the part of a floatSum that is not below hugeFloat. hi+lo is scaled by
// 2^-hugeScale.
type hugeSum struct {
	hi, lo        float64
	nan, up, down int64 // NaNs, +infs and -infs
	// last is the number of the row with the last infinity, from 1. Rows behind it make a
	// mean NaN: GoogleSQL moves the mean by the distance from each value, and that is
	// infinite then.
	last int64
}

const hugeScale = 128

// twoSum returns the rounded sum of a and b, and its error.
func twoSum(a, b float64) (sum, err float64) {
	sum = a + b
	t := sum - a
	return sum, (a - (sum - t)) + (b - t)
}

func (s *floatSum) add(x float64) {
	s.n++
	if math.Abs(x) < hugeFloat {
		sum, err := twoSum(s.hi, x)
		s.hi = sum
		s.lo += err
		return
	}
	s.addHuge(x)
}

// addAll adds floats in four sums of their own, so that the processor need not wait
// for one addition to begin the next.
func (s *floatSum) addAll(floats []float64) {
	var a, b, c, d floatSum
	for ; len(floats) >= 4; floats = floats[4:] {
		if math.Abs(floats[0]) < hugeFloat && math.Abs(floats[1]) < hugeFloat && math.Abs(floats[2]) < hugeFloat && math.Abs(floats[3]) < hugeFloat {
			var ea, eb, ec, ed float64
			a.hi, ea = twoSum(a.hi, floats[0])
			b.hi, eb = twoSum(b.hi, floats[1])
			c.hi, ec = twoSum(c.hi, floats[2])
			d.hi, ed = twoSum(d.hi, floats[3])
			a.lo += ea
			b.lo += eb
			c.lo += ec
			d.lo += ed
			s.n += 4
			continue
		}
		for _, v := range floats[:4] {
			s.add(v)
		}
	}
	for _, v := range floats {
		s.add(v)
	}
	for _, part := range [...]*floatSum{&a, &b, &c, &d} {
		s.merge(part)
	}
}

func (s *floatSum) addHuge(x float64) {
	if s.huge == nil {
		s.huge = new(hugeSum)
	}
	h := s.huge
	switch {
	case x != x:
		h.nan++
	case math.IsInf(x, 1):
		h.up++
		h.last = s.n
	case math.IsInf(x, -1):
		h.down++
		h.last = s.n
	default:
		var err float64
		h.hi, err = twoSum(h.hi, math.Ldexp(x, -hugeScale))
		h.lo += err
	}
}

// total returns the sum as hi+lo, times 2^scale. If it is not finite, lo is 0.
func (s *floatSum) total() (hi, lo float64, scale int) {
	h := s.huge
	if h == nil {
		return s.hi, s.lo, 0
	}
	switch {
	case h.nan > 0 || h.up > 0 && h.down > 0:
		return math.NaN(), 0, 0
	case h.up > 0:
		return math.Inf(1), 0, 0
	case h.down > 0:
		return math.Inf(-1), 0, 0
	case h.hi == 0 && h.lo == 0:
		return s.hi, s.lo, 0
	}
	hi, err := twoSum(h.hi, math.Ldexp(s.hi, -hugeScale))
	return hi, h.lo + math.Ldexp(s.lo, -hugeScale) + err, hugeScale
}

// floatSums are the states of SUM and, with mean, AVG of FLOAT64.
type floatSums struct {
	s    []floatSum
	mean bool
}

func (c *floatSums) Resize(groups int) { c.s = resizeCells(c.s, groups) }

func (c *floatSums) Size() int { return 32 * cap(c.s) }

func (c *floatSums) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	x := args[0]
	all := groups == nil
	groups, n = groupsOf(groups, sel, n)
	sums := c.s
	switch {
	case x.Const:
		return addConst(c, groups, args)
	case x.Null == nil && sel == nil && all:
		sums[0].addAll(x.Floats[:n])
	case x.Null == nil && sel == nil:
		for k, v := range x.Floats[:n] {
			sums[groups[k]].add(v)
		}
	case x.Null == nil:
		floats := x.Floats
		for k, i := range sel {
			sums[groups[k]].add(floats[i])
		}
	case sel == nil:
		null := x.Null[:n]
		for k, v := range x.Floats[:n] {
			if !null[k] {
				sums[groups[k]].add(v)
			}
		}
	default:
		floats, null := x.Floats, x.Null
		for k, i := range sel {
			if !null[i] {
				sums[groups[k]].add(floats[i])
			}
		}
	}
	return nil
}

func (c *floatSums) addRow(group int, args []types.Value) error {
	if args[0].Valid {
		c.s[group].add(args[0].Float)
	}
	return nil
}

func (c *floatSums) value(group int) (types.Value, error) {
	s := &c.s[group]
	if s.n == 0 {
		return types.Null, nil
	}
	hi, lo, scale := s.total()
	if c.mean {
		if h := s.huge; math.IsInf(hi, 0) && (h.up+h.down > 1 || h.last < s.n) {
			return types.NewFloat(math.NaN()), nil
		}
		return types.NewFloat(math.Ldexp(meanOf(hi, lo, float64(s.n)), scale)), nil
	}
	sum := math.Ldexp(hi+lo, scale)
	if math.IsInf(sum, 0) && !math.IsInf(hi, 0) {
		return types.Null, Errorf("double overflow")
	}
	return types.NewFloat(sum), nil
}

// meanOf returns (hi+lo)/n, rounded about once.
func meanOf(hi, lo, n float64) float64 {
	q := (hi + lo) / n
	if q-q != 0 || math.Abs(q) > 1e300 {
		return q
	}
	rest := math.FMA(-q, n, hi) + lo
	return q + rest/n
}

func (c *floatSums) Results(first int, out *types.Vector, n int) error {
	return cellResults(c, first, out, n)
}

func (c *floatSums) AppendState(group int, dst []byte) []byte {
	s := &c.s[group]
	dst = binary.AppendUvarint(append(dst, formSumFloat), uint64(s.n))
	dst = appendStateFloat(appendStateFloat(dst, s.hi), s.lo)
	h := s.huge
	if h == nil {
		return append(dst, 0)
	}
	dst = appendStateFloat(appendStateFloat(append(dst, 1), h.hi), h.lo)
	dst = binary.AppendUvarint(dst, uint64(h.nan))
	dst = binary.AppendUvarint(dst, uint64(h.up))
	dst = binary.AppendUvarint(dst, uint64(h.down))
	return binary.AppendUvarint(dst, uint64(h.last))
}

func (c *floatSums) MergeState(group int, state []byte) error {
	r := readState(state, formSumFloat)
	o := floatSum{n: r.count(), hi: r.finite(), lo: r.finite()}
	if r.Bool() {
		o.huge = &hugeSum{hi: r.finite(), lo: r.finite(), nan: r.count(), up: r.count(), down: r.count(), last: r.count()}
	}
	if err := r.done(sumName(c.mean)); err != nil {
		return err
	}
	c.s[group].merge(&o)
	return nil
}

func (s *floatSum) merge(o *floatSum) {
	var err float64
	before := s.n
	s.n += o.n
	s.hi, err = twoSum(s.hi, o.hi)
	s.lo += o.lo + err
	if o.huge == nil {
		return
	}
	if s.huge == nil {
		s.huge = new(hugeSum)
	}
	h := s.huge
	h.hi, err = twoSum(h.hi, o.huge.hi)
	h.lo += o.huge.lo + err
	h.nan += o.huge.nan
	if o.huge.up+o.huge.down > 0 {
		h.up += o.huge.up
		h.down += o.huge.down
		h.last = before + o.huge.last
	}
}
