package auth_test

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/backend"
)

// A restorer notes whether it is asked.
type restorer struct {
	backend.Backend
	asked int
}

func (r *restorer) RestorableAt(context.Context, string, time.Time) error {
	r.asked++
	return nil
}

func (r *restorer) RestoreTableAt(context.Context, string, string, time.Time, func(*schema.Table) error) (*schema.Table, error) {
	return nil, nil
}

// TestRestoreRights: who brings a backup to a time sees changes of its table, and has to be
// one who may read all of it.
func TestRestoreRights(t *testing.T) {
	f := newFixture(t, auth.Options{})
	const backup = instance + "/clusters/c/backups/b"
	if _, err := f.b.CreateBackup(t.Context(), table, &schema.Backup{Name: backup, ExpireTime: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	acc, definer := f.account("some-acc", false), f.account("definer", false)
	to := &restorer{Backend: f.b}
	b, ok := f.a.Guard(to).(backend.TimeRestorer)
	if !ok {
		t.Fatal("what is guarded is no TimeRestorer")
	}
	f.grant(instance, "roles/bigtable.reader "+acc.member())
	// The request itself is one that its caller may make.
	ask := func(member string) error {
		info := &tap.Info{FullMethodName: bigtablepb.Bigtable_ExecuteQuery_FullMethodName, Header: metadata.MD{"authorization": {"Bearer " + acc.token(nil)}}}
		ctx, err := f.a.Tap(t.Context(), info)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.a.Unary(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: instance}, &grpc.UnaryServerInfo{FullMethod: info.FullMethodName},
			func(ctx context.Context, _ any) (any, error) {
				ctx, err := f.a.As(ctx, member)
				if err != nil {
					t.Fatal(err)
				}
				return nil, b.RestorableAt(ctx, backup, time.Now())
			})
		return err
	}
	f.grant(table, "roles/bigtable.viewer "+definer.member())
	if err := ask(definer.member()); fault.KindOf(err) != fault.PermissionDenied || to.asked != 0 {
		t.Errorf("one who may not read: %v, asked %d times", err, to.asked)
	}
	f.grant(table, "roles/bigtable.reader "+definer.member()+` resource.family == "a"`)
	if err := ask(definer.member()); fault.KindOf(err) != fault.PermissionDenied || to.asked != 0 {
		t.Errorf("one who may read a family: %v, asked %d times", err, to.asked)
	}
	f.grant(table, "roles/bigtable.reader "+definer.member())
	for i, member := range []string{definer.member(), acc.member(), f.root.member()} {
		if err := ask(member); err != nil || to.asked != i+1 {
			t.Errorf("%s: %v, asked %d times", member, err, to.asked)
		}
	}
	if err := f.a.Guard(f.b).(backend.TimeRestorer).RestorableAt(t.Context(), backup, time.Now()); fault.KindOf(err) != fault.Unimplemented {
		t.Errorf("a backend that cannot: %v", err)
	}
}
