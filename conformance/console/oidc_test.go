package console

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestProvider logs in with an OpenID Connect provider, and not with what others began. The
// provider's name may end in a slash, and the flag may have it or not.
func TestProvider(t *testing.T) {
	for _, ends := range []struct{ name, flag string }{{"", ""}, {"/", "/"}, {"/", ""}, {"", "/"}} {
		t.Run("of "+ends.name+" by "+ends.flag, func(t *testing.T) { testProvider(t, ends.name, ends.flag) })
	}
}

func testProvider(t *testing.T, name, flag string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	url64 := base64.RawURLEncoding.EncodeToString
	var nonce, challenge string
	mux := http.NewServeMux()
	provider := httptest.NewServer(mux)
	defer provider.Close()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, object{"issuer": provider.URL + name, "authorization_endpoint": provider.URL + "/auth", "token_endpoint": provider.URL + "/token", "jwks_uri": provider.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, object{"keys": []object{{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "n": url64(key.N.Bytes()), "e": url64(big.NewInt(int64(key.E)).Bytes())}}})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if r.PostFormValue("code") != "good" || url64(sum[:]) != challenge {
			w.WriteHeader(http.StatusBadRequest)
			answer(w, object{"error": "invalid_grant"})
			return
		}
		now := time.Now().Unix()
		head, _ := json.Marshal(object{"alg": "RS256", "kid": "1"})
		claims, _ := json.Marshal(object{"iss": provider.URL + name, "aud": "console", "sub": "17", "email": "ada@example.com", "email_verified": true, "nonce": nonce, "iat": now, "exp": now + 600})
		text := url64(head) + "." + url64(claims)
		digest := sha256.Sum256([]byte(text))
		sig, _ := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
		answer(w, object{"access_token": "x", "token_type": "Bearer", "id_token": text + "." + url64(sig)})
	})
	s := start(t, "--auth", "on", "--oidc-issuer", provider.URL+flag, "--oidc-audience", "console")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	get := func(path, cookie string) (http.Header, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		if cookie != "" {
			req.Header.Set("Cookie", cookie)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.Header, string(b)
	}
	cookieOf := func(h http.Header, name string) string {
		for _, c := range (&http.Response{Header: h}).Cookies() {
			if c.Name == name && c.Value != "" {
				return c.Name + "=" + c.Value
			}
		}
		return ""
	}
	begin := func() (state, cookie string) {
		h, body := get("/console/oidc/start", "")
		at, err := url.Parse(h.Get("Location"))
		if err != nil || !strings.HasPrefix(at.String(), provider.URL+"/auth?") {
			t.Fatal(at, body)
		}
		q := at.Query()
		if q.Get("code_challenge_method") != "S256" || q.Get("client_id") != "console" || q.Get("redirect_uri") != s.url+"/console/oidc/callback" {
			t.Fatal(q)
		}
		nonce, challenge = q.Get("nonce"), q.Get("code_challenge")
		return q.Get("state"), cookieOf(h, "__Host-trestle-login")
	}
	const session = "__Host-trestle"
	state, cookie := begin()
	var good string
	// The keys are fetched in the background too, by what verifies tokens of requests.
	for limit := time.Now().Add(time.Minute); good == ""; {
		h, _ := get("/console/oidc/callback?code=good&state="+state, cookie)
		if good = cookieOf(h, session); good == "" && time.Now().After(limit) {
			t.Fatal(h)
		}
	}
	if _, body := get("/console/session", good); !strings.Contains(body, `"principal":"user:ada@example.com"`) {
		t.Error(body)
	}
	for what, try := range map[string]func() (string, string){
		"another state":   func() (string, string) { _, c := begin(); return "code=good&state=other", c },
		"no cookie":       func() (string, string) { s, _ := begin(); return "code=good&state=" + s, "" },
		"a bad code":      func() (string, string) { s, c := begin(); return "code=bad&state=" + s, c },
		"another's nonce": func() (string, string) { s, c := begin(); nonce = "other"; return "code=good&state=" + s, c },
		"another's code":  func() (string, string) { s, c := begin(); begin(); return "code=good&state=" + s, c },
	} {
		query, c := try()
		h, _ := get("/console/oidc/callback?"+query, c)
		if cookieOf(h, session) != "" || cookieOf(h, "trestle-refused") == "" {
			t.Errorf("%s: %v", what, h)
		}
	}
}
