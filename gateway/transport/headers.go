package transport

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// headers collects the headers of a connection's answers, one answer after the other. It is
// guarded by the connection's lock.
type headers struct {
	c      *conn
	fields []hpack.HeaderField
	size   uint64 // as RFC 9113 6.5.2 counts it
	buf    bytes.Buffer
	enc    *hpack.Encoder
	// binary has the encoding of values that answers have often, such as their location.
	binary map[string]string
}

const (
	maxBinary      = 64  // values in headers.binary
	maxBinaryBytes = 128 // of one
	tableBytes     = 4 << 10
)

// headersLocked returns the connection's headers, empty.
func (c *conn) headersLocked() *headers {
	h := &c.mu.headers
	h.fields, h.size = h.fields[:0], 0
	return h
}

func (h *headers) add(name, value string) {
	f := hpack.HeaderField{Name: name, Value: value}
	h.fields = append(h.fields, f)
	h.size += uint64(f.Size())
}

// addAll adds metadata of a handler. What gRPC reserves is left out.
func (h *headers) addAll(mds []metadata.MD) {
	for _, md := range mds {
		for k, vs := range md {
			if reserved(k) || k == detailsHeader {
				continue
			}
			for _, v := range vs {
				if strings.HasSuffix(k, "-bin") {
					v = h.encoded(v)
				}
				h.add(k, v)
			}
		}
	}
}

const (
	messageHeader = "grpc-message"
	// detailsHeader has a google.rpc.Status with details.
	detailsHeader = "grpc-status-details-bin"
)

// encoded returns the form of a binary value.
func (h *headers) encoded(v string) string {
	if e, ok := h.binary[v]; ok {
		return e
	}
	e := base64.RawStdEncoding.EncodeToString([]byte(v))
	if len(v) <= maxBinaryBytes && len(h.binary) < maxBinary {
		h.binary[v] = e
	}
	return e
}

// status adds a status, nil for OK.
func (h *headers) status(st *status.Status) {
	h.add("grpc-status", strconv.Itoa(int(st.Code())))
	if m := st.Message(); m != "" {
		h.add(messageHeader, encodeMessage(m))
	}
	if p := st.Proto(); len(p.GetDetails()) > 0 {
		// What cannot be encoded was made by a handler; code and message are the client's.
		if b, err := proto.Marshal(p); err == nil {
			h.add(detailsHeader, base64.RawStdEncoding.EncodeToString(b))
		}
	}
}

// fit tells whether the client takes them. It first leaves out of a status what the client can
// do without: the details, then the end of the message.
func (h *headers) fit() bool {
	index := func(name string) int {
		return slices.IndexFunc(h.fields, func(f hpack.HeaderField) bool { return f.Name == name })
	}
	most := h.c.mu.maxHeaderBytes
	if h.size <= most {
		return true
	}
	if i := index(detailsHeader); i >= 0 {
		h.size -= uint64(h.fields[i].Size())
		h.fields = slices.Delete(h.fields, i, i+1)
	}
	if i := index(messageHeader); i >= 0 && h.size > most {
		f := &h.fields[i]
		short := cutMessage(f.Value, h.size-most)
		h.size -= uint64(len(f.Value) - len(short))
		f.Value = short
	}
	return h.size <= most
}

// write adds the frames of the headers to what is to be written.
func (h *headers) write(stream uint32, end bool) {
	c := h.c
	if c.mu.closed {
		return
	}
	h.buf.Reset()
	for _, f := range h.fields {
		_ = h.enc.WriteField(f) // a bytes.Buffer takes everything
	}
	clear(h.fields) // the strings are others' to free
	c.grow(0)
	c.mu.answered = true
	b, out := h.buf.Bytes(), c.mu.out
	flags, t := http2.Flags(0), http2.FrameHeaders
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		n := min(len(b), maxFrame)
		if n == len(b) {
			flags |= http2.FlagHeadersEndHeaders
		}
		out = append(appendFrameHeader(out, n, t, flags, stream), b[:n]...)
		if b = b[n:]; len(b) == 0 {
			break
		}
		flags, t = 0, http2.FrameContinuation
	}
	c.mu.out = out
	if h.buf.Cap() > maxFrame {
		h.buf = bytes.Buffer{} // the encoder writes to h.buf, wherever that has its bytes
	}
}

// reserved tells whether a header is gRPC's own, so that it is no metadata.
func reserved(name string) bool {
	if name == "" || name[0] == ':' {
		return true
	}
	switch name {
	case "content-type", "user-agent", "grpc-message-type", "grpc-encoding", messageHeader, "grpc-status", "grpc-timeout", "te":
		return true
	}
	return false
}

// A requestHead is what the headers of a request say.
type requestHead struct {
	fields    []hpack.HeaderField // in their order; reused
	size      uint64
	truncated bool // beyond the limit

	method, path, scheme, authority string
	contentType, encoding, subtype  string
	timeout                         time.Duration
	timed, typed                    bool
	hosts, authorities              int
}

// errMalformed says that headers break HTTP/2.
type errMalformed string

func (e errMalformed) Error() string { return string(e) }

// parse looks at the fields, and leaves in them those that are metadata.
func (h *requestHead) parse() (malformed error, bad error) {
	kept := h.fields[:0]
	regular, host := false, ""
	for _, f := range h.fields {
		if f.Name == "" {
			return errMalformed("a header without a name"), nil
		}
		if !httpguts.ValidHeaderFieldValue(f.Value) {
			return errMalformed("an invalid value"), nil
		}
		if f.Name[0] == ':' {
			if regular {
				return errMalformed("a pseudo-header behind a header"), nil
			}
			var to *string
			switch f.Name {
			case ":method":
				to = &h.method
			case ":path":
				to = &h.path
			case ":scheme":
				to = &h.scheme
			case ":authority":
				h.authorities++
				h.authority = f.Value
				continue
			default:
				return errMalformed("an unknown pseudo-header"), nil
			}
			if *to != "" {
				return errMalformed("a pseudo-header twice"), nil
			}
			*to = f.Value
			continue
		}
		regular = true
		if !validName(f.Name) {
			return errMalformed("an invalid header"), nil
		}
		switch f.Name {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
			return errMalformed("a header of connections"), nil
		case "content-type":
			h.contentType = f.Value
			var ok bool
			if h.subtype, ok = subtypeOf(f.Value); ok {
				h.typed = true
			}
		case "grpc-encoding":
			h.encoding = f.Value
			continue
		case "grpc-timeout":
			d, err := parseTimeout(f.Value)
			if err != nil && bad == nil {
				bad = fmt.Errorf("malformed grpc-timeout: %w", err)
			}
			h.timeout, h.timed = d, true
			continue
		case "host":
			h.hosts++
			host = f.Value
			continue
		case "user-agent":
		default:
			if reserved(f.Name) {
				continue
			}
			if strings.HasSuffix(f.Name, "-bin") {
				b, err := decodeBinary(f.Value)
				if err != nil && bad == nil {
					bad = fmt.Errorf("malformed binary metadata %q in header %q: %w", f.Value, f.Name, err)
				}
				f.Value = b
			}
		}
		kept = append(kept, f)
	}
	if h.authorities == 0 {
		h.authority = host
	}
	if h.authorities+h.hosts > 0 {
		kept = append(kept, hpack.HeaderField{Name: ":authority", Value: h.authority})
	}
	h.fields = kept
	if h.method == "" || h.path == "" || h.scheme == "" {
		return errMalformed("a pseudo-header is missing"), bad
	}
	return nil, bad
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c == '-' || c >= '0' && c <= '9' || c == '_' || c == '.' {
			continue
		}
		if c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf || !httpguts.IsTokenRune(rune(c)) {
			return false
		}
	}
	return true
}

// decodeBinary decodes a binary value, padded or not.
func decodeBinary(v string) (string, error) {
	enc := base64.RawStdEncoding
	if len(v)%4 == 0 {
		enc = base64.StdEncoding
	}
	b, err := enc.DecodeString(v)
	return string(b), err
}

const grpcType = "application/grpc"

// subtypeOf returns the part of gRPC's content type that names the codec.
func subtypeOf(v string) (subtype string, ok bool) {
	if v == grpcType {
		return "", true
	}
	v = strings.ToLower(v)
	rest, ok := strings.CutPrefix(v, grpcType)
	switch {
	case !ok:
		return "", false
	case rest == "":
		return "", true
	case rest[0] == '+' || rest[0] == ';':
		return rest[1:], true
	}
	return "", false
}

func contentType(subtype string) string {
	if subtype == "" {
		return grpcType
	}
	return grpcType + "+" + subtype
}

var timeoutUnits = map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}

// parseTimeout parses up to eight digits and a unit.
func parseTimeout(v string) (time.Duration, error) {
	if len(v) < 2 || len(v) > 9 {
		return 0, fmt.Errorf("%q has not 2 to 9 characters", v)
	}
	unit, ok := timeoutUnits[v[len(v)-1]]
	if !ok {
		return 0, fmt.Errorf("%q has no unit", v)
	}
	n, err := strconv.ParseUint(v[:len(v)-1], 10, 63)
	if err != nil {
		return 0, err
	}
	if n > uint64(math.MaxInt64/int64(unit)) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * unit, nil
}

// encodeMessage encodes a status message: what is not printable ASCII is percent-encoded, what
// is not UTF-8 becomes the replacement character.
func encodeMessage(m string) string {
	plain := func(c byte) bool { return c >= ' ' && c <= '~' && c != '%' }
	i := 0
	for i < len(m) && plain(m[i]) {
		i++
	}
	if i == len(m) {
		return m
	}
	var b strings.Builder
	for _, c := range []byte(strings.ToValidUTF8(m, string(utf8.RuneError))) {
		if plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// cutMessage takes at least n bytes off the end of what encodeMessage returned, or all of it,
// between two characters.
func cutMessage(m string, n uint64) string {
	if n >= uint64(len(m)) {
		return ""
	}
	i := len(m) - int(n)
	if at := strings.LastIndexByte(m[:i], '%'); at >= 0 && at > i-3 {
		i = at // within an escape
	}
	for i > 0 && m[i] == '%' && strings.IndexByte("89AB", m[i+1]) >= 0 {
		i -= 3 // before a byte that goes on with a character
	}
	return m[:i]
}
