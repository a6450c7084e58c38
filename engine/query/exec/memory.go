package exec

import (
	"errors"
	"sync/atomic"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
)

// Limits are what queries may take.
type Limits struct {
	// Query is the memory of one query, and Memory of all, in bytes.
	Query, Memory int64
	// Dir is where queries spill to; empty is the system's temporary directory. Spill is
	// how much all queries may write there, in bytes.
	Dir   string
	Spill int64
	// Free returns how many bytes are free where Dir is, and KeepFree is how many are left
	// to others: a query that would take them is refused. A nil Free does not look.
	Free     func() int64
	KeepFree int64
}

// A Pool is the memory and the disk that all queries of a server share. It is safe for
// concurrent use.
type Pool struct {
	limits         Limits
	memory, spills atomic.Int64
	unseen         atomic.Int64 // written since Free was asked
	tablets        tabletEnds
}

// NewPool returns a Pool. Limits of 0 are 64 MiB a query, four times that for all, and
// 64 GiB of disk.
func NewPool(l Limits) *Pool {
	if l.Query <= 0 {
		l.Query = 64 << 20
	}
	if l.Memory <= 0 {
		l.Memory = 4 * l.Query
	}
	if l.Spill <= 0 {
		l.Spill = 64 << 30
	}
	return &Pool{limits: l}
}

// Used returns the bytes of memory and of disk that queries hold.
func (p *Pool) Used() (memory, spilled int64) { return p.memory.Load(), p.spills.Load() }

// freeEvery is how many bytes are written between looks at what is free.
const freeEvery = 16 << 20

// spillRoom takes n bytes of disk for an operator.
func (p *Pool) spillRoom(name string, n int64) error {
	if p.spills.Add(n) > p.limits.Spill {
		p.spills.Add(-n)
		return fault.New(fault.Exhausted, "%s has no room to spill %d more bytes: all queries may spill %d bytes", name, n, p.limits.Spill)
	}
	if p.limits.Free == nil || p.unseen.Add(n) < freeEvery && p.spills.Load() > n {
		return nil
	}
	p.unseen.Store(0)
	if free := p.limits.Free(); free < n+p.limits.KeepFree {
		p.unseen.Store(freeEvery) // the next one looks too
		p.spills.Add(-n)
		return fault.New(fault.Exhausted, "%s has no room to spill %d more bytes: %d bytes are free on the disk, of which queries leave %d", name, n, free, p.limits.KeepFree)
	}
	return nil
}

// account is the memory of one query.
type account struct {
	pool *Pool
	used atomic.Int64
}

// mostReserve bounds what is reserved for operators that cannot spill. Four tablets that
// are read at a time are some 5 MiB ahead.
const mostReserve = 8 << 20

// reserve is the part of limit that an operator which can spill leaves to others: a scan
// must not fail because a sort holds all memory.
func reserve(limit int64) int64 { return min(limit/4, mostReserve) }

// take asks for n bytes and tells whether they were there. needed says that the operator
// cannot do without.
func (a *account) take(n int64, needed bool) bool {
	query, memory := a.pool.limits.Query, a.pool.limits.Memory
	if !needed {
		query, memory = query-reserve(query), memory-reserve(memory)
	}
	if a.used.Add(n) > query {
		a.used.Add(-n)
		return false
	}
	if a.pool.memory.Add(n) > memory {
		a.pool.memory.Add(-n)
		a.used.Add(-n)
		return false
	}
	return true
}

// force takes n bytes whether they are there or not.
func (a *account) force(n int64) {
	a.used.Add(n)
	a.pool.memory.Add(n)
}

func (a *account) release(n int64) {
	a.used.Add(-n)
	a.pool.memory.Add(-n)
}

// othersReason is the reason of an error of memory that other queries hold: the same query
// may have it later.
const othersReason = "MEMORY_OF_OTHERS"

// OfQuery tells whether an error says that a query needs more memory than one may take,
// whatever others hold.
func OfQuery(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Kind == fault.Exhausted && f.Reason != othersReason
}

// An operator may always hold leastShare bytes, so that small tables do not spill
// because of large ones, and leastNeed before it fails: a batch and its like.
const (
	leastShare = 16 << 10
	leastNeed  = 1 << 20
)

// share is what one operator holds of its query's account.
type share struct {
	account *account
	// name is what messages call the operator.
	name       string
	held, peak int64
	stats      *algebra.Stats // what is spilled counts there, if it is set
}

// grow makes the operator's share n bytes larger, and tells whether there was room. If
// there was none the operator spills, or does without.
func (s *share) grow(n int64) bool { return s.take(n, false) }

func (s *share) take(n int64, needed bool) bool {
	if n > 0 && !s.account.take(n, needed) {
		if s.held+n > leastShare {
			return false
		}
		s.account.force(n)
	}
	if n < 0 {
		s.account.release(-n)
	}
	s.held += n
	s.peak = max(s.peak, s.held)
	return true
}

// set makes the share n bytes.
func (s *share) set(n int64) bool { return s.grow(n - s.held) }

// need is grow for an operator that cannot do without.
func (s *share) need(n int64) error {
	if s.take(n, true) {
		return nil
	}
	if s.held+n <= leastNeed {
		s.force(n)
		return nil
	}
	err := fault.New(fault.Exhausted, "%s needs %d more bytes of memory, and holds %d: the query may take %d bytes",
		s.name, n, s.held, s.account.pool.limits.Query)
	if s.account.used.Load()+n <= s.account.pool.limits.Query {
		err.Reason = othersReason
	}
	return err
}

// force is grow whether there is room or not.
func (s *share) force(n int64) {
	s.account.force(n)
	s.held += n
	s.peak = max(s.peak, s.held)
}

// free gives all back.
func (s *share) free() {
	s.account.release(s.held)
	s.held = 0
}
