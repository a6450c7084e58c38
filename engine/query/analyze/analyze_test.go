package analyze

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

var testParams = map[string]*types.Type{
	"k": types.BytesType, "s": types.StringType, "n": types.Int64Type, "ts": types.TimestampType, "arr": types.ArrayOf(types.BytesType),
}

// analyze analyzes sql over testCatalog.
func analyze(sql string) (*algebra.Statement, error) {
	stmt, err := syntax.Parse(sql)
	if err != nil {
		return nil, err
	}
	return Statement(context.Background(), testCatalog(), stmt, sql, testParams)
}

func TestQueries(t *testing.T) {
	for _, c := range queries {
		st, err := analyze(c.sql)
		if err != nil {
			t.Errorf("%s\n%v", c.sql, err)
			continue
		}
		var cols []string
		for _, o := range st.Columns {
			cols = append(cols, fmt.Sprintf("%s#%d %s", o.Name, o.Column, o.Type))
		}
		if got := strings.Join(cols, ", ") + "\n" + algebra.Print(st.Query); got != c.want {
			t.Errorf("%s\ngot\n%s\nwant\n%s", c.sql, got, c.want)
		}
		if problems := check(st.Query); len(problems) > 0 {
			t.Errorf("%s: %s", c.sql, problems)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range refused {
		_, err := analyze(c.sql)
		if err == nil {
			t.Errorf("%s: no error; want %s", c.sql, c.want)
			continue
		}
		if err.Error() != c.want || !errors.Is(err, fault.Invalid) {
			t.Errorf("%s\ngot  %v\nwant %s", c.sql, err, c.want)
		}
	}
}

func TestMutations(t *testing.T) {
	for _, c := range []struct{ sql, want string }{
		{
			`INSERT INTO t (_key, cf1['a'], cf2['b']) VALUES ('k1', 'v', DEFAULT), (@k, b'x', 'y')`,
			`key 2: cf1[5]=3 cf2[6]=4
Project qualifier#5=b"a", qualifier#6=b"b"
  Project value#2=row#1.0, value#3=row#1.1, value#4=row#1.2
    Unnest row#1=[(b"k1", b"v", NULL), STRUCT(@k, b"x", b"y")]
      OneRow`,
		},
		{
			`INSERT OR IGNORE INTO t (_key, cf1['a']) VALUES ('k1', 'v')`,
			`key 1: cf1[3]=2
Project qualifier#3=b"a"
  Project value#1=b"k1", value#2=b"v"
    OneRow`,
		},
		{
			`INSERT INTO t (_key, cf1) SELECT CAST(name AS BYTES), MAP_FROM_ARRAY([(b'a', b'b')]) FROM people`,
			`key 7: cf1=8
Project #7=CAST(name#2 AS BYTES), #8={b"a": b"b"}
  Scan people: name#2`,
		},
		{
			`UPDATE t SET cf1['a'] = CONCAT(cf1['a'], b'x'), cf2 = DEFAULT, cf1['z'] = DEFAULT WHERE _key = 'k'`,
			`key 1: cf1[6]=5 cf2 deleted cf1[7] deleted
Project value#5=CONCAT($map_subscript(cf1#2, b"a"), b"x"), qualifier#6=b"a", qualifier#7=b"z"
  Filter (_key#1 = b"k")
    Scan t: _key#1, cf1#2`,
		},
		{
			`DELETE FROM t WHERE _key = @k`,
			`key 1:
Filter (_key#1 = @k)
  Scan t: _key#1`,
		},
	} {
		st, err := analyze(c.sql)
		if err != nil {
			t.Errorf("%s\n%v", c.sql, err)
			continue
		}
		m := st.Mutation
		got := fmt.Sprintf("key %d:", m.Key)
		for _, o := range m.Targets {
			got += " " + o.Family
			if o.Qualifier != nil {
				got += fmt.Sprintf("[%d]", *o.Qualifier)
			}
			if o.Delete {
				got += " deleted"
			} else {
				got += fmt.Sprintf("=%d", o.Value)
			}
		}
		if got += "\n" + algebra.Print(m.Input); got != c.want {
			t.Errorf("%s\ngot\n%s\nwant\n%s", c.sql, got, c.want)
		}
		if len(st.Columns) != 1 || st.Columns[0].Name != "rows_affected" || st.Columns[0].Type != types.Int64Type {
			t.Errorf("%s: columns %v", c.sql, st.Columns)
		}
	}
}

func TestStatement(t *testing.T) {
	st, err := analyze("EXPLAIN ANALYZE SELECT RAND(), cf1[@k] FROM keys, t ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	if st.Explain != algebra.ExplainAnalyze || !st.Volatile || !st.Ordered || st.ValueTable {
		t.Errorf("got %+v", st)
	}
	var names []string
	for _, u := range st.Tables {
		names = append(names, u.Name)
	}
	if got := strings.Join(names, " "); got != "keys t" {
		t.Errorf("tables %s, want keys t", got)
	}
	if len(st.Params) != 1 || st.Params["k"] != types.BytesType {
		t.Errorf("parameters %v, want k alone", st.Params)
	}
	for _, c := range []struct {
		sql            string
		ordered, value bool
	}{
		{"SELECT 1", false, false},
		{"(SELECT 1 FROM people ORDER BY 1)", true, false},
		{"SELECT id FROM (SELECT id FROM people ORDER BY 1)", false, false},
		{"SELECT 1 UNION ALL (SELECT id FROM people ORDER BY 1)", false, false},
		{"SELECT 1 UNION ALL SELECT 2 ORDER BY 1", true, false},
		{"SELECT AS VALUE 1", false, true},
		{"SELECT AS STRUCT 1 UNION ALL SELECT AS STRUCT 2", false, true},
	} {
		st, err := analyze(c.sql)
		if err != nil {
			t.Errorf("%s: %v", c.sql, err)
		} else if st.Ordered != c.ordered || st.ValueTable != c.value {
			t.Errorf("%s: ordered %v, value table %v", c.sql, st.Ordered, st.ValueTable)
		}
	}
}

// TestDefiner looks at whose rights the tables under views are read with.
func TestDefiner(t *testing.T) {
	st, err := analyze("SELECT * FROM nested, t")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var see func(r algebra.Rel)
	see = func(r algebra.Rel) {
		if s, ok := r.(*algebra.Scan); ok {
			got = append(got, s.Table.Name+" by "+s.Table.Definer)
		}
		for _, in := range inputs(r) {
			see(in)
		}
	}
	see(st.Query)
	if want := "t by user:ann@example.com, t by "; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestNesting analyzes statements as deep and as long as the parser lets through.
func TestNesting(t *testing.T) {
	for name, sql := range map[string]string{
		"sum":         "SELECT " + strings.Repeat("age + ", 9000) + "1 FROM people",
		"and":         "SELECT " + strings.Repeat("age = 1 AND ", 9000) + "TRUE FROM people",
		"parentheses": "SELECT " + strings.Repeat("(", 400) + "1" + strings.Repeat(")", 400),
		"case":        "SELECT " + strings.Repeat("IF(age > 1, ", 400) + "1" + strings.Repeat(", 2)", 400) + " FROM people",
		"list":        "SELECT age IN (" + strings.Repeat("1, ", 50000) + "2) FROM people",
		"array":       "SELECT [" + strings.Repeat("1, ", 50000) + "2.5]",
		"mixed":       "SELECT [" + strings.Repeat("1, ", 50000) + "'x']",
		"columns":     "SELECT " + strings.Repeat("1, ", 50000) + "2",
		"keys":        "SELECT 1 FROM people ORDER BY " + strings.Repeat("age + 1, ", 20000) + "age",
		"cube":        "SELECT 1 FROM people GROUP BY CUBE(age, name, id, score), CUBE(age, name, id, score), CUBE(age, name, id, score), CUBE(age, name)",
		"subqueries":  "SELECT " + strings.Repeat("(SELECT age + ", 150) + "1" + strings.Repeat(" FROM people)", 150) + " FROM people GROUP BY age",
		"lambdas":     "SELECT " + strings.Repeat("ARRAY_TRANSFORM(tags, x -> ARRAY_LENGTH(", 100) + "tags" + strings.Repeat("))", 100) + " FROM people",
	} {
		begin := time.Now()
		_, err := analyze(sql)
		t.Logf("%s: %v, %.120v", name, time.Since(begin).Round(time.Millisecond), err)
		if err != nil && !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestViewsBounded(t *testing.T) {
	tables := testCatalog()
	previous := "t"
	for i := range 16 {
		name := fmt.Sprintf("v%d", i)
		tables.add(&algebra.Table{Name: name, View: &algebra.View{Query: "SELECT a._key FROM " + previous + " a JOIN " + previous + " b USING (_key)"}})
		previous = name
	}
	sql := "SELECT * FROM v15"
	stmt, err := syntax.Parse(sql)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Statement(context.Background(), tables, stmt, sql, nil); err == nil || !strings.Contains(err.Error(), "more than 1000 times") {
		t.Errorf("got %v", err)
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	sql := "SELECT " + strings.Repeat("1 + ", 100) + "1"
	stmt, err := syntax.Parse(sql)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Statement(ctx, testCatalog(), stmt, sql, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
