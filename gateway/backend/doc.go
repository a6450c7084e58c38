// Package backend is the interface that a table store offers to the gateway.
//
// The client of a cluster and the HBase backend fit it without importing it; conformance/backendtest is the suite that each of them passes.
package backend
