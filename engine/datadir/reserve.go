package datadir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	// ReserveName is the file that holds disk space for a start on a full disk: what
	// is written before the first request, and what METADATA has in memory.
	ReserveName  = "RESERVE"
	reserveBytes = 24 << 20
	// ReserveEvery is how often it is made again once there is room.
	ReserveEvery = time.Minute
)

// OpenWithReserve calls open, and once more if the disk is full and the space of
// the reserve could be given to it.
func OpenWithReserve[T any](fs vfs.FS, dir string, log *slog.Logger, open func() (T, error)) (T, error) {
	s, err := open()
	if fault.KindOf(err) != fault.Exhausted {
		return s, err
	}
	used, uerr := useReserve(fs, dir)
	if !used {
		return s, errors.Join(err, uerr)
	}
	log.Warn("the disk is full: opening the data directory with the space that was kept for that", "error", err)
	return open()
}

// useReserve gives the space of the reserve to the caller, which needs it now. It
// returns false if there is none.
func useReserve(fs vfs.FS, dir string) (bool, error) {
	switch err := fs.Remove(fs.PathJoin(dir, ReserveName)); {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("use the reserved disk space: %w", err)
	}
	// Some file systems have the space only once that is on disk.
	if err := Sync(fs, dir); err != nil {
		return false, fmt.Errorf("use the reserved disk space: %w", err)
	}
	return true, nil
}

// makeReserve makes the reserve if it is not there and the disk has room for it
// four times over, so that it takes nothing that is needed at once.
func makeReserve(fs vfs.FS, dir string) error {
	name := fs.PathJoin(dir, ReserveName)
	if _, err := fs.Stat(name); !errors.Is(err, os.ErrNotExist) {
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
			return Sync(fs, dir)
		}
	}
	return errors.Join(err, fs.Remove(tmp))
}

// KeepReserve makes the reserve, now and whenever it is gone and there is room,
// until ctx ends.
func KeepReserve(ctx context.Context, fs vfs.FS, dir string, log *slog.Logger) {
	tick := time.NewTicker(ReserveEvery)
	defer tick.Stop()
	missing := false
	for {
		err := makeReserve(fs, dir)
		if err != nil && !missing {
			log.Info("no disk space is reserved for a start on a full disk", "bytes", reserveBytes, "error", err)
		}
		missing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
