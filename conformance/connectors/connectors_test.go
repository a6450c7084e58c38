package connectors

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
)

const (
	fetchedEnv = "CONNECTORS"
	results    = "testdata/results.json"
	page       = "../../docs/connectors.md"
)

var update = flag.Bool("connectors.update", false, "write testdata/results.json and docs/connectors.md")

// outcomes are those of this run.
var outcomes = struct {
	sync.Mutex
	of map[string]Outcome
}{of: map[string]Outcome{}}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if *update {
		if err := save(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// read returns the outcomes that the tree has.
func read() (map[string]Outcome, error) {
	of := map[string]Outcome{}
	data, err := os.ReadFile(results)
	if err != nil {
		return nil, err
	}
	return of, json.Unmarshal(data, &of)
}

// save adds the outcomes of this run to those that the tree has.
func save() error {
	of, err := read()
	if err != nil {
		return err
	}
	maps.Copy(of, outcomes.of)
	data, err := json.MarshalIndent(of, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(results, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(page, Page(of), 0o644)
}

// TestPage compares docs/connectors.md with the outcomes in results.json.
func TestPage(t *testing.T) {
	if *update {
		t.Skip("the page is written after this run")
	}
	of, err := read()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, Page(of)) {
		t.Errorf("%s is not what testdata/results.json makes: go test ./conformance/connectors -connectors.update", page)
	}
	for id := range of {
		if !slices.ContainsFunc(Programs, func(p Program) bool { return p.ID == id }) {
			t.Errorf("results.json has an outcome of %s, which is in no row of Programs", id)
		}
	}
}

// TestVersions compares the versions on the page with those that are fetched.
func TestVersions(t *testing.T) {
	for _, p := range Programs {
		if data, err := os.ReadFile(p.file()); err != nil {
			t.Error(err)
		} else if p.Version == "" || !strings.Contains(string(data), p.Version) {
			t.Errorf("%s: %s does not name version %q", p.ID, p.Fetch, p.Version)
		}
	}
}

// file is what says what to fetch. HBase's tools have theirs where their own tests are.
func (p Program) file() string {
	if at := filepath.Join("../sdk/hbase/testdata", p.Fetch); exists(at) {
		return at
	}
	return filepath.Join("testdata", p.Fetch)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// A run is the test of a program, which writes its row.
type run struct {
	*testing.T
	// dir has what was fetched.
	dir string

	mu  sync.Mutex
	out Outcome
}

// ran says what the program has done, lacks what it cannot do.
func (r *run) ran(format string, args ...any) {
	r.out.Ran = append(r.out.Ran, fmt.Sprintf(format, args...))
}
func (r *run) lacks(format string, args ...any) {
	r.out.Lacks = append(r.out.Lacks, fmt.Sprintf(format, args...))
}

// Errorf fails the test; the first line of the first failure is in the row.
func (r *run) Errorf(format string, args ...any) {
	r.Helper()
	r.T.Errorf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out.State != Fails {
		first, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
		r.out.State = Fails
		r.lacks("%s", first[:min(len(first), 300)])
	}
}

func (r *run) Fatalf(format string, args ...any) {
	r.Helper()
	r.Errorf(format, args...)
	r.FailNow()
}

func (r *run) Fatal(args ...any) {
	r.Helper()
	r.Fatalf("%s", fmt.Sprint(args...))
}

// with runs the test of a program after it was fetched.
func with(t *testing.T, id string, test func(*run)) {
	t.Helper()
	i := slices.IndexFunc(Programs, func(p Program) bool { return p.ID == id })
	if i < 0 {
		t.Fatalf("%s is not in the table of programs", id)
	}
	fetched := os.Getenv(fetchedEnv)
	if fetched == "" || os.Getenv(target.BinaryEnv) == "" {
		t.Skipf("%s and %s are not both set: make connectors", fetchedEnv, target.BinaryEnv)
	}
	before, err := read()
	if err != nil {
		t.Fatal(err)
	}
	p, r := Programs[i], &run{T: t}
	defer func() {
		if r.out.State == "" {
			r.out.State = Works
			if t.Failed() {
				r.out.State = Fails
			}
		}
		outcomes.Lock()
		defer outcomes.Unlock()
		outcomes.of[id] = r.out
	}()
	name := strings.TrimSuffix(p.Fetch, "/go.mod")
	r.dir = filepath.Join(fetched, strings.TrimSuffix(name, filepath.Ext(name)))
	if out, err := execute(t.Context(), 20*time.Minute, io.Discard, nil, "testdata/fetch.sh", fetched, p.file()); err != nil {
		r.out.State = NotFetched
		r.out.Lacks = []string{reason(out, err)}
		if before[id].State == Works {
			t.Fatalf("cannot be fetched any more: %v\n%s", err, out)
		}
		t.Skipf("cannot be fetched: %v\n%s", err, out)
	}
	test(r)
}

// reason is the first line in which Maven or pip says what is wrong.
func reason(out []byte, err error) string {
	for line := range strings.Lines(string(out)) {
		if _, why, ok := strings.Cut(line, "Could not find artifact "); ok {
			at, _, _ := strings.Cut(why, " (")
			return "no artifact " + at
		} else if why, ok := strings.CutPrefix(line, "ERROR: "); ok {
			return strings.TrimSpace(why)
		}
	}
	return err.Error()
}

// execute runs a process with additional environment, ends it after limit with all
// that it has started, and returns what it prints, which it also writes to also.
func execute(ctx context.Context, limit time.Duration, also io.Writer, env []string, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	w := io.MultiWriter(&out, also)
	cmd.Stdout, cmd.Stderr = w, w
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it takes longer than %v", limit)
	}
	return out.Bytes(), err
}

// do runs a program with additional environment and returns what it prints.
func (r *run) do(env []string, name string, args ...string) string {
	r.Helper()
	out, err := execute(r.Context(), 10*time.Minute, io.Discard, env, name, args...)
	if err != nil {
		r.Fatalf("%s: %v\n%s", filepath.Base(name), complaint(out, err), out[max(len(out)-6000, 0):])
	}
	return string(out)
}

// complaint is the last line that looks like an exception's, or the error.
func complaint(out []byte, err error) string {
	for _, line := range slices.Backward(strings.Split(string(out), "\n")) {
		if strings.Contains(line, "Exception: ") || strings.Contains(line, "Error: ") {
			return strings.TrimSpace(line)
		}
	}
	return err.Error()
}

// A place is where programs find Trestle.
type place struct {
	// grpc and zookeeper are addresses, as clients take them.
	grpc, zookeeper string
	// servers is nil for one process.
	servers *target.Cluster
}

// Project and instance of all tables: those of dev-cluster.
const (
	project  = "p"
	instance = "i"
)

// serve starts one process.
func serve(t *testing.T) place {
	t.Helper()
	host, err := loopback.TakeLocal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	first, err := host.Ports(3)
	if err != nil {
		t.Fatal(err)
	}
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", first+n) }
	s, err := target.Start(t.Context(), target.Process{Binary: os.Getenv(target.BinaryEnv), Dir: t.TempDir(), Listen: at(0),
		Args: []string{"--emulator", "--hbase-listen", at(1), "--hbase-zookeeper-listen", at(2), "--hbase-instance", project + "/" + instance}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(30 * time.Second); err != nil {
			t.Errorf("stop the server: %v\n%s", err, s.Log())
		} else if t.Failed() {
			t.Logf("the server's log:\n%s", s.Log())
		}
	})
	return place{grpc: at(0), zookeeper: at(2)}
}

// emulator is the environment by which clients find a server without login.
func (p place) emulator() []string {
	return []string{"BIGTABLE_EMULATOR_HOST=" + p.grpc, "GOOGLE_CLOUD_PROJECT=" + project}
}

// connect returns official clients.
func (p place) connect(t testing.TB) (*bigtable.Client, *bigtable.AdminClient) {
	t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	data, err := bigtable.NewClientWithConfig(t.Context(), project, instance, bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := bigtable.NewAdminClient(t.Context(), project, instance, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	return data, admin
}

// create makes a table of these families, split at these keys.
func create(t testing.TB, admin *bigtable.AdminClient, table string, families []string, splits ...string) {
	t.Helper()
	conf := bigtable.TableConf{TableID: table, SplitKeys: splits, ColumnFamilies: map[string]bigtable.Family{}}
	for _, f := range families {
		conf.ColumnFamilies[f] = bigtable.Family{}
	}
	if err := admin.CreateTableFromConf(t.Context(), &conf); err != nil {
		t.Fatal(err)
	}
}

// A cell is one as the official client returns it.
type cell struct {
	row, column string
	timestamp   bigtable.Timestamp
	value       string
}

// cells reads a table.
func cells(t testing.TB, data *bigtable.Client, table string, opts ...bigtable.ReadOption) (list []cell) {
	t.Helper()
	err := data.Open(table).ReadRows(t.Context(), bigtable.InfiniteRange(""), func(row bigtable.Row) bool {
		for _, family := range slices.Sorted(maps.Keys(row)) {
			for _, c := range row[family] {
				list = append(list, cell{c.Row, c.Column, c.Timestamp, string(c.Value)})
			}
		}
		return true
	}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// put writes rows in batches.
func put(t testing.TB, data *bigtable.Client, table string, keys []string, muts []*bigtable.Mutation) {
	t.Helper()
	for len(keys) > 0 {
		n := min(len(keys), 5000)
		errs, err := data.Open(table).ApplyBulk(t.Context(), keys[:n], muts[:n])
		if err != nil || len(errs) != 0 {
			t.Fatalf("write %s: %v %v", table, err, errs)
		}
		keys, muts = keys[n:], muts[n:]
	}
}

// latest are the newest values of a table, by row and column.
func latest(t testing.TB, data *bigtable.Client, table string) map[string]string {
	t.Helper()
	of := map[string]string{}
	for _, c := range cells(t, data, table, bigtable.RowFilter(bigtable.LatestNFilter(1))) {
		of[c.row+" "+c.column] = c.value
	}
	return of
}
