// Package backend is a gateway/backend.Backend whose tables are those of a real
// HBase cluster.
//
//	gateway ── Backend ── raw calls ── gohbase ── ZooKeeper, master, region servers
//
// gohbase finds regions, keeps the connections and sends a call again when a
// region has moved. The calls are our own messages (compat/hbase/pb), because
// gohbase's interface has no conditions, no atomic batches and no way to keep a
// table's attributes.
//
// A table that this package made has, beside the client's families, the family
// "_v". Its cell "v" changes with every change of the row. What reads a row and
// then writes it does so on the condition that the cell is still what was read.
// All families have NEW_VERSION_BEHAVIOR, so that a deletion covers what is
// there and not what comes later.
//
// A table that was made through HBase is read as it is, and written with
// HBase's own operations, so far as those can say what was asked.
package backend
