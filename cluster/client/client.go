package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
)

// Options are the settings of a Client. Lock, Dialer and Schemas are needed.
type Options struct {
	Lock   lock.Service
	Dialer rpc.Dialer
	// Schemas are the tables as this process follows them.
	Schemas *catalog.Schemas
	// Now is the clock of schemas. Default time.Now.
	Now func() time.Time
	// Near says that the tablet server is in this process: as a call takes no round
	// trip, nothing is read ahead.
	Near bool
	// Ended, if not nil, is closed when no tablet will be served any more. Calls do not
	// wait for one then.
	Ended <-chan struct{}
	// Waited, if set, is called with how long a call waited for a tablet that was not
	// served when it was asked first.
	Waited func(time.Duration)
}

// A Client reads and writes the tables of a cluster. It is a gateway backend.
type Client struct {
	o        Options
	meta     *metastore.Store
	Counters Counters

	turns turns

	// tables are the cached locations of each table's tablets. A map is never changed: mu
	// is held by the caller that replaces it.
	tables atomic.Pointer[map[uint64]*locations]
	mu     sync.Mutex
}

// New returns a Client.
func New(o Options) *Client {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Waited == nil {
		o.Waited = func(time.Duration) {}
	}
	c := &Client{o: o, meta: metastore.New(o.Lock, o.Dialer).Until(o.Ended)}
	c.tables.Store(&map[uint64]*locations{})
	return c
}

// Metadata returns the METADATA that the Client reads.
func (c *Client) Metadata() *metastore.Store { return c.meta }

// newIDs claims a range of unique numbers above 2^32. It returns a function that gives
// them out, which is not safe for concurrent use. Each operation claims a range of its
// own. A kept range could have been given out before, by a lock service that was put back
// to an earlier state and has been recovered since.
func (c *Client) newIDs(ctx context.Context) (func() uint64, error) {
	n, err := catalog.ClaimIncarnation(ctx, c.o.Lock)
	last := n << 32
	return func() uint64 {
		last++
		return last
	}, err
}
