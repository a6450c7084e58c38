package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/trestledb/trestle/gateway/auth/jws"
)

// Limits of tokens.
const (
	skew        = 5 * time.Minute
	maxLifetime = time.Hour
	tokenLife   = time.Hour // of what the endpoint issues
)

// A Principal is a caller whose credentials are good. It does not change.
type Principal struct {
	// Member is its name, as policies write it.
	Member string
	// Root may do everything.
	Root bool

	scopes  scopes
	expires time.Time // zero: never
	revoked *atomic.Bool
	key     string // the id of the service account's key, empty if it is none
	issued  bool   // by an issuer, whose users have no key here
}

// anonymous is every caller without credentials, where that is allowed.
var anonymous = &Principal{Member: "anonymous", Root: true, scopes: allScopes}

// scopes are the classes of RPCs that a token is good for.
type scopes uint8

const (
	dataRead scopes = 1 << iota
	dataWrite
	adminRead
	adminWrite

	allScopes = dataRead | dataWrite | adminRead | adminWrite
)

const scopePrefix = "https://www.googleapis.com/auth/"

var scopeNames = map[string]scopes{
	"bigtable.data":                dataRead | dataWrite,
	"bigtable.data.readonly":       dataRead,
	"bigtable.admin":               adminRead | adminWrite,
	"bigtable.admin.cluster":       adminRead | adminWrite,
	"bigtable.admin.instance":      adminRead | adminWrite,
	"bigtable.admin.table":         adminRead | adminWrite,
	"cloud-bigtable.data":          dataRead | dataWrite,
	"cloud-bigtable.data.readonly": dataRead,
	"cloud-bigtable.admin":         adminRead | adminWrite,
	"cloud-bigtable.admin.cluster": adminRead | adminWrite,
	"cloud-bigtable.admin.table":   adminRead | adminWrite,
	"cloud-platform":               allScopes,
	"cloud-platform.read-only":     dataRead | adminRead,
}

func parseScopes(s string) (out scopes) {
	for f := range strings.FieldsSeq(s) {
		if name, ok := strings.CutPrefix(f, scopePrefix); ok {
			out |= scopeNames[name]
		}
	}
	return out
}

// A refusal is why credentials are no good. The text is for the caller, the
// reason for metrics and the audit log.
type refusal struct {
	reason string
	text   string
	// retry says that the same credentials may soon be good.
	retry bool
}

func (r *refusal) Error() string { return r.text }

func refused(reason, text string) *refusal { return &refusal{reason: reason, text: text} }

var (
	errNone      = refused("missing", "the request has no authorization header")
	errTwice     = refused("multiple", "the request has more than one authorization header")
	errScheme    = refused("scheme", "the authorization header is not of the form 'Bearer TOKEN'")
	errTooLong   = refused("too_long", jws.ErrTooLong.Error())
	errMalformed = refused("malformed", "the token is malformed")
	errAlgorithm = refused("algorithm", jws.ErrUnsupported.Error())
	errSignature = refused("signature", "the token's key is not known, or its signature does not match")
	errIssuer    = refused("issuer", "the token's iss and sub are not the address of the service account that the key belongs to")
	errSubject   = refused("subject", "the token's sub looks like an e-mail address, and the token has none that is verified")
	errAudience  = refused("audience", "the token is for another audience")
	errScope     = refused("scope", "the token has neither an audience nor a scope for Bigtable")
	errExpired   = refused("expired", "the token has expired")
	errEarly     = refused("not_yet_valid", "the token is not valid yet")
	errLifetime  = refused("lifetime", "the token does not expire within an hour")
	errUnknown   = refused("unknown", "the token is not known")
	errStale     = &refusal{reason: "stale", text: "the service accounts cannot be read at the moment", retry: true}
)

// token returns the token of an authorization header.
func token(header string) (string, *refusal) {
	const scheme = "bearer "
	if len(header) > jws.MaxSize+len(scheme) {
		return "", errTooLong
	}
	if len(header) < len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", errScheme
	}
	t := header[len(scheme):]
	for len(t) > 0 && t[0] == ' ' {
		t = t[1:]
	}
	if t == "" {
		return "", errScheme
	}
	return t, nil
}

// verify returns whose token it is. It does no input or output.
func (a *Auth) verify(tok string) (*Principal, *refusal) {
	now := a.now()
	sum := a.cache.sum(tok)
	if p := a.cache.get(sum, tok, now); p != nil && (p.revoked == nil || !a.stale(now)) {
		return p, nil
	}
	p, err := a.verifySlow(tok, now)
	if err != nil {
		return nil, err
	}
	a.cache.put(sum, tok, p, now)
	return p, nil
}

// stale tells whether the accounts were read so long ago that it is not known
// what was revoked.
func (a *Auth) stale(now time.Time) bool { return now.Sub(a.registry.Load().read) > a.o.MaxStale }

func (a *Auth) verifySlow(tok string, now time.Time) (*Principal, *refusal) {
	if strings.ContainsAny(tok, " ,\t") {
		return nil, errScheme // several, or more than a token
	}
	// Static tokens may look like anything, so they come first. They are compared
	// by their digests, which tells a listener with a clock nothing.
	if p := a.static.Load().get(tok); p != nil {
		return p, nil
	}
	r := a.registry.Load()
	if rest, ok := strings.CutPrefix(tok, accessPrefix); ok {
		return a.verifyAccess(r, rest, now)
	}
	t, err := jws.Parse(tok)
	switch {
	case errors.Is(err, jws.ErrUnsupported):
		return nil, errAlgorithm
	case errors.Is(err, jws.ErrTooLong):
		return nil, errTooLong
	case err != nil && strings.Count(tok, ".") != 2:
		return nil, errUnknown // no JWT at all
	case err != nil:
		return nil, errMalformed
	}
	for _, i := range a.issuers {
		if i.o.URL == strings.TrimSuffix(t.Claims.Issuer, "/") {
			return i.verify(t, now)
		}
	}
	return a.verifyOwn(r, t, now, a.audience)
}

// verifyOwn checks a token that is signed with the key of a service account.
func (a *Auth) verifyOwn(r *registry, t *jws.Token, now time.Time, audience func(string) bool) (*Principal, *refusal) {
	if a.stale(now) {
		return nil, errStale
	}
	c := &t.Claims
	key := r.keys[t.KeyID]
	if key == nil || key.revoked.Load() || t.Verify(key.public) != nil {
		return nil, errSignature
	}
	if c.Subject != c.Issuer || !strings.EqualFold(c.Issuer, key.email) {
		return nil, errIssuer
	}
	if err := checkTimes(c, now); err != nil {
		return nil, err
	}
	if c.Expires.Sub(now) > maxLifetime+skew {
		return nil, errLifetime
	}
	p := &Principal{Member: key.member, Root: key.root, scopes: allScopes, expires: earlier(c.Expires.Add(skew), key.expires), revoked: &key.revoked, key: key.id}
	if !p.expires.After(now) {
		return nil, errExpired
	}
	named := false
	for _, aud := range c.Audience {
		if aud != "" {
			named = true
			if !audience(aud) {
				return nil, errAudience
			}
		}
	}
	switch s := parseScopes(c.Scope); {
	case s != 0:
		p.scopes = s
	case !named || c.Scope != "":
		return nil, errScope
	}
	return p, nil
}

// earlier returns the earlier of two times; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func checkTimes(c *jws.Claims, now time.Time) *refusal {
	switch {
	case c.Expires.IsZero():
		return errLifetime
	case !now.Before(c.Expires.Add(skew)):
		return errExpired
	case c.Issued.After(now.Add(skew)), c.NotBefore.After(now.Add(skew)):
		return errEarly
	}
	return nil
}

// audience tells whether aud means this server.
func (a *Auth) audience(aud string) bool {
	if slices.Contains(a.o.Names, aud) {
		return true
	}
	u, err := url.Parse(aud)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return false
	}
	google := u.Host == "bigtable.googleapis.com" || u.Host == "bigtableadmin.googleapis.com"
	if google {
		return u.Scheme == "https" && servicePath(u.Path)
	}
	return (slices.Contains(a.o.Names, u.Host) || slices.Contains(a.o.Names, u.Hostname())) && servicePath(u.Path)
}

// servicePath tells whether path is empty or names one of the services, as some
// clients append it.
func servicePath(path string) bool {
	path = strings.Trim(path, "/")
	return path == "" || slices.Contains([]string{"google.bigtable.v2.Bigtable", "google.bigtable.admin.v2.BigtableInstanceAdmin",
		"google.bigtable.admin.v2.BigtableTableAdmin", "google.longrunning.Operations", "google.iam.admin.v1.IAM", "google.iam.v1.IAMPolicy"}, path)
}

// accessPrefix begins what the token endpoint issues:
//
//	prefix base64url(claims) "." base64url(HMAC-SHA256(prefix base64url(claims)))
const accessPrefix = "trestle1."

type accessClaims struct {
	KeyID string `json:"k"` // the key that it was asked for with
	// Member is whose token it is if there is no key: a user of an issuer.
	Member string `json:"m,omitempty"`
	// Session says that it is a browser's session, which cannot be exchanged for another.
	Session bool   `json:"w,omitempty"`
	Scopes  scopes `json:"s"`
	Expires int64  `json:"e"` // seconds
}

func accessMAC(secret []byte, signed string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(signed))
	return h.Sum(nil)
}

// issue returns an access token. It lasts no longer than the key.
func (r *registry) issue(c accessClaims) (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	signed := accessPrefix + base64.RawURLEncoding.EncodeToString(b)
	return signed + "." + base64.RawURLEncoding.EncodeToString(accessMAC(r.secret, signed)), nil
}

func (a *Auth) verifyAccess(r *registry, rest string, now time.Time) (*Principal, *refusal) {
	if len(rest) > jws.MaxSize {
		return nil, errTooLong
	}
	if a.stale(now) {
		return nil, errStale
	}
	body, mac, ok := strings.Cut(rest, ".")
	if !ok {
		return nil, errMalformed
	}
	given, err := base64.RawURLEncoding.Strict().DecodeString(mac)
	if err != nil {
		return nil, errMalformed
	}
	if !hmac.Equal(given, accessMAC(r.secret, accessPrefix+body)) {
		return nil, errSignature
	}
	var c accessClaims
	b, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || json.Unmarshal(b, &c) != nil {
		return nil, errMalformed
	}
	if c.Member != "" {
		p := &Principal{Member: c.Member, scopes: c.Scopes, expires: time.Unix(c.Expires, 0)}
		switch {
		case len(a.issuers) == 0:
			return nil, errUnknown // users are let in no more
		case !p.expires.After(now):
			return nil, errExpired
		}
		return p, nil
	}
	key := r.keys[c.KeyID]
	if key == nil || key.revoked.Load() {
		return nil, errSignature
	}
	p := &Principal{Member: key.member, Root: key.root, scopes: c.Scopes, expires: earlier(time.Unix(c.Expires, 0), key.expires), revoked: &key.revoked}
	if !p.expires.After(now) {
		return nil, errExpired
	}
	if !c.Session {
		p.key = key.id
	}
	return p, nil
}

// A tokenCache remembers verified tokens. It finds them by a keyed hash and
// then compares all bytes in constant time: two tokens of one hash push each
// other out, which costs time only.
type tokenCache struct {
	seed maphash.Seed
	mu   struct {
		sync.RWMutex
		entries map[uint64]*cached
		bytes   int
	}
}

type cached struct {
	token     string
	principal *Principal
	used      atomic.Bool // since the last look for what can go
}

// Bounds of the cache.
const (
	cacheEntries = 16 << 10
	cacheBytes   = 32 << 20
)

func newTokenCache() *tokenCache {
	c := &tokenCache{seed: maphash.MakeSeed()}
	c.mu.entries = map[uint64]*cached{}
	return c
}

func (c *tokenCache) sum(tok string) uint64 { return maphash.String(c.seed, tok) }

func (c *tokenCache) get(sum uint64, tok string, now time.Time) *Principal {
	c.mu.RLock()
	e := c.mu.entries[sum]
	c.mu.RUnlock()
	if e == nil || !sameBytes(e.token, tok) || !e.principal.good(now) {
		return nil
	}
	if !e.used.Load() {
		e.used.Store(true)
	}
	return e.principal
}

// good tells whether what was verified once still holds.
func (p *Principal) good(now time.Time) bool {
	return (p.revoked == nil || !p.revoked.Load()) && (p.expires.IsZero() || now.Before(p.expires))
}

func (c *tokenCache) put(sum uint64, tok string, p *Principal, now time.Time) {
	e := &cached{token: strings.Clone(tok), principal: p}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(sum)
	for len(c.mu.entries) >= cacheEntries || c.mu.bytes+len(tok) > cacheBytes {
		c.evictLocked(now)
	}
	c.mu.entries[sum] = e
	c.mu.bytes += len(tok)
}

func (c *tokenCache) removeLocked(sum uint64) {
	if e := c.mu.entries[sum]; e != nil {
		c.mu.bytes -= len(e.token)
		delete(c.mu.entries, sum)
	}
}

// evictLocked removes one of a few entries, best one that is over or was not
// used since it was last looked at. Maps are walked from a random place.
func (c *tokenCache) evictLocked(now time.Time) {
	var victim uint64
	looked := 0
	for sum, e := range c.mu.entries {
		victim = sum
		if !e.principal.good(now) || !e.used.Swap(false) {
			break
		}
		if looked++; looked == 8 {
			break
		}
	}
	c.removeLocked(victim)
}

// sameBytes compares in a time that depends on the length of a only.
func sameBytes(a, b string) bool {
	return len(a) == len(b) && subtle.ConstantTimeCompare(readOnlyBytes(a), readOnlyBytes(b)) == 1
}

// readOnlyBytes are the bytes of s without a copy.
func readOnlyBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// unauthenticated describes r as Google does.
func (r *refusal) message() string {
	return fmt.Sprintf("Request had invalid authentication credentials: %s.", r.text)
}
