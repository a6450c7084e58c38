package standalone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestIndexedFiles: what an index object names stays, and goes once the stream does. What no
// row names goes, unless an index object cannot be read that might name it.
func TestIndexedFiles(t *testing.T) {
	ctx := t.Context()
	fs := vfs.NewMem()
	var s *Server
	open := func() {
		t.Helper()
		o := Options{Dir: "d", FS: fs, NoReserve: true, TabletServer: tabletserver.Options{MajorCheck: 50 * time.Millisecond}}
		o.Master.Sweep = 50 * time.Millisecond
		var err error
		if s, err = Open(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	end := func() {
		t.Helper()
		if err := s.Close(context.WithoutCancel(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	open()
	defer func() { end() }()
	sch, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}},
		Stream: &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stream := func() (st *metadata.StreamState, id metadata.TabletID) {
		t.Helper()
		if err := s.Metadata().Scan(ctx, func(r *metadata.Row) error {
			if r.Table == sch.ID {
				st, id = r.Stream, r.Tablet
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return st, id
	}
	const n = 70
	_, id := stream()
	for i := range n {
		if err := s.MutateRow(ctx, table, &row.Entry{Key: fmt.Appendf(nil, "r%d", i), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte("v")}}}); err != nil {
			t.Fatal(err)
		}
		if err := s.TabletServer().Flush(ctx, []metadata.TabletID{id}); err != nil {
			t.Fatal(err)
		}
	}
	st, _ := stream()
	if len(st.Indexes) != 1 {
		t.Fatalf("%d files, %d index objects", len(st.Files), len(st.Indexes))
	}
	index := st.Indexes[0].Object
	named := []string{index}
	f, err := s.Objects().Open(ctx, index)
	if err != nil {
		t.Fatal(err)
	}
	refs, err := changes.ReadIndex(ctx, f, index)
	if err != nil || len(refs)+len(st.Files) != n {
		t.Fatal(len(refs), err)
	}
	for _, r := range append(refs, st.Files...) {
		named = append(named, r.Object)
	}
	there := func(object string) bool {
		t.Helper()
		f, err := s.Objects().Open(ctx, object)
		if err == nil {
			err = f.Close()
		} else if errors.Is(err, fault.NotFound) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
	// swept waits until objects without a reference are gone.
	swept := func(objects ...string) {
		t.Helper()
		for _, o := range objects {
			for end := time.Now().Add(time.Minute); there(o); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%s is still there", o)
				}
			}
		}
	}
	orphans := func() []string {
		t.Helper()
		id := s.TabletServer().Incarnation()<<32 | 0xffff_fff0
		out := []string{metadata.ObjectName(id), changes.IndexName(id), changes.FileName(id)}
		for _, o := range out {
			if err := s.Objects().PutIfAbsent(ctx, o, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	swept(orphans()...)
	for _, o := range named {
		if !there(o) {
			t.Fatalf("%s is named, and was deleted", o)
		}
	}
	end()
	whole := datadirtest.ReadFile(t, fs, "d/sst/"+index)
	datadirtest.WriteFile(t, fs, "d/sst/"+index, datadirtest.Flip(20)(slices.Clone(whole)))
	open()
	left := orphans()
	swept(left[:2]...)
	for _, o := range append(named, left[2]) {
		if !there(o) {
			t.Fatalf("%s may be named, and was deleted", o)
		}
	}
	end()
	datadirtest.WriteFile(t, fs, "d/sst/"+index, whole)
	open()
	swept(left[2])
	for _, o := range named {
		if !there(o) {
			t.Fatalf("%s is named, and was deleted", o)
		}
	}
	if _, err := s.UpdateTable(ctx, table, func(t *schema.Table) error { t.Stream = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	swept(named...)
}
