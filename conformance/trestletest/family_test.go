package trestletest

import (
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Every refusal of a column family that is not there says which one it is, to
// programs too.
func TestNoFamily(t *testing.T) {
	s, err := NewServer("localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	conn, ctx := dial(t, s.Addr), t.Context()
	admin, c := adminpb.NewBigtableTableAdminClient(conn), bigtablepb.NewBigtableClient(conn)
	const table = "projects/p/instances/i/tables/t"
	if _, err := admin.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: "projects/p/instances/i", TableId: "t",
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}); err != nil {
		t.Fatal(err)
	}
	key := []byte("r")
	set := func(family string) *bigtablepb.Mutation {
		return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: family}}}
	}
	only := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_FamilyNameRegexFilter{FamilyNameRegexFilter: "none"}}
	for name, call := range map[string]func() error{
		"MutateRow": func() error {
			_, err := c.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: table, RowKey: key, Mutations: []*bigtablepb.Mutation{set("f"), set("none")}})
			return err
		},
		"MutateRows": func() error {
			s, err := c.MutateRows(ctx, &bigtablepb.MutateRowsRequest{TableName: table, Entries: []*bigtablepb.MutateRowsRequest_Entry{
				{RowKey: key, Mutations: []*bigtablepb.Mutation{set("none")}}}})
			if err != nil {
				return err
			}
			m, err := s.Recv()
			if err != nil {
				return err
			}
			return status.ErrorProto(m.Entries[0].Status)
		},
		"CheckAndMutateRow": func() error {
			_, err := c.CheckAndMutateRow(ctx, &bigtablepb.CheckAndMutateRowRequest{TableName: table, RowKey: key, PredicateFilter: only,
				TrueMutations: []*bigtablepb.Mutation{set("f")}})
			return err
		},
		"ReadModifyWriteRow": func() error {
			_, err := c.ReadModifyWriteRow(ctx, &bigtablepb.ReadModifyWriteRowRequest{TableName: table, RowKey: key, Rules: []*bigtablepb.ReadModifyWriteRule{
				{FamilyName: "none", ColumnQualifier: key, Rule: &bigtablepb.ReadModifyWriteRule_IncrementAmount{IncrementAmount: 1}}}})
			return err
		},
		"ReadRows": func() error {
			s, err := c.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: table, Filter: only})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"ModifyColumnFamilies": func() error {
			_, err := admin.ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{Name: table, Modifications: []*adminpb.ModifyColumnFamiliesRequest_Modification{
				{Id: "none", Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Drop{Drop: true}}}})
			return err
		},
	} {
		err := call()
		var named string
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				named = info.GetMetadata()["family"]
			}
		}
		if status.Code(err) != codes.NotFound || named != "none" {
			t.Errorf("%s: %v, which names the family %q", name, err, named)
		}
	}
}
