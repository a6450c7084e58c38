package fragment

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"sync"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// version is that of the form. A reader refuses others.
const version = 1

// The operators, from the Scan upwards; opEnd is the last.
const (
	opEnd = iota
	opFilter
	opProject
	opKeep
	opAggregate
	opTop
)

// The expressions.
const (
	exprNone = iota
	exprLiteral
	exprColumn
	exprCall
	exprLambda
	exprCast
	exprField
	exprStruct
	exprArray
)

// maxTop is how many rows of an order a fragment gives at most.
const maxTop = 10_000

// MaxBytes is the length of the longest fragment.
const MaxBytes = 1 << 20

// functionTable is what a fragment says of functions: names in order, and for each its
// number.
var functionTable = sync.OnceValue(func() (t struct {
	list        []*functions.Function
	number      map[*functions.Function]int
	fingerprint uint64
}) {
	seen := map[*functions.Function]bool{}
	for _, f := range functions.All {
		if !seen[f] {
			seen[f] = true
			t.list = append(t.list, f)
		}
	}
	slices.SortFunc(t.list, func(a, b *functions.Function) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	h := fnv.New64a()
	t.number = map[*functions.Function]int{}
	var b []byte
	for i, f := range t.list {
		t.number[f] = i
		b = append(append(b[:0], f.Name...), 0, byte(len(f.Signatures)))
		for _, s := range f.Signatures {
			b = append(b, byte(len(s.Args)))
		}
		_, _ = h.Write(b)
	}
	t.fingerprint = h.Sum64()
	return t
})

// An encoder writes a fragment.
type encoder struct {
	b      []byte
	params map[string]types.Value
	// known are the columns that there are inside.
	known map[algebra.ColumnID]bool
	bad   bool
}

// Append appends the fragment with the values of parameters. ok is false if it cannot
// be sent: it has subqueries or protocol buffers, refers to rows around, or is too long.
func (f *Fragment) Append(dst []byte, params map[string]types.Value) (out []byte, ok bool) {
	e := &encoder{b: dst, params: params, known: map[algebra.ColumnID]bool{}}
	e.b = append(e.b, version)
	e.b = binary.LittleEndian.AppendUint64(e.b, functionTable().fingerprint)
	e.int(f.Now)
	e.scan(f.Scan)
	e.rel(f.Rel)
	e.b = append(e.b, opEnd)
	return e.b, !e.bad && len(e.b)-len(dst) <= MaxBytes
}

func (e *encoder) fail()         { e.bad = true }
func (e *encoder) int(n int64)   { e.b = binary.AppendVarint(e.b, n) }
func (e *encoder) count(n int)   { e.b = binary.AppendUvarint(e.b, uint64(n)) }
func (e *encoder) text(s string) { e.count(len(s)); e.b = append(e.b, s...) }
func (e *encoder) flags(list ...bool) {
	var b byte
	for i, f := range list {
		if f {
			b |= 1 << i
		}
	}
	e.b = append(e.b, b)
}

func (e *encoder) scan(s *algebra.Scan) {
	h := s.History
	e.flags(h != nil, h != nil && h.WithHistory, h != nil && h.Unpack, s.Table.Key != nil)
	if k := s.Table.Key; k != nil {
		e.b = append(e.b, byte(k.Encoding))
		e.text(k.Delimiter)
		e.count(len(k.Fields))
		for _, f := range k.Fields {
			e.text(f.Name)
			e.b = append(e.b, byte(f.Encoding))
			e.typ(f.Type)
		}
	}
	e.count(len(s.Uses))
	for i := range s.Uses {
		u := &s.Uses[i]
		e.column(u.Column)
		e.flags(u.Index >= 0, u.Existence, u.WriteTime, u.Qualifier != nil)
		if u.Index >= 0 {
			c := &s.Table.Columns[u.Index]
			e.b = append(e.b, byte(c.Kind))
			e.text(c.Family)
			e.count(c.Field)
			e.typ(c.Type)
		}
		if u.Qualifier != nil {
			e.text(*u.Qualifier)
		}
	}
}

func (e *encoder) column(c algebra.Column) {
	e.known[c.ID] = true
	e.int(int64(c.ID))
	e.text(c.Name)
	e.typ(c.Type)
}

func (e *encoder) typ(t *types.Type) {
	e.b = append(e.b, byte(t.Kind))
	switch t.Kind {
	case types.Array:
		e.typ(t.Elem)
	case types.Map:
		e.typ(t.Key)
		e.typ(t.Elem)
	case types.Struct:
		e.count(len(t.Fields))
		for _, f := range t.Fields {
			e.text(f.Name)
			e.typ(f.Type)
		}
	case types.Proto, types.Enum, types.Invalid:
		e.fail()
	}
}

func (e *encoder) value(t *types.Type, v types.Value) {
	if !v.Valid {
		e.b = append(e.b, 0)
		return
	}
	e.b = append(e.b, 1)
	switch t.Kind {
	case types.Float32, types.Float64:
		e.b = binary.LittleEndian.AppendUint64(e.b, math.Float64bits(v.Float))
	case types.String, types.Bytes:
		e.text(v.Str)
	case types.Array, types.Struct, types.Map:
		e.count(len(v.List))
		for i, x := range v.List {
			e.value(part(t, i), x)
		}
	case types.Proto, types.Enum, types.Invalid:
		e.fail()
	default:
		e.int(v.Int)
	}
	if len(e.b) > MaxBytes {
		e.fail()
	}
}

// part returns the type of the i'th part of a list of type t.
func part(t *types.Type, i int) *types.Type {
	switch t.Kind {
	case types.Struct:
		return t.Fields[i].Type
	case types.Map:
		if i%2 == 0 {
			return t.Key
		}
	}
	return t.Elem
}

func (e *encoder) rel(r algebra.Rel) {
	switch r := r.(type) {
	case *algebra.Scan:
	case *algebra.Filter:
		e.rel(r.Input)
		e.b = append(e.b, opFilter)
		e.expr(r.Cond)
	case *algebra.Project:
		e.rel(r.Input)
		e.b = append(e.b, opProject)
		e.computed(r.Computed)
	case *algebra.Keep:
		e.rel(r.Input)
		e.b = append(e.b, opKeep)
		e.count(len(r.Cols))
		for _, c := range r.Cols {
			e.column(c)
		}
	case *algebra.Aggregate:
		e.rel(r.Input)
		e.b = append(e.b, opAggregate)
		e.computed(r.Keys)
		e.count(len(r.Aggs))
		for i := range r.Aggs {
			e.aggregate(&r.Aggs[i])
		}
	case *algebra.Limit:
		s, ok := r.Input.(*algebra.Sort)
		if !ok {
			e.fail()
			return
		}
		e.rel(s.Input)
		e.b = append(e.b, opTop)
		e.count(len(s.Keys))
		for _, k := range s.Keys {
			e.flags(k.Descending, k.NullsLast)
			e.expr(k.Expr)
		}
		n := e.constant(r.Count)
		if r.Offset != nil {
			n += e.constant(r.Offset)
		}
		if n < 1 || n > maxTop {
			e.fail()
			return
		}
		e.count(int(n))
	default:
		e.fail()
	}
}

// constant returns a number of a LIMIT that can be sent: others are for its operator to
// refuse.
func (e *encoder) constant(x algebra.Expr) int64 {
	var v types.Value
	switch x := x.(type) {
	case *algebra.Literal:
		v = x.Value
	case *algebra.Param:
		v = e.params[x.Name]
	}
	if !v.Valid || v.Int < 0 || v.Int > maxTop {
		e.fail()
		return 0
	}
	return v.Int
}

func (e *encoder) computed(list []algebra.Computed) {
	e.count(len(list))
	for _, c := range list {
		e.expr(c.Expr)
		e.column(c.Column)
	}
}

func (e *encoder) function(f *functions.Function, s *functions.Signature) {
	n, ok := functionTable().number[f]
	if !ok || f.Volatile {
		e.fail()
	}
	e.count(n)
	i := slices.Index(f.Signatures, s)
	if i < 0 {
		e.fail()
		i = 0
	}
	e.count(i)
}

func (e *encoder) aggregate(c *algebra.AggregateCall) {
	e.function(c.Function, c.Signature)
	e.flags(c.Distinct, c.IgnoreNulls, c.Safe, c.Deferred)
	e.exprs(c.Args)
	e.expr(c.Where)
	e.column(c.Column)
}

func (e *encoder) exprs(list []algebra.Expr) {
	e.count(len(list))
	for _, x := range list {
		e.expr(x)
	}
}

func (e *encoder) expr(x algebra.Expr) {
	if e.bad || len(e.b) > MaxBytes {
		e.fail()
		return
	}
	switch x := x.(type) {
	case nil:
		e.b = append(e.b, exprNone)
	case *algebra.Literal:
		e.literal(x.T, x.Value)
	case *algebra.Param:
		v, ok := e.params[x.Name]
		if !ok {
			e.fail()
		}
		e.literal(x.T, v)
	case *algebra.ColumnRef:
		if !e.known[x.ID] {
			e.fail()
		}
		e.b = append(e.b, exprColumn)
		e.int(int64(x.ID))
		e.typ(x.Column.Type)
	case *algebra.Call:
		e.b = append(e.b, exprCall)
		e.function(x.Function, x.Signature)
		e.flags(x.Safe)
		e.typ(x.T)
		e.exprs(x.Args)
	case *algebra.Lambda:
		e.b = append(e.b, exprLambda)
		e.count(len(x.Params))
		for _, p := range x.Params {
			e.column(p)
		}
		e.expr(x.Body)
	case *algebra.Cast:
		e.b = append(e.b, exprCast)
		e.flags(x.Safe)
		e.typ(x.T)
		e.expr(x.X)
		e.expr(x.Format)
		e.expr(x.Zone)
	case *algebra.GetField:
		e.b = append(e.b, exprField)
		e.count(x.Index)
		e.typ(x.T)
		e.expr(x.X)
	case *algebra.MakeStruct:
		e.b = append(e.b, exprStruct)
		e.typ(x.T)
		e.exprs(x.Fields)
	case *algebra.MakeArray:
		e.b = append(e.b, exprArray)
		e.typ(x.T)
		e.exprs(x.Elems)
	default:
		e.fail()
	}
}

func (e *encoder) literal(t *types.Type, v types.Value) {
	e.b = append(e.b, exprLiteral)
	e.typ(t)
	e.value(t, v)
}
