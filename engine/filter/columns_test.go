package filter

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/row"
)

// A filter inside of Columns does what it would do to a row without the rest.
func TestColumnsAgreeWithReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &Node{Op: Columns, Children: []*Node{genNode(t, 3, false)}, Columns: map[string][]row.Range{}}
		for _, f := range someFamilies {
			var ranges []row.Range
			for range rapid.IntRange(0, 3).Draw(t, "ranges") {
				q := genBytes(someQualifiers).Draw(t, "qualifier")
				if rapid.Bool().Draw(t, "prefix") {
					ranges = append(ranges, row.Prefix(q))
				} else {
					ranges = append(ranges, row.Single(q))
				}
			}
			if ranges != nil {
				n.Columns[f] = row.Union(ranges)
			}
		}
		p, err := Compile(n)
		if err != nil {
			if strings.Contains(err.Error(), "apply_label_transformer") {
				t.Skip("two labels in a chain")
			}
			t.Fatalf("%v: %v", n.Children[0], err)
		}
		for range 2 {
			cells := genRow(t)
			inside := slices.DeleteFunc(slices.Clone(cells), func(c row.Cell) bool {
				return !slices.ContainsFunc(n.Columns[c.Family], func(r row.Range) bool { return r.Contains(c.Qualifier) })
			})
			want := canonical(evaluate(n.Children[0], []byte("k1"), inside, 0.5))
			for _, how := range readers {
				var out collector
				got := canonical(read(p.Pipeline(&out, func() float64 { return 0.5 }), p.Hints(), &out, how, []byte("k1"), cells))
				if got != want {
					t.Fatalf("%s reader of %v inside of %v\n%sgot\n%swant\n%s", how.name, n.Children[0], n.Columns, canonical(cells), got, want)
				}
			}
		}
	})
}

// Columns takes nothing from the limits of the filter in it, and its errors are
// those of that filter.
func TestColumnsAreNotTheClients(t *testing.T) {
	in := func(child *Node) *Node {
		return &Node{Op: Columns, Columns: map[string][]row.Range{"a": {row.All}}, Children: []*Node{child}}
	}
	for _, ok := range []*Node{nil, nested(Interleave, 20), nested(Condition, 20)} {
		if err := in(ok).Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []*Node{nested(Interleave, 21), chain(), chain(nil, regex(FamilyRegex, "a:b"))} {
		if got, want := fmt.Sprint(in(bad).Validate()), fmt.Sprint(bad.Validate()); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if (&Node{Op: Columns}).Validate() == nil {
		t.Error("Columns without a child is valid")
	}
	n := in(chain(regex(FamilyRegex, "a"), regex(FamilyRegex, "b"), columns("c", Bound{}, Bound{})))
	if got := fmt.Sprint(chain(n, regex(FamilyRegex, "d")).LiteralFamilies()); got != "[a d]" {
		t.Error("names ", got)
	}
	if p := mustCompile(t, in(nil)); p.IsPassAll() || !p.Hints().Families("a") || p.Hints().Families("b") {
		t.Error("hints are those of a filter that passes all")
	}
	if p := mustCompile(t, &Node{Op: Columns, Children: []*Node{nil}}); !p.Hints().None {
		t.Error("no columns, but output")
	}
}
