package auth

import (
	"context"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

// An Identity is what a caller is told of itself.
type Identity struct {
	// Member is its name, as policies write it; "anonymous" where callers do not log in.
	Member string
	// Root may do everything.
	Root bool
}

// Whose returns whose credentials the headers "Authorization" of a request are. It is
// PermissionDenied, and Unauthenticated, if they are no good.
func (a *Auth) Whose(ctx context.Context, authorization []string) (Identity, error) {
	if a.o.Off {
		return Identity{anonymous.Member, true}, nil
	}
	p, no := a.authenticate(ctx, authorization, a.now())
	if no != nil {
		return Identity{}, &fault.Error{Kind: fault.PermissionDenied, Msg: no.message(), Cause: no}
	}
	return Identity{p.Member, p.Root}, nil
}

// Session returns a token that stands for another for as long as life, and until when it
// is good: as long as the key that the other was signed with, and no longer. That of an
// issuer's user outlives the ID token. With readOnly it is good for reading only. What
// is no token of a service account's key or of an issuer has no session: it could not be
// taken back. Nor has a session, which would never end.
func (a *Auth) Session(ctx context.Context, authorization string, life time.Duration, readOnly bool) (token string, expires time.Time, err error) {
	refuse := func(no *refusal) (string, time.Time, error) {
		return "", time.Time{}, a.refuse(&call{Context: ctx, method: "session"}, no)
	}
	if a.o.Off {
		return refuse(errUnknown)
	}
	now := a.now()
	p, no := a.authenticate(ctx, []string{authorization}, now)
	if no != nil {
		return refuse(no)
	}
	c := accessClaims{Scopes: p.scopes, Session: true}
	r := a.registry.Load()
	expires = now.Add(life)
	switch {
	case p.key != "":
		c.KeyID = p.key
		if k := r.keys[p.key]; k != nil && !k.expires.IsZero() {
			expires = earlier(expires, k.expires)
		}
	case p.issued:
		c.Member = p.Member
	default:
		return refuse(errUnknown)
	}
	if readOnly {
		c.Scopes &= dataRead | adminRead
	}
	c.Expires = expires.Unix()
	token, err = r.issue(c)
	return token, expires, err
}
