package engine

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// A smallDisk is a file system with so many bytes for files.
type smallDisk struct {
	vfs.FS
	mu    sync.Mutex
	limit int64
	used  int64
	sizes map[string]*diskFile
}

type diskFile struct{ blocks int64 }

func newSmallDisk(fs vfs.FS) *smallDisk {
	return &smallDisk{FS: fs, limit: 1 << 40, sizes: map[string]*diskFile{}}
}

// fill leaves free bytes.
func (d *smallDisk) fill(free int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = d.used + free
}

func (d *smallDisk) grow(f *diskFile, to int64) error {
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

func (d *smallDisk) gone(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.sizes[name]; f != nil {
		d.used -= f.blocks
		delete(d.sizes, name)
	}
}

func (d *smallDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
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

func (d *smallDisk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
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

func (d *smallDisk) Remove(name string) error {
	err := d.FS.Remove(name)
	if err == nil {
		d.gone(name)
	}
	return err
}

func (d *smallDisk) Rename(from, to string) error {
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

func (d *smallDisk) Link(from, to string) error {
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
	d   *smallDisk
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

// TestOpenOnFullDisk: a data directory whose disk has not one byte left is opened
// with the space that was kept for that, and serves reads; writes are Exhausted,
// and go on by themselves once there is room, for which space is kept again.
// Without any it is Exhausted, and nothing is lost.
func TestOpenOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newSmallDisk(vfs.NewMem())
		o := Options{FS: disk, Dir: "d", Log: loud(), SegmentBytes: 1 << 20, MemtableBytes: 8 << 20, LogBytes: 4 << 20}
		s := mustOpen(t, o)
		table := filled(t, s, "t", 100)
		if _, err := s.PutRecord(ctx, "record", []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := content(s, table, row.All)
		reserved := func() bool { ok, _ := exists(disk, "d/RESERVE"); return ok }
		if !reserved() {
			t.Fatal("nothing is reserved")
		}
		disk.fill(0)
		_ = s.Close(ctx) // may say that it could not flush
		big := strings.Repeat("x", 1<<20)
		for n := range 3 { // and again, without a new reserve
			disk.fill(0)
			if n > 0 {
				disk.fill(64 << 10) // some of the reserve is left
			}
			s = mustOpen(t, o)
			if got := content(s, table, row.Range{Start: []byte("row")}); got != want {
				t.Fatalf("start %d: got %s", n, got)
			}
			if _, _, err := s.GetRecord(ctx, "record"); err != nil {
				t.Errorf("start %d: %v", n, err)
			}
			if reserved() {
				t.Errorf("start %d: the reserve is there still", n)
			}
			disk.fill(0)
			var err error
			for i := 0; err == nil && i < 100; i++ {
				err = s.MutateRow(ctx, table, entry("a", setCell("f", "q", 1000, big)))
			}
			if fault.KindOf(err) != fault.Exhausted {
				t.Errorf("start %d: a write: %v", n, err)
			}
			if n < 2 {
				_ = s.Close(ctx)
			}
		}
		disk.fill(1 << 30)
		time.Sleep(2 * reserveEvery)
		for i := range 20 {
			mustPut(t, s, table, fmt.Sprint("b", i), setCell("f", "q", 1000, big))
		}
		if !reserved() {
			t.Error("nothing is reserved again")
		}
		mustClose(t, s)
		if err := disk.Remove("d/RESERVE"); err != nil {
			t.Fatal(err)
		}
		disk.fill(0)
		if _, err := Open(ctx, o); fault.KindOf(err) != fault.Exhausted {
			t.Errorf("open without a reserve: %v", err)
		}
		disk.fill(1 << 30)
		s = mustOpen(t, o)
		if got := content(s, table, row.Range{Start: []byte("row")}); got != want {
			t.Errorf("got %s", got)
		}
		mustClose(t, s)
	})
}
