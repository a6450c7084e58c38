// Package changecheck checks what readers of change streams are told.
//
// A Machine takes the messages of one ReadChangeStream and refuses any sequence that
// the official clients would. A Checker judges the records of all streams that read
// one table: per row they come in the order of commit, none twice after a token, and
// none at or before a watermark that was told. Missing compares them with what was
// written. Apply rebuilds the table of them.
package changecheck
