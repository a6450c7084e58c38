package history

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/trestledb/trestle/conformance/target"
)

var (
	duration = flag.Duration("history.duration", 2*time.Second, "length of each workload")
	seed     = flag.Uint64("history.seed", uint64(time.Now().UnixNano()), "seed of the workloads")
	rounds   = flag.Int("history.rounds", 3, "kills of TestCrash")
	viewed   = flag.Int("history.views", 3, "materialized views of TestCrash, 3 at most")
)

// suffix keeps the tables of runs against one server apart.
var suffix = time.Now().Format("-150405.000000")

func TestRows(t *testing.T) {
	t.Logf("-history.seed=%d", *seed)
	r, err := Rows(t.Context(), target.Addr(t), "rows"+suffix, RowsOptions{Duration: *duration, Seed: *seed, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations on %d rows, %d without an answer: %v", r.Operations, r.Rows, r.Unknown, r.Result)
	for _, f := range r.Failures {
		t.Errorf("an operation failed: %s", f)
	}
	if r.Unknown > 0 && os.Getenv(target.AddrEnv) == "" {
		t.Errorf("%d operations failed although nothing disturbed the server", r.Unknown)
	}
	if r.Result != porcupine.Ok {
		path := filepath.Join(t.ArtifactDir(), "rows.html")
		if err := porcupine.VisualizePath(Model, r.Info, path); err != nil {
			t.Error(err)
		}
		t.Errorf("not linearizable (%v): see %s", r.Result, path)
	}
}

func TestBank(t *testing.T) {
	t.Logf("-history.seed=%d", *seed)
	moves, reads, err := Bank(t.Context(), target.Addr(t), "bank"+suffix, 8, *duration, *seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d moves, %d reads", moves, reads)
	if moves == 0 || reads == 0 {
		t.Error("nothing was tried")
	}
}

func TestRing(t *testing.T) {
	const clients, rounds, batch = 4, 10, 200
	r, err := Ring(t.Context(), target.Addr(t), "ring"+suffix, clients, rounds, batch, *seed)
	if err != nil {
		t.Fatal(err)
	}
	if r.Nodes != clients*rounds*batch || r.Undefined != 0 || r.Unreferenced != clients*batch {
		t.Errorf("%+v, want %d nodes, of which the last %d are unreferenced", r, clients*rounds*batch, clients*batch)
	}
}

func TestCrash(t *testing.T) {
	bin := os.Getenv(target.BinaryEnv)
	if bin == "" {
		t.Skipf("set %s to a trestle binary; `make crash` does", target.BinaryEnv)
	}
	t.Logf("-history.seed=%d", *seed)
	r, err := Crash(t.Context(), CrashOptions{Process: target.Process{Binary: bin, Dir: t.TempDir(), Args: []string{"--emulator"}, Cluster: target.OnCluster(), TTL: 3 * time.Second},
		Rounds: *rounds + 1, Seed: *seed, Views: *viewed, Log: os.Stdout})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills, %d changes acknowledged, %d without an answer, longest restart %v; %d rows of %d views compared, which had caught up after %v", *rounds, r.Acked, r.Unknown, r.Restart, r.ViewRows, *viewed, r.CaughtUp)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	if r.Acked == 0 {
		t.Error("nothing was acknowledged")
	}
	if *viewed > 0 && *rounds > 0 && r.ViewRows == 0 {
		t.Error("the views were empty")
	}
}

// TestModelFindsViolations feeds porcupine histories that no row allows.
func TestModelFindsViolations(t *testing.T) {
	op := func(call, ret int64, in input, out output) porcupine.Operation {
		in.key = "r"
		return porcupine.Operation{Input: in, Call: call, Output: out, Return: ret}
	}
	seen := func(v string) output { return output{state: rowState{versions: [slots]string{v}}} }
	for name, tc := range map[string]struct {
		ops  []porcupine.Operation
		want porcupine.CheckResult
	}{
		"a plain history": {[]porcupine.Operation{
			op(0, 1, input{action: setCell, value: "a"}, output{}), op(2, 3, input{action: read}, seen("a")),
			op(4, 5, input{action: deleteRow}, output{}), op(6, 7, input{action: read}, output{}),
		}, porcupine.Ok},
		"a stale read": {[]porcupine.Operation{
			op(0, 1, input{action: setCell, value: "a"}, output{}), op(2, 3, input{action: setCell, value: "b"}, output{}),
			op(4, 5, input{action: read}, seen("a")),
		}, porcupine.Illegal},
		"a read of a write in flight": {[]porcupine.Operation{
			op(0, 10, input{action: setCell, value: "a"}, output{}), op(2, 3, input{action: read}, seen("a")), op(4, 5, input{action: read}, seen("a")),
		}, porcupine.Ok},
		"a read that goes back": {[]porcupine.Operation{
			op(0, 10, input{action: setCell, value: "a"}, output{}), op(2, 3, input{action: read}, seen("a")), op(4, 5, input{action: read}, output{}),
		}, porcupine.Illegal},
		"a lost increment": {[]porcupine.Operation{
			op(0, 5, input{action: increment, amount: 1}, output{count: 1}), op(0, 5, input{action: increment, amount: 1}, output{count: 1}),
		}, porcupine.Illegal},
		"two swaps from one value": {[]porcupine.Operation{
			op(0, 1, input{action: setCell, value: "a"}, output{}),
			op(2, 9, input{action: swap, expect: "a", value: "b"}, output{matched: true}),
			op(2, 9, input{action: swap, expect: "a", value: "c"}, output{matched: true}),
		}, porcupine.Illegal},
		"a deleted cell that comes back": {[]porcupine.Operation{
			op(0, 1, input{action: setCell, value: "a"}, output{}), op(2, 3, input{action: deleteRange}, output{}),
			op(4, 5, input{action: setCell, value: "b"}, output{}), op(6, 7, input{action: deleteRow}, output{}),
			op(8, 9, input{action: read}, seen("b")),
		}, porcupine.Illegal},
		"an unknown write that shows": {[]porcupine.Operation{
			op(0, math.MaxInt64, input{action: setCell, value: "a"}, output{unknown: true}), op(2, 3, input{action: read}, seen("a")),
		}, porcupine.Ok},
		"an unknown write that does not": {[]porcupine.Operation{
			op(0, math.MaxInt64, input{action: setCell, value: "a"}, output{unknown: true}), op(2, 3, input{action: read}, output{}),
		}, porcupine.Ok},
	} {
		if got := porcupine.CheckOperationsTimeout(Model, tc.ops, 5*time.Minute); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
