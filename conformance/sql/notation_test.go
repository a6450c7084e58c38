package sql

import "testing"

func TestNotation(t *testing.T) {
	for _, c := range []struct{ text, typ, rows string }{
		{"ARRAY<STRUCT<INT64>>[]", "ARRAY<STRUCT<INT64>>", "[]"},
		{"ARRAY<STRUCT<a INT64, STRING, `x y` ARRAY<>>>[{1, \"a, \\\"}\\n\\x41\", ARRAY<INT64>[known order:1, NULL]}]",
			"ARRAY<STRUCT<a INT64, STRING, x y ARRAY>>", `[{1 s"a, \"}\nA" [1 NULL]}]`},
		{"ARRAY<STRUCT<\n  a ARRAY<>,\n  BYTES>>\n[unknown order:\n {ARRAY<INT64>(NULL), b\"\\xff\"},\n {ARRAY<INT64>[], NULL}]",
			"ARRAY<STRUCT<a ARRAY, BYTES>>", `[?{NULL b"\xff"} {[] NULL}]`},
		{"ARRAY<DATE>[known order:2014-01-01, NULL]", "ARRAY<DATE>", "[2014-01-01 NULL]"},
		{"ARRAY<STRUCT<TIMESTAMP, x STRUCT<a DOUBLE>>>[{2014-01-01 00:00:00.5+00, {-inf}}]\n\nNOTE: more",
			"ARRAY<STRUCT<TIMESTAMP, x STRUCT<a DOUBLE>>>", "[{2014-01-01 00:00:00.5+00 {-inf}}]"},
		{"ARRAY<STRUCT<MAP<STRING, INT64>>>[{{\"a\": 1, \"b\": NULL}}]\n\n# more", "ARRAY<STRUCT<MAP>>", `[{{s"a" 1 s"b" NULL}}]`},
		{"ARRAY<STRUCT<ENUM<a.b>>>[{A}]", "ARRAY<STRUCT<ENUM>>", "[{A}]"},
	} {
		r, err := Notation(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := r.Type.String(); got != c.typ {
			t.Errorf("%s: type %s, want %s", c.text, got, c.typ)
		}
		if got := r.Rows.String(); got != c.rows {
			t.Errorf("%s: rows %s, want %s", c.text, got, c.rows)
		}
	}
	r, err := Notation("ERROR: generic::invalid_argument: Bad\n  thing: x [at 1:2]\nSELECT\n ^")
	if err != nil || r.Code != "invalid_argument" || r.Message != "Bad\n  thing: x [at 1:2]" {
		t.Errorf("error is %+v, %v", r, err)
	}
	for _, text := range []string{"", "ARRAY<STRUCT<a INT64>>", "ARRAY<INT64>[1", "ARRAY<STRING>[\"a]", "ERROR: x", "ARRAY<PROTO<a>>[{\n a: 1\n b: {}\n}]", "ARRAY<INT64>[1] x"} {
		if r, err := Notation(text); err == nil {
			t.Errorf("%q is %s", text, r.Rows)
		}
	}
}
