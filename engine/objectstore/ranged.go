package objectstore

import (
	"context"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	// A handle that is read in order reads ahead aheadFirst bytes, then twice that and so
	// on up to aheadMost. That of a compaction reads aheadCompaction at once.
	aheadFirst      = 128 << 10
	aheadMost       = 1 << 20
	aheadCompaction = 4 << 20
)

// NewRanged returns an object of size bytes in a store to which each call of read is a
// request. read fills p with the bytes at off, all of which are within size. Reads of a
// ReadHandle that turn out sequential are read ahead.
func NewRanged(name string, size int64, read func(ctx context.Context, p []byte, off int64) error) objstorage.Readable {
	return &ranged{name: name, size: size, read: read}
}

type ranged struct {
	name string
	size int64
	read func(ctx context.Context, p []byte, off int64) error
}

func (r *ranged) Size() int64 { return r.size }

func (r *ranged) Close() error { return nil }

func (r *ranged) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > r.size {
		return fault.New(fault.Invalid, "read object %s: %d bytes at %d exceed its %d", r.name, len(p), off, r.size)
	}
	if len(p) == 0 {
		return nil
	}
	return r.read(ctx, p, off)
}

func (r *ranged) NewReadHandle(before objstorage.ReadBeforeSize) objstorage.ReadHandle {
	return &aheadHandle{r: r, before: int64(before)}
}

// An aheadHandle keeps the bytes that it has read ahead, or before.
type aheadHandle struct {
	r          *ranged
	before     int64 // the range that the first read covers, by its end
	compaction bool
	next       int64 // where a read in order would be
	ahead      int64
	buf        []byte
	off        int64 // of buf
}

func (h *aheadHandle) ReadAt(ctx context.Context, p []byte, off int64) error {
	n := int64(len(p))
	if off >= h.off && off+n <= h.off+int64(len(h.buf)) {
		copy(p, h.buf[off-h.off:])
		h.next = off + n
		return nil
	}
	start, end := off, off+n
	switch {
	case h.before > n:
		start = max(0, end-h.before)
	case h.compaction:
		end = off + max(n, aheadCompaction)
	case off == h.next && off > 0:
		h.ahead = min(max(2*h.ahead, aheadFirst), aheadMost)
		end = off + max(n, h.ahead)
	default:
		h.ahead = 0
	}
	h.before = 0
	h.next = off + n
	end = min(end, h.r.size)
	if start == off && end <= off+n {
		return h.r.ReadAt(ctx, p, off)
	}
	if int64(cap(h.buf)) < end-start {
		h.buf = make([]byte, end-start)
	}
	h.buf, h.off = h.buf[:end-start], start
	if err := h.r.ReadAt(ctx, h.buf, start); err != nil {
		h.buf = h.buf[:0]
		return err
	}
	if off+n > end {
		return h.r.ReadAt(ctx, p, off) // says that it is over the end
	}
	copy(p, h.buf[off-start:])
	return nil
}

func (h *aheadHandle) Close() error {
	h.buf = nil
	return nil
}

func (h *aheadHandle) SetupForCompaction() { h.compaction = true }

func (h *aheadHandle) RecordCacheHit(_ context.Context, off, size int64) { h.next = off + size }
