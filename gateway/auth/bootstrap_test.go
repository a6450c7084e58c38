package auth_test

import (
	"os"
	"path/filepath"
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
