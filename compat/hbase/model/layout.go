package model

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

// recordRegions begins the keys of the records of layouts, which end with
// table ids. They are what keeps a region's name over starts of the server, and
// the same in every process.
const recordRegions = "hbase/regions/"

func regionsOf(id uint64) string { return fmt.Sprintf("%s%016x", recordRegions, id) }

// A mark is where a region begins, and the region's id.
type mark struct {
	Start []byte `json:",omitempty"`
	ID    uint64
}

// A layout is the regions of a table.
type layout struct {
	// mu is held while the layout is brought up to date.
	mu      sync.Mutex
	version uint64 // of the record that was read last; 0: none

	// Under Catalog.mu:
	regions []*Region
	owners  map[*Region]string // names of tablet servers; nil if there is but one
	checked time.Time
}

// relayout is after what time a request to a region checks that it is still one.
const relayout = 5 * time.Second

// layout returns the layout of a table, which has no regions if it was not read.
func (c *Catalog) layout(id uint64) *layout {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.mu.layouts[id]
	if l == nil {
		l = new(layout)
		c.mu.layouts[id] = l
	}
	return l
}

// Regions returns the regions of a table in the order of rows: its tablets, now.
func (c *Catalog) Regions(ctx context.Context, t *Table) ([]*Region, error) {
	l := c.layout(t.Schema.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.update(ctx, t, l)
}

// update brings a layout up to date. l.mu is held.
func (c *Catalog) update(ctx context.Context, t *Table, l *layout) ([]*Region, error) {
	ends, owners, err := c.tabletsOf(ctx, t)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	have := c.adopt(l, l.regions, ends, owners, now)
	for have == nil {
		// Others may have named these regions: another process, or an earlier one.
		stored, err := c.storedRegions(ctx, t, l)
		if err != nil {
			return nil, err
		}
		if have = c.adopt(l, stored, ends, owners, now); have != nil {
			break
		}
		next, marks := c.name(t, stored, ends, uint64(now.UnixMilli()))
		b, err := json.Marshal(marks)
		if err != nil {
			return nil, err
		}
		version, err := c.b.PutRecord(ctx, regionsOf(t.Schema.ID), b, l.version)
		if errors.Is(err, fault.Aborted) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("names of the regions of table %s: %w", t.Name, err)
		}
		l.version = version
		have = c.adopt(l, next, ends, owners, now)
	}
	return have, nil
}

// adopt makes regions those of the layout, if they are what ends divide.
// Otherwise it returns nil.
func (c *Catalog) adopt(l *layout, regions []*Region, ends [][]byte, owners []string, now time.Time) []*Region {
	if len(regions) != len(ends) {
		return nil
	}
	for i, r := range regions {
		if !bytes.Equal(r.End, ends[i]) {
			return nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.checked = now
	if owners != nil {
		l.owners = make(map[*Region]string, len(regions))
		for i, r := range regions {
			l.owners[r] = owners[i]
		}
	}
	if len(l.regions) > 0 && &l.regions[0] == &regions[0] {
		return regions
	}
	c.dropLocked(l)
	l.regions = regions
	for _, r := range regions {
		c.mu.byName[string(r.name)] = r
		c.mu.byEncoded[r.encoded] = r
	}
	return regions
}

func (c *Catalog) dropLocked(l *layout) {
	for _, r := range l.regions {
		delete(c.mu.byName, string(r.name))
		delete(c.mu.byEncoded, r.encoded)
	}
	l.regions = nil
}

// storedRegions reads the record of a layout.
func (c *Catalog) storedRegions(ctx context.Context, t *Table, l *layout) ([]*Region, error) {
	b, version, err := c.b.GetRecord(ctx, regionsOf(t.Schema.ID))
	if errors.Is(err, fault.NotFound) {
		l.version = 0
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var marks []mark
	if err := json.Unmarshal(b, &marks); err != nil {
		return nil, fault.New(fault.Corruption, "names of the regions of table %s: %w", t.Name, err)
	}
	l.version = version
	known := make(map[string]*Region, len(l.regions))
	for _, r := range l.regions {
		known[string(r.name)] = r
	}
	out := make([]*Region, len(marks))
	for i, m := range marks {
		var end []byte
		if i+1 < len(marks) {
			end = marks[i+1].Start
		}
		out[i] = NewRegion(t.Name, t.Schema.ID, m.Start, end, m.ID)
		if r := known[string(out[i].name)]; r != nil && bytes.Equal(r.End, end) {
			out[i] = r
		}
	}
	return out, nil
}

// name gives the ranges that ends divide their regions. Those that were there
// keep their names; the others get an id above all earlier ones, so that clients
// take them for newer.
func (c *Catalog) name(t *Table, have []*Region, ends [][]byte, now uint64) ([]*Region, []mark) {
	byStart := make(map[string]*Region, len(have))
	id := now
	for _, r := range have {
		byStart[string(r.Start)] = r
		id = max(id, r.ID+1)
	}
	out, marks := make([]*Region, len(ends)), make([]mark, len(ends))
	var start []byte
	for i, end := range ends {
		r := byStart[string(start)]
		if r == nil || !bytes.Equal(r.End, end) {
			r = NewRegion(t.Name, t.Schema.ID, start, end, id)
		}
		out[i], marks[i] = r, mark{r.Start, r.ID}
		start = end
	}
	return out, marks
}

// refresh looks at a table's tablets again, unless another call is at it: of many
// requests, one looks and the others go on.
func (c *Catalog) refresh(ctx context.Context, t *Table) error {
	l := c.layout(t.Schema.ID)
	if !l.mu.TryLock() {
		return nil
	}
	defer l.mu.Unlock()
	_, err := c.update(ctx, t, l)
	return err
}

// learn reads the layout of the table of a region's name, unless that was done
// a moment ago and the region is not newer than all that were there. The name
// may be of an earlier start of the server, or given by another one.
func (c *Catalog) learn(ctx context.Context, name []byte) error {
	table, id := splitName(name)
	if table.System() {
		return nil
	}
	t, err := c.Table(ctx, table)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) {
		return nil
	}
	if err != nil {
		return err
	}
	l := c.layout(t.Schema.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	var newest uint64
	for _, r := range l.regions {
		newest = max(newest, r.ID)
	}
	if id <= newest && time.Since(l.checked) < recheck {
		return nil
	}
	_, err = c.update(ctx, t, l)
	return err
}

// removeRegions forgets the layout of a table that is gone.
func (c *Catalog) removeRegions(ctx context.Context, id uint64) error {
	l := c.layout(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	c.mu.Lock()
	c.dropLocked(l)
	delete(c.mu.layouts, id)
	c.mu.Unlock()
	for {
		_, version, err := c.b.GetRecord(ctx, regionsOf(id))
		if errors.Is(err, fault.NotFound) {
			return nil
		}
		if err == nil {
			err = c.b.DeleteRecord(ctx, regionsOf(id), version)
		}
		if !errors.Is(err, fault.Aborted) {
			return err
		}
	}
}
