package sdk

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	clientModule = "cloud.google.com/go/bigtable"
	// ClientVersion is the version whose integration tests run.
	ClientVersion = "v1.58.0"
	// cbtModule carries the last version of the cbt CLI in the client's module.
	cbtModule = "cloud.google.com/go/bigtable/cmd/cbt@v1.13.0"
)

// A Workspace is a directory with what the suites are built from. It may be
// kept between runs.
type Workspace struct{ Dir string }

func (w Workspace) module() string { return filepath.Join(w.Dir, "bigtable@"+ClientVersion) }
func (w Workspace) binary() string { return filepath.Join(w.Dir, "integration-"+ClientVersion+".test") }

// Prepare copies the client's module, lays the files of external over its
// bttest and builds its tests.
func (w Workspace) Prepare(ctx context.Context, external string) error {
	if err := os.MkdirAll(w.Dir, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", clientModule+"@"+ClientVersion)
	if _, err := run(cmd); err != nil {
		return err
	}
	out, err := run(exec.CommandContext(ctx, "go", "env", "GOMODCACHE"))
	if err != nil {
		return err
	}
	source := filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(clientModule)+"@"+ClientVersion)
	if err := os.RemoveAll(w.module()); err != nil {
		return err
	}
	if err := copyTree(w.module(), source); err != nil {
		return err
	}
	overlaid := filepath.Join(w.module(), "bttest")
	if err := os.RemoveAll(overlaid); err != nil {
		return err
	}
	if err := copyTree(overlaid, external); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-o", w.binary(), ".")
	build.Dir = w.module()
	build.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	_, err = run(build)
	return err
}

// copyTree copies files, writable.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o644)
	})
}

func run(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.Bytes())
	}
	return out, nil
}

// An Integration says how to run the client's integration tests, each in a
// process of its own.
type Integration struct {
	Workspace Workspace
	// Env and Flags choose the mode: see Emulator and Production.
	Env, Flags []string
	// Wrap is a command that runs the one that follows it, if not empty.
	Wrap []string
	// Timeout of one test. Zero means 2 minutes.
	Timeout time.Duration
	// Each is told of every result, if not nil.
	Each func(Result)

	tmp string // what tests leave behind, such as the data of servers that they do not close
}

// Emulator runs every test against a fresh server: command is the server's
// command line as package external takes it.
func Emulator(w Workspace, command string) *Integration {
	return &Integration{Workspace: w, Env: []string{"BTTEST_COMMAND=" + command}}
}

// The names that Production expects to exist on the server.
const (
	Project  = "project"
	Instance = "instance"
	Cluster  = "cluster"
)

// Production runs every test against the server at addr as if it were the real
// service, over plaintext. A test that insists on a server of its own gets one
// by command.
func Production(w Workspace, addr, command string) *Integration {
	return &Integration{Workspace: w, Env: []string{"BIGTABLE_EMULATOR_HOST=" + addr, "BTTEST_COMMAND=" + command},
		Flags: []string{"-it.use-prod", "-it.project", Project, "-it.instance", Instance, "-it.cluster", Cluster}}
}

// Login runs every test with the client's production defaults, TLS and
// credentials included, in a mount namespace where Google's names lead to the
// server of the given address, which must be one of 127.0.0.0/8 and end in
// :443. ca is its authority, key the file of an account's key, dir a directory
// for the table of hosts. It takes root, and Linux.
func Login(w Workspace, host, ca, key, dir string) (*Integration, error) {
	wrap, err := leadHere(host, dir)
	if err != nil {
		return nil, err
	}
	return &Integration{Workspace: w, Env: []string{"SSL_CERT_FILE=" + ca, "GOOGLE_APPLICATION_CREDENTIALS=" + key},
		Flags: []string{"-it.use-prod", "-it.project", Project, "-it.instance", Instance, "-it.cluster", Cluster}, Wrap: wrap}, nil
}

// leadHere returns a command that runs the one that follows it where Google's names
// lead to host; it writes the table of hosts into dir.
func leadHere(host, dir string) ([]string, error) {
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return nil, err
	}
	for _, name := range GoogleNames {
		hosts = fmt.Appendf(hosts, "\n%s %s\n", host, name)
	}
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, hosts, 0o644); err != nil {
		return nil, err
	}
	return []string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, file}, nil
}

// GoogleNames are the hosts that clients ask for by default.
var GoogleNames = []string{"bigtable.googleapis.com", "bigtableadmin.googleapis.com"}

// ownFake begins the names of tests that talk to a fake session server of
// their own in every mode: they say nothing about ours.
const ownFake = "TestIntegration_SessionVRpc_"

var complaint = regexp.MustCompile(`(?m)^\s*\w+_test\.go:\d+: (.*)$`)

// Run runs the tests one after the other.
func (in *Integration) Run(ctx context.Context) (_ []Result, err error) {
	if in.tmp, err = os.MkdirTemp("", "sdk-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(in.tmp)
	// The tests' main function sets up and cleans up even to list them.
	out, err := run(in.command(ctx, "-test.list", "^TestIntegration_"))
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, name := range strings.Fields(string(out)) {
		if !strings.HasPrefix(name, "TestIntegration_") || strings.HasPrefix(name, ownFake) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return results, err
		}
		r := in.one(ctx, name)
		results = append(results, r)
		if in.Each != nil {
			in.Each(r)
		}
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("%s lists no tests", in.Workspace.binary())
	}
	return results, nil
}

// command returns a run of the tests' binary.
func (in *Integration) command(ctx context.Context, args ...string) *exec.Cmd {
	line := slices.Concat(in.Wrap, []string{in.Workspace.binary()}, args, in.Flags)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = in.Workspace.module()
	cmd.Env = in.environ()
	return cmd
}

// environ is the environment without what would send the tests elsewhere.
func (in *Integration) environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "BIGTABLE_") && !strings.HasPrefix(kv, "GCLOUD_") && !strings.HasPrefix(kv, "GOOGLE_") && !strings.HasPrefix(kv, "TRESTLE_") {
			env = append(env, kv)
		}
	}
	return append(append(env, "TMPDIR="+in.tmp), in.Env...)
}

func (in *Integration) one(ctx context.Context, name string) Result {
	limit := in.Timeout
	if limit == 0 {
		limit = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit+20*time.Second)
	defer cancel()
	out, err := in.command(ctx, "-test.v", "-test.timeout", limit.String(), "-test.run", "^"+name+"$").CombinedOutput()
	r := Result{Name: name, Outcome: "fail"}
	switch {
	case bytes.Contains(out, []byte("\n--- SKIP: "+name+" ")):
		r.Outcome = "skip"
	case err == nil && bytes.Contains(out, []byte("--- PASS: "+name+" ")):
		r.Outcome = "pass"
	case bytes.Contains(out, []byte("panic: test timed out")) || ctx.Err() != nil:
		r.Why = "timed out"
	default:
		for _, m := range complaint.FindAllSubmatch(out, -1) {
			if r.Why = string(m[1]); !strings.Contains(r.Why, "Cleanup") {
				break
			}
		}
		if i := bytes.Index(out, []byte("panic: ")); r.Why == "" && i >= 0 {
			r.Why = string(bytes.SplitN(out[i:], []byte("\n"), 2)[0])
		}
		if r.Why == "" {
			r.Why = fmt.Sprint(err)
		}
		if len(r.Why) > 300 {
			r.Why = r.Why[:300]
		}
	}
	return r
}

// InstallCBT builds the cbt CLI and returns its path.
func (w Workspace) InstallCBT(ctx context.Context) (string, error) {
	path := filepath.Join(w.Dir, "cbt")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cmd := exec.CommandContext(ctx, "go", "install", cbtModule)
	cmd.Env = append(os.Environ(), "GOBIN="+w.Dir, "GOFLAGS=")
	_, err := run(cmd)
	return path, err
}
