// Package cell encodes the key of one cell version, and its order.
//
// A key is a byte string; keys compare with bytes.Compare:
//
//	row marker     esc(row) 00 01                                        DeleteRow
//	family marker  esc(row) 00 01 | family u16                           DeleteFamily
//	column marker  esc(row) 00 01 | family u16 | esc(qualifier) 00 01    DeleteColumn
//	cell           esc(row) 00 01 | family u16 | esc(qualifier) 00 01 | ^timestamp u64
//
// esc writes the byte 00 as 00 FF, so that 00 01 ends a part and order is
// kept. A marker is a prefix of everything it can delete, hence sorts before
// it: a forward pass over a row meets every tombstone before its victims.
// Newer timestamps sort first.
//
// An entry is a key with a sequence number, a Kind and a value. Entries of one
// key sort newest sequence number first. A marker covers the entries below it
// in the key order's tree that have a smaller sequence number, whatever their
// timestamps. A column marker covers only those in its list of timestamp
// ranges.
//
// The package knows order and bytes. It does not know schemas or files.
package cell
