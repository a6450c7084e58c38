package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"

	"github.com/trestledb/trestle/gateway/transport"
)

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// stall is for how long a server that reads nothing is taken to have stopped.
const stall = time.Second / 5

// flood sends a chunk of frames again and again until total bytes are sent, the
// server hangs up, or it reads nothing for as long as patience. It returns the
// bytes sent.
func (c *client) flood(chunk []byte, total int, patience time.Duration) (sent int) {
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(256 << 10)
	}
	for sent < total {
		at := sent % len(chunk)
		_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
		n, err := c.conn.Write(chunk[at:min(at+64<<10, len(chunk))])
		sent += n
		if err != nil {
			break
		}
	}
	return sent
}

// drain throws away what the server sends until the connection ends.
func (c *client) drain() {
	_ = c.conn.SetReadDeadline(time.Time{})
	go func() { _, _ = io.Copy(io.Discard, c.conn) }()
}

// requests returns the frames of n calls that are opened and ended by end.
func (c *client) requests(n int, path string, end func(b *bytes.Buffer, id uint32), more ...field) []byte {
	var b bytes.Buffer
	for range n {
		b.Write(frame(http2.FrameHeaders, endHeaders, c.next, c.encode(request(path, more...))))
		end(&b, c.next)
		c.next += 2
	}
	return b.Bytes()
}

// Streams that are opened and reset at once take no more handlers at a time than
// there may be streams.
func TestRapidReset(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		other := s.canary(t)
		c := s.client(t)
		c.drain()
		before := heap()
		sent := 0
		for range 100 {
			b := c.requests(1000, hold, func(b *bytes.Buffer, id uint32) { b.Write(frame(http2.FrameRSTStream, 0, id, uint32s(8))) })
			if c.flood(b, len(b), 5*time.Second) < len(b) {
				break // The server may have had enough.
			}
			sent += 1000
		}
		other.sing(t)
		if grown := heap() - before; grown > 16<<20 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
		c.conn.Close()
		eventually(t, "all handlers end", func() bool { return s.svc.running.Load() == 0 })
		if n := s.svc.peak.Load(); n > 100+1 {
			t.Errorf("%d handlers at a time", n)
		}
		t.Logf("%d streams were reset, %d handlers ran, %d at a time", sent, s.svc.begun.Load(), s.svc.peak.Load())
	})
}

// Handlers that go on after their stream was reset still count.
func TestRapidResetOfStubbornHandlers(t *testing.T) {
	eachServer(t, config{maxStreams: 20}, func(t *testing.T, s *fixture) {
		other := s.canary(t)
		other.sing(t)
		release := make(chan struct{})
		hook := func(ctx context.Context) error {
			if keyOf(ctx) != "" {
				<-release
			}
			return nil
		}
		s.svc.hook.Store(&hook)
		c := s.client(t)
		c.drain()
		for range 10 {
			b := c.requests(1000, echo, func(b *bytes.Buffer, id uint32) {
				b.Write(frame(http2.FrameData, endStream, id, message(nil)))
				b.Write(frame(http2.FrameRSTStream, 0, id, uint32s(8)))
			}, field{Name: "key", Value: "stubborn"})
			if c.flood(b, len(b), stall) < len(b) {
				break
			}
		}
		other.sing(t)
		if n := s.svc.peak.Load(); n > 20+1 {
			t.Errorf("%d handlers at a time", n)
		}
		close(release)
		c.conn.Close()
		eventually(t, "all handlers end", func() bool { return s.svc.running.Load() == 0 })
	})
}

// A flood is what a client sends without end.
type flood struct {
	name    string
	onlyOwn string
	chunk   func(c *client, s *fixture) []byte
	// answered floods want an answer to each frame, so that a server whose answers
	// are not read must stop to read.
	answered bool
	total    int // bytes; 0 for one chunk
}

func repeated(b []byte) []byte { return bytes.Repeat(b, max(1, 16<<10/len(b))) }

// runFloods checks that floods take bounded memory and few handlers, and that
// other clients are served meanwhile. If unread, the client reads nothing of the
// much that the server has to send.
func runFloods(t *testing.T, unread bool, floods []flood) {
	for _, fl := range floods {
		t.Run(fl.name, func(t *testing.T) {
			eachServer(t, config{socketBuffer: 128 << 10}, func(t *testing.T, s *fixture) {
				if fl.onlyOwn != "" && !s.kind.own {
					t.Skip("only own: " + fl.onlyOwn)
				}
				limit := int64(16 << 20)
				if !s.kind.own {
					limit = 64 << 20 // grpc-go queues 10,000 frames, and streams with them.
				}
				other := s.canary(t)
				c := s.client(t, http2.Setting{ID: settingInit, Val: 1<<31 - 1})
				_ = c.conn.(*net.TCPConn).SetReadBuffer(256 << 10)
				if unread {
					// Something to write fills the socket, which is not read.
					c.grant(0, 1<<31-1-defaultWindow)
					c.start(count, countRequest(1<<20, 10_000, "unread"))
					s.svc.call(t, "unread")
				} else {
					c.drain()
				}
				chunk := fl.chunk(c, s)
				other.sing(t)
				before := heap()
				if fl.total == 0 {
					fl.total = len(chunk)
				}
				sent := c.flood(chunk, fl.total, stall)
				grown := heap() - before
				runtime.KeepAlive(chunk)
				other.sing(t)
				t.Logf("%d bytes sent, the heap grew by %d bytes", sent, grown)
				if grown > limit {
					t.Errorf("the heap grew by %d bytes", grown)
				}
				if fl.answered && unread && sent >= fl.total {
					t.Errorf("the server read %d bytes, and did not get rid of an answer", sent)
				}
				if n := s.svc.peak.Load(); n > 101 {
					t.Errorf("%d handlers at a time", n)
				}
				c.conn.Close()
			})
		})
	}
}

// Frames without end take bounded memory, whether the server answers them,
// ignores them or hangs up.
func TestFloods(t *testing.T) {
	same := func(typ http2.FrameType, flags http2.Flags, id uint32, payload []byte) func(*client, *fixture) []byte {
		return func(*client, *fixture) []byte { return repeated(frame(typ, flags, id, payload)) }
	}
	held := func(flags http2.Flags, payload []byte) func(*client, *fixture) []byte {
		return func(c *client, s *fixture) []byte {
			a := c.open(hold, field{Name: "key", Value: "held"})
			s.svc.call(c.t, "held")
			return repeated(frame(http2.FrameData, flags, a.id, payload))
		}
	}
	const megabytes = 1 << 20
	runFloods(t, false, []flood{
		{"SETTINGS", "", same(http2.FrameSettings, 0, 0, nil), true, 4 * megabytes},
		{"SETTINGS of windows", "", same(http2.FrameSettings, 0, 0, append(setting(settingInit, 0), setting(settingInit, 1<<31-1)...)), true, 4 * megabytes},
		{"SETTINGS of tables", "", same(http2.FrameSettings, 0, 0, append(setting(settingTable, 0), setting(settingTable, 1<<30)...)), true, 4 * megabytes},
		{"SETTINGS, acknowledged", "", same(http2.FrameSettings, ack, 0, nil), false, 4 * megabytes},
		{"PING", "", same(http2.FramePing, 0, 0, make([]byte, 8)), true, 4 * megabytes},
		{"PING, answered", "", same(http2.FramePing, ack, 0, make([]byte, 8)), false, 4 * megabytes},
		{"WINDOW_UPDATE", "", same(http2.FrameWindowUpdate, 0, 0, uint32s(1)), false, 4 * megabytes},
		{"PRIORITY", "", func(*client, *fixture) []byte {
			var b []byte
			for id := range uint32(1000) {
				b = append(b, frame(http2.FramePriority, 0, 2*id+1, []byte{0, 0, 0, 0, 1})...)
			}
			return b
		}, false, 4 * megabytes},
		{"RST_STREAM on idle streams", "", func(*client, *fixture) []byte {
			var b []byte
			for id := range uint32(1000) {
				b = append(b, frame(http2.FrameRSTStream, 0, 2*id+1, uint32s(8))...)
			}
			return b
		}, false, 4 * megabytes},
		{"RST_STREAM on a closed stream", "", func(c *client, s *fixture) []byte {
			a := c.open(hold, field{Name: "key", Value: "closed"})
			s.svc.call(c.t, "closed")
			return repeated(frame(http2.FrameRSTStream, 0, a.id, uint32s(8)))
		}, false, 4 * megabytes},
		{"unknown frames", "", same(0xbb, 0, 1, make([]byte, 100)), false, 16 * megabytes},
		{"GOAWAY", "", same(http2.FrameGoAway, 0, 0, make([]byte, 100)), false, 8 * megabytes},
		{"empty DATA", "", held(0, nil), false, 4 * megabytes},
		{"padded DATA", "", held(http2.FlagDataPadded, append([]byte{10}, make([]byte, 10)...)), false, 4 * megabytes},
		{"empty messages", "", held(0, message(nil)), false, 4 * megabytes},
		{"CONTINUATION", "", func(c *client, _ *fixture) []byte {
			c.raw(http2.FrameHeaders, 0, 1, c.encode(request(echo)))
			return repeated(frame(http2.FrameContinuation, 0, 1, append([]byte{0, 1, 'x', 100}, make([]byte, 100)...)))
		}, false, 16 * megabytes},
		{"CONTINUATION of one entry of the table", "", func(c *client, _ *fixture) []byte {
			c.raw(http2.FrameHeaders, 0, 1, c.encode(request(echo, field{Name: "x", Value: strings.Repeat("x", 4000)})))
			return repeated(frame(http2.FrameContinuation, 0, 1, bytes.Repeat([]byte{0x80 | 62}, 100)))
		}, false, 4 * megabytes},
		{"empty CONTINUATION", "", func(c *client, _ *fixture) []byte {
			c.raw(http2.FrameHeaders, 0, 1, c.encode(request(echo)))
			return repeated(frame(http2.FrameContinuation, 0, 1, nil))
		}, false, 4 * megabytes},
		{"CONTINUATION within a field", "", func(c *client, _ *fixture) []byte {
			c.raw(http2.FrameHeaders, 0, 1, append(c.encode(request(echo)), 0, 1, 'x', 0x7f, 0xff, 0xff, 0x7f))
			return repeated(frame(http2.FrameContinuation, 0, 1, make([]byte, 1000)))
		}, false, 16 * megabytes},
	})
}

// One byte per frame, up to the windows of all streams, takes the windows' bytes
// many times over if each frame is kept on its own.
func TestFloodOfSmallFrames(t *testing.T) {
	eachServer(t, config{streamWindow: 64 << 10, connWindow: 8 << 20}, func(t *testing.T, s *fixture) {
		other := s.canary(t)
		other.sing(t)
		c := s.client(t)
		before := heap()
		var calls []*call
		for i := range 20 {
			key := fmt.Sprint("small ", i)
			a := c.open(hold, field{Name: "key", Value: key})
			calls = append(calls, s.svc.call(t, key))
			b := bytes.Repeat(frame(http2.FrameData, 0, a.id, []byte{0}), 1000)
			for range 60 {
				c.write(b)
			}
			c.settle()
			if c.closed != nil {
				break
			}
		}
		grown := heap() - before
		other.sing(t)
		t.Logf("the heap grew by %d bytes for %d bytes", grown, 20*60_000)
		if limit := int64(20 << 20); grown > limit {
			t.Errorf("the heap grew by %d bytes", grown)
		}
		c.conn.Close()
		for _, call := range calls {
			_ = call.ends(t)
		}
	})
}

// A server whose answers are not read buffers no more than a bounded number of
// them, whatever the client sends meanwhile.
func TestFloodsUnread(t *testing.T) {
	same := func(typ http2.FrameType, flags http2.Flags, id uint32, payload []byte) func(*client, *fixture) []byte {
		return func(*client, *fixture) []byte { return repeated(frame(typ, flags, id, payload)) }
	}
	calls := func(path string, fields func() []field) func(*client, *fixture) []byte {
		return func(c *client, _ *fixture) []byte {
			var b bytes.Buffer
			for range 60_000 {
				b.Write(frame(http2.FrameHeaders, endHeaders|endStream, c.next, c.encode(fields())))
				c.next += 2
			}
			return b.Bytes()
		}
	}
	const megabytes = 1 << 20
	runFloods(t, true, []flood{
		{"SETTINGS", "", same(http2.FrameSettings, 0, 0, nil), true, 16 * megabytes},
		{"SETTINGS of many", "grpc-go queues thousands of frames, however large, while it cannot write", same(http2.FrameSettings, 0, 0, bytes.Repeat(setting(http2.SettingMaxConcurrentStreams, 1), 1000)), true, 32 * megabytes},
		{"PING", "", same(http2.FramePing, 0, 0, make([]byte, 8)), true, 16 * megabytes},
		{"WINDOW_UPDATE", "", same(http2.FrameWindowUpdate, 0, 1, uint32s(1)), false, 16 * megabytes},
		{"RST_STREAM", "", func(c *client, _ *fixture) []byte {
			a := c.open(prefix + "Nothing")
			return repeated(frame(http2.FrameRSTStream, 0, a.id, uint32s(8)))
		}, false, 16 * megabytes},
		{"WINDOW_UPDATE of 0", "", func(c *client, s *fixture) []byte {
			a := c.open(hold, field{Name: "key", Value: "zero"})
			s.svc.call(c.t, "zero")
			return repeated(frame(http2.FrameWindowUpdate, 0, a.id, uint32s(0)))
		}, true, 16 * megabytes},
		{"requests without content-type", "", calls(echo, func() []field { return without(request(echo), "content-type") }), true, 0},
		{"malformed requests", "", calls(echo, func() []field { return append(request(echo), field{Name: "connection", Value: "x"}) }), true, 0},
		{"requests of unknown methods", "", calls(echo, func() []field { return request(prefix + "Nothing") }), true, 0},
		{"requests without a message", "", calls(echo, func() []field { return request(echo) }), true, 0},
		{"requests and resets", "", func(c *client, _ *fixture) []byte {
			return c.requests(50_000, hold, func(b *bytes.Buffer, id uint32) { b.Write(frame(http2.FrameRSTStream, 0, id, uint32s(8))) })
		}, false, 0},
		{"DATA on a closed stream", "", func(c *client, _ *fixture) []byte {
			a := c.open(prefix + "Nothing")
			return repeated(frame(http2.FrameData, 0, a.id, make([]byte, 100)))
		}, false, 64 * megabytes},
	})
}

// A handler whose answer is not read waits, with few bytes buffered, until the
// client resets the stream.
func TestUnreadAnswer(t *testing.T) {
	for _, tc := range []struct {
		name string
		// socket has the windows open, and the socket unread.
		socket bool
		limit  time.Duration // of the calls
		end    func(c *client, s *fixture, a *answer)
		want   error
	}{
		{"reset, windows are used up", false, 0, func(c *client, _ *fixture, a *answer) {
			c.raw(http2.FrameRSTStream, 0, a.id, uint32s(8))
		}, context.Canceled},
		{"deadline, windows are used up", false, 300 * time.Millisecond, func(*client, *fixture, *answer) {}, context.DeadlineExceeded},
		{"reset, the socket is full", true, 0, func(c *client, _ *fixture, a *answer) {
			c.raw(http2.FrameRSTStream, 0, a.id, uint32s(8))
		}, context.Canceled},
		{"deadline, the socket is full", true, 300 * time.Millisecond, func(*client, *fixture, *answer) {}, context.DeadlineExceeded},
		{"disconnect, the socket is full", true, 0, func(c *client, _ *fixture, _ *answer) { c.conn.Close() }, context.Canceled},
		{"Stop, the socket is full", true, 0, func(c *client, s *fixture, _ *answer) { s.stop(c.t) }, context.Canceled},
		{"Stop after GracefulStop, the socket is full", true, 0, func(c *client, s *fixture, _ *answer) {
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				s.server.GracefulStop()
			}()
			eventually(c.t, "the listener is closed", func() bool {
				conn, err := net.Dial("tcp", s.addr)
				if err == nil {
					conn.Close()
				}
				return err != nil
			})
			s.stop(c.t)
			if !happens(stopped) {
				c.t.Error("GracefulStop does not return")
			}
		}, context.Canceled},
	} {
		timeout := func(d time.Duration) []field {
			if d == 0 {
				return nil
			}
			return []field{{Name: "grpc-timeout", Value: fmt.Sprint(d.Milliseconds(), "m")}}
		}
		t.Run(tc.name, func(t *testing.T) {
			eachServer(t, config{socketBuffer: 128 << 10}, func(t *testing.T, s *fixture) {
				other := s.canary(t)
				other.sing(t)
				before := heap()
				c := s.client(t)
				if tc.socket {
					c.set(http2.Setting{ID: settingInit, Val: 1<<31 - 1})
					c.grant(0, 1<<31-1-defaultWindow)
				}
				var calls []*call
				var first *answer
				for i := range 20 {
					key := fmt.Sprint("unread ", i)
					a := c.start(count, countRequest(1000, 100_000, key), timeout(tc.limit)...)
					for limit := tc.limit; limit > 0 && limit < bound && !s.svc.begins(key, limit); {
						limit *= 2
						c.start(count, countRequest(1000, 100_000, key), timeout(limit)...)
					}
					if i == 0 {
						first = a
					}
					calls = append(calls, s.svc.call(t, key))
				}
				if !tc.socket {
					c.wait("windows to be used up", func() bool { return c.room == 0 })
				}
				other.sing(t)
				if grown := heap() - before; grown > 16<<20 {
					t.Errorf("the heap grew by %d bytes", grown)
				}
				tc.end(c, s, first)
				for i, call := range calls {
					if i > 0 && strings.HasPrefix(tc.name, "reset") {
						break // only the first is reset
					}
					err := call.ends(t)
					// grpc-go may cancel the context before its deadline's timer has run.
					if !errors.Is(err, tc.want) && (s.kind.own || err == nil) {
						t.Errorf("the handler's context ends by %v", err)
					}
				}
				if !strings.HasPrefix(tc.name, "Stop") {
					other.sing(t)
				}
			})
		})
	}
}

// A client that pings more often than it may is told to calm down, and hung up
// on. Calls in between make pings free.
func TestPingStrikes(t *testing.T) {
	for _, permit := range []bool{false, true} {
		eachServer(t, config{enforcement: keepalive.EnforcementPolicy{MinTime: time.Hour, PermitWithoutStream: permit}}, func(t *testing.T, s *fixture) {
			other := s.client(t)
			c := s.client(t)
			for range 10 {
				c.alive()
				c.sync()
				c.sync()
			}
			for range 10 {
				c.raw(http2.FramePing, 0, 0, make([]byte, 8))
			}
			c.wait("GOAWAY", func() bool { return len(c.goaways) > 0 || c.closed != nil })
			c.hungUpOn()
			if len(c.goaways) != 1 || c.goaways[0].code != errCalm || c.goaways[0].text != "too_many_pings" {
				t.Errorf("GOAWAY %+v", c.goaways)
			}
			other.alive()
		})
	}
}

// early connects and makes a call that waits. The call is nil if its handler does not begin
// within d, after which the server may have ended the connection.
func (s *fixture) early(t *testing.T, key string, d time.Duration) (*client, *answer, *call) {
	t.Helper()
	c := s.silent(t)
	c.write([]byte(http2.ClientPreface))
	c.set()
	a := c.start(wait, []byte(key))
	if !s.svc.begins(key, d) {
		return c, a, nil
	}
	return c, a, s.svc.call(t, key)
}

// A connection that reaches its age is ended gracefully, and after the grace by
// force.
func TestMaxConnectionAge(t *testing.T) {
	type aged struct {
		*client
		a          *answer
		call       *call
		began      time.Time
		age, grace time.Duration
	}
	// begin returns a connection that has reached its age with a call under way. On a busy
	// machine that takes more time.
	begin := func(t *testing.T, k kind, key string, grace time.Duration) aged {
		for age := 200 * time.Millisecond; age < 20*time.Second; age, grace = 2*age, 2*grace {
			c := aged{age: age, grace: grace, began: time.Now()}
			s := start(t, k, config{keepalive: keepalive.ServerParameters{MaxConnectionAge: c.age, MaxConnectionAgeGrace: c.grace}})
			c.client, c.a, c.call = s.early(t, key, c.age)
			if c.call == nil {
				continue
			}
			c.wait("two GOAWAY, or the end of the grace", func() bool { return len(c.goaways) == 2 || c.closed != nil })
			if len(c.goaways) < 2 {
				continue
			}
			if c.goaways[0].last != 1<<31-1 || c.goaways[0].code != errNo || c.goaways[1].last != c.a.id || c.goaways[1].code != errNo {
				t.Errorf("GOAWAY %+v", c.goaways)
			}
			if age := time.Since(c.began); age < c.age*3/4 { // The age varies by a tenth.
				t.Errorf("GOAWAY after %v", age)
			}
			return c
		}
		t.Fatalf("%s: the connection is ended at once", key)
		return aged{}
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			done := begin(t, k, "done", time.Minute)
			done.call.release()
			done.done(done.a)
			done.ok(done.a, []byte("done"))
			done.hungUpOn()
			stuck := begin(t, k, "stuck", 400*time.Millisecond)
			if err := stuck.call.ends(t); !errors.Is(err, context.Canceled) {
				t.Errorf("the handler's context ends by %v", err)
			}
			if age := time.Since(stuck.began); age < stuck.age*3/4+stuck.grace*7/8 {
				t.Errorf("the call ended after %v", age)
			}
			stuck.wait("the end of the connection", func() bool { return stuck.closed != nil })
		})
	}
}

// A connection without calls is ended gracefully after some time, one with a
// call is not.
func TestMaxConnectionIdle(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			for limit := 200 * time.Millisecond; limit < bound; limit *= 2 {
				s := start(t, k, config{keepalive: keepalive.ServerParameters{MaxConnectionIdle: limit}})
				busy, a, call := s.early(t, "busy", limit)
				idle, b, short := s.early(t, "idle", limit)
				if call == nil || short == nil {
					continue // the machine is busy
				}
				short.release()
				idle.done(b)
				idle.ok(b, []byte("idle"))
				idle.wait("GOAWAY", func() bool { return len(idle.goaways) == 2 })
				if idle.goaways[0].code != errNo || idle.goaways[1].code != errNo {
					t.Errorf("GOAWAY %+v", idle.goaways)
				}
				idle.hungUpOn()
				call.release()
				busy.done(a)
				busy.ok(a, []byte("busy"))
				busy.wait("GOAWAY", func() bool { return len(busy.goaways) > 0 })
				return
			}
			t.Fatal("no call begins before its connection is idle for too long")
		})
	}
}

// A client that answers no PING is hung up on, also when it reads nothing. One
// that answers is not.
func TestKeepalive(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			for timeout := time.Second; !keptAlive(t, k, timeout); timeout *= 2 {
				if timeout > bound/4 {
					t.Fatalf("a client that answers each PING is hung up on after %v", timeout)
				}
			}
		})
	}
}

// keptAlive reports whether a client that answered each PING as soon as it could, which on a
// busy machine is some time, was kept.
func keptAlive(t *testing.T, k kind, timeout time.Duration) bool {
	s := start(t, k, config{socketBuffer: 128 << 10, keepalive: keepalive.ServerParameters{Time: time.Second, Timeout: timeout}})
	live := s.client(t)
	a := live.start(wait, []byte("live"))
	pinged, over := make(chan struct{}), make(chan struct{})
	defer func() {
		live.conn.Close()
		<-over
	}()
	go func() {
		defer close(over)
		twice := sync.OnceFunc(func() { close(pinged) })
		defer twice()
		for end := time.Now().Add(3 * bound); live.closed == nil && !a.over() && live.read(end); {
			if len(live.pings) == 2 {
				twice()
			}
		}
	}()
	dead := s.client(t)
	dead.rude = true
	dead.start(wait, []byte("dead"))
	full := s.client(t, http2.Setting{ID: settingInit, Val: 1<<31 - 1})
	full.grant(0, 1<<31-1-defaultWindow)
	full.start(count, countRequest(1<<20, 10_000, "full"))
	for _, key := range []string{"dead", "full"} {
		if err := s.svc.call(t, key).ends(t); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the handler's context ends by %v", key, err)
		}
	}
	dead.wait("the end of the connection", func() bool { return dead.closed != nil })
	if len(dead.pings) == 0 {
		t.Error("no PING")
	}
	if !happens(pinged) {
		t.Error("not two PING")
	}
	s.svc.call(t, "live").release()
	<-over
	if live.closed != nil {
		return false
	}
	live.ok(a, []byte("live"))
	return true
}

// Clients that stop in the middle take a bounded number of goroutines each, and
// keep none from being served.
func TestSlowClients(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		other := s.canary(t)
		other.sing(t)
		before, heapBefore := runtime.NumGoroutine(), heap()
		const n = 300
		var b bytes.Buffer
		for _, f := range request(echo) {
			_ = hpack.NewEncoder(&b).WriteField(f)
		}
		headers := frame(http2.FrameHeaders, endHeaders, 1, b.Bytes())
		var conns []*client
		for i := range n {
			c := s.silent(t)
			conns = append(conns, c)
			switch i % 3 {
			case 0:
				c.write([]byte(http2.ClientPreface)[:i%24])
			case 1:
				c.greet()
				c.write(headers[:i%len(headers)])
			case 2:
				c.greet()
				c.write(headers)
				c.write(frame(http2.FrameData, 0, 1, message([]byte("message")))[:9+i%12])
			}
		}
		other.sing(t)
		if grown := runtime.NumGoroutine() - before; grown > n*5 {
			t.Errorf("%d goroutines for %d connections", grown, n)
		}
		grown := heap() - heapBefore
		t.Logf("%d bytes per connection, both ends", grown/n)
		if grown/n > 256<<10 {
			t.Errorf("%d bytes per connection", grown/n)
		}
		for _, c := range conns {
			c.conn.Close()
		}
		eventually(t, "the connections' goroutines end", func() bool { return runtime.NumGoroutine() < before+n/2 })
	})
}

// Clients that do not read hold a bounded number of large buffers, and give them back when
// they leave. Others have their answers meanwhile.
func TestLargeBuffers(t *testing.T) {
	eachServer(t, config{socketBuffer: 64 << 10}, func(t *testing.T, s *fixture) {
		own, ok := s.server.(*transport.Server)
		if !ok {
			return
		}
		before := heap()
		var clients []*client
		var calls []*call
		for i := range 2 * transport.MaxLarge {
			c := s.client(t)
			c.set(http2.Setting{ID: settingInit, Val: 1<<31 - 1})
			c.grant(0, 1<<31-1-defaultWindow)
			key := fmt.Sprint("large ", i)
			c.start(count, countRequest(100, 300_000, key))
			clients, calls = append(clients, c), append(calls, s.svc.call(t, key))
		}
		eventually(t, "all large buffers are lent", func() bool { return own.Lent() == transport.MaxLarge })
		if grown := heap() - before; grown > 64<<20 { // messages of 300 KB among them
			t.Errorf("the heap grew by %d bytes", grown)
		}
		other := s.client(t)
		other.set(http2.Setting{ID: settingInit, Val: 1<<31 - 1})
		other.grant(0, 1<<31-1-defaultWindow)
		a := other.start(count, countRequest(20, 300_000, "other"))
		other.done(a)
		if a.code() != codes.OK {
			t.Errorf("another client: %v", a)
		}
		for _, c := range clients {
			c.conn.Close()
		}
		for _, call := range calls {
			_ = call.ends(t)
		}
		eventually(t, "all are given back", func() bool { return own.Lent() == 0 })
	})
}
