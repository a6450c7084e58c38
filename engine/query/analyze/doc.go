// Package analyze turns a syntax tree into algebra: it finds what names mean,
// gives every expression a type, and chooses the signature of every function.
//
// The rules and the messages are GoogleSQL's, with two of Bigtable's: a STRING
// literal becomes BYTES where BYTES are wanted, and a table may be called with its
// history. The package reads no rows; the only values that it computes are those of
// constants.
package analyze
