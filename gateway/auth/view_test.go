package auth_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/gateway/auth"
)

// TestAuthorizedView grants a view, and so some rows of a table to who may not
// use the table.
func TestAuthorizedView(t *testing.T) {
	f := newFixture(t, auth.Options{})
	ctx := t.Context()
	root := f.root.token(nil)
	for _, row := range []string{"p1", "q1"} {
		for _, fam := range []string{"a", "b"} {
			if err := f.set(root, fam, row); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := &adminpb.AuthorizedView_FamilySubsets{QualifierPrefixes: [][]byte{{}}}
	if _, err := adminpb.NewBigtableTableAdminClient(f.connect(root)).CreateAuthorizedView(ctx, &adminpb.CreateAuthorizedViewRequest{
		Parent: table, AuthorizedViewId: "v", AuthorizedView: &adminpb.AuthorizedView{AuthorizedView: &adminpb.AuthorizedView_SubsetView_{
			SubsetView: &adminpb.AuthorizedView_SubsetView{RowPrefixes: [][]byte{[]byte("p")},
				FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{"a": all, "b": all}}}}}); err != nil {
		t.Fatal(err)
	}
	view := table + "/authorizedViews/v"
	acc := f.account("some-acc", false)
	bt := bigtableClient(f.connect(acc.token(nil)))
	read := func() (string, error) {
		s, err := bt.ReadRows(ctx, &bigtablepb.ReadRowsRequest{AuthorizedViewName: view})
		if err != nil {
			return "", err
		}
		var out []string
		row, fam := "", ""
		for {
			m, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return strings.Join(out, " "), nil
			}
			if err != nil {
				return "", err
			}
			for _, c := range m.GetChunks() {
				if len(c.GetRowKey()) > 0 {
					row = string(c.GetRowKey())
				}
				if c.GetFamilyName() != nil {
					fam = c.GetFamilyName().GetValue()
				}
				out = append(out, row+"/"+fam)
			}
		}
	}
	write := func(row, fam string) codes.Code {
		_, err := bt.MutateRow(ctx, &bigtablepb.MutateRowRequest{AuthorizedViewName: view, RowKey: []byte(row), Mutations: []*bigtablepb.Mutation{setCell(fam)}})
		return status.Code(err)
	}
	if _, err := read(); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	f.grant(view, "roles/bigtable.user "+acc.member())
	if got, err := read(); err != nil || got != "p1/a p1/b" {
		t.Errorf("%q %v", got, err)
	}
	if _, err := f.read(acc.token(nil), nil); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the table: %v", err)
	}
	if write("p2", "a") != codes.OK || write("q2", "a") != codes.PermissionDenied {
		t.Error("writes")
	}
	// A condition narrows the view further.
	f.grant(view, `roles/bigtable.user `+acc.member()+` resource.family == "b"`)
	if got, err := read(); err != nil || got != "p1/b" {
		t.Errorf("%q %v", got, err)
	}
	if write("p2", "b") != codes.OK || write("p2", "a") != codes.PermissionDenied {
		t.Error("writes to families")
	}
}
