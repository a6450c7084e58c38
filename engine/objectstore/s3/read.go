package s3

import (
	"context"
	"io"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/minio/minio-go/v7"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	// A handle that is read in order reads ahead aheadFirst bytes, then twice that
	// and so on up to aheadMost; that of a compaction aheadCompaction at once.
	aheadFirst      = 128 << 10
	aheadMost       = 1 << 20
	aheadCompaction = 4 << 20
)

// readable implements objstorage.Readable.
type readable struct {
	s    *Store
	name string
	size int64
}

func (r *readable) Size() int64 { return r.size }

func (r *readable) Close() error { return nil }

// ReadAt reads by one ranged GET.
func (r *readable) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > r.size {
		return fault.New(fault.Invalid, "read object %s: %d bytes at %d exceed its %d", r.name, len(p), off, r.size)
	}
	if len(p) == 0 {
		return nil
	}
	var opts minio.GetObjectOptions
	if err := opts.SetRange(off, off+int64(len(p))-1); err != nil {
		return wrap(err, "read object", r.name)
	}
	body, info, _, err := r.s.again.GetObject(ctx, r.s.bucket, r.s.prefix+r.name, opts)
	if err != nil {
		return wrap(err, "read object", r.name)
	}
	defer body.Close()
	if info.Size != int64(len(p)) {
		return fault.New(fault.Unavailable, "read object %s: got %d bytes of %d at %d", r.name, info.Size, len(p), off)
	}
	if _, err := io.ReadFull(body, p); err != nil {
		return fault.New(fault.Unavailable, "read object %s: %w", r.name, err)
	}
	return nil
}

func (r *readable) NewReadHandle(before objstorage.ReadBeforeSize) objstorage.ReadHandle {
	return &handle{r: r, before: int64(before)}
}

// A handle is a readable that keeps what it has read ahead, or before.
type handle struct {
	r          *readable
	before     int64 // what the first read is to cover, up to its end
	compaction bool
	next       int64 // where a read in order would be
	ahead      int64
	buf        []byte
	off        int64 // of buf
}

func (h *handle) ReadAt(ctx context.Context, p []byte, off int64) error {
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

func (h *handle) Close() error {
	h.buf = nil
	return nil
}

func (h *handle) SetupForCompaction() { h.compaction = true }

func (h *handle) RecordCacheHit(_ context.Context, off, size int64) { h.next = off + size }
