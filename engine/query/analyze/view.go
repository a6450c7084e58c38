package analyze

import (
	"context"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
)

// View returns the rows of the view called name, whose columns have the names of the
// view's, and the tables that they come from, with the view first. Columns are numbered
// from next on; after is larger than any of them.
func View(ctx context.Context, cat algebra.Catalog, name string, next algebra.ColumnID) (rel algebra.Rel, tables []*algebra.Table, after algebra.ColumnID, err error) {
	a := &analyzer{ctx: ctx, catalog: cat, st: &algebra.Statement{}, next: next}
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(bailout)
			if !ok {
				panic(r)
			}
			rel, err = nil, b.err
		}
	}()
	t := a.mustTable(name, 0)
	if t.View == nil {
		return nil, nil, 0, fault.New(fault.Invalid, "%s is no view", name)
	}
	rel, _ = a.view(t, name, 0)
	return a.foldRel(rel), a.st.Tables, a.next, nil
}

// Same tells whether two expressions give the same value for the same row.
func Same(x, y algebra.Expr) bool { return same(x, y) }

// Rewrite returns e with parts replaced: f is called for each expression from the
// outside in, and returns what stands in its place, or nil to go on inside. e itself
// does not change.
func Rewrite(e algebra.Expr, f func(algebra.Expr) algebra.Expr) algebra.Expr { return rewrite(e, f) }
