package exec

import (
	"context"
	"io"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// An Operator gives the rows of a relation. It serves one goroutine.
type Operator interface {
	// Open starts from the first row, also after rows were taken: of a subquery, once for
	// each row of the query around it. The expressions that it was built with may have
	// another value each time.
	Open(ctx context.Context) error
	// Next returns some rows, at least one, or io.EOF. The batch is the caller's to read
	// until the next call of any method.
	Next(ctx context.Context) (*types.Batch, error)
	// Close frees what the rows took. It may come at any time, and more than once; Open
	// may follow.
	Close() error
}

// build returns the operator of r, and the scope of its output: which column lies
// in which slot of a batch. The columns of rows around r are found by way of outer,
// nil if there are none.
func (x *execution) build(r algebra.Rel, outer *frame) (Operator, *scope, error) {
	if x.depth++; x.depth > maxDepth {
		return nil, nil, fault.New(fault.Exhausted, "the query is nested too deeply")
	}
	defer func() { x.depth-- }()
	op, err := x.buildRel(r, outer)
	if err != nil {
		return nil, nil, err
	}
	s := newScope(x, r.Columns(), outer)
	return &measured{op: op, stats: x.statsOf(r), timed: x.Measure}, s, nil
}

// maxDepth bounds how deeply relations and expressions may nest in each other,
// above what the parser lets through.
const maxDepth = 25000

func (x *execution) buildRel(r algebra.Rel, outer *frame) (Operator, error) {
	if op := x.leaves[r]; op != nil {
		return op, nil
	}
	if op, err := x.buildFragment(r, outer); op != nil || err != nil {
		return op, err
	}
	switch r := r.(type) {
	case *algebra.OneRow:
		return &oneRow{}, nil
	case *algebra.Scan:
		if r.Table.Schema == nil {
			return newRelationScan(x, r), nil
		}
		op, err := newScan(x, r, outer)
		if t, ok := op.(*tableScan); ok && x.stream != nil && x.stream.scan == r {
			t.position = true
			return tracked{t, x.stream}, err
		}
		return op, err
	case *algebra.Filter:
		return newFilter(x, r, outer)
	case *algebra.Project:
		return newProject(x, r, outer)
	case *algebra.Keep:
		return newKeep(x, r, outer)
	case *algebra.Join:
		return newJoin(x, r, outer)
	case *algebra.Unnest:
		return newUnnest(x, r, outer)
	case *algebra.Aggregate:
		return newAggregate(x, r, outer)
	case *algebra.Sort:
		return newSort(x, r, outer, nil, nil, nil)
	case *algebra.Limit:
		return newLimit(x, r, outer)
	case *algebra.SetOperation:
		return newSetOperation(x, r, outer)
	case *algebra.Window:
		return newWindow(x, r, outer)
	case *algebra.With:
		return newWith(x, r, outer)
	case operatorRel:
		return r.operator(), nil
	case *algebra.Ref:
		return newRef(x, r)
	}
	return nil, fault.New(fault.Internal, "no operator for %T", r)
}

// operatorRel is a relation that brings its operator along.
type operatorRel interface {
	algebra.Rel
	operator() Operator
}

// measured counts what an operator gives out. It looks at the context for all
// operators.
type measured struct {
	op    Operator
	stats *algebra.Stats
	timed bool
}

func (m *measured) Open(ctx context.Context) error {
	m.stats.Opens++
	if !m.timed {
		return m.op.Open(ctx)
	}
	start := time.Now()
	err := m.op.Open(ctx)
	m.stats.Wall += time.Since(start)
	return err
}

func (m *measured) Next(ctx context.Context) (*types.Batch, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	var start time.Time
	if m.timed {
		start = time.Now()
	}
	b, err := m.op.Next(ctx)
	if m.timed {
		m.stats.Wall += time.Since(start)
	}
	if err == nil {
		m.stats.Batches++
		m.stats.Rows += int64(b.Rows())
	}
	return b, err
}

func (m *measured) Close() error { return m.op.Close() }

// oneRow is a row without columns.
type oneRow struct {
	done  bool
	batch types.Batch
}

func (o *oneRow) Open(context.Context) error { o.done = false; return nil }
func (o *oneRow) Close() error               { return nil }
func (o *oneRow) Next(context.Context) (*types.Batch, error) {
	if o.done {
		return nil, io.EOF
	}
	o.done = true
	o.batch.Len = 1
	return &o.batch, nil
}
