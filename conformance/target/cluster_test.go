package target

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestCluster: every process of a cluster answers, and those that are killed come
// back.
func TestCluster(t *testing.T) {
	if os.Getenv(BinaryEnv) == "" {
		t.Skip(BinaryEnv + " is not set")
	}
	c := ServeCluster(t, ClusterOptions{Servers: 2, Gateways: 1, HBase: true, Args: []string{"--http-listen=off"}})
	for i, at := range append(append([]string{}, c.HBase...), c.ZooKeeper...) {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Errorf("address %d: %v", i, err)
			continue
		}
		conn.Close()
	}
	for round := range 2 {
		for i, at := range c.Addrs {
			conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			admin, err := bigtable.NewAdminClient(t.Context(), "p", "i", option.WithGRPCConn(conn))
			if err != nil {
				t.Fatal(err)
			}
			for limit := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
				if err = admin.CreateTable(t.Context(), string(rune('a'+3*round+i))); err == nil {
					break
				}
				if round == 0 || time.Now().After(limit) {
					t.Fatalf("server %d: %v", i, err)
				}
			}
		}
		if round == 0 {
			for i := 1; i < 3; i++ {
				if err := c.KillServer(i); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestClusterNoticesEnds: a server that ends by itself is an error, though it is
// started again.
func TestClusterNoticesEnds(t *testing.T) {
	bin := os.Getenv(BinaryEnv)
	if bin == "" {
		t.Skip(BinaryEnv + " is not set")
	}
	c, err := StartCluster(t.Context(), ClusterOptions{Binary: bin, Dir: t.TempDir(), Servers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(c.Pid(0), syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := c.Stop(time.Minute); err == nil || !strings.Contains(err.Error(), "server-1 has ended: signal: killed") {
		t.Errorf("a server was killed, and the cluster says: %v", err)
	}
}
