// Package rest serves unary gRPC methods as REST with JSON, the way Google's
// front ends do. Routes come from the google.api.http annotations of the
// services' descriptors. Messages are in protobuf's JSON mapping, and errors in
// the form {"error": {"code", "message", "status", "details"}}.
//
// It decides nothing about a request but its form. Calls go to a Caller, which
// knows who may do what.
package rest
