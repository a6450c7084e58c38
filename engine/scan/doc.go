// Package scan describes one read of rows: what is asked for, where the rows
// go, and what was seen on the way.
package scan
