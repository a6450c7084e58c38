package server

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/compat/hbase/zk"
	"github.com/trestledb/trestle/engine/schema"
)

// A fixture is a server over a store of its own.
type fixture struct {
	t       testing.TB
	store   *standalone.Server
	catalog *model.Catalog
	server  *Server
	addr    string
	zk      string
}

func newFixture(t testing.TB, o Options) *fixture {
	t.Helper()
	return fixtureOver(t, standalone.Options{}, o)
}

// fixtureOver is newFixture over a store with settings.
func fixtureOver(t testing.TB, so standalone.Options, o Options) *fixture {
	t.Helper()
	ctx := context.Background()
	quiet := slog.New(slog.DiscardHandler)
	so.Dir, so.Logger = t.TempDir(), quiet
	if _, ok := t.(*testing.B); !ok {
		// A test must not wait for a busy disk.
		so.Dir, so.FS, so.NoReserve = "d", vfs.NewMem(), true
	}
	store, err := standalone.Open(ctx, so)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	f := &fixture{t: t, store: store, addr: l.Addr().String()}
	me := model.Server{Host: "127.0.0.1", Port: uint32(port), StartCode: uint64(time.Now().UnixMilli())}
	if f.catalog, err = model.Open(ctx, store, model.Mapping{Project: "p", Instance: "i"}, me); err != nil {
		t.Fatal(err)
	}
	if o.Log == nil {
		o.Log = quiet
	}
	if f.server, err = New(f.catalog, store, o); err != nil {
		t.Fatal(err)
	}
	go f.server.Serve(l)
	zs := zk.NewServer(zk.Options{})
	name := zk.ServerName{Host: me.Host, Port: uint16(me.Port), StartCode: int64(me.StartCode)}
	zs.Publish(zk.Cluster{ID: f.catalog.ClusterID(), Master: name, Meta: name, Servers: []zk.ServerName{name}}.Tree())
	zl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go zs.Serve(zl)
	f.zk = zl.Addr().String()
	t.Cleanup(func() {
		zs.Close()
		stop, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := f.server.Stop(stop); err != nil {
			t.Error("stop:", err)
		}
		if err := store.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

// table makes a table as HBase's master would: with a descriptor.
func (f *fixture) table(name string, families map[string]model.Family, attributes map[string]string, splits ...string) *model.Table {
	f.t.Helper()
	ctx := context.Background()
	n := model.ParseName(name)
	s := &schema.Table{Name: f.catalog.Mapping().Resource(n), Families: map[string]schema.Family{}, Granularity: 1000}
	d := &pb.TableSchema{TableName: n.Proto()}
	for k, v := range attributes {
		d.Attributes = append(d.Attributes, &pb.BytesBytesPair{First: []byte(k), Second: []byte(v)})
		if k == model.AttrTimestampUnit && v == model.TimestampUnitRaw {
			s.Granularity = 1
		}
	}
	for name, fam := range families {
		s.AddFamily(schema.Family{Name: name, GC: fam.Rule()})
	}
	var keys [][]byte
	for _, k := range splits {
		keys = append(keys, []byte(k))
	}
	s, err := f.store.CreateTable(ctx, s, keys)
	if err != nil {
		f.t.Fatal(err)
	}
	b, err := proto.Marshal(d)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.catalog.Update(ctx, s, func(s *model.Stored) error { s.Descriptor = b; return nil }); err != nil {
		f.t.Fatal(err)
	}
	t, err := f.catalog.Table(ctx, n)
	if err != nil {
		f.t.Fatal(err)
	}
	return t
}

func (f *fixture) regions(t *model.Table) []*model.Region {
	f.t.Helper()
	r, err := f.catalog.Regions(context.Background(), t)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// A rawClient speaks the protocol without knowing it well.
type rawClient struct {
	t  testing.TB
	nc net.Conn
	id uint32
}

// dial connects and says hello.
func (f *fixture) dial(service string, set func(*pb.ConnectionHeader)) *rawClient {
	f.t.Helper()
	c := f.connect()
	h := &pb.ConnectionHeader{UserInfo: &pb.UserInformation{EffectiveUser: proto.String("tester")}, ServiceName: proto.String(service),
		CellBlockCodecClass: proto.String("org.apache.hadoop.hbase.codec.KeyValueCodec"),
		VersionInfo: &pb.VersionInfo{Version: proto.String("2.6.4"), Url: proto.String(""), Revision: proto.String(""), User: proto.String(""),
			Date: proto.String(""), SrcChecksum: proto.String("")}}
	if set != nil {
		set(h)
	}
	b, err := proto.Marshal(h)
	if err != nil {
		f.t.Fatal(err)
	}
	c.write([]byte{'H', 'B', 'a', 's', 0, 80})
	c.write(binary.BigEndian.AppendUint32(nil, uint32(len(b))))
	c.write(b)
	return c
}

// patience is how long a raw client waits for an answer.
const patience = time.Minute

func (f *fixture) connect() *rawClient {
	f.t.Helper()
	nc, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	_ = nc.SetDeadline(time.Now().Add(patience))
	f.t.Cleanup(func() { _ = nc.Close() })
	return &rawClient{t: f.t, nc: nc}
}

func (c *rawClient) write(b []byte) {
	c.t.Helper()
	_ = c.nc.SetDeadline(time.Now().Add(patience))
	if _, err := c.nc.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func frame(id uint32, method string, req proto.Message, block []byte) []byte {
	h := &pb.RequestHeader{CallId: proto.Uint32(id), MethodName: proto.String(method), RequestParam: proto.Bool(true)}
	if len(block) > 0 {
		h.CellBlockMeta = &pb.CellBlockMeta{Length: proto.Uint32(uint32(len(block)))}
	}
	hb, err := proto.Marshal(h)
	if err != nil {
		panic(err)
	}
	rb, err := proto.Marshal(req)
	if err != nil {
		panic(err)
	}
	b := binary.AppendUvarint(make([]byte, 4), uint64(len(hb)))
	b = append(b, hb...)
	b = binary.AppendUvarint(b, uint64(len(rb)))
	b = append(append(b, rb...), block...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func (c *rawClient) send(method string, req proto.Message, block []byte) uint32 {
	c.t.Helper()
	c.id++
	c.write(frame(c.id, method, req, block))
	return c.id
}

// receive reads a response; resp is nil if any will do.
func (c *rawClient) receive(resp proto.Message) (h *pb.ResponseHeader, block []byte) {
	c.t.Helper()
	n, err := wire.ReadLength(c.nc)
	if err != nil {
		c.t.Fatalf("read a response: %v", err)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.nc, b); err != nil {
		c.t.Fatal(err)
	}
	next := func() []byte {
		n, w := binary.Uvarint(b)
		if w <= 0 || n > uint64(len(b)-w) {
			c.t.Fatalf("malformed response %x", b)
		}
		part := b[w : w+int(n)]
		b = b[w+int(n):]
		return part
	}
	h = new(pb.ResponseHeader)
	if err := proto.Unmarshal(next(), h); err != nil {
		c.t.Fatal(err)
	}
	if h.Exception != nil {
		return h, nil
	}
	m := next()
	if resp != nil {
		if err := proto.Unmarshal(m, resp); err != nil {
			c.t.Fatal(err)
		}
	}
	if len(b) != int(h.GetCellBlockMeta().GetLength()) {
		c.t.Fatalf("%d bytes behind the message, %d in the block", len(b), h.GetCellBlockMeta().GetLength())
	}
	return h, b
}

// call makes a call that must succeed.
func (c *rawClient) call(method string, req, resp proto.Message, block []byte) []byte {
	c.t.Helper()
	id := c.send(method, req, block)
	h, out := c.receive(resp)
	if h.Exception != nil {
		c.t.Fatalf("%s: %s", method, h.Exception.GetStackTrace())
	}
	if h.GetCallId() != id {
		c.t.Fatalf("%s: response to call %d, not %d", method, h.GetCallId(), id)
	}
	return out
}

// fail makes a call that must fail with a class.
func (c *rawClient) fail(method string, req proto.Message, block []byte, class wire.Class) *pb.ExceptionResponse {
	c.t.Helper()
	c.send(method, req, block)
	h, _ := c.receive(nil)
	if h.GetException().GetExceptionClassName() != class.Name || h.GetException().GetDoNotRetry() != class.DoNotRetry {
		c.t.Fatalf("%s: %v, want %s", method, h.GetException(), class.Name)
	}
	return h.GetException()
}
