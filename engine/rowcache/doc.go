// Package rowcache is the Scan Cache of the paper. It keeps rows that are read
// again and again, in the form in which all SSTables of a tablet together have
// them. Such a read neither asks Bloom filters nor merges runs.
//
// An entry holds of one row, in one state of a tablet's SSTables, what a
// compaction of them would leave. A read merges the memtables over it, as
// over SSTables. A state never
// changes: a flush, a compaction, a deleted row range make a new one, and what
// was cached of the old one is not found any more. So there is nothing to
// invalidate, and an entry cannot be stale.
//
// A row is taken in when it was asked for before. Once the cache is full, it
// must have been asked for more often than the row that would make room for it
// (TinyLFU: a sketch counts, and forgets by halving). Rows that are read once,
// whatever their number, displace nothing; scans do not ask at all.
//
// The package knows entries and bytes. It does not read SSTables.
package rowcache
