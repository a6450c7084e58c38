package datadir

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Overlay returns a file system that shows what lower holds and keeps every change
// in memory: lower is only read. A file that is written to is copied whole first.
// Locks are in memory too, so they exclude no other process from lower.
//
// It lets a tool recover a data directory as a start would, and change nothing.
func Overlay(lower vfs.FS) vfs.FS {
	return &overlay{lower: lower, upper: vfs.NewMem(), removed: map[string]bool{}}
}

type overlay struct {
	lower vfs.FS
	upper *vfs.MemFS

	mu sync.Mutex
	// removed are the names whose files in lower, and those below, are not shown.
	removed map[string]bool
}

var _ vfs.FS = (*overlay)(nil)

// shown tells whether lower's file of a name is to be seen.
func (o *overlay) shown(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.removed) > 0 {
		if o.removed[name] {
			return false
		}
		up := o.lower.PathDir(name)
		if up == name {
			break
		}
		name = up
	}
	return true
}

func (o *overlay) hide(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.removed[name] = true
}

// clean gives every file one name.
func (o *overlay) clean(name string) string { return o.lower.PathJoin(name) }

// above tells whether a file or directory is in memory.
func (o *overlay) above(name string) bool {
	_, err := o.upper.Stat(name)
	return err == nil
}

// below returns what lower shows of a name.
func (o *overlay) below(name string) (vfs.FileInfo, error) {
	if !o.shown(name) {
		return nil, &os.PathError{Op: "stat", Path: name, Err: os.ErrNotExist}
	}
	return o.lower.Stat(name)
}

// makeParent makes in memory the directory of a file that is to be made there.
func (o *overlay) makeParent(name string) error {
	dir := o.lower.PathDir(name)
	info, err := o.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &os.PathError{Op: "open", Path: name, Err: errors.New("not a directory")}
	}
	return o.upper.MkdirAll(dir, 0o700)
}

// copyUp copies a file of lower into memory, unless it is there.
func (o *overlay) copyUp(name string) error {
	if o.above(name) {
		return nil
	}
	if _, err := o.below(name); err != nil {
		return err
	}
	from, err := o.lower.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := o.makeParent(name); err != nil {
		return err
	}
	to, err := o.upper.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// Create implements vfs.FS.
func (o *overlay) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	name = o.clean(name)
	if err := o.makeParent(name); err != nil {
		return nil, err
	}
	return o.upper.Create(name, category)
}

// Link implements vfs.FS.
func (o *overlay) Link(oldname, newname string) error {
	oldname, newname = o.clean(oldname), o.clean(newname)
	if err := o.copyUp(oldname); err != nil {
		return err
	}
	if _, err := o.Stat(newname); err == nil {
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: os.ErrExist}
	}
	if err := o.makeParent(newname); err != nil {
		return err
	}
	return o.upper.Link(oldname, newname)
}

// Open implements vfs.FS.
func (o *overlay) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	name = o.clean(name)
	if o.above(name) {
		return o.upper.Open(name, opts...)
	}
	if _, err := o.below(name); err != nil {
		return nil, err
	}
	return o.lower.Open(name, opts...)
}

// OpenReadWrite implements vfs.FS.
func (o *overlay) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	name = o.clean(name)
	if err := o.copyUp(name); errors.Is(err, os.ErrNotExist) {
		err = o.makeParent(name)
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	return o.upper.OpenReadWrite(name, category, opts...)
}

// OpenDir implements vfs.FS. A sync of the directory does nothing.
func (o *overlay) OpenDir(name string) (vfs.File, error) {
	name = o.clean(name)
	if !o.above(name) {
		if info, err := o.below(name); err != nil || !info.IsDir() {
			return nil, errors.Join(err, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist})
		}
		if err := o.upper.MkdirAll(name, 0o700); err != nil {
			return nil, err
		}
	}
	return o.upper.OpenDir(name)
}

// Remove implements vfs.FS.
func (o *overlay) Remove(name string) error {
	name = o.clean(name)
	info, err := o.Stat(name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		if names, err := o.List(name); err != nil || len(names) > 0 {
			return errors.Join(err, &os.PathError{Op: "remove", Path: name, Err: errors.New("the directory is not empty")})
		}
	}
	return o.RemoveAll(name)
}

// RemoveAll implements vfs.FS.
func (o *overlay) RemoveAll(name string) error {
	name = o.clean(name)
	o.hide(name)
	if !o.above(name) {
		return nil
	}
	return o.upper.RemoveAll(name)
}

// Rename implements vfs.FS, for files.
func (o *overlay) Rename(oldname, newname string) error {
	oldname, newname = o.clean(oldname), o.clean(newname)
	if err := o.copyUp(oldname); err != nil {
		return err
	}
	if err := o.makeParent(newname); err != nil {
		return err
	}
	o.hide(oldname)
	return o.upper.Rename(oldname, newname)
}

// ReuseForWrite implements vfs.FS.
func (o *overlay) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := o.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return o.upper.OpenReadWrite(o.clean(newname), category)
}

// MkdirAll implements vfs.FS.
func (o *overlay) MkdirAll(dir string, mode os.FileMode) error {
	return o.upper.MkdirAll(o.clean(dir), mode)
}

// Lock implements vfs.FS.
func (o *overlay) Lock(name string) (io.Closer, error) {
	name = o.clean(name)
	if err := o.makeParent(name); err != nil {
		return nil, err
	}
	return o.upper.Lock(name)
}

// List implements vfs.FS.
func (o *overlay) List(dir string) ([]string, error) {
	dir = o.clean(dir)
	var names []string
	above, err := o.upper.List(dir)
	if err == nil {
		names = above
	}
	if !o.shown(dir) {
		return names, err
	}
	lower, lerr := o.lower.List(dir)
	if lerr != nil && !(errors.Is(lerr, os.ErrNotExist) && err == nil) {
		return nil, lerr
	}
	for _, n := range lower {
		if o.shown(o.lower.PathJoin(dir, n)) && !slices.Contains(above, n) {
			names = append(names, n)
		}
	}
	return names, nil
}

// Stat implements vfs.FS.
func (o *overlay) Stat(name string) (vfs.FileInfo, error) {
	name = o.clean(name)
	if info, err := o.upper.Stat(name); err == nil {
		return info, nil
	}
	return o.below(name)
}

// PathBase implements vfs.FS.
func (o *overlay) PathBase(path string) string { return o.lower.PathBase(path) }

// PathJoin implements vfs.FS.
func (o *overlay) PathJoin(elem ...string) string { return o.lower.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (o *overlay) PathDir(path string) string { return o.lower.PathDir(path) }

// GetDiskUsage implements vfs.FS. There is always room: nothing is written to the
// disk.
func (o *overlay) GetDiskUsage(string) (vfs.DiskUsage, error) {
	const room = 1 << 40
	return vfs.DiskUsage{AvailBytes: room, TotalBytes: room}, nil
}

// Unwrap implements vfs.FS. Lower alone is another file system.
func (o *overlay) Unwrap() vfs.FS { return nil }
