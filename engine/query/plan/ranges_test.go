package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
)

func lit(v types.Value) algebra.Expr { return &algebra.Literal{T: types.BytesType, Value: v} }

func str(s string) algebra.Expr { return lit(types.NewString(s)) }

func num(n int64) algebra.Expr { return lit(types.NewInt(n)) }

func literals(e algebra.Expr) (types.Value, error) { return e.(*algebra.Literal).Value, nil }

func onKey(op algebra.KeyOp, values ...algebra.Expr) *algebra.KeyCondition {
	return &algebra.KeyCondition{Op: op, Field: algebra.RowKey, Values: values}
}

func onField(field int, op algebra.KeyOp, values ...algebra.Expr) *algebra.KeyCondition {
	return &algebra.KeyCondition{Op: op, Field: field, Values: values}
}

func allOf(of ...*algebra.KeyCondition) *algebra.KeyCondition {
	return &algebra.KeyCondition{Op: algebra.KeyAnd, Of: of}
}

func anyOf(of ...*algebra.KeyCondition) *algebra.KeyCondition {
	return &algebra.KeyCondition{Op: algebra.KeyOr, Of: of}
}

func plainRanges(list []row.Range) string {
	var out []string
	for _, r := range list {
		if r.IsSingle() {
			out = append(out, row.Escape(r.Start))
		} else {
			out = append(out, "["+row.Escape(r.Start)+","+row.Escape(r.End)+")")
		}
	}
	return strings.Join(out, " ")
}

func TestRanges(t *testing.T) {
	ordered := &algebra.KeySchema{Encoding: algebra.OrderedCode, Fields: []algebra.KeyField{
		{Name: "s", Type: types.StringType, Encoding: algebra.UTF8}, {Name: "n", Type: types.Int64Type, Encoding: algebra.OrderedInt},
		{Name: "b", Type: types.BytesType, Encoding: algebra.RawBytes}}}
	delimited := &algebra.KeySchema{Encoding: algebra.Delimited, Delimiter: "#", Fields: []algebra.KeyField{
		{Name: "s", Type: types.StringType, Encoding: algebra.UTF8}, {Name: "b", Type: types.BytesType, Encoding: algebra.RawBytes}}}
	colons := &algebra.KeySchema{Encoding: algebra.Delimited, Delimiter: "::", Fields: delimited.Fields}
	fixed := &algebra.KeySchema{Fields: []algebra.KeyField{{Name: "x", Type: types.Int64Type, Encoding: algebra.BigEndian}}}
	for _, c := range []struct {
		k    *algebra.KeySchema
		c    *algebra.KeyCondition
		want string
	}{
		{nil, onKey(algebra.KeyEqual, str("a")), "a"},
		{nil, onKey(algebra.KeyEqual, lit(types.Null)), ""},
		{nil, onKey(algebra.KeyIn, str("b"), str("a"), lit(types.Null), str("b")), "a b"},
		{nil, onKey(algebra.KeyLess, str("b")), "[,b)"},
		{nil, onKey(algebra.KeyLess, str("")), ""},
		{nil, onKey(algebra.KeyLessOrEqual, str("b")), `[,b\x00)`},
		{nil, onKey(algebra.KeyGreater, str("b")), `[b\x00,)`},
		{nil, onKey(algebra.KeyGreaterOrEqual, str("b")), "[b,)"},
		{nil, onKey(algebra.KeyPrefix, str("b")), "[b,c)"},
		{nil, onKey(algebra.KeyPrefix, str("")), "[,)"},
		{nil, onKey(algebra.KeyPrefix, str("a\xff")), `[a\xff,b)`},
		{nil, onKey(algebra.KeyLike, str("ab%c")), "[ab,ac)"},
		{nil, onKey(algebra.KeyLike, str("ab_")), "[ab,ac)"},
		{nil, onKey(algebra.KeyLike, str(`a\%b`)), "a%b"},
		{nil, onKey(algebra.KeyLike, str("%a")), "[,)"},
		{nil, onKey(algebra.KeyLike, str(`ab\`)), "[ab,ac)"},
		{nil, onKey(algebra.KeyRegexp, str("^ab+c")), "[a,b)"},
		{nil, onKey(algebra.KeyRegexp, str("^ab(c|d)")), "[ab,ac)"},
		{nil, onKey(algebra.KeyRegexp, str("^ab|c")), "[,)"},
		{nil, onKey(algebra.KeyRegexp, str("ab")), "[,)"},
		{nil, onKey(algebra.KeyRegexp, str("^(?i)ab")), "[,)"},
		{nil, onKey(algebra.KeyRegexp, str("(?m)^ab")), "[,)"},
		{nil, onKey(algebra.KeyRegexp, str("(")), "[,)"},
		{nil, onKey(algebra.KeyRegexp, str("^\xff")), "[,)"},
		{nil, allOf(onKey(algebra.KeyGreater, str("b")), onKey(algebra.KeyLess, str("a"))), ""},
		{nil, allOf(onKey(algebra.KeyGreaterOrEqual, str("a")), onKey(algebra.KeyLess, str("c"))), "[a,c)"},
		{nil, anyOf(onKey(algebra.KeyEqual, str("z")), allOf(onKey(algebra.KeyGreaterOrEqual, str("a")), onKey(algebra.KeyLess, str("c"))), onKey(algebra.KeyPrefix, str("c"))), "[a,d) z"},
		{nil, allOf(anyOf(onKey(algebra.KeyPrefix, str("a")), onKey(algebra.KeyPrefix, str("c"))), onKey(algebra.KeyIn, str("ax"), str("b"), str("cx"))), "ax cx"},
		{nil, anyOf(), ""},

		{ordered, onField(0, algebra.KeyEqual, str("A")), `[A,A\x00\x02)`},
		{ordered, onField(0, algebra.KeyEqual, str("")), `[\x00\x00,\x00\x00\x00\x02)`},
		{ordered, onField(0, algebra.KeyPrefix, str("A")), "[A,B)"},
		{ordered, onField(1, algebra.KeyEqual, num(1)), "[,)"},
		{ordered, allOf(onField(0, algebra.KeyEqual, str("A")), onField(1, algebra.KeyEqual, num(1))), `[A\x00\x01\x81,A\x00\x01\x81\x00\x02)`},
		{ordered, allOf(onField(0, algebra.KeyEqual, str("A")), onField(1, algebra.KeyEqual, num(1)), onField(2, algebra.KeyEqual, str(""))), `A\x00\x01\x81`},
		{ordered, allOf(onField(0, algebra.KeyEqual, str("A")), onField(1, algebra.KeyGreater, num(1))), `[A\x00\x01\x82,A\x00\x01\xff\xc0\x7f\xff\xff\xff\xff\xff\xff\xff\x00\xff)`},
		{ordered, allOf(onField(0, algebra.KeyIn, str("A"), str("B")), onField(1, algebra.KeyEqual, num(1)), onField(2, algebra.KeyEqual, str("x"))), `A\x00\x01\x81\x00\x01x B\x00\x01\x81\x00\x01x`},
		{ordered, allOf(onField(0, algebra.KeyEqual, str("A")), onField(0, algebra.KeyEqual, str("B"))), ""},

		{delimited, onField(0, algebra.KeyEqual, str("A")), "[A#,A$)"},
		{delimited, allOf(onField(0, algebra.KeyEqual, str("A")), onField(1, algebra.KeyEqual, str("x"))), "A#x"},
		{delimited, allOf(onField(0, algebra.KeyEqual, str("A")), onField(1, algebra.KeyGreaterOrEqual, str("x"))), "[A#x,A$)"},
		{delimited, onField(0, algebra.KeyLess, str("b!")), "[,b$)"},
		{colons, onField(0, algebra.KeyPrefix, str("urn:a")), "[urn:a,urn:b)"},
		{colons, onField(0, algebra.KeyLess, str("urn:!")), "[,urn:;)"},

		{fixed, onField(0, algebra.KeyEqual, num(1)), `\x00\x00\x00\x00\x00\x00\x00\x01`},
		{fixed, onField(0, algebra.KeyLess, num(-5)), `[\x80\x00\x00\x00\x00\x00\x00\x00,\xff\xff\xff\xff\xff\xff\xff\xfa\x00)`},
		{fixed, onField(0, algebra.KeyLess, num(math.MinInt64)), ""},
		{fixed, onField(0, algebra.KeyGreater, num(math.MaxInt64)), ""},
	} {
		got, err := ranges(c.k, c.c, literals)
		if err != nil {
			t.Fatal(err)
		}
		if plainRanges(got) != c.want {
			t.Errorf("%s: got %s, want %s", conditionText(c.c), plainRanges(got), c.want)
		}
	}
}

func conditionText(c *algebra.KeyCondition) string {
	var parts []string
	for _, k := range c.Of {
		parts = append(parts, conditionText(k))
	}
	for _, v := range c.Values {
		parts = append(parts, fmt.Sprintf("%v", v.(*algebra.Literal).Value))
	}
	return fmt.Sprintf("op %d of %d(%s)", c.Op, c.Field, strings.Join(parts, ", "))
}

// holds evaluates a condition for the fields of a key.
func holds(k *algebra.KeySchema, c *algebra.KeyCondition, key []byte, fields []types.Value) bool {
	switch c.Op {
	case algebra.KeyAnd:
		for _, p := range c.Of {
			if !holds(k, p, key, fields) {
				return false
			}
		}
		return true
	case algebra.KeyOr:
		for _, p := range c.Of {
			if holds(k, p, key, fields) {
				return true
			}
		}
		return false
	}
	typ, x := types.BytesType, types.NewString(string(key))
	if c.Field != algebra.RowKey {
		typ, x = k.Fields[c.Field].Type, fields[c.Field]
	}
	for _, e := range c.Values {
		v := e.(*algebra.Literal).Value
		if !v.Valid {
			continue
		}
		cmp := types.Compare(typ, x, v)
		switch c.Op {
		case algebra.KeyEqual, algebra.KeyIn:
			if cmp == 0 {
				return true
			}
		case algebra.KeyLess:
			return cmp < 0
		case algebra.KeyLessOrEqual:
			return cmp <= 0
		case algebra.KeyGreater:
			return cmp > 0
		case algebra.KeyGreaterOrEqual:
			return cmp >= 0
		case algebra.KeyPrefix:
			return strings.HasPrefix(x.Str, v.Str)
		}
	}
	return false
}

// keyOf returns the row key of fields. Those of a delimited key are joined as writers
// without a schema do it: they may hold the first bytes of the delimiter.
func keyOf(k *algebra.KeySchema, fields []types.Value) (key []byte, ok bool) {
	if k.Encoding != algebra.Delimited {
		return k.Encode(nil, fields)
	}
	for i, v := range fields {
		if i > 0 {
			key = append(key, k.Delimiter...)
		}
		if key, ok = k.EncodeField(key, i, v); !ok {
			return nil, false
		}
	}
	read := make([]types.Value, len(fields))
	if _, err := k.Decode(read, key, nil); err != nil {
		return nil, false
	}
	for i, v := range fields {
		if types.Compare(k.Fields[i].Type, v, read[i]) != 0 {
			return nil, false
		}
	}
	return key, true
}

// TestRangesHoldKeys sees that no key that satisfies a condition is outside of its
// ranges, and no other key inside if the condition is about keys only.
func TestRangesHoldKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	alphabet := "\x00\x01 #ab\xff"
	random := func() string {
		b := make([]byte, r.IntN(4))
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return string(b)
	}
	number := func() int64 {
		if r.IntN(10) == 0 {
			return []int64{math.MinInt64, math.MaxInt64}[r.IntN(2)]
		}
		return int64(r.IntN(200) - 100)
	}
	field := func(e algebra.ValueEncoding) algebra.KeyField {
		f := algebra.KeyField{Name: "f", Type: types.BytesType, Encoding: e}
		if e == algebra.BigEndian || e == algebra.OrderedInt {
			f.Type = types.Int64Type
		}
		return f
	}
	schemas := []*algebra.KeySchema{
		{Encoding: algebra.OrderedCode, Fields: []algebra.KeyField{field(algebra.RawBytes), field(algebra.OrderedInt), field(algebra.RawBytes)}},
		{Encoding: algebra.OrderedCode, Fields: []algebra.KeyField{field(algebra.BigEndian), field(algebra.RawBytes)}},
		{Encoding: algebra.Delimited, Delimiter: "#", Fields: []algebra.KeyField{field(algebra.RawBytes), field(algebra.RawBytes), field(algebra.RawBytes)}},
		{Encoding: algebra.Delimited, Delimiter: "# ", Fields: []algebra.KeyField{field(algebra.RawBytes), field(algebra.RawBytes)}},
		{Encoding: algebra.Delimited, Delimiter: "##", Fields: []algebra.KeyField{field(algebra.RawBytes), field(algebra.RawBytes), field(algebra.RawBytes)}},
		{Encoding: algebra.Delimited, Delimiter: "ba", Fields: []algebra.KeyField{field(algebra.RawBytes), field(algebra.RawBytes)}},
		{Encoding: algebra.Delimited, Delimiter: "\xff\xff", Fields: []algebra.KeyField{field(algebra.RawBytes), field(algebra.RawBytes)}},
		{Fields: []algebra.KeyField{field(algebra.OrderedInt)}},
		{Fields: []algebra.KeyField{field(algebra.BigEndian)}},
	}
	value := func(k *algebra.KeySchema, f int) types.Value {
		if f >= 0 && k.Fields[f].Type.Kind == types.Int64 {
			return types.NewInt(number())
		}
		return types.NewString(random())
	}
	var condition func(k *algebra.KeySchema, depth int, keys bool) *algebra.KeyCondition
	condition = func(k *algebra.KeySchema, depth int, keys bool) *algebra.KeyCondition {
		if depth > 0 && r.IntN(2) == 0 {
			c := &algebra.KeyCondition{Op: algebra.KeyOp(r.IntN(2))}
			for range 1 + r.IntN(3) {
				c.Of = append(c.Of, condition(k, depth-1, keys))
			}
			return c
		}
		c := &algebra.KeyCondition{Op: algebra.KeyEqual + algebra.KeyOp(r.IntN(int(algebra.KeyPrefix-algebra.KeyEqual)+1)), Field: algebra.RowKey}
		if !keys && r.IntN(5) > 0 {
			c.Field = r.IntN(len(k.Fields))
			if c.Op == algebra.KeyPrefix && k.Fields[c.Field].Type.Kind == types.Int64 {
				c.Op = algebra.KeyEqual
			}
		}
		n := 1
		if c.Op == algebra.KeyIn {
			n = r.IntN(4)
		}
		for range n {
			v := value(k, c.Field)
			if r.IntN(20) == 0 {
				v = types.Null
			}
			c.Values = append(c.Values, lit(v))
		}
		return c
	}
	found := 0
	for _, k := range schemas {
		for i := range 600 {
			keys := i%4 == 0
			c := condition(k, 3, keys)
			list, err := ranges(k, c, literals)
			if err != nil {
				t.Fatal(err)
			}
			for range 60 {
				var fields []types.Value
				for f := range k.Fields {
					fields = append(fields, value(k, f))
				}
				key, ok := keyOf(k, fields)
				if !ok {
					continue
				}
				in := false
				for _, r := range list {
					in = in || r.Contains(key)
				}
				want := holds(k, c, key, fields)
				if want {
					found++
				}
				if want && !in || keys && in && !want {
					t.Fatalf("%s: key %q of %v: holds %v, in ranges %v: %s", conditionText(c), key, fields, want, in, plainRanges(list))
				}
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d keys satisfied their conditions", found)
	}
}
