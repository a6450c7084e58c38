// Package sstable writes and reads SSTables: immutable, sorted files of cell
// versions. It is the one package that knows Pebble, whose sstable, bloom and
// block cache packages it wraps.
//
// A file holds entries in cell.Compare order:
//
//	data block    ~31.5 KiB of entries, columnar: row prefixes, rests of keys, seq+kind, values
//	...
//	index block   per data block: a separator key, offset, length, timestamp interval
//	filter block  Bloom filter over row prefixes; where rows have many columns, over
//	              those too (filterWriter)
//	properties    Pebble's, and trestle.info (Info as JSON)
//	metaindex     where filter and properties are
//	footer        61 bytes: handles, CRC, format version 7, magic
//
// Every block and the footer carry a CRC-32C, checked whenever they come from
// storage; blocks in the cache were checked on their way in. A mismatch is an
// error that wraps fault.Corruption.
//
// Files are written by Pebble's writer. Reading goes by its block reader, cache and
// column decoders; what moves over blocks and entries is this package's own
// (Iterator), at half the cost of Pebble's iterator.
//
// Values stay beside their keys (Pebble's value blocks are off): with rows as
// prefixes, Pebble would move all cells of a row but the first elsewhere.
//
// The timestamp interval of a block covers its cells. A block with a tombstone
// has the interval of all time, so that a filter on time never hides a
// tombstone from a reader that sees what it deletes.
//
// The package knows entries, not schemas: what an entry means is decided above.
package sstable
