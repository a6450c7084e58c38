// Package local is the lock service of a single process: durable in a
// directory, and without a server.
//
// Items that outlive their maker are rows of one tablet. The tablet has a commit log of
// its own, and its METADATA row is in the file ROOT. So a change is durable after one
// write and one fdatasync, and a crash leaves either the old or the new item. The tablet
// engine is used, rather than an embedded key-value store, because it runs on a vfs.FS.
// The tests cut the power between any two writes. All items are in memory as well, which
// is where reads find them.
//
// The process holds the directory as long as it lives, so a session needs no heartbeat. It
// ends when its holder closes it or the process ends. The items of a session are in memory
// only, and a crash removes them.
//
// Versions stay unique over restarts because their upper half is the incarnation
// in ROOT, which is durable before anything else happens.
//
// # Files
//
//	LOCK         held by the process
//	ROOT         the incarnation, and the METADATA row of the tablet of items
//	log/ sst/    its commit log and SSTables
//
// A row's key is the item's, its one cell the item:
//
//	item := version uvarint, created uvarint, value
package local
