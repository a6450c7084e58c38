// Package rpc is what the servers of a cluster ask of each other: the calls of
// a tablet server and what they carry. How a call travels is for a Dialer to
// say.
package rpc
