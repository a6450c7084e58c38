package standalone

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestGarbage: what compactions replace is deleted within seconds, and what is
// named is not.
func TestGarbage(t *testing.T) {
	ctx := t.Context()
	fs := vfs.NewMem()
	s, err := Open(ctx, Options{Dir: "d", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	if _, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, nil); err != nil {
		t.Fatal(err)
	}
	named := func() map[string]bool {
		names := map[string]bool{}
		take := func(r *metadata.Row) error {
			for _, f := range r.Files {
				names[f.Object] = true
			}
			return nil
		}
		roots, err := s.Metadata().Roots(ctx)
		if err == nil {
			err = s.Metadata().Scan(ctx, take)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range roots {
			_ = take(r)
		}
		return names
	}
	for i := range 5 {
		if err := s.MutateRow(ctx, table, &row.Entry{Key: []byte("r"), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "f", Qualifier: []byte{byte('a' + i)}, Timestamp: 1000, Value: []byte("v")}}}); err != nil {
			t.Fatal(err)
		}
		var ids []metadata.TabletID
		if err := s.Metadata().Scan(ctx, func(r *metadata.Row) error { ids = append(ids, r.Tablet); return nil }); err != nil {
			t.Fatal(err)
		}
		if err := s.TabletServer().Compact(ctx, ids); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		// The names first: what comes after is not looked at, and what goes is gone.
		names := named()
		files, err := fs.List("d/sst")
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		there := map[string]bool{}
		for _, f := range files {
			if there[f] = true; strings.HasSuffix(f, ".sst") && !names[f] {
				left++
			}
		}
		for n := range named() {
			if names[n] && !there[n] {
				t.Fatalf("%s is named and was deleted", n)
			}
		}
		if left == 0 && len(names) > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d files are left that nothing names", left, len(files))
		}
	}
}
