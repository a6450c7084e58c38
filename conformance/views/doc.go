// Package views makes materialized views of a server and compares each with its query's
// result, which the server's query engine computes from the source.
package views
