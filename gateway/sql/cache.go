package sql

import (
	"container/list"
	"sync"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/types"
)

// A plan is a statement that was analyzed, and what it depends on. It does not
// change.
type plan struct {
	prepared *query.Prepared
	declared map[string]*types.Type
	metadata *bigtablepb.ResultSetMetadata
	encoded  []byte // metadata
	deps     []dependency
	text     string
	// instance is what it was prepared for.
	instance string
	// lacks says that other callers may have materialized views for it that its caller
	// does not. It is not kept for the statement, only for its token.
	lacks bool
}

// bytes is about what a plan takes: it grows with the text that it is made of.
func (p *plan) bytes() int64 {
	return 8<<10 + 64*int64(len(p.text)) + 4*int64(len(p.encoded))
}

// A planCache keeps the plans that were used last. Its keys are tokens, and hashes of
// what statements are prepared from, which are shorter than any token.
type planCache struct {
	limit int64

	mu      sync.Mutex
	entries map[string]*list.Element
	order   list.List // the most recently used first
	bytes   int64
}

type cachedPlan struct {
	key  string
	plan *plan
	// statement identifies what the key stands for.
	statement hash
	// token is the token that was made of it, good until expires (in seconds since
	// 1970); nil under the key of a token.
	token   []byte
	expires int64
}

func (p *cachedPlan) bytes() int64 { return p.plan.bytes() + int64(len(p.token)+len(p.key)) }

func (c *planCache) get(key []byte) (cachedPlan, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[string(key)]
	if e == nil {
		return cachedPlan{}, false
	}
	c.order.MoveToFront(e)
	return *e.Value.(*cachedPlan), true
}

func (c *planCache) put(p cachedPlan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[string]*list.Element{}
	}
	if e := c.entries[p.key]; e != nil {
		c.removeLocked(e)
	}
	c.entries[p.key] = c.order.PushFront(&p)
	c.bytes += p.bytes()
	for c.bytes > c.limit && c.order.Len() > 0 {
		c.removeLocked(c.order.Back())
	}
}

func (c *planCache) removeLocked(e *list.Element) {
	p := c.order.Remove(e).(*cachedPlan)
	delete(c.entries, p.key)
	c.bytes -= p.bytes()
}
