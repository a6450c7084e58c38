package ops

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
)

// An Audience is who may use a path.
type Audience uint8

const (
	// LoggedIn are those whom the path's handler has found to be somebody who may.
	// Where nobody logs in they are those on this machine.
	LoggedIn Audience = iota
	// Everybody is who reaches the address.
	Everybody
)

// A Route is a pattern of http.ServeMux and what serves it. That a new one is
// open to everybody has to be said.
type Route struct {
	Pattern string
	For     Audience
	Handler http.Handler
}

// A Gate keeps those out for whom a path is not.
type Gate struct {
	// Login says that the handlers of what is LoggedIn know their callers.
	Login bool
	// Insecure lets others than those on this machine in without login.
	Insecure bool
	// Pages says what the pages of this origin may ask for, which are the console's.
	Pages Pages
}

// Pages is what a browser's pages of this origin may ask for.
type Pages uint8

const (
	// NoPages refuses whatever seems to come from a page.
	NoPages Pages = iota
	// ReadPages lets them ask for what changes nothing.
	ReadPages
	// AllPages lets them ask for what their callers may.
	AllPages
)

// SessionCookie has the token of a browser's session. Its prefix has browsers keep it to
// this host, over TLS or on this machine.
const SessionCookie = "__Host-trestle"

// Handler serves routes.
func (g Gate) Handler(routes []Route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		h := r.Handler
		if r.For != Everybody {
			h = g.guard(h)
		}
		mux.Handle(r.Pattern, h)
	}
	return mux
}

// guard refuses what seems to come from a page of another site and, without
// login, from elsewhere.
func (g Gate) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := g.fromPage(r)
		if err == nil && !g.Login && !g.Insecure {
			err = fromElsewhere(r)
		}
		if err != nil {
			writeJSON(w, statusOf(err), map[string]string{"error": err.Error()})
			return
		}
		h.ServeHTTP(w, r)
	})
}

// crossOrigin refuses changes that pages of other origins ask for.
var crossOrigin = http.NewCrossOriginProtection()

// fromPage tells why a request that seems to be a browser's is refused. One of a page of
// this origin gets the credentials of its session: other requests are not given them.
func (g Gate) fromPage(r *http.Request) error {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	if g.Pages == NoPages {
		if origin != "" {
			return fault.New(fault.PermissionDenied, "this service is not for browsers")
		}
		return nil
	}
	foreign := site != "" && site != "same-origin" && site != "none" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
	if foreign || origin != "" && !sameOrigin(origin, r) || crossOrigin.Check(r) != nil {
		return fault.New(fault.PermissionDenied, "the request comes from a page of another site")
	}
	if g.Pages == ReadPages && (site == "same-origin" || origin != "") { // old browsers send Origin only
		if !readsOnly(r) {
			return fault.New(fault.PermissionDenied, "%s", forReading)
		}
		r.Header.Set(readOnlyHeader, forReading)
	}
	if site != "same-origin" {
		return nil
	}
	if g.Login && len(r.Header.Values("Authorization")) == 0 {
		if c, err := r.Cookie(SessionCookie); err == nil {
			r.Header.Set("Authorization", "Bearer "+c.Value)
		}
	}
	return nil
}

// readOnlyHeader tells REST why a statement that writes is refused.
const (
	readOnlyHeader = "Trestle-Read-Only"
	forReading     = "this console is for reading only (--console read)"
)

func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host == r.Host && u.Host != ""
}

// readsOnly tells whether a request changes nothing but its caller's session, as far as its
// path tells: a query may be a statement that writes.
func readsOnly(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return true
	case http.MethodPost:
		_, verb, _ := strings.Cut(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], ":")
		return slices.Contains([]string{"rows", "query", "prepareQuery", "executeQuery", "getIamPolicy", "testIamPermissions"}, verb) || r.URL.Path == SessionPath
	}
	return r.Method == http.MethodDelete && r.URL.Path == SessionPath
}

// SessionPath is where the console's callers log in and out.
const SessionPath = "/console/session"

// forwarding are the headers by which proxies say for whom they ask.
var forwarding = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"}

// fromElsewhere tells why a request is not one of this machine. What its headers
// say of where it comes from can only keep it out: who asks may write them, but a
// proxy on this machine asks for others.
func fromElsewhere(r *http.Request) error {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && a.Network() == "unix" {
		return nil // who may is up to the directory that the socket is in
	}
	denied := func(why string) error {
		return fault.New(fault.PermissionDenied, "%s: without login (auth) this service is for callers on this machine only, unless insecure is set", why)
	}
	if !loopbackHost(r.RemoteAddr) {
		return denied("the request comes from " + r.RemoteAddr)
	}
	for _, h := range forwarding {
		if r.Header.Get(h) != "" {
			return denied("the request was forwarded (" + h + ")")
		}
	}
	// A page can be reached by a name that was made to lead here.
	if !loopbackHost(r.Host) {
		return denied(fmt.Sprintf("host %q is not this machine (ask for localhost or a loopback address)", r.Host))
	}
	return nil
}

func loopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host, _, _ = strings.Cut(strings.Trim(host, "[]"), "%")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
