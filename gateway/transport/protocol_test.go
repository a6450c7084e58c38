package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// A protocolCase is what a client does on a fresh connection, and what the
// server must make of it.
type protocolCase struct {
	name string
	// onlyOwn says what grpc-go does instead. Only transport.New runs the case.
	onlyOwn string
	run     func(c *client, s *fixture)
}

// runCases runs cases beside each other against each server, which must serve
// another client after each.
func runCases(t *testing.T, conf config, cases []protocolCase) {
	eachServer(t, conf, func(t *testing.T, s *fixture) {
		other := s.canary(t)
		t.Run("cases", func(t *testing.T) {
			for _, tc := range cases {
				t.Run(tc.name, func(t *testing.T) {
					if tc.onlyOwn != "" && !s.kind.own {
						t.Skip("only own: " + tc.onlyOwn)
					}
					t.Parallel()
					tc.run(s.client(t), s)
					other.sing(t)
				})
			}
		})
	})
}

const (
	errNo        = http2.ErrCodeNo
	errProtocol  = http2.ErrCodeProtocol
	errFlow      = http2.ErrCodeFlowControl
	errClosed    = http2.ErrCodeStreamClosed
	errSize      = http2.ErrCodeFrameSize
	errRefused   = http2.ErrCodeRefusedStream
	errCancel    = http2.ErrCodeCancel
	errHpack     = http2.ErrCodeCompression
	errCalm      = http2.ErrCodeEnhanceYourCalm
	endStream    = http2.FlagDataEndStream
	endHeaders   = http2.FlagHeadersEndHeaders
	ack          = http2.FlagSettingsAck
	settingTable = http2.SettingHeaderTableSize
	settingInit  = http2.SettingInitialWindowSize
)

func setting(id http2.SettingID, v uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, uint16(id)), v)
}

func uint32s(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// A connection that does not begin with the preface and SETTINGS is hung up on.
func TestPreface(t *testing.T) {
	preface := []byte(http2.ClientPreface)
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		for name, b := range map[string][]byte{
			"HTTP/1.1":           []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
			"one letter other":   []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r" + strings.Repeat("x", 100)),
			"zeros":              make([]byte, 100),
			"PING first":         append(slices.Clone(preface), frame(http2.FramePing, 0, 0, make([]byte, 8))...),
			"HEADERS first":      append(slices.Clone(preface), frame(http2.FrameHeaders, endHeaders, 1, []byte{0x82})...),
			"unknown type first": append(slices.Clone(preface), frame(0xa0, 0, 0, nil)...),
			"preface again":      append(slices.Clone(preface), preface...),
			"too long a frame":   append(slices.Clone(preface), 0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0),
		} {
			t.Run(name, func(t *testing.T) {
				c := s.silent(t)
				c.write(b)
				c.ends()
			})
		}
		s.canary(t).sing(t)
	})
}

// Frames that the RFC forbids end the stream or the connection, for the reason
// that it names. Those that it has ignored change nothing.
func TestFrames(t *testing.T) {
	held := func(c *client, s *fixture, key string) (*answer, *call) {
		c.t.Helper()
		a := c.open(hold, field{Name: "key", Value: key})
		return a, s.svc.call(c.t, key)
	}
	waiting := func(c *client, s *fixture, key string) (*answer, *call) {
		c.t.Helper()
		a := c.start(wait, []byte(key))
		return a, s.svc.call(c.t, key)
	}
	finish := func(c *client, a *answer, call *call, want []byte) {
		c.t.Helper()
		call.release()
		c.done(a)
		c.ok(a, want)
	}
	const ignoresUnknown = "grpc-go ignores frames of streams that it does not know"
	runCases(t, config{}, []protocolCase{
		{"a frame larger than announced", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders, 1, make([]byte, c.frameLimit()+1))
			c.connError(errSize)
		}},
		{"a DATA frame larger than announced", "", func(c *client, s *fixture) {
			a, call := held(c, s, "large DATA")
			c.raw(http2.FrameData, 0, a.id, make([]byte, c.frameLimit()+1))
			c.streamOrConnError(a, errSize)
			c.conn.Close()
			_ = call.ends(c.t)
		}},
		{"an unknown frame larger than announced", "", func(c *client, _ *fixture) {
			c.raw(0xa0, 0, 0, make([]byte, c.frameLimit()+1))
			c.connError(errSize)
		}},
		{"a frame as large as announced", "", func(c *client, _ *fixture) {
			c.ok(c.call(echo, make([]byte, maxFrame-5)), make([]byte, maxFrame-5))
			c.raw(0xa0, 0, 0, make([]byte, c.frameLimit()))
			c.alive()
		}},

		// Streams and their states.
		{"HEADERS on stream 0", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders|endStream, 0, c.encode(request(echo)))
			c.connError(errProtocol)
		}},
		{"HEADERS on an even stream", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders|endStream, 2, c.encode(request(echo)))
			c.connError(errProtocol)
		}},
		{"HEADERS on a smaller stream", "", func(c *client, s *fixture) {
			c.next = 7
			c.alive()
			began := s.svc.knows("smaller")
			c.raw(http2.FrameHeaders, endHeaders, 5, c.encode(request(hold, field{Name: "key", Value: "smaller"})))
			c.connError(errProtocol)
			if began || s.svc.knows("smaller") {
				c.t.Error("it is served")
			}
		}},
		{"HEADERS on a closed stream", "", func(c *client, _ *fixture) {
			c.alive()
			c.raw(http2.FrameHeaders, endHeaders|endStream, 1, c.encode(request(echo)))
			c.connError(errProtocol, errClosed)
		}},
		{"HEADERS after END_STREAM", "", func(c *client, s *fixture) {
			a, call := waiting(c, s, "HEADERS after END_STREAM")
			c.raw(http2.FrameHeaders, endHeaders|endStream, a.id, c.encode(request(echo)))
			c.streamOrConnError(a, errClosed, errProtocol)
			_ = call.ends(c.t)
		}},
		{"DATA on stream 0", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameData, 0, 0, []byte("x"))
			c.connError(errProtocol)
		}},
		{"DATA on an idle stream", ignoresUnknown, func(c *client, _ *fixture) {
			c.raw(http2.FrameData, endStream, 1, []byte("x"))
			c.connError(errProtocol)
		}},
		{"DATA on an even stream", ignoresUnknown, func(c *client, _ *fixture) {
			c.raw(http2.FrameData, endStream, 2, []byte("x"))
			c.connError(errProtocol)
		}},
		{"DATA after END_STREAM", "", func(c *client, s *fixture) {
			a, call := waiting(c, s, "DATA after END_STREAM")
			c.raw(http2.FrameData, 0, a.id, message([]byte("more")))
			c.streamOrConnError(a, errClosed)
			if err := call.ends(c.t); err == nil {
				c.t.Error("the handler goes on")
			}
		}},
		{"DATA on a stream that the client reset", "", func(c *client, s *fixture) {
			a, call := held(c, s, "reset by the client")
			c.raw(http2.FrameRSTStream, 0, a.id, uint32s(uint32(errCancel)))
			_ = call.ends(c.t)
			c.raw(http2.FrameData, 0, a.id, []byte("x"))
			// A server that remembers which streams were reset says so. One that does
			// not may ignore it.
			c.settle()
			if a.rst != nil && *a.rst != errClosed {
				c.t.Errorf("%v", a)
			}
		}},
		{"DATA on a stream that the server ended", "", func(c *client, _ *fixture) {
			// Such DATA is under way when the server ends the stream. It counts for the
			// connection's window, which is given back.
			a := c.open(prefix + "Nothing")
			c.status(a, codes.Unimplemented)
			for range 4 * 1 << 20 / maxFrame {
				c.wait("the connection's window", func() bool { return c.window >= maxFrame })
				c.data(a.id, make([]byte, maxFrame), -1, false)
			}
			c.alive()
		}},
		{"trailers", "grpc-go takes the second HEADERS for a stream whose number is too low", func(c *client, s *fixture) {
			a, call := held(c, s, "trailers")
			c.send(a, message([]byte("m")), false)
			c.raw(http2.FrameHeaders, endHeaders|endStream, a.id, c.encode([]field{{Name: "x-trailer", Value: "1"}}))
			finish(c, a, call, digestOf([]byte("m")))
			c.alive()
		}},
		{"trailers that do not end the stream", "", func(c *client, s *fixture) {
			a, call := held(c, s, "trailers without end")
			c.raw(http2.FrameHeaders, endHeaders, a.id, c.encode([]field{{Name: "x-trailer", Value: "1"}}))
			c.streamOrConnError(a, errProtocol)
			_ = call.ends(c.t)
		}},
		{"trailers with pseudo headers", "", func(c *client, s *fixture) {
			a, call := held(c, s, "pseudo trailers")
			c.raw(http2.FrameHeaders, endHeaders|endStream, a.id, c.encode([]field{{Name: ":path", Value: "/x"}}))
			c.streamOrConnError(a, errProtocol)
			_ = call.ends(c.t)
		}},
		{"RST_STREAM on stream 0", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameRSTStream, 0, 0, uint32s(8))
			c.connError(errProtocol)
		}},
		{"RST_STREAM on an idle stream", ignoresUnknown, func(c *client, _ *fixture) {
			c.raw(http2.FrameRSTStream, 0, 1, uint32s(8))
			c.connError(errProtocol)
		}},
		{"RST_STREAM of three bytes", "", func(c *client, s *fixture) {
			a, call := held(c, s, "RST_STREAM of three bytes")
			c.raw(http2.FrameRSTStream, 0, a.id, []byte{0, 0, 8})
			c.connError(errSize)
			_ = call.ends(c.t)
		}},
		{"RST_STREAM on a closed stream", "", func(c *client, _ *fixture) {
			c.alive()
			c.raw(http2.FrameRSTStream, 0, 1, uint32s(8))
			c.alive()
		}},

		// Header blocks.
		{"CONTINUATION without HEADERS", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameContinuation, endHeaders, 1, c.encode(request(echo)))
			c.connError(errProtocol)
		}},
		{"CONTINUATION after END_HEADERS", "", func(c *client, s *fixture) {
			a, call := held(c, s, "CONTINUATION after END_HEADERS")
			c.raw(http2.FrameContinuation, endHeaders, a.id, nil)
			c.connError(errProtocol)
			_ = call.ends(c.t)
		}},
		{"CONTINUATION of another stream", "", func(c *client, _ *fixture) {
			b := c.encode(request(echo))
			c.raw(http2.FrameHeaders, 0, 1, b[:10])
			c.raw(http2.FrameContinuation, endHeaders, 3, b[10:])
			c.connError(errProtocol)
		}},
		{"PING between HEADERS and CONTINUATION", "", func(c *client, _ *fixture) {
			b := c.encode(request(echo))
			c.raw(http2.FrameHeaders, 0, 1, b[:10])
			c.raw(http2.FramePing, 0, 0, make([]byte, 8))
			c.connError(errProtocol)
		}},
		{"an unknown frame between HEADERS and CONTINUATION", "", func(c *client, _ *fixture) {
			b := c.encode(request(echo))
			c.raw(http2.FrameHeaders, 0, 1, b[:10])
			c.raw(0xa0, 0, 1, make([]byte, 8))
			c.connError(errProtocol)
		}},
		{"HEADERS in many pieces", "", func(c *client, _ *fixture) {
			a := c.answer(1)
			c.next = 3
			b := c.encode(request(echo, field{Name: "h-x", Value: "value"}))
			c.raw(http2.FrameHeaders, 0, 1, nil)
			for i := range b {
				c.raw(http2.FrameContinuation, 0, 1, b[i:i+1])
			}
			c.raw(http2.FrameContinuation, endHeaders, 1, nil)
			c.send(a, message([]byte("m")), true)
			c.done(a)
			c.ok(a, []byte("m"))
			if get(a.headers, "h-x") != "value" {
				c.t.Errorf("%v", a)
			}
		}},
		{"an index out of the table", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders, 1, append(c.encode(request(echo)), 0xff, 0xff, 0x7f))
			c.connError(errHpack)
		}},
		{"a header block cut off", "", func(c *client, _ *fixture) {
			b := c.encode(request(echo))
			c.raw(http2.FrameHeaders, endHeaders, 1, b[:len(b)-1])
			c.connError(errHpack)
		}},
		{"bad Huffman code", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders, 1, append(c.encode(request(echo)), 0x40, 0x01, 'a', 0x84, 0xff, 0xff, 0xff, 0xff))
			c.connError(errHpack)
		}},
		{"a table larger than announced", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders, 1, append([]byte{0x3f, 0xff, 0xff, 0x7f}, c.encode(request(echo))...))
			c.connError(errHpack)
		}},
		{"a table's size after fields", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders, 1, append(c.encode(request(echo)), 0x20))
			c.connError(errHpack)
		}},
		{"a small table, much used", "", func(c *client, _ *fixture) {
			c.enc.SetMaxDynamicTableSize(100)
			for i := range 50 {
				a := c.call(echo, nil, field{Name: "h-x", Value: fmt.Sprint(i)}, field{Name: "h-y", Value: strings.Repeat("y", i*3)})
				c.ok(a, nil)
				if get(a.headers, "h-x") != fmt.Sprint(i) || len(get(a.headers, "h-y")) != i*3 {
					c.t.Errorf("%v", a)
				}
				switch i {
				case 30:
					c.enc.SetMaxDynamicTableSize(0)
				case 40:
					c.enc.SetMaxDynamicTableSize(4096)
				}
			}
		}},

		// Padding and priorities.
		{"HEADERS with padding longer than the frame", "grpc-go resets the stream, and loses the state of the header table", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders|http2.FlagHeadersPadded, 1, append([]byte{200}, c.encode(request(echo))[:20]...))
			c.connError(errProtocol)
		}},
		{"DATA with padding longer than the frame", "", func(c *client, s *fixture) {
			a, call := held(c, s, "much padding")
			c.raw(http2.FrameData, http2.FlagDataPadded, a.id, []byte{4, 0, 0, 0})
			c.connError(errProtocol)
			_ = call.ends(c.t)
		}},
		{"DATA padded without a length", "", func(c *client, s *fixture) {
			a, call := held(c, s, "padded without a length")
			c.raw(http2.FrameData, http2.FlagDataPadded, a.id, nil)
			c.connError(errProtocol, errSize)
			_ = call.ends(c.t)
		}},
		{"HEADERS too short for their flags", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameHeaders, endHeaders|http2.FlagHeadersPriority, 1, []byte{0, 0, 0})
			c.connError(errProtocol, errSize)
		}},
		{"HEADERS padded and with priority", "", func(c *client, _ *fixture) {
			a := c.answer(1)
			c.next = 3
			b := append([]byte{3, 0x80, 0, 0, 0, 200}, c.encode(request(echo))...)
			c.raw(http2.FrameHeaders, endHeaders|http2.FlagHeadersPadded|http2.FlagHeadersPriority, 1, append(b, 0, 0, 0))
			c.data(1, message([]byte("padded")), 255, false)
			c.data(1, nil, 0, false)
			c.data(1, nil, -1, true)
			c.done(a)
			c.ok(a, []byte("padded"))
		}},
		{"PRIORITY", "", func(c *client, s *fixture) {
			c.raw(http2.FramePriority, 0, 101, []byte{0, 0, 0, 3, 16})
			a, call := held(c, s, "PRIORITY")
			c.raw(http2.FramePriority, 0, a.id, []byte{0x80, 0, 0, 101, 255})
			c.send(a, message([]byte("m")), true)
			c.raw(http2.FramePriority, 0, a.id, []byte{0, 0, 0, 0, 0})
			finish(c, a, call, digestOf([]byte("m")))
			c.raw(http2.FramePriority, 0, a.id, []byte{0, 0, 0, 0, 0})
			c.alive()
		}},
		{"PRIORITY on stream 0", "", func(c *client, _ *fixture) {
			c.raw(http2.FramePriority, 0, 0, []byte{0, 0, 0, 3, 16})
			c.connError(errProtocol)
		}},
		{"PRIORITY of four bytes", "", func(c *client, s *fixture) {
			a, call := held(c, s, "PRIORITY of four bytes")
			c.raw(http2.FramePriority, 0, a.id, []byte{0, 0, 0, 3})
			c.streamOrConnError(a, errSize)
			c.conn.Close()
			_ = call.ends(c.t)
		}},
		{"unknown frames", "", func(c *client, s *fixture) {
			a, call := held(c, s, "unknown frames")
			for i, typ := range []http2.FrameType{0x0a, 0x0b, 0x0c, 0x20, 0xff} {
				for _, id := range []uint32{0, a.id, 2, 1001} {
					c.raw(typ, http2.Flags(0xff>>i), id, make([]byte, i*100))
				}
			}
			c.send(a, message([]byte("m")), true)
			finish(c, a, call, digestOf([]byte("m")))
			c.alive()
		}},
		{"PRIORITY_UPDATE", "", func(c *client, _ *fixture) {
			c.raw(0x10, 0, 0, append(uint32s(1), "u=1"...)) // RFC 9218, sent by browsers
			c.alive()
		}},
		{"unknown flags and the reserved bit", "", func(c *client, _ *fixture) {
			a := c.answer(1)
			c.next = 3
			b := frame(http2.FrameHeaders, endHeaders|0x40|0x10, 1, c.encode(request(echo)))
			b[5] |= 0x80
			c.write(b)
			b = frame(http2.FrameData, endStream|0xf0|0x06, 1, message([]byte("m")))
			b[5] |= 0x80
			c.write(b)
			c.raw(http2.FramePing, 0xfe, 0, make([]byte, 8))
			c.raw(http2.FrameSettings, 0xfe, 0, nil)
			c.inits = append(c.inits, c.inits[len(c.inits)-1])
			c.done(a)
			c.ok(a, []byte("m"))
		}},
		{"PUSH_PROMISE", "grpc-go ignores it", func(c *client, _ *fixture) {
			c.raw(http2.FramePushPromise, endHeaders, 1, append(uint32s(2), c.encode(request(echo))...))
			c.connError(errProtocol)
		}},

		// PING and GOAWAY.
		{"PING", "", func(c *client, _ *fixture) {
			for range 3 {
				c.sync()
			}
			c.raw(http2.FramePing, ack, 0, []byte("unasked!"))
			c.sync()
			if len(c.pongs) != 4 {
				c.t.Errorf("%d answers", len(c.pongs))
			}
		}},
		{"PING of seven bytes", "", func(c *client, _ *fixture) {
			c.raw(http2.FramePing, 0, 0, make([]byte, 7))
			c.connError(errSize)
		}},
		{"PING on a stream", "", func(c *client, _ *fixture) {
			c.raw(http2.FramePing, 0, 1, make([]byte, 8))
			c.connError(errProtocol)
		}},
		{"GOAWAY", "", func(c *client, s *fixture) {
			a, call := held(c, s, "GOAWAY")
			c.raw(http2.FrameGoAway, 0, 0, append(make([]byte, 8), "good bye"...))
			c.send(a, message([]byte("m")), true)
			finish(c, a, call, digestOf([]byte("m")))
		}},
		{"GOAWAY on a stream", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameGoAway, 0, 1, make([]byte, 8))
			c.connError(errProtocol)
		}},
		{"GOAWAY of seven bytes", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameGoAway, 0, 0, make([]byte, 7))
			c.connError(errSize)
		}},

		// SETTINGS.
		{"SETTINGS of seven bytes", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameSettings, 0, 0, make([]byte, 7))
			c.connError(errSize)
		}},
		{"SETTINGS on a stream", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameSettings, 0, 1, nil)
			c.connError(errProtocol)
		}},
		{"an acknowledgement with payload", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameSettings, ack, 0, setting(settingInit, 1))
			c.connError(errSize)
		}},
		{"ENABLE_PUSH of 2", "grpc-go does not look at it", func(c *client, _ *fixture) {
			c.raw(http2.FrameSettings, 0, 0, setting(http2.SettingEnablePush, 2))
			c.connError(errProtocol)
		}},
		{"MAX_FRAME_SIZE below 16384", "grpc-go does not look at it", func(c *client, _ *fixture) {
			c.raw(http2.FrameSettings, 0, 0, setting(http2.SettingMaxFrameSize, maxFrame-1))
			c.connError(errProtocol)
		}},
		{"MAX_FRAME_SIZE of 2^24", "grpc-go does not look at it", func(c *client, _ *fixture) {
			c.raw(http2.FrameSettings, 0, 0, setting(http2.SettingMaxFrameSize, 1<<24))
			c.connError(errProtocol)
		}},
		{"INITIAL_WINDOW_SIZE of 2^31", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameSettings, 0, 0, setting(settingInit, 1<<31))
			c.connError(errFlow)
		}},
		{"INITIAL_WINDOW_SIZE that overflows a window", "grpc-go reckons windows without a limit", func(c *client, s *fixture) {
			a, call := held(c, s, "overflow by SETTINGS")
			c.grant(a.id, 1<<31-1-defaultWindow)
			c.sync()
			c.set(http2.Setting{ID: settingInit, Val: defaultWindow + 1})
			// A server may find it when it next reckons with the window.
			c.raw(http2.FrameWindowUpdate, 0, a.id, uint32s(1))
			c.streamOrConnError(a, errFlow)
			_ = call.ends(c.t)
		}},
		{"unknown settings", "", func(c *client, _ *fixture) {
			c.setSynced(http2.Setting{ID: 0xff00, Val: 1}, http2.Setting{ID: 7, Val: 0}, http2.Setting{ID: 8, Val: 1}, http2.Setting{ID: http2.SettingEnablePush, Val: 0},
				http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1<<24 - 1})
			c.alive()
		}},
		{"the last of equal settings", "", func(c *client, _ *fixture) {
			c.setSynced(http2.Setting{ID: settingInit, Val: 0}, http2.Setting{ID: settingInit, Val: 100})
			c.alive()
		}},
		{"each SETTINGS is acknowledged", "", func(c *client, _ *fixture) {
			n := c.acks
			for range 20 {
				c.set()
			}
			c.wait("acknowledgements", func() bool { return c.acks == n+20 })
			c.alive()
		}},

		// WINDOW_UPDATE.
		{"WINDOW_UPDATE of 0 on the connection", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameWindowUpdate, 0, 0, uint32s(0))
			c.connError(errProtocol)
		}},
		{"WINDOW_UPDATE of 0 on a stream", "", func(c *client, s *fixture) {
			a, call := held(c, s, "WINDOW_UPDATE of 0")
			c.raw(http2.FrameWindowUpdate, 0, a.id, uint32s(0))
			c.streamOrConnError(a, errProtocol)
			_ = call.ends(c.t)
		}},
		{"WINDOW_UPDATE of three bytes", "", func(c *client, _ *fixture) {
			c.raw(http2.FrameWindowUpdate, 0, 0, []byte{0, 0, 1})
			c.connError(errSize)
		}},
		{"WINDOW_UPDATE on an idle stream", ignoresUnknown, func(c *client, _ *fixture) {
			c.raw(http2.FrameWindowUpdate, 0, 1, uint32s(1))
			c.connError(errProtocol)
		}},
		{"WINDOW_UPDATE on a closed stream", "", func(c *client, _ *fixture) {
			c.alive()
			c.raw(http2.FrameWindowUpdate, 0, 1, uint32s(1))
			c.alive()
		}},
		{"WINDOW_UPDATE that overflows the connection's window", "grpc-go wraps around", func(c *client, _ *fixture) {
			c.raw(http2.FrameWindowUpdate, 0, 0, uint32s(1<<31-1))
			c.connError(errFlow)
		}},
		{"WINDOW_UPDATE that overflows a stream's window", "grpc-go reckons windows without a limit", func(c *client, s *fixture) {
			a, call := held(c, s, "overflow")
			c.raw(http2.FrameWindowUpdate, 0, a.id, uint32s(1<<31-1))
			c.streamOrConnError(a, errFlow)
			_ = call.ends(c.t)
		}},
		{"windows as large as can be", "", func(c *client, _ *fixture) {
			c.grant(0, 1<<31-1-defaultWindow)
			a := c.open(count)
			c.grant(a.id, 1<<31-1-defaultWindow)
			c.send(a, message(countRequest(2, 1<<20, "")), true)
			c.done(a)
			c.ok(a, counted(0, 1<<20), counted(1, 1<<20))
		}},
	})
}

// Malformed requests are refused, and do not reach a handler. The connection
// goes on.
func TestRequestHeaders(t *testing.T) {
	good := request(echo)
	bad := func(name, onlyOwn string, fields []field, check func(c *client, a *answer)) protocolCase {
		return protocolCase{name, onlyOwn, func(c *client, s *fixture) {
			key := "bad headers: " + name
			a := c.headers(true, append(slices.Clone(fields), field{Name: "key", Value: key}))
			check(c, a)
			c.alive()
			if s.svc.knows(key) {
				c.t.Error("a handler ran")
			}
		}}
	}
	reset := func(c *client, a *answer) { c.t.Helper(); c.streamError(a, errProtocol) }
	refused := func(c *client, a *answer) { c.t.Helper(); c.refused(a) }
	http := func(status string, code codes.Code) func(c *client, a *answer) {
		return func(c *client, a *answer) {
			c.t.Helper()
			c.done(a)
			if a.http() != status || a.code() != code {
				c.t.Errorf("%v, want :status %s and %v", a, status, code)
			}
		}
	}
	good = with(good, field{Name: ":path", Value: wait})
	const asMetadata = "grpc-go takes it for metadata"
	cases := []protocolCase{
		bad("no :path", "", without(good, ":path"), refused),
		bad("an empty :path", "", with(good, field{Name: ":path"}), refused),
		bad("no :method", "", without(good, ":method"), refused),
		bad("no :scheme", "grpc-go does not look at it", without(good, ":scheme"), refused),
		bad("an uppercase name", "", append(slices.Clone(good), field{Name: "X-Upper", Value: "1"}), reset),
		bad("a name with a space", "", append(slices.Clone(good), field{Name: "x y", Value: "1"}), reset),
		bad("an empty name", "", append(slices.Clone(good), field{Name: "", Value: "1"}), reset),
		bad("a name beyond ASCII", "", append(slices.Clone(good), field{Name: "ä", Value: "1"}), reset),
		bad("a value with a line break", "", append(slices.Clone(good), field{Name: "x", Value: "1\r\n2"}), reset),
		bad("a value with a zero", "", append(slices.Clone(good), field{Name: "x", Value: "\x00"}), reset),
		bad("a :path with a line break", "", with(good, field{Name: ":path", Value: wait + "\r\n"}), reset),
		bad("an :authority with a line break", "", with(good, field{Name: ":authority", Value: "x\ny"}), reset),
		bad("a pseudo header after others", "", append(without(good, ":path"), field{Name: ":path", Value: wait}), reset),
		bad("two :path", "", append([]field{{Name: ":path", Value: echo}}, good...), reset),
		bad("two :method", "", append([]field{{Name: ":method", Value: "POST"}}, good...), reset),
		bad("two :authority", "", append([]field{{Name: ":authority", Value: "y"}}, good...), refused),
		bad("an unknown pseudo header", "", append([]field{{Name: ":unknown", Value: "y"}}, good...), reset),
		bad("a response's pseudo header", "", append([]field{{Name: ":status", Value: "200"}}, good...), reset),
		bad("connection", "", append(slices.Clone(good), field{Name: "connection", Value: "close"}), refused),
		bad("keep-alive", asMetadata, append(slices.Clone(good), field{Name: "keep-alive", Value: "1"}), refused),
		bad("proxy-connection", asMetadata, append(slices.Clone(good), field{Name: "proxy-connection", Value: "1"}), refused),
		bad("transfer-encoding", asMetadata, append(slices.Clone(good), field{Name: "transfer-encoding", Value: "chunked"}), refused),
		bad("upgrade", asMetadata, append(slices.Clone(good), field{Name: "upgrade", Value: "h3"}), refused),
		bad("te other than trailers", "grpc-go does not look at it", with(good, field{Name: "te", Value: "gzip"}), refused),
		bad("two hosts", "", append(without(good, ":authority"), field{Name: "host", Value: "a"}, field{Name: "host", Value: "b"}), http("400", codes.Internal)),
		bad("no host", "", without(good, ":authority"), http("400", codes.Internal)),
		bad("GET", "", with(good, field{Name: ":method", Value: "GET"}), http("405", codes.Internal)),
		bad("no content-type", "", without(good, "content-type"), http("415", codes.InvalidArgument)),
		bad("malformed -bin", "", append(slices.Clone(good), field{Name: "x-bin", Value: "***"}), http("400", codes.Internal)),
	}
	for _, v := range []string{"", "text/html", "application/grpcx", "application/grp", "application/json"} {
		cases = append(cases, bad("content-type "+v, "", with(good, field{Name: "content-type", Value: v}), http("415", codes.InvalidArgument)))
	}
	for _, v := range []string{"", "1", "S", "-1S", "1.5S", "1s", "123456789S", "1 S", "+1S", "0x1S", "١S"} {
		cases = append(cases, bad("grpc-timeout "+v, "", append(slices.Clone(good), field{Name: "grpc-timeout", Value: v}), http("400", codes.Internal)))
	}
	good = request(echo)
	for name, fields := range map[string][]field{
		"host for :authority":       append(without(good, ":authority"), field{Name: "host", Value: "a"}),
		"host beside :authority":    append(slices.Clone(good), field{Name: "host", Value: "b"}),
		"no te":                     without(good, "te"),
		"https":                     with(good, field{Name: ":scheme", Value: "https"}),
		"application/grpc+proto":    with(good, field{Name: "content-type", Value: "application/grpc+proto"}),
		"application/grpc;charset":  with(good, field{Name: "content-type", Value: "application/grpc;charset=utf-8"}),
		"cookies":                   append(slices.Clone(good), field{Name: "cookie", Value: "a=1"}, field{Name: "cookie", Value: "b=2"}),
		"values of all bytes":       append(slices.Clone(good), field{Name: "x", Value: "\t ~\x80\xff"}),
		"-bin with padding":         append(slices.Clone(good), field{Name: "x-bin", Value: "AA=="}),
		"sensitive fields":          append(slices.Clone(good), field{Name: "authorization", Value: "Bearer x", Sensitive: true}),
		"content-length":            append(slices.Clone(good), field{Name: "content-length", Value: "6"}),
		"a field named trailer":     append(slices.Clone(good), field{Name: "trailer", Value: "x"}),
		"fields reserved for gRPC":  append(slices.Clone(good), field{Name: "grpc-foo", Value: "x"}, field{Name: "grpc-previous-rpc-attempts", Value: "1"}),
		"accepts other compressors": append(slices.Clone(good), field{Name: "grpc-accept-encoding", Value: "br,,snappy"}),
	} {
		cases = append(cases, protocolCase{"served: " + name, "", func(c *client, _ *fixture) {
			a := c.headers(false, fields)
			c.send(a, message([]byte("m")), true)
			c.done(a)
			c.ok(a, []byte("m"))
		}})
	}
	runCases(t, config{}, cases)
}

// A header list over the limit is refused, without harm to the connection's
// header table if it is not far over it. The server announces the limit.
func TestHeaderListLimit(t *testing.T) {
	runCases(t, config{maxHeader: 10_000}, []protocolCase{
		{"announced", "", func(c *client, _ *fixture) {
			if v := c.settings[http2.SettingMaxHeaderListSize]; v != 10_000 {
				c.t.Errorf("%d", v)
			}
		}},
		{"below", "", func(c *client, _ *fixture) {
			c.ok(c.call(echo, nil, field{Name: "x", Value: strings.Repeat("x", 9000)}), nil)
			// One entry of the table in many fields is small on the wire only.
			more := make([]field, 100)
			for i := range more {
				more[i] = field{Name: "x-repeated", Value: "12345678901234567890"}
			}
			c.ok(c.call(echo, nil, more...), nil)
		}},
		{"above", "", func(c *client, s *fixture) {
			a := c.open(echo, field{Name: "key", Value: "above"}, field{Name: "x", Value: strings.Repeat("x", 10_000)})
			c.refused(a)
			// What the refused block put into the table is known.
			c.ok(c.call(echo, nil, field{Name: "h-x", Value: "1"}), nil)
			c.ok(c.call(echo, nil, field{Name: "h-x", Value: "1"}), nil)
			if s.svc.knows("above") {
				c.t.Error("a handler ran")
			}
		}},
		{"above, by an entry of the table", "", func(c *client, s *fixture) {
			more := make([]field, 4000)
			for i := range more {
				more[i] = field{Name: "x-repeated", Value: strings.Repeat("x", 1000)}
			}
			a := c.open(echo, append([]field{{Name: "key", Value: "bomb"}}, more...)...)
			c.wait("a refusal", func() bool { return a.over() || c.closed != nil })
			if a.over() && a.rst == nil && a.http() == "200" && a.code() == codes.OK {
				c.t.Errorf("%v", a)
			}
			if s.svc.knows("bomb") {
				c.t.Error("a handler ran")
			}
		}},
		{"far above", "", func(c *client, s *fixture) {
			a := c.open(echo, field{Name: "key", Value: "far above"}, field{Name: "x", Value: strings.Repeat("~", 1<<20)})
			c.wait("a refusal", func() bool { return a.over() || c.closed != nil })
			if a.over() {
				c.refused(a)
			}
			if s.svc.knows("far above") {
				c.t.Error("a handler ran")
			}
		}},
		{"a value whose length is a lie", "", func(c *client, _ *fixture) {
			b := append(c.encode(request(echo)), 0x40, 1, 'x', 0x7f, 0xff, 0xff, 0xff, 0x07) // 16 MiB
			c.raw(http2.FrameHeaders, endHeaders, 1, append(b, "short"...))
			c.connError(errHpack, errProtocol, errCalm)
		}},
	})
}

// Answers keep to the header list and the header table that the client set.
func TestClientHeaderSettings(t *testing.T) {
	list := func(limit uint32) protocolCase {
		return protocolCase{fmt.Sprintf("a header list of %d", limit), "", func(c *client, _ *fixture) {
			c.setSynced(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: limit})
			for _, a := range []*answer{c.call(echo, nil), c.call(echo, nil, field{Name: "h-x", Value: strings.Repeat("x", 500)}),
				c.call(fail, append([]byte{3}, strings.Repeat("x", 500)...)), c.call(prefix+"Nothing", nil), c.headers(true, without(request(echo), "content-type"))} {
				c.done(a)
				for _, fields := range [][]field{a.headers, a.trailers} {
					size := uint32(0)
					for _, f := range fields {
						size += f.Size()
					}
					if size > limit {
						c.t.Errorf("%d bytes of headers: %v", size, a)
					}
				}
				if a.rst == nil && a.code() == codes.Unknown {
					c.t.Errorf("%v", a)
				}
			}
			c.setSynced(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 1 << 20})
			c.alive()
		}}
	}
	// The names and values of answers are known in advance: an entry of the table
	// that the server uses and the client has not shows as a wrong field.
	table := func(name string, sizes ...uint32) protocolCase {
		return protocolCase{name, "", func(c *client, _ *fixture) {
			for i, size := range sizes {
				c.setSynced(http2.Setting{ID: settingTable, Val: size})
				c.fr.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(size)
				for j := range 20 {
					x := fmt.Sprint(i, j/5)
					a := c.call(echo, nil, field{Name: "h-x", Value: x}, field{Name: "t-y", Value: strings.Repeat(x, 10)})
					c.ok(a, nil)
					if get(a.headers, "h-x") != x || get(a.trailers, "t-y") != strings.Repeat(x, 10) {
						c.t.Errorf("%v", a)
					}
					c.status(c.call(fail, []byte{5, 'x'}), codes.NotFound)
				}
			}
		}}
	}
	// The trailers of fail without details and message, and what a message may have of 700.
	const bare, limit = 350, 700
	long := func(name, char string) protocolCase {
		return protocolCase{"a status of more than the header list, of " + name, "resets the stream", func(c *client, _ *fixture) {
			whole := strings.Repeat(char, 3000)
			for most := uint32(limit); most < limit+10; most++ {
				c.setSynced(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: most})
				a := c.call(fail, append([]byte{5}, whole...))
				size := uint32(0)
				for _, f := range a.trailers {
					size += f.Size()
				}
				text := a.text()
				if a.code() != codes.NotFound || !strings.HasPrefix(whole, text) || !utf8.ValidString(text) || text == "" || get(a.trailers, "fail-trailer") != "t1" {
					c.t.Errorf("within %d: %v", most, a)
				}
				if size > most || size+12 < most {
					c.t.Errorf("%d of %d bytes", size, most)
				}
			}
			// Details are left out first.
			c.setSynced(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: bare})
			if a := c.call(fail, []byte("\x05short")); a.code() != codes.NotFound || a.text() != "short" || get(a.trailers, "grpc-status-details-bin") != "" {
				c.t.Errorf("%v", a)
			}
		}}
	}
	runCases(t, config{}, []protocolCase{
		list(0), list(1), list(100), list(300),
		long("letters", "x"), long("two bytes", "ä"), long("three bytes", "本"), long("four bytes", "\U0001F600"),
		table("no header table", 0),
		table("a table that shrinks and grows", 4096, 64, 0, 100, 4096, 1<<20, 10),
		{"a table that shrinks and grows between two answers", "", func(c *client, _ *fixture) {
			c.alive()
			c.setSynced(http2.Setting{ID: settingTable, Val: 0})
			c.setSynced(http2.Setting{ID: settingTable, Val: 4096})
			d := hpack.NewDecoder(4096, nil)
			c.fr.ReadMetaHeaders = d
			// The table was emptied: the decoder has none of the old entries.
			c.alive()
			c.alive()
		}},
	})
}

// A server sends exactly as much as windows allow, also when the initial size of
// windows changes while it sends, and windows become negative.
func TestWindowsOfAnswers(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		c := s.client(t, http2.Setting{ID: settingInit, Val: 10})
		a := c.start(count, countRequest(100, 1000, ""))
		const whole = 100 * 1005
		flows := func(want int64) {
			t.Helper()
			c.wait(fmt.Sprintf("%d bytes", want), func() bool { return a.flow >= want })
			c.sync()
			if a.flow != want {
				t.Errorf("%d bytes, want %d", a.flow, want)
			}
		}
		flows(10)
		c.grant(a.id, 90)
		flows(100)
		c.setSynced(http2.Setting{ID: settingInit, Val: 50})
		flows(140)
		c.setSynced(http2.Setting{ID: settingInit, Val: 0}) // 50 below zero
		flows(140)
		c.grant(a.id, 50)
		flows(140)
		c.grant(a.id, 1)
		flows(141)
		c.setSynced(http2.Setting{ID: settingInit, Val: 5})
		flows(146)
		c.set(http2.Setting{ID: settingInit, Val: 0})
		c.setSynced(http2.Setting{ID: settingInit, Val: 10})
		flows(151)
		// Another stream has the new window, and what is not DATA needs none.
		b := c.start(count, countRequest(1, 100, ""))
		c.wait("10 bytes", func() bool { return b.flow == 10 })
		c.setSynced(http2.Setting{ID: settingInit, Val: 0})
		c.status(c.call(fail, []byte{3}), codes.InvalidArgument)
		c.ok(c.call(count, countRequest(0, 0, "")))
		c.raw(http2.FrameRSTStream, 0, b.id, uint32s(8))
		c.sync()
		sent := defaultWindow - c.room
		// The connection's window ends it.
		c.grant(a.id, whole)
		flows(151 + defaultWindow - sent)
		c.grant(0, 1)
		flows(152 + defaultWindow - sent)
		if a.ended {
			t.Error("the stream has ended")
		}
		c.grant(0, whole)
		c.done(a)
		if a.flow != whole {
			t.Errorf("%d bytes", a.flow)
		}
		msgs, err := a.messages()
		if err != nil || len(msgs) != 100 {
			t.Errorf("%d messages, %v", len(msgs), err)
		}
		for i, m := range msgs {
			if !bytes.Equal(m, counted(i, 1000)) {
				t.Errorf("message %d", i)
			}
		}
	})
}

// A stream without window does not keep others from sending, nor do those that
// share the connection's window get nothing of it.
func TestWindowsAreShared(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		c := s.client(t, http2.Setting{ID: settingInit, Val: 0})
		stuck := c.start(count, countRequest(10, 50_000, ""))
		var all []*answer
		for range 10 {
			a := c.start(count, countRequest(10, 50_000, ""))
			c.grant(a.id, 1<<20)
			all = append(all, a)
		}
		for range 100 {
			c.wait("the connection's window to be used", func() bool { return c.room == 0 })
			c.grant(0, 40_000)
		}
		c.grant(0, 1<<30)
		for _, a := range all {
			if a.flow == 0 {
				t.Errorf("stream %d got nothing of 4 MB", a.id)
			}
			c.done(a)
		}
		if stuck.flow != 0 {
			t.Errorf("%v", stuck)
		}
		c.grant(stuck.id, 1<<20)
		c.done(stuck)
		if stuck.flow != 10*50_005 {
			t.Errorf("%v", stuck)
		}
	})
}

// Data beyond the window of a stream is a flow control error.
func TestWindowsOfRequests(t *testing.T) {
	runCases(t, config{maxStreams: 1000}, []protocolCase{
		{"a stream's", "", func(c *client, s *fixture) {
			a := c.open(hold, field{Name: "key", Value: "a stream's"})
			call := s.svc.call(c.t, "a stream's")
			for a.window > 0 { // as one message that is larger
				c.data(a.id, make([]byte, min(a.window, maxFrame)), -1, false)
			}
			c.sync()
			if a.over() {
				c.t.Fatalf("%v within the window", a)
			}
			c.data(a.id, []byte("x"), -1, false)
			c.streamOrConnError(a, errFlow)
			_ = call.ends(c.t)
		}},
		{"a stream's, by padding", "", func(c *client, s *fixture) {
			a := c.open(hold, field{Name: "key", Value: "by padding"})
			call := s.svc.call(c.t, "by padding")
			for a.window >= 256 {
				c.data(a.id, nil, 255, false)
			}
			c.sync()
			// Padding may be given back at once, so that the window is never used up.
			if a.window < 256 {
				c.data(a.id, nil, 255, false)
				c.streamOrConnError(a, errFlow)
			}
			c.conn.Close()
			_ = call.ends(c.t)
		}},
		{"the connection's", "", func(c *client, s *fixture) {
			// A server may give bytes back as they come: then there is no error, but no
			// stream holds more than its window.
			var all []*answer
			for i := range 40 {
				key := fmt.Sprintf("the connection's %d", i)
				a := c.open(hold, field{Name: "key", Value: key})
				s.svc.call(c.t, key)
				all = append(all, a)
				for range 3 {
					c.data(a.id, make([]byte, maxFrame), -1, false)
				}
			}
			c.settle()
			for _, a := range all {
				if a.rst != nil && *a.rst != errFlow {
					c.t.Errorf("%v", a)
				}
			}
			if c.closed != nil {
				c.connError(errFlow)
			}
		}},
	})
}

// Padding counts for windows, and is given back: a client that pads much does
// not get stuck.
func TestPaddingIsGivenBack(t *testing.T) {
	eachServer(t, config{connWindow: 64 << 10}, func(t *testing.T, s *fixture) {
		c := s.client(t)
		a := c.open(sum)
		m := bytes.Repeat([]byte("m"), 2000)
		all := message(m)
		for i := range 4 * (64 << 10) / 256 {
			var b []byte
			if i%2 == 0 {
				b, all = all[:1], all[1:]
			}
			c.windows(a, len(b)+256)
			c.data(a.id, b, 255, false)
		}
		c.send(a, all, true)
		c.done(a)
		c.ok(a, digestOf(m))
		c.alive()
	})
}

// What is received and never read is given back when the call ends.
func TestUnreadIsGivenBack(t *testing.T) {
	eachServer(t, config{connWindow: 64 << 10, streamWindow: 64 << 10}, func(t *testing.T, s *fixture) {
		c := s.client(t)
		for i := range 20 {
			key := fmt.Sprint("unread ", i)
			a := c.open(hold, field{Name: "key", Value: key})
			call := s.svc.call(t, key)
			n := min(a.window, c.window, 60_000)
			if n < 10_000 {
				c.wait("windows", func() bool { return min(a.window, c.window) >= 10_000 })
				n = 10_000
			}
			for n > 0 {
				c.data(a.id, make([]byte, min(n, maxFrame)), -1, false)
				n -= min(n, maxFrame)
			}
			c.raw(http2.FrameRSTStream, 0, a.id, uint32s(8))
			if err := call.ends(t); err == nil {
				t.Error("the handler's context is not done")
			}
		}
		c.alive()
	})
}

// Messages are cut from DATA wherever frames end, and what is no message is
// refused.
func TestMessageFraming(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		c := s.client(t)
		m := []byte("message")
		a := c.open(echo)
		for _, b := range message(m) {
			c.data(a.id, []byte{b}, -1, false)
			c.data(a.id, nil, -1, false)
		}
		c.data(a.id, nil, -1, true)
		c.done(a)
		c.ok(a, m)
		a = c.open(chat)
		c.send(a, slices.Concat(message(m), message(nil), message(m), message(make([]byte, 20_000)), message(m)[:3]), false)
		c.send(a, message(m)[3:], true)
		c.done(a)
		c.ok(a, m, nil, m, make([]byte, 20_000), m)
		for _, tc := range []struct {
			name, method string
			data         []byte
			want         codes.Code
		}{
			{"no message", echo, nil, codes.Internal},
			{"half a header", echo, message(m)[:3], codes.Internal},
			{"no byte of the message", echo, message(m)[:5], codes.Internal},
			{"half a message", echo, message(m)[:8], codes.Internal},
			{"two messages", echo, append(message(m), message(m)...), codes.Internal},
			{"a message and a half", sum, append(message(m), message(m)[:8]...), codes.Internal},
			{"compressed without compressor", echo, flagged(1, 7, m), codes.Internal},
			{"an unknown flag", echo, flagged(7, 7, m), codes.Internal},
			{"an empty message", echo, message(nil), codes.OK},
			{"no message of many", sum, nil, codes.OK},
		} {
			a := c.open(tc.method)
			c.send(a, tc.data, true)
			c.done(a)
			if !a.ended || a.code() != tc.want {
				t.Errorf("%s: %v, want %v", tc.name, a, tc.want)
			}
		}
		// A refusal does not wait for the end of the request.
		for name, b := range map[string][]byte{"compressed": flagged(1, 7, m), "too large": flagged(0, 1<<30, nil)} {
			a := c.open(echo)
			c.send(a, b, false)
			c.done(a)
			if a.code() == codes.OK || a.rst == nil && a.code() == codes.Unknown {
				t.Errorf("%s: %v", name, a)
			}
		}
		c.alive()
	})
}

// A client that sends byte by byte is served like any other.
func TestByteByByte(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		c := s.silent(t)
		b := append([]byte(http2.ClientPreface), frame(http2.FrameSettings, 0, 0, setting(settingInit, 1000))...)
		c.inits = append(c.inits, 1000)
		b = append(b, frame(http2.FrameHeaders, endHeaders, 1, c.encode(request(echo)))...)
		b = append(b, frame(http2.FrameData, endStream, 1, message([]byte("slow")))...)
		c.next = 3
		for i := range b {
			c.write(b[i : i+1])
		}
		a := c.answer(1)
		c.done(a)
		c.ok(a, []byte("slow"))
		c.alive()
	})
}

// A server that ends a stream before the client has ended it asks the client to
// stop, by RST_STREAM with NO_ERROR or by none, and never by another code.
func TestEarlyEnd(t *testing.T) {
	eachServer(t, config{}, func(t *testing.T, s *fixture) {
		c := s.client(t)
		for range 10 {
			a := c.open(prefix + "Nothing")
			c.status(a, codes.Unimplemented)
			b := c.open(chat)
			c.send(b, append(message([]byte("m")), flagged(7, 1, []byte("m"))...), false)
			c.status(b, codes.Internal)
			c.sync()
			for _, a := range []*answer{a, b} {
				if a.rst != nil && *a.rst != errNo {
					t.Errorf("%v", a)
				}
			}
		}
		// Streams that were ended so do not count for the limit.
		for range 150 {
			c.status(c.open(prefix+"Nothing"), codes.Unimplemented)
		}
		c.alive()
	})
}

// The stream beyond the announced limit is refused, and may be tried again after
// another has ended. It holds for each connection on its own.
func TestMaxStreams(t *testing.T) {
	eachServer(t, config{maxStreams: 10, workers: 3}, func(t *testing.T, s *fixture) {
		c, other := s.client(t), s.client(t)
		if v := c.settings[http2.SettingMaxConcurrentStreams]; v != 10 {
			t.Errorf("MAX_CONCURRENT_STREAMS %d", v)
		}
		var held []*answer
		for i := range 10 {
			held = append(held, c.start(wait, fmt.Append(nil, i)))
			s.svc.call(t, fmt.Sprint(i))
		}
		for range 3 {
			a := c.start(echo, []byte("too many"))
			c.wait("RST_STREAM", func() bool { return a.rst != nil || a.ended })
			if a.rst == nil || *a.rst != errRefused {
				t.Errorf("%v", a)
			}
		}
		other.alive()
		for i, a := range held {
			s.svc.call(t, fmt.Sprint(i)).release()
			c.done(a)
			c.ok(a, fmt.Append(nil, i))
			c.alive()
		}
		if n := s.svc.peak.Load(); n > 11 {
			t.Errorf("%d handlers at a time", n)
		}
	})
}

// A reset stream gives its place to another at once, but no more handlers run at
// a time than there may be streams.
func TestResetStreamsFreePlaces(t *testing.T) {
	eachServer(t, config{maxStreams: 10}, func(t *testing.T, s *fixture) {
		c := s.client(t)
		for i := range 50 {
			key := fmt.Sprint("reset ", i)
			a := c.start(wait, []byte(key))
			call := s.svc.call(t, key)
			c.raw(http2.FrameRSTStream, 0, a.id, uint32s(8))
			_ = call.ends(t)
		}
		c.alive()
	})
}
