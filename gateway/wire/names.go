package wire

import (
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// MaxName bounds the length of resource names. The ids that can be created make far shorter
// ones, but a name that is asked for may be kept, with what was found of it.
const MaxName = 1024

// InstanceOf returns the instance's name that a name of something in it starts
// with, and whether it has one.
func InstanceOf(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "projects/")
	if !ok || len(name) > MaxName {
		return "", false
	}
	project, rest, ok := strings.Cut(rest, "/")
	if !ok || project == "" {
		return "", false
	}
	rest, ok = strings.CutPrefix(rest, "instances/")
	if !ok {
		return "", false
	}
	id, _, _ := strings.Cut(rest, "/")
	if id == "" {
		return "", false
	}
	return name[:len("projects/")+len(project)+len("/instances/")+len(id)], true
}

// CheckInstance checks the name of an instance. lax accepts any project and
// instance id, as the emulator does.
func CheckInstance(field, name string, lax bool) error {
	inst, ok := InstanceOf(name)
	if !ok || inst != name || !lax && !LowerID(name[strings.LastIndexByte(name, '/')+1:]) {
		return fault.InvalidField(field, "When parsing '%s' : Instance name expected in the form 'projects/<project_id>/instances/<instance_id>'.", name)
	}
	return nil
}

// CheckTable checks the name of a table and returns that of its instance. lax
// accepts any project and instance id.
func CheckTable(field, name string, lax bool) (instance string, err error) {
	inst, ok := InstanceOf(name)
	if ok {
		var id string
		id, ok = strings.CutPrefix(name[len(inst):], "/tables/")
		ok = ok && validTableID(id) && (lax || LowerID(inst[strings.LastIndexByte(inst, '/')+1:]))
	}
	if !ok {
		return "", fault.InvalidField(field, "When parsing '%s' : Table name expected in the form 'projects/<project_id>/instances/<instance_id>/tables/<table_id>'.", name)
	}
	return inst, nil
}

// CheckView checks the name of an authorized view and returns that of its
// instance. lax accepts any project and instance id.
func CheckView(field, name string, lax bool) (instance string, err error) {
	table, id, ok := strings.Cut(name, "/authorizedViews/")
	if ok && validTableID(id) {
		if inst, err := CheckTable(field, table, lax); err == nil {
			return inst, nil
		}
	}
	return "", fault.InvalidField(field, "When parsing '%s' : Authorized view name expected in the form 'projects/<project_id>/instances/<instance_id>/tables/<table_id>/authorizedViews/<authorized_view_id>'.", name)
}

// CheckMaterializedView checks the name of a materialized view and returns that of its
// instance. lax accepts any project and instance id.
func CheckMaterializedView(field, name string, lax bool) (instance string, err error) {
	inst, ok := InstanceOf(name)
	if ok {
		var id string
		id, ok = strings.CutPrefix(name[len(inst):], "/materializedViews/")
		ok = ok && TableID(id) && (lax || LowerID(inst[strings.LastIndexByte(inst, '/')+1:]))
	}
	if !ok {
		return "", fault.InvalidField(field, "When parsing '%s' : Materialized view name expected in the form 'projects/<project_id>/instances/<instance_id>/materializedViews/<materialized_view_id>'.", name)
	}
	return inst, nil
}

// LowerID tells whether id matches [a-z][-a-z0-9]*, as ids of instances and
// clusters do. The length is checked where they are created.
func LowerID(id string) bool {
	for i := range len(id) {
		c := id[i]
		if !('a' <= c && c <= 'z' || i > 0 && (c == '-' || '0' <= c && c <= '9')) {
			return false
		}
	}
	return id != ""
}

// TableID tells whether id matches [_a-zA-Z0-9][-_.a-zA-Z0-9]*, as ids of
// tables and of most other resources do, whatever its length.
func TableID(id string) bool {
	return FamilyID(id) && id[0] != '-' && id[0] != '.'
}

// FamilyID tells whether id matches [-_.a-zA-Z0-9]+, as names of column
// families do, whatever its length.
func FamilyID(id string) bool {
	for i := range len(id) {
		c := id[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return id != ""
}

func validTableID(id string) bool { return len(id) <= schema.MaxTableID && TableID(id) }
