// Package materialize gives the queries of materialized views their meaning: which
// are allowed, what their rows look like, and what each row of the source contributes.
package materialize
