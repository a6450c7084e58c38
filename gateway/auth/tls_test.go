package auth_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/auth/servertls"
)

// private starts a fixture with a certificate authority of its own.
func private(t *testing.T, o auth.Options) (*fixture, servertls.Auto) {
	t.Helper()
	auto := servertls.Auto{Dir: filepath.Join(t.TempDir(), "tls")}
	if err := auto.Ensure(); err != nil {
		t.Fatal(err)
	}
	srv, err := servertls.New(auto.Options())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(auto.CA())
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	return newFixture(t, o, srv.Credentials(), credentials.NewTLS(&tls.Config{RootCAs: pool})), auto
}

// TestOfficialClient logs in as Google's Go client does: with the JSON file of
// an account, over TLS.
func TestOfficialClient(t *testing.T) {
	t.Setenv("BIGTABLE_EMULATOR_HOST", "")
	f, _ := private(t, auth.Options{})
	acc := f.account("some-acc", false)
	f.grant(instance, "roles/bigtable.user "+acc.member())
	file := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, acc.file, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	opts := []option.ClientOption{option.WithEndpoint(f.addr), option.WithAuthCredentialsFile(option.ServiceAccount, file),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(f.dial))}
	c, err := bigtable.NewClientWithConfig(ctx, "p", "inst-1", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := bigtable.NewMutation()
	m.Set("a", "q", 1000, []byte("v"))
	if err := c.Open("t").Apply(ctx, "row", m); err != nil {
		t.Fatal(err)
	}
	row, err := c.Open("t").ReadRow(ctx, "row")
	if err != nil || string(row["a"][0].Value) != "v" {
		t.Fatal(row, err)
	}
	ac, err := bigtable.NewAdminClient(ctx, "p", "inst-1", opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer ac.Close()
	if tables, err := ac.Tables(ctx); err != nil || len(tables) != 1 {
		t.Error(tables, err)
	}
	if err := ac.CreateTable(ctx, "new"); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	if held, err := ac.TableIAM("t").TestPermissions(ctx, []string{"bigtable.tables.readRows", "bigtable.tables.delete"}); err != nil || len(held) != 1 {
		t.Error(held, err)
	}
}

// TestCBT logs in as Google's command line tool does: it exchanges a token of
// its own for one of ours.
func TestCBT(t *testing.T) {
	cbt, err := exec.LookPath("cbt")
	if err != nil {
		t.Skip("cbt is not there")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	uri := "http://" + l.Addr().String() + "/token"
	f, auto := private(t, auth.Options{TokenURI: uri})
	mux := http.NewServeMux()
	mux.Handle("/token", f.a.TokenHandler())
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	acc := f.account("some-acc", false)
	f.grant(instance, "roles/bigtable.user "+acc.member())
	file := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, acc.file, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, cbt, append([]string{"-project", "p", "-instance", "inst-1", "-creds", file,
			"-data-endpoint", f.addr, "-admin-endpoint", f.addr}, args...)...)
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+auto.CA(), "BIGTABLE_EMULATOR_HOST=", "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("set", "t", "row", "a:q=hello"); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, f.log)
	}
	if out, err := run("read", "t"); err != nil || !strings.Contains(out, "hello") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run("ls"); err != nil || !strings.Contains(out, "t") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run("createtable", "new"); err == nil || !strings.Contains(out, "PermissionDenied") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestClientCertificates lets clients in by their certificates.
func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t)
	ca.write(t, filepath.Join(dir, "clients.pem"))
	auto := servertls.Auto{Dir: filepath.Join(dir, "tls")}
	if err := auto.Ensure(); err != nil {
		t.Fatal(err)
	}
	o := auto.Options()
	o.ClientCAFile = filepath.Join(dir, "clients.pem")
	srv, err := servertls.New(o)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pem, _ := os.ReadFile(auto.CA())
	pool.AppendCertsFromPEM(pem)
	f := newFixture(t, auth.Options{}, srv.Credentials(), credentials.NewTLS(&tls.Config{RootCAs: pool}))
	f.grant(table, "roles/bigtable.user user:alice@example.com", "roles/bigtable.reader user:spiffe://example.com/reader", "roles/bigtable.reader user:backup-job")
	as := func(c *tls.Certificate) {
		cfg := &tls.Config{RootCAs: pool}
		if c != nil {
			// Whatever authorities the server names.
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
		}
		f.dial = credentials.NewTLS(cfg)
	}
	try := func(read, write codes.Code, what string) {
		t.Helper()
		if _, err := f.read("", nil); status.Code(err) != read {
			t.Errorf("%s: read: %v", what, err)
		}
		if err := f.set("", "a", "r"); status.Code(err) != write {
			t.Errorf("%s: write: %v", what, err)
		}
	}
	as(ca.client(t, "Alice", "alice@example.com", "", time.Hour))
	try(codes.OK, codes.OK, "e-mail address")
	as(ca.client(t, "Alice", "alice@example.com", "spiffe://example.com/reader", time.Hour))
	try(codes.OK, codes.PermissionDenied, "URI")
	as(ca.client(t, "backup-job", "", "", time.Hour))
	try(codes.OK, codes.PermissionDenied, "common name")
	as(ca.client(t, "stranger", "", "", time.Hour))
	try(codes.PermissionDenied, codes.PermissionDenied, "no grants")
	as(nil)
	try(codes.Unauthenticated, codes.Unauthenticated, "no certificate")
	as(ca.client(t, "alice", "alice@example.com", "", -time.Minute))
	try(codes.Unavailable, codes.Unavailable, "expired")
	as(newAuthority(t).client(t, "alice", "alice@example.com", "", time.Hour))
	try(codes.Unavailable, codes.Unavailable, "another authority")
	// A token counts before the certificate.
	as(ca.client(t, "Alice", "alice@example.com", "", time.Hour))
	if err := f.set("nonsense", "a", "r"); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
}
