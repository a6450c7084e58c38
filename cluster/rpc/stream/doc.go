// Package stream carries the calls of cluster/rpc between processes.
//
// A process has two connections to another, on one address:
//
//   - Mux, which carries frames: the small calls of many callers, each with a
//     number, answered in any order. What has gathered while a write was under
//     way goes with the next one, so that under load its cost is shared. Both
//     ends greet with eight bytes first.
//   - gRPC, with two methods. Scan is a stream of its own for each large read: its
//     flow control is what holds a reader back. Call is for what is too large to
//     stand in the way of others, and for Control.
//
// A frame is
//
//	length | number | op | time left in µs, 0: any | body      of a question
//	length | number | kind | body                              of an answer
//
// with all integers as uvarints but op and kind, which are bytes. Bodies are
// those of codec.go. A call that was never handed to the connection is
// Unavailable; one that changes something and whose answer did not come is
// rpc.ErrUnknown.
package stream
