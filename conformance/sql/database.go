package sql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// now is the time of all statements.
var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// A Database has the relations of one file of cases.
type Database struct {
	engine *query.Engine
	tables map[string]*algebra.Table
}

// NewDatabase returns a Database without tables.
func NewDatabase() *Database {
	return &Database{engine: query.New(nil, query.Options{}), tables: map[string]*algebra.Table{}}
}

// Table is that of algebra.Catalog.
func (d *Database) Table(_ context.Context, name string) (*algebra.Table, error) {
	if t := d.tables[strings.ToLower(name)]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "no table %s", name)
}

// Tables is that of algebra.Catalog.
func (d *Database) Tables(context.Context) ([]string, error) {
	var names []string
	for _, t := range d.tables {
		names = append(names, t.Name)
	}
	return names, nil
}

// testEnum is an enum of GoogleSQL's own test schema.
var testEnum = &types.Type{Kind: types.Enum, Enumeration: &types.Enumeration{Bundle: "googlesql_test", Name: "googlesql_test.TestEnum", Values: []types.EnumValue{
	{Name: "TESTENUM0", Number: 0}, {Name: "TESTENUM1", Number: 1}, {Name: "TESTENUM2", Number: 2}, {Name: "TESTENUMNEGATIVE", Number: -1},
	{Name: "TESTENUM2147483647", Number: 2147483647}, {Name: "TESTENUMNEGATIVE2147483648", Number: -2147483648},
}}}

// Type is that of algebra.Catalog.
func (d *Database) Type(_ context.Context, path []string) (*types.Type, error) {
	name := strings.Join(path, ".")
	if strings.EqualFold(name, testEnum.Enumeration.Name) {
		return testEnum, nil
	}
	return nil, fault.New(fault.NotFound, "no type %s", name)
}

var (
	createTable = regexp.MustCompile(`(?is)^\s*CREATE\s+(?:TEMP\s+)?TABLE\s+(\w+)\s*(?:\(.*?\)\s*)?AS\s+(.*)$`)
	// Integers of other widths are INT64; a name as long keeps places. Such names are
	// types in CAST(… AS type) and within < and >.
	castInteger  = regexp.MustCompile(`(?i)\bAS\s+U?INT(32|64)\s*\)`)
	typeBrackets = regexp.MustCompile(`(?i)\b(ARRAY|STRUCT|MAP)\s*<[^();'"]*>`)
	integer      = regexp.MustCompile(`(?i)\bU?INT(32|64)\b`)
	// largest are values of UINT64 that no INT64 has.
	largest = regexp.MustCompile(`\b(1844674407370955\d{4}|9223372036854775808|0x8000000000000000)\b`)
	// Columns of types that do not exist here become other columns: most cases do not
	// use them.
	protoCast  = regexp.MustCompile("(?is)CAST\\(\\s*(?:NULL|'''.*?'''|\"[^\"]*\"|b?'[^']*')\\s+AS\\s+`?googlesql_test\\.(\\w+)`?\\s*\\)")
	protoArray = regexp.MustCompile(`(?i)ARRAY<googlesql_test\.KitchenSinkPB>`)
	protoValue = regexp.MustCompile("(?i)SELECT AS `?googlesql_test\\.\\w+`?")
)

// Prepare makes the table that text creates.
func (d *Database) Prepare(ctx context.Context, text string) error {
	text = strings.ReplaceAll(text, `\--`, "--")
	m := createTable.FindStringSubmatch(text)
	if m == nil {
		return errors.New("statement makes no table of a query")
	}
	name, q := m[1], m[2]
	cols, rows, err := d.Query(ctx, q, nil)
	if err != nil {
		replaced := largest.ReplaceAllString(q, "9223372036854775807")
		replaced = protoArray.ReplaceAllString(replaced, "ARRAY<STRING>")
		replaced = protoValue.ReplaceAllString(protoCast.ReplaceAllStringFunc(replaced, func(s string) string {
			if protoCast.FindStringSubmatch(s)[1] == "TestEnum" {
				return s
			}
			return "CAST(NULL AS BYTES)"
		}), "SELECT AS STRUCT")
		if replaced == q {
			return err
		}
		if cols, rows, err = d.Query(ctx, replaced, nil); err != nil {
			return err
		}
	}
	t := &algebra.Table{Name: name, Rows: rows}
	for _, c := range cols {
		t.Columns = append(t.Columns, algebra.TableColumn{Name: c.Name, Type: c.Type})
	}
	if parsed, err := syntax.ParseQuery(q); err == nil && len(cols) == 1 {
		t.ValueTable = isValueTable(parsed.Body)
	}
	d.tables[strings.ToLower(name)] = t
	return nil
}

func isValueTable(b syntax.QueryBody) bool {
	switch b := b.(type) {
	case *syntax.Select:
		return b.As != "" || b.AsType != nil
	case *syntax.SetOperation:
		return isValueTable(b.Inputs[0])
	case *syntax.Query:
		return isValueTable(b.Body)
	}
	return false
}

// Query runs a statement whose parameters are those of SELECT parameters.
func (d *Database) Query(ctx context.Context, text string, parameters map[string]Parameter) (cols []algebra.OutputColumn, rows [][]types.Value, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	declared := map[string]*types.Type{}
	params := algebra.Params{Values: map[string]types.Value{}, Now: now}
	for name, p := range parameters {
		declared[name], params.Values[name] = p.Type, p.Value
	}
	for _, where := range []*regexp.Regexp{castInteger, typeBrackets} {
		text = where.ReplaceAllStringFunc(text, func(s string) string {
			return integer.ReplaceAllStringFunc(s, func(s string) string { return "INT64" + strings.Repeat(" ", len(s)-5) })
		})
	}
	p, err := d.engine.Prepare(ctx, d, text, declared)
	if err != nil {
		return nil, nil, err
	}
	result, err := d.engine.Execute(ctx, p, query.Request{Params: params})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, result.Close()) }()
	for {
		b, err := result.Next(ctx)
		if errors.Is(err, io.EOF) {
			return p.Columns(), rows, nil
		}
		if err != nil {
			return nil, nil, err
		}
		for i := range b.Rows() {
			at := i
			if b.Sel != nil {
				at = int(b.Sel[i])
			}
			row := make([]types.Value, len(b.Cols))
			for c, v := range b.Cols {
				row[c] = v.Value(at).Clone()
			}
			rows = append(rows, row)
		}
	}
}

// A Parameter is the value of a parameter.
type Parameter struct {
	Type  *types.Type
	Value types.Value
}

// Parameters evaluates expr AS name, ….
func (d *Database) Parameters(ctx context.Context, text string) (map[string]Parameter, error) {
	params := map[string]Parameter{}
	if strings.TrimSpace(text) == "" {
		return params, nil
	}
	cols, rows, err := d.Query(ctx, "SELECT "+text, nil)
	if err != nil {
		return nil, err
	}
	for i, c := range cols {
		params[strings.ToLower(c.Name)] = Parameter{c.Type, rows[0][i]}
	}
	return params, nil
}
