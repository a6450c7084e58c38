// Package viewstest has materialized views for tests, whose queries need no SQL, and
// compares them with their sources.
package viewstest
