// Package tablet serves one row range: it applies mutations, reads rows, and
// turns memtables and SSTables into fewer, larger, cleaner SSTables.
//
// A mutation gets its sequence numbers, goes into the memtable and into the
// commit log's queue under the tablet's write lock, in that order. So the log
// holds a tablet's records in sequence order, and whatever is durable is in the
// memtable. Readers see entries up to the visible sequence number, which the
// log moves once a group of records is synced. A row lock is released before
// the sync. The next change of the row builds on a state that is not yet
// durable, but its own acknowledgement comes later in the same log. So no
// caller is ever told of a state that a crash can take back.
//
// Everything readable is held by an immutable version: the memtables, the
// SSTables by run, the range tombstones. A reader pins the version first and
// takes the visible sequence number second. A flush waits until its memtable is
// durable. So a version never lacks what a reader of it may see. Versions
// follow the METADATA row: the row is changed first, by compare-and-set, then
// the version.
package tablet
