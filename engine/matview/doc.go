// Package matview keeps materialized views up to date: it says what changes in a
// view when a row of its source does.
//
// What a view's query makes of one row of its source is the row's contribution. The
// difference of two contributions of a row is a delta of each group, or index key,
// that it concerns. Deltas add up in any order, and one that was added can be taken
// away again: the state of a group is an element of an abelian group. So a view
// needs neither the rows of a group nor the order of their changes, and its source's
// tablets may be split, merged and moved while deltas are on their way.
//
//	contribution   what is stored for a row of the source
//	Deltas         old and new contributions in, payloads by target key out
//	Target         payloads in, mutations of a row of the view out
//
// SUM and AVG of FLOAT64 are exact, so that what is taken away leaves no trace. MIN,
// MAX, ANY_VALUE and sketches count each of their values, in cells of a hidden
// family; index rows count each source row's cells likewise.
package matview
