package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// checkAgain is how long check waits before it looks again at what may only
// have been changing.
const checkAgain = 2 * time.Second

// check holds METADATA against the tables that there are and against the
// store, while the cluster serves: every table's tablets are its key space, each
// is served, and every SSTable that is named is there, of the size that it is
// said to have.
func (o *operator) check(ctx context.Context, _ []string) error {
	if o.n.cfg.Store == "" {
		return errors.New("check needs --store, as the servers have it")
	}
	store, err := openObjects(ctx, &o.n.cfg.Node, "check")
	if err != nil {
		return err
	}
	objects := objectstore.Sub(store, partSSTables)
	found, err := o.findings(ctx, objects)
	if err == nil && len(found.wrong) > 0 {
		first := found.wrong
		select {
		case <-time.After(checkAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
		// What is wrong twice is not just changing.
		if found, err = o.findings(ctx, objects); err == nil {
			maps.DeleteFunc(found.wrong, func(k string, _ bool) bool { return !first[k] })
		}
	}
	if err != nil {
		return err
	}
	for _, w := range slices.Sorted(maps.Keys(found.wrong)) {
		fmt.Fprintln(o.p.stdout, w)
	}
	fmt.Fprintf(o.p.stdout, "%d findings; %d tables, %d tablets, %d backups, %d SSTables (%s) named; %d objects (%s) are named by none: the master sweeps them\n",
		len(found.wrong), found.tables, found.tablets, found.backups, found.named, byteSize(found.namedBytes), found.loose, byteSize(found.looseBytes))
	if len(found.wrong) > 0 {
		return errors.New("the cluster is not as it should be")
	}
	return nil
}

type findings struct {
	wrong                           map[string]bool
	tables, tablets, backups, named int
	namedBytes                      int64
	loose                           int
	looseBytes                      int64
}

func (o *operator) findings(ctx context.Context, objects objectstore.Store) (*findings, error) {
	f := &findings{wrong: map[string]bool{}}
	wrong := func(format string, args ...any) { f.wrong[fmt.Sprintf(format, args...)] = true }
	// Before the rows: what is stored later is not named by those.
	names, err := o.tableNames(ctx)
	if err != nil {
		return nil, err
	}
	backups, err := catalog.Backups(ctx, o.n.lock, "")
	if err != nil {
		return nil, err
	}
	for _, b := range backups {
		if b.Made {
			f.backups++
			names[catalog.BackupTable(b.ID)] = "backup " + b.Name
		}
	}
	servers, _, err := catalog.Servers(ctx, o.n.lock)
	if err != nil {
		return nil, err
	}
	tablets := map[uint64][]*metadata.Row{}
	type use struct {
		size int64
		by   *metadata.Row
	}
	used := map[string]use{}
	err = o.rows(ctx, func(r *metadata.Row) error {
		tablets[r.Table] = append(tablets[r.Table], r)
		for _, file := range r.Files {
			used[file.Object] = use{file.Size, r}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read METADATA: %w", err)
	}
	for id, name := range names {
		rows := tablets[id]
		if !metadata.Tile(rows) {
			wrong("%s: its %d tablets are not its key space without gap or overlap", name, len(rows))
		}
		if catalog.IsBackupTable(id) {
			continue
		}
		f.tables++
		f.tablets += len(rows)
		for _, r := range rows {
			a := r.Assignment
			if a == nil || a.State != metadata.Open {
				wrong("%s: tablet %x, rows [%s, %s), is not served", name, uint64(r.Tablet), ops.EscapeKey(r.Start), ops.EscapeKey(r.End))
			} else if _, ok := servers[a.Incarnation]; !ok {
				wrong("%s: tablet %x is served by %s, which does not live", name, uint64(r.Tablet), a.Server)
			}
		}
	}
	infos, err := objects.List(ctx, "", "", 0)
	if err != nil {
		return nil, fmt.Errorf("list the store: %w", err)
	}
	f.named = len(used)
	for _, i := range infos {
		u, ok := used[i.Name]
		if !ok {
			f.loose++
			f.looseBytes += i.Size
			continue
		}
		f.namedBytes += i.Size
		if u.size != i.Size {
			wrong("SSTable %s of tablet %x has %d bytes, METADATA says %d", i.Name, uint64(u.by.Tablet), i.Size, u.size)
		}
		delete(used, i.Name)
	}
	for name, u := range used {
		// A compaction may have replaced it since METADATA was read.
		now, err := o.meta.Get(ctx, rpc.TabletKey{Table: u.by.Table, End: u.by.End})
		if errors.Is(err, fault.NotFound) || err == nil && !slices.ContainsFunc(now.Files, func(r metadata.FileRef) bool { return r.Object == name }) {
			continue
		}
		if err != nil {
			return nil, err
		}
		wrong("SSTable %s of tablet %x is not in the store", name, uint64(u.by.Tablet))
	}
	return f, nil
}
