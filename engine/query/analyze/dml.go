package analyze

import (
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// A target is a column that DML writes.
type target struct {
	pos       syntax.Pos
	key       bool
	family    string
	qualifier algebra.Expr // nil for the key and for a whole family
	typ       *types.Type
}

// dmlTable returns the table that DML writes.
func (a *analyzer) dmlTable(path *syntax.Path) *algebra.Table {
	t := a.mustTable(joined(path.Names), path.At())
	if t.Schema == nil {
		a.fail(path.At(), "Table %s is a view or another relation that cannot be written", types.QuoteIdentifier(t.Name))
	}
	return t
}

// target analyzes e: _key, a family, or a column f['q'] of one.
func (a *analyzer) target(t *algebra.Table, e syntax.Expr, v *env) target {
	out := target{pos: e.At()}
	name := e
	sub, isSub := e.(*syntax.Subscript)
	if isSub {
		name = sub.Base
	}
	if d, ok := name.(*syntax.Dot); ok && !isSub {
		// alias.family
		if _, ok := d.Base.(*syntax.Name); ok {
			name = &syntax.Name{Identifier: d.Name}
		}
	}
	n, ok := name.(*syntax.Name)
	if !ok {
		a.fail(e.At(), "A column to be written must be _key, a family, or family['qualifier']")
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		if !strings.EqualFold(c.Name, n.Name) {
			continue
		}
		switch c.Kind {
		case algebra.RowKeyColumn:
			if isSub {
				a.fail(e.At(), "Column _key has no qualifiers")
			}
			out.key, out.typ = true, c.Type
			return out
		case algebra.FamilyColumn:
			out.family, out.typ = c.Family, c.Type
			if isSub {
				out.qualifier = a.asType(sub.Index, v, c.Type.Key, "A qualifier")
				out.typ = c.Type.Elem
			}
			return out
		}
		a.fail(e.At(), "Column %s cannot be written; write _key", types.QuoteIdentifier(c.Name))
	}
	a.fail(n.At(), "Column %s is not present in table %s", types.QuoteIdentifier(n.Name), types.QuoteIdentifier(t.Name))
	return out
}

// same tells whether both are the same column for certain.
func (t *target) same(u *target) bool {
	return t.key == u.key && t.family == u.family && same(t.qualifier, u.qualifier)
}

// mutated completes the statement of a mutation.
func (a *analyzer) mutated(m *algebra.Mutation) {
	m.Input = a.foldRel(m.Input)
	a.st.Mutation = m
	c := a.column("rows_affected", types.Int64Type)
	a.st.Columns = []algebra.OutputColumn{{Name: c.Name, Column: c.ID, Type: c.Type}}
}

// targets turns list into those of m, and returns what computes their qualifiers.
func (a *analyzer) targets(m *algebra.Mutation, list []target, values []algebra.ColumnID, deleted []bool) []algebra.Computed {
	var computed []algebra.Computed
	for i := range list {
		t := &list[i]
		if t.key {
			m.Key = values[i]
			continue
		}
		out := algebra.Target{Family: t.family, Value: values[i], Delete: deleted[i]}
		if t.qualifier != nil {
			c := a.column("qualifier", t.qualifier.Type())
			computed = append(computed, algebra.Computed{Column: c, Expr: t.qualifier})
			out.Qualifier = &c.ID
		}
		m.Targets = append(m.Targets, out)
	}
	return computed
}

func (a *analyzer) insert(s *syntax.Insert) {
	t := a.dmlTable(s.Table)
	m := &algebra.Mutation{Kind: algebra.InsertRows, Table: t, Mode: s.Mode}
	v := &env{clause: "INSERT"}
	if len(s.Columns) == 0 {
		a.fail(s.At(), "INSERT needs a list of columns: _key, and families or family['qualifier']")
	}
	var list []target
	key := false
	for _, e := range s.Columns {
		c := a.target(t, e, v)
		for i := range list {
			if list[i].same(&c) {
				a.fail(c.pos, "INSERT has duplicate columns")
			}
		}
		key = key || c.key
		list = append(list, c)
	}
	if !key {
		a.fail(s.At(), "INSERT needs the column _key")
	}
	if len(list) == 1 {
		a.fail(s.At(), "INSERT needs at least one column besides _key: a row without cells does not exist")
	}
	values := make([]algebra.ColumnID, len(list))
	if s.Query != nil {
		r := a.query(s.Query, nil)
		if len(r.cols) != len(list) {
			a.fail(s.Query.At(), "Inserted row has wrong column count; Has %d, expected %d", len(r.cols), len(list))
		}
		m.Input = a.insertQuery(r, list, values)
	} else {
		m.Input = a.insertRows(s, list, values, v)
	}
	if q := a.targets(m, list, values, make([]bool, len(list))); len(q) > 0 {
		m.Input = &algebra.Project{Input: m.Input, Computed: q}
	}
	a.mutated(m)
}

// insertQuery converts the columns of a query to the types of the columns to be
// written.
func (a *analyzer) insertQuery(r *relation, list []target, values []algebra.ColumnID) algebra.Rel {
	rel := r.rel
	var computed []algebra.Computed
	for i := range list {
		c := &r.cols[i]
		var x algebra.Expr = &algebra.ColumnRef{Column: c.col}
		if c.lit != nil {
			x = c.lit
		}
		if _, ok := a.convertible(x, list[i].typ); !ok {
			a.fail(c.pos, "Query column %d has type %s which cannot be inserted into column of type %s", i+1, x.Type(), list[i].typ)
		}
		if values[i] = c.col.ID; !c.col.Type.Equal(list[i].typ) {
			d := a.column(c.name, list[i].typ)
			computed = append(computed, algebra.Computed{Column: d, Expr: a.coerce(x, list[i].typ, c.pos)})
			values[i] = d.ID
		}
	}
	if len(computed) > 0 {
		rel = &algebra.Project{Input: rel, Computed: computed}
	}
	return rel
}

// insertRows makes a relation of VALUES.
func (a *analyzer) insertRows(s *syntax.Insert, list []target, values []algebra.ColumnID, v *env) algebra.Rel {
	row := &types.Type{Kind: types.Struct}
	for i := range list {
		row.Fields = append(row.Fields, types.Field{Type: list[i].typ})
	}
	rows := &algebra.MakeArray{T: types.ArrayOf(row)}
	for _, exprs := range s.Rows {
		if len(exprs) != len(list) {
			pos := s.At()
			if len(exprs) > 0 {
				pos = exprs[0].At()
			}
			a.fail(pos, "Inserted row has wrong column count; Has %d, expected %d", len(exprs), len(list))
		}
		x := &algebra.MakeStruct{T: row, Fields: make([]algebra.Expr, len(exprs))}
		for i, e := range exprs {
			if _, ok := e.(*syntax.DefaultValue); ok {
				if list[i].key {
					a.fail(e.At(), "Column _key has no default value")
				}
				x.Fields[i] = &algebra.Literal{T: list[i].typ}
				continue
			}
			y := a.expr(e, v)
			if _, ok := a.convertible(y, list[i].typ); !ok {
				a.fail(e.At(), "Value has type %s which cannot be inserted into column of type %s", y.Type(), list[i].typ)
			}
			x.Fields[i] = a.coerce(y, list[i].typ, e.At())
		}
		rows.Elems = append(rows.Elems, x)
	}
	var rel algebra.Rel = &algebra.OneRow{}
	field := func(i int) algebra.Expr { return rows.Elems[0].(*algebra.MakeStruct).Fields[i] }
	if len(rows.Elems) > 1 {
		elem := a.column("row", row)
		rel = &algebra.Unnest{Input: rel, Arrays: []algebra.Expr{rows}, Elems: []algebra.Column{elem}}
		field = func(i int) algebra.Expr {
			return &algebra.GetField{X: &algebra.ColumnRef{Column: elem}, Index: i, T: list[i].typ}
		}
	}
	p := &algebra.Project{Input: rel}
	for i := range list {
		c := a.column("value", list[i].typ)
		values[i] = c.ID
		p.Computed = append(p.Computed, algebra.Computed{Column: c, Expr: field(i)})
	}
	return p
}

// dmlRows returns the rows of a table for which where holds, and the column of their
// keys.
func (a *analyzer) dmlRows(t *algebra.Table, alias *syntax.Identifier, where syntax.Expr, pos syntax.Pos, what string) (algebra.Rel, *env, algebra.ColumnID) {
	name := t.Name
	if alias != nil {
		name = alias.Name
	}
	rel, list := a.scan(t, name, nil, pos)
	v := &env{scope: &scope{list: list}, clause: what}
	if where == nil {
		a.fail(pos, "%s must have a WHERE clause", what)
	}
	v.clause = "WHERE clause"
	cond := a.condition(where, v, "WHERE")
	v.clause = what
	for i := range t.Columns {
		if t.Columns[i].Kind == algebra.RowKeyColumn {
			list.cols[i].use()
			return &algebra.Filter{Input: rel, Cond: cond}, v, list.cols[i].col.ID
		}
	}
	a.fail(pos, "Table %s has no column _key", types.QuoteIdentifier(t.Name))
	return nil, nil, 0
}

func (a *analyzer) update(s *syntax.Update) {
	t := a.dmlTable(s.Table)
	rel, v, key := a.dmlRows(t, s.Alias, s.Where, s.At(), "UPDATE")
	m := &algebra.Mutation{Kind: algebra.UpdateRows, Table: t, Key: key}
	var list []target
	var values []algebra.ColumnID
	var deleted []bool
	p := &algebra.Project{Input: rel}
	for i := range s.Items {
		it := &s.Items[i]
		c := a.target(t, it.Target, v)
		if c.key {
			a.fail(c.pos, "Cannot UPDATE value on primary key column: _key")
		}
		for j := range list {
			if list[j].same(&c) {
				a.fail(c.pos, "Update item assigned more than once")
			}
		}
		list = append(list, c)
		if _, ok := it.Value.(*syntax.DefaultValue); ok {
			values, deleted = append(values, 0), append(deleted, true)
			continue
		}
		x := a.expr(it.Value, v)
		if _, ok := a.convertible(x, c.typ); !ok {
			a.fail(it.Value.At(), "Value of type %s cannot be assigned to a column of type %s", x.Type(), c.typ)
		}
		col := a.column("value", c.typ)
		p.Computed = append(p.Computed, algebra.Computed{Column: col, Expr: a.coerce(x, c.typ, it.Value.At())})
		values, deleted = append(values, col.ID), append(deleted, false)
	}
	p.Computed = append(p.Computed, a.targets(m, list, values, deleted)...)
	m.Input = rel
	if len(p.Computed) > 0 {
		m.Input = p
	}
	a.mutated(m)
}

func (a *analyzer) delete(s *syntax.Delete) {
	t := a.dmlTable(s.Table)
	rel, _, key := a.dmlRows(t, s.Alias, s.Where, s.At(), "DELETE")
	a.mutated(&algebra.Mutation{Kind: algebra.DeleteRows, Table: t, Input: rel, Key: key})
}
