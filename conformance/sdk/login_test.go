package sdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
	"github.com/trestledb/trestle/gateway/auth"
)

// A secured server has TLS with an authority of its own, and login.
type secured struct {
	*target.Server
	ca, root string
	binary   string
}

// startSecured starts one, or skips the test if there is no binary.
func startSecured(t *testing.T, p target.Process) secured {
	t.Helper()
	if os.Getenv("CONFORMANCE_SDK") == "" {
		t.Skip("set CONFORMANCE_SDK=1 to run clients that are downloaded; `make conformance` does")
	}
	p.Binary = os.Getenv(target.BinaryEnv)
	if p.Binary == "" {
		t.Skip("set " + target.BinaryEnv + " to a trestle binary")
	}
	p.Dir, p.HTTP, p.Cluster = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0", target.OnCluster()
	p.Args = append(p.Args, "--tls-auto", "--auth=on", "--audit-log=off")
	s, err := target.Start(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(time.Minute); err != nil {
			t.Errorf("stop the server: %v\n%s", err, s.Log())
		}
	})
	// One of the servers of a cluster has made the key.
	keys, err := filepath.Glob(filepath.Join(p.Dir, "server-*", "root-key.json"))
	if err != nil || s.Cluster != nil && len(keys) != 1 {
		t.Fatalf("%d servers have made a first key: %v, %v", len(keys), keys, err)
	}
	root := filepath.Join(p.Dir, "root-key.json")
	if s.Cluster != nil {
		root = keys[0]
	}
	return secured{s, filepath.Join(s.Dir, "tls", "ca.pem"), root, p.Binary}
}

// iam runs trestle iam as root and returns what it prints.
func (s secured) iam(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.binary, append([]string{"iam", "--server", s.Addr, "--ca", s.ca, "--credentials", s.root}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("trestle iam %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// account makes a service account of a project that may administrate it, and
// returns the file of its key.
func (s secured) account(t *testing.T, project string) string {
	t.Helper()
	email := s.iam(t, "service-accounts", "create", "some-client", "--project", project)
	key := filepath.Join(t.TempDir(), "key.json")
	s.iam(t, "keys", "create", "--service-account", email, "--out", key)
	s.iam(t, "policy", "add-binding", "projects/"+project, "--member", "serviceAccount:"+email, "--role", "roles/bigtable.admin")
	return key
}

// dial connects as root. name is what the server's certificate must say, empty for its
// address.
func (s secured) dial(t *testing.T, name string) *grpc.ClientConn {
	t.Helper()
	file, err := os.ReadFile(s.root)
	if err != nil {
		t.Fatal(err)
	}
	key, err := auth.NewKeyCredentials(file, false)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := credentials.NewClientTLSFromFile(s.ca, name)
	if err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(transport), grpc.WithPerRPCCredentials(key))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// TestLogin runs the clients of other languages over TLS, logged in with a key
// that the server minted.
func TestLogin(t *testing.T) {
	s := startSecured(t, target.Process{})
	key := s.account(t, "p")
	dir := filepath.Join(workspace(t).Dir, "smoke")
	// What each prints last; TestPythonSystem has Python's queries.
	last := map[string]string{"python": "python ok", "node": "node sql ok", "java": "java sql ok"}
	for language, tool := range map[string]string{"python": "python3", "node": "npm", "java": "mvn"} {
		t.Run(language, func(t *testing.T) {
			if _, err := exec.LookPath(tool); err != nil {
				t.Skipf("%s is not installed", tool)
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join("smoke", "run.sh"), s.Addr, dir)
			cmd.Env = append(os.Environ(), "CA="+s.ca, "GOOGLE_APPLICATION_CREDENTIALS="+key, "LANGUAGES="+language)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), last[language]) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// startAsGoogle starts a secured server that answers for Google's names, and returns its
// address of the loopback range; or it skips the test.
func startAsGoogle(t *testing.T) (secured, string) {
	t.Helper()
	if os.Getuid() != 0 || exec.CommandContext(t.Context(), "unshare", "-m", "mount", "--bind", "/etc/hosts", "/etc/hosts").Run() != nil {
		t.Skip("Google's names can be led here by root only, in a mount namespace")
	}
	host, err := loopback.Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	return startSecured(t, target.Process{Listen: host.IP + ":443", Args: []string{"--names", strings.Join(GoogleNames, ",")}}), host.IP
}

// TestProductionLogin runs the Go client's suite with its production defaults:
// Google's names, TLS, a service account's key, primed channels, metrics.
func TestProductionLogin(t *testing.T) {
	s, host := startAsGoogle(t)
	w := workspace(t)
	prepare(t, w)
	createInstance(t, s.dial(t, GoogleNames[1]))
	in, err := Login(w, host, s.ca, s.root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in.Each, in.Timeout = tell(t), time.Minute
	in.Env = append(in.Env, "BTTEST_COMMAND="+command(t))
	results, err := in.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "login.txt", results)
}

// TestGCloudLogin logs gcloud in with a key.
func TestGCloudLogin(t *testing.T) {
	binary := gcloudBinary(t)
	s := startSecured(t, target.Process{})
	api := strings.TrimSuffix(s.REST, "v2/")
	g := GCloud{Binary: binary, URL: s.REST, Dir: t.TempDir(), Env: []string{"CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM=" + api,
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER=" + api}}
	key := s.account(t, Project)
	call := func(want string, fails bool, args ...string) {
		t.Helper()
		out, err := g.Call(t.Context(), args...)
		if (err != nil) != fails || !strings.Contains(out, want) {
			t.Errorf("gcloud %q: %v, want %q\n%s", args, err, want, out)
		}
	}
	call("do not currently have an active account", true, "bigtable", "instances", "list")
	call("Activated service account", false, "auth", "activate-service-account", "--key-file="+key)
	call("done", false, "bigtable", "instances", "create", "gc-login", "--display-name=gc-login", "--cluster-config=id=gc-one,zone=local-a,nodes=1")
	call("gc-login", false, "bigtable", "instances", "list")
	call("PERMISSION_DENIED", true, "bigtable", "instances", "list", "--project=other")
	call("does not have permission", true, "iam", "service-accounts", "list")

	call("Activated service account", false, "auth", "activate-service-account", "--key-file="+s.root)
	call("Created service account", false, "iam", "service-accounts", "create", "gc-made", "--display-name=made")
	const member = "serviceAccount:gc-made@" + Project + ".iam.trestle.internal"
	call(member, false, "projects", "add-iam-policy-binding", Project, "--member="+member, "--role=roles/bigtable.reader")
	call("", false, "bigtable", "instances", "delete", "gc-login")
}
