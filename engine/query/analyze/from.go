package analyze

import (
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// from analyzes a FROM clause. Correlated arrays may refer to outer.
func (a *analyzer) from(t syntax.TableExpr, outer *scope) (algebra.Rel, *names) {
	rel, list := a.fromPart(t, nil, nil, outer)
	return rel, list
}

// fromPart analyzes t, a part of a FROM clause that stands behind the tables of left
// (nil for none), which list names: it may refer to those. It returns what t gives by
// itself, or, if it refers to them, both joined: then the first result is made of left.
func (a *analyzer) fromPart(t syntax.TableExpr, left algebra.Rel, list *names, outer *scope) (algebra.Rel, *names) {
	a.enter(t.At())
	defer a.leave()
	switch t := t.(type) {
	case *syntax.TableRef:
		return a.tableRef(t, list, outer)
	case *syntax.TableFunction:
		return a.tableFunction(t, t.Alias, false)
	case *syntax.Unpack:
		return a.unpack(t, outer)
	case *syntax.SubqueryTable:
		r := a.query(t.Query, outer)
		alias := ""
		if t.Alias != nil {
			alias = t.Alias.Name
		}
		return keep(r), r.names(alias)
	case *syntax.Unnest:
		u, list := a.unnest(t, &scope{outer: outer})
		return u, list
	case *syntax.ParenJoin:
		return a.fromPart(t.Join, left, list, outer)
	case *syntax.Join:
		return a.join(t, list, outer)
	}
	a.fail(t.At(), "Table expression not supported: %T", t)
	return nil, nil
}

// isArray tells whether t is an array: UNNEST, or a path that begins with a name in
// s.
func (a *analyzer) isArray(t syntax.TableExpr, s *scope) bool {
	switch t := t.(type) {
	case *syntax.Unnest:
		return true
	case *syntax.TableRef:
		if len(t.Path.Names) < 2 || t.Path.Names[0].Quoted && a.known(joined(t.Path.Names)) {
			return false
		}
		_, ok := a.find(s, t.Path.Names[0])
		return ok
	}
	return false
}

// known tells whether name is a table.
func (a *analyzer) known(name string) bool {
	_, err := a.catalog.Table(a.ctx, name)
	return err == nil
}

// array analyzes t, of which isArray is true: its input is not set.
func (a *analyzer) array(t syntax.TableExpr, s *scope) (*algebra.Unnest, *names) {
	if u, ok := t.(*syntax.Unnest); ok {
		return a.unnest(u, s)
	}
	ref := t.(*syntax.TableRef)
	path := ref.Path.Names
	var e syntax.Expr = &syntax.Name{Identifier: path[0]}
	for _, n := range path[1:] {
		e = &syntax.Dot{Pos: ref.Path.Pos, Base: e, Name: n}
	}
	alias := ref.Alias
	if alias == nil {
		alias = &path[len(path)-1]
	}
	u := &algebra.Unnest{Input: &algebra.OneRow{}}
	list := &names{}
	x := a.path(e, &env{scope: s, clause: "FROM clause"})
	if x.Type().Kind != types.Array {
		a.fail(ref.Path.At(), "Values referenced in FROM clause must be arrays. %s has type %s", joined(path), x.Type())
	}
	a.element(u, list, x, alias.Name)
	a.offset(u, list, ref.Offset)
	return u, list
}

// element adds an array to u, and its element to list under alias.
func (a *analyzer) element(u *algebra.Unnest, list *names, x algebra.Expr, alias string) {
	t := x.Type().Elem
	if t == untypedNull {
		t = types.Int64Type
	}
	col := a.column(alias, t)
	u.Arrays = append(u.Arrays, x)
	u.Elems = append(u.Elems, col)
	c := column{name: alias, col: col, value: true}
	list.cols = append(list.cols, c)
	if alias != "" {
		list.vars = append(list.vars, rangeVar{name: alias, whole: &c})
	}
}

// offset adds WITH OFFSET to u.
func (a *analyzer) offset(u *algebra.Unnest, list *names, o *syntax.WithOffset) {
	if o == nil {
		return
	}
	name := "offset"
	if o.Alias != nil {
		name = o.Alias.Name
	}
	if o.Alias != nil && slices.ContainsFunc(list.vars, func(v rangeVar) bool { return strings.EqualFold(v.name, name) }) {
		a.fail(a.asBefore(o.Alias.At()), "Duplicate alias %s found", types.QuoteIdentifier(name))
	}
	col := a.column(name, types.Int64Type)
	u.Offset = &col
	list.cols = append(list.cols, column{name: name, col: col})
}

// unnest analyzes UNNEST in FROM. Its input is not set.
func (a *analyzer) unnest(t *syntax.Unnest, s *scope) (*algebra.Unnest, *names) {
	u := &algebra.Unnest{Input: &algebra.OneRow{}}
	list := &names{}
	v := &env{scope: s, clause: "UNNEST"}
	var arrays []syntax.Argument
	for _, arg := range t.Arrays {
		if arg.Name == nil {
			arrays = append(arrays, arg)
			continue
		}
		if !strings.EqualFold(arg.Name.Name, "mode") {
			a.fail(arg.Name.At(), "Unsupported named argument `%s` in UNNEST; use `mode` instead", arg.Name.Name)
		}
		if u.Mode != nil {
			a.fail(arg.Name.At(), "Duplicate named argument `mode` in UNNEST")
		}
		u.Mode = a.mode(arg.X, v)
	}
	if len(arrays) == 0 {
		a.fail(t.At(), "UNNEST needs an array")
	}
	if u.Mode != nil && len(arrays) == 1 {
		at := t.At()
		for _, arg := range t.Arrays {
			if arg.Name != nil {
				at = arg.Name.At()
			}
		}
		a.fail(at, "Argument `mode` is not allowed when UNNEST only has one array argument")
	}
	for i := range arrays {
		arg := &arrays[i]
		x := a.path(arg.X, v)
		if isUntyped(x) {
			x = a.coerce(x, types.ArrayOf(types.Int64Type), arg.X.At())
		}
		if x.Type().Kind != types.Array {
			a.fail(arg.X.At(), "Values referenced in UNNEST must be arrays. UNNEST contains expression of type %s", x.Type())
		}
		alias := ""
		switch {
		case arg.Alias != nil:
			alias = arg.Alias.Name
		case len(arrays) == 1 && t.Alias != nil:
			alias = t.Alias.Name
		case len(arrays) > 1:
			alias = aliasOf(arg.X)
		}
		a.element(u, list, x, alias)
	}
	if len(arrays) > 1 && t.Alias != nil {
		a.fail(a.asBefore(t.Alias.At()), "When 2 or more array arguments are supplied to UNNEST, aliases for the element columns must be specified following the argument inside the parenthesis")
	}
	a.offset(u, list, t.Offset)
	return u, list
}

// mode analyzes the mode of an UNNEST of several arrays: an INT64, 0 for PAD, 1 for
// TRUNCATE, 2 for STRICT.
func (a *analyzer) mode(e syntax.Expr, v *env) algebra.Expr {
	if c, ok := e.(*syntax.Cast); ok && c.Type.Path != nil && strings.EqualFold(joined(c.Type.Path.Names), "ARRAY_ZIP_MODE") {
		e = c.X // GoogleSQL's type of modes
	}
	x := a.expr(e, v)
	if _, ok := a.convertible(x, types.StringType); !ok {
		a.fail(e.At(), "Named argument `mode` used in UNNEST should have type ARRAY_ZIP_MODE, but got type %s", x.Type())
	}
	if isNull(x) {
		return &algebra.Literal{T: types.Int64Type}
	}
	arg := argument{pos: e.At(), expr: a.coerce(x, types.StringType, e.At())}
	text := func(s string) argument {
		return argument{pos: e.At(), expr: &algebra.Literal{Value: types.NewString(s), T: types.StringType}}
	}
	number := func(n int64) argument {
		return argument{pos: e.At(), expr: &algebra.Literal{Value: types.NewInt(n), T: types.Int64Type}}
	}
	if l, ok := arg.expr.(*algebra.Literal); ok {
		switch strings.ToUpper(l.Value.Str) {
		case "PAD":
			return number(0).expr
		case "TRUNCATE":
			return number(1).expr
		case "STRICT":
			return number(2).expr
		}
		a.fail(e.At(), "Could not cast literal %s to type ARRAY_ZIP_MODE", quoteLiteral(l))
	}
	upper := argument{pos: e.At(), expr: a.operator("UPPER", e.At(), arg)}
	return a.operator("$case_with_value", e.At(), upper, text("PAD"), number(0), text("TRUNCATE"), number(1), text("STRICT"), number(2))
}

// join analyzes a join.
func (a *analyzer) join(j *syntax.Join, around *names, outer *scope) (algebra.Rel, *names) {
	left, list := a.fromPart(j.Left, nil, around, outer)
	visible := concat(around, list)
	s := &scope{list: visible, outer: outer}
	if a.isArray(j.Right, s) {
		if _, ok := j.Right.(*syntax.Unnest); ok && (j.Kind == syntax.RightJoin || j.Kind == syntax.FullJoin) {
			s = &scope{list: around, outer: outer} // the left side is not known there
		}
		u, right := a.array(j.Right, s)
		return a.joinArray(j, left, list, u, right, outer)
	}
	// The right side may have arrays of the left one in it.
	var captured []algebra.ColumnID
	lateral := &scope{list: visible, outer: outer}
	boundary := &scope{outer: lateral, captured: &captured}
	var right algebra.Rel
	var rightNames *names
	if p, ok := j.Right.(*syntax.ParenJoin); ok {
		right, rightNames = a.fromPart(p, nil, nil, boundary)
	} else {
		right, rightNames = a.fromPart(j.Right, nil, visible, outer)
	}
	captured = slices.DeleteFunc(captured, func(id algebra.ColumnID) bool {
		return !slices.ContainsFunc(left.Columns(), func(c algebra.Column) bool { return c.ID == id })
	})
	out := &algebra.Join{Left: left, Right: right, Lateral: len(captured) > 0, Outer: captured}
	switch j.Kind {
	case syntax.LeftJoin:
		out.Kind = algebra.LeftJoin
	case syntax.RightJoin:
		out.Kind = algebra.LeftJoin
		out.Left, out.Right = right, left
	case syntax.FullJoin:
		out.Kind = algebra.FullJoin
	}
	if out.Lateral && (j.Kind == syntax.RightJoin || j.Kind == syntax.FullJoin) {
		a.fail(j.Right.At(), "Array scan is not allowed with %s JOIN: UNNEST expression contains correlation", joinText(j.Kind))
	}
	a.distinctAliases(j, list, rightNames, false)
	if len(j.Using) > 0 {
		return a.using(j, out, left, right, list, rightNames)
	}
	both := concat(list, rightNames)
	if j.On != nil {
		out.On = a.condition(j.On, &env{scope: &scope{list: concat(around, both), outer: outer}, clause: "JOIN ON clause"}, "JOIN ON")
	} else {
		a.needsCondition(j)
	}
	return out, both
}

func joinText(k syntax.JoinKind) string {
	return [...]string{"INNER", "CROSS", "LEFT", "RIGHT", "FULL"}[k]
}

func (a *analyzer) needsCondition(j *syntax.Join) {
	switch j.Kind {
	case syntax.LeftJoin, syntax.RightJoin, syntax.FullJoin:
		a.fail(a.keyword(joinText(j.Kind), j.At()), "%s JOIN must have an immediately following ON or USING clause", joinText(j.Kind))
	case syntax.InnerJoin:
		if !j.Comma {
			a.fail(j.At(), "INNER JOIN must have an immediately following ON or USING clause")
		}
	}
}

func (a *analyzer) distinctAliases(j *syntax.Join, left, right *names, array bool) {
	for _, v := range right.vars {
		for _, w := range left.vars {
			if strings.EqualFold(v.name, w.name) && !merges(j, v, w) {
				if array {
					a.fail(a.aliasAt(j.Right, v.name), "Duplicate alias %s found", types.QuoteIdentifier(v.name))
				}
				a.fail(a.aliasAt(j.Right, v.name), "Duplicate table alias %s in the same FROM clause", types.QuoteIdentifier(v.name))
			}
		}
	}
}

// aliasAt returns where t, or a part of it, gets the name alias.
func (a *analyzer) aliasAt(t syntax.TableExpr, alias string) syntax.Pos {
	var id *syntax.Identifier
	switch t := t.(type) {
	case *syntax.TableRef:
		id = t.Alias
	case *syntax.SubqueryTable:
		id = t.Alias
	case *syntax.Unnest:
		id = t.Alias
	case *syntax.TableFunction:
		id = t.Alias
	}
	if id != nil && strings.EqualFold(id.Name, alias) {
		return a.asBefore(id.At())
	}
	return t.At()
}

// merges tells whether two values of one name become one column by USING.
func merges(j *syntax.Join, v, w rangeVar) bool {
	return v.whole != nil && w.whole != nil && slices.ContainsFunc(j.Using, func(id syntax.Identifier) bool { return strings.EqualFold(id.Name, v.name) })
}

// concat returns the names of left and right, either of which may be nil.
func concat(left, right *names) *names {
	if left == nil {
		return right
	}
	if right == nil {
		return left
	}
	return &names{cols: slices.Concat(left.cols, right.cols), vars: slices.Concat(left.vars, right.vars)}
}

// joinArray joins an array, which may depend on the rows of left.
func (a *analyzer) joinArray(j *syntax.Join, left algebra.Rel, list *names, u *algebra.Unnest, right *names, outer *scope) (algebra.Rel, *names) {
	a.distinctAliases(j, list, right, true)
	depends := false
	made := left.Columns()
	for _, x := range u.Arrays {
		rewrite(x, func(e algebra.Expr) algebra.Expr {
			switch e := e.(type) {
			case *algebra.ColumnRef:
				depends = depends || slices.ContainsFunc(made, func(c algebra.Column) bool { return c.ID == e.ID })
			}
			return nil
		})
	}
	both := concat(list, right)
	on := func(l *names) algebra.Expr {
		if j.On == nil {
			return nil
		}
		return a.condition(j.On, &env{scope: &scope{list: l, outer: outer}, clause: "JOIN ON clause"}, "JOIN ON")
	}
	if j.Kind == syntax.RightJoin || j.Kind == syntax.FullJoin || len(j.Using) > 0 && !depends {
		if ref, ok := j.Right.(*syntax.TableRef); ok && depends {
			a.fail(ref.Path.At(), "Correlated array references are not allowed with %s JOIN: %s", joinText(j.Kind), typePath(ref.Path.Names))
		}
		out := &algebra.Join{Left: left, Right: u}
		switch j.Kind {
		case syntax.LeftJoin:
			out.Kind = algebra.LeftJoin
		case syntax.RightJoin:
			out.Kind, out.Left, out.Right = algebra.LeftJoin, u, left
		case syntax.FullJoin:
			out.Kind = algebra.FullJoin
		}
		if len(j.Using) > 0 {
			return a.using(j, out, left, u, list, right)
		}
		if out.On = on(both); out.On == nil {
			a.needsCondition(j)
		}
		return out, both
	}
	u.Input = left
	if len(j.Using) > 0 {
		cond, merged := a.usingCondition(j, list, right)
		if j.Kind == syntax.LeftJoin {
			u.Left, u.On = true, cond
			return u, merged
		}
		return &algebra.Filter{Input: u, Cond: cond}, merged
	}
	if j.Kind == syntax.LeftJoin {
		u.Left, u.On = true, on(both)
		return u, both
	}
	if cond := on(both); cond != nil {
		return &algebra.Filter{Input: u, Cond: cond}, both
	}
	return u, both
}

// usingCondition returns the condition of USING, and the names of the join without the
// right side's columns of those names.
func (a *analyzer) usingCondition(j *syntax.Join, list, right *names) (algebra.Expr, *names) {
	var conds []argument
	merged := &names{vars: slices.DeleteFunc(slices.Concat(list.vars, right.vars), func(v rangeVar) bool {
		return merges(j, v, v)
	})}
	drop := map[algebra.ColumnID]bool{}
	var keys []column
	for _, id := range j.Using {
		l, r := a.usingColumn(id, list, "left"), a.usingColumn(id, right, "right")
		l.use()
		r.use()
		y, z := a.usingValue(l, id), a.usingValue(r, id)
		if t := a.supertype([]algebra.Expr{y, z}); t == nil || !t.SupportsEquality() {
			a.fail(id.At(), "Column '%s' in USING has incompatible types that cannot be directly compared using equality on either side of the join: %s and %s", id.Name, y.Type(), z.Type())
		}
		x := a.operator("$equal", id.At(), argument{pos: id.At(), expr: y}, argument{pos: id.At(), expr: z})
		conds = append(conds, argument{pos: id.At(), expr: x})
		drop[l.col.ID], drop[r.col.ID] = true, true
		keys = append(keys, *l)
		if j.Kind == syntax.RightJoin {
			keys[len(keys)-1] = *r
		}
		keys[len(keys)-1].name = id.Name
	}
	merged.cols = keys
	for _, n := range []*names{list, right} {
		for _, c := range n.cols {
			if k := c.col.Type.Kind; !drop[c.col.ID] || c.value && (k == types.Struct || k == types.Proto) {
				if drop[c.col.ID] {
					c.hidden = slices.Clip(c.hidden)
					for _, id := range j.Using {
						c.hidden = append(c.hidden, id.Name)
					}
				}
				merged.cols = append(merged.cols, c)
			}
		}
	}
	if len(conds) == 1 {
		return conds[0].expr, merged
	}
	return a.operator("$and", j.At(), conds...), merged
}

func (a *analyzer) usingColumn(id syntax.Identifier, n *names, side string) *column {
	var h hit
	switch n.lookup(id.Name, &h) {
	case 0:
		a.fail(id.At(), "Column %s in USING clause not found on %s side of join", types.QuoteIdentifier(id.Name), side)
	case 1:
	default:
		a.fail(id.At(), "Column %s in USING clause is ambiguous on %s side of join", types.QuoteIdentifier(id.Name), side)
	}
	if h.table != nil {
		a.fail(id.At(), "Column %s in USING clause is a table", types.QuoteIdentifier(id.Name))
	}
	c := h.col
	if h.field >= 0 {
		c.field = h.field + 1
	}
	return &c
}

// usingValue returns the value of a column of USING.
func (a *analyzer) usingValue(c *column, id syntax.Identifier) algebra.Expr {
	h := hit{col: *c, field: c.field - 1}
	return a.hit(&h, id.At())
}

// using completes a join with USING: of FULL ones, the columns are those of the side
// that has a row.
func (a *analyzer) using(j *syntax.Join, out *algebra.Join, left, right algebra.Rel, list, rightNames *names) (algebra.Rel, *names) {
	cond, merged := a.usingCondition(j, list, rightNames)
	out.On = cond
	var computed []algebra.Computed
	for i, id := range j.Using {
		l, r := a.usingColumn(id, list, "left"), a.usingColumn(id, rightNames, "right")
		key := &merged.cols[i]
		if j.Kind != syntax.FullJoin && key.field == 0 {
			continue
		}
		x := a.usingValue(key, id)
		if j.Kind == syntax.FullJoin {
			x = a.operator("COALESCE", id.At(), argument{pos: id.At(), expr: a.usingValue(l, id)}, argument{pos: id.At(), expr: a.usingValue(r, id)})
		}
		c := a.column(id.Name, x.Type())
		computed = append(computed, algebra.Computed{Column: c, Expr: x})
		*key = column{name: id.Name, col: c}
	}
	if len(computed) > 0 {
		return &algebra.Project{Input: out, Computed: computed}, merged
	}
	return out, merged
}
