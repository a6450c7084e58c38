// Package tabletserver serves the tablets that the METADATA rows of a cluster
// assign to it.
//
// A server lives as long as its session with the lock service. What keeps data
// safe does not rest on that: every write is in the server's commit log before
// it is acknowledged, and whoever takes over a tablet seals that log first;
// every change of a tablet's METADATA row is a compare-and-set, which fails
// once the row has another owner. A server that finds itself fenced in either
// way ends. Only reads rest on the session: they are answered while it is
// certain to last.
package tabletserver
