package functions

import "github.com/trestledb/trestle/engine/query/types"

// combinable are cells of functions without an inverse of which two states make a
// third without being written.
type combinable interface {
	cells
	// combine adds to group the rows of group from of o, which has the same type.
	combine(group int, o cells, from int)
	// reset makes a group one that has seen no rows.
	reset(group int)
}

func (c *floatSums) combine(group int, o cells, from int) { c.s[group].merge(&o.(*floatSums).s[from]) }
func (c *floatSums) reset(group int)                      { c.s[group] = floatSum{} }

func (c *intExtremes) combine(group int, o cells, from int) {
	if s := o.(*intExtremes).s[from]; s.some {
		c.s[group].add(s.v, c.largest)
	}
}
func (c *intExtremes) reset(group int) { c.s[group] = intExtreme{} }

func (c *floatExtremes) combine(group int, o cells, from int) {
	if s := o.(*floatExtremes).s[from]; s.some {
		c.s[group].add(s.v, c.largest)
	}
}
func (c *floatExtremes) reset(group int) { c.s[group] = floatExtreme{} }

func (c *stringExtremes) combine(group int, o cells, from int) {
	if s := o.(*stringExtremes).s[from]; s != nil {
		c.add(int32(group), string(s))
	}
}
func (c *stringExtremes) reset(group int) { c.s[group] = nil }

func (c *listExtremes) combine(group int, o cells, from int) {
	c.add(int32(group), o.(*listExtremes).s[from])
}
func (c *listExtremes) reset(group int) { c.s[group] = types.Null }

func (c *moments) combine(group int, o cells, from int) {
	m := o.(*moments).m[from] // merge changes it
	c.m[group].merge(&m)
}
func (c *moments) reset(group int) { c.m[group] = moment{} }

// NewSliding is s.New for a frame whose first rows leave it: the Accumulator is a
// Remover if the function has one.
func NewSliding(s *Signature, c *Call) Accumulator {
	if s.Grouped == nil {
		return s.New(c)
	}
	back, ok := s.Grouped(c).(combinable)
	if !ok {
		return s.New(c)
	}
	out := &sliding{back: back, front: s.Grouped(c).(combinable), total: s.Grouped(c).(combinable)}
	out.back.Resize(1)
	out.total.Resize(1)
	return out
}

// sliding is a queue of rows that knows their aggregate, made of two stacks. Rows come
// into back, as one sum and one by one. They leave from front, whose group i is the
// aggregate of its rows from i on. When front is empty, the rows of back move there. So
// each row is added twice and merged once, and no rounding error stays of rows that
// have left.
type sliding struct {
	back, front, total combinable
	rows               []types.Value // the arguments of the rows of back
	width              int           // of a row
	first, end         int           // the rows of front that have not left
}

func (s *sliding) Add(args []types.Value) error {
	s.width = len(args)
	for _, a := range args {
		s.rows = append(s.rows, a.Clone())
	}
	return s.back.addRow(0, args)
}

func (s *sliding) Remove([]types.Value) error {
	if s.first == s.end {
		if err := s.move(); err != nil {
			return err
		}
	}
	s.first++
	return nil
}

// move makes the rows of back those of front.
func (s *sliding) move() error {
	s.first, s.end = 0, len(s.rows)/max(s.width, 1)
	s.front.Resize(s.end)
	for i := s.end - 1; i >= 0; i-- {
		s.front.reset(i)
		if err := s.front.addRow(i, s.rows[i*s.width:(i+1)*s.width]); err != nil {
			return err
		}
		if i+1 < s.end {
			s.front.combine(i, s.front, i+1)
		}
	}
	clear(s.rows)
	s.rows = s.rows[:0]
	s.back.reset(0)
	return nil
}

func (s *sliding) sum() {
	s.total.reset(0)
	if s.first < s.end {
		s.total.combine(0, s.front, s.first)
	}
	s.total.combine(0, s.back, 0)
}

func (s *sliding) Result() (types.Value, error) {
	s.sum()
	return s.total.value(0)
}

func (s *sliding) AppendState(dst []byte) []byte {
	s.sum()
	return s.total.AppendState(0, dst)
}

// MergeState adds rows that cannot leave again before all others have.
func (s *sliding) MergeState(state []byte) error { return s.back.MergeState(0, state) }

func (s *sliding) Size() int {
	return 128 + s.back.Size() + s.front.Size() + s.total.Size() + 64*cap(s.rows)
}
