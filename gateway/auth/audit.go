package auth

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/trestledb/trestle/gateway/wire"
)

// maxRefusals bounds the lines per second about refused callers: a refused
// caller can ask as often as it likes.
const maxRefusals = 50

// An audit writes who did what. A line has the attributes principal, peer,
// method, resource, code, request_bytes, response_bytes and latency_ms; that of
// refused credentials has a reason instead of a principal and a resource. What
// Request.Note was told follows. Row keys and values are in none.
type audit struct {
	log   *slog.Logger // nil: off
	data  bool
	reads bool // of administrative methods that change nothing
	now   func() time.Time

	mu struct {
		sync.Mutex
		second  int64
		lines   int
		dropped int
	}
}

func newAudit(o Options) *audit {
	return &audit{log: o.Audit, data: o.AuditData, reads: o.AuditData || !o.Off, now: o.Now}
}

// wants tells whether a call that ended with err gets a line.
func (a *audit) wants(c *call, err error) bool {
	return a.log != nil && (c.rule.admin && (a.reads || c.rule.changes) || a.data && !c.rule.open || c.denied.Load() && a.allowed())
}

// allowed takes one of this second's lines about refusals.
func (a *audit) allowed() bool {
	second := a.now().Unix()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.second != second {
		if a.mu.dropped > 0 {
			a.log.LogAttrs(context.Background(), slog.LevelInfo, "audit lines dropped", slog.Int("refusals", a.mu.dropped))
		}
		a.mu.second, a.mu.lines, a.mu.dropped = second, 0, 0
	}
	if a.mu.lines == maxRefusals {
		a.mu.dropped++
		return false
	}
	a.mu.lines++
	return true
}

func peerOf(c *call) string {
	if p, ok := peer.FromContext(c); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return c.addr
}

func (a *audit) done(c *call, err error, received, sent int64, notes ...slog.Attr) {
	attrs := [...]slog.Attr{
		slog.String("principal", c.principal.Member),
		slog.String("peer", peerOf(c)),
		slog.String("method", c.method),
		slog.String("resource", c.resource[:min(len(c.resource), wire.MaxName)]),
		slog.String("code", wire.Code(err).String()),
		slog.Int64("request_bytes", received),
		slog.Int64("response_bytes", sent),
		slog.Float64("latency_ms", float64(a.now().Sub(c.start).Microseconds())/1000),
	}
	a.log.LogAttrs(c, slog.LevelInfo, "audit", append(attrs[:], notes...)...)
}

// VirtualCall writes the line about a call that a session carried, ctx being
// the call's.
func (a *Auth) VirtualCall(ctx context.Context, method string, err error, start time.Time, received, sent int64) {
	c := callOf(ctx)
	if c == nil || a.audit.log == nil {
		return
	}
	if a.audit.data || wire.Code(err) == codes.PermissionDenied && a.audit.allowed() {
		a.audit.done(&call{Context: c.Context, principal: c.principal, method: method, resource: c.resource, start: start}, err, received, sent)
	}
}

// refused writes a line about credentials that are no good.
func (a *audit) refused(c *call, r *refusal) {
	if a.log == nil || !a.allowed() {
		return
	}
	code := codes.Unauthenticated
	if r.retry {
		code = codes.Unavailable
	}
	a.log.LogAttrs(c, slog.LevelInfo, "audit",
		slog.String("peer", peerOf(c)),
		slog.String("method", shorten(c.method)),
		slog.String("code", code.String()),
		slog.String("reason", r.reason),
	)
}
