package iam

import (
	"slices"
	"strings"
)

// A Permission is one thing that a member may be allowed to do. It is an index
// into a list that only grows within a process; it is never stored.
type Permission uint8

// A Set is a set of permissions.
type Set [2]uint64

// Has tells whether p is in s.
func (s *Set) Has(p Permission) bool { return s[p>>6]&(1<<(p&63)) != 0 }

// Add puts p into s.
func (s *Set) Add(p Permission) { s[p>>6] |= 1 << (p & 63) }

// Union puts what is in t into s.
func (s *Set) Union(t *Set) {
	s[0] |= t[0]
	s[1] |= t[1]
}

// Intersect takes out of s what is not in t.
func (s *Set) Intersect(t *Set) {
	s[0] &= t[0]
	s[1] &= t[1]
}

// The verbs of each kind of resource.
var verbs = []struct {
	kind  string
	verbs string
}{
	{"bigtable.tables", "create get list update delete undelete readRows sampleRowKeys mutateRows readChangeStream checkConsistency generateConsistencyToken getIamPolicy setIamPolicy"},
	{"bigtable.instances", "create get list update delete ping executeQuery getIamPolicy setIamPolicy"},
	{"bigtable.clusters", "create get list update delete"},
	{"bigtable.appProfiles", "create get list update delete"},
	{"bigtable.backups", "create get list update delete read restore getIamPolicy setIamPolicy"},
	{"bigtable.authorizedViews", "create get list update delete readRows sampleRowKeys mutateRows getIamPolicy setIamPolicy"},
	{"bigtable.logicalViews", "create get list update delete readRows getIamPolicy setIamPolicy"},
	{"bigtable.materializedViews", "create get list update delete readRows sampleRowKeys getIamPolicy setIamPolicy"},
	{"bigtable.schemaBundles", "create get list update delete getIamPolicy setIamPolicy"},
	{"bigtable.memoryLayers", "get list update"},
	{"bigtable.hotTablets", "list"},
	{"bigtable.keyvisualizer", "get list"},
	{"bigtable.locations", "list"},
	{"iam.serviceAccounts", "create get list update delete"},
	{"iam.serviceAccountKeys", "create get list delete"},
	{"resourcemanager.projects", "get getIamPolicy setIamPolicy"},
}

var (
	names  []string
	byName = map[string]Permission{}
)

func init() {
	for _, k := range verbs {
		for verb := range strings.FieldsSeq(k.verbs) {
			byName[k.kind+"."+verb] = Permission(len(names))
			names = append(names, k.kind+"."+verb)
		}
	}
	if len(names) > 128 {
		panic("more permissions than a Set holds")
	}
	compileRoles()
	for _, n := range []string{
		"bigtable.tables.readRows", "bigtable.tables.mutateRows",
		"bigtable.authorizedViews.readRows", "bigtable.authorizedViews.mutateRows",
	} {
		cells.Add(byName[n])
	}
	for i, n := range names {
		switch n[strings.LastIndexByte(n, '.')+1:] {
		case "get", "list", "readRows", "sampleRowKeys", "readChangeStream", "checkConsistency", "generateConsistencyToken",
			"getIamPolicy", "ping", "executeQuery", "read":
			readOnly.Add(Permission(i))
		}
	}
}

// cells are the permissions that a condition on families can be about.
var cells Set

// readOnly are the permissions that change nothing.
var readOnly Set

// ReadOnly returns the permissions that change nothing.
func ReadOnly() Set { return readOnly }

// String returns the name, such as "bigtable.tables.readRows".
func (p Permission) String() string { return names[p] }

// Lookup finds a permission by its name.
func Lookup(name string) (Permission, bool) {
	p, ok := byName[name]
	return p, ok
}

// Permissions returns the names of all permissions, sorted.
func Permissions() []string {
	out := slices.Clone(names)
	slices.Sort(out)
	return out
}

// The roles, as documented for Cloud Bigtable. A name that ends in ".*" stands
// for every verb.
var roleList = []struct {
	name     string
	includes string // roles
	grants   string
}{
	{"roles/bigtable.viewer", "", `
		bigtable.appProfiles.get bigtable.appProfiles.list bigtable.authorizedViews.get bigtable.authorizedViews.list
		bigtable.backups.get bigtable.backups.list bigtable.clusters.get bigtable.clusters.list bigtable.hotTablets.list
		bigtable.instances.get bigtable.instances.list bigtable.locations.list bigtable.logicalViews.get bigtable.logicalViews.list
		bigtable.materializedViews.get bigtable.materializedViews.list bigtable.memoryLayers.get bigtable.memoryLayers.list
		bigtable.schemaBundles.get bigtable.schemaBundles.list bigtable.tables.checkConsistency
		bigtable.tables.generateConsistencyToken bigtable.tables.get bigtable.tables.list resourcemanager.projects.get`},
	{"roles/bigtable.reader", "roles/bigtable.viewer", `
		bigtable.authorizedViews.readRows bigtable.authorizedViews.sampleRowKeys bigtable.instances.executeQuery
		bigtable.instances.ping bigtable.keyvisualizer.* bigtable.logicalViews.readRows bigtable.materializedViews.readRows
		bigtable.materializedViews.sampleRowKeys bigtable.tables.readChangeStream bigtable.tables.readRows
		bigtable.tables.sampleRowKeys`},
	{"roles/bigtable.user", "roles/bigtable.reader", `
		bigtable.authorizedViews.mutateRows bigtable.tables.mutateRows`},
	{"roles/bigtable.admin", "", `
		bigtable.tables.* bigtable.instances.* bigtable.clusters.* bigtable.appProfiles.* bigtable.backups.*
		bigtable.authorizedViews.* bigtable.logicalViews.* bigtable.materializedViews.* bigtable.schemaBundles.*
		bigtable.memoryLayers.* bigtable.hotTablets.* bigtable.keyvisualizer.* bigtable.locations.*
		resourcemanager.projects.get`},
	// For callers that are to reach tables through logical views only, where Cloud
	// Bigtable needs a custom role.
	{"roles/trestle.queryUser", "", "bigtable.instances.executeQuery bigtable.instances.ping"},
	{"roles/viewer", "roles/bigtable.viewer", ""},
	{"roles/iam.serviceAccountAdmin", "", "iam.serviceAccounts.* resourcemanager.projects.get"},
	{"roles/iam.serviceAccountKeyAdmin", "", "iam.serviceAccountKeys.* iam.serviceAccounts.get iam.serviceAccounts.list resourcemanager.projects.get"},
	{"roles/resourcemanager.projectIamAdmin", "", "resourcemanager.projects.*"},
	{"roles/owner", "roles/bigtable.admin roles/iam.serviceAccountAdmin roles/iam.serviceAccountKeyAdmin roles/resourcemanager.projectIamAdmin", ""},
}

var roles = map[string]*Set{}

func compileRoles() {
	for _, r := range roleList {
		s := new(Set)
		for inc := range strings.FieldsSeq(r.includes) {
			s.Union(roles[inc])
		}
		for g := range strings.FieldsSeq(r.grants) {
			found := false
			for i, n := range names {
				if n == g || strings.HasSuffix(g, ".*") && strings.HasPrefix(n, g[:len(g)-1]) {
					s.Add(Permission(i))
					found = true
				}
			}
			if !found {
				panic("role " + r.name + " grants the unknown " + g)
			}
		}
		roles[r.name] = s
	}
}

// Role returns what a role permits.
func Role(name string) (Set, bool) {
	if s := roles[name]; s != nil {
		return *s, true
	}
	return Set{}, false
}

// Roles returns the names of all roles, in order of growing power.
func Roles() []string {
	var out []string
	for _, r := range roleList {
		out = append(out, r.name)
	}
	return out
}
