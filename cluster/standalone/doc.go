// Package standalone is a cluster of one: a tablet server, the master and a client in one
// process. It runs on a data directory that no other process can reach.
//
// Calls go from the client to the tablets directly: there is no socket, no
// encoding and no goroutine between them. The lock service is
// cluster/lock/local; the commit logs are files.
//
// # Files
//
//	FORMAT   the version of the directory, 2
//	lock/    the lock service: see cluster/lock/local
//	mlog/    the commit log of METADATA
//	ulog/    the commit log of all tables
//	sst/     SSTables, named by incarnation and number
//	RESERVE  space for a start on a full disk: see engine/datadir
package standalone
