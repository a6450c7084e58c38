// Package transport serves gRPC over HTTP/2 connections.
//
// It does what grpc.Server does, for the services that are registered with it, with fewer
// steps a call. The goroutine that reads a connection hands a call to a waiting worker once
// its message is here. The worker decodes, handles and encodes, and writes the answer to the
// socket itself, together with the answers of others that are ready. A context has neither
// timer nor channel before a handler asks for one.
//
// HTTP/2 is RFC 9113, header compression RFC 7541, gRPC's use of them PROTOCOL-HTTP2.md of
// github.com/grpc/grpc. Frames are parsed by golang.org/x/net/http2, headers by its hpack.
package transport
