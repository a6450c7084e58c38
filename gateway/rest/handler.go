package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// A Caller calls unary methods.
type Caller interface {
	// Call calls the method with the given full name, as if md had come with it
	// as a gRPC request's metadata. decode fills in the request message; it is
	// called once if the caller is known, and not at all otherwise. Errors are
	// gRPC statuses; those of decode become one.
	Call(ctx context.Context, method string, md metadata.MD, decode func(proto.Message) error) (proto.Message, error)
}

// A Streamer is a Caller that calls methods with many answers too.
type Streamer interface {
	Caller
	// Stream is Call for such a method. send gets each answer encoded, and may not keep
	// it; its error ends the call.
	Stream(ctx context.Context, method string, md metadata.MD, decode func(proto.Message) error, send func(encoded []byte) error) error
}

// Options bound what a handler does at a time. The zero value is good.
type Options struct {
	// MaxBody is the length in bytes of the longest body that is read. Zero means
	// 16 MiB.
	MaxBody int64
	// Memory has restCost times the length of each body that is being read or
	// handled. Nil has no bound.
	Memory *budget.Budget
	// BodyTimeout is how long a client may take to send a body. Zero means 30 s.
	BodyTimeout time.Duration
	// Concurrent is how many requests are served at a time; others wait. Zero
	// means 32.
	Concurrent int
	// TurnTimeout is how long a request waits for its turn before it is refused. Zero
	// means a minute.
	TurnTimeout time.Duration
}

// A Handler serves the Bigtable admin services, operations and IAM over HTTP. The server that
// it is in bounds how long a write to a client takes.
type Handler struct {
	caller Caller
	o      Options
	routes []route
	turns  chan struct{}
}

// restCost is how many bytes a byte of a body takes: read, decoded, and encoded
// again.
const restCost = 4

// New returns a Handler that calls c.
func New(c Caller, o Options) (*Handler, error) {
	routes, err := routesOf(services)
	if err != nil {
		return nil, err
	}
	if _, ok := c.(Streamer); ok {
		more, err := queryRoutes()
		if err != nil {
			return nil, err
		}
		data, err := rowRoutes()
		if err != nil {
			return nil, err
		}
		routes = append(append(more, data...), routes...)
	}
	if o.MaxBody == 0 {
		o.MaxBody = 16 << 20
	}
	if o.Memory != nil {
		o.MaxBody = min(o.MaxBody, o.Memory.Limit()/restCost)
	}
	if o.BodyTimeout == 0 {
		o.BodyTimeout = 30 * time.Second
	}
	if o.Concurrent == 0 {
		o.Concurrent = 32
	}
	if o.TurnTimeout == 0 {
		o.TurnTimeout = time.Minute
	}
	return &Handler{caller: c, o: o, routes: routes, turns: make(chan struct{}, o.Concurrent)}, nil
}

// forwarded are the headers that the call gets as metadata.
var forwarded = []string{"Authorization", "User-Agent", "Traceparent", "Trestle-Restore-Time", "Trestle-Read-Only"}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.Header().Set("Cache-Control", "private, no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	b, err := h.inTurn(w, r)
	if errors.Is(err, errSent) {
		return
	}
	if err != nil {
		var httpCode int
		if httpCode, b = errorJSON(err); httpCode == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer realm="https://accounts.google.com/"`)
		}
		w.WriteHeader(httpCode)
	}
	_, _ = w.Write(b) // the client takes it in its own time
}

// errTurns refuses a request whose turn does not come.
var errTurns = &fault.Error{Kind: fault.Unavailable, RetryAfter: time.Second, Msg: "As many requests as the server takes over HTTP are being served, try again"}

// inTurn serves a request when it is its turn, which ends before the answer is written, but
// for one of a method that has many.
func (h *Handler) inTurn(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	select {
	case h.turns <- struct{}{}:
		defer func() { <-h.turns }()
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(h.o.TurnTimeout):
		return nil, errTurns
	}
	// A body of unknown length takes what the longest one does.
	n := restCost * r.ContentLength
	if n < 0 || n > restCost*h.o.MaxBody {
		n = restCost * h.o.MaxBody
	}
	if !h.o.Memory.Try(n) {
		return nil, budget.Busy()
	}
	defer h.o.Memory.Release(n)
	return h.serve(w, r)
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	rt, values, err := h.find(w, r)
	if err != nil {
		return nil, err
	}
	// Some send the semicolon of $alt=json;enum-encoding=int as it is.
	query, err := url.ParseQuery(strings.ReplaceAll(r.URL.RawQuery, ";", "%3B"))
	if err != nil {
		return nil, fault.New(fault.Invalid, "Query cannot be read")
	}
	out, err := system(query)
	if err != nil {
		return nil, err
	}
	md := metadata.MD{}
	for _, name := range forwarded {
		if v := r.Header.Values(name); len(v) > 0 {
			md[strings.ToLower(name)] = v
		}
	}
	if rt.bound != nil {
		md["bigtable-features"] = []string{rowFeatures}
	}
	decode := func(m proto.Message) error {
		body, err := h.body(w, r)
		if err == nil {
			err = rt.bindBody(m, body)
		}
		if err == nil {
			err = rt.bindQuery(m, query)
		}
		if err == nil {
			rt.bindPath(m, values)
		}
		if err == nil && rt.bound != nil {
			rt.bound(m)
		}
		return err
	}
	ctx := peer.NewContext(r.Context(), peerOf(r))
	if rt.answers != nil {
		return nil, h.stream(ctx, w, rt, md, decode, out)
	}
	resp, err := h.caller.Call(ctx, rt.rpc, md, decode)
	if err != nil {
		return nil, err
	}
	b, err := out.Marshal(resp)
	if err != nil {
		return nil, err
	}
	return indent(b), nil
}

// errMethod answers a path that is served, but not by that method.
var errMethod = errors.New("The current request is matched to a path, but its HTTP method is not allowed.")

// find returns the route of a request and the values of its path's fields.
func (h *Handler) find(w http.ResponseWriter, r *http.Request) (*route, []string, error) {
	path := r.URL.EscapedPath()
	var allow []string
	for i := range h.routes {
		rt := &h.routes[i]
		values, ok, err := rt.match(path)
		switch {
		case !ok:
		case err != nil:
			return nil, nil, fault.New(fault.Invalid, "%w", err)
		case rt.method == r.Method:
			return rt, values, nil
		case !slices.Contains(allow, rt.method):
			allow = append(allow, rt.method)
		}
	}
	if allow != nil {
		w.Header().Set("Allow", strings.Join(allow, ", "))
		return nil, nil, errMethod
	}
	return nil, nil, fault.New(fault.NotFound, "The requested URL %s was not found on this server.", shorten(r.URL.Path))
}

// system takes the parameters that every method has out of a query and returns
// how the answer is to be written. There is one form of answers, so most change
// nothing; a token is taken from its header only, where no log shows it.
func system(query url.Values) (protojson.MarshalOptions, error) {
	var out protojson.MarshalOptions
	for _, name := range []string{"alt", "$alt"} {
		format, encoding, _ := strings.Cut(query.Get(name), ";")
		if format != "" && format != "json" || encoding != "" && encoding != "enum-encoding=int" {
			return out, fault.InvalidField(name, "Invalid value \"%s\" for parameter '%s': answers are JSON", shorten(query.Get(name)), name)
		}
		out.UseEnumNumbers = out.UseEnumNumbers || encoding != ""
	}
	for _, name := range []string{"alt", "$alt", "prettyPrint", "$prettyPrint", "fields", "$fields", "key", "$key", "quotaUser", "$quotaUser",
		"userIp", "uploadType", "upload_protocol", "$.xgafv", "access_token", "oauth_token"} {
		query.Del(name)
	}
	return out, nil
}

// body reads what came with a request.
func (h *Handler) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// What is not read in time is not waited for. Afterwards the connection is
	// watched for the client's going away, which must not end as this does.
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(h.o.BodyTimeout))
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.o.MaxBody))
	_ = c.SetReadDeadline(time.Time{})
	if tooLong, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, fault.New(fault.Invalid, "Request payload size exceeds the limit: %d bytes.", tooLong.Limit)
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return nil, status.Error(codes.DeadlineExceeded, "The request's body did not come in time")
	}
	if err != nil {
		return nil, status.Error(codes.Canceled, "The request's body ended early")
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, nil
	}
	// A form of a web page cannot have this type.
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, fault.New(fault.Invalid, "The content type of the body must be application/json")
	}
	return b, nil
}

// address is a net.Addr as HTTP knows it.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func peerOf(r *http.Request) *peer.Peer {
	p := &peer.Peer{Addr: address(r.RemoteAddr)}
	if r.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *r.TLS}
	}
	return p
}

// httpCodes are those of google.rpc.Code.
var httpCodes = [...]int{
	codes.OK:                 http.StatusOK,
	codes.Canceled:           499,
	codes.Unknown:            http.StatusInternalServerError,
	codes.InvalidArgument:    http.StatusBadRequest,
	codes.DeadlineExceeded:   http.StatusGatewayTimeout,
	codes.NotFound:           http.StatusNotFound,
	codes.AlreadyExists:      http.StatusConflict,
	codes.PermissionDenied:   http.StatusForbidden,
	codes.ResourceExhausted:  http.StatusTooManyRequests,
	codes.FailedPrecondition: http.StatusBadRequest,
	codes.Aborted:            http.StatusConflict,
	codes.OutOfRange:         http.StatusBadRequest,
	codes.Unimplemented:      http.StatusNotImplemented,
	codes.Internal:           http.StatusInternalServerError,
	codes.Unavailable:        http.StatusServiceUnavailable,
	codes.DataLoss:           http.StatusInternalServerError,
	codes.Unauthenticated:    http.StatusUnauthorized,
}

// errorJSON returns what a client is told of an error: of a status or a fault
// that is written for clients.
func errorJSON(err error) (httpCode int, b []byte) {
	var out struct {
		Error struct {
			Code    int               `json:"code"`
			Message string            `json:"message"`
			Status  string            `json:"status,omitempty"`
			Details []json.RawMessage `json:"details,omitempty"`
		} `json:"error"`
	}
	e := &out.Error
	if errors.Is(err, errMethod) {
		e.Code, e.Message = http.StatusMethodNotAllowed, errMethod.Error()
	} else {
		st := wire.Status(context.Background(), slog.Default(), err).Proto()
		e.Code, e.Message, e.Status = http.StatusInternalServerError, st.GetMessage(), code.Code(st.GetCode()).String()
		if c := int(st.GetCode()); c >= 0 && c < len(httpCodes) {
			e.Code = httpCodes[c]
		}
		for _, d := range st.GetDetails() {
			if b, err := protojson.Marshal(d); err == nil { // of a known type
				e.Details = append(e.Details, b)
			}
		}
	}
	b, _ = json.Marshal(out)
	return e.Code, indent(b)
}

// indent writes JSON as people read it, the same each time.
func indent(b []byte) []byte {
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return b
	}
	out.WriteByte('\n')
	return out.Bytes()
}
