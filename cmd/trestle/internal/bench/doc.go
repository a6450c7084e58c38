// Package bench measures a Bigtable server from outside and checks every
// answer.
//
// A workload is an operation repeated by many workers against one endpoint:
// those of the Bigtable paper's section 7, YCSB's A to F, bulk loads, counters,
// wide rows and others. Every value can be derived from its row, its column and
// the version it carries, and the newest version that a server acknowledged is
// remembered, so an answer that is wrong, stale or lost is found and makes the
// run fail.
//
// Two endpoints can be measured in alternating slices of time (A B A B), which
// cancels out what else the machine does. A bare gRPC server that echoes
// messages of the same sizes, measured in the same way, is the ceiling that no
// server can pass on this machine. The client does the same work for it: it makes
// values of the same sizes, and in place of an echo it checks an answer that the
// measured server once gave.
//
// The client builds and parses messages by hand to be light: on a small machine
// it shares the processors with the server it measures.
package bench
