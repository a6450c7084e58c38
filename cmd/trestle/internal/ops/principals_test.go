package ops

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	measured "github.com/trestledb/trestle/engine/request"
)

// TestPrincipals: those with most requests are there, however many others there are, and what
// is kept is bounded.
func TestPrincipals(t *testing.T) {
	p := newPrincipals()
	begin := p.since
	const busy, each, others = 10, 20_000, 50_000
	var all sync.WaitGroup
	for i := range busy {
		all.Go(func() {
			for range each {
				p.add(fmt.Sprintf("serviceAccount:busy-%d@p.iam", i))
			}
		})
	}
	all.Go(func() {
		for i := range others {
			p.add(fmt.Sprintf("user:%d", i))
		}
	})
	all.Wait()
	list := p.list(begin.Add(time.Second))
	if len(list) != principalsKept || len(p.by) != principalsKept {
		t.Errorf("%d and %d are kept", len(list), len(p.by))
	}
	found := map[string]PrincipalLoad{}
	for _, l := range list[:busy] {
		found[l.Principal] = l
	}
	for i := range busy {
		l, ok := found[fmt.Sprintf("serviceAccount:busy-%d@p.iam", i)]
		// It may have begun when all places were taken, and take one over.
		if !ok || l.Requests < each*9/10 || l.Requests > each+2*others/principalsKept+newPrincipal || l.PerSecond != float64(l.Requests) {
			t.Errorf("principal %d: %v %+v", i, ok, l)
		}
	}
	p.tick(begin.Add(time.Minute))
	for range 120 {
		p.add("serviceAccount:busy-3@p.iam")
	}
	if l := p.list(begin.Add(time.Minute + time.Second))[0]; l.PerSecond < float64(each)*0.9/60 {
		t.Errorf("the rate of the minute before is %+v", l)
	}
	p.tick(begin.Add(2 * time.Minute))
	if l := p.list(begin.Add(2 * time.Minute))[0]; l.Principal != "serviceAccount:busy-3@p.iam" || l.PerSecond != 2 {
		t.Errorf("the busiest of the last minute is %+v", l)
	}
}

// TestPrincipalsAtSlots: as many principals as are kept are counted without the lock, whichever
// hashes they have, and all their requests count.
func TestPrincipalsAtSlots(t *testing.T) {
	const tries, each = 20, 3
	for range tries {
		p := newPrincipals()
		count := func() {
			for i := range principalsKept {
				p.add(fmt.Sprintf("user:%d", i))
			}
		}
		count()
		p.mu.Lock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range each - 1 {
				count()
			}
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Error("a request waits for the lock")
		}
		p.mu.Unlock()
		<-done
		for _, l := range p.list(time.Now()) {
			if l.Requests != each {
				t.Errorf("%+v", l)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// TestPrincipalsYoung: rates are shown from the beginning, also when a span ends at once, as it
// does when recording begins.
func TestPrincipalsYoung(t *testing.T) {
	p := newPrincipals()
	p.tick(p.since.Add(time.Millisecond))
	for range 10 {
		p.add("user:a")
	}
	if l := p.list(p.since.Add(5 * time.Second)); len(l) != 1 || l[0].PerSecond != 2 {
		t.Errorf("after 5 s: %+v", l)
	}
}

// TestPrincipalsOfRequests: a request counts for its caller, if that is known.
func TestPrincipalsOfRequests(t *testing.T) {
	m := NewMetrics()
	for range 3 {
		m.RPCDone(&measured.Record{Method: "/a.B/C", Principal: "user:a"}, codes.OK, time.Millisecond, 1, 1)
		m.RPCDone(&measured.Record{Method: "/a.B/C"}, codes.OK, time.Millisecond, 1, 1)
	}
	if l := m.principals.list(time.Now()); len(l) != 1 || l[0].Principal != "user:a" || l[0].Requests != 3 {
		t.Errorf("%+v", l)
	}
}

func BenchmarkPrincipals(b *testing.B) {
	for _, n := range []int{1, 100, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p, names := newPrincipals(), make([]string, n)
			for i := range names {
				names[i] = fmt.Sprintf("serviceAccount:account-%d@project.iam.gserviceaccount.com", i)
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					p.add(names[rand.IntN(n)])
				}
			})
		})
	}
}
