package packages

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"go.yaml.in/yaml/v3"

	"github.com/trestledb/trestle/conformance/cluster"
	"github.com/trestledb/trestle/engine/logtest"
)

// A builder runs buildah with a storage of its own.
type builder struct {
	t    *testing.T
	args []string
}

func newBuilder(t *testing.T) *builder {
	t.Helper()
	needRoot(t)
	need(t, "buildah", "ip")
	dir := t.TempDir()
	b := &builder{t: t, args: []string{"--root", dir + "/root", "--runroot", dir + "/run", "--storage-driver", "vfs"}}
	t.Cleanup(func() { b.do("rm", "--all") })
	return b
}

func (b *builder) command(args ...string) *exec.Cmd {
	return exec.Command("buildah", append(slices.Clone(b.args), args...)...)
}

func (b *builder) do(args ...string) string {
	b.t.Helper()
	return output(b.t, b.command(args...))
}

// An image is what its configuration says.
type image struct {
	name   string
	Docker struct {
		Architecture string
		Config       struct {
			User, WorkingDir     string
			Env, Entrypoint, Cmd []string
			ExposedPorts         map[string]struct{}
			Labels               map[string]string
			Healthcheck          *struct{ Test []string }
		}
	}
}

// pull takes an image from an archive of the release.
func (b *builder) pull(r *release, kind string) *image {
	b.t.Helper()
	i := &image{name: strings.TrimSpace(b.do("pull", "--quiet", "docker-archive:"+r.file(b.t, "linux_"+runtime.GOARCH+"_"+kind+".tar")))}
	if err := json.Unmarshal([]byte(b.do("inspect", "--type", "image", i.name)), i); err != nil {
		b.t.Fatal(err)
	}
	return i
}

// A container is an image with a network namespace. It is run with chroot
// isolation: that has no daemon, and processes of its own only by name.
type container struct {
	b         *builder
	i         *image
	id        string
	namespace string
	env       []string
	mounts    []string
}

func (b *builder) container(i *image, namespace string, hosts map[string]string) *container {
	b.t.Helper()
	args := []string{"from", "--quiet"}
	for name, addr := range hosts {
		args = append(args, "--add-host", name+":"+addr)
	}
	return &container{b: b, i: i, id: strings.TrimSpace(b.do(append(args, i.name)...)), namespace: namespace}
}

// command runs a program in the container, beside what runs there.
func (c *container) command(words ...string) *exec.Cmd {
	args := append([]string{"netns", "exec", c.namespace, "buildah"}, c.b.args...)
	args = append(args, "run", "--isolation", "chroot")
	for _, e := range c.env {
		args = append(args, "--env", e)
	}
	for _, m := range c.mounts {
		args = append(args, "--volume", m)
	}
	return exec.Command("ip", append(append(args, c.id, "--"), words...)...)
}

// start runs the entry point, or another, with a command, or that of the image,
// until the test ends or stop is called.
func (c *container) start(entrypoint, command []string) (log *logtest.Buffer, stop func()) {
	t := c.b.t
	t.Helper()
	if entrypoint == nil {
		entrypoint = c.i.Docker.Config.Entrypoint
	}
	if command == nil {
		command = c.i.Docker.Config.Cmd
	}
	log = new(logtest.Buffer)
	cmd := c.command(slices.Concat(entrypoint, command)...)
	cmd.Stdout, cmd.Stderr = log, log
	stop = keep(t, cmd)
	return log, stop
}

// keep starts a process group and returns what ends it.
func keep(t *testing.T, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		timer := time.AfterFunc(90*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		defer timer.Stop()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// until calls done until it is true.
func until(t *testing.T, what string, done func() bool, detail func() string) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s\n%s", what, detail())
		}
	}
}

// TestImage looks at the image of the server: its user, its health check, what
// it says to who starts it without a thought.
func TestImage(t *testing.T) {
	r := openRelease(t)
	b := newBuilder(t)
	i := b.pull(r, "image")
	c := i.Docker.Config
	if c.User != "65532:65532" || c.Healthcheck == nil || strings.Join(c.Healthcheck.Test, " ") != "CMD /usr/bin/trestle healthcheck" ||
		c.Labels["org.opencontainers.image.version"] != r.version || i.Docker.Architecture != runtime.GOARCH {
		t.Errorf("%+v", i.Docker)
	}
	// Where its root is read-only, as the chart and compose.yaml have it, only this is not.
	if !slices.Contains(c.Env, "TMPDIR=/data") || !slices.Contains(c.Env, "TRESTLE_DATA_DIR=/data") {
		t.Errorf("it writes elsewhere than to /data: %v", c.Env)
	}
	ns := namespace(t)
	ctr := b.container(i, ns, nil)
	if out := output(t, ctr.command("/usr/bin/trestle", "version")); !strings.Contains(out, "trestle "+r.version) {
		t.Error(out)
	}
	if out, err := ctr.command("/bin/sh", "-c", "true").CombinedOutput(); err == nil {
		t.Errorf("it has a shell: %s", out)
	}
	ctr.env = []string{"TRESTLE_LISTEN=:8086"}
	if out, err := ctr.command("/usr/bin/trestle", "serve").CombinedOutput(); err == nil || !strings.Contains(string(out), "set insecure to allow it all the same") {
		t.Errorf("others can reach it: %v %s", err, out)
	}
	// Nobody but its user can change what is there, and that one /data, /store and
	// /tmp only.
	dir := strings.TrimSpace(b.do("mount", ctr.id))
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, owner := strings.TrimPrefix(path, dir), info.Sys().(*syscall.Stat_t).Uid
		switch rel {
		case "/data", "/store":
			if owner != 65532 || info.Mode().Perm() != 0o755 {
				t.Errorf("%s: %v of %d", rel, info.Mode(), owner)
			}
		case "/tmp":
			if info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
				t.Errorf("%s: %v", rel, info.Mode())
			}
		default:
			if d.Type()&os.ModeSymlink == 0 && (owner != 0 || info.Mode().Perm()&0o022 != 0) {
				t.Errorf("%s: %v of %d", rel, info.Mode(), owner)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestForeignImages sees that the images that cannot be run here are there.
func TestForeignImages(t *testing.T) {
	r := openRelease(t)
	for _, arch := range []string{"amd64", "arm64"} {
		r.file(t, "linux_"+arch+"_image.tar")
		r.file(t, "linux_"+arch+"_emulator_image.tar")
	}
}

func namespace(t *testing.T) string {
	t.Helper()
	n, err := cluster.NewNetwork()
	if err != nil {
		missing(t, err.Error())
	}
	t.Cleanup(n.Close)
	ns, _, err := n.Host("container")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// TestTestcontainers starts the image as the Bigtable modules of testcontainers
// do, waits as they do, and uses it by the official client.
func TestTestcontainers(t *testing.T) {
	r := openRelease(t)
	b := newBuilder(t)
	i := b.pull(r, "emulator_image")
	if len(i.Docker.Config.Entrypoint) > 0 {
		t.Errorf("the modules' commands would be arguments of %q", i.Docker.Config.Entrypoint)
	}
	const start = "gcloud beta emulators bigtable start --host-port 0.0.0.0:"
	for _, m := range []struct {
		name                string
		entrypoint, command []string
		port, wait          string
		// inside is what the module asks a shell in the container.
		inside string
	}{
		{name: "Java", command: []string{"/bin/sh", "-c", start + "9000"}, port: "9000", wait: `(?m).*running.*$`},
		{name: "Go", command: []string{"/bin/sh", "-c", start + "9000 --project=test-project"}, port: "9000", wait: `running`,
			inside: `cat /proc/net/tcp* | awk '{print $2}' | grep -i :2328`},
		{name: ".NET", entrypoint: []string{"gcloud"}, command: []string{"beta", "emulators", "bigtable", "start", "--host-port", "0.0.0.0:9000"}, port: "9000", wait: `(?s).*running.*$`},
		{name: "docker run", port: "8086", wait: `running`},
	} {
		t.Run(m.name, func(t *testing.T) {
			n, err := cluster.NewNetwork()
			if err != nil {
				missing(t, err.Error())
			}
			t.Cleanup(n.Close)
			ns, addr, err := n.Host("container")
			if err != nil {
				t.Fatal(err)
			}
			b := &builder{t, b.args}
			c := b.container(i, ns, nil)
			log, stop := c.start(m.entrypoint, m.command)
			defer stop()
			if _, ok := i.Docker.Config.ExposedPorts[m.port+"/tcp"]; !ok {
				t.Errorf("port %s is not exposed", m.port)
			}
			until(t, "it does not log what the module waits for", func() bool { return regexp.MustCompile(m.wait).MatchString(log.String()) }, log.String)
			if m.inside != "" {
				output(t, c.command("/bin/sh", "-c", m.inside))
			}
			use(t, net.JoinHostPort(addr, m.port))
		})
	}
}

// use stores a row by the official client and reads it.
func use(t *testing.T, addr string) {
	t.Helper()
	t.Setenv("BIGTABLE_EMULATOR_HOST", addr)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin, err := bigtable.NewAdminClient(ctx, "test-project", "test-instance")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.CreateTable(ctx, "table"); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateColumnFamily(ctx, "table", "name"); err != nil {
		t.Fatal(err)
	}
	client, err := bigtable.NewClient(ctx, "test-project", "test-instance")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	m := bigtable.NewMutation()
	m.Set("name", "firstName", bigtable.Now(), []byte("Gopher"))
	if err := client.Open("table").Apply(ctx, "1", m); err != nil {
		t.Fatal(err)
	}
	row, err := client.Open("table").ReadRow(ctx, "1")
	if err != nil || len(row["name"]) != 1 || string(row["name"][0].Value) != "Gopher" {
		t.Fatal(row, err)
	}
}

// A project is what we use of compose's format. What is not here is an error.
type project struct {
	Name     string
	Services map[string]*service
	Volumes  map[string]any
}

type service struct {
	Image       string
	Command     []string
	Environment map[string]string
	Ports       []string
	Volumes     []string
	DependsOn   []string `yaml:"depends_on"`
	Restart     string
	Grace       string   `yaml:"stop_grace_period"`
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
}

// A running project does what `docker compose` does with one that is up.
type running struct {
	published string // namespace of the service that publishes ports
	down      func()
	exec      func(service string, words ...string) string
}

// up does what `docker compose up --detach --wait` does with a file.
func up(t *testing.T, r *release, file string, volumes string) running {
	t.Helper()
	published := ""
	containers := map[string]*container{}
	in, err := os.Open(filepath.Join(r.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var p project
	d := yaml.NewDecoder(in)
	d.KnownFields(true)
	if err := d.Decode(&p); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	n, err := cluster.NewNetwork()
	if err != nil {
		missing(t, err.Error())
	}
	t.Cleanup(n.Close)
	hosts, spaces := map[string]string{}, map[string]string{}
	for name := range p.Services {
		if spaces[name], hosts[name], err = n.Host(name); err != nil {
			t.Fatal(err)
		}
	}
	b := newBuilder(t)
	i := b.pull(r, "image")
	stops := map[string]func(){}
	checks := map[string]func() bool{}
	logs := map[string]*logtest.Buffer{}
	for name, s := range p.Services {
		if len(s.Ports) > 0 {
			published = spaces[name]
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s to others than this machine", name, port)
			}
		}
		for _, v := range s.Volumes {
			if v, _, _ = strings.Cut(v, ":"); !slices.Contains(keys(p.Volumes), v) {
				t.Errorf("%s: there is no volume %s", name, v)
			}
		}
		switch {
		case strings.Contains(s.Image, "/etcd:"):
			// Its image cannot be fetched here: the same program with the same arguments.
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("ip", append([]string{"netns", "exec", spaces[name], exe}, s.Command[1:]...)...)
			for k, a := range cmd.Args {
				cmd.Args[k] = strings.Replace(a, "--data-dir=/etcd-data", "--data-dir="+filepath.Join(volumes, "etcd"), 1)
			}
			logs[name] = new(logtest.Buffer)
			cmd.Env = append(os.Environ(), asEtcd+"=1")
			cmd.Stdout, cmd.Stderr = logs[name], logs[name]
			stops[name] = keep(t, cmd)
		case s.Image == "ghcr.io/trestledb/trestle:${TRESTLE_VERSION:-"+r.version+"}":
			c := b.container(i, spaces[name], hosts)
			for k, v := range s.Environment {
				c.env = append(c.env, k+"="+v)
			}
			for _, v := range s.Volumes {
				from, to, _ := strings.Cut(v, ":")
				dir := filepath.Join(volumes, from)
				// A new volume is what the image has at its place.
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				var info syscall.Stat_t
				if err := syscall.Stat(strings.TrimSpace(b.do("mount", c.id))+to, &info); err != nil {
					t.Fatalf("%s: the image has no %s: %v", name, to, err)
				}
				if err := os.Chown(dir, int(info.Uid), int(info.Gid)); err != nil {
					t.Fatal(err)
				}
				c.mounts = append(c.mounts, dir+":"+to)
			}
			containers[name] = c
			logs[name], stops[name] = c.start(nil, s.Command)
			checks[name] = func() bool { return c.command(i.Docker.Config.Healthcheck.Test[1:]...).Run() == nil }
		default:
			t.Fatalf("%s: image %s", name, s.Image)
		}
	}
	all := func() (out string) {
		for name, log := range logs {
			out += fmt.Sprintf("== %s\n%s\n", name, log)
		}
		return out
	}
	for name, check := range checks {
		until(t, name+" is not healthy", check, all)
	}
	down := func() {
		var wg sync.WaitGroup
		for name, stop := range stops {
			if _, ok := checks[name]; ok {
				wg.Go(stop)
			}
		}
		wg.Wait()
		for _, stop := range stops {
			stop()
		}
	}
	return running{published, down, func(service string, words ...string) string {
		t.Helper()
		return output(t, containers[service].command(words...))
	}}
}

func keys[V any](m map[string]V) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// TestCompose goes from compose.yaml to the first row by the commands of
// docs/install.md, and finds it after a restart; with compose.cluster.yaml the
// same.
func TestCompose(t *testing.T) {
	for file, section := range map[string]string{"compose.yaml": "## Docker", "compose.cluster.yaml": "compose.cluster.yaml) is a cluster"} {
		t.Run(file, func(t *testing.T) {
			r := openRelease(t)
			lines := commands(t, section)
			up1 := "docker compose up --detach --wait"
			if file != "compose.yaml" {
				up1 = "docker compose --file " + file + " up --detach --wait"
			}
			if lines[0] != up1 {
				t.Fatal(lines[0])
			}
			dir := t.TempDir()
			copyFile(t, filepath.Join(dir, "bin", "cbt"), cbt(t))
			p := up(t, r, file, dir)
			for _, line := range lines[1:] {
				if out := within(t, p.published, filepath.Join(dir, "bin"), line); strings.Contains(line, " read ") && !strings.Contains(out, `"hello"`) {
					t.Errorf("%s:\n%s", line, out)
				}
			}
			if file == "compose.yaml" {
				if out := p.exec("trestle", "/usr/bin/trestle", "tablet", "list"); !strings.Contains(out, "/tables/greetings: 1 tablet") {
					t.Error(out)
				}
			}
			p.down()
			p = up(t, r, file, dir)
			if out := within(t, p.published, filepath.Join(dir, "bin"), lines[3]); !strings.Contains(out, `"hello"`) {
				t.Errorf("after a restart: %s", out)
			}
			p.down()
		})
	}
}
