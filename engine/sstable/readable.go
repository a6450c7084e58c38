package sstable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/fault"
)

// A Readable is the bytes of a finished file. Its methods are safe for
// concurrent use.
type Readable interface {
	// ReadAt fills p from offset off, or fails; there is no partial success.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Size is the length of the file in bytes.
	Size() int64
	// Close releases what the Readable holds. No read may be running.
	Close() error
}

// tailBytes is how much of the end of a file is read at once when it is
// opened: footer, metaindex and properties, which are seldom more.
const tailBytes = 8 << 10

// How much is read at once of blocks that follow each other: by a compaction, and by
// others at most, of which the last block may be longer.
const (
	aheadBytes     = 512 << 10
	scanAheadBytes = 256 << 10
)

// A file puts a Readable into the form that Pebble wants. Pebble also reads
// blocks through it directly, when it has no handle.
type file struct {
	r Readable
	// tail is the end of the file while it is being opened, then nil.
	tail []byte
}

var _ objstorage.Readable = (*file)(nil)

// A readError is a failure of storage, as opposed to bytes that came and make
// no sense.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// read fills p from storage, or from the tail.
func (f *file) read(ctx context.Context, p []byte, off int64) error {
	size := f.r.Size()
	if off < 0 || off+int64(len(p)) > size {
		return fmt.Errorf("%d bytes at %d of a file of %d bytes", len(p), off, size)
	}
	if start := size - int64(len(f.tail)); len(f.tail) > 0 && off >= start {
		copy(p, f.tail[off-start:])
	} else if err := f.r.ReadAt(ctx, p, off); err != nil {
		return &readError{err}
	}
	return nil
}

// ReadAt reads a block with its trailer, which is all that Pebble reads but the
// footer, and checks the block's checksum.
//
// Pebble checks it once more, and when it finds it wrong tries all bits of the
// block to see whether flipping one makes it right. That takes half a second
// for a block of 32 KiB and minutes for one with a large value, at each read.
func (f *file) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := f.read(ctx, p, off); err != nil || off+int64(len(p)) == f.r.Size() {
		return err // the checksum of the footer lies elsewhere
	}
	return checkBlock(p, off)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checkBlock checks a block, which ends with a byte for its compression and
// the checksum of all before it, CRC-32C masked as LevelDB does.
func checkBlock(p []byte, off int64) error {
	n := len(p) - 4
	if n < 1 {
		return fmt.Errorf("block of %d bytes at %d: %w", len(p), off, fault.Corruption)
	}
	c := crc32.Checksum(p[:n], castagnoli)
	if c = (c>>15 | c<<17) + 0xa282ead8; c != binary.LittleEndian.Uint32(p[n:]) {
		return fmt.Errorf("block of %d bytes at %d: wrong checksum: %w", len(p), off, fault.Corruption)
	}
	return nil
}

func (f *file) Size() int64  { return f.r.Size() }
func (f *file) Close() error { return f.r.Close() }

func (f *file) NewReadHandle(objstorage.ReadBeforeSize) objstorage.ReadHandle {
	return directHandle{f}
}

// directHandle reads what it is asked for.
type directHandle struct{ f *file }

func (h directHandle) ReadAt(ctx context.Context, p []byte, off int64) error {
	return h.f.ReadAt(ctx, p, off)
}
func (directHandle) Close() error                                 { return nil }
func (directHandle) SetupForCompaction()                          {}
func (directHandle) RecordCacheHit(context.Context, int64, int64) {}

// readFailure gives an error of Pebble's the kind it deserves. What storage
// reported passes as it is, and so does the end of a context; everything else
// means that the bytes are not those of a file that was finished.
func readFailure(name string, err error) error {
	if err == nil {
		return nil
	}
	if re, ok := errors.AsType[*readError](err); ok {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("read sstable %s: %w: %w", name, fault.Corruption, re.err)
		}
		return fmt.Errorf("read sstable %s: %w", name, re.err)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fault.Corruption) {
		return fmt.Errorf("read sstable %s: %w", name, err)
	}
	return fmt.Errorf("read sstable %s: %w: %w", name, fault.Corruption, err)
}
