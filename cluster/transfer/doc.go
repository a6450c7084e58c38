// Package transfer moves the tables of a data directory to a cluster, or those of a
// cluster to a data directory, while neither is served.
//
// Both keep the same things: items of a lock service, METADATA rows, SSTables and
// commit logs. So there is one way for both directions:
//
//  1. Both lock services note the transfer (catalog.Transfer). From then on neither
//     side may be served.
//  2. The source is quiesced: each tablet that may have records in a commit
//     log is opened, flushed and given up, as by a server that ends. Everything of
//     it is in SSTables then, and commit logs need not be copied.
//  3. The SSTables that METADATA names are copied as they are, and read back.
//  4. The items are copied, METADATA's own rows among them, but for those about
//     processes and their logs.
//  5. The source notes that the copy is complete, then the target, which can be
//     served from that moment.
//
// Each step can be repeated, so a transfer that was interrupted is begun again. The source
// must not be served afterwards: the two would diverge, and nothing could merge them
// again. Its owner may do so nevertheless (Abandon), until it is Done.
//
// The target goes on with the source's incarnation number, and with epochs of masters
// above the source's. So ids and epochs are not given out again.
package transfer
