package sqldriver

import (
	"context"
	"database/sql/driver"
	"hash/crc32"
	"io"
	"runtime"
	"sync"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/sqlclient"
)

// atOnce is a connection whose server answers every statement in no time, with one row.
type atOnce struct {
	prepared *bigtablepb.PrepareQueryResponse
	result   *bigtablepb.ExecuteQueryResponse
}

func (c *atOnce) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	proto.Merge(reply.(proto.Message), c.prepared)
	return nil
}

func (c *atOnce) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return &oneResult{c: c}, nil
}

type oneResult struct {
	grpc.ClientStream
	c    *atOnce
	sent bool
}

func (*oneResult) SendMsg(any) error { return nil }
func (*oneResult) CloseSend() error  { return nil }
func (r *oneResult) RecvMsg(m any) error {
	if r.sent {
		return io.EOF
	}
	r.sent = true
	proto.Merge(m.(proto.Message), r.c.result)
	return nil
}

// TestFirstRowAtOnce has rows there before the caller of QueryContext waits for the columns.
// With many threads for few processors some callers are put off for so long.
func TestFirstRowAtOnce(t *testing.T) {
	batch, err := proto.Marshal(&bigtablepb.ProtoRows{Values: []*bigtablepb.Value{{Kind: &bigtablepb.Value_IntValue{IntValue: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	sum := crc32.Checksum(batch, crc32.MakeTable(crc32.Castagnoli))
	c := &conn{&sqlclient.Client{Instance: "projects/p/instances/i", Conn: &atOnce{
		prepared: &bigtablepb.PrepareQueryResponse{PreparedQuery: []byte("q"), Metadata: &bigtablepb.ResultSetMetadata{Schema: &bigtablepb.ResultSetMetadata_ProtoSchema{
			ProtoSchema: &bigtablepb.ProtoSchema{Columns: []*bigtablepb.ColumnMetadata{{Name: "n", Type: int64SQL}}}}}},
		result: &bigtablepb.ExecuteQueryResponse{Response: &bigtablepb.ExecuteQueryResponse_Results{Results: &bigtablepb.PartialResultSet{
			PartialRows:   &bigtablepb.PartialResultSet_ProtoRowsBatch{ProtoRowsBatch: &bigtablepb.ProtoRowsBatch{BatchData: batch}},
			BatchChecksum: &sum, ResumeToken: []byte("end")}}}}}}
	threads := 32 * runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	var wait sync.WaitGroup
	for range 2 * threads {
		wait.Go(func() {
			for range 200 {
				r, err := c.QueryContext(t.Context(), "SELECT 1 AS n", nil)
				if r == nil {
					t.Errorf("no rows, and the error %v", err)
					return
				}
				if err := r.Next(make([]driver.Value, 1)); err != nil {
					t.Errorf("the first row: %v", err)
				}
				_ = r.Close()
			}
		})
	}
	wait.Wait()
}
