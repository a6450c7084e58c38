package client

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// HotTablets implements backend.HotTabletLister. A server that cannot be asked
// is left out.
func (c *Client) HotTablets(ctx context.Context, parent string) ([]scan.HotTablet, error) {
	parent, _, _ = strings.Cut(parent, "/clusters/")
	names := map[uint64]string{}
	for _, t := range c.o.Schemas.All() {
		if sch := t.Schema(); sch.DeleteTime.IsZero() && strings.HasPrefix(sch.Name, parent+"/tables/") {
			names[sch.ID] = sch.Name
		}
	}
	now := c.o.Now()
	var out []scan.HotTablet
	err := c.statuses(ctx, func(s *rpc.Status) {
		for _, t := range s.Tablets {
			if name, ok := names[t.Table]; ok {
				out = tablet.AppendHot(out, name, row.Range{Start: t.Start, End: t.End}, t.CPU, now)
			}
		}
	})
	scan.SortHot(out)
	return out, err
}

// statuses asks all servers for their status, and calls each with the answers, one at a
// time.
func (c *Client) statuses(ctx context.Context, each func(*rpc.Status)) error {
	return askAll(ctx, c, func(ctx context.Context, s rpc.TabletServer) (*rpc.Status, error) { return s.Status(ctx) },
		func(_ string, s *rpc.Status) { each(s) })
}

// askAll asks all servers something, and calls each with their names and answers, one at a
// time. Those that do not answer are left out.
func askAll[T any](ctx context.Context, c *Client, what func(context.Context, rpc.TabletServer) (T, error), each func(string, T)) error {
	servers, _, err := catalog.Servers(ctx, c.o.Lock)
	if err != nil {
		return err
	}
	one, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, r := range servers {
		asking.Go(func() {
			answer, err := what(one, c.o.Dialer.Dial(r.Addr))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				each(r.Name, answer)
			}
		})
	}
	asking.Wait()
	return ctx.Err()
}

// askTimeout is how long a server has to answer when all are asked: one that hangs
// is not to keep the others' answers back. A server answers from its memory.
const askTimeout = 3 * time.Second
