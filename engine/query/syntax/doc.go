// Package syntax turns the text of a GoogleSQL statement into a tree.
//
// Parse reads one statement. The tree says what was written and where, and
// nothing of what it means: names, types and functions are for package analyze.
// The language is that of GoogleSQL's lexical.md and query-syntax.md
// (github.com/google/googlesql), as far as Bigtable's dialect has it, with what
// docs/sql.md adds.
package syntax
