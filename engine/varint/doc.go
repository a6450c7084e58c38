// Package varint takes encodings apart whose parts are varints, words of fixed length,
// and bytes with their length before them. Such are records and states that are stored,
// tokens of clients, and messages between servers.
//
// A Decoder is for bytes that may be damaged or hostile. It reads nothing behind their
// end, and allocates nothing. A length or a count that it returns is at most the number
// of bytes that are left. So a caller that makes room for what is announced makes little.
//
// The package knows no encoding of its own: its callers append with encoding/binary.
package varint
