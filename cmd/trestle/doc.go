// Command trestle is the server and its tools in one binary.
//
// The command joins the packages and decides nothing about tables: it turns
// settings into options, runs the store and the gateway over it, and stops them
// in order. main.go names the commands, server.go is the life of a server, and
// wire.go is the one file that knows both the engine and the gateway.
package main
