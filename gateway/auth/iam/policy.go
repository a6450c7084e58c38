package iam

import (
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/iam/apiv1/iampb"

	"github.com/trestledb/trestle/engine/fault"
)

// Members that stand for many. Callers without credentials are never let in as
// either of them, so that both mean every caller with good credentials.
const (
	AllUsers      = "allUsers"
	Authenticated = "allAuthenticatedUsers"
)

// domain begins the member that stands for the users with an e-mail address in
// a domain. Service accounts are in none.
const domain = "domain:"

// maxMembers bounds the members of a policy, counted once per binding.
const maxMembers = 1500

// User and ServiceAccount return the member with the given e-mail address (or
// other name, for a user).
func User(name string) string { return "user:" + strings.ToLower(name) }

// ServiceAccount returns the member of a service account's e-mail address.
func ServiceAccount(email string) string { return "serviceAccount:" + strings.ToLower(email) }

// Check returns what is wrong with a policy, as an Invalid fault whose field
// is relative to the policy.
func Check(p *iampb.Policy) error {
	members := 0
	for i, b := range p.GetBindings() {
		if err := checkBinding(b); err != nil {
			return within("bindings", i, err)
		}
		if members += len(b.GetMembers()); members > maxMembers {
			return fault.InvalidField("bindings", "Error in field 'bindings' : More than %d members", maxMembers)
		}
	}
	return nil
}

func checkBinding(b *iampb.Binding) *fault.Error {
	role, ok := Role(b.GetRole())
	if !ok {
		return fault.InvalidField("role", "Error in field 'role' : Unknown role '%s', the roles are %s", b.GetRole(), strings.Join(Roles(), ", "))
	}
	if len(b.GetMembers()) == 0 {
		return fault.InvalidField("members", "Error in field 'members' : Must not be empty")
	}
	for i, m := range b.GetMembers() {
		if _, ok := normalize(m); !ok {
			return within("members", i, fault.InvalidField("", "'%s' is not a member: expected user:NAME, serviceAccount:EMAIL, domain:NAME, %s or %s", m, AllUsers, Authenticated))
		}
	}
	if c := b.GetCondition(); c != nil {
		if _, err := ParseCondition(c.GetExpression()); err != nil {
			return fault.InvalidField("condition.expression", "Error in field 'condition' : Error in field 'expression' : %s", err)
		}
		if role.Intersect(&cells); role == (Set{}) {
			return fault.InvalidField("condition", "Error in field 'condition' : Role '%s' neither reads nor mutates rows, which the condition is about", b.GetRole())
		}
	}
	return nil
}

// otherKinds are kinds of member that IAM knows and no caller here is of, so that only
// policies that are not enforced may have them.
var otherKinds = []string{"group", "principal", "principalSet", "deleted", "projectOwner", "projectEditor", "projectViewer"}

// CheckMembers returns what is wrong with the members of a policy that is kept
// where login is off, as an Invalid fault whose field is relative to the policy.
// They must be of a kind that IAM knows.
func CheckMembers(p *iampb.Policy) error {
	for i, b := range p.GetBindings() {
		for k, m := range b.GetMembers() {
			kind, name, _ := strings.Cut(m, ":")
			other := name != "" && len(name) <= maxMember && slices.Contains(otherKinds, kind) && !strings.ContainsAny(name, space)
			if _, ok := normalize(m); !ok && !other {
				return within("bindings", i, within("members", k, fault.InvalidField("",
					"'%s' is not a member: expected user:NAME, serviceAccount:EMAIL, group:EMAIL, domain:NAME, %s or %s", m, AllUsers, Authenticated)))
			}
		}
	}
	return nil
}

// maxMember bounds the name of a member, in which there is no space.
const (
	maxMember = 1024
	space     = " \t\r\n"
)

// within says that err is about element i of a field.
func within(field string, i int, err *fault.Error) *fault.Error {
	out := fault.InvalidField("", "Error in field '%s' : Error in element #%d : %s", field, i, err.Msg)
	out.Field = field + "[" + strconv.Itoa(i) + "]"
	if err.Field != "" {
		out.Field += "." + err.Field
	}
	return out
}

// normalize returns the one form of a member that is compared.
func normalize(m string) (string, bool) {
	if m == AllUsers || m == Authenticated {
		return m, true
	}
	kind, name, _ := strings.Cut(m, ":")
	if name == "" || len(name) > maxMember || strings.ContainsAny(name, space) {
		return "", false
	}
	switch kind {
	case "user":
		return User(name), true
	case "serviceAccount":
		return ServiceAccount(name), strings.Contains(name, "@")
	case "domain":
		return domain + strings.ToLower(name), !strings.Contains(name, "@")
	}
	return "", false
}

// A Policy is a policy in the form in which it is asked. A nil Policy grants
// nothing.
type Policy struct {
	members  map[string]*grants
	domains  bool // some of members are domains
	everyone grants
}

// grants are what one member is granted.
type grants struct {
	always Set
	// somewhere are the permissions that some of conditional grants.
	somewhere   Set
	conditional []conditional
}

type conditional struct {
	grants   Set
	families []string
}

// Compile prepares a policy. Bindings that Check would refuse grant nothing:
// they may have been stored by a version that knew more.
func Compile(p *iampb.Policy) *Policy {
	out := &Policy{members: map[string]*grants{}}
	for _, b := range p.GetBindings() {
		role, ok := Role(b.GetRole())
		if !ok {
			continue
		}
		var c *conditional
		if b.GetCondition() != nil {
			families, err := ParseCondition(b.GetCondition().GetExpression())
			if err != nil {
				continue
			}
			role.Intersect(&cells)
			c = &conditional{role, families}
		}
		for _, m := range b.GetMembers() {
			m, ok := normalize(m)
			if !ok {
				continue
			}
			out.domains = out.domains || strings.HasPrefix(m, domain)
			g := &out.everyone
			if m != AllUsers && m != Authenticated {
				if g = out.members[m]; g == nil {
					g = new(grants)
					out.members[m] = g
				}
			}
			if c == nil {
				g.always.Union(&role)
			} else {
				g.somewhere.Union(&role)
				g.conditional = append(g.conditional, *c)
			}
		}
	}
	return out
}

// Grants tells whether the policy gives p to member, and if it does not, for
// which families it does. The latter are sorted and must not be changed.
func (p *Policy) Grants(member string, perm Permission) (always bool, families []string) {
	if p == nil {
		return false, nil
	}
	some := [...]*grants{&p.everyone, p.members[member], p.domainOf(member)}
	for _, g := range some {
		if g != nil && g.always.Has(perm) {
			return true, nil
		}
	}
	for _, g := range some {
		if g != nil {
			families = g.in(perm, families)
		}
	}
	return false, families
}

// domainOf returns the grants of a member's domain, nil if there are none.
func (p *Policy) domainOf(member string) *grants {
	if !p.domains {
		return nil
	}
	name, user := strings.CutPrefix(member, "user:")
	at := strings.LastIndexByte(name, '@')
	if !user || at < 1 {
		return nil
	}
	return p.members[domain+name[at+1:]]
}

// in adds to families those for which g has perm.
func (g *grants) in(perm Permission, families []string) []string {
	if !g.somewhere.Has(perm) {
		return families
	}
	for i := range g.conditional {
		if c := &g.conditional[i]; c.grants.Has(perm) {
			families = Union(families, c.families)
		}
	}
	return families
}

// Union returns the families in a or b, sorted. It changes neither.
func Union(a, b []string) []string {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0 || slices.Equal(a, b):
		return a
	}
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}
