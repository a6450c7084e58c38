// Package memory is a lock service in memory, for simulations: its Faults say
// how long calls take and which of them, or of their answers, are lost.
package memory
