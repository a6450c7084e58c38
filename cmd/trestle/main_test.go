package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/logtest"
	"github.com/trestledb/trestle/engine/loopback"
)

// The test binary becomes trestle itself when this is set, so that signals,
// exit codes and output are those of a real process.
const actAsTrestle = "ACT_AS_TRESTLE"

func TestMain(m *testing.M) {
	switch os.Getenv(actAsTrestle) {
	case "":
		os.Exit(m.Run())
	case "etcd": // for TestDocs
		if _, err := startEtcd("etcd", "127.0.0.1:2379", "127.0.0.1:2380"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("etcd serves")
		select {}
	case "bare":
		openStack = bareStack
		stopLimit, drainLimit = time.Minute, time.Minute // for a busy machine
	case "stuck":
		openStack = stuckStack
	case "failing":
		openStack = failingStack
		stopLimit = time.Hour // drainLimit is to be what it may take
	case "real":
		stopLimit = time.Minute // a busy machine may take longer for the store's flush
	}
	if d, err := time.ParseDuration(os.Getenv(envDrain)); err == nil {
		drainLimit = d
	}
	// What TestClusterMetadata sets.
	if n, err := strconv.ParseInt(os.Getenv(envMetadataSplit), 10, 64); err == nil {
		tuneTabletServer = func(o *tabletserver.Options) { o.MetadataSplitBytes, o.SplitCheck = n, 200*time.Millisecond }
	}
	if os.Getenv(envNoAnswers) != "" { // as a server of an earlier version
		tuneTabletServer = func(o *tabletserver.Options) { o.Ask = nil }
	}
	if d, err := time.ParseDuration(os.Getenv(envMerge)); err == nil {
		tuneMaster = func(o *master.Options) { o.Merge, o.Balance, o.Rest = d, 300*time.Millisecond, time.Second }
	}
	main()
}

const envMetadataSplit, envMerge, envNoAnswers, envDrain = "TEST_METADATA_SPLIT", "TEST_MERGE", "TEST_NO_ANSWERS", "TEST_DRAIN"

// bareStack is a gRPC server with nothing but health, to test the life of a
// server by itself.
func bareStack(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error) {
	below.addStop(func(context.Context) error {
		return os.WriteFile(filepath.Join(cfg.DataDir, "closed"), nil, 0o600)
	})
	srv, h := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(srv, h)
	return &stack{
		serve: srv.Serve,
		drain: func(ctx context.Context) error {
			h.Shutdown()
			done := make(chan struct{})
			go func() {
				srv.GracefulStop()
				close(done)
			}()
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				srv.Stop()
				return ctx.Err()
			}
		},
		stats: func() ops.Stats { return ops.Stats{} },
		ready: func() error { return nil },
	}, nil
}

// stuckStack never gets its store closed.
func stuckStack(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error) {
	below.addStop(func(context.Context) error { select {} })
	return bareStack(ctx, cfg, m, log, below)
}

// failingStack fails once there is a file "fail" in its data directory.
func failingStack(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error) {
	s, err := bareStack(ctx, cfg, m, log, below)
	if err == nil {
		failed := make(chan struct{})
		s.failed, s.ready = failed, func() error { return errors.New("sync: input/output error") }
		go func() {
			defer close(failed)
			for {
				if _, err := os.Stat(filepath.Join(cfg.DataDir, "fail")); err == nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	return s, err
}

// A proc is a running trestle.
type proc struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr *logtest.Buffer
	start  time.Time
}

// startTrestle runs trestle with args in a directory of its own.
func startTrestle(t *testing.T, stack, dir string, args ...string) *proc {
	t.Helper()
	return startAs(t, "trestle", stack, dir, args...)
}

// startAs is startTrestle under another name of the program.
func startAs(t *testing.T, name, stack, dir string, args ...string) *proc {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Args[0], cmd.Dir = name, dir
	// The race detector sleeps a second at exit, which the limits do not allow for.
	cmd.Env = append(os.Environ(), actAsTrestle+"="+stack, "TMPDIR="+dir, "GORACE=atexit_sleep_ms=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{t: t, cmd: cmd, stdout: bufio.NewReader(out), stderr: new(logtest.Buffer), start: time.Now()}
	cmd.Stderr = p.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return p
}

// line waits for a line of stdout that starts with prefix and returns the rest.
func (p *proc) line(prefix string) string {
	p.t.Helper()
	timer := time.AfterFunc(3*time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	for {
		l, err := p.stdout.ReadString('\n')
		if rest, ok := strings.CutPrefix(l, prefix); ok {
			return strings.TrimSpace(rest)
		}
		if err != nil {
			_ = p.cmd.Wait()
			p.t.Fatalf("no line %q: %v; stderr:\n%s", prefix, err, p.stderr)
		}
	}
}

// exit waits for the end of the process and returns the rest of stdout, the
// exit code, and how long it took from now.
func (p *proc) exit() (rest string, code int, elapsed time.Duration) {
	p.t.Helper()
	start := time.Now()
	timer := time.AfterFunc(2*time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	b, _ := io.ReadAll(p.stdout)
	_ = p.cmd.Wait()
	return string(b), p.cmd.ProcessState.ExitCode(), time.Since(start)
}

func (p *proc) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestServeLife(t *testing.T) {
	dir := t.TempDir()
	p := startTrestle(t, "bare", dir, "serve", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--log-format=json")
	urls := p.line("metrics and health")
	addr := p.line("export BIGTABLE_EMULATOR_HOST=")
	t.Logf("ready after %v", time.Since(p.start))
	ready := strings.Fields(urls)[1]

	conn := dial(t, addr)
	watching, enough := context.WithCancel(t.Context())
	defer enough()
	w, err := grpc_health_v1.NewHealthClient(conn).Watch(watching, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.Recv(); err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("health %v, %v", r, err)
	}
	get := func(url string) (int, string) {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	if code, body := get(ready); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, body := get(strings.TrimSuffix(ready, "readyz") + "metrics"); code != 200 || !strings.Contains(body, "bigtable_disk_free_bytes") {
		t.Errorf("%d %s", code, body)
	}
	check := startTrestle(t, "bare", dir, "healthcheck", "--timeout=1m", "--http-listen", strings.TrimSuffix(strings.TrimPrefix(ready, "http://"), "/readyz"))
	if out, code, _ := check.exit(); code != 0 || !strings.Contains(out, "ready") {
		t.Errorf("healthcheck: %d %q %s", code, out, check.stderr)
	}
	// In a container it finds the environment of the process, whatever that is, and
	// none of its flags.
	for name, value := range map[string]string{
		"TRESTLE_HTTP_LISTEN": strings.TrimSuffix(strings.TrimPrefix(ready, "http://"), "/readyz"),
		"TRESTLE_LISTEN":      "0.0.0.0:8086", "TRESTLE_ETCD": "http://etcd:2379", "TRESTLE_STORE": "file:///store",
	} {
		t.Setenv(name, value)
	}
	check = startTrestle(t, "bare", dir, "healthcheck", "--timeout=1m")
	if out, code, _ := check.exit(); code != 0 || !strings.Contains(out, "ready") {
		t.Errorf("healthcheck beside a tablet server's environment: %d %q %s", code, out, check.stderr)
	}

	// A request under way (the watch) holds the drain up; readiness says so.
	p.signal(syscall.SIGTERM)
	if r, err := w.Recv(); err != nil || r.Status != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("health after SIGTERM %v, %v", r, err)
	}
	if code, body := get(ready); code != 503 || !strings.Contains(body, "[-] server: draining") {
		t.Errorf("%d %s", code, body)
	}
	enough()
	// Had it not ended within stopLimit, the code would say so.
	_, code, elapsed := p.exit()
	if code != 0 {
		t.Errorf("exit code %d after %v; stderr:\n%s", code, elapsed, p.stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "trestle-data", "closed")); err != nil {
		t.Errorf("the store was not closed: %v", err)
	}
	check = startTrestle(t, "bare", dir, "healthcheck", "--url", ready)
	if _, code, _ := check.exit(); code != 1 {
		t.Errorf("healthcheck of a dead server: %d", code)
	}
}

// TestRequestsAreCutOff: a request that does not end holds a server up for drainLimit, and no
// longer.
func TestRequestsAreCutOff(t *testing.T) {
	t.Setenv(envDrain, "200ms")
	dir := t.TempDir()
	p := startTrestle(t, "bare", dir, "serve", "--listen=127.0.0.1:0", "--http-listen=off", "--data-dir", dir)
	w, err := grpc_health_v1.NewHealthClient(dial(t, p.line("export BIGTABLE_EMULATOR_HOST="))).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = w.Recv() // the request is under way
	}
	if err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	if _, code, elapsed := p.exit(); code != 0 || !strings.Contains(p.stderr.String(), "requests were cut off") || elapsed > 30*time.Second {
		t.Errorf("exit code %d after %v; stderr:\n%s", code, elapsed, p.stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "closed")); err != nil {
		t.Errorf("the store was not closed: %v", err)
	}
}

func TestIdleServerStopsQuickly(t *testing.T) {
	p := startTrestle(t, "bare", t.TempDir(), "serve", "--listen=127.0.0.1:0", "--http-listen=off")
	dial(t, p.line("export BIGTABLE_EMULATOR_HOST=")).Connect()
	p.signal(syscall.SIGINT)
	if _, code, elapsed := p.exit(); code != 0 || strings.Contains(p.stderr.String(), "requests were cut off") {
		t.Errorf("exit code %d after %v; stderr:\n%s", code, elapsed, p.stderr)
	}
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	dir := t.TempDir()
	p := startTrestle(t, "stuck", dir, "serve", "--listen=127.0.0.1:0", "--http-listen=off", "--temporary")
	p.line("export BIGTABLE_EMULATOR_HOST=")
	ended := make(chan struct{})
	go func() {
		// One that comes before the first was taken is the same signal.
		for {
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
			select {
			case <-ended:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	_, code, elapsed := p.exit()
	close(ended)
	if code != exitFailure || !strings.Contains(p.stderr.String(), "second signal") {
		t.Errorf("exit code %d after %v; stderr:\n%s", code, elapsed, p.stderr)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "trestle-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStuckServerIsGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the limit")
	}
	p := startTrestle(t, "stuck", t.TempDir(), "serve", "--listen=127.0.0.1:0", "--http-listen=off")
	p.line("export BIGTABLE_EMULATOR_HOST=")
	p.signal(syscall.SIGTERM)
	if _, code, elapsed := p.exit(); code != exitFailure || elapsed > stopLimit+time.Minute {
		t.Errorf("exit code %d after %v; stderr:\n%s", code, elapsed, p.stderr)
	}
}

// A store that cannot be trusted any more takes the process with it.
// TestFailedStoreEndsTheServer: what a failed store cannot answer any more does not hold the
// server up for drainLimit.
func TestFailedStoreEndsTheServer(t *testing.T) {
	const drain = 30 * time.Minute // much longer than a busy machine needs
	t.Setenv(envDrain, drain.String())
	dir := t.TempDir()
	p := startTrestle(t, "failing", dir, "serve", "--listen=127.0.0.1:0", "--http-listen=off", "--data-dir", dir)
	w, err := grpc_health_v1.NewHealthClient(dial(t, p.line("export BIGTABLE_EMULATOR_HOST="))).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = w.Recv() // the request is under way
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "fail"), nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, code, elapsed := p.exit()
	if code != exitFailure || !strings.Contains(p.stderr.String(), "input/output error") || !strings.Contains(p.stderr.String(), "requests were cut off") || elapsed > drain/10 {
		t.Errorf("exit code %d after %v; stderr:\n%s", code, elapsed, p.stderr)
	}
}

func TestEmulatorForms(t *testing.T) {
	for _, args := range [][]string{
		{"-host", "[HOST]", "-port", "PORT"}, // google-cloud-bigtable-emulator for Java
		{"-host=HOST", "-port=PORT"},
		{"--address", "HOST:PORT"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			addr := loopback.Addr(t)
			host, port, _ := net.SplitHostPort(addr)
			for i := range args {
				args[i] = strings.NewReplacer("HOST", host, "PORT", port).Replace(args[i])
			}
			dir := t.TempDir()
			p := startTrestle(t, "bare", dir, args...)
			first, err := p.stdout.ReadString('\n')
			if want := fmt.Sprintf("Cloud Bigtable emulator running on %s\n", addr); err != nil || first != want {
				t.Fatalf("first line %q, %v; want %q; stderr:\n%s", first, err, want, p.stderr)
			}
			c := grpc_health_v1.NewHealthClient(dial(t, addr))
			if _, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
				t.Error(err)
			}
			p.signal(syscall.SIGTERM)
			rest, code, _ := p.exit()
			if want := fmt.Sprintf("Cloud Bigtable emulator running on %s is now shutting down\n", addr); rest != want || code != 0 {
				t.Errorf("then %q and exit code %d, want %q", rest, code, want)
			}
			if p.stderr.String() != "" {
				t.Errorf("stderr:\n%s", p.stderr)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestEmulatorOnUnixSocket(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "bt.sock")
	p := startTrestle(t, "bare", t.TempDir(), "-address", sock)
	if got := p.line("Cloud Bigtable emulator running on "); got != sock {
		t.Errorf("running on %q", got)
	}
	if _, err := grpc_health_v1.NewHealthClient(dial(t, "unix:"+sock)).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

// TestSocketThatIsLeft: a server takes the place of a socket that nobody listens on, as one that
// was killed leaves it; not that of a server that listens, nor of a file.
func TestSocketThatIsLeft(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if other, err := listen(left); err == nil {
		t.Error("the socket of a server that listens was taken")
		_ = other.Close()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := listen(left)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if conn, err := net.Dial("unix", left); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := listen(file); err == nil {
		t.Error("a file was taken for a socket")
		_ = other.Close()
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "data" {
		t.Error(string(b), err)
	}
}

// A port that is taken is named, before any data directory is made.
func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	p := startTrestle(t, "bare", dir, "serve", "-listen", l.Addr().String(), "--http-listen=off")
	if _, code, _ := p.exit(); code != exitFailure || !strings.Contains(p.stderr.String(), l.Addr().String()+": bind: address already in use") {
		t.Errorf("exit code %d; stderr:\n%s", code, p.stderr)
	}
	p = startTrestle(t, "bare", dir, "serve", "-listen", "127.0.0.1:0", "--http-listen", l.Addr().String())
	if _, code, _ := p.exit(); code != exitFailure || !strings.Contains(p.stderr.String(), "choose another address with --http-listen") {
		t.Errorf("exit code %d; stderr:\n%s", code, p.stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "trestle-data")); err == nil {
		t.Error("a data directory was made")
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args   []string
		code   int
		stdout string // contained
		stderr string // contained
	}{
		{nil, exitUsage, "", "trestle serve"},
		{[]string{"help"}, exitOK, "healthcheck", ""},
		{[]string{"--help"}, exitOK, "healthcheck", ""},
		{[]string{"-version"}, exitOK, "trestle ", ""},
		{[]string{"version"}, exitOK, "go1.", ""},
		{[]string{"serv"}, exitUsage, "", `"serv" is not a command`},
		{[]string{"serve", "--help"}, exitOK, "--data-dir PATH", ""},
		{[]string{"serve", "--lisen=x", "--memory=1"}, exitUsage, "", "did you mean --listen?"},
		{[]string{"serve", "--listen=0.0.0.0:1"}, exitUsage, "", "neither TLS nor authentication"},
		{[]string{"config", "-emulator", "--memory=64MiB"}, exitOK, "emulator: true", ""},
		{[]string{"config", "--reference"}, exitOK, "environment TRESTLE_HTTP_LISTEN", ""},
		{[]string{"config", "--reference", "tabletserver"}, exitOK, "environment TRESTLE_COMMIT_INTERVAL", ""},
		{[]string{"config", "gateway", "--etcd=https://e:2379"}, exitOK, "etcd: https://e:2379", ""},
		{[]string{"config", "gateway", "--store=file:///s"}, exitUsage, "", "--store is no setting of gateway"},
		{[]string{"config", "serf"}, exitUsage, "", "no role; there are gateway, master, serve, tabletserver"},
		{[]string{"config", "--memory=1"}, exitUsage, "", "less than 16MiB"},
		{[]string{"-hots", "x"}, exitUsage, "", "flags of cbtemulator"},
		{[]string{"-port", "1", "serve"}, exitUsage, "", "comes before its flags"},
		{[]string{"inspect", "nothing", "x"}, exitUsage, "", `no verb "nothing"; trestle inspect takes a verb: changes, log, metadata, sst`},
		{[]string{"inspect", "sst"}, exitUsage, "", "takes FILE"},
	} {
		var out, errs bytes.Buffer
		code := run(&process{&out, &errs, nil}, append([]string{"trestle"}, c.args...))
		if code != c.code || !strings.Contains(out.String(), c.stdout) || !strings.Contains(errs.String(), c.stderr) {
			t.Errorf("%v: exit code %d\nstdout: %s\nstderr: %s", c.args, code, &out, &errs)
		}
	}
}

func TestDialable(t *testing.T) {
	for in, want := range map[string]string{
		"0.0.0.0:1": "localhost:1", "[::]:1": "localhost:1", ":1": "localhost:1", "127.0.0.1:1": "127.0.0.1:1",
		"10.1.2.3:1": "10.1.2.3:1", "/run/x.sock": "unix:/run/x.sock",
	} {
		if got := dialable(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
