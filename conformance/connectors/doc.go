// Package connectors runs programs that others have published against Trestle,
// unchanged, and writes docs/connectors.md: which ran, and what does not work.
//
// There is a test for each program. It fetches the program from its registry
// (testdata/fetch.sh), runs it against one process, or where the page says so
// against a cluster of which servers are killed meanwhile, and reads what is
// stored with the official Go client. What cannot be fetched is skipped and named on
// the page; it is a failure if testdata/results.json says that it ran before.
//
// `make connectors` runs everything; without these variables the tests skip
// themselves:
//
//	CONNECTORS          the directory for what is fetched
//	CONFORMANCE_TRESTLE the binary
//
// -connectors.update writes results.json and the page after a run. Java programs
// want a JDK (17) and Maven, Python programs Python 3.
package connectors
