package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// serverName is the name of a transfer's tablet server.
const serverName = "transfer"

// maxChanges is how many changes of METADATA rows are made together, each of which is
// durable when it returns. loadBatch is how many tablets are opened together, by one
// replay of each log.
const (
	maxChanges = 16
	loadBatch  = 1024
	// maxRounds is far more than are needed: three if splits were under way.
	maxRounds = 100
)

// A dialer reaches the tablet server of this process, the only one there is.
type dialer struct {
	server atomic.Pointer[tabletserver.Server]
}

// Dial implements rpc.Dialer.
func (d *dialer) Dial(string) rpc.TabletServer { return d.server.Load() }

// A quiescing is a side whose tablets are being flushed and given up.
type quiescing struct {
	server *tabletserver.Server
	meta   *metastore.Store
	owner  uint64 // what rows call the server
	roots  int    // METADATA tablets; 0 if no table was ever made
}

// namedObjects is what METADATA rows name.
type namedObjects struct {
	tablets map[metadata.TabletID]bool // but for METADATA's own
	// sizes are those of SSTables, backups' included, change files and index objects.
	sizes map[string]int64
	// indexes are the index objects, each with the smallest StreamState.Since of rows that
	// name it. Their files are added by readIndexes.
	indexes map[string]cell.Seq
}

func newNamedObjects() *namedObjects {
	return &namedObjects{map[metadata.TabletID]bool{}, map[string]int64{}, map[string]cell.Seq{}}
}

func (f *namedObjects) add(r *metadata.Row) {
	if r.Table != metastore.Table && !catalog.IsBackupTable(r.Table) {
		f.tablets[r.Tablet] = true
	}
	for _, file := range r.Files {
		f.sizes[file.Object] = file.Size
	}
	if r.Stream != nil {
		for _, file := range r.Stream.Files {
			f.sizes[file.Object] = file.Bytes
		}
		for _, x := range r.Stream.Indexes {
			f.sizes[x.Object] = x.Size
			if since, ok := f.indexes[x.Object]; !ok || r.Stream.Since < since {
				f.indexes[x.Object] = r.Stream.Since
			}
		}
	}
}

// readIndexes adds the change files that index objects name.
func (f *namedObjects) readIndexes(ctx context.Context, s Side) error {
	for object, since := range f.indexes {
		o, err := s.Objects.Open(ctx, object)
		if err != nil {
			return fmt.Errorf("open index object %s of %s: %w", object, s.Name, err)
		}
		files, err := changes.ReadIndex(ctx, o, object)
		if err != nil {
			return fmt.Errorf("read the change files of %s: %w", s.Name, err)
		}
		for i := range files {
			if files[i].Hi > since {
				f.sizes[files[i].Object] = files[i].Bytes
			}
		}
	}
	return nil
}

// quiesce leaves each tablet of a side without a server, and with everything in SSTables,
// METADATA's own last. It returns the tablets and SSTables that all other rows name.
//
// A server that ends does the same. So a side that was quiesced before, or that is served
// again, is as after a stop.
func quiesce(ctx context.Context, s Side, o Options) (f *namedObjects, err error) {
	r, err := open(ctx, s, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.server.Close(ctx)) }()
	if r.roots == 0 {
		return newNamedObjects(), nil
	}
	for n := 0; f == nil; n++ {
		if n == maxRounds {
			return nil, fault.New(fault.Internal, "after %d rounds not all tablets of %s are flushed and given up", n, s.Name)
		}
		if f, err = r.round(ctx); err != nil {
			return nil, fmt.Errorf("bring %s to rest: %w", s.Name, err)
		}
	}
	if err := f.readIndexes(ctx, s); err != nil {
		return nil, err
	}
	roots, err := r.meta.Roots(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.unload(ctx, roots); err != nil {
		return nil, fmt.Errorf("bring METADATA of %s to rest: %w", s.Name, err)
	}
	return f, r.server.Err()
}

// open starts a tablet server on a side, which serves METADATA. The caller is the
// master.
func open(ctx context.Context, s Side, o Options) (_ *quiescing, err error) {
	d := new(dialer)
	ts, err := tabletserver.Start(ctx, tabletserver.Options{Name: serverName, Addr: serverName, Lock: s.Lock, Dialer: d, Objects: s.Objects,
		Logs: s.Logs, Copies: s.Copies, Private: s.Private, TTL: s.TTL, SplitBytes: -1, MetadataSplitBytes: -1, SplitRate: -1, RowCacheBytes: -1, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("open the tablets of %s: %w", s.Name, err)
	}
	d.server.Store(ts)
	defer func() {
		if err != nil {
			err = errors.Join(err, ts.Close(ctx))
		}
	}()
	status, err := ts.Status(ctx)
	if err != nil {
		return nil, err
	}
	epochs, err := catalog.Epochs(ctx, s.Lock)
	if err != nil {
		return nil, err
	}
	held, err := s.Lock.Get(ctx, catalog.MasterKey)
	if err != nil {
		return nil, err
	}
	r := &quiescing{server: ts, meta: metastore.New(s.Lock, d).ForMaster(epochs + held.Created), owner: status.Incarnation}
	roots, err := r.meta.Roots(ctx)
	if err != nil {
		return nil, err
	}
	r.roots = len(roots)
	// To open one whose split was under way leaves the left child to be opened.
	for n := 0; len(unserved(roots, r.owner)) > 0; n++ {
		if err = r.load(ctx, unserved(roots, r.owner)); err == nil {
			roots, err = r.meta.Roots(ctx)
		}
		if err == nil && n == maxRounds {
			err = fault.New(fault.Internal, "after %d attempts not all METADATA tablets are open", n)
		}
		if err != nil {
			return nil, fmt.Errorf("open METADATA of %s: %w", s.Name, err)
		}
	}
	return r, nil
}

// isQuiesced tells whether everything of a tablet is in SSTables, and no server has it.
func isQuiesced(r *metadata.Row) bool {
	a := r.Assignment
	return a == nil || a.State == metadata.Unassigned && a.Log == 0 && r.Op == nil
}

// unserved returns the rows of tablets that a server does not serve.
func unserved(rows []*metadata.Row, owner uint64) (out []*metadata.Row) {
	for _, r := range rows {
		if a := r.Assignment; a != nil && (a.State != metadata.Open || a.Incarnation != owner) {
			out = append(out, r)
		}
	}
	return out
}

// round reads all METADATA rows once, and returns the tablets and SSTables that they name
// if all tablets are quiesced. Else it quiesces the others, and returns nil: that may have
// changed more rows, such as the children of a split.
func (r *quiescing) round(ctx context.Context) (*namedObjects, error) {
	f := newNamedObjects()
	var busy []*metadata.Row
	err := r.meta.Scan(ctx, func(row *metadata.Row) error {
		if isQuiesced(row) {
			f.add(row)
		} else {
			busy = append(busy, row)
		}
		return nil
	})
	if err != nil || len(busy) == 0 {
		return f, err
	}
	for part := range slices.Chunk(unserved(busy, r.owner), loadBatch) {
		if err := r.load(ctx, part); err != nil {
			return nil, err
		}
		if err := r.unload(ctx, part); err != nil {
			return nil, err
		}
	}
	return nil, r.unload(ctx, busy) // the tablets of part are no longer served
}

// load opens tablets on the server, or leaves them without one if their table is gone: the
// master would delete their rows.
func (r *quiescing) load(ctx context.Context, rows []*metadata.Row) error {
	keys := make([]rpc.TabletKey, len(rows))
	g, changing := errgroup.WithContext(ctx)
	g.SetLimit(maxChanges)
	for i, row := range rows {
		g.Go(func() error {
			next, old := row.Clone(), *row.Assignment
			_, err := r.server.Schemas().ByID(row.Table)
			switch {
			case errors.Is(err, fault.NotFound):
				next.Assignment, next.Op, next.Redo = &metadata.Assignment{State: metadata.Unassigned, Epoch: old.Epoch, Master: old.Master}, nil, commitlog.Pos{}
			case err != nil:
				return err
			default:
				next.Assignment = &metadata.Assignment{State: metadata.Opening, Epoch: old.Epoch + 1, Server: serverName, Addr: serverName,
					Incarnation: r.owner, Log: old.Log, Master: old.Master}
				keys[i] = rpc.TabletKey{Table: row.Table, End: row.End}
			}
			return r.meta.CAS(changing, next)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	var opened []rpc.TabletKey
	for _, k := range keys {
		if k.Table != 0 {
			opened = append(opened, k)
		}
	}
	return r.server.Load(ctx, opened)
}

// unload flushes tablets and gives them up.
func (r *quiescing) unload(ctx context.Context, rows []*metadata.Row) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxChanges)
	for _, row := range rows {
		g.Go(func() error { return r.server.Unload(ctx, []metadata.TabletID{row.Tablet}) })
	}
	return g.Wait()
}

// storeCopy stores a copy of the lock service, as a master would have done after all
// that quiesce has changed.
func (s Side) storeCopy(ctx context.Context) error {
	if s.Copies == nil {
		return nil
	}
	return (&catalog.Copier{Lock: s.Lock, Store: s.Copies}).Take(ctx, time.Now())
}
