package query

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/analyze"
	"github.com/trestledb/trestle/engine/query/exec"
	"github.com/trestledb/trestle/engine/query/materialize"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A Source reads and writes the rows of stored tables. gateway/backend.Data is
// one. The principal of the caller is in the context, as for the backend.
type Source interface {
	// ReadRows gives the rows of req to w, as gateway/backend.Data does.
	ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error)
	// MutateRows applies entries, as gateway/backend.Data does.
	MutateRows(ctx context.Context, table string, entries []row.Entry, done func(i int, err error)) error
	// SampleRowKeys tells where a table's tablets are cut, as gateway/backend.Data does.
	SampleRowKeys(ctx context.Context, table string, within row.Range, emit func(scan.Sample) error) error
	// TabletCuts tells where tablets may be cut, as gateway/backend.Data does.
	TabletCuts(ctx context.Context, table string, within row.Range) ([][]byte, error)
}

// Options are those of an Engine. The zero value is usable.
type Options struct {
	// QueryMemory is what one query may take before it spills to Dir, in bytes: 0 is
	// 64 MiB. Memory is what all queries may take together: 0 is four times that.
	QueryMemory, Memory int64
	// Dir is where queries spill to; empty is the system's temporary directory. SpillLimit
	// is how much all queries may spill, in bytes: 0 is 64 GiB.
	Dir        string
	SpillLimit int64
	// DiskFree returns how many bytes are free where Dir is, and KeepFree is how many of
	// them queries leave to others. A nil DiskFree does not look.
	DiskFree func() int64
	KeepFree int64
	// Parallel is how many tablets, or parts of large ones, a query reads at a time: 0 is 4.
	Parallel int
	// As returns the context of a call with the rights of a view's definer. Nil leaves the
	// caller's.
	As func(ctx context.Context, definer string) (context.Context, error)
}

// An Engine prepares and runs statements. It is safe for concurrent use.
type Engine struct {
	source Source
	opt    Options
	pool   *exec.Pool
}

// New returns an Engine that reads and writes through source.
func New(source Source, o Options) *Engine {
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	return &Engine{source: source, opt: o,
		pool: exec.NewPool(exec.Limits{Query: o.QueryMemory, Memory: o.Memory, Dir: o.Dir, Spill: o.SpillLimit, Free: o.DiskFree, KeepFree: o.KeepFree})}
}

// Used returns the bytes of memory that queries hold now, and those of their temporary
// files.
func (e *Engine) Used() (memory, spilled int64) { return e.pool.Used() }

// Prepare analyzes text, whose tables are those of cat. If cat is a materialize.Catalog, and
// the text asks for it by a hint, its materialized views may answer. params has the types of its
// parameters by name, in lower case. Errors of the text are fault.Invalid.
func (e *Engine) Prepare(ctx context.Context, cat algebra.Catalog, text string, params map[string]*types.Type) (*Prepared, error) {
	tree, err := syntax.Parse(text)
	if err != nil {
		return nil, err
	}
	stmt, err := analyze.Statement(ctx, cat, tree, text, params)
	if err != nil {
		return nil, err
	}
	if c, ok := cat.(materialize.Catalog); ok {
		if err := materialize.Use(ctx, c, stmt); err != nil {
			return nil, err
		}
	}
	return newPrepared(text, stmt, plan.Options{}), nil
}

func newPrepared(text string, stmt *algebra.Statement, o plan.Options) *Prepared {
	p := &Prepared{Text: text, Statement: stmt, plan: plan.Make(stmt, o)}
	p.streams = p.plan.Explain == algebra.NoExplain && p.plan.Mutation == nil && exec.Streams(p.plan.Query)
	return p
}

// A Prepared is a statement that has been analyzed. It does not change, and is safe
// for concurrent use.
type Prepared struct {
	Text      string
	Statement *algebra.Statement
	// plan is Statement as it is run.
	plan *algebra.Statement
	// idle has runs that are closed and can be begun again.
	idle    sync.Pool
	streams bool
}

// Columns returns the columns of the result: at least one.
func (p *Prepared) Columns() []algebra.OutputColumn {
	if p.Statement.Explain != algebra.NoExplain {
		return plan.ExplainColumns
	}
	return p.Statement.Columns
}

// Streams tells whether Rows of the statement have a Position.
func (p *Prepared) Streams() bool { return p.streams }

// A Request says how a Prepared is executed.
type Request struct {
	// Params are the values of the statement's parameters.
	Params algebra.Params
	// Resume is a Position that an execution of the same statement with the same
	// parameters gave out: rows up to it are left out. Empty is the beginning.
	Resume []byte
	// Deadline for what a caller waits, zero for none, is that of the context.
	Deadline time.Time
	// ReadOnly refuses DML.
	ReadOnly bool
}

// Rows are the rows of a result, in batches. Close must be called.
type Rows interface {
	// Next returns the next rows, or io.EOF. Their Cols are those of Prepared.Columns. The
	// batch is valid until the next call.
	Next(ctx context.Context) (*types.Batch, error)
	// Position returns bytes from which another execution can go on behind the last batch,
	// or nil if this plan cannot be resumed: it sorts or groups.
	Position() []byte
	// Close ends all work of the query and frees what it holds.
	Close() error
}

// Execute begins a statement. The context ends the work; its caller is the principal of
// reads and writes. DML has been done when Execute returns: its rows are one, with
// rows_affected.
func (e *Engine) Execute(ctx context.Context, p *Prepared, r Request) (Rows, error) {
	if has, ok := ctx.Deadline(); r.Deadline.IsZero() || ok && !r.Deadline.Before(has) {
		return e.execute(ctx, p, r)
	}
	within, cancel := context.WithDeadline(ctx, r.Deadline)
	rows, err := e.execute(within, p, r)
	if err != nil {
		cancel()
		return nil, err
	}
	return &running{Rows: rows, ctx: ctx, within: within, cancel: cancel}, nil
}

// running is Rows with a deadline: within is ctx with it.
type running struct {
	Rows
	ctx, within context.Context
	cancel      context.CancelFunc
}

func (r *running) Next(ctx context.Context) (*types.Batch, error) {
	if ctx == r.ctx {
		ctx = r.within
	}
	return r.Rows.Next(ctx)
}

func (r *running) Close() error {
	err := r.Rows.Close()
	r.cancel()
	return err
}

func (e *Engine) execute(ctx context.Context, p *Prepared, r Request) (Rows, error) {
	c := exec.Config{Source: e.source, Pool: e.pool, Params: r.Params, Parallel: e.opt.Parallel, As: e.opt.As, Resume: r.Resume}
	stmt := p.plan
	if stmt.Mutation != nil && r.ReadOnly && stmt.Explain != algebra.ExplainPlan {
		return nil, fault.New(fault.PermissionDenied, "the statement writes, and only reading is allowed here")
	}
	if stmt.Explain != algebra.NoExplain {
		return e.explain(ctx, c, p)
	}
	if stmt.Mutation != nil {
		affected, _, err := exec.Mutate(ctx, c, stmt.Mutation)
		if err != nil {
			return nil, err
		}
		v := types.NewConst(types.Int64Type, types.NewInt(affected))
		return &ready{batches: []*types.Batch{{Len: 1, Cols: []*types.Vector{v}}}}, nil
	}
	if run, ok := p.idle.Get().(*exec.Run); ok {
		if err := run.Restart(ctx, c); err != nil {
			return nil, err
		}
		return &borrowed{run: run, of: p}, nil
	}
	run, err := exec.Query(ctx, c, stmt.Query, stmt.Columns)
	switch {
	case err != nil:
		return nil, err
	case run.Repeats():
		return &borrowed{run: run, of: p}, nil
	}
	return run, nil
}

// borrowed is a run that goes back to its statement.
type borrowed struct {
	run *exec.Run // nil when it is back
	of  *Prepared
	// broken says that a Next failed, or did not return.
	broken bool
}

func (b *borrowed) Next(ctx context.Context) (*types.Batch, error) {
	if b.run == nil {
		return nil, io.ErrClosedPipe
	}
	b.broken = true
	batch, err := b.run.Next(ctx)
	b.broken = err != nil && !errors.Is(err, io.EOF)
	return batch, err
}

func (b *borrowed) Position() []byte {
	if b.run == nil {
		return nil
	}
	return b.run.Position()
}

func (b *borrowed) Close() error {
	if b.run == nil {
		return nil
	}
	err := b.run.Close()
	if err == nil && !b.broken {
		b.of.idle.Put(b.run)
	}
	b.run = nil
	return err
}

// ready is rows that are there already.
type ready struct{ batches []*types.Batch }

func (r *ready) Next(context.Context) (*types.Batch, error) {
	if len(r.batches) == 0 {
		return nil, io.EOF
	}
	b := r.batches[0]
	r.batches = r.batches[1:]
	return b, nil
}

func (r *ready) Position() []byte { return nil }
func (r *ready) Close() error     { return nil }
