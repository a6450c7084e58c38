// Package membership keeps a process in a list of living processes that the lock
// service has, and tells it of the others.
package membership
