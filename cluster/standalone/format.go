package standalone

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// The parts of a data directory, besides those of tabletserver.Private.
const (
	FormatName   = "FORMAT"
	LockDir      = "lock" // of the lock service
	SSTablesDir  = "sst"
	HistoryDir   = "keyvis"
	formatScan   = "trestle data format %d"
	formatLine   = formatScan + "\n"
	rootName     = LockDir + "/ROOT"
	doCopyRoot   = "copy " + rootName + ".copy, which is sound, over " + rootName
	otherVersion = "use the version of trestle that wrote it, or another directory"
)

// Files are the names of everything that a Server keeps in a data directory.
var Files = []string{FormatName, LockDir, SSTablesDir, HistoryDir, "mlog", "ulog", datadir.ReserveName}

func exists(fs vfs.FS, elem ...string) (bool, error) {
	_, err := fs.Stat(fs.PathJoin(elem...))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// hasData tells whether anything was ever kept in a directory.
func hasData(fs vfs.FS, dir string) (bool, error) {
	for _, name := range []string{"ROOT", "mlog", "ulog", SSTablesDir, fs.PathJoin(LockDir, "ROOT"), fs.PathJoin(LockDir, "log"), fs.PathJoin(LockDir, "sst")} {
		if there, err := exists(fs, dir, name); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// CheckFormat tells whether a directory is new: nothing was ever kept in it, and it
// has no FORMAT yet. It is fault.FailedPrecondition if the directory is of another
// version or of something else, and fault.Corruption if its FORMAT is lost.
func CheckFormat(fs vfs.FS, dir string) (fresh bool, err error) {
	name := fs.PathJoin(dir, FormatName)
	f, err := fs.Open(name)
	var b []byte
	if err == nil {
		b, err = io.ReadAll(f)
		err = errors.Join(err, f.Close())
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	if len(b) == 0 {
		old, err := hasData(fs, dir)
		if old {
			err = fault.New(fault.Corruption, "%s has no %s file but is not new", dir, FormatName)
		}
		return true, err
	}
	var v int
	if _, err := fmt.Sscanf(string(b), formatScan, &v); err != nil {
		return false, fault.New(fault.FailedPrecondition, "%s does not belong to a trestle data directory", name)
	}
	if v < catalog.OldestFormat || v > catalog.FormatVersion {
		return false, fault.New(fault.FailedPrecondition, "%s holds data of format %d; this program reads format %d: %s", dir, v, catalog.FormatVersion, otherVersion)
	}
	return false, nil
}

// writeFormat marks a directory that is new, or of an earlier version.
func writeFormat(fs vfs.FS, dir string) error {
	name := fs.PathJoin(dir, FormatName)
	f, err := fs.Create(name+".tmp", "trestle-metadata")
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	_, err = fmt.Fprintf(f, formatLine, catalog.FormatVersion)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(name+".tmp", name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	// The process that made the directory may have died before it synced its name. One
	// that an operator made need not be in a directory that can be read.
	if err := datadir.Sync(fs, fs.PathDir(dir)); err != nil && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("sync the parent of %s: %w", dir, err)
	}
	return datadir.Sync(fs, dir)
}

// raiseFormat says in a directory of an earlier version, which CheckFormat has judged,
// that this program writes to it: programs of that version refuse it from now on.
func raiseFormat(fs vfs.FS, dir string) error {
	f, err := fs.Open(fs.PathJoin(dir, FormatName))
	if err != nil {
		return fmt.Errorf("read %s: %w", FormatName, err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read %s: %w", FormatName, err)
	}
	if string(b) == fmt.Sprintf(formatLine, catalog.FormatVersion) {
		return nil
	}
	return writeFormat(fs, dir)
}

// CheckRoot is fault.Corruption if the lock service of a directory that is not new has
// lost its ROOT file, or that is damaged. A new one would know of no table, and all
// SSTables would be swept. way is what to do about it, "" if there is none.
func CheckRoot(fs vfs.FS, dir string) (way string, err error) {
	lock := fs.PathJoin(dir, LockDir)
	_, err = metadata.ReadRoot(fs, lock)
	if errors.Is(err, fault.NotFound) {
		old, serr := hasData(fs, dir)
		if err = serr; old {
			err = fault.New(fault.Corruption, "%s has no %s file but is not new", dir, rootName)
		}
	}
	if fault.KindOf(err) == fault.Corruption {
		if _, cerr := metadata.ReadRootCopy(fs, lock); cerr == nil {
			way = doCopyRoot
		}
	}
	return way, err
}
