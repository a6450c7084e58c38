package functions

import (
	"math"

	"github.com/trestledb/trestle/engine/query/types"
)

// Functions of vectors, which are arrays of numbers, or of structs of an index and
// a number, where what is missing is zero.

// pairs calls f for the numbers of a and b at each place. function is the name of one
// that has messages of its own; it is empty for those that came first.
func pairs(c *Call, function string, a, b types.Value, f func(x, y float64)) error {
	elem := elemType(c, 0)
	if elem.Kind == types.Struct {
		return sparsePairs(elem.Fields[0].Type, a.List, b.List, f)
	}
	if len(a.List) != len(b.List) {
		if function != "" {
			return Errorf("Array arguments to %s must have equal length. The given arrays have lengths of %d and %d", function, len(a.List), len(b.List))
		}
		return Errorf("Array length mismatch: %d and %d", len(a.List), len(b.List))
	}
	ints := elem.Kind == types.Int64
	for i := range a.List {
		x, y := &a.List[i], &b.List[i]
		if !x.Valid || !y.Valid {
			return nullElement(function, !x.Valid, i)
		}
		if ints {
			f(float64(x.Int), float64(y.Int))
		} else {
			f(x.Float, y.Float)
		}
	}
	return nil
}

// nullElement is the error of an element that is NULL, in the first array or the second.
func nullElement(function string, first bool, offset int) error {
	which := "second"
	if first {
		which = "first"
	}
	switch function {
	case "":
		return Errorf("NULL array element in %s argument", which)
	case "L1_NORM", "L2_NORM":
		which = "array argument"
	default:
		which += " array argument"
	}
	return Errorf("Cannot compute %s with a NULL element, since it is unclear if NULLs should be ignored, counted as a zero value, "+
		"or another interpretation. The NULL element was found in the %s at OFFSET %d", function, which, offset)
}

func sparsePairs(key *types.Type, a, b []types.Value, f func(x, y float64)) error {
	left, err := sparse(key, a)
	if err != nil {
		return err
	}
	right, err := sparse(key, b)
	if err != nil {
		return err
	}
	// Both are sorted by index, so that the sum does not depend on the order of the arrays.
	for len(left) > 0 || len(right) > 0 {
		order := 0
		switch {
		case len(left) == 0:
			order = 1
		case len(right) == 0:
			order = -1
		default:
			order = types.Compare(key, left[0], right[0])
		}
		x, y := 0.0, 0.0
		if order <= 0 {
			x, left = left[1].Float, left[2:]
		}
		if order >= 0 {
			y, right = right[1].Float, right[2:]
		}
		f(x, y)
	}
	return nil
}

// sparse returns the entries of a sparse vector as those of a map.
func sparse(key *types.Type, list []types.Value) ([]types.Value, error) {
	out := make([]types.Value, 0, 2*len(list))
	for _, e := range list {
		if !e.Valid {
			return nil, Errorf("NULL array element")
		}
		if !e.List[0].Valid || !e.List[1].Valid {
			return nil, Errorf("NULL struct field")
		}
		out = append(out, e.List[0], e.List[1])
	}
	sorted := types.SortMap(key, out)
	if len(sorted) < 2*len(list) {
		v := firstDuplicate(key, list)
		if key.Kind == types.String {
			return nil, Errorf("Duplicate index %s found in the input array", v.Str)
		}
		return nil, Errorf("Duplicate index %d found in the input array", v.Int)
	}
	return sorted, nil
}

// A floatChain computes with numbers until one step overflows.
type floatChain struct{ err error }

func (c *floatChain) check(z, x float64, op string, y float64) float64 {
	if !isFinite(z) && isFinite(x) && isFinite(y) && c.err == nil {
		c.err = Errorf("double overflow: %s %s %s", shortFloat(x), op, shortFloat(y))
	}
	return z
}

func (c *floatChain) add(x, y float64) float64 { return c.check(x+y, x, "+", y) }
func (c *floatChain) sub(x, y float64) float64 { return c.check(x-y, x, "-", y) }
func (c *floatChain) mul(x, y float64) float64 { return c.check(x*y, x, "*", y) }

func (c *floatChain) result(z float64) (types.Value, error) {
	if c.err != nil {
		return types.Null, c.err
	}
	return types.NewFloat(z), nil
}

func cosineDistance(c *Call, args []types.Value) (types.Value, error) {
	var dot, a, b float64
	var f floatChain
	if err := pairs(c, "", args[0], args[1], func(x, y float64) {
		dot = f.add(dot, f.mul(x, y))
		a = f.add(a, f.mul(x, x))
		b = f.add(b, f.mul(y, y))
	}); err != nil {
		return types.Null, err
	}
	if f.err == nil && (a == 0 || b == 0) {
		return types.Null, Errorf("Cannot compute cosine distance against zero vector")
	}
	length := f.mul(math.Sqrt(a), math.Sqrt(b))
	return f.result(f.sub(1, f.check(dot/length, dot, "/", length)))
}

func euclideanDistance(c *Call, args []types.Value) (types.Value, error) {
	var sum float64
	var f floatChain
	if err := pairs(c, "", args[0], args[1], func(x, y float64) {
		d := f.sub(x, y)
		sum = f.add(sum, f.mul(d, d))
	}); err != nil {
		return types.Null, err
	}
	return f.result(math.Sqrt(sum))
}

func manhattanDistance(c *Call, args []types.Value) (types.Value, error) {
	var sum float64
	var f floatChain
	if err := pairs(c, "MANHATTAN_DISTANCE", args[0], args[1], func(x, y float64) { sum = f.add(sum, math.Abs(f.sub(x, y))) }); err != nil {
		return types.Null, err
	}
	return f.result(sum)
}

func dotProduct(c *Call, args []types.Value) (types.Value, error) {
	var sum float64
	var f floatChain
	if err := pairs(c, "DOT_PRODUCT", args[0], args[1], func(x, y float64) { sum = f.add(sum, f.mul(x, y)) }); err != nil {
		return types.Null, err
	}
	return f.result(sum)
}

func norm1(c *Call, args []types.Value) (types.Value, error) {
	var sum float64
	var f floatChain
	if err := pairs(c, "L1_NORM", args[0], args[0], func(x, _ float64) { sum = f.add(sum, math.Abs(x)) }); err != nil {
		return types.Null, err
	}
	return f.result(sum)
}

func norm2(c *Call, args []types.Value) (types.Value, error) {
	var sum float64
	var f floatChain
	if err := pairs(c, "L2_NORM", args[0], args[0], func(x, _ float64) { sum = f.add(sum, f.mul(x, x)) }); err != nil {
		return types.Null, err
	}
	return f.result(math.Sqrt(sum))
}

func init() {
	array := func(t *types.Type) Template { return T(types.ArrayOf(t)) }
	entry := func(key *types.Type) Template {
		return array(types.StructOf(types.Field{Name: "key", Type: key}, types.Field{Name: "value", Type: types.Float64Type}))
	}
	two := func(eval evalFunc, list ...Template) []*Signature {
		var out []*Signature
		for _, t := range list {
			out = append(out, signature(tFloat64, eval, nil, t, t))
		}
		return out
	}
	dense := []Template{array(types.Int64Type), array(types.Float32Type), array(types.Float64Type)}
	vectors := []Template{array(types.Float64Type), entry(types.Int64Type), entry(types.StringType), array(types.Float32Type)}
	function := func(name, doc string, list []*Signature) *Function {
		return &Function{Name: name, Category: "Mathematical", Doc: doc, Signatures: list}
	}
	one := func(eval evalFunc) []*Signature {
		var out []*Signature
		for _, t := range dense {
			out = append(out, signature(tFloat64, eval, nil, t))
		}
		return out
	}
	register(
		function("COSINE_DISTANCE", "Returns one less the cosine of the angle between two vectors.", two(cosineDistance, vectors...)),
		function("EUCLIDEAN_DISTANCE", "Returns the distance of two points.", two(euclideanDistance, vectors...)),
		function("MANHATTAN_DISTANCE", "Returns the sum of the distances of two points along each axis.", two(manhattanDistance, dense...)),
		function("DOT_PRODUCT", "Returns the sum of the products of the numbers of two vectors.", two(dotProduct, dense...)),
		function("L1_NORM", "Returns the sum of the absolute values of a vector.", one(norm1)),
		function("L2_NORM", "Returns the length of a vector.", one(norm2)),
	)
}
