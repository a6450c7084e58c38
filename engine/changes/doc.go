// Package changes has the record of what was changed in a tablet, in the order of
// commit: the form of a record, and the change files that keep records after
// the commit log has let go of them.
//
// A change file is written by a flush, beside the SSTables. It knows bytes and
// rows, and no tablets. An index object names many of them, for an owner that would
// have to name each otherwise.
//
// # Order
//
// A file is a sequence of chunks of consecutive records, up to 1 MiB before
// compression. Within a chunk, records are in the order of their rows, those of one
// row in the order of commit. So a reader of few rows, as that of a tablet after
// many splits, reads a small part of each chunk, and rows that are alike lie
// together for the compression. The price is that a reader knows nothing of the end
// of a chunk before it has read all of it: see Position.
//
// Chunks of different files overlap after a merge of tablets, since each file has
// the records of one of them. Iterate reads what overlaps as one chunk.
//
// # Byte format, versions 1 and 2
//
// A file has version 2 if there is a record without changes, which says to views that the
// row has changed. They differ in nothing else.
//
// Integers are little-endian, uvarint and varint those of encoding/binary.
// Everything but the footer is in frames:
//
//	content  Snappy, or as it is if that is not shorter
//	u8       0: as it is, 1: Snappy
//	u32      CRC-32C of what comes before it in the frame
//
// A file is
//
//	for each chunk: frames of blocks of 16 KiB; a frame with the chunk's index
//	frame with the directory
//	footer
//
// A record that does not fit has a block of its own. A block is a sequence of records:
//
//	uvarint  bytes of the row key that it shares with the record before, 0 of the first
//	uvarint  length of the rest of the row key, and the rest
//	uvarint  stamp, less the smallest of the chunk
//	uvarint  length of what follows
//	u8       1: garbage collection made the change, else 0
//	         changes, up to the end:
//	u8       Op
//	uvarint  family; not of DeleteRow
//	uvarint  length of the qualifier, and the qualifier; not of DeleteRow, DeleteFamily
//	varint   timestamp in µs; of DeleteColumn two, the bounds of Times
//	uvarint  length of the value, and the value; of SetCell, AddToCell, MergeToCell
//
// The index of a chunk has for each block
//
//	uvarint  length of the first row key, and the key
//	uvarint  length of the frame
//
// The directory is
//
//	uvarint  records, bytes of all blocks before compression, chunks
//	         and for each chunk:
//	uvarint  length of the frames of its blocks; of the frame of its index
//	uvarint  records; smallest stamp; largest less smallest
//	uvarint  length of the first row key, and the key; the same of the last
//
// The footer has 24 bytes: u64 where the directory's frame begins, u32 CRC-32C of
// these eight bytes, u32 version, and the magic "trestchg".
//
// # Byte format of an index object, version 1
//
// A frame, u32 version, and the magic "trestidx". The frame has
//
//	uvarint  change files, 16,384 at most, ascending by smallest stamp and id
//	         and for each:
//	uvarint  id; smallest stamp, less that of the file before; largest less smallest
//	u8       1: the stamp is that of all records, whatever the file says, else 0
//	uvarint  records; bytes
//	uvarint  length of the first key of a range that has all rows, and the key
//	uvarint  length of the key behind its last, 0 if there is no end, and the key
package changes
