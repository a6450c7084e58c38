package auth_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/auth"
)

// families notes the families of what it is given.
type families struct{ seen map[string]bool }

func (w *families) StartRow([]byte)       {}
func (w *families) Cell(c *row.Cell)      { w.seen[c.Family] = true }
func (w *families) EndRow() (bool, error) { return false, nil }
func (w *families) Scanned([]byte)        {}
func (w *families) Flush() error          { return nil }

// TestQuery does what a query does with tables: it looks at their schemas and
// reads them, whatever they are called.
func TestQuery(t *testing.T) {
	f := newFixture(t, auth.Options{})
	f.createTable("u")
	root := f.root.token(nil)
	for _, fam := range []string{"a", "b", "c"} {
		if err := f.set(root, fam, "r"); err != nil {
			t.Fatal(err)
		}
	}
	acc := f.account("some-acc", false)
	b := f.a.Guard(f.b)
	query := func(tbl string) (schema, seen string, err error) {
		info := &tap.Info{FullMethodName: bigtablepb.Bigtable_ExecuteQuery_FullMethodName,
			Header: metadata.MD{"authorization": {"Bearer " + acc.token(nil)}}}
		ctx, err := f.a.Tap(t.Context(), info)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.a.Unary(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: instance}, &grpc.UnaryServerInfo{FullMethod: info.FullMethodName},
			func(ctx context.Context, _ any) (any, error) {
				tb, err := b.Table(ctx, tbl)
				if err != nil {
					return nil, err
				}
				schema = strings.Join(slices.Sorted(maps.Keys(tb.Families)), " ")
				w := &families{map[string]bool{}}
				_, err = b.ReadRows(ctx, &scan.Request{Table: tbl, Ranges: []row.Range{{}}}, w)
				seen = strings.Join(slices.Sorted(maps.Keys(w.seen)), " ")
				return nil, err
			})
		return schema, seen, err
	}
	if _, _, err := query(table); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("without grants: %v", err)
	}
	// executeQuery alone shows no table, there or not.
	f.grant(project, "roles/bigtable.reader "+acc.member()+` resource.family == "zzz"`)
	f.grant(instance, "roles/bigtable.reader "+f.root.member())
	if _, _, err := query(table); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("without executeQuery: %v", err)
	}
	f.grant(project)
	f.grant(instance, "roles/bigtable.reader "+acc.member())
	if schema, seen, err := query(table); err != nil || schema != "a b c" || seen != "a b c" {
		t.Errorf("reader of the instance: %q %q %v", schema, seen, err)
	}
	if _, _, err := query(project + "/instances/inst-2/tables/t"); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("a table of another instance: %v", err)
	}
}
