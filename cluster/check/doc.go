// Package check finds out whether the stored files agree with METADATA. It checks the data
// directory of a stopped server (Directory), a running cluster (Cluster), and a stopped
// one (Stopped).
//
// All three read tables, backups and METADATA rows alike (tables), and verify SSTables
// alike. It recovers in memory what a start would recover, over a file system or store
// that is only read. So the check and a start read alike.
//
// Views compares materialized views with what their queries make of the tables, and
// DirectoryViews those of a stopped server.
package check
