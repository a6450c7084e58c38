package model

import (
	"bytes"
	"context"
	"hash/fnv"
	"slices"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A Place is a server that clients may ask about every region.
type Place struct {
	Server
	// Tablets names the tablet server of the same process, if there is one.
	Tablets string
}

// A Locator calls each with the end of every tablet of a table, in order, and
// the name of the tablet server that has it, empty if none has.
type Locator func(ctx context.Context, table string, each func(end []byte, server string) error) error

// Spread has the regions of the catalog be at several servers. Each is at the
// one which has its tablet, or if no place is there at one that its name
// chooses. Every server answers for every region, so this is about the shortest
// way, and about which servers live. Call it before the catalog is used.
func (c *Catalog) Spread(tablets Locator) { c.tablets = tablets }

// SetPlaces says which servers live. Without any the catalog's own is it.
func (c *Catalog) SetPlaces(places []Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.places = places
}

// Servers returns the servers that live.
func (c *Catalog) Servers() []Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.places) == 0 {
		return []Server{c.server}
	}
	out := make([]Server, len(c.mu.places))
	for i, p := range c.mu.places {
		out[i] = p.Server
	}
	return out
}

// Places returns the servers that live with their tablet servers; none if the
// catalog's own server is the only one.
func (c *Catalog) Places() []Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.mu.places)
}

// Owner returns the name of the tablet server that has a region, as far as it is
// known.
func (c *Catalog) Owner(r *Region) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.mu.layouts[r.TableID]; l != nil {
		return l.owners[r]
	}
	return ""
}

// At returns the server that clients are to ask about a region. Of a computed
// table that is this one.
func (c *Catalog) At(r *Region) Server {
	if r.Table.System() {
		return c.server
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	best, most := c.server, uint64(0)
	owner := ""
	if l := c.mu.layouts[r.TableID]; l != nil {
		owner = l.owners[r]
	}
	for _, p := range c.mu.places {
		if owner != "" && p.Tablets == owner {
			return p.Server
		}
		h := fnv.New64a()
		_, _ = h.Write(r.name)
		_, _ = h.Write([]byte(p.HostPort()))
		if sum := h.Sum64(); sum >= most {
			best, most = p.Server, sum
		}
	}
	return best
}

// tabletsOf returns where the tablets of a table end, and which servers have
// them; nil if there is but one.
func (c *Catalog) tabletsOf(ctx context.Context, t *Table) (ends [][]byte, owners []string, err error) {
	if c.tablets != nil {
		err = c.tablets(ctx, t.Resource, func(end []byte, server string) error {
			ends, owners = append(ends, end), append(owners, server)
			return nil
		})
		return ends, owners, err
	}
	err = c.b.SampleRowKeys(ctx, t.Resource, row.All, func(s scan.Sample) error {
		ends = append(ends, bytes.Clone(s.Key))
		return nil
	})
	if len(ends) == 0 || len(ends[len(ends)-1]) > 0 {
		ends = append(ends, nil)
	}
	return ends, nil, err
}
