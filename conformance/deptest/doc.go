// Package deptest keeps the arrows between packages pointing one way: its test
// compares what each package imports with one table, and sees that each has a
// package comment in doc.go.
package deptest
