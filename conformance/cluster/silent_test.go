package cluster

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	silences = flag.Int("cluster.silences", 3, "rounds of TestSilentMember and of TestSilentLockService")
	silence  = flag.Duration("cluster.silence", 12*time.Second, fmt.Sprintf("how long TestSilentMember stops a member of etcd that has sessions of %v", DefaultTTL))
	gap      = flag.Duration("cluster.gap", DefaultTTL, "how long a call may take meanwhile")
)

// unharmed fails the test if a process has ended since the last call, but for want of a
// session: then it returns false.
func unharmed(t *testing.T, c *Cluster, what string) bool {
	t.Helper()
	ok := true
	for _, p := range c.Processes() {
		for _, e := range p.Exits() {
			tell := t.Errorf
			if strings.Contains(e.Log, "the session with the lock service has ended") {
				tell, ok = t.Logf, false
			}
			tell("%s: %s ended with exit code %d: %s", what, p.Name, e.Code, e.Last)
		}
	}
	return ok
}

// silent stops processes of etcd in rounds, for some share of the ttl, and returns the longest
// call to any tablet in each. As a busy machine may not keep a session for want of renewals, a
// cluster whose processes lose theirs is followed by one with twice the ttl. A round in which
// a call took longer than bound is repeated for the same reason, in the first minutes.
func silent(t *testing.T, share float64, bound time.Duration, which func(c *Cluster, round int) []*Process) (longest []time.Duration, d time.Duration) {
	t.Helper()
	for ttl := DefaultTTL; ; ttl *= 2 {
		c := start(t, Options{Store: *store, Members: 3, TTL: ttl})
		d = time.Duration(share * float64(ttl))
		longest, ok := silentAt(t, c, d, bound, which)
		if ok {
			return longest, d
		}
		c.Close()
		if ttl >= 4*DefaultTTL {
			t.Fatalf("processes lose sessions of %v", ttl)
		}
	}
}

func silentAt(t *testing.T, c *Cluster, d, bound time.Duration, which func(c *Cluster, round int) []*Process) (longest []time.Duration, ok bool) {
	t.Helper()
	p := probeOf(t, c, 10*time.Millisecond)
	defer p.Stop()
	if !unharmed(t, c, "before") {
		return nil, false
	}
	// Servers of a new cluster are evened out once: a tablet that moves waits for
	// etcd.
	time.Sleep(12 * time.Second)
	for limit := time.Now().Add(5 * time.Minute); len(longest) < *silences; {
		ps := which(c, len(longest))
		what := fmt.Sprintf("round %d, %s and %d more stopped for %v", len(longest)+1, ps[0].Name, len(ps)-1, d)
		p.Reset()
		if err := freeze(t.Context(), d, ps...); err != nil {
			t.Fatal(err)
		}
		// What ends because of it ends within a ttl.
		time.Sleep(c.o.TTL)
		settle(t, c, p)
		if !unharmed(t, c, what) {
			return nil, false
		}
		calls, failed := p.Longest()
		m := slices.Max(calls)
		t.Logf("%s: the longest call took %v", what, m)
		if m <= bound || time.Now().After(limit) {
			longest = append(longest, m)
		}
		if len(failed) > 0 {
			t.Errorf("%s: %d calls failed, the first: %v", what, len(failed), failed[0])
		}
	}
	return longest, true
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
	longest, d := silent(t, float64(*silence)/float64(DefaultTTL), *gap, func(c *Cluster, i int) []*Process {
		p := leader(t, c)
		if i%3 == 2 {
			p = c.Etcd[(slices.Index(c.Etcd, p)+1)%3]
		}
		return []*Process{p}
	})
	t.Logf("one of three members of etcd stopped for %v: the longest call took %v", d, spread(longest))
	if m := slices.Max(longest); m > *gap {
		t.Errorf("a call took %v", m)
	}
}

// TestSilentLockService: all of etcd is silent for four fifths of the ttl: no process ends.
func TestSilentLockService(t *testing.T) {
	longest, d := silent(t, 0.8, math.MaxInt64, func(c *Cluster, _ int) []*Process { return c.Etcd })
	t.Logf("all of etcd stopped for %v: the longest call took %v", d, spread(longest))
}
