package exec

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/query/types"
)

// A Run is a statement that runs. It serves one goroutine. Close must be called.
type Run struct {
	x      *execution
	parent context.Context // that of Query
	// cancel ends all work; nil if all of it is done in the first Next, by the caller.
	cancel context.CancelCauseFunc
	op     Operator
	slots  []int
	out    types.Batch
	opened bool
	err    error
	// again says that the operators can serve another run. single is that they read one
	// row at most.
	again, single bool
}

func newExecution(ctx context.Context, c Config) (*execution, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	return executionIn(ctx, c), cancel
}

// executionIn is newExecution without a context of its own.
func executionIn(ctx context.Context, c Config) *execution {
	x := &execution{Config: c, ctx: ctx, now: c.Params.Now.UnixMicro(), stats: make(map[algebra.Rel]*algebra.Stats, 8)}
	x.account.pool = c.Pool
	return x
}

// Query begins a query: rel, of which cols are the result. Rows are read by Next. The
// run ends with ctx.
func Query(ctx context.Context, c Config, rel algebra.Rel, cols []algebra.OutputColumn) (*Run, error) {
	x := executionIn(ctx, c)
	r := &Run{x: x}
	x.stream = streamOf(rel)
	repeats, single := repeatable(rel)
	r.single = single
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	op, s, err := x.build(rel, nil)
	if err != nil {
		r.Close()
		return nil, err
	}
	r.again = repeats && x.leaves == nil // a fragment is of one run
	if r.op = op; x.stream != nil && x.stream.limit == nil {
		r.op = &skipRows{Operator: op, s: x.stream}
	}
	for _, c := range cols {
		slot, ok := s.slots.of(c.Column)
		if !ok {
			r.Close()
			return nil, fault.New(fault.Internal, "column %d of the result is not there", c.Column)
		}
		r.slots = append(r.slots, slot)
	}
	r.out.Cols = make([]*types.Vector, len(cols))
	return r, nil
}

// begin makes ctx that of the run, and finds out where its rows begin.
func (r *Run) begin(ctx context.Context) (err error) {
	x := r.x
	r.parent, x.ctx = ctx, ctx
	if !r.single {
		x.ctx, r.cancel = context.WithCancelCause(ctx)
	}
	if len(x.Resume) == 0 {
		return nil
	}
	if x.stream == nil {
		err = fault.New(fault.Invalid, "the query cannot be resumed")
	} else {
		x.stream.from, err = parsePosition(x.Resume)
	}
	if err != nil {
		r.Close()
	}
	return err
}

// Repeats tells whether a Run that was closed can be begun again.
func (r *Run) Repeats() bool { return r.again }

// Restart begins a Run anew that Repeats and was closed: what Query does, without building
// operators, which costs more than to read a row.
func (r *Run) Restart(ctx context.Context, c Config) error {
	x := r.x
	x.Config, x.now = c, c.Params.Now.UnixMicro()
	x.account.pool = c.Pool
	for _, s := range x.stats {
		*s = algebra.Stats{}
	}
	s := x.stream
	*s = stream{scan: s.scan, spare: s.last}
	r.opened, r.err = false, nil
	return r.begin(ctx)
}

// repeatable tells whether operators of r can serve several runs: they hold nothing of
// the first one's parameters, context or time. single says that they read one row at
// most.
func repeatable(r algebra.Rel) (ok, single bool) {
	for {
		switch t := r.(type) {
		case *algebra.Keep:
			r = t.Input
		case *algebra.Project:
			for _, c := range t.Computed {
				switch c.Expr.(type) {
				case *algebra.ColumnRef, *algebra.Literal:
				default:
					return false, false
				}
			}
			r = t.Input
		case *algebra.Scan:
			if t.Table.Schema == nil || t.History != nil && t.History.Unpack {
				return false, false
			}
			for _, e := range plan.Constants(t) {
				switch e.(type) {
				case *algebra.Literal, *algebra.Param:
				default:
					return false, false
				}
			}
			a := t.Access
			return true, a != nil && a.Keys != nil && a.Keys.Op == algebra.KeyEqual && a.Keys.Field == algebra.RowKey &&
				len(a.Keys.Values) == 1 && !a.Keys.Array
		default:
			return false, false
		}
	}
}

// Next returns the next rows, or io.EOF. The batch is valid until the next call.
func (r *Run) Next(ctx context.Context) (*types.Batch, error) {
	if r.err != nil {
		return nil, r.err
	}
	if ctx != r.parent && ctx.Done() != nil {
		// The run has a context of its own, which ends with that of each call.
		if r.cancel == nil && !r.opened {
			r.x.ctx, r.cancel = context.WithCancelCause(r.parent)
		}
	}
	if ctx != r.parent && ctx.Done() != nil && r.cancel != nil {
		stop := context.AfterFunc(ctx, func() { r.cancel(context.Cause(ctx)) })
		defer stop()
	}
	b, err := r.next()
	if err != nil {
		if r.x.ctx.Err() != nil && !errors.Is(err, io.EOF) {
			err = context.Cause(r.x.ctx)
		}
		r.err = err
		return nil, err
	}
	r.out.Len, r.out.Sel = b.Len, b.Sel
	for i, s := range r.slots {
		r.out.Cols[i] = b.Cols[s]
	}
	return &r.out, nil
}

func (r *Run) next() (*types.Batch, error) {
	if !r.opened {
		r.opened = true
		if err := r.op.Open(r.x.ctx); err != nil {
			return nil, err
		}
	}
	return r.op.Next(r.x.ctx)
}

// Position returns where another run of the same query can go on behind the rows that
// were given out; nil if there is no such place.
func (r *Run) Position() []byte {
	if r.x.stream == nil {
		return nil
	}
	return r.x.stream.position()
}

// Stats returns what each operator did so far.
func (r *Run) Stats(rel algebra.Rel) *algebra.Stats { return r.x.stats[rel] }

// Close ends the run and frees what it holds. It may be called again.
func (r *Run) Close() error {
	if r.cancel != nil {
		r.cancel(context.Canceled)
		r.cancel = nil
	}
	var err error
	if r.op != nil {
		if err = r.op.Close(); !r.again {
			r.op = nil
		}
	}
	r.err = io.ErrClosedPipe
	r.x.close()
	if r.again { // what it holds while it is not used is its own
		r.parent, r.x.ctx, r.x.Config = nil, nil, Config{}
	}
	return err
}

// close gives back what operators left behind.
func (x *execution) close() {
	for _, s := range slices.Collect(maps.Keys(x.files)) {
		s.close()
	}
	x.account.release(x.account.used.Load())
}
