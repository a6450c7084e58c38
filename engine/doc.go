// Package engine is a table store in one process: a data directory of tables
// and their tablets, on one commit log. No program uses it any more: `trestle serve`
// is cluster/standalone. It stays until its tests, which prove the tablets, stand
// on that.
//
// A data directory holds
//
//	FORMAT   the on-disk format version
//	LOCK     held while a process has the directory open
//	ROOT     incarnation, and the METADATA tablet's own row; ROOT.copy is the same
//	log/     the commit log of the METADATA tablet
//	ulog/    the commit log of all other tablets
//	sst/     SSTables, named by incarnation and number
//
// With Options.Objects the last three are in that store, the logs in their
// segment-object form, and FORMAT says in which.
//
// The METADATA tablet is a tablet like any other. Its rows are the METADATA
// rows of the tablets, the schemas of the tables, and the gateway's records.
// Its log is replayed first, then all else is known.
package engine
