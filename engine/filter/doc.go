// Package filter evaluates row filters (google.bigtable.v2.RowFilter) as
// stages over a stream of cells.
package filter
