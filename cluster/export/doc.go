// Package export copies a backup out of the store that it was made in, and into
// another one: of a single process or of a cluster, older or newer.
//
// An export is a part of an object store:
//
//	BEGUN.json     of which backup it is, put first
//	sst/NAME.sst   the backup's SSTables, as they are
//	MANIFEST.json  everything else, with sizes and checksums, put last
//
// Without a manifest it is not an export. Nothing in it is ever overwritten: an
// export that was interrupted is gone on with, and what is there of another
// backup is refused.
package export
