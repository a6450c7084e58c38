package auth

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/auth/jws"
	"github.com/trestledb/trestle/gateway/backend"
)

const secretRecord = "secrets/access-tokens"

// A registry is what the records say about accounts, held in memory.
type registry struct {
	read     time.Time // when it was
	accounts map[string]*accountState
	keys     map[string]*liveKey // by id
	secret   []byte
}

type accountState struct {
	*Account
	keys []*liveKey
}

// A liveKey is a key that can verify tokens, for as long as it is not revoked.
type liveKey struct {
	revoked atomic.Bool
	id      string
	public  crypto.PublicKey
	expires time.Time
	email   string
	member  string
	root    bool
}

// readRegistry reads the records. What did not change since old is taken from
// it; the keys that are gone are revoked.
func readRegistry(ctx context.Context, r backend.Records, old *registry, now time.Time) (*registry, error) {
	out := &registry{read: now, accounts: map[string]*accountState{}, keys: map[string]*liveKey{}}
	err := r.ListRecords(ctx, accountPrefix, func(key string, b []byte, version uint64) error {
		email := key[len(accountPrefix):]
		if old != nil {
			if a := old.accounts[email]; a != nil && a.version == version {
				out.accounts[email] = a
				return nil
			}
		}
		a, err := decodeAccount(b, version)
		if err != nil {
			return err
		}
		out.accounts[email] = &accountState{Account: a}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if out.secret, err = readSecret(ctx, r); err != nil {
		return nil, err
	}
	for email, a := range out.accounts {
		if old == nil || old.accounts[email] != a {
			var was []*liveKey
			if old != nil && old.accounts[email] != nil {
				was = old.accounts[email].keys
			}
			a.keys = a.live(was)
		}
		for _, k := range a.keys {
			out.keys[k.id] = k
		}
	}
	if old != nil {
		for id, k := range old.keys {
			if out.keys[id] != k {
				k.revoked.Store(true)
			}
		}
	}
	return out, nil
}

// live returns the account's usable keys. One that was usable before, and
// means the same, stays the same.
func (a *accountState) live(was []*liveKey) (out []*liveKey) {
	if a.Disabled {
		return nil
	}
next:
	for _, k := range a.Keys {
		pub, err := x509.ParsePKIXPublicKey(k.Public)
		if err != nil || jws.CheckKey(pub) != nil {
			continue // AddKey let nothing else in
		}
		for _, w := range was {
			same, ok := w.public.(interface{ Equal(crypto.PublicKey) bool })
			if ok && w.id == k.ID && w.root == a.Root && w.expires.Equal(k.Expires) && same.Equal(pub) {
				out = append(out, w)
				continue next
			}
		}
		out = append(out, &liveKey{id: k.ID, public: pub, expires: k.Expires, email: a.Email, member: iam.ServiceAccount(a.Email), root: a.Root})
	}
	return out
}

// readSecret returns the key of access tokens, making it on the first use of a
// new store.
func readSecret(ctx context.Context, r backend.Records) ([]byte, error) {
	for {
		b, _, err := r.GetRecord(ctx, secretRecord)
		if err == nil && len(b) < 32 {
			return nil, fault.New(fault.Corruption, "the record %s has %d bytes, not 32", secretRecord, len(b))
		}
		if fault.KindOf(err) != fault.NotFound {
			return b, err
		}
		b = make([]byte, 32)
		rand.Read(b)
		if _, err := r.PutRecord(ctx, secretRecord, b, 0); fault.KindOf(err) != fault.Aborted {
			return b, err
		}
	}
}
