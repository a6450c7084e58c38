package plan

import (
	"slices"
	"strconv"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// Options say what Make does. The zero value is what queries run with.
type Options struct {
	// Plain leaves out all that makes a query cheaper: tests compare the results.
	Plain bool
}

// Make returns a statement with the same result as stmt, which is cheaper to run. stmt
// does not change. What package analyze leaves to a plan is done, too: WRITE_TIMESTAMP is
// a column of a Scan.
func Make(stmt *algebra.Statement, o Options) *algebra.Statement {
	p := &planner{next: stmt.NextColumn, plain: o.Plain}
	out := *stmt
	if stmt.Query != nil {
		ids := make([]*algebra.ColumnID, len(stmt.Columns))
		out.Columns = slices.Clone(stmt.Columns)
		for i := range out.Columns {
			ids[i] = &out.Columns[i].Column
		}
		out.Query = p.query(stmt.Query, ids)
	}
	if m := stmt.Mutation; m != nil {
		c := *m
		c.Targets = slices.Clone(m.Targets)
		ids := []*algebra.ColumnID{&c.Key}
		for i := range c.Targets {
			t := &c.Targets[i]
			ids = append(ids, &t.Value)
			if t.Qualifier != nil {
				q := *t.Qualifier
				t.Qualifier = &q
				ids = append(ids, &q)
			}
		}
		c.Input = p.query(m.Input, ids)
		out.Mutation = &c
	}
	out.NextColumn = p.next
	return &out
}

type planner struct {
	next  algebra.ColumnID
	plain bool
}

// query plans the query of a statement. need are the columns that count, which may
// become others with the same values.
func (p *planner) query(r algebra.Rel, need []*algebra.ColumnID) algebra.Rel {
	follow := func(of map[algebra.ColumnID]algebra.Column) {
		for _, id := range need {
			if c, ok := of[*id]; ok {
				*id = c.ID
			}
		}
	}
	if !p.plain {
		var of map[algebra.ColumnID]algebra.Column
		r, of = copies(inline(r), nil)
		follow(of)
		r = p.unnestQueries(r)
		r = p.push(r, nil)
	}
	n := newNarrowing(p)
	n.collect(r)
	r = n.replace(r)
	if !p.plain {
		var of map[algebra.ColumnID]algebra.Column
		r, of = copies(r, n.cells)
		follow(of)
	}
	set := columnSet{}
	for _, id := range need {
		set[*id] = true
	}
	n.values = n.valuesOf(r, set)
	r = n.prune(r, set)
	if !p.plain {
		r = p.access(r, reach{})
		// Conditions on keys have gone, and perhaps all that the keys were read for.
		n.values = n.valuesOf(r, set)
		r = n.prune(r, set)
		prepareFilters(r)
	}
	return r
}

func quote(s string) string { return strconv.Quote(s) }

var boolType = types.BoolType

// call returns a call of a function of the table whose first signature takes args.
func call(name string, args ...algebra.Expr) algebra.Expr {
	f := functions.Lookup(name)
	return &algebra.Call{Function: f, Signature: f.Signatures[0], Args: args, T: boolType}
}

func not(e algebra.Expr) algebra.Expr    { return call("$not", e) }
func isNull(e algebra.Expr) algebra.Expr { return call("$is_null", e) }

// and returns the conjunction of list, nil if it is empty.
func and(list []algebra.Expr) algebra.Expr {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return call("$and", list...)
}

// conjuncts appends the parts of e of which each must be TRUE for e to be so.
func conjuncts(dst []algebra.Expr, e algebra.Expr) []algebra.Expr {
	if c, ok := isFunction(e, "$and"); ok && !c.Safe {
		for _, a := range c.Args {
			dst = conjuncts(dst, a)
		}
		return dst
	}
	if e != nil {
		dst = append(dst, e)
	}
	return dst
}
