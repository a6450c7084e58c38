// Package streamcheck holds the answers to ExecuteQuery to the rules that the
// official clients keep the stream to, as an interceptor of a gRPC client. What
// a client would take for an error, drop without a word or count twice is a
// violation.
package streamcheck
