package exec

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/query/types"
)

// distinctState gives each different row of arguments of a group to the states below
// it once.
//
// A group that does not fit into memory is frozen: from then on rows go to files, cut
// into partitions by their hash, and each partition is looked through at the end. What
// was given to the states below before that is marked in the files.
type distinctState struct {
	aggState
	x     *execution
	share *share
	table *byteTable
	ints  *intTable // instead of table, of one integer where all rows are one group
	kept  keptRows
	buf   []byte
	// Those of a batch that are new:
	sel, groups []int32

	parts []*spill // of a frozen one
}

func newDistinctState(x *execution, below aggState, ts []*types.Type, share *share) *distinctState {
	return &distinctState{aggState: below, x: x, share: share, table: newByteTable(), kept: keptRows{rows: rows{types: ts}}}
}

func (s *distinctState) resize(groups int) {
	s.aggState.resize(groups)
	s.kept.resize(groups)
}

// key sets buf to the key of row i.
func (s *distinctState) key(group int32, args []*types.Vector, i int) []byte {
	s.buf = binary.LittleEndian.AppendUint32(s.buf[:0], uint32(group))
	for c, t := range s.kept.rows.types {
		s.buf = types.AppendKey(s.buf, t, args[c].Value(i))
	}
	return s.buf
}

func (s *distinctState) add(groups []int32, args []*types.Vector, sel []int32, n int) error {
	rows := n
	if sel != nil {
		rows = len(sel)
	}
	s.sel, s.groups = s.sel[:0], s.groups[:0]
	if s.parts == nil && groups == nil && len(args) == 1 && isInt(s.kept.rows.types[0]) {
		return s.addInts(args, sel, rows, n)
	}
	for k := range rows {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		g := int32(0)
		if groups != nil {
			g = groups[k]
		}
		if _, fresh := s.table.find(s.key(g, args, i)); fresh {
			s.sel = append(s.sel, int32(i))
			s.groups = append(s.groups, g)
		}
	}
	if len(s.sel) == 0 {
		return nil
	}
	s.kept.add(s.groups, args, s.sel, n)
	if s.parts != nil {
		return nil
	}
	return s.aggState.add(s.groups, args, s.sel, n)
}

// isInt tells whether values of t are kept as integers.
func isInt(t *types.Type) bool {
	switch t.Kind {
	case types.Bool, types.Int64, types.Date, types.Timestamp, types.Enum:
		return true
	}
	return false
}

// addInts is add of one integer where all rows are one group. Such groups are never
// given to another state, so that the values need not be kept.
func (s *distinctState) addInts(args []*types.Vector, sel []int32, rows, n int) error {
	if s.ints == nil {
		s.ints = newIntTable()
	}
	v := args[0]
	for k := range rows {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		var fresh bool
		if v.IsNull(i) {
			_, fresh = s.ints.null()
		} else {
			_, fresh = s.ints.find(v.Ints[v.At(i)])
		}
		if fresh {
			s.sel = append(s.sel, int32(i))
		}
	}
	if len(s.sel) == 0 {
		return nil
	}
	return s.aggState.add(nil, args, s.sel, n)
}

func (s *distinctState) appendState(group int, dst []byte) []byte {
	return s.kept.appendState(group, dst)
}

func (s *distinctState) merge(group int, state []byte) error {
	return s.kept.batches(state, func(b *types.Batch) error {
		groups := make([]int32, b.Len)
		for i := range groups {
			groups[i] = int32(group)
		}
		return s.add(groups, b.Cols, nil, b.Len)
	})
}

func (s *distinctState) size() int64 {
	n := s.aggState.size() + s.table.bytes() + s.kept.size()
	if s.ints != nil {
		n += s.ints.bytes()
	}
	return n
}

// distinctParts is how many partitions a frozen state has. Each has to fit into
// memory.
const distinctParts = 32

// freeze writes the rows in memory to files. States that were frozen have no appendState
// and merge any more. It tells whether there was something to write.
func (s *distinctState) freeze() (bool, error) {
	if s.kept.rows.n == 0 && s.ints == nil {
		return false, nil
	}
	// The columns of a row in a file are the arguments, the group, and whether the states
	// below have it.
	known := s.parts == nil
	if known {
		ts := append(append([]*types.Type{}, s.kept.rows.types...), types.Int64Type, types.BoolType)
		for range distinctParts {
			s.parts = append(s.parts, s.x.newSpill(s.share.name, s.share.stats, ts))
		}
	}
	flag := types.NewConst(types.BoolType, types.NewBool(known))
	if s.ints != nil {
		if err := s.freezeInts(flag); err != nil {
			return false, err
		}
		s.ints = nil
		return true, nil
	}
	of := make([]int64, s.kept.rows.n)
	for g, r := range s.kept.last {
		for ; r != 0; r = s.kept.before[r-1] {
			of[r-1] = int64(g)
		}
		s.kept.last[g] = 0
	}
	for n, b := range s.kept.rows.chunks {
		groups := &types.Vector{Type: types.Int64Type, Ints: of[n<<chunkBits:][:b.Len]}
		if err := s.divide(b, groups, flag); err != nil {
			return false, err
		}
	}
	s.table, s.kept.before = newByteTable(), nil
	s.kept.rows.reset()
	return true, nil
}

// freezeInts writes the values of ints.
func (s *distinctState) freezeInts(flag *types.Vector) error {
	v := &types.Vector{Type: s.kept.rows.types[0]}
	group := types.NewConst(types.Int64Type, types.NewInt(0))
	write := func() error {
		b := &types.Batch{Len: len(v.Ints), Cols: []*types.Vector{v}}
		err := s.divide(b, group, flag)
		v.Ints, v.Null = v.Ints[:0], nil
		return err
	}
	if s.ints.nulls >= 0 {
		v.Ints, v.Null = []int64{0}, []bool{true}
		if err := write(); err != nil {
			return err
		}
	}
	for _, slot := range s.ints.slots {
		if slot.group == 0 {
			continue
		}
		if v.Ints = append(v.Ints, slot.key); len(v.Ints) == types.BatchRows {
			if err := write(); err != nil {
				return err
			}
		}
	}
	return write()
}

// divide writes the rows of b to the partitions of their keys.
func (s *distinctState) divide(b *types.Batch, groups, flag *types.Vector) error {
	if err := s.x.ctx.Err(); err != nil {
		return err
	}
	var sels [distinctParts][]int32
	for i := range b.Len {
		p := hashBytes(s.key(int32(groups.Value(i).Int), b.Cols, i)) >> 59 % distinctParts
		sels[p] = append(sels[p], int32(i))
	}
	cols := append(append([]*types.Vector{}, b.Cols...), groups, flag)
	for p, sel := range sels {
		if sel == nil {
			continue
		}
		if err := s.parts[p].append(cols, sel, b.Len); err != nil {
			return err
		}
	}
	return nil
}

// thaw gives the states below what a frozen state has not given them.
func (s *distinctState) thaw() error {
	before := s.size()
	if _, err := s.freeze(); err != nil {
		return err
	}
	s.share.grow(-min(before-s.size(), s.share.held))
	held := int64(0)
	defer func() { s.share.grow(-held) }()
	for _, part := range s.parts {
		if err := part.finish(); err != nil {
			return err
		}
		table := newByteTable()
		r := part.reader()
		n := len(s.kept.rows.types)
		for {
			if err := s.x.ctx.Err(); err != nil {
				return err
			}
			b, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			s.sel, s.groups = s.sel[:0], s.groups[:0]
			for i := range b.Len {
				g := int32(b.Cols[n].Ints[i])
				if _, fresh := table.find(s.key(g, b.Cols, i)); fresh && b.Cols[n+1].Ints[i] == 0 {
					s.sel, s.groups = append(s.sel, int32(i)), append(s.groups, g)
				}
			}
			if size := table.bytes(); size > held {
				if err := s.share.need(size - held); err != nil {
					return err
				}
				held = size
			}
			if len(s.sel) == 0 {
				continue
			}
			if err := s.aggState.add(s.groups, b.Cols[:n], s.sel, b.Len); err != nil {
				return err
			}
		}
		part.close()
	}
	s.parts = nil
	return nil
}

func (s *distinctState) results(first int, out *types.Vector, n int) error {
	if s.parts != nil {
		if err := s.thaw(); err != nil {
			return err
		}
	}
	return s.aggState.results(first, out, n)
}

// distinctOf returns the distinctState that s is or stands around, nil if there is none.
func distinctOf(s aggState) *distinctState {
	switch s := s.(type) {
	case *distinctState:
		return s
	case *deferredState:
		return distinctOf(s.aggState)
	}
	return nil
}

func (s *distinctState) close() {
	for _, p := range s.parts {
		p.close()
	}
	s.parts = nil
}
