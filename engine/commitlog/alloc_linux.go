package commitlog

import (
	"errors"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// allocate gives f the disk blocks for size bytes and that length. vfs's own Preallocate
// keeps the length, and then every append would change it, which fdatasync has to journal.
// ok is false if the file system cannot do it.
func allocate(f vfs.File, size int64) (ok bool, err error) {
	if err := f.Preallocate(0, size); err != nil {
		return ignoreUnsupported(err)
	}
	fd := f.Fd()
	if fd == vfs.InvalidFd {
		return true, nil // memory: there are no blocks to allocate
	}
	for {
		err := unix.Fallocate(int(fd), 0, 0, size)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return ignoreUnsupported(err)
		}
	}
}

func ignoreUnsupported(err error) (bool, error) {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return false, nil
	}
	return false, err
}

// truncate gives back the blocks of f beyond size. It is an economy and may fail.
func truncate(f vfs.File, size int64) {
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = unix.Ftruncate(int(fd), size)
	}
}
