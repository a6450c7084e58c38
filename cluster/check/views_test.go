package check

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// viewsServer serves the directory d, with views of viewstest if follow is true.
func viewsServer(t *testing.T, fs vfs.FS, follow bool) *standalone.Server {
	t.Helper()
	o := standalone.Options{Dir: "d", FS: fs, NoReserve: true}
	if follow {
		o.Views = func(c *client.Client) views.Options { return views.Options{Evaluators: viewsOf(c)} }
	}
	s, err := standalone.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func viewsOf(c *client.Client) matview.Evaluators { return viewstest.Evaluators{Reader: c} }

// fillSource sets rows of the source, of which n%40 are a group.
func fillSource(t *testing.T, s *standalone.Server, from, to int) {
	t.Helper()
	set := func(q []byte, v []byte) row.Mutation {
		return row.Mutation{Op: row.SetCell, Family: viewstest.Family, Qualifier: q, Value: v}
	}
	for i := from; i < to; i++ {
		if err := s.MutateRow(t.Context(), "projects/p/instances/i/tables/t", &row.Entry{Key: fmt.Appendf(nil, "r%d", i), Mutations: []row.Mutation{
			set(viewstest.Group, fmt.Appendf(nil, "g%d", i%40)), set(viewstest.Value, binary.BigEndian.AppendUint64(nil, uint64(i)))}}); err != nil {
			t.Fatal(err)
		}
	}
}

// viewOfRows makes a source of 300 rows and a view of 40 groups, and returns its rows' table.
func viewOfRows(t *testing.T, s *standalone.Server) *schema.Table {
	t.Helper()
	source, err := s.CreateTable(t.Context(), &schema.Table{Name: "projects/p/instances/i/tables/t", Granularity: 1000, Families: viewstest.Families()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	fillSource(t, s, 0, 300)
	view, err := s.CreateView(t.Context(), viewstest.Groups("projects/p/instances/i/materializedViews/v", source), nil)
	if err != nil {
		t.Fatal(err)
	}
	return view
}

// spoil makes three rows of a view wrong, as a server could that has gone wrong.
func spoil(t *testing.T, s *standalone.Server, view *schema.Table) {
	t.Helper()
	family := view.Families["default"].ID
	s.TabletServer().Loaded(func(tb *tablet.Tablet, table uint64) {
		if table != view.ID {
			return
		}
		for key, change := range map[string]func(*tablet.Batch){
			"g7":   func(b *tablet.Batch) { b.Set(family, []byte("rows"), 0, []byte("12345678")) },
			"g8":   func(b *tablet.Batch) { b.DeleteFamily(family) },
			"none": func(b *tablet.Batch) { b.Set(family, []byte("rows"), 0, []byte("12345678")) },
		} {
			if err := tb.Update(t.Context(), []byte(key), func(_ *tablet.View, b *tablet.Batch) error { change(b); return nil }); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestViews: a view that is right is reported as such, also if it is looked at in parts, and each
// row of one that is not is named.
func TestViews(t *testing.T) {
	ctx := t.Context()
	s := viewsServer(t, vfs.NewMem(), true)
	defer s.Close(ctx)
	view := viewOfRows(t, s)
	c := Views{Read: s.ReadRows, Wait: s.WaitView, Evaluators: viewsOf(s.Client)}
	look := func() (findings []string) {
		t.Helper()
		for _, memory := range []int64{0, 4 << 10} {
			c.Memory = memory
			findings = nil
			sum, err := c.CheckAll(ctx, []*schema.Table{view}, func(f Finding) { findings = append(findings, f.Where+" "+f.What) })
			if err != nil || sum != (ViewSummary{1, 40, len(findings)}) {
				t.Fatalf("%+v, %v", sum, err)
			}
		}
		return findings
	}
	if got := look(); len(got) > 0 {
		t.Errorf("a view that is right: %q", got)
	}
	spoil(t, s, view)
	if got := look(); len(got) != 3 {
		t.Errorf("a view with three wrong rows: %q", got)
	}
}

// TestDirectoryViews: views of a stopped server are compared, those that were behind once they
// would have caught up, and nothing of the directory changes.
func TestDirectoryViews(t *testing.T) {
	ctx := t.Context()
	fs := vfs.NewMem()
	look := func(want ViewSummary) (findings []Finding) {
		t.Helper()
		before := files(t, fs, "d")
		if _, err := Directory(ctx, fs, "d", nil, func(f Finding) {
			if !f.Harmless {
				t.Errorf("the directory: %+v", f)
			}
		}); err != nil {
			t.Error(err)
		}
		sum, err := DirectoryViews(ctx, fs, "d", viewsOf, func(f Finding) { findings = append(findings, f) })
		if err != nil || sum != want {
			t.Errorf("%+v, not %+v, %v", sum, want, err)
		}
		if after := files(t, fs, "d"); !maps.Equal(after, before) {
			t.Errorf("%v became %v", slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
		}
		return findings
	}
	stop := func(s *standalone.Server, flush bool) {
		t.Helper()
		end, cancel := context.WithCancel(ctx)
		defer cancel()
		if !flush {
			cancel()
		}
		if err := s.Close(end); err != nil {
			t.Fatal(err)
		}
	}
	// No process makes views: this one is begun.
	s := viewsServer(t, fs, false)
	view := viewOfRows(t, s)
	if _, err := DirectoryViews(ctx, fs, "d", viewsOf, func(Finding) {}); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("beside a server: %v", err)
	}
	stop(s, true)
	if got := look(ViewSummary{}); len(got) != 1 || !got[0].Harmless || !strings.Contains(got[0].Where, view.Name) {
		t.Errorf("a view that is being built: %+v", got)
	}
	s = viewsServer(t, fs, true)
	if err := s.WaitView(ctx, view.Name); err != nil {
		t.Fatal(err)
	}
	stop(s, true)
	if got := look(ViewSummary{Views: 1, Rows: 40}); len(got) > 0 {
		t.Errorf("a view that is right: %+v", got)
	}
	for _, flush := range []bool{true, false} {
		s = viewsServer(t, fs, false)
		fillSource(t, s, 100, 140)
		if flush {
			fillSource(t, s, 300, 500)
		}
		stop(s, flush)
		if got := look(ViewSummary{Views: 1, Rows: 40}); len(got) > 0 {
			t.Errorf("a view that was behind: %+v", got)
		}
	}
	s = viewsServer(t, fs, true)
	if err := s.WaitView(ctx, view.Name); err != nil {
		t.Fatal(err)
	}
	spoil(t, s, view)
	stop(s, false)
	if got := look(ViewSummary{Views: 1, Rows: 40, Differ: 3}); len(got) != 3 || got[0].Harmless || !strings.HasSuffix(got[0].Where, "row g7") {
		t.Errorf("a view with three wrong rows: %+v", got)
	}
}

// files returns the contents of all files below a directory.
func files(t *testing.T, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		path := fs.PathJoin(dir, n)
		info, err := fs.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			maps.Copy(out, files(t, fs, path))
		} else {
			out[path] = string(datadirtest.ReadFile(t, fs, path))
		}
	}
	return out
}
