// Package fragment has the form in which a part of a query goes to the server of a
// tablet: a Scan, conditions and projections over it, and perhaps an aggregation
// of which the server returns partial states.
//
// A fragment is made for one execution: parameters are values in it. It names
// functions by their place in the table of package functions, and carries a
// fingerprint of that. A server with another table cannot read it, and gives rows
// instead.
package fragment
