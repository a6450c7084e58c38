package auth

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	_ "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	_ "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	_ "cloud.google.com/go/longrunning/autogen/longrunningpb"
	_ "google.golang.org/grpc/health/grpc_health_v1"
	_ "google.golang.org/grpc/reflection/grpc_reflection_v1"
	_ "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
)

// TestRulesComplete compares the table with the services' descriptors: every
// method has a rule, every rule a method, and every field of a rule is in the
// request.
func TestRulesComplete(t *testing.T) {
	methods := 0
	for service, lines := range ruleText {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		if err != nil {
			t.Errorf("%s: %v", service, err)
			continue
		}
		ms := d.(protoreflect.ServiceDescriptor).Methods()
		var names []string
		for i := range ms.Len() {
			m := ms.Get(i)
			name := string(m.Name())
			names = append(names, name)
			methods++
			r := rules["/"+service+"/"+name]
			if r == nil {
				t.Errorf("%s/%s has no rule: add it to ruleText, with the permission that it needs", service, name)
				continue
			}
			if r.admin != (service != "google.bigtable.v2.Bigtable" && !strings.HasPrefix(service, "grpc.")) {
				t.Errorf("%s/%s: admin is %v", service, name, r.admin)
			}
			if len(r.checks) == 0 && !strings.Contains(lines[name], "open") && !r.off && !strings.Contains(lines[name], "authenticated") {
				t.Errorf("%s/%s checks nothing", service, name)
			}
			in := m.Input()
			if r.session {
				// The names are in what the first message carries.
				open, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("google.bigtable.v2." + name + "Request"))
				if err != nil {
					t.Fatal(err)
				}
				in = open.(protoreflect.MessageDescriptor)
			}
			for _, c := range r.checks {
				if _, ok := textAt(dynamicpb.NewMessage(in), c.path); !ok {
					t.Errorf("%s/%s: %s has no text field %s", service, name, in.Name(), c.field)
				}
			}
		}
		for name := range lines {
			if !slices.Contains(names, name) {
				t.Errorf("%s has no method %s", service, name)
			}
		}
	}
	t.Logf("%d methods", methods)
	for _, s := range []string{"google.bigtable.v2.Bigtable", "google.bigtable.admin.v2.BigtableInstanceAdmin",
		"google.bigtable.admin.v2.BigtableTableAdmin", "google.longrunning.Operations", "grpc.health.v1.Health"} {
		if ruleText[s] == nil {
			t.Errorf("%s has no rules", s)
		}
	}
}

func TestParseResource(t *testing.T) {
	for _, tc := range []struct {
		name   string
		kind   kind
		levels string
	}{
		{"projects/p", projects, "projects/p"},
		{"projects/p/instances/i", instances, "projects/p projects/p/instances/i"},
		{"projects/p/instances/i/tables/t", tables, "projects/p projects/p/instances/i projects/p/instances/i/tables/t"},
		{"projects/p/instances/i/tables/t/authorizedViews/v", authorizedViews,
			"projects/p projects/p/instances/i projects/p/instances/i/tables/t projects/p/instances/i/tables/t/authorizedViews/v"},
		{"projects/p/instances/i/clusters/c/backups/b", backups, "projects/p projects/p/instances/i projects/p/instances/i/clusters/c/backups/b"},
		{"projects/p/instances/i/clusters/c/memoryLayer", memoryLayers, "projects/p projects/p/instances/i"},
		{"projects/p/instances/i/clusters/-", instances, "projects/p projects/p/instances/i"},
		{"projects/p/instances/-", projects, "projects/p"},
		{"projects/p/instances/-/tables/t", projects, "projects/p"},
		{"projects/p/serviceAccounts/a@b/keys/k", serviceKeys, "projects/p"},
		{"projects/-", projects, "projects/-"},
		{"", noKind, ""},
		{"projects", noKind, ""},
		{"projects/", noKind, ""},
		{"projects//instances/i", noKind, ""},
		{"projects/p/", noKind, ""},
		{"projects/p/instances/i/", noKind, ""},
		{"projects/p/instances", noKind, ""},
		{"instances/i", noKind, ""},
		{"projects/p/projects/q", noKind, ""},
		{"projects/p/what/q", noKind, ""},
		{"projects/p/instances/i/memoryLayer", noKind, ""},
		{"projects/p/instances/i/tables/t/tables/t/tables/t/tables/t", noKind, ""},
		{"projects/" + strings.Repeat("x", 2000), noKind, ""},
	} {
		r, ok := parseResource(tc.name)
		if ok != (tc.kind != noKind) {
			t.Errorf("%s: ok is %v", tc.name, ok)
			continue
		}
		if !ok {
			continue
		}
		var levels []string
		for i := range r.n {
			levels = append(levels, r.name[:r.ends[i]])
		}
		if r.kind != tc.kind || strings.Join(levels, " ") != tc.levels {
			t.Errorf("%s: kind %d, levels %q", tc.name, r.kind, levels)
		}
	}
}
