package etcd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/locktest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/loopback"
)

func TestMain(m *testing.M) {
	// Most of what tests do is waiting: all may go on at once.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// config returns that of a real etcd with one member, in this process.
func config(t *testing.T) *embed.Config {
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	c.LogLevel = "fatal"
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{local}, []url.URL{local}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{local}, []url.URL{local}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	return c
}

// run returns what ends etcd, too.
func run(t *testing.T, c *embed.Config) (*embed.Etcd, func()) {
	t.Helper()
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(e.Close)
	t.Cleanup(end)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd does not get ready")
	}
	return e, end
}

// start runs a real etcd and returns its address.
func start(t *testing.T) string {
	t.Helper()
	e, _ := run(t, config(t))
	return e.Clients[0].Addr().String()
}

func connect(t *testing.T, addr string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestSuite(t *testing.T) {
	t.Parallel()
	addr := start(t)
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d members", members), func(t *testing.T) {
			t.Parallel()
			var clients []*clientv3.Client
			for range members {
				clients = append(clients, connect(t, addr))
			}
			n := 0
			locktest.Run(t, func(*testing.T) lock.Service {
				n++
				return New(clients, fmt.Sprintf("trestle/%d/%d/", members, n))
			}, 10*time.Second, nil)
		})
	}
}

// TestLargeValue: what etcd does not take is refused, and not taken for an etcd that cannot
// be reached.
func TestLargeValue(t *testing.T) {
	t.Parallel()
	s := New([]*clientv3.Client{connect(t, start(t))}, "trestle/")
	version, err := s.Put(t.Context(), "a", make([]byte, lock.MaxValue), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), "a", make([]byte, lock.MaxValue+1), version); !errors.Is(err, fault.FailedPrecondition) || !strings.Contains(err.Error(), "the limit is 1500000") {
		t.Error(err)
	}
	if _, err := s.Put(t.Context(), "b", make([]byte, 3<<20), 0); !errors.Is(err, fault.FailedPrecondition) {
		t.Error(err)
	}
	if i, err := s.Get(t.Context(), "a"); err != nil || i.Version != version {
		t.Error(i.Version, err)
	}
}

// A relay stands for a member: it passes on what comes, or is silent.
type relay struct {
	net.Listener
	to string

	mu     sync.Mutex
	cond   *sync.Cond
	silent bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to}
	r.cond = sync.NewCond(&r.mu)
	t.Cleanup(func() { r.silence(false); l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			go r.pass(in, out)
			go r.pass(out, in)
		}
	}()
	return r
}

func (r *relay) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		r.mu.Lock()
		for r.silent {
			r.cond.Wait()
		}
		r.mu.Unlock()
		if _, e := to.Write(b[:n]); err != nil || e != nil {
			return
		}
	}
}

func (r *relay) silence(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = yes
	r.cond.Broadcast()
}

// relays returns three members, and a service that asks them.
func relays(t *testing.T) ([]*relay, *Service) {
	addr := start(t)
	var all []*relay
	var clients []*clientv3.Client
	for range 3 {
		r := newRelay(t, addr)
		all, clients = append(all, r), append(clients, connect(t, r.Addr().String()))
	}
	return all, New(clients, "trestle/")
}

// lasts waits, and returns whether the session has not ended. It may not end before the
// deadline that it has now.
func lasts(t *testing.T, s lock.Session, d time.Duration) bool {
	t.Helper()
	deadline := s.Deadline()
	select {
	case <-s.Done():
		if left := time.Until(deadline); left > 0 {
			t.Fatalf("the session has ended %v before its deadline", left)
		}
		return false
	case <-time.After(d):
		return true
	}
}

// TestSilentMember: one member that does not answer ends no session, loses no
// change to who watches, and is not waited for.
func TestSilentMember(t *testing.T) {
	t.Parallel()
	members, s := relays(t)
	const ttl = 15 * time.Second
	session, err := s.NewSession(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(context.WithoutCancel(t.Context()))
	changes := make(chan lock.Event, 100)
	watching, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_ = s.Watch(watching, "w/", 0, func(e lock.Event) error { changes <- e; return nil })
	}()
	defer func() { stop(); <-watched }()
	var version int64
	for i := range 6 {
		silent := members[int(s.first.Load())] // the one that is asked first
		silent.silence(true)
		begun := time.Now()
		if version, err = s.Put(t.Context(), "w/a", []byte{byte(i)}, version); err != nil {
			t.Fatal(err)
		}
		if item, err := s.Get(t.Context(), "w/a"); err != nil || item.Version != version {
			t.Fatalf("%+v, %v", item, err)
		}
		select {
		case e := <-changes:
			if e.Version != version {
				t.Fatalf("told of version %d, not %d", e.Version, version)
			}
		case <-time.After(time.Minute):
			t.Fatal("told of nothing")
		}
		// What is sent after two seconds is answered, too.
		for !session.Deadline().After(begun.Add(ttl + 2*time.Second)) {
			if !lasts(t, session, 10*time.Millisecond) || time.Since(begun) > time.Minute {
				t.Fatalf("%v after a member has become silent the session lasts %v", time.Since(begun), time.Until(session.Deadline()))
			}
		}
		silent.silence(false)
	}
}

// TestSilentMembers: a session lives its whole ttl while no member answers.
func TestSilentMembers(t *testing.T) {
	t.Parallel()
	members, s := relays(t)
	silence := func(yes bool) {
		for _, m := range members {
			m.silence(yes)
		}
	}
	// outlives tells whether a session outlives two silences of two thirds of its ttl. A
	// busy machine may not send renewals in time.
	outlives := func(ttl time.Duration) bool {
		session, err := s.NewSession(t.Context(), ttl)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close(context.WithoutCancel(t.Context()))
		defer silence(false)
		for range 2 {
			if !lasts(t, session, ttl/3) {
				return false
			}
			silence(true)
			if !lasts(t, session, ttl*2/3) {
				return false
			}
			silence(false)
		}
		return lasts(t, session, ttl*3/2)
	}
	for ttl := 6 * time.Second; !outlives(ttl); ttl *= 2 {
		if ttl > 30*time.Second {
			t.Fatalf("a session of %v ends", ttl)
		}
		t.Logf("a session of %v has ended at its deadline", ttl)
	}
}

// TestFormerLeader: a leader of etcd that stops, and goes on after a ttl, revokes
// each lease it knew. A session has moved to another one by then, with what it
// holds.
func TestFormerLeader(t *testing.T) {
	t.Parallel()
	c := config(t)
	// The next etcd begins at the same address.
	c.ListenClientUrls[0].Host, c.ListenPeerUrls[0].Host = loopback.Addr(t), loopback.Addr(t)
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, c.ListenPeerUrls
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, end := run(t, c)
	client := connect(t, e.Clients[0].Addr().String())
	s := New([]*clientv3.Client{client}, "trestle/")
	session, err := s.NewSession(t.Context(), 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(context.WithoutCancel(t.Context()))
	var held []lock.Item
	for _, key := range []string{"a", "b"} {
		i, err := session.Hold(t.Context(), key, []byte("of "+key))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, i)
	}
	// One that somebody else has made in its place since.
	if err := s.Delete(t.Context(), "b", held[1].Version); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), "b", nil, 0); err != nil {
		t.Fatal(err)
	}
	leases := func() map[clientv3.LeaseID]bool {
		r, err := client.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all := map[clientv3.LeaseID]bool{}
		for _, l := range r.Leases {
			all[l.ID] = true
		}
		return all
	}
	for range 3 {
		before := leases()
		changed := make(chan lock.Event, 1)
		end()
		_, end = run(t, c)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			_ = s.Watch(ctx, "a", held[0].Version, func(e lock.Event) error { changed <- e; return context.Canceled })
		}()
		select {
		case e := <-changed:
			if e.Deleted || string(e.Value) != "of a" || e.Created != held[0].Created || e.Version <= held[0].Version {
				t.Fatalf("the item has become %+v", e)
			}
			held[0] = e.Item
		case <-time.After(time.Minute):
			t.Fatal("what the session holds stays on a lease that a former leader knows")
		}
		stop()
		for id := range before {
			if _, err := client.Revoke(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if !lasts(t, session, 3*time.Second) {
			t.Fatal("the session has ended")
		}
		for i, key := range []string{"a", "b"} {
			got, err := s.Get(t.Context(), key)
			if err != nil || i == 0 && got.Version != held[0].Version {
				t.Fatalf("%s is %+v, %v", key, got, err)
			}
		}
	}
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "a"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("what a closed session held: %v", err)
	}
	if _, err := s.Get(t.Context(), "b"); err != nil {
		t.Errorf("what it did not hold any more: %v", err)
	}
}
