package cluster

import (
	"context"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/conformance/history"
	"github.com/trestledb/trestle/engine/loopback"
)

// TestSecurity: with certificates everywhere (etcd, between the servers, the
// API, MinIO if there is one) and login, the load runs and outlives a kill, and
// who has no certificate or no key is let in nowhere.
func TestSecurity(t *testing.T) {
	host, err := loopback.Take()
	if err != nil {
		t.Fatal(err)
	}
	security, err := NewSecurity(t.TempDir(), host.IP)
	if err != nil {
		t.Fatal(err)
	}
	st := *minio
	if st == "" {
		st = Directory
	}
	c := start(t, Options{Host: host, Security: security, Store: st})
	login, err := c.Login()
	if err != nil {
		t.Fatal(err)
	}
	if err := MakeInstance(t.Context(), c.API(c.Servers[0]), "history", "history-1", login...); err != nil {
		t.Fatal(err)
	}
	l, err := history.StartLoad(t.Context(), history.LoadOptions{Addrs: addresses(c), Dial: login, Seed: *seed, Pause: 10 * time.Millisecond, Timeout: time.Minute, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	within := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		return ctx
	}
	if err := l.Progress(within()); err != nil {
		t.Fatal(err)
	}
	if n, first := l.Failed(); n > 0 {
		t.Errorf("%d calls failed, the first: %v", n, first)
	}

	// Strangers.
	wire, err := c.wire()
	if err != nil {
		t.Fatal(err)
	}
	if err := MakeInstance(within(), c.API(c.Gateway), "history", "stolen", wire...); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a key: %v", err)
	}
	peer := c.address(c.Servers[0], "cluster", 8085)
	for what, o := range map[string]grpc.DialOption{"plaintext": grpc.WithTransportCredentials(insecure.NewCredentials()), "no certificate": wire[0]} {
		conn, err := grpc.NewClient(peer, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Invoke(within(), "/any/Method", new(nothing), new(nothing), grpc.ForceCodec(nothing{})); status.Code(err) != codes.Unavailable {
			t.Errorf("%s at the port for servers: %v", what, err)
		}
		conn.Close()
	}
	stranger := *security
	other, err := NewSecurity(t.TempDir(), host.IP)
	if err != nil {
		t.Fatal(err)
	}
	stranger.Cert, stranger.Key = other.Cert, other.Key
	mine := c.o.Security
	c.o.Security = &stranger
	if out, err := c.Run(within(), "cluster", "status", "--timeout=5s"); err == nil {
		t.Errorf("a certificate of another authority is let in: %s", out)
	}
	c.o.Security = mine

	if _, err := c.Do(within(), Fault{Name: "kill", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		p := c.Servers[1]
		if _, err := p.End(syscall.SIGKILL, time.Minute); err != nil {
			return "", err
		}
		wait(ctx, c.o.TTL)
		return "", p.Start()
	}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Progress(within()); err != nil {
		t.Fatal(err)
	}
	r, err := l.Stop(within())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Violations {
		t.Error(v)
	}
	t.Logf("%+v", *r)
}

// nothing is a codec and a message without content.
type nothing struct{}

func (nothing) Marshal(any) ([]byte, error) { return nil, nil }
func (nothing) Unmarshal([]byte, any) error { return nil }
func (nothing) Name() string                { return "nothing" }
