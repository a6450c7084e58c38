package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/sstable"
)

// A pacedReader reads objects from end to end, at a bounded rate.
type pacedReader struct {
	rate  int64 // bytes per second at most; 0 means no bound
	tell  func(bytes, of int64)
	start time.Time
	bytes int64
	of    int64 // that are known to be read
	cache *sstable.Cache
}

func newPacedReader(rate int64, tell func(bytes, of int64)) *pacedReader {
	if tell == nil {
		tell = func(int64, int64) {}
	}
	return &pacedReader{rate: rate, tell: tell, start: time.Now(), cache: sstable.NewCache(4<<20, 4)}
}

func (r *pacedReader) close() { r.cache.Close() }

// readAtOnce is how much is read of an object by one request. readWhole is the size up to
// which an SSTable is read once, in such pieces: a store takes a request for each.
const readAtOnce, readWhole = 1 << 20, 256 << 20

// pace waits until n bytes more may have been read.
func (r *pacedReader) pace(ctx context.Context, n int) error {
	r.bytes += int64(n)
	r.tell(r.bytes, r.of)
	if r.rate <= 0 {
		return ctx.Err()
	}
	due := r.start.Add(time.Duration(float64(r.bytes) / float64(r.rate) * float64(time.Second)))
	select {
	case <-time.After(time.Until(due)):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// whole returns the content of an object.
func (r *pacedReader) whole(ctx context.Context, s objectstore.Store, name string) (data []byte, err error) {
	f, err := objectstore.OpenStored(ctx, s, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data = make([]byte, f.Size())
	for off := 0; off < len(data); off += readAtOnce {
		end := min(off+readAtOnce, len(data))
		if err := f.ReadAt(ctx, data[off:end], int64(off)); err != nil {
			return nil, err
		}
		if err := r.pace(ctx, end-off); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// open opens an SSTable of some size.
func (r *pacedReader) open(ctx context.Context, s objectstore.Store, name string, size int64) (sstable.Readable, error) {
	if size <= readWhole {
		data, err := r.whole(ctx, s, name)
		return inMemory(data), err
	}
	f, err := objectstore.OpenStored(ctx, s, name)
	return pacedFile{f, r}, err
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

// pacedFile is an SSTable that is read at the rate of a reading.
type pacedFile struct {
	sstable.Readable
	r *pacedReader
}

func (p pacedFile) ReadAt(ctx context.Context, b []byte, off int64) error {
	if err := p.Readable.ReadAt(ctx, b, off); err != nil {
		return err
	}
	return p.r.pace(ctx, len(b))
}

// stored compares the SSTables of a store, which are those of a path, with those that rows
// name. Each must be there, of the size that the rows say. The others are noted, if all
// rows are known; of a store in use, others may have been stored since rows were read.
func (t *tables) stored(ctx context.Context, dir string, s objectstore.Store, known bool) (there map[string]objectstore.Info, err error) {
	infos, err := s.List(ctx, "", "", 0)
	if err != nil {
		return nil, fmt.Errorf("list SSTables: %w", err)
	}
	there = map[string]objectstore.Info{}
	for _, i := range infos {
		path := dir + "/" + i.Name
		there[path] = i
		u := t.objects[path]
		switch {
		case u != nil:
			switch {
			case u.changes != nil:
				t.sum.ChangeFiles++
				t.sum.ChangeFileBytes += i.Size
			case u.index == nil:
				t.sum.SSTables++
				t.sum.SSTableBytes += i.Size
			}
			if i.Size != u.ref.Size {
				t.damage(path, t.doRestore, "has %d bytes instead of %d, %s of %s", i.Size, u.ref.Size, u.kind(), t.users(u))
			}
		case known && !(t.unread && changes.IsFile(i.Name)):
			t.unused(path, i.Size, 1, i.Modified, "no tablet or backup names it")
		}
	}
	return there, nil
}

// unused notes objects that nothing names.
func (t *tables) unused(where string, size int64, n int, newest time.Time, why string) {
	t.sum.Unused += n
	t.sum.UnusedBytes += size
	t.note(where, doDeleteOld, "%d bytes, %v old: %s", size, time.Since(newest).Round(time.Second), why)
}

// read verifies the SSTables of a path, of which there has those that are there. known
// says that all rows are known; otherwise it verifies SSTables without a row too. gone
// tells of one that is missing whether rows have ceased to name it.
func (t *tables) read(ctx context.Context, dir string, s objectstore.Store, r *pacedReader, there map[string]objectstore.Info, known bool, gone func(*usedObject) (bool, error)) error {
	paths := map[string]bool{}
	for path := range t.objects {
		paths[path] = strings.HasPrefix(path, dir+"/")
	}
	for path, info := range there {
		paths[path] = paths[path] || !known && strings.HasSuffix(path, ".sst")
		if u := t.objects[path]; r != nil && paths[path] && (u == nil || u.index == nil) {
			r.of += info.Size
		}
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		u := t.objects[path]
		info, stored := there[path]
		if !paths[path] || stored && u != nil && info.Size != u.ref.Size {
			continue // reported already
		}
		if !stored {
			if old, err := gone(u); err != nil {
				return err
			} else if !old {
				t.damage(path, t.doRestore, "is missing; %s needs it", t.users(u))
			}
			continue
		}
		if r == nil || u != nil && u.index != nil {
			continue // readIndexes has read it
		}
		of, says := "", (*sstable.Info)(nil)
		if u != nil {
			of, says = " of "+t.users(u), &u.ref.Info
		}
		f, err := r.open(ctx, s, info.Name, info.Size)
		if errors.Is(err, fault.NotFound) && u != nil {
			if old, err := gone(u); err != nil {
				return err
			} else if !old {
				t.damage(path, t.doRestore, "is missing; %s needs it", t.users(u))
			}
			continue
		}
		if u != nil && u.changes != nil {
			if err == nil {
				err = verifyChanges(ctx, f, u.changes)
			}
			if fault.KindOf(err) == fault.Corruption {
				t.damage(path, t.doRestore+"; until then "+readersMiss(u.changes.Lo, u.changes.Hi), "%v; it is a change file%s", err, of)
			} else if err != nil {
				return fmt.Errorf("read %s: %w", path, err)
			}
			continue
		}
		var v sstable.Verdict
		if err == nil {
			v, err = sstable.Check(ctx, r.cache, f, info.Name, says)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		t.sum.Entries += int64(v.Entries)
		switch {
		case v.Wrong == "":
		case v.Rows:
			t.damage(path, t.doRestore+"; until then the rows concerned answer DATA_LOSS and all others are served", "%s; it is an SSTable%s", v.Wrong, of)
		default:
			t.damage(path, t.doRestore, "%s; an SSTable%s", v.Wrong, of)
		}
	}
	return nil
}

// verifyChanges reads a change file, which it closes. fault.Corruption says that it is
// not what ref says, or not what was written.
func verifyChanges(ctx context.Context, f changes.Readable, ref *changes.Ref) (err error) {
	c, err := changes.Open(ctx, f, ref.Object)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if i := c.Info(); i.Records != ref.Records || ref.At == 0 && (i.Lo != ref.Lo || i.Hi != ref.Hi) {
		return fault.New(fault.Corruption, "it has %d records from %d to %d instead of %d from %d to %d", i.Records, i.Lo, i.Hi, ref.Records, ref.Lo, ref.Hi)
	}
	if is := c.Rows(); len(ref.Rows.Start)+len(ref.Rows.End) > 0 && (!bytes.Equal(is.Start, ref.Rows.Start) || !bytes.Equal(is.End, ref.Rows.End)) {
		return fault.New(fault.Corruption, "it has rows in [%q, %q) instead of [%q, %q)", is.Start, is.End, ref.Rows.Start, ref.Rows.End)
	}
	return c.Verify(ctx)
}

// users names the tablets that an SSTable belongs to.
func (t *tables) users(u *usedObject) string {
	var list []string
	for _, r := range u.by {
		list = append(list, t.tabletName(r))
	}
	return strings.Join(list, ", ")
}
