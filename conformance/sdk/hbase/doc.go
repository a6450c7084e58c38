// Package hbase runs HBase's own Java client and shell against a server, and
// the same calls against a real HBase.
//
// Smoke.java does what an application does: tables, rows, scans, filters,
// deletes, snapshots. Differ.java makes random calls to two clusters and
// compares the answers cell by cell. shell.txt is what a person types.
//
// TestSQL asks SQL of a gateway over a real HBase, and of one process. TestPhoenix
// measures SQL beside Phoenix's: `make phoenix`.
//
// They need a JDK (17) and jars that are not part of this module, so they run only
// when the jars are there; `make hbase` fetches them and runs everything.
//
//	HBASE_JARS          where testdata/fetch.sh has put the jars
//	CONFORMANCE_TRESTLE the binary, for TestTLS, TestSpeed and clusters
//	CONFORMANCE_CLUSTER not empty: against `trestle dev-cluster --hbase`, instead of
//	                    one process
//	HBASE_PEER          host:port of the ZooKeeper of a real HBase that runs already,
//	                    for Differ
package hbase
