package sweep

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	canaryParent = "projects/canary/instances/canary-1"
	canaryTable  = canaryParent + "/tables/canary"
)

// A canary is an ordinary client beside the abuse.
type canary struct {
	cc    *grpc.ClientConn
	data  bigtablepb.BigtableClient
	admin adminpb.BigtableTableAdminClient
	n     int
}

func newCanary(t *testing.T, addr string) *canary {
	t.Helper()
	cc, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	c := &canary{cc: cc, data: bigtablepb.NewBigtableClient(cc), admin: adminpb.NewBigtableTableAdminClient(cc)}
	_, err = c.admin.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: canaryParent, TableId: "canary",
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		t.Fatalf("create the canary's table: %v", err)
	}
	return c
}

// sing writes a row and reads it back, soon.
func (c *canary) sing(t *testing.T) {
	t.Helper()
	c.n++
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	want := fmt.Sprintf("song %d", c.n)
	_, err := c.data.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: canaryTable, RowKey: []byte("canary"),
		Mutations: []*bigtablepb.Mutation{setCell("q", want)}})
	if err != nil {
		t.Fatalf("the canary cannot write: %v", err)
	}
	st, err := c.data.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: canaryTable,
		Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("canary")}}})
	if err != nil {
		t.Fatalf("the canary cannot read: %v", err)
	}
	got := ""
	for {
		m, err := st.Recv()
		if err != nil {
			break
		}
		for _, ch := range m.GetChunks() {
			got += string(ch.GetValue())
		}
	}
	if got != want {
		t.Fatalf("the canary wrote %q and read %q", want, got)
	}
}

func setCell(qualifier, value string) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
		FamilyName: "f", ColumnQualifier: []byte(qualifier), Value: []byte(value)}}}
}
