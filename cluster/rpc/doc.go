// Package rpc has the calls that the servers of a cluster make to each other: those of a
// tablet server and their arguments. How a call travels is for a Dialer to say.
package rpc
