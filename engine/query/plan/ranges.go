package plan

import (
	"bytes"
	"math"
	"regexp/syntax"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
)

// ranges returns the keys that can satisfy c: sorted and disjoint.
func ranges(k *algebra.KeySchema, c *algebra.KeyCondition, eval Eval) ([]row.Range, error) {
	switch {
	case c.Op == algebra.KeyOr:
		var out []row.Range
		for _, part := range c.Of {
			r, err := ranges(k, part, eval)
			if err != nil {
				return nil, err
			}
			out = append(out, r...)
		}
		return row.Union(out), nil
	case c.Op == algebra.KeyAnd:
		out := []row.Range{row.All}
		var fields []*algebra.KeyCondition
		for _, part := range c.Of {
			if part.Op > algebra.KeyOr && part.Field != algebra.RowKey {
				fields = append(fields, part)
				continue
			}
			r, err := ranges(k, part, eval)
			if err != nil {
				return nil, err
			}
			out = Intersect(out, r)
		}
		if len(fields) == 0 {
			return out, nil
		}
		r, err := fieldRanges(k, fields, eval)
		return Intersect(out, r), err
	case c.Field != algebra.RowKey:
		return fieldRanges(k, []*algebra.KeyCondition{c}, eval)
	}
	if c.Op == algebra.KeyEqual && len(c.Values) == 1 && !c.Array { // a point read
		v, err := eval(c.Values[0])
		if err != nil || !v.Valid {
			return nil, err
		}
		b := append(append(make([]byte, 0, len(v.Str)+1), v.Str...), 0)
		return []row.Range{{Start: b[:len(v.Str):len(v.Str)], End: b}}, nil
	}
	values, err := operands(c, eval)
	if err != nil {
		return nil, err
	}
	return row.Union(stringRanges(c.Op, values)), nil
}

// operands returns the values of the operands that are not NULL.
func operands(c *algebra.KeyCondition, eval Eval) ([]types.Value, error) {
	var out []types.Value
	for _, e := range c.Values {
		v, err := eval(e)
		switch {
		case err != nil:
			return nil, err
		case !v.Valid:
		case c.Array:
			for _, e := range v.List {
				if e.Valid {
					out = append(out, e)
				}
			}
		default:
			out = append(out, v)
		}
	}
	return out, nil
}

// Intersect returns what is in both lists, each sorted and disjoint.
func Intersect(a, b []row.Range) []row.Range {
	var out []row.Range
	for len(a) > 0 && len(b) > 0 {
		if r := a[0].Intersect(b[0]); !r.Empty() {
			out = append(out, r)
		}
		// The one that ends first can meet no other.
		if len(b[0].End) == 0 || len(a[0].End) > 0 && bytes.Compare(a[0].End, b[0].End) <= 0 {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// nothing is a Range that holds nothing.
var nothing = row.Range{Start: []byte{0}, End: []byte{0}}

// stringRanges returns the ranges of byte strings that satisfy an operation; perhaps
// more for a pattern.
func stringRanges(op algebra.KeyOp, values []types.Value) []row.Range {
	var out []row.Range
	for _, v := range values {
		s := []byte(v.Str)
		r := nothing
		switch op {
		case algebra.KeyEqual, algebra.KeyIn:
			r = row.Single(s)
		case algebra.KeyLess:
			if len(s) > 0 {
				r = row.Range{End: s}
			}
		case algebra.KeyLessOrEqual:
			r = row.Range{End: row.Successor(s)}
		case algebra.KeyGreater:
			r = row.Range{Start: row.Successor(s)}
		case algebra.KeyGreaterOrEqual:
			r = row.Range{Start: s}
		case algebra.KeyPrefix:
			r = row.Prefix(s)
		case algebra.KeyLike:
			prefix, rest := LikePrefix(v.Str)
			if r = row.Prefix([]byte(prefix)); rest == "" {
				r = row.Single([]byte(prefix))
			}
		case algebra.KeyRegexp:
			r = row.Prefix([]byte(regexpPrefix(v.Str)))
		}
		out = append(out, r)
	}
	return out
}

// LikePrefix returns the string that all values begin with that are LIKE pattern,
// and what of the pattern follows it.
func LikePrefix(pattern string) (prefix, rest string) {
	var b []byte
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '%', '_':
			return string(b), pattern[i:]
		case '\\':
			if i++; i == len(pattern) {
				return string(b), `\` // no valid pattern
			}
			b = append(b, pattern[i])
		default:
			b = append(b, c)
		}
	}
	return string(b), ""
}

// regexpPrefix returns the string that all values begin with that pattern matches
// somewhere. It understands patterns of ASCII only.
func regexpPrefix(pattern string) string {
	for i := range len(pattern) {
		if pattern[i] >= 0x80 {
			return ""
		}
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return ""
	}
	if re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	if re.Op != syntax.OpConcat || re.Sub[0].Op != syntax.OpBeginText {
		return ""
	}
	var out []byte
	for _, s := range re.Sub[1:] {
		if s.Op != syntax.OpLiteral || s.Flags&syntax.FoldCase != 0 {
			break
		}
		for _, c := range s.Rune {
			if c >= 0x80 {
				return string(out)
			}
			out = append(out, byte(c))
		}
	}
	return string(out)
}

// maxKeys bounds how many combinations of values of several fields become ranges of
// their own.
const maxKeys = 10_000

// fieldRanges returns the keys of which fields satisfy conds, all of them; perhaps
// more.
func fieldRanges(k *algebra.KeySchema, conds []*algebra.KeyCondition, eval Eval) ([]row.Range, error) {
	if k == nil {
		return []row.Range{row.All}, nil
	}
	// Values of the first fields that are known, one list for each combination.
	prefixes := [][][]byte{nil}
	for field := range k.Fields {
		of, err := partRanges(k, field, conds, eval)
		if err != nil {
			return nil, err
		}
		if len(of) == 0 {
			return nil, nil
		}
		single := len(prefixes)*len(of) <= maxKeys
		for _, r := range of {
			single = single && r.IsSingle()
		}
		if !single {
			var out []row.Range
			for _, p := range prefixes {
				for _, r := range of {
					out = append(out, keyRange(k, p, r))
				}
			}
			return row.Union(out), nil
		}
		next := make([][][]byte, 0, len(prefixes)*len(of))
		for _, p := range prefixes {
			for _, r := range of {
				next = append(next, append(p[:len(p):len(p)], r.Start))
			}
		}
		prefixes = next
	}
	var out []row.Range
	for _, p := range prefixes {
		out = append(out, row.Single(joinParts(k, p, true)))
	}
	return row.Union(out), nil
}

// partRanges returns the encoded values of a field that satisfy those of conds which
// are about it.
func partRanges(k *algebra.KeySchema, field int, conds []*algebra.KeyCondition, eval Eval) ([]row.Range, error) {
	out := []row.Range{row.All}
	f := &k.Fields[field]
	for _, c := range conds {
		if c.Field != field || f.Encoding == algebra.HexBytes {
			continue // digits of both cases are read, so a value has several encodings
		}
		values, err := operands(c, eval)
		if err != nil {
			return nil, err
		}
		if f.Encoding == algebra.BigEndian || f.Encoding == algebra.OrderedInt {
			out = Intersect(out, intRanges(f.Encoding, c.Op, values))
		} else {
			out = Intersect(out, row.Union(stringRanges(c.Op, values)))
		}
	}
	return out, nil
}

// intRanges is stringRanges for integers.
func intRanges(e algebra.ValueEncoding, op algebra.KeyOp, values []types.Value) []row.Range {
	k := &algebra.KeySchema{Fields: []algebra.KeyField{{Encoding: e}}}
	encode := func(n int64) []byte { b, _ := k.EncodeField(nil, 0, types.NewInt(n)); return b }
	var out []row.Range
	between := func(lo, hi int64) {
		if lo <= hi {
			out = append(out, row.Range{Start: encode(lo), End: row.Successor(encode(hi))})
		}
	}
	for _, v := range values {
		lo, hi := int64(math.MinInt64), int64(math.MaxInt64)
		switch op {
		case algebra.KeyEqual, algebra.KeyIn:
			out = append(out, row.Single(encode(v.Int)))
			continue
		case algebra.KeyLess:
			if v.Int == math.MinInt64 {
				continue
			}
			hi = v.Int - 1
		case algebra.KeyLessOrEqual:
			hi = v.Int
		case algebra.KeyGreater:
			if v.Int == math.MaxInt64 {
				continue
			}
			lo = v.Int + 1
		case algebra.KeyGreaterOrEqual:
			lo = v.Int
		default:
			return []row.Range{row.All}
		}
		if e == algebra.BigEndian {
			// Two's complement: negative numbers sort behind the others.
			between(max(lo, 0), hi)
			between(lo, min(hi, -1))
		} else {
			between(lo, hi)
		}
	}
	return row.Union(out)
}

// joinParts returns the encoded fields joined. whole says that they are all fields of
// a key.
func joinParts(k *algebra.KeySchema, parts [][]byte, whole bool) []byte {
	var out []byte
	switch k.Encoding {
	case algebra.Delimited:
		return bytes.Join(parts, []byte(k.Delimiter))
	case algebra.OrderedCode:
		if whole {
			n := len(parts)
			for n > 1 && len(parts[n-1]) == 0 {
				n--
			}
			parts = parts[:n]
		}
		for i, p := range parts {
			if i > 0 {
				out = append(out, 0, 1)
			}
			if len(p) == 0 {
				out = append(out, 0, 0)
			}
			out = algebra.AppendOrderedEscape(out, p)
		}
		return out
	}
	return append(out, parts[0]...)
}

// keyRange returns a range that holds all keys that begin with the fields of prefix,
// and whose next field is in part.
func keyRange(k *algebra.KeySchema, prefix [][]byte, part row.Range) row.Range {
	if k.Encoding == algebra.Singleton {
		return part
	}
	head := joinParts(k, prefix, false)
	separator := []byte{0, 1}
	if k.Encoding == algebra.Delimited {
		separator = []byte(k.Delimiter)
	}
	out := row.Range{}
	start := head
	if len(prefix) > 0 {
		start = append(head[:len(head):len(head)], separator...)
		out = row.Prefix(start)
	}
	if k.Encoding == algebra.OrderedCode {
		if len(part.Start) > 0 {
			out.Start = algebra.AppendOrderedEscape(start[:len(start):len(start)], part.Start)
		} else if len(prefix) > 0 {
			// Empty fields at the end are left out.
			out.Start = joinParts(k, prefix, true)
		}
		if len(part.End) > 0 {
			out.End = algebra.AppendOrderedEscape(start[:len(start):len(start)], part.End)
		}
		return out
	}
	out.Start = append(start[:len(start):len(start)], part.Start...)
	if len(part.End) > 0 {
		end := append(start[:len(start):len(start)], part.End...)
		out.End = end
		// Of fields that are a prefix of the end the whole key can be behind it, as the
		// delimiter follows. None of them has a delimiter in it, and longer ones than the
		// first by more than a delimiter sort before that one.
		last := len(end)
		for i := len(start); i < last; i++ {
			if bytes.Compare(end[i:], separator) > 0 && !bytes.HasPrefix(end[i:], separator) {
				continue
			}
			last = min(last, i+len(separator))
			behind := row.Prefix(append(end[:i:i], separator...)).End
			if len(behind) == 0 || len(out.End) > 0 && bytes.Compare(behind, out.End) > 0 {
				out.End = behind
			}
		}
	}
	return out
}
