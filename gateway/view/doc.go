// Package view is what an authorized view lets through: some rows, and in them
// some columns.
//
// Reads through a view see the table as if the rest were not there. Writes
// that touch the rest are refused.
package view
