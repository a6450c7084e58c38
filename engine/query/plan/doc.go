// Package plan makes a query cheaper before it runs: it moves conditions down to
// the tables, and works out which rows and cells a table has to give.
//
// Make rewrites the algebra of a statement, once. Bind turns what it says of a
// Scan into a read, for each execution: ranges of row keys may depend on
// parameters. Explain describes a plan. Nothing here reads a row.
package plan
