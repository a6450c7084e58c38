package trestletest

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
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
func readLarge(t *testing.T, c bigtablepb.BigtableClient, req *bigtablepb.ReadRowsRequest) (keys []string, cells, size int, err error) {
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
			return keys, cells, size, nil
		}
		if err != nil {
			return keys, cells, size, err
		}
		for _, ch := range m.Chunks {
			size += len(ch.Value)
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
		if _, cells, size, err := readLarge(t, c, tc.req); err != nil || cells != tc.cells || size != tc.bytes {
			t.Errorf("%v: %d cells, %d bytes, %v; want %d, %d", tc.req, cells, size, err, tc.cells, tc.bytes)
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

// readForeign reads as a client does that is not in Go: over HTTP/2, with a user
// agent of its own.
func readForeign(t *testing.T, addr string, req *bigtablepb.ReadRowsRequest) []*bigtablepb.ReadRowsResponse {
	t.Helper()
	b, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
	call, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+bigtablepb.Bigtable_ReadRows_FullMethodName, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	call.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {"grpc-python/1.80.0 grpc-c/53.0.0 (linux; chttp2)"}}
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(call)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err = io.ReadAll(resp.Body); err != nil || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Fatalf("%v, status %q %q", err, resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message"))
	}
	var out []*bigtablepb.ReadRowsResponse
	for len(b) > 0 {
		n := 5 + int(binary.BigEndian.Uint32(b[1:]))
		m := new(bigtablepb.ReadRowsResponse)
		if err := proto.Unmarshal(b[5:n], m); err != nil {
			t.Fatal(err)
		}
		out, b = append(out, m), b[n:]
	}
	return out
}

// A reader that accepts 4 MiB, as gRPC does unless told otherwise, gets a row
// with a cell of 10 MiB in several messages; Go's client, which refuses those,
// gets it in one, and can have it if it accepts as much.
func TestLargeCell(t *testing.T) {
	addr := largeAddr(t)
	conn := dial(t, addr)
	ctx := t.Context()
	admin, err := bigtable.NewAdminClient(ctx, "p", "i", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	const table = "large-cell"
	if err := errors.Join(admin.CreateTable(ctx, table), admin.CreateColumnFamily(ctx, table, "f")); err != nil {
		t.Fatal(err)
	}
	large := dial(t, addr, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(20<<20)))
	client, err := bigtable.NewClient(ctx, "p", "i", option.WithGRPCConn(large))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	value := make([]byte, 10<<20)
	for i := range value {
		value[i] = byte(i >> 12)
	}
	m := bigtable.NewMutation()
	m.Set("f", "small", 1000, []byte("v"))
	m.Set("f", "value", 1000, value)
	if err := client.Open(table).Apply(ctx, "r", m); err != nil {
		t.Fatal(err)
	}

	var got []byte
	commits := 0
	for _, m := range readForeign(t, addr, &bigtablepb.ReadRowsRequest{TableName: "projects/p/instances/i/tables/" + table}) {
		if n := proto.Size(m); n > 4<<20 {
			t.Errorf("a message of %d bytes", n)
		}
		for _, ch := range m.Chunks {
			if string(ch.Qualifier.GetValue()) != "small" {
				got = append(got, ch.Value...)
			}
			if more := len(got) < len(value); len(got) > 0 && (ch.ValueSize == int32(len(value))) != more {
				t.Errorf("value_size is %d after %d bytes", ch.ValueSize, len(got))
			}
			if ch.GetCommitRow() {
				commits++
			}
		}
	}
	if !bytes.Equal(got, value) || commits != 1 {
		t.Errorf("%d bytes came, with %d times commit_row", len(got), commits)
	}

	// Both of the ways in which Go's client reads: the one row, and a scan.
	row, err := client.Open(table).ReadRow(ctx, "r")
	if err != nil || len(row["f"]) != 2 || !bytes.Equal(row["f"][1].Value, value) {
		t.Errorf("%d cells, %v", len(row["f"]), err)
	}
	rows := 0
	if err := client.Open(table).ReadRows(ctx, bigtable.PrefixRange(""), func(row bigtable.Row) bool {
		if rows++; !bytes.Equal(row["f"][1].Value, value) {
			t.Error("the scan's value is another one")
		}
		return true
	}); err != nil || rows != 1 {
		t.Errorf("%d rows, %v", rows, err)
	}
}
