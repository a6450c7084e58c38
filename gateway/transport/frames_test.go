package transport_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

type field = hpack.HeaderField

const (
	defaultWindow = 65535
	maxFrame      = 16384
)

// A client is an HTTP/2 connection under the test's full control. It checks
// that the server keeps to the windows and to the states of streams.
type client struct {
	t     testing.TB
	own   bool
	conn  net.Conn
	fr    *http2.Framer
	enc   *hpack.Encoder
	block bytes.Buffer
	next  uint32

	// rude leaves SETTINGS and PING unanswered.
	rude bool
	// lavish gives bytes back as they come.
	lavish bool

	// What the server sent.
	closed   error // of the connection, once it has ended
	settings map[http2.SettingID]uint32
	acks     int // of SETTINGS
	pings    [][8]byte
	pongs    [][8]byte
	goaways  []goaway
	answers  map[uint32]*answer

	window int64 // for DATA of the connection to the server
	room   int64 // for DATA of the connection from the server
	// inits are the values of INITIAL_WINDOW_SIZE that the server may reckon by:
	// the last that it acknowledged, and those sent since.
	inits []int64
}

type goaway struct {
	last uint32
	code http2.ErrCode
	text string
}

// An answer is what the server sent on a stream.
type answer struct {
	id                uint32
	headers, trailers []field
	data              []byte
	flow              int64 // bytes that count for windows
	frames            int   // of DATA
	ended             bool
	rst               *http2.ErrCode
	window            int64 // for DATA to the server
	given             int64 // by WINDOW_UPDATE to the server
}

func (s *fixture) connect(t testing.TB) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", s.addr, bound)
	if err != nil {
		t.Fatalf("the server does not accept connections: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// client returns a connection whose preface is exchanged.
func (s *fixture) client(t testing.TB, settings ...http2.Setting) *client {
	t.Helper()
	c := s.silent(t)
	c.greet(settings...)
	return c
}

// silent returns a connection on which nothing is sent yet.
func (s *fixture) silent(t testing.TB) *client {
	t.Helper()
	c := newClient(t, s.connect(t))
	c.own = s.kind.own
	return c
}

func newClient(t testing.TB, conn net.Conn) *client {
	c := &client{t: t, conn: conn, next: 1, settings: map[http2.SettingID]uint32{}, answers: map[uint32]*answer{},
		window: defaultWindow, room: defaultWindow, inits: []int64{defaultWindow}}
	c.fr = http2.NewFramer(conn, conn)
	c.fr.AllowIllegalWrites = true
	c.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.enc = hpack.NewEncoder(&c.block)
	return c
}

// greet exchanges prefaces.
func (c *client) greet(settings ...http2.Setting) {
	c.t.Helper()
	c.write([]byte(http2.ClientPreface))
	c.set(settings...)
	c.wait("the acknowledgement of SETTINGS", func() bool { return c.acks == 1 && len(c.settings) > 0 })
}

// write ignores errors: the server may well hang up.
func (c *client) write(b []byte) {
	_ = c.conn.SetWriteDeadline(time.Now().Add(bound))
	_, _ = c.conn.Write(b)
}

// raw sends a frame.
func (c *client) raw(typ http2.FrameType, flags http2.Flags, id uint32, payload []byte) {
	_ = c.conn.SetWriteDeadline(time.Now().Add(bound))
	_ = c.fr.WriteRawFrame(typ, flags, id, payload)
}

// frame is the bytes of a frame.
func frame(typ http2.FrameType, flags http2.Flags, id uint32, payload []byte) []byte {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	fr.AllowIllegalWrites = true
	if err := fr.WriteRawFrame(typ, flags, id, payload); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// set sends SETTINGS.
func (c *client) set(settings ...http2.Setting) {
	init := c.inits[len(c.inits)-1]
	var payload []byte
	for _, s := range settings {
		payload = binary.BigEndian.AppendUint16(payload, uint16(s.ID))
		payload = binary.BigEndian.AppendUint32(payload, s.Val)
		if s.ID == http2.SettingInitialWindowSize {
			init = int64(s.Val)
		}
	}
	c.inits = append(c.inits, init)
	c.raw(http2.FrameSettings, 0, 0, payload)
}

// setSynced sends SETTINGS and waits for their acknowledgement.
func (c *client) setSynced(settings ...http2.Setting) {
	c.t.Helper()
	n := c.acks + 1
	c.set(settings...)
	c.wait("the acknowledgement of SETTINGS", func() bool { return c.acks >= n })
}

// grant sends WINDOW_UPDATE.
func (c *client) grant(id uint32, n uint32) {
	if id == 0 {
		c.room += int64(n)
	} else {
		c.answer(id).given += int64(n)
	}
	c.raw(http2.FrameWindowUpdate, 0, id, binary.BigEndian.AppendUint32(nil, n))
}

// sync waits until the server has read what was sent before, and has written
// what it could write at once.
func (c *client) sync() {
	c.t.Helper()
	n := len(c.pongs) + 1
	c.raw(http2.FramePing, 0, 0, binary.BigEndian.AppendUint64(nil, uint64(n)))
	c.wait("the answer to a PING", func() bool { return len(c.pongs) >= n })
	if got := binary.BigEndian.Uint64(c.pongs[n-1][:]); got != uint64(n) {
		c.t.Errorf("PING %d is answered by %d", n, got)
	}
}

// settle waits until the server has read what was sent before, or has ended the
// connection.
func (c *client) settle() {
	c.t.Helper()
	n := len(c.pongs) + 1
	c.raw(http2.FramePing, 0, 0, binary.BigEndian.AppendUint64(nil, uint64(n)))
	c.wait("the answer to a PING, or the end", func() bool { return len(c.pongs) >= n || c.closed != nil })
}

// frameLimit is the largest frame that the server takes.
func (c *client) frameLimit() int {
	return max(maxFrame, int(c.settings[http2.SettingMaxFrameSize]))
}

func (c *client) answer(id uint32) *answer {
	a := c.answers[id]
	if a == nil {
		init := int64(defaultWindow)
		if v, ok := c.settings[http2.SettingInitialWindowSize]; ok {
			init = int64(v)
		}
		a = &answer{id: id, window: init}
		c.answers[id] = a
	}
	return a
}

// wait reads until f holds.
func (c *client) wait(what string, f func() bool) {
	c.t.Helper()
	end := time.Now().Add(bound)
	for !f() {
		if c.closed != nil {
			c.t.Fatalf("wait for %s: the connection ended: %v, GOAWAY %+v", what, c.closed, c.goaways)
		}
		if !c.read(end) {
			c.t.Fatalf("wait for %s: not within %v; GOAWAY %+v", what, bound, c.goaways)
		}
	}
}

// read takes one frame in. It returns false when the time is up.
func (c *client) read(end time.Time) bool {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(end)
	f, err := c.fr.ReadFrame()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	if err != nil {
		switch err.(type) { // what the Framer says of the server's frames
		case http2.StreamError, http2.ConnectionError:
			c.t.Errorf("the server sent a bad frame: %v, %v", err, c.fr.ErrorDetail())
		}
		c.closed = err
		return true
	}
	c.take(f)
	return true
}

func (c *client) take(f http2.Frame) {
	c.t.Helper()
	h := f.Header()
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			c.acks++
			if len(c.inits) == 1 {
				c.t.Error("the server acknowledged SETTINGS that were not sent")
			} else {
				c.inits = c.inits[1:]
			}
			return
		}
		old := int64(defaultWindow)
		if v, ok := c.settings[http2.SettingInitialWindowSize]; ok {
			old = int64(v)
		}
		_ = f.ForeachSetting(func(s http2.Setting) error {
			if err := s.Valid(); err != nil {
				c.t.Errorf("the server set %v: %v", s, err)
			}
			if s.ID == http2.SettingInitialWindowSize {
				for _, a := range c.answers {
					a.window += int64(s.Val) - old
				}
			}
			c.settings[s.ID] = s.Val
			return nil
		})
		if len(c.settings) == 0 {
			c.settings[0] = 0 // they came, and changed nothing
		}
		if !c.rude {
			c.raw(http2.FrameSettings, http2.FlagSettingsAck, 0, nil)
		}
	case *http2.PingFrame:
		if f.IsAck() {
			c.pongs = append(c.pongs, f.Data)
			return
		}
		c.pings = append(c.pings, f.Data)
		if !c.rude {
			c.raw(http2.FramePing, http2.FlagPingAck, 0, f.Data[:])
		}
	case *http2.GoAwayFrame:
		c.goaways = append(c.goaways, goaway{f.LastStreamID, f.ErrCode, string(f.DebugData())})
	case *http2.WindowUpdateFrame:
		if h.StreamID == 0 {
			c.window += int64(f.Increment)
		} else {
			c.answer(h.StreamID).window += int64(f.Increment)
		}
	case *http2.RSTStreamFrame:
		a, code := c.sent(h), f.ErrCode
		if a.rst == nil {
			a.rst = &code
		} else if code != http2.ErrCodeStreamClosed {
			c.t.Errorf("stream %d: a second RST_STREAM, %v", a.id, code)
		}
	case *http2.MetaHeadersFrame:
		a := c.sent(h)
		if a.ended || a.rst != nil || a.trailers != nil {
			c.t.Errorf("stream %d: HEADERS after its end", a.id)
		}
		if a.headers == nil {
			a.headers = f.Fields
			if f.StreamEnded() {
				a.trailers = f.Fields
			}
		} else {
			a.trailers = f.Fields
			if len(f.PseudoFields()) > 0 || !f.StreamEnded() {
				c.t.Errorf("stream %d: trailers %v, END_STREAM %v", a.id, f.Fields, f.StreamEnded())
			}
		}
		a.ended = f.StreamEnded()
	case *http2.DataFrame:
		a := c.sent(h)
		if a.headers == nil || a.ended || a.rst != nil {
			c.t.Errorf("stream %d: DATA of %d bytes before HEADERS or after the end", a.id, h.Length)
		}
		a.data = append(a.data, f.Data()...)
		a.flow += int64(h.Length)
		a.frames++
		a.ended = f.StreamEnded()
		c.room -= int64(h.Length)
		if c.room < 0 {
			c.t.Errorf("the server exceeds the connection's window by %d bytes", -c.room)
		}
		if most := slices.Max(c.inits) + a.given; h.Length > 0 && a.flow > most {
			c.t.Errorf("stream %d: the server sent %d bytes of %d allowed", a.id, a.flow, most)
		}
		if h.Length > maxFrame {
			c.t.Errorf("stream %d: a frame of %d bytes", a.id, h.Length)
		}
		if c.lavish && h.Length > 0 {
			c.grant(0, h.Length)
			if !a.ended {
				c.grant(a.id, h.Length)
			}
		}
	default:
		c.t.Errorf("the server sent %v", h)
	}
}

// sent is the answer of a stream that the server sent something on.
func (c *client) sent(h http2.FrameHeader) *answer {
	if h.StreamID == 0 || h.StreamID%2 == 0 {
		c.t.Errorf("the server sent %v", h)
	}
	return c.answer(h.StreamID)
}

// request is the header list of a call.
func request(path string, more ...field) []field {
	return append([]field{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "x"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}}, more...)
}

// with returns fields with the values of some replaced.
func with(fields []field, replace ...field) []field {
	fields = slices.Clone(fields)
	for _, r := range replace {
		for i := range fields {
			if fields[i].Name == r.Name {
				fields[i].Value = r.Value
			}
		}
	}
	return fields
}

// without returns fields without some.
func without(fields []field, names ...string) []field {
	return slices.DeleteFunc(slices.Clone(fields), func(f field) bool { return slices.Contains(names, f.Name) })
}

// encode returns the header block of fields.
func (c *client) encode(fields []field) []byte {
	c.block.Reset()
	for _, f := range fields {
		_ = c.enc.WriteField(f)
	}
	return bytes.Clone(c.block.Bytes())
}

// headers opens the next stream by a list of headers.
func (c *client) headers(end bool, fields []field) *answer {
	id := c.next
	c.next += 2
	a := c.answer(id)
	block := c.encode(fields)
	var flags http2.Flags
	if end {
		flags = http2.FlagHeadersEndStream
	}
	first, typ := true, http2.FrameHeaders
	for first || len(block) > 0 {
		n := min(len(block), maxFrame)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		c.raw(typ, flags, id, block[:n])
		block, flags, first, typ = block[n:], 0, false, http2.FrameContinuation
	}
	return a
}

// open begins a call.
func (c *client) open(path string, more ...field) *answer {
	return c.headers(false, request(path, more...))
}

// start begins a call and sends all its messages.
func (c *client) start(path string, msg []byte, more ...field) *answer {
	c.t.Helper()
	a := c.open(path, more...)
	c.send(a, message(msg), true)
	return a
}

// call makes a call and waits for its end.
func (c *client) call(path string, msg []byte, more ...field) *answer {
	c.t.Helper()
	a := c.start(path, msg, more...)
	c.done(a)
	return a
}

// done waits for the end of a stream.
func (c *client) done(a *answer) {
	c.t.Helper()
	c.wait(fmt.Sprintf("the end of stream %d", a.id), a.over)
}

// data sends one DATA frame without a look at windows. pad is the number of
// bytes of padding, -1 for a frame that is not padded.
func (c *client) data(id uint32, b []byte, pad int, end bool) {
	var flags http2.Flags
	if end {
		flags |= http2.FlagDataEndStream
	}
	if pad >= 0 {
		flags |= http2.FlagDataPadded
		b = append(append([]byte{byte(pad)}, b...), make([]byte, pad)...)
	}
	c.raw(http2.FrameData, flags, id, b)
	c.window -= int64(len(b))
	c.answer(id).window -= int64(len(b))
}

// send sends bytes as windows allow. It gives up when the stream is over.
func (c *client) send(a *answer, b []byte, end bool) {
	c.t.Helper()
	for first := true; first || len(b) > 0; first = false {
		if !c.windows(a, min(len(b), 1)) {
			return
		}
		n := len(b)
		if n > 0 {
			n = int(min(int64(n), maxFrame, a.window, c.window))
		}
		c.data(a.id, b[:n], -1, end && n == len(b))
		b = b[n:]
	}
}

// windows waits until n bytes may be sent on a stream, and reports whether it is
// still open.
func (c *client) windows(a *answer, n int) bool {
	c.t.Helper()
	c.wait(fmt.Sprintf("windows for %d bytes on stream %d", n, a.id), func() bool {
		return a.over() || n == 0 || min(a.window, c.window) >= int64(n)
	})
	return !a.over()
}

// over reports whether nothing more comes on the stream.
func (a *answer) over() bool { return a.ended || a.rst != nil }

func get(fields []field, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

func values(fields []field, name string) (vs []string) {
	for _, f := range fields {
		if f.Name == name {
			vs = append(vs, f.Value)
		}
	}
	return vs
}

// code returns the call's status, or Unknown if it has none.
func (a *answer) code() codes.Code {
	n, err := strconv.Atoi(get(a.trailers, "grpc-status"))
	if err != nil {
		return codes.Unknown
	}
	return codes.Code(n)
}

func (a *answer) http() string { return get(a.headers, ":status") }

func (a *answer) text() string {
	s, err := url.PathUnescape(get(a.trailers, "grpc-message"))
	if err != nil {
		return err.Error()
	}
	return s
}

// messages cuts the data into messages.
func (a *answer) messages() (msgs [][]byte, err error) {
	b := a.data
	for len(b) > 0 {
		if len(b) < 5 {
			return msgs, fmt.Errorf("%d bytes after the last message", len(b))
		}
		n := int(binary.BigEndian.Uint32(b[1:]))
		if b[0] != 0 || len(b) < 5+n {
			return msgs, fmt.Errorf("a message with flag %d and %d of %d bytes", b[0], len(b)-5, n)
		}
		msgs, b = append(msgs, b[5:5+n]), b[5+n:]
	}
	return msgs, nil
}

func (a *answer) String() string {
	s := fmt.Sprintf("stream %d: headers %v, %d bytes of data, trailers %v, ended %v", a.id, a.headers, len(a.data), a.trailers, a.ended)
	if a.rst != nil {
		s += ", RST_STREAM " + a.rst.String()
	}
	return s
}

// ok checks that a call succeeded with these messages.
func (c *client) ok(a *answer, want ...[]byte) {
	c.t.Helper()
	got, err := a.messages()
	if err != nil || a.http() != "200" || !strings.HasPrefix(get(a.headers, "content-type"), "application/grpc") || !a.ended || a.code() != codes.OK ||
		!slices.EqualFunc(got, want, bytes.Equal) || a.rst != nil && *a.rst != http2.ErrCodeNo {
		c.t.Errorf("%v: %d messages, %v, %q", a, len(got), err, a.text())
	}
}

// status checks that a call failed with a status.
func (c *client) status(a *answer, want ...codes.Code) {
	c.t.Helper()
	c.done(a)
	if !a.ended || !slices.Contains(want, a.code()) || get(a.trailers, "grpc-status") == "" {
		c.t.Errorf("%v, want %v", a, want)
	}
}

// alive checks that the connection serves calls.
func (c *client) alive() {
	c.t.Helper()
	if c.closed == nil {
		c.ok(c.call(echo, []byte("alive")), []byte("alive"))
	} else {
		c.t.Errorf("the connection has ended: %v", c.closed)
	}
}

// streamError checks that the server resets the stream for one of these
// reasons, and goes on with the connection.
func (c *client) streamError(a *answer, want ...http2.ErrCode) {
	c.t.Helper()
	c.wait(fmt.Sprintf("RST_STREAM on stream %d", a.id), func() bool { return a.rst != nil || a.ended })
	if a.rst == nil || !slices.Contains(want, *a.rst) {
		c.t.Errorf("%v, want RST_STREAM with one of %v", a, want)
	}
	c.alive()
}

// refused checks that the server answers the stream with an error of HTTP/2,
// HTTP or gRPC, and goes on with the connection.
func (c *client) refused(a *answer) {
	c.t.Helper()
	c.done(a)
	if a.rst != nil && *a.rst != http2.ErrCodeNo {
		c.alive()
		return
	}
	if a.http() == "200" && a.code() == codes.OK || a.http() < "200" || a.http() > "599" {
		c.t.Errorf("%v, want an error", a)
	}
	c.alive()
}

// connError checks that the server ends the connection, with one of these
// reasons if it gives one. transport.New always gives one, unless its socket had
// more to read: then the reason may be lost.
func (c *client) connError(want ...http2.ErrCode) {
	c.t.Helper()
	c.wait("GOAWAY or the end of the connection", func() bool { return len(c.goaways) > 0 || c.closed != nil })
	c.hungUpOn()
	if len(c.goaways) == 0 {
		if c.own && strings.Contains(c.closed.Error(), "EOF") {
			c.t.Errorf("the connection ends without GOAWAY, want one of %v", want)
		}
		return
	}
	if last := c.goaways[len(c.goaways)-1]; !slices.Contains(want, last.code) {
		c.t.Errorf("GOAWAY %+v, want one of %v", last, want)
	}
}

// hungUpOn waits for the end of the connection. grpc-go gives clients a second
// to hang up first, which the client does then to save the time.
func (c *client) hungUpOn() {
	c.t.Helper()
	if !c.own {
		c.conn.Close()
	}
	c.wait("the end of the connection", func() bool { return c.closed != nil })
}

// streamOrConnError accepts both.
func (c *client) streamOrConnError(a *answer, want ...http2.ErrCode) {
	c.t.Helper()
	c.wait(fmt.Sprintf("RST_STREAM on stream %d, or GOAWAY", a.id), func() bool { return a.rst != nil || c.closed != nil || len(c.goaways) > 0 })
	if a.rst != nil && len(c.goaways) == 0 {
		if !slices.Contains(want, *a.rst) {
			c.t.Errorf("%v, want RST_STREAM with one of %v", a, want)
		}
		return
	}
	c.connError(want...)
}

// message frames a message of gRPC.
func message(b []byte) []byte { return flagged(0, uint32(len(b)), b) }

func flagged(flag byte, length uint32, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, length), b...)
}

func binaryValue(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) }
