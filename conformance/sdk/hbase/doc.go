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
//	HBASE_TOOLS_JARS    a directory with the test jars of hbase-mapreduce (2.6) and
//	                    hbase-it (2.4.17), hbase-server, hbase-common and
//	                    hbase-zookeeper (test jars too), junit and
//	                    hadoop-mapreduce-client-jobclient, with what they depend on
//	HBASE_SHELL_JARS    a directory with org.apache.hbase:hbase-shell and
//	                    org.jruby:jruby-complete, with what they depend on
//	HBASE_SERVER_JARS   a directory with org.apache.hbase:hbase-server (2.6), for
//	                    TestSpeed, which starts it
//	CONFORMANCE_TRESTLE the binary, for TestTLS and TestSpeed
//	HBASE_ADDR, HBASE_QUORUM
//	                    host:port of a server that runs already, and of its ZooKeeper,
//	                    for TestSmoke: those of `trestle dev-cluster --hbase`, say
//	HBASE_PEER          host:port of the ZooKeeper of a real HBase, for Differ
package hbase
