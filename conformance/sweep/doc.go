// Package sweep calls every RPC of the Bigtable services, and mistreats the
// server in other ways, to see that it always answers as it should.
//
// A sweep takes the methods from the services' descriptors and sends each an
// empty request, random requests and random bytes. The server must keep the
// connection, answer with a code that fits (never UNKNOWN or INTERNAL), and
// explain every refusal with a google.rpc detail.
//
// An abuse is one way to break the rules of the API, of gRPC or of HTTP/2.
// After each of them a canary, an ordinary write and read, must still work.
package sweep
