// Package metadata defines the METADATA row of a tablet, which is its manifest
// (paper §5.1, §5.3). It says where the tablet is, which SSTables it consists
// of, and from where its commit log must be replayed.
//
// A row changes only by compare-and-set on its version. Store is that
// operation; RootFile is its form for the one row that no tablet can hold, the
// row of the METADATA tablet itself. Both are JSON behind a checksum, of the
// version that docs/formats.md gives everything.
package metadata
