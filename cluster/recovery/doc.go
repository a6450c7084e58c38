// Package recovery has a cluster go on without what it lost for good: the items of
// its lock service, or segments of a commit log. It says what that costs before
// anything is changed.
package recovery
