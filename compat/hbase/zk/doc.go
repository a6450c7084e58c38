// Package zk lets HBase clients find a cluster through the ZooKeeper protocol.
//
// It is a ZooKeeper server for readers. It publishes a small tree of nodes that
// its owner replaces as a whole. It answers reads and watches, and refuses
// every write as ZooKeeper's own read-only mode does. Nothing is stored; a
// session owns nothing, so that it can be resumed for as long as the process
// lives.
//
// A frame is a big-endian int32 length and that many bytes. The first one of a
// connection asks for a session,
//
//	int32 protocol, int64 last zxid, int32 timeout (ms), int64 session, buffer password[, bool read-only]
//
// every later one is a request, answered in order:
//
//	int32 xid, int32 operation, ...        →  int32 xid, int64 zxid, int32 error, ...
//
// Numbers are as in ZooKeeper's zookeeper.jute and ZooDefs.
package zk
