package zk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/trestledb/trestle/engine/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var cluster = Cluster{
	ID:      "6d1d8a1e-5a52-4c5d-9f5b-0d6a3d0c6f11",
	Master:  ServerName{"h1.example", 16020, 1234567890123},
	Meta:    ServerName{"h1.example", 16020, 1234567890123},
	Servers: []ServerName{{"h1.example", 16020, 1234567890123}},
	Tables:  map[string]bool{"t": true, "ns:off": false},
}

// start returns a server with the nodes of cluster, and its address.
func start(t *testing.T, o Options) (*Server, string) {
	t.Helper()
	s := NewServer(o)
	s.Publish(cluster.Tree())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func client(t *testing.T, addr string) *gozk.Conn {
	t.Helper()
	c, _, err := gozk.Connect([]string{addr}, 4*time.Second, gozk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClientReads(t *testing.T) {
	_, addr := start(t, Options{})
	c := client(t, addr)
	b, stat, err := c.Get("/hbase/meta-region-server")
	if err != nil {
		t.Fatal(err)
	}
	// What gohbase does with a node.
	n := binary.BigEndian.Uint32(b[1:])
	if b[0] != 0xff || n < 1 || n > 65000 || string(b[5+n:9+n]) != "PBUF" {
		t.Errorf("node begins %q", b)
	}
	if want := "\n\x16\n\nh1.example\x10\x94}\x18"; !bytes.HasPrefix(b[9+n:], []byte(want)) {
		t.Errorf("message %q, want %q...", b[9+n:], want)
	}
	if !bytes.HasSuffix(b, []byte("\x10\x00\x18\x03")) {
		t.Errorf("message %q does not end with the state OPEN", b[9+n:])
	}
	if int(stat.DataLength) != len(b) || stat.NumChildren != 0 || stat.EphemeralOwner != 0 || stat.Mtime == 0 {
		t.Errorf("stat %+v", stat)
	}
	kids, stat, err := c.Children("/hbase")
	if err != nil || !slices.Equal(kids, []string{"backup-masters", "hbaseid", "master", "meta-region-server", "rs", "running", "table"}) || stat.NumChildren != 7 {
		t.Errorf("children %q, %+v, %v", kids, stat, err)
	}
	if kids, _, err := c.Children("/hbase/table"); err != nil || !slices.Equal(kids, []string{"ns:off", "t"}) {
		t.Errorf("children %q, %v", kids, err)
	}
	if ok, _, err := c.Exists("/hbase/rs/h1.example,16020,1234567890123"); !ok || err != nil {
		t.Errorf("exists %v, %v", ok, err)
	}
	if ok, _, err := c.Exists("/nothing"); ok || err != nil {
		t.Errorf("exists %v, %v", ok, err)
	}
	if _, _, err := c.Get("/hbase/nothing"); !errors.Is(err, gozk.ErrNoNode) {
		t.Errorf("get: %v", err)
	}
	if acl, _, err := c.GetACL("/hbase"); err != nil || !slices.Equal(acl, gozk.WorldACL(gozk.PermRead)) {
		t.Errorf("acl %v, %v", acl, err)
	}
	if p, err := c.Sync("/hbase"); err != nil || p != "/hbase" {
		t.Errorf("sync %q, %v", p, err)
	}
	if err := c.AddAuth("digest", []byte("u:p")); err != nil {
		t.Errorf("auth: %v", err)
	}
}

func TestWritesAreRefused(t *testing.T) {
	_, addr := start(t, Options{})
	c := client(t, addr)
	// The client has no name for NOTREADONLY, -119.
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "-119") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := c.Create("/x", nil, 0, gozk.WorldACL(gozk.PermAll))
	refused("create", err)
	_, err = c.Set("/hbase/master", nil, -1)
	refused("set", err)
	refused("delete", c.Delete("/hbase/master", -1))
	_, err = c.SetACL("/hbase", gozk.WorldACL(gozk.PermAll), -1)
	refused("setACL", err)
	_, err = c.Multi(&gozk.DeleteRequest{Path: "/hbase/master"})
	refused("multi", err)
	if ok, _, err := c.Exists("/hbase/master"); !ok || err != nil {
		t.Errorf("after the writes: %v, %v", ok, err)
	}
}

func wait(t *testing.T, ch <-chan gozk.Event, typ gozk.EventType, path string) {
	t.Helper()
	select {
	case e := <-ch:
		if e.Type != typ || e.Path != path {
			t.Errorf("event %+v, want %v of %s", e, typ, path)
		}
	case <-time.After(time.Minute):
		t.Errorf("no %v of %s", typ, path)
	}
}

func TestWatches(t *testing.T) {
	s, addr := start(t, Options{})
	c := client(t, addr)
	_, _, data, err := c.GetW("/hbase/master")
	if err != nil {
		t.Fatal(err)
	}
	_, _, kids, err := c.ChildrenW("/hbase/rs")
	if err != nil {
		t.Fatal(err)
	}
	_, _, made, err := c.ExistsW("/hbase/table/new")
	if err != nil {
		t.Fatal(err)
	}
	_, _, gone, err := c.GetW("/hbase/table/t")
	if err != nil {
		t.Fatal(err)
	}
	_, _, same, err := c.GetW("/hbase/hbaseid")
	if err != nil {
		t.Fatal(err)
	}
	next := cluster
	next.Master.StartCode++
	next.Servers = nil
	next.Tables = map[string]bool{"new": true}
	s.Publish(next.Tree())
	wait(t, data, gozk.EventNodeDataChanged, "/hbase/master")
	wait(t, kids, gozk.EventNodeChildrenChanged, "/hbase/rs")
	wait(t, made, gozk.EventNodeCreated, "/hbase/table/new")
	wait(t, gone, gozk.EventNodeDeleted, "/hbase/table/t")
	select {
	case e := <-same:
		t.Errorf("a node that did not change: %+v", e)
	default:
	}
	_, stat, err := c.Get("/hbase/master")
	if err != nil || stat.Version != 1 || stat.Czxid >= stat.Mzxid {
		t.Errorf("stat %+v, %v", stat, err)
	}
	// A watch fires once.
	s.Publish(cluster.Tree())
	if _, ok := <-data; ok {
		t.Error("a watch fired twice")
	}
}

// raw is a connection spoken to in frames.
type raw struct {
	t *testing.T
	net.Conn
}

func dial(t *testing.T, addr string) raw {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return raw{t, c}
}

func (c raw) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(append(appendInt32(nil, int32(len(b))), b...)); err != nil {
		c.t.Fatal(err)
	}
}

func (c raw) receive() reader {
	c.t.Helper()
	b, err := readFrame(c, nil, 1<<20)
	if err != nil {
		c.t.Fatal(err)
	}
	return reader{b: b}
}

// gone fails unless the server disconnects without another byte.
func (c raw) gone() {
	c.t.Helper()
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		c.t.Error("the server went on")
	} else if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		c.t.Error("the server kept the connection")
	}
}

func hello(timeout int32, session int64, password []byte) []byte {
	b := appendInt32(nil, 0)
	b = appendInt64(b, 0)
	b = appendInt32(b, timeout)
	b = appendInt64(b, session)
	return appendBuffer(b, password)
}

// session connects and returns what the server answered.
func (c raw) session(hello []byte) (timeout int32, id int64, password []byte) {
	c.t.Helper()
	c.send(hello)
	r := c.receive()
	if v := r.int32(); v != 0 {
		c.t.Errorf("protocol %d", v)
	}
	timeout, id, password = r.int32(), r.int64(), r.buffer()
	if r.bad {
		c.t.Error("short answer")
	}
	return timeout, id, password
}

func TestSessions(t *testing.T) {
	_, addr := start(t, Options{})
	c := dial(t, addr)
	timeout, id, password := c.session(hello(1, 0, nil))
	if timeout != 4000 || id == 0 || len(password) != passwordLen {
		t.Errorf("session %d, timeout %d, password %x", id, timeout, password)
	}
	c.send([]byte("\x00\x00\x00\x01\xff\xff\xff\xf5")) // close
	if r := c.receive(); r.int32() != 1 || r.int64() == 0 || r.int32() != 0 {
		t.Error("answer to close")
	}
	c.gone()

	// The session can be resumed with its password,
	c = dial(t, addr)
	if _, again, _ := c.session(hello(1e9, id, password)); again != id {
		t.Errorf("resumed as %d, not %d", again, id)
	}
	// and has expired for everybody else.
	for _, p := range [][]byte{nil, make([]byte, passwordLen), password[:15]} {
		c = dial(t, addr)
		if timeout, id, p := c.session(hello(5000, id, p)); id != 0 || timeout != 0 || len(p) != passwordLen {
			t.Errorf("strange password gave session %d, timeout %d", id, timeout)
		}
		c.gone()
	}
	// The last byte of the answer is there only if the request has it.
	c = dial(t, addr)
	c.send(append(hello(5000, 0, nil), 1))
	r := c.receive()
	r.take(4 + 4 + 8 + 4 + passwordLen)
	if r.bad || len(r.b) != 1 || r.b[0] != 0 {
		t.Errorf("read-only flag %x", r.b)
	}
}

func TestSilentClientIsDisconnected(t *testing.T) {
	_, addr := start(t, Options{MinTimeout: time.Second})
	// pings reports how many of six pings, well within the timeout, are answered.
	pings := func(c raw, timeout time.Duration) int {
		c.session(hello(int32(timeout.Milliseconds()), 0, nil))
		for n := range 6 {
			time.Sleep(timeout / 5)
			if _, err := c.Write([]byte("\x00\x00\x00\x08\xff\xff\xff\xfe\x00\x00\x00\x0b")); err != nil {
				return n
			}
			b, err := readFrame(c, nil, 1<<20)
			if err != nil {
				return n
			}
			if r := (reader{b: b}); r.int32() != xidPing {
				t.Error("answer to ping")
			}
		}
		return 6
	}
	for timeout := time.Second; ; timeout *= 2 {
		c := dial(t, addr)
		if n := pings(c, timeout); n == 6 { // pings keep it
			c.gone()
			return
		} else if timeout >= 16*time.Second {
			t.Fatalf("disconnected after %d pings within %v each", n, timeout/5)
		}
		// The machine was so busy that a ping came too late.
	}
}

func TestReconnectedWatches(t *testing.T) {
	s, addr := start(t, Options{})
	_, zxid := s.current()
	next := cluster
	next.Master.StartCode++
	s.Publish(next.Tree())

	c := dial(t, addr)
	c.session(hello(5000, 0, nil))
	b := appendInt32(appendInt32(nil, 7), opSetWatches)
	b = appendInt64(b, zxid)
	for _, l := range [][]string{{"/hbase/master", "/hbase/hbaseid", "/gone"}, {"/hbase/rs", "/later"}, {"/hbase/rs"}} {
		b = appendInt32(b, int32(len(l)))
		for _, p := range l {
			b = appendBuffer(b, p)
		}
	}
	c.send(b)
	if r := c.receive(); r.int32() != 7 || r.int64() == 0 || r.int32() != 0 {
		t.Fatal("answer to setWatches")
	}
	for _, want := range []event{{eventChanged, "/hbase/master"}, {eventDeleted, "/gone"}, {eventCreated, "/hbase/rs"}} {
		r := c.receive()
		xid, _, _ := r.int32(), r.int64(), r.int32()
		if got := (event{r.int32(), ""}); xid != -1 || got.typ != want.typ || r.int32() != stateConnected || string(r.buffer()) != want.path {
			t.Errorf("event %v, want %v", got, want)
		}
	}
	next.Tables = nil
	next.ID = "other"
	s.Publish(next.Tree())
	if r := c.receive(); r.int32() != -1 || r.int64() != -1 || r.int32() != 0 || r.int32() != eventChanged {
		t.Error("a watch that was set again did not fire")
	}
}

func TestAbuse(t *testing.T) {
	_, addr := start(t, Options{MaxConns: 8, MinTimeout: 100 * time.Millisecond})
	frames := map[string][]byte{
		"huge length":      {0x7f, 0xff, 0xff, 0xff},
		"negative length":  {0xff, 0xff, 0xff, 0xff},
		"empty":            {0, 0, 0, 0},
		"huge password":    append(appendInt32(nil, 32), append(hello(5000, 0, nil)[:24], 0x7f, 0xff, 0xff, 0xff, 1, 2, 3, 4)...),
		"connect too long": append(appendInt32(nil, maxConnect+1), make([]byte, maxConnect+1)...),
	}
	for name, b := range frames {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			c.Write(b)
			c.gone()
		})
	}
	requests := map[string][]byte{
		"no operation":        {0, 0, 0, 1},
		"too many watches":    nil,
		"strings over length": append(appendInt64(appendInt32(appendInt32(nil, 1), opSetWatches), 0), 0x7f, 0xff, 0xff, 0xff),
	}
	many := appendInt64(appendInt32(appendInt32(nil, 1), opSetWatches), 0)
	many = appendInt32(appendInt32(many, 0), maxWatches+1)
	for i := range maxWatches + 1 {
		many = appendBuffer(many, "/x"+itoa(i))
	}
	requests["too many watches"] = appendInt32(many, 0)
	for name, b := range requests {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			c.session(hello(5000, 0, nil))
			c.send(b)
			c.gone()
		})
	}
	t.Run("frame over the limit", func(t *testing.T) {
		c := dial(t, addr)
		c.session(hello(5000, 0, nil))
		c.Write(appendInt32(nil, maxFrame+1))
		c.gone()
	})
	t.Run("errors are answered", func(t *testing.T) {
		c := dial(t, addr)
		c.session(hello(5000, 0, nil))
		for _, q := range []struct {
			op   int32
			rest []byte
			code int32
		}{
			{opGetData, nil, errMarshalling},
			{opGetData, []byte{0, 0, 0, 9, '/'}, errMarshalling},
			{opGetData, appendBuffer(nil, "/hbase"), errMarshalling},
			{opGetData, append(appendBuffer(nil, "hbase"), 0), errBadArguments},
			{opGetData, append(appendBuffer(nil, "/a/../hbase"), 0), errBadArguments},
			{opGetData, append(appendBuffer(nil, "/"+strings.Repeat("x", maxPath)), 0), errBadArguments},
			{opGetData, append(appendBuffer(nil, "/x"), 1), errNoNode},
			{opRemoveWatches, appendInt32(appendBuffer(nil, "/x"), 3), errNoWatcher},
			{opExists, append(appendBuffer(nil, "/x"), 1), errNoNode},
			{opRemoveWatches, appendInt32(appendBuffer(nil, "/x"), 3), errOK},
			{106, nil, errUnimplemented},
			{-10, nil, errUnimplemented},
		} {
			c.send(append(appendInt32(appendInt32(nil, 5), q.op), q.rest...))
			if r := c.receive(); r.int32() != 5 || r.int64() == 0 || r.int32() != q.code {
				t.Errorf("operation %d with %q is not answered with %d", q.op, q.rest, q.code)
			}
		}
	})
	t.Run("too many connections", func(t *testing.T) {
		_, addr := start(t, Options{MaxConns: 8})
		var open []raw
		for range 8 {
			c := dial(t, addr)
			c.session(hello(60000, 0, nil))
			open = append(open, c)
		}
		dial(t, addr).gone()
		for _, c := range open {
			c.Close()
		}
	})
}

// A client that never reads cannot hold up a publication.
func TestDeafClient(t *testing.T) {
	s, addr := start(t, Options{})
	c := dial(t, addr)
	c.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	c.session(hello(60000, 0, nil))
	ask := appendBuffer(appendInt32(appendInt32(nil, 1), opGetChildren2), "/hbase")
	ask = append(ask, 1)
	go func() {
		for {
			if _, err := c.Write(append(appendInt32(nil, int32(len(ask))), ask...)); err != nil {
				return
			}
		}
	}()
	begin := time.Now()
	for i := range 200 {
		next := cluster
		next.Root = []string{"/hbase", "/other"}[i%2]
		s.Publish(next.Tree())
	}
	if d := time.Since(begin); d > 30*time.Second { // half of the client's session
		t.Errorf("200 publications took %v", d)
	}
	c.Close()
}

// A scarce listener has no file descriptor for a while.
type scarce struct {
	net.Listener
	left int
}

func (l *scarce) Accept() (net.Conn, error) {
	if l.left--; l.left >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// TestOutOfFiles: clients are served again when there are file descriptors.
func TestOutOfFiles(t *testing.T) {
	s := NewServer(Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(&scarce{Listener: l, left: 3}) }()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := nc.Write([]byte("ruok")); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(nc); string(b) != "imok" {
		t.Errorf("%q, %v", b, err)
	}
	s.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFourLetterWords(t *testing.T) {
	_, addr := start(t, Options{})
	for word, want := range map[string]string{"ruok": "imok", "isro": "rw", "srvr": "Mode: standalone"} {
		c := dial(t, addr)
		io.WriteString(c, word)
		b, err := io.ReadAll(c)
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %q, %v", word, b, err)
		}
	}
}

// FuzzFrames reads the frames of a connection; nothing may panic, and what
// comes back is frames.
func FuzzFrames(f *testing.F) {
	frame := func(b []byte) []byte { return append(appendInt32(nil, int32(len(b))), b...) }
	h := frame(hello(5000, 0, nil))
	for _, op := range []int32{opExists, opGetData, opGetACL, opGetChildren, opGetChildren2, opSync, opCreate, opPing, opClose, opMulti} {
		f.Add(append(slices.Clone(h), frame(append(appendBuffer(appendInt32(appendInt32(nil, 1), op), "/hbase/master"), 1))...))
	}
	watches := appendInt64(appendInt32(appendInt32(nil, 1), opSetWatches2), 1)
	watches = appendBuffer(appendInt32(watches, 1), "/hbase/master")
	f.Add(append(slices.Clone(h), frame(append(watches, make([]byte, 16)...))...))
	s := NewServer(Options{})
	s.Publish(cluster.Tree())
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &conn{s: s, out: make(chan []byte, queued)}
		c.mu.watches = map[string]watchKind{}
		answers := func(b []byte) {
			for r := bytes.NewReader(b); r.Len() > 0; {
				if _, err := readFrame(r, nil, 1<<20); err != nil {
					t.Fatalf("answer %x: %v", b, err)
				}
			}
		}
		r := bytes.NewReader(in)
		b, err := readFrame(r, nil, maxConnect)
		if err != nil {
			return
		}
		answer, ok := c.connect(b)
		answers(answer)
		for last := !ok; !last; {
			if b, err = readFrame(r, b, maxFrame); err != nil {
				return
			}
			answer, last = c.answer(b)
			answers(answer)
			last = last || answer == nil
		}
	})
}

func BenchmarkGetData(b *testing.B) {
	s := NewServer(Options{})
	s.Publish(cluster.Tree())
	c := &conn{s: s}
	c.mu.watches = map[string]watchKind{}
	q := append(appendBuffer(appendInt32(appendInt32(nil, 1), opGetData), "/hbase/meta-region-server"), 0)
	b.ReportAllocs()
	for b.Loop() {
		c.answer(q)
	}
}
