package sim

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/gateway/backend"
)

func logger() *slog.Logger {
	if os.Getenv("TRESTLE_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

// start returns a cluster of a master and n tablet servers.
func start(t testing.TB, o Options, n int) *Cluster {
	t.Helper()
	if o.Log == nil {
		o.Log = logger()
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.StartMaster("master-1")
	for i := range n {
		if _, err := c.StartServer(context.Background(), fmt.Sprintf("server-%d", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// TestBackend: a cluster does for the gateway what one process does.
func TestBackend(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) backend.Backend {
		c := start(t, Options{}, 3)
		b, err := c.Client(context.Background(), "client")
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
}
