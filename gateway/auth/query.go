package auth

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/trestledb/trestle/gateway/auth/iam"
)

var (
	readLogicalView  = permission("bigtable.logicalViews.readRows")
	readMaterialized = permission("bigtable.materializedViews.readRows")
)

// Member returns the name of the caller of ctx as policies write it, "" for work of
// no caller and for one that has no name.
func Member(ctx context.Context) string {
	c := callOf(ctx)
	if c == nil || c.principal == anonymous {
		return ""
	}
	return c.principal.Member
}

// ReadView returns nil if the caller of ctx may read a logical view, else
// PermissionDenied. What the view reads is up to its definer: see As.
func (a *Auth) ReadView(ctx context.Context, name string) error {
	c := callOf(ctx)
	if c == nil {
		return nil
	}
	f, err := a.use(ctx, c, readLogicalView, name)
	if err == nil && f.some {
		err = a.deniedOn(c, readLogicalView, name)
	}
	return err
}

// A use is what a query was permitted.
type use struct {
	member string // whose rights these are
	perm   iam.Permission
	name   string
	f      families
}

// uses are those of a query that runs.
type uses struct {
	mu struct {
		sync.Mutex
		list []use
	}
}

func (s *uses) note(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.mu.list, func(o use) bool {
		return o.member == u.member && o.perm == u.perm && o.name == u.name && o.f.equal(&u.f)
	}) {
		s.mu.list = append(s.mu.list, *u)
	}
}

func (s *uses) all() []use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.mu.list)
}

// use checks that a query may use what is named, a table or a view, and notes it in the call
// of its stream: while the query runs it is asked again.
func (a *Auth) use(ctx context.Context, c *call, perm iam.Permission, name string) (f families, err error) {
	res, ok := parseResource(name)
	if !ok {
		return f, errName("query", name)
	}
	always, some, err := a.held(ctx, c.principal, perm, &res, a.now())
	switch {
	case err != nil:
		return f, err
	case !always && len(some) == 0:
		return f, a.deniedOn(c, perm, name)
	case !always:
		f.restrict(some)
	}
	u := use{c.principal.Member, perm, name, f}
	for c.of != nil {
		c = c.of
	}
	if c.uses != nil {
		c.uses.note(&u)
	}
	return f, nil
}

// usesAgain asks whether c would be permitted now what a query of its caller has used.
func (a *Auth) usesAgain(c *call, query *uses) error {
	for _, u := range query.all() {
		ctx, err := a.As(c, u.member)
		if err != nil {
			return err
		}
		f, err := a.use(ctx, callOf(ctx), u.perm, u.name)
		if err != nil {
			return err
		}
		if !u.f.within(&f) {
			return a.narrowed(c)
		}
	}
	return nil
}

// As returns ctx with the rights of a member, as a logical view reads with those of
// its definer. What is done with it is checked as a query is, and writes are
// refused. A service account that is gone, or disabled, has no rights.
func (a *Auth) As(ctx context.Context, member string) (context.Context, error) {
	c := callOf(ctx)
	if c == nil || c.principal.Member == member && c.rule.tables {
		return ctx, nil
	}
	p := &Principal{Member: member, scopes: dataRead}
	if email, ok := strings.CutPrefix(member, iam.ServiceAccount("")); ok {
		acc := a.registry.Load().accounts[strings.ToLower(email)]
		if acc == nil || acc.Disabled {
			return nil, a.denied(c, "The definer of a logical view is gone or disabled. Set the view's query again.", "IAM_PERMISSION_DENIED",
				map[string]string{"definer": shorten(member)})
		}
		p.Root = acc.Root
	}
	return &call{Context: ctx, principal: p, rule: queryRule, method: c.method, start: c.start, resource: c.resource, addr: c.addr, of: c}, nil
}

// queryRule is that of a query, whatever asks.
var queryRule = &rule{class: dataRead, tables: true}
