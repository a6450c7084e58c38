package datadir

import (
	"errors"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Make makes a directory, and those above it that are missing, so that their names
// survive a power cut. One that is there stays as it is.
func Make(fs vfs.FS, dir string, mode os.FileMode) error {
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := Make(fs, parent, mode); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, mode); err != nil {
		return err
	}
	return Sync(fs, parent)
}

// Sync makes the names in a directory survive a power cut.
func Sync(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
