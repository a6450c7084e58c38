package exec

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// hashJoin finds the matches of a left row by a hash table of the right rows. If these
// do not fit into memory, both sides are cut into partitions by their keys, which are
// joined one after the other.
type hashJoin struct {
	joinBase
	leftKeys, rightKeys []evaluator
	keyTypes            []*types.Type
	nullSafe            []bool
	vecs                []*types.Vector
	buf                 []byte

	rows       rows // of the right side
	ints       *intTable
	strs       *byteTable
	head, tail []int32 // of each key its first and last row
	next       []int32 // of each row the next with its key, -1 if there is none
	found      []bool  // of a FULL join: rows that had a match

	built      bool
	parts      *joinParts
	pending    []joinParts
	source     batchSource // of left rows
	sourceFile *spill
	level      int

	batch  *types.Batch // the left rows in work
	groups []int32      // of each of its rows the key, or -1
	k      int          // the next of its rows
	row    int32        // its next match, -1 to look for it, -2 if there is no more
	tailAt int          // of a FULL join: the next right row to look at, -1 before the end
}

// batchSource gives batches.
type batchSource interface {
	next() (*types.Batch, error)
}

// operatorSource is an Operator as a batchSource.
type operatorSource struct {
	ctx context.Context
	op  Operator
}

func (o operatorSource) next() (*types.Batch, error) { return o.op.Next(o.ctx) }

// joinParts are the two sides, cut by key level times.
type joinParts struct {
	left, right []*spill
	level       int
}

func (h *hashJoin) Open(ctx context.Context) error {
	h.free()
	if err := h.right.Open(ctx); err != nil {
		return err
	}
	return h.left.Open(ctx)
}

func (h *hashJoin) Close() error {
	h.free()
	err := h.left.Close()
	if e := h.right.Close(); err == nil {
		err = e
	}
	return err
}

func (h *hashJoin) free() {
	h.drop()
	if h.parts != nil {
		h.parts.close()
	}
	for i := range h.pending {
		h.pending[i].close()
	}
	if h.sourceFile != nil {
		h.sourceFile.close()
	}
	h.parts, h.pending, h.source, h.sourceFile, h.built, h.batch, h.level, h.tailAt = nil, nil, nil, nil, false, nil, 0, -1
	h.share.free()
}

func (p *joinParts) close() {
	for _, s := range append(slices.Clone(p.left), p.right...) {
		if s != nil {
			s.close()
		}
	}
}

// drop forgets the right rows that are in memory.
func (h *hashJoin) drop() {
	h.rows = rows{types: h.rightTypes}
	h.ints, h.strs, h.head, h.tail, h.next, h.found = nil, nil, nil, nil, nil, nil
	if len(h.keyTypes) == 1 && !h.nullSafe[0] {
		switch h.keyTypes[0].Kind {
		case types.Float32, types.Float64, types.String, types.Bytes:
		default:
			h.ints = newIntTable()
			return
		}
	}
	h.strs = newByteTable()
}

// key returns the key of row i of the vectors in vecs, and whether it can match.
func (h *hashJoin) key(i int) ([]byte, bool) {
	h.buf = h.buf[:0]
	ok := true
	for c, v := range h.vecs {
		x := v.Value(i)
		if !h.nullSafe[c] && (!x.Valid || x.Float != x.Float) {
			ok = false
		}
		h.buf = types.AppendKey(h.buf, h.keyTypes[c], x)
	}
	return h.buf, ok
}

func (h *hashJoin) load(keys []evaluator, b *types.Batch) error {
	for i, k := range keys {
		v, err := k.eval(b, b.Sel)
		if err != nil {
			return err
		}
		h.vecs[i] = v
	}
	return nil
}

// add adds right rows to the table.
func (h *hashJoin) add(b *types.Batch) error {
	if err := h.load(h.rightKeys, b); err != nil {
		return err
	}
	h.sel = h.sel[:0]
	base := int32(h.rows.n)
	for k := range b.Rows() {
		i := k
		if b.Sel != nil {
			i = int(b.Sel[k])
		}
		var g int32
		var fresh, ok bool
		if h.ints != nil {
			v := h.vecs[0]
			if ok = !v.IsNull(i); ok {
				g, fresh = h.ints.find(v.Ints[v.At(i)])
			}
		} else {
			var key []byte
			if key, ok = h.key(i); ok {
				g, fresh = h.strs.find(key)
			}
		}
		if !ok && h.kind != algebra.FullJoin {
			continue
		}
		r := base + int32(len(h.sel))
		h.sel = append(h.sel, int32(i))
		h.next = append(h.next, -1)
		switch {
		case !ok:
		case fresh:
			h.head, h.tail = append(h.head, r), append(h.tail, r)
		default:
			h.next[h.tail[g]] = r
			h.tail[g] = r
		}
	}
	if len(h.sel) > 0 { // none selected would be all
		h.rows.append(b.Cols, h.sel, b.Len)
	}
	return nil
}

func (h *hashJoin) size() int64 {
	n := h.rows.bytes + 4*int64(cap(h.head)+cap(h.tail)+cap(h.next))
	if h.ints != nil {
		return n + h.ints.bytes()
	}
	return n + h.strs.bytes()
}

// build reads the right side. ok is false if it was written to h.parts instead.
func (h *hashJoin) build(right batchSource) (ok bool, err error) {
	h.drop()
	for {
		b, err := right.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
		if h.parts != nil {
			if err := h.divide(h.parts.right, h.rightKeys, b); err != nil {
				return false, err
			}
			continue
		}
		if err := h.add(b); err != nil {
			return false, err
		}
		if h.share.set(h.size()) {
			continue
		}
		if h.level >= maxLevel {
			if err := h.share.need(h.size() - h.share.held); err != nil {
				return false, err
			}
			continue
		}
		if err := h.startParts(); err != nil {
			return false, err
		}
	}
	h.stats.MemoryPeak = max(h.stats.MemoryPeak, h.share.peak)
	if h.kind == algebra.FullJoin {
		h.found = make([]bool, h.rows.n)
	}
	return h.parts == nil, nil
}

// startParts writes the right rows in memory to partitions.
func (h *hashJoin) startParts() error {
	h.parts = &joinParts{level: h.level + 1}
	for range partitions {
		h.parts.left = append(h.parts.left, h.x.newSpill(h.share.name, h.stats, h.leftTypes))
		h.parts.right = append(h.parts.right, h.x.newSpill(h.share.name, h.stats, h.rightTypes))
	}
	for _, c := range h.rows.chunks {
		if err := h.divide(h.parts.right, h.rightKeys, c); err != nil {
			return err
		}
	}
	h.drop()
	h.share.free()
	return nil
}

// divide writes rows to the partitions of their keys.
func (h *hashJoin) divide(parts []*spill, keys []evaluator, b *types.Batch) error {
	if err := h.load(keys, b); err != nil {
		return err
	}
	sels := make([][]int32, partitions)
	for k := range b.Rows() {
		i := k
		if b.Sel != nil {
			i = int(b.Sel[k])
		}
		key, _ := h.key(i)
		p := hashBytes(key) >> (64 - partitionBits*h.parts.level) & (partitions - 1)
		sels[p] = append(sels[p], int32(i))
	}
	for p, sel := range sels {
		if len(sel) == 0 {
			continue
		}
		if err := parts[p].append(b.Cols, sel, b.Len); err != nil {
			return err
		}
	}
	return nil
}

// start makes ready the first pair of sides that can be joined.
func (h *hashJoin) start(right, left batchSource) error {
	ok, err := h.build(right)
	if err != nil {
		return err
	}
	if ok {
		h.source = left
		return nil
	}
	for {
		b, err := left.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := h.divide(h.parts.left, h.leftKeys, b); err != nil {
			return err
		}
	}
	for p := range partitions {
		l, r := h.parts.left[p], h.parts.right[p]
		if err := l.finish(); err != nil {
			return err
		}
		if err := r.finish(); err != nil {
			return err
		}
		h.pending = append(h.pending, joinParts{left: []*spill{l}, right: []*spill{r}, level: h.parts.level})
	}
	h.parts, h.source = nil, nil
	return nil
}

// advance goes on to the next partition; io.EOF if there is none.
func (h *hashJoin) advance() error {
	if h.sourceFile != nil {
		h.sourceFile.close()
		h.sourceFile = nil
	}
	h.source = nil
	for h.source == nil {
		if len(h.pending) == 0 {
			return io.EOF
		}
		p := h.pending[len(h.pending)-1]
		h.pending = h.pending[:len(h.pending)-1]
		h.level = p.level
		h.share.free()
		err := h.start(p.right[0].reader(), p.left[0].reader())
		p.right[0].close()
		if err == nil && h.source != nil {
			h.sourceFile = p.left[0]
			break
		}
		p.left[0].close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *hashJoin) Next(ctx context.Context) (*types.Batch, error) {
	if !h.built {
		h.built = true
		h.tailAt = -1
		if err := h.start(operatorSource{ctx, h.right}, operatorSource{ctx, h.left}); err != nil {
			return nil, err
		}
		if h.source == nil {
			if err := h.advance(); err != nil {
				return nil, err
			}
		}
	}
	for {
		if h.tailAt >= 0 {
			if b := h.rightRest(); b != nil {
				return b, nil
			}
			h.tailAt = -1
			if err := h.advance(); err != nil {
				return nil, err
			}
		}
		if h.batch == nil {
			b, err := h.source.next()
			if errors.Is(err, io.EOF) {
				if h.kind == algebra.FullJoin {
					h.tailAt = 0
					continue
				}
				if err := h.advance(); err != nil {
					return nil, err
				}
				continue
			}
			if err != nil {
				return nil, err
			}
			if err := h.begin(b); err != nil {
				return nil, err
			}
			if h.semi() && len(h.residual) == 0 {
				h.batch = nil
				if out := h.unmatched(b, h.kind == algebra.SemiJoin); out != nil {
					return out, nil
				}
				continue
			}
		}
		out, err := h.more()
		if err != nil {
			return nil, err
		}
		if out != nil {
			return out, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// begin looks up the keys of a left batch.
func (h *hashJoin) begin(b *types.Batch) error {
	if err := h.load(h.leftKeys, b); err != nil {
		return err
	}
	h.batch, h.k, h.row = b, 0, -1
	h.clearMatched(b.Len)
	h.groups = h.groups[:0]
	for k := range b.Rows() {
		i := k
		if b.Sel != nil {
			i = int(b.Sel[k])
		}
		g := int32(-1)
		if h.ints != nil {
			if v := h.vecs[0]; !v.IsNull(i) {
				g = h.ints.lookup(v.Ints[v.At(i)])
			}
		} else if key, ok := h.key(i); ok {
			g = h.strs.lookup(key)
		}
		h.groups = append(h.groups, g)
		if len(h.residual) == 0 {
			h.matched[i] = g >= 0
		}
	}
	return nil
}

// more returns the next rows of the left batch in work; nil if none of those that were
// looked at is given out.
func (h *hashJoin) more() (*types.Batch, error) {
	b := h.batch
	plain := len(h.residual) == 0
	h.leftIDs, h.rightIDs = h.leftIDs[:0], h.rightIDs[:0]
	for h.k < len(h.groups) && len(h.leftIDs) < types.BatchRows {
		i := int32(h.k)
		if b.Sel != nil {
			i = b.Sel[h.k]
		}
		if h.row < 0 {
			g := h.groups[h.k]
			if g < 0 {
				if plain && h.keepsLeft() {
					h.leftIDs, h.rightIDs = append(h.leftIDs, i), append(h.rightIDs, -1)
				}
				h.k++
				continue
			}
			h.row = h.head[g]
		}
		for h.row >= 0 && len(h.leftIDs) < types.BatchRows {
			h.leftIDs, h.rightIDs = append(h.leftIDs, i), append(h.rightIDs, h.row)
			if h.row = h.next[h.row]; h.row < 0 {
				h.k++
			}
		}
	}
	if len(h.leftIDs) == 0 {
		// All candidates were looked at.
		h.batch = nil
		switch {
		case plain:
			return nil, nil
		case h.keepsLeft():
			return h.unmatched(b, false), nil
		case h.semi():
			return h.unmatched(b, h.kind == algebra.SemiJoin), nil
		}
		return nil, nil
	}
	h.pairs.Len, h.pairs.Sel = len(h.leftIDs), nil
	for c := range h.leftTypes {
		pick(h.pairs.Cols[c], b.Cols[c], h.leftIDs)
	}
	for c := range h.rightTypes {
		h.rows.gather(h.pairs.Cols[len(h.leftTypes)+c], c, h.rightIDs)
	}
	var sel []int32
	if !plain {
		var err error
		if sel, err = holds(h.residual, &h.pairs, nil, &h.sel); err != nil {
			return nil, err
		}
	}
	for k := range count(&h.pairs, sel) {
		p := k
		if sel != nil {
			p = int(sel[k])
		}
		h.matched[h.leftIDs[p]] = true
		if h.found != nil && h.rightIDs[p] >= 0 {
			h.found[h.rightIDs[p]] = true
		}
	}
	if h.semi() || sel != nil && len(sel) == 0 {
		return nil, nil
	}
	h.out.Len, h.out.Sel, h.out.Cols = h.pairs.Len, sel, append(h.out.Cols[:0], h.pairs.Cols...)
	return &h.out, nil
}

// rightRest returns the next right rows that had no match.
func (h *hashJoin) rightRest() *types.Batch {
	h.rightIDs = h.rightIDs[:0]
	for h.tailAt < h.rows.n && len(h.rightIDs) < types.BatchRows {
		if !h.found[h.tailAt] {
			h.rightIDs = append(h.rightIDs, int32(h.tailAt))
		}
		h.tailAt++
	}
	if len(h.rightIDs) == 0 {
		return nil
	}
	return h.rightOnly(len(h.rightIDs), func(c int, v *types.Vector) { h.rows.gather(v, c, h.rightIDs) })
}
