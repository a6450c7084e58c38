package functions

import (
	"math"
	"slices"
	"strconv"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

const windowCategory = "Window"

func init() {
	count := func(name, doc string, f func(p Partition, out []types.Value)) *Function {
		return &Function{
			Name: name, Category: windowCategory, Kind: Window, Doc: doc, NeedsOrder: true, NoFrame: true,
			Signatures: []*Signature{{
				Result: T(types.Int64Type),
				Window: func(_ *Call, p Partition, out []types.Value) error {
					f(p, out)
					return nil
				},
			}},
		}
	}
	share := func(name, doc string, f func(p Partition, out []types.Value)) *Function {
		w := count(name, doc, f)
		w.Signatures[0].Result = T(types.Float64Type)
		return w
	}
	rowNumber := count("ROW_NUMBER", "Returns the number of the row in its partition, from 1.", func(p Partition, out []types.Value) {
		for i := range out {
			out[i] = types.NewInt(int64(i) + 1)
		}
	})
	rowNumber.NeedsOrder = false
	register(
		rowNumber,
		count("RANK", "Returns one more than the number of rows before the row's peers.", func(p Partition, out []types.Value) {
			eachPeers(p, func(_, start, end int) {
				fillValues(out[start:end], types.NewInt(int64(start)+1))
			})
		}),
		count("DENSE_RANK", "Returns the number of the row's peers among the groups of peers, from 1.", func(p Partition, out []types.Value) {
			eachPeers(p, func(group, start, end int) {
				fillValues(out[start:end], types.NewInt(int64(group)+1))
			})
		}),
		share("PERCENT_RANK", "Returns (RANK - 1) / (rows - 1), 0 if there is one row.", func(p Partition, out []types.Value) {
			eachPeers(p, func(_, start, end int) {
				f := 0.0
				if n := len(out); n > 1 {
					f = float64(start) / float64(n-1)
				}
				fillValues(out[start:end], types.NewFloat(f))
			})
		}),
		share("CUME_DIST", "Returns the share of rows that are not behind the row's peers.", func(p Partition, out []types.Value) {
			eachPeers(p, func(_, start, end int) {
				fillValues(out[start:end], types.NewFloat(float64(end)/float64(len(out))))
			})
		}),
		&Function{
			Name: "NTILE", Category: windowCategory, Kind: Window, NeedsOrder: true, NoFrame: true,
			Doc: "Divides the partition into as many buckets as the argument says, and returns the number of the row's bucket, from 1.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: T(types.Int64Type), Const: true, NotNull: true, Range: []int64{1}}}, Result: T(types.Int64Type), Window: ntile,
			}},
		},
		&Function{
			Name: "LAG", Category: windowCategory, Kind: Window, NeedsOrder: true, NoFrame: true,
			Doc:        "Returns the expression for the row that is 1, or as many as the second argument says, before this one; the third argument, or NULL, if there is none.",
			Signatures: []*Signature{offsetSignature("LAG", -1)},
		},
		&Function{
			Name: "LEAD", Category: windowCategory, Kind: Window, NeedsOrder: true, NoFrame: true,
			Doc:        "Returns the expression for the row that is 1, or as many as the second argument says, behind this one; the third argument, or NULL, if there is none.",
			Signatures: []*Signature{offsetSignature("LEAD", 1)},
		},
		&Function{
			Name: "FIRST_VALUE", Category: windowCategory, Kind: Window, NeedsOrder: true, Nulls: true,
			Doc: "Returns the expression for the first row of the frame.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: AnyT("T1")}}, Result: AnyT("T1"),
				Window: func(c *Call, p Partition, out []types.Value) error { return nthValues(c, p, out, 1) },
			}},
		},
		&Function{
			Name: "LAST_VALUE", Category: windowCategory, Kind: Window, NeedsOrder: true, Nulls: true,
			Doc: "Returns the expression for the last row of the frame.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: AnyT("T1")}}, Result: AnyT("T1"),
				Window: func(c *Call, p Partition, out []types.Value) error { return nthValues(c, p, out, -1) },
			}},
		},
		&Function{
			Name: "NTH_VALUE", Category: windowCategory, Kind: Window, NeedsOrder: true, Nulls: true,
			Doc: "Returns the expression for the row of the frame whose number, from 1, is the second argument; NULL if there is none.",
			Signatures: []*Signature{{
				Args:   []Arg{{Type: AnyT("T1")}, {Type: T(types.Int64Type), Const: true, NotNull: true, Range: []int64{1}}},
				Result: AnyT("T1"), Window: nthValue,
			}},
		},
		&Function{
			Name: "PERCENTILE_CONT", Category: windowCategory, Kind: Window, NoOrder: true, NoFrame: true, Nulls: true, IgnoreNulls: true,
			Doc: "Returns the percentile of the values of the partition, between two of them by linear interpolation.",
			Signatures: []*Signature{{
				Args:   []Arg{{Type: T(types.Float64Type)}, {Type: T(types.Float64Type), Const: true, NotNull: true, Range: []int64{0, 1}}},
				Result: T(types.Float64Type), Window: percentileCont,
			}},
		},
		&Function{
			Name: "PERCENTILE_DISC", Category: windowCategory, Kind: Window, NoOrder: true, NoFrame: true, Nulls: true, IgnoreNulls: true,
			Doc: "Returns the first value of the partition up to which the share of values is at least the percentile.",
			Signatures: []*Signature{{
				Args:   []Arg{{Type: AnyT("T1")}, {Type: T(types.Float64Type), Const: true, NotNull: true, Range: []int64{0, 1}}},
				Result: AnyT("T1"), Window: percentileDisc,
				Check: func(args []*types.Type) string {
					if args[0] != nil && args[0].Kind == types.Array {
						return "Unsupported argument type for percentile_disc."
					}
					return orderCheck("PERCENTILE_DISC")(args)
				},
			}},
		},
	)
}

// eachPeers calls f for each group of peers.
func eachPeers(p Partition, f func(group, start, end int)) {
	for i, group := 0, 0; i < p.Rows(); group++ {
		_, end := p.Peers(i)
		end = max(end, i+1)
		f(group, i, end)
		i = end
	}
}

func fillValues(out []types.Value, v types.Value) {
	for i := range out {
		out[i] = v
	}
}

func ntile(_ *Call, p Partition, out []types.Value) error {
	if len(out) == 0 {
		return nil
	}
	arg := p.Arg(0, 0)
	if !arg.Valid {
		return Errorf("The N value (number of buckets) for the NTILE function must not be NULL")
	}
	if arg.Int <= 0 {
		return Errorf("The N value (number of buckets) for the NTILE function must be positive")
	}
	rows, buckets := int64(len(out)), arg.Int
	size, larger := rows/buckets, rows%buckets // the first buckets have one row more
	for i := range out {
		row := int64(i)
		if row < larger*(size+1) {
			out[i] = types.NewInt(row/(size+1) + 1)
		} else {
			out[i] = types.NewInt((row-larger)/size + 1)
		}
	}
	return nil
}

func offsetSignature(name string, direction int64) *Signature {
	return &Signature{
		Args: []Arg{
			{Type: AnyT("T1")},
			{Type: T(types.Int64Type), Optional: true, Const: true, NotNull: true},
			{Type: AnyT("T1"), Optional: true},
		},
		Result: AnyT("T1"),
		Window: func(c *Call, p Partition, out []types.Value) error {
			if len(out) == 0 {
				return nil
			}
			by := int64(1)
			if givenArg(c, 1) {
				arg := p.Arg(0, 1)
				if !arg.Valid {
					return fault.New(fault.Invalid, "The offset to the function %s must not be null", name)
				}
				if by = arg.Int; by < 0 {
					return fault.New(fault.Invalid, "The offset to the function %s must not be negative", name)
				}
			}
			for i := range out {
				switch row := int64(i) + direction*min(by, int64(len(out))); {
				case row >= 0 && row < int64(len(out)):
					out[i] = p.Arg(int(row), 0)
				case givenArg(c, 2):
					out[i] = p.Arg(i, 2)
				default:
					out[i] = types.Null
				}
			}
			return nil
		},
	}
}

func nthValue(c *Call, p Partition, out []types.Value) error {
	if len(out) == 0 {
		return nil
	}
	arg := p.Arg(0, 1)
	if !arg.Valid {
		return Errorf("The N value for the NthValue function must not be NULL")
	}
	if arg.Int <= 0 {
		return Errorf("The N value for the NthValue function must be positive")
	}
	return nthValues(c, p, out, arg.Int)
}

// nthValues sets out[i] to the value of row n of the frame of row i, from 1, or if n
// is -1 of its last.
func nthValues(c *Call, p Partition, out []types.Value, n int64) error {
	var rows []int // those that count, if NULLs do not
	if c.IgnoreNulls {
		for i := range out {
			if p.Arg(i, 0).Valid {
				rows = append(rows, i)
			}
		}
	}
	for i := range out {
		out[i] = types.Null
		start, end := p.Frame(i)
		if c.IgnoreNulls {
			start, _ = slices.BinarySearch(rows, start)
			end, _ = slices.BinarySearch(rows, end)
		}
		row := int64(end) - 1
		if n > 0 {
			row = int64(start) + min(n, int64(len(out))+1) - 1
		}
		if row < int64(start) || row >= int64(end) {
			continue
		}
		if c.IgnoreNulls {
			row = int64(rows[row])
		}
		out[i] = p.Arg(int(row), 0)
	}
	return nil
}

// percentile returns the second argument of PERCENTILE_CONT or PERCENTILE_DISC.
func percentile(p Partition, function string) (float64, error) {
	arg := p.Arg(0, 1)
	switch {
	case !arg.Valid:
		return 0, fault.New(fault.Invalid, "The second argument to the function %s must not be null", function)
	case !(arg.Float >= 0 && arg.Float <= 1):
		return 0, fault.New(fault.Invalid, "The second argument to the function %s must be in [0, 1]; got %s", function,
			strconv.FormatFloat(arg.Float, 'g', 6, 64))
	}
	return arg.Float, nil
}

// sortedArgs returns the first arguments of all rows, sorted, without NULLs if they
// are ignored.
func sortedArgs(c *Call, p Partition) ([]types.Value, error) {
	n := p.Rows()
	if c.Grow != nil {
		if err := c.Grow(64 * int64(n)); err != nil {
			return nil, err
		}
	}
	list := make([]types.Value, 0, n)
	for i := range n {
		if v := p.Arg(i, 0); v.Valid || !c.IgnoreNulls {
			list = append(list, v)
		}
	}
	t := c.Types[0]
	slices.SortStableFunc(list, func(a, b types.Value) int { return types.Compare(t, a, b) })
	return list, nil
}

func percentileCont(c *Call, p Partition, out []types.Value) error {
	if len(out) == 0 {
		return nil
	}
	q, err := percentile(p, "PERCENTILE_CONT")
	if err != nil {
		return err
	}
	list, err := sortedArgs(c, p)
	if err != nil {
		return err
	}
	result := types.Null
	if len(list) > 0 {
		at := q * float64(len(list)-1)
		low := min(int(math.Floor(at)), len(list)-1)
		// The share is exact: what rounding took from the product is part of it.
		f := wide{hi: at - float64(low)}.add(wide{hi: math.FMA(q, float64(len(list)-1), -at)})
		result = interpolate(list[low], list[min(low+1, len(list)-1)], f)
	}
	fillValues(out, result)
	return nil
}

// interpolate returns the value at share f of the way from a to b. Where one is NULL, the
// other alone counts.
func interpolate(a, b types.Value, f wide) types.Value {
	switch {
	case f.hi <= 0 || !b.Valid:
		return a
	case !a.Valid:
		return b
	}
	// Each step is rounded as GoogleSQL does, also where a processor could fuse two.
	left, right := wide{hi: 1}.minus(f).hi*a.Float, f.hi*b.Float
	return types.NewFloat(float64(left) + float64(right))
}

func percentileDisc(c *Call, p Partition, out []types.Value) error {
	if len(out) == 0 {
		return nil
	}
	q, err := percentile(p, "PERCENTILE_DISC")
	if err != nil {
		return err
	}
	list, err := sortedArgs(c, p)
	if err != nil {
		return err
	}
	result := types.Null
	if len(list) > 0 {
		product := q * float64(len(list))
		at := int(math.Ceil(product)) - 1
		if math.FMA(q, float64(len(list)), -product) > 0 && math.Floor(product) == product {
			at++ // the product was rounded down to a whole number
		}
		result = list[min(max(at, 0), len(list)-1)]
	}
	fillValues(out, result)
	return nil
}
