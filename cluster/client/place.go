package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// Rows calls each with the METADATA rows of all tablets, METADATA's own first.
func (c *Client) Rows(ctx context.Context, each func(*metadata.Row) error) error {
	roots, err := c.meta.Roots(ctx)
	if err != nil {
		return err
	}
	for _, r := range roots {
		if err := each(r); err != nil {
			return err
		}
	}
	if len(roots) == 0 {
		return nil
	}
	return c.meta.Scan(ctx, each)
}

// RowOf returns the METADATA row of a tablet, or NotFound.
func (c *Client) RowOf(ctx context.Context, id metadata.TabletID) (*metadata.Row, error) {
	var found *metadata.Row
	err := c.Rows(ctx, func(r *metadata.Row) error {
		if r.Tablet == id {
			found = r
			return errStop
		}
		return nil
	})
	switch {
	case found != nil:
		return found, nil
	case err == nil:
		err = fault.New(fault.NotFound, "there is no tablet %v", id)
	}
	return nil, err
}

// rowAt returns the METADATA row of the tablet of a table that holds key.
func (c *Client) rowAt(ctx context.Context, table uint64, key []byte) (*metadata.Row, error) {
	rows, err := c.meta.Lookup(ctx, table, key, 1)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 || bytes.Compare(rows[0].Start, key) > 0 {
		return nil, fmt.Errorf("tablet of row %q: it is being split or merged: %w", key, rpc.ErrNotServing)
	}
	return rows[0], nil
}

// retryNotServing calls do again, up to maxServingWait, while its error is ErrNotServing.
func (c *Client) retryNotServing(ctx context.Context, do func() error) error {
	end := time.Now().Add(maxServingWait)
	for attempt := 0; ; attempt++ {
		err := do()
		if !errors.Is(err, rpc.ErrNotServing) || time.Now().After(end) || c.backoff(ctx, attempt) != nil {
			return err
		}
	}
}

// serverOf returns the server of a tablet.
func (c *Client) serverOf(r *metadata.Row) (rpc.TabletServer, error) {
	if a := r.Assignment; a != nil && a.State == metadata.Open {
		return c.o.Dialer.Dial(a.Addr), nil
	}
	return nil, fmt.Errorf("tablet %v: %w at the moment", r.Tablet, rpc.ErrNotServing)
}

// Split splits a tablet at a row key, or where its server thinks best if that is
// empty.
func (c *Client) Split(ctx context.Context, r *metadata.Row, at []byte) error {
	s, err := c.serverOf(r)
	if err != nil {
		return err
	}
	return s.Split(ctx, r.Tablet, at)
}

// Merge merges a tablet with the next one of its table, which it moves to the
// same server first.
func (c *Client) Merge(ctx context.Context, left *metadata.Row) error {
	if len(left.End) == 0 {
		return fault.New(fault.FailedPrecondition, "tablet %v is the last of its table", left.Tablet)
	}
	s, err := c.serverOf(left)
	if err != nil {
		return err
	}
	right, err := c.rowAt(ctx, left.Table, left.End)
	if err != nil {
		return err
	}
	here := left.Assignment.Server
	if err := c.requireLiving(ctx, here); err != nil {
		return err
	}
	// Neither may be moved away meanwhile.
	var pins []pin
	for _, r := range []*metadata.Row{left, right} {
		var p pin
		if p, err = c.pin(ctx, r.Tablet, here); err != nil {
			break
		}
		pins = append(pins, p)
	}
	if err == nil {
		err = c.awaitServedAt(ctx, right, here)
	}
	if err == nil {
		err = s.Merge(ctx, left.Tablet, right.Tablet)
	}
	errs := []error{err}
	for _, p := range pins {
		errs = append(errs, c.unpin(ctx, p, err != nil))
	}
	return errors.Join(errs...)
}

// Move moves a tablet to the server of a name, and returns when it is served there. With
// stay the master leaves it there until another Move.
func (c *Client) Move(ctx context.Context, r *metadata.Row, server string, stay bool) error {
	if err := c.requireLiving(ctx, server); err != nil {
		return err
	}
	p, err := c.pin(ctx, r.Tablet, server)
	if err != nil {
		return err
	}
	err = c.awaitServedAt(ctx, r, server)
	if !stay || err != nil {
		err = errors.Join(err, c.unpin(ctx, p, err != nil))
	}
	return err
}

// requireLiving is NotFound, with the names that there are, if no living server has a name.
func (c *Client) requireLiving(ctx context.Context, name string) error {
	servers, _, err := catalog.Servers(ctx, c.o.Lock)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range servers {
		if s.Name == name {
			return nil
		}
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return fault.New(fault.NotFound, "no living server is called %q; there are: %s", name, strings.Join(names, ", "))
}

// A pin names the server that is to serve a tablet.
type pin struct {
	key, server string
	before      []byte // the server that was named before; nil if none was
}

// pin names the server that is to serve a tablet.
func (c *Client) pin(ctx context.Context, id metadata.TabletID, server string) (pin, error) {
	p := pin{key: catalog.PinKey(id), server: server}
	for {
		i, err := c.o.Lock.Get(ctx, p.key)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return p, err
		}
		p.before = i.Value
		switch _, err := c.o.Lock.Put(ctx, p.key, []byte(server), i.Version); {
		case err == nil:
			return p, nil
		case !errors.Is(err, fault.Aborted):
			return p, errors.Join(err, c.unpin(ctx, p, true)) // it may have been done
		}
	}
}

// unpin ends that, or undoes it, unless another caller has named another server meanwhile.
func (c *Client) unpin(ctx context.Context, p pin, undo bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for {
		i, err := c.o.Lock.Get(ctx, p.key)
		switch {
		case errors.Is(err, fault.NotFound), err == nil && string(i.Value) != p.server:
			return nil
		case err != nil:
			return err
		case undo && p.before != nil:
			_, err = c.o.Lock.Put(ctx, p.key, p.before, i.Version)
		default:
			err = c.o.Lock.Delete(ctx, p.key, i.Version)
		}
		if !errors.Is(err, fault.Aborted) {
			return err
		}
	}
}

// Drain has the master move all tablets away from the server of a name, and give
// it none. It is NotFound if there is no such server: none lives, none has a
// tablet, and none was drained before.
func (c *Client) Drain(ctx context.Context, name string) error {
	known, drained, err := c.serverState(ctx, name)
	if err != nil || drained {
		return err
	}
	if !known {
		err := c.Rows(ctx, func(r *metadata.Row) error {
			if a := r.Assignment; a != nil && a.Server == name {
				known = true
				return errStop
			}
			return nil
		})
		switch {
		case known:
		case err != nil:
			return err
		default:
			return noServer(name)
		}
	}
	_, err = c.o.Lock.Put(ctx, catalog.DrainingPrefix+name, []byte("operator"), 0)
	if errors.Is(err, fault.Aborted) {
		return nil // it was drained meanwhile
	}
	return err
}

// Undrain ends what Drain began. It is NotFound if there is no such server, and
// FailedPrecondition if it is not drained.
func (c *Client) Undrain(ctx context.Context, name string) error {
	was, err := removeItem(ctx, c.o.Lock, catalog.DrainingPrefix+name)
	if err != nil || was {
		return err
	}
	known, _, err := c.serverState(ctx, name)
	switch {
	case err != nil:
		return err
	case known:
		return fault.New(fault.FailedPrecondition, "tablet server %s is not being drained", name)
	}
	return noServer(name)
}

// serverState tells whether the server of a name lives or is drained.
func (c *Client) serverState(ctx context.Context, name string) (known, drained bool, err error) {
	servers, _, err := catalog.Servers(ctx, c.o.Lock)
	if err != nil {
		return false, false, err
	}
	names, err := catalog.Drained(ctx, c.o.Lock)
	for _, s := range servers {
		known = known || s.Name == name
	}
	return known || names[name], names[name], err
}

func noServer(name string) error {
	return fault.New(fault.NotFound, "there is no tablet server %q", name)
}

// removeItem deletes an item of the lock service, whatever its version, and
// tells whether there was one.
func removeItem(ctx context.Context, l lock.Service, key string) (bool, error) {
	for {
		i, err := l.Get(ctx, key)
		if errors.Is(err, fault.NotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if err := l.Delete(ctx, key, i.Version); !errors.Is(err, fault.Aborted) {
			return err == nil, err
		}
	}
}

// awaitServedAt waits until a tablet that is pinned to the server of a name is served there.
func (c *Client) awaitServedAt(ctx context.Context, r *metadata.Row, server string) error {
	for {
		there, err := c.isServedAt(ctx, r, server)
		if there || err != nil && !errors.Is(err, fault.Unavailable) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("move tablet %v to %s: it was not done in time (is there a master?): %w", r.Tablet, server, context.Cause(ctx))
		}
	}
}

// isServedAt tells whether a tablet is served by the living server of a name, which may
// have been started again since it was given the tablet. It is FailedPrecondition if the
// tablet will not come there, NotFound if its table was deleted, and Aborted if there is
// no such tablet any more.
func (c *Client) isServedAt(ctx context.Context, r *metadata.Row, server string) (bool, error) {
	if t, err := c.o.Schemas.ByID(r.Table); err == nil && !t.Schema().DeleteTime.IsZero() {
		return false, fault.New(fault.NotFound, "table %s was deleted meanwhile", t.Schema().Name)
	}
	now, err := c.meta.Get(ctx, rpc.TabletKey{Table: r.Table, End: r.End})
	switch {
	case err == nil && now.Tablet != r.Tablet, errors.Is(err, fault.NotFound):
		return false, fault.New(fault.Aborted, "tablet %v was split or merged meanwhile", r.Tablet)
	case err != nil:
		return false, err
	}
	if a := now.Assignment; a != nil && a.State == metadata.Open && a.Server == server {
		servers, _, err := catalog.Servers(ctx, c.o.Lock)
		if err != nil || servers[a.Incarnation].Name == server {
			return err == nil, err
		}
	}
	drained, err := catalog.Drained(ctx, c.o.Lock)
	if err == nil && drained[server] {
		err = fault.New(fault.FailedPrecondition, "tablet server %s is being drained, so it gets no tablet", server)
	}
	return false, err
}
