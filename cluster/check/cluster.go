package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// ClusterOptions say which cluster is checked, and how.
type ClusterOptions struct {
	Lock lock.Service
	// Dialer reaches the tablet servers.
	Dialer rpc.Dialer
	// Objects has the SSTables, Logs the commit logs.
	Objects, Logs objectstore.Store
	// Blocks has every SSTable and commit log that METADATA names read from end to end,
	// past all copies. It reads Rate bytes per second at most (0: no bound). Tell, if set,
	// is called after each read, with how many bytes that were, and how many SSTables have.
	Blocks bool
	Rate   int64
	Tell   func(bytes, of int64)

	stopped bool // no process serves
	// roots are the rows of METADATA tablets as the last servers left them.
	roots  []*metadata.Row
	broken string // why METADATA cannot be recovered; "" if it is
}

// recheckDelay is how long Cluster waits before it looks again at findings that may only
// be changes under way.
const recheckDelay = 2 * time.Second

// logsDir is where findings say that commit logs are.
const logsDir = "log"

// Cluster compares METADATA of a running cluster with the tables that there are and with
// the store. Every table's tablets must be its key space, each served by a living server.
// Every SSTable that is named must be there, of the right size. It looks at every finding
// twice. It calls report with each finding and changes nothing.
func Cluster(ctx context.Context, o ClusterOptions, report func(Finding)) (Summary, error) {
	c, found, err := o.inspect(ctx)
	if err == nil && c.sum.Damaged > 0 && !o.stopped {
		select {
		case <-time.After(recheckDelay):
		case <-ctx.Done():
			return Summary{}, ctx.Err()
		}
		first := map[Finding]bool{}
		for _, f := range found {
			first[f] = true
		}
		if c, found, err = o.inspect(ctx); err == nil {
			// A finding that is there twice is no change under way.
			found = slices.DeleteFunc(found, func(f Finding) bool { return !f.Harmless && !first[f] })
		}
	}
	if err != nil {
		return Summary{}, err
	}
	c.sum.Damaged, c.sum.Harmless = 0, 0
	c.report = report
	for _, f := range found {
		c.add(f)
	}
	return c.sum, c.readContents(ctx)
}

// A cluster is the result of one look at a cluster.
type cluster struct {
	*tables
	o    ClusterOptions
	meta *metastore.Store
	// owners are the incarnations that live or that rows name. logs are the commit logs
	// that rows name.
	servers map[uint64]catalog.Registration
	owners  map[uint64]bool
	logs    map[uint64]bool
	there   map[string]objectstore.Info // SSTables
}

// inspect checks everything but the content of SSTables and logs.
func (o ClusterOptions) inspect(ctx context.Context) (c *cluster, found []Finding, err error) {
	r := &reporter{report: func(f Finding) { found = append(found, f) },
		doRestore: "bring back what is missing or damaged from a copy of the store, else restore a backup made before"}
	c = &cluster{tables: newTables(r), o: o, meta: metastore.New(o.Lock, o.Dialer)}
	// Before the rows: rows do not name objects that are stored later.
	if err := c.readItems(ctx, o.Lock); err != nil {
		return nil, nil, err
	}
	// A log's writer was registered before it wrote.
	stored, err := commitlog.ListStored(ctx, o.Logs)
	if err != nil {
		return nil, nil, err
	}
	if c.servers, _, err = catalog.Servers(ctx, o.Lock); err != nil {
		return nil, nil, err
	}
	if o.broken != "" {
		c.damage("METADATA", c.doRestore, "cannot be recovered, so no tablet can be found: %s", o.broken)
	} else if err := c.readRows(ctx, c.scan); err != nil {
		return nil, nil, err
	}
	if err := c.readIncarnation(ctx, o.Lock); err != nil {
		return nil, nil, err
	}
	c.checkRows()
	c.checkAssignments()
	if err := c.reportWaiting(ctx); err != nil {
		return nil, nil, err
	}
	if err := c.readIndexes(ctx, tabletsDir, o.Objects); err != nil {
		return nil, nil, err
	}
	if c.there, err = c.stored(ctx, tabletsDir, o.Objects, c.rows != nil); err != nil {
		return nil, nil, err
	}
	for _, l := range stored {
		if c.rows != nil && l.Segments > 0 && !c.logs[uint64(l.ID)] && !c.owners[catalog.LogOwner(l.ID)] {
			c.unused(fmt.Sprintf("%s/%v", logsDir, l.ID), l.Bytes, l.Segments, l.Newest, fmt.Sprintf("no tablet needs its %d segments, and its server is gone", l.Segments))
		}
	}
	return c, found, c.read(ctx, tabletsDir, o.Objects, nil, c.there, true, func(u *usedObject) (bool, error) { return c.replaced(ctx, u) })
}

// scan calls each with the METADATA rows of all tablets, METADATA's own first.
func (c *cluster) scan(ctx context.Context, each func(*metadata.Row) error) error {
	roots, err := c.meta.Roots(ctx)
	for _, r := range roots {
		err = errors.Join(err, each(r))
	}
	if err != nil || len(roots) == 0 {
		return err
	}
	return c.meta.Scan(ctx, each)
}

// checkAssignments checks that tablets are served, by servers that live.
func (c *cluster) checkAssignments() {
	c.owners, c.logs = map[uint64]bool{}, map[uint64]bool{}
	for n := range c.servers {
		c.owners[n] = true
	}
	for _, r := range c.o.roots {
		c.noteOwner(r)
	}
	for _, id := range slices.Sorted(maps.Keys(c.rows)) {
		sch := c.schemas[id]
		// Those of a deleted table are given up after a while, until it is undeleted.
		served := !c.o.stopped && (id == metastore.Table || sch != nil && sch.DeleteTime.IsZero())
		for _, r := range c.rows[id] {
			c.noteOwner(r)
			if !served {
				continue
			}
			const do = "see what the master logs of it"
			if a := r.Assignment; a == nil || a.State != metadata.Open {
				c.damage(c.tabletName(r), do, "is not served")
			} else if _, ok := c.servers[a.Incarnation]; !ok {
				c.damage(c.tabletName(r), do, "is served by %v, which does not live", a.Owner())
			}
		}
	}
}

// noteOwner notes which server and which commit log a row names.
func (c *cluster) noteOwner(r *metadata.Row) {
	if a := r.Assignment; a != nil {
		c.owners[a.Incarnation] = true
		if a.Log != 0 {
			c.logs[a.Log] = true
		}
	}
}

// reportWaiting reports tablets that wait for a damaged commit log.
func (c *cluster) reportWaiting(ctx context.Context) error {
	damaged, err := catalog.DamagedLogs(ctx, c.o.Lock)
	if err != nil {
		return err
	}
	if c.rows != nil {
		byID := map[metadata.TabletID]*metadata.Row{}
		for id, rows := range c.rows {
			for _, r := range rows {
				if !catalog.IsBackupTable(id) {
					byID[r.Tablet] = r
				}
			}
		}
		damaged = catalog.StillWaiting(damaged, byID)
	}
	for _, d := range damaged {
		for _, t := range d.Tablets {
			c.damage(logsDir+"/"+t.Object, "bring the segment back from a copy of the store, or see what trestle log drop-damaged would give up",
				"of %s, is damaged (%s), and %s is not served without it", cmp.Or(d.Server, "a server that is gone"), t.Error, t.Name())
		}
	}
	return nil
}

// replaced tells whether no row names an SSTable any more: a compaction may have
// replaced it since METADATA was read.
func (c *cluster) replaced(ctx context.Context, u *usedObject) (bool, error) {
	for _, r := range u.by {
		now, err := c.meta.Get(ctx, rpc.TabletKey{Table: r.Table, End: r.End})
		if err != nil && !errors.Is(err, fault.NotFound) {
			return false, err
		}
		named := false
		if err == nil {
			now.Objects(func(object string) {
				named = named || object == u.ref.Object || u.through != "" && object == u.through && u.changes.Hi > now.Stream.Since
			})
		}
		if named {
			return false, nil
		}
	}
	return true, nil
}

// readContents reads what METADATA names from end to end, if that is wanted.
func (c *cluster) readContents(ctx context.Context) error {
	if !c.o.Blocks {
		return nil
	}
	r := newPacedReader(c.o.Rate, c.o.Tell)
	defer r.close()
	// Missing SSTables were reported.
	for path := range c.objects {
		if _, ok := c.there[path]; !ok {
			delete(c.objects, path)
		}
	}
	err := c.read(ctx, tabletsDir, c.o.Objects, r, c.there, true, func(u *usedObject) (bool, error) { return c.replaced(ctx, u) })
	if err != nil {
		return err
	}
	// Tablets have moved, perhaps, and logs are gone since.
	logs := map[uint64]bool{}
	for _, r := range c.o.roots {
		if a := r.Assignment; a != nil && a.Log != 0 {
			logs[a.Log] = true
		}
	}
	if c.rows == nil {
		return nil
	}
	err = c.scan(ctx, func(r *metadata.Row) error {
		if a := r.Assignment; a != nil && a.Log != 0 {
			logs[a.Log] = true
		}
		return nil
	})
	if errors.Is(err, fault.Corruption) {
		logs, err = c.logs, nil
	}
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(logs)) {
		if err := c.segments(ctx, r, commitlog.ID(id)); err != nil {
			return err
		}
	}
	return nil
}

// segments reads a commit log. Segments that are written meanwhile are read too, if they
// come in time.
func (c *cluster) segments(ctx context.Context, r *pacedReader, log commitlog.ID) error {
	var givenUp commitlog.GivenUp
	got, err := commitlog.CheckSegments(ctx, c.o.Logs, log,
		func(ctx context.Context) (commitlog.Pos, error) {
			state, _, err := catalog.ReadLog(ctx, c.o.Lock, log)
			givenUp = state.GivenUp
			return state.Kept, err
		},
		func(ctx context.Context, name string) ([]byte, error) { return r.whole(ctx, c.o.Logs, name) },
		func(object string, err error) {
			if _, index, ok := commitlog.ParseObject(object); ok && givenUp.Has(index) {
				c.note(logsDir+"/"+object, "nothing", "was given up: %v", err)
				return
			}
			c.damage(logsDir+"/"+object, c.doRestore, "%v", err)
		})
	if errors.Is(err, fault.NotFound) {
		c.damage(fmt.Sprintf("%s/%v", logsDir, log), c.doRestore, "is named by tablets, and the lock service has no item of it")
		return nil
	}
	c.sum.LogSegments += int64(got.Segments)
	return err
}
