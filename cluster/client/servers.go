package client

import (
	"cmp"
	"context"
	"errors"
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
	// Status is nil if the server did not answer within 10 s; Err says why.
	Status *rpc.Status
	Err    error
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
		asking.Go(func() { out[i].Status, out[i].Err = c.o.Dialer.Dial(out[i].Addr).Status(one) })
	}
	asking.Wait()
	return out, ctx.Err()
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
