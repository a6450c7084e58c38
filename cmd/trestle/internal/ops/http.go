package ops

import (
	"log"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Routes are /metrics, /metrics/tablets, /healthz, /livez and /readyz. Those who
// ask for them have no credentials.
func Routes(m *Metrics, h *Health) []Route {
	return []Route{
		{"GET /metrics", Everybody, promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4, Timeout: 10 * time.Second})},
		{"GET /metrics/tablets", Everybody, &m.tablets},
		{"GET /readyz", Everybody, http.HandlerFunc(h.serveReady)},
		{"GET /healthz", Everybody, http.HandlerFunc(serveLive)},
		{"GET /livez", Everybody, http.HandlerFunc(serveLive)},
	}
}

// DebugRoutes are those of the Go profiler, which tells much about the server and
// lets anyone slow it down. Its tools have no credentials, so it is for a
// loopback address and for those on this machine.
func DebugRoutes() []Route {
	out := []Route{{"/debug/pprof/", LoggedIn, http.HandlerFunc(pprof.Index)}}
	for name, f := range map[string]http.HandlerFunc{"cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		out = append(out, Route{"/debug/pprof/" + name, LoggedIn, f})
	}
	return out
}

// Server returns an HTTP server for h that slow or idle clients cannot hold up, if it serves a
// Listener. errs gets what it has to say that is no answer.
func Server(h http.Handler, errs *log.Logger) *http.Server {
	return &http.Server{Handler: h, ErrorLog: errs, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
}

// A client has takeLimit to take takePart bytes of an answer. An answer as a whole has no
// limit: that of a query takes as long as the query.
const (
	takeLimit = 30 * time.Second
	takePart  = 64 << 10
)

// Listener returns l with connections that break when their client does not read. TLS goes
// above it.
func Listener(l net.Listener) net.Listener { return listener{l, takeLimit} }

type listener struct {
	net.Listener
	limit time.Duration
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return conn{c, l.limit}, nil
}

type conn struct {
	net.Conn
	limit time.Duration
}

func (c conn) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, takePart) {
		if err := c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
			return n, err
		}
		sent, err := c.Conn.Write(part)
		if n += sent; err != nil {
			return n, err
		}
	}
	return n, nil
}
