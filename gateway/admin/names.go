package admin

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// A form is a kind of resource name: collection, id, collection, id and so on.
type form struct {
	kind        string
	collections []string
}

var (
	projectForm  = form{"Project", []string{"projects"}}
	instanceForm = form{"Instance", []string{"projects", "instances"}}
	clusterForm  = form{"Cluster", []string{"projects", "instances", "clusters"}}
	profileForm  = form{"App profile", []string{"projects", "instances", "appProfiles"}}
	tableForm    = form{"Table", []string{"projects", "instances", "tables"}}
	backupForm   = form{"Backup", []string{"projects", "instances", "clusters", "backups"}}
	snapshotForm = form{"Snapshot", []string{"projects", "instances", "clusters", "snapshots"}}
)

// placeholders are the ids as they are shown in the text of a refusal.
var placeholders = map[string]string{
	"projects": "<project_id>", "instances": "<instance_id>", "clusters": "<cluster_id>",
	"appProfiles": "<app_profile_id>", "tables": "<table_id>",
	"authorizedViews": "<authorized_view_id>", "schemaBundles": "<schema_bundle_id>",
	"logicalViews": "<logical_view_id>", "materializedViews": "<materialized_view_id>", "backups": "<backup_id>", "snapshots": "<snapshot_id>",
}

func (f form) String() string {
	parts := make([]string, 0, 2*len(f.collections))
	for _, c := range f.collections {
		parts = append(parts, c, placeholders[c])
	}
	return strings.Join(parts, "/")
}

// split returns the ids of name, or nil if it is not of form f.
func (f form) split(name string) []string {
	if len(name) > wire.MaxName {
		return nil
	}
	parts := strings.Split(name, "/")
	if len(parts) != 2*len(f.collections) {
		return nil
	}
	ids := make([]string, 0, len(f.collections))
	for i, c := range f.collections {
		if parts[2*i] != c || parts[2*i+1] == "" {
			return nil
		}
		ids = append(ids, parts[2*i+1])
	}
	return ids
}

// parse returns the ids of name, which came in field. wildcard permits "-" for
// the last of them.
func (a *Admin) parse(field string, f form, name string, wildcard ...bool) ([]string, error) {
	ids := f.split(name)
	ok := ids != nil
	for i, c := range f.collections {
		if !ok {
			break
		}
		if len(wildcard) > 0 && wildcard[0] && i == len(ids)-1 && ids[i] == "-" {
			continue
		}
		switch c {
		case "instances":
			ok = a.o.Emulator || wire.LowerID(ids[i])
		case "clusters":
			ok = wire.LowerID(ids[i])
		case "tables", "appProfiles", "authorizedViews", "schemaBundles", "logicalViews", "materializedViews", "backups", "snapshots":
			ok = wire.TableID(ids[i])
		}
	}
	if !ok {
		return nil, refuse(fault.Invalid, field, "When parsing '%s' : %s name expected in the form '%s'.", name, f.kind, f)
	}
	return ids, nil
}

// parent returns the first n collections of a name that parse accepted.
func parent(ids []string, f form, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte('/')
		}
		b.WriteString(f.collections[i])
		b.WriteByte('/')
		b.WriteString(ids[i])
	}
	return b.String()
}

// isNewLowerID matches [a-z][a-z0-9\-]+[a-z0-9], what a new instance or
// cluster must be called.
func isNewLowerID(s string) bool {
	return len(s) >= 3 && wire.LowerID(s) && s[len(s)-1] != '-'
}

// newID checks the id of a resource to be created.
func newID(field, collection, id, pattern string, matches func(string) bool, minLen, maxLen int) error {
	if n := utf8.RuneCountInString(id); n < minLen || n > maxLen {
		return refuse(fault.Invalid, field, "Error in field '%s' : Invalid id for collection %s : Length should be between [%d,%d], but found %d '%s'",
			field, collection, minLen, maxLen, n, id)
	}
	if !matches(id) {
		return refuse(fault.Invalid, field, "Error in field '%s' : Invalid id for collection %s : Should match %s but found '%s'",
			field, collection, pattern, id)
	}
	return nil
}

// refuse returns an error that blames a request field.
func refuse(k fault.Kind, field, format string, args ...any) *fault.Error {
	return &fault.Error{Kind: k, Field: field, Msg: fmt.Sprintf(format, args...)}
}

// within says that err is about the field of a message that holds what err
// speaks of. Index is that of the element, or -1 if the field is not repeated.
func within(field string, index int, err error) error {
	var e *fault.Error
	if !errors.As(err, &e) {
		return err
	}
	return e.In(field, index)
}

// missing is the refusal of a resource that is not there.
func missing(field, kind, name string) *fault.Error {
	return refuse(fault.NotFound, field, "%s not found: %s", kind, name)
}

// missingInstance is missing for an instance, and says what to do: a user of
// an emulator has never made one.
func missingInstance(field, name string) *fault.Error {
	return refuse(fault.NotFound, field, "Instance not found: %s. Create it first (cbt createinstance), or start the server with --emulator, which takes any.", name)
}

// orMissing gives a NotFound of the backend the words that clients know. A
// refusal that blames a field has them.
func orMissing(err error, field, kind, name string) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Field != "" {
		return err
	}
	if fault.KindOf(err) == fault.NotFound {
		e := missing(field, kind, name)
		e.Cause = err
		return e
	}
	return err
}
