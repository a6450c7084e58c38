// Package sql answers PrepareQuery and ExecuteQuery over an engine of queries:
// it knows the protocol's types, values, tokens and framing, and shows the
// engine the tables, views and schema bundles of an instance.
//
// A result goes out as batches of rows, each a serialized ProtoRows that is
// encoded by hand, with a CRC32C. The rules of the stream are those of
// google.bigtable.v2.PartialResultSet, as narrow as the official clients have
// them:
//
//   - The first message of a stream with results says reset: clients keep their
//     buffers when they try again.
//   - The last message of a batch has its checksum, and a resume token comes
//     with or after that, never with length 0. Checksums are never 0, which
//     Node's client takes for none.
//   - The first token comes after 4 MiB or at the end, whichever is first. Go's
//     client begins anew without a token when it tries again, so its caller
//     would see rows twice.
//   - Failures behind the first token are not UNAVAILABLE, for the same reason.
//   - estimated_batch_size stays 0: Node's client fails on anything else.
package sql
