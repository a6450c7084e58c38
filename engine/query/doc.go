// Package query answers SQL over tables: it prepares a statement, and runs it.
//
//	text ── syntax.Parse ──► tree ── analyze.Statement ──► algebra ── plan.Make ──► plan ── exec ──► batches
//
// It reads rows through a Source, so the same query runs in one process, in a
// cluster and over HBase. It knows tables by algebra.Catalog, and no protocol.
package query
