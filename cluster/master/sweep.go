package master

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A sweeper deletes what nothing names any more: SSTables, and the segments and
// items of commit logs of incarnations that have ended.
//
// A pass looks at the whole of METADATA and judges only if what it saw is whole. The rows
// of each table and backup, of which there were any at the end of the pass, must tile the
// key space. Then no row was missed, even if tablets were split and merged meanwhile. And
// none may be under way at the end of it. A backup, or a table being restored from one,
// has names in hand that are in no row yet. After that, a name that was not seen can only
// come from the object's writer, which has not named it yet. So an object is deleted if
// two passes did not see it and, in between, every server said that it neither reads it
// nor is about to name it. Its writer must be one of these servers, or be gone for good.
// Gone means neither registered nor named by any row, so that it cannot change one either.
// The servers are asked before the second pass looks: what they have named by then, it
// sees. And the newest copy of the lock service is of later than the first pass: recovery
// from one finds what it names.
type sweeper struct {
	m *master
	// unused says since when an object is unreferenced, and idle since when a log is, of
	// those that were so in the last pass.
	unused map[string]time.Time
	idle   map[commitlog.ID]time.Time
	// ends are the fences of the logs that were sealed in an earlier pass.
	ends map[commitlog.ID]commitlog.Pos
	// litter says since when there are segments of a log without an item. A put leaves
	// them that arrived when its log had been deleted.
	litter map[commitlog.ID]time.Time
	// indexes has the change files of the index objects that rows named in the last pass,
	// 16 bytes each: an index object never changes.
	indexes map[string][]indexedFile
}

// An indexedFile is a change file that an index object names.
type indexedFile struct {
	id uint64
	hi cell.Seq
}

// errMetadataChanging says that a pass saw METADATA change and learned nothing.
var errMetadataChanging = errors.New("METADATA was changing")

// seen is what a pass saw.
type seen struct {
	objects map[string]bool // those that rows name
	owners  map[uint64]bool // incarnations that live, or that rows name
	logs    map[uint64]bool // that rows name
	// indexes are the index objects that rows name, each with the smallest of their
	// StreamState.Since.
	indexes map[string]cell.Seq
	// unread says that there is an index object that cannot be read: any change file may be
	// one of its.
	unread bool
}

// look reads everything that names something.
func (w *sweeper) look(ctx context.Context) (*seen, error) {
	s := &seen{objects: map[string]bool{}, owners: map[uint64]bool{}, logs: map[uint64]bool{}, indexes: map[string]cell.Seq{}}
	tables := map[uint64][]*metadata.Row{}
	take := func(r *metadata.Row) error {
		r.Objects(func(object string) { s.objects[object] = true })
		if r.Stream != nil {
			for i := range r.Stream.Indexes {
				object := r.Stream.Indexes[i].Object
				if since, ok := s.indexes[object]; !ok || r.Stream.Since < since {
					s.indexes[object] = r.Stream.Since
				}
			}
		}
		if a := r.Assignment; a != nil {
			s.logs[a.Log] = true
			if a.State != metadata.Unassigned {
				s.owners[a.Incarnation] = true
			}
		}
		// Rows come in the order of their ends, and may come twice.
		list := tables[r.Table]
		if n := len(list); n > 0 && bytes.Equal(list[n-1].End, r.End) {
			list = list[:n-1]
		}
		tables[r.Table] = append(list, r)
		return nil
	}
	if err := w.m.meta.Scan(ctx, take); err != nil {
		return nil, err
	}
	roots, err := w.m.meta.Roots(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range roots {
		if err := take(r); err != nil {
			return nil, err
		}
	}
	// Backups before tables: a table that is made of a backup which is deleted
	// at once is one of the two then.
	want := []uint64{metastore.Table}
	backups, err := catalog.Backups(ctx, w.m.o.Lock, "")
	if err != nil {
		return nil, err
	}
	for _, b := range backups {
		if !b.Made {
			return nil, fmt.Errorf("%w: backup %s is being made", errMetadataChanging, b.Name)
		}
		want = append(want, catalog.BackupTable(b.ID))
	}
	items, _, err := w.m.o.Lock.List(ctx, catalog.TablesPrefix)
	if err != nil {
		return nil, err
	}
	for _, i := range items {
		n, err := catalog.ParseName(i)
		if err != nil {
			return nil, err
		}
		for _, t := range n {
			if t.Pending {
				return nil, fmt.Errorf("%w: table %s is being made", errMetadataChanging, t.Name)
			}
			want = append(want, t.ID)
		}
	}
	for _, id := range want {
		if !metadata.Tile(tables[id]) {
			return nil, fmt.Errorf("%w: the rows of table %x do not tile the key space", errMetadataChanging, id)
		}
	}
	servers, _, err := catalog.Servers(ctx, w.m.o.Lock)
	if err != nil {
		return nil, err
	}
	for n := range servers {
		s.owners[n] = true
	}
	return s, w.lookInto(ctx, s)
}

// lookInto adds to what a pass saw the change files that index objects name. One that a row
// named in this pass is there, whatever has become of the row since: only a pass deletes.
func (w *sweeper) lookInto(ctx context.Context, s *seen) error {
	indexes := map[string][]indexedFile{}
	for object, since := range s.indexes {
		files, ok := w.indexes[object]
		if !ok {
			f, err := w.m.o.Objects.Open(ctx, object)
			var refs []changes.Ref
			if err == nil {
				refs, err = changes.ReadIndex(ctx, f, object)
			}
			switch kind := fault.KindOf(err); {
			case kind == fault.Corruption || kind == fault.NotFound:
				w.m.o.Log.Warn("an index of change files cannot be read, and no change file is deleted", "object", object, "error", err)
				s.unread = true
				continue
			case err != nil:
				return err
			}
			for i := range refs {
				files = append(files, indexedFile{refs[i].ID, refs[i].Hi})
			}
		}
		indexes[object] = files
		for _, f := range files {
			if f.hi > since {
				s.objects[changes.FileName(f.id)] = true
			}
		}
	}
	w.indexes = indexes
	return nil
}

// pass looks once and deletes what it may. It returns how many objects.
func (w *sweeper) pass(ctx context.Context) (int, error) {
	if err := w.m.checkNotRolledBack(ctx); err != nil {
		return 0, err
	}
	spared, asked, err := w.ask(ctx)
	if err != nil {
		return 0, err
	}
	// The list first: what is named later was not there yet, or was named before.
	objects, err := w.m.o.Objects.List(ctx, "", "", 0)
	if err != nil {
		return 0, fmt.Errorf("list objects: %w", err)
	}
	logs, err := catalog.Logs(ctx, w.m.o.Lock)
	if err != nil {
		return 0, err
	}
	var stored []commitlog.Stored
	if w.m.o.Logs != nil {
		if stored, err = commitlog.ListStored(ctx, w.m.o.Logs); err != nil {
			return 0, err
		}
	}
	s, err := w.look(ctx)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	unused := map[string]time.Time{}
	var doomed []string
	for _, o := range objects {
		writer, ok := writerOf(o.Name)
		if !ok || s.objects[o.Name] || s.unread && changes.IsFile(o.Name) {
			continue
		}
		since, before := w.unused[o.Name]
		if !before {
			since = now
		}
		unused[o.Name] = since
		if before && !spared[o.Name] && (asked[writer] || !s.owners[writer]) && (w.m.copier == nil || w.m.copier.Covers(since)) {
			doomed = append(doomed, o.Name)
		}
	}
	w.unused = unused
	deleted := 0
	for _, name := range doomed {
		if err := w.m.o.Objects.Delete(ctx, name); err != nil {
			return deleted, fmt.Errorf("delete object %s: %w", name, err)
		}
		delete(w.unused, name)
		deleted++
	}
	if deleted > 0 {
		w.m.o.Log.Info("deleted objects that nothing names", "objects", deleted)
	}
	if err := w.forgetDamage(ctx, s); err != nil {
		return deleted, err
	}
	for id := range logs {
		err := w.log(ctx, s, id, now)
		if errors.Is(err, fault.Corruption) {
			w.m.o.Log.Warn("a commit log that nobody needs is damaged, and is not deleted", "log", id.String(), "error", err)
			continue
		}
		if err != nil {
			return deleted, err
		}
	}
	for id := range w.idle {
		if _, ok := logs[id]; !ok {
			delete(w.idle, id)
			delete(w.ends, id)
		}
	}
	return deleted, w.collectLitter(ctx, s, logs, stored, now)
}

// collectLitter deletes the segments of logs that have no item and cannot be needed: the
// creator of a log makes its item first. Its fences stay.
func (w *sweeper) collectLitter(ctx context.Context, s *seen, logs map[commitlog.ID]lock.Item, stored []commitlog.Stored, now time.Time) error {
	litter := map[commitlog.ID]time.Time{}
	for _, l := range stored {
		if _, ok := logs[l.ID]; ok || l.Segments == 0 || s.owners[catalog.LogOwner(l.ID)] || s.logs[uint64(l.ID)] {
			continue
		}
		since, before := w.litter[l.ID]
		if !before {
			since = now
		}
		litter[l.ID] = since
		if !before || now.Sub(since) < 10*w.m.o.ServerTTL {
			continue
		}
		if err := commitlog.TrimSealed(ctx, w.m.o.Logs, l.ID, commitlog.Pos{Log: l.ID + 1}); err != nil {
			return err
		}
		w.m.o.Log.Info("deleted segments of a commit log that is no more", "log", l.ID.String(), "segments", l.Segments)
	}
	w.litter = litter
	return nil
}

// writerOf returns the incarnation that wrote an SSTable, a change file or an index object;
// ok is false of other objects.
func writerOf(object string) (incarnation uint64, ok bool) {
	hex, _, _ := strings.Cut(object, ".")
	id, err := strconv.ParseUint(hex, 16, 64)
	return id >> 32, err == nil && (object == metadata.ObjectName(id) || object == changes.FileName(id) || object == changes.IndexName(id))
}

// ask asks every server which of the objects that were unused in the last pass it
// reads or is about to name. It fails if one cannot be asked.
func (w *sweeper) ask(ctx context.Context) (spared map[string]bool, asked map[uint64]bool, err error) {
	spared, asked = map[string]bool{}, map[uint64]bool{}
	if len(w.unused) == 0 {
		return spared, asked, nil
	}
	servers, _, err := catalog.Servers(ctx, w.m.o.Lock)
	if err != nil {
		return nil, nil, err
	}
	names := slices.Sorted(maps.Keys(w.unused))
	for n, server := range servers {
		for part := range slices.Chunk(names, 1000) {
			used, err := w.m.o.Dialer.Dial(server.Addr).Needed(ctx, part)
			if err != nil {
				return nil, nil, fmt.Errorf("ask %s which objects it uses: %w", server.Name, err)
			}
			for _, o := range used {
				spared[o] = true
			}
		}
		asked[n] = true
	}
	return spared, asked, nil
}

// log sees to one log. A log that cannot be needed any more is sealed. In a later pass, if
// that is still so, its segments and its item are deleted; its fence stays for ever. An
// incarnation that begins makes its logs before it registers, so it may be taken for one
// that has ended. Then it finds its logs sealed when it has registered, and does not
// begin.
func (w *sweeper) log(ctx context.Context, s *seen, id commitlog.ID, now time.Time) error {
	if s.owners[catalog.LogOwner(id)] || s.logs[uint64(id)] {
		delete(w.idle, id)
		delete(w.ends, id)
		return nil
	}
	since, before := w.idle[id]
	if !before {
		w.idle[id] = now
		return nil
	}
	if now.Sub(since) < 10*w.m.o.ServerTTL {
		return nil // it may be beginning
	}
	if c := w.m.copier; c != nil && id == catalog.MetadataLog(catalog.LogOwner(id)) && !c.Covers(since) {
		return nil // the newest copy may need it, and METADATA have changed since
	}
	end, sealed := w.ends[id]
	if !sealed {
		l, err := catalog.SealLog(ctx, w.m.o.Lock, w.m.o.Logs, id)
		if err == nil {
			w.ends[id] = l.End
		}
		return err
	}
	if err := commitlog.TrimSealed(ctx, w.m.o.Logs, id, end); err != nil {
		return err
	}
	item, err := w.m.o.Lock.Get(ctx, catalog.LogKey(id))
	if err != nil {
		return err
	}
	delete(w.ends, id)
	delete(w.idle, id)
	w.m.o.Log.Info("deleted a commit log that nobody needs", "log", id.String())
	return w.m.o.Lock.Delete(ctx, catalog.LogKey(id), item.Version)
}

// forgetDamage removes what was noted of damaged logs that no row names any more:
// tables were deleted whose tablets waited for them.
func (w *sweeper) forgetDamage(ctx context.Context, s *seen) error {
	damaged, err := catalog.DamagedLogs(ctx, w.m.o.Lock)
	for _, d := range damaged {
		if err == nil && !s.logs[uint64(d.Log)] {
			err = catalog.NoteOpened(ctx, w.m.o.Lock, d.Log)
		}
	}
	return err
}

// sweepAlways does passes until ctx ends.
func (m *master) sweepAlways(ctx context.Context) {
	if m.o.Objects == nil || m.o.Sweep < 0 {
		return
	}
	w := &sweeper{m: m, unused: map[string]time.Time{}, idle: map[commitlog.ID]time.Time{}, ends: map[commitlog.ID]commitlog.Pos{}}
	tick := time.NewTicker(m.o.Sweep)
	defer tick.Stop()
	wait := m.o.Sweep
	var soon <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.o.Garbage:
			if first := min(sweepSoon, m.o.Sweep); soon == nil || wait > first {
				wait, soon = first, time.After(first)
			}
			continue
		case <-soon:
		case <-tick.C:
		}
		_, err := w.pass(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, errMetadataChanging):
			m.o.Log.Debug("swept nothing", "error", err)
		default:
			m.o.Log.Warn("sweep", "error", err)
		}
		// What is left may be in use for long.
		if soon = nil; wait < m.o.Sweep && (err != nil || len(w.unused) > 0) {
			wait = min(2*wait, m.o.Sweep)
			soon = time.After(wait)
		}
	}
}

// sweepSoon is how long after word of garbage the first pass is, half of the time
// before the second one.
const sweepSoon = time.Second
