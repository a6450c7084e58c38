// Package worker does the background work of the tablets on one commit log:
// minor, merging and major compactions, and the trimming of the log.
package worker
