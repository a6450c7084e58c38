package sim

import (
	"context"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/sweep"
	"github.com/trestledb/trestle/gateway"
)

// TestSweepOfMethods: every method, with whatever comes, is answered by a
// gateway over a cluster.
func TestSweepOfMethods(t *testing.T) {
	c := start(t, Options{TTL: 5 * time.Second}, 2)
	addr := serveGateway(t, clientOf(t, c, "gateway"), gateway.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	r, err := sweep.Run(ctx, addr, sweep.Options{Seed: 1, Random: 1, Timeout: 3 * time.Second})
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
