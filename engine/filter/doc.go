// Package filter evaluates row filters (google.bigtable.v2.RowFilter) as
// stages over a stream of cells.
//
// A Node is the filter as the client sent it. Validate checks it, Compile turns
// it into a Program, and a Program makes Pipelines. A Pipeline is fed the cells
// of one row after the other, in order, and pushes what passes to a Writer, in
// order:
//
//	StartRow(key) → Cell* → EndRow        per row
//
// Each answer to Cell tells the feeder how far it may skip. Everything streams
// except Condition, which has to know its verdict first: until then it holds
// back what its branches let through. Where such late cells meet others (in an
// Interleave, or in the output next to a Sink filter) they are sorted in again
// at the end of the row. What is held back is limited by MaxRowBuffer.
//
// Regular expressions are RE2's in Latin-1 mode: patterns and data are bytes,
// and a pattern matches the whole of the data or nothing. Parsing is
// rsc.io/binaryregexp/syntax. Compiling and matching is done here for two
// reasons: only the yes or no of a full match is wanted, and what a filter may
// cost has to be limited. See maxProgram, dfaMemory and MaxRowEffort.
//
// The package knows cells of one row. It does not know tables or protocols.
package filter
