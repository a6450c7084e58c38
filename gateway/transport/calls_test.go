package transport_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// Messages of all sizes around the windows pass both ways, unchanged and in
// order, by calls of every shape.
func TestCallsOfEveryShape(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		cc := s.dial(t)
		for _, size := range []int{0, 1, 1023, 1024, 1025, 16384 - 5, 16384, 64<<10 - 5, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 5 << 20} {
			m := counted(size, size)
			for i := range m {
				m[i] += byte(i >> 8)
			}
			if got, err := invoke(within(t), cc, echo, m); err != nil || !bytes.Equal(got, m) {
				t.Errorf("echo of %d bytes: %d bytes, %v", size, len(got), err)
			}
			n := 3
			st, err := stream(within(t), cc, count)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = st.send(countRequest(n, size, "")), st.CloseSend()
			msgs, err := st.all()
			if err != nil || len(msgs) != n {
				t.Errorf("count of %d bytes: %d messages, %v", size, len(msgs), err)
			}
			for i, got := range msgs {
				if !bytes.Equal(got, counted(i, size)) {
					t.Errorf("count of %d bytes: message %d has %d other bytes", size, i, len(got))
				}
			}
			if st, err = stream(within(t), cc, chat); err != nil {
				t.Fatal(err)
			}
			for range n {
				if err := st.send(m); err != nil {
					t.Fatal(err)
				}
				if got, err := st.recv(); err != nil || !bytes.Equal(got, m) {
					t.Errorf("chat of %d bytes: %d bytes, %v", size, len(got), err)
				}
			}
			_ = st.CloseSend()
			if _, err := st.recv(); !errors.Is(err, io.EOF) {
				t.Errorf("chat of %d bytes ends by %v", size, err)
			}
			if st, err = stream(within(t), cc, sum); err != nil {
				t.Fatal(err)
			}
			for range n {
				_ = st.send(m)
			}
			_ = st.CloseSend()
			if msgs, err := st.all(); err != nil || len(msgs) != 1 || !bytes.Equal(msgs[0], digestOf(m, m, m)) {
				t.Errorf("sum of %d bytes: %q, %v", size, msgs, err)
			}
		}
	})
}

// Many callers at once each get their own answer, also when there are more than
// a connection may have streams.
func TestManyCallers(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		cc := s.dial(t)
		ctx := within(t)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				m := fmt.Appendf(nil, "caller %d %s", i, strings.Repeat("x", i*300))
				for range 5 {
					if got, err := invoke(ctx, cc, echo, m); err != nil || !bytes.Equal(got, m) {
						t.Errorf("caller %d: %d bytes, %v", i, len(got), err)
					}
				}
				st, err := stream(ctx, cc, count)
				if err != nil {
					t.Errorf("caller %d: %v", i, err)
					return
				}
				_, _ = st.send(countRequest(20, 3000+i, "")), st.CloseSend()
				msgs, err := st.all()
				if err != nil || len(msgs) != 20 || slices.ContainsFunc(msgs, func(m []byte) bool { return len(m) != 3000+i }) {
					t.Errorf("caller %d: %d messages, %v", i, len(msgs), err)
				}
			})
		}
		wg.Wait()
		if n := s.svc.peak.Load(); n > 100 {
			t.Errorf("%d handlers at a time", n)
		}
	})
}

// Metadata arrive with all their values in order, in both directions and in
// headers and trailers alike.
func TestMetadata(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		cc := s.dial(t, grpc.WithUserAgent("tester/1"), grpc.WithAuthority("a.test"))
		out := metadata.Pairs("h-one", "1", "h-many", "a", "h-many", "b, c", "h-many", "a", "h-bytes-bin", "\x00\xff", "h-bytes-bin", "", "h-empty", "",
			"t-one", "~ !", "t-many", "x", "t-many", "y", "t-bytes-bin", strings.Repeat("\xf0\x01", 500))
		var in metadata.MD
		hook := func(ctx context.Context) error { in, _ = metadata.FromIncomingContext(ctx); return nil }
		s.svc.hook.Store(&hook)
		var header, trailer metadata.MD
		if _, err := invoke(metadata.NewOutgoingContext(within(t), out), cc, echo, nil, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
			t.Fatal(err)
		}
		for k, want := range out {
			if !slices.Equal(in[k], want) {
				t.Errorf("the handler got %s: %q", k, in[k])
			}
			got, other := header, trailer
			if strings.HasPrefix(k, "t-") {
				got, other = trailer, header
			}
			if !slices.Equal(got[k], want) || other[k] != nil {
				t.Errorf("the caller got %s: %q, elsewhere %q", k, got[k], other[k])
			}
		}
		for k, want := range map[string]string{":authority": "a.test", "content-type": "application/grpc"} {
			if got := in[k]; len(got) != 1 || !strings.HasPrefix(got[0], want) {
				t.Errorf("the handler got %s: %q", k, got)
			}
		}
		if got := in["user-agent"]; len(got) != 1 || !strings.HasPrefix(got[0], "tester/1") {
			t.Errorf("the handler got user-agent: %q", got)
		}
		for k := range in {
			if strings.HasPrefix(k, "grpc-") && k != "grpc-accept-encoding" || k == "te" || strings.HasPrefix(k, ":") && k != ":authority" {
				t.Errorf("the handler got %s", k)
			}
		}
	})
}

// A handler's names that belong to the protocol do not reach the wire.
func TestReservedMetadata(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		hook := func(ctx context.Context) error {
			md := metadata.Pairs("grpc-status", "5", ":status", "500", "content-type", "text/html", "grpc-message", "no", "grpc-encoding", "gzip", "te", "x", "mine", "1")
			return errors.Join(grpc.SetHeader(ctx, md), grpc.SetTrailer(ctx, md))
		}
		s.svc.hook.Store(&hook)
		c := s.client(t)
		a := c.call(echo, []byte("m"))
		c.ok(a, []byte("m"))
		for _, fields := range [][]field{a.headers, a.trailers} {
			if got := values(fields, "mine"); len(got) != 1 {
				t.Errorf("%v", a)
			}
			for _, f := range fields {
				if len(values(fields, f.Name)) > 1 || f.Name == "te" || f.Name == "grpc-encoding" {
					t.Errorf("%v in %v", f, a)
				}
			}
		}
	})
}

// A status arrives as it was made: code, text of any characters, details, and
// the metadata of the failed call.
func TestStatus(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		cc := s.dial(t)
		c := s.client(t)
		for i, text := range []string{"", "plain", "spaces and 100%", "%41", "ünïcödé 日本語 \U0001F600", "line\nbreak\r\n\ttab\x00\x7f", strings.Repeat("long ä", 1000)} {
			for _, code := range []codes.Code{codes.Canceled, codes.NotFound, codes.Unauthenticated, 77} {
				req := append([]byte{byte(code)}, text...)
				var header, trailer metadata.MD
				_, err := invoke(within(t), cc, fail, req, grpc.Header(&header), grpc.Trailer(&trailer))
				st := status.Convert(err)
				if st.Code() != code || st.Message() != text {
					t.Errorf("text %d: got %v %q", i, st.Code(), st.Message())
				}
				if d := st.Details(); len(d) != 1 {
					t.Errorf("text %d: details %v", i, d)
				} else if info, ok := d[0].(*errdetails.ErrorInfo); !ok || info.Reason != "ASKED_FOR" || info.Metadata["ä"] != "ö" {
					t.Errorf("text %d: details %v", i, d)
				}
				for md, got := range map[*metadata.MD]metadata.MD{&failHeader: header, &failTrailer: trailer} {
					for k, want := range *md {
						if !slices.Equal(got[k], want) {
							t.Errorf("text %d: %s: %q", i, k, got[k])
						}
					}
				}
				a := c.call(fail, req)
				for _, b := range []byte(get(a.trailers, "grpc-message")) {
					if b < ' ' || b > '~' {
						t.Errorf("text %d: %q on the wire", i, get(a.trailers, "grpc-message"))
						break
					}
				}
			}
		}
	})
}

// A call that fails before anything is sent is answered by one block of headers.
func TestTrailersOnly(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		hook := func(ctx context.Context) error {
			if err := grpc.SetTrailer(ctx, metadata.Pairs("mine", "1")); err != nil {
				return err
			}
			return status.Error(codes.Aborted, "not now")
		}
		s.svc.hook.Store(&hook)
		c := s.client(t)
		for _, method := range []string{echo, prefix + "Nothing", "/no.Service/Method"} {
			a := c.call(method, nil)
			if !a.ended || a.frames > 0 || a.http() != "200" || get(a.headers, "content-type") == "" || get(a.headers, "grpc-status") == "" {
				t.Errorf("%s: %v", method, a)
			}
			if method == echo && (a.code() != codes.Aborted || a.text() != "not now" || get(a.headers, "mine") != "1") {
				t.Errorf("%s: %v", method, a)
			}
		}
	})
}

// Methods and services that are not there are UNIMPLEMENTED, with a text that
// tells which.
func TestUnimplemented(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		cc := s.dial(t)
		for method, text := range map[string]string{
			prefix + "Nothing": "unknown method Nothing", "/no.Service/Method": "unknown service no.Service", prefix: "unknown method",
			"/" + serviceName: "", "//": "", "/": "", "/" + serviceName + "//Echo": "", prefix + "Echo/": "", prefix + "echo": "unknown method echo"} {
			_, err := invoke(within(t), cc, method, []byte("request"))
			if st := status.Convert(err); st.Code() != codes.Unimplemented || !strings.Contains(st.Message(), text) {
				t.Errorf("%q: %v", method, err)
			}
		}
		c := s.client(t)
		for _, method := range []string{echo[1:], "Echo", "*"} { // official clients add the slash
			c.status(c.call(method, nil), codes.Unimplemented)
		}
		c.alive()
	})
}

// The caller's deadline is the handler's. When it passes both learn of it.
func TestDeadline(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		cc := s.dial(t)
		began := ""
		for limit := 100 * time.Millisecond; began == ""; limit *= 2 {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			key := fmt.Sprint("client ", limit)
			_, err := invoke(ctx, cc, wait, []byte(key))
			if cancel(); status.Code(err) != codes.DeadlineExceeded {
				t.Error(err)
			}
			if s.svc.begins(key, limit) {
				began = key
			} else if limit > bound {
				t.Fatalf("no call begins within %v", limit)
			}
		}
		if err := s.svc.call(t, began).ends(t); err == nil {
			t.Error("the handler's context is not done")
		}
		c := s.client(t)
		for unit, d := range map[string]time.Duration{"m": time.Millisecond, "u": time.Microsecond, "n": time.Nanosecond} {
			for limit, begun, end := 50*time.Millisecond, false, time.Now().Add(time.Minute); !begun; limit *= 2 {
				timeout := fmt.Sprint(min(int64(limit/d), 99_999_999), unit) // at most 8 digits
				key := fmt.Sprint(timeout, " of ", limit)
				a := c.start(wait, []byte(key), field{Name: "grpc-timeout", Value: timeout})
				if begun = s.svc.begins(key, limit); begun {
					call := s.svc.call(t, key)
					if d, ok := call.ctx.Deadline(); !ok || time.Until(d) > max(time.Second, limit) {
						t.Errorf("%s: deadline %v, %v", timeout, d, ok)
					}
					// grpc-go may cancel the context before its deadline's timer has run.
					if err := call.ends(t); !errors.Is(err, context.DeadlineExceeded) && (s.kind.own || err == nil) {
						t.Errorf("%s: the handler's context ends by %v", timeout, err)
					}
				} else if time.Now().After(end) {
					t.Fatalf("no call begins within %s", timeout)
				}
				c.done(a)
				if a.code() != codes.DeadlineExceeded && (a.rst == nil || *a.rst != 8) {
					t.Errorf("%s: %v", timeout, a)
				}
			}
		}
		// A handler that never waits asks as often as it can.
		hook := func(ctx context.Context) error {
			for ctx.Err() == nil {
			}
			return ctx.Err()
		}
		s.svc.hook.Store(&hook)
		a := c.call(echo, nil, field{Name: "grpc-timeout", Value: "50m"})
		if a.code() != codes.DeadlineExceeded && (a.rst == nil || *a.rst != 8) {
			t.Errorf("asked all the time: %v", a)
		}
		s.svc.hook.Store(nil)
		for _, timeout := range []string{"99999999H", "99999999M", "99999999S", "99999999m", "1H"} {
			c.ok(c.call(echo, nil, field{Name: "grpc-timeout", Value: timeout}), nil)
		}
		handlers := s.svc.begun.Load()
		for _, timeout := range []string{"0n", "0S"} {
			a := c.call(echo, nil, field{Name: "grpc-timeout", Value: timeout})
			if a.code() != codes.DeadlineExceeded && (a.rst == nil || *a.rst != 8) {
				t.Errorf("%s: %v", timeout, a)
			}
		}
		if n := s.svc.begun.Load() - handlers; n != 0 {
			t.Errorf("%d handlers ran after their deadline", n)
		}
		c.alive()
	})
}

// A caller that cancels ends the context of its handler, whatever it waits for.
func TestCancel(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		cc := s.dial(t)
		for _, tc := range []struct {
			name, method string
			req          func(key string) []byte
		}{
			{"wait", wait, func(key string) []byte { return []byte(key) }},
			{"receive", sum, func(string) []byte { return []byte("m") }},
			{"hold", hold, func(string) []byte { return []byte("m") }},
			{"send", count, func(key string) []byte { return countRequest(1000, 100_000, key) }},
		} {
			ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(within(t), "key", tc.name))
			st, err := stream(ctx, cc, tc.method)
			if err != nil {
				t.Fatal(err)
			}
			if err := st.send(tc.req(tc.name)); err != nil {
				t.Fatal(err)
			}
			if tc.method == wait || tc.method == count {
				_ = st.CloseSend()
			}
			call := s.svc.call(t, tc.name)
			cancel()
			if err := call.ends(t); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the handler's context ends by %v", tc.name, err)
			}
		}
	})
}

// A client that disconnects ends the contexts of all its handlers, however the
// connection ends, and those of no other.
func TestDisconnect(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		other := s.client(t)
		kept := other.start(wait, []byte("other"))
		for name, hang := range map[string]func(c *client){
			"close": func(c *client) { c.conn.Close() },
			"reset": func(c *client) { _ = c.conn.(*net.TCPConn).SetLinger(0); c.conn.Close() },
			"half":  func(c *client) { _ = c.conn.(*net.TCPConn).CloseWrite() },
			"frame": func(c *client) { c.write([]byte{0, 0, 100, 0, 0, 0}); _ = c.conn.(*net.TCPConn).CloseWrite() },
		} {
			c := s.client(t)
			c.start(wait, []byte(name+" wait"))
			c.open(hold, field{Name: "key", Value: name + " hold"})
			c.open(sum, field{Name: "key", Value: name + " sum"})
			c.start(count, countRequest(100, 100_000, name+" count"))
			calls := []*call{s.svc.call(t, name+" wait"), s.svc.call(t, name+" hold"), s.svc.call(t, name+" sum"), s.svc.call(t, name+" count")}
			hang(c)
			for i, call := range calls {
				if err := call.ends(t); !errors.Is(err, context.Canceled) {
					t.Errorf("%s: the context of handler %d ends by %v", name, i, err)
				}
			}
		}
		s.svc.call(t, "other").release()
		other.done(kept)
		other.ok(kept, []byte("other"))
	})
}

// A message compressed by gzip is read, and answered by one. This wants a codec
// that the transport decompresses for.
func TestGzip(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		cc := s.dial(t)
		m := bytes.Repeat([]byte("again and again "), 10_000)
		if got, err := invoke(within(t), cc, echo, m, grpc.UseCompressor(gzip.Name)); err != nil || !bytes.Equal(got, m) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		st, err := stream(within(t), cc, chat, grpc.UseCompressor(gzip.Name))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			_ = st.send(m)
			if got, err := st.recv(); err != nil || !bytes.Equal(got, m) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}
		_ = st.CloseSend()
		// An answer of 160,000 bytes takes few on the wire.
		c := s.client(t)
		var z bytes.Buffer
		w, err := gzipCompressor().Compress(&z)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(m)
		_ = w.Close()
		a := c.open(echo, field{Name: "grpc-encoding", Value: "gzip"}, field{Name: "grpc-accept-encoding", Value: "identity,gzip"})
		c.send(a, flagged(1, uint32(z.Len()), z.Bytes()), true)
		c.done(a)
		if a.code() != codes.OK || get(a.headers, "grpc-encoding") != "gzip" || len(a.data) < 5 || a.data[0] != 1 || len(a.data) > len(m)/10 {
			t.Errorf("%v", a)
		}
		// What is not known is refused, and the client told what is.
		a = c.open(echo, field{Name: "grpc-encoding", Value: "nonsense"})
		c.send(a, flagged(1, 5, []byte("12345")), true)
		c.status(a, codes.Unimplemented)
		// A bomb is refused at the limit.
		z.Reset()
		if w, err = gzipCompressor().Compress(&z); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(make([]byte, 17<<20))
		_ = w.Close()
		a = c.open(echo, field{Name: "grpc-encoding", Value: "gzip"})
		c.send(a, flagged(1, uint32(z.Len()), z.Bytes()), true)
		c.status(a, codes.ResourceExhausted)
		a = c.open(echo, field{Name: "grpc-encoding", Value: "gzip"})
		c.send(a, flagged(1, 5, []byte("12345")), true)
		c.status(a, codes.Internal)
		c.alive()
	})
}

// Handlers see the address of their client, and their own server's.
func TestPeer(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		var p *peer.Peer
		var method string
		hook := func(ctx context.Context) error {
			p, _ = peer.FromContext(ctx)
			method, _ = grpc.Method(ctx)
			return nil
		}
		s.svc.hook.Store(&hook)
		c := s.client(t)
		c.alive()
		if p == nil || p.Addr.String() != c.conn.LocalAddr().String() || p.LocalAddr.String() != s.addr || p.AuthInfo != nil {
			t.Errorf("peer %v", p)
		}
		if method != echo {
			t.Errorf("method %q", method)
		}
	})
}

// SetHeader adds up until headers are sent, SendHeader sends them before any
// message, and both fail then.
func TestHeaders(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		for _, send := range []bool{false, true} {
			var late error
			sent, release := make(chan struct{}), make(chan struct{})
			hook := func(ctx context.Context) error {
				for _, v := range []string{"1", "2"} {
					if err := grpc.SetHeader(ctx, metadata.Pairs("set", v)); err != nil {
						return err
					}
					if err := grpc.SetTrailer(ctx, metadata.Pairs("trail", v)); err != nil {
						return err
					}
				}
				if send {
					if err := grpc.SendHeader(ctx, metadata.Pairs("sent", "3")); err != nil {
						return err
					}
					if grpc.SetHeader(ctx, metadata.Pairs("late", "4")) == nil || grpc.SendHeader(ctx, metadata.Pairs("late", "5")) == nil {
						late = errors.New("headers may be set after they are sent")
					}
					close(sent)
					<-release
				}
				return nil
			}
			s.svc.hook.Store(&hook)
			c := s.client(t)
			a := c.start(echo, []byte("m"))
			if send {
				c.wait("headers", func() bool { return a.headers != nil })
				if !happens(sent) || a.frames > 0 || a.ended {
					t.Errorf("%v", a)
				}
				close(release)
			}
			c.done(a)
			// The handler's echo sets no header of its own then: it has none to set.
			c.ok(a, []byte("m"))
			if late != nil {
				t.Error(late)
			}
			if got := values(a.headers, "set"); !slices.Equal(got, []string{"1", "2"}) {
				t.Errorf("headers %q", got)
			}
			if got := values(a.headers, "sent"); (len(got) == 1) != send {
				t.Errorf("sent headers %q", got)
			}
			if got := values(a.trailers, "trail"); !slices.Equal(got, []string{"1", "2"}) {
				t.Errorf("trailers %q", got)
			}
			if get(a.headers, "late") != "" {
				t.Errorf("%v", a)
			}
		}
	})
}

// GracefulStop tells clients twice: first to make their calls elsewhere, then
// which streams are the last. Calls under way finish, and those begun in between.
func TestGracefulStop(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		idle := s.client(t)
		c := s.client(t)
		c.rude = true
		first := c.start(wait, []byte("first"))
		s.svc.call(t, "first")
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.server.GracefulStop()
		}()
		c.wait("the first GOAWAY", func() bool { return len(c.goaways) == 1 })
		if g := c.goaways[0]; g.last != 1<<31-1 || g.code != 0 {
			t.Errorf("GOAWAY %+v", g)
		}
		second := c.start(wait, []byte("second"))
		s.svc.call(t, "second")
		c.wait("a PING", func() bool { return len(c.pings) > 0 })
		c.raw(6, 1, 0, c.pings[0][:])
		c.wait("the second GOAWAY", func() bool { return len(c.goaways) == 2 })
		if g := c.goaways[1]; g.last != second.id || g.code != 0 {
			t.Errorf("GOAWAY %+v", g)
		}
		late := c.start(wait, []byte("late"))
		c.sync()
		if s.svc.knows("late") || late.ended {
			t.Errorf("a stream after the last is served: %v", late)
		}
		select {
		case <-stopped:
			t.Error("GracefulStop does not wait for calls")
		default:
		}
		s.svc.call(t, "first").release()
		c.done(first)
		c.ok(first, []byte("first"))
		s.svc.call(t, "second").release()
		c.done(second)
		c.ok(second, []byte("second"))
		c.hungUpOn()
		idle.wait("GOAWAY on the idle connection", func() bool { return len(idle.goaways) == 2 })
		idle.hungUpOn()
		if !happens(stopped) {
			t.Fatal("GracefulStop does not return")
		}
		if conn, err := net.Dial("tcp", s.addr); err == nil {
			conn.Close()
			t.Error("the listener is open")
		}
	})
}

// While a server stops gracefully, the official client finishes its calls there
// and makes new ones elsewhere. None fails.
func TestGracefulStopMovesClients(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			one, two := start(t, k, config{}), start(t, k, config{})
			r := manual.NewBuilderWithScheme("both")
			r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: one.addr}, {Addr: two.addr}}})
			cc := dial(t, "both:///", grpc.WithResolvers(r))
			ctx := within(t)
			errs := make(chan error, 1)
			go func() {
				_, err := invoke(ctx, cc, wait, []byte("held"))
				errs <- err
			}()
			held := one.svc.call(t, "held")
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				one.server.GracefulStop()
			}()
			for two.svc.begun.Load() < 100 {
				if _, err := invoke(ctx, cc, echo, []byte("m"), grpc.WaitForReady(true)); err != nil {
					t.Fatal(err)
				}
			}
			held.release()
			if err := <-errs; err != nil {
				t.Error(err)
			}
			if !happens(stopped) {
				t.Fatal("GracefulStop does not return")
			}
		})
	}
}

// Stop cancels handlers, and returns after the last of them.
func TestStop(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		release := make(chan struct{})
		begun := make(chan struct{})
		hook := func(ctx context.Context) error {
			close(begun)
			<-ctx.Done()
			<-release
			return ctx.Err()
		}
		s.svc.hook.Store(&hook)
		c := s.client(t)
		c.start(echo, nil)
		c.start(count, countRequest(1000, 100_000, "count"))
		c.start(wait, []byte("wait"))
		c.open(hold, field{Name: "key", Value: "hold"})
		if !happens(begun) {
			t.Fatal("the handler does not begin")
		}
		calls := []*call{s.svc.call(t, "count"), s.svc.call(t, "wait"), s.svc.call(t, "hold")}
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.server.Stop()
		}()
		for _, call := range calls {
			if err := call.ends(t); !errors.Is(err, context.Canceled) {
				t.Errorf("the handler's context ends by %v", err)
			}
		}
		c.wait("the end of the connection", func() bool { return c.closed != nil })
		select {
		case <-stopped:
			t.Error("Stop returns before the last handler")
		default:
		}
		close(release)
		if !happens(stopped) {
			t.Fatal("Stop does not return")
		}
	})
}

// Stop ends a GracefulStop that waits for a call.
func TestStopAfterGracefulStop(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		c := s.client(t)
		c.start(wait, []byte("wait"))
		call := s.svc.call(t, "wait")
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.server.GracefulStop()
		}()
		c.wait("GOAWAY", func() bool { return len(c.goaways) == 2 })
		s.stop(t)
		if err := call.ends(t); !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's context ends by %v", err)
		}
		if !happens(stopped) {
			t.Fatal("GracefulStop does not return")
		}
	})
}

// A server serves several listeners, and none after it has stopped.
func TestListeners(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.server.Serve(l) }()
		for _, addr := range []string{s.addr, l.Addr().String()} {
			if _, err := invoke(within(t), dial(t, addr), echo, nil); err != nil {
				t.Errorf("%s: %v", addr, err)
			}
		}
		s.stop(t)
		if err := <-served; err != nil {
			t.Error(err)
		}
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		again := make(chan struct{})
		go func() {
			defer close(again)
			_ = s.server.Serve(l)
		}()
		if !happens(again) {
			t.Error("Serve serves after Stop")
		}
		l.Close()
	})
}

// The health service and reflection work as with grpc-go.
func TestRegisteredServices(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			h := health.NewServer()
			h.SetServingStatus(serviceName, grpc_health_v1.HealthCheckResponse_SERVING)
			s := start(t, k, config{}, func(s server) {
				grpc_health_v1.RegisterHealthServer(s, h)
				reflection.Register(s.(reflection.GRPCServer))
			})
			cc := s.dial(t)
			c := grpc_health_v1.NewHealthClient(cc)
			r, err := c.Check(within(t), &grpc_health_v1.HealthCheckRequest{Service: serviceName})
			if err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
				t.Errorf("%v, %v", r, err)
			}
			if _, err := c.Check(within(t), &grpc_health_v1.HealthCheckRequest{Service: "nothing"}); status.Code(err) != codes.NotFound {
				t.Error(err)
			}
			ctx, cancel := context.WithCancel(within(t))
			defer cancel()
			w, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{Service: serviceName})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING} {
				if r, err := w.Recv(); err != nil || r.Status != want {
					t.Errorf("%v, %v", r, err)
				}
				h.SetServingStatus(serviceName, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			}
			info, err := grpc_reflection_v1.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
			if err != nil {
				t.Fatal(err)
			}
			_ = info.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
			list, err := info.Recv()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range list.GetListServicesResponse().GetService() {
				names = append(names, s.Name)
			}
			for _, want := range []string{serviceName, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} {
				if !slices.Contains(names, want) {
					t.Errorf("reflection lists %q", names)
				}
			}
			_ = info.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "grpc.health.v1.Health"}})
			if file, err := info.Recv(); err != nil || len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
				t.Errorf("%v, %v", file, err)
			}
			_ = info.CloseSend()
			methods := s.server.GetServiceInfo()[serviceName]
			if methods.Metadata != "transport_test" || len(methods.Methods) != 7 {
				t.Errorf("GetServiceInfo: %+v", methods)
			}
			for _, m := range methods.Methods {
				if m.IsServerStream != (m.Name == "Count" || m.Name == "Chat" || m.Name == "Hold") || m.IsClientStream != (m.Name == "Sum" || m.Name == "Chat" || m.Name == "Hold") {
					t.Errorf("GetServiceInfo: %+v", m)
				}
			}
		})
	}
}

// Interceptors are around the handlers of their kind, and see its method.
func TestInterceptors(t *testing.T) {
	var mu sync.Mutex
	var saw []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		saw = append(saw, s)
	}
	eachServer(t, config{
		unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			note(fmt.Sprintf("unary %s %v", info.FullMethod, info.Server != nil))
			resp, err := h(ctx, req)
			if err == nil && len(*req.(*[]byte)) == 0 {
				err = status.Error(codes.DataLoss, "empty")
			}
			return resp, err
		},
		stream: func(srv any, st grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			note(fmt.Sprintf("stream %s %v %v %v", info.FullMethod, srv != nil, info.IsClientStream, info.IsServerStream))
			if err := h(srv, st); err != nil {
				return err
			}
			return status.Error(codes.OutOfRange, "intercepted")
		},
	}, func(t *testing.T, s *fixture) {
		saw = nil
		c := s.client(t)
		c.ok(c.call(echo, []byte("m")), []byte("m"))
		c.status(c.call(echo, nil), codes.DataLoss)
		c.status(c.call(count, countRequest(1, 1, "")), codes.OutOfRange)
		c.status(c.call(sum, nil), codes.OutOfRange)
		want := []string{"unary " + echo + " true", "unary " + echo + " true", "stream " + count + " true false true", "stream " + sum + " true true false"}
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(saw, want) {
			t.Errorf("the interceptors saw %q", saw)
		}
	})
}

// Admission sees each stream's method and headers. Its context is the handler's,
// its error the caller's, before any handler or interceptor runs.
func TestAdmit(t *testing.T) {
	type key struct{}
	eachServer(t, config{admit: func(ctx context.Context, info *tap.Info) (context.Context, error) {
		switch info.Header.Get("admit") {
		case nil:
			return ctx, nil
		}
		switch v := info.Header.Get("admit")[0]; v {
		case "no":
			st, err := status.New(codes.ResourceExhausted, "full, ä").WithDetails(&errdetails.ErrorInfo{Reason: "FULL"})
			if err != nil {
				return nil, err
			}
			return nil, st.Err()
		case "plain":
			return nil, errors.New("plain")
		default:
			return context.WithValue(ctx, key{}, info.FullMethodName+" "+v), nil
		}
	}}, func(t *testing.T, s *fixture) {
		var got any
		hook := func(ctx context.Context) error { got = ctx.Value(key{}); return nil }
		s.svc.hook.Store(&hook)
		cc := s.dial(t)
		call := func(v string) error {
			_, err := invoke(metadata.AppendToOutgoingContext(within(t), "admit", v), cc, echo, []byte("m"))
			return err
		}
		if err := call("yes"); err != nil || got != echo+" yes" {
			t.Errorf("%v, %v", got, err)
		}
		began := s.svc.begun.Load()
		st := status.Convert(call("no"))
		if st.Code() != codes.ResourceExhausted || st.Message() != "full, ä" || len(st.Details()) != 1 {
			t.Errorf("%v %v", st, st.Details())
		}
		if err := call("plain"); status.Code(err) != codes.PermissionDenied {
			t.Error(err)
		}
		if n := s.svc.begun.Load(); n != began {
			t.Errorf("%d handlers ran that were not admitted", n-began)
		}
	})
}

// Messages over the limits are RESOURCE_EXHAUSTED. One over the limit of
// requests is refused by its header, before its bytes are there.
func TestMessageLimits(t *testing.T) {
	eachServer(t, config{maxRecv: 100_000, maxSend: 50_000}, func(t *testing.T, s *fixture) {
		cc := s.dial(t)
		for size, want := range map[int]codes.Code{50_000: codes.OK, 50_001: codes.ResourceExhausted, 100_000: codes.ResourceExhausted, 100_001: codes.ResourceExhausted} {
			if _, err := invoke(within(t), cc, echo, counted(0, size)); status.Code(err) != want {
				t.Errorf("echo of %d bytes: %v", size, err)
			}
		}
		c := s.client(t)
		began := s.svc.begun.Load()
		for _, size := range []uint32{100_001, 1 << 31, 1<<32 - 1} {
			a := c.open(echo)
			c.send(a, flagged(0, size, []byte("a")), false)
			c.status(a, codes.ResourceExhausted)
		}
		if n := s.svc.begun.Load(); n != began {
			t.Errorf("%d handlers ran", n-began)
		}
		c.ok(c.call(sum, counted(1, 100_000)), digestOf(counted(1, 100_000)))
		c.alive()
	})
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"x.test"}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// Calls pass over TLS, whose properties handlers see.
func TestTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	eachServer(t, config{creds: credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})}, func(t *testing.T, s *fixture) {
		var p *peer.Peer
		hook := func(ctx context.Context) error { p, _ = peer.FromContext(ctx); return nil }
		s.svc.hook.Store(&hook)
		cc := s.dial(t, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "x.test"})))
		for _, size := range []int{0, 100, 3 << 20} {
			if got, err := invoke(within(t), cc, echo, counted(1, size)); err != nil || len(got) != size {
				t.Errorf("echo of %d bytes: %d, %v", size, len(got), err)
			}
		}
		if p == nil {
			t.Fatal("no peer")
		}
		if info, ok := p.AuthInfo.(credentials.TLSInfo); !ok || info.State.NegotiatedProtocol != "h2" || info.SecurityLevel != credentials.PrivacyAndIntegrity {
			t.Errorf("peer %v", p)
		}
		// Plain text and other protocols are hung up on.
		c := s.silent(t)
		c.write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		c.ends()
		conn := tls.Client(s.connect(t), &tls.Config{RootCAs: pool, ServerName: "x.test", NextProtos: []string{"http/1.1"}})
		if err := conn.HandshakeContext(within(t)); err == nil {
			c := newClient(t, conn)
			c.ends()
		}
	})
}

// A client that does not finish the handshake, of TLS or HTTP/2, is hung up on
// after HandshakeTimeout, and keeps none from being served meanwhile.
func TestHandshakeTimeout(t *testing.T) {
	cert, pool := selfSigned(t)
	for _, secure := range []bool{false, true} {
		c := config{handshake: 300 * time.Millisecond}
		starts := map[string][]byte{"nothing": nil, "half a preface": []byte("PRI * HTTP"), "no SETTINGS": []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "half of SETTINGS": []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04")}
		if secure {
			c.creds = credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})
			starts = map[string][]byte{"nothing": nil, "half a hello": {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}}
		}
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			eachServer(t, c, func(t *testing.T, s *fixture) {
				var silent []*client
				for _, b := range starts {
					c := s.silent(t)
					c.write(b)
					silent = append(silent, c)
				}
				creds := []grpc.DialOption{}
				if secure {
					creds = append(creds, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "x.test"})))
				}
				cc := s.dial(t, creds...)
				// On a busy machine the handshake of an honest client may take too long, too.
				eventually(t, "a canary is served", func() bool {
					_, err := invoke(within(t), cc, echo, nil, grpc.WaitForReady(true))
					return err == nil
				})
				for _, c := range silent {
					c.ends()
				}
				// The timeout is not that of the connection.
				canary{cc}.sing(t)
			})
		})
	}
}

// ends waits for the end of the connection, whatever is said before.
func (c *client) ends() {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(bound))
	if _, err := io.Copy(io.Discard, c.conn); err != nil {
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			c.t.Errorf("the connection does not end within %v", bound)
		}
	}
}

func gzipCompressor() encoding.Compressor { return encoding.GetCompressor(gzip.Name) }
