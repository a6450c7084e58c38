// Package fault names the few kinds of failure that a caller can act on.
//
// Every error that leaves the engine either wraps a Kind, or is a context
// error, or is a bug. The gateway owns one table from Kind to gRPC status; the
// HBase server owns another. Nothing below them knows a wire code.
package fault
