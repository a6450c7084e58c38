// Package memory is a lock service in memory, for simulations, whose Carrier
// says how long calls take and which of them, or of their answers, are lost, and
// for tools that recover a cluster without a change.
package memory
