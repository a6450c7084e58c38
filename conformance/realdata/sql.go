package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
)

// relation is the table as the other engine has it: one row a code point and copy.
const relation = `WITH u AS (SELECT CAST(_key AS STRING) AS k, CAST(id['name'] AS STRING) AS name, CAST(prop['category'] AS STRING) AS category,
	CAST(prop['script'] AS STRING) AS script, enc['utf8'] AS utf8, enc['utf16'] AS utf16 FROM ucd) `

// An analyticQuery is asked of Trestle and of SQLite. other is what the second is
// asked, if the text differs. Results with a known order have ordered set.
type analyticQuery struct {
	what, query, other string
	ordered            bool
}

// analytic are the queries. Those that begin with SELECT read families; the others read
// relation.
var analytic = []analyticQuery{
	{"all rows", "SELECT COUNT(*) FROM ucd", "SELECT COUNT(*) FROM u", false},
	{"rows by category", "SELECT CAST(prop['category'] AS STRING) AS c, COUNT(*) AS n FROM ucd GROUP BY c", "SELECT category, COUNT(*) FROM u GROUP BY 1", false},
	{"ten largest scripts", "SELECT prop['script'] AS s, COUNT(*) AS n FROM ucd GROUP BY s ORDER BY n DESC, s LIMIT 10",
		"SELECT CAST(script AS BLOB), COUNT(*) AS n FROM u GROUP BY 1 ORDER BY n DESC, 1 LIMIT 10", true},
	{"a prefix of keys", "SELECT COUNT(*) FROM ucd WHERE _key LIKE 'Greek#%'", "SELECT COUNT(*) FROM u WHERE k LIKE 'Greek#%'", false},
	{"a range of keys", "SELECT _key, id['name'] FROM ucd WHERE _key BETWEEN 'Latin#00041#00' AND 'Latin#0005A#03' ORDER BY _key",
		"SELECT CAST(k AS BLOB), CAST(name AS BLOB) FROM u WHERE k BETWEEN 'Latin#00041#00' AND 'Latin#0005A#03' ORDER BY k", true},
	{"some keys", "SELECT id['name'], enc['utf16'] FROM ucd WHERE _key IN ('Han#04E00#00', 'Latin#0007A#06', 'Greek#003A9#02', 'nothing')",
		"SELECT CAST(name AS BLOB), utf16 FROM u WHERE k IN ('Han#04E00#00', 'Latin#0007A#06', 'Greek#003A9#02', 'nothing')", false},
	{"a row", "SELECT CAST(id['name'] AS STRING), LENGTH(enc['utf8']) FROM ucd WHERE _key = 'Arabic#00627#00'",
		"SELECT name, LENGTH(utf8) FROM u WHERE k = 'Arabic#00627#00'", false},
	{"the last rows", "SELECT _key FROM ucd ORDER BY _key DESC LIMIT 25", "SELECT CAST(k AS BLOB) FROM u ORDER BY k DESC LIMIT 25", true},
	{"scripts in all", "SELECT COUNT(DISTINCT prop['script']), MIN(_key), MAX(_key) FROM ucd", "SELECT COUNT(DISTINCT script), CAST(MIN(k) AS BLOB), CAST(MAX(k) AS BLOB) FROM u", false},
	{"bytes by script", "SELECT script, SUM(LENGTH(utf8)), MIN(LENGTH(name)), MAX(LENGTH(name)), AVG(LENGTH(name)) FROM u GROUP BY script", "", false},
	{"lengths of names", "SELECT LENGTH(name) AS l, COUNT(*) AS n FROM u GROUP BY l HAVING COUNT(*) > 1000 ORDER BY l", "", true},
	{"names with ALPHA", "SELECT category, COUNT(*) FROM u WHERE name LIKE '%ALPHA%' GROUP BY category", "", false},
	{"letters and others", "SELECT script, COUNTIF(category IN ('Lu', 'Ll', 'Lo', 'Lm', 'Lt')), SUM(IF(category = 'Lu', 1, 0)), COUNT(*) FROM u GROUP BY script",
		"SELECT script, SUM(category IN ('Lu', 'Ll', 'Lo', 'Lm', 'Lt')), SUM(category = 'Lu'), COUNT(*) FROM u GROUP BY script", false},
	{"blocks of 4,096", "SELECT DIV(CAST(CONCAT('0x', SPLIT(k, '#')[OFFSET(1)]) AS INT64), 4096) AS block, COUNT(*), COUNT(DISTINCT script) FROM u GROUP BY block ORDER BY block",
		"SELECT hex_to_int(SUBSTR(k, LENGTH(k) - 7, 5)) / 4096 AS block, COUNT(*), COUNT(DISTINCT script) FROM u GROUP BY block ORDER BY block", true},
	{"names from behind", "SELECT name, k FROM u WHERE k LIKE '%#00' ORDER BY name DESC, k LIMIT 20", "", true},
	{"capital and small", `SELECT a.name, b.name, b.k FROM u AS a JOIN u AS b ON b.name = REPLACE(a.name, 'CAPITAL', 'SMALL')
		WHERE a.category = 'Lu' AND a.k LIKE 'Latin#%#00' AND b.k LIKE 'Latin#%#00' AND a.name != b.name`, "", false},
	{"categories of most scripts", `, c AS (SELECT category, COUNT(DISTINCT script) AS scripts, COUNT(*) AS n FROM u GROUP BY category)
		SELECT category, scripts, n FROM c WHERE scripts > (SELECT AVG(scripts) FROM c) ORDER BY scripts DESC, category`, "", true},
	{"two categories a script", `SELECT script, category, n, r FROM (SELECT script, category, n, RANK() OVER (PARTITION BY script ORDER BY n DESC, category) AS r
		FROM (SELECT script, category, COUNT(*) AS n FROM u GROUP BY script, category) AS g) AS ranked WHERE r <= 2`, "", false},
	{"scripts with case", "SELECT script FROM u WHERE category = 'Lu' INTERSECT DISTINCT SELECT script FROM u WHERE category = 'Ll'",
		"SELECT script FROM u WHERE category = 'Lu' INTERSECT SELECT script FROM u WHERE category = 'Ll'", false},
	{"rare categories", `SELECT k, category FROM u WHERE category IN (SELECT category FROM u GROUP BY category HAVING COUNT(*) < 20)
		UNION ALL SELECT k, 'digit' FROM u WHERE category = 'Nd' AND name LIKE '%SEVEN' AND k LIKE 'Common#%#01'`, "", false},
	{"scripts of each category", "SELECT category, STRING_AGG(script, '|' ORDER BY script) FROM (SELECT DISTINCT category, script FROM u) GROUP BY category",
		"SELECT category, GROUP_CONCAT(script, '|') FROM (SELECT DISTINCT category, script FROM u ORDER BY category, script) GROUP BY category", false},
}

//go:embed testdata/sqlite.py
var sqliteProgram string

// sql asks the analytic queries, and compares the answers with those of SQLite over
// the same rows.
func (b *bench) sql(ctx context.Context, python string) error {
	dir, err := os.MkdirTemp("", "realdata-sql")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	rows := filepath.Join(dir, "rows.csv")
	if err := b.writeCSV(rows); err != nil {
		return err
	}
	queries := make([]string, len(analytic))
	for i, q := range analytic {
		if queries[i] = q.other; q.other == "" {
			queries[i] = q.query
			if rest, ok := strings.CutPrefix(q.query, ", "); ok {
				queries[i] = "WITH " + rest
			}
		}
	}
	in, err := json.Marshal(queries)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, python, "-c", sqliteProgram, rows)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("SQLite, by %s: %w", python, err)
	}
	var answers []struct {
		Rows    [][]any
		Seconds float64
	}
	if err := json.Unmarshal(out, &answers); err != nil {
		return fmt.Errorf("SQLite answered %.200q: %w", out, err)
	}
	if len(answers) != len(analytic) {
		return fmt.Errorf("SQLite answered %d of %d queries", len(answers), len(analytic))
	}
	for i, q := range analytic {
		start := time.Now()
		got, err := b.ask(ctx, q)
		if err != nil {
			return fmt.Errorf("%s: %w", q.what, err)
		}
		took := time.Since(start)
		want := make([]string, len(answers[i].Rows))
		for j, r := range answers[i].Rows {
			want[j] = canonical(r)
		}
		if !q.ordered {
			slices.Sort(got)
			slices.Sort(want)
		}
		if len(want) == 0 || !slices.Equal(got, want) {
			return fmt.Errorf("%s: %d rows, SQLite has %d\n%s", q.what, len(got), len(want), firstDifference(got, want))
		}
		fmt.Printf("  %-26s %6d rows, as SQLite has them; %8.1f ms (SQLite, in memory: %8.1f)\n", q.what, len(got), float64(took.Microseconds())/1000, answers[i].Seconds*1000)
	}
	return nil
}

// writeCSV writes what was loaded.
func (b *bench) writeCSV(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	buf := bufio.NewWriterSize(f, 1<<20)
	w := csv.NewWriter(buf)
	for i := range b.chars {
		c := &b.chars[i]
		for n := range b.copies {
			// An error stays: Flush's Error has it.
			_ = w.Write([]string{c.key(n), c.name, c.category, c.script, hex.EncodeToString(c.utf8()), hex.EncodeToString(c.utf16())})
		}
	}
	w.Flush()
	if err := w.Error(); err != nil {
		return err
	}
	if err := buf.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// ask returns the rows of a query, in canonical form.
func (b *bench) ask(ctx context.Context, q analyticQuery) ([]string, error) {
	text := q.query
	switch {
	case strings.HasPrefix(text, ", "):
		text = strings.TrimSuffix(relation, " ") + text
	case !strings.Contains(text, "FROM ucd"):
		text = relation + text
	}
	text = strings.TrimSuffix(text, "")
	stmt, err := b.client.PrepareStatement(ctx, text, nil)
	if err != nil {
		return nil, err
	}
	bound, err := stmt.Bind(nil)
	if err != nil {
		return nil, err
	}
	var out []string
	var bad error
	err = bound.Execute(ctx, func(r bigtable.ResultRow) bool {
		values := make([]any, len(r.Metadata.Columns))
		for i, c := range r.Metadata.Columns {
			if values[i], bad = value(&r, i, c.SQLType); bad != nil {
				return false
			}
		}
		out = append(out, canonical(values))
		return true
	})
	if err == nil {
		err = bad
	}
	return out, err
}

// value returns column i as JSON has it.
func value(r *bigtable.ResultRow, i int, t bigtable.SQLType) (any, error) {
	switch t.(type) {
	case bigtable.Int64SQLType:
		return get[int64](r, i)
	case bigtable.Float64SQLType:
		return get[float64](r, i)
	case bigtable.StringSQLType:
		return get[string](r, i)
	case bigtable.BytesSQLType:
		var v []byte
		if err := r.GetByIndex(i, &v); err != nil || v == nil {
			return nil, err
		}
		return map[string]any{"hex": hex.EncodeToString(v)}, nil
	}
	return nil, fmt.Errorf("column %d is of type %T", i, t)
}

func get[T any](r *bigtable.ResultRow, i int) (any, error) {
	var v *T
	if err := r.GetByIndex(i, &v); err != nil || v == nil {
		return nil, err
	}
	return *v, nil
}

// canonical writes a row so that equal ones are equal strings. Numbers have twelve
// digits.
func canonical(row []any) string {
	var s strings.Builder
	for _, v := range row {
		switch v := v.(type) {
		case nil:
			s.WriteString("NULL")
		case int64:
			fmt.Fprintf(&s, "%d", v)
		case float64:
			if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
				fmt.Fprintf(&s, "%d", int64(v))
			} else {
				fmt.Fprintf(&s, "%.12g", v)
			}
		case map[string]any:
			fmt.Fprintf(&s, "x%s", v["hex"])
		default:
			fmt.Fprintf(&s, "%q", v)
		}
		s.WriteString(", ")
	}
	return s.String()
}

func firstDifference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		g, w := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			return fmt.Sprintf("row %d is %s\nwant %s", i, g, w)
		}
	}
	return "no difference"
}
