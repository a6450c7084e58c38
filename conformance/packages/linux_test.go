package packages

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/cluster"
)

// A machine is a Debian with nothing on it, in a directory, with a network of its
// own.
type machine struct {
	t         *testing.T
	root      string
	namespace string
}

// debian makes a machine. The first time it fetches Debian, and keeps it where
// caches are.
func debian(t *testing.T) *machine {
	t.Helper()
	needRoot(t)
	need(t, "debootstrap", "chroot", "mount", "ip")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(cache, "trestle-packaging", "bookworm-"+runtime.GOARCH)
	if _, err := os.Stat(base); err != nil {
		if out, err := exec.Command("debootstrap", "--variant=minbase", "bookworm", base+".part", "http://deb.debian.org/debian").CombinedOutput(); err != nil {
			_ = os.RemoveAll(base + ".part")
			missing(t, "debootstrap cannot fetch Debian: "+err.Error()+"\n"+string(out))
		}
		if err := os.Rename(base+".part", base); err != nil {
			t.Fatal(err)
		}
	}
	n, err := cluster.NewNetwork()
	if err != nil {
		missing(t, err.Error())
	}
	t.Cleanup(n.Close)
	m := &machine{t: t, root: filepath.Join(t.TempDir(), "root")}
	if m.namespace, _, err = n.Host("debian"); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	for _, d := range []string{m.root, work + "/upper", work + "/work"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(to string, args ...string) {
		output(t, exec.Command("mount", append(args, to)...))
		t.Cleanup(func() { output(t, exec.Command("umount", to)) })
	}
	mount(m.root, "-t", "overlay", "overlay", "-o", "lowerdir="+base+",upperdir="+work+"/upper,workdir="+work+"/work")
	mount(m.root+"/proc", "-t", "proc", "proc")
	m.write("/etc/hosts", "127.0.0.1 localhost\n", 0o644)
	m.write("/usr/local/bin/sudo", "#!/bin/sh\nexec \"$@\"\n", 0o755)
	copyFile(t, m.root+"/usr/local/bin/cbt", cbt(t))
	return m
}

func (m *machine) write(path, text string, mode os.FileMode) {
	m.t.Helper()
	if err := os.WriteFile(m.root+path, []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

// command is one that a user types, in /tmp.
func (m *machine) command(line string) *exec.Cmd {
	cmd := exec.Command("ip", "netns", "exec", m.namespace, "chroot", m.root, "/bin/bash", "-c", "cd /tmp && "+line)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin", "HOME=/root", "LC_ALL=C"}
	return cmd
}

func (m *machine) run(line string) string {
	m.t.Helper()
	return output(m.t, m.command(line))
}

func (m *machine) exists(path string) bool {
	_, err := os.Lstat(m.root + path)
	return err == nil
}

// setting returns what a unit says of a name.
func setting(unit, name string) string {
	if m := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindStringSubmatch(unit); m != nil {
		return m[1]
	}
	return ""
}

// start does what systemd does with a unit of Type=notify: it makes the state
// directory, starts the program as its user, and waits until that says READY=1.
// What is returned stops it and reports how it ended.
func (m *machine) start(name string) (stop func() error) {
	t := m.t
	t.Helper()
	b, err := os.ReadFile(m.root + "/usr/lib/systemd/system/" + name)
	if err != nil {
		t.Fatal(err)
	}
	unit := string(b)
	user, group := setting(unit, "User"), setting(unit, "Group")
	if setting(unit, "Type") != "notify" || user != "trestle" || group != "trestle" {
		t.Fatalf("%s:\n%s", name, unit)
	}
	state := "/var/lib/" + setting(unit, "StateDirectory")
	mode := setting(unit, "StateDirectoryMode")
	m.run("install -d -o " + user + " -g " + group + " -m " + mode + " " + state)
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.root + "/run/notify", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		socket.Close()
		_ = os.Remove(m.root + "/run/notify")
	}()
	if err := os.Chmod(m.root+"/run/notify", 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ip", append([]string{"netns", "exec", m.namespace, "chroot", "--userspec=" + user + ":" + group, m.root}, strings.Fields(setting(unit, "ExecStart"))...)...)
	cmd.Env = []string{"NOTIFY_SOCKET=/run/notify", "PATH=/usr/bin:/usr/sbin"}
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	logged := func() string {
		b, _ := os.ReadFile(log.Name())
		return string(b)
	}
	buf := make([]byte, 4096)
	for ready := false; !ready; {
		_ = socket.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := socket.Read(buf)
		ready = err == nil && strings.Contains(string(buf[:n]), "READY=1")
		select {
		case err := <-ended:
			t.Fatalf("%s ended: %v\n%s", name, err, logged())
		default:
		}
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			t.Fatalf("%s does not stop\n%s", name, logged())
			return nil
		}
	}
}

// firstRow installs by the first of some commands, starts the unit, and goes on
// with the others.
func (m *machine) firstRow(install string, rest []string) {
	t := m.t
	t.Helper()
	m.run(install)
	stop := m.start("trestle.service")
	for _, line := range rest {
		if out := m.run(line); strings.Contains(line, " read ") && !strings.Contains(out, `"hello"`) {
			t.Errorf("%s:\n%s", line, out)
		}
	}
	if out := m.run("trestle healthcheck"); !strings.Contains(out, "ready") {
		t.Error(out)
	}
	if err := stop(); err != nil {
		t.Errorf("the service ended: %v", err)
	}
	// What is stored is there after a restart.
	stop = m.start("trestle.service")
	if out := m.run(rest[len(rest)-1]); !strings.Contains(out, `"hello"`) {
		t.Error(out)
	}
	if err := stop(); err != nil {
		t.Errorf("the service ended: %v", err)
	}
}

// TestDeb goes from dpkg -i to the first row by the commands of docs/install.md,
// on a Debian that has neither Go nor this tree.
func TestDeb(t *testing.T) {
	r := openRelease(t)
	deb := r.file(t, "linux_"+runtime.GOARCH+".deb")
	m := debian(t)
	copyFile(t, m.root+"/tmp/"+filepath.Base(deb), deb)
	lines := commands(t, "## Debian, Ubuntu")
	m.firstRow(strings.ReplaceAll(lines[0], "_amd64", "_"+runtime.GOARCH), lines[1:])

	if out := m.run("id trestle; stat -c '%U:%G %a' /var/lib/trestle; dpkg -s trestle"); !strings.Contains(out, "trestle:trestle 700") || !strings.Contains(out, "/etc/trestle/trestle.yaml") {
		t.Errorf("user, directory, configuration file:\n%s", out)
	}
	if out := m.run("trestle version"); !strings.HasPrefix(out, "trestle "+r.version+"\n") {
		t.Error(out)
	}
	// Installed again with another setting: the file stays.
	m.run("echo 'log-level: warn' >> /etc/trestle/trestle.yaml && dpkg -i " + filepath.Base(deb) + " && grep -q log-level /etc/trestle/trestle.yaml")
	m.run("dpkg -r trestle")
	if m.exists("/usr/bin/trestle") || !m.exists("/etc/trestle/trestle.yaml") || !m.exists("/var/lib/trestle/lock/ROOT") {
		t.Error("remove takes the program, and nothing else")
	}
	m.run("dpkg -P trestle")
	if m.exists("/etc/trestle/trestle.yaml") || !m.exists("/var/lib/trestle/lock/ROOT") {
		t.Error("purge takes the configuration, and leaves the data")
	}

	// What the scripts ask of systemd, which is not here: this notes it. A master never
	// starts, which fails no installation.
	m.write("/usr/local/bin/systemctl", `#!/bin/sh
echo "$*" >>/tmp/asked
link=/etc/systemd/system/multi-user.target.wants/trestle.service
case "$*" in
"enable --now trestle.service") mkdir -p ${link%/*} && ln -s /usr/lib/systemd/system/trestle.service $link ;;
"--quiet is-enabled trestle.service") [ -e $link ] ;;
"--quiet is-enabled "* | "try-restart trestle-master.service") exit 1 ;;
esac
`, 0o755)
	m.run("mkdir -p /run/systemd/system")
	const update = "try-restart trestle-tabletserver.service\ntry-restart trestle-master.service\ntry-restart trestle-gateway.service\n"
	for _, step := range []struct{ does, asks string }{
		{"-i " + filepath.Base(deb), "daemon-reload\nenable --now trestle.service\n"},
		{"-i " + filepath.Base(deb), "daemon-reload\ndaemon-reload\nrestart trestle.service\n" + update},
		{"-r trestle", "stop trestle.service trestle-tabletserver.service trestle-master.service trestle-gateway.service\ndaemon-reload\n"},
		{"-i " + filepath.Base(deb), "daemon-reload\nrestart trestle.service\n" + update},
		{"-P trestle", "stop trestle.service trestle-tabletserver.service trestle-master.service trestle-gateway.service\ndaemon-reload\ndaemon-reload\n"},
	} {
		m.run(": >asked && dpkg " + step.does)
		if asked := m.run("grep -v is-enabled asked"); asked != step.asks {
			t.Errorf("dpkg %s asks\n%s", step.does, asked)
		}
	}
	if m.exists("/etc/systemd/system/multi-user.target.wants/trestle.service") {
		t.Error("after purge the service is still enabled")
	}
}

func TestLintian(t *testing.T) {
	deb := openRelease(t).file(t, "linux_"+runtime.GOARCH+".deb")
	need(t, "lintian")
	output(t, exec.Command("lintian", "--allow-root", "--fail-on=error,warning", deb))
}

// TestRpm has rpm install the package and goes the same way. It has the files
// of the deb, where each family of systems has them.
func TestRpm(t *testing.T) {
	r := openRelease(t)
	arch := "linux_" + runtime.GOARCH
	rpm, deb := r.file(t, arch+".rpm"), r.file(t, arch+".deb")
	need(t, "rpm", "dpkg-deb")
	files := func(list string) (out []string) {
		for path := range strings.FieldsSeq(list) {
			path = strings.TrimPrefix(path, ".")
			path = strings.Replace(path, "site-functions", "vendor-completions", 1)
			if !strings.HasPrefix(path, "/usr/share/doc/") && !strings.HasPrefix(path, "/usr/share/lintian/") && !strings.HasPrefix(path, "/usr/share/licenses/") {
				out = append(out, path)
			}
		}
		slices.Sort(out)
		return out
	}
	a := files(output(t, exec.Command("rpm", "-qpl", "--nosignature", rpm)))
	b := files(output(t, exec.Command("bash", "-c", `dpkg-deb --fsys-tarfile "$0" | tar -tf - | grep -v '/$'`, deb)))
	if !slices.Equal(a, b) || len(a) < 20 {
		t.Errorf("the rpm has\n%s\nthe deb\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	number, _, _ := strings.Cut(r.version, "-")
	if out := output(t, exec.Command("rpm", "-qp", "--nosignature", "--qf", "%{VERSION} %{LICENSE} %{BUILDTIME}", rpm)); !strings.HasPrefix(out, number) || !strings.HasSuffix(out, " Apache-2.0 "+r.source) {
		t.Error(out)
	}
	m := debian(t)
	lines := commands(t, "## Debian, Ubuntu")
	output(t, exec.Command("rpm", "--root", m.root, "--nodeps", "--nosignature", "-i", rpm))
	m.firstRow("true", lines[1:])
	output(t, exec.Command("rpm", "--root", m.root, "--nodeps", "-e", "trestle"))
	if m.exists("/usr/bin/trestle") || !m.exists("/var/lib/trestle/lock/ROOT") {
		t.Error("removal takes the program, and leaves the data")
	}
}

// TestUnits lets systemd judge the units of all roles.
func TestUnits(t *testing.T) {
	r := openRelease(t)
	deb := r.file(t, "linux_"+runtime.GOARCH+".deb")
	need(t, "systemd-analyze", "dpkg-deb")
	dir := t.TempDir()
	output(t, exec.Command("dpkg-deb", "-x", deb, dir))
	units, err := filepath.Glob(dir + "/usr/lib/systemd/system/*.service")
	if err != nil || len(units) != 4 {
		t.Fatal(units, err)
	}
	exe := filepath.Join(dir, "usr/bin/trestle")
	for _, path := range units {
		name := filepath.Base(path)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// verify looks for the program at its path, which is that of this machine.
		here := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(here, []byte(strings.ReplaceAll(string(b), "ExecStart=/usr/bin/trestle", "ExecStart="+exe)), 0o644); err != nil {
			t.Fatal(err)
		}
		if out := output(t, exec.Command("systemd-analyze", "verify", "--man=no", here)); strings.Contains(out, name) {
			t.Errorf("%s", out)
		}
		out := output(t, exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", here))
		level := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
		if level == nil {
			t.Fatalf("%s", out)
		}
		t.Logf("%s: exposure %s of 10", name, level[1])
		if f, err := strconv.ParseFloat(level[1], 64); err != nil || f > 1.5 {
			t.Errorf("%s: exposure %s\n%s", name, level[1], out)
		}
		// The configuration of the package is one for each role.
		words := strings.Fields(setting(string(b), "ExecStart"))
		check := exec.Command(exe, words[1])
		check.Args = append(check.Args, words[2:]...)
		for i, w := range check.Args {
			check.Args[i] = strings.Replace(w, "/etc/trestle/", dir+"/etc/trestle/", 1)
		}
		check.Args = append(check.Args, "--no-such-flag")
		if out, _ := check.CombinedOutput(); !strings.Contains(string(out), "no-such-flag") || strings.Contains(string(out), "is not a setting") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// TestCompletionScripts lets the shells read them.
func TestCompletionScripts(t *testing.T) {
	files := archive(t, openRelease(t).file(t, "linux_"+runtime.GOARCH+".tar.gz"))
	for shell, check := range map[string][]string{"bash": {"-n"}, "zsh": {"-n"}, "fish": {"--no-execute"}} {
		t.Run(shell, func(t *testing.T) {
			need(t, shell)
			path := filepath.Join(t.TempDir(), "script")
			for name, b := range files {
				if strings.HasSuffix(name, "trestle."+shell) {
					if err := os.WriteFile(path, b, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if out := output(t, exec.Command(shell, append(check, path)...)); out != "" {
				t.Error(out)
			}
		})
	}
	t.Run("man", func(t *testing.T) {
		need(t, "man")
		for name, b := range files {
			if strings.HasSuffix(name, ".1") {
				cmd := exec.Command("man", "--warnings", "-E", "UTF-8", "-Tutf8", "-Z", "-l", "-")
				cmd.Stdin = strings.NewReader(string(b))
				var errs strings.Builder
				cmd.Stderr = &errs
				if err := cmd.Run(); err != nil || errs.Len() > 0 {
					t.Errorf("%s: %v %s", name, err, errs.String())
				}
			}
		}
	})
}
