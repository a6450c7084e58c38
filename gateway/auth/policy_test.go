package auth_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/gateway/auth"
)

// TestInheritance grants at each level and looks at the others.
func TestInheritance(t *testing.T) {
	f := newFixture(t, auth.Options{})
	f.createTable("u")
	readable := func(tok, tbl string) bool {
		t.Helper()
		s, err := bigtablepb.NewBigtableClient(f.connect(tok)).SampleRowKeys(t.Context(), &bigtablepb.SampleRowKeysRequest{TableName: tbl})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Recv()
		if c := status.Code(err); c != codes.OK && c != codes.PermissionDenied && c != codes.NotFound {
			t.Fatal(err)
		}
		return status.Code(err) != codes.PermissionDenied
	}
	for _, tc := range []struct {
		resource               string
		t, u, other, elsewhere bool
	}{
		{table, true, false, false, false},
		{instance, true, true, false, false},
		{project, true, true, true, false},
	} {
		acc := f.account("acc-"+strings.Repeat("x", len(tc.resource)%8+3), false)
		f.grant(tc.resource, "roles/bigtable.reader "+acc.member())
		tok := acc.token(nil)
		for tbl, want := range map[string]bool{table: tc.t, instance + "/tables/u": tc.u, project + "/instances/inst-2/tables/t": tc.other,
			"projects/q/instances/inst-1/tables/t": tc.elsewhere, table + "x": tc.u} {
			if got := readable(tok, tbl); got != want {
				t.Errorf("granted on %s: reading %s: %v", tc.resource, tbl, got)
			}
		}
		f.grant(tc.resource) // takes the grant away, at once
		if readable(tok, table) {
			t.Errorf("granted on %s and taken away: still there", tc.resource)
		}
	}
	acc := f.account("everybody-acc", false)
	for _, member := range []string{"allUsers", "allAuthenticatedUsers", strings.ToUpper(acc.member()[:0]) + acc.member()} {
		f.grant(table, "roles/bigtable.reader "+member)
		if !readable(acc.token(nil), table) {
			t.Errorf("%s does not help", member)
		}
		if _, err := f.read("", nil); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s lets in who has no credentials: %v", member, err)
		}
		f.grant(table)
	}
	// "write but not read" needs no more than two roles on two levels; here the
	// other way round: the policy of a table does not reach a table of the same
	// name that is created later.
	f.grant(table, "roles/bigtable.reader "+acc.member())
	ta := adminpb.NewBigtableTableAdminClient(f.connect(f.root.token(nil)))
	if _, err := ta.DeleteTable(t.Context(), &adminpb.DeleteTableRequest{Name: table}); err != nil {
		t.Fatal(err)
	}
	f.createTable("t")
	if readable(acc.token(nil), table) {
		t.Error("a new table has the policy of the old one")
	}
}

// TestNoOracle compares what somebody without grants is told about what is
// there with what is not.
func TestNoOracle(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	ta := adminpb.NewBigtableTableAdminClient(f.connect(acc.token(nil)))
	text := func(name string) string {
		_, err := ta.GetTable(t.Context(), &adminpb.GetTableRequest{Name: name})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
		return strings.ReplaceAll(err.Error(), name, "NAME")
	}
	if a, b := text(table), text(table+"x"); a != b {
		t.Errorf("%q and %q", a, b)
	}
	_, err := ta.GetTable(t.Context(), &adminpb.GetTableRequest{Name: table})
	info, _ := status.Convert(err).Details()[0].(*errdetails.ErrorInfo)
	if info.GetReason() != "IAM_PERMISSION_DENIED" || info.GetMetadata()["permission"] != "bigtable.tables.get" {
		t.Error(info)
	}
	for _, name := range []string{table, table + "x"} {
		r, err := ta.TestIamPermissions(t.Context(), &iampb.TestIamPermissionsRequest{Resource: name, Permissions: []string{"bigtable.tables.get"}})
		if err != nil || len(r.GetPermissions()) != 0 {
			t.Errorf("%s: %v %v", name, r, err)
		}
	}
	f.grant(instance, "roles/bigtable.viewer "+acc.member())
	if _, err := ta.GetTable(t.Context(), &adminpb.GetTableRequest{Name: table + "x"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	// Connections are warmed for anybody, wherever.
	bt := bigtableClient(f.connect(f.account("other-acc", false).token(nil)))
	for _, name := range []string{instance, project + "/instances/inst-2"} {
		if _, err := bt.PingAndWarm(t.Context(), &bigtablepb.PingAndWarmRequest{Name: name}); err != nil {
			t.Error(err)
		}
	}
	// Names that are none are told so, before anything else.
	if _, err := ta.GetTable(t.Context(), &adminpb.GetTableRequest{Name: "tables/t"}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	bt = bigtableClient(f.connect(acc.token(nil)))
	if _, err := bt.MutateRow(t.Context(), &bigtablepb.MutateRowRequest{RowKey: []byte("r")}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	// Two names: both are checked.
	f.grant(table, "roles/bigtable.user "+acc.member())
	if _, err := bt.MutateRow(t.Context(), &bigtablepb.MutateRowRequest{TableName: table, AuthorizedViewName: project + "/instances/inst-2/tables/t/authorizedViews/v",
		RowKey: []byte("r")}); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
}

func TestTestIamPermissions(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	f.grant(table, "roles/bigtable.user "+acc.member())
	f.grant(instance, `roles/bigtable.viewer `+acc.member())
	ask := func(scope string, perms ...string) (string, error) {
		ta := adminpb.NewBigtableTableAdminClient(f.connect(acc.token(map[string]any{"scope": scopePrefix + scope})))
		r, err := ta.TestIamPermissions(t.Context(), &iampb.TestIamPermissionsRequest{Resource: table, Permissions: perms})
		return strings.Join(r.GetPermissions(), " "), err
	}
	if got, err := ask("cloud-platform", "bigtable.tables.delete", "bigtable.tables.mutateRows", "bigtable.tables.readRows", "bigtable.tables.get"); err != nil ||
		got != "bigtable.tables.mutateRows bigtable.tables.readRows bigtable.tables.get" {
		t.Error(got, err)
	}
	if got, err := ask("cloud-platform.read-only", "bigtable.tables.mutateRows", "bigtable.tables.readRows"); err != nil || got != "bigtable.tables.readRows" {
		t.Error(got, err)
	}
	if got, err := ask("cloud-platform"); err != nil || got != "" {
		t.Error(got, err)
	}
	if _, err := ask("cloud-platform", "bigtable.tables.what"); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	pc := iampb.NewIAMPolicyClient(f.connect(acc.token(nil)))
	if r, err := pc.TestIamPermissions(t.Context(), &iampb.TestIamPermissionsRequest{Resource: project, Permissions: []string{"resourcemanager.projects.get"}}); err != nil || len(r.GetPermissions()) != 0 {
		t.Error(r, err)
	}
}

func TestSetPolicy(t *testing.T) {
	f := newFixture(t, auth.Options{})
	ctx := t.Context()
	conn := f.connect(f.root.token(nil))
	ta, pc := adminpb.NewBigtableTableAdminClient(conn), iampb.NewIAMPolicyClient(conn)
	get := map[string]func() (*iampb.Policy, error){
		table: func() (*iampb.Policy, error) {
			return ta.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: table})
		},
		project: func() (*iampb.Policy, error) {
			return pc.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: project})
		},
	}
	set := map[string]func(*iampb.Policy) (*iampb.Policy, error){
		table: func(p *iampb.Policy) (*iampb.Policy, error) {
			return ta.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: table, Policy: p})
		},
		project: func(p *iampb.Policy) (*iampb.Policy, error) {
			return pc.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: project, Policy: p})
		},
	}
	for _, r := range []string{table, project} {
		old, err := get[r]()
		if err != nil {
			t.Fatal(err)
		}
		p := &iampb.Policy{Etag: old.GetEtag(), Bindings: parseBindings("roles/bigtable.reader user:a@example.com")}
		fresh, err := set[r](p)
		if err != nil || string(fresh.GetEtag()) == string(old.GetEtag()) {
			t.Fatal(fresh, err)
		}
		if _, err := set[r](p); status.Code(err) != codes.Aborted {
			t.Errorf("%s: stale etag: %v", r, err)
		}
		if again, err := get[r](); err != nil || len(again.GetBindings()) != 1 || string(again.GetEtag()) != string(fresh.GetEtag()) {
			t.Error(again, err)
		}
		for name, p := range map[string]*iampb.Policy{
			"unknown role":      {Bindings: parseBindings("roles/editor user:a@x")},
			"empty role":        {Bindings: parseBindings(" user:a@x")},
			"group":             {Bindings: parseBindings("roles/bigtable.reader group:a@x")},
			"no members":        {Bindings: []*iampb.Binding{{Role: "roles/bigtable.reader"}}},
			"empty member":      {Bindings: parseBindings("roles/bigtable.reader user:")},
			"no address":        {Bindings: parseBindings("roles/bigtable.reader serviceAccount:x")},
			"condition, v1":     {Version: 1, Bindings: parseBindings(`roles/bigtable.reader user:a@x resource.family == "a"`)},
			"other condition":   {Version: 3, Bindings: parseBindings(`roles/bigtable.reader user:a@x request.time < timestamp("2030-01-01T00:00:00Z")`)},
			"empty condition":   {Version: 3, Bindings: []*iampb.Binding{{Role: "roles/bigtable.reader", Members: []string{"user:a"}, Condition: condition("")}}},
			"useless condition": {Version: 3, Bindings: parseBindings(`roles/bigtable.viewer user:a@x resource.family == "a"`)},
			"version":           {Version: 2},
		} {
			if _, err := set[r](p); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %s: %v", r, name, err)
			}
		}
		_, err = set[r](&iampb.Policy{Version: 3, Bindings: append(parseBindings("roles/bigtable.reader user:a@x"), parseBindings(`roles/bigtable.user user:a@x resource.row == "a"`)...)})
		found := false
		for _, d := range status.Convert(err).Details() {
			if b, ok := d.(*errdetails.BadRequest); ok && b.GetFieldViolations()[0].GetField() == "policy.bindings[1].condition.expression" {
				found = true
			}
		}
		if !found {
			t.Errorf("%s: the field is not named: %v %v", r, err, status.Convert(err).Details())
		}
	}
}

// TestChangedElsewhere changes a policy behind the server's back.
func TestChangedElsewhere(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	tok := acc.token(nil)
	policies := auth.ProjectPolicies{Records: f.b}
	if _, err := f.read(tok, nil); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	wait := func(want codes.Code) {
		t.Helper()
		start := time.Now()
		for {
			_, err := f.read(tok, nil)
			if status.Code(err) == want {
				t.Logf("in force after %v", time.Since(start).Round(time.Millisecond))
				return
			}
			if time.Since(start) > time.Minute {
				t.Fatalf("after a minute: %v", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if _, err := policies.Set(t.Context(), project, &iampb.Policy{Bindings: parseBindings("roles/bigtable.reader " + acc.member())}); err != nil {
		t.Fatal(err)
	}
	wait(codes.OK)
	if _, err := policies.Set(t.Context(), project, &iampb.Policy{}); err != nil {
		t.Fatal(err)
	}
	wait(codes.PermissionDenied)
}

// TestFamilies gives an account families a and b to read, and a to write.
func TestFamilies(t *testing.T) {
	f := newFixture(t, auth.Options{})
	ctx := t.Context()
	root := f.root.token(nil)
	for _, fam := range []string{"a", "b", "c"} {
		if err := f.set(root, fam, "r1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.set(root, "c", "r2"); err != nil { // a row of hidden cells only
		t.Fatal(err)
	}
	acc := f.account("some-acc", false)
	f.grant(table, `roles/bigtable.reader `+acc.member()+` resource.family in ["b", 'a']`, `roles/bigtable.user `+acc.member()+` resource.family == "a"`)
	tok := acc.token(nil)

	if got, err := f.read(tok, nil); err != nil || got != "r1/a r1/b" {
		t.Errorf("read %q %v", got, err)
	}
	if got, err := f.read(root, nil); err != nil || got != "r1/a r1/b r1/c r2/c" {
		t.Errorf("root read %q %v", got, err)
	}
	family := func(re string) *bigtablepb.RowFilter {
		return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_FamilyNameRegexFilter{FamilyNameRegexFilter: re}}
	}
	for re, want := range map[string]string{".*": "r1/a r1/b", "c": "", "b|c": "r1/b"} {
		if got, err := f.read(tok, family(re)); err != nil || got != want {
			t.Errorf("%s: read %q %v", re, got, err)
		}
	}
	// Neither a sink nor a condition looks past the restriction.
	sink := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Interleave_{Interleave: &bigtablepb.RowFilter_Interleave{Filters: []*bigtablepb.RowFilter{
		{Filter: &bigtablepb.RowFilter_Sink{Sink: true}}, family("a")}}}}
	if got, err := f.read(tok, sink); err != nil || strings.Contains(got, "c") || !strings.Contains(got, "a") {
		t.Errorf("sink: read %q %v", got, err)
	}
	cond := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Condition_{Condition: &bigtablepb.RowFilter_Condition{
		PredicateFilter: family("c"), TrueFilter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_PassAllFilter{PassAllFilter: true}}}}}
	if got, err := f.read(tok, cond); err != nil || got != "" {
		t.Errorf("condition: read %q %v", got, err)
	}

	for fam, want := range map[string]codes.Code{"a": codes.OK, "b": codes.PermissionDenied, "c": codes.PermissionDenied, "zzz": codes.PermissionDenied} {
		if err := f.set(tok, fam, "w"); status.Code(err) != want {
			t.Errorf("write %s: %v", fam, err)
		}
	}
	bt := bigtableClient(f.connect(tok))
	_, err := bt.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: table, RowKey: []byte("r1"), Mutations: []*bigtablepb.Mutation{
		{Mutation: &bigtablepb.Mutation_DeleteFromRow_{DeleteFromRow: &bigtablepb.Mutation_DeleteFromRow{}}}}})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("delete row: %v", err)
	}
	if _, err := bt.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: table, RowKey: []byte("x"), Mutations: []*bigtablepb.Mutation{setCell("a"), setCell("c")}}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("both: %v", err)
	}
	// A batch: each entry for itself.
	ms, err := bt.MutateRows(ctx, &bigtablepb.MutateRowsRequest{TableName: table, Entries: []*bigtablepb.MutateRowsRequest_Entry{
		{RowKey: []byte("b1"), Mutations: []*bigtablepb.Mutation{setCell("c")}},
		{RowKey: []byte("b2"), Mutations: []*bigtablepb.Mutation{setCell("a")}},
		{RowKey: []byte("b3"), Mutations: []*bigtablepb.Mutation{setCell("b")}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]codes.Code, 3)
	for {
		m, err := ms.Recv()
		if err != nil {
			break
		}
		for _, e := range m.GetEntries() {
			got[e.GetIndex()] = codes.Code(e.GetStatus().GetCode())
		}
	}
	if !slices.Equal(got, []codes.Code{codes.PermissionDenied, codes.OK, codes.PermissionDenied}) {
		t.Error(got)
	}
	// Check and mutate: the predicate sees what may be read.
	cam := func(pred *bigtablepb.RowFilter, row string, muts ...*bigtablepb.Mutation) (bool, error) {
		r, err := bt.CheckAndMutateRow(ctx, &bigtablepb.CheckAndMutateRowRequest{TableName: table, RowKey: []byte(row), PredicateFilter: pred, TrueMutations: muts})
		return r.GetPredicateMatched(), err
	}
	if m, err := cam(nil, "r2", setCell("a")); err != nil || m {
		t.Errorf("a hidden row matches: %v %v", m, err)
	}
	if m, err := cam(nil, "r1", setCell("a")); err != nil || !m {
		t.Errorf("a row does not match: %v %v", m, err)
	}
	if _, err := cam(nil, "r1", setCell("b")); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	// Read, modify and write: a is the only one that is both.
	for fam, want := range map[string]codes.Code{"a": codes.OK, "b": codes.PermissionDenied, "c": codes.PermissionDenied} {
		_, err := bt.ReadModifyWriteRow(ctx, &bigtablepb.ReadModifyWriteRowRequest{TableName: table, RowKey: []byte("r9"), Rules: []*bigtablepb.ReadModifyWriteRule{
			{FamilyName: fam, ColumnQualifier: []byte("q"), Rule: &bigtablepb.ReadModifyWriteRule_AppendValue{AppendValue: []byte("x")}}}})
		if status.Code(err) != want {
			t.Errorf("append to %s: %v", fam, err)
		}
	}
	// What is not about cells is not granted by a condition.
	sr, err := bt.SampleRowKeys(ctx, &bigtablepb.SampleRowKeysRequest{TableName: table})
	if err == nil {
		_, err = sr.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("sample: %v", err)
	}
	ta := adminpb.NewBigtableTableAdminClient(f.connect(tok))
	if _, err := ta.DropRowRange(ctx, &adminpb.DropRowRangeRequest{Name: table, Target: &adminpb.DropRowRangeRequest_DeleteAllDataFromTable{DeleteAllDataFromTable: true}}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("drop: %v", err)
	}
	// Without a condition anywhere, everything is there again.
	f.grant(instance, "roles/bigtable.user "+acc.member())
	if got, err := f.read(tok, nil); err != nil || !strings.Contains(got, "r2/c") {
		t.Errorf("read %q %v", got, err)
	}
}

// TestStreamEnds takes a grant away while rows are sent.
func TestStreamEnds(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	f.grant(table, "roles/bigtable.user "+acc.member())
	big := strings.Repeat("x", 1<<20)
	bt := bigtableClient(f.connect(acc.token(nil)))
	for i := range 24 {
		if _, err := bt.MutateRow(t.Context(), &bigtablepb.MutateRowRequest{TableName: table, RowKey: []byte{byte('a' + i)}, Mutations: []*bigtablepb.Mutation{
			{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "a", TimestampMicros: 1000, Value: []byte(big)}}}}}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := bt.ReadRows(t.Context(), &bigtablepb.ReadRowsRequest{TableName: table})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	f.grant(table) // the rest waits for us
	time.Sleep(auth.Recheck + 100*time.Millisecond)
	rows := 1
	for ; err == nil; rows++ {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("after %d messages: %v", rows, err)
	}
}

func TestAudit(t *testing.T) {
	f := newFixture(t, auth.Options{AuditData: true})
	acc := f.account("some-acc", false)
	f.grant(table, "roles/bigtable.user "+acc.member())
	if err := f.set(acc.token(nil), "a", "secret-row-key"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.read(acc.token(nil), nil); err != nil {
		t.Fatal(err)
	}
	if err := f.list(acc.token(nil)); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	if err := f.list("nonsense"); status.Code(err) != codes.Unauthenticated {
		t.Fatal(err)
	}
	find := func(method, code string) map[string]any {
		t.Helper()
		deadline := time.Now().Add(time.Minute) // the line comes after the answer
		for {
			for _, l := range f.log.all("audit") {
				if strings.HasSuffix(l["method"].(string), method) && l["code"] == code {
					return l
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("no line of %s %s in\n%s", method, code, f.log)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	l := find("/MutateRow", "OK")
	if l["principal"] != acc.member() || l["resource"] != table || l["request_bytes"].(float64) < 50 || !strings.HasPrefix(l["peer"].(string), "127.0.0.1:") {
		t.Error(l)
	}
	if l["time"] == nil || l["latency_ms"] == nil || l["response_bytes"] == nil {
		t.Error(l)
	}
	if l := find("/ReadRows", "OK"); l["response_bytes"].(float64) < 10 {
		t.Error(l)
	}
	if l := find("/ListTables", "PermissionDenied"); l["resource"] != instance {
		t.Error(l)
	}
	if l := find("/ListTables", "Unauthenticated"); l["reason"] != "unknown" {
		t.Error(l)
	}
	find("/CreateTable", "OK")
	if s := f.log.String(); strings.Contains(s, "secret-row-key") || strings.Contains(s, "nonsense") {
		t.Error("the log has what it must not have")
	}
	// Somebody who is refused again and again does not fill the disk.
	for range 200 {
		_ = f.list("nonsense")
	}
	if n := len(f.log.all("audit")); n > 200 {
		t.Errorf("%d lines", n)
	}
}

// TestAuditWithoutLogin: what is changed where nobody logs in leaves a line, with
// "anonymous" for a principal. What only looks, and the rows, do not unless asked
// for; names may be of any form, and credentials are not looked at.
func TestAuditWithoutLogin(t *testing.T) {
	for _, data := range []bool{false, true} {
		f := newFixture(t, auth.Options{Off: true, AuditData: data})
		conn := f.connect("nonsense")
		if err := f.set("nonsense", "a", "secret-row-key"); err != nil {
			t.Fatal(err)
		}
		if _, err := f.read("", nil); err != nil {
			t.Fatal(err)
		}
		if err := f.list(""); err != nil {
			t.Fatal(err)
		}
		tables := adminpb.NewBigtableTableAdminClient(conn)
		if _, err := tables.DropRowRange(t.Context(), &adminpb.DropRowRangeRequest{Name: table, Target: &adminpb.DropRowRangeRequest_RowKeyPrefix{RowKeyPrefix: []byte("secret")}}); err != nil {
			t.Fatal(err)
		}
		if _, err := tables.DeleteTable(t.Context(), &adminpb.DeleteTableRequest{Name: table}); err != nil {
			t.Fatal(err)
		}
		if _, err := tables.DeleteTable(t.Context(), &adminpb.DeleteTableRequest{Name: "no name"}); err == nil {
			t.Error("a name of no form")
		}
		ctx, err := f.a.Enter(t.Context(), auth.Peer{Addr: "10.0.0.9:4"}, "/google.bigtable.admin.v2.BigtableTableAdmin/ModifyColumnFamilies", table)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := f.a.Sees(ctx, table); !ok || err != nil {
			t.Error(err)
		}
		want := []string{"CreateInstance OK projects/p", "CreateTable OK " + instance, "DropRowRange OK " + table, "DeleteTable OK " + table,
			"DeleteTable InvalidArgument no name", "ModifyColumnFamilies OK " + table}
		if data {
			want = slices.Insert(want, 2, "MutateRow OK "+table, "ReadRows OK "+table, "ListTables OK "+instance)
		}
		var got []string
		deadline := time.Now().Add(time.Minute) // a line may come after the answer
		for got = nil; len(got) < len(want) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			got = nil
			for _, l := range f.log.all("audit") {
				m := l["method"].(string)
				got = append(got, fmt.Sprintf("%s %s %s", m[strings.LastIndexByte(m, '/')+1:], l["code"], l["resource"]))
				if l["principal"] != "anonymous" || !strings.HasPrefix(l["peer"].(string), "127.0.0.1:") && l["peer"] != "10.0.0.9:4" {
					t.Errorf("%v", l)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("data %v:\n%q, want\n%q", data, got, want)
		}
		if s := f.log.String(); strings.Contains(s, "secret-row-key") || strings.Contains(s, "nonsense") {
			t.Error("the log has what it must not have")
		}
	}
}

// TestAnonymous lets in who has no credentials, and only them.
func TestAnonymous(t *testing.T) {
	f := newFixture(t, auth.Options{Anonymous: true})
	if err := f.set("", "a", "r"); err != nil {
		t.Error(err)
	}
	if err := f.set("nonsense", "a", "r"); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
	acc := f.account("some-acc", false)
	if err := f.set(acc.token(nil), "a", "r"); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	// Work without a request is not held to anything.
	g := f.a.Guard(f.b)
	if _, err := g.Table(t.Context(), table); err != nil {
		t.Error(err)
	}
}
