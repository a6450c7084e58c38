package auth

import (
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// A resource is a resource name with where the names of what it is in end.
type resource struct {
	name string
	// ends are the lengths of the prefixes of name that can have a policy, from
	// the project down.
	ends [5]uint16
	n    uint8
	kind kind // of the last collection
}

// A kind says what a collection holds.
type kind uint8

const (
	noKind kind = iota
	projects
	instances
	clusters
	tables
	profiles
	backups
	authorizedViews
	logicalViews
	materializedViews
	schemaBundles
	memoryLayers
	serviceAccounts
	serviceKeys
	other
)

var collections = map[string]struct {
	kind     kind
	policies bool
}{
	"projects":          {projects, true},
	"instances":         {instances, true},
	"clusters":          {clusters, false},
	"tables":            {tables, true},
	"appProfiles":       {profiles, false},
	"backups":           {backups, true},
	"snapshots":         {backups, false},
	"authorizedViews":   {authorizedViews, true},
	"logicalViews":      {logicalViews, true},
	"materializedViews": {materializedViews, true},
	"schemaBundles":     {schemaBundles, true},
	"hotTablets":        {other, false},
	"locations":         {other, false},
	"operations":        {other, false},
	"serviceAccounts":   {serviceAccounts, false},
	"keys":              {serviceKeys, false},
}

// kindPrefix begins the permissions about each kind.
var kindPrefix = map[kind]string{
	projects: "resourcemanager.projects", instances: "bigtable.instances", clusters: "bigtable.clusters", tables: "bigtable.tables",
	profiles: "bigtable.appProfiles", backups: "bigtable.backups", authorizedViews: "bigtable.authorizedViews",
	logicalViews: "bigtable.logicalViews", materializedViews: "bigtable.materializedViews", schemaBundles: "bigtable.schemaBundles",
	memoryLayers: "bigtable.memoryLayers", serviceAccounts: "iam.serviceAccounts", serviceKeys: "iam.serviceAccountKeys",
}

// parseResource reads a name. Where an id is the wildcard "-" the name ends
// before it: a caller that asks for all must be allowed to have all.
func parseResource(name string) (resource, bool) {
	r := resource{name: name}
	if len(name) > wire.MaxName {
		return r, false
	}
	for at := 0; at < len(name); {
		collection, _, ok := strings.Cut(name[at:], "/")
		if !ok {
			// The one resource that is no collection.
			if collection == "memoryLayer" && r.kind == clusters {
				r.kind = memoryLayers
				return r, true
			}
			return r, false
		}
		c := collections[collection]
		if c.kind == noKind || (c.kind == projects) != (at == 0) {
			return r, false
		}
		start := at + len(collection) + 1
		end := len(name)
		if i := strings.IndexByte(name[start:], '/'); i >= 0 {
			end = start + i
		}
		id := name[start:end]
		if id == "" {
			return r, false
		}
		if id == "-" && at > 0 {
			r.name = name[:at-1]
			return r, true
		}
		r.kind = c.kind
		if c.policies {
			if int(r.n) == len(r.ends) {
				return r, false
			}
			r.ends[r.n] = uint16(end)
			r.n++
		}
		if at = end + 1; at == len(name) {
			return r, false // it ends in a slash
		}
	}
	return r, r.n > 0
}

func isProject(name string) bool {
	id, ok := strings.CutPrefix(name, "projects/")
	return ok && id != "" && !strings.Contains(id, "/")
}

// errName refuses a name that no resource has.
func errName(field, name string) error {
	return fault.InvalidField(field, "When parsing '%s' : Resource name expected in the form 'projects/<project_id>/...'.", shorten(name))
}

func shorten(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
