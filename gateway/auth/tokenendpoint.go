package auth

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/trestledb/trestle/gateway/auth/jws"
)

const (
	jwtBearer    = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	maxTokenForm = 2*jws.MaxSize + 1024
)

// TokenHandler serves POST /token. A client hands in a token that it signed
// with a service account's key for Options.TokenURI or Google's endpoint (RFC
// 7523). It gets one for the scopes that it asked for, good for an hour, but no
// longer than the key is.
func (a *Auth) TokenHandler() http.Handler { return http.HandlerFunc(a.serveToken) }

func (a *Auth) serveToken(w http.ResponseWriter, req *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	fail := func(status int, code, description string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": code, "error_description": description})
	}
	if req.Method != http.MethodPost {
		h.Set("Allow", http.MethodPost)
		fail(http.StatusMethodNotAllowed, "invalid_request", "tokens are asked for with POST")
		return
	}
	req.Body = http.MaxBytesReader(w, req.Body, maxTokenForm)
	if err := req.ParseForm(); err != nil {
		fail(http.StatusBadRequest, "invalid_request", "the request is no form, or too long")
		return
	}
	// What is in the URL ends in logs.
	if grant := req.PostForm.Get("grant_type"); grant != jwtBearer {
		fail(http.StatusBadRequest, "unsupported_grant_type", "the only grant_type is "+jwtBearer)
		return
	}
	answer, refusal := a.exchange(req.PostForm.Get("assertion"))
	if refusal != nil {
		if a.o.Refused != nil {
			a.o.Refused(refusal.reason)
		}
		c := &call{Context: req.Context(), method: "POST /token"}
		a.audit.refused(c, refusal)
		switch {
		case refusal.retry:
			fail(http.StatusServiceUnavailable, "temporarily_unavailable", refusal.text)
		case refusal == errScope:
			fail(http.StatusBadRequest, "invalid_scope", refusal.text)
		default:
			fail(http.StatusBadRequest, "invalid_grant", refusal.text)
		}
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

type tokenAnswer struct {
	AccessToken string `json:"access_token"`
	TokenType   string `json:"token_type"`
	ExpiresIn   int64  `json:"expires_in"` // seconds
}

// googleToken is the audience of the assertions of google-auth for Python, and so
// of gcloud, wherever they send them.
const googleToken = "https://oauth2.googleapis.com/token"

// exchange returns an access token for an assertion.
func (a *Auth) exchange(assertion string) (*tokenAnswer, *refusal) {
	now := a.now()
	t, err := jws.Parse(assertion)
	if err != nil {
		if len(assertion) > jws.MaxSize {
			return nil, errTooLong
		}
		return nil, errMalformed
	}
	if t.Claims.Subject == "" {
		t.Claims.Subject = t.Claims.Issuer // only a caller that acts for another names a subject
	}
	r := a.registry.Load()
	ours := func(aud string) bool { return aud == a.o.TokenURI || aud == googleToken }
	p, refused := a.verifyOwn(r, t, now, ours)
	if refused != nil {
		return nil, refused
	}
	if len(t.Claims.Audience) != 1 || !ours(t.Claims.Audience[0]) {
		return nil, errAudience
	}
	if parseScopes(t.Claims.Scope) == 0 {
		return nil, errScope
	}
	expires := now.Add(tokenLife)
	if key := r.keys[t.KeyID]; !key.expires.IsZero() {
		expires = earlier(expires, key.expires)
	}
	tok, err := r.issue(accessClaims{KeyID: t.KeyID, Scopes: p.scopes, Expires: expires.Unix()})
	if err != nil {
		return nil, errMalformed
	}
	return &tokenAnswer{AccessToken: tok, TokenType: "Bearer", ExpiresIn: int64(expires.Sub(now) / time.Second)}, nil
}
