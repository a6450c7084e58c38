// Package functions has every function and operator of SQL, each as one entry
// of one table: its signatures, what it computes, and what docs/sql.md says of
// it.
//
// Results, to the last digit, and errors are GoogleSQL's
// (github.com/google/googlesql, functions-reference.md, and the evaluator
// that it describes). The package knows values and types, and no queries.
package functions
