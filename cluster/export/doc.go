// Package export copies a backup out of the store that it was made in, and into another
// one. Either store may be of a single process or of a cluster, older or newer.
//
// An export is a part of an object store:
//
//	BEGUN.json     of which backup it is, put first
//	sst/NAME.sst   the backup's SSTables, as they are
//	MANIFEST.json  everything else, with sizes and checksums, put last
//
// Without a manifest it is not an export. Nothing in it is ever overwritten: an
// interrupted export is continued, and files of another backup are refused. The exception
// is an SSTable whose size is not what the manifest says, which is copied again.
package export
