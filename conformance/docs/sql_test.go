package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/trestledb/trestle/engine/query/functions"
)

// sqlFunctions is the document that functions.Describe writes.
const sqlFunctions = "docs/sql-functions.md"

// TestSQLFunctions holds the list of functions against their table. With
// UPDATE_DOCS=1 it writes the list.
func TestSQLFunctions(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# SQL functions\n\nOperators are functions too. T1 and T2 stand for any type, the same each time; arguments in brackets can be left out. " +
		"This list is made of the table that the server has: `UPDATE_DOCS=1 go test ./conformance/docs` writes it. [SQL](sql.md) says the rest.\n\n")
	if err := functions.Describe(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, sqlFunctions)
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what functions.Describe writes: run UPDATE_DOCS=1 go test ./conformance/docs", sqlFunctions)
	}
}
