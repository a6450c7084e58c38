package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/history"
	"github.com/trestledb/trestle/conformance/target"
)

var (
	rounds = flag.Int("cluster.rounds", 3, "faults of TestFaults")
	seed   = flag.Uint64("cluster.seed", uint64(time.Now().UnixNano()), "seed of faults and of the load")
	only   = flag.String("cluster.fault", "", "a part of the names of the faults that TestFaults chooses from")
	store  = flag.String("cluster.store", Memory, "store of TestFaults: memory, directory, or the path of a MinIO program")
	etcd   = flag.String("cluster.etcd", "", "path of an etcd program; empty for the one that is built in")
)

func TestMain(m *testing.M) {
	Main()
	code := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(code)
}

// scratch is where the program is built, if it is.
var scratch string

// build builds the program once for all tests.
var build = sync.OnceValues(func() (string, error) {
	var err error
	if scratch, err = os.MkdirTemp("", "trestle-"); err != nil {
		return "", err
	}
	p := filepath.Join(scratch, "trestle")
	if out, err := exec.Command("go", "build", "-o", p, "github.com/trestledb/trestle/cmd/trestle").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build trestle: %w\n%s", err, out)
	}
	return p, nil
})

// program returns the trestle to test.
func program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts up to nine processes")
	}
	if p := os.Getenv(target.BinaryEnv); p != "" {
		return p
	}
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// network returns a network, or nil after saying why there is none.
func network(t *testing.T) *Network {
	t.Helper()
	n, err := NewNetwork()
	if err != nil {
		t.Logf("no partitions: %v", err)
		return nil
	}
	t.Cleanup(n.Close)
	return n
}

func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	o.Trestle, o.Dir, o.Etcd = program(t), t.TempDir(), *etcd
	c, err := Start(t.Context(), o)
	t.Cleanup(func() {
		c.Close()
		if t.Failed() {
			for _, p := range c.Processes() {
				t.Logf("%s:\n%s", p.Name, p.Log(16<<10))
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// addresses are the gateway's and those of all tablet servers.
func addresses(c *Cluster) []string {
	out := []string{c.API(c.Gateway)}
	for _, p := range c.Servers {
		out = append(out, c.API(p))
	}
	return out
}

// TestFaults: whatever happens to the processes, what clients were told stays
// true.
func TestFaults(t *testing.T) {
	c := start(t, Options{Network: network(t), Store: *store})
	t.Logf("-cluster.seed=%d", *seed)
	r := rand.New(rand.NewPCG(*seed, 1))
	l, err := history.StartLoad(t.Context(), history.LoadOptions{Addrs: addresses(c), Seed: *seed, Pause: 10 * time.Millisecond, Timeout: 5 * time.Second, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	if err := l.Progress(within(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var faults []Fault
	for _, f := range c.Possible() {
		if strings.Contains(f.Name, *only) {
			faults = append(faults, f)
		}
	}
	var order []int
	var exits = map[string]int{}
	var slowest time.Duration
	for i := range *rounds {
		if len(order) == 0 {
			order = r.Perm(len(faults)) // each as often as the others
		}
		f := faults[order[0]]
		order = order[1:]
		before, _ := l.Failed()
		began := time.Now()
		what, err := c.Do(t.Context(), f, r)
		if err != nil {
			t.Fatalf("round %d: %v", i+1, err)
		}
		healed := time.Now()
		if err := l.Progress(within(time.Minute)); err != nil {
			t.Fatalf("round %d, %s: the load does not get on: %v", i+1, what, err)
		}
		back := time.Since(healed)
		slowest = max(slowest, back)
		rep, err := l.Check(within(time.Minute))
		if err != nil {
			t.Fatalf("round %d, %s: %v", i+1, what, err)
		}
		after, first := l.Failed()
		ended := ""
		for _, p := range c.Processes() {
			for _, e := range p.Exits() {
				ended += fmt.Sprintf("\n    %s ended %v after the fault began, exit code %d: %s", p.Name, e.When.Sub(began).Round(time.Millisecond), e.Code, e.Last)
				exits[p.Name]++
			}
		}
		t.Logf("round %d: %s; served %v after its end; %d calls failed (%v); %d acknowledged, %d unknown, %d judged, %d nodes, %d scans%s", i+1, what,
			back.Round(time.Millisecond), after-before, first, rep.Acked, rep.Unknown, rep.Judged, rep.Nodes, rep.Scans, ended)
		if len(rep.Violations) > 0 {
			t.Fatalf("round %d, %s: %s", i+1, what, strings.Join(rep.Violations, "\n"))
		}
	}
	rep, err := l.Stop(within(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rounds, %d acknowledged, %d unknown, %d failed, %d judged, %d nodes, %d reads, %d scans, %d violations; served %v after the end of a fault at most", *rounds,
		rep.Acked, rep.Unknown, rep.Failed, rep.Judged, rep.Nodes, rep.Reads, rep.Scans, len(rep.Violations), slowest.Round(time.Millisecond))
	for _, v := range rep.Violations {
		t.Error(v)
	}
	if rep.Acked == 0 || rep.Judged == 0 || rep.Nodes == 0 || rep.Scans == 0 {
		t.Errorf("nothing was tried: %+v", rep)
	}
}
