// Package sqlshell is the shell behind `trestle sql`: it sends statements to any
// server of the Cloud Bigtable API, and shows what comes back to people and to
// programs.
package sqlshell
