package target

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/backend"
)

// The environment variables that choose the server. Their names do not begin
// with TRESTLE_, which a server takes for settings.
const (
	AddrEnv   = "CONFORMANCE_ADDR"
	BinaryEnv = "CONFORMANCE_TRESTLE"
	// ClusterEnv, if not empty, makes the binary serve as a cluster of processes
	// wherever a test does not need another form.
	ClusterEnv = "CONFORMANCE_CLUSTER"
)

// OnCluster tells whether a test is to run against a cluster of processes.
func OnCluster() bool { return os.Getenv(ClusterEnv) != "" }

// Patience is the TTL of clusters of which no process is killed: long enough for
// a busy machine not to end one.
const Patience = 15 * time.Second

// Addr returns the gRPC address of a server that accepts any instance, and
// stops the server at the end of the test if it started it.
func Addr(t testing.TB) string {
	t.Helper()
	if a := os.Getenv(AddrEnv); a != "" {
		return a
	}
	if OnCluster() {
		return ServeCluster(t, ClusterOptions{TTL: Patience}).Addrs[0]
	}
	if bin := os.Getenv(BinaryEnv); bin != "" {
		s, err := Start(t.Context(), Process{Binary: bin, Dir: t.TempDir(), Args: []string{"--emulator"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(10 * time.Second); err != nil {
				t.Errorf("stop the server: %v\n%s", err, s.Log())
			}
		})
		return s.Addr
	}
	return InProcess(t, model.New(model.Options{}), gateway.Options{Emulator: true})
}

// InProcess serves b until the end of the test and returns its address. The
// zero Log of o means none.
func InProcess(t testing.TB, b backend.Backend, o gateway.Options) string {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s, err := gateway.New(b, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Stop(ctx) // a test may leave streams open
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String()
}
