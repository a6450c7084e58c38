package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"
)

// A pipe listens for connections within the process.
type pipe struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipe() *pipe {
	p := &pipe{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error   { p.close(); return nil }
func (p *pipe) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// dial connects, and returns a channel that is closed when the server closes its
// end.
func (p *pipe) dial() (net.Conn, <-chan struct{}) {
	client, server := net.Pipe()
	n := &noted{Conn: server, closed: make(chan struct{})}
	n.close = sync.OnceFunc(func() { close(n.closed) })
	p.conns <- n
	return client, n.closed
}

// A noted connection tells when it is closed.
type noted struct {
	net.Conn
	closed chan struct{}
	close  func()
}

func (n *noted) Close() error { n.close(); return n.Conn.Close() }

// seeds are traffic of clients, after the preface. Valid ones come first.
func seeds() [][]byte {
	var all [][]byte
	record := func(f func(b *bytes.Buffer, block func(...field) []byte)) {
		var b, h bytes.Buffer
		b.Write(frame(http2.FrameSettings, 0, 0, nil))
		enc := hpack.NewEncoder(&h)
		f(&b, func(fields ...field) []byte {
			h.Reset()
			for _, f := range fields {
				_ = enc.WriteField(f)
			}
			return bytes.Clone(h.Bytes())
		})
		all = append(all, b.Bytes())
	}
	type block = func(...field) []byte
	for _, path := range []string{echo, count, chat, sum, fail, wait, hold, prefix + "Nothing"} {
		record(func(b *bytes.Buffer, block block) {
			m := message([]byte("\x05message"))
			if path == count {
				m = message(countRequest(10, 10_000, ""))
			}
			for id := uint32(1); id < 8; id += 2 {
				b.Write(frame(http2.FrameHeaders, endHeaders, id, block(request(path, field{Name: "h-x", Value: "1"})...)))
				b.Write(frame(http2.FrameWindowUpdate, 0, id, uint32s(1000)))
				b.Write(frame(http2.FrameData, 0, id, m[:3]))
				b.Write(frame(http2.FrameData, endStream|http2.FlagDataPadded, id, append(append([]byte{2}, m[3:]...), 0, 0)))
			}
			b.Write(frame(http2.FrameWindowUpdate, 0, 0, uint32s(1<<20)))
			b.Write(frame(http2.FramePing, 0, 0, make([]byte, 8)))
			b.Write(frame(http2.FrameRSTStream, 0, 7, uint32s(8)))
		})
	}
	record(func(b *bytes.Buffer, block block) { // Everything but requests.
		b.Write(frame(http2.FrameSettings, 0, 0, append(setting(settingInit, 0), setting(settingTable, 0)...)))
		b.Write(frame(http2.FrameSettings, ack, 0, nil))
		b.Write(frame(http2.FramePriority, 0, 5, []byte{0, 0, 0, 3, 1}))
		b.Write(frame(http2.FramePing, ack, 0, make([]byte, 8)))
		b.Write(frame(0xbe, 0xff, 9, []byte("unknown")))
		b.Write(frame(http2.FrameGoAway, 0, 0, make([]byte, 8)))
	})
	record(func(b *bytes.Buffer, block block) { // Pieces, a deadline, compression and binary metadata.
		h := block(request(echo, field{Name: "grpc-timeout", Value: "10m"}, field{Name: "x-bin", Value: "AAEC"}, field{Name: "grpc-encoding", Value: "gzip"})...)
		b.Write(frame(http2.FrameHeaders, http2.FlagHeadersPriority|http2.FlagHeadersPadded, 1, append(append([]byte{1, 0, 0, 0, 3, 7}, h[:5]...), 0)))
		b.Write(frame(http2.FrameContinuation, 0, 1, h[5:9]))
		b.Write(frame(http2.FrameContinuation, endHeaders, 1, h[9:]))
		b.Write(frame(http2.FrameData, endStream, 1, flagged(1, 5, []byte("short"))))
	})
	for _, f := range [][]byte{ // Each is an error.
		frame(http2.FrameHeaders, endHeaders, 2, nil), frame(http2.FrameData, 0, 0, nil), frame(http2.FrameContinuation, 0, 1, nil), frame(http2.FramePushPromise, endHeaders, 1, uint32s(2)),
		frame(http2.FrameWindowUpdate, 0, 0, uint32s(0)), frame(http2.FrameSettings, 0, 0, setting(settingInit, 1<<31)), frame(http2.FrameHeaders, endHeaders, 1, []byte{0xff, 0xff, 0xff}),
		{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}, frame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 0}),
	} {
		all = append(all, append(frame(http2.FrameSettings, 0, 0, nil), f...))
	}
	return append(all, nil, []byte("GET / HTTP/1.1\r\n\r\n"))
}

// Whatever follows the preface, the server does not panic. It ends the
// connection, its handlers and its goroutines when the input ends, and serves
// the next.
func FuzzConnection(f *testing.F) {
	for _, b := range seeds() {
		f.Add(b)
	}
	type target struct {
		kind kind
		svc  *service
		l    *pipe
	}
	var targets []*target
	for _, k := range kinds {
		tg := &target{kind: k, svc: newService(), l: newPipe()}
		srv := k.make(config{workers: 2, maxStreams: 10, maxRecv: 1 << 20}.withDefaults())
		srv.RegisterService(tg.svc.desc(), tg.svc)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(tg.l) }()
		f.Cleanup(func() {
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				srv.Stop()
			}()
			if !happens(stopped) {
				f.Fatalf("%s: Stop does not return:\n%s", k.name, stacks())
			}
			if err := <-served; err != nil {
				f.Error(err)
			}
		})
		targets = append(targets, tg)
	}
	feed := func(t testing.TB, tg *target, b []byte) {
		conn, closed := tg.l.dial()
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, conn)
		}()
		_ = conn.SetWriteDeadline(time.Now().Add(bound))
		_, err := conn.Write(append([]byte(http2.ClientPreface), b...))
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			t.Errorf("%s: the server neither reads nor hangs up:\n%s", tg.kind.name, stacks())
		}
		conn.Close()
		if !happens(closed) {
			t.Fatalf("%s: the server does not close the connection:\n%s", tg.kind.name, stacks())
		}
		<-drained
		eventually(t, "all handlers end", func() bool { return tg.svc.running.Load() == 0 })
	}
	for _, tg := range targets {
		feed(f, tg, seeds()[0]) // so that what is started once is there
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, tg := range targets {
			before := runtime.NumGoroutine()
			feed(t, tg, b)
			if peak := tg.svc.peak.Load(); peak > 10 {
				t.Errorf("%s: %d handlers at a time", tg.kind.name, peak)
			}
			end := time.Now().Add(bound)
			for n := runtime.NumGoroutine(); n > before; n = runtime.NumGoroutine() {
				if time.Now().After(end) {
					t.Fatalf("%s: %d goroutines, and %d before:\n%s", tg.kind.name, n, before, stacks())
				}
				time.Sleep(100 * time.Microsecond)
			}
		}
	})
}

// A sending is a call that a client makes, and what must come of it.
type sending struct {
	path   string
	fields []field
	body   []byte
	want   result
}

// A result is what a caller learns of a call.
type result struct {
	code     codes.Code
	text     string
	http     string
	messages [][]byte
	header   []string // of the handler
	trailer  []string
}

func (r result) String() string {
	return fmt.Sprintf("%v %q, :status %s, %d messages %.40q, headers %q, trailers %q", r.code, r.text, r.http, len(r.messages), r.messages, r.header, r.trailer)
}

func (r result) equal(o result) bool {
	return r.code == o.code && r.text == o.text && r.http == o.http && slices.EqualFunc(r.messages, o.messages, bytes.Equal) &&
		slices.Equal(r.header, o.header) && slices.Equal(r.trailer, o.trailer)
}

// result returns what the answer tells the caller.
func (a *answer) result() (r result) {
	r.code, r.text, r.http = a.code(), a.text(), a.http()
	var err error
	if r.messages, err = a.messages(); err != nil {
		r.text += err.Error()
	}
	if a.rst != nil && (*a.rst != errNo || !a.ended) {
		r.text += "RST_STREAM " + a.rst.String()
	}
	metadata := func(fields []field) (md []string) {
		for _, f := range fields {
			if strings.HasPrefix(f.Name, "h-") || strings.HasPrefix(f.Name, "t-") || strings.HasPrefix(f.Name, "fail-") {
				md = append(md, f.Name+"="+f.Value)
			}
		}
		return byName(md)
	}
	if a.frames == 0 && len(a.headers) == len(a.trailers) && get(a.headers, "grpc-status") != "" { // trailers only
		r.trailer = metadata(a.trailers)
		return r
	}
	r.header, r.trailer = metadata(a.headers), metadata(a.trailers)
	return r
}

// byName sorts metadata by their names, and leaves each one's values in order.
func byName(md []string) []string {
	name := func(s string) string { name, _, _ := strings.Cut(s, "="); return name }
	slices.SortStableFunc(md, func(a, b string) int { return strings.Compare(name(a), name(b)) })
	return md
}

func drawMessage(t *rapid.T) []byte {
	size := rapid.OneOf(rapid.IntRange(0, 30), rapid.IntRange(0, 3000), rapid.IntRange(16370, 16400), rapid.IntRange(0, 100_000)).Draw(t, "size")
	b := make([]byte, size)
	seed := rapid.Byte().Draw(t, "first byte")
	for i := range b {
		b[i] = seed + byte(i*i)
	}
	return b
}

func drawSending(t *rapid.T) *sending {
	s := &sending{want: result{http: "200"}}
	s.path = rapid.SampledFrom([]string{echo, chat, sum, count, fail, prefix + "Nothing"}).Draw(t, "path")
	var msgs [][]byte
	switch s.path {
	case echo, prefix + "Nothing":
		msgs = [][]byte{drawMessage(t)}
	case count:
		n, size := rapid.IntRange(0, 20).Draw(t, "count"), rapid.IntRange(0, 30_000).Draw(t, "size of each")
		msgs = [][]byte{countRequest(n, size, "")}
		for i := range n {
			s.want.messages = append(s.want.messages, counted(i, size))
		}
	case fail:
		code := rapid.IntRange(1, 20).Draw(t, "code")
		msgs = [][]byte{append([]byte{byte(code)}, rapid.String().Draw(t, "text")...)}
	default:
		for range rapid.IntRange(0, 5).Draw(t, "messages") {
			msgs = append(msgs, drawMessage(t))
		}
	}
	for _, m := range msgs {
		s.body = append(s.body, message(m)...)
	}
	switch s.path {
	case echo, chat:
		s.want.messages = msgs
	case sum:
		s.want.messages = [][]byte{digestOf(msgs...)}
	case prefix + "Nothing":
		s.want.code, s.want.text = codes.Unimplemented, "unknown method Nothing for service "+serviceName
	case fail:
		st := failure(msgs[0])
		s.want.code, s.want.text = st.Code(), strings.ToValidUTF8(st.Message(), "\uFFFD")
		for k, v := range failHeader {
			for _, v := range v {
				if strings.HasSuffix(k, "-bin") {
					v = binaryValue(v)
				}
				s.want.header = append(s.want.header, k+"="+v)
			}
		}
		for k, v := range failTrailer {
			for _, v := range v {
				if strings.HasSuffix(k, "-bin") {
					v = binaryValue(v)
				}
				s.want.trailer = append(s.want.trailer, k+"="+v)
			}
		}
	}
	s.fields = request(s.path)
	for i := range rapid.IntRange(0, 5).Draw(t, "fields") {
		f := field{Name: fmt.Sprintf("%s-%d", rapid.SampledFrom([]string{"h", "t", "x"}).Draw(t, "kind"), i),
			Value:     rapid.StringMatching(`([!-~]([ -~]{0,40}[!-~])?)?`).Draw(t, "value"),
			Sensitive: rapid.Bool().Draw(t, "sensitive")}
		s.fields = append(s.fields, f)
		if s.path == echo {
			switch f.Name[0] {
			case 'h':
				s.want.header = append(s.want.header, f.Name+"="+f.Value)
			case 't':
				s.want.trailer = append(s.want.trailer, f.Name+"="+f.Value)
			}
		}
	}
	byName(s.want.header)
	byName(s.want.trailer)
	return s
}

// A step is something that the client does. The steps of a call are in order,
// those of calls beside each other are in any.
type step func(c *client)

// steps cuts a sending into frames.
func (s *sending) steps(t *rapid.T, a **answer) []step {
	pads := rapid.Custom(func(t *rapid.T) int {
		return rapid.OneOf(rapid.Just(-1), rapid.IntRange(-1, 255)).Draw(t, "pad")
	})
	pieces := rapid.SliceOfN(rapid.IntRange(0, 60), 0, 5).Draw(t, "pieces of headers")
	priority, pad := rapid.Bool().Draw(t, "priority"), pads.Draw(t, "pad")
	ended := len(s.body) == 0 && rapid.Bool().Draw(t, "ends by HEADERS")
	all := []step{func(c *client) {
		*a = c.answer(c.next)
		id, block := c.next, c.encode(s.fields)
		c.next += 2
		var payload, tail []byte
		var flags http2.Flags
		if ended {
			flags |= endStream
		}
		if pad >= 0 {
			flags |= http2.FlagHeadersPadded
			payload, tail = append(payload, byte(pad)), make([]byte, pad)
		}
		if priority {
			flags |= http2.FlagHeadersPriority
			payload = append(payload, 0, 0, 0, 0, 9)
		}
		typ := http2.FrameHeaders
		for i := 0; ; i++ {
			n := len(block)
			if i < len(pieces) {
				n = min(n, pieces[i])
			} else {
				flags |= endHeaders
			}
			c.raw(typ, flags, id, slices.Concat(payload, block[:n], tail))
			block = block[n:]
			if flags&endHeaders != 0 {
				return
			}
			typ, flags, payload, tail = http2.FrameContinuation, 0, nil, nil
		}
	}}
	if ended {
		return all
	}
	data := func(b []byte, pad int, end bool) step {
		return func(c *client) {
			if min((*a).window, c.window) < int64(len(b)+pad+1) {
				// The server may wait for windows before it gives any: these are for more
				// than all answers.
				for _, a := range c.answers {
					if !a.over() {
						c.grant(a.id, 1<<20)
					}
				}
				c.grant(0, 1<<23)
			}
			// A server may give no more than its message needs, which has no padding:
			// what the window has room for is sent without.
			rest := b
			for min((*a).window, c.window) < int64(len(rest)+pad+1) {
				pad = -1
				if len(rest) == 0 {
					break
				}
				if !c.windows(*a, 1) {
					return
				}
				n := int(min((*a).window, c.window, int64(len(rest))))
				if n == len(rest) {
					break
				}
				c.data((*a).id, rest[:n], -1, false)
				rest = rest[n:]
			}
			if !(*a).over() {
				c.data((*a).id, rest, pad, end)
			}
		}
	}
	body := s.body
	for len(body) > 0 {
		n := len(body)
		if len(all) < 8 {
			n = min(n, rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 20_000)).Draw(t, "piece"))
		}
		n = min(n, maxFrame-256)
		b := body[:n]
		body = body[n:]
		all = append(all, data(b, pads.Draw(t, "pad"), false))
	}
	return append(all, data(nil, pads.Draw(t, "pad"), true))
}

// noise is what a client may send at any time.
func drawNoise(t *rapid.T) step {
	n := rapid.Uint32Range(0, 20_000).Draw(t, "number")
	switch rapid.IntRange(0, 6).Draw(t, "noise") {
	case 0:
		return func(c *client) { c.sync() }
	case 1:
		return func(c *client) { c.raw(http2.FramePriority, 0, 2*n+1, []byte{0, 0, 0, 0, byte(n)}) }
	case 2:
		return func(c *client) { c.raw(http2.FrameType(0x20+n%100), http2.Flags(n), n%9, make([]byte, n%300)) }
	case 3:
		return func(c *client) { c.set(http2.Setting{ID: settingInit, Val: n}) }
	case 4:
		return func(c *client) { c.set(http2.Setting{ID: settingTable, Val: n % 5000}) }
	case 5:
		return func(c *client) { c.grant(0, n+1) }
	default:
		return func(c *client) {
			for _, a := range c.answers {
				if !a.over() {
					c.grant(a.id, n+1)
				}
			}
		}
	}
}

// Both servers answer random sequences of valid frames alike: each call gets the
// status, messages and metadata that its handler made.
func TestServersAgree(t *testing.T) {
	var servers []*fixture
	for _, k := range kinds {
		servers = append(servers, start(t, k, config{}))
	}
	rapid.Check(t, func(rt *rapid.T) {
		sendings := rapid.SliceOfN(rapid.Custom(drawSending), 1, 6).Draw(rt, "calls")
		answers := make([]*answer, len(sendings))
		var queues [][]step
		for i, s := range sendings {
			queues = append(queues, s.steps(rt, &answers[i]))
		}
		var script []step
		for len(queues) > 0 {
			if rapid.IntRange(0, 3).Draw(rt, "kind of step") == 0 {
				script = append(script, drawNoise(rt))
				continue
			}
			i := rapid.IntRange(0, len(queues)-1).Draw(rt, "call")
			script = append(script, queues[i][0])
			if queues[i] = queues[i][1:]; len(queues[i]) == 0 {
				queues = slices.Delete(queues, i, i+1)
			}
		}
		var all [][]result
		for _, s := range servers {
			all = append(all, replay(rt, t, s, script, answers))
		}
		for i, s := range sendings {
			for j := range servers {
				if got := all[j][i]; !got.equal(s.want) {
					rt.Errorf("%s, call %d of %s:\n got %v\nwant %v", servers[j].kind.name, i, s.path, got, s.want)
				}
			}
		}
	})
}

// replay runs a script against a server, and returns what its calls learn.
func replay(rt *rapid.T, t *testing.T, s *fixture, script []step, answers []*answer) []result {
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		rt.Fatal(err)
	}
	defer conn.Close()
	c := newClient(failer{t, rt}, conn)
	c.own = s.kind.own
	c.greet()
	for _, do := range script {
		do(c)
	}
	c.set(http2.Setting{ID: settingInit, Val: 1 << 24})
	c.grant(0, 1<<28)
	for _, a := range answers {
		c.done(a)
	}
	c.sync()
	var results []result
	for _, a := range answers {
		results = append(results, a.result())
	}
	return results
}

// A failer reports to rapid, so that it can look for a smaller example.
type failer struct {
	testing.TB
	rt *rapid.T
}

func (f failer) Helper()                           { f.rt.Helper() }
func (f failer) Error(args ...any)                 { f.rt.Error(args...) }
func (f failer) Errorf(format string, args ...any) { f.rt.Errorf(format, args...) }
func (f failer) Fatal(args ...any)                 { f.rt.Fatal(args...) }
func (f failer) Fatalf(format string, args ...any) { f.rt.Fatalf(format, args...) }
