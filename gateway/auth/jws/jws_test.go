package jws

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"strings"
	"testing"
	"time"
)

func TestSignAndVerify(t *testing.T) {
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{"iss": "i", "sub": "s", "aud": []string{"a", "b"}, "exp": 100.5, "iat": 1, "nbf": 2, "scope": "x y", "email": "m", "email_verified": "true"}
	for name, tok := range map[string]func() (string, error){
		"RS256": func() (string, error) { return Sign(r, "k", claims) },
		"ES256": func() (string, error) { return Sign(e, "k", claims) },
	} {
		s, err := tok()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		c := p.Claims
		if p.KeyID != "k" || c.Issuer != "i" || c.Subject != "s" || strings.Join(c.Audience, "") != "ab" || c.Scope != "x y" || c.Email != "m" || !c.EmailVerified ||
			!c.Expires.Equal(time.Unix(100, 5e8)) || !c.Issued.Equal(time.Unix(1, 0)) || !c.NotBefore.Equal(time.Unix(2, 0)) {
			t.Errorf("%s: %+v", name, p)
		}
		if (p.Verify(r.Public()) == nil) != (name == "RS256") || (p.Verify(e.Public()) == nil) != (name == "ES256") {
			t.Errorf("%s: verified by the wrong key", name)
		}
		// Every character counts.
		for i := range len(s) {
			b := []byte(s)
			b[i] ^= 1
			q, err := Parse(string(b))
			if err == nil && (q.Verify(r.Public()) == nil || q.Verify(e.Public()) == nil) {
				t.Fatalf("%s: changed at %d and still good", name, i)
			}
		}
	}
}

func TestCheckKey(t *testing.T) {
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if CheckKey(p224.Public()) == nil || CheckKey(nil) == nil || CheckKey([]byte("secret")) == nil {
		t.Error("a bad key is good")
	}
	tok := &Token{alg: "ES256"}
	if tok.Verify(p224.Public()) == nil || tok.Verify([]byte("secret")) == nil {
		t.Error("verified by a bad key")
	}
}

func FuzzParse(f *testing.F) {
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	good, err := Sign(e, "k", map[string]any{"iss": "i", "sub": "i", "aud": "", "exp": 1e9, "scope": "s"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(strings.Replace(good, ".", "..", 1))
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add("eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOlsiYSIsImIiXX0.AAAA")
	f.Add("..")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := Parse(s)
		if err != nil {
			return
		}
		if len(s) > MaxSize || strings.Count(s, ".") != 2 {
			t.Fatalf("%q is accepted", s)
		}
		if tok.alg != "RS256" && tok.alg != "ES256" {
			t.Fatalf("algorithm %q is accepted", tok.alg)
		}
		if tok.Verify(e.Public()) == nil && s != good {
			t.Fatalf("%q verifies", s)
		}
	})
}

func FuzzKeySet(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"RSA","kid":"r","alg":"RS256","use":"sig","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"EC","kid":"e","crv":"P-256","x":"AAAA","y":"AAAA"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := ParseKeySet(b)
		if err == nil && len(keys) == 0 {
			t.Fatal("no keys and no error")
		}
		for _, k := range keys {
			if CheckKey(k) != nil {
				t.Fatal("a bad key")
			}
		}
	})
}
