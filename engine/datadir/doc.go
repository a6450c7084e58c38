// Package datadir makes the data directory of a process so that a power cut does
// not forget it, keeps it to its owner, and keeps disk space in it for a start on a
// full disk.
package datadir
