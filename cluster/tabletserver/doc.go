// Package tabletserver serves the tablets that the METADATA rows of a cluster
// assign to it.
//
// A server lives as long as its session with the lock service. The safety of data does not
// rest on that. Every write is in the server's commit log before it is acknowledged, and
// the next owner of a tablet seals that log first. Every change of a tablet's METADATA row
// is a compare-and-set, which fails once the row has another owner. A server that finds
// itself fenced in either way ends. Only reads rest on the session: they are answered
// while it is certain to last.
package tabletserver
