package settings

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Resolve parses args as a command does, and is Load.
func (f *Flags) Resolve(args, environ []string) (*Set, error) {
	err := f.Parse(DoubleDash(f.FlagSet, args))
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return nil, err
	case err != nil:
		err = FlagError(f.Name(), f.FlagSet, err)
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: %s takes only flags", f.Arg(0), f.Name())
	}
	set, more := f.Load(environ)
	return set, errors.Join(err, more)
}

func write(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "trestle.yaml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPrecedence(t *testing.T) {
	file := write(t, "# comment\nlisten: 127.0.0.1:1\nzone: from-file\ncluster: from-file\nlog-level: warn\n")
	s, err := NewFlags("serve").Resolve(
		[]string{"-listen=127.0.0.1:3", "--config", file, "--emulator"},
		[]string{"TRESTLE_LISTEN=127.0.0.1:2", "TRESTLE_ZONE=from-env", "PATH=/bin", "TRESTLE_PORT_8086_TCP=tcp://x", "TRESTLE_SERVICE_HOST=x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, got, want string
		origin          Origin
	}{
		{"listen", s.Listen, "127.0.0.1:3", "flag --listen"},
		{"zone", s.Zone, "from-env", "env TRESTLE_ZONE"},
		{"cluster", s.Cluster, "from-file", Origin("file " + file + ":4")},
		{"data-dir", s.DataDir, "./trestle-data", Default},
	} {
		if c.got != c.want || s.Origin(c.name) != c.origin {
			t.Errorf("%s = %q from %q, want %q from %q", c.name, c.got, s.Origin(c.name), c.want, c.origin)
		}
	}
	if !s.Emulator || s.LogLevel != slog.LevelWarn || s.DebugListen != "" {
		t.Errorf("emulator %v, level %v, debug %q", s.Emulator, s.LogLevel, s.DebugListen)
	}
}

func TestFileFromEnvironment(t *testing.T) {
	s, err := NewFlags("serve").Resolve(nil, []string{"TRESTLE_CONFIG=" + write(t, "memory: 64MiB")})
	if err != nil || s.Memory != 64<<20 {
		t.Fatalf("memory %d, err %v", s.Memory, err)
	}
}

// Whatever is wrong is said in one go, each with its place and the way out.
func TestAllErrorsTogether(t *testing.T) {
	file := write(t, "lisen: 1\nzone: [a]\ndurability: maybe\nmemory: 1MiB\nmemory: 2MiB\n")
	_, err := NewFlags("serve").Resolve([]string{"--config=" + file, "--log-formt=json"},
		[]string{"TRESTLE_LOG_LEVEL=loud", "TRESTLE_DATADIR=x", "TRESTLE_HTTP_LISTEN=nowhere", "TRESTLE_EMULATOR=perhaps"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`--log-formt is not a flag of serve; did you mean --log-format?`,
		`:1: "lisen" is not a setting; did you mean listen?`,
		`:2: zone must be a single value`,
		`:5: memory is set twice, first in line 4`,
		`durability (file ` + file + `:3): "maybe" is not one of sync, async`,
		`memory (file ` + file + `:4): "1MiB" is less than 16MiB`,
		`log-level (env TRESTLE_LOG_LEVEL): "loud"`,
		`environment variable TRESTLE_DATADIR is not a setting; did you mean TRESTLE_DATA_DIR?`,
		`http-listen (env TRESTLE_HTTP_LISTEN): "nowhere" is not HOST:PORT`,
		`emulator (env TRESTLE_EMULATOR): "perhaps" is neither true nor false`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

// One file is for all processes of a machine.
func TestFileOfOtherRoles(t *testing.T) {
	file := write(t, "emulator: true\nlisten: 127.0.0.1:1\nstore: file:///srv/trestle\ncluster: of-mine\ndurability: async\n")
	serve, err := NewFlags("serve").Resolve([]string{"--config=" + file}, nil)
	if err != nil || serve.Durability != Async {
		t.Error(serve, err)
	}
	for _, role := range []Role{TabletServer, Master, Gateway, Operator} {
		set, err := NewClusterFlags(string(role), role).Resolve([]string{"--config=" + file}, nil)
		if err != nil || set.Cluster != "of-mine" {
			t.Errorf("%s: %v", role, err)
		}
	}
}

func TestPublicAddressNeedsInsecure(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // in the error; empty for none
	}{
		{[]string{"--listen=0.0.0.0:1"}, "set insecure"},
		{[]string{"--listen=:1"}, "set insecure"},
		{[]string{"--http-listen=10.0.0.1:1"}, "http-listen (flag --http-listen)"},
		{[]string{"--listen=0.0.0.0:1", "--http-listen=:2", "--insecure"}, ""},
		{[]string{"--listen=[::1]:1", "--http-listen=localhost:2"}, ""},
		{[]string{"--listen=/run/trestle.sock", "--http-listen=off"}, ""},
		{[]string{"--debug-listen=0.0.0.0:6060", "--insecure"}, "loopback addresses only"},
		{[]string{"--temporary", "--data-dir=/x"}, "exclude each other"},
		{[]string{"--listen=0.0.0.0:1", "--tls-auto"}, "there is no authentication"},
		{[]string{"--listen=0.0.0.0:1", "--auth=on"}, "there is no TLS"},
		{[]string{"--listen=0.0.0.0:1", "--http-listen=:2", "--tls-auto", "--auth=on"}, ""},
		{[]string{"--http-listen=:2"}, "there is no TLS"},
		{[]string{"--tls-cert=c", "--tls-key=k", "--tls-client-ca=a", "--auth=on", "--names=db.example.com, 10.1.2.3"}, ""},
		{[]string{"--tls-cert=c"}, "go together"},
		{[]string{"--tls-cert=c", "--tls-key=k", "--tls-auto"}, "exclude each other"},
		{[]string{"--tls-client-ca=a", "--auth=on"}, "needs TLS"},
		{[]string{"--oidc-issuer=https://x", "--auth=on"}, "go together"},
		{[]string{"--token-file=f"}, "needs auth"},
		{[]string{"--names=a b"}, "not a list of host names"},
		{[]string{"--names=a,,b"}, "not a list of host names"},
		{[]string{"serve"}, "takes only flags"},
		{[]string{"--export-store=file:///a%20b/%23c"}, ""},
		{[]string{"--export-store=file:///a b/#c"}, "ends at its # or ?"},
		{[]string{"--export-store=file:///a?b"}, "ends at its # or ?"},
	} {
		_, err := NewFlags("serve").Resolve(c.args, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: error %v, want %q", c.args, err, c.want)
		}
	}
	if _, err := NewFlags("serve").Resolve([]string{"--help"}, nil); !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}

// What is printed is a file that gives the same configuration.
func TestPrintRoundTrip(t *testing.T) {
	s, err := NewFlags("serve").Resolve([]string{"--memory=1.5GiB", "--data-dir=/a b/#c", "--debug-listen=[::1]:0", "--insecure", "--listen=:5"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var a, b bytes.Buffer
	if err := s.Print(&a); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(a.String(), "1536MiB") || !strings.Contains(a.String(), "# flag --memory") {
		t.Errorf("printed:\n%s", &a)
	}
	again, err := NewFlags("serve").Resolve([]string{"--config", write(t, a.String())}, nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, &a)
	}
	if again.Serve != s.Serve {
		t.Errorf("got %+v, want %+v", again.Serve, s.Serve)
	}
	if err := NewFlags("serve").PrintReference(&b); err != nil {
		t.Fatal(err)
	}
	ref, err := NewFlags("serve").Resolve([]string{"--config", write(t, b.String())}, nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, &b)
	}
	plain, _ := NewFlags("serve").Resolve(nil, nil)
	if ref.Serve != plain.Serve {
		t.Errorf("the reference gives %+v, the defaults are %+v", ref.Serve, plain.Serve)
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "1048576": 1 << 20, "64MiB": 64 << 20, "64 mib": 64 << 20, "1.5GiB": 3 << 29, "1KiB": 1024, "2TiB": 2 << 40,
		"100%": MachineMemory() &^ (1<<20 - 1),
	} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("%q = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "MiB", "-1", "-1MiB", "NaNMiB", "InfGiB", "1MB", "0%", "101%", "NaN%", "1e30GiB", "9223372036854775808"} {
		if got, err := ParseBytes(in); err == nil {
			t.Errorf("%q = %d, want an error", in, got)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"1", "64MiB", "1.5 GiB", "25%", "NaN%", "-0MiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseBytes(s)
		if err != nil {
			return
		}
		if n < 0 {
			t.Fatalf("%q = %d", s, n)
		}
		if again, err := ParseBytes(formatBytes(n)); err != nil || again != n {
			t.Fatalf("%q = %d, printed %q, read back %d, %v", s, n, formatBytes(n), again, err)
		}
	})
}

// Each line of the file is data from outside.
func FuzzReadFile(f *testing.F) {
	for _, s := range []string{"listen: a", "a: {b: c}", "? [x]\n: y", "&a a: *a", "- x", "\x00", "memory: !!binary aGk="} {
		f.Add(s)
	}
	rows := new(Serve).table()
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		p := filepath.Join(dir, "f.yaml")
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		values, _ := readFile(p, rows)
		for k := range values {
			found := false
			for i := range rows {
				found = found || rows[i].name == k
			}
			if !found {
				t.Fatalf("%q came through", k)
			}
		}
	})
}

func TestMachineMemory(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"nothing known", nil, 4 << 30},
		{"no limit", map[string]string{"proc/meminfo": "MemFree: 1 kB\nMemTotal:  2048 kB\n", "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 2 << 20},
		{"v2 parent", map[string]string{"proc/meminfo": "MemTotal:  2048 kB\n", "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 1 << 20},
		{"v2 in a container", map[string]string{"proc/meminfo": "MemTotal:  2048 kB\n", "proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/memory.max": "1048576"}, 1 << 20},
		{"v1", map[string]string{"proc/meminfo": "MemTotal:  2048 kB\n", "proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1048576", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 1 << 20},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			p := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := machineMemory(root); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestOperatorRole: a command that asks a cluster lives with the environment of any
// process, of which it judges nothing but where the cluster is.
func TestOperatorRole(t *testing.T) {
	flags := NewClusterFlags("status", Operator)
	environ := []string{"TRESTLE_LISTEN=nowhere", "TRESTLE_TEMPORARY=true", "TRESTLE_DATA_DIR=d", "TRESTLE_STORE=file:///s", "TRESTLE_ETCD=http://etcd:2379"}
	set, err := flags.Load(environ)
	if err != nil || set.Store != "file:///s" || flags.Lookup("listen") != nil {
		t.Fatalf("%+v %v", set, err)
	}
	if err := set.ValidateNode(); err == nil || !strings.Contains(err.Error(), "etcd (env TRESTLE_ETCD): others could change") {
		t.Error(err)
	}
	for _, bad := range []string{"TRESTLE_LISTN=x", "TRESTLE_STORE=nowhere"} {
		if _, err := NewClusterFlags("status", Operator).Load(append(environ, bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// TestAdminRole: a command that asks a server lives with the environment of any
// process, shows few flags, and judges etcd only if it is to be asked.
func TestAdminRole(t *testing.T) {
	environ := []string{"TRESTLE_LISTEN=0.0.0.0:8086", "TRESTLE_TEMPORARY=true", "TRESTLE_STORE=file:///s", "TRESTLE_CLUSTER_LISTEN=0.0.0.0:1", "TRESTLE_COMMIT_INTERVAL=1s"}
	flags := NewClusterFlags("list", Admin)
	if f := flags.Lookup("data-dir"); f == nil || !f.Hidden || !IsSetting(f) || flags.Lookup("etcd").Hidden || flags.Lookup("http-listen").Hidden {
		t.Errorf("%+v", f)
	}
	if set, err := flags.Load(environ); err != nil || set.Store != "file:///s" || set.Origin("etcd") != Default {
		t.Errorf("%v %v", set, err)
	}
	for _, bad := range []string{"TRESTLE_ETCD=http://etcd:2379", "TRESTLE_LISTN=x", "TRESTLE_HTTP_LISTEN=nowhere"} {
		if _, err := NewClusterFlags("list", Admin).Load(append(environ, bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	flags = NewClusterFlags("list", Admin)
	if err := flags.Parse(DoubleDash(flags.FlagSet, []string{"-etcd", "https://etcd:2379", "TABLET"})); err != nil || flags.NArg() != 1 {
		t.Fatal(err)
	}
	if set, err := flags.Load(environ); err != nil || set.Etcd != "https://etcd:2379" {
		t.Errorf("%v %v", set, err)
	}
}
