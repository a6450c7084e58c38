package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/trestledb/trestle/cluster/recovery"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
)

// recover gives the lock service what the store's newest copy of it has, when it
// was lost or restored from an older snapshot.
func (o *operator) recover(ctx context.Context, _ []string) error {
	store, err := o.openStore(ctx, "recover")
	if err != nil {
		return err
	}
	s := &recovery.LockService{Lock: o.n.Lock, SSTables: store.SSTables, Logs: store.Logs, Copies: store.Copies}
	cp, err := s.FindCopy(ctx)
	if err != nil {
		return err
	}
	if cp == nil && o.json {
		return o.print(recovered{})
	}
	if cp == nil {
		fmt.Fprintln(o.p.stdout, "the lock service is not older than the store: there is nothing to recover")
		return nil
	}
	taken := cp.Taken.Format(time.RFC3339)
	found := recovered{Copy: cp.Number, Taken: &cp.Taken, Items: len(cp.Items), Recovered: o.yes}
	if !o.yes && o.json {
		return errors.Join(o.print(found), errNotConfirmed)
	}
	if !o.yes {
		fmt.Fprintf(o.p.stdout, "copy %d was taken at %s and has %d items. Whatever was made after that is lost: tables with their rows, column families, backups, policies. "+
			"No row of another table is. Give --yes to go on.\n", cp.Number, taken, len(cp.Items))
		return errNotConfirmed
	}
	if err := s.Restore(ctx, cp); err != nil {
		return err
	}
	if o.json {
		return o.print(found)
	}
	fmt.Fprintf(o.p.stdout, "the lock service has what it had at %s: start masters and servers, then run `trestle check --online`\n", taken)
	return nil
}

// errNotConfirmed is the error of a command that lacks --yes.
var errNotConfirmed = errors.New("nothing was changed")

// A recovered is what --json prints of recover: the copy that there is, if the lock
// service is older than it, and whether it was brought back.
type recovered struct {
	Copy      uint64     `json:"copy,omitempty"`
	Taken     *time.Time `json:"taken,omitempty"`
	Items     int        `json:"items,omitempty"`
	Recovered bool       `json:"recovered"`
}

// dropDamagedLog gives up what is damaged in the commit log of a server that is
// gone, so that its tablets are served without.
func (o *operator) dropDamagedLog(ctx context.Context, args []string) error {
	wanted, err := parseSegments(args)
	if err != nil {
		return err
	}
	store, err := o.openStore(ctx, "drop-damaged")
	if err != nil {
		return err
	}
	names, err := o.tableNames(ctx)
	if err != nil {
		return err
	}
	logs := &recovery.Logs{Lock: o.n.Lock, Store: store.Logs, Rows: o.rows}
	var all []*recovery.Loss
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		var l *recovery.Loss
		err := o.p.telling(fmt.Sprintf("read commit log %v", id), func(*progress) (err error) {
			l, err = logs.FindLoss(ctx, id, wanted[id])
			return err
		})
		if err != nil {
			return err
		}
		all = append(all, l)
	}
	for _, l := range all {
		o.printLoss(l, names)
	}
	if !o.yes {
		fmt.Fprintln(o.p.stdout, "The loss is for good. A copy of the object that is brought back to its place in the store opens the tablets without any. To give it up all the same, give --yes.")
		return errNotConfirmed
	}
	for _, l := range all {
		if err := logs.GiveUp(ctx, l); err != nil {
			return err
		}
		for _, d := range l.Segments {
			fmt.Fprintf(o.p.stdout, "gave up commit log segment %s\n", d.Object)
		}
	}
	err = o.poll(ctx, "open the tablets", func(g *progress) (bool, error) {
		left, err := logs.CountWaiting(ctx, all)
		g.far("%d left", left)
		return err == nil && left == 0, err
	})
	if err == nil {
		fmt.Fprintln(o.p.stdout, "their tablets are served again")
	}
	return err
}

// parseSegments reads LOG/SEGMENT and LOG, which stands for all segments: nil.
func parseSegments(args []string) (map[commitlog.ID][]uint64, error) {
	wanted := map[commitlog.ID][]uint64{}
	for _, a := range args {
		id, index, ok := commitlog.ParseObject(a)
		if !ok {
			n, err := strconv.ParseUint(a, 16, 64)
			if err != nil || n == 0 || commitlog.ID(n).String() != a {
				return nil, fmt.Errorf("%q is neither LOG/SEGMENT nor LOG: trestle cluster status names what tablets wait for", a)
			}
			wanted[commitlog.ID(n)] = nil
		} else if some, ok := wanted[id]; !ok || some != nil {
			wanted[id] = append(some, index)
		}
	}
	return wanted, nil
}

// printLoss says what giving up segments of a log would lose. names are those of the
// tables, by id.
func (o *operator) printLoss(l *recovery.Loss, names map[uint64]string) {
	out := o.p.stdout
	describe := func(r *metadata.Row) string { return r.Name(names[r.Table]).String() }
	owner := l.Owner
	owner.Name = cmp.Or(owner.Name, "a tablet server")
	fmt.Fprintf(out, "commit log %v of %v, which is gone; %d tablets wait for it:\n", l.Log, owner, len(l.Waiting))
	for _, r := range l.Waiting {
		fmt.Fprintf(out, "  %s\n", describe(r))
	}
	for _, d := range l.Segments {
		what := "missing"
		if d.Size > 0 {
			what = fmt.Sprintf("%s, stored at %s", byteSize(d.Size), d.Stored.UTC().Format(time.RFC3339))
		}
		fmt.Fprintf(out, "segment %s (%s): %v\n", d.Object, what, d.Err)
		if d.Lost == nil {
			fmt.Fprintln(out, "  lost: what it has of any of these tablets: changes that were acknowledged and are in no SSTable; nobody can tell which. Deletions among them too: older values show again")
			continue
		}
		for _, r := range l.Waiting {
			if n, ok := d.Lost[uint64(r.Tablet)]; ok {
				fmt.Fprintf(out, "  lost: %d changes of %s, less those that are in SSTables; deletions among them too: older values show again\n", n, describe(r))
			}
		}
	}
}
