// Package memory is a lock service in memory. It is for simulations, whose Carrier says
// how long calls take and which are lost. It is also for tools that recover a cluster
// without a change.
package memory
