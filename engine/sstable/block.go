package sstable

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"

	"github.com/trestledb/trestle/engine/cell"
)

// The columns of a data block, which are part of the file format: the two of the
// key schema, and of Pebble's that follow them those that our files use.
const (
	columnPrefix  = iota // row prefixes
	columnSuffix         // what follows them in the keys
	columnTrailer        // sequence number and kind
	columnChanged        // whether the row prefix is another than the one before
	columnValue
)

// blockHeader is what comes before the columns of a data block: four bytes with
// the length of its longest key.
const blockHeader = 4

// columns are where things are in a data block. They are found once, when the
// block comes to memory, and kept beside it; all pointers are into the block.
type columns struct {
	rows     int
	longest  int // key
	prefixes colblk.PrefixBytes
	suffixes colblk.RawBytes
	trailers colblk.UnsafeUints
	values   colblk.RawBytes
	changed  colblk.Bitmap
}

// initColumns fills in the metadata of a data block.
func initColumns(md *block.Metadata, data []byte) error {
	return block.CastMetadataZero[columns](md).init(data)
}

// init fills in c, which is empty, for a data block.
func (c *columns) init(data []byte) (err error) {
	defer func() {
		// The decoders panic at bytes that make no sense.
		if r := recover(); r != nil {
			err = fmt.Errorf("data block: %v", r)
		}
	}()
	d := colblk.DecodeBlock(data, blockHeader)
	c.rows, c.longest = d.Rows(), int(binary.LittleEndian.Uint32(data))
	c.prefixes, c.suffixes = d.PrefixBytes(columnPrefix), d.RawBytes(columnSuffix)
	c.trailers, c.values = d.Uints(columnTrailer), d.RawBytes(columnValue)
	c.changed = d.Bitmap(columnChanged)
	return nil
}

// search returns the first entry whose key is at or after key.
func (c *columns) search(key []byte) int {
	n := cell.RowPrefixLen(key)
	lo, same := c.prefixes.Search(key[:n])
	suffix := key[n:]
	if !same || len(suffix) == 0 || bytes.Compare(c.suffixes.At(lo), suffix) >= 0 {
		return lo
	}
	lo++
	for hi := c.changed.SeekSetBitGE(lo); lo < hi; {
		m := int(uint(lo+hi) / 2)
		if bytes.Compare(c.suffixes.At(m), suffix) >= 0 {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return lo
}

// A cursor is a place in a data block.
type cursor struct {
	h   block.BufferHandle // none if the block is in a stretch
	c   *columns           // nil if it is in no block
	at  int                // the entry
	key colblk.PrefixBytesIter
	was int // the entry whose row prefix is in key; below -1 if none is
	// plain has all bits set if no row prefix of the file is escaped, else none.
	plain int32
}

// enter moves to a block, which is the cursor's from here on.
func (u *cursor) enter(h block.BufferHandle) {
	u.h.Release()
	u.h = h
	u.enterColumns(block.CastMetadata[columns](h.BlockMetadata()))
}

// enterColumns moves to a block that the cursor has no part in keeping.
func (u *cursor) enterColumns(c *columns) {
	u.c, u.was = c, -2
	u.key.Init(u.c.longest, nil)
}

// leave gives the block back.
func (u *cursor) leave() {
	u.h.Release()
	u.h, u.c = block.BufferHandle{}, nil
}

// seq returns the sequence number in a trailer.
func seq(trailer uint64) cell.Seq { return cell.Seq(trailer >> 8) }

// take moves to entry n, which has the given trailer, and fills e with it. The key
// is valid until the next call, the value as long as the cursor is in the block.
func (u *cursor) take(n int, trailer uint64, e *cell.Entry) {
	c := u.c
	if n == u.was+1 {
		c.prefixes.SetNext(&u.key)
	} else {
		c.prefixes.SetAt(&u.key, n)
	}
	u.at, u.was = n, n
	suffix := c.suffixes.Slice(c.suffixes.Offsets(n))
	row := len(u.key.Buf)
	e.Key = u.key.Buf[:row+len(suffix)]
	copy(e.Key[row:], suffix)
	e.Value = c.values.Slice(c.values.Offsets(n))
	e.Seq, e.Kind, e.PlainRow = seq(trailer), cell.Kind(trailer), int32(row)&u.plain
}
