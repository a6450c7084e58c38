// Package standalone runs a tablet server, the master and a client in one
// process, on a data directory that no other process can reach: a cluster of one.
//
// Calls go from the client to the tablets directly: there is no socket, no
// encoding and no goroutine between them. The lock service is
// cluster/lock/local; the commit logs are files.
package standalone
