package trestletest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/loopback"
)

// use makes a table with the official client and reads back what it writes.
func use(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	ctx := t.Context()
	admin, err := bigtable.NewAdminClient(ctx, "p", "i", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTable(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateColumnFamily(ctx, "t", "f"); err != nil {
		t.Fatal(err)
	}
	client, err := bigtable.NewClientWithConfig(ctx, "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	tbl := client.Open("t")
	m := bigtable.NewMutation()
	m.Set("f", "q", 1000, []byte("value"))
	if err := tbl.Apply(ctx, "row", m); err != nil {
		t.Fatal(err)
	}
	row, err := tbl.ReadRow(ctx, "row")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(row); got != "map[f:[{row f:q 1000 [118 97 108 117 101] []}]]" {
		t.Errorf("read back %s", got)
	}
}

func dial(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestServer(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	start := time.Now()
	s, err := NewServer(loopback.Addr(t)) // which nobody takes afterwards
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %v", time.Since(start))
	use(t, dial(t, s.Addr))
	if _, err := os.Stat(filepath.Join(s.dir, datadir.ReserveName)); !os.IsNotExist(err) {
		t.Errorf("disk space is reserved for a start that never comes: %v", err)
	}
	start = time.Now()
	s.Close()
	s.Close() // harmless
	t.Logf("closed in %v", time.Since(start))
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if l, err := net.Listen("tcp", s.Addr); err != nil {
		t.Errorf("the address is still taken: %v", err)
	} else {
		l.Close()
	}
}

func TestUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := NewServer(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	use(t, dial(t, "unix:"+s.Addr))
}

// A listener that the caller brought stays open.
func TestListener(t *testing.T) {
	l := bufconn.Listen(1 << 20)
	for range 2 {
		s, err := NewServerWithListener(l)
		if err != nil {
			t.Fatal(err)
		}
		use(t, dial(t, "passthrough:bufnet", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })))
		s.Close()
		// The old server may take one more connection, which it closes: the next
		// server is dialled again.
		if c, err := l.Dial(); err == nil {
			c.Close()
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// gRPC options of the caller count.
func TestServerOptions(t *testing.T) {
	var mu sync.Mutex
	seen := 0
	s, err := NewServer("localhost:0", grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		mu.Lock()
		seen++
		mu.Unlock()
		return h(ctx, req)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	use(t, dial(t, s.Addr))
	if seen == 0 {
		t.Error("the interceptor was not called")
	}
}

// The API is bttest's, so that one import is all that changes.
func TestAPI(t *testing.T) {
	own := func(f reflect.Type) string {
		return strings.ReplaceAll(f.String(), "trestletest.Server", "bttest.Server")
	}
	for name, f := range map[string][2]any{
		"NewServer":             {bttest.NewServer, NewServer},
		"NewServerWithListener": {bttest.NewServerWithListener, NewServerWithListener},
	} {
		if want, got := reflect.TypeOf(f[0]).String(), own(reflect.TypeOf(f[1])); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	theirs, ours := reflect.TypeFor[*bttest.Server](), reflect.TypeFor[*Server]()
	for want := range theirs.Methods() {
		if got, ok := ours.MethodByName(want.Name); !ok || own(got.Type) != want.Type.String() {
			t.Errorf("%s is %v, want %v", want.Name, got.Type, want.Type)
		}
	}
	for _, want := range reflect.VisibleFields(theirs.Elem()) {
		if got, ok := ours.Elem().FieldByName(want.Name); want.IsExported() && (!ok || got.Type != want.Type) {
			t.Errorf("%s is %v, want %v", want.Name, got.Type, want.Type)
		}
	}
}

// Servers do not share anything.
func TestManyServers(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := NewServer("127.0.0.1:0")
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			use(t, dial(t, s.Addr))
		})
	}
	wg.Wait()
}
