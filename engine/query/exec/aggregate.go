package exec

import (
	"context"
	"errors"
	"hash/maphash"
	"io"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// aggregate groups rows. When there is no memory left it writes the states of all groups
// to files, cut into partitions by the groups' keys, and begins anew; at the end each
// partition is merged by itself.
type aggregate struct {
	x     *execution
	rel   *algebra.Aggregate
	in    Operator
	keys  []evaluator
	calls []*aggCall
	sets  []*aggSet
	share *share
	stats *algebra.Stats
	vecs  []*types.Vector

	consumed bool
	some     bool // there were rows
	// gathers is set of an aggregate whose states are taken by eachState: it does not spill,
	// and short says that they are to be taken now.
	gathers, short bool
	set            int // the set that is given out
	out            types.Batch
	results        []*types.Vector
	nulls          []*types.Vector // of keys that are not in a set
	sel            []int32         // rows that are taken in at a time
}

// aggSet is the groups of one grouping set.
type aggSet struct {
	keys   []int // indexes of the keys
	table  *groupTable
	states []aggState
	cols   []*types.Vector
	// parts are what was spilled of groups, in partitions. pending are those that have still
	// to be given out.
	parts   []*spill
	level   int
	pending []pendingPart
	at      int // the next group to be given out
	// frozen says that its groups cannot be spilled, as states of them were frozen.
	frozen bool
	types  []*types.Type // of a spilled row: the keys, then a state for each call
}

// pendingPart is a partition that has to be merged; level is how often it was cut.
type pendingPart struct {
	file  *spill
	level int
}

const (
	partitionBits = 4
	partitions    = 1 << partitionBits
	// maxLevel is how often rows are cut into partitions: by then there are 16⁶ of them.
	maxLevel = 6
)

func newAggregate(x *execution, r *algebra.Aggregate, outer *frame) (Operator, error) {
	in, s, err := x.build(r.Input, outer)
	if err != nil {
		return nil, err
	}
	name := "GROUP BY"
	if r.Distinct {
		name = "DISTINCT"
	} else if len(r.Keys) == 0 {
		name = "the aggregation"
	}
	a := &aggregate{x: x, rel: r, in: in, share: x.share(name), stats: x.statsOf(r)}
	a.share.stats = a.stats
	var keyTypes []*types.Type
	for _, k := range r.Keys {
		e, err := compile(k.Expr, s)
		if err != nil {
			return nil, err
		}
		a.keys = append(a.keys, e)
		keyTypes = append(keyTypes, k.Type)
		a.nulls = append(a.nulls, types.NewConst(k.Type, types.Null))
	}
	input := r.Input.Columns()
	for i := range r.Aggs {
		c, err := compileAggCall(x, &r.Aggs[i], input, s, a.share)
		if err != nil {
			return nil, err
		}
		a.calls = append(a.calls, c)
		a.results = append(a.results, &types.Vector{Type: r.Aggs[i].Column.Type})
	}
	a.vecs = make([]*types.Vector, len(a.keys))
	sets := r.Sets
	if sets == nil {
		all := make([]int, len(r.Keys))
		for i := range all {
			all[i] = i
		}
		sets = [][]int{all}
	}
	for _, keys := range sets {
		set := &aggSet{keys: keys, cols: make([]*types.Vector, len(keys))}
		for _, k := range keys {
			set.types = append(set.types, keyTypes[k])
		}
		if len(keys) > 0 {
			set.table = newGroupTable(set.types[:len(keys):len(keys)])
		}
		for range a.calls {
			set.types = append(set.types, types.BytesType)
		}
		a.sets = append(a.sets, set)
	}
	a.out.Cols = make([]*types.Vector, len(r.Keys)+len(r.Aggs)+len(r.Grouping))
	return a, nil
}

func (a *aggregate) Open(ctx context.Context) error {
	a.free()
	a.consumed, a.some, a.set = false, false, 0
	for _, s := range a.sets {
		a.clear(s)
		s.level, s.at = 0, 0
	}
	return a.in.Open(ctx)
}

// clear begins the groups of a set anew.
func (a *aggregate) clear(s *aggSet) {
	s.close()
	if s.table != nil {
		s.table.reset()
	}
	s.states = s.states[:0]
	for _, c := range a.calls {
		state := c.newState()
		if s.table == nil {
			state.resize(1)
		}
		s.states = append(s.states, state)
	}
}

// close frees the files of the states.
func (s *aggSet) close() {
	if s.frozen {
		for _, state := range s.states {
			if d := distinctOf(state); d != nil {
				d.close()
			}
		}
	}
	s.frozen = false
}

func (a *aggregate) free() {
	for _, s := range a.sets {
		s.close()
		for _, p := range s.parts {
			p.close()
		}
		for _, p := range s.pending {
			p.file.close()
		}
		s.parts, s.pending, s.states = nil, nil, nil
		if s.table != nil {
			s.table.reset()
		}
	}
	a.share.free()
}

func (a *aggregate) Close() error {
	a.free()
	return a.in.Close()
}

func (a *aggregate) consume(ctx context.Context) error {
	for {
		b, err := a.in.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		a.some = a.some || b.Rows() > 0
		for i, k := range a.keys {
			if a.vecs[i], err = k.eval(b, b.Sel); err != nil {
				return err
			}
		}
		part := *b
		for at, rows, take := 0, b.Rows(), a.portion(b); at < rows; at += take {
			if take < rows {
				part.Sel = a.rows(b, at, min(take, rows-at))
			}
			if err := a.take(&part); err != nil {
				return err
			}
		}
	}
}

// portionBytes is how many bytes of keys are taken in before memory is asked for.
const portionBytes = 1 << 20

// portion returns how many rows of b are taken in at a time: all, unless their keys are
// long. A constant of 1 MB is one in the batch, and 1,024 as the keys of its groups.
func (a *aggregate) portion(b *types.Batch) int {
	rows := b.Rows()
	if size := batchBytes(a.vecs, b.Sel, b.Len); size > portionBytes {
		return max(1, int(int64(rows)*portionBytes/size))
	}
	return max(1, rows)
}

// rows returns the selection of n rows of b, from the at'th on.
func (a *aggregate) rows(b *types.Batch, at, n int) []int32 {
	if b.Sel != nil {
		return b.Sel[at : at+n]
	}
	a.sel = a.sel[:0]
	for i := range n {
		a.sel = append(a.sel, int32(at+i))
	}
	return a.sel
}

// take puts rows whose keys are in a.vecs into their groups.
func (a *aggregate) take(b *types.Batch) error {
	for _, c := range a.calls {
		if err := c.load(b); err != nil {
			return err
		}
	}
	for _, s := range a.sets {
		var groups []int32
		if s.table != nil {
			for i, k := range s.keys {
				s.cols[i] = a.vecs[k]
			}
			groups = s.table.number(s.cols, b.Sel, b.Len)
			if len(s.table.fresh) > 0 {
				for _, state := range s.states {
					state.resize(s.table.len())
				}
			}
		}
		for i, c := range a.calls {
			if err := c.add(s.states[i], groups, b); err != nil {
				return err
			}
		}
	}
	return a.account()
}

// account takes memory for what the groups have become, and spills if there is none.
func (a *aggregate) account() error {
	for {
		var total, most int64
		var largest *aggSet
		for _, s := range a.sets {
			size := s.size()
			total += size
			if s.divisible() && size > most {
				most, largest = size, s
			}
		}
		if a.share.set(total) {
			return nil
		}
		if a.gathers {
			a.short = true
			return nil
		}
		if largest == nil {
			frozen, err := a.freeze()
			if err != nil {
				return err
			}
			if frozen {
				continue
			}
			return a.share.need(total - a.share.held)
		}
		if err := a.spill(largest); err != nil {
			return err
		}
	}
}

// divisible tells whether spilling the groups of s helps. Even one group may be spilled
// at first, when others can still come.
func (s *aggSet) divisible() bool {
	if s.table == nil || s.frozen || s.level >= maxLevel {
		return false
	}
	return s.table.len() > 1 || s.table.len() == 1 && s.level == 0
}

// freeze makes room in groups that cannot be divided. It tells whether there is any.
func (a *aggregate) freeze() (bool, error) {
	some := false
	for _, s := range a.sets {
		if s.table != nil && (s.level == 0 || s.parts != nil) {
			continue // states of its groups are or will be in files
		}
		for _, state := range s.states {
			d := distinctOf(state)
			if d == nil {
				continue
			}
			ok, err := d.freeze()
			if err != nil {
				return false, err
			}
			if ok {
				s.frozen, some = true, true
			}
		}
	}
	return some, nil
}

func (s *aggSet) size() int64 {
	var total int64
	if s.table != nil {
		total = s.table.bytes()
	}
	for _, state := range s.states {
		total += state.size()
	}
	return total
}

// spill writes all groups of s to its partitions.
func (a *aggregate) spill(s *aggSet) error {
	if s.parts == nil {
		for range partitions {
			s.parts = append(s.parts, a.x.newSpill(a.share.name, a.stats, s.types))
		}
	}
	cols := make([]*types.Vector, len(s.types))
	nk := len(s.keys)
	for i := range s.states {
		cols[nk+i] = &types.Vector{Type: types.BytesType}
	}
	sels := make([][]int32, partitions)
	var buf []byte
	for n, chunk := range s.table.keys.chunks {
		if err := a.x.ctx.Err(); err != nil {
			return err
		}
		base := n << chunkBits
		copy(cols, chunk.Cols)
		for i, state := range s.states {
			v := cols[nk+i]
			v.Resize(chunk.Len)
			for g := range chunk.Len {
				buf = state.appendState(base+g, buf[:0])
				v.Strs[g] = string(buf)
			}
		}
		for p := range sels {
			sels[p] = sels[p][:0]
		}
		for g := range chunk.Len {
			p := s.table.hash(base+g) >> (64 - partitionBits*(s.level+1)) & (partitions - 1)
			sels[p] = append(sels[p], int32(g))
		}
		for p, sel := range sels {
			if len(sel) == 0 {
				continue
			}
			if err := s.parts[p].append(cols, sel, chunk.Len); err != nil {
				return err
			}
		}
	}
	a.clear(s)
	return nil
}

// hash returns the hash of a group's key, the same in each table with the same types.
func (t *groupTable) hash(group int) uint64 {
	if t.ints == nil {
		return maphash.Bytes(seed, t.strs.keys[group])
	}
	// Other bits than those by which intTable spreads its keys.
	return hashInt(int64(hashInt(t.keys.value(group, 0).Int)))
}

// endSpill turns the partitions of s into pending ones.
func (a *aggregate) endSpill(s *aggSet) error {
	if s.parts == nil {
		return nil
	}
	if s.table.len() > 0 {
		if err := a.spill(s); err != nil {
			return err
		}
	}
	for _, p := range s.parts {
		if p.n == 0 {
			p.close()
			continue
		}
		if err := p.finish(); err != nil {
			return err
		}
		s.pending = append(s.pending, pendingPart{p, s.level + 1})
	}
	s.parts = nil
	a.share.free()
	return nil
}

// merge reads the next pending partition of s into its groups.
func (a *aggregate) merge(s *aggSet) error {
	part := s.pending[len(s.pending)-1]
	s.pending = s.pending[:len(s.pending)-1]
	defer part.file.close()
	a.clear(s)
	s.level = part.level
	r := part.file.reader()
	for {
		if err := a.x.ctx.Err(); err != nil {
			return err
		}
		b, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		groups := s.table.number(b.Cols[:len(s.keys)], nil, b.Len)
		for i, state := range s.states {
			state.resize(s.table.len())
			v := b.Cols[len(s.keys)+i]
			for k, g := range groups {
				if err := state.merge(int(g), []byte(v.Strs[k])); err != nil {
					return err
				}
			}
		}
		if err := a.account(); err != nil {
			return err
		}
	}
	return a.endSpill(s)
}

func (a *aggregate) Next(ctx context.Context) (*types.Batch, error) {
	if !a.consumed {
		if err := a.consume(ctx); err != nil {
			return nil, err
		}
		a.consumed = true
		for _, s := range a.sets {
			if err := a.endSpill(s); err != nil {
				return nil, err
			}
		}
		a.stats.MemoryPeak = max(a.stats.MemoryPeak, a.share.peak)
	}
	for a.set < len(a.sets) {
		s := a.sets[a.set]
		n := 1
		switch {
		case s.table != nil:
			n = s.table.len()
		case !a.some && len(a.keys) > 0:
			n = 0 // the set () beside others has no group of no rows
		}
		if s.at < n {
			return a.give(s, min(n-s.at, types.BatchRows))
		}
		if len(s.pending) > 0 {
			if err := a.merge(s); err != nil {
				return nil, err
			}
			s.at = 0
			continue
		}
		a.set++
	}
	return nil, io.EOF
}

// give returns the next n groups of s.
func (a *aggregate) give(s *aggSet, n int) (*types.Batch, error) {
	copy(a.out.Cols, a.nulls)
	if s.table != nil {
		chunk := s.table.keys.chunks[s.at>>chunkBits]
		for i, k := range s.keys {
			a.out.Cols[k] = chunk.Cols[i]
		}
	}
	for i, state := range s.states {
		if err := state.results(s.at, a.results[i], n); err != nil {
			return nil, err
		}
		a.out.Cols[len(a.keys)+i] = a.results[i]
	}
	for i, g := range a.rel.Grouping {
		without := int64(1)
		for _, k := range s.keys {
			if k == g.Key {
				without = 0
			}
		}
		a.out.Cols[len(a.keys)+len(a.calls)+i] = types.NewConst(g.Type, types.NewInt(without))
	}
	s.at += n
	a.out.Len = n
	return &a.out, nil
}
