package functions

import "github.com/trestledb/trestle/engine/query/types"

// listExtremes are the states of MIN and MAX of arrays, in the order of ORDER BY. A
// state is a value of its own: NULL before the first.
type listExtremes struct {
	s       []types.Value
	size    int // of the values
	t       *types.Type
	largest bool
}

func (c *listExtremes) add(group int32, v types.Value) {
	s := &c.s[group]
	if !v.Valid || s.Valid && (types.Compare(c.t, v, *s) > 0) != c.largest {
		return
	}
	if s.Valid {
		c.size -= sizeOfValue(*s)
	}
	*s = v.Clone()
	c.size += sizeOfValue(*s)
}

func (c *listExtremes) Resize(groups int) { c.s = resizeCells(c.s, groups) }

func (c *listExtremes) Size() int { return sizeOfValue(types.Null)*cap(c.s) + c.size }

func (c *listExtremes) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	groups, n = groupsOf(groups, sel, n)
	for k := range n {
		at := k
		if sel != nil {
			at = int(sel[k])
		}
		c.add(groups[k], args[0].Value(at))
	}
	return nil
}

func (c *listExtremes) addRow(group int, args []types.Value) error {
	c.add(int32(group), args[0])
	return nil
}

func (c *listExtremes) value(group int) (types.Value, error) { return c.s[group], nil }

func (c *listExtremes) Results(first int, out *types.Vector, n int) error {
	return cellResults(c, first, out, n)
}

func (c *listExtremes) AppendState(group int, dst []byte) []byte {
	return appendStateValue(append(dst, formMinMaxList), c.t, c.s[group])
}

func (c *listExtremes) MergeState(group int, state []byte) error {
	r := readState(state, formMinMaxList)
	v := r.value(c.t)
	if err := r.done(extremeName(c.largest)); err != nil {
		return err
	}
	c.add(int32(group), v)
	return nil
}
