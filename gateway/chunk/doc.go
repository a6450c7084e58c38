// Package chunk encodes the rows of a read straight into the bytes of
// google.bigtable.v2.ReadRowsResponse, and changes into those of
// ReadChangeStreamResponse.
//
// A message is a sequence of chunks, one per cell, or per MiB of a large one:
//
//	0A len (row_key family_name qualifier)? timestamp labels value value_size? commit_row?
//	^ field 1 of ReadRowsResponse
//
// Chunks go into segments, buffers from a pool that gRPC hands back when it has
// written them. A chunk lies in one segment, a message may span several. So the
// value of a cell is copied once. Only the last cell of a row carries
// commit_row, which is known when the row ends: its chunk, the last one
// written, is then patched.
//
// The Writer never splits a row over two messages, since Go's client refuses
// that. Parts does it, where another client accepts 4 MiB at most.
//
// In a cluster the server that has the rows writes the chunks, and the one that
// has the client puts them into its messages as they come: see
// scan.EncodedWriter.
//
// A ChangeWriter encodes the records of a change stream in the same segments, as
// messages of ReadChangeStreamResponse. One message is one record, or about 1 MiB of
// it, and lies in one segment.
package chunk
