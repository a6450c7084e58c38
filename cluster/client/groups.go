package client

import (
	"context"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/locality"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// updateGroups changes the locality groups of a table, of which the last part of
// the name is enough. Every tablet server knows when it returns.
func (c *Client) updateGroups(ctx context.Context, table string, change func(*schema.Table) error) (*schema.Table, error) {
	t, err := c.resolveTable(ctx, table)
	if err != nil {
		return nil, err
	}
	if isMetadata(t) {
		return nil, fault.New(fault.FailedPrecondition, "METADATA has no locality groups")
	}
	return c.changeLive(ctx, t.Schema().Name, change)
}

// Groups describes the locality groups of a table, the default one first, of which
// the last part of the name is enough. Servers that cannot be asked are left out.
func (c *Client) Groups(ctx context.Context, table string) (name string, groups []tablet.GroupInfo, err error) {
	t, err := c.resolveTable(ctx, table)
	if err != nil {
		return "", nil, err
	}
	sch := t.Schema()
	all := tablet.NewGroupSum(sch)
	err = askAll(ctx, c, func(ctx context.Context, s rpc.TabletServer) (*rpc.TabletSum, error) { return sum(ctx, s, sch.ID) },
		func(_ string, of *rpc.TabletSum) {
			states := map[uint16]tablet.GroupState{}
			for id, g := range of.Groups {
				states[id] = tablet.GroupState(g)
			}
			all.Add(states, tablet.GroupState(of.Earlier))
		})
	if err != nil {
		return "", nil, err
	}
	return sch.Name, all.Groups(), nil
}

// CreateGroup adds a locality group without families to a table. It is
// AlreadyExists if there is one of that name. g.ID is given out.
func (c *Client) CreateGroup(ctx context.Context, table string, g schema.Group) (*schema.Table, error) {
	return c.updateGroups(ctx, table, func(t *schema.Table) error { return locality.Create(t, g) })
}

// SetGroup changes the settings of a locality group. New SSTables get them from now on,
// all others in the next major compaction that is asked for. Whether SSTables are kept in
// memory changes for all at once.
func (c *Client) SetGroup(ctx context.Context, table, name string, change func(*schema.Group) error) (*schema.Table, error) {
	return c.updateGroups(ctx, table, func(t *schema.Table) error { return locality.Set(t, name, change) })
}

// DeleteGroup removes a locality group that has no families.
func (c *Client) DeleteGroup(ctx context.Context, table, name string) (*schema.Table, error) {
	return c.updateGroups(ctx, table, func(t *schema.Table) error { return locality.Delete(t, name) })
}

// AssignFamilies makes families of a table those of a locality group. Nothing is
// rewritten before it returns: SSTables that are there serve on, and compactions
// divide them anew in the background.
func (c *Client) AssignFamilies(ctx context.Context, table, name string, families []string) (*schema.Table, error) {
	newID, err := c.newIDs(ctx)
	if err != nil {
		return nil, err
	}
	return c.updateGroups(ctx, table, func(t *schema.Table) error { return locality.Assign(t, name, families, newID) })
}

// A description is what a server tells of its tablets.
type description struct {
	server  string
	tablets []rpc.TabletDetail
}

// describe asks all servers for the tablets of a table, or of all.
func (c *Client) describe(ctx context.Context, table uint64) ([]description, error) {
	var out []description
	err := askAll(ctx, c, func(ctx context.Context, s rpc.TabletServer) ([]rpc.TabletDetail, error) {
		return s.Describe(ctx, table, false)
	}, func(server string, of []rpc.TabletDetail) { out = append(out, description{server, of}) })
	return out, err
}

// details returns the servers' descriptions of the tablets of a table by tablet.
func (c *Client) details(ctx context.Context, table uint64) (map[metadata.TabletID]*rpc.TabletDetail, error) {
	answers, err := c.describe(ctx, table)
	out := map[metadata.TabletID]*rpc.TabletDetail{}
	for _, of := range byTable(answers) {
		for _, d := range of {
			out[d.Tablet] = d.TabletDetail
		}
	}
	return out, err
}
