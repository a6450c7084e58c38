package exec

import (
	"encoding/binary"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/varint"
)

// aggState is the states of one aggregate for many groups.
type aggState interface {
	// resize gives it room for groups.
	resize(groups int)
	// add takes rows of a batch: groups[k] is the group of the k'th row of sel, or of row
	// k. If groups is nil, all are of group 0.
	add(groups []int32, args []*types.Vector, sel []int32, n int) error
	// results sets out to the values of n groups from first on.
	results(first int, out *types.Vector, n int) error
	// appendState and merge carry the state of a group to another aggState.
	appendState(group int, dst []byte) []byte
	merge(group int, state []byte) error
	// size is the memory that it takes, in bytes, roughly.
	size() int64
}

// newPlainState returns the states of a call without regard to its modifiers. Row
// errors of a safe one make the result of the group NULL.
func newPlainState(x *execution, c *algebra.AggregateCall, share *share) aggState {
	fc := &functions.Call{Ctx: x.ctx, Result: resultType(c), Now: x.now, Types: make([]*types.Type, len(c.Args)), Grow: share.need,
		IgnoreNulls: c.IgnoreNulls}
	for i, a := range c.Args {
		if a != nil {
			fc.Types[i] = a.Type()
		}
	}
	if c.Signature.Grouped != nil && !c.Safe {
		return groupedState{c.Signature.Grouped(fc)}
	}
	return &accumulators{new: func() functions.Accumulator { return c.Signature.New(fc) }, safe: c.Safe, deferred: c.Deferred,
		skipNulls: ignoredNulls(c), vals: make([]types.Value, len(c.Args)), share: share}
}

// ignoredNulls says of each argument whether a row in which it is NULL is left out.
// Where IGNORE and RESPECT NULLS can be written, AggregateCall.IgnoreNulls has seen to
// it; and a constant that is NULL is for the function to refuse.
func ignoredNulls(c *algebra.AggregateCall) []bool {
	out := make([]bool, len(c.Args))
	for i := range out {
		constant := i < len(c.Signature.Args) && c.Signature.Args[i].Const
		out[i] = c.Function.IgnoreNulls && !c.Function.Nulls && !constant
	}
	return out
}

// groupedState is the vector form of a function.
type groupedState struct{ g functions.Grouped }

func (s groupedState) resize(groups int) { s.g.Resize(groups) }
func (s groupedState) add(groups []int32, args []*types.Vector, sel []int32, n int) error {
	return s.g.AddBatch(groups, args, sel, n)
}
func (s groupedState) results(first int, out *types.Vector, n int) error {
	return s.g.Results(first, out, n)
}
func (s groupedState) appendState(group int, dst []byte) []byte { return s.g.AppendState(group, dst) }
func (s groupedState) merge(group int, state []byte) error      { return s.g.MergeState(group, state) }
func (s groupedState) size() int64                              { return int64(s.g.Size()) }

// accumulators are one state for each group.
type accumulators struct {
	new       func() functions.Accumulator
	list      []functions.Accumulator
	failed    []string // the error of a group, of a safe or deferred call
	safe      bool
	deferred  bool
	skipNulls []bool
	vals      []types.Value
	share     *share
	// bytes is what they took at the last count, and sinceArgs the bytes of the arguments
	// that came since then.
	bytes, sinceArgs int64
}

// keeps tells whether errors of rows are those of a group.
func (s *accumulators) keeps() bool { return s.safe || s.deferred }

func (s *accumulators) resize(groups int) {
	for len(s.list) < groups {
		s.list = append(s.list, s.new())
	}
	if s.keeps() && len(s.failed) < groups {
		s.failed = append(s.failed, make([]string, groups-len(s.failed))...)
	}
}

func (s *accumulators) add(groups []int32, args []*types.Vector, sel []int32, n int) error {
	if sel != nil {
		n = len(sel)
	}
	long := hasLong(args)
	for k := range n {
		i := k
		if sel != nil {
			i = int(sel[k])
		}
		g := int32(0)
		if groups != nil {
			g = groups[k]
		}
		null := false
		for a, v := range args {
			if v == nil {
				s.vals[a] = types.Null
				continue
			}
			s.vals[a] = v.Value(i)
			null = null || s.skipNulls[a] && !s.vals[a].Valid
		}
		if null {
			continue
		}
		if s.keeps() && s.failed[g] != "" {
			continue
		}
		before := 0
		if long {
			before = s.list[g].Size()
		}
		if err := s.list[g].Add(s.vals); err != nil {
			if !s.keeps() || !isRowError(err) {
				return err
			}
			s.failed[g] = err.Error()
		}
		if long {
			if err := s.share.need(int64(s.list[g].Size() - before)); err != nil {
				return err
			}
		}
	}
	for _, v := range args {
		if v != nil {
			s.sinceArgs += vectorBytes(v, sel, n)
		}
	}
	return nil
}

// hasLong tells whether a constant is so long that what a batch makes of it must be
// counted row by row: in the batch it is there once, in a state perhaps for each row.
func hasLong(args []*types.Vector) bool {
	for _, v := range args {
		if v == nil || !v.Const || v.IsNull(0) {
			continue
		}
		if resultBytes(v.Value(0)) > 4<<10 {
			return true
		}
	}
	return false
}

func (s *accumulators) results(first int, out *types.Vector, n int) error {
	out.Resize(n)
	for k := range n {
		if s.keeps() && s.failed[first+k] != "" {
			if !s.safe {
				return functions.Errorf("%s", s.failed[first+k])
			}
			out.SetNull(k)
			continue
		}
		v, err := s.list[first+k].Result()
		if err != nil {
			if !s.safe || !isRowError(err) {
				return err
			}
			v = types.Null
		}
		out.Set(k, v)
	}
	return nil
}

func (s *accumulators) appendState(group int, dst []byte) []byte {
	if s.keeps() {
		dst = appendMessage(dst, s.failed[group])
	}
	return s.list[group].AppendState(dst)
}

func (s *accumulators) merge(group int, state []byte) error {
	if s.keeps() {
		message, rest, err := cutMessage(state)
		if err != nil {
			return err
		}
		if message != "" {
			s.failed[group] = message
		}
		state = rest
	}
	s.sinceArgs += int64(len(state))
	err := s.list[group].MergeState(state)
	if err != nil && s.keeps() && isRowError(err) {
		s.failed[group] = err.Error()
		return nil
	}
	return err
}

// size counts anew once the arguments since the last count could have doubled it.
// Until then it takes them for kept.
func (s *accumulators) size() int64 {
	if s.sinceArgs > s.bytes+64<<10 {
		s.bytes, s.sinceArgs = 0, 0
		for _, a := range s.list {
			s.bytes += int64(a.Size())
		}
	}
	return s.bytes + s.sinceArgs + 24*int64(len(s.list))
}

// keptRows are rows of groups that have to be seen together: those of calls with DISTINCT,
// ORDER BY, LIMIT or HAVING, or over groups of the group.
type keptRows struct {
	rows rows
	// last is the number of the newest row of each group plus one, before[r] that of the row
	// of the group that came before row r.
	last, before []int32
}

func (k *keptRows) resize(groups int) {
	if n := groups - len(k.last); n > 0 {
		k.last = append(k.last, make([]int32, n)...)
	}
}

func (k *keptRows) add(groups []int32, cols []*types.Vector, sel []int32, n int) {
	base := k.rows.n
	k.rows.append(cols, sel, n)
	for r := base; r < k.rows.n; r++ {
		g := int32(0)
		if groups != nil {
			g = groups[r-base]
		}
		k.before = append(k.before, k.last[g])
		k.last[g] = int32(r + 1)
	}
}

// of returns the rows of a group in the order in which they came, in *room.
func (k *keptRows) of(group int, room *[]int32) []int32 {
	out := (*room)[:0]
	for r := k.last[group]; r != 0; r = k.before[r-1] {
		out = append(out, r-1)
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	*room = out
	return out
}

func (k *keptRows) size() int64 {
	return k.rows.bytes + 4*int64(cap(k.last)+cap(k.before))
}

// appendState appends the rows of a group: pieces of a length and a batch.
func (k *keptRows) appendState(group int, dst []byte) []byte {
	var room []int32
	ids := k.of(group, &room)
	cols := newVectors(k.rows.types)
	var piece []byte
	for len(ids) > 0 {
		part := ids[:min(len(ids), types.BatchRows)]
		ids = ids[len(part):]
		for c := range cols {
			k.rows.gather(cols[c], c, part)
		}
		piece = appendBatch(piece[:0], k.rows.types, cols, nil, 0, len(part))
		dst = binary.AppendUvarint(dst, uint64(len(piece)))
		dst = append(dst, piece...)
	}
	return dst
}

// batches calls f for each piece of a state.
func (k *keptRows) batches(state []byte, f func(b *types.Batch) error) error {
	for d := varint.Of(state); d.Len() > 0; {
		piece := string(d.Bytes())
		if d.Bad() {
			return errDamaged("a state ends early")
		}
		b := &types.Batch{Cols: newVectors(k.rows.types)}
		if err := decodeBatch(piece, k.rows.types, b); err != nil {
			return err
		}
		if err := f(b); err != nil {
			return err
		}
	}
	return nil
}
