package syntax

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
)

// show writes a tree as Lisp does: the kind of each node, and its fields that are
// not zero. Positions are left out.
func show(v any) string {
	var b strings.Builder
	showValue(&b, reflect.ValueOf(v))
	return b.String()
}

func showValue(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			b.WriteString("nil")
			return
		}
		showValue(b, v.Elem())
	case reflect.Slice:
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(' ')
			}
			showValue(b, v.Index(i))
		}
		b.WriteByte(']')
	case reflect.String:
		fmt.Fprintf(b, "%q", v.String())
	case reflect.Struct:
		switch x := v.Interface().(type) {
		case Identifier:
			b.WriteString(x.Name)
			return
		case Name:
			b.WriteString(x.Name)
			return
		case Path:
			for i, n := range x.Names {
				if i > 0 {
					b.WriteByte('.')
				}
				b.WriteString(n.Name)
			}
			return
		case IntLiteral:
			b.WriteString(x.Text)
			return
		case FloatLiteral:
			b.WriteString(x.Text)
			return
		case StringLiteral:
			fmt.Fprintf(b, "%q", x.Value)
			return
		case Null:
			b.WriteString("NULL")
			return
		case Binary:
			fmt.Fprintf(b, "(%s %s %s)", x.Op, show(x.X), show(x.Y))
			return
		case Unary:
			fmt.Fprintf(b, "(%s %s)", x.Op, show(x.X))
			return
		case Paren:
			fmt.Fprintf(b, "(paren %s)", show(x.X))
			return
		case Dot:
			fmt.Fprintf(b, "(. %s %s)", show(x.Base), x.Name.Name)
			return
		}
		t := v.Type()
		b.WriteString("(" + t.Name())
		for i := range v.NumField() {
			f := t.Field(i)
			if f.Type == reflect.TypeFor[Pos]() || v.Field(i).IsZero() {
				continue
			}
			b.WriteString(" " + f.Name + ":")
			showValue(b, v.Field(i))
		}
		b.WriteByte(')')
	default:
		fmt.Fprint(b, v.Interface())
	}
}

// parseExpr returns the one expression of SELECT text.
func parseExpr(t *testing.T, text string) Expr {
	t.Helper()
	q, err := ParseQuery("SELECT " + text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return q.Body.(*Select).Items[0].Expr
}

func TestExpressions(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		// Precedence.
		{"a OR b AND NOT c = d", "(OR a (AND b (NOT (= c d))))"},
		{"NOT a IS NULL", "(NOT (Is X:a What:\"NULL\"))"},
		{"1 + 2 * 3 - -4", "(- (+ 1 (* 2 3)) (- 4))"},
		{"a || b * c + d", "(+ (|| a (* b c)) d)"},
		{"a | b ^ c & d << 1 + 2", "(| a (^ b (& c (<< d (+ 1 2)))))"},
		{"a - b - c", "(- (- a b) c)"},
		{"NOT NOT a", "(NOT (NOT a))"},
		{"-a.b[0]", "(- (Subscript Base:(. a b) Index:0))"},
		{"a <> 1", "(!= a 1)"},
		{"~1 + +2", "(+ (~ 1) (+ 2))"},
		{"a BETWEEN 1 AND 2 AND b", "(AND (Between X:a Low:1 High:2) b)"},
		{"a NOT BETWEEN 1 + 1 AND 2", "(Between X:a Not:true Low:(+ 1 1) High:2)"},
		// Comparisons.
		{"a IN (1, 2)", "(In X:a List:[1 2])"},
		{"a NOT IN UNNEST(b)", "(In X:a Not:true Array:b)"},
		{"a LIKE 'x%'", `(Like X:a Pattern:"x%")`},
		{"a NOT LIKE ANY ('x', 'y')", `(Quantified X:a Op:"LIKE" Not:true List:["x" "y"])`},
		{"a >= ALL UNNEST(b)", `(Quantified X:a Op:">=" All:true Array:b)`},
		{"a = SOME (1)", `(Quantified X:a Op:"=" List:[1])`},
		{"a IS NOT DISTINCT FROM b + 1", `(Is X:a Not:true What:"DISTINCT FROM" Y:(+ b 1))`},
		{"a IS NULL IS DISTINCT FROM b", `(Is X:(Is X:a What:"NULL") What:"DISTINCT FROM" Y:b)`},
		{"a IS UNKNOWN", `(Is X:a What:"UNKNOWN")`},
		// Literals.
		{"0XfF", "0XfF"}, {"1.", "1."}, {".5e-3", ".5e-3"}, {"1E5", "1E5"},
		{`'a\n\x41\101\u00e9\U0001F600\'' "b"`, `"a\nAAé😀'b"`},
		{`r'\n' '''x'y''z'''`, `"\\nx'y''z"`},
		{"'''a\r\nb'''", `"a\nb"`},
		{`rb'\x'`, `(BytesLiteral Value:"\\x")`},
		{`b"\xff\377"`, `(BytesLiteral Value:"\xff\xff")`},
		{"DATE '2020-01-01'", `(TypedLiteral Type:"DATE" Value:"2020-01-01")`},
		{"date", "date"},
		{"date.year", "(. date year)"},
		{"numeric '1'", `(TypedLiteral Type:"NUMERIC" Value:"1")`},
		{"INTERVAL -1 DAY", "(IntervalExpr Value:(- 1) Part:DAY)"},
		{"INTERVAL '1-2' YEAR TO MONTH", `(IntervalExpr Value:"1-2" Part:YEAR To:MONTH)`},
		{"[1, 2]", "(ArrayLiteral Elems:[1 2])"},
		{"ARRAY<ARRAY<STRUCT<a INT64, `b.c`>>>[]", `(ArrayLiteral Elem:(TypeName Kind:"ARRAY" Args:[(TypeName Kind:"STRUCT" Args:[(TypeName Path:INT64) (TypeName Path:b.c)] Names:[a nil])]))`},
		{"STRUCT<>()", `(StructLiteral Type:(TypeName Kind:"STRUCT"))`},
		{"STRUCT(1 AS a, 2)", "(StructLiteral Values:[(Argument X:1 Alias:a) (Argument X:2)])"},
		{"(1, 2)", "(StructLiteral Tuple:true Values:[(Argument X:1) (Argument X:2)])"},
		{"((1))", "(paren (paren 1))"},
		{"CAST(a AS MAP<BYTES, ARRAY<INT64>>)", `(Cast X:a Type:(TypeName Kind:"MAP" Args:[(TypeName Path:BYTES) (TypeName Kind:"ARRAY" Args:[(TypeName Path:INT64)])]))`},
		{"SAFE_CAST(a AS b.c FORMAT 'x' AT TIME ZONE 'UTC')", `(Cast Safe:true X:a Type:(TypeName Path:b.c) Format:"x" Zone:"UTC")`},
		{"EXTRACT(WEEK(MONDAY) FROM a AT TIME ZONE b)", "(Extract Part:WEEK Arg:MONDAY X:a Zone:b)"},
		{"NEW a.B(1 AS c)", "(NewMessage Type:a.B Values:[(Argument X:1 Alias:c)])"},
		// Names and parameters.
		{"`a\\`b`.`select`.from.1", "(. (. (. a`b select) from) 1)"},
		{"@p + @`q r` + @select + ?", `(+ (+ (+ (Parameter Name:"p") (Parameter Name:"q r")) (Parameter Name:"select")) (Parameter))`},
		{"@@a.b", "(SystemVariable Path:a.b)"},
		{"a.(b.c)", "(Extension Base:a Path:b.c)"},
		// Calls.
		{"f()", "(Call Name:f)"},
		{"SAFE.f(1)", "(Call Name:SAFE.f Args:[(Argument X:1)])"},
		{"COUNT(*)", "(Call Name:COUNT Star:true)"},
		{"IF(a, 1, 2)", "(Call Name:IF Args:[(Argument X:a) (Argument X:1) (Argument X:2)])"},
		{"LEFT(a, 1)", "(Call Name:LEFT Args:[(Argument X:a) (Argument X:1)])"},
		{"(a).f(1).g()", "(Call Name:g Base:(Call Name:f Base:(paren a) Args:[(Argument X:1)]))"},
		{"f(x -> x + 1)", "(Call Name:f Args:[(Argument X:(Lambda Params:[x] Body:(+ x 1)))])"},
		{"f((x, y) -> x)", "(Call Name:f Args:[(Argument X:(Lambda Params:[x y] Body:x))])"},
		{"f(n => 1)", "(Call Name:f Args:[(Argument Name:n X:1)])"},
		{"a[SAFE_OFFSET(0)]", "(Subscript Base:a Index:(Call Name:SAFE_OFFSET Args:[(Argument X:0)]))"},
		{"ARRAY_AGG(DISTINCT a IGNORE NULLS HAVING MAX b ORDER BY c DESC NULLS LAST LIMIT 3)",
			`(Call Name:ARRAY_AGG Distinct:true Args:[(Argument X:a)] Nulls:"IGNORE" Having:(HavingModifier Max:true X:b) OrderBy:[(OrderItem Expr:c Descending:true Nulls:2)] Limit:3)`},
		{"SUM(a WHERE b GROUP BY c HAVING d)", "(Call Name:SUM Args:[(Argument X:a)] Where:b GroupBy:(GroupBy Items:[(GroupItem Expr:c)]) GroupHaving:d)"},
		{"SUM(a) OVER (w PARTITION BY b ORDER BY c ROWS BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING)",
			"(Call Name:SUM Args:[(Argument X:a)] Over:(Window Name:w PartitionBy:[b] OrderBy:[(OrderItem Expr:c)] Frame:(Frame Rows:true Start:(FrameBound Kind:1 Offset:1) End:(FrameBound Kind:4))))"},
		{"RANK() OVER w", "(Call Name:RANK Over:(Window Name:w))"},
		{"CASE a WHEN 1 THEN 2 ELSE 3 END", "(Case X:a Whens:[(When Cond:1 Then:2)] Else:3)"},
		{"CASE WHEN a THEN 2 END", "(Case Whens:[(When Cond:a Then:2)])"},
		{"WITH(a AS 1, b AS a + 1, b)", "(WithExpr Vars:[(Argument X:1 Alias:a) (Argument X:(+ a 1) Alias:b)] Result:b)"},
		// Queries in expressions.
		{"(SELECT 1)", "(Subquery Query:(Query Body:(Select Items:[(SelectItem Expr:1)])))"},
		{"((SELECT 1) + 1)", "(paren (+ (Subquery Query:(Query Body:(Select Items:[(SelectItem Expr:1)]))) 1))"},
		{"ARRAY(SELECT 1)", "(Subquery Kind:1 Query:(Query Body:(Select Items:[(SelectItem Expr:1)])))"},
		{"EXISTS(SELECT 1)", "(Subquery Kind:2 Query:(Query Body:(Select Items:[(SelectItem Expr:1)])))"},
		{"a IN ((SELECT 1))", "(In X:a Query:(Query Body:(Select Items:[(SelectItem Expr:1)])))"},
		{"((SELECT 1) UNION ALL (SELECT 2))", "(Subquery Query:(Query Body:(SetOperation All:true Inputs:[(Query Body:(Select Items:[(SelectItem Expr:1)])) (Query Body:(Select Items:[(SelectItem Expr:2)]))])))"},
		{"1 /* c */ + -- d\n 2 # e\n + 3", "(+ (+ 1 2) 3)"},
	} {
		if got := show(parseExpr(t, c.text)); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

func TestQueries(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"SELECT *, a.* EXCEPT (b), * REPLACE (1 AS c), d e, FROM t",
			"(Select Items:[(SelectItem Star:(Star)) (SelectItem Expr:a Star:(Star Except:[b])) (SelectItem Star:(Star Replace:[(SelectItem Expr:1 Alias:c)])) (SelectItem Expr:d Alias:e)] From:(TableRef Path:t))"},
		{"SELECT DISTINCT AS STRUCT 1 a", `(Select Distinct:true As:"STRUCT" Items:[(SelectItem Expr:1 Alias:a)])`},
		{"SELECT @{a=1, b='x'} a FROM t @{c=2} u", "(Select Items:[(SelectItem Expr:a)] From:(TableRef Path:t Alias:u))"},
		{"SELECT 1 FROM a-b-1.c.select", "(Select Items:[(SelectItem Expr:1)] From:(TableRef Path:a-b-1.c.select))"},
		{"SELECT 1 FROM t(with_history => TRUE) AS h", "(Select Items:[(SelectItem Expr:1)] From:(TableFunction Name:t Args:[(Argument Name:with_history X:(BoolLiteral Value:true))] Alias:h))"},
		{"SELECT 1 FROM UNPACK((SELECT 2)) u", "(Select Items:[(SelectItem Expr:1)] From:(Unpack Input:(SubqueryTable Query:(Query Body:(Select Items:[(SelectItem Expr:2)]))) Alias:u))"},
		{"SELECT 1 FROM UNPACK(t(with_history => TRUE))", "(Select Items:[(SelectItem Expr:1)] From:(Unpack Input:(TableFunction Name:t Args:[(Argument Name:with_history X:(BoolLiteral Value:true))])))"},
		{"SELECT 1 FROM t, t.a AS e WITH OFFSET o", "(Select Items:[(SelectItem Expr:1)] From:(Join Kind:1 Comma:true Left:(TableRef Path:t) Right:(TableRef Path:t.a Alias:e Offset:(WithOffset Alias:o))))"},
		{"SELECT 1 FROM UNNEST(a AS x, b, mode => 'PAD') WITH OFFSET", `(Select Items:[(SelectItem Expr:1)] From:(Unnest Arrays:[(Argument X:a Alias:x) (Argument X:b) (Argument Name:mode X:"PAD")] Offset:(WithOffset)))`},
		{"SELECT 1 FROM a LEFT OUTER JOIN b USING (x, y) CROSS JOIN c", "(Select Items:[(SelectItem Expr:1)] From:(Join Kind:1 Left:(Join Kind:2 Left:(TableRef Path:a) Right:(TableRef Path:b) Using:[x y]) Right:(TableRef Path:c)))"},
		{"SELECT 1 FROM a JOIN b JOIN c ON x ON y", "(Select Items:[(SelectItem Expr:1)] From:(Join Left:(TableRef Path:a) Right:(Join Left:(TableRef Path:b) Right:(TableRef Path:c) On:x) On:y))"},
		{"SELECT 1 FROM (a FULL JOIN b ON x)", "(Select Items:[(SelectItem Expr:1)] From:(ParenJoin Join:(Join Kind:4 Left:(TableRef Path:a) Right:(TableRef Path:b) On:x)))"},
		{"SELECT 1 FROM ((SELECT 2) q JOIN b ON x)", "(Select Items:[(SelectItem Expr:1)] From:(ParenJoin Join:(Join Left:(SubqueryTable Query:(Query Body:(Select Items:[(SelectItem Expr:2)])) Alias:q) Right:(TableRef Path:b) On:x)))"},
		{"SELECT 1 GROUP BY a, 1, ROLLUP (b, c), CUBE (d), GROUPING SETS ((e, f), (), g, ROLLUP (h))",
			"(Select Items:[(SelectItem Expr:1)] GroupBy:(GroupBy Items:[(GroupItem Expr:a) (GroupItem Expr:1) (GroupItem Kind:1 Sets:[[b] [c]]) (GroupItem Kind:2 Sets:[[d]]) (GroupItem Kind:3 Sets:[[e f] [] [g]] Items:[(GroupItem Kind:1 Sets:[[h]])])]))"},
		{"SELECT 1 FROM t WHERE a GROUP BY ALL HAVING b QUALIFY c WINDOW w AS (ORDER BY d), v AS w",
			"(Select Items:[(SelectItem Expr:1)] From:(TableRef Path:t) Where:a GroupBy:(GroupBy All:true) Having:b Qualify:c Windows:[(NamedWindow Name:w Window:(Window OrderBy:[(OrderItem Expr:d)])) (NamedWindow Name:v Window:(Window Name:w))])"},
	} {
		q, err := ParseQuery(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := show(q.Body); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.text, got, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"WITH RECURSIVE a AS (SELECT 1), b AS (SELECT 2) SELECT 3 ORDER BY 1 DESC, 2 LIMIT @n OFFSET 5;",
			`(QueryStatement Query:(Query Recursive:true With:[(CTE Name:a Query:(Query Body:(Select Items:[(SelectItem Expr:1)]))) (CTE Name:b Query:(Query Body:(Select Items:[(SelectItem Expr:2)])))] Body:(Select Items:[(SelectItem Expr:3)]) OrderBy:[(OrderItem Expr:1 Descending:true) (OrderItem Expr:2)] Limit:(Parameter Name:"n") Offset:5))`},
		{"SELECT 1 LIMIT NULL", "(QueryStatement Query:(Query Body:(Select Items:[(SelectItem Expr:1)]) Limit:(paren NULL)))"},
		{"SELECT 1 LIMIT ALL", "(QueryStatement Query:(Query Body:(Select Items:[(SelectItem Expr:1)]) Limit:NULL))"},
		{"SELECT 1 FROM a FULL UNION ALL BY NAME ON (x) SELECT 2",
			`(QueryStatement Query:(Query Body:(SetOperation All:true Inputs:[(Select Items:[(SelectItem Expr:1)] From:(TableRef Path:a)) (Select Items:[(SelectItem Expr:2)])] ByName:true OuterMode:"FULL" By:[x])))`},
		{"SELECT 1 EXCEPT DISTINCT (SELECT 2 INTERSECT DISTINCT SELECT 3)",
			"(QueryStatement Query:(Query Body:(SetOperation Op:2 Inputs:[(Select Items:[(SelectItem Expr:1)]) (Query Body:(SetOperation Op:1 Inputs:[(Select Items:[(SelectItem Expr:2)]) (Select Items:[(SelectItem Expr:3)])]))])))"},
		{"EXPLAIN ANALYZE SELECT 1", "(Explain Analyze:true Statement:(QueryStatement Query:(Query Body:(Select Items:[(SelectItem Expr:1)]))))"},
		{"INSERT OR REPLACE INTO t (_key, f['q']) VALUES ('a', 1), ('b', DEFAULT)",
			`(Insert Mode:"REPLACE" Table:t Columns:[_key (Subscript Base:f Index:"q")] Rows:[["a" 1] ["b" (DefaultValue)]])`},
		{"INSERT t (SELECT 1)", "(Insert Table:t Query:(Query Body:(Query Body:(Select Items:[(SelectItem Expr:1)]))))"},
		{"UPDATE t AS u SET f['q'] = 1, g = DEFAULT WHERE a",
			`(Update Table:t Alias:u Items:[(UpdateItem Target:(Subscript Base:f Index:"q") Value:1) (UpdateItem Target:g Value:(DefaultValue))] Where:a)`},
		{"DELETE FROM t WHERE TRUE", "(Delete Table:t Where:(BoolLiteral Value:true))"},
	} {
		s, err := Parse(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := show(s); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "Syntax error: Unexpected end of statement [at 1:1]"},
		{"SELECT", "Syntax error: Unexpected end of statement [at 1:7]"},
		{"foo", `Syntax error: Unexpected identifier "foo" [at 1:1]`},
		{"SELECT FROM t", "Syntax error: SELECT list must not be empty [at 1:8]"},
		{"SELECT 1 FROM", "Syntax error: Unexpected end of statement [at 1:14]"},
		{"SELECT 1 FROM WHERE", "Syntax error: Unexpected keyword WHERE [at 1:15]"},
		{"SELECT 1 a b", `Syntax error: Expected end of input but got identifier "b" [at 1:12]`},
		{"SELECT 1 WHERE 2 WHERE", "Syntax error: Expected end of input but got keyword WHERE [at 1:18]"},
		{"SELECT 1; SELECT", "Syntax error: Expected end of input but got keyword SELECT [at 1:11]"},
		{"SELECT a = b = c", `Syntax error: Unexpected "=" [at 1:14]`},
		{"SELECT NOT a = b = c AND d = e", `Syntax error: Unexpected "=" [at 1:18]`},
		{"SELECT ,", `Syntax error: Unexpected "," [at 1:8]`},
		{"SELECT (1", `Syntax error: Expected "," but got end of statement [at 1:10]`},
		{"SELECT f(1 2)", `Syntax error: Expected ")" but got integer literal "2" [at 1:12]`},
		{"SELECT a IN (1 2.5)", `Syntax error: Expected "," but got floating point literal "2.5" [at 1:16]`},
		{"SELECT a IN (1, 2 3)", `Syntax error: Expected ")" or "," but got integer literal "3" [at 1:19]`},
		{"SELECT a IN b", `Syntax error: Unexpected identifier "b" [at 1:13]`},
		{"SELECT a IS b", `Syntax error: Expected keyword FALSE or keyword NULL or keyword TRUE or keyword UNKNOWN but got identifier "b" [at 1:13]`},
		{"SELECT a IS NULL NOT IN (b)", "Syntax error: Expression to the left of IN must be parenthesized [at 1:22]"},
		{"SELECT a IN (b) = c", "Syntax error: Expression to the left of comparison must be parenthesized [at 1:17]"},
		{"SELECT a BETWEEN b = c AND d", "Syntax error: Expression in BETWEEN must be parenthesized [at 1:18]"},
		{"SELECT a = NOT b", "Syntax error: Unexpected keyword NOT [at 1:12]"},
		{"SELECT f(,", `Syntax error: Expected ")" but got "," [at 1:10]`},
		{"SELECT [1](2)", "Syntax error: Function call cannot be applied to this expression. Function calls require a path, e.g. a.b.c() [at 1:11]"},
		{"SELECT f(1)(2)", "Syntax error: Double function call parentheses [at 1:12]"},
		{"SELECT f(a + b -> 1)", "Syntax error: Expecting lambda argument list [at 1:10]"},
		{"SELECT 1,, 2", `Syntax error: Expected end of input but got "," [at 1:10]`},
		{"SELECT 1 EXCEPT SELECT 2", `EXCEPT must be followed by ALL, DISTINCT, or "(" [at 1:10]`},
		{"SELECT 1 UNION ALL", `Syntax error: Expected "(" or keyword SELECT or keyword TABLE but got end of statement [at 1:19]`},
		{"SELECT 1 FROM a FULL UNION ALL SELECT 2", "FULL in set operations cannot be used without CORRESPONDING [at 1:17]"},
		{"SELECT 1 FROM (a)", `Syntax error: Expected keyword JOIN but got ")" [at 1:17]`},
		{"SELECT 1 FROM @t", "Query parameters cannot be used in place of table names [at 1:15]"},
		{"SELECT 1 FROM a[0]", "Syntax error: Array element access is not allowed in the FROM clause without UNNEST; Use UNNEST(<expression>) [at 1:16]"},
		{"SELECT 1 FROM UNNEST([1]) WITH o", `Syntax error: Expected keyword OFFSET but got identifier "o" [at 1:32]`},
		{"SELECT CAST(a AS INT64", `Syntax error: Expected ")" or keyword FORMAT but got end of statement [at 1:23]`},
		{"(SELECT 1", `Syntax error: Expected ")" but got end of statement [at 1:10]`},
		{"SELECT 1 +  \n ", "Syntax error: Unexpected end of statement [at 1:11]"},
		{"SELECT [1 'a\nb']", `Syntax error: Unclosed string literal [at 1:11]`},
		{"SELECT [1 '''a\nb''']", `Syntax error: Expected "," or "]" but got string literal '''a\nb''' [at 1:11]`},
		{"SELECT 1 + *", `Syntax error: Unexpected "*" [at 1:12]`},
		{"SELECT CAST(1 INT64)", `Syntax error: Expected keyword AS but got identifier "INT64" [at 1:15]`},
		{"SELECT a GROUP a", `Syntax error: Expected @ for hint or keyword BY but got identifier "a" [at 1:16]`},
		{"SELECT 1 UNION SELECT 2", "Syntax error: Expected keyword ALL or keyword DISTINCT but got keyword SELECT [at 1:16]"},
		{"SELECT 1 UNION ALL SELECT 2 EXCEPT DISTINCT SELECT 3", "Syntax error: Different set operations cannot be used in the same query without using parentheses for grouping [at 1:29]"},
		{"SELECT CASE WHEN a THEN b", "Syntax error: Expected keyword ELSE or keyword END or keyword WHEN but got end of statement [at 1:26]"},
		{"SELECT 1a", "Syntax error: Missing whitespace between literal and alias [at 1:9]"},
		{"SELECT 1.5from", "Syntax error: Missing whitespace between literal and alias [at 1:11]"},
		{"SELECT `a", "Syntax error: Unclosed identifier literal [at 1:8]"},
		{"SELECT ``", "Syntax error: Invalid empty identifier [at 1:8]"},
		{"SELECT 'a", "Syntax error: Unclosed string literal [at 1:8]"},
		{"SELECT r\"\"\"a", "Syntax error: Unclosed triple-quoted raw string literal [at 1:8]"},
		{"SELECT Rb'a", "Syntax error: Unclosed raw bytes literal [at 1:8]"},
		{"SELECT 1 /* a", "Syntax error: Unclosed comment [at 1:10]"},
		{"foo /* a", `Syntax error: Unexpected identifier "foo" [at 1:1]`},
		{`SELECT '\z'`, `Syntax error: Illegal escape sequence: \z [at 1:9]`},
		{`SELECT 'a\x4'`, `Syntax error: Illegal escape sequence: Hex escape must be followed by 2 hex digits but saw: \x4 [at 1:10]`},
		{`SELECT '\ud800'`, `Syntax error: Illegal escape sequence: Unicode value \ud800 is invalid [at 1:9]`},
		{`SELECT b'\u0041'`, `Syntax error: Illegal escape sequence: Unicode escape sequence \u cannot be used in bytes literals [at 1:10]`},
		{"SELECT 'a''b'", "Syntax error: concatenated string literals must be separated by whitespace or comments [at 1:11]"},
		{"SELECT 'a' b'b'", "Syntax error: string and bytes literals cannot be concatenated. [at 1:12]"},
		{"SELECT \\", `Syntax error: Unexpected "\" [at 1:8]`},
		{"SELECT é", `Syntax error: Illegal input character "\303" [at 1:8]`},
		{"SELECT 1 FROM t JOIN u JOIN v ON a ON b ON c", "Syntax error: The number of join conditions is 3 but the number of joins that require a join condition is only 2. Unexpected keyword ON [at 1:41]"},
		{"SELECT f(SELECT 1)", "Each function argument is an expression, not a query; to use a query as an expression, the query must be wrapped with additional parentheses to make it a scalar subquery expression [at 1:10]"},
		{"SELECT 1 OVER (a)", "Syntax error: OVER keyword must follow a function call [at 1:10]"},
		{"SELECT 1 |> WHERE a", "Syntax error: Pipe query syntax is not supported [at 1:10]"},
		{"CREATE OR REPLACE TABLE t AS SELECT 1", "Statement not supported: CreateTableStatement [at 1:1]"},
		{"  MERGE t", "Statement not supported: MergeStatement [at 1:3]"},
		{"SELECT 1 FROM t TABLESAMPLE x", "TABLESAMPLE is not supported [at 1:17]"},
		{"SELECT CAST(a AS STRING(5))", "Parameterized types are not supported [at 1:24]"},
		{"SELECT\n\t1 +\r\n\té", `Syntax error: Illegal input character "\303" [at 3:9]`},
	} {
		_, err := Parse(c.text)
		if err == nil {
			t.Errorf("%s: no error, want %s", c.text, c.want)
			continue
		}
		if err.Error() != c.want || !errors.Is(err, fault.Invalid) {
			t.Errorf("%s\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestLimits(t *testing.T) {
	deep := func(open, x, shut string, n int) string {
		return "SELECT " + strings.Repeat(open, n) + x + strings.Repeat(shut, n)
	}
	for _, c := range []struct{ name, text, want string }{
		{"parentheses", deep("(", "1", ")", 10000), "nested too deeply"},
		{"unclosed parentheses", deep("(", "1", "", 10000), "nested too deeply"},
		{"minus", deep("- ", "1", "", 100000), "nested too deeply"},
		{"NOT", deep("NOT ", "1", "", 100000), "nested too deeply"},
		{"queries", deep("(SELECT ", "1", ")", 10000), "nested too deeply"},
		{"tables", deep("1 FROM (SELECT ", "1", ")", 10000), "nested too deeply"},
		{"joins", "SELECT 1 FROM " + strings.Repeat("(", 10000), "nested too deeply"},
		{"arrays", deep("[", "1", "]", 10000), "nested too deeply"},
		{"subscripts", deep("a[", "1", "]", 10000), "nested too deeply"},
		{"IN", deep("a IN (", "1", ")", 10000), "nested too deeply"},
		{"calls", deep("f(", "1", ")", 10000), "nested too deeply"},
		{"lambdas", "SELECT f(" + strings.Repeat("x -> ", 10000) + "x)", "Expected"},
		{"types", "SELECT CAST(a AS " + strings.Repeat("ARRAY<", 10000), "nested too deeply"},
		{"EXPLAIN", strings.Repeat("EXPLAIN ", 10000) + "SELECT 1", "nested too deeply"},
		{"sum", "SELECT 1" + strings.Repeat("+1", 100000), "too many operators in a row"},
		{"fields", "SELECT a" + strings.Repeat(".a", 100000), "too many operators in a row"},
		{"commas", "SELECT 1 FROM a" + strings.Repeat(",a", 100000), "FROM clause has more than 500 tables"},
		{"joined tables", "SELECT 1 FROM a" + strings.Repeat(" JOIN a", 100000), "FROM clause has more than 500 tables"},
		{"long", "SELECT '" + strings.Repeat("x", MaxText) + "'", "at most 1048576 are allowed"},
		{"NUL", "SELECT 'a\x00'", `Illegal input character "\000" [at 1:10]`},
		{"UTF-8", "SELECT '\xff'", "The statement is not valid UTF-8 [at 1:9]"},
	} {
		_, err := Parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: got %.200v, want … %s", c.name, err, c.want)
		}
	}
	for name, text := range map[string]string{
		"parentheses": deep("(", "1", ")", maxNesting-3),
		"OR":          "SELECT a" + strings.Repeat(" OR a = 1", 5000),
		"list":        "SELECT a IN (0" + strings.Repeat(",1", 500000) + ")",
		"columns":     "SELECT 0" + strings.Repeat(",a+b", 200000),
	} {
		if _, err := Parse(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLocation(t *testing.T) {
	text := "a\tb\r\n\té😀x\n\ry"
	for _, c := range []struct {
		of           string
		line, column int
	}{{"a", 1, 1}, {"b", 1, 9}, {"\r", 1, 10}, {"\n\t", 1, 10}, {"é", 2, 9}, {"😀", 2, 10}, {"x", 2, 11}, {"y", 4, 1}} {
		line, column := Location(text, Pos(strings.Index(text, c.of)))
		if line != c.line || column != c.column {
			t.Errorf("%q is at %d:%d, want %d:%d", c.of, line, column, c.line, c.column)
		}
	}
	if line, column := Location("ab", 100); line != 1 || column != 3 {
		t.Errorf("beyond the end is %d:%d, want 1:3", line, column)
	}
}

func TestPositions(t *testing.T) {
	const text = "SELECT a.b + f(c)[0]"
	sum := parseExpr(t, strings.TrimPrefix(text, "SELECT ")).(*Binary)
	sub := sum.Y.(*Subscript)
	for _, c := range []struct {
		what string
		got  Pos
		want string
	}{
		{"sum", sum.Pos, "a.b"}, {"operator", sum.OpPos, "+"}, {"field", sum.X.(*Dot).Name.Pos, "b "},
		{"subscript", sub.Pos, "f("}, {"bracket", sub.Bracket, "[0"}, {"index", sub.Index.At(), "0]"},
	} {
		if want := strings.Index(text, c.want); int(c.got) != want {
			t.Errorf("%s is at %d, want %d", c.what, c.got, want)
		}
	}
}

func TestReserved(t *testing.T) {
	for name, want := range map[string]bool{"select": true, "SELECT": true, "value": false, "foo": false, "qualify": true, "assert_rows_modified": true} {
		_, err := Parse("SELECT 1 AS " + name)
		if (err != nil) != want {
			t.Errorf("%s as an alias: %v", name, err)
		}
	}
}
