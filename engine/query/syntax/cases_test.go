package syntax

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestCases parses the statements of GoogleSQL's compliance cases, which lie outside
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
	cases, failed := 0, 0
	for in.Scan() {
		var c struct{ File, Kind, Name, SQL, Expected string }
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.Kind != "case" || strings.Contains(c.Expected, "Syntax error") {
			continue
		}
		cases++
		if _, err := Parse(c.SQL); err != nil {
			failed++
			t.Logf("%s/%s: %v\n%s", c.File, c.Name, err, c.SQL)
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d cases parse", cases-failed, cases)
	if cases == 0 || failed*100 > cases {
		t.Errorf("%d of %d cases do not parse; at most one in a hundred may", failed, cases)
	}
}
