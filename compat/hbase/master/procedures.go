package master

import (
	"context"
	"sync"
	"time"

	"github.com/trestledb/trestle/compat/hbase/wire"
)

// A nonce is what a client gives a call that it may send again.
type nonce struct{ group, number uint64 }

const (
	// nonceTime is how long a call is remembered, as in HBase.
	nonceTime = 30 * time.Minute
	// maxNonces bounds how many are; changes of tables are rare.
	maxNonces = 100_000
)

// A call is a change with a nonce.
type call struct {
	done chan struct{} // closed with the rest set
	id   uint64
	err  error
	at   time.Time
}

// procedures gives changes their ids.
type procedures struct {
	mu          sync.Mutex
	first, last uint64
	calls       map[nonce]*call
}

// init begins the ids at start, above those of an earlier process.
func (p *procedures) init(start uint64) {
	p.first, p.last = start+1, start
	p.calls = map[nonce]*call{}
}

// known tells whether id was given to a change, which then has been made.
func (p *procedures) known(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return id >= p.first && id <= p.last
}

// run makes a change and returns its id. A change with the same nonce as an
// earlier one that succeeded is not made again; one under way is waited for.
func (p *procedures) run(ctx context.Context, n nonce, change func() error) (uint64, error) {
	p.mu.Lock()
	if n.number == 0 {
		p.last++
		id := p.last
		p.mu.Unlock()
		return id, change()
	}
	for {
		c := p.calls[n]
		if c == nil {
			break
		}
		p.mu.Unlock()
		select {
		case <-c.done:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if c.err == nil {
			return c.id, nil
		}
		p.mu.Lock()
	}
	now := time.Now()
	if len(p.calls) >= maxNonces {
		for k, c := range p.calls {
			if !c.at.IsZero() && now.Sub(c.at) > nonceTime {
				delete(p.calls, k)
			}
		}
		if len(p.calls) >= maxNonces {
			p.mu.Unlock()
			return 0, wire.PleaseHold.New("too many changes in the last %v", nonceTime)
		}
	}
	p.last++
	c := &call{done: make(chan struct{}), id: p.last}
	p.calls[n] = c
	p.mu.Unlock()

	err := change()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.err, c.at = err, now
	if err != nil {
		delete(p.calls, n) // nothing was done: it may be tried again
	}
	close(c.done)
	return c.id, err
}
