package sdk

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/gateway"
)

// serveEnv makes the test binary a server: one over the model, which is what the
// suites run against when there is no trestle binary, or a cluster with all data
// in a directory.
const (
	serveEnv  = "CONFORMANCE_SERVE"
	ofModel   = "model"
	ofCluster = "cluster"
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(serveEnv) {
	case ofModel:
		err = serveModel()
	case ofCluster:
		err = serveCluster(os.Args[1])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveCluster(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := target.StartCluster(ctx, target.ClusterOptions{Binary: os.Getenv(target.BinaryEnv), Dir: dir, TTL: target.Patience})
	if err != nil {
		return err
	}
	fmt.Println("Bigtable gRPC API", c.Addrs[0])
	<-ctx.Done()
	return c.Stop(time.Minute)
}

func serveModel() error {
	s, err := gateway.New(model.New(model.Options{}), gateway.Options{Emulator: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		done, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Stop(done)
	}()
	fmt.Println("Bigtable gRPC API", l.Addr())
	return s.Serve(l)
}

// workspace returns a prepared Workspace, or skips the test.
func workspace(t *testing.T) Workspace {
	t.Helper()
	if os.Getenv("CONFORMANCE_SDK") == "" {
		t.Skip("set CONFORMANCE_SDK=1 to build and run the client's own tests; `make conformance` does")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return Workspace{Dir: filepath.Join(cache, "trestle-conformance")}
}

func prepare(t *testing.T, w Workspace) {
	t.Helper()
	external, err := filepath.Abs("external")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Prepare(t.Context(), external); err != nil {
		t.Fatal(err)
	}
}

// command returns the command line of a server of its own.
func command(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := os.Getenv(target.BinaryEnv)
	switch {
	case bin != "" && target.OnCluster():
		return "/usr/bin/env " + serveEnv + "=" + ofCluster + " " + exe + " {dir}/data"
	case bin != "":
		return bin + " serve --data-dir {dir}/data --listen 127.0.0.1:0 --http-listen off --emulator --log-level warn"
	}
	return "/usr/bin/env " + serveEnv + "=" + ofModel + " " + exe
}

func compare(t *testing.T, list string, results []Result) {
	t.Helper()
	t.Log(Summary(results))
	want, err := ReadExpectations(filepath.Join("expect", list))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range want.Compare(results) {
		t.Error(n)
	}
}

func tell(t *testing.T) func(Result) {
	return func(r Result) { t.Logf("%-4s %s  %s", r.Outcome, r.Name, r.Why) }
}

func TestEmulatorMode(t *testing.T) {
	w := workspace(t)
	prepare(t, w)
	in := Emulator(w, command(t))
	in.Each = tell(t)
	results, err := in.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "emulator.txt", results)
}

func TestProductionMode(t *testing.T) {
	w := workspace(t)
	prepare(t, w)
	addr := target.Addr(t)
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	createInstance(t, cc)
	in := Production(w, addr, command(t))
	in.Each = tell(t)
	results, err := in.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "production.txt", results)
}

// createInstance creates the instance that the suite expects.
func createInstance(t *testing.T, cc *grpc.ClientConn) {
	t.Helper()
	_, err := adminpb.NewBigtableInstanceAdminClient(cc).CreateInstance(t.Context(), &adminpb.CreateInstanceRequest{
		Parent: "projects/" + Project, InstanceId: Instance, Instance: &adminpb.Instance{DisplayName: Instance},
		Clusters: map[string]*adminpb.Cluster{Cluster: {Location: "projects/" + Project + "/locations/us-central1-b", ServeNodes: 1}}})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		t.Fatalf("create the instance: %v", err)
	}
}

func TestCBT(t *testing.T) {
	w := workspace(t)
	if err := os.MkdirAll(w.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bin, err := w.InstallCBT(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	results, err := CBT(t.Context(), bin, target.Addr(t), t.TempDir(), tell(t))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "cbt.txt", results)
}

func TestExpectations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(path, []byte("# comment\nA pass\nB  waits for time\nC skip\nD pass\nE waits for rain\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := ReadExpectations(path)
	if err != nil {
		t.Fatal(err)
	}
	got := e.Compare([]Result{{Name: "A", Outcome: "pass"}, {Name: "B", Outcome: "fail"}, {Name: "C", Outcome: "skip"}, {Name: "D", Outcome: "pass"}, {Name: "E", Outcome: "skip"}})
	if len(got) != 0 {
		t.Errorf("all as expected, but got %q", got)
	}
	got = e.Compare([]Result{{Name: "A", Outcome: "fail"}, {Name: "B", Outcome: "pass"}, {Name: "C", Outcome: "pass"}, {Name: "new", Outcome: "pass"}, {Name: "E", Outcome: "fail"}})
	if len(got) != 5 {
		t.Errorf("a regression, two surprises, a new test and a missing one gave %q", got)
	}
	for _, bad := range []string{"A maybe", "A", "A waits for", "A pass\nA pass"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadExpectations(path); err == nil {
			t.Errorf("the list %q was accepted", bad)
		}
	}
	for _, list := range []string{"emulator.txt", "production.txt", "login.txt", "cbt.txt", "gcloud.txt", "python.txt", "java.txt"} {
		if _, err := ReadExpectations(filepath.Join("expect", list)); err != nil {
			t.Error(err)
		}
	}
}
