package memtable

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

var pageMask = uintptr(os.Getpagesize() - 1)

// populate has the system give its pages to a chunk at once. One by one, as they are
// written first, they are a quarter of the time of a replay. It is an economy and may fail,
// as it does before Linux 5.14.
func populate(p unsafe.Pointer, size int) {
	b := unsafe.Slice((*byte)(p), size)
	b = b[-uintptr(p)&pageMask:]
	_ = unix.Madvise(b[:uintptr(len(b))&^pageMask], unix.MADV_POPULATE_WRITE)
}
