package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/sstable"
)

// checkAgain is how long check waits before it looks again at what may only
// have been changing.
const checkAgain = 2 * time.Second

// check holds METADATA against the tables that there are and against the
// store, while the cluster serves: every table's tablets are its key space, each
// is served, and every SSTable that is named is there, of the size that it is
// said to have. With blocks it reads all SSTables and commit logs that METADATA
// names.
func (o *operator) check(ctx context.Context, _ []string) error {
	store, err := o.openStore(ctx, "check")
	if err != nil {
		return err
	}
	objects := objectstore.Sub(store, partSSTables)
	logs := objectstore.Sub(store, partLogs)
	found, err := o.findings(ctx, objects, logs)
	if err == nil && len(found.wrong) > 0 {
		first := found.wrong
		select {
		case <-time.After(checkAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
		// What is wrong twice is not just changing.
		if found, err = o.findings(ctx, objects, logs); err == nil {
			maps.DeleteFunc(found.wrong, func(k string, _ bool) bool { return !first[k] })
		}
	}
	if err != nil {
		return err
	}
	for _, w := range slices.Sorted(maps.Keys(found.wrong)) {
		fmt.Fprintln(o.p.stdout, w)
	}
	wrong, read := len(found.wrong), ""
	if o.blocks {
		r := &reading{o: o, objects: objects, logs: logs, found: found, start: time.Now()}
		if err := r.run(ctx); err != nil {
			return err
		}
		wrong += r.wrong
		read = fmt.Sprintf(" of them %d read (%d entries), %d segments of %d commit logs read (%s in all);", r.sstables, r.entries, r.segments, len(found.logs), byteSize(r.bytes))
	}
	for _, i := range found.loose {
		fmt.Fprintf(o.p.stdout, "unused: SSTable %s, %s, %s old, is named by nothing\n", i.Name, byteSize(i.Size), time.Since(i.Modified).Round(time.Second))
	}
	loose := len(found.loose)
	for _, l := range found.looseLogs {
		loose += l.Segments
		fmt.Fprintf(o.p.stdout, "unused: commit log %v, %d segments, %s, the newest %s old, is needed by no tablet, and its server is gone\n",
			l.ID, l.Segments, byteSize(l.Bytes), time.Since(l.Newest).Round(time.Second))
	}
	fmt.Fprintf(o.p.stdout, "%d findings; %d tables, %d tablets, %d backups, %d SSTables (%s) named;%s %d objects (%s) are named by none: the master sweeps them\n",
		wrong, found.tables, found.tablets, found.backups, found.named, byteSize(found.namedBytes), read, loose, byteSize(found.looseBytes))
	if wrong > 0 {
		return errors.New("the cluster is not as it should be")
	}
	return nil
}

type findings struct {
	wrong                           map[string]bool
	tables, tablets, backups, named int
	namedBytes                      int64
	used                            map[string]use // by object
	logs                            map[uint64]bool
	loose                           []objectstore.Info // SSTables that nothing names, the oldest first
	looseLogs                       []commitlog.Stored // commit logs that have segments which no tablet needs
	looseBytes                      int64              // of both
}

// A use is what a METADATA row says of an SSTable.
type use struct {
	file metadata.FileRef
	by   *metadata.Row
}

func (o *operator) findings(ctx context.Context, objects, logs objectstore.Store) (*findings, error) {
	f := &findings{wrong: map[string]bool{}, used: map[string]use{}, logs: map[uint64]bool{}}
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
	// A log is written to by who was registered before.
	stored, err := commitlog.ListStored(ctx, logs)
	if err != nil {
		return nil, err
	}
	servers, _, err := catalog.Servers(ctx, o.n.lock)
	if err != nil {
		return nil, err
	}
	owners := map[uint64]bool{} // incarnations that live, or that rows name
	for n := range servers {
		owners[n] = true
	}
	tablets := map[uint64][]*metadata.Row{}
	err = o.rows(ctx, func(r *metadata.Row) error {
		tablets[r.Table] = append(tablets[r.Table], r)
		for _, file := range r.Files {
			f.used[file.Object] = use{file, r}
		}
		if a := r.Assignment; a != nil {
			owners[a.Incarnation] = true
			if a.Log != 0 {
				f.logs[a.Log] = true
			}
		}
		return nil
	})
	if errors.Is(err, fault.Corruption) {
		// Its own SSTables are among those that are known.
		wrong("METADATA cannot be read: %v", err)
		names = nil
	} else if err != nil {
		return nil, fmt.Errorf("read METADATA: %w", err)
	}
	whole := err == nil
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
		if strings.HasSuffix(name, deletedMark) {
			continue // its tablets are given up after a while, until it is undeleted
		}
		for _, r := range rows {
			a := r.Assignment
			if a == nil || a.State != metadata.Open {
				wrong("%v is not served", r.Name(name))
			} else if _, ok := servers[a.Incarnation]; !ok {
				wrong("%v is served by %v, which does not live", r.Name(name), a.Owner())
			}
		}
	}
	damaged, err := catalog.DamagedLogs(ctx, o.n.lock)
	if err != nil {
		return nil, err
	}
	if whole {
		byID := map[metadata.TabletID]*metadata.Row{}
		for _, rows := range tablets {
			for _, r := range rows {
				byID[r.Tablet] = r
			}
		}
		damaged = stillWaiting(damaged, byID)
	}
	for _, d := range damaged {
		for _, t := range d.Tablets {
			wrong("commit log segment %s of %s is damaged (%s), and %s is not served without it", t.Object, cmp.Or(d.Server, "a server that is gone"), t.Error, t.Name())
		}
	}
	infos, err := objects.List(ctx, "", "", 0)
	if err != nil {
		return nil, fmt.Errorf("list the store: %w", err)
	}
	f.named = len(f.used)
	there := map[string]bool{}
	for _, i := range infos {
		there[i.Name] = true
		u, ok := f.used[i.Name]
		switch {
		case ok:
			f.namedBytes += i.Size
			if u.file.Size != i.Size {
				wrong("SSTable %s of tablet %v has %d bytes, METADATA says %d", i.Name, u.by.Tablet, i.Size, u.file.Size)
			}
		case whole:
			f.loose = append(f.loose, i)
			f.looseBytes += i.Size
		}
	}
	for _, l := range stored {
		if whole && l.Segments > 0 && !f.logs[uint64(l.ID)] && !owners[catalog.LogOwner(l.ID)] {
			f.looseLogs = append(f.looseLogs, l)
			f.looseBytes += l.Bytes
		}
	}
	slices.SortFunc(f.loose, func(a, b objectstore.Info) int { return a.Modified.Compare(b.Modified) })
	for name, u := range f.used {
		if there[name] {
			continue
		}
		if now, err := o.names(ctx, u, name); err != nil {
			return nil, err
		} else if now {
			f.wrong[missingSSTable(name, u)] = true
		}
	}
	return f, nil
}

func missingSSTable(name string, u use) string {
	return fmt.Sprintf("SSTable %s of tablet %v is not in the store", name, u.by.Tablet)
}

// names tells whether the row of a use still names its object: a compaction may
// have replaced it since METADATA was read.
func (o *operator) names(ctx context.Context, u use, object string) (bool, error) {
	now, err := o.meta.Get(ctx, rpc.TabletKey{Table: u.by.Table, End: u.by.End})
	if errors.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil && slices.ContainsFunc(now.Files, func(r metadata.FileRef) bool { return r.Object == object }), err
}

// A reading reads what METADATA names from end to end, at o.rate bytes per
// second at most.
type reading struct {
	o             *operator
	objects, logs objectstore.Store
	found         *findings

	start, told               time.Time
	bytes, entries            int64
	sstables, segments, wrong int
}

// tellEvery is how often a reading says how far it is.
const tellEvery = 5 * time.Second

// piece is what is read at once of an object.
const piece = 1 << 20

func (r *reading) bad(format string, args ...any) {
	r.wrong++
	fmt.Fprintf(r.o.p.stdout, format+"\n", args...)
}

func (r *reading) run(ctx context.Context) error {
	r.told = r.start
	if r.o.rate > 0 {
		fmt.Fprintf(r.o.p.stderr, "reads %s of SSTables, %s/s at most\n", byteSize(r.found.namedBytes), byteSize(r.o.rate))
	}
	cache := sstable.NewCache(4<<20, 4)
	defer cache.Close()
	for _, name := range slices.Sorted(maps.Keys(r.found.used)) {
		u := r.found.used[name]
		data, err := r.read(ctx, r.objects, name)
		if errors.Is(err, fault.NotFound) {
			var now bool
			if now, err = r.o.names(ctx, u, name); err == nil && now && !r.found.wrong[missingSSTable(name, u)] {
				r.bad("%s", missingSSTable(name, u))
			}
		}
		if err != nil {
			return fmt.Errorf("read SSTable %s: %w", name, err)
		}
		if data == nil {
			continue
		}
		v, err := sstable.Check(ctx, cache, inMemory(data), name, &u.file.Info)
		if err != nil {
			return fmt.Errorf("read SSTable %s: %w", name, err)
		}
		r.sstables++
		r.entries += int64(v.Entries)
		if v.Wrong != "" {
			r.bad("SSTable %s of tablet %v, rows [%s, %s): %s", name, u.by.Tablet, ops.EscapeKey(u.by.Start), ops.EscapeKey(u.by.End), v.Wrong)
		}
	}
	// Tablets have moved, perhaps, and logs are gone since.
	if logs, err := r.o.logs(ctx); err == nil {
		r.found.logs = logs
	} else if !errors.Is(err, fault.Corruption) {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(r.found.logs)) {
		log := commitlog.ID(id)
		// What is written meanwhile is read too, if it comes in time.
		var givenUp commitlog.GivenUp
		c, err := commitlog.CheckSegments(ctx, r.logs, log,
			func(ctx context.Context) (commitlog.Pos, error) {
				state, _, err := catalog.ReadLog(ctx, r.o.n.lock, log)
				givenUp = state.GivenUp
				return state.Kept, err
			},
			func(ctx context.Context, name string) ([]byte, error) { return r.read(ctx, r.logs, name) },
			func(object string, err error) {
				if _, index, ok := commitlog.ParseObject(object); ok && givenUp.Has(index) {
					fmt.Fprintf(r.o.p.stdout, "given up: commit log segment %s: %v\n", object, err)
					return
				}
				r.bad("commit log segment %s: %v", object, err)
			})
		if errors.Is(err, fault.NotFound) {
			r.bad("commit log %v is named by tablets, and the lock service has no item of it", log)
			continue
		}
		if err != nil {
			return err
		}
		r.segments += c.Segments
	}
	return nil
}

// logs returns the commit logs that METADATA names.
func (o *operator) logs(ctx context.Context) (map[uint64]bool, error) {
	out := map[uint64]bool{}
	err := o.rows(ctx, func(r *metadata.Row) error {
		if a := r.Assignment; a != nil && a.Log != 0 {
			out[a.Log] = true
		}
		return nil
	})
	return out, err
}

// read returns what an object holds.
func (r *reading) read(ctx context.Context, store objectstore.Store, name string) (data []byte, err error) {
	f, err := objectstore.OpenStored(ctx, store, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data = make([]byte, f.Size())
	for off := 0; off < len(data); off += piece {
		end := min(off+piece, len(data))
		if err := f.ReadAt(ctx, data[off:end], int64(off)); err != nil {
			return nil, err
		}
		r.bytes += int64(end - off)
		if now := time.Now(); now.Sub(r.told) >= tellEvery {
			r.told = now
			fmt.Fprintf(r.o.p.stderr, "%s read, of %s of SSTables and the commit logs\n", byteSize(r.bytes), byteSize(r.found.namedBytes))
		}
		if r.o.rate <= 0 {
			continue
		}
		due := r.start.Add(time.Duration(float64(r.bytes) / float64(r.o.rate) * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return data, nil
}

// inMemory is an SSTable that was read.
type inMemory []byte

func (b inMemory) Size() int64  { return int64(len(b)) }
func (b inMemory) Close() error { return nil }
func (b inMemory) ReadAt(_ context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > int64(len(b)) {
		return fault.New(fault.Corruption, "%d bytes at %d exceed the %d of the object", len(p), off, len(b))
	}
	copy(p, b[off:])
	return nil
}
