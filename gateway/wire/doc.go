// Package wire translates between the messages of google.bigtable.v2 and the
// engine's own types, and between faults and gRPC statuses.
//
// Everything that can be refused by looking at the request alone is refused
// here, with the path of the field to blame. The requests of MutateRow and
// MutateRows, which carry most of the bytes, are read straight from the
// receive buffer without copying: what they hold aliases it until Release.
package wire
