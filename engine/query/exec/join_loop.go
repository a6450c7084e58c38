package exec

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// loopJoin looks at each pair of rows. The right side is kept, in memory or in a file.
type loopJoin struct {
	joinBase
	kept  *spool
	built bool
	found []bool // of a FULL join: right rows that had a match

	batch  *types.Batch // the left rows in work
	reader *spoolReader // of the right rows
	inner  *types.Batch // those in work
	base   int          // the number of the first of them
	k, r   int          // the pair to look at next: the k'th left row, right row r
	tail   *spoolReader // of a FULL join at the end
	tailAt int
}

func (l *loopJoin) Open(ctx context.Context) error {
	l.free()
	if err := l.joinBase.right.Open(ctx); err != nil {
		return err
	}
	return l.left.Open(ctx)
}

func (l *loopJoin) Close() error {
	l.free()
	err := l.left.Close()
	if e := l.joinBase.right.Close(); err == nil {
		err = e
	}
	return err
}

func (l *loopJoin) free() {
	if l.kept != nil {
		l.kept.close()
	}
	l.kept, l.built, l.found, l.batch, l.reader, l.inner, l.tail = nil, false, nil, nil, nil, nil, nil
	l.share.free()
}

func (l *loopJoin) Next(ctx context.Context) (*types.Batch, error) {
	if !l.built {
		l.kept = newSpool(l.x, l.share, l.stats, l.rightTypes)
		if err := l.kept.fill(operatorSource{ctx, l.joinBase.right}); err != nil {
			return nil, err
		}
		if l.kind == algebra.FullJoin {
			if err := l.share.need(l.kept.n); err != nil {
				return nil, err
			}
			l.found = make([]bool, l.kept.n)
		}
		l.built = true
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if l.tail != nil {
			return l.rightRest()
		}
		if l.batch == nil {
			b, err := l.left.Next(ctx)
			if errors.Is(err, io.EOF) && l.kind == algebra.FullJoin {
				l.tail, l.tailAt = l.kept.reader(), 0
				continue
			}
			if err != nil {
				return nil, err
			}
			l.batch, l.reader, l.inner, l.base = b, l.kept.reader(), nil, 0
			l.clearMatched(b.Len)
			if l.semi() && len(l.residual) == 0 {
				// Any right row is a match.
				for i := range l.matched {
					l.matched[i] = l.kept.n > 0
				}
				l.batch = nil
				if out := l.unmatched(b, l.kind == algebra.SemiJoin); out != nil {
					return out, nil
				}
				continue
			}
		}
		if l.inner == nil {
			b, err := l.reader.next()
			if errors.Is(err, io.EOF) {
				b, l.batch = l.batch, nil
				var out *types.Batch
				switch {
				case l.keepsLeft():
					out = l.unmatched(b, false)
				case l.semi():
					out = l.unmatched(b, l.kind == algebra.SemiJoin)
				}
				if out != nil {
					return out, nil
				}
				continue
			}
			if err != nil {
				return nil, err
			}
			l.inner, l.k, l.r = b, 0, 0
		}
		out, err := l.more()
		if err != nil {
			return nil, err
		}
		if out != nil {
			return out, nil
		}
	}
}

// more looks at the next pairs of the batches in work.
func (l *loopJoin) more() (*types.Batch, error) {
	b, right := l.batch, l.inner
	l.leftIDs, l.rightIDs = l.leftIDs[:0], l.rightIDs[:0]
	rows := b.Rows()
	for l.k < rows && len(l.leftIDs) < types.BatchRows {
		i := int32(l.k)
		if b.Sel != nil {
			i = b.Sel[l.k]
		}
		if l.semi() && l.matched[i] {
			l.k, l.r = l.k+1, 0
			continue
		}
		for l.r < right.Len && len(l.leftIDs) < types.BatchRows {
			l.leftIDs, l.rightIDs = append(l.leftIDs, i), append(l.rightIDs, int32(l.r))
			l.r++
		}
		if l.r == right.Len {
			l.k, l.r = l.k+1, 0
		}
	}
	base := l.base
	if l.k == rows {
		l.base += right.Len
		l.inner = nil
	}
	if len(l.leftIDs) == 0 {
		return nil, nil
	}
	l.pairs.Len, l.pairs.Sel = len(l.leftIDs), nil
	for c := range l.leftTypes {
		pick(l.pairs.Cols[c], b.Cols[c], l.leftIDs)
	}
	for c := range l.rightTypes {
		pick(l.pairs.Cols[len(l.leftTypes)+c], right.Cols[c], l.rightIDs)
	}
	sel, err := holds(l.residual, &l.pairs, nil, &l.sel)
	if err != nil {
		return nil, err
	}
	for k := range count(&l.pairs, sel) {
		p := k
		if sel != nil {
			p = int(sel[k])
		}
		l.matched[l.leftIDs[p]] = true
		if l.found != nil {
			l.found[base+int(l.rightIDs[p])] = true
		}
	}
	if l.semi() || sel != nil && len(sel) == 0 {
		return nil, nil
	}
	l.out.Len, l.out.Sel, l.out.Cols = l.pairs.Len, sel, append(l.out.Cols[:0], l.pairs.Cols...)
	return &l.out, nil
}

// rightRest returns the next right rows that had no match.
func (l *loopJoin) rightRest() (*types.Batch, error) {
	for {
		b, err := l.tail.next()
		if err != nil {
			return nil, err
		}
		l.rightIDs = l.rightIDs[:0]
		for i := range b.Len {
			if !l.found[l.tailAt+i] {
				l.rightIDs = append(l.rightIDs, int32(i))
			}
		}
		l.tailAt += b.Len
		if len(l.rightIDs) > 0 {
			return l.rightOnly(len(l.rightIDs), func(c int, v *types.Vector) { pick(v, b.Cols[c], l.rightIDs) }), nil
		}
	}
}

// lateralJoin runs its right side for each left row.
type lateralJoin struct {
	x           *execution
	kind        algebra.JoinKind
	left, right Operator
	frame       *frame
	on          []evaluator
	leftCols    []*types.Vector // the left row
	nulls       []*types.Vector // of the right side

	batch   *types.Batch
	k       int
	open    bool // the right side runs for row k
	matched bool
	out     types.Batch
	sel     []int32
}

func newLateralJoin(x *execution, r *algebra.Join, left Operator, s *scope, outer *frame) (Operator, error) {
	l := &lateralJoin{x: x, kind: r.Kind, left: left, frame: newFrame(s)}
	var err error
	if l.right, _, err = x.build(r.Right, l.frame); err != nil {
		return nil, err
	}
	both := newScope(x, append(slices.Clip(slices.Clone(r.Left.Columns())), r.Right.Columns()...), outer)
	if l.on, err = compileAll(conjuncts(r.On, nil), both); err != nil {
		return nil, err
	}
	for _, c := range r.Left.Columns() {
		l.leftCols = append(l.leftCols, types.NewConst(c.Type, types.Null))
	}
	for _, c := range r.Right.Columns() {
		l.nulls = append(l.nulls, types.NewConst(c.Type, types.Null))
	}
	return l, nil
}

func (l *lateralJoin) Open(ctx context.Context) error {
	l.batch, l.open = nil, false
	return l.left.Open(ctx)
}

func (l *lateralJoin) Close() error {
	l.batch, l.open = nil, false
	err := l.left.Close()
	if e := l.right.Close(); err == nil {
		err = e
	}
	return err
}

func (l *lateralJoin) Next(ctx context.Context) (*types.Batch, error) {
	for {
		if l.batch == nil {
			b, err := l.left.Next(ctx)
			if err != nil {
				return nil, err
			}
			if err := l.frame.load(b, b.Sel); err != nil {
				return nil, err
			}
			l.batch, l.k = b, 0
		}
		if l.k == l.batch.Rows() {
			l.batch = nil
			continue
		}
		i := l.k
		if l.batch.Sel != nil {
			i = int(l.batch.Sel[l.k])
		}
		if !l.open {
			l.frame.row(i)
			for c, v := range l.leftCols {
				if from := l.batch.Cols[c]; from != nil {
					v.Set(0, from.Value(i))
				}
			}
			if err := l.right.Open(ctx); err != nil {
				return nil, err
			}
			l.open, l.matched = true, false
		}
		b, err := l.right.Next(ctx)
		if errors.Is(err, io.EOF) {
			l.open = false
			l.k++
			if !l.matched && (l.kind == algebra.LeftJoin || l.kind == algebra.AntiJoin) {
				return l.row(l.kind == algebra.LeftJoin), nil
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		l.out.Len, l.out.Sel = b.Len, b.Sel
		l.out.Cols = append(append(l.out.Cols[:0], l.leftCols...), b.Cols...)
		sel, err := holds(l.on, &l.out, b.Sel, &l.sel)
		if err != nil {
			return nil, err
		}
		if sel != nil && len(sel) == 0 {
			continue
		}
		l.matched = true
		switch l.kind {
		case algebra.SemiJoin:
			l.open = false
			l.k++
			return l.row(false), nil
		case algebra.AntiJoin:
			l.open = false
			l.k++
			continue
		}
		l.out.Sel = sel
		return &l.out, nil
	}
}

// row returns the left row alone, beside NULLs if it is padded.
func (l *lateralJoin) row(padded bool) *types.Batch {
	l.out.Len, l.out.Sel = 1, nil
	l.out.Cols = append(l.out.Cols[:0], l.leftCols...)
	if padded {
		l.out.Cols = append(l.out.Cols, l.nulls...)
	}
	return &l.out
}
