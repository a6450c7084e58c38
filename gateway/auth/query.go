package auth

import (
	"context"
	"strings"

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
	res, ok := parseResource(name)
	if !ok {
		return errName("query", name)
	}
	always, _, err := a.held(ctx, c.principal, readLogicalView, &res, c.start)
	if err == nil && !always {
		err = a.deniedOn(c, readLogicalView, name)
	}
	return err
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
