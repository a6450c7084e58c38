package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
)

// A Server is a tablet server that lives, as the lock service and it itself
// describe it.
type Server struct {
	catalog.Registration
	Draining bool
	// Sum is of all its tablets, nil if the server did not answer within askTimeout; Err says
	// why, and names it.
	Sum *rpc.TabletSum
	Err error
}

// Servers describes the tablet servers that live, in the order of their names.
func (c *Client) Servers(ctx context.Context) ([]Server, error) {
	living, _, err := catalog.Servers(ctx, c.o.Lock)
	if err != nil {
		return nil, err
	}
	drained, err := catalog.Drained(ctx, c.o.Lock)
	if err != nil {
		return nil, err
	}
	var out []Server
	for _, r := range living {
		out = append(out, Server{Registration: r, Draining: drained[r.Name]})
	}
	slices.SortFunc(out, func(a, b Server) int { return cmp.Compare(a.Name, b.Name) })
	one, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for i := range out {
		asking.Go(func() {
			s := &out[i]
			if s.Sum, s.Err = sum(one, c.o.Dialer.Dial(s.Addr), rpc.AllTables); errors.Is(s.Err, context.DeadlineExceeded) {
				s.Err = fault.New(fault.Unavailable, "tablet server %q at %s has not answered within %v", s.Name, s.Addr, askTimeout)
			}
		})
	}
	asking.Wait()
	return out, ctx.Err()
}

// sum is Sum of a server, which may be of an earlier version: that describes each tablet.
func sum(ctx context.Context, s rpc.TabletServer, table uint64) (*rpc.TabletSum, error) {
	sum, err := s.Sum(ctx, table)
	if err == nil || !errors.Is(err, fault.Unimplemented) {
		return sum, err
	}
	details, err := s.Describe(ctx, table, true)
	if err != nil {
		return nil, err
	}
	sum = new(rpc.TabletSum)
	for i := range details {
		d := &details[i]
		sum.Add(&rpc.TabletSum{Tablets: 1, Bytes: d.Bytes, Reads: d.Reads, Writes: d.Writes, Groups: d.Groups, Earlier: d.Earlier})
	}
	return sum, nil
}

// Sizes returns the bytes of the tablets of servers that answer, SSTables and memtables.
func (c *Client) Sizes(ctx context.Context) (map[metadata.TabletID]int64, error) {
	sizes := map[metadata.TabletID]int64{}
	err := c.statuses(ctx, func(s *rpc.Status) {
		for _, t := range s.Tablets {
			sizes[t.Tablet] = t.Bytes
		}
	})
	return sizes, err
}

// Master returns the name of the master, which is empty if no process is it, and how long the
// lock service took to answer.
func (c *Client) Master(ctx context.Context) (name string, took time.Duration, err error) {
	begin := time.Now()
	item, err := c.o.Lock.Get(ctx, catalog.MasterKey)
	took = time.Since(begin)
	if err != nil {
		if errors.Is(err, fault.NotFound) {
			err = nil
		}
		return "", took, err
	}
	var r catalog.Registration
	err = json.Unmarshal(item.Value, &r)
	return r.Name, took, err
}

// AskAny asks a tablet server, any that answers (rpc.Operate.Ask). Another one is asked when
// one fails, or does not answer for askPatience.
func (c *Client) AskAny(ctx context.Context, what string, question []byte) ([]byte, error) {
	registered, _, err := catalog.Servers(ctx, c.o.Lock)
	if err != nil {
		return nil, err
	}
	living := slices.Collect(maps.Values(registered)) // in random order
	ctx, cancel := context.WithTimeout(ctx, askAnyTimeout)
	defer cancel()
	type result struct {
		answer []byte
		err    error
	}
	results := make(chan result, len(living))
	asked, failed := 0, 0
	err = fault.New(fault.Unavailable, "no tablet server lives that could be asked")
	for failed < len(living) {
		if asked < len(living) {
			addr := living[asked].Addr
			go func() {
				answer, err := c.o.Dialer.Dial(addr).Ask(ctx, what, question)
				results <- result{answer, err}
			}()
			asked++
		}
		var patience <-chan time.Time
		if asked < len(living) {
			patience = time.After(askPatience)
		}
		select {
		case r := <-results:
			if k := fault.KindOf(r.err); r.err == nil || k == fault.Invalid || k == fault.NotFound {
				return r.answer, r.err
			}
			err = r.err
			failed++
		case <-patience:
		case <-ctx.Done():
			return nil, fault.New(fault.Unavailable, "no tablet server has answered: %w", ctx.Err())
		}
	}
	return nil, err
}

const (
	// askAnyTimeout is how long servers may read from the store to answer.
	askAnyTimeout = 20 * time.Second
	askPatience   = 2 * time.Second
)

// AskAll asks all tablet servers at once, and calls each with a server's name and its
// answer, or why there is none, one call at a time. It waits until ctx ends at most.
func (c *Client) AskAll(ctx context.Context, what string, question []byte, each func(server string, answer []byte, err error)) error {
	living, _, err := catalog.Servers(ctx, c.o.Lock)
	if err != nil {
		return err
	}
	var asking sync.WaitGroup
	var mu sync.Mutex
	for _, r := range living {
		asking.Go(func() {
			answer, err := c.o.Dialer.Dial(r.Addr).Ask(ctx, what, question)
			mu.Lock()
			defer mu.Unlock()
			each(r.Name, answer, err)
		})
	}
	asking.Wait()
	return nil
}

// AwaitDrained waits until the server of a name has no tablets, and calls left
// with their number whenever it is another. It is FailedPrecondition if the server
// may have tablets again before that.
func (c *Client) AwaitDrained(ctx context.Context, name string, left func(int)) error {
	for last := -1; ; {
		n := 0
		// Before METADATA: a server that has none there then gets none.
		living, drained, err := c.serverState(ctx, name)
		if err == nil && living && !drained {
			return fault.New(fault.FailedPrecondition, "tablet server %q is not drained any more: somebody has undrained it", name)
		}
		if err == nil {
			err = c.Rows(ctx, func(r *metadata.Row) error {
				if a := r.Assignment; a != nil && a.Server == name && a.State != metadata.Unassigned {
					n++
				}
				return nil
			})
		}
		switch {
		case err == nil && n != last:
			left(n)
			last = n
		case err != nil && !errors.Is(err, fault.Unavailable):
			return err
		}
		if err == nil && n == 0 {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TabletAt returns the id of the tablet of a table that serves key.
func (c *Client) TabletAt(ctx context.Context, name string, key []byte) (id metadata.TabletID, err error) {
	t, err := c.resolveTable(ctx, name)
	if err != nil {
		return 0, err
	}
	err = c.withTabletRow(ctx, t, key, func(r *metadata.Row) error {
		id = r.Tablet
		return nil
	})
	return id, err
}

// TabletOf returns the full name of the table that a tablet is of, and the rows
// that it serves. It is NotFound if there is no such tablet.
func (c *Client) TabletOf(ctx context.Context, id metadata.TabletID) (table string, rows row.Range, err error) {
	r, err := c.RowOf(ctx, id)
	if err != nil {
		return "", rows, err
	}
	rows = row.Range{Start: r.Start, End: r.End}
	if r.Table == metastore.Table {
		return metastore.Schema.Name, rows, nil
	}
	t, err := c.o.Schemas.ByID(r.Table)
	if err != nil {
		return "", rows, err
	}
	return t.Schema().Name, rows, nil
}
