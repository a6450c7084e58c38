// Package wire is the form that HBase's RPC protocol has on a connection: the
// preamble, frames, cell blocks and their compression, and exceptions.
//
//	client  'H' 'B' 'a' 's'  version u8 = 0  auth u8 = 80 (SIMPLE)
//	client  length i32  ConnectionHeader
//	client  length i32  | uvarint, RequestHeader  | uvarint, message | cell block
//	server  length i32  | uvarint, ResponseHeader | uvarint, message | cell block
//
// Integers are big-endian. A response with an exception ends behind its header.
// The cell block, whose length is in the header, is a sequence of KeyValues.
//
// The package knows bytes. It knows nothing of tables.
package wire
