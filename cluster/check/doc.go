// Package check finds out whether what is kept is what METADATA says: in the data
// directory of a server that is stopped (Directory), in a cluster that serves
// (Cluster), and in one that is stopped (Stopped).
//
// All three read tables, backups and METADATA rows alike (tables), and verify
// SSTables alike. What a start would recover of something that is stopped is
// recovered in memory, over a file system or store that is only read, so that the
// check and a start read alike.
package check
