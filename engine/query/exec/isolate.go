package exec

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
)

// An IsolateSink takes what Isolate makes of rows. An error of a method ends it, and is
// returned as it is.
type IsolateSink interface {
	// Begin says that what follows is of other rows.
	Begin() error
	// Take takes rows of the result. The batch is valid during the call.
	Take(b *types.Batch) error
	// Undo drops what came since the last Begin.
	Undo()
	// Failed says of one row, whose key is valid during the call, why it has no result.
	Failed(key string, err error) error
	// Through says that there is no more of the rows up to a key, which is valid during the
	// call.
	Through(key []byte) error
}

// Isolate runs a query that makes its result of each row of a stored table by itself: a
// Scan under operators that neither sort, group nor join. It gives the result for the
// rows of the table that are in within, sorted and disjoint ranges, in the order of
// their keys. An error of a row leaves the others: they are evaluated again, one by one.
// key is a column of the Scan that has the row key. If tell is not 0, Isolate calls Through
// after each batch of rows, and where none is read for so long, when the reader next pauses.
func Isolate(ctx context.Context, c Config, rel algebra.Rel, cols []algebra.OutputColumn, key algebra.ColumnID, within []row.Range, tell time.Duration, to IsolateSink) error {
	x, cancel := newExecution(ctx, c)
	defer cancel(context.Canceled)
	defer x.close()
	s := onlyScan(rel)
	if s == nil {
		return fault.New(fault.Internal, "no single table to evaluate the rows of")
	}
	op, err := newScan(x, s, nil)
	if err != nil {
		return err
	}
	rows, ok := op.(*tableScan)
	if !ok {
		return fault.New(fault.Internal, "no stored table to evaluate the rows of")
	}
	rows.position, rows.within, rows.tell = true, within, tell
	in := &isolated{}
	x.leaves, x.local = map[algebra.Rel]Operator{s: in}, true
	out, scope, err := x.build(rel, nil)
	if err != nil {
		return err
	}
	r := isolation{in: in, out: out, to: to}
	for _, c := range cols {
		slot, ok := scope.slots.of(c.Column)
		if !ok {
			return fault.New(fault.Internal, "column %d of the result is not there", c.Column)
		}
		r.slots = append(r.slots, slot)
	}
	r.batch.Cols = make([]*types.Vector, len(cols))
	keys := -1
	for i := range s.Uses {
		if s.Uses[i].ID == key {
			keys = i
		}
	}
	if keys < 0 {
		return fault.New(fault.Internal, "the rows have no keys")
	}
	defer func() {
		_ = rows.Close() // all its errors have come from Next
		_ = out.Close()
	}()
	if err := rows.Open(x.ctx); err != nil {
		return err
	}
	for {
		b, err := rows.Next(x.ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && b.Len > 0 {
			err = r.rows(x.ctx, b, b.Cols[keys])
		}
		if err == nil && tell > 0 {
			err = to.Through(rows.lastKey())
		}
		if err != nil {
			return err
		}
	}
}

// onlyScan returns the only Scan under r, nil if there is not one.
func onlyScan(r algebra.Rel) *algebra.Scan {
	for {
		switch t := r.(type) {
		case *algebra.Scan:
			return t
		case *algebra.Filter:
			r = t.Input
		case *algebra.Project:
			r = t.Input
		case *algebra.Keep:
			r = t.Input
		case *algebra.Unnest:
			r = t.Input
		default:
			return nil
		}
	}
}

// isolation is one run of Isolate.
type isolation struct {
	in    *isolated
	out   Operator
	slots []int
	batch types.Batch
	to    IsolateSink
	one   [1]int32
}

// rows evaluates the rows of a batch of the Scan.
func (r *isolation) rows(ctx context.Context, b *types.Batch, keys *types.Vector) error {
	if err := r.to.Begin(); err != nil {
		return err
	}
	r.in.batch = *b
	failed, err := r.run(ctx)
	if err != nil {
		return err
	}
	if failed == nil {
		return nil
	}
	r.to.Undo()
	for k := range b.Rows() {
		i := int32(k)
		if b.Sel != nil {
			i = b.Sel[k]
		}
		r.one[0] = i
		r.in.batch = types.Batch{Len: b.Len, Sel: r.one[:], Cols: b.Cols}
		if err := r.to.Begin(); err != nil {
			return err
		}
		if failed, err = r.run(ctx); err != nil {
			return err
		}
		if failed != nil {
			r.to.Undo()
			if err := r.to.Failed(keys.Strs[keys.At(int(i))], failed); err != nil {
				return err
			}
		}
	}
	return nil
}

// run gives the result of the rows of r.in. failed is an error of one of them.
func (r *isolation) run(ctx context.Context) (failed, err error) {
	if err := r.out.Open(ctx); err != nil {
		return r.ofRow(ctx, err)
	}
	for {
		b, err := r.out.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return r.ofRow(ctx, err)
		}
		r.batch.Len, r.batch.Sel = b.Len, b.Sel
		for i, s := range r.slots {
			r.batch.Cols[i] = b.Cols[s]
		}
		if err := r.to.Take(&r.batch); err != nil {
			return nil, err
		}
	}
}

// ofRow tells errors of rows from others: those of functions, and of memory that one row
// takes.
func (*isolation) ofRow(ctx context.Context, err error) (failed, other error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if k := fault.KindOf(err); k == fault.OutOfRange || k == fault.Invalid || OfQuery(err) {
		return err, nil
	}
	return nil, err
}

// isolated is an Operator that gives one batch.
type isolated struct {
	batch types.Batch
	done  bool
}

func (o *isolated) Open(context.Context) error { o.done = false; return nil }
func (o *isolated) Close() error               { return nil }
func (o *isolated) Next(context.Context) (*types.Batch, error) {
	if o.done {
		return nil, io.EOF
	}
	o.done = true
	return &o.batch, nil
}
