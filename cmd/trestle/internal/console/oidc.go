package console

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/trestledb/trestle/engine/fault"
)

const callbackPath = "/console/oidc/callback"

// loginCookie has what a login with a provider began with. The way back is a link from
// the provider's site, so SameSite is Lax.
const (
	loginCookie = "__Host-trestle-login"
	loginLife   = 10 * time.Minute
	askLimit    = 10 * time.Second
)

// A Provider is an OpenID Connect provider that callers log in with: by the code flow,
// with PKCE (RFC 7636).
type Provider struct {
	// Issuer is its URL, ClientID the console's name with it, Secret the console's with
	// it; empty for a public client.
	Issuer, ClientID, Secret string
	// Base is the console's URL as browsers reach it, http://HOST:PORT; empty: as the
	// request says.
	Base string

	mu    sync.Mutex
	found *oidc.Provider
}

// at returns the provider, whose discovery document it reads at the first login.
func (p *Provider) at() (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		return p.found, nil
	}
	// The provider keeps the context for the keys that it fetches later.
	ctx := oidc.ClientContext(context.Background(), &http.Client{Timeout: askLimit})
	found, err := oidc.NewProvider(ctx, p.Issuer)
	var other *oidc.IssuerMismatchError
	if errors.As(err, &other) && strings.TrimSuffix(other.Discovered, "/") == strings.TrimSuffix(p.Issuer, "/") {
		// Its tokens have the name with the slash, or without it, as it says itself.
		found, err = oidc.NewProvider(ctx, other.Discovered)
	}
	if err != nil {
		return nil, fault.New(fault.Unavailable, "the provider %s cannot be asked: %w", p.Issuer, err)
	}
	p.found = found
	return found, nil
}

func (p *Provider) config(found *oidc.Provider, r *http.Request) *oauth2.Config {
	base := p.Base
	if base == "" {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		base = scheme + "://" + r.Host
	}
	return &oauth2.Config{ClientID: p.ClientID, ClientSecret: p.Secret, Endpoint: found.Endpoint(), RedirectURL: base + callbackPath, Scopes: []string{oidc.ScopeOpenID, "email"}}
}

// startProvider sends the browser to the provider.
func (c *Console) startProvider(w http.ResponseWriter, r *http.Request) {
	found, err := c.o.Provider.at()
	if err != nil {
		c.refuse(w, r, err)
		return
	}
	state, nonce, verifier := rand.Text(), rand.Text(), oauth2.GenerateVerifier()
	http.SetCookie(w, cookie(loginCookie, state+"."+nonce+"."+verifier, int(loginLife/time.Second), http.SameSiteLaxMode))
	secure(w.Header())
	http.Redirect(w, r, c.o.Provider.config(found, r).AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)), http.StatusSeeOther)
}

// finishProvider makes a session of what the provider sends the browser back with.
func (c *Console) finishProvider(w http.ResponseWriter, r *http.Request) {
	token, err := c.idToken(r)
	http.SetCookie(w, cookie(loginCookie, "", -1, http.SameSiteLaxMode))
	if err == nil {
		err = c.begin(w, r, token)
	}
	if err != nil {
		c.refuse(w, r, err)
		return
	}
	secure(w.Header())
	http.Redirect(w, r, Path, http.StatusSeeOther)
}

// idToken returns the token of the caller that a provider has sent back.
func (c *Console) idToken(r *http.Request) (string, error) {
	denied := func(format string, args ...any) (string, error) {
		return "", fault.New(fault.PermissionDenied, format, args...)
	}
	began, err := r.Cookie(loginCookie)
	if err != nil {
		return denied("this login was not begun here, or more than %v ago", loginLife)
	}
	state, rest, _ := strings.Cut(began.Value, ".")
	nonce, verifier, _ := strings.Cut(rest, ".")
	q := r.URL.Query()
	switch {
	case state == "" || q.Get("state") != state:
		return denied("this login was not begun here")
	case q.Get("error") != "":
		return denied("the provider refuses: %q", q.Get("error"))
	}
	found, err := c.o.Provider.at()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(r.Context(), askLimit)
	defer cancel()
	t, err := c.o.Provider.config(found, r).Exchange(ctx, q.Get("code"), oauth2.VerifierOption(verifier))
	if err != nil {
		if e := (*oauth2.RetrieveError)(nil); errors.As(err, &e) {
			return denied("the provider takes the code for no token: %q", e.ErrorCode)
		}
		return "", fault.New(fault.Unavailable, "the provider was not reached: %w", err)
	}
	raw, _ := t.Extra("id_token").(string)
	id, err := found.VerifierContext(ctx, &oidc.Config{ClientID: c.o.Provider.ClientID}).Verify(ctx, raw)
	if err != nil || id.Nonce != nonce {
		return denied("the provider's ID token is not that of this login")
	}
	return raw, nil
}

// refuse sends the browser to the login page, which says why.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, err error) {
	secure(w.Header())
	http.SetCookie(w, &http.Cookie{Name: refusedCookie, Value: strings.Map(plain, err.Error()), Path: Path, MaxAge: 60, Secure: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, Path, http.StatusSeeOther)
}

// refusedCookie has why a login was refused, for the page to show.
const refusedCookie = "trestle-refused"

// plain leaves out what a cookie cannot have.
func plain(r rune) rune {
	switch {
	case r == '"' || r == '\\' || r == ';' || r == ',':
		return '\''
	case r < ' ' || r > '~':
		return '?'
	}
	return r
}
