// Package stream carries the calls of cluster/rpc between processes, over gRPC.
//
// A pair of processes shares one connection with three methods:
//
//   - Mux, one stream that stays open: the small calls of many callers, each
//     with a number, answered in any order. A message is as many frames as
//     gathered while the one before was being sent, so that under load the cost
//     of a message is shared.
//   - Scan, a stream of its own for each large read: its flow control is what
//     holds a reader back.
//   - Call, for what is too large to stand in the way of others, and for
//     Control.
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
