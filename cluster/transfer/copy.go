package transfer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/sstable"
)

// skippedEpochs is by how much the epochs of masters of the target begin above all
// that the source can have had.
const skippedEpochs = 1 << 20

// copyAll makes the target hold everything of the source, whose lock service has the mark
// of the transfer since begun.
func copyAll(ctx context.Context, from, to Side, begun time.Time, o Options, r *Result) error {
	f, err := quiesce(ctx, from, o)
	if err != nil {
		return err
	}
	if err := from.storeCopy(ctx); err != nil {
		return err
	}
	items, _, err := durableItems(ctx, from.Lock)
	if err != nil {
		return err
	}
	values := map[string][]byte{}
	for _, i := range items {
		values[i.Key] = i.Value
	}
	roots, err := metastore.RootsOf(values)
	if err != nil {
		return err
	}
	for _, row := range roots {
		if !isQuiesced(row) {
			return fault.New(fault.Aborted, "METADATA tablet %v of %s was opened by another process: run the command again", row.Tablet, from.Name)
		}
		f.add(row)
	}
	r.Tablets = len(f.tablets)
	if err := copyObjects(ctx, from, to, f.sizes, o, r); err != nil {
		return err
	}
	// Policies, and what else takes no tablet, may be changed by a gateway that runs
	// on. It asks for transfers each 2 s, 2 s long, and ends then.
	if from.Private == nil {
		select {
		case <-time.After(time.Until(begun.Add(from.TTL))):
		case <-ctx.Done():
			return ctx.Err()
		}
		if items, _, err = durableItems(ctx, from.Lock); err != nil {
			return err
		}
	}
	var revision int64
	for {
		if err := copyItems(ctx, items, to.Lock); err != nil {
			return fmt.Errorf("copy the lock service to %s: %w", to.Name, err)
		}
		before := items
		if items, revision, err = durableItems(ctx, from.Lock); err != nil {
			return err
		}
		if slices.EqualFunc(before, items, func(a, b lock.Item) bool { return a.Key == b.Key && a.Version == b.Version }) {
			break
		}
	}
	r.Items = len(items)
	if err := r.count(items); err != nil {
		return err
	}
	epochs, err := catalog.Epochs(ctx, from.Lock)
	if err != nil {
		return err
	}
	return catalog.RaiseEpochs(ctx, to.Lock, epochs+revision+skippedEpochs)
}

// count counts tables and backups.
func (r *Result) count(items []lock.Item) error {
	for _, i := range items {
		switch {
		case strings.HasPrefix(i.Key, catalog.TablesPrefix):
			name, err := catalog.ParseName(i)
			if err != nil {
				return err
			}
			r.Tables += len(name)
		case strings.HasPrefix(i.Key, catalog.BackupsPrefix):
			r.Backups++
		}
	}
	return nil
}

// durableItems returns the items of a lock service that a transfer takes along, and its
// revision.
func durableItems(ctx context.Context, l lock.Service) (items []lock.Item, revision int64, err error) {
	all, revision, err := l.List(ctx, "")
	if err != nil {
		return nil, 0, err
	}
	for _, i := range all {
		switch catalog.ClassOf(i.Key) {
		case catalog.DurableItem:
			items = append(items, i)
		case catalog.UnknownItem:
			return nil, 0, fault.New(fault.FailedPrecondition, "the lock service has item %s, which this version of trestle does not know: use the version that made it", i.Key)
		}
	}
	return items, revision, nil
}

// copyItems makes a lock service hold items, and no other that lasts.
func copyItems(ctx context.Context, items []lock.Item, to lock.Service) error {
	there, _, err := durableItems(ctx, to)
	if err != nil {
		return err
	}
	have := map[string]lock.Item{}
	for _, i := range there {
		have[i.Key] = i
	}
	// The format before anything else: a lock service without one counts as the first
	// format.
	for _, i := range items {
		if _, ok := have[i.Key]; i.Key == catalog.FormatKey && !ok {
			version, err := catalog.Put(ctx, to, i.Key, i.Value, 0)
			if err != nil {
				return err
			}
			have[i.Key] = lock.Item{Key: i.Key, Value: i.Value, Version: version}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxChanges)
	for _, i := range items {
		old, ok := have[i.Key]
		delete(have, i.Key)
		if ok && bytes.Equal(old.Value, i.Value) {
			continue
		}
		g.Go(func() error {
			_, err := catalog.Put(ctx, to, i.Key, i.Value, old.Version)
			return err
		})
	}
	for _, i := range have {
		g.Go(func() error { return to.Delete(ctx, i.Key, i.Version) })
	}
	return g.Wait()
}

// copyObjects makes the store of the target hold the SSTables that are named, of
// these sizes, and no other.
func copyObjects(ctx context.Context, from, to Side, named map[string]int64, o Options, r *Result) error {
	stored, err := to.Objects.List(ctx, "", "", 0)
	if err != nil {
		return fmt.Errorf("list the store of %s: %w", to.Name, err)
	}
	there := map[string]bool{}
	for _, i := range stored {
		if _, ok := named[i.Name]; ok {
			there[i.Name] = true
		} else if err := to.Objects.Delete(ctx, i.Name); err != nil { // METADATA's, of an earlier run
			return err
		}
	}
	var total int64
	for _, size := range named {
		total += size
	}
	cache := sstable.NewCache(1<<20, o.AtOnce)
	defer cache.Close()
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.AtOnce)
	// The largest first: the last ones to be copied take less time then.
	names := slices.SortedFunc(maps.Keys(named), func(a, b string) int {
		return cmp.Or(cmp.Compare(named[b], named[a]), cmp.Compare(a, b))
	})
	for _, name := range names {
		g.Go(func() error {
			if err := copyObject(ctx, from, to, name, named[name], there[name], cache); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			r.SSTables++
			r.Bytes += named[name]
			o.Progress(r.Bytes, total)
			return nil
		})
	}
	return g.Wait()
}

// copyObject copies an SSTable, unless it is there and sound, and reads it back.
func copyObject(ctx context.Context, from, to Side, name string, size int64, there bool, cache *sstable.Cache) error {
	if there {
		err := verify(ctx, to.Objects, name, size, cache)
		if !errors.Is(err, fault.Corruption) {
			return err
		}
		if err := to.Objects.Delete(ctx, name); err != nil {
			return err
		}
	}
	if err := copyBytes(ctx, from.Objects, to.Objects, name); err != nil {
		return fmt.Errorf("copy SSTable %s from %s to %s: %w", name, from.Name, to.Name, err)
	}
	err := verify(ctx, to.Objects, name, size, cache)
	if err == nil {
		return nil
	}
	if serr := verify(ctx, from.Objects, name, size, cache); serr != nil {
		return fmt.Errorf("SSTable %s is damaged in %s, whose tables cannot be transferred as they are: %w", name, from.Name, serr)
	}
	return fmt.Errorf("the copy of SSTable %s in %s is not what was written there: %w", name, to.Name, err)
}

func copyBytes(ctx context.Context, from, to objectstore.Store, name string) (err error) {
	in, err := from.Open(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := to.Create(ctx, name)
	if err != nil {
		return err
	}
	whole := chunks.Get().(*[chunkBytes]byte)
	defer chunks.Put(whole)
	for off := int64(0); off < in.Size(); off += chunkBytes {
		b := whole[:min(chunkBytes, in.Size()-off)]
		if err = in.ReadAt(ctx, b, off); err == nil {
			err = out.Write(b)
		}
		if err != nil {
			out.Abort()
			return err
		}
	}
	return out.Finish()
}

// chunkBytes is how much of an SSTable is read at a time. Of 1 MiB the read-back of a local
// disk takes a third longer.
const chunkBytes = 4 << 20

var chunks = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

// verify reads a whole SSTable, past all caches, and returns fault.Corruption if it
// has another size or a block with a wrong checksum.
func verify(ctx context.Context, s objectstore.Store, name string, size int64, cache *sstable.Cache) (err error) {
	f, err := objectstore.OpenStored(ctx, s, name)
	if err != nil {
		return err
	}
	if f.Size() != size {
		return errors.Join(fault.New(fault.Corruption, "SSTable %s has %d bytes, METADATA says %d", name, f.Size(), size), f.Close())
	}
	whole := chunks.Get().(*[chunkBytes]byte)
	defer chunks.Put(whole)
	if changes.IsIndex(name) {
		_, err := changes.ReadIndex(ctx, f, name)
		return err
	}
	if changes.IsFile(name) {
		c, err := changes.Open(ctx, &readaheadFile{Readable: f, whole: whole}, name)
		if err != nil {
			return err
		}
		return errors.Join(c.Verify(ctx), c.Close())
	}
	r, err := sstable.Open(ctx, cache, &readaheadFile{Readable: f, whole: whole}, name)
	if err != nil {
		return err
	}
	return errors.Join(r.VerifyChecksums(ctx), r.Close())
}

// A readaheadFile reads 4 MiB at a time where blocks are asked for, one after the other. A
// request for each block of 32 KiB would cost a bucket's price for it, and its latency.
type readaheadFile struct {
	sstable.Readable
	whole *[chunkBytes]byte

	mu  sync.Mutex
	buf []byte // of whole
	off int64  // of buf
}

// ReadAt implements sstable.Readable.
func (a *readaheadFile) ReadAt(ctx context.Context, p []byte, off int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := int64(len(p))
	if n >= chunkBytes || off < 0 || off+n > a.Size() {
		return a.Readable.ReadAt(ctx, p, off)
	}
	if off < a.off || off+n > a.off+int64(len(a.buf)) {
		a.buf, a.off = a.whole[:min(chunkBytes, a.Size()-off)], off
		if err := a.Readable.ReadAt(ctx, a.buf, off); err != nil {
			a.buf = nil
			return err
		}
	}
	copy(p, a.buf[off-a.off:])
	return nil
}
