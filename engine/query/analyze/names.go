package analyze

import (
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// names are what a FROM clause, or a part of it, makes known.
type names struct {
	cols []column // in the order of SELECT *
	vars []rangeVar
}

// A column is one that a name may mean.
type column struct {
	name string
	col  algebra.Column
	// value is set of the row of a value table: its fields are known by their names, too.
	value bool
	// expr is what the alias of a select list stands for; col is unset then.
	expr algebra.Expr
	// field, of a column of USING, is 1 and the index of a field of the row.
	field int
	// hidden are fields of a value that USING has made columns of their own.
	hidden []string
	// pseudo columns are not in SELECT *.
	pseudo bool
	// src is what gives the column if only columns that are used are read, and index its
	// number there.
	src   *source
	index int
}

func (c *column) hides(name string) bool {
	return slices.ContainsFunc(c.hidden, func(h string) bool { return strings.EqualFold(h, name) })
}

// A source is a Scan that reads the columns that are used.
type source struct {
	scan *algebra.Scan
	used []bool
	// timestamp says that the last column is _timestamp.
	timestamp bool
}

// A rangeVar is the name of a table in FROM.
type rangeVar struct {
	name string
	cols []column
	// whole is the row of a value table.
	whole *column
}

// A scope is what an expression may refer to: list, and then what outer has.
type scope struct {
	list  *names
	outer *scope
	// captured, if it is set, lists the columns of outer scopes that are used here or
	// further in: it is the boundary of a subquery.
	captured *[]algebra.ColumnID
}

// A hit is what a name means.
type hit struct {
	col      column
	field    int       // index of the field of a value table's row, or -1
	table    *rangeVar // a table whose rows are no values
	captures []*[]algebra.ColumnID
}

// lookup finds name in n. It returns how many meanings it has, 2 for more than one.
func (n *names) lookup(name string, h *hit) int {
	found := 0
	for i := range n.vars {
		if v := &n.vars[i]; strings.EqualFold(v.name, name) {
			found++
			*h = hit{field: -1}
			if v.whole != nil {
				h.col = *v.whole
			} else {
				h.table = v
			}
		}
	}
	if found > 0 {
		return found
	}
	for i := range n.cols {
		c := &n.cols[i]
		if strings.EqualFold(c.name, name) && name != "" {
			if found > 0 && h.field < 0 && h.col.col.ID == c.col.ID && same(h.col.expr, c.expr) {
				continue
			}
			found++
			*h = hit{col: *c, field: -1}
			continue
		}
		if !c.value {
			continue
		}
		switch t := c.col.Type; t.Kind {
		case types.Struct:
			for j, f := range t.Fields {
				if strings.EqualFold(f.Name, name) && !c.hides(name) {
					found++
					*h = hit{col: *c, field: j}
				}
			}
		case types.Proto:
			for j := range t.Message.Fields {
				if strings.EqualFold(t.Message.Fields[j].Name, name) && !c.hides(name) {
					found++
					*h = hit{col: *c, field: j}
				}
			}
		}
	}
	return found
}

// find finds name in s and the scopes around it. The second result is false if there
// is no such name.
func (a *analyzer) find(s *scope, id syntax.Identifier) (hit, bool) {
	var h hit
	var captures []*[]algebra.ColumnID
	for ; s != nil; s = s.outer {
		if s.list != nil {
			switch n := s.list.lookup(id.Name, &h); {
			case n > 1:
				a.fail(id.At(), "Column name %s is ambiguous", types.QuoteIdentifier(id.Name))
			case n == 1:
				h.captures = captures
				return h, true
			}
		}
		if s.captured != nil {
			captures = append(captures, s.captured)
		}
	}
	return h, false
}

// capture tells the subqueries between a name and what it means that they use column
// id.
func (h *hit) capture(id algebra.ColumnID) {
	for _, l := range h.captures {
		if !slices.Contains(*l, id) {
			*l = append(*l, id)
		}
	}
}

// ref returns the value of column c, which was found as h: it is read, and the
// subqueries between know that they use it.
func (a *analyzer) ref(c *column, h *hit, pos syntax.Pos) algebra.Expr {
	c.use()
	if h != nil {
		h.capture(c.col.ID)
	}
	e := &algebra.ColumnRef{Column: c.col}
	a.refs = append(a.refs, reference{expr: e, pos: pos, text: "column " + types.QuoteIdentifier(c.name)})
	return e
}

// use makes c a column that is read.
func (c *column) use() {
	s := c.src
	if s == nil || s.used[c.index] {
		return
	}
	s.used[c.index] = true
	index := c.index
	if s.timestamp && index == len(s.used)-1 {
		index = algebra.TimestampColumn
	}
	s.scan.Uses = append(s.scan.Uses, algebra.ScanColumn{Column: c.col, Index: index})
}

// all calls yield for each name that an expression in s may use.
func (s *scope) all(yield func(name string)) {
	for ; s != nil; s = s.outer {
		if s.list == nil {
			continue
		}
		for i := range s.list.vars {
			yield(s.list.vars[i].name)
		}
		for i := range s.list.cols {
			c := &s.list.cols[i]
			yield(c.name)
			if c.value && c.col.Type.Kind == types.Struct {
				for _, f := range c.col.Type.Fields {
					yield(f.Name)
				}
			}
		}
	}
}

// suggest returns "; Did you mean X?" for the name among those of all that name is
// likely a misspelling of, or "".
func suggest(name string, all func(yield func(string))) string {
	// A name may differ in two letters, and one more for each five that it has; of short
	// ones, two must be right.
	best, least := "", min(len(name)-2, 2+len(name)/5)
	if len(name) > 64 || least < 1 {
		return ""
	}
	lower := strings.ToLower(name)
	all(func(s string) {
		if s == "" || len(s) > 64 {
			return
		}
		if d := distance(lower, strings.TrimPrefix(strings.ToLower(s), "safe.")); d > 0 && d <= least && (d < least || best == "" || s < best) {
			best, least = s, d
		}
	})
	if best == "" {
		return ""
	}
	return "; Did you mean " + quotePath(best) + "?"
}

// quotePath quotes each part of a name with dots.
func quotePath(name string) string {
	if !strings.Contains(name, ".") {
		return types.QuoteIdentifier(name)
	}
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = types.QuoteIdentifier(p)
	}
	return strings.Join(parts, ".")
}

// distance returns the number of bytes to be inserted, removed or exchanged to make
// b of a.
func distance(a, b string) int {
	var first, second [65]int
	row, above := first[:len(b)+1], second[:len(b)+1]
	for j := range above {
		above[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			change := 1
			if a[i] == b[j] {
				change = 0
			}
			row[j+1] = min(above[j]+change, above[j+1]+1, row[j]+1)
		}
		row, above = above, row
	}
	return above[len(b)]
}
