// Package metastore keeps the METADATA of a cluster, in the three levels of the Bigtable
// paper (section 5.1). The lock service names the METADATA tablets, and these name all
// others.
//
// Every change of a row is a compare-and-set, so a server that has lost a
// tablet cannot change the tablet's row any more. A change whose answer was
// lost is asked for again, with the same bytes, until it is known what became
// of it.
package metastore
