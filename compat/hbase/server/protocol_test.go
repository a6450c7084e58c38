package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/budget"
)

var oneFamily = map[string]model.Family{"f": {Versions: 1, TTL: model.Forever}}

// closed fails unless the server has closed the connection.
func (c *rawClient) closed() {
	c.t.Helper()
	if n, err := io.Copy(io.Discard, c.nc); n > 0 || err != nil && strings.Contains(err.Error(), "timeout") {
		c.t.Errorf("the connection is open: %d bytes, %v", n, err)
	}
}

// alive fails unless the server answers.
func (f *fixture) alive() {
	f.t.Helper()
	var id pb.GetClusterIdResponse
	f.dial("ClientMetaService", nil).call("GetClusterId", &pb.GetClusterIdRequest{}, &id, nil)
	if id.GetClusterId() != f.catalog.ClusterID() {
		f.t.Errorf("cluster id %q", id.GetClusterId())
	}
}

// TestPreambles: what a client says first decides what it gets.
func TestPreambles(t *testing.T) {
	f := newFixture(t, Options{})
	for name, tc := range map[string]struct {
		first, class, text string
	}{
		"another protocol":  {"GET / HTTP/1.1\r\n", wire.FatalConnection.Name, "Expected HEADER="},
		"another version":   {"HBas\x01\x50", wire.WrongVersion.Name, ""},
		"Kerberos":          {"HBas\x00\x51", wire.BadAuth.Name, ""},
		"a header of 2 GiB": {"HBas\x00\x50\x7F\xFF\xFF\xFF", wire.FatalConnection.Name, ""},
		"a negative header": {"HBas\x00\x50\xFF\xFF\xFF\xFF", wire.FatalConnection.Name, ""},
		"a bad header":      {"HBas\x00\x50\x00\x00\x00\x01\xFF", wire.FatalConnection.Name, ""},
		"security":          {"Securi", wire.SecurityNotEnabled.Name, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := f.connect()
			c.t = t
			c.write([]byte(tc.first))
			h, _ := c.receive(nil)
			e := h.GetException()
			if h.GetCallId() != wire.NoCall || e.GetExceptionClassName() != tc.class || !strings.Contains(e.GetStackTrace(), ": "+tc.text) {
				t.Errorf("%v", h)
			}
		})
	}
	c := f.connect()
	c.write([]byte("Regist"))
	var r pb.GetConnectionRegistryResponse
	if h, _ := c.receive(&r); h.GetCallId() != wire.NoCall || r.GetClusterId() != f.catalog.ClusterID() {
		t.Errorf("registry: %v, %v", h, &r)
	}
	c.closed()
	f.alive()
	// Whoever says nothing is disconnected.
	newFixture(t, Options{Handshake: time.Second}).connect().closed()
}

func TestConnectionHeaders(t *testing.T) {
	f := newFixture(t, Options{})
	for name, tc := range map[string]struct {
		set   func(*pb.ConnectionHeader)
		class string
	}{
		"service":    {func(h *pb.ConnectionHeader) { h.ServiceName = proto.String("Nonsense") }, wire.FatalConnection.Name},
		"codec":      {func(h *pb.ConnectionHeader) { h.CellBlockCodecClass = proto.String("x.CellCodec") }, wire.UnsupportedCodec.Name},
		"compressor": {func(h *pb.ConnectionHeader) { h.CellBlockCompressorClass = proto.String("x.Lz4Codec") }, wire.UnsupportedCompr.Name},
		"encryption": {func(h *pb.ConnectionHeader) { h.RpcCryptoCipherTransformation = proto.String("AES") }, wire.FatalConnection.Name},
		"user": {func(h *pb.ConnectionHeader) {
			h.UserInfo = &pb.UserInformation{EffectiveUser: proto.String(strings.Repeat("u", wire.MaxUser+1))}
		}, wire.FatalConnection.Name},
	} {
		c := f.dial("ClientService", tc.set)
		if h, _ := c.receive(nil); h.GetCallId() != wire.NoCall || h.GetException().GetExceptionClassName() != tc.class {
			t.Errorf("%s: %v", name, h)
		}
		c.closed()
	}
	f.alive()
}

// TestBadCalls: a call that is wrong is refused, and the connection lives on
// unless its bytes can no longer be understood.
func TestBadCalls(t *testing.T) {
	f := newFixture(t, Options{MaxRequestBytes: 1 << 20})
	table := f.table("t", oneFamily, nil, "m")
	region := f.regions(table)[0].Specifier()
	c := f.dial("ClientService", nil)
	c.fail("Nonsense", &pb.GetRequest{Region: region, Get: &pb.Get{Row: []byte("a")}}, nil, wire.DoNotRetryIO)
	c.fail("Get", &pb.ClusterId{ClusterId: proto.String("x")}, nil, wire.DoNotRetryIO)
	unknown := &pb.RegionSpecifier{Type: pb.RegionSpecifier_REGION_NAME.Enum(), Value: []byte("t,,1.x.")}
	c.fail("Get", &pb.GetRequest{Region: unknown, Get: &pb.Get{Row: []byte("a")}}, nil, wire.NotServingRegion)
	get := func(g *pb.Get) *pb.GetRequest { return &pb.GetRequest{Region: region, Get: g} }
	c.fail("Get", get(&pb.Get{Row: []byte("z")}), nil, wire.WrongRegion)
	c.fail("Get", get(&pb.Get{Row: []byte{}}), nil, wire.DoNotRetryIO)
	c.fail("Get", get(&pb.Get{Row: bytes.Repeat([]byte("a"), 1<<15)}), nil, wire.DoNotRetryIO)
	c.fail("Get", get(&pb.Get{Row: []byte("a"), MaxVersions: proto.Uint32(0)}), nil, wire.DoNotRetryIO)
	c.fail("Get", get(&pb.Get{Row: []byte("a"), ClosestRowBefore: proto.Bool(true)}), nil, wire.UnknownProtocol)
	c.fail("Get", get(&pb.Get{Row: []byte("a"), Column: []*pb.Column{{Family: []byte("nope")}}}), nil, wire.NoSuchFamily)
	c.fail("Get", get(&pb.Get{Row: []byte("a"), Filter: &pb.Filter{Name: proto.String("com.example.Mine")}}), nil, wire.DoNotRetryIO)
	c.fail("Get", get(&pb.Get{Row: []byte("a"), TimeRange: &pb.TimeRange{From: proto.Uint64(9), To: proto.Uint64(3)}}), nil, wire.DoNotRetryIO)
	c.fail("BulkLoadHFile", &pb.BulkLoadHFileRequest{Region: region}, nil, wire.DoNotRetryIO)
	c.fail("ExecService", &pb.CoprocessorServiceRequest{Region: region, Call: &pb.CoprocessorServiceCall{Row: []byte("a"),
		ServiceName: proto.String("x"), MethodName: proto.String("y"), Request: []byte{}}}, nil, wire.UnknownProtocol)
	put := &pb.MutationProto{Row: []byte("a"), MutateType: pb.MutationProto_PUT.Enum(), AssociatedCellCount: proto.Int32(1)}
	mutate := &pb.MutateRequest{Region: region, Mutation: put}
	c.fail("Mutate", mutate, wire.AppendCell(nil, []byte("b"), "f", nil, 1, wire.TypePut, nil), wire.DoNotRetryIO)
	c.fail("Mutate", mutate, wire.AppendCell(nil, []byte("a"), "g", nil, 1, wire.TypePut, nil), wire.NoSuchFamily)
	c.fail("Mutate", mutate, []byte("not a cell"), wire.FatalConnection)
	c.fail("Scan", &pb.ScanRequest{ScannerId: proto.Uint64(7)}, nil, wire.UnknownScanner)
	c.fail("Scan", &pb.ScanRequest{Region: region}, nil, wire.DoNotRetryIO)
	meta := model.MetaRegion.Specifier()
	c.fail("Mutate", &pb.MutateRequest{Region: meta, Mutation: put}, wire.AppendCell(nil, []byte("a"), "info", nil, 1, wire.TypePut, nil), wire.DoNotRetryIO)
	var ok pb.GetResponse
	c.call("Get", get(&pb.Get{Row: []byte("a")}), &ok, nil)

	// A request that is too large is told so; the connection ends.
	c.write(append(binary.BigEndian.AppendUint32(nil, 2<<20), frame(99, "Get", get(&pb.Get{Row: []byte("a")}), nil)[4:]...))
	if h, _ := c.receive(nil); h.GetCallId() != 99 || h.GetException().GetExceptionClassName() != wire.RequestTooBig.Name {
		t.Errorf("%v", h)
	}
	for _, b := range []string{"\xFF\xFF\xFF\xFF", "\x00\x00\x00\x01\xFF", "\x00\x00\x00\x03\x05ab"} {
		c := f.dial("ClientService", nil)
		c.write([]byte(b))
		if h, _ := c.receive(nil); h.GetCallId() != wire.NoCall || h.GetException() == nil {
			t.Errorf("%q: %v", b, h)
		}
		c.closed()
	}
	f.alive()
}

// TestCompressedBlocks: what a cell block decompresses to takes memory of
// requests, which bounds it.
func TestCompressedBlocks(t *testing.T) {
	memory := budget.New(3 << 20)
	f := newFixture(t, Options{Memory: memory})
	class := "org.apache.hadoop.io.compress.SnappyCodec"
	c := &rowClient{f.dial("ClientService", func(h *pb.ConnectionHeader) { h.CellBlockCompressorClass = &class }), f.rows("t", nil, 1).region}
	compressor, _ := wire.CompressorOf(class)
	put := func(value int) (*pb.MutateRequest, []byte) {
		m, block := mutation(pb.MutationProto_PUT, "P q="+strings.Repeat("v", value))
		return &pb.MutateRequest{Region: c.region, Mutation: m}, compressor.Compress(nil, block)
	}
	req, block := put(600 << 10)
	if 10*len(block) > 600<<10 {
		t.Fatalf("%d bytes compressed", len(block))
	}
	// Others have half of it.
	if !memory.Try(3 << 19) {
		t.Fatal("no room in a new budget")
	}
	c.fail("Mutate", req, block, wire.CallQueueTooBig)
	memory.Release(3 << 19)
	c.call("Mutate", req, nil, block)
	// One that never fits.
	req, block = put(2 << 20)
	c.fail("Mutate", req, block, wire.RequestTooBig)
	f.alive()
	c.nc.Close()
	for end := time.Now().Add(time.Minute); memory.Used() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes were not given back", memory.Used())
		}
	}
}

// TestManyCalls: calls of one connection run at the same time, and one that is
// slow to be answered does not hold up others. Clients that go away leave
// nothing behind.
func TestManyCalls(t *testing.T) {
	f := newFixture(t, Options{MaxCalls: 8})
	region := f.regions(f.table("t", oneFamily, nil))[0].Specifier()
	c := f.dial("ClientService", nil)
	const n = 200
	go func() {
		for i := range uint32(n) {
			row := fmt.Appendf(nil, "r%d", i)
			_, _ = c.nc.Write(frame(i+1, "Mutate", &pb.MutateRequest{Region: region, Mutation: &pb.MutationProto{Row: row,
				MutateType: pb.MutationProto_PUT.Enum(), AssociatedCellCount: proto.Int32(1)}},
				wire.AppendCell(nil, row, "f", []byte("q"), model.Latest, wire.TypePut, row)))
		}
	}()
	seen := map[uint32]bool{}
	for range n {
		var r pb.MutateResponse
		h, _ := c.receive(&r)
		if h.Exception != nil || seen[h.GetCallId()] || !r.GetProcessed() {
			t.Fatalf("%v", h)
		}
		seen[h.GetCallId()] = true
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			c := f.dial("ClientService", nil)
			c.send("Scan", &pb.ScanRequest{Region: region, Scan: &pb.Scan{}, NumberOfRows: proto.Uint32(1000)}, nil)
			if i%2 == 0 {
				_ = c.nc.(*net.TCPConn).SetLinger(0)
			}
			_ = c.nc.Close()
		})
	}
	wg.Wait()
	f.alive()
}

// TestStop: calls under way are answered, later ones are not taken.
func TestStop(t *testing.T) {
	f := newFixture(t, Options{})
	region := f.regions(f.table("t", oneFamily, nil))[0].Specifier()
	c := f.dial("ClientService", nil)
	c.call("Get", &pb.GetRequest{Region: region, Get: &pb.Get{Row: []byte("a")}}, nil, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.server.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	c.closed()
	if _, err := net.Dial("tcp", f.addr); err == nil {
		t.Error("the server still listens")
	}
}

// TestStopDoesNotWait: a stop waits neither for the rest of a call nor for a client
// that has yet to say hello, and calls under way are answered all the same.
func TestStopDoesNotWait(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	f := newFixture(t, Options{Services: map[string]Service{"Slow": {"Get": Handle(func(ctx context.Context, _ *Call, _ *pb.GetRequest) (*pb.GetResponse, error) {
		close(started)
		select {
		case <-release:
			return &pb.GetResponse{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})}}})
	region := f.regions(f.table("t", oneFamily, nil))[0].Specifier()
	get := &pb.GetRequest{Region: region, Get: &pb.Get{Row: []byte("a")}}
	half, silent := f.dial("Slow", nil), f.connect()
	half.send("Get", get, nil)
	b := frame(2, "Get", get, nil)
	half.write(b[:len(b)-1])
	<-started
	var wg sync.WaitGroup
	for range 8 {
		c := f.dial("ClientService", nil)
		c.call("Get", get, nil, nil)
		wg.Go(func() { // as fast as it can, until the connection ends
			for id := uint32(2); ; id++ {
				if _, err := c.nc.Write(frame(id, "Get", get, nil)); err != nil {
					return
				}
				n, err := wire.ReadLength(c.nc)
				if err != nil {
					return
				}
				if _, err := io.CopyN(io.Discard, c.nc, int64(n)); err != nil {
					t.Error("an answer is cut short:", err)
					return
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- f.server.Stop(ctx) }()
	silent.closed()
	wg.Wait()
	close(release)
	if h, _ := half.receive(nil); h.Exception != nil {
		t.Errorf("a call under way: %v", h.Exception.GetExceptionClassName())
	}
	half.closed()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestScansEndWhenStopping: a scan that finds nothing for a long time lets a stop
// go ahead, and its client has it go on elsewhere from where it was.
func TestScansEndWhenStopping(t *testing.T) {
	f := newFixture(t, Options{})
	table := f.table("t", oneFamily, nil)
	region := f.regions(table)[0].Specifier()
	c := f.dial("ClientService", nil)
	const rows = 2000
	ra := &pb.RegionAction{Region: region}
	var block []byte
	for i := range rows {
		key := fmt.Appendf(nil, "r%06d", i)
		block = wire.AppendCell(block, key, "f", []byte("q"), model.Latest, wire.TypePut, []byte("v"))
		ra.Action = append(ra.Action, &pb.Action{Index: proto.Uint32(uint32(i)), Mutation: &pb.MutationProto{Row: key,
			MutateType: pb.MutationProto_PUT.Enum(), AssociatedCellCount: proto.Int32(1)}})
	}
	c.call("Multi", &pb.MultiRequest{RegionAction: []*pb.RegionAction{ra}}, nil, block)
	value, err := proto.Marshal(&pb.BinaryComparator{Comparable: &pb.ByteArrayComparable{Value: []byte("none")}})
	if err != nil {
		t.Fatal(err)
	}
	none := filterMessage(t, &pb.ValueFilter{CompareFilter: &pb.CompareFilter{CompareOp: pb.CompareType_EQUAL.Enum(),
		Comparator: &pb.Comparator{Name: proto.String("org.apache.hadoop.hbase.filter.BinaryComparator"), SerializedComparator: value}}})
	req := &pb.ScanRequest{Region: region, NumberOfRows: proto.Uint32(10), ClientHandlesPartials: proto.Bool(true), ClientHandlesHeartbeats: proto.Bool(true),
		TrackScanMetrics: proto.Bool(true), Scan: &pb.Scan{Filter: none}}
	scanned := func() (int64, bool) {
		resp, err := f.server.scan(t.Context(), &Call{Client: &Client{Blocks: true}}, req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetScanMetrics().GetMetrics()[0].GetValue(), resp.GetHeartbeatMessage() && resp.GetMoreResultsInRegion()
	}
	if n, more := scanned(); n != rows || more {
		t.Fatalf("%d rows, more: %v", n, more)
	}
	f.server.mu.Lock()
	f.server.mu.stopping = true
	f.server.mu.Unlock()
	if n, more := scanned(); n >= rows/2 || !more {
		t.Errorf("while stopping: %d rows, more: %v", n, more)
	}
}

// FuzzConn: whatever comes behind a good header, the connection ends and the
// server lives.
func FuzzConn(f *testing.F) {
	fx := newFixture(f, Options{Transfer: time.Second, MaxRequestBytes: 1 << 16})
	region := fx.regions(fx.table("t", oneFamily, nil))[0].Specifier()
	f.Add(frame(1, "Get", &pb.GetRequest{Region: region, Get: &pb.Get{Row: []byte("a")}}, nil))
	f.Add(frame(1, "Scan", &pb.ScanRequest{Region: region, Scan: &pb.Scan{}}, nil))
	f.Add(frame(1, "Mutate", &pb.MutateRequest{Region: region, Mutation: &pb.MutationProto{Row: []byte("a"), MutateType: pb.MutationProto_PUT.Enum(),
		AssociatedCellCount: proto.Int32(1)}}, wire.AppendCell(nil, []byte("a"), "f", []byte("q"), 1, wire.TypePut, []byte("v"))))
	f.Add(frame(1, "Multi", &pb.MultiRequest{RegionAction: []*pb.RegionAction{{Region: region, Atomic: proto.Bool(true), Action: []*pb.Action{
		{Index: proto.Uint32(1), Mutation: &pb.MutationProto{Row: []byte("a"), MutateType: pb.MutationProto_DELETE.Enum()}}}}}}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		mine := *fx
		mine.t = t
		c := mine.dial("ClientService", nil)
		c.write(b)
		_ = c.nc.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c.nc); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Fatal("the connection did not end")
		}
		_ = c.nc.Close()
	})
}

// TestSilentSenders: a request takes memory when its first 64 KiB are here, and keeps it
// from others that wait only while it goes on arriving.
func TestSilentSenders(t *testing.T) {
	memory := budget.New(3 << 20)
	f := newFixture(t, Options{Memory: memory})
	region := f.rows("t", nil, 1).region
	put := func() []byte {
		m, block := mutation(pb.MutationProto_PUT, "P q="+strings.Repeat("v", 900<<10))
		return frame(7, "Mutate", &pb.MutateRequest{Region: region, Mutation: m}, block)
	}
	answered := func(c *rawClient, class string) {
		t.Helper()
		if h, _ := c.receive(nil); h.GetCallId() != 7 || h.GetException().GetExceptionClassName() != class {
			t.Errorf("%v, want %q", h, class)
		}
	}
	held := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); memory.Used() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("a request that arrives takes no memory")
			}
		}
	}
	for range 4 {
		f.dial("ClientService", nil).write([]byte{0, 15, 0, 0}) // what follows is 960 KiB
	}
	start := time.Now()
	c := f.dial("ClientService", nil)
	c.write(put())
	answered(c, "")
	if wait := time.Since(start); wait > 30*time.Second {
		t.Errorf("requests that were only announced took memory for %v", wait)
	}

	// One that stops is ended when another waits, and told why.
	silent := f.dial("ClientService", nil)
	silent.write(put()[:100<<10])
	held()
	start = time.Now()
	c.write(put())
	answered(silent, wire.CallQueueTooBig.Name)
	silent.closed()
	answered(c, "")
	if wait := time.Since(start); wait > 30*time.Second {
		t.Errorf("a request that stopped took memory for %v", wait)
	}

	// One that goes on is not.
	for memory.Short() { // for two seconds behind the last that had to wait
		time.Sleep(10 * time.Millisecond)
	}
	slow := f.dial("ClientService", nil)
	rest := put()
	next := func(n int) {
		n = min(n, len(rest))
		slow.write(rest[:n])
		rest = rest[n:]
	}
	next(100 << 10)
	held()
	time.Sleep(1500 * time.Millisecond) // nor one that stops while memory is not short
	c.write(put())
	for len(rest) > 0 {
		next(70 << 10)
		time.Sleep(100 * time.Millisecond)
	}
	answered(slow, "")
	answered(c, "")
	whole(t, "in the end", memory)
	f.alive()
}
