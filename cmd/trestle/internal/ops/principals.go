package ops

import (
	"cmp"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// principalsKept is how many principals are counted at a time.
	principalsKept = 256
	// principalSlots are where those are found by hashes of their names, each at one of two.
	principalSlots = 4096
	// principalMoves is how many principals move at most to make room for one. With a slot in
	// sixteen taken, more than two are rare.
	principalMoves = 16
	// newPrincipal is of how many requests of principals that are not at their slots one is
	// looked at, once all places are taken: it counts for so many. So requests of ever new
	// principals cost little.
	newPrincipal = 64
	// rateSpan is how long a rate is measured at least, but for the first.
	rateSpan = 20 * time.Second
)

// principals counts requests by principal: those with most of them, by the space-saving
// algorithm (Metwally and others, 2005). A new principal takes the place of the one with the
// fewest requests, and is taken to have had as many. Once all places are taken, one request
// in newPrincipal of a principal that is not at its slots counts, for as many. So a principal
// with well over one of principalsKept requests is missing by bad luck only.
type principals struct {
	seed  maphash.Seed
	slots [principalSlots]atomic.Pointer[principal] // stored to with the lock
	full  atomic.Bool                               // all places are taken

	mu     sync.Mutex
	by     map[string]*principal
	since  time.Time // of principal.before
	ticked bool      // a span of rateSpan or more has ended
}

// A principal is one that is counted.
type principal struct {
	name  string
	count atomic.Int64
	// before is what count was when the span began, rate what it rose by in a second of the
	// one before. Both are the owner's of principals.mu.
	before int64
	rate   float64
}

// A PrincipalLoad is what a principal asked a process for.
type PrincipalLoad struct {
	Principal string `json:"principal"`
	// Requests is exact while no more than principalsKept principals have asked. Of more, it is
	// an estimate: too high by at most what the one had whose place the principal took. Beside
	// that, sampling adds or leaves out a few times newPrincipal.
	Requests int64 `json:"requests"`
	// PerSecond is that of the minute that is recorded, or of the one before while it is young.
	PerSecond float64 `json:"requests_per_second"`
}

func newPrincipals() *principals {
	return &principals{seed: maphash.MakeSeed(), by: map[string]*principal{}, since: time.Now()}
}

// add counts a request. It costs one addition if the principal is counted already.
func (p *principals) add(name string) {
	h := maphash.String(p.seed, name)
	if x := p.slots[h%principalSlots].Load(); x != nil && x.name == name {
		x.count.Add(1)
		return
	}
	if x := p.slots[h>>32%principalSlots].Load(); x != nil && x.name == name {
		x.count.Add(1)
		return
	}
	n := int64(1)
	if p.full.Load() {
		if n = newPrincipal; rand.Uint32()%newPrincipal != 0 {
			return
		}
	}
	p.find(name).count.Add(n)
}

// slotsOf returns where a principal is found, as add does.
func (p *principals) slotsOf(name string) [2]*atomic.Pointer[principal] {
	h := maphash.String(p.seed, name)
	return [2]*atomic.Pointer[principal]{&p.slots[h%principalSlots], &p.slots[h>>32%principalSlots]}
}

// place puts x at one of its slots. If others are at both, one of them moves to its other slot,
// and so on (cuckoo hashing; Pagh and Rodler, 2001). It is called with the lock.
func (p *principals) place(x *principal) {
	for range principalMoves {
		slots := p.slotsOf(x.name)
		for _, slot := range slots {
			if y := slot.Load(); y == nil || y == x {
				slot.Store(x)
				return
			}
		}
		x = slots[rand.IntN(2)].Swap(x) // at random, or two could change places forever
	}
}

// find returns what counts a principal that is not at its slots, and puts it there.
func (p *principals) find(name string) *principal {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.by[name]
	switch {
	case x != nil:
	case len(p.by) < principalsKept:
		x = &principal{name: strings.Clone(name)}
		p.by[x.name] = x
		p.full.Store(len(p.by) == principalsKept)
	default:
		x = p.replace(name)
	}
	p.place(x)
	return x
}

// replace gives the place of the principal with the fewest requests to a new one. It is called
// with the lock.
func (p *principals) replace(name string) *principal {
	var least *principal
	for _, x := range p.by {
		if least == nil || x.count.Load() < least.count.Load() {
			least = x
		}
	}
	for _, slot := range p.slotsOf(least.name) {
		slot.CompareAndSwap(least, nil)
	}
	delete(p.by, least.name)
	x := &principal{name: strings.Clone(name), before: least.before}
	x.count.Store(least.count.Load())
	p.by[x.name] = x
	return x
}

// tick ends the span in which rates are measured, unless it is too young.
func (p *principals) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := now.Sub(p.since)
	if d < rateSpan {
		return
	}
	for _, x := range p.by {
		n := x.count.Load()
		x.rate, x.before = float64(n-x.before)/d.Seconds(), n
	}
	p.since, p.ticked = now, true
}

// list returns the principals with most requests first.
func (p *principals) list(now time.Time) []PrincipalLoad {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []PrincipalLoad{}
	d := now.Sub(p.since)
	for _, x := range p.by {
		n := x.count.Load()
		l := PrincipalLoad{x.name, n, x.rate}
		if d >= rateSpan || !p.ticked && d > 0 {
			l.PerSecond = float64(n-x.before) / d.Seconds()
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b PrincipalLoad) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Principal, b.Principal))
	})
	return out
}

// listPrincipals is /admin/principals.
func (a *Admin) listPrincipals(q *request) (any, error) {
	if err := q.onServers(); err != nil {
		return nil, err
	}
	out := struct {
		Principals []PrincipalLoad `json:"principals"`
	}{[]PrincipalLoad{}}
	if s := a.self.Load(); s != nil {
		out.Principals = s.Metrics.principals.list(time.Now())
	}
	return out, nil
}
