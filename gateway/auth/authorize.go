package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/wire"
)

// authorize returns nil if the caller may do what the request asks for.
func (a *Auth) authorize(ctx context.Context, c *call, req any) error {
	r := c.rule
	if r.open {
		return nil
	}
	if a.o.Off {
		// The resource is for the audit log.
		for i := 0; i < len(r.checks) && c.resource == ""; i++ {
			c.resource, _ = r.checks[i].get(req)
		}
		return nil
	}
	if !c.principal.good(c.start) {
		return a.unauthenticated(ctx, errExpired)
	}
	if r.off {
		return fault.New(fault.Unimplemented, "%s is not there for callers with credentials", method(c.method))
	}
	class := r.class
	open, _ := req.(*wire.SessionRequest)
	if open != nil && open.Writes() {
		class |= dataWrite
	}
	if c.principal.scopes&class != class {
		return a.scope(c, method(c.method))
	}
	if r.test {
		// The answer tells what the caller may.
		in, ok := req.(*iampb.TestIamPermissionsRequest)
		if !ok {
			return fault.New(fault.Internal, "%s has a request of type %T", c.method, req)
		}
		c.resource = in.GetResource()
		return nil
	}
	set, optional := false, false
	for i := range r.checks {
		k := &r.checks[i]
		name, ok := k.get(req)
		if !ok {
			a.o.Log.LogAttrs(ctx, slog.LevelError, "no rule for the request", slog.String("method", c.method), slog.String("type", fmt.Sprintf("%T", req)))
			return a.denied(c, "This request cannot be authorized.", "IAM_PERMISSION_DENIED", nil)
		}
		if c.resource == "" {
			c.resource = name
		}
		optional = optional || k.optional
		if name == "" && k.optional || open != nil && !k.asked(open) {
			continue
		}
		set = true
		if c.keep {
			c.checked = append(c.checked, checked{k, name})
		}
		if err := a.checkInto(ctx, c, k, name); err != nil {
			return err
		}
	}
	if optional && !set {
		return fault.InvalidField("table_name", "Exactly one of the names of a table and of a view must be set, but 0 are")
	}
	if r.policy {
		in, ok := req.(*iampb.SetIamPolicyRequest)
		if !ok {
			return fault.New(fault.Internal, "%s has a request of type %T", c.method, req)
		}
		return checkPolicy(in.GetPolicy())
	}
	return nil
}

func checkPolicy(p *iampb.Policy) error {
	err := iam.Check(p)
	if f, ok := errors.AsType[*fault.Error](err); ok {
		f.Msg = "Error in field 'policy' : " + f.Msg
		f.Field = "policy." + f.Field
	}
	return err
}

var (
	readRows       = permission("bigtable.tables.readRows")
	mutateRows     = permission("bigtable.tables.mutateRows")
	getTable       = permission("bigtable.tables.get")
	viewMutateRows = permission("bigtable.authorizedViews.mutateRows")
)

func permission(name string) iam.Permission {
	p, ok := iam.Lookup(name)
	if !ok {
		panic("no permission " + name)
	}
	return p
}

// asked tells whether a session is to be opened for what c permits.
func (c *check) asked(open *wire.SessionRequest) bool {
	if c.perm == mutateRows || c.perm == viewMutateRows {
		return open.Writes()
	}
	return open.Reads()
}

// checkInto checks, and notes in c which families it may read or write.
func (a *Auth) checkInto(ctx context.Context, c *call, k *check, name string) error {
	families, err := a.check(ctx, c, k, name)
	if families != nil {
		if k.perm == mutateRows || k.perm == viewMutateRows {
			c.write.restrict(families)
		} else {
			c.read.restrict(families)
		}
	}
	return err
}

// check returns nil if the caller has the permission on the named resource. If
// it has it for some families only these come back, if the rule allows that.
func (a *Auth) check(ctx context.Context, c *call, k *check, name string) ([]string, error) {
	field := k.field
	if field == "operation" {
		field = "name"
	}
	if strings.HasPrefix(name, anyProject) {
		name = a.registry.Load().place(name)
	}
	res, ok := parseResource(name)
	if !ok {
		return nil, errName(field, name)
	}
	perm, ok := k.permission(res.kind)
	if !ok {
		return nil, errName(field, name)
	}
	always, families, err := a.held(ctx, c.principal, perm, &res, c.start)
	if err != nil {
		return nil, err
	}
	switch {
	case always:
		return nil, nil
	case len(families) > 0 && c.rule.families:
		return families, nil
	case c.rule.inert:
		c.inert = true
		return nil, nil
	}
	return nil, a.deniedOn(c, perm, name)
}

// anyProject begins names of accounts whose project is to be found out.
const anyProject = "projects/-/serviceAccounts/"

// place puts the project of an account into its name.
func (r *registry) place(name string) string {
	email, _, _ := strings.Cut(name[len(anyProject):], "/")
	project := SystemProject // only root may look for what is not there
	if acc := r.accounts[strings.ToLower(email)]; acc != nil {
		project = acc.Project
	}
	return "projects/" + project + name[len("projects/-"):]
}

// held tells whether p has a permission on a resource: because a policy of the
// resource, or of what it is in, gives it. Families are those for which it has
// it if it does not have it always.
func (a *Auth) held(ctx context.Context, p *Principal, perm iam.Permission, res *resource, now time.Time) (always bool, families []string, err error) {
	if p.Root {
		return true, nil, nil
	}
	for i := range res.n {
		policy, err := a.policies.get(ctx, res.name[:res.ends[i]], now)
		if err != nil {
			return false, nil, err
		}
		ok, some := policy.Grants(p.Member, perm)
		if ok {
			return true, nil, nil
		}
		families = iam.Union(families, some)
	}
	return false, families, nil
}

// TestPermissions returns those of the permissions that the caller of ctx has
// on a resource. A permission for some families only does not count. Outside
// of a request everything is held.
func (a *Auth) TestPermissions(ctx context.Context, name string, permissions []string) ([]string, error) {
	for i, p := range permissions {
		if _, ok := iam.Lookup(p); !ok {
			field := fmt.Sprintf("permissions[%d]", i)
			return nil, fault.InvalidField(field, "Permission %s is not valid for this resource.", shorten(p))
		}
	}
	c := callOf(ctx)
	if c == nil {
		return permissions, nil
	}
	res, ok := parseResource(name)
	if !ok {
		return nil, errName("resource", name)
	}
	var held []string
	for _, name := range permissions {
		perm, _ := iam.Lookup(name)
		if !c.principal.scopes.cover(perm) {
			continue
		}
		always, _, err := a.held(ctx, c.principal, perm, &res, c.start)
		if err != nil {
			return nil, err
		}
		if always {
			held = append(held, name)
		}
	}
	return held, nil
}

// cover tells whether a token of these scopes can be used for what p permits.
func (s scopes) cover(p iam.Permission) bool {
	if ro := iam.ReadOnly(); ro.Has(p) {
		return s&(dataRead|adminRead) != 0
	}
	return s&(dataWrite|adminWrite) != 0
}

// seen tells whether the caller may know whether a resource is there.
func (a *Auth) seen(ctx context.Context, c *call, name string) (bool, error) {
	res, ok := parseResource(name)
	if !ok {
		return true, nil // its form tells
	}
	perm, ok := iam.Lookup(kindPrefix[res.kind] + ".get")
	if !ok {
		return true, nil
	}
	always, _, err := a.held(ctx, c.principal, perm, &res, c.start)
	return always, err
}

func method(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// deniedOn refuses as Google does, whether or not the resource is there.
func (a *Auth) deniedOn(c *call, perm iam.Permission, name string) error {
	return a.denied(c, fmt.Sprintf("Permission '%s' denied on resource '%s' (or it may not exist).", perm, shorten(name)),
		"IAM_PERMISSION_DENIED", map[string]string{"permission": perm.String(), "resource": shorten(name)})
}

// scope refuses a token that is not for such requests.
func (a *Auth) scope(c *call, what string) error {
	return a.denied(c, fmt.Sprintf("The token has no scope for %s.", what), "ACCESS_TOKEN_SCOPE_INSUFFICIENT", nil)
}

func (a *Auth) denied(c *call, msg, reason string, metadata map[string]string) error {
	for d := c; d != nil; d = d.of {
		d.denied.Store(true)
	}
	if a.o.Refused != nil {
		a.o.Refused("permission")
	}
	return &fault.Error{Kind: fault.PermissionDenied, Msg: msg, Reason: reason, Metadata: metadata}
}

// families restrict access: nil to nothing, else to a sorted list.
type families struct {
	list []string
	some bool
}

// restrict narrows f to what is in list too.
func (f *families) restrict(list []string) {
	if !f.some {
		f.list, f.some = list, true
		return
	}
	var both []string
	for _, n := range f.list {
		if contains(list, n) {
			both = append(both, n)
		}
	}
	f.list = both
}

// within tells whether f allows nothing that g does not.
func (f *families) within(g *families) bool {
	if !g.some {
		return true
	}
	return f.some && !slices.ContainsFunc(f.list, func(n string) bool { return !contains(g.list, n) })
}

// equal tells whether f and g allow the same.
func (f *families) equal(g *families) bool { return f.within(g) && g.within(f) }

// allows tells whether f lets a family be used.
func (f *families) allows(name string) bool { return !f.some || contains(f.list, name) }

func contains(sorted []string, name string) bool {
	_, ok := slices.BinarySearch(sorted, name)
	return ok
}
