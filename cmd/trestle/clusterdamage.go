package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// damage is what tablets wait for, as the lock service had it lately.
func (n *node) damage() []catalog.DamagedLog {
	if d := n.damaged.Load(); d != nil {
		return *d
	}
	return nil
}

// warnings has a line for each damaged segment that tablets wait for.
func (n *node) warnings() (lines []string) {
	for _, d := range n.damage() {
		byObject := map[string][]catalog.WaitingTablet{}
		for _, t := range d.Tablets {
			byObject[t.Object] = append(byObject[t.Object], t)
		}
		for _, object := range slices.Sorted(maps.Keys(byObject)) {
			ts := byObject[object]
			line := fmt.Sprintf("commit log segment %s of %s is damaged (%s) since %s; not served without it: ", object, cmp.Or(d.Server, "a server that is gone"), ts[0].Error, ts[0].Since.UTC().Format(time.RFC3339))
			for i, t := range ts {
				if i == 8 {
					line += fmt.Sprintf("; and %d tablets more", len(ts)-i)
					break
				}
				if i > 0 {
					line += "; "
				}
				line += t.Name().String()
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// A damageCollector is a metric with a time series for each tablet that waits for
// a damaged commit log.
type damageCollector struct{ n *node }

var damageDesc = prometheus.NewDesc("bigtable_cluster_tablet_waits_for_damaged_log",
	"1 for each tablet that is not served because a segment of the commit log of a server that is gone is damaged.", []string{"table", "tablet", "object"}, nil)

func (c damageCollector) Describe(ch chan<- *prometheus.Desc) { ch <- damageDesc }

func (c damageCollector) Collect(ch chan<- prometheus.Metric) {
	seen := map[metadata.TabletID]bool{}
	for _, d := range c.n.damage() {
		for _, t := range d.Tablets {
			if !seen[t.Tablet] {
				seen[t.Tablet] = true
				ch <- prometheus.MustNewConstMetric(damageDesc, prometheus.GaugeValue, 1, t.Table, t.Tablet.String(), t.Object)
			}
		}
	}
}

// dropDamagedLog gives up what is damaged in the commit log of a server that is
// gone, so that its tablets are served without.
func (o *operator) dropDamagedLog(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("say what is to be given up, as LOG/SEGMENT, or LOG for all that is damaged of it: trestle cluster status names what tablets wait for")
	}
	store, err := o.openStore(ctx, "drop-damaged-log")
	if err != nil {
		return err
	}
	wanted := map[commitlog.ID]map[uint64]bool{} // nil: all
	for _, a := range args {
		id, index, ok := commitlog.ParseObject(a)
		if !ok {
			n, err := strconv.ParseUint(a, 16, 64)
			if err != nil || n == 0 || commitlog.ID(n).String() != a {
				return fmt.Errorf("%q is neither LOG/SEGMENT nor LOG: trestle cluster status names what tablets wait for", a)
			}
			wanted[commitlog.ID(n)] = nil
		} else if only, ok := wanted[id]; !ok || only != nil {
			if only == nil {
				wanted[id] = map[uint64]bool{}
			}
			wanted[id][index] = true
		}
	}
	var all []*losing
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		l, err := o.losses(ctx, objectstore.Sub(store, partLogs), id, wanted[id])
		if err != nil {
			return err
		}
		all = append(all, l)
	}
	for _, l := range all {
		l.print(o)
	}
	if !o.yes {
		fmt.Fprintln(o.p.stdout, "The loss is for good. A copy of the object that is brought back to its place in the store opens the tablets without any. To give it up all the same, give --yes.")
		return errors.New("nothing was changed")
	}
	for _, l := range all {
		if err := catalog.GiveUp(ctx, o.n.lock, l.log, l.givenUp()); err != nil {
			return err
		}
		for _, d := range l.damage {
			fmt.Fprintf(o.p.stdout, "gave up commit log segment %s\n", d.Object)
		}
	}
	return o.poll(ctx, "open the tablets", func() (bool, error) {
		left := 0
		err := o.rows(ctx, func(r *metadata.Row) error {
			for _, l := range all {
				if catalog.WaitsFor(r, l.log) {
					left++
				}
			}
			return nil
		})
		if err != nil || left > 0 {
			if left > 0 {
				// Something else may be damaged, which was not to be given up.
				err = o.othersDamaged(ctx, all)
			}
			return false, err
		}
		fmt.Fprintln(o.p.stdout, "their tablets are served again")
		return true, nil
	})
}

// losing is what giving up a part of a log loses.
type losing struct {
	log     commitlog.ID
	server  string
	waiting []*metadata.Row
	names   map[uint64]string // of tables
	damage  []commitlog.Damage
}

func (l *losing) givenUp() commitlog.GivenUp {
	var g commitlog.GivenUp
	for _, d := range l.damage {
		g = g.With(d.Index, slices.Sorted(maps.Keys(d.Lost)))
	}
	return g
}

// losses returns what is damaged of a log and needed, of all of it or of some
// segments. It refuses if there is nothing.
func (o *operator) losses(ctx context.Context, logs objectstore.Store, id commitlog.ID, only map[uint64]bool) (*losing, error) {
	if id == catalog.MetadataLog(catalog.LogOwner(id)) {
		return nil, fmt.Errorf("commit log %v is of METADATA: without its changes METADATA would name SSTables that were deleted since, and not name others that have rows. "+
			"Bring the segment back from a copy of the store; without one, restore all of the store from a copy", id)
	}
	state, _, err := catalog.ReadLog(ctx, o.n.lock, id)
	if errors.Is(err, fault.NotFound) {
		return nil, fmt.Errorf("there is no commit log %v", id)
	}
	if err != nil {
		return nil, err
	}
	servers, _, err := catalog.Servers(ctx, o.n.lock)
	if err != nil {
		return nil, err
	}
	if s, ok := servers[catalog.LogOwner(id)]; ok {
		return nil, fmt.Errorf("commit log %v is that of tablet server %s, which lives and has in memory what is in it: nothing is lost. `trestle cluster flush` its tablets, and the log is needed no more", id, s.Name)
	}
	l := &losing{log: id, server: cmp.Or(state.Server, "a tablet server")}
	if l.names, err = o.tableNames(ctx); err != nil {
		return nil, err
	}
	err = o.rows(ctx, func(r *metadata.Row) error {
		if catalog.WaitsFor(r, id) {
			l.waiting = append(l.waiting, r)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read METADATA: %w", err)
	}
	if len(l.waiting) == 0 {
		return nil, fmt.Errorf("no tablet waits for commit log %v: it stays", id)
	}
	if !state.Frozen {
		return nil, fmt.Errorf("nobody has taken tablets over from commit log %v yet: is there a master, and a tablet server?", id)
	}
	found, err := commitlog.FindDamage(ctx, logs, id, state.Kept, state.GivenUp)
	if err != nil {
		return nil, err
	}
	for _, d := range found {
		needed := d.Lost == nil
		for _, r := range l.waiting {
			_, lost := d.Lost[uint64(r.Tablet)]
			needed = needed || lost
		}
		if needed && (only == nil || only[d.Index]) {
			l.damage = append(l.damage, d)
			delete(only, d.Index)
		}
	}
	for index := range only {
		return nil, fmt.Errorf("segment %d of commit log %v is not damaged, or no tablet that waits needs what is damaged in it: it stays", index, id)
	}
	if len(l.damage) == 0 {
		return nil, fmt.Errorf("nothing is damaged in commit log %v: it stays", id)
	}
	return l, nil
}

func (l *losing) print(o *operator) {
	out := o.p.stdout
	describe := func(r *metadata.Row) string { return r.Name(l.names[r.Table]).String() }
	fmt.Fprintf(out, "commit log %v of %v, which is gone; %d tablets wait for it:\n", l.log, metadata.ServerName{Name: l.server, Incarnation: catalog.LogOwner(l.log)}, len(l.waiting))
	for _, r := range l.waiting {
		fmt.Fprintf(out, "  %s\n", describe(r))
	}
	for _, d := range l.damage {
		what := "missing"
		if d.Size > 0 {
			what = fmt.Sprintf("%s, stored at %s", byteSize(d.Size), d.Stored.UTC().Format(time.RFC3339))
		}
		fmt.Fprintf(out, "segment %s (%s): %v\n", d.Object, what, d.Err)
		if d.Lost == nil {
			fmt.Fprintln(out, "  lost: what it has of any of these tablets: changes that were acknowledged and are in no SSTable; nobody can tell which. Deletions among them too: older values show again")
			continue
		}
		for _, r := range l.waiting {
			if n, ok := d.Lost[uint64(r.Tablet)]; ok {
				fmt.Fprintf(out, "  lost: %d changes of %s, less those that are in SSTables; deletions among them too: older values show again\n", n, describe(r))
			}
		}
	}
}

// othersDamaged returns an error if tablets wait for something else in the logs.
func (o *operator) othersDamaged(ctx context.Context, all []*losing) error {
	logs, err := catalog.DamagedLogs(ctx, o.n.lock)
	if err != nil {
		return err
	}
	for _, d := range logs {
		for _, l := range all {
			if d.Log != l.log {
				continue
			}
			for _, t := range d.Tablets {
				id, index, ok := commitlog.ParseObject(t.Object)
				given := slices.ContainsFunc(l.damage, func(x commitlog.Damage) bool { return x.Index == index })
				if ok && id == l.log && !given {
					return fmt.Errorf("%s waits for segment %s too: %s", t.Name(), t.Object, strings.TrimSuffix(t.Error, "\n"))
				}
			}
		}
	}
	return nil
}
