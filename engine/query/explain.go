package query

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/exec"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// explain returns the plan of a statement, a row for each operator. EXPLAIN ANALYZE
// runs it first, and throws its rows away.
func (e *Engine) explain(ctx context.Context, c exec.Config, p *Prepared) (Rows, error) {
	x := plan.Explanation{
		Eval: func(expr algebra.Expr) (types.Value, error) { return exec.Constant(ctx, c, expr) },
		Tablets: func(table string, ranges []row.Range) (int, error) {
			return countTablets(ctx, e.source, table, ranges)
		},
	}
	if p.plan.Explain == algebra.ExplainAnalyze {
		c.Measure = true
		var err error
		if x.Stats, err = analyzeRun(ctx, c, p.plan); err != nil {
			return nil, err
		}
	}
	rows, err := plan.Explain(p.plan, x)
	if err != nil {
		return nil, err
	}
	out := &ready{}
	for len(rows) > 0 {
		n := min(len(rows), types.BatchRows)
		b := &types.Batch{Len: n}
		for k, c := range plan.ExplainColumns {
			v := types.NewVector(c.Type, n)
			for i, r := range rows[:n] {
				v.Set(i, r[k])
			}
			b.Cols = append(b.Cols, v)
		}
		out.batches = append(out.batches, b)
		rows = rows[n:]
	}
	return out, nil
}

// analyzeRun runs a statement to its end and returns what its operators did.
func analyzeRun(ctx context.Context, c exec.Config, stmt *algebra.Statement) (func(algebra.Rel) *algebra.Stats, error) {
	if stmt.Mutation != nil {
		_, stats, err := exec.Mutate(ctx, c, stmt.Mutation)
		return stats, err
	}
	c.Resume = nil
	r, err := exec.Query(ctx, c, stmt.Query, stmt.Columns)
	if err != nil {
		return nil, err
	}
	for err == nil {
		_, err = r.Next(ctx)
	}
	// What a scan has read is known when it has ended.
	if e := r.Close(); errors.Is(err, io.EOF) {
		err = e
	}
	return r.Stats, err
}

// countTablets returns how many tablets have rows in ranges.
func countTablets(ctx context.Context, s Source, table string, ranges []row.Range) (int, error) {
	within := row.Range{Start: ranges[0].Start, End: ranges[len(ranges)-1].End}
	n := 0
	var start []byte
	first := true
	err := s.SampleRowKeys(ctx, table, within, func(at scan.Sample) error {
		if !first && len(at.Key) > 0 && bytes.Equal(at.Key, start) {
			return nil
		}
		tablet := row.Range{Start: start, End: bytes.Clone(at.Key)}
		for _, r := range ranges {
			if !r.Intersect(tablet).Empty() {
				n++
				break
			}
		}
		start, first = tablet.End, false
		return nil
	})
	return n, err
}
