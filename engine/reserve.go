package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	// reserveName is the file that holds disk space for a start on a full disk:
	// ROOT, a segment of METADATA's log and what METADATA has in memory.
	reserveName  = "RESERVE"
	reserveBytes = 24 << 20
	// reserveEvery is how often it is made again once there is room.
	reserveEvery = time.Minute
)

// useReserve gives the space of the reserve to whoever needs it now. It returns
// false if there is none.
func useReserve(fs vfs.FS, dir string) (bool, error) {
	switch err := fs.Remove(fs.PathJoin(dir, reserveName)); {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("use the reserved disk space: %w", err)
	}
	// Some file systems have the space only once that is on disk.
	if err := syncDir(fs, dir); err != nil {
		return false, fmt.Errorf("use the reserved disk space: %w", err)
	}
	return true, nil
}

// makeReserve makes the reserve if it is not there and the disk has room for it
// four times over, so that it takes nothing that is needed at once.
func makeReserve(fs vfs.FS, dir string) error {
	name := fs.PathJoin(dir, reserveName)
	if there, err := exists(fs, name); there || err != nil {
		return err
	}
	if u, err := fs.GetDiskUsage(dir); err == nil && u.AvailBytes < 4*reserveBytes {
		return fault.New(fault.Exhausted, "%d bytes are free", u.AvailBytes)
	}
	tmp := name + ".tmp"
	f, err := fs.Create(tmp, "trestle-metadata")
	if err != nil {
		return err
	}
	// Where the file system cannot allocate the file stays empty, and is of no use.
	err = f.Preallocate(0, reserveBytes)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		if err = fs.Rename(tmp, name); err == nil {
			return syncDir(fs, dir)
		}
	}
	return errors.Join(err, fs.Remove(tmp))
}

// keepReserve makes the reserve, now and whenever it is gone and there is room.
func (s *Store) keepReserve(ctx context.Context) {
	tick := time.NewTicker(reserveEvery)
	defer tick.Stop()
	missing := false
	for {
		err := makeReserve(s.o.FS, s.o.Dir)
		if err != nil && !missing {
			s.o.Log.Info("no disk space is reserved for a start on a full disk", "bytes", reserveBytes, "error", err)
		}
		missing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
