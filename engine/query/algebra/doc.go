// Package algebra has the form of a query between its analysis and its
// execution: relational operators over typed expressions.
//
// Package analyze makes it of a syntax tree and a Catalog, package plan makes
// it cheaper, and package exec runs it. Columns are known by number: each is
// computed in one place, and its number is unique in the query. An operator's
// output has the columns of its inputs (as far as they are not said to end
// there) and those that it computes.
package algebra
