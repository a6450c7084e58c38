package datadir

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Space returns the free and used bytes of the file system with a directory, zeros if
// it does not tell.
func Space(fs vfs.FS, dir string) (free, used int64) {
	u, err := fs.GetDiskUsage(dir)
	if err != nil {
		return 0, 0
	}
	return int64(u.AvailBytes), int64(u.UsedBytes)
}

// KeepFree returns how many bytes of a file system of that size are left to what
// makes room, such as flushes.
func KeepFree(size int64) int64 { return min(256<<20, size/20) }

// CheckFree returns an error if fewer than minFree bytes are free in a directory.
func CheckFree(fs vfs.FS, dir string, minFree int64) error {
	u, err := fs.GetDiskUsage(dir)
	if err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if free := int64(u.AvailBytes); free < minFree {
		return fmt.Errorf("%d bytes free in %s, fewer than %d: writes may be refused", free, dir, minFree)
	}
	return nil
}
