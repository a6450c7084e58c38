package fragment

import (
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/varint"
)

// maxDepth bounds how deeply expressions, types and values nest.
const maxDepth = 200

// Decode returns the fragment that b is. It is Unimplemented of another version, or of
// another table of functions: rows are to be given instead. Otherwise the error is
// Invalid.
func Decode(b []byte) (*Fragment, error) {
	if len(b) > MaxBytes || len(b) < 9 {
		return nil, errMalformed
	}
	if b[0] != version || binary.LittleEndian.Uint64(b[1:]) != functionTable().fingerprint {
		return nil, fault.New(fault.Unimplemented, "the fragment of a query is of another version")
	}
	d := &decoder{Decoder: varint.Of(b[9:]), known: map[algebra.ColumnID]*types.Type{}}
	f := &Fragment{Now: d.Varint()}
	f.Scan = d.scan()
	f.Rel = d.rel(f.Scan)
	if d.Bad() || d.Len() > 0 {
		return nil, errMalformed
	}
	return f, nil
}

var errMalformed = fault.New(fault.Invalid, "the fragment of a query is malformed")

type decoder struct {
	varint.Decoder
	depth int
	known map[algebra.ColumnID]*types.Type
}

// number reads a number that is no length.
func (d *decoder) number() int { return int(d.UvarintMax(math.MaxInt32)) }

func (d *decoder) text() string { return string(d.Bytes()) }

func (d *decoder) enter() bool {
	if d.depth++; d.depth > maxDepth {
		d.Fail()
	}
	return !d.Bad()
}

func (d *decoder) leave() { d.depth-- }

func (d *decoder) scan() *algebra.Scan {
	t := &algebra.Table{Name: "fragment"}
	s := &algebra.Scan{Table: t}
	flags := d.Byte()
	if flags&1 != 0 {
		s.History = &algebra.History{WithHistory: flags&2 != 0, Unpack: flags&4 != 0}
	}
	if flags&8 != 0 {
		k := &algebra.KeySchema{Encoding: algebra.KeyEncoding(d.Byte()), Delimiter: d.text()}
		for range d.Count() {
			f := algebra.KeyField{Name: d.text(), Encoding: algebra.ValueEncoding(d.Byte())}
			if f.Type = d.typ(); f.Encoding > algebra.HexBytes {
				d.Fail()
			}
			k.Fields = append(k.Fields, f)
		}
		if k.Encoding > algebra.OrderedCode || len(k.Fields) == 0 || k.Encoding == algebra.Delimited && k.Delimiter == "" {
			d.Fail()
		}
		t.Key = k
	}
	for range d.Count() {
		if d.Bad() {
			break
		}
		u := algebra.ScanColumn{Column: d.column(), Index: algebra.TimestampColumn}
		flags := d.Byte()
		u.Existence, u.WriteTime = flags&2 != 0, flags&4 != 0
		if flags&1 != 0 {
			u.Index = len(t.Columns)
			c := algebra.TableColumn{Kind: algebra.ColumnKind(d.Byte()), Family: d.text(), Field: d.number(), Type: d.typ()}
			t.Columns = append(t.Columns, c)
		}
		if flags&8 != 0 {
			q := d.text()
			u.Qualifier = &q
		}
		if !d.Bad() && !fits(s, &u) {
			d.Fail()
		}
		s.Uses = append(s.Uses, u)
	}
	return s
}

// fits tells whether the column u can be made as its type says.
func fits(s *algebra.Scan, u *algebra.ScanColumn) bool {
	kind := u.Type.Kind
	if u.Index < 0 {
		return kind == types.Timestamp && u.Qualifier == nil
	}
	c := &s.Table.Columns[u.Index]
	history := s.History != nil && s.History.WithHistory && !s.History.Unpack
	value := func(t *types.Type) bool {
		return t.Kind == types.Bytes || t.Kind == types.String || t.Kind == types.Int64
	}
	versions := func(t *types.Type) bool {
		return t.Kind == types.Array && t.Elem.Kind == types.Struct && len(t.Elem.Fields) == 2 && value(t.Elem.Fields[1].Type)
	}
	switch c.Kind {
	case algebra.RowKeyColumn:
		return kind == types.Bytes
	case algebra.KeyColumn:
		return s.Table.Key != nil && c.Field < len(s.Table.Key.Fields) && s.Table.Key.Fields[c.Field].Type.Equal(u.Type)
	case algebra.FamilyColumn:
		switch {
		case u.Qualifier != nil && u.WriteTime:
			return kind == types.Timestamp
		case u.Qualifier != nil && history:
			return versions(u.Type)
		case u.Qualifier != nil:
			return value(u.Type)
		case kind != types.Map || u.Type.Key.Kind != types.Bytes:
			return false
		case history:
			return versions(u.Type.Elem)
		}
		return value(u.Type.Elem)
	}
	return false
}

func (d *decoder) column() algebra.Column {
	c := algebra.Column{ID: algebra.ColumnID(d.Varint()), Name: d.text(), Type: d.typ()}
	d.known[c.ID] = c.Type
	return c
}

func (d *decoder) typ() *types.Type {
	if !d.enter() {
		return types.BoolType
	}
	defer d.leave()
	switch k := types.Kind(d.Byte()); k {
	case types.Bool:
		return types.BoolType
	case types.Int64:
		return types.Int64Type
	case types.Float32:
		return types.Float32Type
	case types.Float64:
		return types.Float64Type
	case types.String:
		return types.StringType
	case types.Bytes:
		return types.BytesType
	case types.Date:
		return types.DateType
	case types.Timestamp:
		return types.TimestampType
	case types.Array:
		return types.ArrayOf(d.typ())
	case types.Map:
		key := d.typ()
		return types.MapOf(key, d.typ())
	case types.Struct:
		t := &types.Type{Kind: types.Struct}
		for range d.Count() {
			if d.Bad() {
				break
			}
			t.Fields = append(t.Fields, types.Field{Name: d.text(), Type: d.typ()})
		}
		return t
	}
	d.Fail()
	return types.BoolType
}

func (d *decoder) value(t *types.Type) types.Value {
	if !d.enter() {
		return types.Null
	}
	defer d.leave()
	switch d.Byte() {
	case 0:
		return types.Null
	case 1:
	default:
		d.Fail()
		return types.Null
	}
	switch t.Kind {
	case types.Float32, types.Float64:
		return types.NewFloat(math.Float64frombits(d.Uint64LE()))
	case types.String, types.Bytes:
		return types.NewString(d.text())
	case types.Array, types.Struct, types.Map:
		n := d.Count()
		if t.Kind == types.Struct && n != len(t.Fields) || t.Kind == types.Map && n%2 != 0 {
			d.Fail()
			return types.Null
		}
		list := make([]types.Value, 0, min(n, 1024))
		for i := range n {
			if d.Bad() {
				return types.Null
			}
			list = append(list, d.value(part(t, i)))
		}
		return types.NewList(list)
	}
	return types.NewInt(d.Varint())
}

func (d *decoder) rel(s *algebra.Scan) algebra.Rel {
	var r algebra.Rel = s
	for !d.Bad() {
		switch d.Byte() {
		case opEnd:
			return r
		case opFilter:
			f := &algebra.Filter{Input: r, Cond: d.expr()}
			if f.Cond == nil || f.Cond.Type().Kind != types.Bool {
				d.Fail()
			}
			r = f
		case opProject:
			r = &algebra.Project{Input: r, Computed: d.computed()}
		case opKeep:
			k := &algebra.Keep{Input: r}
			there := map[algebra.ColumnID]bool{}
			for _, c := range r.Columns() {
				there[c.ID] = true
			}
			for range d.Count() {
				c := d.column()
				if d.Bad() || !there[c.ID] {
					d.Fail()
					break
				}
				k.Cols = append(k.Cols, c)
			}
			r = k
		case opAggregate:
			a := &algebra.Aggregate{Input: r, Keys: d.computed()}
			for range d.Count() {
				c := d.aggregate()
				if d.Bad() {
					break
				}
				a.Aggs = append(a.Aggs, c)
			}
			if d.Byte() != opEnd {
				d.Fail()
			}
			return a
		case opTop:
			s := &algebra.Sort{Input: r}
			for range d.Count() {
				flags := d.Byte()
				k := algebra.SortKey{Descending: flags&1 != 0, NullsLast: flags&2 != 0, Expr: d.some()}
				if d.Bad() || !k.Expr.Type().SupportsOrder() {
					d.Fail()
					break
				}
				s.Keys = append(s.Keys, k)
			}
			n := d.number()
			if n < 1 || n > maxTop || d.Byte() != opEnd {
				d.Fail()
			}
			return &algebra.Limit{Input: s, Count: &algebra.Literal{T: types.Int64Type, Value: types.NewInt(int64(n))}}
		default:
			d.Fail()
		}
	}
	return r
}

func (d *decoder) computed() []algebra.Computed {
	var out []algebra.Computed
	for range d.Count() {
		x := d.expr()
		c := algebra.Computed{Expr: x, Column: d.column()}
		if d.Bad() || x == nil || !x.Type().Equal(c.Type) {
			d.Fail()
			break
		}
		out = append(out, c)
	}
	return out
}

// function reads a function, its signature, and how many arguments that takes.
func (d *decoder) function(kinds ...functions.Kind) (*functions.Function, *functions.Signature) {
	n, i := d.number(), d.number()
	list := functionTable().list
	if d.Bad() || n >= len(list) || i >= len(list[n].Signatures) {
		d.Fail()
		return nil, nil
	}
	f := list[n]
	ok := false
	for _, k := range kinds {
		ok = ok || f.Kind == k
	}
	if !ok || f.Volatile {
		d.Fail()
		return nil, nil
	}
	return f, f.Signatures[i]
}

// arity tells whether a signature takes n arguments.
func arity(s *functions.Signature, n int) bool {
	least, repeated := 0, false
	for _, a := range s.Args {
		switch {
		case a.Repeated:
			repeated = true
		case !a.Optional:
			least++
		}
	}
	return n >= least && (repeated || n <= len(s.Args))
}

func (d *decoder) aggregate() algebra.AggregateCall {
	c := algebra.AggregateCall{}
	c.Function, c.Signature = d.function(functions.Aggregate)
	flags := d.Byte()
	c.Distinct, c.IgnoreNulls, c.Safe, c.Deferred = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	c.Args, c.Where = d.exprs(), d.expr()
	c.Column = d.column()
	if d.Bad() || !arity(c.Signature, len(c.Args)) || !partial(&c) || c.Where != nil && c.Where.Type().Kind != types.Bool {
		d.Fail()
	}
	return c
}

func (d *decoder) exprs() []algebra.Expr {
	n := d.Count()
	var out []algebra.Expr
	for range n {
		if d.Bad() {
			return nil
		}
		out = append(out, d.expr())
	}
	return out
}

// some is expr for an expression that has to be there.
func (d *decoder) some() algebra.Expr {
	x := d.expr()
	if x == nil {
		d.Fail()
		return &algebra.Literal{T: types.BoolType}
	}
	return x
}

func (d *decoder) expr() algebra.Expr {
	if !d.enter() {
		return nil
	}
	defer d.leave()
	switch d.Byte() {
	case exprNone:
		return nil
	case exprLiteral:
		t := d.typ()
		return &algebra.Literal{T: t, Value: d.value(t)}
	case exprColumn:
		c := algebra.Column{ID: algebra.ColumnID(d.Varint()), Type: d.typ()}
		if t := d.known[c.ID]; t == nil || !t.Equal(c.Type) {
			d.Fail()
		}
		return &algebra.ColumnRef{Column: c}
	case exprCall:
		c := &algebra.Call{}
		c.Function, c.Signature = d.function(functions.Scalar, functions.Lazy)
		c.Safe = d.Byte()&1 != 0
		c.T, c.Args = d.typ(), d.exprs()
		if !d.Bad() && !arity(c.Signature, len(c.Args)) {
			d.Fail()
		}
		return c
	case exprLambda:
		l := &algebra.Lambda{}
		for range d.Count() {
			if d.Bad() {
				break
			}
			l.Params = append(l.Params, d.column())
		}
		l.Body = d.some()
		return l
	case exprCast:
		c := &algebra.Cast{Safe: d.Byte()&1 != 0, T: d.typ()}
		c.X, c.Format, c.Zone = d.some(), d.expr(), d.expr()
		return c
	case exprField:
		f := &algebra.GetField{Index: d.number(), T: d.typ()}
		f.X = d.some()
		if t := f.X.Type(); t.Kind != types.Struct || f.Index >= len(t.Fields) {
			d.Fail()
		}
		return f
	case exprStruct:
		s := &algebra.MakeStruct{T: d.typ(), Fields: d.exprs()}
		if s.T.Kind != types.Struct || len(s.Fields) != len(s.T.Fields) {
			d.Fail()
		}
		return s
	case exprArray:
		a := &algebra.MakeArray{T: d.typ(), Elems: d.exprs()}
		if a.T.Kind != types.Array {
			d.Fail()
		}
		return a
	}
	d.Fail()
	return nil
}
