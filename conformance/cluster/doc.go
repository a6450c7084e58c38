// Package cluster runs a cluster as real processes and does to them what
// happens to processes: they are killed, stopped and cut off from each other,
// the lock service and the store go away.
//
//   - Start runs etcd, a store, masters, tablet servers and a gateway, each
//     started again when it ends, as a supervisor does it.
//   - Where network namespaces can be made, each process is a host of its own,
//     and Cut keeps the packets of one host from another, in one direction.
//   - Faults are what a round of the suite does; conformance/history says
//     whether the answers that clients got meanwhile can be explained.
//
// The processes are those that users run. Two are the test binary itself under
// another name, so that nothing has to be installed: etcd (its own server
// package) and a store that speaks S3 and keeps objects in memory. See Main.
package cluster
