package sql

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/materialize"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// plainSettings are of tables of which nothing is set.
type plainSettings struct{}

func (plainSettings) Settings(*schema.Table) (*adminpb.Table, error) { return new(adminpb.Table), nil }
func (plainSettings) ValueType(schema.Family) (*adminpb.Type, error) { return new(adminpb.Type), nil }

// viewOnly is a catalog of one view.
type viewOnly struct {
	oneTable
	view *algebra.Table
}

func (v viewOnly) Table(context.Context, string) (*algebra.Table, error) { return v.view, nil }

// TestViewColumns reads a view's rows by the names of its columns: conditions on columns of
// the key become ranges of rows.
func TestViewColumns(t *testing.T) {
	b := model.New(model.Options{})
	s := &Service{settings: plainSettings{}}
	source := &schema.Table{Name: "projects/p/instances/i/tables/t", Granularity: 1, Families: map[string]schema.Family{}}
	source.AddFamily(schema.Family{Name: "f"})
	cat, err := s.table(source, "t")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		text, where, columns, ranges string
	}{
		{"SELECT CAST(f['r'] AS STRING) AS region, LENGTH(f['r']) AS n, COUNT(*) AS c, AVG(LENGTH(f['v'])) AS `result.avg` FROM t GROUP BY region, n",
			"region = 'eu' AND n = 2", "region STRING, n INT64, c INT64, result.avg FLOAT64", "eu"},
		{"SELECT CAST(f['r'] AS STRING) AS _key, COUNT(*) AS c FROM t GROUP BY _key", "_key = 'eu'", "_key STRING, c INT64", "eu"},
		{"SELECT f['r'] AS result, f['r'] AS `default`, COUNT(*) AS `result.c` FROM t GROUP BY result, f['q'], `default`", "", "", ""},
		{"SELECT f['r'] AS result, COUNT(*) AS `result.c` FROM t GROUP BY result", "result = b'eu'", "result BYTES, result.c INT64", "eu"},
		{"SELECT TIMESTAMP_MICROS(LENGTH(f['r'])) AS ts, _key AS k, f AS g, f['b'] = b'1' AS b FROM t ORDER BY ts, k",
			"ts = TIMESTAMP_MICROS(2) AND k = b'x'", "ts TIMESTAMP, k BYTES, g MAP<BYTES, BYTES>, b BOOL", "x"},
	} {
		v, err := materialize.Compile(t.Context(), oneTable{t: cat}, x.text)
		if x.where == "" {
			if err == nil {
				t.Errorf("%s is allowed", x.text)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", x.text, err)
		}
		d := v.Definition
		d.Name = "projects/p/instances/i/materializedViews/v"
		rows, _ := matview.Tables(d)
		cells, err := s.cells(rows, "v")
		if err != nil {
			t.Fatal(err)
		}
		c := viewOnly{view: &algebra.Table{Name: "v", View: &algebra.View{Query: cellsQuery(d), Catalog: oneTable{t: cells}}}}
		e := query.New(b, query.Options{Dir: t.TempDir()})
		p, err := e.Prepare(t.Context(), c, "SELECT * FROM v WHERE "+x.where, nil)
		if err != nil {
			t.Fatalf("%s: %v", x.text, err)
		}
		var cols []string
		for _, o := range p.Columns() {
			cols = append(cols, o.Name+" "+o.Type.String())
		}
		if got := strings.Join(cols, ", "); got != x.columns {
			t.Errorf("%s has %s, want %s", x.text, got, x.columns)
		}
		if p, err = e.Prepare(t.Context(), c, "EXPLAIN SELECT * FROM v WHERE "+x.where, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := b.CreateTable(t.Context(), rows, nil); err != nil && x.ranges == "" {
			t.Fatal(err)
		}
		out, err := e.Execute(t.Context(), p, query.Request{})
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for {
			batch, err := out.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range batch.Len {
				for _, col := range batch.Cols[:4] {
					lines = append(lines, col.Value(i).Str)
				}
			}
		}
		_ = out.Close()
		all := strings.Join(lines, " ")
		if !strings.Contains(all, row.Escape([]byte(x.ranges))) {
			t.Errorf("%s: %q", x.text, all)
		}
	}
}
