// Package filter evaluates the filters of HBase clients over the cells of rows.
//
// A filter comes as the name of a Java class and that class's message. Each
// class of HBase's client is here as a node with the same callbacks, called in
// the same order as HBase's region scanner does:
//
//	filterRowKey   once a row: drop the row unread
//	filterCell     for each cell: include it or not, and how far to go on
//	transformCell  for each included cell
//	filterRowCells, filterRow   at the end of a row: drop cells, drop the row
//	reset          after each row
//	filterAllRemaining          no later row can pass
//
// That a list of filters merges the answers of its members as HBase does
// matters: filters that count see only what those before them let through.
//
// Where HBase reads beyond the end of a short value, or loses rows to a wrong
// hint, this package gives the answer that the documentation of the class
// promises.
package filter
