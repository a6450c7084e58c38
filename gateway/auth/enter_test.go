package auth_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/backend"
)

// An updater lets a Backend that cannot update rows by what is in them say
// which families it was asked to change.
type updater struct{ backend.Backend }

func (updater) UpdateRow(_ context.Context, _ string, _, _ []byte, _ *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (bool, error) {
	_, err := decide(nil)
	return false, err
}

// TestEnter: a request of another protocol is held to the policies that hold
// for RPCs, down to families.
func TestEnter(t *testing.T) {
	f := newFixture(t, auth.Options{})
	f.grant(table, "roles/bigtable.reader user:reader@x", `roles/bigtable.user user:part@x resource.family in ["a"]`,
		"roles/bigtable.admin user:admin@x", `roles/bigtable.admin user:admin-part@x resource.family in ["a"]`)
	const (
		read   = bigtablepb.Bigtable_ReadRows_FullMethodName
		write  = bigtablepb.Bigtable_MutateRow_FullMethodName
		check  = bigtablepb.Bigtable_CheckAndMutateRow_FullMethodName
		change = adminpb.BigtableTableAdmin_UpdateTable_FullMethodName
		backup = adminpb.BigtableTableAdmin_CreateBackup_FullMethodName // an HBase snapshot
	)
	for _, tc := range []struct {
		user, method, name string
		ok                 bool
	}{
		{"reader@x", read, table, true}, {"reader@x", write, table, false}, {"reader@x", check, table, false}, {"reader@x", change, table, false},
		{"part@x", read, table, true}, {"part@x", write, table, true}, {"part@x", read, instance + "/tables/other", false},
		{"nobody@x", read, table, false}, {"nobody@x", read, "", true}, {"", read, "", false}, {"", read, table, false},
		{"reader@x", backup, table, false}, {"part@x", backup, table, false}, {"admin@x", backup, table, true}, {"admin-part@x", backup, table, false},
		{"reader@x", "/no/Such", table, false},
	} {
		_, err := f.a.Enter(t.Context(), auth.Peer{User: tc.user}, tc.method, tc.name)
		if tc.ok != (err == nil) || err != nil && !errors.Is(err, fault.PermissionDenied) {
			t.Errorf("%s, %s of %q: %v", tc.user, tc.method, tc.name, err)
		}
	}
	if _, err := f.a.Enter(t.Context(), auth.Peer{User: "reader@x", Expires: time.Now().Add(-time.Second)}, read, table); err == nil {
		t.Error("an expired proof counts")
	}
	ctx, err := f.a.Enter(t.Context(), auth.Peer{User: "part@x"}, check, table)
	if err != nil {
		t.Fatal(err)
	}
	g := f.a.Guard(updater{f.b})
	for family, ok := range map[string]bool{"a": true, "b": false} {
		m := []row.Mutation{{Op: row.SetCell, Family: family, Qualifier: []byte("q"), Timestamp: 1000}}
		if err := g.MutateRow(ctx, table, &row.Entry{Key: []byte("r"), Mutations: m}); ok != (err == nil) {
			t.Errorf("write to %s: %v", family, err)
		}
		_, err := g.(backend.RowUpdater).UpdateRow(ctx, table, []byte("r"), nil, nil, func([]row.Cell) ([]row.Mutation, error) { return m, nil })
		if ok != (err == nil) {
			t.Errorf("update of %s: %v", family, err)
		}
	}
	if _, err := f.a.Guard(f.b).(backend.RowUpdater).UpdateRow(ctx, table, []byte("r"), nil, nil, nil); !errors.Is(err, fault.Unimplemented) {
		t.Errorf("a store without updates: %v", err)
	}
}

// TestBegin: a request over HTTP is its token's, and its line tells what became of
// it.
func TestBegin(t *testing.T) {
	f := newFixture(t, auth.Options{})
	acc := f.account("some-acc", false)
	f.grant(table, "roles/bigtable.viewer "+acc.member())
	const (
		see    = adminpb.BigtableTableAdmin_GetTable_FullMethodName
		change = adminpb.BigtableTableAdmin_UpdateTable_FullMethodName
		backup = adminpb.BigtableTableAdmin_CreateBackup_FullMethodName // an HBase snapshot
	)
	bearer := func(tok string) auth.Peer {
		return auth.Peer{Authorization: []string{"Bearer " + tok}, Addr: "10.0.0.9:4"}
	}
	for _, p := range []auth.Peer{{}, bearer("nonsense"), {Authorization: []string{"Bearer " + acc.token(nil), "Bearer x"}}} {
		if _, err := f.a.Begin(t.Context(), p, see, "GET /x"); !auth.Unauthenticated(err) || !errors.Is(err, fault.PermissionDenied) {
			t.Errorf("%v: %v", p, err)
		}
	}
	readonly := acc.token(map[string]any{"scope": "https://www.googleapis.com/auth/cloud-platform.read-only"})
	if _, err := f.a.Begin(t.Context(), bearer(readonly), change, "POST /x"); !errors.Is(err, fault.PermissionDenied) || auth.Unauthenticated(err) {
		t.Errorf("a token for reading: %v", err)
	}
	do := func(rpc, as, name string) error {
		t.Helper()
		r, err := f.a.Begin(t.Context(), bearer(acc.token(nil)), rpc, as)
		if err != nil {
			t.Fatal(err)
		}
		if err = r.On(name); err == nil {
			err = r.Missing("other", fault.New(fault.NotFound, "no such thing"))
		}
		for name, want := range map[string]bool{table: true, instance + "/tables/other": false, "projects/" + auth.SystemProject: false, "METADATA": false} {
			if ok, err := f.a.Sees(r.Context(), name); ok != want || err != nil {
				t.Errorf("sees %s: %v %v", name, ok, err)
			}
		}
		r.Done(err)
		return err
	}
	if err := do(see, "GET /seen", table); !errors.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "'other'") {
		t.Errorf("it is told that something is not there: %v", err)
	}
	if err := do(change, "POST /changed", table); !errors.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "bigtable.tables.update") {
		t.Error(err)
	}
	var got []string
	for _, l := range f.log.all("audit") {
		if l["peer"] == "10.0.0.9:4" {
			got = append(got, fmt.Sprintf("%s %s %v", l["method"], l["code"], l["reason"]))
		}
	}
	if want := []string{"GET /x Unauthenticated unknown", "POST /x PermissionDenied <nil>", "GET /seen PermissionDenied <nil>", "POST /changed PermissionDenied <nil>"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
