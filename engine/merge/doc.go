// Package merge turns many sorted sources into one, and decides which entries
// of the result are live.
//
// Iterator is the k-way merge. Resolver walks its output and drops what a
// newer entry of the same key, a row, family or column marker, or a range
// tombstone has shadowed. GC is a Resolver with the table's garbage collection
// rules, as compactions use it. Readers and compactions share the Resolver, so
// that a compaction cannot change what a read sees except by a rule.
package merge
