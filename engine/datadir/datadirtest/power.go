package datadirtest

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A Powered is a file system in memory whose power can be cut while it is in use. It keeps Link
// and CrashClone of the vfs.MemFS apart: Link takes a lock for reading twice, and waits for ever
// if a CrashClone comes in between.
type Powered struct {
	*vfs.MemFS
	links sync.RWMutex
}

// Power returns fs, which vfs.NewCrashableMem or CrashClone has made, as a Powered.
func Power(fs *vfs.MemFS) *Powered { return &Powered{MemFS: fs} }

// Link implements vfs.FS.
func (p *Powered) Link(oldname, newname string) error {
	p.links.RLock()
	defer p.links.RUnlock()
	return p.MemFS.Link(oldname, newname)
}

// CrashClone returns what a power cut leaves now. Its user goes on with a disk that nobody sees.
func (p *Powered) CrashClone(cfg vfs.CrashCloneCfg) *vfs.MemFS {
	p.links.Lock()
	defer p.links.Unlock()
	return p.MemFS.CrashClone(cfg)
}
