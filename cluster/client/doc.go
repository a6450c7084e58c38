// Package client is the gateway's way to a cluster: a backend that finds the
// tablet server of each row and asks it.
//
// It remembers where tablets were. A server that does not serve a tablet any
// more says so before it does anything, and the tablet's METADATA row is looked
// up again.
package client
