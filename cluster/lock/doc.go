// Package lock is the lock service that a cluster stands on: a small, strongly consistent
// map of named items. Items have versions and watches, and those of a session vanish when
// their holder does. It has the role of Chubby in the Bigtable paper (section 4).
//
// Nothing that a tablet server has acknowledged rests on it: a lost or late answer of the
// lock service can cost availability only. Package cluster/lock/etcd implements it on
// etcd, cluster/lock/memory in the memory of a simulation.
package lock
