package sim

import (
	"context"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/sweep"
	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/gateway"
)

// TestSweepOfMethods: every method, with whatever comes, is answered by a
// gateway over a cluster.
func TestSweepOfMethods(t *testing.T) {
	c := start(t, Options{TTL: 5 * time.Second}, 2)
	addr := target.InProcess(t, clientOf(t, c, "gateway"), gateway.Options{Emulator: true})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r, err := sweep.Run(ctx, addr, sweep.Options{Seed: 1, Random: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems() {
		t.Error(p)
	}
	if r.Lost > 0 {
		t.Errorf("%d connections were lost", r.Lost)
	}
}
