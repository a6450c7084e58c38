package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/logtest"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

func setCell(value []byte) []*bigtablepb.Mutation {
	return []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
		FamilyName: "cf", ColumnQualifier: []byte("q"), TimestampMicros: 1000, Value: value}}}}
}

func detail[T proto.Message](err error) (found T) {
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(T); ok {
			return m
		}
	}
	return found
}

func readAll(ctx context.Context, c bigtablepb.BigtableClient, req *bigtablepb.ReadRowsRequest) ([]*bigtablepb.ReadRowsResponse, error) {
	s, err := c.ReadRows(ctx, req)
	if err != nil {
		return nil, err
	}
	return recvAll(s.Recv)
}

func TestRefusals(t *testing.T) {
	f := newFixture(t, Options{})
	ctx := context.Background()
	read := func(req *bigtablepb.ReadRowsRequest) error {
		_, err := readAll(ctx, f.raw, req)
		return err
	}
	mutate := func(req *bigtablepb.MutateRowRequest) error {
		_, err := f.raw.MutateRow(ctx, req)
		return err
	}
	bulk := func(req *bigtablepb.MutateRowsRequest) error {
		s, err := f.raw.MutateRows(ctx, req)
		if err == nil {
			_, err = recvAll(s.Recv)
		}
		return err
	}
	cam := func(req *bigtablepb.CheckAndMutateRowRequest) error {
		_, err := f.raw.CheckAndMutateRow(ctx, req)
		return err
	}
	rmw := func(req *bigtablepb.ReadModifyWriteRowRequest) error {
		_, err := f.raw.ReadModifyWriteRow(ctx, req)
		return err
	}
	key := []byte("k")
	inc := []*bigtablepb.ReadModifyWriteRule{{FamilyName: "cf", Rule: &bigtablepb.ReadModifyWriteRule_IncrementAmount{IncrementAmount: 1}}}
	for _, c := range []struct {
		name string
		err  error
		code codes.Code
		text string
	}{
		{"no name", read(&bigtablepb.ReadRowsRequest{}), codes.InvalidArgument, "Exactly one of"},
		{"two names", read(&bigtablepb.ReadRowsRequest{TableName: testTable, MaterializedViewName: "x"}), codes.InvalidArgument, "Exactly one of"},
		{"view", read(&bigtablepb.ReadRowsRequest{AuthorizedViewName: testTable + "/authorizedViews/v"}), codes.NotFound, "Authorized view not found"},
		{"view name", read(&bigtablepb.ReadRowsRequest{AuthorizedViewName: testTable + "/authorizedViews/"}), codes.InvalidArgument, "Authorized view name expected in the form"},
		{"bad name", read(&bigtablepb.ReadRowsRequest{TableName: "t"}), codes.InvalidArgument, "When parsing 't' : Table name expected"},
		{"no table", read(&bigtablepb.ReadRowsRequest{TableName: testInstance + "/tables/nope"}), codes.NotFound, ""},
		{"limit", read(&bigtablepb.ReadRowsRequest{TableName: testTable, RowsLimit: -1}), codes.InvalidArgument, "rows_limit"},
		{"reversed", read(&bigtablepb.ReadRowsRequest{TableName: testTable, Reversed: true}), codes.Unimplemented, "Client doesn't support reverse scans yet"},
		{"filter", read(&bigtablepb.ReadRowsRequest{TableName: testTable, Filter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Sink{}}}), codes.InvalidArgument, "sink must be true"},
		{"mutate", mutate(&bigtablepb.MutateRowRequest{TableName: testTable, RowKey: key}), codes.InvalidArgument, "No mutations provided"},
		{"mutate key", mutate(&bigtablepb.MutateRowRequest{TableName: testTable, Mutations: setCell(nil)}), codes.InvalidArgument, "Row keys must be non-empty"},
		{"mutate no table", mutate(&bigtablepb.MutateRowRequest{TableName: testTable + "x", RowKey: key, Mutations: setCell(nil)}), codes.NotFound, ""},
		{"bulk", bulk(&bigtablepb.MutateRowsRequest{TableName: testTable, Entries: []*bigtablepb.MutateRowsRequest_Entry{{RowKey: key}}}), codes.InvalidArgument, "No mutations provided"},
		{"bulk empty", bulk(&bigtablepb.MutateRowsRequest{TableName: testTable}), codes.InvalidArgument, "No mutations provided"},
		{"cam", cam(&bigtablepb.CheckAndMutateRowRequest{TableName: testTable, RowKey: key}), codes.InvalidArgument, "No mutations provided"},
		{"cam key", cam(&bigtablepb.CheckAndMutateRowRequest{TableName: testTable, TrueMutations: setCell(nil)}), codes.InvalidArgument, "Row keys must be non-empty"},
		{"rmw", rmw(&bigtablepb.ReadModifyWriteRowRequest{TableName: testTable, RowKey: key}), codes.InvalidArgument, "No rules provided"},
		{"rmw key", rmw(&bigtablepb.ReadModifyWriteRowRequest{TableName: testTable, Rules: inc}), codes.InvalidArgument, "Row keys must be non-empty"},
	} {
		st := status.Convert(c.err)
		if st.Code() != c.code || !strings.Contains(st.Message(), c.text) {
			t.Errorf("%s: got %v", c.name, c.err)
		}
		if info := detail[*errdetails.ErrorInfo](c.err); info.GetReason() == "" || info.GetDomain() != "bigtable.googleapis.com" {
			t.Errorf("%s: ErrorInfo %v", c.name, info)
		}
	}
	if log := f.log.String(); log != "" {
		t.Errorf("refusals were logged: %s", log)
	}
}

// A refusal of a long key or qualifier reaches clients that take 8 KiB of trailers, as Java's do.
func TestRefusalsFitTrailers(t *testing.T) {
	f := newFixture(t, Options{})
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithMaxHeaderListSize(8192))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := bigtablepb.NewBigtableClient(conn)
	check := func(name string, err error, code codes.Code, text string) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) || detail[*errdetails.ErrorInfo](err) == nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, key := range map[string][]byte{
		"letters": bytes.Repeat([]byte("k"), 4096), "bytes": bytes.Repeat([]byte{0x80}, 4096), "bytes between spaces": bytes.Repeat([]byte{0x80, 0x20}, 2048),
	} {
		_, err := c.MutateRow(t.Context(), &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: key, Mutations: []*bigtablepb.Mutation{
			{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "nope"}}}}})
		check("key of "+name, err, codes.NotFound, "Requested column family not found.")
	}
	q := bytes.Repeat([]byte("q"), 16<<10)
	if _, err := c.MutateRow(t.Context(), &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: []*bigtablepb.Mutation{
		{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "cf", ColumnQualifier: q, Value: []byte("123456789")}}}}}); err != nil {
		t.Fatal(err)
	}
	_, err = c.ReadModifyWriteRow(t.Context(), &bigtablepb.ReadModifyWriteRowRequest{TableName: testTable, RowKey: []byte("k"), Rules: []*bigtablepb.ReadModifyWriteRule{
		{FamilyName: "cf", ColumnQualifier: q, Rule: &bigtablepb.ReadModifyWriteRule_IncrementAmount{IncrementAmount: 1}}}})
	check("qualifier", err, codes.FailedPrecondition, "can only be performed on 64-bit values")
}

// Every method of the data API answers an empty request.
func TestEveryMethodAnswers(t *testing.T) {
	f := newFixture(t, Options{Reflection: true})
	unbuilt := map[string]bool{}
	for _, n := range []string{
		"OpenTable", "OpenAuthorizedView", "OpenMaterializedView"} {
		unbuilt[n] = true
	}
	services := bigtablepb.File_google_bigtable_v2_bigtable_proto.Services()
	n := 0
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			n++
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			err := callEmpty(ctx, f.conn, m)
			cancel()
			want := codes.InvalidArgument
			if unbuilt[string(m.Name())] {
				want = codes.Unimplemented
			}
			if status.Code(err) != want {
				t.Errorf("%s: %v", m.FullName(), err)
			}
		}
	}
	if n != 15 {
		t.Errorf("%d methods", n)
	}
}

func callEmpty(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor) error {
	d := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	s, err := conn.NewStream(ctx, d, fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()))
	if err != nil {
		return err
	}
	if err := s.SendMsg(dynamicpb.NewMessage(m.Input())); err != nil {
		return s.RecvMsg(dynamicpb.NewMessage(m.Output()))
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return s.RecvMsg(dynamicpb.NewMessage(m.Output()))
}

func TestReversedWithFeature(t *testing.T) {
	f := newFixture(t, Options{})
	b, err := proto.Marshal(&bigtablepb.FeatureFlags{ReverseScans: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(context.Background(), "bigtable-features", base64.URLEncoding.EncodeToString(b))
	if _, err := readAll(ctx, f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable, Reversed: true}); err != nil {
		t.Fatal(err)
	}
}

func TestResponseMetadata(t *testing.T) {
	f := newFixture(t, Options{Zone: "z1"})
	ctx := context.Background()
	const location = "x-goog-ext-425905942-bin"
	timed := func(name string, header metadata.MD) {
		t.Helper()
		var ms int
		if timing := header.Get("server-timing"); len(timing) != 1 {
			t.Errorf("%s: server-timing %q", name, timing)
		} else if _, err := fmt.Sscanf(timing[0], "gfet4t7; dur=%d", &ms); err != nil || ms < 1 {
			t.Errorf("%s: server-timing %q", name, timing)
		}
	}
	check := func(name string, header, trailer metadata.MD) {
		t.Helper()
		for in, md := range map[string]metadata.MD{"header": header, "trailer": trailer} {
			p := new(bigtablepb.ResponseParams)
			v := md.Get(location)
			if len(v) != 1 || proto.Unmarshal([]byte(v[0]), p) != nil || p.GetZoneId() != "z1" || p.GetClusterId() != "default" {
				t.Errorf("%s: location in the %s %q", name, in, v)
			}
		}
		timed(name, header)
	}
	var header, trailer metadata.MD
	if _, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(nil)}, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
		t.Fatal(err)
	}
	check("MutateRow", header, trailer)
	if _, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable}, grpc.Header(&header), grpc.Trailer(&trailer)); err == nil {
		t.Fatal("no error")
	}
	check("refused MutateRow", header, trailer)
	for _, key := range []string{"k", "absent", ""} {
		req := &bigtablepb.ReadRowsRequest{TableName: testTable}
		if key != "" {
			req.Rows = &bigtablepb.RowSet{RowKeys: [][]byte{[]byte(key)}}
		}
		s, err := f.raw.ReadRows(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := recvAll(s.Recv); err != nil {
			t.Fatal(err)
		}
		h, _ := s.Header()
		check("ReadRows "+key, h, s.Trailer())
	}
	bad := setCell(nil)
	bad[0].GetSetCell().FamilyName = "nope"
	if _, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: bad}, grpc.Header(&header), grpc.Trailer(&trailer)); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	check("no family", header, trailer)

	// A table that is not there is in no cluster.
	nowhere := func(name string, err error, header, trailer metadata.MD) {
		t.Helper()
		if status.Code(err) != codes.NotFound || len(header.Get(location))+len(trailer.Get(location)) > 0 {
			t.Errorf("%s: %v at %q, %q", name, err, header.Get(location), trailer.Get(location))
		}
		timed(name, header)
	}
	const none = testTable + "-not"
	_, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: none, RowKey: []byte("k"), Mutations: setCell(nil)}, grpc.Header(&header), grpc.Trailer(&trailer))
	nowhere("MutateRow", err, header, trailer)
	for _, keys := range [][][]byte{{[]byte("k")}, {[]byte("k"), []byte("l")}, nil} {
		s, err := f.raw.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: none, Rows: &bigtablepb.RowSet{RowKeys: keys}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = recvAll(s.Recv)
		h, _ := s.Header()
		nowhere(fmt.Sprintf("ReadRows %s", keys), err, h, s.Trailer())
	}
	s, err := f.raw.MutateRows(ctx, &bigtablepb.MutateRowsRequest{TableName: none, Entries: []*bigtablepb.MutateRowsRequest_Entry{{RowKey: []byte("k"), Mutations: setCell(nil)}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = recvAll(s.Recv)
	h, _ := s.Header()
	nowhere("MutateRows", err, h, s.Trailer())
}

// The headers of a scan come before its first row.
func TestHeadersEarly(t *testing.T) {
	f := newFixture(t, Options{})
	release := make(chan struct{})
	f.stub.readRows = func(context.Context, *scan.Request, scan.Writer) (scan.Stats, error) {
		<-release
		return scan.Stats{}, nil
	}
	defer close(release)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := f.raw.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: testTable})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Header(); err != nil {
		t.Fatalf("no headers while the scan runs: %v", err)
	}
}

func TestPanic(t *testing.T) {
	f := newFixture(t, Options{})
	f.stub.mutateRow = func(context.Context, string, *row.Entry) error { panic("secret") }
	f.stub.readRows = func(context.Context, *scan.Request, scan.Writer) (scan.Stats, error) { panic("secret") }
	_, err1 := f.raw.MutateRow(context.Background(), &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(nil)})
	_, err2 := readAll(context.Background(), f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable})
	for _, err := range []error{err1, err2} {
		id := detail[*errdetails.ErrorInfo](err).GetMetadata()["errorId"]
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") || id == "" || !strings.Contains(f.log.String(), id) || !strings.Contains(f.log.String(), "server_test.go") {
			t.Errorf("got %v; log %s", err, f.log.String())
		}
	}
	f.seen.mu.Lock()
	defer f.seen.mu.Unlock()
	if f.seen.panics != 2 {
		t.Errorf("%d panics observed", f.seen.panics)
	}
}

func TestLargeRow(t *testing.T) {
	f := newFixture(t, Options{})
	value := make([]byte, 90<<20)
	cells := func(n int) (cs []row.Cell) {
		for i := range n {
			cs = append(cs, row.Cell{Family: "cf", Qualifier: fmt.Appendf(nil, "%d", i), Value: value})
		}
		return cs
	}
	f.stub.readRows = scripted([]scriptedRow{{"a", cells(2)}, {"b", cells(3)}})
	got, err := readAll(context.Background(), f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable})
	info := detail[*errdetails.ErrorInfo](err)
	if status.Code(err) != codes.FailedPrecondition || info.GetReason() != "LargeRowReadError" || info.GetMetadata()["rowKeyBase64Encoded"] != "Yg==" || len(got) == 0 {
		t.Fatalf("%d messages, then %v with %v", len(got), err, info)
	}
	size := 0
	for _, c := range got[0].GetChunks() {
		size += len(c.Value)
	}
	if len(got) != 1 || size != 2*len(value) { // whole, since the reader is in Go
		t.Errorf("%d messages before the error, %d bytes of values in the first", len(got), size)
	}
}

// A client that does not read stops the scan before much is buffered, and
// cancelling ends it.
func TestStalledReader(t *testing.T) {
	f := newFixture(t, Options{})
	var emitted atomic.Int64
	ended := make(chan struct{})
	value := make([]byte, 10_000)
	f.stub.readRows = func(ctx context.Context, _ *scan.Request, w scan.Writer) (st scan.Stats, err error) {
		defer close(ended)
		for i := 0; ; i++ {
			w.StartRow(fmt.Appendf(nil, "%09d", i))
			w.Cell(&row.Cell{Family: "cf", Value: value})
			full, err := w.EndRow()
			if err != nil {
				return st, err
			}
			emitted.Add(int64(len(value)))
			if full {
				if err := w.Flush(); err != nil {
					return st, err
				}
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := f.raw.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: testTable})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Header(); err != nil {
		t.Fatal(err)
	}
	for before := int64(-1); ; {
		time.Sleep(100 * time.Millisecond)
		now := emitted.Load()
		if now == before {
			break
		}
		before = now
	}
	if n := emitted.Load(); n > 2<<20 {
		t.Errorf("%d bytes were read for a client that takes none", n)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the scan outlives its client")
	}
}

func TestCompressedRequests(t *testing.T) {
	f := newFixture(t, Options{})
	ctx := context.Background()
	value := bytes.Repeat([]byte("x"), 100_000)
	if _, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(value)}, grpc.UseCompressor(gzip.Name)); err != nil {
		t.Fatal(err)
	}
	s, err := f.raw.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: testTable}, grpc.UseCompressor(gzip.Name))
	if err != nil {
		t.Fatal(err)
	}
	got, err := recvAll(s.Recv)
	if err != nil || len(got) != 1 || !bytes.Equal(got[0].Chunks[0].Value, value) {
		t.Errorf("got %d messages, %v", len(got), err)
	}
}

// Requests above the limit are refused, those at it are not.
func TestRequestLimit(t *testing.T) {
	f := newFixture(t, Options{MaxRequestBytes: 1 << 20})
	send := func(n int) error {
		_, err := f.raw.MutateRow(context.Background(), &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(make([]byte, n))})
		return err
	}
	if err := send(1<<20 - 200); err != nil {
		t.Error(err)
	}
	if err := send(1 << 20); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

// A halfSent is a client that opens streams on one connection, announces a message on each, and
// sends part of it.
type halfSent struct {
	method         string // MutateRow if empty
	streams        int
	announce, part int
	frame          int // bytes of a frame
	header         int // bytes of a header
}

func (h halfSent) begin(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	_, err = conn.Write([]byte(http2.ClientPreface))
	must(err)
	fr := http2.NewFramer(conn, conn)
	must(fr.WriteSettings())
	for i := range h.streams {
		id := uint32(2*i + 1)
		var hb bytes.Buffer
		enc := hpack.NewEncoder(&hb)
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", cmp.Or(h.method, bigtablepb.Bigtable_MutateRow_FullMethodName)},
			{":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}, {"x", strings.Repeat("x", h.header)}} {
			must(enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
		}
		must(fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: hb.Bytes(), EndHeaders: true}))
		b := binary.BigEndian.AppendUint32(make([]byte, 1, 5+h.part), uint32(h.announce))
		for b := range slices.Chunk(b[:5+h.part], cmp.Or(h.frame, 8<<10)) {
			must(fr.WriteData(id, false, b))
		}
	}
	return conn
}

func (f *fixture) waitHeld(what string, ok func(int64) bool) {
	f.t.Helper()
	for range 3000 {
		if ok(f.server.gate.held.Load()) {
			return
		}
		runtime.GC() // some buffers are only counted off when they are garbage
		time.Sleep(20 * time.Millisecond)
	}
	f.t.Fatalf("%s: %d bytes held", what, f.server.gate.held.Load())
}

// Half-sent requests use up the memory set aside for requests; then new ones
// are refused, the half-sent ones are ended, and service comes back.
func TestRequestMemory(t *testing.T) {
	for name, client := range map[string]halfSent{
		"large frames": {streams: 20, announce: 1 << 20, part: 48 << 10},
		"small frames": {streams: 20, announce: 60 << 10, part: 48 << 10, frame: 1 << 10},
		"tiny frames":  {streams: 20, announce: 60 << 10, part: 48 << 10, frame: 10},
		"headers":      {streams: 60, announce: 1, header: 12 << 10},
	} {
		if byGRPCGo && name != "large frames" {
			continue // it does not count the others
		}
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{RequestMemory: 300 << 10})
			small := func() error {
				_, err := f.raw.MutateRow(context.Background(), &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(nil)})
				return err
			}
			if err := small(); err != nil {
				t.Fatal(err)
			}
			refused := make(chan error, 1) // it is so for a second only
			go func() {
				var err error
				for deadline := time.Now().Add(time.Minute); err == nil && time.Now().Before(deadline); {
					err = small()
				}
				refused <- err
			}()
			client.begin(t, f.addr)
			if err := <-refused; status.Code(err) != codes.ResourceExhausted || detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration() <= 0 {
				t.Errorf("got %v", err)
			}
			f.waitHeld("ended", func(n int64) bool { return n == 0 })
			if err := small(); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			f.server.gate.mu.Lock()
			defer f.server.gate.mu.Unlock()
			if l := &f.server.gate.mu.receiving; l.root.next != &l.root {
				t.Error("streams are left on the list")
			}
		})
	}
}

// A stream whose message does not come is ended.
func TestReceiveTimeout(t *testing.T) {
	f := newFixture(t, Options{ReceiveTimeout: 200 * time.Millisecond})
	d := &grpc.StreamDesc{ClientStreams: true}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, method := range []string{bigtablepb.Bigtable_MutateRow_FullMethodName, bigtablepb.Bigtable_PingAndWarm_FullMethodName,
		bigtablepb.Bigtable_ReadRows_FullMethodName, grpc_health_v1.Health_Check_FullMethodName} {
		s, err := f.conn.NewStream(ctx, d, method)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err = s.RecvMsg(new(bigtablepb.MutateRowResponse))
		if status.Code(err) != codes.DeadlineExceeded || time.Since(start) > time.Minute {
			t.Errorf("%s: got %v after %v", method, err, time.Since(start))
		}
	}
	// One that is only slow to answer is not.
	f.stub.mutateRow = func(context.Context, string, *row.Entry) error { time.Sleep(600 * time.Millisecond); return nil }
	if _, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(nil)}); err != nil {
		t.Error(err)
	}
	f.stub.readRows = func(context.Context, *scan.Request, scan.Writer) (scan.Stats, error) {
		time.Sleep(600 * time.Millisecond)
		return scan.Stats{}, nil
	}
	if _, err := readAll(ctx, f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable}); err != nil {
		t.Error(err)
	}
}

// No buffer of requests or answers is lost.
func TestBuffersComeBack(t *testing.T) {
	f := newFixture(t, Options{})
	for i := range 200 {
		if _, err := f.raw.MutateRow(context.Background(), &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: fmt.Appendf(nil, "%d", i), Mutations: setCell(make([]byte, 1500*i))}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		s, err := f.raw.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: testTable})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	f.waitHeld("idle", func(n int64) bool { return n == 0 })
}

func TestHealthAndDrain(t *testing.T) {
	f := newFixture(t, Options{})
	hc := grpc_health_v1.NewHealthClient(f.conn)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, service := range []string{"", "google.bigtable.v2.Bigtable", "google.bigtable.admin.v2.BigtableTableAdmin"} {
		r, err := hc.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", service, r, err)
		}
	}
	watch, err := hc.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	f.stub.mutateRow = func(context.Context, string, *row.Entry) error { close(entered); <-release; return nil }
	answered := make(chan error, 1)
	go func() {
		_, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(nil)})
		answered <- err
	}()
	<-entered
	stopCtx, stopNow := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- f.server.Stop(stopCtx) }()
	if r, err := watch.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("draining: %v, %v", r, err)
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("a request in flight: %v", err)
	}
	stopNow() // the watch would go on for ever
	if err := <-stopped; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	if _, err := New(nil, Options{ReceiveTimeout: -1, MaxRequestBytes: -1}); err == nil || !strings.Contains(err.Error(), "ReceiveTimeout") || !strings.Contains(err.Error(), "MaxRequestBytes") {
		t.Errorf("got %v", err)
	}
	if o := (Options{}).WithDefaults(); o.RequestMemory < 64<<20 || o.Validate() != nil {
		t.Errorf("defaults %+v", o)
	}
}

// Outside emulator mode instances and app profiles are what they were made.
func TestInstancesAndProfiles(t *testing.T) {
	f := newFixture(t, Options{}, strict)
	ctx := context.Background()
	key := []byte("k")
	read := func(profile string) error {
		_, err := readAll(ctx, f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable, AppProfileId: profile, Rows: &bigtablepb.RowSet{RowKeys: [][]byte{key}}})
		return err
	}
	if err := read(""); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "Instance not found") {
		t.Fatalf("got %v", err)
	}
	if _, err := f.raw.PingAndWarm(ctx, &bigtablepb.PingAndWarmRequest{Name: testInstance}); status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
	ia := adminpb.NewBigtableInstanceAdminClient(f.conn)
	for _, id := range []string{"inst-1", "inst-2"} {
		if _, err := ia.CreateInstance(ctx, &adminpb.CreateInstanceRequest{Parent: "projects/p", InstanceId: id,
			Instance: &adminpb.Instance{DisplayName: "An instance"},
			Clusters: map[string]*adminpb.Cluster{"clus-1": {Location: "projects/p/locations/zone-a", ServeNodes: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	profile := func(id string, p *adminpb.AppProfile) {
		t.Helper()
		if _, err := ia.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: id, AppProfile: p, IgnoreWarnings: true}); err != nil {
			t.Fatal(err)
		}
	}
	profile("multi", &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_MultiClusterRoutingUseAny_{MultiClusterRoutingUseAny: &adminpb.AppProfile_MultiClusterRoutingUseAny{}}})
	profile("single", &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{ClusterId: "clus-1", AllowTransactionalWrites: true}}})

	for profile, want := range map[string]codes.Code{"": codes.OK, "default": codes.OK, "multi": codes.OK, "single": codes.OK, "nope": codes.NotFound} {
		if err := read(profile); status.Code(err) != want {
			t.Errorf("read with %q: %v", profile, err)
		}
	}
	if err := read("nope"); !strings.Contains(err.Error(), "App profile not found: nope") {
		t.Errorf("got %v", err)
	}
	for profile, want := range map[string]codes.Code{"": codes.OK, "single": codes.OK, "multi": codes.FailedPrecondition} {
		_, err := f.raw.CheckAndMutateRow(ctx, &bigtablepb.CheckAndMutateRowRequest{TableName: testTable, AppProfileId: profile, RowKey: key, FalseMutations: setCell(nil)})
		if status.Code(err) != want || want != codes.OK && !strings.Contains(err.Error(), "Single-row transactions are not allowed by this app profile") {
			t.Errorf("conditional write with %q: %v", profile, err)
		}
	}
	if _, err := f.raw.PingAndWarm(ctx, &bigtablepb.PingAndWarmRequest{Name: testInstance}); err != nil {
		t.Error(err)
	}
	if _, err := f.raw.PingAndWarm(ctx, &bigtablepb.PingAndWarmRequest{Name: "projects/p/instances/inst-2"}); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "No tables found for instance") {
		t.Errorf("got %v", err)
	}
	c, err := f.raw.GetClientConfiguration(ctx, &bigtablepb.GetClientConfigurationRequest{InstanceName: testInstance})
	if err != nil || c.GetSessionConfiguration().GetSessionLoad() != 0 || !c.GetStopPolling() {
		t.Errorf("got %v, %v", c, err)
	}
	var header metadata.MD
	if _, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: key, Mutations: setCell(nil)}, grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	p := new(bigtablepb.ResponseParams)
	if v := header.Get("x-goog-ext-425905942-bin"); len(v) != 1 || proto.Unmarshal([]byte(v[0]), p) != nil || p.GetZoneId() != "zone-a" || p.GetClusterId() != "clus-1" {
		t.Errorf("served at %v", p)
	}
}

// The batch is answered in pieces, every index once, with a status each.
func TestMutateRowsAnswers(t *testing.T) {
	f := newFixture(t, Options{})
	const n = 4000
	req := &bigtablepb.MutateRowsRequest{TableName: testTable}
	for i := range n {
		m := setCell([]byte("v"))
		if i%3 == 0 {
			m[0].GetSetCell().FamilyName = "nope"
		}
		req.Entries = append(req.Entries, &bigtablepb.MutateRowsRequest_Entry{RowKey: fmt.Appendf(nil, "%d", i), Mutations: m})
	}
	s, err := f.raw.MutateRows(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := recvAll(s.Recv)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for _, m := range msgs {
		if m.RateLimitInfo != nil {
			t.Error("rate limit info")
		}
		for _, e := range m.Entries {
			want := codes.OK
			if e.Index%3 == 0 {
				want = codes.NotFound
			}
			if e.Status == nil || seen[e.Index] || codes.Code(e.Status.Code) != want {
				t.Fatalf("entry %v", e)
			}
			seen[e.Index] = true
		}
	}
	if len(seen) != n || len(msgs) < 2 {
		t.Errorf("%d entries in %d messages", len(seen), len(msgs))
	}
	// One bad entry refuses the whole, and nothing is written.
	req = &bigtablepb.MutateRowsRequest{TableName: testTable, Entries: []*bigtablepb.MutateRowsRequest_Entry{
		{RowKey: []byte("whole"), Mutations: setCell(nil)}, {RowKey: []byte("bad"), Mutations: setCell(nil)}}}
	req.Entries[1].Mutations[0].GetSetCell().TimestampMicros = -5
	if s, err = f.raw.MutateRows(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	_, err = recvAll(s.Recv)
	if status.Code(err) != codes.InvalidArgument || detail[*errdetails.BadRequest](err).GetFieldViolations()[0].GetField() != "entries[1].mutations[0].set_cell.timestamp_micros" {
		t.Errorf("got %v", err)
	}
	got, err := readAll(context.Background(), f.raw, &bigtablepb.ReadRowsRequest{TableName: testTable, Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("whole")}}})
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestSampleRowKeys(t *testing.T) {
	f := newFixture(t, Options{})
	for _, c := range []struct {
		within *bigtablepb.RowRange
		want   string
	}{
		{nil, `"m" ""`},
		{&bigtablepb.RowRange{EndKey: &bigtablepb.RowRange_EndKeyOpen{EndKeyOpen: []byte("c")}}, `"c"`},
		{&bigtablepb.RowRange{StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: []byte("n")}}, `""`},
	} {
		s, err := f.raw.SampleRowKeys(context.Background(), &bigtablepb.SampleRowKeysRequest{TableName: testTable, RowRange: c.within})
		if err != nil {
			t.Fatal(err)
		}
		msgs, err := recvAll(s.Recv)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range msgs {
			got = append(got, fmt.Sprintf("%q", m.RowKey))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("within %v: got %v, want %s", c.within, got, c.want)
		}
	}
}

// A client that says what it understands, and not RetryInfo, gets none.
func TestRetryInfo(t *testing.T) {
	f := newFixture(t, Options{})
	f.stub.mutateRow = func(context.Context, string, *row.Entry) error {
		return &fault.Error{Kind: fault.Unavailable, Msg: "busy", RetryAfter: time.Second}
	}
	call := func(flags *bigtablepb.FeatureFlags) *errdetails.RetryInfo {
		ctx := context.Background()
		if flags != nil {
			b, err := proto.Marshal(flags)
			if err != nil {
				t.Fatal(err)
			}
			ctx = metadata.AppendToOutgoingContext(ctx, "bigtable-features", base64.URLEncoding.EncodeToString(b))
		}
		_, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: testTable, RowKey: []byte("k"), Mutations: setCell(nil)})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
		return detail[*errdetails.RetryInfo](err)
	}
	if call(nil) == nil || call(&bigtablepb.FeatureFlags{RetryInfo: true}) == nil || call(&bigtablepb.FeatureFlags{ReverseScans: true}) != nil {
		t.Error("RetryInfo given or kept back wrongly")
	}
}

// left is the stream of a caller who goes away before the answer begins.
type left struct {
	grpc.ServerStream
	entered chan<- struct{}
}

func (l left) SendHeader(md metadata.MD) error {
	l.entered <- struct{}{}
	<-l.Context().Done()
	return l.ServerStream.SendHeader(md)
}

// TestGoneCallersAreNoErrors expects no line in the log of scans whose callers go
// away, whatever it is that the handler notices first: the transport that has
// ended, or an error of the store that came of the cancellation.
func TestGoneCallersAreNoErrors(t *testing.T) {
	entered, handled := make(chan struct{}), make(chan struct{})
	f := newFixture(t, Options{Stream: []grpc.StreamServerInterceptor{func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		err := handler(srv, left{ss, entered})
		handled <- struct{}{}
		return err
	}}})
	f.stub.readRows = func(ctx context.Context, _ *scan.Request, _ scan.Writer) (scan.Stats, error) {
		entered <- struct{}{} // by a read of one row, whose header comes with the row
		<-ctx.Done()
		return scan.Stats{}, errors.New("what came of it")
	}
	key := &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("r")}}
	for _, tc := range map[string]struct {
		rows *bigtablepb.RowSet
		gone func(cancel context.CancelFunc, conn *grpc.ClientConn)
	}{
		"scan of a connection that ended": {nil, func(_ context.CancelFunc, conn *grpc.ClientConn) { _ = conn.Close() }},
		"read of a connection that ended": {key, func(_ context.CancelFunc, conn *grpc.ClientConn) { _ = conn.Close() }},
		"scan that was canceled":          {nil, func(cancel context.CancelFunc, _ *grpc.ClientConn) { cancel() }},
		"read that was canceled":          {key, func(cancel context.CancelFunc, _ *grpc.ClientConn) { cancel() }},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		conn := f.dial()
		if _, err := bigtablepb.NewBigtableClient(conn).ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: testTable, Rows: tc.rows}); err != nil {
			t.Fatal(err)
		}
		<-entered
		tc.gone(cancel, conn)
		<-handled
		cancel()
		_ = conn.Close()
	}
	stopCtx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.server.Stop(stopCtx); err != nil { // and with it the last of what the handlers' answers make of errors
		t.Error(err)
	}
	if log := f.log.String(); log != "" {
		t.Errorf("the log has:\n%s", log)
	}
	f.seen.mu.Lock()
	defer f.seen.mu.Unlock()
	for _, c := range f.seen.codes["/google.bigtable.v2.Bigtable/ReadRows"] {
		if c != codes.Canceled && c != codes.Unavailable {
			t.Errorf("a scan whose caller is gone ended with %v", c)
		}
	}
}

// ended is a stream whose transport has ended, and whose context does not know
// of it yet.
type ended struct{ grpc.ServerStream }

func (ended) Context() context.Context    { return context.Background() }
func (ended) SetTrailer(metadata.MD)      {}
func (ended) SetHeader(metadata.MD) error { return nil }
func (ended) SendHeader(metadata.MD) error {
	return errors.New("connection error: transport is closing")
}

// TestEndedTransportIsNoError is TestGoneCallersAreNoErrors in the moment before
// the context ends.
func TestEndedTransportIsNoError(t *testing.T) {
	log := new(logtest.Buffer)
	g := newGate(Options{RequestMemory: 1 << 20, ReceiveTimeout: time.Minute})
	defer g.close()
	i := newInterceptor(g, Options{Zone: "z", Cluster: "c", Log: slog.New(slog.NewTextHandler(log, nil))})
	err := i.stream(nil, ended{}, &grpc.StreamServerInfo{FullMethod: bigtablepb.Bigtable_ReadRows_FullMethodName},
		func(_ any, ss grpc.ServerStream) error { return ss.SendHeader(nil) })
	if status.Code(err) != codes.Unavailable || log.String() != "" {
		t.Errorf("%v, and the log has %q", err, log.String())
	}
}
