package commitlog

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

// retryInterval is how soon allocation is tried again on a full disk. A server
// is to accept writes within two seconds after there is room.
const retryInterval = 250 * time.Millisecond

// keepFree is how many trimmed segments are kept to be used again. fdatasync of blocks
// that were written before has nothing to journal and takes half the time. A memtable that
// is flushed frees about one segment.
const keepFree = 4

// zeroChunk is written at a time where the file system cannot allocate.
const zeroChunk = 1 << 20

func isNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

// prepare keeps one allocated segment ahead of the one in use.
func (w *FileWriter) prepare() {
	defer w.stopped.Done()
	ctx := context.Background()
	full := false
	for {
		w.mu.Lock()
		if w.mu.stoppedLocked() != nil {
			w.mu.Unlock()
			return
		}
		spare, want := w.mu.spare, w.mu.want
		enough := want <= spare.room()
		w.mu.Unlock()

		var err error
		switch {
		case spare == nil:
			err = w.createSpare()
		case !enough:
			err = w.growSpare(spare, want)
		default:
			<-w.wakeSpare
			continue
		}
		if (err != nil) != full {
			full = err != nil
			if full {
				w.opts.Log.LogAttrs(ctx, slog.LevelWarn, "commit log cannot allocate a segment",
					slog.String("dir", w.log.dir), slog.Any("error", err))
			} else {
				w.opts.Log.LogAttrs(ctx, slog.LevelInfo, "commit log allocates segments again",
					slog.String("dir", w.log.dir))
			}
		}
		if err != nil {
			if fault.KindOf(err) == fault.Exhausted {
				_ = w.dropUnused() // for the next attempt
			}
			if !w.pause(retryInterval) {
				return
			}
			w.mu.Lock()
			if w.mu.spare != nil {
				w.mu.spareErr = nil // a larger one may be asked for again
			}
			w.mu.Unlock()
		}
	}
}

// pause waits for d, or until a trim has made room, and reports whether the writer
// goes on. Wishes made meanwhile do not shorten it: they get the error of the last
// attempt.
func (w *FileWriter) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return true
		case <-w.wakeSpare:
			w.mu.Lock()
			err, trimmed := w.mu.stoppedLocked(), w.mu.trimmed
			w.mu.trimmed = false
			w.mu.Unlock()
			if err != nil || trimmed {
				return err == nil
			}
		}
	}
}

// createSpare allocates the next segment, as large as is wished for.
func (w *FileWriter) createSpare() error {
	w.mu.Lock()
	number, size := w.mu.next, segmentSize(w.mu.want, w.opts.SegmentBytes)
	w.mu.Unlock()

	s, err := w.createSegment(number, size)

	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.mu.spare = s
		w.mu.next = number + 1
	}
	w.attemptedLocked(err)
	return err
}

// growSpare allocates more for the spare. It may come into use at the same
// time, which does no harm: the bytes it already had are not touched.
func (w *FileWriter) growSpare(s *segment, want uint64) error {
	s.resizing.Lock()
	defer s.resizing.Unlock()
	w.mu.Lock()
	used := w.mu.spare != s
	w.mu.Unlock()
	if used {
		return nil // and may be closed by now
	}
	size := segmentSize(want, w.opts.SegmentBytes)
	err := w.log.checkFree(size)
	if err == nil {
		var ok bool
		if ok, err = allocate(s.file, size); err == nil && !ok {
			return w.dropSpare(s)
		}
		if err != nil {
			err = ioError(err)
			truncate(s.file, int64(s.limit)+frameHeaderLen)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		s.limit, s.size = segmentLimit(size), size
	}
	w.attemptedLocked(err)
	return err
}

// dropSpare removes a spare that cannot grow, so that a larger one is created. Zeros
// cannot be written into a file that may come into use meanwhile. That has to wait while
// the spare is needed for what is reserved already.
func (w *FileWriter) dropSpare(s *segment) error {
	w.mu.Lock()
	if w.mu.spare != s {
		w.mu.Unlock()
		return nil
	}
	if w.mu.reserved > w.mu.cur.room() {
		err := fault.New(fault.Exhausted, "a log segment in use cannot grow")
		w.attemptedLocked(err)
		w.mu.Unlock()
		return err
	}
	w.mu.spare = nil
	w.mu.Unlock()
	s.file.Close()
	return ioError(w.log.fs.Remove(w.log.path(s.number)))
}

// attemptedLocked publishes the outcome of an attempt to allocate.
func (w *FileWriter) attemptedLocked(err error) {
	w.mu.want = 0
	w.mu.spareErr = nil
	if err != nil {
		e := fault.New(fault.KindOf(err), "no room for the commit log: %w", err)
		e.RetryAfter = time.Second
		w.mu.spareErr = e
	}
	w.mu.changedLocked()
}

func segmentSize(want uint64, usual int64) int64 {
	return max(usual, int64(want)+segmentHeaderLen+frameHeaderLen)
}

func segmentLimit(size int64) uint32 { return uint32(size - frameHeaderLen) }

// checkFree fails if the disk has less than size free, before anything is
// taken away from others. allocate is what decides.
func (l *FileLog) checkFree(size int64) error {
	usage, err := l.fs.GetDiskUsage(l.dir)
	if err != nil {
		return nil // not every file system can tell
	}
	if usage.AvailBytes < uint64(size+l.opts.KeepFreeBytes) {
		return fault.New(fault.Exhausted, "disk full: %d bytes free, %d needed", usage.AvailBytes, size+l.opts.KeepFreeBytes)
	}
	return nil
}

// createSegment makes a file of size bytes whose blocks and name are durable.
func (w *FileWriter) createSegment(number uint64, size int64) (*segment, error) {
	if number >= 1<<32-1 {
		return nil, fault.New(fault.Internal, "the commit log has used all segment numbers")
	}
	if size == w.opts.SegmentBytes {
		if number == w.log.spare {
			w.log.spare = 0
			return w.reuseSegment(w.log.path(number), number, size)
		}
		if old, ok := w.takeUnused(); ok {
			return w.reuseSegment(w.log.freePath(old), number, size)
		}
	}
	if err := w.log.checkFree(size); err != nil {
		return nil, err
	}
	fs, path := w.log.fs, w.log.path(number)
	f, err := fs.Create(path, WriteCategory)
	if err != nil {
		return nil, ioError(err)
	}
	ok, err := allocate(f, size)
	if err == nil && !ok {
		chunk := make([]byte, zeroChunk)
		for n := int64(0); n < size && err == nil; n += zeroChunk {
			_, err = f.Write(chunk[:min(zeroChunk, size-n)])
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = w.dir.Sync()
	}
	if err != nil {
		return nil, ioError(errors.Join(err, f.Close(), fs.Remove(path)))
	}
	return &segment{number: number, file: f, size: size, limit: segmentLimit(size), tail: segmentHeaderLen}, nil
}

// reuseSegment makes the file at path the next segment: that of one that was trimmed, or of
// the next itself, never begun. Its content stays, but for the start. Until its first group
// is durable, the start shows that the file is not begun, and which incarnation it was
// given to.
func (w *FileWriter) reuseSegment(path string, number uint64, size int64) (_ *segment, err error) {
	fs, to := w.log.fs, w.log.path(number)
	var f vfs.File
	defer func() {
		if err != nil {
			if f != nil {
				f.Close()
			}
			err = ioError(errors.Join(err, fs.Remove(path)))
		}
	}()
	if f, err = fs.OpenReadWrite(path, WriteCategory); err != nil {
		return nil, err
	}
	// It has its blocks, unless it is a copy that leaves out zeros. Where blocks
	// cannot be allocated it was written from end to end.
	if _, err = allocate(f, size); err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(appendBlank(nil, w.incarnation, number), 0); err != nil {
		return nil, err
	}
	if err = f.Sync(); err != nil {
		return nil, err
	}
	if path != to {
		if err = fs.Rename(path, to); err != nil {
			return nil, err
		}
		path = to
	}
	if err = w.dir.Sync(); err != nil {
		return nil, err
	}
	return &segment{number: number, file: f, size: size, limit: segmentLimit(size), tail: segmentHeaderLen}, nil
}

// takeUnused takes a file off the list of those to be used again.
func (w *FileWriter) takeUnused() (number uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.mu.unused); n > 0 {
		number, ok = w.mu.unused[n-1], true
		w.mu.unused = w.mu.unused[:n-1]
	}
	return number, ok
}

// dropUnused gives the blocks of unused files back to the disk.
func (w *FileWriter) dropUnused() error {
	var errs []error
	for {
		number, ok := w.takeUnused()
		if !ok {
			return errors.Join(errs...)
		}
		if err := w.log.fs.Remove(w.log.freePath(number)); err != nil && !isNotExist(err) {
			errs = append(errs, err)
		}
	}
}
