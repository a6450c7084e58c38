package iam

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/genproto/googleapis/type/expr"

	"github.com/trestledb/trestle/engine/fault"
)

func TestRoles(t *testing.T) {
	may := func(role, perm string) bool {
		s, ok := Role(role)
		if !ok {
			t.Fatal(role)
		}
		p, ok := Lookup(perm)
		if !ok {
			t.Fatal(perm)
		}
		return s.Has(p)
	}
	for perm, roles := range map[string]string{ // first letters of those that have it
		"bigtable.tables.readRows":              "ruao",
		"bigtable.tables.mutateRows":            "uao",
		"bigtable.tables.sampleRowKeys":         "ruao",
		"bigtable.tables.get":                   "vruao",
		"bigtable.tables.list":                  "vruao",
		"bigtable.tables.checkConsistency":      "vruao",
		"bigtable.tables.create":                "ao",
		"bigtable.tables.update":                "ao",
		"bigtable.tables.delete":                "ao",
		"bigtable.tables.undelete":              "ao",
		"bigtable.tables.getIamPolicy":          "ao",
		"bigtable.tables.setIamPolicy":          "ao",
		"bigtable.instances.ping":               "ruao",
		"bigtable.instances.executeQuery":       "ruao",
		"bigtable.instances.get":                "vruao",
		"bigtable.instances.create":             "ao",
		"bigtable.clusters.update":              "ao",
		"bigtable.appProfiles.list":             "vruao",
		"bigtable.authorizedViews.readRows":     "ruao",
		"bigtable.authorizedViews.mutateRows":   "uao",
		"bigtable.backups.get":                  "vruao",
		"bigtable.backups.read":                 "ao",
		"bigtable.backups.restore":              "ao",
		"iam.serviceAccountKeys.create":         "o",
		"resourcemanager.projects.setIamPolicy": "o",
		"resourcemanager.projects.get":          "vruao",
		"bigtable.materializedViews.readRows":   "ruao",
		"bigtable.materializedViews.create":     "ao",
		"bigtable.schemaBundles.list":           "vruao",
	} {
		got := ""
		for _, r := range []string{"viewer", "reader", "user", "admin"} {
			if may("roles/bigtable."+r, perm) {
				got += r[:1]
			}
		}
		if may("roles/owner", perm) {
			got += "o"
		}
		if got != roles {
			t.Errorf("%s: %s, want %s", perm, got, roles)
		}
	}
	ro := ReadOnly()
	for _, n := range Permissions() {
		p, _ := Lookup(n)
		verb := n[strings.LastIndexByte(n, '.')+1:]
		writes := slices.Contains([]string{"create", "update", "delete", "undelete", "mutateRows", "setIamPolicy", "restore"}, verb)
		if ro.Has(p) == writes {
			t.Errorf("%s: read-only is %v", n, ro.Has(p))
		}
		viewer, _ := Role("roles/bigtable.viewer")
		if writes && viewer.Has(p) || strings.HasSuffix(n, "readRows") && viewer.Has(p) {
			t.Errorf("a viewer has %s", n)
		}
	}
}

func TestCondition(t *testing.T) {
	for in, want := range map[string]string{
		`resource.family == "a"`:                                      "a",
		`resource.family=="a"`:                                        "a",
		"  resource.family\n==\t'cf-1_x.y' ":                          "cf-1_x.y",
		`resource.family in ["b","a"]`:                                "a b",
		`resource.family in [ "b" , 'a', "b" ]`:                       "a b",
		`resource.family in["a"]`:                                     "a",
		``:                                                            "!",
		`resource.family`:                                             "!",
		`resource.family == a`:                                        "!",
		`resource.family == ""`:                                       "!",
		`resource.family == "a`:                                       "!",
		`resource.family == "a'`:                                      "!",
		`resource.family == "a" || true`:                              "!",
		`resource.family == "a" && resource.row == "b"`:               "!",
		`!(resource.family == "a")`:                                   "!",
		`resource.family != "a"`:                                      "!",
		`resource.family in []`:                                       "!",
		`resource.family in ["a",]`:                                   "!",
		`resource.family in ["a" "b"]`:                                "!",
		`resource.family in "a"`:                                      "!",
		`resource.family == "a\"b"`:                                   "!",
		`resource.family == "a|b"`:                                    "!",
		`resource.family == "ä"`:                                      "!",
		`resource.name == "a"`:                                        "!",
		`"a" == resource.family`:                                      "!",
		`resource.family == "` + strings.Repeat("x", 64) + `"`:        strings.Repeat("x", 64),
		`resource.family == "` + strings.Repeat("x", 65) + `"`:        "!",
		`resource.family in ["a"` + strings.Repeat(`,"b"`, 100) + `]`: "!",
		strings.Repeat(" ", 20<<10) + `resource.family == "a"`:        "!",
	} {
		got, err := ParseCondition(in)
		if s := strings.Join(got, " "); (err != nil) != (want == "!") || err == nil && s != want {
			t.Errorf("%.60q: %q %v", in, s, err)
		}
	}
}

func FuzzCondition(f *testing.F) {
	for _, s := range []string{`resource.family == "a"`, `resource.family in ["a", 'b']`, `resource.family in [`, `resource.family == '`, ``} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		families, err := ParseCondition(s)
		if err != nil {
			if families != nil {
				t.Fatal("families with an error")
			}
			return
		}
		if len(families) == 0 || !slices.IsSorted(families) {
			t.Fatalf("%q: %q", s, families)
		}
		// What was understood can be written back and means the same.
		again, err := ParseCondition(`resource.family in ["` + strings.Join(families, `","`) + `"]`)
		if err != nil || !slices.Equal(again, families) {
			t.Fatalf("%q: %q, then %q %v", s, families, again, err)
		}
		for _, name := range families {
			if !strings.Contains(s, name) {
				t.Fatalf("%q has no %q", s, name)
			}
		}
	})
}

func TestCompile(t *testing.T) {
	cond := func(e string) *expr.Expr { return &expr.Expr{Expression: e} }
	read, _ := Lookup("bigtable.tables.readRows")
	write, _ := Lookup("bigtable.tables.mutateRows")
	sample, _ := Lookup("bigtable.tables.sampleRowKeys")
	p := Compile(&iampb.Policy{Bindings: []*iampb.Binding{
		{Role: "roles/bigtable.reader", Members: []string{"user:A@x", "allUsers"}, Condition: cond(`resource.family == "pub"`)},
		{Role: "roles/bigtable.user", Members: []string{"user:a@X"}, Condition: cond(`resource.family in ["z","b"]`)},
		{Role: "roles/bigtable.user", Members: []string{"user:b"}},
		{Role: "roles/bigtable.admin", Members: []string{"user:c"}, Condition: cond(`true`)}, // not understood
		{Role: "roles/what", Members: []string{"user:c"}},
		{Role: "roles/bigtable.admin", Members: []string{"group:c", "c", "", "domain:x@Corp.example", "domain:"}},
		{Role: "roles/bigtable.user", Members: []string{"domain:Corp.example"}},
	}})
	for _, tc := range []struct {
		member   string
		perm     Permission
		always   bool
		families string
	}{
		{"user:a@x", read, false, "b pub z"},
		{"user:a@x", write, false, "b z"},
		{"user:a@x", sample, false, ""},
		{"user:b", read, true, ""},
		{"user:b", sample, true, ""},
		{"user:c", read, false, "pub"},
		{"user:c", write, false, ""},
		{"", write, false, ""},
		{"user:d@corp.example", write, true, ""},
		{"user:d@e@corp.example", write, true, ""},
		{"user:d@sub.corp.example", write, false, ""},
		{"user:@corp.example", write, false, ""},
		{"user:corp.example", write, false, ""},
		{"serviceAccount:d@corp.example", write, false, ""},
	} {
		always, families := p.Grants(tc.member, tc.perm)
		if always != tc.always || strings.Join(families, " ") != tc.families {
			t.Errorf("%s %s: %v %q", tc.member, tc.perm, always, families)
		}
	}
	if always, families := (*Policy)(nil).Grants("user:b", read); always || families != nil {
		t.Error("no policy grants something")
	}
}

// TestCheckMembers: where policies are kept only, members are of a kind of IAM's.
func TestCheckMembers(t *testing.T) {
	for member, ok := range map[string]bool{
		"user:a@example.com": true, "user:42": true, "serviceAccount:a@p.iam.trestle.internal": true, "group:g@example.com": true, "domain:example.com": true,
		"allUsers": true, "allAuthenticatedUsers": true, "projectOwner:p": true, "deleted:user:a@example.com?uid=1": true,
		"principal://iam.googleapis.com/projects/1/x": true, "principalSet://iam.googleapis.com/projects/1/x": true,
		"": false, "a@example.com": false, "user:": false, "group:": false, "group:a b": false, "users:a@example.com": false, "AllUsers": false,
		"serviceAccount:x": false, "domain:a@example.com": false, "group:" + strings.Repeat("x", 1025): false,
	} {
		err := CheckMembers(&iampb.Policy{Bindings: []*iampb.Binding{{Members: []string{"allUsers"}}, {Members: []string{member}}}})
		if (err == nil) != ok {
			t.Errorf("%.40q: %v", member, err)
		}
		if f, is := errors.AsType[*fault.Error](err); !ok && (!is || f.Field != "bindings[1].members[0]") {
			t.Errorf("%.40q: %+v", member, err)
		}
	}
}
