package auth_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/iam/admin/apiv1/adminpb"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/gateway/auth"
)

func TestBootstrap(t *testing.T) {
	f := newFixture(t, auth.Options{})
	path := filepath.Join(t.TempDir(), "new", "root-key.json")
	if made, err := f.a.Accounts().Bootstrap(t.Context(), path); err != nil || made {
		t.Fatalf("a second root was made: %v %v", made, err)
	}
	if err := f.a.Accounts().Delete(t.Context(), f.root.email); err != nil {
		t.Fatal(err)
	}
	made, err := f.a.Accounts().Bootstrap(t.Context(), path)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if err := f.a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := auth.NewKeyCredentials(file, true)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(f.dial), grpc.WithPerRPCCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := adminpb.NewIAMClient(conn).CreateServiceAccount(t.Context(), &adminpb.CreateServiceAccountRequest{Name: project, AccountId: "another-acc"}); err != nil {
		t.Error(err)
	}
	if made, err := f.a.Accounts().Bootstrap(t.Context(), path); err != nil || made {
		t.Errorf("%v %v", made, err)
	}
	for _, bad := range []string{"", "{}", `{"type":"service_account","client_email":"a","private_key_id":"b","private_key":"c"}`} {
		if _, err := auth.NewKeyCredentials([]byte(bad), true); err == nil {
			t.Errorf("%q is a key", bad)
		}
	}
}

// Servers of a cluster that begin together make one first key.
func TestBootstrapTogether(t *testing.T) {
	f := newFixture(t, auth.Options{})
	if err := f.a.Accounts().Delete(t.Context(), f.root.email); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var made atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ok, err := f.a.Accounts().Bootstrap(t.Context(), filepath.Join(dir, fmt.Sprint(i), "root-key.json"))
			if err != nil {
				t.Error(err)
			} else if ok {
				made.Add(1)
			}
		})
	}
	wg.Wait()
	files, err := filepath.Glob(filepath.Join(dir, "*", "root-key.json"))
	if err != nil || made.Load() != 1 || len(files) != 1 {
		t.Errorf("%d have made a key, %d files, %v", made.Load(), len(files), err)
	}
}
