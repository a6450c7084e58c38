// Package formats opens what each format version of a data directory and of a
// cluster's store holds, as builds of that version wrote it: docs/formats.md. What
// this build writes is in testdata too, so later ones can be held to it.
package formats
