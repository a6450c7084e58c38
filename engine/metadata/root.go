package metadata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

// A Root is what must be known before anything else of a data directory can be
// read (Chubby's root file in the paper, §5.1).
type Root struct {
	// Incarnation counts the starts of the server. Whatever it names - tablets,
	// objects, tables - carries the incarnation, so that no name is used twice.
	Incarnation uint64
	// Row is the METADATA tablet's own row.
	Row *Row
}

// RootFile is the Store of the METADATA tablet's own row: a small file that is
// replaced as a whole.
type RootFile struct {
	fs  vfs.FS
	dir string

	mu   sync.Mutex
	root Root
}

// rootCopy is a second file with what rootName holds. It is replaced after
// that, before a change is known to have been made, and so before anything that
// the row no longer names is deleted. Whichever of the two a crash leaves has
// all there is to know.
const rootName, rootCopy = "ROOT", "ROOT.copy"

// OpenRoot reads the root file of dir, or starts one with row for the METADATA
// tablet, and begins a new incarnation, durably.
func OpenRoot(fs vfs.FS, dir string, first *Row) (*RootFile, error) {
	f := &RootFile{fs: fs, dir: dir}
	root, err := ReadRoot(fs, dir)
	switch {
	case err == nil:
		f.root = *root
	case errors.Is(err, fault.NotFound):
		f.root = Root{Row: first}
		f.root.Row.Version = 1
	default:
		return nil, err
	}
	f.root.Incarnation++
	return f, f.write(&f.root)
}

// ReadRoot reads the root file of dir; NotFound if there is none.
func ReadRoot(fs vfs.FS, dir string) (*Root, error) { return readRoot(fs, fs.PathJoin(dir, rootName)) }

// ReadRootCopy reads the copy of the root file of dir, for when that is damaged;
// NotFound if there is none.
func ReadRootCopy(fs vfs.FS, dir string) (*Root, error) {
	return readRoot(fs, fs.PathJoin(dir, rootCopy))
}

func readRoot(fs vfs.FS, name string) (*Root, error) {
	file, err := fs.Open(name)
	if err != nil {
		if !isNotExist(err) {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		return nil, fault.New(fault.NotFound, "%s does not exist", name)
	}
	defer file.Close()
	b, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	var w wrapped
	if err := json.Unmarshal(b, &w); err != nil {
		return nil, fault.New(fault.Corruption, "decode %s: %w", name, err)
	}
	if got := crc32.Checksum(w.Root, castagnoli); got != w.CRC32C {
		return nil, fault.New(fault.Corruption, "%s has checksum %08x, its content %08x", name, w.CRC32C, got)
	}
	root := new(Root)
	if err := json.Unmarshal(w.Root, root); err != nil {
		return nil, fault.New(fault.Corruption, "decode %s: %w", name, err)
	}
	if root.Row == nil {
		return nil, fault.New(fault.Corruption, "%s holds no row", name)
	}
	return root, root.Row.Check()
}

func isNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

type wrapped struct {
	CRC32C uint32
	Root   json.RawMessage
}

// Incarnation returns the number of this start.
func (f *RootFile) Incarnation() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.root.Incarnation
}

// Row returns the METADATA tablet's row.
func (f *RootFile) Row() *Row {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.root.Row.Clone()
}

// CAS implements Store.
func (f *RootFile) CAS(_ context.Context, r *Row) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Version != f.root.Row.Version {
		return fault.New(fault.Fenced, "root row has version %d, not %d", f.root.Row.Version, r.Version)
	}
	next := f.root
	next.Row = r.Clone()
	next.Row.Version++
	if err := next.Row.Check(); err != nil {
		return errors.Join(err, ErrNotApplied)
	}
	if err := f.write(&next); err != nil {
		return err
	}
	f.root = next
	r.Version = next.Row.Version
	return nil
}

// write replaces the file, and then its copy: the new content is synced under
// another name, then renamed over the old, then the directory is synced.
func (f *RootFile) write(root *Root) error {
	inner, err := json.Marshal(root)
	if err != nil {
		return err
	}
	b, err := json.Marshal(wrapped{crc32.Checksum(inner, castagnoli), inner})
	if err != nil {
		return err
	}
	name := f.fs.PathJoin(f.dir, rootName)
	if err := f.replace(name+".tmp", name, b); err != nil {
		if vfs.IsNoSpaceError(err) {
			return fault.New(fault.Exhausted, "write %s: %w", name, err)
		}
		return fmt.Errorf("write %s: %w", name, err)
	}
	name = f.fs.PathJoin(f.dir, rootCopy)
	if err := f.replace(name+".tmp", name, b); err == nil {
		return nil
	}
	// The change is made. An older copy would be believed; none is, and a disk with
	// no room for a second file ends nothing.
	if err := f.fs.Remove(name); err != nil && !isNotExist(err) {
		return fmt.Errorf("remove %s, which is old: %w", name, err)
	}
	return f.syncDir()
}

func (f *RootFile) replace(tmp, name string, b []byte) error {
	file, err := f.fs.Create(tmp, "trestle-metadata")
	if err != nil {
		return errors.Join(err, ErrNotApplied)
	}
	_, err = file.Write(slices.Clone(b)) // which may change what it is given
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, ErrNotApplied)
	}
	if err := f.fs.Rename(tmp, name); err != nil {
		return err
	}
	return f.syncDir()
}

func (f *RootFile) syncDir() error {
	dir, err := f.fs.OpenDir(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
