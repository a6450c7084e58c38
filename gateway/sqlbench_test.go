package gateway

import (
	"context"
	"fmt"
	"io"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/gateway/sql"
)

// What a prepared statement costs beside the read that it stands for.
func BenchmarkSQL(b *testing.B) {
	f := newEngineFixture(b)
	f.fill(1000, 100)
	ctx := context.Background()
	const text = "SELECT _key, cf['text'] FROM t WHERE _key = @k"
	bytesType := &bigtablepb.Type{Kind: &bigtablepb.Type_BytesType{BytesType: &bigtablepb.Type_Bytes{}}}
	req := &bigtablepb.PrepareQueryRequest{InstanceName: testInstance, Query: text, ParamTypes: map[string]*bigtablepb.Type{"k": bytesType},
		DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}}
	token := f.mustPrepare(text, "k", bytesType)
	params := map[string]*bigtablepb.Value{"k": {Kind: &bigtablepb.Value_BytesValue{BytesValue: []byte("row000500")}}}
	b.Run("prepare known", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := f.server.sql.Prepare(ctx, req); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("prepare known by gRPC", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := f.fixture.raw.PrepareQuery(ctx, req); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("prepare new by gRPC", func(b *testing.B) {
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			n++
			r := &bigtablepb.PrepareQueryRequest{InstanceName: testInstance, Query: fmt.Sprint(text, " AND ", n, " > 0"), ParamTypes: req.ParamTypes, DataFormat: req.DataFormat}
			if _, err := f.fixture.raw.PrepareQuery(ctx, r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("execute point", func(b *testing.B) {
		b.ReportAllocs()
		r := &sql.Request{ExecuteQueryRequest: &bigtablepb.ExecuteQueryRequest{InstanceName: testInstance, PreparedQuery: token, Params: params},
			Send: func(m mem.BufferSlice) error { m.Free(); return nil }}
		for b.Loop() {
			if err := f.server.sql.Execute(ctx, r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("execute point by gRPC", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s, err := f.fixture.raw.ExecuteQuery(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: testInstance, PreparedQuery: token, Params: params})
			if err != nil {
				b.Fatal(err)
			}
			for err == nil {
				_, err = s.Recv()
			}
			if err != io.EOF {
				b.Fatal(err)
			}
		}
	})
	b.Run("read row by gRPC", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s, err := f.fixture.raw.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: testTable, Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("row000500")}}, RowsLimit: 1})
			if err != nil {
				b.Fatal(err)
			}
			for err == nil {
				_, err = s.Recv()
			}
			if err != io.EOF {
				b.Fatal(err)
			}
		}
	})
}
