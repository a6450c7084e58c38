package reference

import (
	"fmt"
	"slices"
	"strings"
)

// subquery writes an expression subquery of a type that may name columns of the query
// around it, "" if there is none.
func (g *Generator) subquery(typ string, depth int) string {
	outer := g.scope
	defer func() { g.scope = outer }()
	table, cols := g.table()
	g.scope = append(slices.Clip(outer), cols...)
	where := " WHERE " + g.Expr("BOOL", depth)
	for _, c := range cols {
		for _, o := range outer {
			if c.typ == o.typ && g.rng.IntN(3) == 0 {
				where = " WHERE " + c.name + g.pick([]string{" = ", " = ", " IS NOT DISTINCT FROM ", " < "}) + o.name
				if strings.HasPrefix(c.typ, "STRUCT") {
					where = " WHERE " + c.name + " = " + o.name
				}
			}
		}
	}
	from := " FROM " + table + where
	if typ == "BOOL" && g.rng.IntN(2) == 0 {
		c := cols[g.rng.IntN(len(cols))]
		if strings.HasPrefix(c.typ, "ARRAY") {
			return "EXISTS(SELECT " + c.name + from + ")"
		}
		g.scope = outer
		x := g.Expr(c.typ, depth-1)
		return "(" + x + g.pick([]string{" IN (", " NOT IN ("}) + "SELECT " + c.name + from + "))"
	}
	for _, c := range cols {
		if c.typ != typ {
			continue
		}
		if strings.HasPrefix(typ, "STRUCT") {
			return ""
		}
		return "(SELECT " + g.pick([]string{"MIN", "MAX"}) + "(" + c.name + ")" + from + ")"
	}
	switch typ {
	case "INT64":
		return "(SELECT COUNT(*)" + from + ")"
	case "ARRAY<INT64>":
		return "ARRAY(SELECT COUNT(*)" + from + " GROUP BY " + cols[0].name + " ORDER BY 1)"
	}
	return ""
}

// branch writes a query with one column of each of the types.
func (g *Generator) branch(types []string) string {
	table, cols := g.table()
	saved := g.scope
	g.scope = cols
	defer func() { g.scope = saved }()
	items := make([]string, len(types))
	for i, t := range types {
		items[i] = fmt.Sprintf("%s AS x%d", g.Expr(t, 1), i)
	}
	where := ""
	if g.rng.IntN(3) == 0 {
		where = " WHERE " + g.Expr("BOOL", 1)
	}
	return "SELECT " + strings.Join(items, ", ") + " FROM " + table + where
}

func (g *Generator) someTypes(n int) []string {
	types := make([]string, n)
	for i := range types {
		types[i] = g.pick(columns)
	}
	return types
}

// setOperation writes a chain of set operations, each in parentheses.
func (g *Generator) setOperation() string {
	types := g.someTypes(1 + g.rng.IntN(3))
	text := g.branch(types)
	for i := range 1 + g.rng.IntN(3) {
		if i > 0 {
			text = "(" + text + ")"
		}
		op := g.pick([]string{"UNION ALL", "UNION DISTINCT", "INTERSECT DISTINCT", "EXCEPT DISTINCT", "UNION ALL BY NAME", "UNION DISTINCT", "EXCEPT DISTINCT", "INTERSECT DISTINCT CORRESPONDING"})
		text += " " + op + " " + g.branch(types)
	}
	return text
}

// sorted writes a query whose rows have one order.
func (g *Generator) sorted() string {
	n := 1 + g.rng.IntN(4)
	var text string
	if g.rng.IntN(3) == 0 {
		types := g.sortable(n)
		text = g.branch(types) + g.pick([]string{" UNION ALL ", " UNION DISTINCT "}) + g.branch(types)
	} else {
		text = g.branch(g.sortable(n))
	}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(i+1) + g.pick([]string{"", " DESC", " ASC NULLS LAST", " DESC NULLS FIRST", " ASC"})
	}
	g.rng.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	text += " ORDER BY " + strings.Join(keys, ", ")
	if g.rng.IntN(2) == 0 {
		text += " LIMIT " + g.pick(choices["COUNT"][1:]) // LIMIT 0 evaluates nothing
		if g.rng.IntN(2) == 0 {
			text += " OFFSET " + g.pick(choices["COUNT"])
		}
	}
	return text
}

// sortable returns types that ORDER BY takes.
func (g *Generator) sortable(n int) []string {
	types := g.someTypes(n)
	for i, t := range types {
		if strings.HasPrefix(t, "STRUCT") {
			types[i] = "STRING"
		}
	}
	return types
}

// with writes a query of a common table expression that is read once or twice.
func (g *Generator) with() string {
	types := g.someTypes(2)
	text := "WITH t AS (" + g.branch(types) + ")"
	if g.rng.IntN(2) == 0 {
		text += ", u AS (SELECT x0, x1 FROM t WHERE x0 IS NOT NULL)"
	} else {
		text += ", u AS (" + g.branch(types) + ")"
	}
	g.scope = []column{{"t.x0", types[0]}, {"t.x1", types[1]}, {"u.x0", types[0]}, {"u.x1", types[1]}}
	on := "t.x0 = u.x0"
	if g.rng.IntN(3) == 0 {
		on = "t.x0 = u.x0 AND t.x1 IS NOT DISTINCT FROM u.x1"
	}
	// All columns are read: what is not needed is not evaluated, nor are its errors met.
	return text + " SELECT t.x0, t.x1, u.x0, u.x1, " + g.list(3, 2) + " FROM t " + g.pick([]string{"JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"}) + " u ON " + on
}

// recursive writes a query of a recursive common table expression.
func (g *Generator) recursive() string {
	typ := g.pick([]string{"STRING", "ARRAY<INT64>", "FLOAT64", "DATE"})
	step := map[string]string{"STRING": "CONCAT(x, 'z')", "ARRAY<INT64>": "ARRAY_CONCAT(x, [n])", "FLOAT64": "x / 2", "DATE": "IF(x > DATE '9000-01-01', x, DATE_ADD(x, INTERVAL n MONTH))"}[typ]
	g.scope = nil
	start := "SELECT 1 AS n, " + g.Expr(typ, 1) + " AS x"
	op := g.pick([]string{"UNION ALL", "UNION DISTINCT"})
	text := fmt.Sprintf("WITH RECURSIVE r AS (%s %s SELECT n + 1, %s FROM r WHERE n < %d)", start, op, step, 2+g.rng.IntN(5))
	g.scope = []column{{"n", "INT64"}, {"x", typ}}
	return text + " SELECT n, x, " + g.list(2, 2) + " FROM r"
}

// unnested writes a query with UNNEST of columns.
func (g *Generator) unnested() string {
	table, cols := g.table()
	g.scope = cols
	join := g.pick([]string{" CROSS JOIN ", ", ", " LEFT JOIN "})
	elem := g.pick([]string{"INT64", "STRING", "FLOAT64"})
	text := " FROM " + table + " AS t" + join + "UNNEST(" + g.Expr("ARRAY<"+elem+">", 1) + ") AS e"
	g.scope = append(slices.Clip(cols), column{"e", elem})
	if g.rng.IntN(2) == 0 {
		text += " WITH OFFSET AS o"
		g.scope = append(g.scope, column{"o", "INT64"})
	}
	if join == " LEFT JOIN " {
		text += " ON " + g.Expr("BOOL", 1)
	} else if g.rng.IntN(2) == 0 {
		text += " WHERE " + g.Expr("BOOL", 1)
	}
	return "SELECT " + g.list(2, 2) + ", e" + text
}

// using writes a join of two tables with columns of the same names.
func (g *Generator) using() string {
	types := g.someTypes(1 + g.rng.IntN(2))
	names := []string{"x0", "x1"}[:len(types)]
	kind := g.pick([]string{"JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"})
	text := " FROM (" + g.branch(types) + ") AS a " + kind + " (" + g.branch(types) + ") AS b USING (" + strings.Join(names, ", ") + ")"
	g.scope = nil
	for i, t := range types {
		g.scope = append(g.scope, column{names[i], t}, column{"a." + names[i], t}, column{"b." + names[i], t})
	}
	if g.rng.IntN(3) == 0 {
		return "SELECT *" + text
	}
	return "SELECT *, " + g.list(2, 2) + text
}

// groupingSets writes a query with GROUP BY of several sets.
func (g *Generator) groupingSets() string {
	from := g.from()
	var keys []string
	for _, c := range g.scope {
		if len(keys) < 3 && g.rng.IntN(2) == 0 {
			keys = append(keys, c.name)
		}
	}
	if len(keys) < 2 {
		keys = []string{g.scope[0].name, g.scope[1].name}
	}
	var items []string
	for _, k := range keys {
		items = append(items, k)
		if g.rng.IntN(2) == 0 {
			items = append(items, "GROUPING("+k+")")
		}
	}
	for range 1 + g.rng.IntN(2) {
		f := aggregates[g.rng.IntN(len(aggregates))]
		items = append(items, g.fill(f.text, g.pick(scalars), 1))
	}
	list := strings.Join(keys, ", ")
	sets := g.pick([]string{"ROLLUP(" + list + ")", "CUBE(" + list + ")", "GROUPING SETS((" + list + "), " + keys[0] + ", ())", "GROUPING SETS(ROLLUP(" + list + "), " + keys[1] + ")"})
	text := "SELECT " + strings.Join(items, ", ") + from + " GROUP BY " + sets
	if g.rng.IntN(3) == 0 {
		text += " HAVING COUNT(*) > 1"
	}
	return text
}

// windows writes a query with several window functions, and QUALIFY.
func (g *Generator) windows() string {
	table, cols := g.table()
	// A number for each row makes every order a total one.
	table = "(SELECT *, ROW_NUMBER() OVER (ORDER BY " + g.order(cols) + ") AS n FROM " + table + ")"
	g.scope = append(slices.Clip(cols), column{"n", "INT64"})
	defer func() { g.scope = nil }()
	part := ""
	for _, c := range cols {
		if !strings.Contains(c.typ, "FLOAT") && g.rng.IntN(3) == 0 {
			part = "PARTITION BY " + c.name + " "
		}
	}
	frame := func() string {
		bound := func(end string) string {
			return g.pick([]string{"UNBOUNDED " + end, "CURRENT ROW", "1 PRECEDING", "2 FOLLOWING", "0 PRECEDING"})
		}
		from, to := bound("PRECEDING"), bound("FOLLOWING")
		rank := func(s string) int {
			return slices.Index([]string{"UNBOUNDED PRECEDING", "1 PRECEDING", "0 PRECEDING", "CURRENT ROW", "2 FOLLOWING", "UNBOUNDED FOLLOWING"}, s)
		}
		if rank(from) > rank(to) {
			return ""
		}
		return " " + g.pick([]string{"ROWS", "RANGE"}) + " BETWEEN " + from + " AND " + to
	}
	c := func() string { return cols[g.rng.IntN(len(cols))].name }
	comparable := func() string {
		for range 10 {
			if c := cols[g.rng.IntN(len(cols))]; !strings.HasPrefix(c.typ, "STRUCT") {
				return c.name
			}
		}
		return "n"
	}
	call := func() string {
		over := " OVER (" + part + "ORDER BY n" + g.pick([]string{"", " DESC"})
		switch g.rng.IntN(10) {
		case 0:
			return g.pick([]string{"ROW_NUMBER()", "RANK()", "DENSE_RANK()", "PERCENT_RANK()", "CUME_DIST()", "NTILE(2)", "NTILE(5)"}) + over + ")"
		case 1:
			return g.pick([]string{"LAG(", "LEAD("}) + c() + g.pick([]string{"", ", 0", ", 2", ", 7"}) + ")" + over + ")"
		case 2:
			return g.pick([]string{"FIRST_VALUE(", "LAST_VALUE("}) + c() + g.pick([]string{"", " IGNORE NULLS", " RESPECT NULLS"}) + ")" + over + frame() + ")"
		case 3:
			return "NTH_VALUE(" + c() + ", " + g.pick([]string{"1", "2", "3"}) + g.pick([]string{"", " IGNORE NULLS"}) + ")" + over + frame() + ")"
		case 4:
			return g.pick([]string{"MIN(", "MAX("}) + comparable() + ")" + over + frame() + ")"
		case 5:
			return g.pick([]string{"PERCENTILE_DISC(", "PERCENTILE_CONT("}) + g.pick([]string{"n", "n * 0.5"}) + ", " + g.pick([]string{"0", "0.5", "0.3", "1"}) + ") OVER (" + part + ")"
		case 6:
			return "STRING_AGG(CAST(n AS STRING))" + over + frame() + ")"
		case 7:
			return g.pick([]string{"RANK()", "DENSE_RANK()", "CUME_DIST()", "COUNT(*)"}) + " OVER (" + part + "ORDER BY " + comparable() + ")"
		case 8:
			return "ARRAY_AGG(" + g.pick([]string{"n", "n IGNORE NULLS"}) + ")" + over + frame() + ")"
		}
		return g.pick([]string{"SUM(", "AVG(", "COUNT(", "VAR_SAMP(", "COUNT(DISTINCT ", "LOGICAL_OR(n > ", "BIT_XOR("}) + "n)" + over + frame() + ")"
	}
	items := []string{"n"}
	for range 1 + g.rng.IntN(4) {
		x := call()
		if strings.Contains(x, "(DISTINCT") {
			x = "COUNT(DISTINCT n) OVER (" + part + ")"
		}
		items = append(items, x)
	}
	text := "SELECT " + strings.Join(items, ", ") + " FROM " + table + " WHERE TRUE"
	if g.rng.IntN(3) == 0 {
		text += " QUALIFY " + g.pick([]string{"ROW_NUMBER() OVER (" + part + "ORDER BY n) <= 2", "COUNT(*) OVER (" + part + ") > 1", "MAX(n) OVER (" + part + ") = n"})
	}
	return text
}

// order writes an order of all columns that can have one.
func (g *Generator) order(cols []column) string {
	var keys []string
	for _, c := range cols {
		switch c.typ {
		case "STRUCT<INT64, STRING>":
			keys = append(keys, c.name+"[OFFSET(0)]", c.name+"[OFFSET(1)]", c.name+" IS NULL")
		default:
			keys = append(keys, c.name+g.pick([]string{"", " DESC", " NULLS LAST", " DESC NULLS FIRST"}))
		}
	}
	return strings.Join(keys, ", ")
}
