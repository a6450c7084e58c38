// Package bttest has the exported API of cloud.google.com/go/bigtable/bttest
// and starts a server in a process of its own instead of a fake in memory.
//
// Its files are laid over that package in a copy of the module, so that tests
// written for the fake run against the server. It therefore imports nothing
// of this project.
package bttest
