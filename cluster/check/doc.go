// Package check finds out whether the data directory of a server that is stopped is
// what its METADATA says.
//
// What a start would recover is recovered in memory (standalone.OpenMetadata), so
// that the check and a start read alike, and the directory stays as it is.
package check
