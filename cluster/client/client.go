package client

import (
	"context"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	cmeta "github.com/trestledb/trestle/cluster/metadata"
	"github.com/trestledb/trestle/cluster/rpc"
)

// Options are what a Client works with. All are needed, except Now and Waited.
type Options struct {
	Lock   lock.Service
	Dialer rpc.Dialer
	// Schemas are the tables as this process follows them.
	Schemas *catalog.Schemas
	// NewID returns a number that nobody else gets, above 2^32.
	NewID func() uint64
	// Now is the clock of schemas. Default time.Now.
	Now func() time.Time
	// Waited, if set, is told how long a call waited for a tablet that was not
	// served when it was asked first.
	Waited func(time.Duration)
}

// A Client reads and writes the tables of a cluster. It is a gateway backend.
type Client struct {
	o        Options
	meta     *cmeta.Store
	Counters Counters

	turns turns

	mu     sync.Mutex
	tables map[uint64]*locations
}

// New returns a Client.
func New(o Options) *Client {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Waited == nil {
		o.Waited = func(time.Duration) {}
	}
	return &Client{o: o, meta: cmeta.New(o.Lock, o.Dialer), tables: map[uint64]*locations{}}
}

// Metadata returns the METADATA that the Client reads.
func (c *Client) Metadata() *cmeta.Store { return c.meta }

// NewIDs claims a range of numbers and returns a function that gives them out.
func NewIDs(ctx context.Context, l lock.Service) (func() uint64, error) {
	n, err := catalog.ClaimIncarnation(ctx, l)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	last := n << 32
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		last++
		return last
	}, nil
}
