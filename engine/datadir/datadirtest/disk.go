package datadirtest

import (
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A SmallDisk is a file system with a number of bytes for files.
type SmallDisk struct {
	vfs.FS
	mu    sync.Mutex
	limit int64
	used  int64
	sizes map[string]*diskFile
}

type diskFile struct{ blocks int64 }

// NewSmallDisk returns fs with room for everything, until Fill is called.
func NewSmallDisk(fs vfs.FS) *SmallDisk {
	return &SmallDisk{FS: fs, limit: 1 << 40, sizes: map[string]*diskFile{}}
}

// Fill leaves free bytes.
func (d *SmallDisk) Fill(free int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = d.used + free
}

func (d *SmallDisk) grow(f *diskFile, to int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	to = (to + 4095) / 4096 * 4096
	if to <= f.blocks {
		return nil
	}
	if d.used+to-f.blocks > d.limit {
		return syscall.ENOSPC
	}
	d.used += to - f.blocks
	f.blocks = to
	return nil
}

func (d *SmallDisk) gone(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.sizes[name]; f != nil {
		d.used -= f.blocks
		delete(d.sizes, name)
	}
}

// Create implements vfs.FS.
func (d *SmallDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	d.gone(name)
	f, err := d.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sizes[name] = new(diskFile)
	return &smallFile{File: f, d: d, f: d.sizes[name]}, nil
}

// OpenReadWrite implements vfs.FS.
func (d *SmallDisk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, opts...)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sizes[name] == nil {
		d.sizes[name] = new(diskFile)
	}
	return &smallFile{File: f, d: d, f: d.sizes[name]}, nil
}

// Remove implements vfs.FS.
func (d *SmallDisk) Remove(name string) error {
	err := d.FS.Remove(name)
	if err == nil {
		d.gone(name)
	}
	return err
}

// Rename implements vfs.FS.
func (d *SmallDisk) Rename(from, to string) error {
	if err := d.FS.Rename(from, to); err != nil {
		return err
	}
	d.gone(to)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sizes[to] = d.sizes[from]
	delete(d.sizes, from)
	return nil
}

// Link implements vfs.FS.
func (d *SmallDisk) Link(from, to string) error {
	if err := d.FS.Link(from, to); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sizes[to] = new(diskFile) // the blocks go with from
	return nil
}

type smallFile struct {
	vfs.File
	d   *SmallDisk
	f   *diskFile
	off int64
}

func (f *smallFile) Write(p []byte) (int, error) {
	if err := f.d.grow(f.f, f.off+int64(len(p))); err != nil {
		return 0, err
	}
	n, err := f.File.Write(p)
	f.off += int64(n)
	return n, err
}

func (f *smallFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.d.grow(f.f, off+int64(len(p))); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *smallFile) Preallocate(off, n int64) error {
	if err := f.d.grow(f.f, off+n); err != nil {
		return err
	}
	return f.File.Preallocate(off, n)
}
