package sweep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/target"
)

// refused checks that err has the code, and a google.rpc detail.
func refused(t *testing.T, err error, want codes.Code) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != want {
		t.Errorf("got %v %q, want %v", st.Code(), st.Message(), want)
		return
	}
	if !explained(st) {
		t.Errorf("%v %q has no google.rpc detail", st.Code(), st.Message())
	}
}

func (c *canary) read(ctx context.Context, req *bigtablepb.ReadRowsRequest) error {
	if req.TableName == "" {
		req.TableName = canaryTable
	}
	st, err := c.data.ReadRows(ctx, req)
	for err == nil {
		_, err = st.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (c *canary) mutate(ctx context.Context, key string, muts ...*bigtablepb.Mutation) error {
	_, err := c.data.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: canaryTable, RowKey: []byte(key), Mutations: muts})
	return err
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func regex(p string) *bigtablepb.RowFilter {
	return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_ValueRegexFilter{ValueRegexFilter: []byte(p)}}
}

func pass(ok bool) *bigtablepb.RowFilter {
	return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_PassAllFilter{PassAllFilter: ok}}
}

func chain(fs ...*bigtablepb.RowFilter) *bigtablepb.RowFilter {
	return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Chain_{Chain: &bigtablepb.RowFilter_Chain{Filters: fs}}}
}

func interleave(fs ...*bigtablepb.RowFilter) *bigtablepb.RowFilter {
	return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Interleave_{Interleave: &bigtablepb.RowFilter_Interleave{Filters: fs}}}
}

func label(l string) *bigtablepb.RowFilter {
	return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_ApplyLabelTransformer{ApplyLabelTransformer: l}}
}

// deep nests chains. depth is that of the innermost filter, the outermost's
// being 1.
func deep(depth int) *bigtablepb.RowFilter {
	f := pass(true)
	for range depth - 1 {
		f = chain(f, pass(true))
	}
	return f
}

func TestAbuseFilters(t *testing.T) {
	c := newCanary(t, target.Addr(t))
	if err := c.mutate(soon(t), "r", setCell("q", strings.Repeat("x", 10_000))); err != nil {
		t.Fatal(err)
	}
	wide := []*bigtablepb.RowFilter{}
	for range 8 {
		wide = append(wide, pass(true))
	}
	explosion := []*bigtablepb.RowFilter{}
	for range 12 {
		explosion = append(explosion, interleave(wide...))
	}
	limit := func(n int32) *bigtablepb.RowFilter {
		return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_CellsPerRowLimitFilter{CellsPerRowLimitFilter: n}}
	}
	for _, tc := range []struct {
		name   string
		filter *bigtablepb.RowFilter
		want   codes.Code
	}{
		{"depth 20", deep(20), codes.OK},
		{"depth 21", deep(21), codes.InvalidArgument},
		{"depth 2000", deep(2000), codes.InvalidArgument},
		{"size over 20 KiB", regex(strings.Repeat("a", 20_481)), codes.InvalidArgument},
		{"size of 8 MiB", regex(strings.Repeat("a", 8<<20)), codes.InvalidArgument},
		{"chain of one", chain(pass(true)), codes.InvalidArgument},
		{"empty chain", chain(), codes.InvalidArgument},
		{"interleave of one", interleave(pass(true)), codes.InvalidArgument},
		{"pass all false", pass(false), codes.InvalidArgument},
		{"8 to the 12th copies", chain(explosion...), codes.InvalidArgument},
		{"unbalanced regex", regex("("), codes.InvalidArgument},
		{"repetition over 1000", regex("a{1001}"), codes.InvalidArgument},
		{"nested repetitions", regex("((a{100}){100}){100}"), codes.InvalidArgument},
		{"regex that backtracks", regex("(x+x+)+y"), codes.OK},
		{"regex nested a thousand times", regex(strings.Repeat("(", 1500) + "x" + strings.Repeat(")", 1500)), codes.InvalidArgument},
		{"limit of 0", limit(0), codes.InvalidArgument},
		{"limit of -1", limit(-1), codes.InvalidArgument},
		{"label of capitals", label("ABC"), codes.InvalidArgument},
		{"label of 16", label("abcdefghijklmnop"), codes.InvalidArgument},
		{"two labels in a chain", chain(label("a"), label("b")), codes.InvalidArgument},
		{"sample of 2", &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_RowSampleFilter{RowSampleFilter: 2}}, codes.InvalidArgument},
		{"sample of NaN", &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_RowSampleFilter{RowSampleFilter: math.NaN()}}, codes.InvalidArgument},
		{"sink in a condition", &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Condition_{Condition: &bigtablepb.RowFilter_Condition{
			PredicateFilter: pass(true), TrueFilter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Sink{Sink: true}}}}}, codes.InvalidArgument},
		{"family regex with a colon", &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_FamilyNameRegexFilter{FamilyNameRegexFilter: "f:q"}}, codes.InvalidArgument},
		{"condition of nothing", &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Condition_{}}, codes.InvalidArgument},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := c.read(soon(t), &bigtablepb.ReadRowsRequest{Filter: tc.filter})
			if tc.name == "condition of nothing" && err == nil {
				return // an empty message may also stand for defaults
			}
			if tc.want == codes.OK {
				if err != nil {
					t.Error(err)
				}
			} else {
				refused(t, err, tc.want)
			}
			_, err = c.data.CheckAndMutateRow(soon(t), &bigtablepb.CheckAndMutateRowRequest{TableName: canaryTable, RowKey: []byte("r"),
				PredicateFilter: tc.filter, TrueMutations: []*bigtablepb.Mutation{setCell("p", "v")}})
			if tc.want == codes.OK && err != nil {
				t.Errorf("as a predicate: %v", err)
			} else if tc.want != codes.OK {
				refused(t, err, tc.want)
			}
		})
	}
	c.sing(t)
}

// TestAbuseNesting sends filters nested deeper than any decoder accepts, built
// as bytes: the proto library itself could not write them.
func TestAbuseNesting(t *testing.T) {
	addr := target.Addr(t)
	c := newCanary(t, addr)
	for _, depth := range []int{5000, 20_000, 200_000} {
		// Written from the innermost outwards, hence backwards.
		var filter []byte
		for range depth {
			for range 2 { // Chain.filters, then RowFilter.chain
				head := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), uint64(len(filter)))
				slices.Reverse(head)
				filter = append(filter, head...)
			}
		}
		slices.Reverse(filter)
		req := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), canaryTable)
		req = protowire.AppendBytes(protowire.AppendTag(req, 3, protowire.BytesType), filter)
		err := invoke(soon(t), c.cc, "/google.bigtable.v2.Bigtable/ReadRows", req)
		if code := status.Code(err); code != codes.InvalidArgument && !strings.Contains(fmt.Sprint(err), "unmarshal") {
			t.Errorf("depth %d: %v", depth, err)
		}
		c.sing(t)
	}
}

func TestAbuseNames(t *testing.T) {
	c := newCanary(t, target.Addr(t))
	for _, name := range []string{
		"", "x", "/", "projects", "projects/p", "projects/p/instances/i", "projects/p/instances/i/tables", "projects/p/instances/i/tables/",
		"projects//instances/i/tables/t", "projects/p/instances//tables/t", "projects/p/instances/i/tables/t/", "projects/p/instances/i/tables/t/x",
		"projects/p/instances/i/tables/a b", "projects/p/instances/i/tables/é", "projects/p/instances/i/tables/a\x00b", "projects/p/instances/i/tables/../t",
		"/projects/p/instances/i/tables/t", "projects/p/instances/i/tables/" + strings.Repeat("t", 1<<20), "tables/t", strings.Repeat("/", 10_000),
		"projects/p/instances/i/clusters/c", "projects/p/instances/i/tables/-t", "%s%s%n", "projects/p/instances/i/tables/$(id)",
	} {
		err := c.read(soon(t), &bigtablepb.ReadRowsRequest{TableName: name, AppProfileId: "default"})
		if name == "" { // the helper fills an empty name in
			_, err = c.data.MutateRow(soon(t), &bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: []*bigtablepb.Mutation{setCell("q", "v")}})
		}
		_, admin := c.admin.GetTable(soon(t), &adminpb.GetTableRequest{Name: name})
		for _, err := range []error{err, admin} {
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.NotFound {
				t.Errorf("name %.60q: %v", name, err)
			} else if !explained(status.Convert(err)) {
				t.Errorf("name %.60q: %v without a detail", name, err)
			}
		}
	}
	for _, id := range []string{"", " ", "a/b", "é", strings.Repeat("t", 51), "-t", ".t", "a\x00", "../x"} {
		_, err := c.admin.CreateTable(soon(t), &adminpb.CreateTableRequest{Parent: canaryParent, TableId: id})
		refused(t, err, codes.InvalidArgument)
	}
	for _, family := range []string{"", " ", "a:b", "é", strings.Repeat("f", 65), "a/b", "\x00"} {
		_, err := c.admin.ModifyColumnFamilies(soon(t), &adminpb.ModifyColumnFamiliesRequest{Name: canaryTable,
			Modifications: []*adminpb.ModifyColumnFamiliesRequest_Modification{{Id: family,
				Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Create{Create: &adminpb.ColumnFamily{}}}}})
		refused(t, err, codes.InvalidArgument)
	}
	c.sing(t)
}

func TestAbuseSizes(t *testing.T) {
	c := newCanary(t, target.Addr(t))
	cell := func(edit func(*bigtablepb.Mutation_SetCell)) *bigtablepb.Mutation {
		m := &bigtablepb.Mutation_SetCell{FamilyName: "f"}
		edit(m)
		return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: m}}
	}
	many := make([]*bigtablepb.Mutation, 100_001)
	for i := range many {
		many[i] = setCell("q", "v")
	}
	for _, tc := range []struct {
		name string
		key  string
		muts []*bigtablepb.Mutation
	}{
		{"empty key", "", []*bigtablepb.Mutation{setCell("q", "v")}},
		{"key over 4 KiB", strings.Repeat("k", 4097), []*bigtablepb.Mutation{setCell("q", "v")}},
		{"key of 1 MiB", strings.Repeat("k", 1<<20), []*bigtablepb.Mutation{setCell("q", "v")}},
		{"qualifier over 16 KiB", "r", []*bigtablepb.Mutation{setCell(strings.Repeat("q", 16385), "v")}},
		{"no mutations", "r", nil},
		{"100001 mutations", "r", many},
		{"mutation of nothing", "r", []*bigtablepb.Mutation{{}}},
		{"timestamp of -2", "r", []*bigtablepb.Mutation{cell(func(m *bigtablepb.Mutation_SetCell) { m.TimestampMicros = -2 })}},
		{"timestamp off the grid", "r", []*bigtablepb.Mutation{cell(func(m *bigtablepb.Mutation_SetCell) { m.TimestampMicros = 1001 })}},
		{"inverted time range", "r", []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_DeleteFromColumn_{DeleteFromColumn: &bigtablepb.Mutation_DeleteFromColumn{
			FamilyName: "f", ColumnQualifier: []byte("q"), TimeRange: &bigtablepb.TimestampRange{StartTimestampMicros: 2000, EndTimestampMicros: 1000}}}}}},
		{"sum of nothing", "r", []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_AddToCell_{AddToCell: &bigtablepb.Mutation_AddToCell{FamilyName: "f"}}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refused(t, c.mutate(soon(t), tc.key, tc.muts...), codes.InvalidArgument)
			st, err := c.data.MutateRows(soon(t), &bigtablepb.MutateRowsRequest{TableName: canaryTable,
				Entries: []*bigtablepb.MutateRowsRequest_Entry{{RowKey: []byte("bystander"), Mutations: []*bigtablepb.Mutation{setCell("q", "v")}}, {RowKey: []byte(tc.key), Mutations: tc.muts}}})
			if err == nil {
				_, err = st.Recv()
			}
			refused(t, err, codes.InvalidArgument)
			_, err = c.data.CheckAndMutateRow(soon(t), &bigtablepb.CheckAndMutateRowRequest{TableName: canaryTable, RowKey: []byte(tc.key), FalseMutations: tc.muts})
			refused(t, err, codes.InvalidArgument)
		})
	}
	t.Run("value over 100 MiB", func(t *testing.T) {
		if testing.Short() {
			t.Skip("sends 100 MiB")
		}
		err := c.mutate(soon(t), "r", setCell("q", strings.Repeat("v", 100<<20+1)))
		if status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "--memory") {
			return // so little that the request is refused unread
		}
		refused(t, err, codes.InvalidArgument)
	})
	t.Run("unknown family", func(t *testing.T) {
		refused(t, c.mutate(soon(t), "r", cell(func(m *bigtablepb.Mutation_SetCell) { m.FamilyName = "none" })), codes.NotFound)
	})
	t.Run("rows limit below 0", func(t *testing.T) {
		refused(t, c.read(soon(t), &bigtablepb.ReadRowsRequest{RowsLimit: -1}), codes.InvalidArgument)
	})
	t.Run("inverted range", func(t *testing.T) {
		refused(t, c.read(soon(t), &bigtablepb.ReadRowsRequest{Rows: &bigtablepb.RowSet{RowRanges: []*bigtablepb.RowRange{{
			StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: []byte("b")}, EndKey: &bigtablepb.RowRange_EndKeyOpen{EndKeyOpen: []byte("a")}}}}}), codes.InvalidArgument)
	})
	t.Run("empty key in a row set", func(t *testing.T) {
		refused(t, c.read(soon(t), &bigtablepb.ReadRowsRequest{Rows: &bigtablepb.RowSet{RowKeys: [][]byte{{}}}}), codes.InvalidArgument)
	})
	t.Run("no rules", func(t *testing.T) {
		_, err := c.data.ReadModifyWriteRow(soon(t), &bigtablepb.ReadModifyWriteRowRequest{TableName: canaryTable, RowKey: []byte("r")})
		refused(t, err, codes.InvalidArgument)
	})
	t.Run("increment of no number", func(t *testing.T) {
		if err := c.mutate(soon(t), "text", setCell("q", "abc")); err != nil {
			t.Fatal(err)
		}
		_, err := c.data.ReadModifyWriteRow(soon(t), &bigtablepb.ReadModifyWriteRowRequest{TableName: canaryTable, RowKey: []byte("text"),
			Rules: []*bigtablepb.ReadModifyWriteRule{{FamilyName: "f", ColumnQualifier: []byte("q"), Rule: &bigtablepb.ReadModifyWriteRule_IncrementAmount{IncrementAmount: 1}}}})
		refused(t, err, codes.FailedPrecondition)
	})
	t.Run("many ranges", func(t *testing.T) {
		rows := &bigtablepb.RowSet{}
		for i := range 20_000 {
			rows.RowKeys = append(rows.RowKeys, fmt.Appendf(nil, "k%d", i*7919%20_000))
		}
		if err := c.read(soon(t), &bigtablepb.ReadRowsRequest{Rows: rows}); err != nil && status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
	})
	c.sing(t)
	if err := c.read(soon(t), &bigtablepb.ReadRowsRequest{Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("bystander")}}}); err != nil {
		t.Error(err)
	}
}

// TestAbuseStalledReaders leaves scans unread: they must not hold up others.
func TestAbuseStalledReaders(t *testing.T) {
	addr := target.Addr(t)
	c := newCanary(t, addr)
	value := strings.Repeat("x", 256<<10)
	for i := range 64 {
		if err := c.mutate(soon(t), fmt.Sprintf("stall%02d", i), setCell("q", value)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 20 {
		cc, err := dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		defer cc.Close()
		if _, err := bigtablepb.NewBigtableClient(cc).ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: canaryTable}); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		c.sing(t)
	}
}

// TestAbuseCancelledCalls opens and cancels many calls on one connection.
func TestAbuseCancelledCalls(t *testing.T) {
	c := newCanary(t, target.Addr(t))
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		if st, err := c.data.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: canaryTable}); err == nil {
			cancel()
			_, _ = st.Recv()
		}
		cancel()
	}
	c.sing(t)
}

// TestAbuseUnknownFields sends fields that no proto has: they are ignored.
func TestAbuseUnknownFields(t *testing.T) {
	c := newCanary(t, target.Addr(t))
	req, err := proto.Marshal(&bigtablepb.MutateRowRequest{TableName: canaryTable, RowKey: []byte("unknown"), Mutations: []*bigtablepb.Mutation{setCell("q", "v")}})
	if err != nil {
		t.Fatal(err)
	}
	req = protowire.AppendBytes(protowire.AppendTag(req, 19_999, protowire.BytesType), bytes.Repeat([]byte("x"), 1000))
	if err := invoke(soon(t), c.cc, "/google.bigtable.v2.Bigtable/MutateRow", req); err != nil {
		t.Error(err)
	}
	err = invoke(soon(t), c.cc, "/google.bigtable.v2.Bigtable/NoSuchMethod", nil)
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown method: %v", err)
	}
	err = invoke(soon(t), c.cc, "/no.such.Service/Method", nil)
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown service: %v", err)
	}
	c.sing(t)
}
