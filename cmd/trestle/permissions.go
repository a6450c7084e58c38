package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// What a server has in its data directory, and in a store that is a directory.
var (
	inDataDir = append([]string{"tls", filepath.Base(rootKey(&settings.Serve{}))}, standalone.Files...)
	inStore   = []string{storeMark, partSSTables, partLogs, partCopies, ".tmp"}
)

// makeDataDir makes the data directory if it is not there. Nobody else can read
// it, nor with login on change what is in it.
func makeDataDir(cfg *settings.Serve, log *slog.Logger) error {
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	err := closeToOthers(cfg.DataDir, inDataDir)
	if err != nil && !cfg.AuthOn() {
		log.Warn("the data directory is open to others", "error", err)
		return nil
	}
	return err
}

// closeToOthers takes away what others than the owner may do with a directory
// and with those entries of it, and what is below them, that are named: earlier
// versions made them readable for all. What is below a directory that is the
// owner's only is not looked at, as it was made so or closed before: a store has
// millions of files. A directory of another owner, as volumes have, is left to
// that owner and the group, but may not be everybody's.
func closeToOthers(dir string, names []string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("close %s to others: %w", dir, err)
	}
	for _, name := range names {
		if err := closeTree(filepath.Join(dir, name)); err != nil {
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

// closeTree is closeToOthers of a file, or a directory and everything in it. A
// directory comes after what is in it, so that its mode says that this is done.
func closeTree(path string) error {
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
			if err := closeTree(filepath.Join(path, e.Name())); err != nil {
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
