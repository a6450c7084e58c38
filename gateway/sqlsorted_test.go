package gateway

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/sql"
)

// TestSQLResumeSorted sorts more than a query has memory for, and goes on from each token:
// those of a result that was read to its end, and those of streams that were left before
// the rest was made.
func TestSQLResumeSorted(t *testing.T) {
	const rows, width, memory = 15_000, 400, 8 << 20
	dir := t.TempDir()
	f := sqlFixtureOf(t, Options{Query: query.Options{QueryMemory: memory, Dir: dir}, SQL: sql.Options{Dir: dir, FirstToken: 256 << 10}})
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(7, 7))
	type sorted struct{ key, value string }
	var want []sorted
	for i := range rows {
		x := sorted{fmt.Sprintf("row%05d", i), fmt.Sprintf("%016x%0*d", rng.Uint64(), width-16, i)}
		want = append(want, x)
		e := &row.Entry{Key: []byte(x.key), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf", Qualifier: []byte("v"), Timestamp: 1000, Value: []byte(x.value)}}}
		if err := f.stub.MutateRow(ctx, testTable, e); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(want, func(a, b sorted) int { return cmp.Compare(a.value, b.value) })
	q := f.mustPrepare("SELECT _key, cf['v'] AS v FROM t ORDER BY v")
	read := func(token []byte, stop func(*result) bool) *result {
		t.Helper()
		r, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q, ResumeToken: token}, stop)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// equal checks that r, which was read to its end, has the rows from the from'th on.
	equal := func(what string, r *result, from int) {
		t.Helper()
		if len(r.values) != 2*(rows-from) {
			t.Errorf("%s: %d rows, want those from %d on", what, len(r.values)/2, from)
			return
		}
		for i, x := range want[from:] {
			if key, value := string(r.values[2*i].GetBytesValue()), string(r.values[2*i+1].GetBytesValue()); key != x.key || value != x.value {
				t.Errorf("%s: row %d is %s %.20s, want %s %.20s", what, from+i, key, value, x.key, x.value)
				return
			}
		}
	}
	all := read(nil, nil)
	equal("all", all, 0)
	if n := len(all.tokens); n < 5 {
		t.Errorf("only %d tokens", n)
	}
	for i, token := range all.tokens {
		equal(fmt.Sprintf("token %d of %d", i, len(all.tokens)), read(token, nil), all.after[i])
	}

	// A client that leaves behind each token, and one that leaves behind two and goes on with
	// the first: each reads all rows, once.
	for _, tokens := range []int{1, 2} {
		var got []*bigtablepb.Value
		var at []byte
		for streams := 0; ; streams++ {
			r := read(at, func(r *result) bool { return len(r.tokens) == tokens })
			if len(r.tokens) < tokens || r.after[0] == 0 { // the token of the end comes once more
				got = append(got, r.values...)
				break
			}
			if streams > 4*len(all.tokens) {
				t.Fatalf("%d streams have not come to the end", streams)
			}
			got, at = append(got, r.values[:2*r.after[0]]...), r.tokens[0]
		}
		equal(fmt.Sprintf("streams of %d tokens", tokens), &result{values: got}, 0)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) > 0 {
		t.Errorf("files with names: %v %v", files, err)
	}
}
