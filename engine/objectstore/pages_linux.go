package objectstore

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// dropPages makes the system forget what it remembers of a file, as far as it
// was written. It may fail: then reads are answered from memory.
func dropPages(f vfs.File) {
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED)
	}
}
