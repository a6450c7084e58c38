package exec

import (
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// A scope says where the columns that an expression names are found: in a slot of
// the batch, in a variable of WITH(…), or in the rows around.
type scope struct {
	x     *execution
	slots slotList
	lets  map[algebra.ColumnID]*letVar
	outer *frame
}

// slotList has the number of the column of each slot.
type slotList struct {
	ids  []algebra.ColumnID
	byID map[algebra.ColumnID]int // of many
}

// fewSlots is how many numbers are looked through faster than a map is made.
const fewSlots = 24

func (l *slotList) add(id algebra.ColumnID) {
	if l.ids = append(l.ids, id); l.byID != nil {
		l.byID[id] = len(l.ids) - 1
	}
}

// of returns the slot of a column.
func (l *slotList) of(id algebra.ColumnID) (int, bool) {
	if len(l.ids) <= fewSlots {
		for i, x := range l.ids {
			if x == id {
				return i, true
			}
		}
		return 0, false
	}
	if l.byID == nil {
		l.byID = make(map[algebra.ColumnID]int, len(l.ids))
		for i, x := range l.ids {
			l.byID[x] = i
		}
	}
	i, ok := l.byID[id]
	return i, ok
}

func newScope(x *execution, cols []algebra.Column, outer *frame) *scope {
	s := &scope{x: x, outer: outer}
	if len(cols) > 0 {
		s.slots.ids = make([]algebra.ColumnID, len(cols), len(cols)+4)
		for i, c := range cols {
			s.slots.ids[i] = c.ID
		}
	}
	return s
}

// resolve returns the evaluator of a column.
func (s *scope) resolve(c algebra.Column) (evaluator, error) {
	if i, ok := s.slots.of(c.ID); ok {
		return slotRef(i), nil
	}
	if v, ok := s.lets[c.ID]; ok {
		return v, nil
	}
	if s.outer != nil {
		return s.outer.resolve(c)
	}
	return nil, fault.New(fault.Internal, "column %d (%s) is not there", c.ID, c.Name)
}

// A frame holds the values of one row for what is evaluated many times inside of
// it: a subquery, the right side of a lateral join, the body of a lambda.
type frame struct {
	// around is where captured columns are computed; nil if there is nothing around.
	around *scope
	vars   map[algebra.ColumnID]*types.Vector
	// captured are the columns of around that are used inside, found while the inside is
	// built.
	captured []capture
}

type capture struct {
	in  evaluator
	out *types.Vector
	now *types.Vector
}

func newFrame(around *scope) *frame {
	return &frame{around: around, vars: map[algebra.ColumnID]*types.Vector{}}
}

// define adds a variable, whose value the caller sets.
func (f *frame) define(c algebra.Column) *types.Vector {
	v := types.NewConst(c.Type, types.Null)
	f.vars[c.ID] = v
	return v
}

func (f *frame) resolve(c algebra.Column) (evaluator, error) {
	if v := f.vars[c.ID]; v != nil {
		return constant{v}, nil
	}
	if f.around == nil {
		return nil, fault.New(fault.Internal, "column %d (%s) is not there", c.ID, c.Name)
	}
	in, err := f.around.resolve(c)
	if err != nil {
		return nil, err
	}
	v := f.define(c)
	f.captured = append(f.captured, capture{in: in, out: v})
	return constant{v}, nil
}

// load computes the captured columns for the rows of a batch. Then row sets those of
// one row.
func (f *frame) load(b *types.Batch, sel []int32) error {
	for i := range f.captured {
		c := &f.captured[i]
		v, err := c.in.eval(b, sel)
		if err != nil {
			return err
		}
		c.now = v
	}
	return nil
}

func (f *frame) row(i int) {
	for _, c := range f.captured {
		c.out.Set(0, c.now.Value(i))
	}
}

// key appends the values of the captured columns to dst, for a memo. ok is false if
// they have no encoding.
func (f *frame) key(dst []byte) []byte {
	for _, c := range f.captured {
		dst = types.AppendKey(dst, c.out.Type, c.out.Value(0))
	}
	return dst
}

// find returns the slots of columns of the batch.
func (s *scope) find(cols []algebra.Column) ([]int, error) {
	out := make([]int, len(cols))
	for i, c := range cols {
		slot, ok := s.slots.of(c.ID)
		if !ok {
			return nil, fault.New(fault.Internal, "column %d (%s) is not there", c.ID, c.Name)
		}
		out[i] = slot
	}
	return out, nil
}
