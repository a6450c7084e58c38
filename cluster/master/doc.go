// Package master decides which tablet server serves which tablet.
//
// The master keeps nothing but what it can read again: the METADATA rows and
// the items of the lock service. Its decisions are compare-and-sets of METADATA
// rows, its calls to tablet servers are hints that they should look there. So a
// master that is slow, deposed or dead costs time and never data, and the
// cluster serves on without one.
package master
