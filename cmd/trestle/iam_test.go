package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// TestSecured goes the way of an administrator: the first start, an account with
// a key and a grant, an application that logs in with it, and the same on the
// directory of a stopped server.
func TestSecured(t *testing.T) {
	home, keys := t.TempDir(), t.TempDir()
	dir := filepath.Join(home, "trestle-data")
	audit := filepath.Join(keys, "audit.log")
	p := startTrestle(t, "real", home, "serve", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB",
		"--tls-auto", "--auth=on", "--audit-log="+audit)
	addr := strings.TrimSpace(p.line("Bigtable gRPC API"))
	url := strings.TrimSuffix(strings.Fields(p.line("metrics and health"))[0], "/metrics")
	ca := p.line("certificate authority ")
	if sslCert := p.line("export SSL_CERT_FILE="); sslCert != ca {
		t.Errorf("SSL_CERT_FILE=%s, but %s", sslCert, ca)
	}
	root := p.line("export GOOGLE_APPLICATION_CREDENTIALS=")
	// What it says to begin with works once the lines before are typed.
	if cbt, want := p.line("  cbt "), "-admin-endpoint "+addr+" -creds "+root+" -project my-project createinstance "; !strings.HasPrefix(cbt, want) {
		t.Errorf("cbt %s, want %s", cbt, want)
	}
	for _, f := range []string{root, filepath.Join(dir, "tls", "ca-key.pem"), filepath.Join(dir, "tls", "server-key.pem"), audit} {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", f, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("%s is open to others: %v %v", dir, info.Mode(), err)
	}
	pool := x509.NewCertPool()
	if pem, err := os.ReadFile(ca); err != nil || !pool.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}

	trestle := func(args ...string) (string, string, int) {
		t.Helper()
		var out, errs strings.Builder
		code := run(&process{&out, &errs, nil}, append([]string{"trestle", "iam"}, args...))
		return strings.TrimSpace(out.String()), errs.String(), code
	}
	online := func(args ...string) string {
		t.Helper()
		out, errs, code := trestle(append(args, "--server="+addr, "--ca="+ca, "--credentials="+root)...)
		if code != exitOK {
			t.Fatalf("%v: exit code %d\n%s", args, code, errs)
		}
		return out
	}
	email := online("service-accounts", "create", "app-one", "--project=project", "--display-name=an application")
	file := filepath.Join(keys, "app.json")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, file)
	if err != nil {
		t.Fatal(err)
	}
	if out := online("keys", "create", "--service-account="+email, "--out="+relative); !strings.Contains(out, "\nexport GOOGLE_APPLICATION_CREDENTIALS=/") {
		t.Errorf("where the key is depends on where one stands:\n%s", out)
	}
	if out := online("service-accounts", "list", "--project=project"); !strings.Contains(out, email) || !strings.Contains(out, "an application") {
		t.Error(out)
	}
	if _, errs, code := trestle("service-accounts", "list", "--project=project", "--server="+addr, "--ca="+ca); code != exitFailure || !strings.Contains(errs, "--credentials") {
		t.Errorf("without credentials: %d %s", code, errs)
	}
	if _, errs, code := trestle("policy", "get", "projects/project", "--server="+addr, "--ca="+ca, "--credentials="+file); code != exitFailure || !strings.Contains(errs, "PermissionDenied") {
		t.Errorf("as the application: %d %s", code, errs)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	as := func(key string) (*bigtable.InstanceAdminClient, *bigtable.AdminClient, *bigtable.Client) {
		t.Helper()
		opts := []option.ClientOption{option.WithEndpoint(addr), option.WithAuthCredentialsFile(option.ServiceAccount, key),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))}
		ic, err := bigtable.NewInstanceAdminClient(ctx, "project", opts...)
		if err != nil {
			t.Fatal(err)
		}
		ac, err := bigtable.NewAdminClient(ctx, "project", "instance", opts...)
		if err != nil {
			t.Fatal(err)
		}
		c, err := bigtable.NewClientWithConfig(ctx, "project", "instance", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _, _ = ic.Close(), ac.Close(), c.Close() })
		return ic, ac, c
	}
	ic, ac, _ := as(root)
	if err := ic.CreateInstance(ctx, &bigtable.InstanceConf{InstanceId: "instance", ClusterId: "cluster", DisplayName: "instance", Zone: "local-a", NumNodes: 1}); err != nil {
		t.Fatal(err)
	}
	if err := ac.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "t", Families: map[string]bigtable.GCPolicy{"f": bigtable.NoGcPolicy(), "hidden": bigtable.NoGcPolicy()}}); err != nil {
		t.Fatal(err)
	}
	_, _, c := as(file)
	write := func(c *bigtable.Client, family string) error {
		m := bigtable.NewMutation()
		m.Set(family, "q", 1000, []byte("v"))
		return c.Open("t").Apply(ctx, "row", m)
	}
	if err := write(c, "f"); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	const table = "projects/project/instances/instance/tables/t"
	online("policy", "add-binding", table, "--member=serviceAccount:"+email, "--role=roles/bigtable.user", `--condition=resource.family == "f"`)
	if err := write(c, "f"); err != nil {
		t.Error(err)
	}
	if err := write(c, "hidden"); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	if out := online("policy", "get", table); !strings.Contains(out, email) || !strings.Contains(out, "resource.family") {
		t.Error(out)
	}
	online("policy", "remove-binding", table, "--member=serviceAccount:"+email, "--role=roles/bigtable.user", `--condition=resource.family == "f"`)
	if err := write(c, "f"); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	for resource, member := range map[string]string{"projects/project": "user:a@example.com", "projects/project/instances/instance": "allUsers"} {
		online("policy", "add-binding", resource, "--member="+member, "--role=roles/bigtable.viewer")
		online("policy", "add-binding", resource, "--member="+member, "--role=roles/bigtable.viewer") // again
		if out := online("policy", "get", resource); strings.Count(out, member) != 1 {
			t.Error(out)
		}
	}
	if out := online("keys", "list", "--service-account="+email); strings.Count(out, "\n") != 1 {
		t.Error(out)
	}
	// The token endpoint is beside the metrics.
	resp, err := http.Post(url+"/token", "application/x-www-form-urlencoded", strings.NewReader("grant_type=x"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Error(resp.Status)
	}
	p.signal(syscall.SIGTERM)
	if _, code, _ := p.exit(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.stderr)
	}
	if b, err := os.ReadFile(audit); err != nil || !strings.Contains(string(b), "SetIamPolicy") || !strings.Contains(string(b), "PermissionDenied") {
		t.Errorf("audit log: %v\n%s", err, b)
	}
	if strings.Contains(p.stderr.String(), `msg=audit`) {
		t.Error("the audit log is in the other log too")
	}

	// The way in for who has lost the key of root.
	const rootAccount = "trestle-root@trestle-system.iam.trestle.internal"
	again := filepath.Join(keys, "root.json")
	out, errs, code := trestle("keys", "create", "--service-account="+rootAccount, "--out="+again, "--data-dir="+dir)
	if code != exitOK {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	if _, _, code := trestle("keys", "create", "--service-account="+rootAccount, "--out="+again, "--data-dir="+dir); code != exitFailure {
		t.Error("a key was overwritten")
	}
	p = startTrestle(t, "real", home, "serve", "--listen=127.0.0.1:0", "--http-listen=off", "--memory=64MiB", "--tls-auto", "--auth=on")
	addr, root = strings.TrimSpace(p.line("Bigtable gRPC API")), again
	online("service-accounts", "delete", email)
	if _, errs, code := trestle("policy", "get", "projects/project", "--server="+addr, "--ca="+ca, "--credentials="+file); code != exitFailure || !strings.Contains(errs, "key is not known") {
		t.Errorf("a deleted account: %d %s", code, errs)
	}
	p.signal(syscall.SIGTERM)
	p.exit()
}

// TestLoginWithoutTLS: a server that no client of Google's could log in to says so.
func TestLoginWithoutTLS(t *testing.T) {
	p := startTrestle(t, "real", t.TempDir(), "serve", "--listen=127.0.0.1:0", "--http-listen=off", "--memory=64MiB", "--auth=on")
	if hint := p.line("cbt and Google's client libraries send a key over TLS only"); !strings.Contains(hint, "--tls-auto") {
		t.Error(hint)
	}
	p.signal(syscall.SIGTERM)
	p.exit()
}

// TestIAMOfNoDirectory: a directory that is none of a server is refused, and left as it is.
func TestIAMOfNoDirectory(t *testing.T) {
	dir := t.TempDir()
	var out, errs strings.Builder
	if code := run(&process{&out, &errs, nil}, []string{"trestle", "iam", "service-accounts", "create", "app", "--project", "p", "--data-dir", dir}); code != exitFailure || !strings.Contains(errs.String(), "is no data directory") {
		t.Errorf("exit code %d, %s%s", code, out.String(), errs.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

func TestIAMUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"what"}, {"keys"}, {"keys", "what"}, {"policy", "get"}, {"policy", "get", "a", "b"}, {"keys", "list", "x"}, {"keys", "list", "--what"}} {
		var out, errs strings.Builder
		if code := run(&process{&out, &errs, nil}, append([]string{"trestle", "iam"}, args...)); code != exitUsage || errs.Len() == 0 {
			t.Errorf("%v: exit code %d, %s", args, code, errs.String())
		}
	}
	var out, errs strings.Builder
	if code := run(&process{&out, &errs, nil}, []string{"trestle", "iam", "--help"}); code != exitOK || !strings.Contains(out.String(), "service-accounts create ID") {
		t.Error(code, out.String())
	}
}
