package auth

import (
	"context"
	"sync"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/reread"
)

// How old what is known of a policy may be.
const (
	policyFresh = 2 * time.Second // then the next caller reads it again
	policyUsed  = 4 * time.Second // while it is read, others use the old one so long without waiting
	maxPolicies = 64 << 10
)

// policies remembers policies by resource. A policy is read again by the first
// caller after policyFresh, so that nothing is read for resources that are not
// used. While that has no answer callers go on with the old one until maxStale.
type policies struct {
	// fetch returns a policy as it is stored; NotFound if the resource is not
	// there, or cannot have one.
	fetch    func(ctx context.Context, resource string) (*iampb.Policy, error)
	now      func() time.Time
	maxStale time.Duration

	mu struct {
		sync.RWMutex
		entries map[string]*policyEntry
		// forgotten counts calls of forget: what was fetched before one must not
		// be remembered after it.
		forgotten uint64
	}
}

type policyEntry struct {
	policy *iam.Policy // nil grants nothing
	read   time.Time
	again  reread.Question[*iam.Policy]
}

func newPolicies(now func() time.Time, maxStale time.Duration) *policies {
	p := &policies{now: now, maxStale: maxStale}
	p.mu.entries = map[string]*policyEntry{}
	return p
}

// get returns the policy of a resource; nil if it has none.
func (p *policies) get(ctx context.Context, resource string, now time.Time) (*iam.Policy, error) {
	p.mu.RLock()
	e := p.mu.entries[resource]
	forgotten := p.mu.forgotten
	p.mu.RUnlock()
	if e == nil {
		return p.read(ctx, resource, now, forgotten)
	}
	switch age := now.Sub(e.read); {
	case age < policyFresh:
	case age < p.maxStale:
		fresh, ok, err := e.again.Ask(ctx, now, age >= policyUsed, func(ctx context.Context) (*iam.Policy, error) { return p.read(ctx, resource, now, forgotten) })
		if err != nil || ok {
			return fresh, err
		}
	default:
		return p.read(ctx, resource, now, forgotten)
	}
	return e.policy, nil
}

// read reads the policy of a resource, and remembers it unless forget was called since
// it had been called forgotten times.
func (p *policies) read(ctx context.Context, resource string, now time.Time, forgotten uint64) (*iam.Policy, error) {
	pb, err := p.fetch(ctx, resource)
	switch kind := fault.KindOf(err); {
	case err == nil:
	case kind == fault.NotFound, kind == fault.Invalid, kind == fault.Unimplemented:
		pb = nil // no such resource, or none that has policies
	case ctx.Err() != nil:
		return nil, ctx.Err()
	default:
		return nil, fault.New(fault.Unavailable, "read policy of %s: %w", resource, err)
	}
	fresh := &policyEntry{read: now}
	if len(pb.GetBindings()) > 0 {
		fresh.policy = iam.Compile(pb)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.forgotten == forgotten {
		if len(p.mu.entries) >= maxPolicies {
			p.evictLocked(now)
		}
		p.mu.entries[resource] = fresh
	}
	return fresh.policy, nil
}

// evictLocked makes room by removing what is old, or anything.
func (p *policies) evictLocked(now time.Time) {
	removed := false
	for r, e := range p.mu.entries {
		if now.Sub(e.read) > policyUsed {
			delete(p.mu.entries, r)
			removed = true
		}
	}
	if !removed {
		clear(p.mu.entries)
	}
}

// forget makes the next caller read every policy again. Policies and resources
// change rarely enough.
func (p *policies) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.mu.entries)
	p.mu.forgotten++
}
