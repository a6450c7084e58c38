package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// A Tables is where backups are: cluster/client.Client.
type Tables interface {
	// FrozenBackup returns a backup, and the METADATA rows of its tablets.
	FrozenBackup(ctx context.Context, name string) (*schema.Backup, []*metadata.Row, error)
	// ImportBackup makes the backup want of METADATA rows of another store. It calls
	// fetch once, to store their SSTables under new names, by old ones.
	ImportBackup(ctx context.Context, want *schema.Backup, rows []*metadata.Row, fetch func(context.Context, map[string]string) error) (*schema.Backup, error)
}

// A Copier copies between a store and exports.
type Copier struct {
	Tables Tables
	// Objects has the SSTables of Tables.
	Objects objectstore.Store
	// Program says in manifests which program wrote them.
	Program string
	// Report, if set, is called with how many bytes, of how many, are done. It is called by
	// several goroutines.
	Report func(done, total int64)
	// Now is the clock of manifests. Default time.Now.
	Now func() time.Time
}

// copiers is how many SSTables are copied at a time, piece how much of one.
const (
	maxCopies  = 4
	chunkBytes = 1 << 20
)

// Export copies a backup to an empty part of a store, or goes on where an earlier attempt
// was interrupted. SSTables that are there and sound stay. Each is read back once it is
// written, so a completed export is known to be readable.
//
// Of a complete export only what is missing, or of another size than its manifest says, is
// copied again. The manifest stays.
//
// It is fault.AlreadyExists if there is something else at that place, and fault.Corruption
// if an SSTable is damaged. It is fault.NotFound if there is no such backup, or if it is
// deleted or expires meanwhile.
func (c *Copier) Export(ctx context.Context, backup string, to objectstore.Store) (*Manifest, error) {
	b, rows, err := c.Tables.FrozenBackup(ctx, backup)
	if err != nil {
		return nil, err
	}
	there, err := c.markBegun(ctx, b, to)
	if err != nil {
		return nil, err
	}
	m := &Manifest{Format: Format, Program: c.Program, Backup: b.Clone(), Tablets: rows}
	m.Backup.Extra = nil // the gateway's notes on the backup belong to that store
	infos := map[string]*sstable.Info{}
	for _, r := range rows {
		for i := range r.Files {
			f := &r.Files[i]
			if infos[f.Object] == nil {
				infos[f.Object] = &f.Info
				m.Files = append(m.Files, File{Object: f.Object, Size: f.Size})
			}
		}
	}
	_, complete := there[manifestName]
	if complete {
		if m, err = Read(ctx, to); fault.KindOf(err) == fault.Corruption {
			err = fault.New(fault.Corruption, "%w; delete it, and export the backup again", err)
		}
		if err != nil {
			return nil, err
		}
	}
	count := c.counter(m.Bytes())
	err = inParallel(ctx, len(m.Files), func(ctx context.Context, i int) error {
		f := &m.Files[i]
		name, info := filesPrefix+f.Object, infos[f.Object]
		size, have := there[name]
		if complete {
			if have && size == f.Size {
				count(f.Size)
				return nil
			}
			if info == nil || info.Size != f.Size {
				return fault.New(fault.Corruption, "%s of the export is missing or has another size, and the backup does not have that SSTable: delete the export, and export the backup again", name)
			}
			if have {
				if err := to.Delete(ctx, name); err != nil {
					return err
				}
				have = false
			}
		}
		if !have {
			_, err := copyObject(ctx, c.Objects, f.Object, f.Size, to, name, f.SHA256, count)
			if fault.KindOf(err) == fault.Corruption {
				return damagedInStore(f.Object, err)
			}
			if have = errors.Is(err, fault.AlreadyExists); err != nil && !have {
				return err // else another export of the same backup was faster
			}
		} else {
			count(f.Size)
		}
		sum, err := c.verify(ctx, to, name, info)
		if err == nil && complete && sum != f.SHA256 {
			err = fault.New(fault.Corruption, "its SHA-256 is %s instead of %s", sum, f.SHA256)
		}
		if fault.KindOf(err) != fault.Corruption {
			f.SHA256 = sum
			return err
		}
		if !have {
			if _, source := c.verify(ctx, c.Objects, f.Object, info); fault.KindOf(source) == fault.Corruption {
				return errors.Join(damagedInStore(f.Object, source), to.Delete(ctx, name))
			}
		}
		return fault.New(fault.Corruption, "%s of the export is not what the store has: %w; delete it, and export the backup again", name, err)
	})
	if errors.Is(err, fault.NotFound) {
		if _, _, gone := c.Tables.FrozenBackup(ctx, backup); errors.Is(gone, fault.NotFound) {
			return nil, fault.New(fault.NotFound, "backup %s was deleted, or has expired, while it was exported: the export is incomplete", backup)
		}
		return nil, fault.New(fault.Corruption, "an SSTable of backup %s is missing: %w", backup, errors.New(err.Error()))
	}
	if err != nil {
		return nil, err
	}
	if complete {
		return m, nil
	}
	m.Exported = c.now()
	data, err := encodeChecked(m)
	if err != nil {
		return nil, err
	}
	if err := to.PutIfAbsent(ctx, manifestName, data); err != nil && !errors.Is(err, fault.AlreadyExists) {
		return nil, err
	}
	return Read(ctx, to)
}

// markBegun marks a place as being for the export of b, and returns the sizes of the
// objects there.
func (c *Copier) markBegun(ctx context.Context, b *schema.Backup, to objectstore.Store) (map[string]int64, error) {
	want := &beginMark{Format: Format, Backup: b.Name, ID: b.ID, Created: b.CreateTime}
	data, err := encodeChecked(want)
	if err != nil {
		return nil, err
	}
	infos, err := to.List(ctx, "", "", 0)
	if err != nil {
		return nil, err
	}
	there := map[string]int64{}
	for _, i := range infos {
		there[i.Name] = i.Size
	}
	if _, ok := there[beginName]; !ok && len(there) > 0 {
		return nil, fault.New(fault.AlreadyExists, "the place for the export is not empty: it has %s, among others; choose another", infos[0].Name)
	}
	if err := to.PutIfAbsent(ctx, beginName, data); err == nil || !errors.Is(err, fault.AlreadyExists) {
		return there, err
	}
	was, err := readBeginMark(ctx, to)
	if err == nil && (was == nil || !was.same(want)) {
		// The error does not name that backup, which the caller may not be allowed to see.
		err = fault.New(fault.AlreadyExists, "the place has an export of another backup: choose another")
	}
	return there, err
}

func damagedInStore(object string, err error) error {
	return fault.New(fault.Corruption, "SSTable %s of the backup is damaged in the store: %w", object, err)
}

// verify reads an SSTable as it is stored, from end to end, and returns its checksum. It
// is fault.Corruption if it is not the one that info describes.
func (c *Copier) verify(ctx context.Context, s objectstore.Store, name string, info *sstable.Info) (sum string, err error) {
	h := sha256.New()
	err = readObject(ctx, s, name, info.Size, func(p []byte) error {
		_, err := h.Write(p)
		return err
	})
	if err != nil {
		return "", err
	}
	f, err := objectstore.OpenStored(ctx, s, name)
	if err != nil {
		return "", err
	}
	cache := sstable.NewCache(4<<20, 4)
	defer cache.Close()
	v, err := sstable.Check(ctx, cache, f, name, info)
	if err == nil && v.Wrong != "" {
		err = fault.New(fault.Corruption, "%s", v.Wrong)
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

// readObject passes the stored bytes of an object to each, which must be size bytes.
func readObject(ctx context.Context, s objectstore.Store, name string, size int64, each func([]byte) error) (err error) {
	f, err := objectstore.OpenStored(ctx, s, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if f.Size() != size {
		return fault.New(fault.Corruption, "%s has %d bytes instead of %d", name, f.Size(), size)
	}
	buf := make([]byte, min(chunkBytes, size))
	for off := int64(0); off < size; off += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), size-off)]
		if err := f.ReadAt(ctx, buf, off); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err := each(buf); err != nil {
			return err
		}
	}
	return nil
}

// copyObject copies an object of size bytes from one store to another, and returns
// its checksum. If that is not want, unless want is empty, nothing is stored.
func copyObject(ctx context.Context, from objectstore.Store, name string, size int64, to objectstore.Store, as, want string, count func(int64)) (sum string, err error) {
	w, err := to.Create(ctx, as)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	err = readObject(ctx, from, name, size, func(p []byte) error {
		_, _ = h.Write(p)
		count(int64(len(p)))
		return w.Write(p)
	})
	sum = hex.EncodeToString(h.Sum(nil))
	if err == nil && want != "" && sum != want {
		err = fault.New(fault.Corruption, "%s has the SHA-256 %s instead of %s", name, sum, want)
	}
	if err != nil {
		w.Abort()
		return "", err
	}
	return sum, w.Finish()
}

// Import makes the backup want from an export. want has the name, the expiry and the
// gateway's notes set. Each SSTable is compared with the manifest as it is read, and read
// back once it is stored.
//
// It is fault.Corruption if a file of the export is damaged or missing, by name, and
// fault.AlreadyExists if there is such a backup. Then no backup is made, and the SSTables
// stored are swept.
func (c *Copier) Import(ctx context.Context, from objectstore.Store, m *Manifest, want *schema.Backup) (*schema.Backup, error) {
	there, err := from.List(ctx, filesPrefix, "", 0)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, i := range there {
		sizes[i.Name] = i.Size
	}
	for _, f := range m.Files { // before anything is copied
		name := filesPrefix + f.Object
		if size, ok := sizes[name]; !ok {
			return nil, fault.New(fault.Corruption, "%s of the export is missing", name)
		} else if size != f.Size {
			return nil, fault.New(fault.Corruption, "%s of the export has %d bytes instead of %d", name, size, f.Size)
		}
	}
	infos := map[string]*sstable.Info{}
	for _, r := range m.Tablets {
		for i := range r.Files {
			infos[r.Files[i].Object] = &r.Files[i].Info
		}
	}
	want = want.Clone()
	want.Table, want.StartTime, want.EndTime, want.Bytes = m.Backup.Table, m.Backup.StartTime, m.Backup.EndTime, m.Bytes()
	count := c.counter(m.Bytes())
	return c.Tables.ImportBackup(ctx, want, m.Tablets, func(ctx context.Context, names map[string]string) error {
		return inParallel(ctx, len(m.Files), func(ctx context.Context, i int) error {
			f := &m.Files[i]
			as := names[f.Object]
			if as == "" {
				return nil // no tablet names it
			}
			_, err := copyObject(ctx, from, filesPrefix+f.Object, f.Size, c.Objects, as, f.SHA256, count)
			if fault.KindOf(err) == fault.Corruption {
				return fault.New(fault.Corruption, "the export is damaged: %w", err)
			}
			if err != nil {
				return err
			}
			if _, err := c.verify(ctx, c.Objects, as, infos[f.Object]); err != nil {
				return fmt.Errorf("read %s back, which is a copy of %s of the export: %w", as, filesPrefix+f.Object, err)
			}
			return nil
		})
	})
}

func (c *Copier) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

// counter returns what takes how many bytes more are done.
func (c *Copier) counter(total int64) func(int64) {
	if c.Report == nil {
		return func(int64) {}
	}
	var done atomic.Int64
	c.Report(0, total)
	return func(n int64) { c.Report(done.Add(n), total) }
}

// inParallel calls do for 0 to n-1, several at a time, until one fails.
func inParallel(ctx context.Context, n int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var doing sync.WaitGroup
	for range min(maxCopies, n) {
		doing.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := do(ctx, int(i)); err != nil {
					cancel(err)
				}
			}
		})
	}
	doing.Wait()
	return context.Cause(ctx)
}
