package auth

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/trestledb/trestle/gateway/auth/jws"
)

// KeyCredentials are the credentials of a client that has the JSON file of a
// service account's key. It signs its own tokens.
type KeyCredentials struct {
	email, keyID string
	key          crypto.Signer
	plaintext    bool

	mu      sync.Mutex
	header  string
	expires time.Time
}

var _ credentials.PerRPCCredentials = (*KeyCredentials)(nil)

// NewKeyCredentials reads the JSON file of a key. With plaintext its tokens
// are sent over connections without TLS too.
func NewKeyCredentials(file []byte, plaintext bool) (*KeyCredentials, error) {
	var d struct {
		Type  string `json:"type"`
		Email string `json:"client_email"`
		KeyID string `json:"private_key_id"`
		Key   string `json:"private_key"`
	}
	if err := json.Unmarshal(file, &d); err != nil {
		return nil, fmt.Errorf("read the key of a service account: %w", err)
	}
	block, _ := pem.Decode([]byte(d.Key))
	if d.Type != "service_account" || d.Email == "" || d.KeyID == "" || block == nil {
		return nil, errors.New("read the key of a service account: the file is not one")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the key of a service account: %w", err)
	}
	key, ok := k.(crypto.Signer)
	if !ok || jws.CheckKey(key.Public()) != nil {
		return nil, errors.New("read the key of a service account: it is neither RSA nor P-256")
	}
	return &KeyCredentials{email: d.Email, keyID: d.KeyID, key: key, plaintext: plaintext}, nil
}

// GetRequestMetadata returns the authorization header.
func (c *KeyCredentials) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Add(5 * time.Minute).After(c.expires) {
		expires := now.Add(maxLifetime)
		tok, err := jws.Sign(c.key, c.keyID, map[string]any{"iss": c.email, "sub": c.email, "iat": now.Unix(), "exp": expires.Unix(),
			"scope": scopePrefix + "cloud-platform"})
		if err != nil {
			return nil, fmt.Errorf("sign a token: %w", err)
		}
		c.header, c.expires = "Bearer "+tok, expires
	}
	return map[string]string{"authorization": c.header}, nil
}

// RequireTransportSecurity tells whether TLS is needed.
func (c *KeyCredentials) RequireTransportSecurity() bool { return !c.plaintext }
