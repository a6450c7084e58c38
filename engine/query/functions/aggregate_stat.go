package functions

import (
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/query/types"
)

// What is made of moments.
type statistic uint8

const (
	varPop statistic = iota
	varSamp
	stddevPop
	stddevSamp
	covarPop
	covarSamp
	corr
)

func init() {
	for _, f := range []struct {
		name, alias, doc string
		s                statistic
	}{
		{"VAR_POP", "", "Returns the population variance of values that are not NULL; NULL if there are none.", varPop},
		{"VAR_SAMP", "VARIANCE", "Returns the sample variance of values that are not NULL; NULL if there are less than two.", varSamp},
		{"STDDEV_POP", "", "Returns the population standard deviation of values that are not NULL; NULL if there are none.", stddevPop},
		{"STDDEV_SAMP", "STDDEV", "Returns the sample standard deviation of values that are not NULL; NULL if there are less than two.", stddevSamp},
		{"COVAR_POP", "", "Returns the population covariance of pairs without a NULL; NULL if there are none.", covarPop},
		{"COVAR_SAMP", "", "Returns the sample covariance of pairs without a NULL; NULL if there are less than two.", covarSamp},
		{"CORR", "", "Returns the Pearson coefficient of correlation of pairs without a NULL; NULL if there are less than two.", corr},
	} {
		args := []Arg{{Type: T(types.Float64Type)}}
		if f.s >= covarPop {
			args = append(args, args[0])
		}
		entry := &Function{
			Name: f.name, Category: "Statistical aggregate", Kind: Aggregate, Doc: f.doc, IgnoreNulls: true, NoDistinct: f.s >= covarPop,
			Signatures: []*Signature{
				grouped(&Signature{Args: args, Result: T(types.Float64Type)}, func(*Call) cells { return &moments{of: f.s, name: f.name} }),
			},
		}
		if f.alias != "" {
			entry.Aliases = []string{f.alias}
		}
		register(entry)
	}
}

// A wide is the number hi+lo, of about 106 bits. GoogleSQL computes these functions
// with 64 bits; this many make results that do not depend on how rows are spread
// over servers.
type wide struct{ hi, lo float64 }

func (a wide) add(b wide) wide {
	s, e := twoSum(a.hi, b.hi)
	e += a.lo + b.lo
	hi := s + e
	return wide{hi, e - (hi - s)}
}

func (a wide) minus(b wide) wide { return a.add(wide{-b.hi, -b.lo}) }

func (a wide) times(b wide) wide {
	p := a.hi * b.hi
	e := math.FMA(a.hi, b.hi, -p) + (a.hi*b.lo + a.lo*b.hi)
	hi := p + e
	return wide{hi, e - (hi - p)}
}

func (a wide) over(b wide) wide {
	q := a.hi / b.hi
	rest := a.minus(b.times(wide{hi: q}))
	return wide{hi: q}.add(wide{hi: rest.hi / b.hi})
}

func (a wide) sqrt() wide {
	if a.hi <= 0 {
		return wide{}
	}
	s := math.Sqrt(a.hi)
	rest := a.minus(wide{hi: s}.times(wide{hi: s}))
	return wide{hi: s}.add(wide{hi: rest.hi / (2 * s)})
}

func (a wide) scaled(exp int) wide { return wide{math.Ldexp(a.hi, exp), math.Ldexp(a.lo, exp)} }

func (a wide) value(exp int) float64 { return math.Ldexp(a.hi+a.lo, exp) }

// An axis is one variable of moments. Its values are kept times 2^-scale, so that
// their squares neither overflow nor vanish; GoogleSQL's long double has the room
// for them.
type axis struct {
	mean, m2 wide // the mean, and the sum of squared distances from it
	scale    int
	limit    float64 // what an input must not exceed; 0 before the first that is not 0
}

// axisRange is the exponent up to which a scaled value is small enough.
const axisRange = 300

// rescale makes scale larger. It returns by how much.
func (a *axis) rescale(scale int) int {
	by := scale - a.scale
	a.mean, a.m2, a.scale = a.mean.scaled(-by), a.m2.scaled(-2*by), scale
	a.limit = math.Ldexp(1, min(scale+axisRange, 1023))
	return by
}

// fit makes room for x, which is beyond the limit. It returns by how much it raised the scale.
func (a *axis) fit(x float64) int {
	e := math.Ilogb(x)
	if a.limit == 0 && -axisRange <= e && e <= axisRange {
		e = 0
	}
	return a.rescale(e)
}

// A moment is what is known of the rows of one group.
type moment struct {
	n    int64
	bad  bool // a value is infinite or NaN
	x, y axis
	c    wide // the sum of products of distances from the means
}

func (m *moment) add(x, y float64, pairs bool) {
	m.n++
	if m.bad || x-x != 0 || y-y != 0 {
		m.bad = true
		return
	}
	if math.Abs(x) > m.x.limit {
		m.c = m.c.scaled(-m.x.fit(x))
	}
	if m.x.scale != 0 {
		x = math.Ldexp(x, -m.x.scale)
	}
	n := wide{hi: float64(m.n)}
	dx := wide{hi: x}.minus(m.x.mean)
	m.x.mean = m.x.mean.add(dx.over(n))
	m.x.m2 = m.x.m2.add(dx.times(wide{hi: x}.minus(m.x.mean)))
	if !pairs {
		return
	}
	if math.Abs(y) > m.y.limit {
		m.c = m.c.scaled(-m.y.fit(y))
	}
	if m.y.scale != 0 {
		y = math.Ldexp(y, -m.y.scale)
	}
	dy := wide{hi: y}.minus(m.y.mean)
	m.y.mean = m.y.mean.add(dy.over(n))
	rest := wide{hi: y}.minus(m.y.mean)
	m.y.m2 = m.y.m2.add(dy.times(rest))
	m.c = m.c.add(dx.times(rest))
}

// merge adds the rows of o, which it may change.
func (m *moment) merge(o *moment) {
	if o.n == 0 {
		return
	}
	if m.n == 0 {
		*m = *o
		return
	}
	if m.bad || o.bad {
		m.n, m.bad = m.n+o.n, true
		return
	}
	m.c = m.c.scaled(-level(&m.x, &o.x) - level(&m.y, &o.y))
	o.c = o.c.scaled(-level(&o.x, &m.x) - level(&o.y, &m.y))
	n := wide{hi: float64(m.n + o.n)}
	part := wide{hi: float64(o.n)}.over(n)
	both := part.times(wide{hi: float64(m.n)})
	dx, dy := o.x.mean.minus(m.x.mean), o.y.mean.minus(m.y.mean)
	m.c = m.c.add(o.c).add(dx.times(dy).times(both))
	m.x.merge(&o.x, dx, part, both)
	m.y.merge(&o.y, dy, part, both)
	m.n += o.n
}

func (a *axis) merge(o *axis, d, part, both wide) {
	a.mean = a.mean.add(d.times(part))
	a.m2 = a.m2.add(o.m2).add(d.times(d).times(both))
}

// level raises the scale of a to that of b if it is larger, or if a has only seen
// zeros. It returns by how much.
func level(a, b *axis) int {
	if b.limit != 0 && (a.limit == 0 || b.scale > a.scale) {
		return a.rescale(b.scale)
	}
	return 0
}

// moments are the states of the statistical aggregates.
type moments struct {
	m    []moment
	of   statistic
	name string
}

func (c *moments) Resize(groups int) { c.m = resizeCells(c.m, groups) }

func (c *moments) Size() int { return 144 * cap(c.m) }

func (c *moments) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	groups, _ = groupsOf(groups, sel, n)
	pairs := c.of >= covarPop
	x := args[0]
	y := args[len(args)-1]
	for k, g := range groups {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		if !x.IsNull(i) && !y.IsNull(i) {
			c.m[g].add(x.Floats[x.At(i)], y.Floats[y.At(i)], pairs)
		}
	}
	return nil
}

func (c *moments) addRow(group int, args []types.Value) error {
	x, y := args[0], args[len(args)-1]
	if x.Valid && y.Valid {
		c.m[group].add(x.Float, y.Float, c.of >= covarPop)
	}
	return nil
}

func (c *moments) value(group int) (types.Value, error) {
	m := &c.m[group]
	least := int64(2)
	if c.of == varPop || c.of == stddevPop || c.of == covarPop {
		least = 1
	}
	switch {
	case m.n < least:
		return types.Null, nil
	case m.bad:
		return types.NewFloat(math.NaN()), nil
	}
	n := wide{hi: float64(m.n)}
	rest := wide{hi: float64(m.n - 1)}
	var f float64
	switch c.of {
	case varPop:
		f = m.x.m2.over(n).value(2 * m.x.scale)
	case varSamp:
		f = m.x.m2.over(rest).value(2 * m.x.scale)
	case stddevPop:
		f = m.x.m2.over(n).sqrt().value(m.x.scale)
	case stddevSamp:
		f = m.x.m2.over(rest).sqrt().value(m.x.scale)
	case covarPop:
		f = m.c.over(n).value(m.x.scale + m.y.scale)
	case covarSamp:
		f = m.c.over(rest).value(m.x.scale + m.y.scale)
	case corr:
		if m.x.m2.hi <= 0 || m.y.m2.hi <= 0 {
			return types.NewFloat(math.NaN()), nil
		}
		f = m.c.over(m.x.m2.sqrt().times(m.y.m2.sqrt())).value(0)
		f = max(-1, min(1, f))
	}
	return types.NewFloat(f), nil
}

func (c *moments) Results(first int, out *types.Vector, n int) error {
	return cellResults(c, first, out, n)
}

func (c *moments) AppendState(group int, dst []byte) []byte {
	m := &c.m[group]
	dst = binary.AppendUvarint(append(dst, formMoments), uint64(m.n))
	if m.n == 0 {
		return dst
	}
	if m.bad {
		return append(dst, 1)
	}
	dst = append(dst, 0)
	dst = m.x.appendTo(dst)
	dst = m.y.appendTo(dst)
	return appendStateFloat(appendStateFloat(dst, m.c.hi), m.c.lo)
}

func (a *axis) appendTo(dst []byte) []byte {
	if a.limit == 0 {
		return append(dst, 0)
	}
	dst = binary.AppendVarint(append(dst, 1), int64(a.scale))
	for _, f := range [...]float64{a.mean.hi, a.mean.lo, a.m2.hi, a.m2.lo} {
		dst = appendStateFloat(dst, f)
	}
	return dst
}

func (c *moments) MergeState(group int, state []byte) error {
	r := readState(state, formMoments)
	o := moment{n: r.count()}
	if o.n > 0 {
		o.bad = r.Bool()
	}
	if o.n > 0 && !o.bad {
		o.x.read(r)
		o.y.read(r)
		o.c = wide{r.finite(), r.finite()}
	}
	if err := r.done(c.name); err != nil {
		return err
	}
	c.m[group].merge(&o)
	return nil
}

func (a *axis) read(r *stateReader) {
	if !r.Bool() {
		return
	}
	scale := r.Varint()
	if scale < -1100 || scale > 1100 {
		r.Fail()
		return
	}
	a.rescale(int(scale))
	a.mean = wide{r.finite(), r.finite()}
	a.m2 = wide{r.finite(), r.finite()}
}
