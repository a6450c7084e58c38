package sqlclient_test

import (
	"context"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/compat/sqlclient"
	"github.com/trestledb/trestle/conformance/trestletest"
)

// TestColumnsChange adds a family to a table between a query's preparation and its execution.
// begin is called once: rows of other columns than it got must not follow.
func TestColumnsChange(t *testing.T) {
	ctx := t.Context()
	srv, err := trestletest.NewServer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	meanwhile := func() {}
	conn, err := grpc.NewClient(srv.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			meanwhile()
			return stream(ctx, d, cc, method, o...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	admin := adminpb.NewBigtableTableAdminClient(conn)
	if _, err := admin.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: "projects/p/instances/i", TableId: "people",
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}); err != nil {
		t.Fatal(err)
	}
	c := &sqlclient.Client{Conn: conn, Instance: "projects/p/instances/i"}
	begun, rows, columns := 0, 0, 0
	query := func(text string) error {
		begun, rows = 0, 0
		return c.Query(ctx, text, nil, func(cols sqlclient.Columns) error {
			begun, columns = begun+1, len(cols)
			return nil
		}, func(v []*bigtablepb.Value) error {
			if rows++; len(v) != columns {
				t.Errorf("%s: a row of %d values for %d columns", text, len(v), columns)
			}
			return nil
		})
	}
	if err := query("INSERT INTO people (_key, f['q']) VALUES (b'ann', b'1')"); err != nil {
		t.Fatal(err)
	}
	family := ""
	meanwhile = func() {
		if family == "" {
			return
		}
		if _, err := admin.ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{Name: "projects/p/instances/i/tables/people",
			Modifications: []*adminpb.ModifyColumnFamiliesRequest_Modification{{Id: family, Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Create{Create: &adminpb.ColumnFamily{}}}}}); err != nil {
			t.Error(err)
		}
		family = ""
	}
	for _, tc := range []struct {
		text, family  string
		code          codes.Code
		rows, columns int
	}{
		{"SELECT * FROM people", "g", codes.Aborted, 0, 2},
		{"SELECT * FROM people", "", codes.OK, 1, 3}, // run again
		{"SELECT _key FROM people", "h", codes.OK, 1, 1},
	} {
		family = tc.family
		if err := query(tc.text); status.Code(err) != tc.code || begun != 1 || rows != tc.rows || columns != tc.columns {
			t.Errorf("%s with a new family %q: %v, begun %d times, %d rows of %d columns", tc.text, tc.family, err, begun, rows, columns)
		}
	}
}
