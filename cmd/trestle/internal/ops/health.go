package ops

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// Health is the list of reasons for which a server may not be ready.
type Health struct {
	mu struct {
		sync.Mutex
		checks []check // in the order of registration
		warn   func() []string
	}
}

type check struct {
	name string
	fn   func() error
}

// Set makes fn the check of that name, in place of an earlier one. fn returns
// why the server is not ready, or nil, without blocking; it may be called at
// any time by several goroutines at once.
func (h *Health) Set(name string, fn func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.mu.checks {
		if h.mu.checks[i].name == name {
			h.mu.checks[i].fn = fn
			return
		}
	}
	h.mu.checks = append(h.mu.checks, check{name, fn})
}

// SetWarnings makes fn tell what an operator should know of a server that is
// ready all the same, a line each.
func (h *Health) SetWarnings(fn func() []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.warn = fn
}

// all returns the checks as of now.
func (h *Health) all() []check {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]check(nil), h.mu.checks...)
}

// Report runs every check. It returns one line for each and each warning, and
// whether all checks passed.
func (h *Health) Report() (lines string, ready bool) {
	checks := h.all()
	h.mu.Lock()
	warn := h.mu.warn
	h.mu.Unlock()
	var b strings.Builder
	ready = true
	for _, c := range checks {
		if err := c.fn(); err != nil {
			ready = false
			fmt.Fprintf(&b, "[-] %s: %v\n", c.name, err)
		} else {
			fmt.Fprintf(&b, "[+] %s: ok\n", c.name)
		}
	}
	if warn != nil {
		for _, w := range warn() {
			fmt.Fprintf(&b, "[!] %s\n", w)
		}
	}
	return b.String(), ready
}

// serveReady answers /readyz: 200, or 503 with the reasons.
func (h *Health) serveReady(w http.ResponseWriter, r *http.Request) {
	lines, ready := h.Report()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	verdict := "ready\n"
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
		verdict = "not ready\n"
	}
	_, _ = fmt.Fprint(w, lines, verdict)
}

// serveLive answers /healthz and /livez: the process runs and can answer.
func serveLive(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = fmt.Fprintln(w, "ok")
}
