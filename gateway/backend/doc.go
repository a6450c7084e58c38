// Package backend is the interface that a table store offers to the gateway.
//
// engine.Store, a cluster client and the HBase backend fit it without
// importing it; conformance/backendtest is the suite that each of them passes.
package backend
