package functions

import (
	"errors"
	"strings"
	"testing"
)

func TestDescribe(t *testing.T) {
	var b strings.Builder
	if err := Describe(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{
		"\n### String\n\n| Function | Returns |\n|---|---|\n",
		"| `STRPOS(STRING, STRING) → INT64`<br>`STRPOS(BYTES, BYTES) → INT64` | Returns the position",
		"`LPAD(STRING, INT64, [STRING]) → STRING`",
		"| `INT64 + INT64 → INT64`<br>",
		"| `T1 BETWEEN T1 AND T1 → BOOL` |",
		"| `T1 IN (T1, ...) → BOOL` |",
		"| `T1 IN UNNEST(ARRAY<T1>) → BOOL` |",
		"| `T1 IS NULL → BOOL` |",
		"`INT64 \\| INT64 → INT64`",
		"`~INT64 → INT64`",
		"| `NOT BOOL → BOOL` |",
		"| `BOOL AND BOOL → BOOL` |",
		"`FORMAT(STRING, [any, ...]) → STRING`",
		"<br>also OCTET_LENGTH |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	for name, f := range All {
		if f.Doc == "" || f.Category == "" {
			t.Errorf("%s has no Doc or Category", name)
		}
		if f.Doc != "" && !strings.HasSuffix(f.Doc, ".") {
			t.Errorf("%s: Doc is no sentence: %q", name, f.Doc)
		}
	}
	if err := Describe(brokenWriter{}); err == nil {
		t.Error("no error of the writer")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }
