package console

import (
	"embed"
	"encoding/json"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth"
)

//go:embed assets
var embedded embed.FS

// Path is where the console begins.
const Path = "/console/"

// sessionLife is how long a session lasts at most.
const sessionLife = 8 * time.Hour

// policy is the Content-Security-Policy of all answers: nothing from elsewhere, no script
// in the page, no text that becomes a script or markup, and no frame around the page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Options describe the process to the pages.
type Options struct {
	// ReadOnly has sessions that are good for reading only, and pages that change nothing.
	ReadOnly bool
	// Login says that callers log in.
	Login bool
	// Provider is an OpenID Connect provider; nil if there is none.
	Provider *Provider
	// Version is that of the program, Cluster the name that clients are told, API where
	// gRPC is served.
	Version, Cluster, API string
	// Emulator says that any instance may be used without being created.
	Emulator bool
}

// A Console serves the pages.
type Console struct {
	o      Options
	began  time.Time
	opened atomic.Pointer[opened]
	files  http.Handler
}

// opened is what is known once the server's data is open.
type opened struct {
	who      *auth.Auth
	tokenURI string
}

// New returns a Console whose callers are not known yet.
func New(o Options) *Console {
	return &Console{o: o, began: time.Now(), files: assets()}
}

// Start makes who know the callers. tokenURI is the audience of what service accounts sign
// for /token.
func (c *Console) Start(who *auth.Auth, tokenURI string) { c.opened.Store(&opened{who, tokenURI}) }

// Routes are what is below /console/, and the way there.
func (c *Console) Routes() []ops.Route {
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = "/index.html"
		c.files.ServeHTTP(w, r)
	})
	out := []ops.Route{
		{Pattern: "GET /{$}", For: ops.LoggedIn, Handler: http.HandlerFunc(root)},
		{Pattern: "GET /console/{$}", For: ops.LoggedIn, Handler: page},
		{Pattern: "GET /console/assets/", For: ops.LoggedIn, Handler: http.StripPrefix("/console/assets", c.files)},
		{Pattern: "GET " + ops.SessionPath, For: ops.LoggedIn, Handler: http.HandlerFunc(c.session)},
		{Pattern: "POST " + ops.SessionPath, For: ops.LoggedIn, Handler: http.HandlerFunc(c.logIn)},
		{Pattern: "DELETE " + ops.SessionPath, For: ops.LoggedIn, Handler: http.HandlerFunc(c.logOut)},
	}
	if c.o.Provider != nil {
		out = append(out,
			ops.Route{Pattern: "GET /console/oidc/start", For: ops.LoggedIn, Handler: http.HandlerFunc(c.startProvider)},
			ops.Route{Pattern: "GET " + callbackPath, For: ops.LoggedIn, Handler: http.HandlerFunc(c.finishProvider)})
	}
	return out
}

// root leads browsers to the console. Programs that ask for nothing in particular are
// told, as for every path that is not served.
func root(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.NotFound(w, r)
		return
	}
	http.Redirect(w, r, Path, http.StatusSeeOther)
}

// secure sets what protects a page.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
}

// assets serves the embedded files. Browsers ask whether what they have is still good:
// the next build has the same names.
func assets() http.Handler {
	root, err := fs.Sub(embedded, "assets")
	if err != nil {
		panic(err) // the directory is in the binary
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
		b, err := fs.ReadFile(root, name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		tag := digest(b)
		w.Header().Set("Content-Type", contentType(name))
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(b)
	})
}

func contentType(name string) string {
	switch path.Ext(name) {
	case ".js": // whatever the machine's table says
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "text/plain; charset=utf-8"
}

// sessionJSON is what a page knows of its process and its caller.
type sessionJSON struct {
	Login     bool      `json:"login"`
	Principal string    `json:"principal,omitempty"` // empty: not logged in
	Root      bool      `json:"root"`
	ReadOnly  bool      `json:"read_only"`
	OIDC      bool      `json:"oidc"`
	Audience  string    `json:"audience"` // of what a key signs for /token
	Version   string    `json:"version"`
	Cluster   string    `json:"cluster"`
	API       string    `json:"api"`
	Emulator  bool      `json:"emulator"`
	Started   time.Time `json:"started"`
	Now       time.Time `json:"now"`
}

func (c *Console) session(w http.ResponseWriter, r *http.Request) {
	out := sessionJSON{Login: c.o.Login, ReadOnly: c.o.ReadOnly, OIDC: c.o.Provider != nil,
		Version: c.o.Version, Cluster: c.o.Cluster, API: c.o.API, Emulator: c.o.Emulator, Started: c.began.UTC(), Now: time.Now().UTC()}
	o := c.opened.Load()
	if o == nil {
		fail(w, http.StatusServiceUnavailable, "the server is starting: its data is still being opened")
		return
	}
	out.Audience = o.tokenURI
	if id, err := o.who.Whose(r.Context(), r.Header.Values("Authorization")); err == nil {
		out.Principal, out.Root = id.Member, id.Root
	}
	answer(w, http.StatusOK, out)
}

// maxLogin bounds the body of a login: a token and its frame.
const maxLogin = 16 << 10

// logIn makes a session of an access token.
func (c *Console) logIn(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Token string `json:"token"`
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		fail(w, http.StatusBadRequest, "the content type must be application/json")
		return
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLogin))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil || in.Token == "" {
		fail(w, http.StatusBadRequest, `the body must be {"token": "…"}, a token of /token, and shorter than 16 KiB`)
		return
	}
	if err := c.begin(w, r, in.Token); err != nil {
		fail(w, statusOf(err), err.Error())
		return
	}
	answer(w, http.StatusOK, struct{}{})
}

// begin gives the browser a session for a token.
func (c *Console) begin(w http.ResponseWriter, r *http.Request, token string) error {
	o := c.opened.Load()
	if o == nil {
		return fault.New(fault.Unavailable, "the server is starting: its data is still being opened")
	}
	session, expires, err := o.who.Session(r.Context(), "Bearer "+token, sessionLife, c.o.ReadOnly)
	if err != nil {
		return err
	}
	http.SetCookie(w, cookie(ops.SessionCookie, session, int(time.Until(expires)/time.Second), http.SameSiteStrictMode))
	return nil
}

func (c *Console) logOut(w http.ResponseWriter, _ *http.Request) {
	http.SetCookie(w, cookie(ops.SessionCookie, "", -1, http.SameSiteStrictMode))
	answer(w, http.StatusOK, struct{}{})
}

// cookie returns one that only this host gets, and no script.
func cookie(name, value string, seconds int, site http.SameSite) *http.Cookie {
	return &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: seconds, Secure: true, HttpOnly: true, SameSite: site}
}

func statusOf(err error) int {
	switch {
	case auth.Unauthenticated(err):
		return http.StatusUnauthorized
	case fault.KindOf(err) == fault.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func answer(w http.ResponseWriter, status int, v any) {
	secure(w.Header())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, why string) {
	answer(w, status, map[string]string{"error": why})
}
