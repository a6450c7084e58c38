package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/leaktest"
)

// bound limits how long a test waits for an event that must come.
const bound = 20 * time.Second

// A config is what both servers are made with.
type config struct {
	admit                    tap.ServerInHandle
	unary                    grpc.UnaryServerInterceptor
	stream                   grpc.StreamServerInterceptor
	creds                    credentials.TransportCredentials
	streamWindow, connWindow int32
	maxRecv, maxSend         int
	maxStreams               uint32
	maxHeader                uint32
	workers                  int
	handshake                time.Duration
	keepalive                keepalive.ServerParameters
	enforcement              keepalive.EnforcementPolicy

	socketBuffer int // for what the server sends; 0 leaves it alone
}

// withDefaults fills in what most tests run with. Pings are free: tests use
// them to learn that the server has read what was sent before.
func (c config) withDefaults() config {
	set(&c.streamWindow, 64<<10)
	set(&c.connWindow, 1<<20)
	set(&c.maxRecv, 16<<20)
	set(&c.maxSend, 64<<20)
	set(&c.maxStreams, 100)
	set(&c.maxHeader, 64<<10)
	set(&c.workers, 8)
	set(&c.handshake, bound)
	set(&c.enforcement, keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true})
	return c
}

func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// A server is what grpc.Server and transport.Server have in common.
type server interface {
	grpc.ServiceRegistrar
	GetServiceInfo() map[string]grpc.ServiceInfo
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// A kind makes servers of one implementation.
type kind struct {
	name string
	make func(config) server
	own  bool // marks transport.New, which is held to more of the RFC
}

// kinds are the servers under test. own_test.go adds transport.New.
var kinds = []kind{{name: "grpc", make: newGRPC}}

func newGRPC(c config) server {
	opts := []grpc.ServerOption{
		grpc.InTapHandle(c.admit),
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.StaticStreamWindowSize(c.streamWindow),
		grpc.StaticConnWindowSize(c.connWindow),
		grpc.MaxRecvMsgSize(c.maxRecv),
		grpc.MaxSendMsgSize(c.maxSend),
		grpc.MaxConcurrentStreams(c.maxStreams),
		grpc.NumStreamWorkers(uint32(c.workers)),
		grpc.MaxHeaderListSize(c.maxHeader),
		grpc.ConnectionTimeout(c.handshake),
		grpc.KeepaliveEnforcementPolicy(c.enforcement),
		grpc.KeepaliveParams(c.keepalive),
		grpc.WaitForHandlers(true),
	}
	if c.creds != nil {
		opts = append(opts, grpc.Creds(c.creds))
	}
	if c.unary != nil {
		opts = append(opts, grpc.UnaryInterceptor(c.unary))
	}
	if c.stream != nil {
		opts = append(opts, grpc.StreamInterceptor(c.stream))
	}
	return grpc.NewServer(opts...)
}

// A fixture is a server over TCP.
type fixture struct {
	kind   kind
	server server
	svc    *service
	addr   string
	served chan error

	stopping sync.Once
	stopped  chan struct{} // closed when Stop has returned
}

// eachServer runs f with a server of each kind. After f the server must stop
// soon, and leave no goroutine behind.
func eachServer(t *testing.T, c config, f func(t *testing.T, s *fixture)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { f(t, start(t, k, c)) })
	}
}

// start starts a server that ends with the test.
func start(t testing.TB, k kind, c config, register ...func(server)) *fixture {
	t.Helper()
	noLeaks(t)
	c = c.withDefaults()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fixture{kind: k, server: k.make(c), svc: newService(), addr: l.Addr().String(), served: make(chan error, 1), stopped: make(chan struct{})}
	s.server.RegisterService(s.svc.desc(), s.svc)
	for _, r := range register {
		r(s.server)
	}
	accepting := make(chan struct{})
	go func() {
		s.served <- s.server.Serve(&listener{Listener: l, size: c.socketBuffer, accepting: sync.OnceFunc(func() { close(accepting) })})
	}()
	if !happens(accepting) {
		t.Fatal("the server does not accept connections")
	}
	t.Cleanup(func() {
		s.stop(t)
		if n := s.svc.running.Load(); n != 0 {
			t.Errorf("%d handlers run after Stop", n)
		}
	})
	return s
}

// stop stops the server and checks that this does not take long.
func (s *fixture) stop(t testing.TB) {
	t.Helper()
	s.stopping.Do(func() {
		go func() {
			defer close(s.stopped)
			s.server.Stop()
		}()
		if !happens(s.stopped) {
			t.Fatalf("Stop does not return:\n%s", stacks())
		}
		select {
		case err := <-s.served:
			if err != nil {
				t.Errorf("Serve returns %v", err)
			}
		case <-time.After(bound):
			t.Fatal("Serve does not return")
		}
	})
}

// noLeaks checks at the end of the test that no goroutine is left that was not
// there before.
func noLeaks(t testing.TB) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { leaktest.None(t, before) })
}

func stacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}

// happens reports whether c is closed within bound.
func happens(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-time.After(bound):
		return false
	}
}

// eventually waits until what becomes true that has no event.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

// A listener limits the kernel's buffers of what is sent on accepted connections.
type listener struct {
	net.Listener
	size      int
	accepting func()
}

func (l *listener) Accept() (net.Conn, error) {
	l.accepting()
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok && l.size > 0 {
		return c, errors.Join(err, tcp.SetWriteBuffer(l.size))
	}
	return c, err
}

// within returns a context for calls that must end soon.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

// dial connects by the official client.
func (s *fixture) dial(t testing.TB, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	return dial(t, s.addr, opts...)
}

func dial(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20), grpc.MaxCallSendMsgSize(256<<20))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// invoke makes a unary call with raw bytes.
func invoke(ctx context.Context, cc *grpc.ClientConn, method string, req []byte, opts ...grpc.CallOption) ([]byte, error) {
	var resp []byte
	err := cc.Invoke(ctx, method, &req, &resp, append(opts, grpc.ForceCodecV2(rawCodec{}))...)
	return resp, err
}

// stream opens a stream of raw bytes.
func stream(ctx context.Context, cc *grpc.ClientConn, method string, opts ...grpc.CallOption) (*rawStream, error) {
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, append(opts, grpc.ForceCodecV2(rawCodec{}))...)
	return &rawStream{s}, err
}

type rawStream struct{ grpc.ClientStream }

func (s *rawStream) send(b []byte) error { return s.SendMsg(&b) }

func (s *rawStream) recv() ([]byte, error) {
	var b []byte
	err := s.RecvMsg(&b)
	return b, err
}

// all receives messages until the stream ends.
func (s *rawStream) all() (msgs [][]byte, err error) {
	for {
		m, err := s.recv()
		if errors.Is(err, io.EOF) {
			return msgs, nil
		} else if err != nil {
			return msgs, err
		}
		msgs = append(msgs, m)
	}
}

// A canary is an ordinary client beside the abuse.
type canary struct{ cc *grpc.ClientConn }

func (s *fixture) canary(t testing.TB) canary { return canary{s.dial(t)} }

// sing checks that the canary is served.
func (c canary) sing(t testing.TB) {
	t.Helper()
	song := []byte("song")
	got, err := invoke(within(t), c.cc, echo, song)
	if err != nil || !bytes.Equal(got, song) {
		t.Errorf("the canary got %q, %v", got, err)
	}
}

// rawCodec passes messages as the bytes they are, and those of protobuf as such.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *[]byte:
		return mem.BufferSlice{mem.SliceBuffer(*v)}, nil
	case proto.Message:
		b, err := proto.Marshal(v)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	return nil, fmt.Errorf("cannot marshal a %T", v)
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *[]byte:
		*v = data.Materialize()
		return nil
	case proto.Message:
		return proto.Unmarshal(data.Materialize(), v)
	}
	return fmt.Errorf("cannot unmarshal a %T", v)
}

// The methods of the tests' service.
const (
	serviceName = "trestle.test.Transport"
	prefix      = "/" + serviceName + "/"

	// echo answers with the request. Metadata of the request whose names begin
	// with "h-" come back as headers, those with "t-" as trailers.
	echo = prefix + "Echo"
	// wait answers when the test releases the call that the request names.
	wait = prefix + "Wait"
	// fail answers with the code of the request's first byte, and its rest as text.
	fail = prefix + "Fail"
	// count sends as many messages as large as countRequest says.
	count = prefix + "Count"
	// chat answers each message with the same.
	chat = prefix + "Chat"
	// sum answers with the digest of all messages.
	sum = prefix + "Sum"
	// hold is sum that reads nothing before the test releases the call that the
	// metadata "key" names.
	hold = prefix + "Hold"
)

// countRequest asks for n messages of size bytes, by a call that has a name if
// key is not empty.
func countRequest(n, size int, key string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(n))
	return append(binary.LittleEndian.AppendUint32(b, uint32(size)), key...)
}

// counted is the i-th message of an answer.
func counted(i, size int) []byte { return bytes.Repeat([]byte{byte(i)}, size) }

// A digest is what sum makes of messages.
type digest struct {
	n, size int
	hash    uint64
}

func digestOf(msgs ...[]byte) []byte {
	var d digest
	for _, m := range msgs {
		d.add(m)
	}
	return d.bytes()
}

func (d *digest) add(m []byte) {
	d.n++
	d.size += len(m)
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, d.hash))
	_, _ = h.Write(m)
	d.hash = h.Sum64()
}

func (d *digest) bytes() []byte {
	return fmt.Appendf(nil, "%d messages, %d bytes, %x", d.n, d.size, d.hash)
}

// failHeader and failTrailer are sent with each answer of fail.
var (
	failHeader  = metadata.Pairs("fail-header", "h1", "fail-header", "h2", "fail-header-bin", "\x00\xff\x01")
	failTrailer = metadata.Pairs("fail-trailer", "t1", "fail-trailer", "t2", "fail-trailer-bin", "", "fail-trailer-bin", "\xfe\x00")
)

// failure is the status that fail answers req with.
func failure(req []byte) *status.Status {
	if len(req) == 0 {
		return status.New(codes.InvalidArgument, "no code")
	}
	st := status.New(codes.Code(req[0]), string(req[1:]))
	if detailed, err := st.WithDetails(&errdetails.ErrorInfo{Reason: "ASKED_FOR", Domain: "trestle.test", Metadata: map[string]string{"ä": "ö"}}); err == nil {
		st = detailed
	}
	return st
}

// A service counts what it serves, and gives tests a hand on calls that wait.
type service struct {
	running, peak, begun atomic.Int64
	hook                 atomic.Pointer[func(context.Context) error] // called by echo

	mu struct {
		sync.Mutex
		calls   map[string]*call
		changed chan struct{} // closed when calls changes
	}
}

// A call is under way, or has ended.
type call struct {
	ctx     context.Context
	release func()
	free    chan struct{}
	ended   chan struct{}
	err     error // of ctx when the call ended
}

func newService() *service {
	s := new(service)
	s.mu.calls, s.mu.changed = map[string]*call{}, make(chan struct{})
	return s
}

// call waits for the call of a name to begin.
func (s *service) call(t testing.TB, key string) *call {
	t.Helper()
	for end := time.After(bound); ; {
		s.mu.Lock()
		c, changed := s.mu.calls[key], s.mu.changed
		s.mu.Unlock()
		if c != nil {
			return c
		}
		select {
		case <-changed:
		case <-end:
			t.Fatalf("the call %q does not begin", key)
		}
	}
}

// knows reports whether a call of a name began.
func (s *service) knows(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.calls[key] != nil
}

// begins reports whether the call of a name begins within d: one with a deadline, or on
// a connection that ends, may not on a busy machine.
func (s *service) begins(key string, d time.Duration) bool {
	for end := time.Now().Add(d); !s.knows(key); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// ends waits for the call to end, and returns its context's error then.
func (c *call) ends(t testing.TB) error {
	t.Helper()
	if !happens(c.ended) {
		t.Fatalf("the handler is not done:\n%s", stacks())
	}
	return c.err
}

// begin is called when a handler begins. What it returns is called at its end.
func (s *service) begin(ctx context.Context, key string) (*call, func()) {
	s.begun.Add(1)
	n := s.running.Add(1)
	for p := s.peak.Load(); n > p && !s.peak.CompareAndSwap(p, n); p = s.peak.Load() {
	}
	c := &call{ctx: ctx, free: make(chan struct{}), ended: make(chan struct{})}
	c.release = sync.OnceFunc(func() { close(c.free) })
	if key != "" {
		s.mu.Lock()
		s.mu.calls[key] = c
		close(s.mu.changed)
		s.mu.changed = make(chan struct{})
		s.mu.Unlock()
	}
	return c, func() {
		c.err = ctx.Err()
		s.running.Add(-1)
		close(c.ended)
	}
}

// wait blocks until the test releases the call.
func (c *call) wait() error {
	select {
	case <-c.free:
		return nil
	case <-c.ctx.Done():
		return status.FromContextError(c.ctx.Err()).Err()
	}
}

func (s *service) echo(ctx context.Context, req []byte) ([]byte, error) {
	if h := s.hook.Load(); h != nil {
		if err := (*h)(ctx); err != nil {
			return nil, err
		}
	}
	in, _ := metadata.FromIncomingContext(ctx)
	header, trailer := metadata.MD{}, metadata.MD{}
	for k, v := range in {
		if strings.HasPrefix(k, "h-") {
			header[k] = v
		} else if strings.HasPrefix(k, "t-") {
			trailer[k] = v
		}
	}
	if err := errors.Join(grpc.SetHeader(ctx, header), grpc.SetTrailer(ctx, trailer)); err != nil {
		return nil, err
	}
	return req, nil
}

func (s *service) fail(ctx context.Context, req []byte) ([]byte, error) {
	if err := errors.Join(grpc.SetHeader(ctx, failHeader), grpc.SetTrailer(ctx, failTrailer)); err != nil {
		return nil, err
	}
	return nil, failure(req).Err()
}

func (s *service) count(st grpc.ServerStream) error {
	var req []byte
	if err := st.RecvMsg(&req); err != nil {
		return err
	}
	if len(req) < 8 {
		return status.Error(codes.InvalidArgument, "too short")
	}
	_, end := s.begin(st.Context(), string(req[8:]))
	defer end()
	n, size := int(binary.LittleEndian.Uint32(req)), int(binary.LittleEndian.Uint32(req[4:]))
	for i := range n {
		m := counted(i, size)
		if err := st.SendMsg(&m); err != nil {
			// Whatever kept it from being sent ends the context, too.
			select {
			case <-st.Context().Done():
			case <-time.After(bound):
			}
			return err
		}
	}
	return nil
}

func (s *service) chat(st grpc.ServerStream) error {
	_, end := s.begin(st.Context(), keyOf(st.Context()))
	defer end()
	for {
		var m []byte
		if err := st.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := st.SendMsg(&m); err != nil {
			return err
		}
	}
}

func (s *service) sum(st grpc.ServerStream) error {
	_, end := s.begin(st.Context(), keyOf(st.Context()))
	defer end()
	return s.total(st)
}

func (s *service) hold(st grpc.ServerStream) error {
	c, end := s.begin(st.Context(), keyOf(st.Context()))
	defer end()
	if err := c.wait(); err != nil {
		return err
	}
	return s.total(st)
}

func (s *service) total(st grpc.ServerStream) error {
	var d digest
	for {
		var m []byte
		if err := st.RecvMsg(&m); errors.Is(err, io.EOF) {
			b := d.bytes()
			return st.SendMsg(&b)
		} else if err != nil {
			return err
		}
		d.add(m)
	}
}

func keyOf(ctx context.Context) string {
	in, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(in.Get("key"), ",")
}

func (s *service) desc() *grpc.ServiceDesc {
	unary := func(name string, f func(context.Context, []byte) ([]byte, error)) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, dec func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
			var req []byte
			if err := dec(&req); err != nil {
				return nil, err
			}
			h := func(ctx context.Context, req any) (any, error) {
				resp, err := f(ctx, *req.(*[]byte))
				return &resp, err
			}
			if in == nil {
				return h(ctx, &req)
			}
			return in(ctx, &req, &grpc.UnaryServerInfo{Server: srv, FullMethod: prefix + name}, h)
		}}
	}
	streaming := func(name string, client, server bool, f func(grpc.ServerStream) error) grpc.StreamDesc {
		return grpc.StreamDesc{StreamName: name, ClientStreams: client, ServerStreams: server,
			Handler: func(_ any, st grpc.ServerStream) error { return f(st) }}
	}
	return &grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			unary("Echo", func(ctx context.Context, req []byte) ([]byte, error) {
				_, end := s.begin(ctx, keyOf(ctx))
				defer end()
				return s.echo(ctx, req)
			}),
			unary("Wait", func(ctx context.Context, req []byte) ([]byte, error) {
				c, end := s.begin(ctx, string(req))
				defer end()
				return slices.Clone(req), c.wait()
			}),
			unary("Fail", func(ctx context.Context, req []byte) ([]byte, error) {
				_, end := s.begin(ctx, keyOf(ctx))
				defer end()
				return s.fail(ctx, req)
			}),
		},
		Streams: []grpc.StreamDesc{
			streaming("Count", false, true, s.count),
			streaming("Chat", true, true, s.chat),
			streaming("Sum", true, false, s.sum),
			streaming("Hold", true, true, s.hold),
		},
		Metadata: "transport_test",
	}
}
