package auth

import (
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/auth/jws"
)

// An Issuer is an OpenID Connect provider whose ID tokens are accepted.
type Issuer struct {
	// URL is the iss of its tokens. Its keys are found through URL +
	// "/.well-known/openid-configuration".
	URL string
	// Audience must be among the aud of its tokens.
	Audience string
	// Client fetches the keys. Nil is a client with a timeout of 10 s.
	Client *http.Client
}

func (o Issuer) validate() error {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname())) || u.Host == "" {
		return fmt.Errorf("issuer %q is not an https URL", o.URL)
	}
	if o.Audience == "" {
		return fmt.Errorf("issuer %s has no audience: tokens meant for others would be good here", o.URL)
	}
	return nil
}

func isLoopback(host string) bool { return host == "localhost" || host == "127.0.0.1" || host == "::1" }

// How often keys of issuers are fetched.
const (
	issuerInterval = 5 * time.Minute
	issuerPause    = 10 * time.Second // after a failure, or for a key that is not known
	issuerMaxStale = 24 * time.Hour   // that keys are used when the issuer is not there
	maxDocument    = 1 << 20
)

// An issuer has the keys of an Issuer.
type issuer struct {
	o       Issuer
	keys    atomic.Pointer[issuerKeys]
	wanted  chan struct{} // has an element if a token named an unknown key
	log     *slog.Logger
	lastTry time.Time // of run alone
}

type issuerKeys struct {
	byID map[string]crypto.PublicKey
	read time.Time
}

func newIssuer(o Issuer, log *slog.Logger) *issuer {
	o.URL = strings.TrimSuffix(o.URL, "/")
	if o.Client == nil {
		o.Client = &http.Client{Timeout: 10 * time.Second}
	}
	return &issuer{o: o, wanted: make(chan struct{}, 1), log: log}
}

// run keeps the keys fresh until ctx ends.
func (i *issuer) run(ctx context.Context) {
	next := time.Duration(0)
	for {
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		case <-i.wanted:
			t.Stop()
			// Tokens with keys that do not exist must not make us ask all the time.
			if wait := issuerPause - time.Since(i.lastTry); wait > 0 {
				select {
				case <-ctx.Done():
					return
				case <-time.After(wait):
				}
			}
		}
		i.lastTry = time.Now()
		next = issuerInterval
		if err := i.fetch(ctx); err != nil && ctx.Err() == nil {
			next = issuerPause
			i.log.LogAttrs(ctx, slog.LevelWarn, "keys of an issuer were not fetched", slog.String("issuer", i.o.URL), slog.String("error", err.Error()))
		}
	}
}

func (i *issuer) fetch(ctx context.Context) error {
	b, err := i.get(ctx, i.o.URL+"/.well-known/openid-configuration")
	if err != nil {
		return err
	}
	var d struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return fmt.Errorf("read the discovery document: %w", err)
	}
	if strings.TrimSuffix(d.Issuer, "/") != i.o.URL {
		return fmt.Errorf("the discovery document is that of %q", d.Issuer)
	}
	if (Issuer{URL: d.Keys, Audience: "-"}).validate() != nil {
		return fmt.Errorf("jwks_uri %q is not an https URL", d.Keys)
	}
	if b, err = i.get(ctx, d.Keys); err != nil {
		return err
	}
	keys, err := jws.ParseKeySet(b)
	if err != nil {
		return err
	}
	i.keys.Store(&issuerKeys{keys, time.Now()})
	return nil
}

func (i *issuer) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := i.o.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch %s: %s", url, resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(b) > maxDocument {
		err = fmt.Errorf("fetch %s: more than %d bytes", url, maxDocument)
	}
	return b, err
}

var errKeysUnread = &refusal{reason: "issuer_keys", text: "the keys of the token's issuer are being fetched, try again", retry: true}

// verify checks an ID token. One that is signed with an unknown key makes run
// fetch the keys; the caller may try again.
func (i *issuer) verify(t *jws.Token, now time.Time) (*Principal, *refusal) {
	keys := i.keys.Load()
	var key crypto.PublicKey
	if keys != nil && now.Sub(keys.read) < issuerMaxStale {
		key = keys.byID[t.KeyID]
		if key == nil && t.KeyID == "" && len(keys.byID) == 1 {
			for _, key = range keys.byID {
			}
		}
	}
	if key == nil {
		select {
		case i.wanted <- struct{}{}:
		default:
		}
		if keys == nil || now.Sub(keys.read) > issuerPause {
			return nil, errKeysUnread
		}
		return nil, errSignature
	}
	if t.Verify(key) != nil {
		return nil, errSignature
	}
	c := &t.Claims
	if err := checkTimes(c, now); err != nil {
		return nil, err
	}
	if !slices.Contains(c.Audience, i.o.Audience) {
		return nil, errAudience
	}
	// A name with an "@" is an e-mail address to policies, so it must be one that
	// the issuer has verified: subjects may be what their users made them.
	name := c.Subject
	switch {
	case c.EmailVerified && strings.Contains(c.Email, "@"):
		name = c.Email
	case name == "":
		return nil, errIssuer
	case strings.Contains(name, "@"):
		return nil, errSubject
	}
	return &Principal{Member: iam.User(name), scopes: allScopes, expires: c.Expires.Add(skew), issued: true}, nil
}
