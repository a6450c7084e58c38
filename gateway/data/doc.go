// Package data serves google.bigtable.v2.Bigtable over a backend: each RPC
// decodes its request, calls the backend once and encodes what comes back.
//
// Handlers return faults; the interceptors of package gateway turn them into
// gRPC statuses.
package data
