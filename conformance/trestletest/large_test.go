package trestletest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/api/option"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/target"
)

const largeTable = "projects/p/instances/i/tables/t"

// readLarge returns the rows' keys, how many cells and bytes of values came, and
// the error that ended the stream.
func readLarge(t *testing.T, c bigtablepb.BigtableClient, req *bigtablepb.ReadRowsRequest) (keys []string, cells, bytes int, err error) {
	t.Helper()
	req.TableName = largeTable
	flags, err := proto.Marshal(&bigtablepb.FeatureFlags{ReverseScans: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "bigtable-features", base64.URLEncoding.EncodeToString(flags))
	s, err := c.ReadRows(ctx, req)
	if err != nil {
		return nil, 0, 0, err
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return keys, cells, bytes, nil
		}
		if err != nil {
			return keys, cells, bytes, err
		}
		for _, ch := range m.Chunks {
			bytes += len(ch.Value)
			if ch.ValueSize == 0 {
				cells++
			}
			if len(ch.RowKey) > 0 {
				keys = append(keys, string(ch.RowKey))
			}
		}
	}
}

// largeAddr returns the address of a server: of the binary or the cluster that the
// environment names, or else one of this package.
func largeAddr(t *testing.T) string {
	t.Helper()
	if os.Getenv(target.BinaryEnv) != "" || os.Getenv(target.AddrEnv) != "" {
		return target.Addr(t)
	}
	s, err := NewServer("localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Addr
}

// A row of 100,000 columns, one of 180 MB and one that is too large, through a
// whole server.
func TestLargeRows(t *testing.T) {
	conn := dial(t, largeAddr(t), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(300<<20), grpc.MaxCallSendMsgSize(300<<20)))
	ctx := t.Context()
	admin, err := bigtable.NewAdminClient(ctx, "p", "i", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTable(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateColumnFamily(ctx, "t", "f"); err != nil {
		t.Fatal(err)
	}
	c := bigtablepb.NewBigtableClient(conn)
	put := func(key string, n, size int, qualifier func(i int) string) {
		t.Helper()
		req := &bigtablepb.MutateRowRequest{TableName: largeTable, RowKey: []byte(key)}
		value := make([]byte, size)
		for i := range n {
			req.Mutations = append(req.Mutations, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
				FamilyName: "f", ColumnQualifier: []byte(qualifier(i)), TimestampMicros: 1000, Value: value}}})
		}
		if _, err := c.MutateRow(ctx, req); err != nil {
			t.Fatal(err)
		}
	}
	put("a-wide", 100_000, 50, func(i int) string { return fmt.Sprintf("q%06d", i) })
	const part = 90 << 20
	for i := range 2 {
		put("b-large", 1, part, func(int) string { return fmt.Sprint(i) })
	}
	for i := range 3 {
		put("c-too-large", 1, part, func(int) string { return fmt.Sprint(i) })
	}
	put("d", 1, 1, func(int) string { return "q" })

	one := func(key string) *bigtablepb.RowSet { return &bigtablepb.RowSet{RowKeys: [][]byte{[]byte(key)}} }
	column := func(from, to string) *bigtablepb.RowFilter {
		return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_ColumnRangeFilter{ColumnRangeFilter: &bigtablepb.ColumnRange{FamilyName: "f",
			StartQualifier: &bigtablepb.ColumnRange_StartQualifierClosed{StartQualifierClosed: []byte(from)},
			EndQualifier:   &bigtablepb.ColumnRange_EndQualifierOpen{EndQualifierOpen: []byte(to)}}}}
	}
	for _, tc := range []struct {
		req          *bigtablepb.ReadRowsRequest
		cells, bytes int
	}{
		{&bigtablepb.ReadRowsRequest{Rows: one("a-wide")}, 100_000, 5_000_000},
		{&bigtablepb.ReadRowsRequest{Rows: one("a-wide"), Filter: column("q070000", "q070003")}, 3, 150},
		{&bigtablepb.ReadRowsRequest{Rows: one("a-wide"), Filter: column("r", "s")}, 0, 0},
		{&bigtablepb.ReadRowsRequest{Rows: one("b-large")}, 2, 2 * part},
		// Of a row that is too large some columns can be read.
		{&bigtablepb.ReadRowsRequest{Rows: one("c-too-large"), Filter: column("1", "2")}, 1, part},
	} {
		if _, cells, bytes, err := readLarge(t, c, tc.req); err != nil || cells != tc.cells || bytes != tc.bytes {
			t.Errorf("%v: %d cells, %d bytes, %v; want %d, %d", tc.req, cells, bytes, err, tc.cells, tc.bytes)
		}
	}

	// The scan ends at the row that is too large, either way, and names it.
	for _, reversed := range []bool{false, true} {
		keys, _, _, err := readLarge(t, c, &bigtablepb.ReadRowsRequest{Reversed: reversed})
		var info *errdetails.ErrorInfo
		for _, d := range status.Convert(err).Details() {
			if i, ok := d.(*errdetails.ErrorInfo); ok {
				info = i
			}
		}
		want := "[a-wide b-large]"
		if reversed {
			want = "[d]"
		}
		if status.Code(err) != codes.FailedPrecondition || info.GetReason() != "LargeRowReadError" || info.GetDomain() != "bigtable.googleapis.com" ||
			info.GetMetadata()["rowKeyBase64Encoded"] != base64.StdEncoding.EncodeToString([]byte("c-too-large")) || fmt.Sprint(keys) != want {
			t.Errorf("reversed %v: rows %v, then %v with %v", reversed, keys, err, info)
		}
	}
}
