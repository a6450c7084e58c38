package tempfs

import "github.com/cockroachdb/pebble/v2/vfs"

// New returns fs with syncs that do nothing. Data is as durable as the process:
// the operating system keeps what was written even if the process is killed,
// but a power cut may leave anything.
func New(fs vfs.FS) vfs.FS { return unsynced{fs} }

type unsynced struct{ vfs.FS }

type file struct{ vfs.File }

func (file) Sync() error                { return nil }
func (file) SyncData() error            { return nil }
func (file) SyncTo(int64) (bool, error) { return false, nil }

func wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return file{f}, nil
}

func (u unsynced) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return wrap(u.FS.Create(name, c))
}

func (u unsynced) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return wrap(u.FS.Open(name, opts...))
}

func (u unsynced) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return wrap(u.FS.OpenReadWrite(name, c, opts...))
}

func (u unsynced) OpenDir(name string) (vfs.File, error) { return wrap(u.FS.OpenDir(name)) }

func (u unsynced) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return wrap(u.FS.ReuseForWrite(oldname, newname, c))
}

func (u unsynced) Unwrap() vfs.FS { return u.FS }
