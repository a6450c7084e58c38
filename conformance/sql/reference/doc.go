// Package reference compares SQL with GoogleSQL's own reference implementation.
//
// The implementation is C++ that runs in a JVM, from Maven Central. A program of
// a hundred lines (testdata) evaluates queries with it, one a line. Start runs
// that program, and the tests ask it and Trestle the same questions: every
// function with the edges of its domain, and random queries.
package reference
