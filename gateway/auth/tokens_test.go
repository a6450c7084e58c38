package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/iam/admin/apiv1/adminpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/gateway/auth"
)

// signed returns a token with any header.
func signed(t *testing.T, key *rsa.PrivateKey, header map[string]any, claims map[string]any) string {
	t.Helper()
	h, _ := json.Marshal(header)
	c, _ := json.Marshal(claims)
	s := base64.RawURLEncoding.EncodeToString(h) + "." + base64.RawURLEncoding.EncodeToString(c)
	if key == nil {
		return s + "."
	}
	sum := sha256.Sum256([]byte(s))
	sig, err := key.Sign(rand.Reader, sum[:], cryptoSHA256)
	if err != nil {
		t.Fatal(err)
	}
	return s + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func TestTokens(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	other := f.account("other-acc", false)
	f.grant(project, "roles/bigtable.user "+acc.member())
	now := time.Now()
	scope := scopePrefix + "bigtable.data"
	std := map[string]any{"iss": acc.email, "sub": acc.email, "exp": now.Add(time.Hour).Unix(), "iat": now.Unix(), "scope": scope}
	key := acc.key.(*rsa.PrivateKey)
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	jwk := map[string]string{"kty": "RSA", "n": base64.RawURLEncoding.EncodeToString(stranger.N.Bytes()), "e": "AQAB"}
	good := acc.token(nil)

	for _, tc := range []struct {
		name   string
		tok    string
		reason string
	}{
		{"as the Go client sends it", acc.token(map[string]any{"aud": "", "scope": scope}), ""},
		{"as Node sends it", acc.token(map[string]any{"scope": scope + " " + scopePrefix + "cloud-bigtable.admin"}), ""},
		{"as Java sends it", acc.token(map[string]any{"scope": nil, "aud": "https://bigtable.googleapis.com/"}), ""},
		{"as Java's admin client", acc.token(map[string]any{"scope": nil, "aud": "https://bigtableadmin.googleapis.com/"}), ""},
		{"as C++ sends it", acc.token(map[string]any{"scope": nil, "aud": "https://bigtable.example.com/google.bigtable.v2.Bigtable"}), ""},
		{"with a port", acc.token(map[string]any{"scope": nil, "aud": "https://localhost:8086/google.bigtable.v2.Bigtable"}), ""},
		{"audience without a slash", acc.token(map[string]any{"scope": nil, "aud": "https://bigtable.googleapis.com"}), ""},
		{"a list of one", acc.token(map[string]any{"aud": []string{"https://bigtable.googleapis.com/"}}), ""},
		{"fraction of a second", acc.token(map[string]any{"exp": float64(now.Unix()) + 100.5}), ""},
		{"a clock that is behind", acc.token(map[string]any{"exp": now.Add(-4 * time.Minute).Unix()}), ""},
		{"a clock that is ahead", acc.token(map[string]any{"iat": now.Add(4 * time.Minute).Unix(), "exp": now.Add(64 * time.Minute).Unix()}), ""},
		{"header with a stranger's jwk, own signature", signed(t, key, map[string]any{"alg": "RS256", "kid": acc.keyID, "jwk": jwk, "jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/"}, std), ""},

		{"expired", acc.token(map[string]any{"exp": now.Add(-6 * time.Minute).Unix()}), "expired"},
		{"no exp", acc.token(map[string]any{"exp": nil}), "lifetime"},
		{"two hours", acc.token(map[string]any{"exp": now.Add(2 * time.Hour).Unix()}), "lifetime"},
		{"from the future", acc.token(map[string]any{"iat": now.Add(10 * time.Minute).Unix()}), "not_yet_valid"},
		{"nbf", acc.token(map[string]any{"nbf": now.Add(10 * time.Minute).Unix()}), "not_yet_valid"},
		{"wrong audience", acc.token(map[string]any{"aud": "https://pubsub.googleapis.com/"}), "audience"},
		{"another host", acc.token(map[string]any{"aud": "https://evil.example.com/"}), "audience"},
		{"host as user", acc.token(map[string]any{"aud": "https://localhost@evil.example.com/"}), "audience"},
		{"Google over http", acc.token(map[string]any{"aud": "http://bigtable.googleapis.com/"}), "audience"},
		{"another path", acc.token(map[string]any{"aud": "https://bigtable.googleapis.com/google.pubsub.v1.Publisher"}), "audience"},
		{"one good and one wrong", acc.token(map[string]any{"aud": []string{"https://bigtable.googleapis.com/", "https://x.example.com/"}}), "audience"},
		{"the token endpoint's audience", acc.token(map[string]any{"aud": tokenURI}), "audience"},
		{"neither audience nor scope", acc.token(map[string]any{"scope": nil}), "scope"},
		{"empty audience, no scope", acc.token(map[string]any{"scope": nil, "aud": ""}), "scope"},
		{"another scope", acc.token(map[string]any{"scope": scopePrefix + "devstorage.read_only"}), "scope"},
		{"another scope with our audience", acc.token(map[string]any{"aud": "https://localhost/", "scope": scopePrefix + "devstorage.read_only"}), "scope"},
		{"another subject", acc.token(map[string]any{"sub": other.email}), "issuer"},
		{"another account", acc.token(map[string]any{"sub": other.email, "iss": other.email}), "issuer"},
		{"no issuer", acc.token(map[string]any{"iss": nil, "sub": nil}), "issuer"},
		{"alg none", signed(t, nil, map[string]any{"alg": "none", "kid": acc.keyID}, std), "algorithm"},
		{"alg None", signed(t, nil, map[string]any{"alg": "None", "kid": acc.keyID}, std), "algorithm"},
		{"no alg", signed(t, key, map[string]any{"kid": acc.keyID}, std), "algorithm"},
		{"alg HS256", signed(t, key, map[string]any{"alg": "HS256", "kid": acc.keyID}, std), "algorithm"},
		{"alg of another kind of key", signed(t, key, map[string]any{"alg": "ES256", "kid": acc.keyID}, std), "signature"},
		{"alg by another case", signed(t, key, map[string]any{"ALG": "RS256", "kid": acc.keyID}, std), "algorithm"},
		{"crit", signed(t, key, map[string]any{"alg": "RS256", "kid": acc.keyID, "crit": []string{"b64"}}, std), "algorithm"},
		{"kid unknown", signed(t, key, map[string]any{"alg": "RS256", "kid": "0123"}, std), "signature"},
		{"no kid", signed(t, key, map[string]any{"alg": "RS256"}, std), "signature"},
		{"kid of another account", signed(t, key, map[string]any{"alg": "RS256", "kid": other.keyID}, std), "signature"},
		{"kid is no text", signed(t, key, map[string]any{"alg": "RS256", "kid": 7}, std), "malformed"},
		{"signed with the jwk it brings", signed(t, stranger, map[string]any{"alg": "RS256", "kid": acc.keyID, "jwk": jwk}, std), "signature"},
		{"changed", good[:len(good)-5] + "AAAAA", "signature"},
		{"no signature", good[:strings.LastIndexByte(good, '.')+1], "signature"},
		{"two parts", good[:strings.LastIndexByte(good, '.')], "unknown"},
		{"padding", good + "=", "malformed"},
		{"huge", strings.Repeat("a", 9<<10), "too_long"},
		{"huge claims", acc.token(map[string]any{"x": strings.Repeat("y", 8<<10)}), "too_long"},
		{"nonsense", "owner", "unknown"},
		{"exp is text", acc.token(map[string]any{"exp": "tomorrow"}), "malformed"},
		{"exp is enormous", acc.token(map[string]any{"exp": 1e300}), "malformed"},
	} {
		member, reason := f.a.Verify(tc.tok)
		if reason != tc.reason {
			t.Errorf("%s: reason %q, want %q", tc.name, reason, tc.reason)
		}
		if reason == "" && member != acc.member() {
			t.Errorf("%s: %s", tc.name, member)
		}
		// And through the server, twice: the second answer may be remembered.
		if len(tc.tok) > 16<<10 {
			continue
		}
		conn := f.connect(tc.tok)
		for range 2 {
			_, err := bigtableClient(conn).PingAndWarm(t.Context(), ping)
			want := codes.OK
			if tc.reason != "" {
				want = codes.Unauthenticated
			}
			if status.Code(err) != want {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
	}

	for name, headers := range map[string][]string{
		"two headers":        {"Bearer " + good, "Bearer " + good},
		"no scheme":          {good},
		"other scheme":       {"Basic " + good},
		"empty":              {""},
		"scheme only":        {"Bearer "},
		"two in one":         {"Bearer " + good + ", Bearer " + good},
		"two with a space":   {"Bearer " + good + " " + good},
		"no space":           {"Bearer" + good},
		"not there":          {},
		"very long":          {"Bearer " + strings.Repeat("x", 20<<10)},
		"token in the wrong": {"Token " + good},
	} {
		_, err := bigtableClient(f.connect("")).PingAndWarm(with(t.Context(), headers...), ping)
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, scheme := range []string{"bearer ", "BEARER ", "Bearer  "} {
		if _, err := bigtableClient(f.connect("")).PingAndWarm(with(t.Context(), scheme+good), ping); err != nil {
			t.Errorf("%q: %v", scheme, err)
		}
	}
}

// TestElliptic uploads a P-256 key and logs in with ES256.
func TestElliptic(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, _ := x509.MarshalPKIXPublicKey(key.Public())
	iam := adminpb.NewIAMClient(f.connect(f.root.token(nil)))
	up, err := iam.UploadServiceAccountKey(t.Context(), &adminpb.UploadServiceAccountKeyRequest{
		Name: "projects/-/serviceAccounts/" + acc.email, PublicKeyData: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})})
	if err != nil {
		t.Fatal(err)
	}
	ec := &account{acc.email, up.GetName()[strings.LastIndexByte(up.GetName(), '/')+1:], key, nil}
	if member, reason := f.a.Verify(ec.token(nil)); member != acc.member() {
		t.Error(member, reason)
	}
	// The RSA key's id with an EC signature, and the other way round.
	if _, reason := f.a.Verify((&account{acc.email, acc.keyID, key, nil}).token(nil)); reason != "signature" {
		t.Error(reason)
	}
	if _, reason := f.a.Verify((&account{acc.email, ec.keyID, acc.key, nil}).token(nil)); reason != "signature" {
		t.Error(reason)
	}
	// A short key is refused.
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, _ = x509.MarshalPKIXPublicKey(weak.Public())
	_, err = iam.UploadServiceAccountKey(t.Context(), &adminpb.UploadServiceAccountKeyRequest{
		Name: "projects/-/serviceAccounts/" + acc.email, PublicKeyData: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})})
	if status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// TestRevocation takes away keys and accounts, here and in another process.
func TestRevocation(t *testing.T) {
	f := newFixture(t, auth.Options{Refresh: 20 * time.Millisecond})
	iam := adminpb.NewIAMClient(f.connect(f.root.token(nil)))
	acc := f.account("some-acc", false)
	tok := acc.token(nil)
	access, reason := f.a.Exchange(acc.token(map[string]any{"aud": tokenURI}))
	if reason != "" {
		t.Fatal(reason)
	}
	ok := func(tok string) bool { _, reason := f.a.Verify(tok); return reason == "" }
	if !ok(tok) || !ok(access) {
		t.Fatal("tokens are no good")
	}
	if _, err := iam.DisableServiceAccount(t.Context(), &adminpb.DisableServiceAccountRequest{Name: "projects/-/serviceAccounts/" + acc.email}); err != nil {
		t.Fatal(err)
	}
	if ok(tok) || ok(access) {
		t.Error("tokens of a disabled account are good")
	}
	if _, err := iam.EnableServiceAccount(t.Context(), &adminpb.EnableServiceAccountRequest{Name: "projects/-/serviceAccounts/" + acc.email}); err != nil {
		t.Fatal(err)
	}
	if !ok(tok) || !ok(access) {
		t.Error("tokens of an enabled account are not good")
	}
	if _, err := iam.DeleteServiceAccountKey(t.Context(), &adminpb.DeleteServiceAccountKeyRequest{Name: "projects/p/serviceAccounts/" + acc.email + "/keys/" + acc.keyID}); err != nil {
		t.Fatal(err)
	}
	if ok(tok) || ok(access) {
		t.Error("tokens of a deleted key are good")
	}

	other := f.account("other-acc", false)
	tok = other.token(nil)
	if !ok(tok) {
		t.Fatal("token is no good")
	}
	elsewhere := auth.Accounts{Records: f.b}
	if err := elsewhere.Delete(t.Context(), other.email); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for ok(tok) {
		if time.Since(start) > time.Minute {
			t.Fatal("the token of a deleted account is still good")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestLastRoot keeps the last way in.
func TestLastRoot(t *testing.T) {
	f := newFixture(t, auth.Options{})
	iam := adminpb.NewIAMClient(f.connect(f.root.token(nil)))
	name := "projects/p/serviceAccounts/" + f.root.email
	for what, err := range map[string]error{
		"delete":     second(iam.DeleteServiceAccount(t.Context(), &adminpb.DeleteServiceAccountRequest{Name: name})),
		"disable":    second(iam.DisableServiceAccount(t.Context(), &adminpb.DisableServiceAccountRequest{Name: name})),
		"delete key": second(iam.DeleteServiceAccountKey(t.Context(), &adminpb.DeleteServiceAccountKeyRequest{Name: name + "/keys/" + f.root.keyID})),
	} {
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", what, err)
		}
	}
	// An owner of the project may do all that to others, but not to root.
	owner := f.account("owner-acc", false)
	f.grant(project, "roles/owner "+owner.member())
	iam = adminpb.NewIAMClient(f.connect(owner.token(nil)))
	if _, err := iam.CreateServiceAccountKey(t.Context(), &adminpb.CreateServiceAccountKeyRequest{Name: "projects/p/serviceAccounts/" + owner.email}); err != nil {
		t.Error(err)
	}
	for _, n := range []string{name, "projects/-/serviceAccounts/" + f.root.email} {
		if _, err := iam.CreateServiceAccountKey(t.Context(), &adminpb.CreateServiceAccountKeyRequest{Name: n}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("an owner got a key of root: %v", err)
		}
	}
	// Another project's owner may not even see the account.
	stranger := f.account("stranger-acc", false)
	f.grant("projects/q", "roles/owner "+stranger.member())
	iam = adminpb.NewIAMClient(f.connect(stranger.token(nil)))
	for _, n := range []string{"projects/-/serviceAccounts/" + owner.email, "projects/p/serviceAccounts/" + owner.email, "projects/-/serviceAccounts/none@x"} {
		if _, err := iam.GetServiceAccount(t.Context(), &adminpb.GetServiceAccountRequest{Name: n}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", n, err)
		}
	}
	if _, err := iam.GetServiceAccount(t.Context(), &adminpb.GetServiceAccountRequest{Name: "projects/q/serviceAccounts/" + owner.email}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestReadOnlyScope narrows an account that may write to reading.
func TestReadOnlyScope(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	f.grant(project, "roles/bigtable.admin "+acc.member())
	if err := f.set(acc.token(map[string]any{"scope": scopePrefix + "bigtable.data"}), "a", "r"); err != nil {
		t.Error(err)
	}
	readonly := acc.token(map[string]any{"scope": scopePrefix + "bigtable.data.readonly"})
	if _, err := f.read(readonly, nil); err != nil {
		t.Error(err)
	}
	if err := f.set(readonly, "a", "r"); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	for _, scope := range []string{"bigtable.data", "bigtable.data.readonly"} {
		if err := f.list(acc.token(map[string]any{"scope": scopePrefix + scope})); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s lists tables: %v", scope, err)
		}
	}
	for _, scope := range []string{"bigtable.admin.table", "cloud-platform.read-only", "cloud-bigtable.admin"} {
		if err := f.list(acc.token(map[string]any{"scope": scopePrefix + scope})); err != nil {
			t.Errorf("%s: %v", scope, err)
		}
	}
}

func TestTokenEndpoint(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	f.grant(project, "roles/bigtable.user "+acc.member())
	srv := httptest.NewServer(f.a.TokenHandler())
	defer srv.Close()
	post := func(form url.Values) (int, map[string]any) {
		t.Helper()
		resp, err := http.PostForm(srv.URL, form)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var m map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
			t.Fatal(err)
		}
		if resp.Header.Get("Cache-Control") != "no-store" {
			t.Error("the answer may be stored")
		}
		return resp.StatusCode, m
	}
	const grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	code, m := post(url.Values{"grant_type": {grant}, "assertion": {acc.token(map[string]any{"aud": tokenURI, "scope": scopePrefix + "bigtable.data.readonly"})}})
	if code != 200 || m["token_type"] != "Bearer" || m["expires_in"].(float64) < 3500 {
		t.Fatal(code, m)
	}
	// google-auth for Python names Google's endpoint, wherever it sends this.
	if code, m := post(url.Values{"grant_type": {grant}, "assertion": {acc.token(map[string]any{"aud": "https://oauth2.googleapis.com/token"})}}); code != 200 {
		t.Error(code, m)
	}
	tok := m["access_token"].(string)
	if _, err := f.read(tok, nil); err != nil {
		t.Error(err)
	}
	if err := f.set(tok, "a", "r"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a readonly token writes: %v", err)
	}
	for name, tc := range map[string]struct {
		form url.Values
		err  string
	}{
		"no grant":        {url.Values{"assertion": {acc.token(map[string]any{"aud": tokenURI})}}, "unsupported_grant_type"},
		"another grant":   {url.Values{"grant_type": {"password"}}, "unsupported_grant_type"},
		"no assertion":    {url.Values{"grant_type": {grant}}, "invalid_grant"},
		"no audience":     {url.Values{"grant_type": {grant}, "assertion": {acc.token(nil)}}, "invalid_grant"},
		"other audience":  {url.Values{"grant_type": {grant}, "assertion": {acc.token(map[string]any{"aud": "https://oauth2.googleapis.com/other"})}}, "invalid_grant"},
		"two audiences":   {url.Values{"grant_type": {grant}, "assertion": {acc.token(map[string]any{"aud": []string{tokenURI, "https://oauth2.googleapis.com/token"}})}}, "invalid_grant"},
		"no scope":        {url.Values{"grant_type": {grant}, "assertion": {acc.token(map[string]any{"aud": tokenURI, "scope": nil})}}, "invalid_scope"},
		"unknown scope":   {url.Values{"grant_type": {grant}, "assertion": {acc.token(map[string]any{"aud": tokenURI, "scope": "email"})}}, "invalid_scope"},
		"an access token": {url.Values{"grant_type": {grant}, "assertion": {tok}}, "invalid_grant"},
		"expired":         {url.Values{"grant_type": {grant}, "assertion": {acc.token(map[string]any{"aud": tokenURI, "exp": 1})}}, "invalid_grant"},
		"too long":        {url.Values{"grant_type": {grant}, "assertion": {strings.Repeat("x", 50<<10)}}, "invalid_request"},
	} {
		if code, m := post(tc.form); code != 400 || m["error"] != tc.err {
			t.Errorf("%s: %d %v", name, code, m)
		}
	}
	// Access tokens cannot be changed.
	for i := range len(tok) {
		bad := []byte(tok)
		bad[i] ^= 1
		if _, reason := f.a.Verify(string(bad)); reason == "" {
			t.Fatalf("byte %d does not matter", i)
		}
	}
	resp, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Error(resp.Status)
	}
}

func TestStaticTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	sum := sha256.Sum256([]byte("token-of-bob-0123456789"))
	write("# comment\n\ntoken-of-alice-0123456789 user:Alice@Example.com\nsha256:"+hex.EncodeToString(sum[:])+" serviceAccount:bob@example.com\n", 0o600)
	f := newFixture(t, auth.Options{TokenFile: path, Refresh: 20 * time.Millisecond})
	f.grant(project, "roles/bigtable.user user:alice@example.com")
	if err := f.set("token-of-alice-0123456789", "a", "r"); err != nil {
		t.Error(err)
	}
	if err := f.set("token-of-bob-0123456789", "a", "r"); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	if err := f.set("token-of-alice-012345678", "a", "r"); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
	if err := f.set("sha256:"+hex.EncodeToString(sum[:]), "a", "r"); status.Code(err) != codes.Unauthenticated {
		t.Error("the digest is a token:", err)
	}
	write("token-of-carol-0123456789 user:carol@example.com\n", 0o600)
	deadline := time.Now().Add(time.Minute)
	for {
		_, alice := f.a.Verify("token-of-alice-0123456789")
		_, carol := f.a.Verify("token-of-carol-0123456789")
		if alice != "" && carol == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the file is not read again")
		}
		time.Sleep(5 * time.Millisecond)
	}
	b := model.New(model.Options{})
	// A file of root's may be read by a group, as that of a secret of Kubernetes is.
	write("token-of-alice-0123456789 user:alice@example.com\n", 0o640)
	if a, err := auth.Open(t.Context(), b, auth.Options{TokenFile: path}); (err == nil) != (os.Geteuid() == 0) {
		t.Error("a file that a group may read:", err)
	} else if err == nil {
		a.Close()
	}
	for name, bad := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"written by a group": {"token-of-alice-0123456789 user:alice@example.com\n", 0o620},
		"readable by others": {"token-of-alice-0123456789 user:alice@example.com\n", 0o644},
		"short token":        {"short user:alice@example.com\n", 0o600},
		"no member":          {"token-of-alice-0123456789\n", 0o600},
		"group":              {"token-of-alice-0123456789 group:x@example.com\n", 0o600},
		"twice":              {"token-of-alice-0123456789 user:a@x\ntoken-of-alice-0123456789 user:b@x\n", 0o600},
		"short digest":       {"sha256:abcd user:a@x\n", 0o600},
	} {
		write(bad.text, bad.mode)
		a, err := auth.Open(t.Context(), b, auth.Options{TokenFile: path})
		if err == nil {
			a.Close()
			t.Errorf("%s is accepted", name)
		} else if strings.Contains(err.Error(), "token-of") {
			t.Errorf("%s: the error shows the token: %v", name, err)
		}
	}
}

func TestOpenIDConnect(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	var fetched atomic.Int32
	var srv *httptest.Server
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, srv.URL, srv.URL+"/keys")
		case "/keys":
			fetched.Add(1)
			pt, _ := ecKey.PublicKey.Bytes()
			fmt.Fprintf(w, `{"keys":[{"kty":"RSA","kid":"r","alg":"RS256","use":"sig","n":%q,"e":"AQAB"},
				{"kty":"EC","kid":"e","crv":"P-256","x":%q,"y":%q},{"kty":"oct","kid":"o","k":"AAAA"},
				{"kty":"RSA","kid":"weak","n":%q,"e":"AQAB"}]}`,
				b64(rsaKey.N.Bytes()), b64(pt[1:33]), b64(pt[33:]), b64(big.NewInt(1<<40+1).Bytes()))
		}
	}))
	defer srv.Close()
	f := newFixture(t, auth.Options{Issuers: []auth.Issuer{{URL: srv.URL + "/", Audience: "bigtable"}}})
	f.grant(project, "roles/bigtable.user user:alice@example.com")
	sign := func(key *account, claims map[string]any) string {
		c := map[string]any{"iss": srv.URL, "sub": "42", "aud": "bigtable", "email": "alice@example.com", "email_verified": true}
		for k, v := range claims {
			c[k] = v
		}
		return key.token(c)
	}
	r, e := &account{keyID: "r", key: rsaKey}, &account{keyID: "e", key: ecKey}
	deadline := time.Now().Add(time.Minute)
	for {
		if _, reason := f.a.Verify(sign(r, nil)); reason == "" {
			break
		} else if reason != "issuer_keys" || time.Now().After(deadline) {
			t.Fatal(reason)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := f.set(sign(e, nil), "a", "r"); err != nil {
		t.Error(err)
	}
	for name, tc := range map[string]struct {
		tok    string
		member string
		reason string
	}{
		"day long":                         {sign(r, map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()}), "user:alice@example.com", ""},
		"several audiences":                {sign(r, map[string]any{"aud": []string{"x", "bigtable"}}), "user:alice@example.com", ""},
		"unverified address":               {sign(r, map[string]any{"email_verified": false}), "user:42", ""},
		"an address as subject":            {sign(r, map[string]any{"sub": "alice@example.com", "email": "mallory@example.com", "email_verified": false}), "", "subject"},
		"an address as subject, no other":  {sign(r, map[string]any{"sub": "alice@example.com", "email": nil}), "", "subject"},
		"an address beside a verified one": {sign(r, map[string]any{"sub": "bob@example.com"}), "user:alice@example.com", ""},
		"a verified address that is none":  {sign(r, map[string]any{"email": "43"}), "user:42", ""},
		"other audience":                   {sign(r, map[string]any{"aud": "x"}), "", "audience"},
		"no audience":                      {sign(r, map[string]any{"aud": nil}), "", "audience"},
		"expired":                          {sign(r, map[string]any{"exp": 1}), "", "expired"},
		"unknown key":                      {sign(&account{keyID: "x", key: rsaKey}, nil), "", "signature"},
		"key of another kid":               {sign(&account{keyID: "e", key: rsaKey}, nil), "", "signature"},
		"unknown issuer":                   {sign(r, map[string]any{"iss": "https://evil.example.com"}), "", "signature"},
		"an account's key":                 {f.root.token(map[string]any{"iss": srv.URL, "aud": "bigtable"}), "", "signature"},
		"an issuer's key for an account":   {(&account{f.root.email, "r", rsaKey, nil}).token(nil), "", "signature"},
	} {
		member, reason := f.a.Verify(tc.tok)
		if member != tc.member || reason != tc.reason {
			t.Errorf("%s: %q %q", name, member, reason)
		}
	}
	if n := fetched.Load(); n > 2 {
		t.Errorf("keys were fetched %d times", n)
	}
}

func TestMintedFile(t *testing.T) {
	f := newFixture(t, auth.Options{})
	var m map[string]string
	if err := json.Unmarshal(f.root.file, &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"type", "project_id", "private_key_id", "private_key", "client_email", "client_id", "auth_uri", "token_uri",
		"auth_provider_x509_cert_url", "client_x509_cert_url"} {
		if m[k] == "" {
			t.Errorf("%s is missing", k)
		}
	}
	if _, there := m["universe_domain"]; there || m["type"] != "service_account" || m["token_uri"] != tokenURI {
		t.Error(m)
	}
	// The private half is nowhere in the records.
	body := strings.Join(strings.Split(m["private_key"], "\n")[2:4], "")
	err := f.b.ListRecords(t.Context(), "", func(key string, v []byte, _ uint64) error {
		if strings.Contains(string(v), body[:40]) || strings.Contains(string(v), "PRIVATE") {
			t.Errorf("the record %s has a private key", key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
