package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/conformance/views"
)

const parent = "projects/" + project + "/instances/" + instance

// markAge is for how long the family "brief" keeps cells.
const markAge = 5 * time.Second

// kept are the materialized views of the rows: a count and sums by category, a secondary
// index by name, and how many different names a script has.
var kept = []views.View{
	{ID: "categories", Columns: "category, n, letters, marks", Query: "SELECT prop['category'] AS category, COUNT(*) AS n, SUM(LENGTH(id['name'])) AS letters, COUNT(brief['mark']) AS marks" +
		" FROM ucd WHERE prop['category'] IS NOT NULL GROUP BY category"},
	{ID: "names", Columns: "name, source, category", Query: "SELECT id['name'] AS name, _key AS source, prop['category'] AS category FROM ucd WHERE id['name'] IS NOT NULL ORDER BY name, source"},
	{ID: "scripts", Columns: "script, names", Query: "SELECT prop['script'] AS script, HLL_COUNT.INIT(id['name']) AS names FROM ucd WHERE prop['script'] IS NOT NULL GROUP BY script"},
}

// createViews makes the views of what is loaded.
func (b *bench) createViews(ctx context.Context) error {
	conn, err := grpc.NewClient(b.server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range kept {
		start := time.Now()
		if err := kept[i].Create(ctx, conn, parent); err != nil {
			return err
		}
		fmt.Printf("  %-24s %.0f rows/s\n", kept[i].ID, float64(b.rows())/time.Since(start).Seconds())
	}
	return nil
}

// checkViews waits until the views have caught up, and compares each with its query's result.
func (b *bench) checkViews(ctx context.Context) error { return b.compareViews(ctx, true) }

// compareViews is checkViews, of views with few rows only unless large is set.
func (b *bench) compareViews(ctx context.Context, large bool) error {
	start := time.Now()
	for i := range kept {
		if err := kept[i].Wait(ctx, b.http, parent); err != nil {
			return err
		}
	}
	fmt.Printf("  caught up after %.2f s\n", time.Since(start).Seconds())
	for i := range kept {
		if kept[i].ID == "names" && !large {
			continue
		}
		n, err := kept[i].Check(ctx, b.client)
		if err != nil {
			return err
		}
		fmt.Printf("  %-24s %8d rows, as its query has them\n", kept[i].ID, n)
	}
	return nil
}

// followed changes rows in all ways, and compares the views after each.
func (b *bench) followed(ctx context.Context) error {
	const rows = 5000
	write := func(prefix string, what func(m *bigtable.Mutation, i int)) error {
		var keys []string
		var muts []*bigtable.Mutation
		for i := range rows {
			m := bigtable.NewMutation()
			what(m, i)
			keys, muts = append(keys, fmt.Sprintf("~%s#%05d", prefix, i)), append(muts, m)
		}
		failed, err := b.table.ApplyBulk(ctx, keys, muts)
		return errors.Join(append(failed, err)...)
	}
	set := func(m *bigtable.Mutation, i int) {
		m.Set("id", "name", stamp, fmt.Appendf(nil, "NAME %d", i%1000))
		m.Set("prop", "category", stamp, fmt.Appendf(nil, "C%d", i%7))
		m.Set("prop", "script", stamp, []byte("None"))
	}
	for _, s := range []struct {
		what  string
		large bool // compare the large view too, which takes long
		do    func() error
	}{
		{"written", false, func() error { return errors.Join(write("a", set), write("b", set)) }},
		{"written again", true, func() error { return write("a", func(m *bigtable.Mutation, i int) { set(m, i+3) }) }},
		{"marked", false, func() error {
			return write("a", func(m *bigtable.Mutation, _ int) { m.Set("brief", "mark", bigtable.Now(), []byte("x")) })
		}},
		{"expired", false, func() error { time.Sleep(markAge + time.Second); return nil }},
		{"deleted by column", true, func() error {
			return write("a", func(m *bigtable.Mutation, i int) {
				if m.DeleteCellsInColumn("prop", "script"); i%2 == 0 {
					m.DeleteCellsInColumn("prop", "category")
				}
			})
		}},
		{"deleted", false, func() error { return write("a", func(m *bigtable.Mutation, _ int) { m.DeleteRow() }) }},
		{"dropped", true, func() error { return b.admin.DropRowRange(ctx, "ucd", "~b#") }},
	} {
		fmt.Printf("  %d rows %s:\n", rows, s.what)
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		if err := b.compareViews(ctx, s.large); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}
