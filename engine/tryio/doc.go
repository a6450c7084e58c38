// Package tryio reads and writes connections in calls of the system that never wait.
//
// On Linux Go's scheduler is not told of them. It takes the processor away from a goroutine
// that is in the system for 20 µs, and a small write to a connection of the same machine
// often is: what the other end receives is delivered within it. Waking a thread for the
// processor, and parking it again, cost a read of one row a tenth of its server time and one
// that another tablet server answers a sixth
// (docs/decisions/2026-11-29-limits-of-writes.md).
package tryio
