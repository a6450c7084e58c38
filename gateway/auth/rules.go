package auth

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/wire"
)

// The permissions of each RPC, by service and method. A line is the class of
// the RPC and what must hold: permission@field of the request, with "?" behind
// a field that may be empty. Of fields that may be empty one at least must be
// set, and each that is set is checked. "*" stands for the kind of the resource
// in the field. "operation" is the resource that an operation's name starts with.
//
// Instead of permissions there may be one word: "open" needs no credentials,
// "authenticated" nothing but them, "tables" is checked for each table as it is
// used, "off" is not there for callers with credentials. "inert" beside
// permissions gives a caller that lacks them an answer that is the same for all resources,
// "session" says that the RPC carries others.
var ruleText = map[string]map[string]string{
	"google.bigtable.v2.Bigtable": {
		"ReadRows":                              "read  tables.readRows@table_name? authorizedViews.readRows@authorized_view_name? materializedViews.readRows@materialized_view_name?",
		"SampleRowKeys":                         "read  tables.sampleRowKeys@table_name? authorizedViews.sampleRowKeys@authorized_view_name? materializedViews.sampleRowKeys@materialized_view_name?",
		"MutateRow":                             "write tables.mutateRows@table_name? authorizedViews.mutateRows@authorized_view_name?",
		"MutateRows":                            "write tables.mutateRows@table_name? authorizedViews.mutateRows@authorized_view_name?",
		"CheckAndMutateRow":                     "write tables.mutateRows@table_name? tables.readRows@table_name? authorizedViews.mutateRows@authorized_view_name? authorizedViews.readRows@authorized_view_name?",
		"ReadModifyWriteRow":                    "write tables.mutateRows@table_name? tables.readRows@table_name? authorizedViews.mutateRows@authorized_view_name? authorizedViews.readRows@authorized_view_name?",
		"PingAndWarm":                           "read  instances.ping@name inert",
		"GenerateInitialChangeStreamPartitions": "read  tables.readRows@table_name",
		"ReadChangeStream":                      "read  tables.readRows@table_name",
		"PrepareQuery":                          "read  instances.executeQuery@instance_name tables",
		"ExecuteQuery":                          "read  instances.executeQuery@instance_name tables",
		"GetClientConfiguration":                "read  instances.ping@instance_name inert",
		// The requests that a session carries are of the two kinds that it was
		// opened for: see check.asked.
		"OpenTable":            "read  tables.readRows@table_name tables.mutateRows@table_name session",
		"OpenAuthorizedView":   "read  authorizedViews.readRows@authorized_view_name authorizedViews.mutateRows@authorized_view_name session",
		"OpenMaterializedView": "read  materializedViews.readRows@materialized_view_name session",
	},
	"google.bigtable.admin.v2.BigtableInstanceAdmin": {
		"CreateInstance": "adminwrite instances.create@parent", "GetInstance": "adminread instances.get@name",
		"ListInstances": "adminread instances.list@parent", "UpdateInstance": "adminwrite instances.update@name",
		"PartialUpdateInstance": "adminwrite instances.update@instance.name", "DeleteInstance": "adminwrite instances.delete@name",
		"CreateCluster": "adminwrite clusters.create@parent", "GetCluster": "adminread clusters.get@name",
		"ListClusters": "adminread clusters.list@parent", "UpdateCluster": "adminwrite clusters.update@name",
		"PartialUpdateCluster": "adminwrite clusters.update@cluster.name", "DeleteCluster": "adminwrite clusters.delete@name",
		"UpdateMemoryLayer": "adminwrite memoryLayers.update@memory_layer.name", "ListMemoryLayers": "adminread memoryLayers.list@parent",
		"GetMemoryLayer":   "adminread memoryLayers.get@name",
		"CreateAppProfile": "adminwrite appProfiles.create@parent", "GetAppProfile": "adminread appProfiles.get@name",
		"ListAppProfiles": "adminread appProfiles.list@parent", "UpdateAppProfile": "adminwrite appProfiles.update@app_profile.name",
		"DeleteAppProfile": "adminwrite appProfiles.delete@name",
		"GetIamPolicy":     "adminread *.getIamPolicy@resource", "SetIamPolicy": "adminwrite *.setIamPolicy@resource",
		"TestIamPermissions": "adminread authenticated",
		"ListHotTablets":     "adminread hotTablets.list@parent",
		"CreateLogicalView":  "adminwrite logicalViews.create@parent", "GetLogicalView": "adminread logicalViews.get@name",
		"ListLogicalViews": "adminread logicalViews.list@parent", "UpdateLogicalView": "adminwrite logicalViews.update@logical_view.name",
		"DeleteLogicalView":      "adminwrite logicalViews.delete@name",
		"CreateMaterializedView": "adminwrite materializedViews.create@parent", "GetMaterializedView": "adminread materializedViews.get@name",
		"ListMaterializedViews": "adminread materializedViews.list@parent", "UpdateMaterializedView": "adminwrite materializedViews.update@materialized_view.name",
		"DeleteMaterializedView": "adminwrite materializedViews.delete@name",
	},
	"google.bigtable.admin.v2.BigtableTableAdmin": {
		"CreateTable":             "adminwrite tables.create@parent",
		"CreateTableFromSnapshot": "adminwrite tables.create@parent backups.restore@source_snapshot",
		"ListTables":              "adminread tables.list@parent", "GetTable": "adminread tables.get@name",
		"UpdateTable": "adminwrite tables.update@table.name", "DeleteTable": "adminwrite tables.delete@name",
		"UndeleteTable":        "adminwrite tables.undelete@name",
		"CreateAuthorizedView": "adminwrite authorizedViews.create@parent", "ListAuthorizedViews": "adminread authorizedViews.list@parent",
		"GetAuthorizedView": "adminread authorizedViews.get@name", "UpdateAuthorizedView": "adminwrite authorizedViews.update@authorized_view.name",
		"DeleteAuthorizedView": "adminwrite authorizedViews.delete@name",
		"ModifyColumnFamilies": "adminwrite tables.update@name", "DropRowRange": "adminwrite tables.mutateRows@name",
		"GenerateConsistencyToken": "adminread tables.generateConsistencyToken@name",
		"CheckConsistency":         "adminread tables.checkConsistency@name",
		"SnapshotTable":            "adminwrite backups.create@cluster tables.readRows@name",
		"GetSnapshot":              "adminread backups.get@name", "ListSnapshots": "adminread backups.list@parent",
		"DeleteSnapshot": "adminwrite backups.delete@name",
		// A backup is a copy of the rows.
		"CreateBackup": "adminwrite backups.create@parent tables.readRows@backup.source_table",
		"GetBackup":    "adminread backups.get@name", "UpdateBackup": "adminwrite backups.update@backup.name",
		"DeleteBackup": "adminwrite backups.delete@name", "ListBackups": "adminread backups.list@parent",
		"RestoreTable": "adminwrite tables.create@parent backups.restore@backup",
		"CopyBackup":   "adminwrite backups.create@parent backups.read@source_backup",
		"GetIamPolicy": "adminread *.getIamPolicy@resource", "SetIamPolicy": "adminwrite *.setIamPolicy@resource",
		"TestIamPermissions": "adminread authenticated",
		"CreateSchemaBundle": "adminwrite schemaBundles.create@parent", "UpdateSchemaBundle": "adminwrite schemaBundles.update@schema_bundle.name",
		"GetSchemaBundle": "adminread schemaBundles.get@name", "ListSchemaBundles": "adminread schemaBundles.list@parent",
		"DeleteSchemaBundle": "adminwrite schemaBundles.delete@name",
	},
	"google.longrunning.Operations": {
		"ListOperations": "adminread *.list@operation", "GetOperation": "adminread *.get@operation",
		"WaitOperation": "adminread *.get@operation", "CancelOperation": "adminwrite *.update@operation",
		"DeleteOperation": "adminwrite *.update@operation",
	},
	"google.iam.admin.v1.IAM": {
		"ListServiceAccounts": "adminread iam.serviceAccounts.list@name", "GetServiceAccount": "adminread iam.serviceAccounts.get@name",
		"CreateServiceAccount": "adminwrite iam.serviceAccounts.create@name", "DeleteServiceAccount": "adminwrite iam.serviceAccounts.delete@name",
		"PatchServiceAccount":  "adminwrite iam.serviceAccounts.update@service_account.name",
		"EnableServiceAccount": "adminwrite iam.serviceAccounts.update@name", "DisableServiceAccount": "adminwrite iam.serviceAccounts.update@name",
		"ListServiceAccountKeys": "adminread iam.serviceAccountKeys.list@name", "GetServiceAccountKey": "adminread iam.serviceAccountKeys.get@name",
		"CreateServiceAccountKey": "adminwrite iam.serviceAccountKeys.create@name", "UploadServiceAccountKey": "adminwrite iam.serviceAccountKeys.create@name",
		"DeleteServiceAccountKey": "adminwrite iam.serviceAccountKeys.delete@name",
		"UpdateServiceAccount":    "adminwrite off", "UndeleteServiceAccount": "adminwrite off",
		"DisableServiceAccountKey": "adminwrite off", "EnableServiceAccountKey": "adminwrite off", "SignBlob": "adminwrite off", "SignJwt": "adminwrite off",
		"GetIamPolicy": "adminread off", "SetIamPolicy": "adminwrite off", "TestIamPermissions": "adminread off",
		"QueryGrantableRoles": "adminread off", "ListRoles": "adminread authenticated", "GetRole": "adminread authenticated", "CreateRole": "adminwrite off",
		"UpdateRole": "adminwrite off", "DeleteRole": "adminwrite off", "UndeleteRole": "adminwrite off",
		"QueryTestablePermissions": "adminread off", "QueryAuditableServices": "adminread off", "LintPolicy": "adminread off",
	},
	"google.iam.v1.IAMPolicy": {
		"GetIamPolicy": "adminread *.getIamPolicy@resource", "SetIamPolicy": "adminwrite *.setIamPolicy@resource",
		"TestIamPermissions": "adminread authenticated",
	},
	// Probes have no credentials.
	"grpc.health.v1.Health": {"Check": "read open", "Watch": "read open", "List": "read open"},
	// What reflection tells is public, but costs something.
	"grpc.reflection.v1.ServerReflection":      {"ServerReflectionInfo": "read authenticated"},
	"grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": "read authenticated"},
}

// A rule is a line of the table.
type rule struct {
	class  scopes
	admin  bool // always audited
	open   bool
	off    bool
	tables bool // each table is checked as it is used
	inert  bool // see call.inert
	// session says that the RPC goes on for as long as the client likes, and that
	// its first message says which of the checks are asked for.
	session bool
	// families allows permissions that hold for some families only.
	families bool
	// changes says that afterwards policies may be others.
	changes  bool
	accounts bool // likewise service accounts
	policy   bool // the request is a SetIamPolicyRequest
	test     bool // the request is a TestIamPermissionsRequest
	checks   []check
}

// A check is one permission on the resource in one field.
type check struct {
	perm     iam.Permission
	verb     string // of the resource's kind, instead of perm
	field    string
	optional bool
	source   source
	path     []string // of the field, for sourcePath
}

// A source is how a field is got at.
type source uint8

const (
	sourcePath source = iota // by reflection
	sourceTable
	sourceView
	sourceMaterialized
)

var sources = map[string]source{"table_name": sourceTable, "authorized_view_name": sourceView, "materialized_view_name": sourceMaterialized}

var classes = map[string]scopes{"read": dataRead, "write": dataWrite, "adminread": adminRead, "adminwrite": adminWrite}

// rules is the table by full method name.
var rules = func() map[string]*rule {
	out := map[string]*rule{}
	for service, methods := range ruleText {
		for method, text := range methods {
			r, err := parseRule(text)
			if err != nil {
				panic(service + "/" + method + ": " + err.Error())
			}
			switch method {
			case "ReadRows", "MutateRow", "MutateRows", "CheckAndMutateRow", "ReadModifyWriteRow", "OpenTable", "OpenAuthorizedView":
				r.families = true
			}
			r.policy = method == "SetIamPolicy"
			r.test = method == "TestIamPermissions"
			r.changes = r.class == adminWrite
			r.accounts = service == "google.iam.admin.v1.IAM"
			out["/"+service+"/"+method] = r
		}
	}
	return out
}()

func parseRule(text string) (*rule, error) {
	words := strings.Fields(text)
	r := &rule{class: classes[words[0]]}
	if r.class == 0 {
		return nil, fmt.Errorf("%q is no class", words[0])
	}
	r.admin = r.class == adminRead || r.class == adminWrite
	for _, w := range words[1:] {
		switch w {
		case "open":
			r.open = true
		case "off":
			r.off = true
		case "tables":
			r.tables = true
		case "inert":
			r.inert = true
		case "session":
			r.session = true
		case "authenticated":
		default:
			name, field, ok := strings.Cut(w, "@")
			if !ok {
				return nil, fmt.Errorf("%q is not of the form permission@field", w)
			}
			c := check{}
			c.field, c.optional = strings.CutSuffix(field, "?")
			c.source = sources[c.field]
			c.path = strings.Split(c.field, ".")
			if verb, any := strings.CutPrefix(name, "*."); any {
				c.verb = verb
			} else {
				if !strings.HasPrefix(name, "iam.") {
					name = "bigtable." + name
				}
				if c.perm, ok = iam.Lookup(name); !ok {
					return nil, fmt.Errorf("%q is no permission", name)
				}
			}
			r.checks = append(r.checks, c)
		}
	}
	return r, nil
}

// permission returns what the check asks for of a resource of kind k.
func (c *check) permission(k kind) (iam.Permission, bool) {
	if c.verb == "" {
		return c.perm, true
	}
	prefix := kindPrefix[k]
	if k == projects && c.field == "operation" {
		prefix = "bigtable.instances" // operations of a project are about its instances
	}
	return iam.Lookup(prefix + "." + c.verb)
}

// get returns the field's value in a request, and whether the request can have
// one.
func (c *check) get(msg any) (string, bool) {
	if c.source != sourcePath {
		var t *wire.Target
		materialized := ""
		switch m := msg.(type) {
		case *wire.SessionRequest:
			return m.Name, true // of what the method opens
		case *wire.ReadRowsRequest:
			t, materialized = &m.Target, m.Materialized
		case *wire.MutateRowRequest:
			t = &m.Target
		case *wire.MutateRowsRequest:
			t = &m.Target
		case *wire.CheckAndMutateRowRequest:
			t = &m.Target
		case *wire.ReadModifyWriteRowRequest:
			t = &m.Target
		case *wire.ReadChangeStreamRequest:
			t = &m.Target
		}
		if t != nil {
			switch c.source {
			case sourceTable:
				return t.Table, true
			case sourceView:
				return t.View, true
			}
			return materialized, true
		}
	}
	m, ok := msg.(proto.Message)
	if !ok {
		return "", false
	}
	return textAt(m.ProtoReflect(), c.path)
}

func textAt(m protoreflect.Message, path []string) (string, bool) {
	operation := path[0] == "operation"
	if operation {
		path = []string{"name"}
	}
	for i, name := range path {
		f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if f == nil {
			return "", false
		}
		if i < len(path)-1 {
			if f.Message() == nil || f.Cardinality() == protoreflect.Repeated {
				return "", false
			}
			m = m.Get(f).Message()
			continue
		}
		if f.Kind() != protoreflect.StringKind || f.Cardinality() == protoreflect.Repeated {
			return "", false
		}
		v := m.Get(f).String()
		if operation {
			v = strings.TrimPrefix(v, "operations/")
			if i := strings.LastIndex(v, "/operations"); i > 0 {
				v = v[:i]
			}
		}
		return v, true
	}
	return "", false
}
