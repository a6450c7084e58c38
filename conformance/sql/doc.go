// Package sql runs GoogleSQL's compliance cases against engine/query.
//
// The cases lie outside of this repository, in a file of JSON lines: TestCases
// reads the path from the flag -sql.cases. Each case is a statement, perhaps with
// parameters, and its result in GoogleSQL's notation (Notation reads it). Statements
// that make stored tables stand between the cases of a file; their rows become
// relations in memory.
//
// testdata/inapplicable.txt lists the cases that cannot apply to Bigtable's dialect,
// each with its reason. A listed case that passes fails the run, so that the list
// says what is so.
//
// TestServers measures aggregates on one tablet server and on three:
//
//	CONFORMANCE_TRESTLE=$PWD/bin/trestle go test ./conformance/sql -run TestServers -v -sql.servers.rows=1000000 -timeout 30m
package sql
