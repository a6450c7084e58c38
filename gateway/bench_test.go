package gateway

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// The benchmarks measure what the gateway adds to gRPC: MutateRow and ReadRows
// of one 1 KB cell against a backend that does nothing, next to a server with
// default options that moves as many bytes through generated messages.

// bare is that server.
var bare = grpc.ServiceDesc{
	ServiceName: "bare",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Write", Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		if err := dec(new(wrapperspb.BytesValue)); err != nil {
			return nil, err
		}
		return new(emptypb.Empty), nil
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Read", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		if err := s.RecvMsg(new(wrapperspb.BytesValue)); err != nil {
			return err
		}
		return s.SendMsg(&wrapperspb.BytesValue{Value: make([]byte, 1050)})
	}}},
}

func listen(b *testing.B) (net.Listener, *grpc.ClientConn) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return l, conn
}

func bareConn(b *testing.B) *grpc.ClientConn {
	l, conn := listen(b)
	s := grpc.NewServer()
	s.RegisterService(&bare, nil)
	go func() { _ = s.Serve(l) }()
	b.Cleanup(s.Stop)
	return conn
}

func gatewayConn(b *testing.B) *grpc.ClientConn {
	l, conn := listen(b)
	value := make([]byte, 1000)
	st := &stub{Backend: model.New(model.Options{}),
		mutateRow: func(context.Context, string, *row.Entry) error { return nil },
		readRows: func(_ context.Context, _ *scan.Request, w scan.Writer) (scan.Stats, error) {
			w.StartRow([]byte("user1234567890"))
			w.Cell(&row.Cell{Family: "cf", Qualifier: []byte("field0"), Timestamp: 1700000000000000, Value: value})
			_, err := w.EndRow()
			return scan.Stats{}, err
		}}
	s, err := New(st, Options{Emulator: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Stop(ctx)
	})
	return conn
}

// cpu reports the processor time per operation, of client and server: with it
// two runs can be compared on a machine that does other things too.
func cpu(b *testing.B) func() {
	start := cputime.Used()
	return func() { b.ReportMetric(float64(cputime.Used()-start)/float64(b.N), "cpu-ns/op") }
}

func parallel(b *testing.B, call func() error) {
	if err := call(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetParallelism(16)
	b.ResetTimer()
	defer cpu(b)()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := call(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func serial(b *testing.B, call func() error) {
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if err := call(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	req := &wrapperspb.BytesValue{Value: make([]byte, 1100)}
	bareCall := func(b *testing.B) func() error {
		conn := bareConn(b)
		return func() error { return conn.Invoke(context.Background(), "/bare/Write", req, new(emptypb.Empty)) }
	}
	mutation := &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("user1234567890"), Mutations: setCell(make([]byte, 1000))}
	ours := func(b *testing.B) func() error {
		c := bigtablepb.NewBigtableClient(gatewayConn(b))
		return func() error { _, err := c.MutateRow(context.Background(), mutation); return err }
	}
	b.Run("bare/serial", func(b *testing.B) { serial(b, bareCall(b)) })
	b.Run("gateway/serial", func(b *testing.B) { serial(b, ours(b)) })
	b.Run("bare/parallel", func(b *testing.B) { parallel(b, bareCall(b)) })
	b.Run("gateway/parallel", func(b *testing.B) { parallel(b, ours(b)) })
}

func BenchmarkRead(b *testing.B) {
	req := &wrapperspb.BytesValue{Value: make([]byte, 80)}
	bareCall := func(b *testing.B) func() error {
		conn := bareConn(b)
		return func() error {
			s, err := conn.NewStream(context.Background(), &bare.Streams[0], "/bare/Read")
			if err != nil {
				return err
			}
			if err := s.SendMsg(req); err != nil {
				return err
			}
			if err := s.CloseSend(); err != nil {
				return err
			}
			_, err = recvAll(func() (*wrapperspb.BytesValue, error) { m := new(wrapperspb.BytesValue); return m, s.RecvMsg(m) })
			return err
		}
	}
	read := &bigtablepb.ReadRowsRequest{TableName: testTable, RowsLimit: 1, Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("user1234567890")}}}
	ours := func(b *testing.B) func() error {
		c := bigtablepb.NewBigtableClient(gatewayConn(b))
		return func() error { _, err := readAll(context.Background(), c, read); return err }
	}
	b.Run("bare/serial", func(b *testing.B) { serial(b, bareCall(b)) })
	b.Run("gateway/serial", func(b *testing.B) { serial(b, ours(b)) })
	b.Run("bare/parallel", func(b *testing.B) { parallel(b, bareCall(b)) })
	b.Run("gateway/parallel", func(b *testing.B) { parallel(b, ours(b)) })
}
