//go:build !unix

package objectstore

import "io/fs"

// sameInode cannot tell: what a Stat of these systems returns has no number of
// the file. A name that is taken then counts as somebody else's.
func sameInode(_, _ fs.FileInfo) bool { return false }
