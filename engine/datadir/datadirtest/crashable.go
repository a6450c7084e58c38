package datadirtest

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A CrashableMem is a file system in memory whose power can be cut while it is in use. It keeps
// Link and CrashClone of its vfs.MemFS apart: that Link takes one lock for reading twice, and a
// CrashClone that comes in between makes both wait for ever.
type CrashableMem struct {
	*vfs.MemFS
	links sync.RWMutex
}

// NewCrashableMem returns an empty file system.
func NewCrashableMem() *CrashableMem { return &CrashableMem{MemFS: vfs.NewCrashableMem()} }

// Link implements vfs.FS.
func (m *CrashableMem) Link(oldname, newname string) error {
	m.links.RLock()
	defer m.links.RUnlock()
	return m.MemFS.Link(oldname, newname)
}

// CrashClone returns the disk as a power cut leaves it now. Its caller goes on with m, whose
// writes the clone does not see.
func (m *CrashableMem) CrashClone(cfg vfs.CrashCloneCfg) *CrashableMem {
	m.links.Lock()
	defer m.links.Unlock()
	return &CrashableMem{MemFS: m.MemFS.CrashClone(cfg)}
}
