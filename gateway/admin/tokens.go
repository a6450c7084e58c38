package admin

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"sort"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/reread"
)

// tokenKey is the secret that signs what clients carry. It does not change.
type tokenKey struct {
	key   []byte
	read  time.Time
	again reread.Question[*tokenKey]
}

const (
	tokenKeyRecord = "secrets/tokens"
	macSize        = 16
	// keyAge is for how long the key is not asked for again: it is made anew when
	// it may have become known.
	keyAge = 5 * time.Second
)

// signingKey returns the key, making it on the first use of a new store. It goes on
// with the one that it has while the record cannot be read.
func (a *Admin) signingKey(ctx context.Context) ([]byte, error) {
	k, now := a.key.Load(), time.Now()
	switch {
	case k == nil:
		var err error
		if k, err = a.readKey(ctx); err != nil {
			return nil, err
		}
	case now.Sub(k.read) > keyAge:
		fresh, ok, err := k.again.Ask(ctx, now, true, a.readKey)
		if err != nil {
			return nil, err
		}
		if ok {
			k = fresh
		}
	}
	return k.key, nil
}

// readKey reads the key, or makes it.
func (a *Admin) readKey(ctx context.Context) (*tokenKey, error) {
	for {
		now := time.Now()
		k, _, err := a.b.GetRecord(ctx, tokenKeyRecord)
		if fault.KindOf(err) == fault.NotFound {
			k = make([]byte, 32)
			rand.Read(k)
			_, err = a.b.PutRecord(ctx, tokenKeyRecord, k, 0)
			if fault.KindOf(err) == fault.Aborted {
				continue // another caller or gateway was first
			}
		}
		if err != nil {
			return nil, err
		}
		fresh := &tokenKey{key: k, read: now}
		a.key.Store(fresh)
		return fresh, nil
	}
}

// TokenKey returns the secret that signs what clients carry.
func (a *Admin) TokenKey(ctx context.Context) ([]byte, error) { return a.signingKey(ctx) }

func tokenMAC(key []byte, purpose string, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(purpose))
	h.Write([]byte{0})
	h.Write(body)
	return h.Sum(nil)[:macSize]
}

// seal encodes v as a token that open accepts for the same purpose only.
func (a *Admin) seal(ctx context.Context, purpose string, v any) (string, error) {
	key, err := a.signingKey(ctx)
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(append(tokenMAC(key, purpose, body), body...)), nil
}

// open decodes a token of seal into v. It tells whether the token is one.
func (a *Admin) open(ctx context.Context, purpose, token string, v any) (bool, error) {
	key, err := a.signingKey(ctx)
	if err != nil {
		return false, err
	}
	return openToken(key, purpose, token, v), nil
}

func openToken(key []byte, purpose, token string, v any) bool {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) < macSize {
		return false
	}
	mac, body := b[:macSize], b[macSize:]
	return hmac.Equal(mac, tokenMAC(key, purpose, body)) && json.Unmarshal(body, v) == nil
}

// A pageToken says where the next page begins.
type pageToken struct {
	Size  int32  `json:"s"` // page_size of the first request
	After string `json:"a"` // the last key that was given
}

// A page is one page of a listing that is sorted by a string key.
type page struct {
	size  int32 // 0: no limit
	after string
	scope string
}

// newPage checks page_size and page_token. scope names everything else of the
// request, so that a token is no good for another listing.
func (a *Admin) newPage(ctx context.Context, scope string, size int32, token string) (*page, error) {
	if size < 0 {
		return nil, refuse(fault.Invalid, "page_size", "Error in field 'page_size' : Must not be negative, but found %d", size)
	}
	p := &page{size: size, scope: "page " + scope}
	if token == "" {
		return p, nil
	}
	var t pageToken
	ok, err := a.open(ctx, p.scope, token, &t)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, refuse(fault.Invalid, "page_token", "Error in field 'page_token' : Not a token of this listing")
	}
	if size != 0 && size != t.Size {
		return nil, refuse(fault.Invalid, "page_size", "Error in field 'page_size' : Must be %d as in the first request, but found %d", t.Size, size)
	}
	p.size, p.after = t.Size, t.After
	return p, nil
}

// next returns the token of the page after the one that ends with key last.
func (p *page) next(ctx context.Context, a *Admin, last string) (string, error) {
	return a.seal(ctx, p.scope, pageToken{Size: p.size, After: last})
}

// cut returns the part of items that is on page p, and the token of the next
// page, empty at the end. items are sorted by key.
func cut[T any](ctx context.Context, a *Admin, p *page, items []T, key func(T) string) ([]T, string, error) {
	if p.after != "" {
		items = items[sort.Search(len(items), func(i int) bool { return key(items[i]) > p.after }):]
	}
	if p.size == 0 || len(items) <= int(p.size) {
		return items, "", nil
	}
	items = slices.Clip(items[:p.size])
	token, err := p.next(ctx, a, key(items[len(items)-1]))
	return items, token, err
}
