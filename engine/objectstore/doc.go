// Package objectstore keeps immutable objects: SSTables, log segments, fences
// and snapshots. It has the role that GFS has in the Bigtable paper.
//
// Everything above it rests on one primitive. An object appears under its name atomically,
// whole and durable, and only if there was none of that name. A server refuses to start on
// a store whose Probe finds otherwise.
//
// Local is the form on a directory, on a local disk or a POSIX file system
// that several machines share:
//
//	<dir>/<name>            an object; name may have slashes
//	<dir>/.tmp/<owner>.<n>  an object being written
//	<dir>/…/<N>, .<N>.*     the objects of a Sequence from N on: see bundle.go
//
// An object is written to a temporary file, synced, and linked to its name with link(2),
// which fails if the name is taken. Then the directory that holds the name is synced.
//
// Several machines may share the directory if its file system makes link(2) and rename(2)
// atomic and fsync durable on the server. It must show each machine the changes of others:
// names at once, the content of a file when it is opened. NFS does with hard mounts and
// lookupcache=positive,acdirmin=0,acdirmax=0. Otherwise names are stale by up to a minute:
// new ones seem to be missing, and deleted ones to exist. Each process has an Owner of its
// own. The packages below are s3, for buckets, hdfs, and diskcache, local copies of whole
// objects.
//
// The package knows names and bytes. It does not look into objects.
package objectstore
