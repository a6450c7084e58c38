// Package types has the types and values of SQL: how a value is kept while a
// query runs, alone (Value) and as one of a thousand (Vector).
//
// The meaning of types, and of their comparison, is GoogleSQL's
// (github.com/google/googlesql, data-types.md). The package knows neither
// syntax nor functions.
package types
