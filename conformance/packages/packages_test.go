package packages

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/etcd/pkg/v3/flags"
	"go.etcd.io/etcd/server/v3/embed"
)

const root = "../.."

// asEtcd makes the test binary an etcd, for the cluster of the compose file.
const asEtcd = "PACKAGES_ETCD"

func TestMain(m *testing.M) {
	if os.Getenv(asEtcd) != "" {
		fmt.Fprintln(os.Stderr, runEtcd(os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// runEtcd is etcd with the arguments that its program takes, until it fails.
func runEtcd(args []string) error {
	c := embed.NewConfig()
	f := flag.NewFlagSet("etcd", flag.ContinueOnError)
	c.AddFlags(f)
	if err := f.Parse(args); err != nil {
		return err
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = flags.UniqueURLsFromFlag(f, "listen-client-urls"), flags.UniqueURLsFromFlag(f, "advertise-client-urls")
	c.ListenPeerUrls, c.AdvertisePeerUrls = flags.UniqueURLsFromFlag(f, "listen-peer-urls"), flags.UniqueURLsFromFlag(f, "initial-advertise-peer-urls")
	c.LogLevel = "error"
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	return <-e.Err()
}

// A release is what build.sh has made.
type release struct {
	dir                       string
	version, revision, source string // the last is SOURCE_DATE_EPOCH
}

func openRelease(t *testing.T) *release {
	t.Helper()
	dir := os.Getenv("PACKAGES")
	if dir == "" {
		t.Skip("PACKAGES does not say where the packages are: make packages-test")
	}
	b, err := os.ReadFile(filepath.Join(dir, "build-info.txt"))
	if err != nil {
		t.Fatal(err)
	}
	r := &release{dir: dir}
	for _, f := range strings.Fields(string(b)) {
		switch k, v, _ := strings.Cut(f, "="); k {
		case "VERSION":
			r.version = v
		case "REVISION":
			r.revision = v
		case "SOURCE_DATE_EPOCH":
			r.source = v
		}
	}
	return r
}

// file returns the path of trestle_VERSION_NAME.
func (r *release) file(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(r.dir, "trestle_"+r.version+"_"+name)
	if _, err := os.Stat(path); err != nil {
		missing(t, "it was not built: "+err.Error())
	}
	return path
}

// missing ends a test that cannot run here and says why; with PACKAGES_STRICT that
// is a failure.
func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("PACKAGES_STRICT") == "1" {
		t.Fatal("NOT TESTED: " + why)
	}
	t.Skip("NOT TESTED: " + why)
}

func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing(t, tool+" is not installed")
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "it takes root")
	}
}

// tool returns the path of a program that `make packages-test` installs.
func tool(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv("TOOLS"), name)
	if _, err := os.Stat(path); err != nil {
		missing(t, name+" is not installed: make packages-tools")
	}
	return path
}

// output runs a program that has to succeed.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

// block returns the commands of the first block of a section of docs/install.md.
func block(t *testing.T, section string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), section)
	_, text, ok2 := strings.Cut(text, "```console\n")
	text, _, ok3 := strings.Cut(text, "\n```")
	if !ok || !ok2 || !ok3 {
		t.Fatalf("docs/install.md has no commands after %q", section)
	}
	var out []string
	for line := range strings.Lines(text) {
		out = append(out, strings.TrimSpace(strings.TrimPrefix(line, "$ ")))
	}
	return out
}

// commands returns those of a section that leads to the first row.
func commands(t *testing.T, section string) []string {
	t.Helper()
	out := block(t, section)
	if len(out) != 4 || !strings.Contains(out[2], " set ") || !strings.Contains(out[3], " read ") {
		t.Fatalf("not three commands to the first row, and one that reads it: %q", out)
	}
	return out
}

// cbt builds the cbt CLI, as a program that needs no library.
func cbt(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(os.Getenv("TOOLS"))
	path := filepath.Join(dir, "cbt")
	if _, err := os.Stat(path); err != nil {
		missing(t, "cbt is not installed: make packages-tools")
	}
	return path
}

func TestChecksums(t *testing.T) {
	r := openRelease(t)
	b, err := os.ReadFile(filepath.Join(r.dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{"SHA256SUMS": true}
	for line := range strings.Lines(string(b)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed[name] = true
		content, err := os.ReadFile(filepath.Join(r.dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := sha256.Sum256(content); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s does not have its checksum", name)
		}
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !listed[e.Name()] {
			t.Errorf("%s has no checksum", e.Name())
		}
	}
}

// untar returns the regular files of a tar, by name.
func untar(t *testing.T, in io.Reader) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if out[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func archive(t *testing.T, path string) map[string][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".zip") {
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		out := map[string][]byte{}
		for _, f := range z.File {
			in, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			if out[f.Name], err = io.ReadAll(in); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	g, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return untar(t, g)
}

// TestArchives looks at what is in each archive: the program of the right system,
// stripped, with its version; manual and completion.
func TestArchives(t *testing.T) {
	r := openRelease(t)
	for _, name := range []string{"linux_amd64.tar.gz", "linux_arm64.tar.gz", "darwin_amd64.tar.gz", "darwin_arm64.tar.gz", "windows_amd64.zip"} {
		t.Run(name, func(t *testing.T) {
			files := archive(t, r.file(t, name))
			dir := "trestle_" + r.version + "/"
			for _, f := range []string{"LICENSE", "README.md", "CHANGELOG.md", "man/trestle.1", "man/trestle-serve.1", "completion/trestle.bash", "dashboards/overview.json", "dashboards/alerts.yaml"} {
				if len(files[dir+f]) == 0 {
					t.Errorf("%s is not there", f)
				}
			}
			system, _, _ := strings.Cut(name, ".")
			exe := files[dir+"trestle"]
			if strings.HasPrefix(name, "windows") {
				exe = files[dir+"trestle.exe"]
			}
			if got := systemOf(exe); got != system {
				t.Errorf("the program is for %s", got)
			}
			if len(exe) < 20<<20 || len(exe) > 60<<20 { // with symbols it has 80 MiB
				t.Errorf("the program has %d bytes", len(exe))
			}
			if !strings.Contains(string(files[dir+"man/trestle.1"]), r.version) {
				t.Error("the manual does not tell the version")
			}
			if system == runtime.GOOS+"_"+runtime.GOARCH {
				path := filepath.Join(t.TempDir(), "trestle")
				if err := os.WriteFile(path, exe, 0o755); err != nil {
					t.Fatal(err)
				}
				if out := output(t, exec.Command(path, "version")); !strings.HasPrefix(out, "trestle "+r.version+"\nrevision "+r.revision+"\n") {
					t.Error(out)
				}
			}
			bill(t, r.file(t, system+".sbom.json"), exe)
		})
	}
}

// systemOf returns the system and architecture of a stripped program.
func systemOf(exe []byte) string {
	in := bytes.NewReader(exe)
	arch := map[any]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", macho.CpuAmd64: "amd64", macho.CpuArm64: "arm64", uint16(pe.IMAGE_FILE_MACHINE_AMD64): "amd64"}
	if f, err := elf.NewFile(in); err == nil {
		if f.Section(".symtab") != nil || f.Section(".interp") != nil {
			return "linux, not stripped or not static"
		}
		return "linux_" + arch[f.Machine]
	}
	if f, err := macho.NewFile(in); err == nil {
		return "darwin_" + arch[f.Cpu]
	}
	if f, err := pe.NewFile(in); err == nil {
		return "windows_" + arch[f.Machine]
	}
	return "no known system"
}

// bill checks an SBOM against its program.
func bill(t *testing.T, path string, exe []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var sbom struct {
		BOMFormat   string `json:"bomFormat"`
		SpecVersion string `json:"specVersion"`
		Metadata    struct {
			Component struct{ Hashes []struct{ Content string } }
		}
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(b, &sbom); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(exe)
	if sbom.BOMFormat != "CycloneDX" || len(sbom.Metadata.Component.Hashes) != 1 || sbom.Metadata.Component.Hashes[0].Content != hex.EncodeToString(sum[:]) {
		t.Errorf("%s: %+v", path, sbom.Metadata)
	}
	versions := map[string]string{}
	for _, c := range sbom.Components {
		if c.Purl != "pkg:golang/"+c.Name+"@"+c.Version {
			t.Errorf("%s: %+v", path, c)
		}
		versions[c.Name] = c.Version
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"google.golang.org/grpc", "github.com/cockroachdb/pebble/v2"} {
		if want := regexp.MustCompile(regexp.QuoteMeta(m) + ` (\S+)`).FindSubmatch(mod); want == nil || versions[m] != string(want[1]) {
			t.Errorf("%s: %s is %q, and %q in go.mod", path, m, versions[m], want)
		}
	}
	if want := strings.TrimPrefix(runtime.Version(), "go"); versions["stdlib"] != want {
		t.Errorf("%s: stdlib %q, want %q", path, versions["stdlib"], want)
	}
}

// TestSameBytes builds everything again, from a copy of the source in another
// place, and compares.
func TestSameBytes(t *testing.T) {
	r := openRelease(t)
	need(t, "git")
	dir := t.TempDir()
	source := filepath.Join(dir, "another", "place")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, exec.Command("bash", "-c", `cd "$0" && git ls-files --cached --others --exclude-standard -z | tar --null --ignore-failed-read -T - -cf - | tar -C "$1" -xf -`, root, source))
	cmd := exec.Command(filepath.Join(source, "packaging/build.sh"), filepath.Join(dir, "out"))
	cmd.Env = append(os.Environ(), "VERSION="+r.version, "REVISION="+r.revision, "SOURCE_DATE_EPOCH="+r.source)
	log := output(t, cmd)
	read := func(dir string) string {
		b, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if a, b := read(r.dir), read(filepath.Join(dir, "out")); a != b {
		t.Errorf("first\n%s\nthen\n%s\n%s", a, b, log)
	}
}

// copyFile copies a program.
func copyFile(t *testing.T, to, from string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// within runs a command line in a network namespace.
func within(t *testing.T, namespace, path, line string) string {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", namespace, "bash", "-c", line)
	cmd.Env = append(os.Environ(), fmt.Sprintf("PATH=%s:%s", path, os.Getenv("PATH")))
	return output(t, cmd)
}

// TestReadme sees that the first page shows what TestDeb runs.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "```console\n$ " + strings.Join(commands(t, "## Debian, Ubuntu")[:3], "\n$ ") + "\n```"; !strings.Contains(string(b), want) {
		t.Errorf("README.md does not have\n%s", want)
	}
}
