// Package sim runs a whole cluster in one process. Tablet servers, masters and clients
// share a lock service and a store in memory, over a network that a test can disturb.
package sim
