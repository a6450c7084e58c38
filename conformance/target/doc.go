// Package target finds or starts the server that a conformance test talks to:
// the address in $CONFORMANCE_ADDR, or the binary in $CONFORMANCE_TRESTLE run
// on a temporary directory (as a cluster of processes, `trestle dev-cluster`, if
// $CONFORMANCE_CLUSTER is set), or else a gateway over conformance/model inside
// the test's own process.
package target
