package client

import (
	"context"
	"sync"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
)

// UpdateRow implements backend.RowUpdater. A server in this process asks decide while it
// holds the row. Another server does not lock the row while decide runs. It carries the
// decision out if the row is still what decide saw; otherwise decide runs again. Callers
// in this process take turns, so that only those of other processes are in the way.
func (c *Client) UpdateRow(ctx context.Context, table string, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	t, err := c.writable(ctx, table)
	if err != nil {
		return false, err
	}
	was := t.Schema()
	repeated, err = c.updateRow(ctx, t, key, token, read, decide)
	if err != nil && c.schemaChanged(ctx, was, err) {
		return c.UpdateRow(ctx, table, key, token, read, decide)
	}
	return repeated, err
}

func (c *Client) updateRow(ctx context.Context, t *catalog.Table, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	var release func()
	defer func() {
		if release != nil {
			release()
		}
	}()
	var seen []byte
	var muts []row.Mutation
	for {
		var cells []row.Cell
		var became rpc.UpdateOutcome
		near := false
		err := c.withTablet(ctx, t, key, func(s rpc.TabletServer, at rpc.Target, _ location) (err error) {
			var u rpc.Updater
			if u, near = s.(rpc.Updater); near {
				repeated, err = u.Update(ctx, at, key, token, read, func(cells []row.Cell) ([]row.Mutation, error) {
					muts, err := decide(cells)
					if err != nil {
						err = errFinal{err} // the caller's, whatever its kind
					}
					return muts, err
				})
				return err
			}
			if release == nil {
				if release, err = c.turns.take(ctx, rowName{t.Schema().ID, string(key)}); err != nil {
					return err
				}
			}
			cells, became, err = s.UpdateRow(ctx, at, key, token, read, seen, muts)
			return err
		})
		if near {
			return repeated, err
		}
		if err != nil || became != rpc.NotApplied {
			return became == rpc.AppliedBefore, err
		}
		if muts, err = decide(cells); err != nil || len(muts) == 0 {
			return false, err
		}
		seen = rpc.Digest(cells)
	}
}

// turns lets one at a time at each row.
type turns struct {
	mu   sync.Mutex
	rows map[rowName]*turn
}

type rowName struct {
	table uint64
	key   string
}

type turn struct {
	busy    chan struct{} // holds one while a caller has the turn
	holders int           // that have it or wait
}

func (t *turns) take(ctx context.Context, name rowName) (release func(), err error) {
	t.mu.Lock()
	if t.rows == nil {
		t.rows = map[rowName]*turn{}
	}
	r := t.rows[name]
	if r == nil {
		r = &turn{busy: make(chan struct{}, 1)}
		t.rows[name] = r
	}
	r.holders++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if r.holders--; r.holders == 0 {
			delete(t.rows, name)
		}
	}
	select {
	case r.busy <- struct{}{}:
		return func() { <-r.busy; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
