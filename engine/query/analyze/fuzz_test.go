package analyze

import (
	"errors"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
)

// FuzzStatement looks for statements that make the analyzer panic, and for columns of
// results that their algebra does not have.
func FuzzStatement(f *testing.F) {
	for _, c := range queries {
		f.Add(c.sql)
	}
	for _, c := range refused {
		f.Add(c.sql)
	}
	f.Add("INSERT INTO t (_key, cf1['a'], cf2['b']) VALUES ('k1', 'v', DEFAULT), (@k, b'x', 'y')")
	f.Add("UPDATE t SET cf1['a'] = CONCAT(cf1['a'], b'x'), cf2 = DEFAULT WHERE _key = 'k'")
	f.Fuzz(func(t *testing.T, sql string) {
		st, err := analyze(sql)
		if err != nil {
			if !errors.Is(err, fault.Invalid) {
				t.Fatalf("%s: %v", sql, err)
			}
			return
		}
		if st.Query == nil {
			return
		}
		if problems := check(st.Query); len(problems) > 0 {
			t.Fatalf("%s: %s\n%s", sql, problems, algebra.Print(st.Query))
		}
		has := st.Query.Columns()
		if len(has) != len(st.Columns) {
			t.Fatalf("%s: %d columns, and %d of the algebra", sql, len(st.Columns), len(has))
		}
		for i, c := range st.Columns {
			if has[i].ID != c.Column || !has[i].Type.Equal(c.Type) {
				t.Fatalf("%s: column %d is %v, and %v of the algebra", sql, i, c, has[i])
			}
		}
	})
}
