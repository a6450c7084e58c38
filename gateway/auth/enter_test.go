package auth_test

import (
	"context"
	"errors"
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
	f.grant(table, "roles/bigtable.reader user:reader@x", `roles/bigtable.user user:part@x resource.family in ["a"]`)
	const (
		read   = bigtablepb.Bigtable_ReadRows_FullMethodName
		write  = bigtablepb.Bigtable_MutateRow_FullMethodName
		check  = bigtablepb.Bigtable_CheckAndMutateRow_FullMethodName
		change = adminpb.BigtableTableAdmin_UpdateTable_FullMethodName
	)
	for _, tc := range []struct {
		user, method, name string
		ok                 bool
	}{
		{"reader@x", read, table, true}, {"reader@x", write, table, false}, {"reader@x", check, table, false}, {"reader@x", change, table, false},
		{"part@x", read, table, true}, {"part@x", write, table, true}, {"part@x", read, instance + "/tables/other", false},
		{"nobody@x", read, table, false}, {"nobody@x", read, "", true}, {"", read, "", false}, {"", read, table, false},
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
