package analyze

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// The bounds of a statement. maxDepth is how far expressions and queries may nest, a
// little more than the parser lets through. maxViews is how far views may refer to
// views, and maxExpansions how many views a statement may expand: a view that joins two
// of another, 16 levels deep, would be 65,536. maxSets is how many grouping sets a GROUP
// BY may have, maxColumns how many columns a select list, and maxKeys how many keys an
// order or a GROUP BY: each key is compared with each column.
const (
	maxDepth      = 20000
	maxViews      = 16
	maxExpansions = 1000
	maxSets       = 4096
	maxColumns    = 10000
	maxKeys       = 1000
)

// Statement analyzes stmt, which syntax.Parse made of text. params has the types
// of the statement's parameters by name, in lower case; those that are not used are
// no error. Errors of the statement are fault.Invalid, with GoogleSQL's text and
// the position in text. Errors of cat other than NotFound are returned as they are.
func Statement(ctx context.Context, cat algebra.Catalog, stmt syntax.Statement, text string, params map[string]*types.Type) (st *algebra.Statement, err error) {
	a := &analyzer{ctx: ctx, catalog: cat, text: text, declared: params, st: &algebra.Statement{}, next: 1}
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(bailout)
			if !ok {
				panic(r)
			}
			st, err = nil, b.err
		}
	}()
	a.statement(stmt)
	a.st.NextColumn = a.next
	return a.st, nil
}

// An analyzer is the state of one Statement.
type analyzer struct {
	ctx      context.Context
	catalog  algebra.Catalog
	text     string // of the statement, or of the view that is being expanded
	declared map[string]*types.Type
	st       *algebra.Statement
	next     algebra.ColumnID
	depth    int
	with     *with    // the WITH clauses around
	views    []string // the views that are being expanded, outermost first
	expanded int      // how many views were
	definer  string   // of the innermost view
	names    map[string]int
	refs     []reference // where columns were named, for messages
}

// A reference is where a column was named, and what messages call it.
type reference struct {
	expr *algebra.ColumnRef
	pos  syntax.Pos
	text string
	star bool // it was not named, but is one of a star
	bare bool // it stands in a SELECT without FROM
}

// A bailout carries an error up to Statement.
type bailout struct{ err error }

// fail ends the analysis with an error at pos.
func (a *analyzer) fail(pos syntax.Pos, format string, args ...any) {
	line, column := syntax.Location(a.text, pos)
	message := fmt.Sprintf(format, args...)
	if n := len(a.views); n > 0 {
		message = fmt.Sprintf("Invalid view %s: %s", types.QuoteIdentifier(a.views[n-1]), message)
	}
	panic(bailout{fault.New(fault.Invalid, "%s [at %d:%d]", message, line, column)})
}

// must ends the analysis with err unless it is nil.
func must(err error) {
	if err != nil {
		panic(bailout{err})
	}
}

// keyword returns where word, the last before pos, stands; pos if it does not.
func (a *analyzer) keyword(word string, pos syntax.Pos) syntax.Pos {
	text := a.text[:min(int(pos), len(a.text))]
	for i := len(text) - len(word); i >= 0; i-- {
		if strings.EqualFold(text[i:i+len(word)], word) {
			return syntax.Pos(i)
		}
	}
	return pos
}

// asBefore returns where the AS of an alias at pos stands; pos if there is none.
func (a *analyzer) asBefore(pos syntax.Pos) syntax.Pos {
	text := strings.TrimRight(a.text[:min(int(pos), len(a.text))], " \t\r\n`")
	if n := len(text) - 2; n > 0 && strings.EqualFold(text[n:], "AS") {
		return syntax.Pos(n)
	}
	return pos
}

// enter counts a level of nesting, and leave ends it.
func (a *analyzer) enter(pos syntax.Pos) {
	if a.depth++; a.depth > maxDepth {
		a.fail(pos, "Query is nested too deeply: more than %d levels", maxDepth)
	}
	if a.depth%64 == 0 {
		must(context.Cause(a.ctx))
	}
}

func (a *analyzer) leave() { a.depth-- }

// column returns a new column.
func (a *analyzer) column(name string, t *types.Type) algebra.Column {
	c := algebra.Column{ID: a.next, Name: name, Type: t}
	a.next++
	return c
}

// unique returns name, or name with a number behind it if it has been given out.
func (a *analyzer) unique(name string) string {
	if a.names == nil {
		a.names = map[string]int{}
	}
	key := strings.ToLower(name)
	a.names[key]++
	if n := a.names[key]; n > 1 {
		return a.unique(fmt.Sprintf("%s#%d", name, n))
	}
	return name
}

func (a *analyzer) statement(stmt syntax.Statement) {
	switch stmt := stmt.(type) {
	case *syntax.QueryStatement:
		r := a.query(stmt.Query, nil)
		a.st.Query = a.foldRel(keep(r))
		a.st.UseViews = a.useViews(stmt.Hints)
		a.st.Ordered = r.ordered
		a.st.ValueTable = r.value
		for _, c := range r.cols {
			a.st.Columns = append(a.st.Columns, algebra.OutputColumn{Name: c.name, Column: c.col.ID, Type: c.col.Type})
		}
		if len(a.st.Columns) == 0 {
			a.fail(stmt.At(), "SELECT produces no columns")
		}
	case *syntax.Explain:
		if a.st.Explain != algebra.NoExplain {
			a.fail(stmt.At(), "EXPLAIN of EXPLAIN is not supported")
		}
		a.st.Explain = algebra.ExplainPlan
		if stmt.Analyze {
			a.st.Explain = algebra.ExplainAnalyze
		}
		a.statement(stmt.Statement)
	case *syntax.Insert:
		a.insert(stmt)
	case *syntax.Update:
		a.update(stmt)
	case *syntax.Delete:
		a.delete(stmt)
	default:
		a.fail(stmt.At(), "Statement not supported: %T", stmt)
	}
}

// useViews tells what the hint use_materialized_views says. Other hints change nothing.
func (a *analyzer) useViews(hints []syntax.Hint) (use bool) {
	for _, h := range hints {
		if !strings.EqualFold(joined(h.Name.Names), "use_materialized_views") {
			continue
		}
		b, ok := h.Value.(*syntax.BoolLiteral)
		if !ok {
			a.fail(h.Value.At(), "Hint use_materialized_views must be TRUE or FALSE")
		}
		use = b.Value
	}
	return use
}

// table returns the table called name, or nil if there is none.
func (a *analyzer) table(name string) *algebra.Table {
	t, err := a.catalog.Table(a.ctx, name)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	must(err)
	known := false
	for _, u := range a.st.Tables {
		known = known || u == t
	}
	if !known {
		a.st.Tables = append(a.st.Tables, t)
	}
	return t
}
