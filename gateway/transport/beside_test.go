package transport_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/trestledb/trestle/gateway/transport"
)

// A connection that is closed while requests are buffered opens no stream for them: nothing would
// end it.
func TestRequestsBehindTheEnd(t *testing.T) {
	for _, k := range kinds {
		if !k.own {
			continue // grpc-go does not close a connection while it asks
		}
		entered, leave := make(chan struct{}), make(chan struct{})
		enter := sync.OnceFunc(func() { close(entered) })
		s := start(t, k, config{admit: func(ctx context.Context, _ *tap.Info) (context.Context, error) {
			enter()
			<-leave
			return ctx, nil
		}})
		c := s.client(t)
		var b bytes.Buffer
		for id := uint32(1); id < 5; id += 2 {
			b.Write(frame(http2.FrameHeaders, endHeaders, id, c.encode(request(wait))))
			b.Write(frame(http2.FrameData, endStream, id, message([]byte("behind the end"))))
		}
		c.write(b.Bytes())
		if !happens(entered) {
			t.Fatal("the request is not admitted")
		}
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.server.Stop()
		}()
		c.ends()
		close(leave)
		if !happens(stopped) {
			t.Error("Stop does not return")
		}
	}
}

// A handler may receive on one goroutine while it sends on another: each gets what it waits for.
func TestSendBesideReceive(t *testing.T) {
	const n, size = 100, 10_000
	both := func(_ any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
		received := make(chan error, 1)
		go func() {
			var m []byte
			received <- ss.RecvMsg(&m)
		}()
		for i := range n {
			m := counted(i, size)
			if err := ss.SendMsg(&m); err != nil {
				return err
			}
		}
		return <-received
	}
	eachServer(t, config{stream: both}, func(t *testing.T, s *fixture) {
		c := s.client(t, http2.Setting{ID: settingInit, Val: 1 << 30})
		a := c.open(chat)
		c.wait("the connection's window to be used", func() bool { return c.room == 0 })
		for range 10 {
			c.grant(0, 10_000)
			c.wait("the connection's window to be used", func() bool { return c.room == 0 })
			c.sync()
		}
		c.grant(0, 1<<30)
		c.wait("all messages", func() bool { return a.flow == n*(size+5) })
		c.send(a, message([]byte("m")), true)
		c.done(a)
		if a.code() != codes.OK {
			t.Errorf("%v", a)
		}
	})
}

// Streams that are reset while they wait for the connection's window leave nothing behind.
func TestResetWaitingForWindow(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		c := s.client(t, http2.Setting{ID: settingInit, Val: 1 << 30})
		c.start(count, countRequest(100, 10_000, ""))
		c.wait("the connection's window to be used", func() bool { return c.room == 0 })
		before := heap()
		for range 4000 {
			// Too large for the header table, so that each stream has bytes of its own.
			a := c.start(count, countRequest(1, 1000, ""), field{Name: "large", Value: strings.Repeat("x", 8<<10)})
			c.wait("headers", func() bool { return a.headers != nil })
			c.raw(http2.FrameRSTStream, 0, a.id, uint32s(8))
			delete(c.answers, a.id)
		}
		c.sync()
		eventually(t, "the handlers end", func() bool { return s.svc.running.Load() == 1 })
		if grown := heap() - before; grown > 16<<20 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
	})
}

// Contexts that were derived from a call's, and canceled, are not kept until the call ends.
func TestDerivedContexts(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		var grown int64
		hook := func(ctx context.Context) error {
			kept, cancel := context.WithCancel(ctx)
			defer cancel()
			before := heap()
			for range 300_000 {
				_, cancel := context.WithCancel(ctx)
				cancel()
			}
			grown = heap() - before
			return kept.Err()
		}
		s.svc.hook.Store(&hook)
		c := s.client(t)
		c.ok(c.call(echo, []byte("m")), []byte("m"))
		if grown > 2<<20 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
	})
}

// A call that is canceled by others than its client before its handler begins is answered.
func TestCanceledBeforeHandler(t *testing.T) {
	streams := make(chan interface{ Cancel() }, 1)
	admit := func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ Cancel() }); ok {
			streams <- s
		}
		return ctx, nil
	}
	for _, k := range kinds {
		if !k.own {
			continue
		}
		s := start(t, k, config{admit: admit})
		c := s.client(t)
		a := c.answer(1)
		m := frame(http2.FrameData, 0, 1, message(nil))
		c.write(append(frame(http2.FrameHeaders, endHeaders, 1, c.encode(request(chat))), m[:10]...))
		(<-streams).Cancel()
		c.write(m[10:])
		c.done(a)
		if a.code() != codes.Canceled {
			t.Errorf("%v", a)
		}
	}
}

// A frame whose payload is on its way does not hold up what came before it.
func TestFrameOnItsWay(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		c := s.client(t)
		m := message([]byte("on its way"))
		data := frame(http2.FrameData, endStream, 1, m)
		rest := len(m) - 3
		var b bytes.Buffer
		b.Write(frame(http2.FramePing, 0, 0, make([]byte, 8)))
		b.Write(frame(http2.FrameHeaders, endHeaders, 1, c.encode(request(wait))))
		c.next = 3
		a := c.answer(1)
		b.Write(data[:len(data)-rest])
		c.write(b.Bytes())
		c.wait("the answer to a PING", func() bool { return len(c.pongs) == 1 })
		c.write(data[len(data)-rest:])
		s.svc.call(t, "on its way").release()
		c.done(a)
		c.ok(a, []byte("on its way"))

		// Nor does it keep a call from its deadline.
		a = c.answer(3)
		b.Reset()
		b.Write(frame(http2.FrameHeaders, endHeaders, 3, c.encode(request(echo, field{Name: "grpc-timeout", Value: "100m"}))))
		b.Write(frame(http2.FrameData, endStream, 3, m)[:12])
		c.write(b.Bytes())
		c.done(a)
		if a.rst == nil && a.code() != codes.DeadlineExceeded {
			t.Errorf("%v", a)
		}
	})
}

// A header block that cannot be read would leave the header table behind the client's.
func TestUnreadableHeaderBlocks(t *testing.T) {
	block := func(c *client) []byte { return c.encode([]field{{Name: "new", Value: "in the table"}}) }
	var cases []protocolCase
	for _, end := range []http2.Flags{endHeaders | endStream, endStream} {
		cases = append(cases, protocolCase{fmt.Sprintf("padding of trailers with flags %x", end), "grpc-go takes no trailers", func(c *client, s *fixture) {
			a := c.open(hold, field{Name: "key", Value: c.t.Name()})
			s.svc.call(c.t, c.t.Name())
			c.raw(http2.FrameHeaders, end|http2.FlagHeadersPadded, a.id, append([]byte{200}, block(c)...))
			c.connError(errProtocol)
		}}, protocolCase{fmt.Sprintf("trailers with flags %x that depend on their own stream", end), "grpc-go takes no trailers", func(c *client, s *fixture) {
			a := c.open(hold, field{Name: "key", Value: c.t.Name()})
			s.svc.call(c.t, c.t.Name())
			c.raw(http2.FrameHeaders, end|http2.FlagHeadersPriority, a.id, append([]byte{0, 0, 0, byte(a.id), 1}, block(c)...))
			c.connError(errProtocol)
		}})
	}
	runCases(t, config{}, cases)
}

// A handler that sets headers after its client is gone learns just that.
func TestSetHeaderAfterReset(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		errs := make(chan error, 1)
		hook := func(ctx context.Context) error {
			<-ctx.Done()
			err := grpc.SetHeader(ctx, failHeader)
			errs <- err
			return err
		}
		s.svc.hook.Store(&hook)
		c := s.client(t)
		a := c.start(echo, nil, field{Name: "key", Value: "set late"})
		s.svc.call(t, "set late")
		c.raw(http2.FrameRSTStream, 0, a.id, uint32s(8))
		if err := <-errs; s.kind.own && status.Code(err) != codes.Canceled || err == nil {
			t.Errorf("the handler learns %v", err)
		}
	})
}

// What a request has received is given back when its connection ends within the request.
func TestRequestCutShort(t *testing.T) {
	p := new(pool)
	s := start(t, kind{name: "own", own: true, make: func(config) server {
		return transport.New(transport.Options{Codec: rawCodec{}, Buffers: p, Log: slog.New(slog.DiscardHandler)})
	}}, config{})
	c := s.client(t)
	b := frame(http2.FrameHeaders, endHeaders, 1, c.encode(request(sum)))
	b = append(b, frame(http2.FrameData, 0, 1, make([]byte, 10_000))...)
	b = append(b, frame(http2.FrameData, http2.FlagDataPadded, 1, []byte{200, 0})...)
	c.write(b)
	c.connError(errProtocol)
	s.stop(t)
	if p.got.Load() != 1 || p.put.Load() != 1 {
		t.Errorf("%d buffers were taken, %d given back", p.got.Load(), p.put.Load())
	}
}

// Small frames and large headers count while there is a stream that has them, however it ends.
func TestMemoryIsCounted(t *testing.T) {
	for name, end := range map[string]func(*client, *fixture, *answer){
		"read": func(c *client, s *fixture, a *answer) {
			s.svc.call(c.t, "counted").release()
			c.raw(http2.FrameData, endStream, a.id, nil)
			c.done(a)
		},
		"reset":           func(c *client, _ *fixture, a *answer) { c.raw(http2.FrameRSTStream, 0, a.id, uint32s(8)) },
		"connection lost": func(c *client, _ *fixture, _ *answer) { c.conn.Close() },
		"connection failed": func(c *client, _ *fixture, _ *answer) {
			c.raw(http2.FrameData, 0, 0, nil)
			c.connError(errProtocol)
		},
		"ended by another caller": func(c *client, s *fixture, a *answer) {
			_ = grpc.ServerTransportStreamFromContext(s.svc.call(c.t, "counted").ctx).(interface{ WriteStatus(*status.Status) error }).WriteStatus(status.New(codes.Aborted, ""))
			c.done(a)
		},
		"refused": func(c *client, _ *fixture, _ *answer) {
			c.done(c.open(hold, field{Name: "refuse", Value: strings.Repeat("x", 8<<10)}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := new(pool)
			var headers atomic.Int64
			s := start(t, kind{name: "own", own: true, make: func(config) server {
				return transport.New(transport.Options{Codec: rawCodec{}, Buffers: p, Log: slog.New(slog.DiscardHandler),
					Account: func(n int64) { headers.Add(n) },
					Admit: func(ctx context.Context, _ string) (context.Context, error) {
						if len(metadata.ValueFromIncomingContext(ctx, "refuse")) > 0 {
							return nil, status.Error(codes.PermissionDenied, "")
						}
						return ctx, nil
					}})
			}}, config{})
			c := s.client(t)
			small := c.open(hold, field{Name: "key", Value: "small"})
			c.raw(http2.FrameData, 0, small.id, message(make([]byte, 500)))
			c.sync()
			if n := headers.Load() + p.got.Load(); n != 0 {
				t.Errorf("%d bytes and buffers of an ordinary request are counted", n)
			}
			a := c.open(hold, field{Name: "key", Value: "counted"}, field{Name: "large", Value: strings.Repeat("x", 8<<10)})
			for b := range slices.Chunk(message(make([]byte, 10_000)), 1000) {
				c.raw(http2.FrameData, 0, a.id, b)
			}
			c.sync()
			if n := headers.Load(); n < 8<<10 || n > 9<<10 {
				t.Errorf("%d bytes of headers are counted, of 8 KiB", n)
			}
			if n := p.got.Load(); n != 3 {
				t.Errorf("%d buffers of the pool have 9 KiB", n)
			}
			end(c, s, a)
			c.conn.Close()
			s.stop(t)
			if n := headers.Load(); n != 0 {
				t.Errorf("%d bytes of headers are counted in the end", n)
			}
			if got, put := p.got.Load(), p.put.Load(); got != put {
				t.Errorf("%d buffers were taken, %d given back", got, put)
			}
		})
	}
}

// A pool counts.
type pool struct{ got, put atomic.Int64 }

func (p *pool) Get(n int) *[]byte {
	p.got.Add(1)
	b := make([]byte, n)
	return &b
}

func (p *pool) Put(*[]byte) { p.put.Add(1) }
