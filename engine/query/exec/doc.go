// Package exec runs queries: it evaluates expressions and relational operators
// over batches of rows.
//
// An operator is pulled: Next gives up to types.BatchRows rows as columns, made of
// the rows of its inputs. What is not needed is not computed: expressions are
// evaluated for the rows of a selection only, so that IF and AND keep their
// promises. Operators that hold rows take memory from an account before they grow,
// and go on in temporary files when there is none left.
package exec
