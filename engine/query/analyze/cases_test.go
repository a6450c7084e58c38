package analyze

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

var (
	narrowTypes = regexp.MustCompile(`(?i)\b(?:u?int32|uint64)([)>])`)
	// alien finds what Bigtable's dialect does not have.
	creates       = regexp.MustCompile(`(?is)^\s*CREATE\s+(?:TEMP\s+)?TABLE\s+(\S+)\s+AS\s+(.*)$`)
	notFound      = regexp.MustCompile("^Table not found: `?([a-zA-Z0-9_]+)")
	alienFeatures = regexp.MustCompile(`RANGE_TYPE|NUMERIC|INTERVAL|CIVIL|COLLATION|ARRAY_ORDERING|ARRAY_OF_ARRAY|PICOS|NANOS|UUID|CONCAT_MIXED|PARAMETERIZED|MODIFIERS|JSON|LATERAL_COLUMN|PIPES|MEASURES|BRACED|PRECISION`)
	alien         = regexp.MustCompile(`(?i)googlesql_test|\b(big)?(numeric|decimal)\b|\bdatetime\b|\bjson\b|\bgeography\b|\btime\b '|\bas time\b|\btime\(|tokenlist|@\{|\bcollate\b|_picos|nanos|uuid`)
)

// TestCases analyzes the statements of GoogleSQL's compliance cases, which lie outside
// of this repository: TRESTLE_SQL_CASES is the path of googlesql-cases.jsonl.
func TestCases(t *testing.T) {
	path := os.Getenv("TRESTLE_SQL_CASES")
	if path == "" {
		t.Skip("NOT TESTED: TRESTLE_SQL_CASES is not set to the path of googlesql-cases.jsonl")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<24)
	tables := catalog{}
	file := ""
	var missing map[string]bool // tables of types that are none here
	cases, failed, aliens := 0, 0, 0
	for in.Scan() {
		var c struct{ File, Kind, Name, SQL, Parameters, Features, Expected string }
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.File != file {
			tables, file, missing = catalog{}, c.File, map[string]bool{}
		}
		sql := narrowTypes.ReplaceAllString(c.SQL, "INT64$1")
		if c.Kind == "prepare" {
			if err := prepare(tables, sql); err != nil {
				t.Logf("PREPARE %s: %v\n%s", c.File, err, head(sql))
				if m := creates.FindStringSubmatch(sql); m != nil {
					missing[strings.ToLower(m[1])] = true
				}
			}
			continue
		}
		if alienFeatures.MatchString(c.Features) || alien.MatchString(sql) || alien.MatchString(c.Parameters) {
			aliens++
			continue
		}
		cases++
		want := ""
		if i := strings.Index(c.Expected, "ERROR: generic::invalid_argument: "); i >= 0 {
			want, _, _ = strings.Cut(c.Expected[i+len("ERROR: generic::invalid_argument: "):], "\n")
		}
		st, err := analyzeCase(tables, sql, c.Parameters)
		if err != nil {
			if m := notFound.FindStringSubmatch(err.Error()); m != nil && missing[strings.ToLower(m[1])] {
				cases--
				aliens++
				continue
			}
		}
		if err == nil {
			if problems := check(st.Query); len(problems) > 0 {
				t.Errorf("%s/%s: %s\n%s\n%s", c.File, c.Name, problems, sql, algebra.Print(st.Query))
			}
		}
		switch {
		case err == nil && want == "":
			if got, want := header(st), resultType(c.Expected); want != "" && got != want {
				t.Logf("TYPE %s/%s:\n  got  %s\n  want %s\n%s", c.File, c.Name, got, want, sql)
				failed++
			}
		case err != nil && want != "" && err.Error() == want:
		default:
			failed++
			t.Logf("FAIL %s/%s: %v\n  want %s\n%s", c.File, c.Name, err, want, sql)
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d cases are as expected; %d others are of types that are none here", cases-failed, cases, aliens)
	if cases == 0 || failed*20 > cases {
		t.Errorf("%d of %d cases are not as expected; at most one in twenty may be", failed, cases)
	}
}

// header returns the type of a statement's rows as the cases write it.
func header(st *algebra.Statement) string {
	if st.ValueTable {
		return "ARRAY<" + shortType(st.Columns[0].Type) + ">"
	}
	row := &types.Type{Kind: types.Struct}
	for _, c := range st.Columns {
		row.Fields = append(row.Fields, types.Field{Name: c.Name, Type: c.Type})
	}
	return "ARRAY<" + shortType(row) + ">"
}

func shortType(t *types.Type) string {
	switch t.Kind {
	case types.Array:
		return "ARRAY<>"
	case types.Struct:
		var parts []string
		for _, f := range t.Fields {
			parts = append(parts, strings.TrimSpace(f.Name+" "+shortType(f.Type)))
		}
		return "STRUCT<" + strings.Join(parts, ",") + ">"
	case types.Map:
		return "MAP<" + shortType(t.Key) + "," + shortType(t.Elem) + ">"
	case types.Float64:
		return "DOUBLE"
	case types.Float32:
		return "FLOAT"
	}
	return t.String()
}

// resultType returns the type at the beginning of an expected result, "" if there is
// none.
func resultType(s string) string {
	if strings.Contains(s, "\n--\n") || !strings.HasPrefix(s, "ARRAY<") {
		return ""
	}
	s, _, _ = strings.Cut(s, "[")
	s = strings.Join(strings.Fields(s), " ")
	s = strings.NewReplacer("< ", "<", " >", ">", ", ", ",", "UINT32", "INT64", "UINT64", "INT64", "INT32", "INT64").Replace(s)
	return s
}

func head(s string) string {
	if len(s) > 300 {
		return s[:300]
	}
	return s
}

// prepare adds the table of CREATE TABLE name AS query.
func prepare(tables catalog, sql string) error {
	m := creates.FindStringSubmatch(sql)
	if m == nil {
		return nil
	}
	st, err := analyzeCase(tables, m[2], "")
	if err != nil {
		return err
	}
	table := &algebra.Table{Name: m[1], Rows: [][]types.Value{}, ValueTable: st.ValueTable}
	for _, c := range st.Columns {
		table.Columns = append(table.Columns, algebra.TableColumn{Name: c.Name, Type: c.Type})
	}
	tables.add(table)
	return nil
}

func analyzeCase(tables catalog, sql, parameters string) (*algebra.Statement, error) {
	params := map[string]*types.Type{}
	if parameters != "" {
		st, err := analyzeCase(tables, "SELECT "+narrowTypes.ReplaceAllString(parameters, "INT64$1"), "")
		if err != nil {
			return nil, err
		}
		for _, c := range st.Columns {
			params[strings.ToLower(c.Name)] = c.Type
		}
	}
	stmt, err := syntax.Parse(sql)
	if err != nil {
		return nil, err
	}
	return Statement(context.Background(), tables, stmt, sql, params)
}
