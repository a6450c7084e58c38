// Package transfer moves the tables of a data directory to a cluster, or those of a
// cluster to a data directory, while neither is served.
//
// Both keep the same things: items of a lock service, METADATA rows, SSTables and
// commit logs. So there is one way for both directions:
//
//  1. Both lock services note the transfer (catalog.Transfer). From then on nobody
//     serves either side.
//  2. The source is brought to rest: each tablet that may have records in a commit
//     log is opened, flushed and given up, as by a server that ends. Its SSTables are
//     all there is of it then, and commit logs need not be copied.
//  3. The SSTables that METADATA names are copied as they are, and read back.
//  4. The items are copied, METADATA's own rows among them, but for those about
//     processes and their logs.
//  5. The source notes that the copy is complete, then the target, which can be
//     served from that moment.
//
// Each step can be repeated, so a transfer that was interrupted is begun again. The
// source is not to be served afterwards: the two would go apart, and nobody could
// bring them together again. Its owner may do so nevertheless (Abandon), until it is
// Done.
//
// The target goes on with the source's incarnation number, and with epochs of
// masters above the source's, so ids and epochs are not given out again.
package transfer
