// Package stream carries the calls of cluster/rpc between processes.
//
// A process has three kinds of connections to another, on one address:
//
//   - Mux, which carries frames: the small calls of many callers, each with a
//     number, answered in any order. What has gathered while a write was under
//     way goes with the next one, so that under load its cost is shared. Both
//     ends greet with eight bytes first.
//   - Scans: one connection for each large read that is under way, kept for the
//     next one. TCP's flow control is what holds a reader back; a read is given up
//     by closing its connection. Both ends greet here too, with other bytes.
//   - gRPC, with two methods. Call is for what is too large to stand in the way of
//     others, and for Control; Scan is for large reads of servers that know no
//     connections for them.
//
// A frame is
//
//	length | number | op | time left in µs, 0: any | body      of a question
//	length | number | kind | body                              of an answer
//
// and on a connection for scans
//
//	length | target, read, encoding[, fragment]                the question
//	length | kind | records                                    messages, the last
//	                                                           with recordDone
//
// where the bytes of a recordPiece follow its message. They are rows that the server has
// encoded for a scan.EncodedWriter with that encoding, which this package does not look
// into. With a fragment (scan.FragmentWriter) they are what the server has made of rows.
// A reader without an encoding, or with one that the server has not, is sent cells.
//
// All integers are uvarints but op and kind, which are bytes. Bodies are those
// of codec.go. A call that was never handed to the connection is
// Unavailable; one that changes something and whose answer did not come is
// rpc.ErrUnknown.
package stream
