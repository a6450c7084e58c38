package cluster

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	silences = flag.Int("cluster.silences", 3, "rounds of TestSilentMember and of TestSilentLockService")
	silence  = flag.Duration("cluster.silence", 12*time.Second, "how long TestSilentMember stops a member of etcd")
	gap      = flag.Duration("cluster.gap", DefaultTTL, "how long a call may take meanwhile")
)

// unharmed fails the test if a process has ended since the last call.
func unharmed(t *testing.T, c *Cluster, what string) {
	t.Helper()
	for _, p := range c.Processes() {
		for _, e := range p.Exits() {
			t.Errorf("%s: %s ended with exit code %d: %s", what, p.Name, e.Code, e.Last)
		}
	}
}

// silent stops processes of etcd in rounds, and returns the longest call to any
// tablet in each.
func silent(t *testing.T, c *Cluster, d time.Duration, which func(round int) []*Process) (longest []time.Duration) {
	t.Helper()
	p := probeOf(t, c, 10*time.Millisecond)
	defer p.Stop()
	unharmed(t, c, "before")
	// Servers of a new cluster are evened out once: a tablet that moves waits for
	// etcd.
	time.Sleep(12 * time.Second)
	for i := range *silences {
		ps := which(i)
		what := fmt.Sprintf("round %d, %s and %d more stopped for %v", i+1, ps[0].Name, len(ps)-1, d)
		p.Reset()
		if err := freeze(t.Context(), d, ps...); err != nil {
			t.Fatal(err)
		}
		// What ends because of it ends within a ttl.
		time.Sleep(c.o.TTL)
		settle(t, c, p)
		calls, failed := p.Longest()
		longest = append(longest, slices.Max(calls))
		if len(failed) > 0 {
			t.Errorf("%s: %d calls failed, the first: %v", what, len(failed), failed[0])
		}
		t.Logf("%s: the longest call took %v", what, slices.Max(calls))
		unharmed(t, c, what)
	}
	return longest
}

// leader returns the member of etcd that leads the others.
func leader(t *testing.T, c *Cluster) *Process {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for i, u := range strings.Split(c.etcdURLs, ",") {
			r, err := http.Get(u + "/metrics")
			if err != nil {
				continue
			}
			b, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err == nil && bytes.Contains(b, []byte("\netcd_server_is_leader 1\n")) {
				return c.Etcd[i]
			}
		}
	}
	t.Fatal("etcd has no leader")
	return nil
}

// TestSilentMember: the leader of etcd's three members stops, and another one in
// every third round: no process ends, and clients wait for nothing. The leader
// goes on after the ttl, and believes then that nobody has kept a session.
func TestSilentMember(t *testing.T) {
	c := start(t, Options{Store: *store, Members: 3, TTL: DefaultTTL})
	longest := silent(t, c, *silence, func(i int) []*Process {
		p := leader(t, c)
		if i%3 == 2 {
			p = c.Etcd[(slices.Index(c.Etcd, p)+1)%3]
		}
		return []*Process{p}
	})
	t.Logf("one of three members of etcd stopped for %v: the longest call took %v", *silence, spread(longest))
	if m := slices.Max(longest); m > *gap {
		t.Errorf("a call took %v", m)
	}
}

// TestSilentLockService: all of etcd is silent for a second less than the ttl: no
// process ends.
func TestSilentLockService(t *testing.T) {
	c := start(t, Options{Store: *store, Members: 3, TTL: DefaultTTL})
	longest := silent(t, c, c.o.TTL-time.Second, func(int) []*Process { return c.Etcd })
	t.Logf("all of etcd stopped for %v: the longest call took %v", c.o.TTL-time.Second, spread(longest))
}
