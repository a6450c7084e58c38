package reference

import (
	"fmt"
	"slices"
	"strings"
)

// texts are more STRING values, and likes are patterns, that meet the kernels of LIKE.
var (
	texts = []string{"'ab'", "'abd'", "'hello world'", "'%'", "'_'", "'ÀÉîö'", "'日本語'", "'a\\nb\\tc'", "'it\\'s'", "'e\\u0301'", "'%_\\\\'", "'İ'"}
	likes = []string{"'%'", "'a%'", "'%a'", "'%a%'", "'abc'", "'_'", "'a_c'", "'%é'", "''", "'%l%o%'", "'h%d'", "'__'", "'%_%'", "'a\\\\%'", "'日%語'"}
)

// ColumnTypes are the types of which Columns writes queries.
var ColumnTypes = []string{"INT64", "FLOAT64", "STRING", "BYTES", "BOOL", "DATE", "TIMESTAMP", "FLOAT32"}

// Columns writes a query of four expressions over columns of one type, as their kernels
// evaluate them: some of the rows are filtered away, some values are NULL.
func (g *Generator) Columns(typ string) string {
	var rows []string
	for n := range 1 + g.rng.IntN(40) {
		rows = append(rows, fmt.Sprintf("STRUCT(%s AS a, %s AS b, %s AS c, %d AS n)", g.value(typ), g.value(typ), g.value(typ), n))
	}
	items := []string{"n"}
	for range 4 {
		items = append(items, g.kernel(typ))
	}
	where := ""
	switch g.rng.IntN(3) {
	case 0:
		where = " WHERE MOD(n, 3) != 1"
	case 1:
		where = " WHERE MOD(n, 7) != 2 AND (" + g.of("a = b", "a < b", "a IS NULL", "b >= a", "a IN (b, c)") + " OR n > 5)"
	}
	return "SELECT " + strings.Join(items, ", ") + " FROM UNNEST([" + strings.Join(rows, ", ") + "])" + where + " ORDER BY n"
}

func (g *Generator) of(list ...string) string { return g.pick(list) }

// value returns a value of a column.
func (g *Generator) value(typ string) string {
	if g.rng.IntN(6) == 0 {
		return "CAST(NULL AS " + typ + ")"
	}
	if typ == "STRING" && g.rng.IntN(2) == 0 {
		return g.pick(texts)
	}
	return g.pick(edges[typ])
}

// constant returns a value that is seldom NULL.
func (g *Generator) constant(typ string) string {
	for {
		if v := g.value(typ); !strings.Contains(v, "NULL") || g.rng.IntN(8) == 0 {
			return v
		}
	}
}

// operand returns a column or a constant.
func (g *Generator) operand(typ string) string { return g.of("a", "b", "c", g.constant(typ)) }

// members writes the list of an IN.
func (g *Generator) members(typ string, n int) string {
	list := make([]string, 1+g.rng.IntN(n))
	for i := range list {
		switch g.rng.IntN(15) {
		case 0:
			list[i] = "NULL"
		case 1:
			list[i] = g.operand(typ)
		default:
			list[i] = g.constant(typ)
		}
	}
	return strings.Join(list, ", ")
}

// kernel writes an expression over the columns a, b and c of a type.
func (g *Generator) kernel(typ string) string {
	compare := func() string {
		return g.of(" = ", " != ", " < ", " <= ", " > ", " >= ", " IS DISTINCT FROM ", " IS NOT DISTINCT FROM ")
	}
	number := slices.Contains([]string{"INT64", "FLOAT64", "FLOAT32"}, typ)
	for {
		switch g.rng.IntN(16) {
		case 0, 1:
			return g.of("a", "b") + compare() + g.operand(typ)
		case 2:
			return g.constant(typ) + compare() + "a"
		case 3:
			return "a" + g.of("", " NOT") + " BETWEEN " + g.operand(typ) + " AND " + g.operand(typ)
		case 4, 5:
			return "a" + g.of(" IN (", " NOT IN (") + g.members(typ, 12) + ")"
		case 6:
			return "a" + g.of(" IN ", " NOT IN ") + "UNNEST([" + g.members(typ, 6) + ", " + g.constant(typ) + "])"
		case 7:
			return "a" + g.of(" IS NULL", " IS NOT NULL")
		case 8:
			if number {
				return "NULLIFERROR(" + g.of("a", g.operand(typ)) + g.of(" + ", " - ", " * ", " / ") + g.of("b", g.operand(typ)) + ")"
			}
		case 9:
			if typ == "INT64" || typ == "BYTES" {
				return "NULLIFERROR(a" + g.of(" & ", " | ", " ^ ") + "b)"
			}
		case 10:
			if typ == "INT64" {
				return "NULLIFERROR(a" + g.of(" << ", " >> ") + g.of("1", "3", "63", "64", "-1", "b") + ")"
			}
		case 11, 12:
			if typ == "STRING" || typ == "BYTES" {
				return g.textKernel(typ)
			}
		case 13:
			if typ != "BYTES" {
				return "CAST(a AS STRING)"
			}
			return "SAFE_CAST(a AS STRING)"
		case 14:
			return g.of("IF(a = b, a, c)", "COALESCE(a, b, c)", "IFNULL(a, b)", "NULLIF(a, b)", "CASE a WHEN b THEN 1 WHEN c THEN 2 ELSE 3 END", "CASE WHEN a < b THEN a WHEN b < c THEN b END",
				"(a < b AND b < c) OR a = c", "NOT (a < b)", "(a = b) IS TRUE", "(a = b) IS NOT FALSE", "(a < b) = (b < c)", "FORMAT('%t|%T', a, b)", "STRUCT(a, b) = STRUCT(b, c)",
				"STRUCT(a, b) IN (STRUCT(b, c), STRUCT(a, a))", "[a, b] = [b, c]", "[a, b] < [b, c]", "GREATEST([a], [b, c])", "GREATEST(a, b, c)", "LEAST(a, b)")
		default:
			return g.of("SAFE_CAST(a AS STRING)", "SAFE_CAST(SAFE_CAST(a AS STRING) AS "+typ+")", "SAFE_CAST(SAFE_CAST(a AS STRING) AS "+typ+") = a")
		}
	}
}

// textKernel writes an expression over columns of STRING or BYTES.
func (g *Generator) textKernel(typ string) string {
	p := ""
	if typ == "BYTES" {
		p = "b"
	}
	like := func() string {
		for {
			if s := g.pick(likes); p == "" || !strings.ContainsAny(s, "é日") {
				return p + s
			}
		}
	}
	return g.of("a"+g.of(" LIKE ", " NOT LIKE ")+like(), "NULLIFERROR(a LIKE b)", "a"+g.of(" LIKE ANY (", " LIKE ALL (", " NOT LIKE ANY (", " NOT LIKE ALL (")+like()+", "+g.of(like(), "NULL")+")",
		"a || b", "CONCAT(a, b, c)", "STARTS_WITH(a, "+g.operand(typ)+")", "ENDS_WITH(a, "+g.operand(typ)+")", "LENGTH(a)", "BYTE_LENGTH(a)", "SUBSTR(a, 2)", "SUBSTR(a, -2, 1)", "UPPER(a)", "LOWER(a)",
		"STRPOS(a, b)", "REPLACE(a, b, c)", "REVERSE(a)", "TRIM(a, b)", "SPLIT(a, "+p+"'l')", "LEFT(a, 2)", "RIGHT(a, 2)", "TO_HEX(MD5(a))", "TO_HEX(SHA1(a))", "FARM_FINGERPRINT(a)",
		"REGEXP_CONTAINS(a, r"+p+"'[a-c]')", "REGEXP_EXTRACT(a, "+p+"r'l+(.)')", "REGEXP_REPLACE(a, "+p+"r'[a-l]', "+p+"'<\\\\0>')", "INSTR(a, b, -1)", "LPAD(a, 6, "+p+"'xy')", "TO_CODE_POINTS(a)")
}
