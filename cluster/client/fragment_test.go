package client_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/exec"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// fragmentPool is the memory of the fragments of all servers. fragmentBytes and
// fragmentRows count what they gave out, and of how many rows.
var (
	fragmentPool                = exec.NewPool(exec.Limits{})
	fragmentBytes, fragmentRows atomic.Int64
)

// fragments are those of a tablet server.
func fragments(fragment []byte, pass func(*scan.Piece, mem.BufferSlice) error) stream.Encoder {
	e, err := exec.NewFragmentEncoder(fragmentPool, fragment, func(p *scan.Piece, b []byte) error {
		fragmentBytes.Add(int64(len(b)))
		fragmentRows.Add(p.Rows)
		return pass(p, mem.BufferSlice{mem.SliceBuffer(b)})
	})
	if err != nil {
		return nil
	}
	return e
}

// sqlCatalog has one table.
type sqlCatalog struct{ t *algebra.Table }

func (c sqlCatalog) Table(_ context.Context, name string) (*algebra.Table, error) {
	if name == c.t.Name {
		return c.t, nil
	}
	return nil, fault.New(fault.NotFound, "no table %s", name)
}
func (c sqlCatalog) Tables(context.Context) ([]string, error) { return nil, nil }
func (c sqlCatalog) Type(context.Context, []string) (*types.Type, error) {
	return nil, fault.New(fault.NotFound, "no type")
}

// cellsOnly is a client to which rows come as cells.
type cellsOnly struct{ *client.Client }

func (c cellsOnly) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	return c.Client.ReadRows(ctx, req, struct{ scan.Writer }{w})
}

// sql returns the rows of a query, sorted.
func sql(ctx context.Context, e *query.Engine, cat algebra.Catalog, text string) ([]string, error) {
	p, err := e.Prepare(ctx, cat, text, nil)
	if err != nil {
		return nil, err
	}
	rows, err := e.Execute(ctx, p, query.Request{Params: algebra.Params{Now: time.Unix(1_700_000_000, 0)}})
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for {
		b, err := rows.Next(ctx)
		if err == io.EOF {
			slices.Sort(out)
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Len {
			if b.Sel != nil && !slices.Contains(b.Sel, int32(i)) {
				continue
			}
			var cols []string
			for _, v := range b.Cols {
				x := v.Value(i)
				cols = append(cols, fmt.Sprintf("%v %d %q", x.Valid, x.Int, x.Str))
			}
			out = append(out, strings.Join(cols, " | "))
		}
	}
}

// TestFragments: parts of a query that run where tablets are give what the query gives
// over rows, wherever tablets go meanwhile.
func TestFragments(t *testing.T) {
	n := newNetwork(t, 3)
	const rows = 20_000
	c, here := n.client(), n.clientOver(n.dialers[0])
	ctx := t.Context()
	var splits [][]byte
	for i := 1; i < 6; i++ {
		splits = append(splits, key(i*rows/6))
	}
	s, err := c.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {}, "g": {}}}, splits)
	if err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 100)
	for from := 0; from < rows; from += 1000 {
		var entries []row.Entry
		for i := from; i < from+1000; i++ {
			e := row.Entry{Key: key(i)}
			set := func(family, qualifier, value string) {
				e.Mutations = append(e.Mutations, row.Mutation{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: 1000, Value: []byte(value)})
			}
			set("f", "group", fmt.Sprint("group", i%7))
			set("f", "n", fmt.Sprint(i))
			set("g", "payload", string(value))
			entries = append(entries, e)
		}
		if err := c.MutateRows(ctx, table, entries, func(i int, err error) {
			if err != nil {
				t.Errorf("entry %d: %v", i, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	cat := sqlCatalog{&algebra.Table{Name: "t", FullName: table, Schema: s, Columns: []algebra.TableColumn{
		{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn},
		{Name: "f", Type: types.MapOf(types.BytesType, types.BytesType), Kind: algebra.FamilyColumn, Family: "f"},
		{Name: "g", Type: types.MapOf(types.BytesType, types.BytesType), Kind: algebra.FamilyColumn, Family: "g"}}}}
	queries := []string{
		"SELECT COUNT(*) FROM t",
		"SELECT f['group'], COUNT(*), MIN(_key), MAX(_key) FROM t GROUP BY 1",
		"SELECT SUM(CAST(CAST(f['n'] AS STRING) AS INT64)) FROM t WHERE g['payload'] IS NOT NULL AND f['group'] != 'group3'",
		"SELECT COUNT(DISTINCT f['group']) FROM t WHERE _key > '" + string(key(777)) + "'",
		"SELECT _key, f['n'] FROM t ORDER BY f['n'] DESC LIMIT 5 OFFSET 3",
		"SELECT _key FROM t WHERE f['n'] = '" + fmt.Sprint(rows-1) + "'",
		"SELECT k FROM (SELECT _key AS k, f['n'] AS n FROM t WHERE ENDS_WITH(f['n'], '999')) ORDER BY n",
	}
	plain := query.New(cellsOnly{c}, query.Options{})
	want := map[string][]string{}
	for _, q := range queries {
		if want[q], err = sql(ctx, plain, cat, q); err != nil {
			t.Fatal(q, err)
		}
	}
	if got := want[queries[0]]; len(got) != 1 || got[0] != fmt.Sprintf("true %d %q", rows, "") {
		t.Fatalf("COUNT(*) is %v", got)
	}
	engines := map[string]*query.Engine{"elsewhere": query.New(c, query.Options{}), "in part here": query.New(here, query.Options{}), "one at a time": query.New(c, query.Options{Parallel: 1})}
	check := func(what string, e *query.Engine) {
		t.Helper()
		for _, q := range queries {
			got, err := sql(ctx, e, cat, q)
			if err != nil || !slices.Equal(got, want[q]) {
				t.Errorf("%s, %s: %d rows, want %d, %v\n got %.300q\nwant %.300q", q, what, len(got), len(want[q]), err, got, want[q])
			}
		}
	}
	// The few rows of a tablet are computed when all have been read.
	for _, q := range []string{"SELECT SUM(TO_INT64(f['n'])) FROM t WHERE _key < '" + string(key(100)) + "'", "SELECT SUM(TO_INT64(f['n'])) FROM t"} {
		for what, e := range engines {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			if _, err := sql(ctx, e, cat, q); fault.KindOf(err) != fault.OutOfRange {
				t.Errorf("%s, %s: %v", q, what, err)
			}
			cancel()
		}
	}
	fragmentBytes.Store(0)
	fragmentRows.Store(0)
	for what, e := range engines {
		check(what, e)
	}
	passed, ran := fragmentBytes.Load(), fragmentRows.Load()
	if ran < rows {
		t.Errorf("fragments ran over %d rows only", ran)
	}
	if passed > ran { // a row has some 200 bytes
		t.Errorf("%d bytes came of %d rows", passed, ran)
	}
	// The same while tablets are split, merged and moved.
	var ending atomic.Bool
	var moving sync.WaitGroup
	var moved atomic.Int64
	moving.Go(func() {
		for i := 0; !ending.Load(); i++ {
			var all []*metadata.Row
			if err := c.Rows(ctx, func(r *metadata.Row) error {
				if r.Tablet > 1<<31 {
					all = append(all, r)
				}
				return nil
			}); err != nil || len(all) == 0 {
				continue
			}
			r := all[i%len(all)]
			var err error
			switch {
			case i%3 == 0 && len(all) < 20:
				err = c.Split(ctx, r, nil)
			case i%3 == 1 && len(all) > 6:
				err = c.Merge(ctx, r)
			default:
				err = c.Move(ctx, r, fmt.Sprintf("server-%d", i%3+1), false)
			}
			if err == nil {
				moved.Add(1)
			}
		}
	})
	began := time.Now()
	for i := 0; i < 40 && moved.Load() < 12 && time.Since(began) < 20*time.Second; i++ {
		for what, e := range engines {
			check(what+", moving", e)
		}
	}
	ending.Store(true)
	moving.Wait()
	// The server of a read that was given up may still be about to notice.
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if used, _ := fragmentPool.Used(); used == 0 {
			break
		}
	}
	if used, _ := fragmentPool.Used(); used != 0 {
		t.Errorf("fragments have left %d bytes", used)
	}
	t.Logf("%d bytes came of %d rows; %d tablets were moved, split or merged", passed, ran, moved.Load())
}
