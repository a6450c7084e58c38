package sstable

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/sstable/block"

	"github.com/trestledb/trestle/engine/fault"
)

// A stretch is where an Iterator has data blocks that do not come from the Cache: the
// bytes of some that follow each other, as they are stored, read at once. The first, if
// it is not compressed, is used where it is. One that is to be in the Cache is copied
// from here by Pebble, to which a stretch is a ReadHandle.
type stretch struct {
	of  *Iterator
	at  block.Handle // the block that the Iterator enters
	buf []byte       // the file's bytes at off
	off int64
	// plain is the block that was decompressed, or moved to where it can be used.
	plain []byte
	// cols are of the block that block returned last.
	cols columns
	// lent says that the buffer is counted: see Cache.ahead.
	lent bool
}

const (
	// blockRoom is how much longer than what is read ahead the last block makes it.
	blockRoom = 32 << 10
	// stretchBytes is the length of a buffer that blocks are read ahead into, except for
	// a compaction.
	stretchBytes = scanAheadBytes + blockRoom
	// keptBuffer is the length of the longest buffer that is kept for later reads.
	keptBuffer = aheadBytes + blockRoom
)

var stretches = sync.Pool{New: func() any { return new(stretch) }}

var _ objstorage.ReadHandle = (*stretch)(nil)

// has tells whether n bytes at off are there.
func (s *stretch) has(off, n int64) bool {
	return off >= s.off && n >= 0 && off-s.off <= int64(len(s.buf))-n
}

// fetch reads n bytes at off.
func (s *stretch) fetch(ctx context.Context, off, n int64) error {
	s.buf = s.buf[:0]
	if size := s.of.t.f.r.Size(); off < 0 || n < 0 || n > size || off > size-n {
		return fmt.Errorf("%d bytes at %d of a file of %d bytes", n, off, size)
	}
	if int64(cap(s.buf)) < n {
		room := int64(blockRoom)
		switch {
		case s.of.compact:
			room = keptBuffer
		case s.lent:
			room = stretchBytes
		}
		s.buf = nil // it need not be there beside the next
		s.buf = make([]byte, 0, max(n, room))
	}
	s.buf, s.off = s.buf[:n], off
	err := s.of.t.f.read(ctx, s.buf, off)
	if err != nil {
		s.buf = s.buf[:0]
	}
	return err
}

// load makes sure that n bytes at off are there, of ahead that may be read at once.
func (s *stretch) load(ctx context.Context, off, n, ahead int64) error {
	if ahead > n {
		err := s.fetch(ctx, off, ahead)
		if err == nil || ctx.Err() != nil || errors.Is(err, fault.Unavailable) {
			return err
		}
		// What storage cannot give may be behind the block.
	}
	return s.fetch(ctx, off, n)
}

// ReadAt implements objstorage.ReadHandle.
func (s *stretch) ReadAt(ctx context.Context, p []byte, off int64) error {
	if n := int64(len(p)); !s.has(off, n) {
		ahead := s.of.ahead(s.at)
		if ahead <= n {
			return s.of.t.f.ReadAt(ctx, p, off)
		}
		if err := s.load(ctx, off, n, ahead); err != nil {
			return err
		}
	}
	copy(p, s.buf[off-s.off:])
	return checkBlock(p, off)
}

// block returns a data block, which is valid until the next call of block or ReadAt.
func (s *stretch) block(ctx context.Context, bh block.Handle) ([]byte, error) {
	off, n := int64(bh.Offset), int64(bh.Length)+block.TrailerLen
	if !s.has(off, n) {
		if err := s.load(ctx, off, n, s.of.ahead(bh)); err != nil {
			return nil, err
		}
	}
	b := s.buf[off-s.off:][:n]
	if err := checkBlock(b, off); err != nil {
		return nil, err
	}
	kind := block.CompressionIndicator(b[bh.Length])
	data := b[:bh.Length:bh.Length]
	if kind != block.NoCompressionIndicator {
		n, err := block.DecompressedLen(kind, data)
		if err != nil {
			return nil, err
		}
		if cap(s.plain) < n {
			s.plain = make([]byte, n)
		}
		s.plain = s.plain[:n]
		if err := block.DecompressInto(kind, data, s.plain); err != nil {
			return nil, err
		}
		data = s.plain
	} else if (off-s.off)%8 != 0 { // Pebble's decoders want blocks at multiples of 8
		s.plain = append(s.plain[:0], data...)
		data = s.plain
	}
	s.cols = columns{}
	return data, s.cols.init(data)
}

// lend makes sure that the buffer is counted. It returns false if there is no room.
func (s *stretch) lend() bool {
	if !s.lent {
		s.lent = s.of.t.r.cache.ahead.Try(stretchBytes)
	}
	return s.lent
}

// free ends the Iterator's use.
func (s *stretch) free() {
	if s.lent {
		s.of.t.r.cache.ahead.Release(stretchBytes)
	}
	buf, plain := s.buf[:0], s.plain[:0]
	if cap(buf) > keptBuffer {
		buf = nil
	}
	if cap(plain) > keptBuffer {
		plain = nil
	}
	*s = stretch{buf: buf, plain: plain}
	stretches.Put(s)
}

// Close, SetupForCompaction and RecordCacheHit implement objstorage.ReadHandle.
func (*stretch) Close() error                                 { return nil }
func (*stretch) SetupForCompaction()                          {}
func (*stretch) RecordCacheHit(context.Context, int64, int64) {}
