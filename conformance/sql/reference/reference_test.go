package reference

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

var (
	jars    = flag.String("reference.jars", "", "the directory of GoogleSQL's jars: make conformance-sql fetches them")
	queries = flag.Int("reference.queries", 10_000, "how many random queries to compare")
	seed    = flag.Uint64("reference.seed", 1, "seed of the first; each has the next one")
	calls   = flag.Int("reference.calls", 200, "how many calls of each signature to compare")
	wordy   = flag.Int("reference.words", 0, "how many errors in other words to print")
	show    = flag.Int("reference.show", 40, "how many differences to print")
)

func start(t *testing.T) *Process {
	t.Helper()
	if *jars == "" {
		t.Skip("NOT COMPARED with GoogleSQL's reference implementation: -reference.jars names no directory of its jars (make conformance-sql fetches them)")
	}
	p, err := Start(*jars, "testdata/src/Reference.java")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// A tally counts how comparisons ended.
type tally struct {
	same, refused, unsupported, died, text int
	explained                              map[Kind]int
	differ, words                          []string
}

// ask asks both, and counts.
func (c *tally) ask(t *testing.T, p *Process, e *query.Engine, what, sql string, ordered bool) {
	t.Helper()
	want, err := p.Query(sql)
	if err != nil {
		c.died++
		return
	}
	for _, not := range []string{"Unsupported built-in function", "Unimplemented", "Function not found", "gRPC message exceeds"} {
		if strings.HasPrefix(want.Error, not) {
			c.unsupported++
			return
		}
	}
	got, err := Ours(t.Context(), e, sql)
	if err != nil {
		c.differ = append(c.differ, fmt.Sprintf("%s: %v\n%s", what, err, sql))
		return
	}
	switch d := Compare(sql, got, want, ordered); {
	case d.Kind != "":
		if c.explained == nil {
			c.explained = map[Kind]int{}
		}
		c.explained[d.Kind]++
	case d.Text != "":
		c.differ = append(c.differ, fmt.Sprintf("%s: %s\n%s", what, d.Text, sql))
	case want.Error != "":
		c.refused++
		if words(got.Error) == words(want.Error) {
			c.text++
		} else {
			c.words = append(c.words, fmt.Sprintf("%s: error %q, want %q\n%s", what, got.Error, want.Error, sql))
		}
	default:
		c.same++
	}
}

// words returns what of an error is compared: not the signatures, of which GoogleSQL has
// more, of types that Bigtable has not, and not the name of FLOAT32, which it calls FLOAT.
func words(text string) string {
	first, rest, _ := strings.Cut(text, "\n")
	if i := strings.LastIndex(rest, " [at "); i >= 0 {
		first += rest[i:]
	}
	return strings.ReplaceAll(first, "FLOAT32", "FLOAT")
}

func (c *tally) report(t *testing.T, what string) {
	t.Helper()
	for i, d := range c.differ {
		if i == *show {
			t.Logf("… and %d more", len(c.differ)-i)
			break
		}
		t.Log(d)
	}
	for _, d := range c.words[:min(*wordy, len(c.words))] {
		t.Log(d)
	}
	t.Logf("%s: %d the same, %d refused by both (%d with the same words), explained %v, %d not in the reference implementation, %d ended it, %d differ",
		what, c.same, c.refused, c.text, c.explained, c.unsupported, c.died, len(c.differ))
	if len(c.differ) > 0 || c.same == 0 {
		t.Fail()
	}
}

// TestRandomQueries compares random queries.
func TestRandomQueries(t *testing.T) {
	p, e := start(t), query.New(nil, query.Options{})
	var c tally
	for i := range uint64(*queries) {
		sql, ordered := NewGenerator(*seed + i).Query()
		c.ask(t, p, e, fmt.Sprintf("seed %d", *seed+i), sql, ordered)
	}
	c.report(t, "random queries")
}

// TestColumns compares random queries of expressions over columns: a tenth as many of
// each type.
func TestColumns(t *testing.T) {
	p, e := start(t), query.New(nil, query.Options{})
	var c tally
	for k, typ := range ColumnTypes {
		for i := range uint64(*queries / 10) {
			at := *seed + i
			c.ask(t, p, e, fmt.Sprintf("%s, seed %d", typ, at), NewGenerator(at<<4|uint64(k)).Columns(typ), true)
		}
	}
	c.report(t, "queries over columns")
}

// TestFunctions compares every signature of every scalar function that can be called
// with values of scalar types and arrays of them.
func TestFunctions(t *testing.T) {
	p, e := start(t), query.New(nil, query.Options{})
	var names []string
	for name, f := range functions.All {
		if f.Kind == functions.Scalar && !strings.HasPrefix(name, "$") && !f.Volatile && !f.Stable && !ours[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var c tally
	for _, name := range names {
		for i, s := range functions.Lookup(name).Signatures {
			if !s.Internal {
				c.signature(t, p, e, name, i, s)
			}
		}
	}
	c.report(t, "functions")
}

// ours are functions of Bigtable's that GoogleSQL has not, or has under other names.
var ours = map[string]bool{"TO_INT64": true, "TO_FLOAT32": true, "TO_FLOAT64": true, "TO_VECTOR32": true, "TO_VECTOR64": true, "WRITE_TIMESTAMP": true,
	"MAP_EMPTY": true, "MAP_CONTAINS_KEY": true, "MAP_ENTRIES": true, "MAP_KEYS": true, "MAP_VALUES": true, "MAP_FROM_ARRAY": true, "ERROR": true}

// signature compares calls of one signature, as many in one query as rows of arguments.
func (c *tally) signature(t *testing.T, p *Process, e *query.Engine, name string, index int, s *functions.Signature) {
	rng := rand.New(rand.NewPCG(*seed, uint64(len(name)*100+index)))
	for _, bound := range bindings(s) {
		for given := range len(s.Args) + 1 {
			if given < len(s.Args) && !s.Args[given].Optional && !s.Args[given].Repeated {
				continue // fewer arguments than it needs
			}
			args := make([]string, given)
			rows := make([]string, 1+*calls/len(bindings(s)))
			ok := true
			for r := range rows {
				values := make([]string, given)
				for i, a := range s.Args[:given] {
					if a.NamedOnly || a.Const {
						ok = false
						break
					}
					text, fits := sample(rng, a.Type, bound)
					ok = ok && fits
					values[i] = text
					if r == 0 {
						values[i] += fmt.Sprintf(" AS a%d", i)
					}
					args[i] = fmt.Sprintf("a%d", i)
				}
				rows[r] = "STRUCT(" + strings.Join(values, ", ") + fmt.Sprintf(", %d AS n", r) + ")"
			}
			if !ok {
				continue
			}
			call := name + "(" + strings.Join(args, ", ") + ")"
			c.ask(t, p, e, call, fmt.Sprintf("SELECT n, ISERROR(%[1]s), NULLIFERROR(%[1]s) FROM UNNEST([%[2]s]) ORDER BY n", call, strings.Join(rows, ", ")), true)
		}
	}
}

// bindings are what T1 and other names stand for: each scalar type once, if there is
// such a name.
func bindings(s *functions.Signature) []string {
	for _, a := range s.Args {
		if a.Type.Any != "" || a.Type.Elem != nil && a.Type.Elem.Any != "" {
			return []string{"BOOL", "INT64", "FLOAT64", "STRING", "BYTES", "DATE", "TIMESTAMP"}
		}
	}
	return []string{""}
}

// sample writes a value of a template; ok is false if it has none here.
func sample(rng *rand.Rand, tmpl functions.Template, bound string) (text string, ok bool) {
	typ := bound
	switch {
	case tmpl.Type != nil && tmpl.Type.Kind == types.Array:
		tmpl = functions.ArrayT(functions.T(tmpl.Type.Elem))
		fallthrough
	case tmpl.Kind == types.Array:
		elems := make([]string, rng.IntN(4))
		for i := range elems {
			if elems[i], ok = sample(rng, *tmpl.Elem, bound); !ok {
				return "", false
			}
		}
		elem := bound
		if tmpl.Elem.Type != nil {
			elem = tmpl.Elem.Type.String()
		}
		return "ARRAY<" + elem + ">[" + strings.Join(elems, ", ") + "]", elem != ""
	case tmpl.Type != nil:
		typ = tmpl.Type.String()
	case tmpl.Any == "":
		return "", false
	}
	if typ == "FLOAT32" {
		return "CAST(" + edges["FLOAT64"][rng.IntN(4)] + " AS FLOAT32)", true
	}
	list := edges[typ]
	if len(list) == 0 {
		return "", false
	}
	return list[rng.IntN(len(list))], true
}

// TestGenerator: a seed writes one query, and seeds write different ones.
func TestGenerator(t *testing.T) {
	seen := map[string]bool{}
	for i := range uint64(500) {
		sql, _ := NewGenerator(i).Query()
		if again, _ := NewGenerator(i).Query(); again != sql {
			t.Fatalf("seed %d writes two queries:\n%s\n%s", i, sql, again)
		}
		seen[sql] = true
	}
	if len(seen) < 490 {
		t.Errorf("500 seeds write %d queries", len(seen))
	}
}

// TestCompare: what differs is said to.
func TestCompare(t *testing.T) {
	one := &Result{Columns: [][2]string{{"a", "FLOAT64"}}, Rows: [][]any{{"3ff0000000000000"}}}
	for _, tc := range []struct {
		name            string
		r               Result
		same, explained bool
	}{
		{"same", Result{Columns: one.Columns, Rows: [][]any{{"3ff0000000000000"}}}, true, false},
		{"last digit", Result{Columns: one.Columns, Rows: [][]any{{"3ff0000000000001"}}}, false, true},
		{"another number", Result{Columns: one.Columns, Rows: [][]any{{"3ff0000100000000"}}}, false, false},
		{"NULL", Result{Columns: one.Columns, Rows: [][]any{{nil}}}, false, false},
		{"more rows", Result{Columns: one.Columns, Rows: [][]any{{"3ff0000000000000"}, {nil}}}, false, false},
		{"another type", Result{Columns: [][2]string{{"a", "INT64"}}, Rows: [][]any{{"3ff0000000000000"}}}, false, false},
		{"error", Result{Error: "no"}, false, false},
	} {
		d := Compare("SELECT 1", &tc.r, one, true)
		if (d.Text == "") != tc.same || (d.Kind != "") != tc.explained {
			t.Errorf("%s: %+v", tc.name, d)
		}
	}
	for more, explained := range map[string]bool{"3ff0000000000001": true, "3ff0000100000000": false} {
		got := &Result{Columns: one.Columns, Rows: [][]any{{"3ff0000000000000"}, {more}}}
		if d := Compare("SELECT DISTINCT EXP(x) FROM t", got, one, true); d.Text == "" || (d.Kind != "") != explained {
			t.Errorf("DISTINCT with %s: %+v", more, d)
		}
	}
}
