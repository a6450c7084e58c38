// Package sim runs a whole cluster in one process: tablet servers, masters and
// clients, on a lock service and a store in memory, over a network that a test
// can disturb.
package sim
