// Package memtable holds the newest entries of a tablet in memory, in order.
//
// A Memtable is a skiplist over an arena. One goroutine at a time adds entries
// (the caller holds the lock that says so); any number of goroutines iterate at
// the same time without locks. Entries are never changed or removed, so what an
// iterator hands out stays valid for as long as anything refers to it. The
// garbage collector frees a whole memtable at once when nothing does.
//
// Nodes live in chunks that hold no Go pointers, so that a memtable of a
// million entries costs the garbage collector as much as one of none. The
// first chunk is allocated by the first Add, so an idle tablet's memtable costs
// a few hundred bytes. A node is:
//
//	+--------------+----------------+---------------+------------+-----------------+--------------------+-----+-------+
//	| key len (4B) | value len (4B) | value at (4B) | later (4B) | seq<<8|kind (8B) | next (4B) × height | key | value |
//	+--------------+----------------+---------------+------------+-----------------+--------------------+-----+-------+
//
// and its address is chunk number << 17 | offset / 8 in 32 bits; address 0 is
// the end of the list. Readers and the writer agree through the next links
// alone: a node and its chunk are complete before the atomic store that links
// the node, at the lowest level first.
//
// A memtable that records (NewRecording) links its nodes in the order of commit too,
// through later, which is 0 in others. Nodes of height 0 are in that list alone.
//
// The package knows keys as bytes with a sequence number. It does not know
// what they mean.
package memtable
