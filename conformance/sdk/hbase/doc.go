// Package hbase runs HBase's own Java client and shell against a server, and
// the same calls against a real HBase.
//
// Smoke.java does what an application does: tables, rows, scans, filters,
// deletes, snapshots. Differ.java makes random calls to two clusters and
// compares the answers cell by cell. shell.txt is what a person types.
//
// They need a JDK and jars that are not part of this module, so they run only
// when the jars are there:
//
//	HBASE_CLIENT_JARS   a directory with org.apache.hbase:hbase-shaded-client and
//	                    what it depends on (mvn dependency:copy-dependencies)
//	HBASE_PEER          host:port of the ZooKeeper of a real HBase, for Differ
package hbase
