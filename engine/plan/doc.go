// Package plan turns the operations of the data API on one row into operations
// of the tablet that serves the row. It holds them against the table's schema,
// before anything has an effect, and computes what depends on the row's present
// state.
package plan
