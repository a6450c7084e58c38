package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// MakePrivate takes away what others than the owner may do with a directory and
// with those entries of it, and what is below them, that are named: earlier
// versions made them readable for all. What is below a directory that is the
// owner's only is not looked at, as it was made so or closed before: a store has
// millions of files. A directory of another owner, as volumes have, is left to
// that owner and the group, but may not be everybody's.
func MakePrivate(dir string, names []string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("close %s to others: %w", dir, err)
	}
	for _, name := range names {
		if err := makeTreePrivate(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("close %s to others: %w", filepath.Join(dir, name), err)
		}
	}
	err = restrict(dir, info)
	if errors.Is(err, fs.ErrPermission) && info.Mode().Perm()&0o007 == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("close %s to others: %w", dir, err)
	}
	return nil
}

// makeTreePrivate is MakePrivate of a file, or a directory and everything in it. A
// directory comes after what is in it, so that its mode says that this is done.
func makeTreePrivate(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm()&0o077 == 0 || !info.IsDir() && !info.Mode().IsRegular() {
		return there(err)
	}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return there(err)
		}
		for _, e := range entries {
			if err := makeTreePrivate(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	return there(restrict(path, info))
}

// there drops the error of a file that was removed meanwhile.
func there(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func restrict(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return os.Chmod(path, info.Mode()&^0o077)
}
