package jws

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strings"
	"time"
)

// MaxSize is the length in bytes of the longest token that Parse looks at.
// Tokens of client libraries have less than 2 KiB.
const MaxSize = 8 << 10

// Errors of Parse and Verify.
var (
	ErrMalformed   = errors.New("malformed token")
	ErrTooLong     = fmt.Errorf("token is longer than %d bytes", MaxSize)
	ErrUnsupported = errors.New("token is not signed with RS256 or ES256")
	ErrSignature   = errors.New("signature does not match")
)

// Claims are what a token says. Absent times are zero.
type Claims struct {
	Issuer, Subject string
	// Audience is empty if the claim is absent or an empty list. A single empty
	// string is kept.
	Audience []string
	Scope    string
	// Email and EmailVerified are those of OpenID Connect. An absent
	// email_verified is false.
	Email                      string
	EmailVerified              bool
	Expires, Issued, NotBefore time.Time
}

// A Token is a token whose signature was not looked at yet.
type Token struct {
	// KeyID says which key to verify with; it may be empty.
	KeyID  string
	Claims Claims

	alg       string
	signed    string
	signature []byte
}

// Parse reads a token. It believes nothing: call Verify.
func Parse(s string) (*Token, error) {
	if len(s) > MaxSize {
		return nil, ErrTooLong
	}
	head, rest, ok := strings.Cut(s, ".")
	if !ok {
		return nil, ErrMalformed
	}
	body, sig, ok := strings.Cut(rest, ".")
	if !ok || head == "" || body == "" || strings.Contains(sig, ".") {
		return nil, ErrMalformed
	}
	h, err := object(head)
	if err != nil {
		return nil, err
	}
	t := &Token{signed: s[:len(head)+1+len(body)]}
	if t.alg, err = text(h, "alg"); err != nil {
		return nil, err
	}
	if _, critical := h["crit"]; critical || t.alg != "RS256" && t.alg != "ES256" {
		return nil, ErrUnsupported
	}
	if t.KeyID, err = text(h, "kid"); err != nil {
		return nil, err
	}
	c, err := object(body)
	if err != nil {
		return nil, err
	}
	if err := t.Claims.decode(c); err != nil {
		return nil, err
	}
	if t.signature, err = encoding.DecodeString(sig); err != nil {
		return nil, ErrMalformed
	}
	return t, nil
}

// encoding refuses bits that do not count, so that no token has two forms.
var encoding = base64.RawURLEncoding.Strict()

// object decodes a part. A map is used since the names of claims are exact,
// while encoding/json takes those of struct fields in any case.
func object(part string) (map[string]json.RawMessage, error) {
	b, err := encoding.DecodeString(part)
	if err != nil {
		return nil, ErrMalformed
	}
	d := json.NewDecoder(bytes.NewReader(b))
	var m map[string]json.RawMessage
	if err := d.Decode(&m); err != nil || m == nil {
		return nil, ErrMalformed
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, ErrMalformed
	}
	return m, nil
}

func text(m map[string]json.RawMessage, name string) (string, error) {
	raw, ok := m[name]
	if !ok {
		return "", nil
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", ErrMalformed
	}
	return *s, nil
}

// instant reads seconds since 1970, which may have a fraction.
func instant(m map[string]json.RawMessage, name string) (time.Time, error) {
	raw, ok := m[name]
	if !ok {
		return time.Time{}, nil
	}
	var f *float64
	if err := json.Unmarshal(raw, &f); err != nil || f == nil || *f < 0 || *f > 1<<40 {
		return time.Time{}, ErrMalformed
	}
	sec, frac := math.Modf(*f)
	return time.Unix(int64(sec), int64(frac*1e9)), nil
}

func (c *Claims) decode(m map[string]json.RawMessage) (err error) {
	var errs [7]error
	c.Issuer, errs[0] = text(m, "iss")
	c.Subject, errs[1] = text(m, "sub")
	c.Scope, errs[2] = text(m, "scope")
	c.Email, errs[3] = text(m, "email")
	c.Expires, errs[4] = instant(m, "exp")
	c.Issued, errs[5] = instant(m, "iat")
	c.NotBefore, errs[6] = instant(m, "nbf")
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if raw, ok := m["email_verified"]; ok {
		// Some issuers send the word.
		switch string(raw) {
		case "true", `"true"`:
			c.EmailVerified = true
		case "false", `"false"`:
		default:
			return ErrMalformed
		}
	}
	if raw, ok := m["aud"]; ok {
		if raw[0] == '[' {
			if err := json.Unmarshal(raw, &c.Audience); err != nil {
				return ErrMalformed
			}
			return nil
		}
		aud, err := text(m, "aud")
		if err != nil {
			return err
		}
		c.Audience = []string{aud}
	}
	return nil
}

// Verify returns nil if pub's private half signed the token with the algorithm
// that is pub's: RS256 for RSA, ES256 for P-256.
func (t *Token) Verify(pub crypto.PublicKey) error {
	digest := sha256.Sum256([]byte(t.signed))
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		if t.alg != "RS256" {
			return ErrUnsupported
		}
		if rsa.VerifyPKCS1v15(pub, crypto.SHA256, digest[:], t.signature) != nil {
			return ErrSignature
		}
		return nil
	case *ecdsa.PublicKey:
		if t.alg != "ES256" || pub.Curve != elliptic.P256() {
			return ErrUnsupported
		}
		if len(t.signature) != 64 {
			return ErrSignature
		}
		r, s := new(big.Int).SetBytes(t.signature[:32]), new(big.Int).SetBytes(t.signature[32:])
		if !ecdsa.Verify(pub, digest[:], r, s) {
			return ErrSignature
		}
		return nil
	}
	return ErrUnsupported
}

// Sign returns a token with the given claims, which are marshalled as JSON.
func Sign(key crypto.Signer, keyID string, claims any) (string, error) {
	alg := "RS256"
	if _, ok := key.Public().(*ecdsa.PublicKey); ok {
		alg = "ES256"
	}
	head, err := json.Marshal(map[string]string{"alg": alg, "typ": "JWT", "kid": keyID})
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed := encoding.EncodeToString(head) + "." + encoding.EncodeToString(body)
	digest := sha256.Sum256([]byte(signed))
	var sig []byte
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, k, digest[:])
		if err != nil {
			return "", err
		}
		sig = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	default:
		if sig, err = key.Sign(rand.Reader, digest[:], crypto.SHA256); err != nil {
			return "", err
		}
	}
	return signed + "." + encoding.EncodeToString(sig), nil
}

// CheckKey returns an error unless pub is an RSA key of 2048 to 8192 bits or a
// P-256 key.
func CheckKey(pub crypto.PublicKey) error {
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		if n := pub.N.BitLen(); n < 2048 || n > 8192 {
			return fmt.Errorf("RSA key has %d bits, not 2048 to 8192", n)
		}
		return nil
	case *ecdsa.PublicKey:
		if pub.Curve == elliptic.P256() {
			return nil
		}
	}
	return errors.New("key is neither RSA nor P-256")
}
