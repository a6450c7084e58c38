package functions

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/varint"
)

// The first byte of a state says how the rest is written. A form that changes gets
// a new number, so that servers of two versions refuse each other's states instead of
// misreading them.
const (
	formCount byte = iota + 1
	formSumInt
	formSumFloat
	formMinMaxInt
	formMinMaxFloat
	formMinMaxString
	formAnyValue
	formArray
	formConcat
	formString
	formBits
	formBitsBytes
	formMoments
	formHLL
	formQuantiles
	formTop
	formMinMaxList
)

// cells are the states of all groups. Each function whose states are of fixed size
// has one type of cells, from which come both its Grouped and, with one group, its
// Accumulator.
type cells interface {
	Grouped
	addRow(group int, args []types.Value) error
	value(group int) (types.Value, error)
}

// removable are cells of functions that have an inverse.
type removable interface {
	cells
	removeRow(group int, args []types.Value)
}

// single is an Accumulator made of cells of one group.
type single struct{ cells cells }

func newSingle(c cells) Accumulator {
	c.Resize(1)
	if r, ok := c.(removable); ok {
		return &singleRemover{single{c}, r}
	}
	return &single{c}
}

func (s *single) Add(args []types.Value) error  { return s.cells.addRow(0, args) }
func (s *single) Result() (types.Value, error)  { return s.cells.value(0) }
func (s *single) AppendState(dst []byte) []byte { return s.cells.AppendState(0, dst) }
func (s *single) MergeState(state []byte) error { return s.cells.MergeState(0, state) }
func (s *single) Size() int                     { return 64 + s.cells.Size() }

// singleRemover is a single whose cells have an inverse.
type singleRemover struct {
	single
	r removable
}

func (s *singleRemover) Remove(args []types.Value) error {
	s.r.removeRow(0, args)
	return nil
}

// grouped makes New and Grouped of a signature out of a maker of cells.
func grouped(s *Signature, make func(c *Call) cells) *Signature {
	s.New = func(c *Call) Accumulator { return newSingle(make(c)) }
	s.Grouped = func(c *Call) Grouped { return make(c) }
	return s
}

// givenArg tells whether a call has argument i, which is optional.
func givenArg(c *Call, i int) bool { return i < len(c.Types) && c.Types[i] != nil }

// oneGroup are the groups of rows that are all in group 0.
var oneGroup [types.BatchRows]int32

// groupsOf returns groups, or as many zeros as there are rows if it is nil, and
// the number of rows.
func groupsOf(groups, sel []int32, n int) ([]int32, int) {
	if sel != nil {
		n = len(sel)
	}
	switch {
	case groups != nil:
		return groups[:n], n
	case n <= len(oneGroup):
		return oneGroup[:n], n
	}
	return make([]int32, n), n
}

// addConst adds rows with the same arguments: those of vectors that are all
// constant.
func addConst(c cells, groups []int32, args []*types.Vector) error {
	row := make([]types.Value, len(args))
	for i, a := range args {
		row[i] = a.Value(0)
		if !row[i].Valid {
			return nil
		}
	}
	for _, g := range groups {
		if err := c.addRow(int(g), row); err != nil {
			return err
		}
	}
	return nil
}

// resizeCells returns s with room for n cells.
func resizeCells[T any](s []T, n int) []T {
	if n <= len(s) {
		return s
	}
	if n <= cap(s) {
		return s[:n]
	}
	grown := make([]T, n, max(n, 2*cap(s)))
	copy(grown, s)
	return grown
}

// cellResults fills out with the values of cells, for cells that have no faster way.
func cellResults(c cells, first int, out *types.Vector, n int) error {
	out.Resize(n)
	for i := range n {
		v, err := c.value(first + i)
		if err != nil {
			return err
		}
		out.Set(i, v)
	}
	return nil
}

// A stateReader reads a state. What is not there is zero, and done reports it.
type stateReader struct{ varint.Decoder }

// readState returns a reader of what follows the first byte, which must be form.
func readState(state []byte, form byte) *stateReader {
	if len(state) == 0 || state[0] != form {
		r := new(stateReader)
		r.Fail()
		return r
	}
	return &stateReader{varint.Of(state[1:])}
}

// count reads a number of rows: one that is not negative as an int64, and small enough
// that sums of such numbers do not overflow.
func (r *stateReader) count() int64 {
	v := r.Uvarint()
	if v > 1<<62 {
		r.Fail()
		return 0
	}
	return int64(v)
}

func (r *stateReader) float() float64 { return math.Float64frombits(r.Uint64LE()) }

// finite reads a float that is neither infinite nor NaN.
func (r *stateReader) finite() float64 {
	f := r.float()
	if f-f != 0 {
		r.Fail()
		return 0
	}
	return f
}

// value reads a value of type t that appendStateValue wrote. It shares nothing with the
// state.
func (r *stateReader) value(t *types.Type) types.Value {
	if !r.Bool() {
		return types.Null
	}
	switch t.Kind {
	case types.Float32, types.Float64:
		f := r.float()
		if t.Kind == types.Float32 && f == f {
			f = float64(float32(f))
		}
		return types.NewFloat(f)
	case types.String, types.Bytes, types.Proto:
		b := r.Bytes()
		if t.Kind == types.String && !utf8.Valid(b) {
			r.Fail()
		}
		return types.NewString(string(b))
	case types.Array, types.Struct, types.Map:
		n := r.Count()
		if t.Kind == types.Struct && n != len(t.Fields) || t.Kind == types.Map && n%2 != 0 {
			r.Fail()
			return types.Null
		}
		// An element takes 64 bytes where a byte of the state may stand for it: the list
		// grows as they come.
		list := make([]types.Value, 0, min(n, 64))
		for i := 0; i < n && !r.Bad(); i++ {
			list = append(list, r.value(typeOfElement(t, i)))
		}
		return types.NewList(list)
	case types.Bool:
		return types.NewBool(r.Bool())
	}
	return types.NewInt(r.Varint())
}

// done returns an error if anything was not there, wrong, or left over.
func (r *stateReader) done(function string) error {
	if r.Bad() || r.Len() > 0 {
		return fault.New(fault.Invalid, "a state of %s is malformed", function)
	}
	return nil
}

// appendStateValue appends a value of type t.
func appendStateValue(dst []byte, t *types.Type, v types.Value) []byte {
	if !v.Valid {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	switch t.Kind {
	case types.Float32, types.Float64:
		return appendStateFloat(dst, v.Float)
	case types.String, types.Bytes, types.Proto:
		dst = binary.AppendUvarint(dst, uint64(len(v.Str)))
		return append(dst, v.Str...)
	case types.Array, types.Struct, types.Map:
		dst = binary.AppendUvarint(dst, uint64(len(v.List)))
		for i, e := range v.List {
			dst = appendStateValue(dst, typeOfElement(t, i), e)
		}
		return dst
	case types.Bool:
		return append(dst, byte(v.Int))
	}
	return binary.AppendVarint(dst, v.Int)
}

func appendStateFloat(dst []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(f))
}

// typeOfElement returns the type of element i of a list of type t.
func typeOfElement(t *types.Type, i int) *types.Type {
	switch {
	case t.Kind == types.Struct:
		return t.Fields[i].Type
	case t.Kind == types.Map && i%2 == 0:
		return t.Key
	}
	return t.Elem
}

// sizeOfValue returns about how many bytes of memory v takes.
func sizeOfValue(v types.Value) int {
	n := 64 + len(v.Str)
	for _, e := range v.List {
		n += sizeOfValue(e)
	}
	return n
}
