// Package tempfs is a file system for data that is of no use after the process that
// wrote it: it never waits for the disk.
//
// Files of a temporary server mostly come and go in the page cache. Syncing
// them would be the larger part of its start, and of every write.
package tempfs
