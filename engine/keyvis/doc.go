// Package keyvis records which rows of each table are read and written, over time, for
// a heat map (key visualizer).
//
// A Recorder asks the tablets of a process for their counts and samples of keys, and
// stores a column a minute. A History is the columns of all processes that share a store.
// It has a column a minute for 6 hours, one of ten minutes for 4 days, and one of an hour
// for 14 days. What a column has of a tablet is by rows, and no tablet's name is in it: so
// splits, merges and moves leave no seam.
package keyvis
