package datadirtest

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A CrashableMem is a file system in memory whose power can be cut while it is in use. It keeps
// Link, ReuseForWrite and Lock of its vfs.MemFS apart from CrashClone: those take one lock for
// reading twice, and a CrashClone that comes in between makes both wait for ever.
type CrashableMem struct {
	*vfs.MemFS
	twice sync.RWMutex
}

// NewCrashableMem returns an empty file system.
func NewCrashableMem() *CrashableMem { return &CrashableMem{MemFS: vfs.NewCrashableMem()} }

// Link implements vfs.FS.
func (m *CrashableMem) Link(oldname, newname string) error {
	m.twice.RLock()
	defer m.twice.RUnlock()
	return m.MemFS.Link(oldname, newname)
}

// ReuseForWrite implements vfs.FS.
func (m *CrashableMem) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	m.twice.RLock()
	defer m.twice.RUnlock()
	return m.MemFS.ReuseForWrite(oldname, newname, category)
}

// Lock implements vfs.FS.
func (m *CrashableMem) Lock(name string) (io.Closer, error) {
	m.twice.RLock()
	defer m.twice.RUnlock()
	return m.MemFS.Lock(name)
}

// CrashClone returns the disk as a power cut leaves it now. Its caller goes on with m, whose
// writes the clone does not see.
func (m *CrashableMem) CrashClone(cfg vfs.CrashCloneCfg) *CrashableMem {
	m.twice.Lock()
	defer m.twice.Unlock()
	return &CrashableMem{MemFS: m.MemFS.CrashClone(cfg)}
}
