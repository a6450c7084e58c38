// Package sdk runs the official client's own tests against a server and
// compares the outcome with what is expected of it.
//
// Suites: the integration tests of the Go module
// cloud.google.com/go/bigtable, as its emulator mode runs them (a fresh server
// for each test, through package external) and as its production mode does
// (one server, nothing left out), the commands of the cbt CLI, and those of
// gcloud, if it is installed.
//
// CBT and the production mode ask a server that runs already if $CONFORMANCE_ADDR
// names it, smoke/run.sh the one that it is given. If $CONFORMANCE_CLUSTER is set
// all suites run against clusters of their own instead (`make conformance
// CLUSTER=1`), with the same lists of what is expected.
//
// beam/run.sh runs Beam's own test of its change stream connector, unchanged, against
// the server that it is given.
//
// TestPythonSystem and TestJavaSystem run what the tests that are published beside these
// clients have about SQL and views, unchanged, where Google's names lead to the server
// (as root). Node's client is published without its tests: smoke/sql.js takes the steps
// of smoke/sql.json, as smoke/Sql.java does.
//
// TestGohbase runs the integration tests of an HBase client, gohbase; package hbase
// has those of HBase itself.
//
// A list in expect/ names every test with "pass", or with the feature that it
// waits for. A test that should pass and fails is a regression; one that waits
// and passes is news, to be written into the list. Both fail the run.
//
// The suites need the Go module proxy and minutes of compilation, so they run
// only when $CONFORMANCE_SDK is set; `make conformance` does.
package sdk
